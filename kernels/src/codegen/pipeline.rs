//! From a [`PipelineSpec`] to a module of PTX: the row loop, the filters, the sink.
//!
//!   for each extent, for each row of this thread:
//!       filter 1 ─ filter 2 ─ …                      each a branch: later columns load only for rows that are left
//!           └─► sink
//!
//! Kernels   `pipeline`, and for aggregates `emit`; hash tables also `rehash`.
//! Grid      persistent, any number of blocks: rows are strided (aggregates, dense output) or tiles are taken (compaction).
//! Ahead     aggregates load several rows of a thread before they look at any, so that enough bytes are on their way; columns
//!           that only rows past several conditions need are loaded late.
//! Upstream  an extent made by a kernel brings its row count and its error word in that kernel's control block.

use millpond_ptx::ast::{Item, Module, Space, Statement, Type};
use millpond_ptx::build::{Atomic, Compare, FunctionBuilder, ModuleBuilder, Open, Param, Reg};

use super::ahead::RowAhead;
use super::expr::Expressions;
use super::ir::*;
use super::load::{RowLeaves, raise};
use super::params::{ParamList, Slot};
use super::sink::accumulate::{self, BIN_WORD_STRIDE, Place, word_type};
use super::sink::block;
use super::sink::cells::AggregatePlan;
use super::sink::compact::{Compaction, shared_address};
use super::sink::emit::{emit_kernel, rehash_kernel, take_over_error};
use super::sink::fold::{fold, zero};
use super::sink::hash;
use super::sink::keys::{self, DenseParams};
use super::sink::runs;
use super::sink::table::TableBuild;
use super::sink::write::Outputs;
use super::text;
use super::value::{CodegenError, Emit};
use crate::abi;
use crate::tune;

/// One kernel of a compiled pipeline.
#[derive(Debug, Clone)]
pub struct CompiledKernel {
    pub name: &'static str,
    pub params: ParamList,
    /// Threads of a block.
    pub threads: u32,
    /// Rows that a thread takes at a time.
    pub rows_per_thread: u32,
    /// Instructions in its text.
    pub instructions: u32,
}

/// A pipeline as PTX.
#[derive(Debug, Clone)]
pub struct CompiledPipeline {
    pub spec: PipelineSpec,
    /// The module's text: equal text is one module, whatever ranges the spec has.
    pub text: String,
    pub pipeline: CompiledKernel,
    /// Aggregates only.
    pub emit: Option<CompiledKernel>,
    /// Hash tables only.
    pub rehash: Option<CompiledKernel>,
    /// Rows are kept in order but some are left out: the launch needs tile status words.
    pub compacts: bool,
    pub(crate) plan: Option<AggregatePlan>,
}

impl CompiledPipeline {
    /// Where an aggregate keeps its groups.
    pub fn regime(&self) -> Option<Regime> {
        self.plan.as_ref().map(|plan| plan.regime)
    }

    /// Accumulators that are kept, after equal ones merged. A sum that takes several words is one.
    pub fn num_accumulators(&self) -> usize {
        match &self.spec.sink {
            SinkSpec::Aggregate(aggregate) => aggregate.accumulators.len(),
            _ => 0,
        }
    }
}

/// Compiles a pipeline.
///
/// # Errors
/// [`CodegenError::Unsupported`] when an expression has no device form; the others are defects.
pub fn compile(spec: &PipelineSpec) -> Result<CompiledPipeline, CodegenError> {
    compile_module(spec).map(|(compiled, _)| compiled)
}

/// As [`compile`], with the module that the text prints.
///
/// # Errors
/// As [`compile`].
pub fn compile_module(spec: &PipelineSpec) -> Result<(CompiledPipeline, Module), CodegenError> {
    check(spec)?;
    let mut rows_per_thread = RowAhead::new(spec).rows;
    loop {
        let (mut compiled, module) = compile_with(spec, rows_per_thread)?;
        if rows_per_thread == 1 || compiled.pipeline.instructions <= tune::UNROLLED_INSTRUCTIONS {
            compiled.text = module.to_string();
            return Ok((compiled, module));
        }
        rows_per_thread /= 2;
    }
}

