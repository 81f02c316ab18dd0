//! One run of a program: its attempts, and in each the segments one after the other.
//!
//!   attempt ──► prepared program ──► segment 0 ─► segment 1 ─► … ─► the result is downloaded
//!
//! Attempts a value outside its range, or a dictionary that outgrew the width planned for its codes, starts the run again
//!          with what was learnt; nothing has left the device by then, and nothing of the first attempt is kept but dictionaries.
//! Dropped  with its stream: tasks end, buffers are freed in the order of their streams.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::execution::TaskContext;
use millpond_kernels::tune;
use millpond_memory::Scope;

use crate::column::{ColumnInfo, Form};
use crate::device::Engine;
use crate::device::learnt::{PlanKey, PlanLearnt, StringForm};
use crate::expr::Dictionary;
use crate::options::MillpondOptions;
use crate::profile;
use crate::program::build_side::Build;
use crate::program::context::{Notes, RunContext, Tags};
use crate::program::contract::{Details, SourceRun};
use crate::program::counts::Tally;
use crate::program::extents::Shapes;
use crate::program::failure::Failure;
use crate::program::pace::Pace;
use crate::program::part::{Kept, Part};
use crate::program::prepared::{Lessons, Prepared};
use crate::program::schedule::Schedule;
use crate::program::segments::Origin;
use crate::program::tables::{Limits, Tables};
use crate::program::texts::{self, Reached};
use crate::result::results::{Output, Results};

/// What to take in smaller pieces after memory has run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The groups of a segment, in so many passes.
    Groups(usize, u32),
    /// The join whose build side a segment builds, in so many parts.
    Join(usize, u32),
}

/// What a segment gave.
#[derive(Default)]
pub struct Given {
    pub(crate) parts: Vec<Kept>,
    pub(crate) columns: Vec<ColumnInfo>,
    /// What its sink says of itself to the segments that read it.
    pub(crate) details: Option<Details>,
    /// Columns that those look up by row number, each a part of its own.
    pub(crate) looked_up: Arc<Vec<Part>>,
    /// In the place of rows: what others look up.
    pub(crate) built: Option<Build>,
}

impl Given {
    /// A build side.
    pub(crate) fn built(built: Build) -> Self {
        Self { built: Some(built), ..Self::default() }
    }
}

/// What a run has come to know, for the next attempt and for later runs.
#[derive(Default)]
pub struct Seen {
    /// Groups that the tables of segments had room for at last: in earlier runs of the plan, and in this one where they grew.
    pub groups: HashMap<usize, u64>,
    /// What to try next where memory has run out.
    pub cut_next: Option<Cut>,
}

/// One attempt at running a program.
pub struct Run {
    pub prepared: Arc<Prepared>,
    context: RunContext,
    pub sources: Vec<Box<dyn SourceRun>>,
    tables: Mutex<Tables>,
    shapes: Mutex<Shapes>,
    /// Where views lead to.
    pub reached: Reached,
    pub pace: Pace,
    pub seen: Mutex<Seen>,
    pub results: Results,
}

impl Deref for Run {
    type Target = RunContext;

    fn deref(&self) -> &RunContext {
        &self.context
    }
}

/// A program that a border runs, and what its runs leave to later ones.
pub(crate) trait Runs {
    /// The device.
    fn engine(&self) -> &Arc<Engine>;
    /// The structure of its plan.
    fn key(&self) -> PlanKey;
    /// The program, prepared with these lessons.
    ///
    /// # Errors
    /// Why the program has no form over its sources' columns.
    fn prepared(&self, lessons: &mut Lessons, tally: &Tally) -> Result<Arc<Prepared>, Failure>;
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
    let options = context.session_config().options().extensions.get::<MillpondOptions>().cloned().unwrap_or_default();
    let (key, engine) = (border.key(), border.engine());
    let PlanLearnt { strings, groups } = engine.learnt.get(key);
    let mut lessons = Lessons { strings, groups, ..Lessons::default() };
    let remembered = lessons.strings.clone();
    for _ in 0..MAX_ATTEMPTS {
        tally.attempts.fetch_add(1, Ordering::Relaxed);
        let begin = || {
            let prepared = border.prepared(&mut lessons, tally)?;
            let participant = engine.governor.participant(scope.path(), 0);
            let context = RunContext {
                engine: Arc::clone(engine),
                options: options.clone(),
                task: Arc::clone(context),
                scope: scope.clone(),
                tags: Tags::of(scope),
                tally: Arc::clone(tally),
                participant,
                notes: border.notes(),
            };
            Run::new(prepared, context, out)
        };
        let attempt = Arc::new(tally.preparing(begin)?);
        let nothing_left = || out.sent.load(Ordering::Relaxed) == 0;
        match profile::attempt(attempt.attempt(), Failure::lesson).await {
            Err(Failure::Ranges) if !lessons.wide && nothing_left() => lessons.wide = true,
            Err(Failure::Dictionaries(sizes)) if nothing_left() => {
                for (column, size) in sizes {
                    let known = lessons.dictionaries.entry(column).or_default();
                    // Four times what was seen, so that a slowly growing dictionary does not restart the run each time.
                    *known = (*known).max(size * 4);
                }
            }
            Err(Failure::Texts(columns)) if nothing_left() => lessons.strings.texts.extend(columns),
            // The dictionaries have their values by now.
            Err(Failure::Ranks) => {}
            Err(Failure::Arena) if nothing_left() => lessons.arena_times = attempt.reached.larger_arenas()?,
            Err(failure) if failure.wants_less() && nothing_left() => {
                let next = attempt.seen().cut_next.take();
                match next {
                    Some(Cut::Groups(segment, passes)) => {
                        lessons.passes.insert(segment, passes.min(tune::MAX_KEY_PARTS))
                    }
                    Some(Cut::Join(build, parts)) => lessons.join_parts.insert(build, parts.min(tune::MAX_KEY_PARTS)),
                    None => return Err(failure),
                };
            }
            other => {
                if lessons.strings != remembered {
                    // What did not go well is not worth remembering.
                    let strings = if other.is_ok() { lessons.strings } else { StringForm::default() };
                    engine.learnt.learn(key, |known| known.strings = strings);
                }
                let groups = &attempt.seen().groups;
                if other.is_ok() && !groups.is_empty() {
                    engine.learnt.learn(key, |known| known.groups.clone_from(groups));
                }
                return other;
            }
        }
    }
    Err(Failure::trouble(format!(
        "gave up after {MAX_ATTEMPTS} attempts: what is planned from the values kept changing"
    )))
}

