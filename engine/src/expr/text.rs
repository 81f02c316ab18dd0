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
use datafusion::physical_expr::expressions::{InListExpr, LikeExpr, Literal as LiteralExpr};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{
    ANY_CHARACTERS, Comparison, Node, NodeId, ONE_CHARACTER, Overflow, Repr, TextFunction, Ty,
};
use millpond_kernels::text::case_table;

use crate::column::{is_characters, is_string, plain_repr, value_type};
use crate::error::reason::Reason;
use crate::expr::cast::same_strings;
use crate::expr::dictionary::{Dictionary, Lookup, LookupKind, StringPart};
use crate::expr::pattern::{PatternExpr, coded};
use crate::expr::regex::of_ilike;
use crate::expr::{Lowering, Scope, Value, refused, unsupported};

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
    pub fn as_text(&mut self, expr: &Arc<dyn PhysicalExpr>, value: &Value) -> Result<NodeId, Reason> {
        if self.is_text(value) {
            return Ok(value.node);
        }
        let Some(id) = value.dictionary.filter(|_| is_string(&value.data_type)) else {
            return Err(unsupported(expr, "it mixes strings and other values"));
        };
        let nulls = matches!(
            self.dictionaries.get(id),
            Some(Dictionary::Constants { values, .. }) if values.iter().any(ScalarValue::is_null)
        );
        let ty = Ty::new(Repr::Text).nullable(nulls);
        let table = self.table(Lookup { dictionary: id, kind: LookupKind::Text, ty });
        self.graph.lookup(value.node, table, ty).map_err(|e| refused(expr, &e))
    }

    /// Constant texts, as entries of one table.
    fn constant_texts(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        values: Vec<ScalarValue>,
        data_type: DataType,
    ) -> Result<Vec<NodeId>, Reason> {
        let count = values.len();
        let dictionary = self.dictionaries.constants(data_type, values);
        let ty = Ty::new(Repr::Text);
        let table = self.table(Lookup { dictionary, kind: LookupKind::Text, ty });
        let mut nodes = Vec::with_capacity(count);
        for code in 0..count {
            let code = self.graph.integer(code as i128, Repr::U32);
            nodes.push(self.graph.lookup(code, table, ty).map_err(|e| refused(expr, &e))?);
        }
        Ok(nodes)
    }

    pub(super) fn constant_bytes(&mut self, expr: &Arc<dyn PhysicalExpr>, bytes: Vec<u8>) -> Result<NodeId, Reason> {
        let nodes = self.constant_texts(expr, vec![ScalarValue::Binary(Some(bytes))], DataType::Binary)?;
        nodes.first().copied().ok_or_else(|| unsupported(expr, "a constant without a value"))
    }

    /// Two strings as texts; at least one of them is a text already.
    pub(super) fn both_texts(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        a: Value,
        b: Value,
    ) -> Result<(Value, Value), Reason> {
        if !same_strings(&a.data_type, &b.data_type) {
            return Err(unsupported(expr, &format!("it compares {} with {}", a.data_type, b.data_type)));
        }
        let nodes = (self.as_text(expr, &a)?, self.as_text(expr, &b)?);
        Ok((Value { node: nodes.0, dictionary: None, ..a }, Value { node: nodes.1, dictionary: None, ..b }))
    }

    /// Several strings as texts, if one of them is a text already.
    pub(super) fn texts(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        parts: &[StringPart],
        data_type: &DataType,
    ) -> Result<Option<Vec<NodeId>>, Reason> {
        let text = |part: &StringPart| matches!(part, StringPart::Value(value) if self.is_text(value));
        if !parts.iter().any(text) {
            return Ok(None);
        }
        let mut nodes = Vec::with_capacity(parts.len());
        for part in parts {
            nodes.push(match part {
                StringPart::Constant(value) if value.is_null() => self.graph.null(Repr::Text),
                StringPart::Constant(value) => {
                    let value = value.cast_to(data_type).map_err(|e| unsupported(expr, &e.strip_backtrace()))?;
                    self.constant_texts(expr, vec![value], data_type.clone())?[0]
                }
                StringPart::Value(value) if same_strings(&value.data_type, data_type) => self.as_text(expr, value)?,
                StringPart::Value(value) => {
                    return Err(unsupported(expr, &format!("it mixes {} and {data_type}", value.data_type)));
                }
            });
        }
        Ok(Some(nodes))
    }

    /// `of IN (constants)`.
    pub(super) fn text_in_list(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Value,
        list: &InListExpr,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        if list.list().len() > MOST_LISTED {
            let why = format!("a list of {} strings needs a dictionary, {MOST_LISTED} do not", list.list().len());
            return Err(unsupported(expr, &why));
        }
        let mut items = Vec::new();
        let mut constants = Vec::new();
        for item in list.list() {
            match item.downcast_ref::<LiteralExpr>().map(LiteralExpr::value) {
                Some(null) if null.is_null() => items.push(self.graph.null(Repr::Text)),
                Some(value) if same_strings(&value.data_type(), &of.data_type) => {
                    let value = value.cast_to(&of.data_type).map_err(|e| unsupported(expr, &e.strip_backtrace()))?;
                    constants.push(value);
                }
                _ => {
                    let value = self.lower(item, scope)?;
                    items.push(self.both_texts(expr, of.clone(), value)?.1.node);
                }
            }
        }
        if !constants.is_empty() {
            items.extend(self.constant_texts(expr, constants, of.data_type.clone())?);
        }
        let node = self.graph.in_list(of.node, items, list.negated()).map_err(|e| refused(expr, &e))?;
        Ok(Value { node, data_type: DataType::Boolean, dictionary: None })
    }

    /// LIKE and ILIKE.
    pub(super) fn like(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        like: &LikeExpr,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        let of = self.lower(like.expr(), scope)?;
        if !is_characters(&of.data_type) {
            return Err(unsupported(expr, &format!("it has no device form over {}", of.data_type)));
        }
        let own = self.as_text(expr, &of)?;
        let Some(pattern) = like.pattern().downcast_ref::<LiteralExpr>() else {
            return self.like_column(expr, like, own, scope);
        };
        let pattern = match pattern.value().try_as_str() {
            Some(Some(pattern)) => pattern.to_string(),
            Some(None) => {
                let node = self.graph.null(Repr::Bool);
                return Ok(Value { node, data_type: DataType::Boolean, dictionary: None });
            }
            None => return Err(unsupported(expr, "its pattern is no string")),
        };
        let any_case = like.case_insensitive();
        let form = match any_case {
            true if !pattern.is_ascii() => Form::Expression(of_ilike(&pattern)),
            true => Form::Pattern(coded(&pattern.to_ascii_lowercase())),
            false => Form::of(&pattern),
        };
        let node = match form {
            Form::Equal(bytes) => {
                let constant = self.constant_bytes(expr, bytes)?;
                self.graph.compare(Comparison::Equal, own, constant)
            }
            Form::Starts(bytes) => {
                let constant = self.constant_bytes(expr, bytes)?;
                self.graph.text(TextFunction::StartsWith, &[own, constant])
            }
            Form::Ends(bytes) => {
                let constant = self.constant_bytes(expr, bytes)?;
                self.graph.text(TextFunction::EndsWith, &[own, constant])
            }
            Form::Contains(bytes) => {
                let constant = self.constant_bytes(expr, bytes)?;
                self.graph.text(TextFunction::Contains, &[own, constant])
            }
            Form::Pattern(bytes) => {
                let constant = self.constant_bytes(expr, bytes)?;
                let function = if any_case { TextFunction::LikeAnyCase } else { TextFunction::Like };
                self.graph.text(function, &[own, constant])
            }
            Form::Expression(expression) => Ok(self.matched(expr, like.expr(), &expression, scope)?),
        };
        let mut node = node.map_err(|e| refused(expr, &e))?;
        if like.negated() {
            node = self.graph.not(node).map_err(|e| refused(expr, &e))?;
        }
        Ok(Value { node, data_type: DataType::Boolean, dictionary: None })
    }

    /// LIKE and ILIKE of patterns from a column.
    fn like_column(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        like: &LikeExpr,
        own: NodeId,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        let any_case = like.case_insensitive();
        let pattern: Arc<dyn PhysicalExpr> = Arc::new(PatternExpr { of: Arc::clone(like.pattern()), any_case });
        let Some(pattern) = self.over_dictionary(&pattern, scope)? else {
            return Err(unsupported(
                expr,
                "patterns are read from the dictionary of one string column, and this is none",
            ));
        };
        let pattern = self.as_text(expr, &pattern)?;
        let function = if any_case { TextFunction::LikeAnyCase } else { TextFunction::Like };
        let mut node = self.graph.text(function, &[own, pattern]).map_err(|e| refused(expr, &e))?;
        if like.negated() {
            node = self.graph.not(node).map_err(|e| refused(expr, &e))?;
        }
        Ok(Value { node, data_type: DataType::Boolean, dictionary: None })
    }

    /// A function of strings that a single dictionary cannot answer; `None` for other functions.
    pub(super) fn text_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        data_type: &DataType,
        scope: &Scope,
    ) -> Result<Option<Value>, Reason> {
        use TextFunction::*;
        if let Some(value) = self.regex_function(expr, function, data_type, scope)? {
            return Ok(Some(value));
        }
        let name = function.fun().name();
        if name == "overlay" {
            return self.overlay(expr, function, data_type, scope).map(Some);
        }
        let arguments = function.args();
        let known = match (name, arguments.len()) {
            ("starts_with", 2) => StartsWith,
            ("ends_with", 2) => EndsWith,
            ("contains", 2) => Contains,
            ("octet_length", 1) => Bytes,
            ("character_length", 1) => Characters,
            ("strpos", 2) => Position,
            ("substr", 2 | 3) => Substring,
            ("left", 2) => Left,
            ("right", 2) => Right,
            ("ltrim", 1 | 2) => TrimStart,
            ("rtrim", 1 | 2) => TrimEnd,
            ("btrim", 1 | 2) => TrimBoth,
            ("split_part", 3) => SplitPart,
            ("ascii", 1) => Code,
            ("chr", 1) => OfCode,
            ("upper", 1) => Upper,
            ("lower", 1) => Lower,
            ("initcap", 1) => Capitals,
            ("reverse", 1) => Reverse,
            ("replace", 3) => Replace,
            ("translate", 3) => Translate,
            ("lpad", 2 | 3) => PadStart,
            ("rpad", 2 | 3) => PadEnd,
            ("repeat", 2) => Repeat,
            ("concat", 1..) => Concatenate { strict: false },
            ("concat_ws", 2..) => Join,
            _ => return Ok(None),
        };
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(self.lower(argument, scope)?);
        }
        // Only text has characters; arbitrary bytes have none.
        let text = is_characters;
        let checked = if matches!(known, Concatenate { .. } | Join) { values.len() } else { 1 };
        if let Some(value) = values[..checked].iter().find(|value| known != OfCode && !text(&value.data_type)) {
            return Err(unsupported(expr, &format!("it has no device form over {}", value.data_type)));
        }
        let mut of = Vec::with_capacity(3);
        for value in &values {
            of.push(if is_string(&value.data_type) {
                self.as_text(expr, value)?
            } else {
                self.graph.convert(value.node, Repr::I64, Overflow::Fail).map_err(|e| refused(expr, &e))?
            });
        }
        match (known, of.len()) {
            // Up to the end: more characters than a text can have.
            (Substring, 2) => of.push(self.graph.integer(i64::MAX.into(), Repr::I64)),
            (TrimStart | TrimEnd | TrimBoth, 1) | (PadStart | PadEnd, 2) => {
                of.push(self.constant_bytes(expr, b" ".to_vec())?);
            }
            (Upper | Lower, 1) => of.push(self.constant_bytes(expr, case_table(known == Upper))?),
            _ => {}
        }
        let mut node = self.graph.text(known, &of).map_err(|e| refused(expr, &e))?;
        if let (true, Some(repr)) = (self.graph.ty(node).repr != Repr::Text, plain_repr(data_type)) {
            node = self.graph.convert(node, repr, Overflow::Fail).map_err(|e| refused(expr, &e))?;
        }
        Ok(Some(Value { node, data_type: data_type.clone(), dictionary: None }))
    }
}

