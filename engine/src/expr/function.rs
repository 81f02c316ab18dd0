//! Scalar functions with a form of their own on the device: a row each, found by the name that SQL calls.
//!
//!   substr(…)  ──►  row  ──►  of texts: kernels' table, text.rs · of lists: list.rs
//!                             of numbers: math.rs · of dates and times: time.rs · choices: here
//!
//! Functions that construct lists have a table of their own, in made/read.rs: nothing here reads their results.
//!
//! Any other function of one string column is evaluated on its dictionary; the rest stays on the CPU with a reason.
//! Functions of texts and lists come first: a row of them that has no form for its arguments leaves the call to the
//! checks below. `docs/functions.md` lists all functions, docs/adding/function.md shows how to add one.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::expressions::{Column, Literal as LiteralExpr};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{Overflow, Test, TextFunction};

use crate::column::{is_coded, is_nested, is_wide, plain_repr, value_type};
use crate::expr::arithmetic::WIDE;
use crate::expr::builtin::{is_datafusions_scalar, is_own_scalar};
use crate::expr::checked::is_narrow;
use crate::expr::row::{ANY, Call, Form, Row};
use crate::expr::udf::DeviceFunction;
use crate::expr::{Lowered, Lowering, Refusal, Scope, Value, list, math, refusal, text, time};

/// Choices among values, and their type.
const CHOICES: &[Row] = &[
    Row::new("coalesce", (0, ANY), Form::Plain(|lowering, call| lowering.coalesce(call))).halves().wide(),
    Row::new("nullif", (2, 2), Form::Plain(|lowering, call| lowering.null_if(call))).halves(),
    Row::new("greatest", (0, ANY), Form::Plain(|lowering, call| lowering.extreme(call, false))).halves(),
    Row::new("least", (0, ANY), Form::Plain(|lowering, call| lowering.extreme(call, true))).halves(),
    Row::new("arrow_typeof", (1, 1), Form::Plain(|lowering, call| lowering.name_of_type(call))).halves().wide(),
];

/// All rows.
fn rows() -> impl Iterator<Item = Row> {
    let texts = TextFunction::NAMED.into_iter().filter_map(|function| {
        let spec = function.spec();
        let arguments = spec.arguments();
        Some(Row::new(spec.sql?, (*arguments.start(), *arguments.end()), Form::Texts(function)))
    });
    let own = [text::TEXTS, list::LISTS, math::NUMBERS, time::TIMES, CHOICES];
    texts.chain(own.into_iter().flatten().copied())
}

/// The row of a function with this number of arguments.
pub(super) fn row(name: &str, arguments: usize) -> Option<&'static Row> {
    static ROWS: LazyLock<HashMap<&'static str, Row>> = LazyLock::new(|| rows().map(|row| (row.name, row)).collect());
    ROWS.get(name).filter(|row| (row.arguments.0..=row.arguments.1).contains(&arguments))
}

