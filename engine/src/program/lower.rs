//! A segment in the kernels' language, for one run's columns.
//!
//!   stages ──► one piece: filters, projections, probes and the sink in one kernel
//!   a probe that makes several rows of one cuts it:
//!       rows with start and count of their matches ─► running sums ─► the next piece, expanded
//!       conditions on pairs: [ mark the rows that have a pair ] first, where rows without one matter
//!
//! Columns  a piece that was cut off writes what later pieces read, and no more.
//! Pure     lowering allocates nothing on a device. Equal specs are one compiled module, so lowering again compiles nothing.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use millpond_kernels::codegen::ir::{
    ColumnSpec, Comparison, Extents, Literal, LookupSpec, NodeId, Physical, PipelineSpec, Repr, SinkSpec, TableKind,
    TableSpec, Test, Ty,
};

use millpond_kernels::join::TableLayout;

use crate::column::{ColumnInfo, DictionaryId, Form, storage};
use crate::expr::{Dictionaries, LookupTable, Lowering, Scope, Value};
use crate::operator::aggregate::lower::LoweredAggregate;
use crate::operator::aggregate::{DeviceAggregateExec, lower as aggregate};
use crate::operator::join::probe as join;
use crate::operator::join::probe::{Asked, BuildForm, KeyForm, KeySlice};
use crate::operator::join::{DeviceJoinExec, JoinColumn, JoinKind};
use crate::operator::sort::top;
use crate::operator::sort::top::Best;
use crate::program::segments::{Program, Sink, Source, Stage};
use crate::reason::Reason;

/// One kernel of a segment.
#[derive(Debug, Clone)]
pub struct Piece {
    pub spec: PipelineSpec,
    /// Values of the parameter slots.
    pub literals: Vec<Literal>,
    /// Lookup tables and join tables, as the spec numbers them.
    pub lookups: Vec<LookupTable>,
    pub tables: Vec<usize>,
}

/// Where a segment is cut, because rows become several, or because it takes pairs of rows to know which rows go on.
#[derive(Debug, Clone)]
pub struct Cut {
    /// Writes the rows, with where their matches begin and how many there are.
    pub rows: Piece,
    /// Columns of the next piece, and where each is among those written; `None` for those that nothing reads.
    pub columns: Vec<ColumnInfo>,
    pub at: Vec<Option<usize>>,
    /// Positions of the two among `columns`.
    pub start: usize,
    pub counts: usize,
    /// Over pairs: marks the rows that have one.
    pub marks: Option<Piece>,
    /// Over pairs: marks the rows of the build side that are in one; and whose they are.
    pub build_marks: Option<(Piece, usize)>,
    /// Over rows: start and count anew, once it is known which rows have a pair.
    pub recount: Option<Piece>,
    /// The next piece runs over pairs.
    pub expands: bool,
}

/// A sort key among the materialised outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortKey {
    pub output: usize,
    /// Of strings: whose codes they are. What sorts is the rank of a code once all rows are there.
    pub dictionary: Option<DictionaryId>,
    pub descending: bool,
    pub nulls_first: bool,
}

/// What a segment writes that puts rows in the order of their groups.
#[derive(Debug, Clone)]
pub struct Ranking {
    /// Launches over the same rows.
    pub variants: u32,
    /// Columns written first, which the aggregation reads.
    pub read: usize,
    /// The columns behind them: of each, the values are sorted within their groups.
    pub sorted: Vec<SortKey>,
}

/// A segment in the kernels' language.
#[derive(Debug, Clone)]
pub struct LoweredSegment {
    pub cuts: Vec<Cut>,
    /// The piece with the sink.
    pub last: Piece,
    /// Columns of the output: those of the plan, or the emitted table of an aggregate. A sort's keys may follow them.
    pub outputs: Vec<ColumnInfo>,
    /// Where each is among the columns that are written; `None` for those that nothing reads.
    pub at: Vec<Option<usize>>,
    pub sort_keys: Vec<SortKey>,
    /// Of a sort of which only some rows are wanted: the filter by those that were found.
    pub best: Option<Best>,
    /// What is sorted behind the keys, each on its own, for an aggregation that looks values up.
    pub ranking: Option<Ranking>,
    /// The aggregate, whose results another segment finishes.
    pub aggregate: Option<LoweredAggregate>,
}

