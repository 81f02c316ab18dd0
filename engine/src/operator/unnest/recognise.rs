//! Recognizes the nodes of a plan that are an UNNEST with a device form, and rewrites its columns over items.
//!
//!   ProjectionExec: id@0, hit@1['word']                              id@0, word@3
//!     UnnestExec: columns id, hit                 ─►  columns id, sentence, sentiment, word
//!       ProjectionExec: id@0, hits(text@1)                           id@0; searched: text@1
//!
//! Between  nodes that only move rows, limits of partitions above the UNNEST, and filters below it: DataFusion puts
//!          them above a projection with fewer columns than its input.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::functions::{string, unicode};
use datafusion::logical_expr::ScalarUDF;
use datafusion::physical_expr::expressions::{Column, Literal, lit};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::unnest::UnnestExec;
use millpond_kernels::sentences::DELETED;

use crate::expr::builtin::is_own_scalar;
use crate::operator::unnest::each::{EachSink, Written};
use crate::operator::unnest::found::{Found, Items};
use crate::operator::unnest::lower::{HitsSink, ITEM};
use crate::operator::unnest::{ItemsSink, Unnest};
use crate::placement::simplify::only_moves;

/// An UNNEST with the projections around it.
pub(super) struct Unnested {
    /// Input of the lists.
    pub input: Arc<dyn ExecutionPlan>,
    /// The nodes from the topmost down to the projection that makes the list.
    pub nodes: Vec<Arc<dyn ExecutionPlan>>,
    pub sink: ItemsSink,
    pub lists: String,
    /// Schema of payload and items.
    pub schema: SchemaRef,
    /// The output columns, over payload and items.
    pub above: Columns,
    /// Number of rows that suffice.
    pub fetch: Option<usize>,
}

impl Unnest {
    /// The UNNEST at `node`: an UNNEST itself, or the projection above one of structures.
    pub(super) fn recognise(&self, node: &Arc<dyn ExecutionPlan>) -> Option<Unnested> {
        let Way { mut nodes, fetch, end } = Way::down(node)?;
        let unnest = end.downcast_ref::<UnnestExec>()?;
        let lists = unnest.list_column_indices().iter();
        let lists = lists.map(|list| (list.depth == 1).then_some(list.index_in_input_schema));
        let lists = lists.collect::<Option<Vec<usize>>>().filter(|_| unnest.struct_column_indices().is_empty())?;
        let below = Below::of(unnest.input(), &mut nodes)?;
        let calls = lists.iter().map(|list| Some(&below.columns.get(*list)?.0)).collect::<Option<Vec<_>>>()?;
        let (payload, mut fields) = below.payload(unnest, &lists)?;
        let found = match calls.as_slice() {
            [call] if !unnest.options().preserve_nulls() => self.found(call),
            _ => None,
        };
        let mut flat = Flat { lists, payload: payload.len(), names: vec![], structures: false, words: false };
        let sink = match found {
            Some((found, call)) => flat.hits(found, call, payload, &below.input.schema())?,
            None => flat.each(&calls, payload)?,
        };
        fields.extend(flat.names.iter().zip(flat.types(&sink)).map(|(name, ty)| Arc::new(Field::new(name, ty, true))));
        flat.names = fields.iter().map(|field| field.name().clone()).collect();
        let above = match node.downcast_ref::<ProjectionExec>() {
            Some(above) if flat.structures => flat.above(above)?,
            None if !flat.structures => flat.columns(unnest)?,
            _ => return None,
        };
        let lists = calls.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let schema = Arc::new(Schema::new(fields));
        Some(Unnested { input: below.input, nodes, sink, lists, schema, above, fetch })
    }
}

/// The path from a projection, or from an UNNEST itself, down to the UNNEST.
struct Way {
    /// All nodes on the path, from the top.
    nodes: Vec<Arc<dyn ExecutionPlan>>,
    /// The least limit among them.
    fetch: Option<usize>,
    end: Arc<dyn ExecutionPlan>,
}

impl Way {
    fn down(node: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let mut way = Self { nodes: vec![Arc::clone(node)], fetch: None, end: Arc::clone(node) };
        if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
            way.end = below_moves(projection.input(), &mut way.nodes)?;
            // A limit of each partition limits all rows, and a projection keeps the number of rows.
            while let Some(limit) = way.end.downcast_ref::<LocalLimitExec>() {
                way.fetch = Some(way.fetch.map_or(limit.fetch(), |fetch| fetch.min(limit.fetch())));
                way.end = below_moves(&Arc::clone(limit.input()), &mut way.nodes)?;
            }
        }
        Some(way)
    }
}

