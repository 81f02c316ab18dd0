//! The table of an aggregating segment: made, grown, emitted, all within what memory there is.
//!
//!   extent ─► certainly room for its rows? ─ yes ─► one launch
//!                └─ no ─► one launch that leaves rows over when the table is full ─► none left? done
//!                             └─ grow: 8 times at first, twice when large ─► the rows that were left, again
//!   one table for all keys does not fit ─► one after the other for 2, 4, … 256 parts of the keys, over the same rows again
//!
//! Size     a hash table starts small, whatever the extent's rows: with what an earlier run of the plan needed, else with room for
//!          65,536 groups. It is never more than twice as large as its groups ask for, once it is large.
//! Waits    for the number of rows left over, where there might be any; before a large output, for the number of groups.
//! Memory   promised by the governor before it is allocated; while a table grows, the old one and the new. Where there is none to
//!          grow, the table fills up to seven eighths before the run begins again with fewer keys at a time.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use millpond_kernels::codegen::ir::{Regime, SinkSpec};
use millpond_kernels::layout::{KeyPart, OutputLayout, StateLayout};
use millpond_kernels::pipeline::{Input, Leftover, Pipeline};
use millpond_memory::{DeviceBuffer, Reservation, Stream};

use crate::error::EngineError;
use crate::program::extents::{Active, Prepared};
use crate::program::failure::{Failure, control_words, flagged};
use crate::program::lower::LoweredSegment;
use crate::program::part::{Kept, Part, SMALL_RESULT_BYTES, output_buffer};
use crate::program::run::Run;
use crate::program::texts::Made;

/// Groups that a hash table has room for at first, unless the rows are fewer.
const GROUPS_AT_FIRST: u64 = 1 << 16;
/// A table grows by this factor while it is small, since every turn asks the device and reads the rows that were left again.
const FAST_GROWTH: u64 = 8;
/// Bytes up to which a table is small.
const SMALL_TABLE_BYTES: usize = 256 << 20;

/// The table of an aggregating segment.
pub(crate) struct State {
    pub buffer: DeviceBuffer,
    pub layout: StateLayout,
    /// Groups it may have by now.
    groups: u64,
    /// Groups that it may come to before rows are left over.
    limit: u64,
    /// How often it has grown.
    generation: u32,
    _promise: Reservation,
}

impl State {
    /// True when `rows` rows, each with a group of its own, surely find room.
    fn has_room(&self, rows: u64, most: u64) -> bool {
        self.layout.regime != Regime::Hash || (self.groups + rows).min(most) <= self.limit
    }
}

/// How large tables of groups became in earlier runs, by plan and segment.
#[derive(Debug, Default)]
pub(crate) struct GroupSizes {
    known: Mutex<HashMap<u64, HashMap<usize, u64>>>,
}

/// Plans that are remembered; when there are more, all are forgotten.
const PLANS: usize = 1 << 10;

impl GroupSizes {
    pub fn get(&self, plan: u64) -> HashMap<usize, u64> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&plan).cloned().unwrap_or_default()
    }

    pub fn learn(&self, plan: u64, sizes: HashMap<usize, u64>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if sizes.is_empty() {
            return;
        }
        if known.len() >= PLANS {
            known.clear();
        }
        known.insert(plan, sizes);
    }
}

/// Whether a launch brings a group without rows.
fn is_seeded(lowered: &LoweredSegment) -> bool {
    matches!(&lowered.last.spec.sink, SinkSpec::Aggregate(aggregate) if aggregate.seed.is_some())
}

impl Active {
    /// The part of the keys that this pass is for.
    fn key_part(&self, regime: Regime) -> KeyPart {
        match regime {
            Regime::Hash => KeyPart::new(self.pass.load(Ordering::Relaxed), self.passes).unwrap_or(KeyPart::ALL),
            _ => KeyPart::ALL,
        }
    }

    fn zeroed_state(&self, layout: StateLayout, stream: &Stream) -> Result<State, Failure> {
        let stream = stream.with_scope(&self.run.tags.groups);
        self.most_groups.fetch_max(layout.records.into(), Ordering::Relaxed);
        let promise = self.run.promise(layout.bytes)?;
        let buffer = DeviceBuffer::zeroed(layout.bytes, &stream, &self.run.engine.pool)?;
        let limit = layout.room();
        Ok(State { buffer, layout, groups: 0, limit, generation: 0, _promise: promise })
    }