/// Everything but the text, which the module is printed to.
fn compile_with(spec: &PipelineSpec, rows_per_thread: u32) -> Result<(CompiledPipeline, Module), CodegenError> {
    let mut module = ModuleBuilder::new();
    let compiled = match &spec.sink {
        SinkSpec::Materialise { outputs } | SinkSpec::MaterialiseAndMark { outputs, .. } => {
            let (f, params, compacts) = materialise_kernel(&mut module, spec, outputs)?;
            let threads = if compacts { tune::COMPACT_THREADS } else { tune::DENSE_THREADS };
            Parts { compacts, ..Parts::only(add(&mut module, f, params, threads)) }
        }
        SinkSpec::Table { table, keys } => {
            let (f, params) = table_kernel(&mut module, spec, table, keys)?;
            Parts::only(add(&mut module, f, params, tune::DENSE_THREADS))
        }
        SinkSpec::Mark { row } => {
            let (f, params) = mark_kernel(&mut module, spec, *row)?;
            Parts::only(add(&mut module, f, params, tune::DENSE_THREADS))
        }
        SinkSpec::Aggregate(aggregate) => {
            let plan = AggregatePlan::new(&spec.graph, aggregate);
            let ahead = RowAhead { rows: rows_per_thread, ..RowAhead::new(spec) };
            let (f, params) = aggregate_kernel(&mut module, spec, &plan, &ahead)?;
            let mut pipeline = add(&mut module, f, params, plan.threads());
            pipeline.rows_per_thread = rows_per_thread;
            let (f, params) = emit_kernel(&mut module, &plan, &spec.output_types());
            let emit = Some(add(&mut module, f, params, tune::COMPACT_THREADS));
            let rehash = (plan.regime == Regime::Hash).then(|| {
                let (f, params) = rehash_kernel(&plan);
                add(&mut module, f, params, tune::COMPACT_THREADS)
            });
            Parts { emit, rehash, plan: Some(plan), ..Parts::only(pipeline) }
        }
    };
    let module = module.finish().map_err(|error| CodegenError::Ptx(error.to_string()))?;
    let Parts { mut pipeline, mut emit, mut rehash, compacts, plan } = compiled;
    let others = [&mut emit, &mut rehash];
    for kernel in std::iter::once(&mut pipeline).chain(others.into_iter().flatten()) {
        kernel.instructions = count_instructions(&module, kernel.name);
    }
    let text = String::new();
    let spec = spec.clone();
    Ok((CompiledPipeline { spec, text, pipeline, emit, rehash, compacts, plan }, module))
}

struct Parts {
    pipeline: CompiledKernel,
    emit: Option<CompiledKernel>,
    rehash: Option<CompiledKernel>,
    compacts: bool,
    plan: Option<AggregatePlan>,
}

impl Parts {
    fn only(pipeline: CompiledKernel) -> Parts {
        Parts { pipeline, emit: None, rehash: None, compacts: false, plan: None }
    }
}

fn add(module: &mut ModuleBuilder, f: FunctionBuilder, params: ParamList, threads: u32) -> CompiledKernel {
    let name = match f.name() {
        "emit" => "emit",
        "rehash" => "rehash",
        _ => "pipeline",
    };
    module.add(f);
    CompiledKernel { name, params, threads, rows_per_thread: 1, instructions: 0 }
}

fn count_instructions(module: &Module, name: &str) -> u32 {
    fn count(body: &[Statement]) -> u32 {
        body.iter()
            .map(|statement| match statement {
                Statement::Instruction(_) => 1,
                Statement::Block(inner) => count(inner),
                _ => 0,
            })
            .sum()
    }
    module
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Function(function) if function.name == name => function.body.as_deref(),
            _ => None,
        })
        .map(count)
        .sum()
}