impl Lowering<'_> {
    /// `left || right`: NULL if either is NULL.
    pub(super) fn strung(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        left: &Value,
        right: &Value,
        data_type: DataType,
    ) -> Result<Value, Reason> {
        if let Some(value) = [left, right].into_iter().find(|value| !is_characters(&value.data_type)) {
            return Err(unsupported(expr, &format!("it has no device form over {}", value.data_type)));
        }
        let mut parts = Vec::with_capacity(2);
        for value in [left, right] {
            let node = self.as_text(expr, value)?;
            // A chain of concatenations becomes one.
            match self.graph.node(node) {
                Node::Text { function: TextFunction::Concatenate { strict: true }, of } => {
                    parts.extend(of.iter().copied())
                }
                _ => parts.push(node),
            }
        }
        let node =
            self.graph.text(TextFunction::Concatenate { strict: true }, &parts).map_err(|e| refused(expr, &e))?;
        Ok(Value { node, data_type, dictionary: None })
    }

    /// The first or the last of several strings in the order of their bytes; NULL only if all are NULL.
    pub(super) fn extreme_text(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        arguments: &[Arc<dyn PhysicalExpr>],
        least: bool,
        data_type: &DataType,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        let mut nodes = Vec::with_capacity(arguments.len());
        for argument in arguments {
            if argument.downcast_ref::<LiteralExpr>().is_some_and(|literal| literal.value().is_null()) {
                nodes.push(self.graph.null(Repr::Text));
                continue;
            }
            let value = self.lower(argument, scope)?;
            if !same_strings(&value.data_type, data_type) {
                return Err(unsupported(expr, &format!("it mixes {} and {data_type}", value.data_type)));
            }
            nodes.push(self.as_text(expr, &value)?);
        }
        self.graph.extreme(&nodes, least).map_err(|e| refused(expr, &e))
    }

    /// An integer, a decimal, a boolean or a date as a text; `None` for other types.
    pub(super) fn said(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Value,
        data_type: &DataType,
    ) -> Result<Option<Value>, Reason> {
        if !is_characters(data_type) {
            return Ok(None);
        }
        let node = match value_type(&of.data_type) {
            DataType::Boolean => {
                let words = [ScalarValue::from("true"), ScalarValue::from("false")];
                let words = self.constant_texts(expr, words.to_vec(), DataType::Utf8)?;
                let not = self.graph.not(of.node).map_err(|e| refused(expr, &e))?;
                self.graph.case(vec![(of.node, words[0]), (not, words[1])], None)
            }
            DataType::Date32 => {
                let day = self.graph.convert(of.node, Repr::I64, Overflow::Fail).map_err(|e| refused(expr, &e))?;
                self.graph.text(TextFunction::OfDate, &[day])
            }
            // Values beyond 64 bits are left to the CPU.
            DataType::Decimal32(_, scale @ 0..)
            | DataType::Decimal64(_, scale @ 0..)
            | DataType::Decimal128(_, scale @ 0..) => {
                let number = self.graph.convert(of.node, Repr::I64, Overflow::Fail).map_err(|e| refused(expr, &e))?;
                self.graph.text(TextFunction::OfInteger { scale: *scale as u8 }, &[number])
            }
            integer if integer.is_integer() => {
                let number = self.graph.convert(of.node, Repr::I64, Overflow::Fail).map_err(|e| refused(expr, &e))?;
                self.graph.text(TextFunction::OfInteger { scale: 0 }, &[number])
            }
            _ => return Ok(None),
        };
        let node = node.map_err(|e| refused(expr, &e))?;
        Ok(Some(Value { node, data_type: data_type.clone(), dictionary: None }))
    }

    /// The integer that a text represents; `None` for types that are not integers.
    pub(super) fn read_integer(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Value,
        data_type: &DataType,
        overflow: Overflow,
    ) -> Result<Option<Value>, Reason> {
        let text = is_characters(&of.data_type);
        let (true, true, Some(repr)) = (text, data_type.is_integer(), plain_repr(data_type)) else { return Ok(None) };
        if *data_type == DataType::UInt64 {
            return Ok(None);
        }
        let own = self.as_text(expr, of)?;
        let node = self.graph.text(TextFunction::ToInteger(overflow), &[own]).map_err(|e| refused(expr, &e))?;
        let node = self.graph.convert(node, repr, overflow).map_err(|e| refused(expr, &e))?;
        Ok(Some(Value { node, data_type: data_type.clone(), dictionary: None }))
    }
}

