//! Lowers a join: its probe to a stage, its build side to a sink, and the stages that begin with build rows.
//!
//!   one match at most      probe ─► residual ─► columns by row number              in the same piece
//!   several                rows with start and count of matches ─┤ cut ├─ a piece over pairs ─► residual ─► columns
//!   kept build rows        pairs mark them; those without a mark follow, the probe side NULL
//!
//! Table    chosen by bytes, see [`table_spec`].

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::physical_plan::ExecutionPlan;
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::{NodeId, Repr, SinkSpec, TableKind, TableSpec, Test, Ty};
use millpond_kernels::join::TableLayout;

use crate::column::{ColumnInfo, Form};
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, LookupTable, Lowering, Scope, Value};
use crate::operator::join::cut::{MatchCut, cross};
use crate::operator::join::probe::{
    self, Asked, build_row_marked, in_slice, join_in_place, joined, listed_row, matches, residual, to_mark,
};
use crate::operator::join::run::{BuildRun, MarkRun};
use crate::operator::join::{DeviceJoinExec, JoinColumn, JoinKind};
use crate::program::build_side::{BuildForm, KeyForm};
use crate::program::contract::{Sink, SinkRun, Stage, never_alone};
use crate::program::extent::CutRows;
use crate::program::lower::{PieceBuilder, SegmentLowering, number_column};
use crate::program::piece::{Cut, LoweredSink, Piece};

/// Looks up keys in the build side of segment `build`.
#[derive(Debug)]
pub(crate) struct Probe {
    pub join: Arc<DeviceJoinExec>,
    pub build: usize,
}

impl Stage for Probe {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason> {
        let (join, build) = (&*self.join, self.build);
        let form = segment
            .build_form(build, |columns, lowering, scope| planned_build(build, join, columns, lowering, scope))?;
        if let Some(slice) = segment.input.slice(build) {
            segment.with_filters(|lowering, scope, filters| {
                let keys = probe::keys(lowering, scope, join, &form.keys, false)?;
                filters.push(in_slice(lowering, &keys, slice)?);
                Ok(())
            })?;
        }
        match (probe::stays_in_place(join, &form), join.kind().is_about_build_rows()) {
            (true, true) => {
                let row =
                    segment.with_filters(|lowering, scope, filters| to_mark(lowering, scope, join, &form, filters))?;
                segment.build_row = Some(row);
            }
            (true, false) => {
                (segment.scope, segment.marked_row) = segment
                    .with_filters(|lowering, scope, filters| join_in_place(lowering, scope, join, &form, filters))?;
            }
            (false, _) => {
                let mut build_row = None;
                segment.cut(|piece, scope| {
                    let (done, next, scope, row) = cut(piece, scope, join, &form)?;
                    build_row = row;
                    Ok((done, next, scope))
                })?;
                segment.build_row = build_row;
            }
        }
        Ok(())
    }

    fn build(&self) -> Option<usize> {
        Some(self.build)
    }

    fn marks_build_rows(&self) -> bool {
        self.join.kind().keeps_build_rows()
    }

    fn cross<'a>(&'a self, rows: CutRows<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        cross(rows).boxed()
    }

    fn on_cpu(&self, _batch: &RecordBatch) -> datafusion::error::Result<RecordBatch> {
        never_alone(self)
    }
}

/// The unmatched rows of a build side, as rows of the join.
#[derive(Debug)]
pub(crate) struct Unmatched(pub Arc<DeviceJoinExec>);

impl Stage for Unmatched {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason> {
        let like = segment.input.like;
        let like = like.ok_or_else(|| Reason::NodeUnsupported { node: "the rest of a build side".into() })?;
        let scope = segment.scope.clone();
        segment.scope = unmatched(segment.piece(), &scope, &self.0, like)?;
        Ok(())
    }

    fn on_cpu(&self, _batch: &RecordBatch) -> datafusion::error::Result<RecordBatch> {
        never_alone(self)
    }
}

/// The rows of a build side that the join outputs, once matched rows are marked.
#[derive(Debug)]
pub(crate) struct Marked {
    pub join: Arc<DeviceJoinExec>,
    pub build: usize,
}

