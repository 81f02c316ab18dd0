//! The table of an aggregating segment: made, grown, emitted, all within what memory there is.
//!
//!   extent ─► room for its rows? ── no ──► how many groups are there really? ─► a larger table, generous, else just large enough
//!                                                                                    └─ neither fits ─► fewer rows at a time
//!   one table for all keys does not fit ─► one after the other for 2, 4, … 256 parts of the keys, over the same rows again
//!
//! Waits    where a hash table may be full, and before a large output, for its number of groups.
//! Memory   promised by the governor before it is allocated; while a table grows, the old one and the new.

use std::sync::atomic::Ordering;

use millpond_kernels::codegen::ir::{Regime, SinkSpec};
use millpond_kernels::layout::{KeyPart, OutputLayout, StateLayout};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, Pipeline};
use millpond_kernels::tune;
use millpond_memory::{DeviceBuffer, Reservation, Stream};

use super::compile::LoweredSegment;
use super::part::{Kept, Part, SMALL_RESULT_BYTES, output_buffer};
use super::run::{Failure, Prepared, Run, control_words, flagged};
use crate::error::EngineError;

/// A hash table grows before it is full: this many extents' rows might all be new groups.
const EXTENTS_AHEAD: u64 = 2;

/// The table of an aggregating segment.
pub(super) struct State {
    pub buffer: DeviceBuffer,
    pub layout: StateLayout,
    /// Groups it may have by now.
    pub groups: u64,
    _promise: Reservation,
}

/// Whether a launch brings a group without rows.
fn is_seeded(lowered: &LoweredSegment) -> bool {
    matches!(&lowered.spec.sink, SinkSpec::Aggregate(aggregate) if aggregate.seed.is_some())
}

impl Run {
    /// The part of the keys that this pass is for.
    fn key_part(&self, regime: Regime) -> KeyPart {
        match regime {
            Regime::Hash => KeyPart::new(self.pass.load(Ordering::Relaxed), self.passes).unwrap_or(KeyPart::ALL),
            _ => KeyPart::ALL,
        }
    }

    /// True when the first table can be cut: one part of the keys after the other, in less memory each.
    pub fn may_cut_table(&self) -> bool {
        let keyed = self.prepared_already().is_some_and(|prepared| match &prepared.lowered.spec.sink {
            SinkSpec::Aggregate(aggregate) => !aggregate.keys.is_empty(),
            _ => false,
        });
        keyed && self.passes < tune::MAX_KEY_PARTS && self.most_groups.load(Ordering::Relaxed) > tune::HASH_MIN_SLOTS
    }

    fn zeroed_state(&self, layout: StateLayout, groups: u64, stream: &Stream) -> Result<State, Failure> {
        let stream = stream.with_scope(&self.tags.groups);
        let promise = self.promise(layout.bytes)?;
        let buffer = DeviceBuffer::zeroed(layout.bytes, &stream, &self.engine.pool)?;
        Ok(State { buffer, layout, groups, _promise: promise })
    }

    /// Adds an extent's rows to the table of segment 0.
    pub async fn accumulate(&self, prepared: &Prepared, extent: ExtentInput, stream: &Stream) -> Result<(), Failure> {
        let variants = prepared.lowered.variants();
        let seeds = if is_seeded(&prepared.lowered) { 1 } else { 0 };
        let rows = (extent.rows.upper_bound() + seeds) * u64::from(variants);
        let lookups = self.lookups(&prepared.lowered, stream).await?;
        let mut slot = self.state.lock().await;
        let state = self.with_room(&mut slot, &prepared.pipeline, rows, stream).await?;
        for variant in 0..variants {
            let input = Input {
                extents: std::slice::from_ref(&extent),
                descriptors: None,
                literals: &prepared.lowered.literals,
                lookups: &lookups,
                variant,
                ..Input::default()
            };
            prepared.pipeline.accumulate(input, &state.buffer, &state.layout, stream)?;
            self.pipeline_launches.fetch_add(1, Ordering::Relaxed);
        }
        state.groups = state.groups.saturating_add(rows);
        Ok(())
    }

