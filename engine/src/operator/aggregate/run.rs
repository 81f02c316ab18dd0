//! The table of an aggregating segment: created, grown and emitted, within the available memory.
//!
//!   extent ─► certainly room for its rows? ─ yes ─► one launch
//!                └─ no ─► one launch that leaves rows over when the table is full ─► none left? done
//!                             └─ grow: 8 times at first, twice when large ─► the leftover rows, again
//!   one table for all keys does not fit ─► one for each of 2, 4, … 256 parts of the keys, over the same rows again
//!
//! Size     a hash table begins with room for the groups that an earlier run of the plan found. Otherwise it begins
//!          with room for as many groups as its keys have values, if that is known and not very large; otherwise for
//!          65,536. A large table is never more than twice as large as its groups need.
//! Waits    in a first run: for the number of leftover rows, if there may be any; before a large output, for the number
//!          of groups.
//! Memory   is reserved with the governor before it is allocated; while a table grows, the old one and the new one. If
//!          there is none to grow, the table fills up to seven eighths before the run begins again with fewer keys at a
//!          time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::{Node, Regime, SinkSpec};
use millpond_kernels::layout::{KeyPart, StateLayout};
use millpond_kernels::pipeline::{Input, Leftover, Pipeline};
use millpond_kernels::tune;
use millpond_memory::{DeviceBuffer, Reservation, Stream};

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::program::answers::{Question, rows_of_each};
use crate::program::contract::{SinkRun, TableSize};
use crate::program::extent::Extent;
use crate::program::part::{Kept, Part, SMALL_RESULT_BYTES};
use crate::program::piece::LoweredSegment;
use crate::program::segment_result::SegmentResult;
use crate::program::segment_run::{PreparedSegment, SegmentRun};
use crate::program::segments::Origin;
use crate::program::texts::NewTexts;

/// Number of groups that a hash table has room for at first, unless there are fewer rows.
const GROUPS_AT_FIRST: u64 = 1 << 16;
/// Maximum number of groups to begin with, from the values of the keys, if filters may leave rows out.
const GROUPS_OF_SOME_ROWS: u64 = 1 << 18;
/// Growth factor of a small table: each growth reads a count back from the device, and reads the leftover rows again.
const FAST_GROWTH: u64 = 8;
/// Maximum bytes of a small table.
const SMALL_TABLE_BYTES: usize = 256 << 20;

/// The table of an aggregating segment.
pub(crate) struct State {
    pub buffer: DeviceBuffer,
    pub layout: StateLayout,
    /// Upper bound of its groups.
    groups: u64,
    /// Number of groups beyond which rows are left over.
    limit: u64,
    /// Number of times that it has grown.
    generation: u32,
    _promise: Reservation,
}

impl State {
    /// True if `rows` rows, each with a group of its own, certainly fit.
    fn has_room(&self, rows: u64, most: u64) -> bool {
        self.layout.regime != Regime::Hash || (self.groups + rows).min(most) <= self.limit
    }
}

/// Whether a launch creates a group without rows.
fn is_seeded(lowered: &LoweredSegment) -> bool {
    matches!(&lowered.last.spec.sink, SinkSpec::Aggregate(aggregate) if aggregate.seed.is_some())
}

/// The table of an aggregation, while rows are added to it.
#[derive(Default)]
pub(crate) struct AggregateRun {
    state: tokio::sync::Mutex<Option<State>>,
    /// Number of rows added to the table in this pass.
    rows_in_table: AtomicU64,
    /// Number of extents added to the table.
    extents: AtomicU32,
    /// Records of the largest table that was requested.
    most_groups: AtomicU64,
}

impl SinkRun for AggregateRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Extent { segment, prepared, from, stream, .. } = extent;
            let last = &prepared.shape.lowered.last;
            let launch = segment.launch(last, &from, stream).await?;
            Adding { of: self, segment, prepared, stream }.accumulate(launch.input(&from)).await
        }
        .boxed()
    }

    fn end_pass<'a>(&'a self, segment: &'a SegmentRun, stream: &'a Stream) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let prepared = segment.prepared(0)?;
            let adding = Adding { of: self, segment, prepared, stream };
            let groups = adding.emit(segment.passes > 1).await?;
            segment.keep(groups);
            Ok(())
        }
        .boxed()
    }

    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        parts: Vec<Kept>,
        _stream: &'a Stream,
    ) -> BoxFuture<'a, Result<SegmentResult, Failure>> {
        async move {
            let looked_up = Arc::clone(&segment.start.looked_up);
            Ok(SegmentResult { looked_up, ..segment.result(parts)? })
        }
        .boxed()
    }

    fn may_cut(&self, segment: &SegmentRun) -> Option<TableSize> {
        let keyed = segment.prepared_already().is_some_and(|prepared| match &prepared.shape.lowered.last.spec.sink {
            SinkSpec::Aggregate(aggregate) => !aggregate.keys.is_empty(),
            _ => false,
        });
        let groups = self.most_groups.load(Ordering::Relaxed);
        // A record has about this many bytes.
        let table = TableSize { bytes: groups as usize * 32 };
        (keyed && segment.passes < tune::MAX_KEY_PARTS && groups > tune::HASH_MIN_SLOTS).then_some(table)
    }
}