/// Refuses what would otherwise go wrong in the middle.
fn check(spec: &PipelineSpec) -> Result<(), CodegenError> {
    let malformed = |what: String, why: &str| Err(CodegenError::Malformed { what, why: why.into() });
    for root in spec.roots() {
        if !spec.graph.contains(root) {
            return malformed(format!("node {}", root.0), "it is not in the pipeline's graph");
        }
    }
    for column in spec.used_columns() {
        if column as usize >= spec.columns.len() {
            return malformed(format!("column {column}"), "the pipeline has no such column");
        }
    }
    if spec.extents == Extents::One && abi::extent_bytes(spec.columns.len()) > tune::MAX_EXTENT_PARAM_BYTES {
        return Err(CodegenError::Unsupported { what: format!("a pipeline over {} columns", spec.columns.len()) });
    }
    let is_bool = |node: NodeId| spec.graph.ty(node).repr == Repr::Bool;
    if let Some(filter) = spec.filters.iter().find(|filter| !is_bool(**filter)) {
        return malformed(format!("filter {}", filter.0), "it is not boolean");
    }
    if spec.expanded && spec.extents == Extents::Many {
        return malformed("an expanded pipeline".into(), "it reads one extent");
    }
    if let SinkSpec::Table { table, keys } = &spec.sink {
        if spec.extents == Extents::Many {
            return malformed("a join table".into(), "its rows are numbered in one extent");
        }
        let reprs: Vec<Repr> = keys.iter().map(|key| spec.graph.ty(*key).repr).collect();
        if reprs != table.keys.iter().map(|key| key.repr).collect::<Vec<_>>() {
            return malformed("a join table".into(), "its keys are not of its types");
        }
    }
    if let SinkSpec::Mark { row } | SinkSpec::MaterialiseAndMark { row, .. } = &spec.sink
        && spec.graph.ty(*row).repr != Repr::U32
    {
        return malformed(format!("node {}", row.0), "a row to mark is a U32");
    }
    let is_text = |node: &NodeId| spec.graph.ty(*node).repr == Repr::Text;
    let unsupported = |what: &str| Err(CodegenError::Unsupported { what: what.into() });
    if let SinkSpec::Aggregate(aggregate) = &spec.sink {
        let over_text =
            |a: &Accumulator| !matches!(a.aggregate, Aggregate::Count(_)) && a.aggregate.args().iter().any(is_text);
        if aggregate.accumulators.iter().any(over_text) {
            return unsupported("an aggregate of a text");
        }
        if aggregate.keys.len() > 32 {
            return Err(CodegenError::Unsupported { what: format!("grouping by {} keys", aggregate.keys.len()) });
        }
        if let Some(seed) = &aggregate.seed {
            let lanes = |keys: &[NodeId]| keys.iter().map(|key| lane(spec.graph.ty(*key))).collect::<Vec<_>>();
            if lanes(&seed.keys) != lanes(&aggregate.keys) || !is_bool(seed.when) {
                return malformed("a seed".into(), "its keys are not of the types of the aggregation's");
            }
        }
        for accumulator in &aggregate.accumulators {
            if let Aggregate::First { order, .. } = accumulator.aggregate
                && aggregate.orders.get(order as usize).is_none_or(|order| order.is_empty())
            {
                return malformed(format!("order {order}"), "the aggregation has none such");
            }
        }
        let plan = AggregatePlan::new(&spec.graph, aggregate);
        let fits = match plan.regime {
            Regime::Scalar => plan.keys.is_empty(),
            Regime::Private => !plan.keys.is_empty() && plan.max_groups.is_some() && plan.fits_threads(),
            Regime::Block => !plan.keys.is_empty() && plan.max_groups.is_some() && plan.fits_blocks(),
            Regime::Direct => !plan.keys.is_empty() && plan.max_groups.is_some(),
            Regime::Hash => !plan.keys.is_empty(),
        };
        if !fits {
            return malformed(format!("regime {:?}", plan.regime), "the keys, or their ranges, do not allow it");
        }
        for accumulator in &aggregate.accumulators {
            if accumulator.filter.is_some_and(|filter| !is_bool(filter)) {
                return malformed("the filter of an aggregate".into(), "it is not boolean");
            }
        }
    }
    Ok(())
}

/// The head of every `pipeline` kernel: parameters, leaves and where rows come from.
struct Rows<'a> {
    leaves: RowLeaves<'a>,
    control: Reg,
    source: Source,
    /// True in one thread of the grid.
    first_thread: Reg,
}

enum Source {
    One { extent: Param },
    Many { extents: Reg, count: Reg },
}

impl<'a> Rows<'a> {
    fn new(
        spec: &'a PipelineSpec,
        module: &mut ModuleBuilder,
        f: &mut FunctionBuilder,
        params: &mut ParamList,
    ) -> Result<Rows<'a>, CodegenError> {
        let source = match spec.extents {
            Extents::One => {
                let bytes = abi::extent_bytes(spec.columns.len()) as u32;
                Source::One { extent: params.declare_bytes(f, Slot::Extent, bytes) }
            }
            Extents::Many => {
                let extents = params.declare(f, Slot::Extents, Type::U64);
                let count = params.declare(f, Slot::NumExtents, Type::U32);
                Source::Many { extents: f.load_param(&extents), count: f.load_param(&count) }
            }
        };
        let control = params.declare(f, Slot::Control, Type::U64);
        let control = f.load_param(&control);
        let leaves = RowLeaves::new(spec, module, f, params, control)?;
        let thread = f.global_thread();
        let first_thread = f.setp(Compare::Eq, thread, 0u32);
        Ok(Rows { leaves, control, source, first_thread })
    }

    /// Emits `body` for each extent, with its row count (U32). `body` is written once.
    fn each_extent(
        &mut self,
        f: &mut FunctionBuilder,
        body: impl FnOnce(&mut Self, &mut FunctionBuilder, Reg) -> Result<(), CodegenError>,
    ) -> Result<(), CodegenError> {
        match &self.source {
            Source::One { extent } => {
                let extent = extent.clone();
                let rows = self.rows(f, |f, at| f.load(Space::Param, Type::U64, extent.at(at as i64)), true);
                self.leaves.enter_only_extent(f, &extent);
                body(self, f, rows)
            }
            &Source::Many { extents, count } => {
                let width = abi::extent_bytes(self.leaves.num_columns()) as u32;
                f.for_(0u32, count, 1u32, |f, index| {
                    let descriptor = f.element(extents, index, width);
                    let rows = self.rows(f, |f, at| f.load_constant(Type::U64, descriptor.at(at as i64)), true);
                    self.leaves.enter_extent(f, descriptor);
                    body(self, f, rows)
                })
            }
        }
    }

    /// The extent's row count (U32). The first thread also takes over its maker's error, once per extent where asked to.
    fn rows(
        &mut self,
        f: &mut FunctionBuilder,
        mut word: impl FnMut(&mut FunctionBuilder, u64) -> Reg,
        take_error: bool,
    ) -> Reg {
        let rows = word(f, abi::EXTENT_ROWS);
        let source = word(f, abi::EXTENT_SOURCE);
        let made = f.setp(Compare::Ne, source, 0u64);
        f.if_(made, |f| {
            let count = f.load(Space::Global, Type::U64, source.at(abi::CONTROL_ROWS as i64));
            let count = f.min(count, rows);
            f.assign(rows, count);
            if take_error {
                f.if_(self.first_thread, |f| take_over_error(f, source, self.control));
            }
        });
        f.convert(Type::U32, rows)
    }
}

