//! UNNEST of dictionary codes: makes a row of each item of a column of lists, and columns of the fields of a column of
//! structures.
//!
//!   l: codes into D0 = [[7, 8], [], [9]]     items of D0   7 8 9      counts 2 0 1   starts 0 2 2
//!
//!   rows with start and count of their lists ─► running sums ─► a row for each item: items[start + its number]
//!
//! Lists      several lists beside each other give as many rows as the longest has items, and NULL for shorter ones.
//!            Lists of lists are flattened level by level, the outer ones first.
//! NULL       in place of a list gives a row if UNNEST keeps NULLs, otherwise none; a NULL item is a row.
//! Order      of the rows, and of each row's items, if extents are processed one after the other.
//! Memory     the rows of an extent, copied once for each level; the items of a dictionary once, as a table.
//! Waits      for the number of items of each extent, in a first run.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::functions::core::get_field;
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use millpond_kernels::codegen::ir::{Arithmetic, Comparison, GraphError, NodeId, Overflow, Repr, SinkSpec, Test, Ty};

use crate::column::{ColumnInfo, DictionaryId, Form, type_unsupported};
use crate::error::reason::Reason;
use crate::expr::list::item_type;
use crate::expr::{
    Dictionaries, LISTS_ARE_CARRIED, Lookup, LookupKind, LookupTable, Lowering, Scope, Value, unsupported,
};
use crate::placement::contract::{DeviceTree, Placed};
use crate::placement::walk::Placing;
use crate::program::contract::{Stage, never_alone};
use crate::program::lower::{PieceBuilder, SegmentLowering, number_column};
use crate::program::piece::Cut;

/// Mapping of an UNNEST's input columns to its output.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flat {
    /// Input columns, in the order of the output, and the number of list levels to flatten in each.
    columns: Vec<(usize, usize)>,
    /// Positions among these of the structures whose fields become columns.
    structures: Vec<usize>,
    /// A NULL list, or an empty one, is a row.
    keeps_nulls: bool,
    keeps_empty: bool,
}

/// Repeats the rows of its input for each item of their lists.
#[derive(Debug, Clone)]
pub(super) struct DeviceFlattenExec {
    flat: Flat,
    /// Names of the lists, for EXPLAIN.
    lists: String,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceFlattenExec {
    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }

    /// The stage of this node.
    pub fn stage(&self) -> impl Stage + 'static {
        self.flat.clone()
    }

    pub fn does_the_same(&self, other: &Self) -> bool {
        self.flat == other.flat
    }
}

impl DisplayAs for DeviceFlattenExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => write!(f, "lists={}", self.lists),
            _ => write!(f, "DeviceFlattenExec: lists=[{}]", self.lists),
        }
    }
}

crate::plan::node::device_node!(DeviceFlattenExec, execute: refuse);

/// Places an UNNEST of columns; `None` for other nodes.
pub(super) fn place(node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
    let unnest = node.downcast_ref::<UnnestExec>()?;
    Some(to.place(unnest.input()).and_then(|child| to.unary(node, child, |tree| judge(node, unnest, tree, to))))
}

/// The device's form of `unnest`, which is `node`, over `input`.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    unnest: &UnnestExec,
    input: &DeviceTree,
    to: &Placing<'_>,
) -> Result<DeviceTree, Reason> {
    let flat = Flat::of(unnest).ok_or_else(|| Reason::NodeUnsupported {
        node: "UNNEST of a column both as lists and as structures, or of structures with equal names".into(),
    })?;
    let columns = flat.judge(&input.columns, &mut to.lowering())?;
    let schema = unnest.schema();
    let columns: Vec<ColumnInfo> = columns
        .into_iter()
        .zip(schema.fields())
        .map(|(column, field)| ColumnInfo { name: field.name().clone(), ..column })
        .collect();
    if columns.len() != schema.fields().len() {
        return Err(Reason::NodeUnsupported { node: "UNNEST with other columns than it says".into() });
    }
    let fields = unnest.input().schema();
    let listed = flat.columns.iter().filter(|(_, depth)| *depth > 0);
    let mut lists: Vec<String> = listed.map(|(index, _)| format!("{}@{index}", fields.field(*index).name())).collect();
    let structures = flat.structures.iter().map(|at| flat.columns[*at].0);
    lists.extend(structures.map(|index| format!("{}@{index}", fields.field(index).name())));
    let device = DeviceFlattenExec {
        flat,
        lists: lists.join(", "),
        input: Arc::clone(&input.plan),
        properties: crate::plan::node::properties(schema, None),
    };
    let cpu = Arc::clone(node);
    let tree = DeviceTree { plan: Arc::new(device), cpu, columns, row_limit: None, sorted: false, aggregated: true };
    to.restore_order(node, tree)
}