impl Stage for Marked {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason> {
        let (join, build) = (&*self.join, self.build);
        let form = segment
            .build_form(build, |columns, lowering, scope| planned_build(build, join, columns, lowering, scope))?;
        let scope = segment.scope.clone();
        segment.scope = marked_rows(segment.piece(), &scope, join, &form)?;
        Ok(())
    }

    fn on_cpu(&self, _batch: &RecordBatch) -> datafusion::error::Result<RecordBatch> {
        never_alone(self)
    }
}

/// Sink that writes dense columns, and makes a table from keys to rows.
#[derive(Debug)]
pub(crate) struct BuildSink(pub Arc<DeviceJoinExec>);

impl Sink for BuildSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let input = segment.input;
        if let (Some(slice), Some(forms)) = (input.slice(segment.index), input.own_keys) {
            segment.with_filters(|lowering, scope, filters| {
                let keys = probe::keys(lowering, scope, &self.0, forms, true)?;
                filters.push(in_slice(lowering, &keys, slice)?);
                Ok(())
            })?;
        }
        let (nodes, outputs) = segment.outputs()?;
        Ok(LoweredSink::new(segment.write(nodes), outputs))
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(BuildRun(Arc::clone(&self.0)))
    }

    fn columns_on_demand(&self) -> Option<usize> {
        Some(self.0.build().schema().fields().len())
    }

    fn key_columns(
        &self,
        form: &BuildForm,
        columns: &[ColumnInfo],
        dictionaries: &mut Dictionaries,
    ) -> Result<Vec<u32>, Reason> {
        Ok(lower_table(&self.0, columns, &form.keys, &form.table, dictionaries)?.spec.used_columns())
    }

    fn may_slice(&self, keys: &[KeyForm]) -> bool {
        let asks_of_parts = self.0.kind() != JoinKind::NullAwareAnti && !self.0.on().is_empty();
        asks_of_parts && keys.iter().any(KeyForm::can_slice)
    }
}

/// Sink that marks the matched rows of segment `build`'s build side.
#[derive(Debug)]
pub(crate) struct MarkSink {
    pub build: usize,
}

impl Sink for MarkSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let row = segment.build_row;
        let row = row.ok_or_else(|| Reason::NodeUnsupported { node: "marks without a join".into() })?;
        Ok(LoweredSink::new(SinkSpec::Mark { row }, vec![]))
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(MarkRun { build: self.build })
    }
}

fn refused(error: &millpond_kernels::codegen::ir::GraphError) -> Reason {
    Reason::ExprUnsupported { expr: "the join".into(), why: error.to_string() }
}

/// The first `count` columns of a piece as a scope.
fn first_columns(scope: &Scope, count: usize) -> Scope {
    scope.select(&(0..count).collect::<Vec<_>>())
}

/// The marks of the rows that have a pair.
fn marked(lowering: &mut Lowering<'_>) -> Result<NodeId, Reason> {
    let row = lowering.graph.source_row();
    let table = lowering.lookup_table(LookupTable::Marks);
    lowering.graph.lookup(row, table, LookupTable::Marks.ty()).map_err(|e| refused(&e))
}

/// Cuts the segment at `join`, whose rows do not stay in place.
fn cut<'d>(
    mut open: PieceBuilder<'d>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &BuildForm,
) -> Result<(Cut, PieceBuilder<'d>, Scope, Option<NodeId>), Reason> {
    let (mut columns, nodes) = rows_with_matches(&mut open, scope, join, build)?;
    let counts = columns.len() - 1;
    let (rows, dictionaries) = open.close(SinkSpec::Materialise { outputs: nodes });
    let (details, beside, dictionaries) = beside(&mut columns, join, build, dictionaries)?;
    let mut next = PieceBuilder::new(&columns, false, details.expands, dictionaries);
    let (scope, build_row) = behind(&mut next, details.start, join, build)?;
    let cut = Cut { beside, details: Arc::new(details), ..Cut::new(rows, columns, counts) };
    Ok((cut, next, scope, build_row))
}

/// True if rows without a match are kept.
fn keeps_unmatched(kind: JoinKind) -> bool {
    matches!(kind, JoinKind::Outer | JoinKind::Full)
}

/// True if each row leaves at most once, whatever the number of its matches.
fn keeps_rows(kind: JoinKind) -> bool {
    matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::Mark)
}