/// Opens a branch for each filter, in order. Close them in reverse.
fn open_filters(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    expressions: &mut Expressions<'_>,
    filters: &[NodeId],
) -> Result<Vec<Open>, CodegenError> {
    let mut open = Vec::new();
    for &filter in filters {
        let holds = expressions.truth(emit, leaves, filter)?;
        open.push(emit.f.open_if(holds));
    }
    Ok(open)
}

fn close_all(f: &mut FunctionBuilder, open: Vec<Open>) {
    for branch in open.into_iter().rev() {
        f.close(branch);
    }
}

/// A kernel that writes rows to dense columns.
fn materialise_kernel(
    module: &mut ModuleBuilder,
    spec: &PipelineSpec,
    outputs: &[NodeId],
) -> Result<(FunctionBuilder, ParamList, bool), CodegenError> {
    let mut kernel = FunctionBuilder::kernel("pipeline");
    let f = &mut kernel;
    let mut params = ParamList::default();
    let compacts = !spec.filters.is_empty();
    f.max_threads(if compacts { tune::COMPACT_THREADS } else { tune::DENSE_THREADS });
    let mut rows = Rows::new(spec, module, f, &mut params)?;
    let types: Vec<Ty> = outputs.iter().map(|&node| spec.graph.ty(node)).collect();
    let columns = Outputs::new(f, &mut params, rows.control, &types);
    let marks = match &spec.sink {
        SinkSpec::MaterialiseAndMark { row, .. } => {
            let marks = params.declare(f, Slot::Marks, Type::U64);
            Some(Marks::new(f, &marks, *row))
        }
        _ => None,
    };
    let mut expressions = Expressions::new(&spec.graph);
    if compacts {
        let num_tiles = params.declare(f, Slot::NumTiles, Type::U32);
        let num_tiles = f.load_param(&num_tiles);
        let room = params.declare(f, Slot::Room, Type::U64);
        let room = f.load_param(&room);
        let sizes = (num_tiles, room);
        compact_rows(module, f, spec, outputs, &mut rows, &columns, &marks, &mut expressions, sizes)?;
    } else {
        dense_rows(module, f, outputs, &mut rows, &columns, &marks, &mut expressions)?;
    }
    Ok((kernel, params, compacts))
}

/// Tiles by ticket; rows that pass the filters, closed up. Sizes are the number of tiles and the rows that fit the output.
#[expect(clippy::too_many_arguments, reason = "the parts of one kernel, each built by its own module")]
fn compact_rows(
    module: &mut ModuleBuilder,
    f: &mut FunctionBuilder,
    spec: &PipelineSpec,
    outputs: &[NodeId],
    rows: &mut Rows<'_>,
    columns: &Outputs,
    marks: &Option<Marks>,
    expressions: &mut Expressions<'_>,
    (num_tiles, room): (Reg, Reg),
) -> Result<(), CodegenError> {
    let compaction = Compaction::new(module, f, rows.control, num_tiles, Some(room), columns.has_flags());
    // One extent: its addresses and rows are known before the loop. Many: the block walks on with its tiles.
    let mut one_rows = None;
    let cursor = match &rows.source {
        Source::One { extent } => {
            let extent = extent.clone();
            one_rows = Some(rows.rows(f, |f, at| f.load(Space::Param, Type::U64, extent.at(at as i64)), true));
            rows.leaves.enter_only_extent(f, &extent);
            None
        }
        &Source::Many { extents, count } => {
            let width = abi::extent_bytes(rows.leaves.num_columns()) as u32;
            // Errors of all makers, once.
            f.if_(rows.first_thread, |f| {
                f.for_(0u32, count, 1u32, |f, index| {
                    let descriptor = f.element(extents, index, width);
                    let source = f.load_constant(Type::U64, descriptor.at(abi::EXTENT_SOURCE as i64));
                    let made = f.setp(Compare::Ne, source, 0u64);
                    f.if_(made, |f| take_over_error(f, source, rows.control));
                });
            });
            Some((f.copy(Type::U64, extents), f.copy(Type::U32, 0u32), width))
        }
    };
    f.loop_(|f| {
        let tile = compaction.next_tile(f);
        let (extent_rows, in_extent) = match (cursor, one_rows) {
            (Some((descriptor, first_tile, width)), _) => {
                // Walk to the extent that holds the tile.
                f.loop_(|f| {
                    let upper = f.load_constant(Type::U64, descriptor.at(abi::EXTENT_ROWS as i64));
                    let upper = f.convert(Type::U32, upper);
                    let tiles = f.add(upper, tune::COMPACT_THREADS - 1);
                    let tiles = f.shr(tiles, tune::COMPACT_THREADS.trailing_zeros());
                    let end = f.add(first_tile, tiles);
                    let here = f.setp(Compare::Lt, tile, end);
                    f.break_if(here);
                    f.assign(first_tile, end);
                    let next = f.add(descriptor, width as u64);
                    f.assign(descriptor, next);
                });
                let extent_rows = rows.rows(f, |f, at| f.load_constant(Type::U64, descriptor.at(at as i64)), false);
                rows.leaves.enter_extent(f, descriptor);
                (extent_rows, f.sub(tile, first_tile))
            }
            (None, Some(extent_rows)) => (extent_rows, tile),
            (None, None) => unreachable!("one extent has its rows"),
        };
        let row = f.mad(in_extent, tune::COMPACT_THREADS, compaction.thread);
        let keep = f.constant_pred(false);
        expressions.clear();
        let exists = f.setp(Compare::Lt, row, extent_rows);
        let row_open = f.open_if(exists);
        rows.leaves.at_row(f, row);
        let mut emit = Emit { module, f };
        let open = open_filters(&mut emit, &mut rows.leaves, expressions, &spec.filters)?;
        emit.f.assign_pred(keep, true);
        close_all(emit.f, open);
        emit.f.close(row_open);
        // What the filters computed stays in its registers: rows that are kept came all the way through.
        let places = compaction.place(emit.f, tile, keep);
        let flags = columns.flags(emit.f);
        let kept = emit.f.open_if(places.kept);
        for (i, &output) in outputs.iter().enumerate() {
            let value = expressions.stored(&mut emit, &mut rows.leaves, output)?;
            columns.store(emit.f, i, value, places.index, &flags);
        }
        if let Some(marks) = marks {
            marks.set(&mut emit, &mut rows.leaves, expressions)?;
        }
        emit.f.close(kept);
        columns.write_flags(emit.f, &compaction, &places, &flags);
        Ok(())
    })
}