/// Columns with their names.
pub(super) type Columns = Vec<(Arc<dyn PhysicalExpr>, String)>;

/// The projection below an UNNEST: its columns, over its input.
struct Below {
    columns: Columns,
    fields: Vec<FieldRef>,
    input: Arc<dyn ExecutionPlan>,
}

impl Below {
    /// The projection below `plan`. A filter above it, of columns that it only passes on, moves below it.
    fn of(plan: &Arc<dyn ExecutionPlan>, nodes: &mut Vec<Arc<dyn ExecutionPlan>>) -> Option<Self> {
        let plan = below_moves(plan, nodes)?;
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            let below = Self::of(filter.input(), nodes).filter(|_| ExecutionPlan::fetch(filter).is_none())?;
            let predicate = below.passed_on(filter.predicate())?;
            let all: Vec<usize> = (0..below.columns.len()).collect();
            let kept = filter.projection().as_ref().map_or(all.as_slice(), |kept| kept.as_ref());
            return Some(Self {
                columns: kept.iter().map(|index| below.columns.get(*index).cloned()).collect::<Option<_>>()?,
                fields: kept.iter().map(|index| below.fields.get(*index).cloned()).collect::<Option<_>>()?,
                input: Arc::new(FilterExec::try_new(predicate, below.input).ok()?),
            });
        }
        let projection = plan.downcast_ref::<ProjectionExec>()?;
        Some(Self {
            columns: projection.expr().iter().map(|one| (Arc::clone(&one.expr), one.alias.clone())).collect(),
            fields: projection.schema().fields().iter().cloned().collect(),
            input: Arc::clone(projection.input()),
        })
    }

    /// An expression over these columns, rewritten over the input; `None` if it reads a computed column.
    fn passed_on(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
        let mut computed = false;
        let passed_on = Arc::clone(expr).transform_down(|part| {
            let Some(column) = part.downcast_ref::<Column>() else { return Ok(Transformed::no(part)) };
            match self.columns.get(column.index()).filter(|(own, _)| own.is::<Column>()) {
                Some((own, _)) => Ok(Transformed::new(Arc::clone(own), true, TreeNodeRecursion::Jump)),
                None => {
                    computed = true;
                    Ok(Transformed::no(part))
                }
            }
        });
        passed_on.data().ok().filter(|_| !computed)
    }

    /// The columns beside the lists, which keep their positions in the rows of `unnest`, and their fields.
    fn payload(&self, unnest: &UnnestExec, lists: &[usize]) -> Option<(Columns, Vec<FieldRef>)> {
        let (mut columns, mut fields, unnested) = (vec![], vec![], unnest.schema());
        for (index, (column, field)) in self.columns.iter().zip(&self.fields).enumerate() {
            if !lists.contains(&index) {
                unnested.fields().get(index).filter(|own| own.name() == field.name())?;
                columns.push(column.clone());
                fields.push(Arc::clone(field));
            }
        }
        Some((columns, fields))
    }
}

/// The first node from `plan` down that does more than move rows; appends it, and the nodes above it, to `nodes`.
fn below_moves(
    plan: &Arc<dyn ExecutionPlan>,
    nodes: &mut Vec<Arc<dyn ExecutionPlan>>,
) -> Option<Arc<dyn ExecutionPlan>> {
    let mut plan = Arc::clone(plan);
    while only_moves(plan.as_ref()) {
        nodes.push(Arc::clone(&plan));
        plan = Arc::clone(plan.children().first()?);
    }
    nodes.push(Arc::clone(&plan));
    Some(plan)
}

/// A call of one of DataFusion's functions.
fn called(
    function: Arc<ScalarUDF>,
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    schema: &Schema,
) -> Option<Arc<dyn PhysicalExpr>> {
    let options = Arc::new(ConfigOptions::default());
    Some(Arc::new(ScalarFunctionExpr::try_new(function, arguments, schema, options).ok()?))
}

/// Items as columns: the columns of the row except the lists, then the items, or the fields of the only item.
struct Flat {
    lists: Vec<usize>,
    payload: usize,
    names: Vec<String>,
    structures: bool,
    /// Items still contain the characters that words exclude.
    words: bool,
}

