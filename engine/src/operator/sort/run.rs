//! Sorts what a segment gives: row numbers by key, then every column fetched in their order.
//!
//!   [price | name]   ── keys: price, rank of name ──►  [2, 0, 1]  ── fetch ──►  [price | name] in order
//!
//!   first rows   part ─ best of it ─┐
//!                part ─ best of it ─┴─ together ─ sort        no more than those of each part wait for the others
//!
//! Order    stable within a part, NULLs first or last by key, floats in total order, strings by bytes.
//! Limit    where only the first rows are wanted, the others are not fetched, and up to 1,024 not sorted.
//! Strings  sort by the rank of their code among all values, made when the rows are there: what arrives later moves no rank
//!          that was used.
//! Memory   the parts once more as one, their row numbers, and up to 24 bytes a row while they are sorted.
//! Waits    never: the number of rows stays on the device.

use millpond_kernels::codegen::ir::{
    ColumnSpec, Extents, Graph, LookupSpec, Physical, PipelineSpec, Range, Repr, SinkSpec, Ty,
};
use millpond_kernels::pipeline::{ExtentInput, Input, LookupInput};
use millpond_kernels::sort::{self, Sort};
use millpond_memory::{DeviceBuffer, Reservation, Stream};

use crate::error::EngineError;
use crate::expr::{Lookup, LookupKind};
use crate::program::extents::{Active, Prepared};
use crate::program::failure::Failure;
use crate::program::lower::{Ranking, SortKey};
use crate::program::part::{Kept, Part};
use crate::program::segments::Sink;

/// A part is cut to the rows that are wanted where it has more than so many times as many.
const WORTH_CUTTING: u64 = 2;

impl Active {
    /// The rows of a segment's output that are wanted, when it is sorted and not all of them are.
    pub(crate) fn rows_wanted(&self, part_bound: u64) -> Option<usize> {
        match self.sink() {
            Sink::Sort { fetch: Some(fetch), .. } if part_bound > *fetch as u64 * WORTH_CUTTING => Some(*fetch),
            _ => None,
        }
    }

    /// The first `wanted` rows of `part`, with the columns that sort them.
    pub(crate) async fn best(
        &self,
        part: Part,
        wanted: usize,
        prepared: &Prepared,
        stream: &Stream,
    ) -> Result<Part, Failure> {
        let keys = &prepared.lowered.sort_keys;
        let (order, _promise) = self.order_rows(&part, keys, Some(wanted), stream).await?;
        let columns = part.layout.columns.len();
        Ok(self.fetched(&part, 0..columns, &order, true, stream)?.arranged(&part.outputs, &part.at))
    }

    /// All parts, sorted.
    pub(crate) async fn sort_parts(
        &self,
        parts: Vec<Kept>,
        limit: Option<usize>,
        prepared: &Prepared,
        stream: &Stream,
    ) -> Result<Part, Failure> {
        let part = self.run.together(parts, stream)?;
        if part.rows_bound() == 0 {
            return Ok(part);
        }
        let (order, _promise) = self.order_rows(&part, &prepared.lowered.sort_keys, limit, stream).await?;
        // The keys have done their work.
        let columns = part.outputs.len();
        Ok(self.fetched(&part, 0..columns, &order, false, stream)?.arranged(&part.outputs, &part.at))
    }

    /// All parts in the order of their groups: the columns that an aggregation reads, and each column whose values it looks up,
    /// sorted within its groups.
    pub(crate) async fn rank_parts(
        &self,
        parts: Vec<Kept>,
        ranking: &Ranking,
        prepared: &Prepared,
        stream: &Stream,
    ) -> Result<(Part, Vec<Part>), Failure> {
        let part = self.run.together(parts, stream)?;
        let mut rows = None;
        let mut sorted = Vec::with_capacity(ranking.sorted.len());
        for column in &ranking.sorted {
            let keys = [prepared.lowered.sort_keys.as_slice(), &[*column]].concat();
            let (order, _promise) = self.order_rows(&part, &keys, None, stream).await?;
            if rows.is_none() {
                let read = self.fetched(&part, 0..ranking.read, &order, true, stream)?;
                rows = Some(read.arranged(&part.outputs, &part.at));
            }
            sorted.push(self.fetched(&part, column.output..column.output + 1, &order, false, stream)?);
        }
        Ok((rows.ok_or_else(|| EngineError::internal("something is ranked"))?, sorted))
    }

    /// A column that is sorted within the groups; where there are no rows, nothing that anybody looks at.
    pub(crate) fn ranked_column(&self, column: usize, stream: &Stream) -> Result<LookupInput, Failure> {
        match self.ranked.get(column) {
            Some(column) => Ok(column.clone()),
            None => {
                let nothing = DeviceBuffer::zeroed(256, stream, &self.run.engine.pool)?;
                let nothing = nothing.as_view().clone();
                Ok(LookupInput { values: nothing.clone(), validity: Some(nothing) })
            }
        }
    }