impl LoweredSegment {
    /// Launches over the same rows.
    pub fn variants(&self) -> u32 {
        self.aggregate.as_ref().map_or(1, |aggregate| aggregate.variants)
    }
}

/// What a segment reads.
pub struct SegmentInput<'a> {
    pub columns: &'a [ColumnInfo],
    /// The aggregate that the segment before ended with.
    pub finish: Option<&'a LoweredAggregate>,
    /// For unmatched rows: the columns to give.
    pub like: Option<&'a [ColumnInfo]>,
    /// About how many rows there are.
    pub rows_hint: Option<u64>,
    /// For an input of a union: the columns to give.
    pub union: Option<&'a [ColumnInfo]>,
    /// Columns of the output that anything reads; all when `None`.
    pub needed: Option<&'a [bool]>,
    /// Parts of the keys of joins, by the segment that builds: other rows are passed over.
    pub slices: &'a [(usize, KeySlice)],
    /// Of a building segment: the form of its keys.
    pub own_keys: Option<&'a [KeyForm]>,
}

impl<'a> SegmentInput<'a> {
    /// Rows of these columns, and nothing else known.
    pub fn rows(columns: &'a [ColumnInfo]) -> Self {
        Self {
            columns,
            finish: None,
            like: None,
            rows_hint: None,
            union: None,
            needed: None,
            slices: &[],
            own_keys: None,
        }
    }
}

/// Tells of a build side: what it is, or what it will be.
pub type Builds<'a> = dyn FnMut(usize, &DeviceJoinExec, &mut Lowering<'_>, &Scope) -> Result<BuildForm, Reason> + 'a;

/// A piece that has no sink yet.
struct Open<'d> {
    lowering: Lowering<'d>,
    filters: Vec<NodeId>,
    columns: Vec<ColumnInfo>,
    uploaded: bool,
    expanded: bool,
}

impl<'d> Open<'d> {
    fn new(columns: &[ColumnInfo], uploaded: bool, expanded: bool, dictionaries: &'d mut Dictionaries) -> Self {
        let lowering = Lowering::new(columns, dictionaries);
        Self { lowering, filters: vec![], columns: columns.to_vec(), uploaded, expanded }
    }

    /// Ends the piece; gives back the dictionaries.
    fn close(self, sink: SinkSpec) -> (Piece, &'d mut Dictionaries) {
        let Lowering { graph, literals, lookups, tables, dictionaries, .. } = self.lowering;
        let (literal_types, literals) = literals.into_iter().unzip();
        let (tables, table_specs) = tables.into_iter().unzip();
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: self.columns.iter().map(|column| column_spec(column, self.uploaded)).collect(),
            literals: literal_types,
            lookups: lookups.iter().map(lookup_spec).collect(),
            tables: table_specs,
            expanded: self.expanded,
            graph,
            filters: self.filters,
            sink,
        };
        (Piece { spec, literals, lookups, tables }, dictionaries)
    }
}

fn lookup_spec(table: &LookupTable) -> LookupSpec {
    LookupSpec { physical: table.physical(), ty: table.ty() }
}

impl Piece {
    /// Without what nothing asks for.
    fn pruned(self) -> Piece {
        let pruned = self.spec.pruned();
        Piece {
            literals: pruned.literals.iter().map(|slot| self.literals[*slot]).collect(),
            lookups: pruned.lookups.iter().map(|table| self.lookups[*table].clone()).collect(),
            tables: pruned.tables.iter().map(|table| self.tables[*table]).collect(),
            spec: pruned.spec,
        }
    }

    /// Leaves out the outputs that are not `wanted`; gives the places of those that stay.
    fn restrict(&mut self, wanted: &[bool]) -> Vec<Option<usize>> {
        let mut at = vec![None; wanted.len()];
        if let SinkSpec::Materialise { outputs } | SinkSpec::MaterialiseAndMark { outputs, .. } = &mut self.spec.sink {
            let mut kept = Vec::new();
            for (index, node) in outputs.iter().enumerate() {
                if wanted.get(index).copied().unwrap_or(true) {
                    if let Some(at) = at.get_mut(index) {
                        *at = Some(kept.len());
                    }
                    kept.push(*node);
                }
            }
            *outputs = kept;
        }
        at
    }
}

