//! A device subtree, cut into pipelines.
//!
//!   Sort ─ Project ─ Aggregate ─ Filter ─ Upload
//!      segment 0   uploaded rows ─ filter ─ aggregate
//!      segment 1   groups ─ finish ─ project ─ materialise with sort keys ─ sort
//!
//! A [`Program`] is what can be known from the plan; dictionaries are not, so [`Program::lower`] makes the kernels' spec of
//! a segment when a run knows its input's columns. Equal specs are one compiled module, so this costs no compilation.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use millpond_kernels::codegen::ir::{
    ColumnSpec, Extents, Literal, LookupSpec, NodeId, Physical, PipelineSpec, Repr, SinkSpec, Ty,
};

use crate::column::{ColumnInfo, storage};
use crate::error::EngineError;
use crate::exec::{DeviceAggregateExec, DeviceFilterExec, DeviceProjectExec, DeviceSortExec, UploadExec};
use crate::expr::aggregate::{self, LoweredAggregate};
use crate::expr::{Dictionaries, Lookup, Lowering, Scope};
use crate::placement::Reason;

/// One step between a segment's input and its sink.
#[derive(Debug, Clone)]
pub enum Stage {
    Filter { predicate: Arc<dyn PhysicalExpr>, projection: Option<Vec<usize>> },
    Project(Vec<(Arc<dyn PhysicalExpr>, String)>),
}

/// Where a segment's rows go.
#[derive(Debug, Clone)]
pub enum Sink {
    /// Dense columns: a result, or the next segment's input.
    Materialise,
    /// One table; its groups are the next segment's input, which begins by finishing them.
    Aggregate(Arc<DeviceAggregateExec>),
    /// Dense columns and sort keys; the sorted columns are the next segment's input, or the result.
    Sort { order: LexOrdering, fetch: Option<usize> },
}

/// A pipeline's worth of operators.
#[derive(Debug, Clone)]
pub struct Segment {
    pub stages: Vec<Stage>,
    pub sink: Sink,
}

/// A device subtree, ready to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// The source, an [`UploadExec`].
    upload: Arc<dyn ExecutionPlan>,
    pub segments: Vec<Segment>,
    /// The result's schema.
    pub schema: SchemaRef,
    /// Rows that leave the program, at most.
    pub row_limit: Option<usize>,
    /// Columns of the last segment that are the result, where a projection above a sort does no more than choose.
    pub selection: Option<Vec<usize>>,
}

impl Program {
    /// Cuts the device subtree `plan`.
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Result<Self, EngineError> {
        let mut chain = Vec::new();
        let mut node = plan;
        while !node.is::<UploadExec>() {
            chain.push(node);
            let input = node.children().first().copied();
            node = input.ok_or_else(|| EngineError::internal(format!("{} has no input", node.name())))?;
        }
        let mut program = Self {
            upload: Arc::clone(node),
            segments: vec![],
            schema: plan.schema(),
            row_limit: None,
            selection: None,
        };
        let mut stages = Vec::new();
        for node in chain.into_iter().rev() {
            if let Some(filter) = node.downcast_ref::<DeviceFilterExec>() {
                let projection = filter.projection().map(<[usize]>::to_vec);
                stages.push(Stage::Filter { predicate: Arc::clone(filter.predicate()), projection });
                program.row_limit = filter.row_limit();
            } else if let Some(project) = node.downcast_ref::<DeviceProjectExec>() {
                stages.push(Stage::Project(project.columns().to_vec()));
            } else if let Some(aggregate) = node.downcast_ref::<DeviceAggregateExec>() {
                let sink = Sink::Aggregate(Arc::new(aggregate.clone()));
                program.segments.push(Segment { stages: std::mem::take(&mut stages), sink });
                program.row_limit = None;
            } else if let Some(sort) = node.downcast_ref::<DeviceSortExec>() {
                let sink = Sink::Sort { order: sort.order().clone(), fetch: sort.row_limit() };
                program.segments.push(Segment { stages: std::mem::take(&mut stages), sink });
                program.row_limit = sort.row_limit();
            } else {
                return Err(EngineError::internal(format!("{} in a device subtree", node.name())));
            }
        }
        let sorted_last = matches!(program.segments.last(), Some(Segment { sink: Sink::Sort { .. }, .. }));
        program.selection = if sorted_last { selection(&stages) } else { None };
        if !(sorted_last && (stages.is_empty() || program.selection.is_some())) {
            program.segments.push(Segment { stages, sink: Sink::Materialise });
        }
        Ok(program)
    }

    /// The uploading node.
    pub fn upload(&self) -> &UploadExec {
        self.upload.downcast_ref::<UploadExec>().expect("Program::of stops at an UploadExec")
    }