/// Every row at its own place.
fn dense_rows(
    module: &mut ModuleBuilder,
    f: &mut FunctionBuilder,
    outputs: &[NodeId],
    rows: &mut Rows<'_>,
    columns: &Outputs,
    marks: &Option<Marks>,
    expressions: &mut Expressions<'_>,
) -> Result<(), CodegenError> {
    let first_row = f.copy(Type::U64, 0u64);
    let thread = f.global_thread();
    let lane = f.and(thread, 31u32);
    let first_lane = f.setp(Compare::Eq, lane, 0u32);
    let warp_start = f.sub(thread, lane);
    let step = f.grid_threads();
    rows.each_extent(f, |rows, f, extent_rows| {
        // A warp stays together, since it writes bits together.
        f.for_(warp_start, extent_rows, step, |f, start| {
            let row = f.add(start, lane);
            let flags = columns.flags(f);
            expressions.clear();
            let exists = f.setp(Compare::Lt, row, extent_rows);
            let open = f.open_if(exists);
            rows.leaves.at_row(f, row);
            let wide = f.convert(Type::U64, row);
            let index = f.add(first_row, wide);
            let mut emit = Emit { module, f };
            for (i, &output) in outputs.iter().enumerate() {
                let value = expressions.stored(&mut emit, &mut rows.leaves, output)?;
                columns.store(emit.f, i, value, index, &flags);
            }
            if let Some(marks) = marks {
                marks.set(&mut emit, &mut rows.leaves, expressions)?;
            }
            emit.f.close(open);
            if columns.has_flags() {
                let wide = emit.f.convert(Type::U64, start);
                let first = emit.f.add(first_row, wide);
                columns.write_dense_flags(emit.f, first, first_lane, &flags);
            }
            Ok(())
        })?;
        let wide = f.convert(Type::U64, extent_rows);
        let next = f.add(first_row, wide);
        f.assign(first_row, next);
        Ok(())
    })?;
    let count = rows.control.at(abi::CONTROL_ROWS as i64);
    f.guarded(rows.first_thread, true, |f| f.store(Space::Global, Type::U64, count, first_row));
    Ok(())
}

/// A kernel that puts the keys of rows into a join table.
fn table_kernel(
    module: &mut ModuleBuilder,
    spec: &PipelineSpec,
    table: &TableSpec,
    keys: &[NodeId],
) -> Result<(FunctionBuilder, ParamList), CodegenError> {
    let mut kernel = FunctionBuilder::kernel("pipeline");
    let f = &mut kernel;
    let mut params = ParamList::default();
    f.max_threads(tune::DENSE_THREADS);
    let mut rows = Rows::new(spec, module, f, &mut params)?;
    let build = TableBuild::new(module, f, &mut params, table, rows.control)?;
    each_row(module, f, spec, &mut rows, |emit, leaves, expressions, row| {
        build.add_row(emit, leaves, expressions, keys, row)
    })?;
    Ok((kernel, params))
}