/// How often a run begins again with what it has learnt.
const MAX_ATTEMPTS: usize = 12;

impl Run {
    fn new(prepared: Arc<Prepared>, context: RunContext, out: &Output) -> Result<Self, Failure> {
        let (program, lessons) = (&prepared.program, &prepared.lessons);
        let sources = program.sources.iter().map(|source| source.open()).collect::<Result<_, _>>()?;
        let most = context.options.most_dictionary_values();
        let limits = Limits { most, most_if_needed: most * texts::IF_NEEDED, needed: lessons.strings.needed.clone() };
        let tables = Tables::new(prepared.definitions.clone(), prepared.dictionaries.clone(), limits);
        let seen = Seen { groups: lessons.groups.clone(), cut_next: None };
        Ok(Self {
            context,
            sources,
            tables: Mutex::new(tables),
            shapes: Mutex::default(),
            reached: Reached::new(lessons.arena_times),
            pace: Pace::default(),
            seen: Mutex::new(seen),
            results: Results::new(out.clone(), program.row_offset, program.row_limit),
            prepared,
        })
    }

    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn shapes(&self) -> MutexGuard<'_, Shapes> {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes over the input of a segment, one for each part of its keys.
    pub fn passes(&self, segment: usize) -> u32 {
        self.prepared.lessons.passes.get(&segment).copied().unwrap_or(1)
    }

    /// True when the rows of an extent can leave as soon as they are there.
    pub fn streams_out(&self) -> bool {
        match self.prepared.program.segments.as_slice() {
            [one] => {
                matches!(one.origin, Origin::Source(_))
                    && one.sink.passes_rows_on()
                    && self.prepared.program.probed(0).next().is_none()
            }
            _ => false,
        }
    }

    /// True for the segment that gives the result.
    pub fn is_last(&self, segment: usize) -> bool {
        segment + 1 == self.prepared.program.segments.len()
    }

    async fn attempt(self: &Arc<Self>) -> Result<(), Failure> {
        let stream = self.engine.streams.take(&self.scope)?;
        let Some(result) = Schedule::new(self, &stream).result().await? else { return Ok(()) };
        // Batches stay here until the last one is home: until then the CPU can take over.
        let mut held = self.host_memory("results");
        for part in result.parts {
            let mut part = part.on_device(&stream)?;
            if let Some(selection) = &self.prepared.program.selection {
                part = part.select(selection)?;
            }
            let batch = self.download(&part, &stream, false).await?;
            held.grow(batch.get_array_memory_size());
            self.results.came_home(batch);
        }
        self.results.leave_home().await
    }

    /// Columns whose dictionaries are complete, with the bound that gives their codes.
    pub fn bounded(&self, columns: &mut [ColumnInfo]) {
        let tables = self.tables();
        for column in columns {
            if let Form::Codes(ty, id) = column.form
                && matches!(tables.definitions.get(id), Some(Dictionary::Source { .. } | Dictionary::Constants { .. }))
            {
                let bound = tables.len(id).max(1).next_power_of_two();
                if bound <= crate::program::extents::MOST_BOUNDED_CODES {
                    column.form = Form::Codes(ty.within(0, bound as i128 - 1), id);
                }
            }
        }
    }
}
