//! Functions of numbers.
//!
//!   round(d, 1)   DECIMAL(9, 2) → DECIMAL(9, 1)      the digits are a literal: they decide the type
//!   power(x, y)   zero to a negative power fails     as on the CPU
//!
//! Floats   compiled functions, within two units of the last place of the exact result (`kernels/cuda/math.cu`).
//! Errors   of the CPU raise the error flag: roots of negative numbers, factorials beyond 20, decimals that overflow.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal as LiteralExpr;
use millpond_kernels::codegen::Math;
use millpond_kernels::codegen::ir::{FloatFunction, Graph, GraphError, Literal, NodeId, Overflow, Repr, Ty};

use crate::column::{is_string, plain_repr, scalar_integer, value_type};
use crate::error::reason::Reason;
use crate::expr::cast::{decimal_type, same_representation};
use crate::expr::{Lowering, Scope, refused, unsupported};

/// A literal number of digits.
enum Digits {
    Null,
    Places(i64),
}

impl Lowering<'_> {
    /// A function of numbers, if `name` has a device form.
    pub(super) fn math_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        name: &str,
        arguments: &[Arc<dyn PhysicalExpr>],
        data_type: &DataType,
        scope: &Scope,
    ) -> Result<Option<NodeId>, Reason> {
        let repr = plain_repr(data_type);
        Ok(Some(match (name, arguments) {
            ("abs", [of]) => {
                let of = self.lower(of, scope)?;
                // The lowest integer has no absolute value, and that is an error; decimals wrap.
                let overflow = if value_type(&of.data_type).is_decimal() { Overflow::Wrap } else { Overflow::Fail };
                let size = self.graph.absolute(of.node, overflow).map_err(|e| refused(expr, &e))?;
                match value_type(&of.data_type) {
                    // Via 32 bits, which makes a NaN quiet.
                    DataType::Float16 => self.graph.float_function(FloatFunction::Narrow, size),
                    _ => Ok(size),
                }
                .map_err(|e| refused(expr, &e))?
            }
            ("round", [of]) => self.rounded(expr, of, Digits::Places(0), data_type, scope)?,
            ("round", [of, digits]) => {
                let digits = places(expr, digits)?;
                self.rounded(expr, of, digits, data_type, scope)?
            }
            ("trunc", [of]) => self.truncated(expr, of, None, scope)?,
            ("trunc", [of, digits]) => {
                let digits = places(expr, digits)?;
                self.truncated(expr, of, Some(digits), scope)?
            }
            ("floor" | "ceil", [of]) => {
                let of = self.lower(of, scope)?;
                let up = name == "ceil";
                let node = match decimal_type(&of.data_type) {
                    Some(decimal) => self.graph.floor_decimal(of.node, decimal, up),
                    None => {
                        let function = if up { FloatFunction::Ceil } else { FloatFunction::Floor };
                        self.graph.float_function(function, of.node)
                    }
                };
                node.map_err(|e| refused(expr, &e))?
            }
            ("log", [of]) => {
                let of = self.logarithm_argument(expr, of, scope)?;
                let repr = self.graph.ty(of).repr;
                let ten = self.graph.float(10.0, repr);
                self.graph.logarithm(ten, of).map_err(|e| refused(expr, &e))?
            }
            ("log", [base, of]) => {
                let of = self.logarithm_argument(expr, of, scope)?;
                let base = self.logarithm_argument(expr, base, scope)?;
                let repr = self.graph.ty(of).repr;
                let base = self.graph.convert(base, repr, Overflow::Wrap).map_err(|e| refused(expr, &e))?;
                self.graph.logarithm(base, of).map_err(|e| refused(expr, &e))?
            }
            ("power" | "atan2" | "nanvl" | "gcd" | "lcm", [a, b]) => {
                let (a, b) = (self.number(expr, a, repr, scope)?, self.number(expr, b, repr, scope)?);
                let node = function_of_numbers(&mut self.graph, name, &[a, b]);
                let node = node.ok_or_else(|| unsupported(expr, "it is not lowered"))?;
                node.map_err(|e| refused(expr, &e))?
            }
            ("isnan" | "iszero", [of]) => {
                let of = self.lower(of, scope)?;
                let node = if name == "isnan" { self.graph.is_nan(of.node) } else { self.graph.is_zero(of.node) };
                node.map_err(|e| refused(expr, &e))?
            }
            (_, [of]) => {
                let Some(function) = unary(name) else { return Ok(None) };
                let of = self.number(expr, of, repr, scope)?;
                function(&mut self.graph, of).map_err(|e| refused(expr, &e))?
            }
            _ => return Ok(None),
        }))
    }

    /// An argument as a node of the function's own type.
    fn number(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        argument: &Arc<dyn PhysicalExpr>,
        repr: Option<Repr>,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        let Some(repr) = repr else { return Err(unsupported(expr, "its result has no device form")) };
        if argument.downcast_ref::<LiteralExpr>().is_some_and(|literal| literal.value().is_null()) {
            return Ok(self.graph.null(repr));
        }
        let of = self.lower(argument, scope)?;
        if value_type(&of.data_type).is_decimal() || self.graph.ty(of.node).repr != repr {
            return Err(unsupported(expr, &format!("it has no device form over {}", of.data_type)));
        }
        Ok(of.node)
    }

    /// The argument of a logarithm as a float; of a decimal, its value.
    fn logarithm_argument(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        argument: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        let of = self.lower(argument, scope)?;
        match decimal_type(&of.data_type) {
            Some(decimal) => self.graph.decimal_to_float(of.node, decimal, Repr::F64).map_err(|e| refused(expr, &e)),
            None if of.data_type.is_floating() => Ok(of.node),
            None => Err(unsupported(expr, &format!("it has no device form over {}", of.data_type))),
        }
    }

    fn rounded(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        digits: Digits,
        data_type: &DataType,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        let of = self.lower(of, scope)?;
        let places = match digits {
            Digits::Null => return self.null_of(expr, data_type),
            Digits::Places(places) => i32::try_from(places),
        };
        let places = places.map_err(|_| unsupported(expr, "so many digits have no device form"))?;
        let node = match (decimal_type(&of.data_type), decimal_type(data_type)) {
            (Some(from), Some(to)) => self.graph.round_decimal(of.node, from, to, places),
            _ if of.data_type.is_integer() && places >= 0 => Ok(of.node),
            _ if of.data_type.is_integer() => self.graph.round_integer(of.node, places.unsigned_abs()),
            _ if of.data_type.is_floating() => {
                let factor = 10_f64.powi(places);
                let factor = self.factor(expr, of.node, factor, factor as f32)?;
                self.graph.scaled(FloatFunction::Round, of.node, factor)
            }
            _ => return Err(unsupported(expr, &format!("it has no device form over {}", of.data_type))),
        };
        node.map_err(|e| refused(expr, &e))
    }

    fn truncated(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        digits: Option<Digits>,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        let of = self.lower(of, scope)?;
        let places = match digits {
            Some(Digits::Null) => return self.null_of(expr, &of.data_type),
            Some(Digits::Places(places)) => Some(places),
            None => None,
        };
        let node = match (decimal_type(&of.data_type), places) {
            (Some(decimal), places) => self.graph.truncate_decimal(of.node, decimal, places.unwrap_or(0)),
            (None, Some(places)) if of.data_type.is_floating() => {
                let places = places as i32;
                let factor = self.factor(expr, of.node, 10_f64.powi(places), 10_f32.powi(places))?;
                self.graph.scaled(FloatFunction::Truncate, of.node, factor)
            }
            (None, None) if of.data_type.is_floating() => self.graph.truncate(of.node),
            _ => return Err(unsupported(expr, &format!("it has no device form over {}", of.data_type))),
        };
        node.map_err(|e| refused(expr, &e))
    }

    /// The power of ten for a number of digits, as a parameter with the width of `of`.
    fn factor(&mut self, expr: &Arc<dyn PhysicalExpr>, of: NodeId, double: f64, single: f32) -> Result<NodeId, Reason> {
        let repr = self.graph.ty(of).repr;
        let literal = if repr == Repr::F32 { Literal::F32(single) } else { Literal::F64(double) };
        let finite = if repr == Repr::F32 { single.is_finite() } else { double.is_finite() };
        if !finite {
            return Err(unsupported(expr, "so many digits have no device form"));
        }
        Ok(self.slot(Ty::new(repr), literal))
    }

    /// NULL of a type.
    pub(super) fn null_of(&mut self, expr: &Arc<dyn PhysicalExpr>, data_type: &DataType) -> Result<NodeId, Reason> {
        let repr = plain_repr(data_type).ok_or_else(|| unsupported(expr, "its type has no device form"))?;
        Ok(self.graph.null(repr))
    }

    /// The largest or the smallest of several values.
    pub(super) fn extreme(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        arguments: &[Arc<dyn PhysicalExpr>],
        least: bool,
        data_type: &DataType,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        if is_string(data_type) {
            return self.extreme_text(expr, arguments, least, data_type, scope);
        }
        let mut nodes = Vec::with_capacity(arguments.len());
        for argument in arguments {
            if argument.downcast_ref::<LiteralExpr>().is_some_and(|literal| literal.value().is_null()) {
                nodes.push(self.null_of(expr, data_type)?);
                continue;
            }
            let value = self.lower(argument, scope)?;
            if value.dictionary.is_some() || !same_representation(&value.data_type, data_type) {
                return Err(unsupported(expr, &format!("it mixes {} and {data_type}", value.data_type)));
            }
            nodes.push(value.node);
        }
        self.graph.extreme(&nodes, least).map_err(|e| refused(expr, &e))
    }
}