/// A kernel that sets the bits of rows.
fn mark_kernel(
    module: &mut ModuleBuilder,
    spec: &PipelineSpec,
    marked: NodeId,
) -> Result<(FunctionBuilder, ParamList), CodegenError> {
    let mut kernel = FunctionBuilder::kernel("pipeline");
    let f = &mut kernel;
    let mut params = ParamList::default();
    f.max_threads(tune::DENSE_THREADS);
    let mut rows = Rows::new(spec, module, f, &mut params)?;
    let marks = Marks { bits: f.add(rows.control, abi::MARK_BITS), row: marked };
    each_row(module, f, spec, &mut rows, |emit, leaves, expressions, _| marks.set(emit, leaves, expressions))?;
    Ok((kernel, params))
}

/// Bits of rows that are to be set.
struct Marks {
    /// The bitmap (U64).
    bits: Reg,
    /// The number of the row whose bit is set.
    row: NodeId,
}

impl Marks {
    fn new(f: &mut FunctionBuilder, marks: &Param, row: NodeId) -> Marks {
        let marks = f.load_param(marks);
        Marks { bits: f.add(marks, abi::MARK_BITS), row }
    }

    /// Sets the bit that the current row asks for, if any.
    fn set(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
    ) -> Result<(), CodegenError> {
        let value = expressions.value(emit, leaves, self.row)?;
        let f = &mut *emit.f;
        let open = value.valid.map(|valid| f.open_if(valid));
        let row = value.low.view(Type::U32);
        let word = f.shr(row, 5);
        let at = f.element(self.bits, word, 4);
        let bit = f.and(row, 31u32);
        let one = f.copy(Type::U32, 1u32);
        let bit = f.shl(one, bit);
        f.reduce(Atomic::Or, Space::Global, Type::B32, at, bit);
        if let Some(open) = open {
            f.close(open);
        }
        Ok(())
    }
}