    /// The row numbers of `part` in the order of `keys`, which name its columns; of its rows the first `limit`, or all.
    async fn order_rows(
        &self,
        part: &Part,
        keys: &[SortKey],
        limit: Option<usize>,
        stream: &Stream,
    ) -> Result<(ExtentInput, Reservation), Failure> {
        let run = &self.run;
        let engine = &run.engine;
        let mut columns = Vec::with_capacity(keys.len());
        for key in keys {
            let column = &part.layout.columns[key.output];
            let values = part.buffer.view(column.values.clone())?;
            let (mut ranks, mut range) = (None, column.ty.range);
            if let Some(dictionary) = key.dictionary {
                let lookup = Lookup { dictionary, kind: LookupKind::Rank, ty: Ty::new(Repr::U32) };
                let table = self.dictionary_table(&lookup, stream).await?;
                let values = (table.values.len() / 4).max(1);
                range = Some(Range::new(0, values as i128 - 1));
                ranks = Some(table.values);
            }
            columns.push(sort::SortKey {
                validity: column.validity.clone().map(|range| part.buffer.view(range)).transpose()?,
                ranks,
                range,
                descending: key.descending,
                nulls_first: key.nulls_first,
                ..sort::SortKey::new(&values, column.physical)
            });
        }
        let sort = Sort::new(columns, part.rows_bound(), limit.map(|limit| limit as u64))?;
        // What the sort itself needs goes before the columns are fetched; descriptors and order stay.
        let scoped = stream.with_scope(&run.tags.sort);
        let descriptors = sort.descriptors();
        let order = descriptors.len().next_multiple_of(256);
        let end = order + sort.order_bytes();
        let (promise, _of_scratch) = (run.promise(end)?, run.promise(sort.scratch_bytes())?);
        let working = DeviceBuffer::new(end, &scoped, &engine.pool)?;
        let scratch = match sort.scratch_bytes() {
            0 => None,
            bytes => Some(DeviceBuffer::new(bytes, &scoped, &engine.pool)?),
        };
        let descriptor_view = working.view(0..descriptors.len())?;
        descriptor_view.upload_from(&descriptors, stream, &engine.pinned)?;
        let order = working.view(order..end)?;
        let scratch = scratch.as_ref().map(DeviceBuffer::as_view);
        let reached = if part.reaches_texts() { run.reached.all() } else { vec![] };
        let rows = part.as_extent()?.rows;
        sort.run(&engine.images, &descriptor_view, &reached, &rows, &order, scratch, stream)?;
        Ok((sort.order(&order)?, promise))
    }

    /// Columns of `part` in its layout, their rows chosen by `order`; allocated as what waits if it `waits`.
    fn fetched(
        &self,
        part: &Part,
        columns: std::ops::Range<usize>,
        order: &ExtentInput,
        waits: bool,
        stream: &Stream,
    ) -> Result<Part, Failure> {
        let run = &self.run;
        // All columns are fetched by one launch: a pipeline over the row numbers, in which every column is a lookup table.
        let columns = &part.layout.columns[columns];
        let mut graph = Graph::new();
        let row = graph.column(0, Ty::new(Repr::U32));
        let mut outputs = Vec::with_capacity(columns.len());
        let mut tables = Vec::with_capacity(columns.len());
        for (table, column) in columns.iter().enumerate() {
            outputs.push(graph.lookup(row, table as u32, column.ty).map_err(|e| Failure::trouble(e.to_string()))?);
            let validity = column.validity.clone().map(|range| part.buffer.view(range)).transpose()?;
            tables.push(LookupInput { values: part.buffer.view(column.values.clone())?, validity });
        }
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: vec![ColumnSpec { physical: Physical::U32, has_base: false, ty: Ty::new(Repr::U32) }],
            literals: vec![],
            lookups: columns.iter().map(|c| LookupSpec { physical: c.physical, ty: c.ty }).collect(),
            tables: vec![],
            expanded: false,
            graph,
            filters: vec![],
            sink: SinkSpec::Materialise { outputs },
        };
        let fetch = run.pipeline(&spec)?;
        let extents = std::slice::from_ref(order);
        let layout = fetch.output_layout(extents);
        let (buffer, promise) = run.output(&layout, waits, stream)?;
        let reached = if part.reaches_texts() { run.reached.all() } else { vec![] };
        let input = Input { extents, lookups: &tables, texts: &reached, ..Input::default() };
        fetch.materialise(input, &buffer, &layout, stream)?;
        run.tally.launches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Part::new(&buffer, layout, vec![]).promised(promise))
    }
}
