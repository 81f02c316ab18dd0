//! Data derived from a plan, its statistics and its lessons: computed once, shared by runs.
//!
//!   sources' columns ─► every segment lowered once, without facts about builds ─► columns read, keys of joins,
//!                                                                                 common columns, key codes
//!   Prepared ─► Run ─► Run …     a run lowers only what depends on builds, and on the sizes of dictionaries
//!
//! Kept     by the border that runs the program, until the lesson of an attempt changes it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::column::dictionary::SourceDictionaries;
use crate::column::{ColumnInfo, DictionaryId};
use crate::device::learnt::StringForm;
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, Dictionary, LookupTable};
use crate::program::answers::Answers;
use crate::program::build_side::{BuildForm, KeyForm};
use crate::program::contract::{SourceFacts, SourceRun};
use crate::program::lower::{Builds, SegmentInput};
use crate::program::movers::Movers;
use crate::program::piece::{LoweredSegment, WholeSegment};
use crate::program::segment_result::Details;
use crate::program::segments::{Origin, Program};
use crate::program::shape::{SegmentFacts, Shape};
use crate::program::tables::Tables;

/// Work to split into smaller pieces after memory has run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Segments that are fed concurrently: feed them one after the other.
    Feeds,
    /// Groups: segment, and number of passes.
    Groups(usize, u32),
    /// Join: building segment, and number of parts of its keys.
    Join(usize, u32),
}

/// Lessons that attempts learn from each other, and later runs from earlier ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lessons {
    /// Statistics were wrong: take every column at its native width.
    pub wide: bool,
    /// Memory was short beside whole columns: read sources extent by extent.
    pub piecewise: bool,
    /// Memory was short beside another segment's rows: feed one segment after the other.
    pub one_by_one: bool,
    /// Minimum sizes to plan dictionaries for, by source and column.
    pub dictionaries: HashMap<(usize, usize), usize>,
    /// String columns without a dictionary, and columns that need one whatever its size.
    pub(crate) strings: StringForm,
    /// Factor on the planned room for texts that the device makes; 0 means 1.
    pub arena_times: u64,
    /// Number of groups that the tables of segments grew to hold, by segment.
    pub groups: HashMap<usize, u64>,
    /// Number of parts of the keys of a segment's table, with one pass over its input for each.
    pub passes: HashMap<usize, u32>,
    /// Number of parts of the keys of a join, by the building segment: the parts are built and probed one after the
    /// other.
    pub join_parts: HashMap<usize, u32>,
    /// Split to try next, after memory has run out.
    pub split_next: Option<Split>,
    /// Maximum rows of an extent, after memory has run out.
    pub extent_rows: Option<usize>,
    /// Answers of earlier runs were wrong: read them back again, and wait.
    pub asks: bool,
}

impl Lessons {
    /// True if a program prepared with one is equal to a program prepared with the other.
    pub fn plan_as(&self, other: &Self) -> bool {
        self.wide == other.wide && self.strings == other.strings
    }

    /// True for a run that processes all rows at once: other such runs read back the same answers in the same order.
    fn takes_all_at_once(&self) -> bool {
        let cut = !self.passes.is_empty() || !self.join_parts.is_empty() || self.extent_rows.is_some();
        !(cut || self.piecewise || self.asks)
    }
}

/// A program with everything that its runs share.
#[derive(Clone)]
pub struct Prepared {
    pub program: Arc<Program>,
    /// Facts about the columns of each source, and flags of the columns that something reads.
    pub sources: Vec<SourceFacts>,
    pub used: Vec<Vec<bool>>,
    /// Key representation of each building segment.
    pub keys: HashMap<usize, Vec<KeyForm>>,
    /// Flags of the columns that something reads, for each segment that can leave columns out.
    pub needed: HashMap<usize, Vec<bool>>,
    /// Build segments whose payload some probe reads.
    pub payload: HashSet<usize>,
    /// Columns in common of segments whose results another segment reads one after the other.
    pub common: HashMap<usize, Vec<ColumnInfo>>,
    /// Dictionaries of each segment whose codes are keys: the codes may get a bound.
    pub key_codes: Vec<Vec<DictionaryId>>,
    /// Lessons that it was prepared with.
    pub lessons: Lessons,
    stamps: Vec<u64>,
    memory: Arc<PlanMemory>,
}

/// Everything that runs of a plan keep for later runs; see `docs/plan-memory.md`.
struct PlanMemory {
    /// Dictionaries with the values that runs have met, and lookup results for these.
    tables: Mutex<Tables>,
    /// The latest shapes of each segment, with their compiled pipelines; the latest first.
    shapes: Mutex<HashMap<usize, Vec<Arc<Shape>>>>,
    /// Answers that runs have read back from the device.
    answers: Answers,
    /// Pipelines that move rows between segments.
    movers: Movers,
}

