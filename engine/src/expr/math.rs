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
use crate::expr::cast::{decimal_type, same_representation};
use crate::expr::row::{Build, Call, Form, Row};
use crate::expr::{Lowered, Lowering, Refusal, Scope, Value, refusal};

/// A literal number of digits.
enum Digits {
    Null,
    Places(i64),
}

impl Lowering<'_> {
    /// A function of numbers of the result's own type.
    pub(super) fn of_numbers(&mut self, build: Build, call: &Call<'_>) -> Lowered<Option<Value>> {
        let repr = plain_repr(call.data_type);
        let mut nodes = Vec::with_capacity(2);
        for argument in call.arguments {
            nodes.push(self.number(argument, repr, call.scope)?);
        }
        let node = build(&mut self.graph, &nodes)?;
        call.plain(node)
    }

    fn absolute(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let of = self.lower(&call.arguments[0], call.scope)?;
        // The lowest integer has no absolute value, and that is an error; decimals wrap.
        let overflow = if value_type(&of.data_type).is_decimal() { Overflow::Wrap } else { Overflow::Fail };
        let mut size = self.graph.absolute(of.node, overflow)?;
        // Via 32 bits, which makes a NaN quiet.
        if *value_type(&of.data_type) == DataType::Float16 {
            size = self.graph.float_function(FloatFunction::Narrow, size)?;
        }
        call.plain(size)
    }

    fn whole_part(&mut self, call: &Call<'_>, up: bool) -> Lowered<Option<Value>> {
        let of = self.lower(&call.arguments[0], call.scope)?;
        let node = match decimal_type(&of.data_type) {
            Some(decimal) => self.graph.floor_decimal(of.node, decimal, up),
            None => {
                let function = if up { FloatFunction::Ceil } else { FloatFunction::Floor };
                self.graph.float_function(function, of.node)
            }
        };
        call.plain(node?)
    }

    /// `log(of)` or `log(base, of)`.
    fn logarithm(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let (base, of) = match call.arguments {
            [base, of] => (Some(base), of),
            [of, ..] => (None, of),
            [] => return Ok(None),
        };
        let of = self.logarithm_argument(of, call.scope)?;
        let base = base.map(|base| self.logarithm_argument(base, call.scope)).transpose()?;
        let repr = self.graph.ty(of).repr;
        let base = match base {
            Some(base) => self.graph.convert(base, repr, Overflow::Wrap)?,
            None => self.graph.float(10.0, repr),
        };
        let node = self.graph.logarithm(base, of)?;
        call.plain(node)
    }

    /// A test of one float.
    fn float_test(
        &mut self,
        call: &Call<'_>,
        test: fn(&mut Graph, NodeId) -> Result<NodeId, GraphError>,
    ) -> Lowered<Option<Value>> {
        let of = self.lower(&call.arguments[0], call.scope)?;
        let node = test(&mut self.graph, of.node)?;
        call.plain(node)
    }

    /// An argument as a node of the function's own type.
    fn number(&mut self, argument: &Arc<dyn PhysicalExpr>, repr: Option<Repr>, scope: &Scope) -> Lowered<NodeId> {
        let Some(repr) = repr else { return Err(refusal("its result has no device form")) };
        if argument.downcast_ref::<LiteralExpr>().is_some_and(|literal| literal.value().is_null()) {
            return Ok(self.graph.null(repr));
        }
        let of = self.lower(argument, scope)?;
        if value_type(&of.data_type).is_decimal() || self.graph.ty(of.node).repr != repr {
            return Err(refusal(format!("it has no device form over {}", of.data_type)));
        }
        Ok(of.node)
    }

    /// The argument of a logarithm as a float; of a decimal, its value.
    fn logarithm_argument(&mut self, argument: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Lowered<NodeId> {
        let of = self.lower(argument, scope)?;
        match decimal_type(&of.data_type) {
            Some(decimal) => self.graph.decimal_to_float(of.node, decimal, Repr::F64).map_err(Refusal::from),
            None if of.data_type.is_floating() => Ok(of.node),
            None => Err(refusal(format!("it has no device form over {}", of.data_type))),
        }
    }

    /// `round(of[, digits])`.
    fn rounded(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let digits = call.arguments.get(1).map_or(Ok(Digits::Places(0)), places)?;
        let (of, data_type) = (self.lower(&call.arguments[0], call.scope)?, call.data_type);
        let places = match digits {
            Digits::Null => return call.plain(self.null_of(data_type)?),
            Digits::Places(places) => i32::try_from(places),
        };
        let places = places.map_err(|_| refusal("so many digits have no device form"))?;
        let node = match (decimal_type(&of.data_type), decimal_type(data_type)) {
            (Some(from), Some(to)) => self.graph.round_decimal(of.node, from, to, places),
            _ if of.data_type.is_integer() && places >= 0 => Ok(of.node),
            _ if of.data_type.is_integer() => self.graph.round_integer(of.node, places.unsigned_abs()),
            _ if of.data_type.is_floating() => {
                let factor = 10_f64.powi(places);
                let factor = self.factor(of.node, factor, factor as f32)?;
                self.graph.scaled(FloatFunction::Round, of.node, factor)
            }
            _ => return Err(refusal(format!("it has no device form over {}", of.data_type))),
        };
        call.plain(node?)
    }

    /// `trunc(of[, digits])`.
    fn truncated(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let digits = call.arguments.get(1).map(places).transpose()?;
        let of = self.lower(&call.arguments[0], call.scope)?;
        let places = match digits {
            Some(Digits::Null) => return call.plain(self.null_of(&of.data_type)?),
            Some(Digits::Places(places)) => Some(places),
            None => None,
        };
        let node = match (decimal_type(&of.data_type), places) {
            (Some(decimal), places) => self.graph.truncate_decimal(of.node, decimal, places.unwrap_or(0)),
            (None, Some(places)) if of.data_type.is_floating() => {
                let places = places as i32;
                let factor = self.factor(of.node, 10_f64.powi(places), 10_f32.powi(places))?;
                self.graph.scaled(FloatFunction::Truncate, of.node, factor)
            }
            (None, None) if of.data_type.is_floating() => self.graph.truncate(of.node),
            _ => return Err(refusal(format!("it has no device form over {}", of.data_type))),
        };
        call.plain(node?)
    }

    /// The power of ten for a number of digits, as a parameter with the width of `of`.
    fn factor(&mut self, of: NodeId, double: f64, single: f32) -> Lowered<NodeId> {
        let repr = self.graph.ty(of).repr;
        let literal = if repr == Repr::F32 { Literal::F32(single) } else { Literal::F64(double) };
        let finite = if repr == Repr::F32 { single.is_finite() } else { double.is_finite() };
        if !finite {
            return Err(refusal("so many digits have no device form"));
        }
        Ok(self.slot(Ty::new(repr), literal))
    }

    /// NULL of a type.
    pub(super) fn null_of(&mut self, data_type: &DataType) -> Lowered<NodeId> {
        let repr = plain_repr(data_type).ok_or_else(|| refusal("its type has no device form"))?;
        Ok(self.graph.null(repr))
    }

    /// The largest or the smallest of several values.
    pub(super) fn extreme(&mut self, call: &Call<'_>, least: bool) -> Lowered<Option<Value>> {
        let Call { arguments, data_type, scope, .. } = *call;
        if is_string(data_type) {
            let node = self.extreme_text(arguments, least, data_type, scope)?;
            return call.plain(node);
        }
        let mut nodes = Vec::with_capacity(arguments.len());
        for argument in arguments {
            if argument.downcast_ref::<LiteralExpr>().is_some_and(|literal| literal.value().is_null()) {
                nodes.push(self.null_of(data_type)?);
                continue;
            }
            let value = self.lower(argument, scope)?;
            if value.dictionary.is_some() || !same_representation(&value.data_type, data_type) {
                return Err(refusal(format!("it mixes {} and {data_type}", value.data_type)));
            }
            nodes.push(value.node);
        }
        let node = self.graph.extreme(&nodes, least)?;
        call.plain(node)
    }
}