    /// Adds an extent's rows to the table. `input` is what each launch reads, but for the number of its variant.
    pub async fn accumulate(&self, prepared: &Prepared, input: Input<'_>, stream: &Stream) -> Result<(), Failure> {
        let seeds = if is_seeded(&prepared.lowered) { 1 } else { 0 };
        let rows: u64 = input.extents.iter().map(|extent| extent.rows.upper_bound()).sum();
        let extent = self.extents.fetch_add(1, Ordering::Relaxed);
        self.count_rows(prepared, rows)?;
        for variant in 0..prepared.lowered.variants() {
            let input = Input { variant, extent, ..input };
            let added = self.add_rows(prepared, input, rows + seeds, stream).await;
            if let Err(failure) = added {
                // The rows come again in smaller bites, unless other variants have added them already.
                self.rows_in_table.fetch_sub(rows, Ordering::Relaxed);
                return Err(if variant > 0 { failure.midway() } else { failure });
            }
        }
        Ok(())
    }

    /// Counts rows before they go into the table. Beyond a bound sums would no longer be exact: then the CPU takes over.
    fn count_rows(&self, prepared: &Prepared, rows: u64) -> Result<(), Failure> {
        let most = match self.run.options.debug_rows_per_state {
            0 => prepared.pipeline.max_rows(),
            most => prepared.pipeline.max_rows().min(most as u64),
        };
        let before = self.rows_in_table.fetch_add(rows, Ordering::Relaxed);
        if before.saturating_add(rows) > most {
            return Err(Failure::trouble(format!(
                "sums on the device are exact for {most} rows of one aggregation, and there are more"
            )));
        }
        Ok(())
    }

    /// One launch over the rows of `input`.
    fn launch(&self, prepared: &Prepared, input: Input<'_>, state: &State, stream: &Stream) -> Result<(), Failure> {
        // The table's keys may be views of texts that earlier launches have made, for these rows too.
        let texts = self.run.reached.by(&prepared.lowered.last.spec);
        let made = self.run.made(&prepared.lowered.last.spec, &input, stream)?;
        let input = Input { arena: made.as_ref().map(Made::view), texts: &texts, ..input };
        prepared.pipeline.accumulate(input, &state.buffer, &state.layout, stream)?;
        self.run.tally.launches.fetch_add(1, Ordering::Relaxed);
        self.keep_made(made);
        Ok(())
    }

    async fn add_rows(&self, prepared: &Prepared, input: Input<'_>, rows: u64, stream: &Stream) -> Result<(), Failure> {
        let pipeline = &prepared.pipeline;
        let most = pipeline.max_groups().unwrap_or(u64::MAX);
        let mut slot = self.state.lock().await;
        let state = self.table(&mut slot, pipeline, rows, stream)?;
        if !state.has_room(rows, most) && rows * 2 <= state.limit {
            // The bound counts every row as a group: perhaps there are few.
            self.count_groups(state, stream).await?;
        }
        if state.has_room(rows, most) {
            self.launch(prepared, input, state, stream)?;
            state.groups = state.groups.saturating_add(rows);
            return Ok(());
        }
        let scoped = stream.with_scope(&self.run.tags.groups);
        let _promise = self.run.promise(Leftover::bytes(rows))?;
        let noted = DeviceBuffer::zeroed(Leftover::bytes(rows), &scoped, &self.run.engine.pool)?;
        let mut again = false;
        loop {
            let state = self.table(&mut slot, pipeline, rows, stream)?;
            let leftover = Leftover { noted: noted.as_view().clone(), again, limit: state.limit };
            let input = Input { leftover: Some(&leftover), ..input };
            let launched = self.launch(prepared, input, state, stream);
            launched.map_err(|failure| if again { failure.midway() } else { failure })?;
            state.groups = state.layout.records.into();
            let generation = state.generation;
            // Others may go on while this feeder waits.
            drop(slot);
            let count = noted.view(Leftover::COUNT)?.download_vec(stream, &self.run.engine.pinned);
            let count = count.map_err(|error| Failure::from(error).midway())?.await?;
            let left = count.as_chunks::<8>().0.first().map_or(0, |word| u64::from_le_bytes(*word));
            if left == 0 {
                return Ok(());
            }
            slot = self.state.lock().await;
            if let Some(state) = slot.as_mut().filter(|state| state.generation == generation) {
                self.grow(state, pipeline, left, stream).map_err(Failure::midway)?;
            }
            noted.view(Leftover::COUNT)?.fill(0, stream)?;
            again = true;
        }
    }

    fn layout(&self, pipeline: &Pipeline, groups: u64) -> Result<StateLayout, Failure> {
        let most = pipeline.max_groups().unwrap_or(u64::MAX);
        let layout = pipeline.state_layout(groups.min(most))?;
        let part = self.key_part(layout.regime);
        Ok(layout.of_part(part))
    }