/// The plain column that the engine adds to rows: where matches begin, how many there are.
fn number_column(name: &str, ty: Ty) -> ColumnInfo {
    ColumnInfo { name: name.to_string(), data_type: DataType::UInt32, form: Form::Plain(ty) }
}

fn refused(error: &millpond_kernels::codegen::ir::GraphError) -> Reason {
    Reason::ExprUnsupported { expr: "the join".into(), why: error.to_string() }
}

/// The first `count` columns of a piece as a scope.
fn first_columns(scope: &Scope, count: usize) -> Scope {
    scope.select(&(0..count).collect::<Vec<_>>())
}

/// Where the rows are marked that have a pair.
fn marked(lowering: &mut Lowering<'_>) -> Result<NodeId, Reason> {
    let row = lowering.graph.source_row();
    let table = lowering.lookup_table(LookupTable::Marks);
    lowering.graph.lookup(row, table, LookupTable::Marks.ty()).map_err(|e| refused(&e))
}

/// Cuts the segment at `join`, whose rows do not stay in place.
fn cut<'d>(
    mut open: Open<'d>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &BuildForm,
) -> Result<(Cut, Open<'d>, Scope, Option<NodeId>), Reason> {
    let kind = join.kind();
    let on_pairs = join.residual().is_some();
    let keeps_unmatched = matches!(kind, JoinKind::Outer | JoinKind::Full);
    let e = |e| refused(&e);

    // The rows, with their matches.
    let matches = open.lowering.matches(scope, join, build)?;
    let list = open.lowering.graph.present(matches.list);
    let count = open.lowering.graph.match_count(list).map_err(e)?;
    let needs_match =
        matches!(kind, JoinKind::Inner | JoinKind::Semi | JoinKind::BuildOuter) || kind.is_about_build_rows();
    let (start, count) = if needs_match {
        open.filters.push(matches.found);
        (open.lowering.graph.match_start(list).map_err(e)?, count)
    } else {
        let without = i128::from(keeps_unmatched && !on_pairs);
        let g = &mut open.lowering.graph;
        let without = g.integer(without, Repr::U32);
        let start = g.match_start(matches.list).map_err(e)?;
        (start, g.case(vec![(matches.found, count)], Some(without)).map_err(e)?)
    };
    let mut columns = Vec::new();
    let mut nodes = Vec::new();
    for (name, value) in scope.columns() {
        match value {
            Ok(value) => {
                columns.push(open.lowering.info(name, value));
                nodes.push(value.node);
            }
            Err(reason) => {
                // Nothing reads it; a column needs a node all the same, and loses it when the outputs are restricted.
                let form = Form::Unsupported(reason.clone());
                columns.push(ColumnInfo { name: name.to_string(), data_type: DataType::Null, form });
                nodes.push(count);
            }
        }
    }
    let width = columns.len();
    let (starts, counts) = (width, width + 1);
    columns.push(number_column("start of matches", open.lowering.graph.ty(start)));
    columns.push(number_column("count of matches", open.lowering.graph.ty(count)));
    nodes.extend([start, count]);
    let (rows, mut dictionaries) = open.close(SinkSpec::Materialise { outputs: nodes });

    // Over pairs: which rows have one, and with which rows of the build side.
    let mut marks = None;
    let pairs_decide = keeps_unmatched || matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::Mark);
    if on_pairs && pairs_decide {
        let (piece, given) =
            over_pairs(&columns, width, join, build, dictionaries, |lowering, _| Ok(lowering.graph.source_row()))?;
        (marks, dictionaries) = (Some(piece), given);
    }
    let mut build_marks = None;
    if kind.keeps_build_rows() {
        let (piece, given) = over_pairs(&columns, width, join, build, dictionaries, |_, row| Ok(row))?;
        (build_marks, dictionaries) = (Some((piece, build.build)), given);
    }
    // A row without a pair becomes one row, with NULL for the build side.
    let mut recount = None;
    if on_pairs && keeps_unmatched {
        let mut over = Open::new(&columns, false, false, dictionaries);
        let own = over.lowering.scope();
        let has_pair = marked(&mut over.lowering)?;
        let (start, count) = (own.column(starts)?.node, own.column(counts)?.node);
        let g = &mut over.lowering.graph;
        let one = g.integer(1, Repr::U32);
        let start = g.case(vec![(has_pair, start)], None).map_err(e)?;
        let count = g.case(vec![(has_pair, count)], Some(one)).map_err(e)?;
        let types = (g.ty(start), g.ty(count));
        let (piece, given) = over.close(SinkSpec::Materialise { outputs: vec![start, count] });
        (recount, dictionaries) = (Some(piece), given);
        columns[starts] = number_column("start of matches", types.0);
        columns[counts] = number_column("count of matches", types.1);
    }

    // What goes on.
    let expands = !matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::Mark);
    let mut build_row = None;
    let mut next = Open::new(&columns, false, expands, dictionaries);
    let own = next.lowering.scope();
    let before = first_columns(&own, width);
    let scope = if expands {
        let start = own.column(starts)?.node;
        let row = next.lowering.listed_row(start, build)?;
        build_row = Some(row);
        if let Some(holds) = next.lowering.residual(&before, join, build, row)? {
            let g = &mut next.lowering.graph;
            let filter = match keeps_unmatched {
                true => {
                    let holds = g.test(Test::IsTrue, holds).map_err(e)?;
                    let unmatched = g.test(Test::IsNull, start).map_err(e)?;
                    g.or(unmatched, holds).map_err(e)?
                }
                false => holds,
            };
            next.filters.push(filter);
        }
        next.lowering.joined(&before, join, build, Some(row), None)?
    } else {
        let has_pair = marked(&mut next.lowering)?;
        match kind {
            JoinKind::Semi => next.filters.push(has_pair),
            JoinKind::Anti => {
                let none = next.lowering.graph.not(has_pair).map_err(e)?;
                next.filters.push(none);
            }
            _ => {}
        }
        next.lowering.joined(&before, join, build, None, Some(has_pair))?
    };
    let at = vec![None; columns.len()];
    let cut = Cut { rows, columns, at, start: starts, counts, marks, build_marks, recount, expands };
    Ok((cut, next, scope, build_row))
}