fn refused(error: GraphError) -> Reason {
    Reason::ExprUnsupported { expr: "UNNEST".into(), why: error.to_string() }
}

impl Flat {
    fn of(unnest: &UnnestExec) -> Option<Self> {
        let (lists, structures) = (unnest.list_column_indices(), unnest.struct_column_indices());
        let schema = unnest.input().schema();
        let mut columns = vec![];
        let mut apart = vec![];
        for index in 0..schema.fields().len() {
            let of_it = lists.iter().filter(|list| list.index_in_input_schema == index);
            let depths: Vec<usize> = of_it.map(|list| list.depth).collect();
            if structures.contains(&index) {
                apart.push(columns.len());
            }
            match depths.as_slice() {
                [] => columns.push((index, 0)),
                depths => columns.extend(depths.iter().map(|depth| (index, *depth))),
            }
        }
        // DataFusion numbers structures among columns, each of which must occur once.
        let once = columns.len() == schema.fields().len();
        if !(structures.is_empty() || once) {
            return None;
        }
        let options = unnest.options();
        let (keeps_nulls, keeps_empty) = (options.preserve_nulls(), options.expand_empty_as_null());
        Some(Self { columns, structures: apart, keeps_nulls, keeps_empty })
    }

    fn levels(&self) -> usize {
        self.columns.iter().map(|(_, depth)| *depth).max().unwrap_or(0)
    }

    /// The columns that are lists at a level; levels count from the innermost.
    fn lists_at(&self, level: usize) -> Vec<usize> {
        (0..self.columns.len()).filter(|at| self.columns[*at].1 >= level).collect()
    }

    /// The input columns in their new order.
    fn begin(&self, scope: &Scope) -> Scope {
        scope.select(&self.columns.iter().map(|(index, _)| *index).collect::<Vec<_>>())
    }

    /// The output columns, over those of `input`.
    fn judge(&self, input: &[ColumnInfo], dictionaries: &mut Dictionaries) -> Result<Vec<ColumnInfo>, Reason> {
        let mut lowering = Lowering::new(input, dictionaries);
        let scope = lowering.scope();
        let mut scope = self.begin(&scope);
        for level in (1..=self.levels()).rev() {
            let lists = self.lists_at(level);
            let mut values = vec![];
            for (at, (name, value)) in scope.columns().enumerate() {
                let value = value.clone()?;
                let value = match lists.contains(&at) {
                    true => {
                        let place = lowering.graph.integer(0, Repr::U32);
                        item(&mut lowering, name, place, &value.data_type, value.dictionary)?
                    }
                    false => value,
                };
                let data_type = value.data_type.clone();
                values.push((name.to_string(), Ok(value), data_type));
            }
            scope = Scope::new(values);
        }
        let scope = self.fields(&mut lowering, &scope)?;
        scope
            .columns()
            .map(|(name, value)| value.as_ref().map_err(Clone::clone).map(|of| lowering.info(name, of)))
            .collect()
    }