/// Functions of numbers.
pub(super) const NUMBERS: &[Row] = &[
    Row::new("abs", (1, 1), Form::Plain(|lowering, call| lowering.absolute(call)))
        .halves()
        .built(1, |graph, of| graph.absolute(of[0], Overflow::Fail)),
    Row::numbers("acos", 1, |graph, of| graph.math(Math::Acos, of)),
    Row::numbers("acosh", 1, |graph, of| graph.inverse_cosh(of[0])),
    Row::numbers("asin", 1, |graph, of| graph.math(Math::Asin, of)),
    Row::numbers("asinh", 1, |graph, of| graph.inverse_sinh(of[0])),
    Row::numbers("atan", 1, |graph, of| graph.math(Math::Atan, of)),
    Row::numbers("atan2", 2, |graph, of| graph.math(Math::Atan2, of)),
    Row::numbers("atanh", 1, |graph, of| graph.inverse_tanh(of[0])),
    Row::numbers("cbrt", 1, |graph, of| graph.math(Math::Cbrt, of)),
    Row::new("ceil", (1, 1), Form::Plain(|lowering, call| lowering.whole_part(call, true)))
        .built(1, |graph, of| graph.float_function(FloatFunction::Ceil, of[0])),
    Row::numbers("cos", 1, |graph, of| graph.math(Math::Cos, of)),
    Row::numbers("cosh", 1, |graph, of| graph.math(Math::Cosh, of)),
    Row::numbers("cot", 1, |graph, of| graph.cotangent(of[0])),
    Row::numbers("degrees", 1, |graph, of| {
        let single = graph.ty(of[0]).repr == Repr::F32;
        graph.times(of[0], if single { f64::from(1_f32.to_degrees()) } else { 1_f64.to_degrees() })
    }),
    Row::numbers("exp", 1, |graph, of| graph.math(Math::Exp, of)),
    Row::numbers("factorial", 1, |graph, of| graph.factorial(of[0])),
    Row::new("floor", (1, 1), Form::Plain(|lowering, call| lowering.whole_part(call, false)))
        .built(1, |graph, of| graph.float_function(FloatFunction::Floor, of[0])),
    Row::numbers("gcd", 2, |graph, of| graph.gcd(of[0], of[1])),
    Row::new("isnan", (1, 1), Form::Plain(|lowering, call| lowering.float_test(call, Graph::is_nan))).halves(),
    Row::new("iszero", (1, 1), Form::Plain(|lowering, call| lowering.float_test(call, Graph::is_zero))).halves(),
    Row::numbers("lcm", 2, |graph, of| graph.lcm(of[0], of[1])),
    Row::numbers("ln", 1, |graph, of| graph.math(Math::Ln, of)),
    Row::new("log", (1, 2), Form::Plain(|lowering, call| lowering.logarithm(call)))
        .built(2, |graph, of| graph.logarithm(of[0], of[1])),
    Row::numbers("log10", 1, |graph, of| graph.math(Math::Log10, of)),
    Row::numbers("log2", 1, |graph, of| graph.math(Math::Log2, of)),
    Row::numbers("nanvl", 2, |graph, of| graph.nan_or(of[0], of[1])).halves(),
    Row::numbers("power", 2, |graph, of| graph.power(of[0], of[1])),
    Row::numbers("radians", 1, |graph, of| {
        let single = graph.ty(of[0]).repr == Repr::F32;
        graph.times(of[0], if single { f64::from(1_f32.to_radians()) } else { 1_f64.to_radians() })
    }),
    Row::new("round", (1, 2), Form::Plain(|lowering, call| lowering.rounded(call)))
        .built(1, |graph, of| graph.float_function(FloatFunction::Round, of[0])),
    Row::numbers("signum", 1, |graph, of| graph.signum(of[0])),
    Row::numbers("sin", 1, |graph, of| graph.math(Math::Sin, of)),
    Row::numbers("sinh", 1, |graph, of| graph.math(Math::Sinh, of)),
    Row::numbers("sqrt", 1, |graph, of| graph.square_root(of[0])),
    Row::numbers("tan", 1, |graph, of| graph.math(Math::Tan, of)),
    Row::numbers("tanh", 1, |graph, of| graph.math(Math::Tanh, of)),
    Row::new("trunc", (1, 2), Form::Plain(|lowering, call| lowering.truncated(call)))
        .built(1, |graph, of| graph.truncate(of[0])),
];

/// Number of digits from a literal.
fn places(digits: &Arc<dyn PhysicalExpr>) -> Lowered<Digits> {
    let Some(literal) = digits.downcast_ref::<LiteralExpr>() else {
        return Err(refusal("a number of digits from a column has no device form"));
    };
    if literal.value().is_null() {
        return Ok(Digits::Null);
    }
    let number = scalar_integer(literal.value()).and_then(|number| i64::try_from(number).ok());
    number.map(Digits::Places).ok_or_else(|| refusal("its number of digits is no integer"))
}
