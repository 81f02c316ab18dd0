//! What follows from a plan, its statistics and what was learnt of it: made once, shared by runs.
//!
//!   sources' columns ─► every segment lowered once, as if nothing were known of builds ─► which columns are read, keys of joins,
//!                                                                                          columns in common, codes that are keys
//!   Prepared ─► Run ─► Run …     a run lowers only what depends on builds, and on how large dictionaries have become
//!
//! Kept     by the border that runs the program, until another attempt learns something that changes it.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::column::dictionary::SourceDictionaries;
use crate::column::{ColumnInfo, DictionaryId};
use crate::device::learnt::StringForm;
use crate::expr::{Dictionaries, Dictionary, LookupTable};
use crate::program::answers::Answers;
use crate::program::build_side::{BuildForm, KeyForm};
use crate::program::contract::{SourceFacts, SourceRun};
use crate::program::given::Details;
use crate::program::lower::{Builds, LoweredSegment, SegmentInput, WholeSegment};
use crate::program::movers::Movers;
use crate::program::segments::{Origin, Program};
use crate::program::tables::Tables;
use crate::reason::Reason;

/// What to take in smaller pieces after memory has run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Segments that are fed at the same time, one after the other.
    Feeds,
    /// The groups of a segment, in so many passes.
    Groups(usize, u32),
    /// The join whose build side a segment builds, in so many parts.
    Join(usize, u32),
}

/// What attempts learn from each other, and later runs from earlier ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lessons {
    /// Statistics were wrong: take every column at its native width.
    pub wide: bool,
    /// Memory was short beside whole columns: read sources extent by extent.
    pub piecewise: bool,
    /// Memory was short beside another segment's rows: feed one segment after the other.
    pub one_by_one: bool,
    /// Least sizes to plan dictionaries for, by source and column.
    pub dictionaries: HashMap<(usize, usize), usize>,
    /// String columns without a dictionary, and those that need one whatever its size.
    pub(crate) strings: StringForm,
    /// How much larger than planned the room for texts is that the device makes; 0 as 1.
    pub arena_times: u64,
    /// Groups that the tables of segments came to have room for.
    pub groups: HashMap<usize, u64>,
    /// Into how many parts the keys of a segment's table are cut, one pass over its input for each.
    pub passes: HashMap<usize, u32>,
    /// Into how many parts the keys of a join are cut, by the segment that builds: one after the other is built and probed.
    pub join_parts: HashMap<usize, u32>,
    /// What to try next where memory has run out.
    pub split_next: Option<Split>,
    /// Rows of an extent, at most, since memory has run out.
    pub extent_rows: Option<usize>,
    /// What earlier runs had found was not so: ask again, and wait.
    pub asks: bool,
}

impl Lessons {
    /// True when a program that is prepared with the one is prepared with the other.
    pub fn plan_as(&self, other: &Self) -> bool {
        self.wide == other.wide && self.strings == other.strings
    }

    /// True for a run that takes all there is at once: what it asks the device is what another one asks, in the same order.
    fn takes_all_at_once(&self) -> bool {
        let cut = !self.passes.is_empty() || !self.join_parts.is_empty() || self.extent_rows.is_some();
        !(cut || self.piecewise || self.asks)
    }
}

/// A program with all that runs of it have in common.
#[derive(Clone)]
pub struct Prepared {
    pub program: Arc<Program>,
    /// What is known of the columns of each source, and which of them anything reads.
    pub sources: Vec<SourceFacts>,
    pub used: Vec<Vec<bool>>,
    /// How the keys of each building segment are represented.
    pub keys: HashMap<usize, Vec<KeyForm>>,
    /// Which columns of each segment that leaves some out anything reads.
    pub needed: HashMap<usize, Vec<bool>>,
    /// Build segments whose payload some probe reads.
    pub payload: HashSet<usize>,
    /// The columns that segments give of which another one reads all, one after the other.
    pub common: HashMap<usize, Vec<ColumnInfo>>,
    /// Dictionaries of each segment whose codes are keys: they may get a bound.
    pub key_codes: Vec<Vec<DictionaryId>>,
    /// What it was prepared with.
    pub lessons: Lessons,
    stamps: Vec<u64>,
    /// Dictionaries with the values that runs have met, and what lookups have for these.
    tables: Arc<Mutex<Tables>>,
    /// What the last run of a segment has compiled, in the segment's own words.
    compiled: Arc<Mutex<HashMap<usize, Compiled>>>,
    /// What runs have asked the device.
    pub answers: Arc<Answers>,
    /// Pipelines that move rows between segments.
    pub movers: Arc<Movers>,
}