    /// The columns, with structures replaced by their fields.
    fn fields(&self, lowering: &mut Lowering<'_>, scope: &Scope) -> Result<Scope, Reason> {
        let mut values = vec![];
        for (at, (name, value)) in scope.columns().enumerate() {
            let own = value.as_ref().map_or(DataType::Null, |value| value.data_type.clone());
            if !self.structures.contains(&at) {
                values.push((name.to_string(), value.clone(), own));
                continue;
            }
            let DataType::Struct(fields) = &own else {
                return Err(type_unsupported(name, &own));
            };
            for (index, field) in fields.iter().enumerate() {
                let structure: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, at));
                if fields.iter().take(index).any(|other| other.name() == field.name()) {
                    return Err(unsupported(&structure, "two of its fields have one name"));
                }
                let expr = field_of(&structure, at, name, &own, field.name())
                    .ok_or_else(|| unsupported(&structure, "it has a field that cannot be taken"))?;
                let value = lowering.lower(&expr, scope)?;
                let data_type = value.data_type.clone();
                values.push((field.name().clone(), Ok(value), data_type));
            }
        }
        Ok(Scope::new(values))
    }
}

/// `get_field` of column `at`, which is a structure.
fn field_of(
    structure: &Arc<dyn PhysicalExpr>,
    at: usize,
    name: &str,
    data_type: &DataType,
    field: &str,
) -> Option<Arc<dyn PhysicalExpr>> {
    let mut fields: Vec<Field> = (0..at).map(|_| Field::new("", DataType::Null, true)).collect();
    fields.push(Field::new(name, data_type.clone(), true));
    let arguments = vec![Arc::clone(structure), lit(field)];
    let call =
        ScalarFunctionExpr::try_new(get_field(), arguments, &Schema::new(fields), Arc::new(ConfigOptions::default()));
    Some(Arc::new(call.ok()?))
}

/// The item at a position among the items of all lists of a dictionary.
fn item(
    lowering: &mut Lowering<'_>,
    name: &str,
    place: NodeId,
    list: &DataType,
    dictionary: Option<DictionaryId>,
) -> Result<Value, Reason> {
    let (Some(data_type), Some(of)) = (item_type(list).cloned(), dictionary) else {
        return Err(type_unsupported(name, list));
    };
    if of.is_of_lists() {
        return Err(Reason::ExprUnsupported { expr: name.to_string(), why: LISTS_ARE_CARRIED.into() });
    }
    lowering.item_at(place, of, &data_type).map_err(|refusal| refusal.named(name))
}

/// A list of a row: its position among the columns, the start of its items, and their number.
struct List {
    at: usize,
    start: NodeId,
    count: NodeId,
}

impl Flat {
    fn list(&self, lowering: &mut Lowering<'_>, at: usize, name: &str, list: &Value) -> Result<List, Reason> {
        let (Some(_), Some(dictionary)) = (item_type(&list.data_type), list.dictionary) else {
            return Err(type_unsupported(name, &list.data_type));
        };
        let ty = Ty::new(Repr::U32);
        let mut look_up = |kind| {
            let table = lowering.lookup_table(LookupTable::Dictionary(Lookup { dictionary, kind, ty }));
            lowering.graph.lookup(list.node, table, ty).map_err(refused)
        };
        let (start, count) = (look_up(LookupKind::Starts)?, look_up(LookupKind::Counts)?);
        Ok(List { at, start, count })
    }

    /// Number of output rows of a row.
    fn rows(&self, lowering: &mut Lowering<'_>, lists: &[List], scope: &Scope) -> Result<NodeId, Reason> {
        let g = &mut lowering.graph;
        let mut counts = vec![];
        for list in lists {
            let of_null = g.integer(i128::from(self.keeps_nulls), Repr::U32);
            let is_there = g.test(Test::IsNotNull, scope.column(list.at)?.node).map_err(refused)?;
            let mut count = g.present(list.count);
            if self.keeps_empty {
                let (zero, one) = (g.integer(0, Repr::U32), g.integer(1, Repr::U32));
                let is_empty = g.compare(Comparison::Equal, count, zero).map_err(refused)?;
                count = g.case(vec![(is_empty, one)], Some(count)).map_err(refused)?;
            }
            counts.push(g.case(vec![(is_there, count)], Some(of_null)).map_err(refused)?);
        }
        match counts.as_slice() {
            [one] => Ok(*one),
            several => g.extreme(several, false).map_err(refused),
        }
    }

