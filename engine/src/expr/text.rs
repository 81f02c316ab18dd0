//! Strings without a dictionary: comparisons, LIKE, searches, lengths and parts, on the device itself.
//!
//!   o_comment NOT LIKE '%special%requests%'   ──►  not(like(column, constant))       % and _ as bytes that no text has
//!   substr(c_phone, 1, 2) IN ('13', '31')     ──►  in_list(substring(column, 1, 2), constants)
//!   coalesce(p_name, p_type)                  ──►  p_type's codes become texts by a table of its dictionary's values
//!
//! Constants  are tables of texts: another constant has the same structure, and needs no new compilation.
//! Bytes      functions return parts of existing texts, or new ones in an arena of the launch.
//! Cases      of letters beyond ASCII use a table; if a letter becomes longer, or depends on its neighbors, the CPU
//!            takes over.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{InListExpr, LikeExpr, Literal as LiteralExpr};
use millpond_kernels::codegen::ir::{
    ANY_CHARACTERS, Arithmetic, Comparison, Node, NodeId, ONE_CHARACTER, Overflow, Repr, TextFunction, Ty,
};
use millpond_kernels::codegen::text_function::{Filler, Takes};
use millpond_kernels::text::case_table;

use crate::column::{is_characters, is_string, plain_repr, value_type};
use crate::expr::cast::same_strings;
use crate::expr::dictionary::{Dictionary, Lookup, LookupKind, StringPart};
use crate::expr::pattern::{PatternExpr, coded};
use crate::expr::regex::of_ilike;
use crate::expr::row::{Call, Form, Row};
use crate::expr::{Lowered, Lowering, Refusal, Scope, Value, refusal};

/// Functions of texts that are more than a row of the kernels' table.
pub(super) const TEXTS: &[Row] = &[
    Row::new("bit_length", (1, 1), Form::Text(|lowering, call| lowering.bit_length(call))),
    Row::new("overlay", (3, 4), Form::Text(|lowering, call| lowering.overlay(call))),
    Row::new("regexp_like", (2, 3), Form::Text(|lowering, call| lowering.regex_like(call))),
    Row::new("regexp_count", (2, 4), Form::Text(|lowering, call| lowering.regex_number(call, false))),
    Row::new("regexp_instr", (2, 6), Form::Text(|lowering, call| lowering.regex_number(call, true))),
    Row::new("regexp_replace", (3, 4), Form::Text(|lowering, call| lowering.regex_replace(call))),
];

/// Maximum strings of an IN list without a dictionary: each is a comparison.
const MOST_LISTED: usize = 64;

