//! Lowers nested values: words and the inputs of items as dense columns, and a piece for the items of each value.
//!
//!   last piece     id │ words of a │ words of b │ l: start, count │ x │ item count of a │ …             one per row
//!   beside it      over the rows of these, once for each item: j < count ? items of l[start + j] : x    a list
//!                  over the rows themselves: the fields                                                 a structure

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::expressions::{CastExpr, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{GraphError, Literal as Slot, NodeId, Overflow, Repr, SinkSpec, Ty};

use crate::column::{ColumnInfo, DictionaryId, Form, is_nested};
use crate::error::reason::Reason;
use crate::expr::builtin::{is_datafusions_scalar, is_own_scalar};
use crate::expr::made::Made;
use crate::expr::{Dictionaries, Lowering, Scope, Value, refused, unsupported};
use crate::operator::construct::run::ConstructRun;
use crate::program::contract::{Sink, SinkRun};
use crate::program::lower::{PieceBuilder, SegmentLowering};
use crate::program::piece::{LoweredSink, Piece};

/// Sink for the columns of the projection, some of which are constructed.
#[derive(Debug, Clone)]
pub(super) struct ConstructSink(Arc<Vec<(Arc<dyn PhysicalExpr>, String)>>);

/// A column of the projection.
pub(super) struct Output {
    pub info: ColumnInfo,
    value: Makes,
}

enum Makes {
    /// An existing value.
    Nothing(NodeId),
    List(Box<Made>),
    Structure(Fields),
}

/// A constructed value, in terms of the written columns.
#[derive(Debug, Clone)]
pub(super) struct Making {
    pub id: DictionaryId,
    /// Position of its words.
    pub words: usize,
    pub kind: Kind,
    /// Descriptions of its items.
    pub items: Vec<ColumnInfo>,
}

/// Source of a row's number of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A column of counts.
    Counted {
        counts: usize,
    },
    /// A column of upper bounds; the first column of the items has their rows.
    Filtered {
        counts: usize,
    },
    One,
}

/// Details for the run: one entry for each piece beside the last.
#[derive(Debug, Clone)]
pub(super) struct LoweredConstruct(pub Vec<Making>);

impl ConstructSink {
    pub fn new(columns: Vec<(Arc<dyn PhysicalExpr>, String)>) -> Self {
        Self(Arc::new(columns))
    }

    pub fn columns(&self) -> &[(Arc<dyn PhysicalExpr>, String)] {
        &self.0
    }

    /// The output columns.
    ///
    /// # Errors
    /// Why one of them has no device form.
    pub fn outputs(&self, lowering: &mut Lowering<'_>, scope: &Scope) -> Result<Vec<Output>, Reason> {
        let output = |column: &(Arc<dyn PhysicalExpr>, String)| {
            let (expr, name) = column;
            let why = match lowering.carried(expr, scope) {
                Ok(value) => {
                    return Ok(Output { info: lowering.info(name, &value), value: Makes::Nothing(value.node) });
                }
                Err(why) => why,
            };
            let id = DictionaryId::of_lists(std::ptr::from_ref(column).addr());
            let word = |nullable: bool| Form::Lists(Ty::new(Repr::U64).nullable(nullable), id);
            if let Some(made) = lowering.made(expr, scope)? {
                let form = word(made.present.is_some());
                let info = ColumnInfo::new(name.clone(), made.data_type.clone(), form);
                return Ok(Output { info, value: Makes::List(Box::new(made)) });
            }
            let Some((data_type, fields)) = structure(expr, lowering, scope)? else { return Err(why) };
            let info = ColumnInfo::new(name.clone(), data_type, word(false));
            Ok(Output { info, value: Makes::Structure(fields) })
        };
        self.0.iter().map(output).collect()
    }
}

/// True for a function that constructs a nested value from several columns.
pub(super) fn makes(expr: &Arc<dyn PhysicalExpr>) -> bool {
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        return makes(cast.expr());
    }
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else { return false };
    is_nested(call.return_type()) && is_datafusions_scalar(call.fun()) && collect_columns(expr).len() > 1
        || matches!(call.fun().name(), "make_array" | "struct" | "named_struct" | "range" | "generate_series")
}