    /// The table, with room for `rows` groups more.
    async fn with_room<'s>(
        &self,
        slot: &'s mut Option<State>,
        pipeline: &Pipeline,
        rows: u64,
        stream: &Stream,
    ) -> Result<&'s mut State, Failure> {
        let most = pipeline.max_groups().unwrap_or(u64::MAX);
        let layout_for = |groups: u64| -> Result<StateLayout, Failure> {
            let layout = pipeline.state_layout(groups.min(most))?;
            let part = self.key_part(layout.regime);
            Ok(layout.of_part(part))
        };
        if slot.is_none() {
            let layout = layout_for(rows)?;
            self.most_groups.fetch_max(layout.records.into(), Ordering::Relaxed);
            *slot = Some(self.zeroed_state(layout, 0, stream)?);
        }
        let state = slot.as_mut().ok_or_else(|| EngineError::internal("the table was just made"))?;
        if state.layout.regime != Regime::Hash || (state.groups + rows).min(most) <= state.layout.room() {
            return Ok(state);
        }
        let groups = self.count_groups(state, stream).await?;
        // Room for some extents more, so that not every one of them has to ask; where memory is short, for this one.
        if (groups + rows * EXTENTS_AHEAD).min(most) > state.layout.room() {
            let generous = layout_for((groups + rows * EXTENTS_AHEAD) * 2)?;
            self.most_groups.fetch_max(generous.records.into(), Ordering::Relaxed);
            let enough = (groups + rows).min(most) <= state.layout.room();
            let next = match self.zeroed_state(generous, groups, stream) {
                Err(failure) if failure.is_out_of_memory() && enough => return Ok(state),
                Err(failure) if failure.is_out_of_memory() => {
                    self.zeroed_state(layout_for(groups + rows)?, groups, stream)?
                }
                other => other?,
            };
            pipeline.rehash(&state.buffer, &state.layout, &next.buffer, &next.layout, stream)?;
            *state = next;
        }
        Ok(state)
    }

    /// Asks a hash table how many groups it has: the bound counts every row as one.
    async fn count_groups(&self, state: &mut State, stream: &Stream) -> Result<u64, Failure> {
        let control = state.buffer.view(StateLayout::CONTROL)?.download_vec(stream, &self.engine.pinned)?.await?;
        let (error, groups) = control_words(&control)?;
        flagged(error)?;
        state.groups = groups;
        Ok(groups)
    }

    /// The groups of segment 0 as columns. `waits` when other passes come before the next pipeline.
    pub async fn emitted(&self, prepared: &Prepared, stream: &Stream, waits: bool) -> Result<Kept, Failure> {
        if self.rows_fed.load(Ordering::Relaxed) == 0 && is_seeded(&prepared.lowered) {
            // The empty grouping set has a group all the same, which a launch brings.
            let nothing = DeviceBuffer::zeroed(1, stream, &self.engine.pool)?;
            let column = ColumnInput { values: nothing.view(0..0)?, validity: None, base: 0 };
            let columns = vec![Some(column); prepared.lowered.spec.columns.len()];
            self.accumulate(prepared, ExtentInput { rows: ExtentRows::Known(0), columns }, stream).await?;
        }
        let mut slot = self.state.lock().await;
        self.with_room(&mut slot, &prepared.pipeline, 0, stream).await?;
        let mut state = slot.take().ok_or_else(|| EngineError::internal("the table was just made"))?;
        drop(slot);
        let variants = u64::from(prepared.lowered.variants());
        let seeds = if is_seeded(&prepared.lowered) { variants } else { 0 };
        let mut rows = self.rows_fed.load(Ordering::Relaxed) * variants + seeds;
        // Every row may be a group; a large output is worth asking.
        let large = prepared.pipeline.emit_layout(&state.layout, rows)?.bytes > SMALL_RESULT_BYTES;
        if state.layout.regime == Regime::Hash && (large || waits) {
            rows = rows.min(self.count_groups(&mut state, stream).await?);
        }
        let part = self.emit(&prepared.pipeline, &state, &prepared.lowered, rows, waits, stream)?;
        Ok(if waits { Kept::spillable(part, &self.engine)? } else { Kept::staying(part) })
    }

    fn emit(
        &self,
        pipeline: &Pipeline,
        state: &State,
        lowered: &LoweredSegment,
        rows: u64,
        waits: bool,
        stream: &Stream,
    ) -> Result<Part, Failure> {
        let layout = pipeline.emit_layout(&state.layout, rows)?;
        let (buffer, promise) = self.output(&layout, waits, stream)?;
        pipeline.emit(&state.buffer, &state.layout, &buffer, &layout, stream)?;
        Ok(Part::new(&buffer, layout, lowered.outputs.clone()).promised(promise))
    }

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

    /// An aggregate over the results of another segment.
    pub async fn aggregate_again(
        &self,
        pipeline: &Pipeline,
        lowered: &LoweredSegment,
        inputs: Vec<Kept>,
        stream: &Stream,
    ) -> Result<Part, Failure> {
        let variants = lowered.variants();
        let seeds = if is_seeded(lowered) { 1 } else { 0 };
        let rows = (inputs.iter().map(Kept::rows).sum::<u64>() + seeds) * u64::from(variants);
        let layout = pipeline.state_layout(rows.min(pipeline.max_groups().unwrap_or(u64::MAX)))?;
        let state = self.zeroed_state(layout, 0, stream)?;
        for input in inputs {
            let lookups = self.lookups(lowered, stream).await?;
            let input = input.on_device(stream)?;
            let extent = input.as_extent()?;
            let extents = std::slice::from_ref(&extent);
            for variant in 0..variants {
                let launch = Input {
                    extents,
                    descriptors: None,
                    literals: &lowered.literals,
                    lookups: &lookups,
                    variant,
                    ..Input::default()
                };
                pipeline.accumulate(launch, &state.buffer, &state.layout, stream)?;
                self.pipeline_launches.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.emit(pipeline, &state, lowered, rows, false, stream)
    }
}