impl Lowering<'_> {
    pub(crate) fn is_text(&self, value: &Value) -> bool {
        self.graph.ty(value.node).repr == Repr::Text
    }

    /// A string as a text; codes are looked up.
    ///
    /// # Errors
    /// Why its codes have no texts.
    pub fn as_text(&mut self, value: &Value) -> Lowered<NodeId> {
        if self.is_text(value) {
            return Ok(value.node);
        }
        let Some(id) = value.dictionary.filter(|_| is_string(&value.data_type)) else {
            return Err(refusal("it mixes strings and other values"));
        };
        let nulls = matches!(
            self.dictionaries.get(id),
            Some(Dictionary::Constants { values, .. }) if values.iter().any(ScalarValue::is_null)
        );
        let ty = Ty::new(Repr::Text).nullable(nulls);
        let table = self.table(Lookup { dictionary: id, kind: LookupKind::Text, ty });
        Ok(self.graph.lookup(value.node, table, ty)?)
    }

    /// Constant texts, as entries of one table.
    fn constant_texts(&mut self, values: Vec<ScalarValue>, data_type: DataType) -> Lowered<Vec<NodeId>> {
        let count = values.len();
        let dictionary = self.dictionaries.constants(data_type, values);
        let ty = Ty::new(Repr::Text);
        let table = self.table(Lookup { dictionary, kind: LookupKind::Text, ty });
        let mut nodes = Vec::with_capacity(count);
        for code in 0..count {
            let code = self.graph.integer(code as i128, Repr::U32);
            nodes.push(self.graph.lookup(code, table, ty)?);
        }
        Ok(nodes)
    }

    pub(super) fn constant_bytes(&mut self, bytes: Vec<u8>) -> Lowered<NodeId> {
        let nodes = self.constant_texts(vec![ScalarValue::Binary(Some(bytes))], DataType::Binary)?;
        nodes.first().copied().ok_or_else(|| refusal("a constant without a value"))
    }

    /// Two strings as texts; at least one of them is a text already.
    pub(super) fn both_texts(&mut self, a: Value, b: Value) -> Lowered<(Value, Value)> {
        if !same_strings(&a.data_type, &b.data_type) {
            return Err(refusal(format!("it compares {} with {}", a.data_type, b.data_type)));
        }
        let nodes = (self.as_text(&a)?, self.as_text(&b)?);
        Ok((Value { node: nodes.0, dictionary: None, ..a }, Value { node: nodes.1, dictionary: None, ..b }))
    }

    /// Several strings as texts, if one of them is a text already.
    pub(super) fn texts(&mut self, parts: &[StringPart], data_type: &DataType) -> Lowered<Option<Vec<NodeId>>> {
        let text = |part: &StringPart| matches!(part, StringPart::Value(value) if self.is_text(value));
        if !parts.iter().any(text) {
            return Ok(None);
        }
        let mut nodes = Vec::with_capacity(parts.len());
        for part in parts {
            nodes.push(match part {
                StringPart::Constant(value) if value.is_null() => self.graph.null(Repr::Text),
                StringPart::Constant(value) => {
                    let value = value.cast_to(data_type).map_err(|e| refusal(e.strip_backtrace()))?;
                    self.constant_texts(vec![value], data_type.clone())?[0]
                }
                StringPart::Value(value) if same_strings(&value.data_type, data_type) => self.as_text(value)?,
                StringPart::Value(value) => {
                    return Err(refusal(format!("it mixes {} and {data_type}", value.data_type)));
                }
            });
        }
        Ok(Some(nodes))
    }

    /// `of IN (constants)`.
    pub(super) fn text_in_list(&mut self, of: &Value, list: &InListExpr, scope: &Scope) -> Lowered<Value> {
        if list.list().len() > MOST_LISTED {
            let why = format!("a list of {} strings needs a dictionary, {MOST_LISTED} do not", list.list().len());
            return Err(refusal(why));
        }
        let mut items = Vec::new();
        let mut constants = Vec::new();
        for item in list.list() {
            match item.downcast_ref::<LiteralExpr>().map(LiteralExpr::value) {
                Some(null) if null.is_null() => items.push(self.graph.null(Repr::Text)),
                Some(value) if same_strings(&value.data_type(), &of.data_type) => {
                    let value = value.cast_to(&of.data_type).map_err(|e| refusal(e.strip_backtrace()))?;
                    constants.push(value);
                }
                _ => {
                    let value = self.lower(item, scope)?;
                    items.push(self.both_texts(of.clone(), value)?.1.node);
                }
            }
        }
        if !constants.is_empty() {
            items.extend(self.constant_texts(constants, of.data_type.clone())?);
        }
        let node = self.graph.in_list(of.node, items, list.negated())?;
        Ok(Value { node, data_type: DataType::Boolean, dictionary: None })
    }

    /// LIKE and ILIKE.
    pub(super) fn like(&mut self, like: &LikeExpr, scope: &Scope) -> Lowered<Value> {
        let of = self.lower(like.expr(), scope)?;
        if !is_characters(&of.data_type) {
            return Err(refusal(format!("it has no device form over {}", of.data_type)));
        }
        let own = self.as_text(&of)?;
        let Some(pattern) = like.pattern().downcast_ref::<LiteralExpr>() else {
            return self.like_column(like, own, scope);
        };
        let pattern = match pattern.value().try_as_str() {
            Some(Some(pattern)) => pattern.to_string(),
            Some(None) => {
                let node = self.graph.null(Repr::Bool);
                return Ok(Value { node, data_type: DataType::Boolean, dictionary: None });
            }
            None => return Err(refusal("its pattern is no string")),
        };
        let any_case = like.case_insensitive();
        let form = match any_case {
            true if !pattern.is_ascii() => Match::Expression(of_ilike(&pattern)),
            true => Match::Pattern(coded(&pattern.to_ascii_lowercase())),
            false => Match::of(&pattern),
        };
        let node = match form {
            Match::Equal(bytes) => {
                let constant = self.constant_bytes(bytes)?;
                self.graph.compare(Comparison::Equal, own, constant)
            }
            Match::Starts(bytes) => {
                let constant = self.constant_bytes(bytes)?;
                self.graph.text(TextFunction::StartsWith, &[own, constant])
            }
            Match::Ends(bytes) => {
                let constant = self.constant_bytes(bytes)?;
                self.graph.text(TextFunction::EndsWith, &[own, constant])
            }
            Match::Contains(bytes) => {
                let constant = self.constant_bytes(bytes)?;
                self.graph.text(TextFunction::Contains, &[own, constant])
            }
            Match::Pattern(bytes) => {
                let constant = self.constant_bytes(bytes)?;
                let function = if any_case { TextFunction::LikeAnyCase } else { TextFunction::Like };
                self.graph.text(function, &[own, constant])
            }
            Match::Expression(expression) => Ok(self.matched(like.expr(), &expression, scope)?),
        };
        let mut node = node?;
        if like.negated() {
            node = self.graph.not(node)?;
        }
        Ok(Value { node, data_type: DataType::Boolean, dictionary: None })
    }

    /// LIKE and ILIKE of patterns from a column.
    fn like_column(&mut self, like: &LikeExpr, own: NodeId, scope: &Scope) -> Lowered<Value> {
        let any_case = like.case_insensitive();
        let pattern: Arc<dyn PhysicalExpr> = Arc::new(PatternExpr { of: Arc::clone(like.pattern()), any_case });
        let Some(pattern) = self.over_dictionary(&pattern, scope)? else {
            return Err(refusal("patterns are read from the dictionary of one string column, and this is none"));
        };
        let pattern = self.as_text(&pattern)?;
        let function = if any_case { TextFunction::LikeAnyCase } else { TextFunction::Like };
        let mut node = self.graph.text(function, &[own, pattern])?;
        if like.negated() {
            node = self.graph.not(node)?;
        }
        Ok(Value { node, data_type: DataType::Boolean, dictionary: None })
    }

    /// Eight times the number of bytes.
    fn bit_length(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let text = self.subject(&call.arguments[0], call.scope)?;
        let bytes = self.graph.text(TextFunction::Bytes, &[text])?;
        let eight = self.graph.integer(8, Repr::I64);
        let bits = self.graph.arithmetic(Arithmetic::Multiply, bytes, eight, Overflow::Wrap)?;
        let repr = plain_repr(call.data_type).ok_or_else(|| Refusal::Type(call.data_type.clone()))?;
        let node = self.graph.convert(bits, repr, Overflow::Fail)?;
        call.plain(node)
    }

    /// A function of the kernels' table, which a single dictionary cannot answer.
    pub(super) fn text_function(&mut self, function: TextFunction, call: &Call<'_>) -> Lowered<Option<Value>> {
        let spec = function.spec();
        let mut values = Vec::with_capacity(call.arguments.len());
        for argument in call.arguments {
            values.push(self.lower(argument, call.scope)?);
        }
        let is_text = |index: usize| match spec.takes {
            Takes::These(takes) => index == 0 && takes[0] == Repr::Text,
            Takes::Texts(_) => true,
        };
        // Only text has characters; arbitrary bytes have none.
        let other = values.iter().enumerate().find(|(at, value)| is_text(*at) && !is_characters(&value.data_type));
        if let Some((_, value)) = other {
            return Err(refusal(format!("it has no device form over {}", value.data_type)));
        }
        let mut of = Vec::with_capacity(3);
        for value in &values {
            of.push(if is_string(&value.data_type) {
                self.as_text(value)?
            } else {
                self.graph.convert(value.node, Repr::I64, Overflow::Fail)?
            });
        }
        if let (Takes::These(takes), Some(filler)) = (spec.takes, spec.filler)
            && of.len() < takes.len()
        {
            of.push(match filler {
                Filler::All => self.graph.integer(i64::MAX.into(), Repr::I64),
                Filler::Blank => self.constant_bytes(b" ".to_vec())?,
                Filler::Cases { upper } => self.constant_bytes(case_table(upper))?,
            });
        }
        let mut node = self.graph.text(function, &of)?;
        if let (true, Some(repr)) = (self.graph.ty(node).repr != Repr::Text, plain_repr(call.data_type)) {
            node = self.graph.convert(node, repr, Overflow::Fail)?;
        }
        call.plain(node)
    }
}