/// The fields of a structure with their names.
type Fields = Vec<(String, Value)>;

/// The type and the fields of a structure that a function constructs from the row; `None` for other expressions.
fn structure(
    expr: &Arc<dyn PhysicalExpr>,
    lowering: &mut Lowering<'_>,
    scope: &Scope,
) -> Result<Option<(DataType, Fields)>, Reason> {
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>().filter(|call| is_own_scalar(call.fun())) else {
        return Ok(None);
    };
    let DataType::Struct(fields) = call.return_type() else { return Ok(None) };
    let values: Vec<&Arc<dyn PhysicalExpr>> = match call.fun().name() {
        "named_struct" => call.args().iter().skip(1).step_by(2).collect(),
        "struct" => call.args().iter().collect(),
        _ => return Ok(None),
    };
    if values.len() != fields.len() || values.is_empty() {
        return Err(unsupported(expr, "it has other fields than it says"));
    }
    let mut made = vec![];
    for (field, value) in fields.iter().zip(values) {
        let of = lowering.lower(value, scope)?;
        if of.data_type != *field.data_type() {
            return Err(unsupported(expr, &format!("field {} is of type {}", field.name(), of.data_type)));
        }
        if value.is::<Literal>() && !field.is_nullable() && lowering.graph.ty(of.node).nullable {
            return Err(unsupported(expr, &format!("field {} is NULL", field.name())));
        }
        made.push((field.name().clone(), of));
    }
    Ok(Some((call.return_type().clone(), made)))
}

/// The columns that the last piece writes, while they are collected.
struct Written {
    nodes: Vec<NodeId>,
    columns: Vec<ColumnInfo>,
}

impl Written {
    fn column(&mut self, node: NodeId, info: ColumnInfo) -> usize {
        self.nodes.push(node);
        self.columns.push(info);
        self.nodes.len() - 1
    }

    /// The columns of some values, each written once.
    fn of_values(&mut self, values: &[(NodeId, Value)], lowering: &Lowering<'_>) -> Vec<usize> {
        let mut at = |(node, value): &(NodeId, Value)| {
            let info = lowering.info("part of an item", value);
            let same = |known: usize| self.nodes[known] == *node && self.columns[known].form == info.form;
            (0..self.nodes.len()).find(|known| same(*known)).unwrap_or_else(|| self.column(*node, info))
        };
        values.iter().map(&mut at).collect()
    }
}

impl Sink for ConstructSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let whole = &self.0[0].0;
        let (lowering, scope) = segment.expressions();
        let outputs = self.outputs(lowering, scope)?;
        let mut written = Written { nodes: vec![], columns: vec![] };
        for output in &outputs {
            let node = match &output.value {
                Makes::Nothing(node) => *node,
                Makes::List(made) => blank(lowering, made.present).map_err(|e| refused(whole, &e))?,
                Makes::Structure(_) => blank(lowering, None).map_err(|e| refused(whole, &e))?,
            };
            written.column(node, output.info.clone());
        }
        let leaving = written.columns.clone();
        // Inputs of the items, for all values before the first piece reads them.
        let mut parts = vec![];
        for output in &outputs {
            parts.push(match &output.value {
                Makes::Nothing(_) => (vec![], 0),
                Makes::List(made) => {
                    let counts = counts(lowering, made).map_err(|e| refused(whole, &e))?;
                    let counted = Value { node: counts, data_type: DataType::UInt32, dictionary: None };
                    let counts = written.column(counts, lowering.info("items of a row", &counted));
                    (written.of_values(&made.carried(lowering), lowering), counts)
                }
                Makes::Structure(fields) => {
                    let values: Vec<(NodeId, Value)> = fields.iter().map(|(_, of)| (of.node, of.clone())).collect();
                    (written.of_values(&values, lowering), 0)
                }
            });
        }
        let (mut makings, mut beside) = (vec![], vec![]);
        for (words, (output, (at, counts))) in outputs.iter().zip(parts).enumerate() {
            let Form::Lists(_, id) = output.info.form else { continue };
            let (piece, kind, items) = match &output.value {
                Makes::Nothing(_) => continue,
                Makes::List(made) => {
                    let (piece, items) = list_piece(made, &at, &written.columns, lowering.dictionaries)
                        .map_err(|e| refused(&self.0[words].0, &e))?;
                    let kind = match made.leaves_out() {
                        true => Kind::Filtered { counts },
                        false => Kind::Counted { counts },
                    };
                    (piece, kind, items)
                }
                Makes::Structure(fields) => {
                    let (piece, items) = structure_piece(fields, &at, &written.columns, lowering.dictionaries)?;
                    (piece, Kind::One, items)
                }
            };
            beside.push(piece.pruned());
            makings.push(Making { id, words, kind, items });
        }
        let spec = segment.write(written.nodes);
        Ok(LoweredSink { beside, details: Arc::new(LoweredConstruct(makings)), ..LoweredSink::new(spec, leaving) })
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(ConstructRun)
    }
}