/// The rows of a piece, as columns and nodes; the last two are the start and the count of a row's matches.
fn rows_with_matches(
    open: &mut PieceBuilder<'_>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &BuildForm,
) -> Result<(Vec<ColumnInfo>, Vec<NodeId>), Reason> {
    let kind = join.kind();
    let e = |e| refused(&e);
    let matches = matches(&mut open.lowering, scope, join, build)?;
    let list = open.lowering.graph.present(matches.list);
    let count = open.lowering.graph.match_count(list).map_err(e)?;
    let needs_match =
        matches!(kind, JoinKind::Inner | JoinKind::Semi | JoinKind::BuildOuter) || kind.is_about_build_rows();
    let (start, count) = if needs_match {
        open.filters.push(matches.found);
        (open.lowering.graph.match_start(list).map_err(e)?, count)
    } else {
        let without = i128::from(keeps_unmatched(kind) && join.residual().is_none());
        let g = &mut open.lowering.graph;
        let without = g.integer(without, Repr::U32);
        let start = g.match_start(matches.list).map_err(e)?;
        (start, g.case(vec![(matches.found, count)], Some(without)).map_err(e)?)
    };
    let (mut columns, mut nodes) = (Vec::new(), Vec::new());
    for (name, value) in scope.columns() {
        match value {
            Ok(value) => {
                columns.push(open.lowering.info(name, value));
                nodes.push(value.node);
            }
            Err(reason) => {
                // Nothing reads it; a column needs a node all the same, until outputs are restricted.
                let form = Form::Unsupported(reason.clone());
                columns.push(ColumnInfo::new(name.to_string(), DataType::Null, form));
                nodes.push(count);
            }
        }
    }
    columns.push(number_column(START, open.lowering.graph.ty(start)));
    columns.push(number_column(COUNT, open.lowering.graph.ty(count)));
    nodes.extend([start, count]);
    Ok((columns, nodes))
}

/// Names of the columns of a row's matches.
const START: &str = "start of matches";
const COUNT: &str = "count of matches";

/// The pieces that the join launches itself, over rows with their matches or over pairs, and their meaning. A recount
/// changes the types of start and count.
fn beside<'d>(
    columns: &mut [ColumnInfo],
    join: &DeviceJoinExec,
    build: &BuildForm,
    mut dictionaries: &'d mut Dictionaries,
) -> Result<(MatchCut, Vec<Piece>, &'d mut Dictionaries), Reason> {
    let (kind, width) = (join.kind(), columns.len() - 2);
    let (starts, counts) = (width, width + 1);
    let on_pairs = join.residual().is_some();
    let e = |e| refused(&e);
    let mut pieces = vec![];
    let (mut marks, mut build_marks, mut recount) = (None, None, None);
    if on_pairs && (keeps_unmatched(kind) || keeps_rows(kind)) {
        let (piece, given) =
            over_pairs(columns, width, join, build, dictionaries, |lowering, _| Ok(lowering.graph.source_row()))?;
        (marks, dictionaries) = (Some(pieces.len()), given);
        pieces.push(piece);
    }
    if kind.keeps_build_rows() {
        let (piece, given) = over_pairs(columns, width, join, build, dictionaries, |_, row| Ok(row))?;
        (build_marks, dictionaries) = (Some((pieces.len(), build.build)), given);
        pieces.push(piece);
    }
    // A row without a pair becomes one row, with NULL for the build side.
    if on_pairs && keeps_unmatched(kind) {
        let mut over = PieceBuilder::new(columns, false, false, dictionaries);
        let own = over.lowering.scope();
        let has_pair = marked(&mut over.lowering)?;
        let (start, count) = (own.column(starts)?.node, own.column(counts)?.node);
        let g = &mut over.lowering.graph;
        let one = g.integer(1, Repr::U32);
        let start = g.case(vec![(has_pair, start)], None).map_err(e)?;
        let count = g.case(vec![(has_pair, count)], Some(one)).map_err(e)?;
        let types = (g.ty(start), g.ty(count));
        let (piece, given) = over.close(SinkSpec::Materialise { outputs: vec![start, count] });
        (recount, dictionaries) = (Some(pieces.len()), given);
        pieces.push(piece);
        columns[starts] = number_column(START, types.0);
        columns[counts] = number_column(COUNT, types.1);
    }
    let cut = MatchCut { start: starts, marks, build_marks, recount, expands: !keeps_rows(kind) };
    Ok((cut, pieces, dictionaries))
}