impl Lowering<'_> {
    /// `left || right`: NULL if either is NULL.
    pub(super) fn strung(&mut self, left: &Value, right: &Value, data_type: DataType) -> Lowered<Value> {
        if let Some(value) = [left, right].into_iter().find(|value| !is_characters(&value.data_type)) {
            return Err(refusal(format!("it has no device form over {}", value.data_type)));
        }
        let mut parts = Vec::with_capacity(2);
        for value in [left, right] {
            let node = self.as_text(value)?;
            // A chain of concatenations becomes one.
            match self.graph.node(node) {
                Node::Text { function: TextFunction::Concatenate { strict: true }, of } => {
                    parts.extend(of.iter().copied())
                }
                _ => parts.push(node),
            }
        }
        let node = self.graph.text(TextFunction::Concatenate { strict: true }, &parts)?;
        Ok(Value { node, data_type, dictionary: None })
    }

    /// The first or the last of several strings in the order of their bytes; NULL only if all are NULL.
    pub(super) fn extreme_text(
        &mut self,
        arguments: &[Arc<dyn PhysicalExpr>],
        least: bool,
        data_type: &DataType,
        scope: &Scope,
    ) -> Lowered<NodeId> {
        let mut nodes = Vec::with_capacity(arguments.len());
        for argument in arguments {
            if argument.downcast_ref::<LiteralExpr>().is_some_and(|literal| literal.value().is_null()) {
                nodes.push(self.graph.null(Repr::Text));
                continue;
            }
            let value = self.lower(argument, scope)?;
            if !same_strings(&value.data_type, data_type) {
                return Err(refusal(format!("it mixes {} and {data_type}", value.data_type)));
            }
            nodes.push(self.as_text(&value)?);
        }
        Ok(self.graph.extreme(&nodes, least)?)
    }

    /// An integer, a decimal, a boolean or a date as a text; `None` for other types.
    pub(super) fn said(&mut self, of: &Value, data_type: &DataType) -> Lowered<Option<Value>> {
        if !is_characters(data_type) {
            return Ok(None);
        }
        let node = match value_type(&of.data_type) {
            DataType::Boolean => {
                let words = [ScalarValue::from("true"), ScalarValue::from("false")];
                let words = self.constant_texts(words.to_vec(), DataType::Utf8)?;
                let not = self.graph.not(of.node)?;
                self.graph.case(vec![(of.node, words[0]), (not, words[1])], None)
            }
            DataType::Date32 => {
                let day = self.graph.convert(of.node, Repr::I64, Overflow::Fail)?;
                self.graph.text(TextFunction::OfDate, &[day])
            }
            // Values beyond 64 bits are left to the CPU.
            DataType::Decimal32(_, scale @ 0..)
            | DataType::Decimal64(_, scale @ 0..)
            | DataType::Decimal128(_, scale @ 0..) => {
                let number = self.graph.convert(of.node, Repr::I64, Overflow::Fail)?;
                self.graph.text(TextFunction::OfInteger { scale: *scale as u8 }, &[number])
            }
            integer if integer.is_integer() => {
                let number = self.graph.convert(of.node, Repr::I64, Overflow::Fail)?;
                self.graph.text(TextFunction::OfInteger { scale: 0 }, &[number])
            }
            _ => return Ok(None),
        };
        let node = node?;
        Ok(Some(Value { node, data_type: data_type.clone(), dictionary: None }))
    }

    /// The integer that a text represents; `None` for types that are not integers.
    pub(super) fn read_integer(
        &mut self,
        of: &Value,
        data_type: &DataType,
        overflow: Overflow,
    ) -> Lowered<Option<Value>> {
        let text = is_characters(&of.data_type);
        let (true, true, Some(repr)) = (text, data_type.is_integer(), plain_repr(data_type)) else { return Ok(None) };
        if *data_type == DataType::UInt64 {
            return Ok(None);
        }
        let own = self.as_text(of)?;
        let node = self.graph.text(TextFunction::ToInteger(overflow), &[own])?;
        let node = self.graph.convert(node, repr, overflow)?;
        Ok(Some(Value { node, data_type: data_type.clone(), dictionary: None }))
    }
}