/// Number of shapes kept of a segment: one that was guessed before its facts were known, and the right one.
const SHAPES: usize = 2;

impl Prepared {
    /// Prepares `program` over its sources as they were `opened`. String columns that are better off without a
    /// dictionary become texts if every expression over them has a form for texts; the others need their dictionary,
    /// whatever its size. `lessons` records the decision.
    ///
    /// # Errors
    /// Why the program has no form over its sources' columns.
    pub fn of(
        program: &Arc<Program>,
        opened: &[Box<dyn SourceRun>],
        lessons: &mut Lessons,
        dictionaries: &SourceDictionaries,
        lowerings: &AtomicU64,
    ) -> Result<Self, Reason> {
        let mut definitions = Dictionaries::default();
        let mut sources: Vec<SourceFacts> = Vec::with_capacity(opened.len());
        for (source, of) in opened.iter().enumerate() {
            sources.push(of.facts(lessons.wide, &mut |column, data_type| {
                definitions.add(Dictionary::Source { upload: source, column, data_type })
            }));
        }
        let complete = sources.iter().enumerate().flat_map(|(source, facts)| {
            facts.dictionaries.iter().map(move |(column, dictionary)| ((source, *column), dictionary.clone()))
        });
        let dictionaries = dictionaries.with(complete);
        let as_texts = |texts: &HashSet<(usize, usize)>| {
            let mut sources = sources.clone();
            for (source, column) in texts {
                if let Some(info) = sources.get_mut(*source).and_then(|source| source.columns.get_mut(*column)) {
                    *info = info.clone().as_text();
                }
            }
            sources
        };
        let plan = |sources: Vec<SourceFacts>| {
            let mut planning = Planning::new(program, sources, definitions.clone(), lowerings);
            planning.plan().map(|()| planning)
        };
        let strings = &mut lessons.strings;
        let mut planned = None;
        if !strings.texts.is_empty() {
            planned = plan(as_texts(&strings.texts)).ok();
            if planned.is_none() {
                // Not all of them together: the columns that can be texts alone, if they can be so together.
                let mut alone = |column: &(usize, usize)| plan(as_texts(&HashSet::from([*column]))).is_ok();
                let (texts, needed): (HashSet<_>, HashSet<_>) = strings.texts.iter().copied().partition(&mut alone);
                strings.needed.extend(needed);
                planned = plan(as_texts(&texts)).ok();
                match &planned {
                    Some(_) => strings.texts = texts,
                    None => {
                        strings.needed.extend(texts);
                        strings.texts.clear();
                    }
                }
            }
        }
        let planned = match planned {
            Some(planned) => planned,
            None => plan(sources)?,
        };
        let Planning { sources, definitions, used, needed, payload, common, key_codes, forms, .. } = planned;
        Ok(Self {
            program: Arc::clone(program),
            sources,
            used,
            keys: forms.into_iter().map(|(build, form)| (build, form.keys)).collect(),
            needed,
            payload,
            common,
            key_codes,
            lessons: lessons.clone(),
            stamps: stamps(opened),
            memory: Arc::new(PlanMemory {
                tables: Mutex::new(Tables::new(definitions, dictionaries)),
                shapes: Mutex::default(),
                answers: Answers::default(),
                movers: Movers::default(),
            }),
        })
    }

    /// The preparation for another copy of the program.
    pub fn with_program(&self, program: &Arc<Program>) -> Self {
        Self { program: Arc::clone(program), ..self.clone() }
    }

    /// True if it serves a run with these lessons over these sources.
    pub fn serves(&self, lessons: &Lessons, opened: &[Box<dyn SourceRun>]) -> bool {
        self.lessons.plan_as(lessons) && self.stamps == stamps(opened)
    }

    /// The preparation with lessons that change no plan; see [`Lessons::plan_as`].
    pub fn with_lessons(&self, lessons: &Lessons) -> Self {
        Self { lessons: lessons.clone(), ..self.clone() }
    }

    /// Answers that runs have read back from the device.
    pub fn answers(&self) -> &Answers {
        &self.memory.answers
    }

    /// Pipelines that move rows between segments.
    pub fn movers(&self) -> &Movers {
        &self.memory.movers
    }

    /// The shape of a segment with these facts, if one is kept.
    pub fn shape_for(&self, segment: usize, facts: &SegmentFacts) -> Option<Arc<Shape>> {
        self.shapes().get(&segment)?.iter().find(|shape| shape.facts == *facts).cloned()
    }

