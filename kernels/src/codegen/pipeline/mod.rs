//! Compiles a [`PipelineSpec`] to a module of PTX: the row loop, the filters, the sink.
//!
//!   for each extent, for each row of this thread:
//!       filter 1 ─ filter 2 ─ …                      each a branch: later columns load only for remaining rows
//!           └─► sink
//!
//! Kernels   `pipeline`, and for aggregates `emit`; hash tables also `rehash`.
//! Grid      persistent, any number of blocks: rows are strided (aggregates, dense output), or blocks take tiles
//!           (compaction).
//! Parts     `check` rejects malformed specs, `outputs` are the kernels that write rows; `rows`, `aggregate` and `join`
//!           beside this folder iterate rows, add them to groups and to join tables.

mod check;
mod outputs;

use std::hash::{DefaultHasher, Hash, Hasher};

use millpond_ptx::ast::{Function, FunctionKind, Item, Module, Statement};
use millpond_ptx::build::{FunctionBuilder, ModuleBuilder, risky_predicates};
use millpond_ptx::static_shared_bytes;

use super::aggregate::aggregate_kernel;
use super::aggregate::cells::AggregatePlan;
use super::aggregate::emit::{emit_kernel, rehash_kernel};
use super::aggregate::prefetch::Prefetch;
use super::ir::*;
use super::params::ParamList;
use super::value::CodegenError;
use crate::tune;
use check::check;
use outputs::{mark_kernel, materialise_kernel, table_kernel};

/// One kernel of a compiled pipeline.
#[derive(Debug, Clone)]
pub struct CompiledKernel {
    pub name: &'static str,
    pub params: ParamList,
    /// Threads per block.
    pub threads: u32,
    /// Rows per thread and iteration.
    pub rows_per_thread: u32,
    /// Instructions in the kernel's text.
    pub instructions: u32,
    /// Bytes of static shared memory, in addition to the dynamic memory of a launch.
    pub static_shared_bytes: u64,
}

/// A helper function that kernels of a module call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Helper {
    /// Identity: equal helpers have equal fingerprints.
    pub fingerprint: u64,
    /// Instructions in the helper's text.
    pub instructions: u32,
}

/// A pipeline compiled to PTX.
#[derive(Debug, Clone)]
pub struct CompiledPipeline {
    pub spec: PipelineSpec,
    /// Text of the module. Specs that differ only in ranges may share a text, and so a module.
    pub text: String,
    pub pipeline: CompiledKernel,
    /// Present for aggregates.
    pub emit: Option<CompiledKernel>,
    /// Present for hash tables.
    pub rehash: Option<CompiledKernel>,
    /// Helpers that these kernels call.
    pub helpers: Vec<Helper>,
    /// True if some rows are dropped and the order is kept: the launch needs tile status words.
    pub compacts: bool,
    pub(crate) plan: Option<AggregatePlan>,
}

impl CompiledPipeline {
    /// Regime of an aggregate.
    pub fn regime(&self) -> Option<Regime> {
        self.plan.as_ref().map(|plan| plan.regime)
    }

    /// Number of accumulators after equal ones merged. A sum of several words counts once.
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
/// [`CodegenError::Unsupported`] if an expression has no device form; other errors are bugs.
pub fn compile(spec: &PipelineSpec) -> Result<CompiledPipeline, CodegenError> {
    compile_module(spec).map(|(compiled, _)| compiled)
}

/// As [`compile`], together with the module from which the text is printed.
///
/// # Errors
/// As [`compile`].
pub fn compile_module(spec: &PipelineSpec) -> Result<(CompiledPipeline, Module), CodegenError> {
    check(spec)?;
    let mut rows_per_thread = Prefetch::new(spec).rows;
    loop {
        let (mut compiled, module) = compile_with(spec, rows_per_thread)?;
        if rows_per_thread == 1 || compiled.pipeline.instructions <= tune::UNROLLED_INSTRUCTIONS {
            compiled.text = module.to_string();
            return Ok((compiled, module));
        }
        rows_per_thread /= 2;
    }
}

/// Compiles all parts except the text, which is printed from the module.
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
            let ahead = Prefetch { rows: rows_per_thread, ..Prefetch::new(spec) };
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
    debug_assert_eq!(risky_predicates(&module), Vec::<String>::new(), "an assembler may get these wrong");
    let Parts { mut pipeline, mut emit, mut rehash, compacts, plan } = compiled;
    let others = [&mut emit, &mut rehash];
    for kernel in std::iter::once(&mut pipeline).chain(others.into_iter().flatten()) {
        kernel.instructions =
            functions(&module).filter(|function| function.name == kernel.name).map(num_instructions).sum();
        // Dynamic shared memory begins after the static part, aligned.
        kernel.static_shared_bytes = static_shared_bytes(&module, kernel.name).next_multiple_of(16);
    }
    let helpers = functions(&module).filter(|function| function.kind == FunctionKind::Func).map(helper).collect();
    let text = String::new();
    let spec = spec.clone();
    Ok((CompiledPipeline { spec, text, pipeline, emit, rehash, helpers, compacts, plan }, module))
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

fn add(module: &mut ModuleBuilder, mut f: FunctionBuilder, params: ParamList, threads: u32) -> CompiledKernel {
    let name = match f.name() {
        "emit" => "emit",
        "rehash" => "rehash",
        _ => "pipeline",
    };
    f.tidy();
    module.add(f);
    CompiledKernel { name, params, threads, rows_per_thread: 1, instructions: 0, static_shared_bytes: 0 }
}

/// Functions of a module that have a body, including kernels.
fn functions(module: &Module) -> impl Iterator<Item = &Function> {
    module.items.iter().filter_map(|item| match item {
        Item::Function(function) if function.body.is_some() => Some(function),
        _ => None,
    })
}

fn num_instructions(function: &Function) -> u32 {
    fn count(body: &[Statement]) -> u32 {
        body.iter()
            .map(|statement| match statement {
                Statement::Instruction(_) => 1,
                Statement::Block(inner) => count(inner),
                _ => 0,
            })
            .sum()
    }
    function.body.as_deref().map_or(0, count)
}

fn helper(function: &Function) -> Helper {
    let mut hasher = DefaultHasher::new();
    function.hash(&mut hasher);
    Helper { fingerprint: hasher.finish(), instructions: num_instructions(function) }
}