/// A piece over pairs of rows, those of which the residual condition holds, that marks what `row` gives for the number of
/// the pair's build row.
fn over_pairs<'d>(
    columns: &[ColumnInfo],
    width: usize,
    join: &DeviceJoinExec,
    build: &BuildForm,
    dictionaries: &'d mut Dictionaries,
    row: impl FnOnce(&mut Lowering<'_>, NodeId) -> Result<NodeId, Reason>,
) -> Result<(Piece, &'d mut Dictionaries), Reason> {
    let mut over = Open::new(columns, false, true, dictionaries);
    let own = over.lowering.scope();
    let before = first_columns(&own, width);
    let build_row = over.lowering.listed_row(own.column(width)?.node, build)?;
    over.filters.extend(over.lowering.residual(&before, join, build, build_row)?);
    let marked = row(&mut over.lowering, build_row)?;
    Ok(over.close(SinkSpec::Mark { row: marked }))
}

impl Program {
    /// The kernels' form of segment `index`. Uploaded columns lie in memory as [`storage`] says, others in their natural
    /// width.
    pub fn lower(
        &self,
        index: usize,
        input: &SegmentInput<'_>,
        dictionaries: &mut Dictionaries,
        builds: &mut Builds<'_>,
    ) -> Result<LoweredSegment, Reason> {
        let segment = &self.segments[index];
        let uploaded = matches!(segment.source, Source::Upload(_));
        let mut open = Open::new(input.columns, uploaded, false, dictionaries);
        let mut scope = match (input.finish, self.finishes(index).map(|from| &self.segments[from].sink)) {
            (Some(aggregate), Some(Sink::Aggregate(node))) => aggregate.finish(&mut open.lowering, &node.schema())?,
            _ => open.lowering.scope(),
        };
        if let Source::Unmatched { build, .. } = &segment.source {
            let (Sink::Build(join), Some(like)) = (&self.segments[*build].sink, input.like) else {
                return Err(Reason::NodeUnsupported { node: "the rest of a build side".into() });
            };
            scope = unmatched(&mut open, &scope, join, like)?;
        }
        if let Source::Marked { build } = &segment.source {
            let Sink::Build(join) = &self.segments[*build].sink else {
                return Err(Reason::NodeUnsupported { node: "the rows of a build side".into() });
            };
            let form = builds(*build, join, &mut open.lowering, &scope)?;
            scope = marked_rows(&mut open, &scope, join, &form)?;
        }
        let mut cuts: Vec<Cut> = Vec::new();
        let (mut build_row, mut kept) = (None, None);
        if let (Some(_), Sink::Aggregate(node)) = (self.ranks(index), &segment.sink) {
            // The rows of all variants lie here, with the number of each behind the columns that were there.
            let width = node.input_width();
            if node.aggregation().variants.len() > 1 {
                let (own, this) = (scope.column(width)?, aggregate::variant(&mut open.lowering, node.aggregation()));
                let same = open.lowering.graph.compare(Comparison::Equal, own.node, this).map_err(|e| refused(&e))?;
                open.filters.push(same);
            }
            scope = first_columns(&scope, width);
        }
        for stage in &segment.stages {
            match stage {
                Stage::Filter { predicate, projection } => {
                    // The parts of an AND are filters of their own, so that a later one sees only the survivors.
                    for part in split_conjunction(predicate) {
                        open.filters.push(open.lowering.predicate(part, &scope)?);
                    }
                    if let Some(projection) = projection {
                        scope = scope.select(projection);
                    }
                }
                Stage::Project(expressions) => scope = project(&mut open.lowering, expressions, &scope)?,
                Stage::Probe { join, build } => {
                    let form = builds(*build, join, &mut open.lowering, &scope)?;
                    if let Some((_, slice)) = input.slices.iter().find(|(of, _)| of == build) {
                        let keys = join::keys(&mut open.lowering, &scope, join, &form.keys, false)?;
                        open.filters.push(open.lowering.in_slice(&keys, *slice)?);
                    }
                    if join::stays_in_place(join, &form) && join.kind().is_about_build_rows() {
                        build_row = Some(open.lowering.to_mark(&scope, join, &form, &mut open.filters)?);
                    } else if join::stays_in_place(join, &form) {
                        (scope, kept) = open.lowering.join_in_place(&scope, join, &form, &mut open.filters)?;
                    } else {
                        let (done, next, after, row) = cut(open, &scope, join, &form)?;
                        cuts.push(done);
                        (open, scope, build_row) = (next, after, row);
                    }
                }
            }
        }
        if let (Sink::Build(join), Some((_, slice)), Some(forms)) =
            (&segment.sink, input.slices.iter().find(|(of, _)| *of == index), input.own_keys)
        {
            let keys = join::keys(&mut open.lowering, &scope, join, forms, true)?;
            open.filters.push(open.lowering.in_slice(&keys, *slice)?);
        }
        let mut outputs = Vec::new();
        let mut sort_keys = Vec::new();
        let mut aggregate = None;
        let mut ranking = None;
        let mut best = None;
        let sink = match &segment.sink {
            Sink::Materialise
            | Sink::Sort { .. }
            | Sink::Rank(_)
            | Sink::Limit { .. }
            | Sink::Build(_)
            | Sink::Branch => {
                let mut nodes: Vec<NodeId> = Vec::new();
                for (index, (name, value)) in scope.columns().enumerate() {
                    let value = match value {
                        Err(reason) if input.needed.is_some_and(|needed| !needed[index]) => {
                            let form = Form::Unsupported(reason.clone());
                            outputs.push(ColumnInfo { name: name.to_string(), data_type: DataType::Null, form });
                            let nothing = open.lowering.graph.boolean(false);
                            nodes.push(nothing);
                            continue;
                        }
                        value => value.clone()?,
                    };
                    let value = match input.union.and_then(|columns| columns.get(index)) {
                        Some(column) => open.lowering.conform(index, value, column)?,
                        None => value,
                    };
                    nodes.push(value.node);
                    outputs.push(open.lowering.info(name, &value));
                }
                if let Sink::Sort { order, fetch } = &segment.sink {
                    for key in order.iter() {
                        let value = open.lowering.lower(&key.expr, &scope)?;
                        let dictionary = value.dictionary;
                        // A key that is an output already is not written twice.
                        let output = nodes.iter().position(|node| *node == value.node).unwrap_or_else(|| {
                            nodes.push(value.node);
                            nodes.len() - 1
                        });
                        let (descending, nulls_first) = (key.options.descending, key.options.nulls_first);
                        sort_keys.push(SortKey { output, dictionary, descending, nulls_first });
                    }
                    if kept.is_none() {
                        let (lowering, filters) = (&mut open.lowering, &mut open.filters);
                        best = top::with_bar(lowering, filters, &nodes, &sort_keys, *fetch, input.rows_hint);
                    }
                }
                if let Sink::Rank(node) = &segment.sink {
                    let ranks = rank(&mut open, &scope, node, &mut outputs, &mut nodes)?;
                    (sort_keys, ranking) = (ranks.0, Some(ranks.1));
                }
                match kept {
                    Some(row) => SinkSpec::MaterialiseAndMark { outputs: nodes, row },
                    None => SinkSpec::Materialise { outputs: nodes },
                }
            }
            Sink::Mark { .. } => {
                let row = build_row.ok_or_else(|| Reason::NodeUnsupported { node: "marks without a join".into() })?;
                SinkSpec::Mark { row }
            }
            Sink::Aggregate(node) => {
                let mut lowered = aggregate::lower(&mut open.lowering, &scope, node.aggregation())?;
                if self.ranks(index).is_some() {
                    let sorted = input.columns.len() - lowered.ranked.len();
                    lowered.ranked_types =
                        input.columns[sorted..].iter().map(ColumnInfo::ty).collect::<Result<_, _>>()?;
                }
                open.filters.extend(&lowered.row_filters);
                lowered.spec.rows_hint = input.rows_hint;
                let sink = SinkSpec::Aggregate(lowered.spec.clone());
                outputs.clone_from(&lowered.emitted);
                aggregate = Some(lowered);
                sink
            }
        };
        let (mut last, _) = open.close(sink);
        let mut at: Vec<Option<usize>> = (0..outputs.len()).map(Some).collect();
        if let Some(needed) = input.needed {
            at = last.restrict(needed);
            // What lies behind the columns that may be left out moves up.
            let (kept, left_out) = (at.iter().flatten().count(), at.iter().filter(|at| at.is_none()).count());
            let behind = kept..kept + outputs.len().saturating_sub(at.len());
            at.extend(behind.map(Some));
            if let Some(ranking) = &mut ranking {
                ranking.read -= left_out;
                sort_keys.iter_mut().chain(&mut ranking.sorted).for_each(|key| key.output -= left_out);
            }
        }
        let last = last.pruned();
        Ok(LoweredSegment { cuts: pruned_cuts(cuts, &last), last, outputs, at, sort_keys, best, ranking, aggregate })
    }
}