/// Begins the piece behind the cut: the join's output, and for expanded rows the build row. `starts` is the column of
/// the start of matches, behind those of the probe side.
fn behind(
    next: &mut PieceBuilder<'_>,
    starts: usize,
    join: &DeviceJoinExec,
    build: &BuildForm,
) -> Result<(Scope, Option<NodeId>), Reason> {
    let kind = join.kind();
    let e = |e| refused(&e);
    let own = next.lowering.scope();
    let before = first_columns(&own, starts);
    if keeps_rows(kind) {
        let has_pair = marked(&mut next.lowering)?;
        match kind {
            JoinKind::Semi => next.filters.push(has_pair),
            JoinKind::Anti => {
                let none = next.lowering.graph.not(has_pair).map_err(e)?;
                next.filters.push(none);
            }
            _ => {}
        }
        return Ok((joined(&mut next.lowering, &before, join, build, None, Some(has_pair))?, None));
    }
    let start = own.column(starts)?.node;
    let row = listed_row(&mut next.lowering, start, build)?;
    if let Some(holds) = residual(&mut next.lowering, &before, join, build, row)? {
        let g = &mut next.lowering.graph;
        let filter = match keeps_unmatched(kind) {
            true => {
                let holds = g.test(Test::IsTrue, holds).map_err(e)?;
                let unmatched = g.test(Test::IsNull, start).map_err(e)?;
                g.or(unmatched, holds).map_err(e)?
            }
            false => holds,
        };
        next.filters.push(filter);
    }
    Ok((joined(&mut next.lowering, &before, join, build, Some(row), None)?, Some(row)))
}

/// A piece over the pairs that satisfy the residual condition. It marks the row that `row` returns for the number of
/// the pair's build row.
fn over_pairs<'d>(
    columns: &[ColumnInfo],
    width: usize,
    join: &DeviceJoinExec,
    build: &BuildForm,
    dictionaries: &'d mut Dictionaries,
    row: impl FnOnce(&mut Lowering<'_>, NodeId) -> Result<NodeId, Reason>,
) -> Result<(Piece, &'d mut Dictionaries), Reason> {
    let mut over = PieceBuilder::new(columns, false, true, dictionaries);
    let own = over.lowering.scope();
    let before = first_columns(&own, width);
    let build_row = listed_row(&mut over.lowering, own.column(width)?.node, build)?;
    over.filters.extend(residual(&mut over.lowering, &before, join, build, build_row)?);
    let marked = row(&mut over.lowering, build_row)?;
    Ok(over.close(SinkSpec::Mark { row: marked }))
}

/// The unmatched rows of a build side, as rows of the join.
fn unmatched(
    open: &mut PieceBuilder<'_>,
    rows: &Scope,
    join: &DeviceJoinExec,
    like: &[ColumnInfo],
) -> Result<Scope, Reason> {
    let found = marked(&mut open.lowering)?;
    let none = open.lowering.graph.not(found).map_err(|e| refused(&e))?;
    open.filters.push(none);
    let mut values = Vec::with_capacity(like.len());
    for (column, info) in join.columns().iter().zip(like) {
        let value = match column {
            JoinColumn::Build(index) => rows.column(*index),
            _ => info.ty().map(|ty| Value {
                node: open.lowering.graph.null_of(ty),
                data_type: info.data_type.clone(),
                dictionary: info.form.dictionary(),
            }),
        };
        values.push((info.name.clone(), value, info.data_type.clone()));
    }
    Ok(Scope::new(values))
}

/// The rows of a build side, once matched rows are marked.
fn marked_rows(
    open: &mut PieceBuilder<'_>,
    rows: &Scope,
    join: &DeviceJoinExec,
    form: &BuildForm,
) -> Result<Scope, Reason> {
    let found = build_row_marked(&mut open.lowering, rows, join, form)?;
    match join.kind() {
        JoinKind::BuildSemi => open.filters.push(found),
        JoinKind::BuildAnti => {
            let none = open.lowering.graph.not(found).map_err(|e| refused(&e))?;
            open.filters.push(none);
        }
        _ => {}
    }
    let schema = join.schema();
    let mut values = Vec::with_capacity(join.columns().len());
    for (column, field) in join.columns().iter().zip(schema.fields()) {
        let value = match column {
            JoinColumn::Build(index) => rows.column(*index),
            _ => Ok(Value { node: found, data_type: DataType::Boolean, dictionary: None }),
        };
        values.push((field.name().clone(), value, field.data_type().clone()));
    }
    Ok(Scope::new(values))
}