    /// Keeps a shape of a segment for this run and later ones.
    pub fn keep_shape(&self, segment: usize, shape: &Arc<Shape>) {
        let mut shapes = self.shapes();
        let of = shapes.entry(segment).or_default();
        of.insert(0, Arc::clone(shape));
        of.truncate(SHAPES);
    }

    /// True if a shape of the segment is kept.
    pub fn has_shape(&self, segment: usize) -> bool {
        self.shapes().contains_key(&segment)
    }

    /// True if a shape of the segment is compiled that covers all keys at once.
    pub fn has_compiled(&self, segment: usize) -> bool {
        let compiled = |shape: &Arc<Shape>| shape.is_whole() && shape.compiled().is_some();
        self.shapes().get(&segment).is_some_and(|shapes| shapes.iter().any(compiled))
    }

    fn shapes(&self) -> MutexGuard<'_, HashMap<usize, Vec<Arc<Shape>>>> {
        self.memory.shapes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if earlier runs' answers hold for later ones: columns stay, and a run processes all of them at once.
    pub fn answers_hold(&self) -> bool {
        let stay = self.stamps.iter().all(|stamp| *stamp != 0);
        stay && self.lessons.takes_all_at_once() && !self.program.streams_out()
    }

    /// The tables that its runs share, unless another thread holds their lock.
    pub fn tables_now(&self) -> Option<MutexGuard<'_, Tables>> {
        match self.memory.tables.try_lock() {
            Ok(tables) => Some(tables),
            Err(TryLockError::Poisoned(tables)) => Some(tables.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The tables that its runs share.
    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.memory.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stamps(opened: &[Box<dyn SourceRun>]) -> Vec<u64> {
    opened.iter().map(|source| source.stamp()).collect()
}

/// A program being planned.
struct Planning<'a> {
    program: &'a Program,
    sources: Vec<SourceFacts>,
    definitions: Dictionaries,
    lowerings: &'a AtomicU64,
    used: Vec<Vec<bool>>,
    needed: HashMap<usize, Vec<bool>>,
    payload: HashSet<usize>,
    common: HashMap<usize, Vec<ColumnInfo>>,
    key_codes: Vec<Vec<DictionaryId>>,
    forms: HashMap<usize, BuildForm>,
}

impl<'a> Planning<'a> {
    fn new(
        program: &'a Program,
        sources: Vec<SourceFacts>,
        definitions: Dictionaries,
        lowerings: &'a AtomicU64,
    ) -> Self {
        let used = sources.iter().map(|source| vec![false; source.columns.len()]).collect();
        Self {
            program,
            sources,
            definitions,
            lowerings,
            used,
            needed: HashMap::new(),
            payload: HashSet::new(),
            common: HashMap::new(),
            key_codes: vec![],
            forms: HashMap::new(),
        }
    }

    /// Lowers every segment, first to last, for its output columns; then finds, last to first, the columns that it
    /// reads.
    fn plan(&mut self) -> Result<(), Reason> {
        let program = self.program;
        let mut given: Vec<(Vec<ColumnInfo>, Details)> = Vec::new();
        let mut whole: Vec<[Option<WholeSegment>; 2]> = Vec::new();
        for (index, segment) in program.segments.iter().enumerate() {
            if let Some(columns) = segment.sink.columns_on_demand() {
                self.needed.insert(index, vec![false; columns]);
            }
            if let Origin::Segments(from) = &segment.origin {
                let inputs: Vec<Vec<ColumnInfo>> = from.iter().map(|from| given[*from].0.clone()).collect();
                let common = from.first().map(|from| &program.segments[*from].sink);
                if let Some(columns) = common.and_then(|sink| sink.common_columns(&inputs, &mut self.definitions)) {
                    for from in from {
                        given[*from].0.clone_from(&columns);
                        self.common.insert(*from, columns.clone());
                    }
                }
            }
            let columns = self.columns_of(index, &given);
            let like = match &segment.origin {
                Origin::Built { like: Some(like), .. } => Some(given[*like].0.as_slice()),
                _ => None,
            };
            let input = SegmentInput {
                produced: program.reads(index).map(|from| &given[from].1),
                like,
                needed: self.needed.get(&index).map(Vec::as_slice),
                ..SegmentInput::rows(&columns)
            };
            let mut builds = PlannedForms { forms: &mut self.forms, given: &given };
            self.lowerings.fetch_add(1, Ordering::Relaxed);
            let lowered = program.lower_whole(index, &input, &mut self.definitions, &mut builds)?;
            self.key_codes.push(lowered.key_codes.clone());
            // Rows with one match at most may read other columns than rows with several, which plans expect: a
            // condition is evaluated on rows that may have no match, and the columns that an expression reads depend on
            // what may fail before it.
            let mut lowered_for_one = None;
            let expects_several = |build: usize| self.forms.get(&build).is_some_and(|form| form.has_duplicates);
            if segment.stages.iter().filter_map(|stage| stage.build()).any(expects_several) {
                self.lowerings.fetch_add(1, Ordering::Relaxed);
                let mut builds = UniqueForms(&self.forms);
                lowered_for_one = program.lower_whole(index, &input, &mut self.definitions, &mut builds).ok();
            }
            given.push((lowered.outputs.clone(), Arc::clone(&lowered.details)));
            whole.push([Some(lowered), lowered_for_one]);
        }
        for (index, lowered) in whole.into_iter().enumerate().rev() {
            for lowered in lowered.into_iter().flatten() {
                let lowered = lowered.restricted(self.needed.get(&index).map(Vec::as_slice));
                self.note_columns(index, &lowered);
            }
            // The columns that a build side's keys read are needed, too.
            for build in program.probed(index) {
                let Some(form) = self.forms.get(&build) else { continue };
                self.lowerings.fetch_add(1, Ordering::Relaxed);
                let sink = &program.segments[build].sink;
                let read = sink.key_columns(form, &given[build].0, &mut self.definitions)?;
                if let Some(needed) = self.needed.get_mut(&build) {
                    read.into_iter().for_each(|column| needed[column as usize] = true);
                }
            }
        }
        Ok(())
    }

    /// Records the columns that segment `index` reads, of its source and of build sides.
    fn note_columns(&mut self, index: usize, lowered: &LoweredSegment) {
        let columns_read = match &self.program.segments[index].origin {
            Origin::Source(source) => Some(&mut self.used[*source]),
            _ => self.program.on_demand(index).and_then(|from| self.needed.get_mut(&from)),
        };
        if let Some(columns) = columns_read {
            // Columns that are added behind those of ranked rows are always written.
            for column in lowered.first().spec.used_columns() {
                if let Some(column) = columns.get_mut(column as usize) {
                    *column = true;
                }
            }
        }
        for table in lowered.pieces().flat_map(|piece| &piece.lookups) {
            if let LookupTable::BuildColumn { build, column, .. } = table
                && let Some(needed) = self.needed.get_mut(build)
            {
                needed[*column] = true;
                self.payload.insert(*build);
            }
        }
    }

    /// The columns that segment `index` reads.
    fn columns_of(&self, index: usize, given: &[(Vec<ColumnInfo>, Details)]) -> Vec<ColumnInfo> {
        match &self.program.segments[index].origin {
            Origin::Source(source) => self.sources[*source].columns.clone(),
            Origin::Segments(from) => merged(from.iter().map(|from| given[*from].0.as_slice())),
            Origin::Built { build, .. } => given[*build].0.clone(),
        }
    }
}

/// Build-side forms derived from the plan alone.
struct PlannedForms<'a> {
    forms: &'a mut HashMap<usize, BuildForm>,
    /// Output columns and details of segments.
    given: &'a [(Vec<ColumnInfo>, Details)],
}

impl Builds for PlannedForms<'_> {
    fn form(
        &mut self,
        build: usize,
        plan: &mut dyn FnMut(&[ColumnInfo]) -> Result<BuildForm, Reason>,
    ) -> Result<BuildForm, Reason> {
        if let Some(form) = self.forms.get(&build) {
            return Ok(form.clone());
        }
        let Some((columns, _)) = self.given.get(build) else {
            return Err(Reason::NodeUnsupported { node: format!("a join with segment {build}") });
        };
        let form = plan(columns)?;
        self.forms.insert(build, form.clone());
        Ok(form)
    }
}

/// The same build sides, assuming that no key has several rows.
struct UniqueForms<'a>(&'a HashMap<usize, BuildForm>);

impl Builds for UniqueForms<'_> {
    fn form(
        &mut self,
        build: usize,
        _plan: &mut dyn FnMut(&[ColumnInfo]) -> Result<BuildForm, Reason>,
    ) -> Result<BuildForm, Reason> {
        let form = self.0.get(&build).cloned();
        let mut form = form.ok_or_else(|| Reason::NodeUnsupported { node: format!("a join with segment {build}") })?;
        form.has_duplicates = false;
        form.table.lists = false;
        Ok(form)
    }
}

/// Merged columns of several segments' results, which are read one after the other.
pub fn merged<'c>(mut all: impl Iterator<Item = &'c [ColumnInfo]>) -> Vec<ColumnInfo> {
    let mut columns = all.next().unwrap_or_default().to_vec();
    for others in all {
        for (column, other) in columns.iter_mut().zip(others) {
            column.form = column.form.clone().or(&other.form);
        }
    }
    columns
}