impl Lowering<'_> {
    pub(super) fn function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        data_type: &DataType,
        scope: &Scope,
    ) -> Lowered<Value> {
        let arguments = function.args();
        if let Some(registered) = DeviceFunction::of(function.fun()) {
            let node = self.registered(expr, registered, arguments, data_type, scope)?;
            return Ok(Value { node, data_type: data_type.clone(), dictionary: None });
        }
        let name = function.fun().name();
        if !is_own_scalar(function.fun()) {
            return Err(refusal(format!("{name} is a function of the session's own, not DataFusion's")));
        }
        let call = Call { expr, function, arguments, data_type, scope };
        let row = row(name, arguments.len());
        let form = row.map(|row| row.form);
        let value = match form {
            Some(Form::Texts(function)) => self.text_function(function, &call)?,
            Some(Form::Text(lower)) => lower(self, &call)?,
            Some(Form::List(lower)) if is_datafusions_scalar(function.fun()) => lower(self, &call)?,
            _ if is_datafusions_scalar(function.fun()) => self.of_item(&call)?,
            _ => None,
        };
        if let Some(value) = value {
            return Ok(value);
        }
        if is_narrow(function.fun()) {
            return self.narrowed(&call);
        }
        let wide = |argument| self.type_of(argument, scope).is_ok_and(|own| is_wide(&own));
        if row.is_none_or(|row| !row.wide) && (is_wide(data_type) || arguments.iter().any(wide)) {
            return Err(refusal(WIDE));
        }
        let half = |argument| self.type_of(argument, scope).is_ok_and(|own| *value_type(&own) == DataType::Float16);
        if row.is_none_or(|row| !row.halves) && (*data_type == DataType::Float16 || arguments.iter().any(half)) {
            return Err(refusal(
                "floats of 16 bits are computed in 32 bits, and it is not known to round as DataFusion's",
            ));
        }
        let value = match form {
            Some(Form::Numbers(build)) => self.of_numbers(build, &call)?,
            Some(Form::Plain(lower)) => lower(self, &call)?,
            _ => None,
        };
        let value = value.ok_or_else(|| self.not_lowered(&call))?;
        // The node has the representation of the function's SQL type.
        let repr = self.graph.ty(value.node).repr;
        match plain_repr(data_type) {
            Some(expected) if expected != repr => {
                Err(refusal(format!("it gives {data_type}, and the device {repr:?}")))
            }
            _ => Ok(value),
        }
    }

    /// The first argument that is not NULL.
    fn coalesce(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let all: Vec<&Arc<dyn PhysicalExpr>> = call.arguments.iter().collect();
        let (nodes, dictionary) = self.results(&all, call.data_type, call.scope)?;
        let node = self.graph.coalesce(&nodes)?;
        Ok(Some(Value { node, data_type: call.data_type.clone(), dictionary }))
    }

    /// NULL if both arguments are equal, else the first.
    fn null_if(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [a, b] = call.arguments else { return Ok(None) };
        if is_nested(call.data_type) {
            return Ok(None);
        }
        let (nodes, dictionary) = self.results(&[a, b], call.data_type, call.scope)?;
        let node = self.graph.null_if(nodes[0], nodes[1])?;
        Ok(Some(Value { node, data_type: call.data_type.clone(), dictionary }))
    }

    /// Narrows a sum of 128 bits to 64; an error if it does not fit.
    fn narrowed(&mut self, call: &Call<'_>) -> Lowered<Value> {
        let (Some(repr), [sum]) = (plain_repr(call.data_type), call.arguments) else {
            return Err(refusal("a sum has one type of 64 bits"));
        };
        let sum = self.lower(sum, call.scope)?.node;
        let node = self.graph.convert(sum, repr, Overflow::Fail)?;
        Ok(Value { node, data_type: call.data_type.clone(), dictionary: None })
    }

    /// A string that names the type of an argument, equal in every row; errors of the argument are still raised.
    fn name_of_type(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [of] = call.arguments else { return Ok(None) };
        let name = ScalarValue::from(self.type_of(of, call.scope)?.to_string());
        let name = self.literal(&name)?;
        if of.is::<Column>() {
            return Ok(Some(name));
        }
        let of = self.lower(of, call.scope)?;
        let is_null = self.graph.test(Test::IsNull, of.node)?;
        let node = self.graph.case(vec![(is_null, name.node)], Some(name.node))?;
        Ok(Some(Value { node, ..name }))
    }

    /// Why a function has no form. A function of strings would have one by a dictionary, if it read one column.
    fn not_lowered(&self, call: &Call<'_>) -> Refusal {
        let name = call.name();
        let any = |of: fn(&DataType) -> bool| {
            let is = |argument: &Arc<dyn PhysicalExpr>| self.type_of(argument, call.scope).is_ok_and(|own| of(&own));
            call.arguments.iter().any(|argument| !argument.is::<LiteralExpr>() && is(argument))
        };
        refusal(match any(is_coded) {
            true if any(is_nested) => {
                format!("{name} is evaluated on the dictionary of one column, and it reads several")
            }
            true => format!("{name} is evaluated on the dictionary of one string column, and this is none"),
            false => format!("function {name} is not lowered"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::made::constructed;

    #[test]
    fn each_name_is_one_row_of_one_table() {
        let mut names: Vec<&str> = rows().map(|row| row.name).chain(constructed()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
