//! Repeats a row for each of a few expressions: UNNEST of lists that are written out.
//!
//!   extent ─┬─ launch 0 ─► payload, first item of each list
//!           ├─ launch 1 ─► payload, second item of each list, NULL if a list has only one
//!           └─ …
//!
//! NULL     a NULL item is a row.
//! Memory   the kept rows: one part for each launch.
//! Waits    never.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::functions_nested::make_array::make_array_udf;
use datafusion::physical_expr::expressions::{CastExpr, Literal, lit};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::{Comparison, Literal as Slot, NodeId, Repr, Ty};

use crate::column::ColumnInfo;
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::expr::builtin::is_own_scalar;
use crate::expr::{Lowering, Scope, Value, refused};
use crate::program::contract::{Sink, SinkRun};
use crate::program::extent::Extent;
use crate::program::lower::SegmentLowering;
use crate::program::part::Kept;
use crate::program::piece::LoweredSink;

/// Maximum items of a list: longer lists stay on the CPU, since each item is a launch.
const MOST_ITEMS: usize = 64;

/// A list that is written out: its items.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Written {
    pub data_type: DataType,
    pub items: Vec<Arc<dyn PhysicalExpr>>,
}

impl Written {
    /// The items of `make_array` or of a constant list; `None` for other lists, and for long and empty ones.
    pub fn of(list: &Arc<dyn PhysicalExpr>) -> Option<Self> {
        let written = match list.downcast_ref::<Literal>() {
            Some(constant) => Self::constant(constant.value())?,
            None => {
                let call = list.downcast_ref::<ScalarFunctionExpr>()?;
                let DataType::List(item) = call.return_type() else { return None };
                let is_own = call.fun() == make_array_udf().as_ref();
                is_own.then(|| Self { data_type: item.data_type().clone(), items: call.args().to_vec() })?
            }
        };
        (1..=MOST_ITEMS).contains(&written.items.len()).then_some(written)
    }

    fn constant(list: &ScalarValue) -> Option<Self> {
        let values = match list {
            ScalarValue::List(list) => list.value(0),
            ScalarValue::LargeList(list) => list.value(0),
            ScalarValue::FixedSizeList(list) => list.value(0),
            _ => return None,
        };
        if list.is_null() || values.len() > MOST_ITEMS {
            return None;
        }
        let item = |index| Some(lit(ScalarValue::try_from_array(&values, index).ok()?));
        let items = (0..values.len()).map(item).collect::<Option<_>>()?;
        Some(Self { data_type: values.data_type().clone(), items })
    }

    /// The fields of items that are all structures written out: names, and the list of each.
    pub fn fields(&self) -> Option<Vec<(String, Self)>> {
        let DataType::Struct(fields) = &self.data_type else { return None };
        let mut lists: Vec<(String, Self)> = vec![];
        for field in fields {
            lists.push((field.name().clone(), Self { data_type: field.data_type().clone(), items: vec![] }));
        }
        for item in &self.items {
            // Structures of other types are cast, field by field.
            let cast = item.downcast_ref::<CastExpr>();
            let call = cast.map_or(item, |cast| cast.expr()).downcast_ref::<ScalarFunctionExpr>()?;
            let is_own = call.fun().name() == "named_struct" && is_own_scalar(call.fun());
            if !is_own || call.args().len() != lists.len() * 2 {
                return None;
            }
            for (pair, (name, list)) in call.args().chunks(2).zip(&mut lists) {
                let own = pair[0].downcast_ref::<Literal>()?.value().try_as_str()??;
                let mut value = (own == name).then(|| Arc::clone(&pair[1]))?;
                if let Some(cast) = cast {
                    let options = Some(cast.cast_options().clone());
                    value = Arc::new(CastExpr::new(value, list.data_type.clone(), options));
                }
                list.items.push(value);
            }
        }
        Some(lists)
    }
}

/// Sink that repeats the rows of the input for each item.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EachSink {
    /// Input columns that are carried, with their names.
    pub payload: Vec<(Arc<dyn PhysicalExpr>, String)>,
    /// Lists with the names of their items; shorter ones end in NULLs.
    pub lists: Vec<(String, Written)>,
}

impl EachSink {
    /// Number of items of the longest list.
    fn most(&self) -> u32 {
        self.lists.iter().map(|(_, list)| list.items.len()).max().unwrap_or(0) as u32
    }

    /// The nodes of payload and items, and the output columns.
    ///
    /// # Errors
    /// Why one of them has no device form.
    pub fn columns(
        &self,
        lowering: &mut Lowering<'_>,
        scope: &Scope,
    ) -> Result<(Vec<NodeId>, Vec<ColumnInfo>), Reason> {
        let (mut nodes, mut outputs) = (vec![], vec![]);
        for (expr, name) in &self.payload {
            let value = lowering.lower(expr, scope)?;
            nodes.push(value.node);
            outputs.push(lowering.info(name, &value));
        }
        for (name, list) in &self.lists {
            let value = self.item(list, lowering, scope)?;
            nodes.push(value.node);
            outputs.push(lowering.info(name, &value));
        }
        Ok((nodes, outputs))
    }

    /// The item for the current launch.
    fn item(&self, list: &Written, lowering: &mut Lowering<'_>, scope: &Scope) -> Result<Value, Reason> {
        let parts: Vec<&Arc<dyn PhysicalExpr>> = list.items.iter().collect();
        let whole = parts[0];
        let (mut nodes, dictionary) =
            lowering.results(&parts, &list.data_type, scope).map_err(|refusal| refusal.of(whole))?;
        let data_type = list.data_type.clone();
        // A list that is as long as the longest needs no comparison for its last item.
        let last = if nodes.len() as u32 == self.most() { nodes.pop() } else { None };
        let number = Ty::new(Repr::U32).within(0, i128::from(self.most()) - 1);
        let mut branches = vec![];
        for (item, node) in nodes.into_iter().enumerate() {
            let (launch, item) =
                (lowering.slot(number, Slot::Variant), lowering.graph.integer(item as i128, Repr::U32));
            let is_it = lowering.graph.compare(Comparison::Equal, launch, item).map_err(|e| refused(whole, &e))?;
            branches.push((is_it, node));
        }
        let node = match (branches.is_empty(), last) {
            (true, Some(only)) => only,
            _ => lowering.graph.case(branches, last).map_err(|e| refused(whole, &e))?,
        };
        Ok(Value { node, data_type, dictionary })
    }
}

impl Sink for EachSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (lowering, scope) = segment.expressions();
        let (nodes, outputs) = self.columns(lowering, scope)?;
        Ok(LoweredSink { variants: self.most(), ..LoweredSink::new(segment.write(nodes), outputs) })
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(EachRun { launches: self.most() })
    }
}

/// Run with several launches over the rows of each extent.
struct EachRun {
    launches: u32,
}

impl SinkRun for EachRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let (segment, lowered) = (extent.segment, &extent.prepared.shape.lowered);
            let mut parts = vec![];
            for launch in 0..self.launches {
                let (part, made) = extent.launch_variant(launch, u64::MAX, true).await?;
                let part = part.arranged(&lowered.outputs, &lowered.at);
                parts.push((Kept::spillable(part, &segment.run.context.engine)?, made));
            }
            // No step fails from here on.
            for (part, made) in parts {
                segment.keep(part);
                segment.keep_new_texts(made);
            }
            Ok(())
        }
        .boxed()
    }
}