/// A function of numbers of one representation, by its SQL name; `None` for other names.
pub(super) fn function_of_numbers(
    graph: &mut Graph,
    name: &str,
    arguments: &[NodeId],
) -> Option<Result<NodeId, GraphError>> {
    Some(match (name, arguments) {
        ("power", &[a, b]) => graph.power(a, b),
        ("atan2", &[a, b]) => graph.math(Math::Atan2, &[a, b]),
        ("nanvl", &[a, b]) => graph.nan_or(a, b),
        ("log", &[a, b]) => graph.logarithm(a, b),
        ("gcd", &[a, b]) => graph.gcd(a, b),
        ("lcm", &[a, b]) => graph.lcm(a, b),
        ("abs", &[of]) => graph.absolute(of, Overflow::Fail),
        ("floor", &[of]) => graph.float_function(FloatFunction::Floor, of),
        ("ceil", &[of]) => graph.float_function(FloatFunction::Ceil, of),
        ("round", &[of]) => graph.float_function(FloatFunction::Round, of),
        ("trunc", &[of]) => graph.truncate(of),
        (name, &[of]) => unary(name)?(graph, of),
        _ => return None,
    })
}

/// Builder of a float function from its argument.
type Build = fn(&mut Graph, NodeId) -> Result<NodeId, GraphError>;