/// A segment as a run has compiled it.
pub type Compiled = Arc<dyn Any + Send + Sync>;

impl Prepared {
    /// Prepares `program` over its sources as they were `opened`. Of the string columns that were learnt to be better off
    /// without a dictionary those become texts for which every expression has a form; the others need their dictionary,
    /// whatever its size: `lessons` says so afterwards.
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
                // Not all of them together: those that can be texts alone, if they can be so together.
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
            tables: Arc::new(Mutex::new(Tables::new(definitions, dictionaries))),
            compiled: Arc::default(),
            answers: Arc::default(),
            movers: Arc::default(),
        })
    }

    /// The same for another copy of the program.
    pub fn with_program(&self, program: &Arc<Program>) -> Self {
        Self { program: Arc::clone(program), ..self.clone() }
    }

    /// True if it serves a run with these lessons over these sources.
    pub fn serves(&self, lessons: &Lessons, opened: &[Box<dyn SourceRun>]) -> bool {
        self.lessons.plan_as(lessons) && self.stamps == stamps(opened)
    }

    /// The same for runs that have learnt what changes no plan; see [`Lessons::plan_as`].
    pub fn with_lessons(&self, lessons: &Lessons) -> Self {
        Self { lessons: lessons.clone(), ..self.clone() }
    }

    /// What the last run of a segment has compiled.
    pub fn compiled(&self, segment: usize) -> Option<Compiled> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).get(&segment).cloned()
    }

    /// Keeps for later runs what this one has compiled.
    pub fn keep_compiled(&self, segment: usize, compiled: Compiled) {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).insert(segment, compiled);
    }

    /// True if a run finds what an earlier one has found: its columns stay, and it takes all of them at once.
    pub fn answers_hold(&self) -> bool {
        let stay = self.stamps.iter().all(|stamp| *stamp != 0);
        stay && self.lessons.takes_all_at_once() && !self.program.streams_out()
    }

    /// The tables that its runs share, unless another thread holds their lock.
    pub fn tables_now(&self) -> Option<MutexGuard<'_, Tables>> {
        match self.tables.try_lock() {
            Ok(tables) => Some(tables),
            Err(TryLockError::Poisoned(tables)) => Some(tables.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The tables that its runs share.
    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stamps(opened: &[Box<dyn SourceRun>]) -> Vec<u64> {
    opened.iter().map(|source| source.stamp()).collect()
}

/// A program while it is planned.
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

    /// Lowers every segment, first to last, for the columns that it gives; then looks, last to first, at those that it reads.
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
            // Where rows have one match at most, other columns may be read than where they have several, which plans expect: a condition
            // is asked of rows that may have no match, and what an expression need not read depends on what may fail before it.
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
            // What the keys of a build side read is needed, too.
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

    /// Notes what segment `index` reads: of its source, and of build sides.
    fn note_columns(&mut self, index: usize, lowered: &LoweredSegment) {
        let columns_read = match &self.program.segments[index].origin {
            Origin::Source(source) => Some(&mut self.used[*source]),
            _ => self.program.on_demand(index).and_then(|from| self.needed.get_mut(&from)),
        };
        if let Some(columns) = columns_read {
            // Behind the columns of ranked rows lies what was added to them, which is always there.
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

/// Build sides of which no more is known than the plan tells.
struct PlannedForms<'a> {
    forms: &'a mut HashMap<usize, BuildForm>,
    /// What segments give.
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

/// The same build sides, should no key of theirs have several rows.
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

/// The columns of several segments' results, one after the other.
pub fn merged<'c>(mut all: impl Iterator<Item = &'c [ColumnInfo]>) -> Vec<ColumnInfo> {
    let mut columns = all.next().unwrap_or_default().to_vec();
    for others in all {
        for (column, other) in columns.iter_mut().zip(others) {
            column.form = column.form.clone().or(&other.form);
        }
    }
    columns
}