/// Adds to a segment's columns what puts its rows in the order of their groups: the number of the variant, the values that are
/// ranked, and the group keys.
fn rank(
    open: &mut Open<'_>,
    scope: &Scope,
    node: &DeviceAggregateExec,
    outputs: &mut Vec<ColumnInfo>,
    nodes: &mut Vec<NodeId>,
) -> Result<(Vec<SortKey>, Ranking), Reason> {
    let aggregation = node.aggregation();
    let lowered = aggregate::lower(&mut open.lowering, scope, aggregation)?;
    open.filters.extend(&lowered.row_filters);
    if aggregation.variants.len() > 1 {
        let number = aggregate::variant(&mut open.lowering, aggregation);
        outputs.push(number_column("variant", open.lowering.graph.ty(number)));
        nodes.push(number);
    }
    let read = nodes.len();
    // Groups need to lie together, in whatever order, so that codes will do for strings.
    let key = |output| SortKey { output, dictionary: None, descending: false, nulls_first: false };
    let mut sorted = Vec::new();
    for node in &lowered.ranked {
        let ty = open.lowering.graph.ty(*node);
        sorted.push(key(nodes.len()));
        outputs.push(ColumnInfo { name: "ranked".into(), data_type: DataType::Null, form: Form::Plain(ty) });
        nodes.push(*node);
    }
    let mut keys = Vec::new();
    for node in lowered.sort_keys(&mut open.lowering)? {
        keys.push(key(nodes.len()));
        nodes.push(node);
    }
    let variants = aggregation.variants.len() as u32;
    Ok((keys, Ranking { variants, read, sorted }))
}