/// Runs `body` for each row that passes the filters, a row per thread, in any order.
fn each_row(
    module: &mut ModuleBuilder,
    f: &mut FunctionBuilder,
    spec: &PipelineSpec,
    rows: &mut Rows<'_>,
    mut body: impl FnMut(&mut Emit<'_>, &mut RowLeaves<'_>, &mut Expressions<'_>, Reg) -> Result<(), CodegenError>,
) -> Result<(), CodegenError> {
    let mut expressions = Expressions::new(&spec.graph);
    let thread = f.global_thread();
    let step = f.grid_threads();
    rows.each_extent(f, |rows, f, extent_rows| {
        let mut emit = Emit { module, f };
        strided(&mut emit, thread, extent_rows, step, |emit, row| {
            expressions.clear();
            rows.leaves.at_row(emit.f, row);
            let open = open_filters(emit, &mut rows.leaves, &mut expressions, &spec.filters)?;
            body(emit, &mut rows.leaves, &mut expressions, row)?;
            close_all(emit.f, open);
            Ok(())
        })
    })
}

/// A kernel that adds rows to groups.
fn aggregate_kernel(
    module: &mut ModuleBuilder,
    spec: &PipelineSpec,
    plan: &AggregatePlan,
    ahead: &RowAhead,
) -> Result<(FunctionBuilder, ParamList), CodegenError> {
    let mut kernel = FunctionBuilder::kernel("pipeline");
    let f = &mut kernel;
    let mut params = ParamList::default();
    f.max_threads(plan.threads());
    let mut rows = Rows::new(spec, module, f, &mut params)?;
    let control = rows.control;
    let table = f.add(control, abi::CONTROL_BYTES);
    let mut read = |f: &mut FunctionBuilder, slot: Slot| {
        let param = params.declare(f, slot, Type::U32);
        f.load_param(&param)
    };
    let mut bins = None;
    let mut groups = None;
    let mut own_groups = None;
    let mut hashed = None;
    let mut leftover = None;
    let in_registers = plan.in_registers();
    let combines = runs::apply_to(plan);
    let together = |to: Place, group: Reg| if combines { Place::Runs(Box::new(to), group) } else { to };
    match plan.regime {
        Regime::Scalar if in_registers => {
            let symbol = module.dynamic_shared();
            bins = Some(shared_address(f, &symbol));
            groups = Some(f.copy(Type::U32, 1u32));
        }
        Regime::Private => {
            let symbol = module.dynamic_shared();
            bins = Some(shared_address(f, &symbol));
            groups = Some(read(f, Slot::Records));
        }
        Regime::Block => {
            let symbol = module.dynamic_shared();
            let words = shared_address(f, &symbol);
            let groups = read(f, Slot::Records);
            own_groups = Some(block::BlockTable::new(f, plan, words, groups));
        }
        Regime::Hash => {
            let mask = read(f, Slot::SlotMask);
            let part = Some((read(f, Slot::PartMask), read(f, Slot::Part)));
            // Rows have numbers in one extent only.
            let limit = (spec.extents == Extents::One).then(|| {
                let (noted, limit) = hash::Leftover::new(f, &mut params, control);
                leftover = Some(noted);
                limit
            });
            hashed = Some(hash::Table { control, records: table, mask, part, limit });
        }
        Regime::Scalar | Regime::Direct => {}
    }
    let dense = matches!(plan.regime, Regime::Private | Regime::Block | Regime::Direct)
        .then(|| DenseParams::new(f, &mut params, plan, Type::U32));

    // A block adds to a copy of its own, or one that it shares with few.
    let own_table = match plan.copies {
        1 => table,
        _ => {
            let mask = params.declare(f, Slot::CopyMask, Type::U32);
            let bytes = params.declare(f, Slot::CopyBytes, Type::U64);
            let (mask, bytes) = (f.load_param(&mask), f.load_param(&bytes));
            let block = f.block_index();
            let copy = f.and(block, mask);
            let copy = f.convert(Type::U64, copy.view(Type::U32));
            f.mad(copy, bytes, table)
        }
    };

    let registers: Vec<Reg> = if in_registers { thread_words(f, plan) } else { Vec::new() };
    let own_bin = bins.map(|bins| {
        let thread = f.thread_index();
        f.mad(thread, 8u32, bins)
    });
    if let (Regime::Private, Some(own), Some(groups)) = (plan.regime, own_bin, groups) {
        clear_bins(f, plan, own, groups);
    }

    let mut expressions = Expressions::new(&spec.graph);
    if let SinkSpec::Aggregate(AggregateSpec { seed: Some(seed), .. }) = &spec.sink {
        let table = SeedTable { plan, table, dense: dense.as_ref(), hashed, leftover };
        plant(&mut Emit { module, f }, &mut rows, &mut expressions, seed, table)?;
    }
    let keys: Vec<NodeId> = plan.keys.iter().map(|key| key.node).collect();
    let comparison = text::comparison(module, plan.keys.iter().map(|key| key.lane))?;
    let thread = f.global_thread();
    let step = f.grid_threads();
    let mut add_row = |emit: &mut Emit<'_>, leaves: &mut RowLeaves<'_>, row: Reg| -> Result<(), CodegenError> {
        expressions.clear();
        let wanted = leftover.map(|leftover| {
            let wanted = leftover.wants(emit.f, row);
            emit.f.open_if(wanted)
        });
        let mut open = open_filters(emit, leaves, &mut expressions, &spec.filters)?;
        let place = match plan.regime {
            Regime::Scalar if in_registers => Place::Registers(registers.clone(), table),
            Regime::Scalar => Place::Table(table),
            Regime::Private | Regime::Block | Regime::Direct => {
                let dense = dense.as_ref().expect("dense regimes have dense keys");
                let (code, inside) = dense.code(emit, leaves, &mut expressions, &keys)?;
                if let Some(inside) = inside {
                    let outside = emit.f.not(inside);
                    raise(emit.f, control, ErrorCode::KeyRange, NodeId(u32::MAX), outside);
                    open.push(emit.f.open_if(inside));
                }
                match (own_bin, &own_groups) {
                    (_, Some(own)) => together(Place::Block(own.words_of(emit.f, plan, code)), code),
                    (Some(own), None) if plan.regime == Regime::Private => {
                        let bytes = plan.thread_words * BIN_WORD_STRIDE as u32;
                        let record =
                            plan.has_anchors().then(|| emit.f.element(table, code, plan.record_bytes() as u32));
                        Place::Bins(emit.f.mad(code, bytes, own), record)
                    }
                    _ => {
                        let record = emit.f.element(own_table, code, plan.record_bytes() as u32);
                        together(Place::Table(record), code)
                    }
                }
            }
            Regime::Hash => {
                let at = hashed.expect("the hash regime has a hash table");
                let (words, nulls) = keys::words(emit, leaves, &mut expressions, plan, &keys)?;
                let same = hash::Same::of(&comparison);
                let entry = hash::find_or_insert(emit.f, plan, at, &words, nulls, same);
                if let Some(leftover) = leftover {
                    leftover.note(emit.f, row, entry);
                }
                open.push(emit.f.open_if(entry.found));
                together(Place::Table(entry.cells), entry.slot)
            }
        };
        accumulate::accumulate(emit, leaves, &mut expressions, plan, &place)?;
        close_all(emit.f, open);
        if let Some(wanted) = wanted {
            emit.f.close(wanted);
        }
        Ok(())
    };
    rows.each_extent(f, |rows, f, extent_rows| {
        let mut emit = Emit { module, f };
        if ahead.rows == 1 {
            strided(&mut emit, thread, extent_rows, step, |emit, row| {
                rows.leaves.at_row(emit.f, row);
                add_row(emit, &mut rows.leaves, row)
            })
        } else {
            strided_ahead(&mut emit, &mut rows.leaves, thread, extent_rows, step, ahead, &mut add_row)
        }
    })?;

    if let (Some(bins), Some(own), Some(groups)) = (bins, own_bin, groups) {
        for (word, register) in registers.iter().enumerate() {
            f.store(Space::Shared, register.ty(), own.at(word as i64 * BIN_WORD_STRIDE), *register);
        }
        fold(f, plan, bins, groups, table);
    }
    if let Some(own) = own_groups {
        own.merge(f, plan, table);
    }
    Ok((kernel, params))
}

/// Where a seed goes.
struct SeedTable<'a> {
    plan: &'a AggregatePlan,
    table: Reg,
    dense: Option<&'a DenseParams>,
    hashed: Option<hash::Table>,
    leftover: Option<hash::Leftover>,
}

