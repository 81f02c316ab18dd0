//! Runs a program in attempts, each with the lessons of the earlier ones.
//!
//!   attempt ─► value out of range · dictionary larger than planned · no memory ─► lesson ─► next attempt, up to 12
//!
//! No row has left the device when an attempt is repeated, and only the values of dictionaries are kept.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::execution::TaskContext;
use futures::future::try_join_all;
use millpond_kernels::tune;
use millpond_memory::{Scope, Stream};

use crate::device::Engine;
use crate::device::learnt::{PlanKey, PlanLearnt, StringForm};
use crate::error::failure::Failure;
use crate::plan::snapshot::Looks;
use crate::plan::subqueries::Subqueries;
use crate::profile;
use crate::program::context::{Notes, RunContext};
use crate::program::contract::{Opening, Source, SourceRun};
use crate::program::counts::Tally;
use crate::program::keeper::Keeps;
use crate::program::part::Kept;
use crate::program::prepared::{Lessons, Prepared, Split};
use crate::program::results::Output;
use crate::program::run::Run;
use crate::program::schedule::Schedule;
use crate::program::segment_result::SegmentResult;
use crate::program::segments::Program;

/// Program that a border node runs, and its state for later runs.
pub(crate) trait Runs {
    /// The device.
    fn engine(&self) -> &Arc<Engine>;
    /// Key of its plan's structure.
    fn key(&self) -> PlanKey;
    /// The program.
    ///
    /// # Errors
    /// Why its plan has none.
    fn program(&self) -> Result<&Arc<Program>, Failure>;
    /// The program, prepared with `lessons` over the opened sources.
    ///
    /// # Errors
    /// Why the program has no form over its sources' columns.
    fn prepared(
        &self,
        opened: &[Box<dyn SourceRun>],
        lessons: &mut Lessons,
        tally: &Tally,
    ) -> Result<Arc<Prepared>, Failure>;
    /// Keeps the result on the device; `None` if the result is downloaded.
    fn keeper(&self) -> Option<&dyn Keeps>;
    /// Values of subqueries in this copy of the plan.
    fn subqueries(&self) -> &Subqueries;
    /// Snapshots of its files, as the planning of this copy has seen them.
    fn looks(&self) -> Option<Arc<Looks>>;
    /// Counts a run as active until the returned guard is dropped.
    fn under_way(&self) -> Box<dyn Send + Sync>;
    /// Receiver of notes to the user.
    fn notes(&self) -> Arc<dyn Notes>;
}

/// Runs the program of `border`, attempt after attempt.
pub(crate) async fn run(
    border: &impl Runs,
    context: &Arc<TaskContext>,
    scope: &Scope,
    tally: &Arc<Tally>,
    out: &Output,
) -> Result<(), Failure> {
    let (key, engine) = (border.key(), border.engine());
    let PlanLearnt { strings, groups } = engine.learnt.get(key);
    let context = RunContext::new(engine, context, scope.clone(), tally, border.notes());
    let context = context.planned_with(border.subqueries(), border.looks());
    let context = Arc::new(context.counted_by(border.under_way()));
    let mut attempts = Attempts { context, out, lessons: Lessons { strings, groups, ..Lessons::default() } };
    let remembered = attempts.lessons.strings.clone();
    let mut trouble = None;
    for _ in 0..MAX_ATTEMPTS {
        tally.attempts.fetch_add(1, Ordering::Relaxed);
        let attempt = Arc::new(attempts.begin(border).await?);
        let ended = profile::attempt(run_once(&attempt, border.keeper()), Failure::lesson).await;
        trouble = match &ended {
            Err(Failure::Trouble(trouble) | Failure::Midway(trouble)) => Some(trouble.clone()),
            _ => None,
        };
        let Some(ended) = attempts.learn(&attempt, ended)? else { continue };
        if attempts.lessons.strings != remembered {
            // The string forms of a failed run are not remembered.
            let strings = if ended.is_ok() { attempts.lessons.strings } else { StringForm::default() };
            engine.learnt.learn(key, |known| known.strings.clone_from(&strings));
        }
        let groups = &attempt.lessons().groups;
        if ended.is_ok() && !groups.is_empty() {
            engine.learnt.learn(key, |known| known.groups.clone_from(groups));
        }
        return ended;
    }
    // The last attempt's trouble, if it had any; otherwise that plans kept changing.
    Err(trouble.map(Failure::Trouble).unwrap_or_else(|| {
        Failure::trouble(format!(
            "gave up after {MAX_ATTEMPTS} attempts: what is planned from the values kept changing"
        ))
    }))
}

/// State shared by the attempts at running one program.
struct Attempts<'o> {
    context: Arc<RunContext>,
    out: &'o Output,
    /// Lessons for the next attempt.
    lessons: Lessons,
}