/// The piece that inserts the rows of a build side, with these columns, into a table.
pub fn lower_table(
    join: &DeviceJoinExec,
    columns: &[ColumnInfo],
    forms: &[KeyForm],
    table: &TableSpec,
    dictionaries: &mut Dictionaries,
) -> Result<Piece, Reason> {
    let mut open = PieceBuilder::new(columns, false, false, dictionaries);
    let scope = open.lowering.scope();
    let keys = probe::keys(&mut open.lowering, &scope, join, forms, true)?;
    let (piece, _) = open.close(SinkSpec::Table { table: table.clone(), keys });
    Ok(piece.pruned())
}

/// Sizes that decide how a table is addressed.
#[derive(Debug, Clone, Copy)]
pub struct TableRoom {
    /// Rows of the build side.
    pub rows: u64,
    /// Maximum bytes of a table.
    pub most: u64,
    /// Bytes of the probe side, as far as they are known.
    pub probe_bytes: u64,
}

/// Maximum bytes of a bitmap: a larger one no longer stays near the processors.
const MOST_BITMAP_BYTES: u64 = 256 << 20;
/// Factor on the bytes of a hashed table, up to which a table addressed by keys is preferred.
const WORTH: u64 = 4;
/// Bytes up to which a table addressed by keys is preferred for any number of rows.
const ALWAYS_WORTH: u64 = 64 << 10;

/// The table of a build side; hashed if `room` is not known yet.
pub fn table_spec(join: &DeviceJoinExec, keys: &[Ty], asked: Asked, room: Option<TableRoom>) -> TableSpec {
    let keys = keys.to_vec();
    let spec = TableSpec { keys, kind: TableKind::Hash, lists: asked.lists, nulls_equal: join.nulls_equal() };
    match room {
        _ if join.on().is_empty() => TableSpec { kind: TableKind::Every, lists: false, ..spec },
        None => spec,
        Some(room) => by_bytes(spec, asked, room),
    }
}

/// Bits or an array addressed by the keys if that is worth its bytes, otherwise a hashed table.
fn by_bytes(hash: TableSpec, asked: Asked, room: TableRoom) -> TableSpec {
    let array = TableSpec { kind: TableKind::Array, ..hash.clone() };
    let bitmap = TableSpec { kind: TableKind::Bitmap, lists: false, ..hash.clone() };
    let bytes = |spec: &TableSpec| TableLayout::new(spec, room.rows).ok().map(|layout| layout.bytes as u64);
    let limit = (WORTH * bytes(&hash).unwrap_or(0)).max(room.probe_bytes / 2).max(ALWAYS_WORTH).min(room.most);
    let fits = |spec: &TableSpec, most: u64| bytes(spec).is_some_and(|bytes| bytes <= limit.min(most));
    if !asked.rows && fits(&bitmap, MOST_BITMAP_BYTES) {
        bitmap
    } else if fits(&array, u64::MAX) {
        array
    } else {
        hash
    }
}

