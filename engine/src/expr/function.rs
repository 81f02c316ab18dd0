//! Scalar functions with a form of their own on the device.
//!
//!   date_part, date_trunc · coalesce, nullif · abs · sqrt, floor, ceil, round, trunc
//!
//! Any other function of one string column is evaluated on its dictionary; the rest stays on the CPU with a reason.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::expressions::Literal as LiteralExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{Arithmetic, DateGrain, DatePart, FloatFunction, Overflow, TimeUnit};

use super::{Lowering, Scope, Value, refused, unsupported};
use crate::column::time_unit;
use crate::placement::Reason;

impl Lowering<'_> {
    pub(super) fn function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        data_type: DataType,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        let arguments = function.args();
        let name = function.fun().name().to_string();
        let (node, dictionary) = match (name.as_str(), arguments) {
            ("date_part", [part, of]) => {
                let part = text(part).and_then(|text| date_part(&text));
                let part = part.ok_or_else(|| unsupported(expr, "this field has no device form"))?;
                let of = self.lower(of, scope)?;
                let unit = self.calendar_unit(expr, &of)?;
                (self.graph.date_part(part, of.node, unit).map_err(|e| refused(expr, &e))?, None)
            }
            ("date_trunc", [grain, of]) => {
                let grain = text(grain).and_then(|text| date_grain(&text));
                let grain = grain.ok_or_else(|| unsupported(expr, "this grain has no device form"))?;
                let of = self.lower(of, scope)?;
                if of.data_type != data_type {
                    return Err(unsupported(expr, &format!("it gives {data_type} for {}", of.data_type)));
                }
                let unit = self.calendar_unit(expr, &of)?;
                (self.graph.date_truncate(grain, of.node, unit).map_err(|e| refused(expr, &e))?, None)
            }
            ("coalesce", all) => {
                let all: Vec<&Arc<dyn PhysicalExpr>> = all.iter().collect();
                let (nodes, dictionary) = self.results(expr, &all, &data_type, scope)?;
                (self.graph.coalesce(&nodes).map_err(|e| refused(expr, &e))?, dictionary)
            }
            ("nullif", [a, b]) => {
                let (nodes, dictionary) = self.results(expr, &[a, b], &data_type, scope)?;
                (self.graph.null_if(nodes[0], nodes[1]).map_err(|e| refused(expr, &e))?, dictionary)
            }
            ("abs", [of]) => {
                let of = self.lower(of, scope)?;
                // Arrow's abs checks the minimum, whose absolute value does not exist.
                (self.graph.absolute(of.node, Overflow::Fail).map_err(|e| refused(expr, &e))?, None)
            }
            ("sqrt" | "floor" | "ceil" | "round" | "trunc", [of]) => {
                let of = self.lower(of, scope)?;
                if of.data_type != data_type || !data_type.is_floating() {
                    return Err(unsupported(expr, &format!("it has a device form over floats, not {}", of.data_type)));
                }
                let function = match name.as_str() {
                    "sqrt" => FloatFunction::Sqrt,
                    "floor" => FloatFunction::Floor,
                    "ceil" => FloatFunction::Ceil,
                    "round" => FloatFunction::Round,
                    _ => FloatFunction::Truncate,
                };
                let mut node = of.node;
                if function == FloatFunction::Truncate {
                    // DataFusion's trunc of -0.0 is 0.0, although that of -0.5 is -0.0. Adding 0.0 changes nothing else.
                    let repr = self.graph.ty(node).repr;
                    let zero = self.graph.float(0.0, repr);
                    let sum = self.graph.arithmetic(Arithmetic::Add, node, zero, Overflow::Wrap);
                    node = sum.map_err(|e| refused(expr, &e))?;
                }
                (self.graph.float_function(function, node).map_err(|e| refused(expr, &e))?, None)
            }
            _ => return Err(unsupported(expr, &format!("function {name} is not lowered"))),
        };
        self.typed(expr, node, &data_type)?;
        Ok(Value { node, data_type, dictionary })
    }

    /// The function's SQL type must be the one that the node has on the device.
    fn typed(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        node: millpond_kernels::codegen::ir::NodeId,
        data_type: &DataType,
    ) -> Result<(), Reason> {
        let repr = self.graph.ty(node).repr;
        match crate::column::plain_repr(data_type) {
            Some(expected) if expected != repr => {
                Err(unsupported(expr, &format!("it gives {data_type}, and the device {repr:?}")))
            }
            _ => Ok(()),
        }
    }

    fn calendar_unit(&self, expr: &Arc<dyn PhysicalExpr>, of: &Value) -> Result<TimeUnit, Reason> {
        match &of.data_type {
            DataType::Date32 => Ok(TimeUnit::Day),
            DataType::Timestamp(unit, None) => Ok(time_unit(unit)),
            other => Err(unsupported(expr, &format!("fields of {other} have no device form"))),
        }
    }
}

/// A literal string, in lower case.
fn text(expr: &Arc<dyn PhysicalExpr>) -> Option<String> {
    let literal = expr.downcast_ref::<LiteralExpr>()?.value();
    literal.try_as_str().flatten().map(|text| text.trim().trim_matches('\'').to_ascii_lowercase())
}

fn date_part(name: &str) -> Option<DatePart> {
    Some(match name {
        "year" => DatePart::Year,
        "isoyear" => DatePart::IsoYear,
        "quarter" => DatePart::Quarter,
        "month" => DatePart::Month,
        "week" => DatePart::Week,
        "day" => DatePart::Day,
        "doy" => DatePart::DayOfYear,
        "dow" => DatePart::DayOfWeek,
        "isodow" => DatePart::IsoDayOfWeek,
        "hour" => DatePart::Hour,
        "minute" => DatePart::Minute,
        "second" => DatePart::Second,
        "millisecond" => DatePart::Millisecond,
        "microsecond" => DatePart::Microsecond,
        "nanosecond" => DatePart::Nanosecond,
        "epoch" => DatePart::Epoch,
        _ => return None,
    })
}

fn date_grain(name: &str) -> Option<DateGrain> {
    Some(match name {
        "microsecond" => DateGrain::Microsecond,
        "millisecond" => DateGrain::Millisecond,
        "second" => DateGrain::Second,
        "minute" => DateGrain::Minute,
        "hour" => DateGrain::Hour,
        "day" => DateGrain::Day,
        "week" => DateGrain::Week,
        "month" => DateGrain::Month,
        "quarter" => DateGrain::Quarter,
        "year" => DateGrain::Year,
        _ => return None,
    })
}
