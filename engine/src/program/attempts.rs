//! Runs a program attempt after attempt, with what each one has learnt.
//!
//!   attempt ─► value outside its range · dictionary larger than planned · no memory ─► lesson ─► next attempt, 12 at most
//!
//! Nothing has left the device when an attempt begins again, and nothing of it is kept but the values of dictionaries.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::execution::TaskContext;
use futures::future::try_join_all;
use millpond_kernels::tune;
use millpond_memory::{Scope, Stream};

use crate::device::Engine;
use crate::device::learnt::{PlanKey, PlanLearnt, StringForm};
use crate::looks::Looks;
use crate::profile;
use crate::program::context::{Notes, RunContext};
use crate::program::contract::{Opening, Source, SourceRun};
use crate::program::counts::Tally;
use crate::program::failure::Failure;
use crate::program::given::Given;
use crate::program::keep::Keeps;
use crate::program::part::Kept;
use crate::program::prepared::{Lessons, Prepared, Split};
use crate::program::run::Run;
use crate::program::schedule::Schedule;
use crate::program::segments::Program;
use crate::result::results::Output;
use crate::subqueries::Subqueries;

/// A program that a border runs, and what its runs leave to later ones.
pub(crate) trait Runs {
    /// The device.
    fn engine(&self) -> &Arc<Engine>;
    /// The structure of its plan.
    fn key(&self) -> PlanKey;
    /// The program.
    ///
    /// # Errors
    /// Why its plan has none.
    fn program(&self) -> Result<&Arc<Program>, Failure>;
    /// The program, prepared with these lessons over its sources as they were opened.
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
    /// Where subqueries have their values, in this copy of the plan.
    fn subqueries(&self) -> &Subqueries;
    /// Its files, as the planning of this copy has seen them.
    fn looks(&self) -> Option<Arc<Looks>>;
    /// Counts a run as under way until it is dropped.
    fn under_way(&self) -> Box<dyn Send + Sync>;
    /// Where runs tell what a user should hear of.
    fn notes(&self) -> Arc<dyn Notes>;
}

/// Runs what `border` runs, attempt after attempt.
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
            // What did not go well is not worth remembering.
            let strings = if ended.is_ok() { attempts.lessons.strings } else { StringForm::default() };
            engine.learnt.learn(key, |known| known.strings.clone_from(&strings));
        }
        let groups = &attempt.lessons().groups;
        if ended.is_ok() && !groups.is_empty() {
            engine.learnt.learn(key, |known| known.groups.clone_from(groups));
        }
        return ended;
    }
    // What the last one lacked, however little it took, or else what it learnt.
    Err(trouble.map(Failure::Trouble).unwrap_or_else(|| {
        Failure::trouble(format!(
            "gave up after {MAX_ATTEMPTS} attempts: what is planned from the values kept changing"
        ))
    }))
}

/// Attempts at running one program: what they share.
struct Attempts<'o> {
    context: Arc<RunContext>,
    out: &'o Output,
    /// What the next one begins with.
    lessons: Lessons,
}

impl Attempts<'_> {
    async fn begin(&mut self, border: &impl Runs) -> Result<Run, Failure> {
        let (program, tally) = (border.program()?, &self.context.tally);
        loop {
            // Side by side: what is read first for one source does not wait for the others.
            let opening = program.sources.iter().enumerate().map(|(number, source): (usize, &Arc<dyn Source>)| {
                let needed = self.lessons.strings.needed_of(number);
                let (streams_out, piecewise) = (program.streams_out(), self.lessons.piecewise);
                source.open(Opening { context: &self.context, needed, streams_out, piecewise })
            });
            let opened = try_join_all(opening.collect::<Vec<_>>()).await?;
            let strings = &mut self.lessons.strings;
            opened.iter().enumerate().for_each(|(number, source)| strings.settle(number, source.texts()));
            let prepared = tally.preparing(|| border.prepared(&opened, &mut self.lessons, tally))?;
            // Where an expression needs the dictionary of a column that has none, the source is opened with one.
            let strings = &self.lessons.strings;
            let mut lacking = opened.iter().enumerate().filter(|(number, source)| {
                source.texts().is_some_and(|texts| !texts.is_disjoint(&strings.needed_of(*number)))
            });
            if lacking.next().is_none() {
                return Ok(Run::new(prepared, opened, &self.context, self.out));
            }
        }
    }

    /// Takes over what `attempt` has taught before it failed; gives how it ended, if there is no use in another one.
    ///
    /// # Errors
    /// The attempt's, where the next one would fail, too.
    fn learn(&mut self, attempt: &Run, ended: Result<(), Failure>) -> Result<Option<Result<(), Failure>>, Failure> {
        let lessons = &mut self.lessons;
        let nothing_left = self.out.sent.load(Ordering::Relaxed) == 0;
        let is_ours = |failure: &Failure| match failure {
            Failure::Trouble(trouble) => !trouble.lost,
            Failure::Input(_) | Failure::Cancelled => false,
            _ => true,
        };
        match ended {
            // What follows from a wrong answer may be any failure.
            Err(failure) if attempt.results.asked.has_assumed() && nothing_left && is_ours(&failure) => {
                attempt.prepared.answers.forget();
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
            // The dictionaries have their values by now.
            Err(Failure::Ranks) => {}
            Err(Failure::Arena) if nothing_left => lessons.arena_times = attempt.reached.larger_arenas()?,
            // Columns that stay may go once this run reads them no more.
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

/// How often a run begins again with what it has learnt.
const MAX_ATTEMPTS: usize = 12;

/// One attempt: all segments, and the result on its way out.
async fn run_once(run: &Arc<Run>, keeper: Option<&dyn Keeps>) -> Result<(), Failure> {
    let stream = run.engine.streams.take(&run.scope)?;
    let Some(result) = Schedule::new(run, &stream).result().await? else { return Ok(()) };
    // The first wait for the result is one for what was assumed, too.
    run.check_before(&stream)?;
    if let Some(keeper) = keeper
        && stays(run, keeper, &result, &stream).await?
    {
        return Ok(());
    }
    // Batches are kept until the last one is downloaded: until then the CPU can take over.
    let mut held = run.host_memory("results");
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

/// True if the result stays on the device. Where there is no room for it there, it comes home.
async fn stays(run: &Arc<Run>, keeper: &dyn Keeps, result: &Given, stream: &Stream) -> Result<bool, Failure> {
    let program = &run.prepared.program;
    // Of rows that may not leave there are more on the device.
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
        // What is kept is seen by other statements.
        run.check().await?;
        looked.keep().await
    };
    match kept.await {
        Err(failure) if failure.is_out_of_memory() || matches!(failure, Failure::Pinned(_)) => Ok(false),
        kept => kept,
    }
}