/// Puts the group of `seed` into the table, by the first thread of the grid. Whatever rows the group has come beside it.
fn plant(
    emit: &mut Emit<'_>,
    rows: &mut Rows<'_>,
    expressions: &mut Expressions<'_>,
    seed: &Seed,
    to: SeedTable<'_>,
) -> Result<(), CodegenError> {
    expressions.clear();
    let first = emit.f.open_if(rows.first_thread);
    let holds = expressions.truth(emit, &mut rows.leaves, seed.when)?;
    let planted = emit.f.open_if(holds);
    match (to.dense, to.hashed, to.plan.presence) {
        (Some(dense), _, Some(presence)) => {
            let (code, _) = dense.code(emit, &mut rows.leaves, expressions, &seed.keys)?;
            let record = emit.f.element(to.table, code, to.plan.record_bytes() as u32);
            emit.f.reduce(Atomic::Max, Space::Global, Type::U64, record.at(presence as i64 * 8), 1u64);
        }
        (_, Some(table), _) => {
            let (words, nulls) = keys::words(emit, &mut rows.leaves, expressions, to.plan, &seed.keys)?;
            let comparison = text::comparison(emit.module, to.plan.keys.iter().map(|key| key.lane))?;
            let entry = hash::find_or_insert(emit.f, to.plan, table, &words, nulls, hash::Same::of(&comparison));
            if let Some(leftover) = to.leftover {
                // It has no bit: a launch that takes rows again plants it again.
                emit.f.if_(entry.full, |f| leftover.count(f));
            }
        }
        _ => {
            return Err(CodegenError::Malformed {
                what: "a seed".into(),
                why: "without keys the one group is always there".into(),
            });
        }
    }
    emit.f.close(planted);
    emit.f.close(first);
    expressions.clear();
    Ok(())
}

/// Runs `body` for `start`, `start + step`, … below `end`.
fn strided(
    emit: &mut Emit<'_>,
    start: Reg,
    end: Reg,
    step: Reg,
    body: impl FnOnce(&mut Emit<'_>, Reg) -> Result<(), CodegenError>,
) -> Result<(), CodegenError> {
    let module = &mut *emit.module;
    emit.f.for_(start, end, step, |f, row| body(&mut Emit { module, f }, row))
}

/// As [`strided`], several rows at a time: first the loads of all of them, then one after the other.
fn strided_ahead(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    start: Reg,
    end: Reg,
    step: Reg,
    ahead: &RowAhead,
    add_row: &mut dyn FnMut(&mut Emit<'_>, &mut RowLeaves<'_>, Reg) -> Result<(), CodegenError>,
) -> Result<(), CodegenError> {
    // Rows past the end are loaded as the last one, and left out.
    let last = emit.f.sub(end, 1u32);
    let turn = emit.f.mul(step, ahead.rows);
    strided(emit, start, end, turn, |emit, first| {
        let mut loaded = Vec::new();
        let mut row = first;
        for turn in 0..ahead.rows {
            let mut exists = None;
            let mut number = row;
            if turn > 0 {
                row = emit.f.add(row, step);
                exists = Some(emit.f.setp(Compare::Lt, row, end));
                number = emit.f.min(row, last);
            }
            loaded.push((exists, number, leaves.load_row(emit, number, &ahead.columns)?));
        }
        for (exists, number, row) in loaded {
            let open = exists.map(|exists| emit.f.open_if(exists));
            leaves.enter_row(row);
            add_row(emit, leaves, number)?;
            if let Some(open) = open {
                emit.f.close(open);
            }
        }
        Ok(())
    })
}

/// Registers for a thread's own words, all "nothing yet".
fn thread_words(f: &mut FunctionBuilder, plan: &AggregatePlan) -> Vec<Reg> {
    let mut registers = Vec::new();
    for cell in &plan.cells {
        for _ in 0..cell.op.thread_words() {
            registers.push(zero(f, word_type(cell.op)));
        }
    }
    registers
}

/// Clears this thread's bins.
fn clear_bins(f: &mut FunctionBuilder, plan: &AggregatePlan, own: Reg, groups: Reg) {
    let words = f.mul(groups, plan.thread_words);
    let bytes = f.mul(words, BIN_WORD_STRIDE as u32);
    let end = f.add(own, bytes);
    f.for_(own, end, BIN_WORD_STRIDE as u32, |f, at| f.store(Space::Shared, Type::U64, at, 0u64));
}