/// Output columns of a join on the device, for rows of `probe` columns and a build side of `build` columns. Used to
/// judge: all forms that a run may take read the same columns by the same expressions.
pub fn judge_join(
    join: &DeviceJoinExec,
    build: &[ColumnInfo],
    probe: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<Vec<ColumnInfo>, Reason> {
    if join.kind() == JoinKind::NullAwareAnti && join.residual().is_some() {
        return Err(Reason::NodeUnsupported { node: "NOT IN with a further condition".into() });
    }
    let mut open = PieceBuilder::new(probe, false, false, dictionaries);
    let scope = open.lowering.scope();
    let form = planned_build(0, join, build, &mut open.lowering, &scope)?;
    let scope = if join.kind().is_about_build_rows() {
        if probe::stays_in_place(join, &form) {
            to_mark(&mut open.lowering, &scope, join, &form, &mut open.filters)?;
        } else {
            cut(open, &scope, join, &form)?;
        }
        open = PieceBuilder::new(build, false, false, dictionaries);
        let rows = open.lowering.scope();
        marked_rows(&mut open, &rows, join, &form)?
    } else if probe::stays_in_place(join, &form) {
        join_in_place(&mut open.lowering, &scope, join, &form, &mut open.filters)?.0
    } else {
        let (_, next, scope, _) = cut(open, &scope, join, &form)?;
        open = next;
        scope
    };
    let outputs = scope.columns().map(|(name, value)| Ok(open.lowering.info(name, &value.clone()?)));
    let mut outputs = outputs.collect::<Result<Vec<_>, Reason>>()?;
    if join.kind().keeps_build_rows() {
        outputs.iter_mut().for_each(|column| column.form = column.form.clone().nullable());
    }
    Ok(outputs)
}

/// Build-side form derived from the plan alone.
pub fn planned_build(
    build: usize,
    join: &DeviceJoinExec,
    columns: &[ColumnInfo],
    lowering: &mut Lowering<'_>,
    scope: &Scope,
) -> Result<BuildForm, Reason> {
    let keys = probe::key_forms(lowering, scope, join, columns)?;
    let types: Vec<Ty> = keys.iter().map(|form| form.ty).collect();
    let table = table_spec(join, &types, Asked::by(join, true), None);
    let columns = columns.to_vec();
    Ok(BuildForm { build, columns, table, keys, has_duplicates: true, has_null_keys: false, is_empty: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXISTENCE: Asked = Asked { rows: false, lists: false };
    const PAIRS: Asked = Asked { rows: true, lists: true };

    fn kind(ranges: &[(i128, i128)], rows: u64, asked: Asked, probe_bytes: u64, most: u64) -> TableKind {
        let keys = ranges.iter().map(|(low, high)| Ty::new(Repr::I64).within(*low, *high)).collect();
        let spec = TableSpec { keys, kind: TableKind::Hash, lists: asked.lists, nulls_equal: false };
        by_bytes(spec, asked, TableRoom { rows, most, probe_bytes }).kind
    }

    #[test]
    fn tables_are_addressed_by_keys_where_that_is_worth_its_bytes() {
        const ROOM: u64 = 1 << 31;
        // Order keys at scale 100, of which 4 % are built: bits beside any probe side, row numbers beside a large one.
        let orders = [(1, 600_000_000)];
        assert_eq!(kind(&orders, 6_000_000, EXISTENCE, 0, ROOM), TableKind::Bitmap);
        assert_eq!(kind(&orders, 6_000_000, PAIRS, 600_000_000 * 28, ROOM << 1), TableKind::Array);
        assert_eq!(kind(&orders, 6_000_000, PAIRS, 600_000_000 * 28, ROOM), TableKind::Hash);
        assert_eq!(kind(&orders, 6_000_000, PAIRS, 0, ROOM << 1), TableKind::Hash);
        // Looking up ten rows that are far apart costs less than clearing the bits.
        assert_eq!(kind(&orders, 10, EXISTENCE, 0, ROOM), TableKind::Hash);
        // Few codes are always worth it, also of several keys, negative ones, and next to 64-bit limits.
        assert_eq!(kind(&[(-3, 3), (0, 9)], 1, PAIRS, 0, ROOM), TableKind::Array);
        assert_eq!(kind(&[(i64::MIN.into(), i128::from(i64::MIN) + 99)], 1, PAIRS, 0, ROOM), TableKind::Array);
        assert_eq!(kind(&[(i64::MIN.into(), i64::MAX.into())], 1 << 20, EXISTENCE, u64::MAX, ROOM), TableKind::Hash);
        // More codes than 32 bits can count; bits beyond their limit; no memory.
        assert_eq!(kind(&[(0, 70_000), (0, 70_000)], 1 << 24, EXISTENCE, 1 << 40, ROOM), TableKind::Hash);
        assert_eq!(kind(&[(0, 3 << 30)], 1 << 30, EXISTENCE, 1 << 40, ROOM), TableKind::Hash);
        assert_eq!(kind(&[(0, 1 << 20)], 1 << 20, PAIRS, 0, 1 << 20), TableKind::Hash);
        // A key without a known range.
        let spec =
            TableSpec { keys: vec![Ty::new(Repr::I64)], kind: TableKind::Hash, lists: false, nulls_equal: false };
        let room = TableRoom { rows: 10, most: ROOM, probe_bytes: 0 };
        assert_eq!(by_bytes(spec, EXISTENCE, room).kind, TableKind::Hash);
    }
}