impl Attempts<'_> {
    async fn begin(&mut self, border: &impl Runs) -> Result<Run, Failure> {
        let (program, tally) = (border.program()?, &self.context.tally);
        loop {
            // Sources open concurrently: none waits for another's first reads.
            let opening = program.sources.iter().enumerate().map(|(number, source): (usize, &Arc<dyn Source>)| {
                let needed = self.lessons.strings.needed_of(number);
                let (streams_out, piecewise) = (program.streams_out(), self.lessons.piecewise);
                source.open(Opening { context: &self.context, needed, streams_out, piecewise })
            });
            let opened = try_join_all(opening.collect::<Vec<_>>()).await?;
            let strings = &mut self.lessons.strings;
            opened.iter().enumerate().for_each(|(number, source)| strings.settle(number, source.texts()));
            let prepared = tally.preparing(|| border.prepared(&opened, &mut self.lessons, tally))?;
            // If an expression needs the dictionary of a column without one, the source is opened again, with one.
            let strings = &self.lessons.strings;
            let mut lacking = opened.iter().enumerate().filter(|(number, source)| {
                source.texts().is_some_and(|texts| !texts.is_disjoint(&strings.needed_of(*number)))
            });
            if lacking.next().is_none() {
                return Ok(Run::new(prepared, opened, &self.context, self.out));
            }
        }
    }

    /// Takes the lessons of a failed `attempt`; returns its outcome if another attempt is useless.
    ///
    /// # Errors
    /// The attempt's failure, if the next one would fail, too.
    fn learn(&mut self, attempt: &Run, ended: Result<(), Failure>) -> Result<Option<Result<(), Failure>>, Failure> {
        let lessons = &mut self.lessons;
        let nothing_left = self.out.sent.load(Ordering::Relaxed) == 0;
        let is_ours = |failure: &Failure| match failure {
            Failure::Trouble(trouble) => !trouble.lost,
            Failure::Input(_) | Failure::Cancelled => false,
            _ => true,
        };
        match ended {
            // A wrong assumption can cause any failure.
            Err(failure) if attempt.results.questions.has_assumed() && nothing_left && is_ours(&failure) => {
                attempt.prepared.answers().forget();
                lessons.asks = true;
            }
            Err(Failure::Ranges) if !lessons.wide && nothing_left => lessons.wide = true,
            Err(Failure::Dictionaries(sizes)) if nothing_left => {
                for (column, size) in sizes {
                    let known = lessons.dictionaries.entry(column).or_default();
                    // Four times what was seen, so that a slowly growing dictionary does not restart the run each time.
                    *known = (*known).max(size * 4);
                }
            }
            Err(Failure::Texts(columns)) if nothing_left => lessons.strings.texts.extend(columns),
            // The dictionaries are complete by now.
            Err(Failure::Ranks) => {}
            Err(Failure::Arena) if nothing_left => lessons.arena_times = attempt.reached.larger_arenas()?,
            // Resident columns can be evicted once this run no longer reads them whole.
            Err(failure)
                if failure.wants_less() && nothing_left && !lessons.piecewise && attempt.reads_whole_columns() =>
            {
                lessons.piecewise = true;
            }
            Err(failure) if failure.wants_less() && nothing_left => {
                let next = attempt.lessons().split_next;
                match next {
                    Some(Split::Feeds) => lessons.one_by_one = true,
                    Some(Split::Groups(segment, passes)) => {
                        lessons.passes.insert(segment, passes.min(tune::MAX_KEY_PARTS));
                    }
                    Some(Split::Join(build, parts)) => {
                        lessons.join_parts.insert(build, parts.min(tune::MAX_KEY_PARTS));
                    }
                    None => return Err(failure),
                }
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }
}

/// Maximum number of attempts of a run.
const MAX_ATTEMPTS: usize = 12;

/// One attempt: runs all segments and sends the result.
async fn run_once(run: &Arc<Run>, keeper: Option<&dyn Keeps>) -> Result<(), Failure> {
    let stream = run.context.engine.streams.take(&run.context.scope)?;
    let Some(result) = Schedule::new(run, &stream).result().await? else { return Ok(()) };
    // The first wait for the result also covers the copies for the check.
    run.check_before(&stream)?;
    if let Some(keeper) = keeper
        && stays(run, keeper, &result, &stream).await?
    {
        return Ok(());
    }
    // Batches are kept until the last one is downloaded: until then the CPU can take over.
    let mut held = run.context.host_memory("results");
    for part in result.parts {
        let mut part = part.on_device(&stream)?;
        if let Some(selection) = &run.prepared.program.selection {
            part = part.select(selection)?;
        }
        let batch = run.download(&part, &stream, false).await?;
        held.grow(batch.get_array_memory_size());
        run.results.keep(batch);
    }
    run.check().await?;
    run.results.send_kept().await
}

/// True if the result stays on the device. If it does not fit there, it is downloaded.
async fn stays(run: &Arc<Run>, keeper: &dyn Keeps, result: &SegmentResult, stream: &Stream) -> Result<bool, Failure> {
    let program = &run.prepared.program;
    // With a row limit or an offset, the device holds rows that do not belong to the result.
    if program.row_limit.is_some() || program.row_offset > 0 {
        return Ok(false);
    }
    let lend = |kept: &Kept| {
        let part = kept.lend(stream)?;
        match &program.selection {
            Some(selection) => part.select(selection),
            None => Ok(part),
        }
    };
    let kept = async {
        let parts = result.parts.iter().map(lend).collect::<Result<Vec<_>, Failure>>()?;
        let Some(looked) = keeper.look(run, &parts, stream).await? else { return Ok(false) };
        // Other statements see kept rows, so the assumptions are checked first.
        run.check().await?;
        looked.keep().await
    };
    match kept.await {
        Err(failure) if failure.is_out_of_memory() || matches!(failure, Failure::Pinned(_)) => Ok(false),
        kept => kept,
    }
}