/// Functions of one float (one integer for `factorial`), by name.
fn unary(name: &str) -> Option<Build> {
    Some(match name {
        "acos" => |graph, of| graph.math(Math::Acos, &[of]),
        "acosh" => |graph, of| graph.inverse_cosh(of),
        "asin" => |graph, of| graph.math(Math::Asin, &[of]),
        "asinh" => |graph, of| graph.inverse_sinh(of),
        "atan" => |graph, of| graph.math(Math::Atan, &[of]),
        "atanh" => |graph, of| graph.inverse_tanh(of),
        "cbrt" => |graph, of| graph.math(Math::Cbrt, &[of]),
        "cos" => |graph, of| graph.math(Math::Cos, &[of]),
        "cosh" => |graph, of| graph.math(Math::Cosh, &[of]),
        "cot" => |graph, of| graph.cotangent(of),
        "degrees" => |graph, of| {
            let single = graph.ty(of).repr == Repr::F32;
            graph.times(of, if single { f64::from(1_f32.to_degrees()) } else { 1_f64.to_degrees() })
        },
        "exp" => |graph, of| graph.math(Math::Exp, &[of]),
        "factorial" => |graph, of| graph.factorial(of),
        "ln" => |graph, of| graph.math(Math::Ln, &[of]),
        "log10" => |graph, of| graph.math(Math::Log10, &[of]),
        "log2" => |graph, of| graph.math(Math::Log2, &[of]),
        "radians" => |graph, of| {
            let single = graph.ty(of).repr == Repr::F32;
            graph.times(of, if single { f64::from(1_f32.to_radians()) } else { 1_f64.to_radians() })
        },
        "signum" => |graph, of| graph.signum(of),
        "sin" => |graph, of| graph.math(Math::Sin, &[of]),
        "sinh" => |graph, of| graph.math(Math::Sinh, &[of]),
        "sqrt" => |graph, of| graph.square_root(of),
        "tan" => |graph, of| graph.math(Math::Tan, &[of]),
        "tanh" => |graph, of| graph.math(Math::Tanh, &[of]),
        _ => return None,
    })
}

/// Number of digits from a literal.
fn places(expr: &Arc<dyn PhysicalExpr>, digits: &Arc<dyn PhysicalExpr>) -> Result<Digits, Reason> {
    let Some(literal) = digits.downcast_ref::<LiteralExpr>() else {
        return Err(unsupported(expr, "a number of digits from a column has no device form"));
    };
    if literal.value().is_null() {
        return Ok(Digits::Null);
    }
    let number = scalar_integer(literal.value()).and_then(|number| i64::try_from(number).ok());
    number.map(Digits::Places).ok_or_else(|| unsupported(expr, "its number of digits is no integer"))
}