/// Rows on their way into a table.
struct Adding<'a> {
    of: &'a AggregateRun,
    segment: &'a SegmentRun,
    prepared: &'a PreparedSegment,
    stream: &'a Stream,
}

impl Adding<'_> {
    /// The part of the keys for this pass.
    fn key_part(&self, regime: Regime) -> KeyPart {
        match regime {
            Regime::Hash => {
                KeyPart::new(self.segment.pass.load(Ordering::Relaxed), self.segment.passes).unwrap_or(KeyPart::ALL)
            }
            _ => KeyPart::ALL,
        }
    }

    fn zeroed_state(&self, layout: StateLayout) -> Result<State, Failure> {
        self.of.most_groups.fetch_max(layout.records.into(), Ordering::Relaxed);
        let run = &self.segment.run;
        let (buffer, promise) = run.context.memory.take_zeroed(layout.bytes, &run.context.tags.groups, self.stream)?;
        let limit = layout.max_groups();
        Ok(State { buffer, layout, groups: 0, limit, generation: 0, _promise: promise })
    }

    /// Adds an extent's rows to the table. `input` is the input of each launch, except the number of its variant.
    pub async fn accumulate(&self, input: Input<'_>) -> Result<(), Failure> {
        let seeds = if is_seeded(&self.prepared.shape.lowered) { 1 } else { 0 };
        let rows: u64 = input.extents.iter().map(|extent| extent.rows.upper_bound()).sum();
        let extent = self.of.extents.fetch_add(1, Ordering::Relaxed);
        self.count_rows(rows)?;
        for variant in 0..self.prepared.shape.lowered.variants {
            let input = Input { variant, extent, ..input };
            let added = self.add_rows(input, rows + seeds).await;
            if let Err(failure) = added {
                // The rows are added again in smaller pieces, unless other variants have added them already.
                self.of.rows_in_table.fetch_sub(rows, Ordering::Relaxed);
                return Err(if variant > 0 { failure.midway() } else { failure });
            }
        }
        Ok(())
    }

    /// Counts rows before they are added to the table. Beyond a bound sums are not exact: then the CPU takes over.
    fn count_rows(&self, rows: u64) -> Result<(), Failure> {
        let most = match self.segment.run.context.options.debug_rows_per_state {
            0 => self.prepared.pipelines.last.max_rows(),
            most => self.prepared.pipelines.last.max_rows().min(most as u64),
        };
        let before = self.of.rows_in_table.fetch_add(rows, Ordering::Relaxed);
        if before.saturating_add(rows) > most {
            return Err(Failure::trouble(format!(
                "sums on the device are exact for {most} rows of one aggregation, and there are more"
            )));
        }
        Ok(())
    }

    /// One launch over the rows of `input`.
    fn launch(&self, input: Input<'_>, state: &State) -> Result<(), Failure> {
        // The table's keys may be views of texts from earlier launches.
        let texts = self.segment.run.reached.by(&self.prepared.shape.lowered.last.spec);
        let made = self.segment.run.new_texts(&self.prepared.shape.lowered.last.spec, &input, self.stream)?;
        let input = Input { arena: made.as_ref().map(NewTexts::view), texts: &texts, ..input };
        self.prepared.pipelines.last.accumulate(input, &state.buffer, &state.layout, self.stream)?;
        self.segment.run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
        self.segment.keep_new_texts(made);
        Ok(())
    }

    async fn add_rows(&self, input: Input<'_>, rows: u64) -> Result<(), Failure> {
        let pipeline = &self.prepared.pipelines.last;
        let most = pipeline.max_groups().unwrap_or(u64::MAX);
        let mut slot = self.of.state.lock().await;
        let state = self.table(&mut slot, pipeline, rows)?;
        if !state.has_room(rows, most) && rows * 2 <= state.limit {
            // The bound counts every row as a group; the actual number may be small.
            self.count_groups(state).await?;
        }
        if state.has_room(rows, most) {
            self.launch(input, state)?;
            state.groups = state.groups.saturating_add(rows);
            return Ok(());
        }
        let run = &self.segment.run;
        let (noted, _promise) =
            run.context.memory.take_zeroed(Leftover::bytes(rows), &run.context.tags.groups, self.stream)?;
        let mut asked = 0;
        loop {
            let again = asked > 0;
            let state = self.table(&mut slot, pipeline, rows)?;
            let leftover = Leftover { noted: noted.as_view().clone(), again, limit: state.limit };
            let input = Input { leftover: Some(&leftover), ..input };
            let launched = self.launch(input, state);
            launched.map_err(|failure| if again { failure.midway() } else { failure })?;
            state.groups = state.layout.records.into();
            let generation = state.generation;
            // Other feeders may continue while this one waits.
            drop(slot);
            let question = (self.segment.index, Question::Leftover);
            let count = [noted.view(Leftover::COUNT)?];
            let left = run.read_back(question, &count, words, self.stream).await.map_err(Failure::midway)?;
            asked += 1;
            let left = left.first().copied().unwrap_or(0);
            if left == 0 {
                if again {
                    // A later run begins with a table that has room for all rows.
                    run.answer_at_once(question, asked, vec![0]);
                }
                return Ok(());
            }
            slot = self.of.state.lock().await;
            if let Some(state) = slot.as_mut().filter(|state| state.generation == generation) {
                self.grow(state, pipeline, left).map_err(Failure::midway)?;
            }
            noted.view(Leftover::COUNT)?.fill(0, self.stream)?;
        }
    }

    fn layout(&self, pipeline: &Pipeline, groups: u64) -> Result<StateLayout, Failure> {
        let most = pipeline.max_groups().unwrap_or(u64::MAX);
        let layout = pipeline.state_layout(groups.min(most))?;
        let part = self.key_part(layout.regime);
        Ok(layout.of_part(part))
    }

    /// The table; if there is none, a new one for the groups of `rows` rows, or for the initial number of groups.
    fn table<'s>(&self, slot: &'s mut Option<State>, pipeline: &Pipeline, rows: u64) -> Result<&'s mut State, Failure> {
        if slot.is_none() {
            let first = match self.segment.run.context.options.debug_groups_at_first {
                0 => GROUPS_AT_FIRST,
                groups => groups as u64,
            };
            let learnt = if self.segment.passes == 1 {
                self.segment.run.prepared.lessons.groups.get(&self.segment.index).copied()
            } else {
                None
            };
            let known = learnt.or_else(|| self.known_groups(pipeline, rows));
            let made = match known {
                Some(known) => self.zeroed_state(self.layout(pipeline, known.max(first))?),
                None => self.zeroed_state(self.layout(pipeline, rows.min(first))?),
            };
            *slot = Some(match made {
                Err(failure) if failure.is_out_of_memory() && known.is_some() => {
                    self.zeroed_state(self.layout(pipeline, rows.min(first))?)?
                }
                made => made?,
            });
            if let (Some(state), true) = (slot.as_mut(), self.segment.run.context.options.debug_groups_at_first > 0) {
                state.limit = state.limit.min(learnt.unwrap_or(first));
            }
        }
        Ok(slot.as_mut().ok_or_else(|| EngineError::internal("the table was just made"))?)
    }

    /// Number of groups that `rows` rows may have, by the number of values of each key, if it is known and exceeds the
    /// initial number.
    fn known_groups(&self, pipeline: &Pipeline, rows: u64) -> Option<u64> {
        let (segment, spec) = (self.segment, &self.prepared.shape.lowered.last.spec);
        let program = &segment.run.prepared.program;
        let (Origin::Source(source), SinkSpec::Aggregate(aggregate)) =
            (&program.segments[segment.index].origin, &spec.sink)
        else {
            return None;
        };
        let is_small = segment.passes > 1 || segment.run.context.options.debug_groups_at_first > 0;
        if is_small || !self.prepared.shape.lowered.cuts.is_empty() {
            return None;
        }
        let mut groups = 1_u64;
        for key in &aggregate.keys {
            let mut node = *key;
            while let Node::Convert { of, .. } = spec.graph.node(node) {
                node = *of;
            }
            let Node::Column { index } = spec.graph.node(node) else { return None };
            let values = segment.run.sources[*source].distinct(*index as usize)?;
            groups = groups.saturating_mul(values + u64::from(spec.graph.ty(node).nullable));
        }
        // Keys with more values together than there are rows have far fewer groups; and so may rows that pass a filter.
        let most = if spec.filters.is_empty() { rows } else { rows.min(GROUPS_OF_SOME_ROWS) };
        let fits = || self.layout(pipeline, groups).is_ok_and(|layout| layout.bytes <= SMALL_TABLE_BYTES);
        (groups > GROUPS_AT_FIRST && groups <= most && fits()).then_some(groups)
    }

    /// Makes room for more groups in a full table. At least `left` rows have yet to be added.
    fn grow(&self, state: &mut State, pipeline: &Pipeline, left: u64) -> Result<(), Failure> {
        let groups = state.limit;
        let twice = self.layout(pipeline, groups * 2)?;
        // No more than these rows may need, unless that is hardly any.
        let fast = self.layout(pipeline, (groups * FAST_GROWTH).min((groups + left).max(groups * 2)))?;
        let wanted = if fast.bytes <= SMALL_TABLE_BYTES { fast } else { twice.clone() };
        let is_larger = wanted.records > twice.records;
        let next = match self.zeroed_state(wanted) {
            Err(failure) if failure.is_out_of_memory() && is_larger => self.zeroed_state(twice),
            other => other,
        };
        let next = match next {
            Err(failure) if failure.is_out_of_memory() => {
                let crowded = u64::from(state.layout.records) / 8 * 7;
                if state.limit >= crowded {
                    return Err(failure);
                }
                state.limit = crowded;
                state.generation += 1;
                return Ok(());
            }
            other => other?,
        };
        pipeline.rehash(&state.buffer, &state.layout, &next.buffer, &next.layout, self.stream)?;
        self.segment.run.lessons().groups.insert(self.segment.index, next.layout.max_groups());
        let groups = state.groups.min(state.layout.records.into());
        *state = State { groups, generation: state.generation + 1, ..next };
        Ok(())
    }

    /// Reads back a hash table's number of groups: the bound counts every row as one.
    async fn count_groups(&self, state: &mut State) -> Result<u64, Failure> {
        let control = [state.buffer.view(StateLayout::CONTROL)?];
        let site = (self.segment.index, Question::Groups);
        let groups = self.segment.run.read_back(site, &control, rows_of_each, self.stream).await?.iter().sum();
        state.groups = groups;
        Ok(groups)
    }

    /// The groups as columns. `waits` if other passes run before the next pipeline.
    pub async fn emit(&self, waits: bool) -> Result<Kept, Failure> {
        if self.of.rows_in_table.load(Ordering::Relaxed) == 0 && is_seeded(&self.prepared.shape.lowered) {
            // The empty grouping set has a group all the same, which a launch creates.
            self.segment.no_rows(self.prepared, self.stream).await?;
        }
        let mut slot = self.of.state.lock().await;
        self.table(&mut slot, &self.prepared.pipelines.last, 0)?;
        let mut state = slot.take().ok_or_else(|| EngineError::internal("the table was just made"))?;
        drop(slot);
        let variants = u64::from(self.prepared.shape.lowered.variants);
        let seeds = if is_seeded(&self.prepared.shape.lowered) { variants } else { 0 };
        let mut rows = self.of.rows_in_table.swap(0, Ordering::Relaxed) * variants + seeds;
        if state.layout.regime == Regime::Hash {
            rows = rows.min(state.groups);
        }
        // Every row may be a group; for a large output the count is read back.
        let large = self.prepared.pipelines.last.emit_layout(&state.layout, rows)?.bytes > SMALL_RESULT_BYTES;
        if state.layout.regime == Regime::Hash && (large || waits) {
            rows = rows.min(self.count_groups(&mut state).await?);
        }
        let layout = self.prepared.pipelines.last.emit_layout(&state.layout, rows)?;
        let (buffer, promise) = self.segment.run.output(&layout, waits, self.stream)?;
        self.prepared.pipelines.last.emit(&state.buffer, &state.layout, &buffer, &layout, self.stream)?;
        let part = Part::new(&buffer, layout, self.prepared.shape.lowered.outputs.clone()).promised(promise);
        Ok(if waits { Kept::spillable(part, &self.segment.run.context.engine)? } else { Kept::staying(part) })
    }
}

/// The words of a block of counts.
fn words(block: &[u8]) -> Result<Vec<u64>, Failure> {
    Ok(block.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}