/// A placeholder for a word: NULL if there is no list.
fn blank(lowering: &mut Lowering<'_>, present: Option<NodeId>) -> Result<NodeId, GraphError> {
    // Words have no known range, so that they keep their full width.
    let zero = lowering.slot(Ty::new(Repr::U64), Slot::Int(0));
    match present {
        Some(present) => lowering.graph.case(vec![(present, zero)], None),
        None => Ok(zero),
    }
}

/// Number of items of a row (U32, never NULL).
fn counts(lowering: &mut Lowering<'_>, made: &Made) -> Result<NodeId, GraphError> {
    let g = &mut lowering.graph;
    let zero = g.integer(0, Repr::I64);
    let count = match made.present {
        Some(present) => g.case(vec![(present, made.count)], Some(zero))?,
        None => made.count,
    };
    let count = g.coalesce(&[count, zero])?;
    g.convert(count, Repr::U32, Overflow::Fail)
}

/// The piece for the items of a list, over the written columns; `at` are the positions of its inputs.
fn list_piece(
    made: &Made,
    at: &[usize],
    columns: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<(Piece, Vec<ColumnInfo>), GraphError> {
    let mut piece = PieceBuilder::new(columns, false, true, dictionaries);
    let mut nodes = Vec::with_capacity(at.len());
    for index in at {
        let ty = columns[*index].ty().unwrap_or(Ty::new(Repr::Bool).nullable(true));
        nodes.push(piece.lowering.graph.column(*index as u32, ty));
    }
    let made = made.clone().over(&nodes);
    let ordinal = piece.lowering.graph.ordinal();
    let number = piece.lowering.graph.convert(ordinal, Repr::I64, Overflow::Wrap)?;
    let (item, stays) = made.item(number, &mut piece.lowering)?;
    let items = vec![piece.lowering.info("item", &item)];
    let mut outputs = vec![];
    if let Some(stays) = stays {
        piece.filters.push(stays);
        outputs.push(piece.lowering.graph.source_row());
    }
    outputs.push(item.node);
    Ok((piece.close(SinkSpec::Materialise { outputs }).0, items))
}

/// The piece for the fields of a structure.
fn structure_piece(
    fields: &[(String, Value)],
    at: &[usize],
    columns: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<(Piece, Vec<ColumnInfo>), Reason> {
    let mut piece = PieceBuilder::new(columns, false, false, dictionaries);
    let (mut items, mut outputs) = (vec![], vec![]);
    for ((name, field), index) in fields.iter().zip(at) {
        outputs.push(piece.lowering.graph.column(*index as u32, columns[*index].ty()?));
        items.push(ColumnInfo { name: name.clone(), data_type: field.data_type.clone(), ..columns[*index].clone() });
    }
    Ok((piece.close(SinkSpec::Materialise { outputs }).0, items))
}
