//! From a [`PipelineSpec`] to a module of PTX: the row loop, the filters, the sink.
//!
//!   for each extent, for each row of this thread:
//!       filter 1 ─ filter 2 ─ …                      each a branch: later columns load only for rows that are left
//!           └─► sink
//!
//! Kernels   `pipeline`, and for aggregates `emit`; hash tables also `rehash`.
//! Grid      persistent, any number of blocks: rows are strided (aggregates, dense output) or tiles are taken (compaction).
//! Parts     `check` refuses what is malformed, `rows` brings rows through the filters, `outputs` and `aggregate` are the sinks.

mod aggregate;
mod check;
mod outputs;
mod rows;

use std::hash::{DefaultHasher, Hash, Hasher};

use millpond_ptx::ast::{Function, FunctionKind, Item, Module, Statement};
use millpond_ptx::build::{FunctionBuilder, ModuleBuilder, risky_predicates};
use millpond_ptx::static_shared_bytes;

use super::ahead::RowAhead;
use super::ir::*;
use super::params::ParamList;
use super::sink::cells::AggregatePlan;
use super::sink::emit::{emit_kernel, rehash_kernel};
use super::value::CodegenError;
use crate::tune;
use aggregate::aggregate_kernel;
use check::check;
use outputs::{mark_kernel, materialise_kernel, table_kernel};

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
    /// Shared memory that it has whatever a launch asks for.
    pub static_shared_bytes: u64,
}

/// A function that kernels of a module call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Helper {
    /// Equal helpers have equal ones.
    pub fingerprint: u64,
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
    /// What these kernels call.
    pub helpers: Vec<Helper>,
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
    debug_assert_eq!(risky_predicates(&module), Vec::<String>::new(), "an assembler may get these wrong");
    let Parts { mut pipeline, mut emit, mut rehash, compacts, plan } = compiled;
    let others = [&mut emit, &mut rehash];
    for kernel in std::iter::once(&mut pipeline).chain(others.into_iter().flatten()) {
        kernel.instructions =
            functions(&module).filter(|function| function.name == kernel.name).map(num_instructions).sum();
        // What a launch adds begins behind it, aligned.
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

/// The functions of a module that have a body, kernels too.
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