    /// Cuts the segment where these lists are flattened.
    fn cut<'d>(
        &self,
        mut open: PieceBuilder<'d>,
        scope: &Scope,
        lists: &[usize],
    ) -> Result<(Cut, PieceBuilder<'d>, Scope), Reason> {
        let mut of_row = vec![];
        for (at, (name, value)) in scope.columns().enumerate() {
            if lists.contains(&at) {
                of_row.push(self.list(&mut open.lowering, at, name, &value.clone()?)?);
            }
        }
        let rows = self.rows(&mut open.lowering, &of_row, scope)?;
        // A single list has an item in each of its rows, unless an empty list gives a row.
        let may_end = of_row.len() > 1 || self.keeps_empty;
        let (mut columns, mut nodes, mut behind) = (vec![], vec![], vec![]);
        for (at, (name, value)) in scope.columns().enumerate() {
            match (value, of_row.iter().find(|list| list.at == at)) {
                (_, Some(list)) => {
                    columns.push(number_column(name, open.lowering.graph.ty(list.start)));
                    nodes.push(list.start);
                }
                (Ok(value), None) => {
                    columns.push(open.lowering.info(name, value));
                    nodes.push(value.node);
                }
                (Err(reason), None) => {
                    // Nothing reads it; a column needs a node all the same, until outputs are restricted.
                    let form = Form::Unsupported(reason.clone());
                    columns.push(ColumnInfo::new(name.to_string(), DataType::Null, form));
                    nodes.push(rows);
                }
            }
        }
        let width = columns.len();
        for list in of_row.iter().filter(|_| may_end) {
            behind.push((list.at, columns.len()));
            columns.push(number_column("items of a list", open.lowering.graph.ty(list.count)));
            nodes.push(list.count);
        }
        let counts = columns.len();
        columns.push(number_column("rows of a row", open.lowering.graph.ty(rows)));
        nodes.push(rows);
        let (piece, dictionaries) = open.close(SinkSpec::Materialise { outputs: nodes });

        let mut next = PieceBuilder::new(&columns, false, true, dictionaries);
        let own = next.lowering.scope();
        let mut values = vec![];
        for (at, (name, value)) in scope.columns().enumerate().take(width) {
            let value = match (value, of_row.iter().any(|list| list.at == at)) {
                (Ok(list), true) => {
                    let ends = behind.iter().find(|(of, _)| *of == at).map(|(_, count)| own.column(*count));
                    let place = place_of(&mut next.lowering, own.column(at)?.node, ends.transpose()?)?;
                    item(&mut next.lowering, name, place, &list.data_type, list.dictionary)
                }
                _ => own.column(at),
            };
            let data_type = value.as_ref().map_or(DataType::Null, |value| value.data_type.clone());
            values.push((name.to_string(), value, data_type));
        }
        Ok((Cut::new(piece, columns, counts), next, Scope::new(values)))
    }
}

/// The position of the current row's item in a list that begins at `start`; NULL beyond its end.
fn place_of(lowering: &mut Lowering<'_>, start: NodeId, count: Option<Value>) -> Result<NodeId, Reason> {
    let g = &mut lowering.graph;
    let ordinal = g.ordinal();
    let place = g.arithmetic(Arithmetic::Add, start, ordinal, Overflow::Wrap).map_err(refused)?;
    let Some(count) = count else { return Ok(place) };
    let is_there = g.compare(Comparison::Less, ordinal, count.node).map_err(refused)?;
    g.case(vec![(is_there, place)], None).map_err(refused)
}

impl Stage for Flat {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason> {
        segment.scope = self.begin(&segment.scope);
        for level in (1..=self.levels()).rev() {
            let lists = self.lists_at(level);
            segment.cut(|piece, scope| self.cut(piece, scope, &lists))?;
        }
        let (lowering, scope) = segment.expressions();
        segment.scope = self.fields(lowering, scope)?;
        Ok(())
    }

    fn leaves_with_others(&self) -> bool {
        true
    }

    fn on_cpu(&self, _batch: &RecordBatch) -> Result<RecordBatch> {
        never_alone(self)
    }
}