/// The cuts of a segment that ends in `last`, each writing what later pieces read.
fn pruned_cuts(cuts: Vec<Cut>, last: &Piece) -> Vec<Cut> {
    let mut done: Vec<Cut> = Vec::new();
    for mut cut in cuts.into_iter().rev() {
        cut.marks = cut.marks.map(Piece::pruned);
        cut.build_marks = cut.build_marks.map(|(piece, build)| (piece.pruned(), build));
        cut.recount = cut.recount.map(Piece::pruned);
        let next = done.last().map_or(last, |next| &next.rows);
        let over_pairs = cut.marks.iter().chain(cut.build_marks.iter().map(|(piece, _)| piece));
        let mut wanted = vec![false; cut.columns.len()];
        for piece in over_pairs.chain(&cut.recount).chain([next]) {
            piece.spec.used_columns().iter().for_each(|column| wanted[*column as usize] = true);
        }
        wanted[cut.counts] = true;
        cut.at = cut.rows.restrict(&wanted);
        cut.rows = cut.rows.pruned();
        done.push(cut);
    }
    done.reverse();
    done
}

/// The rows of a build side that found no match, as rows of the join.
fn unmatched(open: &mut Open<'_>, rows: &Scope, join: &DeviceJoinExec, like: &[ColumnInfo]) -> Result<Scope, Reason> {
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
                dictionary: match info.form {
                    Form::Codes(_, id) => Some(id),
                    _ => None,
                },
            }),
        };
        values.push((info.name.clone(), value, info.data_type.clone()));
    }
    Ok(Scope::new(values))
}

