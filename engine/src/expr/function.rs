//! Scalar functions with a form of their own on the device.
//!
//!   numbers: math.rs · dates and times: time.rs · registered ones: udf.rs
//!   coalesce, nullif, greatest, least, arrow_typeof: here
//!
//! Any other function of one string column is evaluated on its dictionary; the rest stays on the CPU with a reason.
//! `docs/functions.md` lists all of them.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::expressions::{Column, Literal as LiteralExpr};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{NodeId, Overflow, Test};

use crate::column::{is_coded, is_nested, is_wide, plain_repr, value_type};
use crate::error::reason::Reason;
use crate::expr::arithmetic::WIDE;
use crate::expr::checked::is_narrow;
use crate::expr::udf::DeviceFunction;
use crate::expr::{Lowering, Scope, Value, refused, unsupported};

/// Functions that choose among floats, or inspect their bits: 16 bits give the same result as 32.
const OF_HALVES: [&str; 9] =
    ["coalesce", "nullif", "greatest", "least", "arrow_typeof", "abs", "nanvl", "isnan", "iszero"];

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
        if let Some(registered) = DeviceFunction::of(function.fun()) {
            let node = self.registered(expr, registered, arguments, &data_type, scope)?;
            return Ok(Value { node, data_type, dictionary: None });
        }
        if is_narrow(function.fun()) {
            return self.narrowed(expr, arguments, data_type, scope);
        }
        let wide = |argument| self.type_of(argument, scope).is_ok_and(|own| is_wide(&own));
        if !matches!(name.as_str(), "coalesce" | "arrow_typeof") && (is_wide(&data_type) || arguments.iter().any(wide))
        {
            return Err(unsupported(expr, WIDE));
        }
        let half = |argument| self.type_of(argument, scope).is_ok_and(|own| *value_type(&own) == DataType::Float16);
        if !OF_HALVES.contains(&name.as_str()) && (data_type == DataType::Float16 || arguments.iter().any(half)) {
            return Err(unsupported(
                expr,
                "floats of 16 bits are computed in 32 bits, and it is not known to round as DataFusion's",
            ));
        }
        let (node, dictionary) = match (name.as_str(), arguments) {
            ("coalesce", all) => {
                let all: Vec<&Arc<dyn PhysicalExpr>> = all.iter().collect();
                let (nodes, dictionary) = self.results(expr, &all, &data_type, scope)?;
                (self.graph.coalesce(&nodes).map_err(|e| refused(expr, &e))?, dictionary)
            }
            ("nullif", [a, b]) if !is_nested(&data_type) => {
                let (nodes, dictionary) = self.results(expr, &[a, b], &data_type, scope)?;
                (self.graph.null_if(nodes[0], nodes[1]).map_err(|e| refused(expr, &e))?, dictionary)
            }
            ("arrow_typeof", [of]) => return self.name_of_type(expr, of, scope),
            ("greatest" | "least", all) => (self.extreme(expr, all, name == "least", &data_type, scope)?, None),
            _ => {
                let node = match self.math_function(expr, &name, arguments, &data_type, scope)? {
                    Some(node) => Some(node),
                    None => self.time_function(expr, &name, arguments, &data_type, scope)?,
                };
                (node.ok_or_else(|| self.not_lowered(expr, &name, arguments, scope))?, None)
            }
        };
        self.typed(expr, node, &data_type)?;
        Ok(Value { node, data_type, dictionary })
    }

    /// Narrows a sum of 128 bits to 64; an error if it does not fit.
    fn narrowed(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        arguments: &[Arc<dyn PhysicalExpr>],
        data_type: DataType,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        let (Some(repr), [sum]) = (plain_repr(&data_type), arguments) else {
            return Err(unsupported(expr, "a sum has one type of 64 bits"));
        };
        let sum = self.lower(sum, scope)?.node;
        let node = self.graph.convert(sum, repr, Overflow::Fail).map_err(|e| refused(expr, &e))?;
        Ok(Value { node, data_type, dictionary: None })
    }

    /// A string that names the type of `of`, equal in every row; errors of `of` are still raised.
    fn name_of_type(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        let name = ScalarValue::from(self.type_of(of, scope)?.to_string());
        let name = self.literal(expr, &name)?;
        if of.is::<Column>() {
            return Ok(name);
        }
        let of = self.lower(of, scope)?;
        let is_null = self.graph.test(Test::IsNull, of.node).map_err(|e| refused(expr, &e))?;
        let node = self.graph.case(vec![(is_null, name.node)], Some(name.node)).map_err(|e| refused(expr, &e))?;
        Ok(Value { node, ..name })
    }

    /// Reason why a function has no form. A function of strings would have one by a dictionary, if it read one column.
    fn not_lowered(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        name: &str,
        arguments: &[Arc<dyn PhysicalExpr>],
        scope: &Scope,
    ) -> Reason {
        let any = |of: fn(&DataType) -> bool| {
            let is = |argument: &Arc<dyn PhysicalExpr>| self.type_of(argument, scope).is_ok_and(|own| of(&own));
            arguments.iter().any(|argument| !argument.is::<LiteralExpr>() && is(argument))
        };
        unsupported(
            expr,
            &match any(is_coded) {
                true if any(is_nested) => {
                    format!("{name} is evaluated on the dictionary of one column, and it reads several")
                }
                true => format!("{name} is evaluated on the dictionary of one string column, and this is none"),
                false => format!("function {name} is not lowered"),
            },
        )
    }

    /// Checks that the node has the representation of the function's SQL type.
    fn typed(&self, expr: &Arc<dyn PhysicalExpr>, node: NodeId, data_type: &DataType) -> Result<(), Reason> {
        let repr = self.graph.ty(node).repr;
        match crate::column::plain_repr(data_type) {
            Some(expected) if expected != repr => {
                Err(unsupported(expr, &format!("it gives {data_type}, and the device {repr:?}")))
            }
            _ => Ok(()),
        }
    }
}