    /// The kernels' form of segment `index`, whose input has `columns`; `finish` is the aggregate that the segment before
    /// ended with, `rows_hint` about how many rows there are. Segment 0's columns lie in memory as [`storage`] says, later ones in their natural width.
    pub fn lower(
        &self,
        index: usize,
        columns: &[ColumnInfo],
        finish: Option<&LoweredAggregate>,
        rows_hint: Option<u64>,
        dictionaries: &mut Dictionaries,
    ) -> Result<LoweredSegment, Reason> {
        let segment = &self.segments[index];
        let mut lowering = Lowering::new(columns, dictionaries);
        let mut scope = match (finish, index.checked_sub(1).map(|before| &self.segments[before].sink)) {
            (Some(aggregate), Some(Sink::Aggregate(node))) => aggregate.finish(&mut lowering, &node.schema())?,
            _ => lowering.scope(),
        };
        let mut filters = Vec::new();
        for stage in &segment.stages {
            scope = match stage {
                Stage::Filter { predicate, projection } => {
                    // The parts of an AND are filters of their own, so that a later one sees only the survivors.
                    for part in split_conjunction(predicate) {
                        filters.push(lowering.predicate(part, &scope)?);
                    }
                    match projection {
                        Some(projection) => scope.select(projection),
                        None => scope,
                    }
                }
                Stage::Project(expressions) => project(&mut lowering, expressions, &scope)?,
            };
        }
        let mut outputs = Vec::new();
        let mut sort_keys = Vec::new();
        let mut aggregate = None;
        let sink = match &segment.sink {
            Sink::Materialise | Sink::Sort { .. } => {
                let mut nodes: Vec<NodeId> = Vec::new();
                for (name, value) in scope.columns() {
                    let value = value.clone()?;
                    nodes.push(value.node);
                    outputs.push(lowering.info(name, &value));
                }
                if let Sink::Sort { order, .. } = &segment.sink {
                    for key in order.iter() {
                        let value = lowering.sort_key(&key.expr, &scope)?;
                        // A key that is an output already is not written twice.
                        let output = nodes.iter().position(|node| *node == value.node).unwrap_or_else(|| {
                            nodes.push(value.node);
                            nodes.len() - 1
                        });
                        let (descending, nulls_first) = (key.options.descending, key.options.nulls_first);
                        sort_keys.push(SortKey { output, descending, nulls_first });
                    }
                }
                SinkSpec::Materialise { outputs: nodes }
            }
            Sink::Aggregate(node) => {
                let mut lowered = aggregate::lower(&mut lowering, &scope, node.aggregation())?;
                filters.extend(&lowered.row_filters);
                lowered.spec.rows_hint = rows_hint;
                let sink = SinkSpec::Aggregate(lowered.spec.clone());
                outputs.clone_from(&lowered.emitted);
                aggregate = Some(lowered);
                sink
            }
        };
        let Lowering { graph, literals, lookups, .. } = lowering;
        let (literal_types, literals) = literals.into_iter().unzip();
        let tables = lookups.iter().map(|table| LookupSpec { physical: table.physical(), ty: table.ty });
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: columns.iter().map(|column| column_spec(column, index == 0)).collect(),
            literals: literal_types,
            lookups: tables.collect(),
            tables: vec![],
            expanded: false,
            graph,
            filters,
            sink,
        };
        Ok(LoweredSegment { spec, literals, lookups, outputs, sort_keys, aggregate })
    }
}

/// The columns that `stages` choose, if choosing is all they do.
fn selection(stages: &[Stage]) -> Option<Vec<usize>> {
    let mut chosen: Option<Vec<usize>> = None;
    for stage in stages {
        let Stage::Project(expressions) = stage else { return None };
        let indices = expressions.iter().map(|(expr, _)| expr.downcast_ref::<Column>().map(Column::index));
        let indices = indices.collect::<Option<Vec<usize>>>()?;
        chosen = Some(match chosen {
            Some(before) => indices.into_iter().map(|index| before.get(index).copied()).collect::<Option<_>>()?,
            None => indices,
        });
    }
    chosen
}

/// A segment in the kernels' language, for one run's columns.
#[derive(Debug, Clone)]
pub struct LoweredSegment {
    pub spec: PipelineSpec,
    /// Values of the parameter slots.
    pub literals: Vec<Literal>,
    /// Tables over dictionaries, as the spec numbers them.
    pub lookups: Vec<Lookup>,
    /// Columns of the output: those of the plan, or the emitted table of an aggregate. A sort's keys may follow them.
    pub outputs: Vec<ColumnInfo>,
    pub sort_keys: Vec<SortKey>,
    /// The aggregate, whose results the next segment finishes.
    pub aggregate: Option<LoweredAggregate>,
}

impl LoweredSegment {
    /// Launches over the same rows.
    pub fn variants(&self) -> u32 {
        self.aggregate.as_ref().map_or(1, |aggregate| aggregate.variants)
    }
}

/// A sort key among the materialised outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortKey {
    pub output: usize,
    pub descending: bool,
    pub nulls_first: bool,
}

/// How an input column lies in memory: uploaded ones are narrowed by range, intermediates have their natural width.
pub fn column_spec(column: &ColumnInfo, uploaded: bool) -> ColumnSpec {
    // A column without a device form is in no graph, so nothing looks at its entry.
    let ty = column.ty().unwrap_or(Ty::new(Repr::Bool));
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