/// Kind of match that a pattern needs.
#[derive(Debug, Clone, PartialEq)]
enum Match {
    Equal(Vec<u8>),
    Starts(Vec<u8>),
    Ends(Vec<u8>),
    Contains(Vec<u8>),
    /// [`ANY_CHARACTERS`] for `%`, [`ONE_CHARACTER`] for `_`.
    Pattern(Vec<u8>),
    /// Regular expression for an ILIKE pattern outside ASCII.
    Expression(String),
}

impl Match {
    fn of(pattern: &str) -> Match {
        let coded = coded(pattern);
        let wild = |bytes: &[u8]| bytes.iter().any(|byte| matches!(*byte, ANY_CHARACTERS | ONE_CHARACTER));
        match coded.as_slice() {
            plain if !wild(plain) => Match::Equal(coded),
            [ANY_CHARACTERS, inner @ .., ANY_CHARACTERS] if !wild(inner) => Match::Contains(inner.to_vec()),
            [ANY_CHARACTERS, rest @ ..] if !wild(rest) => Match::Ends(rest.to_vec()),
            [rest @ .., ANY_CHARACTERS] if !wild(rest) => Match::Starts(rest.to_vec()),
            _ => Match::Pattern(coded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_become_what_is_cheapest() {
        for (pattern, form) in [
            ("", Match::Equal(vec![])),
            ("abc", Match::Equal(b"abc".to_vec())),
            ("abc%", Match::Starts(b"abc".to_vec())),
            ("%abc", Match::Ends(b"abc".to_vec())),
            ("%é%", Match::Contains("é".as_bytes().to_vec())),
            ("%", Match::Ends(vec![])),
            ("%%", Match::Contains(vec![])),
            ("a_c", Match::Pattern(vec![b'a', ONE_CHARACTER, b'c'])),
            ("a%c", Match::Pattern(vec![b'a', ANY_CHARACTERS, b'c'])),
            (r"100\%", Match::Equal(b"100%".to_vec())),
            (r"\\%", Match::Starts(b"\\".to_vec())),
            (r"a\", Match::Equal(b"a\\".to_vec())),
        ] {
            assert_eq!(Match::of(pattern), form, "{pattern:?}");
        }
    }
}