/// Kind of match that a pattern needs.
#[derive(Debug, Clone, PartialEq)]
enum Form {
    Equal(Vec<u8>),
    Starts(Vec<u8>),
    Ends(Vec<u8>),
    Contains(Vec<u8>),
    /// [`ANY_CHARACTERS`] for `%`, [`ONE_CHARACTER`] for `_`.
    Pattern(Vec<u8>),
    /// Regular expression for an ILIKE pattern outside ASCII.
    Expression(String),
}

impl Form {
    fn of(pattern: &str) -> Form {
        let coded = coded(pattern);
        let wild = |bytes: &[u8]| bytes.iter().any(|byte| matches!(*byte, ANY_CHARACTERS | ONE_CHARACTER));
        match coded.as_slice() {
            plain if !wild(plain) => Form::Equal(coded),
            [ANY_CHARACTERS, inner @ .., ANY_CHARACTERS] if !wild(inner) => Form::Contains(inner.to_vec()),
            [ANY_CHARACTERS, rest @ ..] if !wild(rest) => Form::Ends(rest.to_vec()),
            [rest @ .., ANY_CHARACTERS] if !wild(rest) => Form::Starts(rest.to_vec()),
            _ => Form::Pattern(coded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_become_what_is_cheapest() {
        for (pattern, form) in [
            ("", Form::Equal(vec![])),
            ("abc", Form::Equal(b"abc".to_vec())),
            ("abc%", Form::Starts(b"abc".to_vec())),
            ("%abc", Form::Ends(b"abc".to_vec())),
            ("%é%", Form::Contains("é".as_bytes().to_vec())),
            ("%", Form::Ends(vec![])),
            ("%%", Form::Contains(vec![])),
            ("a_c", Form::Pattern(vec![b'a', ONE_CHARACTER, b'c'])),
            ("a%c", Form::Pattern(vec![b'a', ANY_CHARACTERS, b'c'])),
            (r"100\%", Form::Equal(b"100%".to_vec())),
            (r"\\%", Form::Starts(b"\\".to_vec())),
            (r"a\", Form::Equal(b"a\\".to_vec())),
        ] {
            assert_eq!(Form::of(pattern), form, "{pattern:?}");
        }
    }
}