    /// The table; where there is none, a new one for the groups of `rows` rows, or of the first that are there.
    fn table<'s>(
        &self,
        slot: &'s mut Option<State>,
        pipeline: &Pipeline,
        rows: u64,
        stream: &Stream,
    ) -> Result<&'s mut State, Failure> {
        if slot.is_none() {
            let first = match self.run.options.debug_groups_at_first {
                0 => GROUPS_AT_FIRST,
                groups => groups as u64,
            };
            let learnt = if self.passes == 1 { self.run.group_sizes.get(&self.index).copied() } else { None };
            let made = match learnt {
                Some(learnt) => self.zeroed_state(self.layout(pipeline, learnt.max(first))?, stream),
                None => self.zeroed_state(self.layout(pipeline, rows.min(first))?, stream),
            };
            *slot = Some(match made {
                Err(failure) if failure.is_out_of_memory() && learnt.is_some() => {
                    self.zeroed_state(self.layout(pipeline, rows.min(first))?, stream)?
                }
                made => made?,
            });
            if let (Some(state), true) = (slot.as_mut(), self.run.options.debug_groups_at_first > 0) {
                state.limit = state.limit.min(learnt.unwrap_or(first));
            }
        }
        Ok(slot.as_mut().ok_or_else(|| EngineError::internal("the table was just made"))?)
    }

    /// Makes room for more groups in a full table. `left` rows at least are still to come.
    fn grow(&self, state: &mut State, pipeline: &Pipeline, left: u64, stream: &Stream) -> Result<(), Failure> {
        let groups = state.limit;
        let twice = self.layout(pipeline, groups * 2)?;
        // No more than these rows can ask for, unless that were hardly any.
        let fast = self.layout(pipeline, (groups * FAST_GROWTH).min((groups + left).max(groups * 2)))?;
        let wanted = if fast.bytes <= SMALL_TABLE_BYTES { fast } else { twice.clone() };
        let is_larger = wanted.records > twice.records;
        let next = match self.zeroed_state(wanted, stream) {
            Err(failure) if failure.is_out_of_memory() && is_larger => self.zeroed_state(twice, stream),
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
        pipeline.rehash(&state.buffer, &state.layout, &next.buffer, &next.layout, stream)?;
        let mut sizes = self.run.group_sizes_seen.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.insert(self.index, next.layout.room());
        let groups = state.groups.min(state.layout.records.into());
        *state = State { groups, generation: state.generation + 1, ..next };
        Ok(())
    }

    /// Asks a hash table how many groups it has: the bound counts every row as one.
    async fn count_groups(&self, state: &mut State, stream: &Stream) -> Result<u64, Failure> {
        let control = state.buffer.view(StateLayout::CONTROL)?.download_vec(stream, &self.run.engine.pinned)?.await?;
        let (error, groups) = control_words(&control)?;
        flagged(error)?;
        state.groups = groups;
        Ok(groups)
    }

    /// The groups as columns. `waits` when other passes come before the next pipeline.
    pub async fn emit(&self, prepared: &Prepared, stream: &Stream, waits: bool) -> Result<Kept, Failure> {
        if self.rows_in_table.load(Ordering::Relaxed) == 0 && is_seeded(&prepared.lowered) {
            // The empty grouping set has a group all the same, which a launch brings.
            self.no_rows(prepared, stream).await?;
        }
        let mut slot = self.state.lock().await;
        self.table(&mut slot, &prepared.pipeline, 0, stream)?;
        let mut state = slot.take().ok_or_else(|| EngineError::internal("the table was just made"))?;
        drop(slot);
        let variants = u64::from(prepared.lowered.variants());
        let seeds = if is_seeded(&prepared.lowered) { variants } else { 0 };
        let mut rows = self.rows_in_table.swap(0, Ordering::Relaxed) * variants + seeds;
        if state.layout.regime == Regime::Hash {
            rows = rows.min(state.groups);
        }
        // Every row may be a group; a large output is worth asking.
        let large = prepared.pipeline.emit_layout(&state.layout, rows)?.bytes > SMALL_RESULT_BYTES;
        if state.layout.regime == Regime::Hash && (large || waits) {
            rows = rows.min(self.count_groups(&mut state, stream).await?);
        }
        let layout = prepared.pipeline.emit_layout(&state.layout, rows)?;
        let (buffer, promise) = self.run.output(&layout, waits, stream)?;
        prepared.pipeline.emit(&state.buffer, &state.layout, &buffer, &layout, stream)?;
        let part = Part::new(&buffer, layout, prepared.lowered.outputs.clone()).promised(promise);
        Ok(if waits { Kept::spillable(part, &self.run.engine)? } else { Kept::staying(part) })
    }
}

impl Run {
    /// A promised buffer for an output.
    pub fn output(
        &self,
        layout: &OutputLayout,
        waits: bool,
        stream: &Stream,
    ) -> Result<(DeviceBuffer, Reservation), Failure> {
        let promise = self.promise(layout.bytes)?;
        let stream = stream.with_scope(&self.tags.output);
        Ok((output_buffer(layout, waits, &self.engine, &stream)?, promise))
    }
}