impl Flat {
    /// The items that a call finds in its text.
    fn hits(
        &mut self,
        found: Found,
        call: &ScalarFunctionExpr,
        payload: Columns,
        schema: &Schema,
    ) -> Option<ItemsSink> {
        let text = Arc::clone(call.args().first()?);
        let text = if found.lower { called(string::lower(), vec![text], schema)? } else { text };
        match &found.items {
            Items::Hits(hits) => self.names = hits.fields.iter().map(|(name, _)| name.clone()).collect(),
            Items::Sentences | Items::Words => self.names.push(ITEM.to_string()),
        }
        (self.structures, self.words) = (matches!(found.items, Items::Hits(_)), found.items == Items::Words);
        Some(ItemsSink::Hits(HitsSink { payload, text, found }))
    }

    /// The items of lists that are written out.
    fn each(&mut self, calls: &[&Arc<dyn PhysicalExpr>], payload: Columns) -> Option<ItemsSink> {
        let written = calls.iter().map(|call| Written::of(call)).collect::<Option<Vec<_>>>()?;
        let fields = written.first()?.fields().filter(|_| written.len() == 1);
        self.structures = fields.is_some();
        let lists = fields.unwrap_or_else(|| written.into_iter().map(|list| (ITEM.to_string(), list)).collect());
        self.names = lists.iter().map(|(name, _)| name.clone()).collect();
        Some(ItemsSink::Each(EachSink { payload, lists }))
    }

    /// The types of the items.
    fn types(&self, sink: &ItemsSink) -> Vec<DataType> {
        match sink {
            ItemsSink::Hits(_) => vec![DataType::Utf8View; self.names.len()],
            ItemsSink::Each(each) => each.lists.iter().map(|(_, list)| list.data_type.clone()).collect(),
        }
    }

    /// Position of a column beside the lists.
    fn beside(&self, index: usize) -> usize {
        index - self.lists.iter().filter(|list| **list < index).count()
    }

    /// An expression over the rows of an UNNEST, rewritten over these columns; `None` if it needs a whole item.
    fn expression(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
        let mut whole = false;
        let flat = Arc::clone(expr).transform_down(|part| {
            let index = match (part.downcast_ref::<Column>(), self.field(&part)) {
                (_, Some(index)) => index,
                (Some(column), _) if self.lists.contains(&column.index()) => {
                    whole = true;
                    return Ok(Transformed::no(part));
                }
                (Some(column), _) => self.beside(column.index()),
                _ => return Ok(Transformed::no(part)),
            };
            Ok(Transformed::new(self.named(index), true, TreeNodeRecursion::Jump))
        });
        flat.data().ok().filter(|_| !whole)
    }

    /// The columns of a projection above the UNNEST.
    fn above(&self, above: &ProjectionExec) -> Option<Columns> {
        above.expr().iter().map(|column| Some((self.expression(&column.expr)?, column.alias.clone()))).collect()
    }

    /// The columns of the UNNEST itself.
    fn columns(&self, unnest: &UnnestExec) -> Option<Columns> {
        let schema = unnest.schema();
        let columns = schema.fields().iter().enumerate();
        columns.map(|(index, field)| Some((self.column(index)?, field.name().clone()))).collect()
    }

    fn named(&self, index: usize) -> Arc<dyn PhysicalExpr> {
        Arc::new(Column::new(self.names.get(index).map_or("", String::as_str), index))
    }

    /// Column `index` of an UNNEST whose items are no structures; removes the characters that words exclude.
    fn column(&self, index: usize) -> Option<Arc<dyn PhysicalExpr>> {
        let Some(list) = self.lists.iter().position(|list| *list == index) else {
            return Some(self.named(self.beside(index)));
        };
        let item = self.named(self.payload + list);
        if !self.words {
            return Some(item);
        }
        let fields: Vec<Field> = self.names.iter().map(|name| Field::new(name, DataType::Utf8View, true)).collect();
        called(unicode::translate(), vec![item, lit(DELETED), lit("")], &Schema::new(fields))
    }

    /// The column for `get_field` of an item.
    fn field(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
        let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
        let [item, name] = call.args() else { return None };
        let item = item.downcast_ref::<Column>()?;
        let name = name.downcast_ref::<Literal>()?.value().try_as_str()??;
        let is_item = call.fun().name() == "get_field" && is_own_scalar(call.fun()) && self.lists == [item.index()];
        let field = self.names[self.payload..].iter().position(|field| field == name)?;
        is_item.then_some(self.payload + field)
    }
}