/// The rows of a build side, once those with a match are marked.
fn marked_rows(open: &mut Open<'_>, rows: &Scope, join: &DeviceJoinExec, form: &BuildForm) -> Result<Scope, Reason> {
    let found = open.lowering.build_row_marked(rows, join, form)?;
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

/// The piece that puts the rows of a build side, with these columns, into a table.
pub fn lower_table(
    join: &DeviceJoinExec,
    columns: &[ColumnInfo],
    forms: &[KeyForm],
    table: &TableSpec,
    dictionaries: &mut Dictionaries,
) -> Result<Piece, Reason> {
    let mut open = Open::new(columns, false, false, dictionaries);
    let scope = open.lowering.scope();
    let keys = join::keys(&mut open.lowering, &scope, join, forms, true)?;
    let (piece, _) = open.close(SinkSpec::Table { table: table.clone(), keys });
    Ok(piece.pruned())
}

/// What decides how a table is addressed.
#[derive(Debug, Clone, Copy)]
pub struct TableRoom {
    /// Rows of the build side.
    pub rows: u64,
    /// Bytes that a table may take.
    pub most: u64,
    /// Bytes of the probe side, as far as they are known.
    pub probe_bytes: u64,
}

/// Beyond so many bytes a bitmap no longer stays near the processors.
const MOST_BITMAP_BYTES: u64 = 256 << 20;
/// A table addressed by keys is worth so many times the bytes of a hashed one …
const WORTH: u64 = 4;
/// … and so many whatever the rows.
const ALWAYS_WORTH: u64 = 64 << 10;

/// The table of a build side. Where nothing is known of it yet: hashed.
pub fn table_spec(join: &DeviceJoinExec, keys: &[Ty], asked: Asked, room: Option<TableRoom>) -> TableSpec {
    let keys = keys.to_vec();
    let spec = TableSpec { keys, kind: TableKind::Hash, lists: asked.lists, nulls_equal: join.nulls_equal() };
    match room {
        _ if join.on().is_empty() => TableSpec { kind: TableKind::Every, lists: false, ..spec },
        None => spec,
        Some(room) => by_bytes(spec, asked, room),
    }
}

/// Bits or an array addressed by the keys where that is worth its bytes, else a hashed table.
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

/// How an input column lies in memory: uploaded ones are narrowed by range, intermediates have their natural width.
pub fn column_spec(column: &ColumnInfo, uploaded: bool) -> ColumnSpec {
    // A column without a device form is in no graph: nothing is known of its values, and it may have NULLs.
    let ty = column.ty().unwrap_or(Ty::new(Repr::Bool).nullable(true));
    let (physical, base) = if uploaded { storage(ty) } else { (Physical::of(ty), 0) };
    ColumnSpec { physical, has_base: base != 0, ty }
}

fn project(
    lowering: &mut Lowering<'_>,
    expressions: &[(Arc<dyn PhysicalExpr>, String)],
    scope: &Scope,
) -> Result<Scope, Reason> {
    let mut values = Vec::new();
    for (expr, name) in expressions {
        let value = lowering.lower(expr, scope)?;
        let data_type = value.data_type.clone();
        values.push((name.clone(), Ok(value), data_type));
    }
    Ok(Scope::new(values))
}

/// What a join gives on the device, for rows of `probe` columns and a build side of `build` columns. Used to judge: the
/// forms that a run may take read the same columns by the same expressions.
pub fn judge_join(
    join: &DeviceJoinExec,
    build: &[ColumnInfo],
    probe: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<Vec<ColumnInfo>, Reason> {
    if join.kind() == JoinKind::NullAwareAnti && join.residual().is_some() {
        return Err(Reason::NodeUnsupported { node: "NOT IN with a further condition".into() });
    }
    let mut open = Open::new(probe, false, false, dictionaries);
    let scope = open.lowering.scope();
    let form = planned_build(0, join, build, &mut open.lowering, &scope)?;
    let scope = if join.kind().is_about_build_rows() {
        if join::stays_in_place(join, &form) {
            open.lowering.to_mark(&scope, join, &form, &mut open.filters)?;
        } else {
            cut(open, &scope, join, &form)?;
        }
        open = Open::new(build, false, false, dictionaries);
        let rows = open.lowering.scope();
        marked_rows(&mut open, &rows, join, &form)?
    } else if join::stays_in_place(join, &form) {
        open.lowering.join_in_place(&scope, join, &form, &mut open.filters)?.0
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

/// A build side of which no more is known than the plan tells.
pub fn planned_build(
    build: usize,
    join: &DeviceJoinExec,
    columns: &[ColumnInfo],
    lowering: &mut Lowering<'_>,
    scope: &Scope,
) -> Result<BuildForm, Reason> {
    let keys = join::key_forms(lowering, scope, join, columns)?;
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
        // Ten rows far apart are looked up in less than it takes to clear the bits.
        assert_eq!(kind(&orders, 10, EXISTENCE, 0, ROOM), TableKind::Hash);
        // Few codes are always worth it, also of several keys, negative ones, and next to 64-bit limits.
        assert_eq!(kind(&[(-3, 3), (0, 9)], 1, PAIRS, 0, ROOM), TableKind::Array);
        assert_eq!(kind(&[(i64::MIN.into(), i128::from(i64::MIN) + 99)], 1, PAIRS, 0, ROOM), TableKind::Array);
        assert_eq!(kind(&[(i64::MIN.into(), i64::MAX.into())], 1 << 20, EXISTENCE, u64::MAX, ROOM), TableKind::Hash);
        // More codes than 32 bits count; bits beyond their limit; no memory.
        assert_eq!(kind(&[(0, 70_000), (0, 70_000)], 1 << 24, EXISTENCE, 1 << 40, ROOM), TableKind::Hash);
        assert_eq!(kind(&[(0, 3 << 30)], 1 << 30, EXISTENCE, 1 << 40, ROOM), TableKind::Hash);
        assert_eq!(kind(&[(0, 1 << 20)], 1 << 20, PAIRS, 0, 1 << 20), TableKind::Hash);
        // A key of no known range.
        let spec =
            TableSpec { keys: vec![Ty::new(Repr::I64)], kind: TableKind::Hash, lists: false, nulls_equal: false };
        let room = TableRoom { rows: 10, most: ROOM, probe_bytes: 0 };
        assert_eq!(by_bytes(spec, EXISTENCE, room).kind, TableKind::Hash);
    }
}
