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
use millpond_kernels::join::{Expansion, TableInput};
use millpond_kernels::layout::{KeyPart, OutputLayout, StateLayout};
use millpond_kernels::pipeline::{ExtentInput, Input, LookupInput, Pipeline};
use millpond_memory::{DeviceBuffer, Reservation, Stream};

use super::failure::{Failure, control_words, flagged};
use super::lower::LoweredSegment;
use super::part::{Kept, Part, SMALL_RESULT_BYTES, output_buffer};
use super::run::Run;
use super::segment::{Active, Prepared};
use super::texts::Made;
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

    fn zeroed_state(&self, layout: StateLayout, groups: u64, stream: &Stream) -> Result<State, Failure> {
        let stream = stream.with_scope(&self.run.tags.groups);
        let promise = self.run.promise(layout.bytes)?;
        let buffer = DeviceBuffer::zeroed(layout.bytes, &stream, &self.run.engine.pool)?;
        Ok(State { buffer, layout, groups, _promise: promise })
    }

    /// Adds an extent's rows to the table.
    pub async fn accumulate(
        &self,
        prepared: &Prepared,
        extent: &ExtentInput,
        expansion: Option<&Expansion>,
        lookups: &[LookupInput],
        tables: &[TableInput],
        stream: &Stream,
    ) -> Result<(), Failure> {
        let variants = prepared.lowered.variants();
        let seeds = if is_seeded(&prepared.lowered) { 1 } else { 0 };
        let rows = (extent.rows.upper_bound() + seeds) * u64::from(variants);
        let mut slot = self.state.lock().await;
        let state = self.with_room(&mut slot, &prepared.pipeline, rows, stream).await?;
        let texts = self.run.reached.by(&prepared.lowered.last.spec);
        for variant in 0..variants {
            let input = Input {
                extents: std::slice::from_ref(extent),
                texts: &texts,
                literals: &prepared.lowered.last.literals,
                lookups,
                tables,
                expansion,
                variant,
                ..Input::default()
            };
            let made = self.run.made(&prepared.lowered.last.spec, &input, stream)?;
            let input = Input { arena: made.as_ref().map(Made::view), ..input };
            prepared.pipeline.accumulate(input, &state.buffer, &state.layout, stream)?;
            self.run.tally.launches.fetch_add(1, Ordering::Relaxed);
            self.keep_made(made);
        }
        state.groups = state.groups.saturating_add(rows);
        self.rows_in_table.fetch_add(extent.rows.upper_bound(), Ordering::Relaxed);
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
        let control = state.buffer.view(StateLayout::CONTROL)?.download_vec(stream, &self.run.engine.pinned)?.await?;
        let (error, groups) = control_words(&control)?;
        flagged(error)?;
        state.groups = groups;
        Ok(groups)
    }

    /// The groups as columns. `waits` when other passes come before the next pipeline.
    pub async fn emitted(&self, prepared: &Prepared, stream: &Stream, waits: bool) -> Result<Kept, Failure> {
        if self.rows_in_table.load(Ordering::Relaxed) == 0 && is_seeded(&prepared.lowered) {
            // The empty grouping set has a group all the same, which a launch brings.
            self.no_rows(prepared, stream).await?;
        }
        let mut slot = self.state.lock().await;
        self.with_room(&mut slot, &prepared.pipeline, 0, stream).await?;
        let mut state = slot.take().ok_or_else(|| EngineError::internal("the table was just made"))?;
        drop(slot);
        let variants = u64::from(prepared.lowered.variants());
        let seeds = if is_seeded(&prepared.lowered) { variants } else { 0 };
        let mut rows = self.rows_in_table.swap(0, Ordering::Relaxed) * variants + seeds;
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
