//! Regular expressions over strings without a dictionary: automata that the device walks, byte by byte.
//!
//!   url ~ '^https?://'                   ──►  match(url, automata)       automata: constant bytes, one per pattern
//!   regexp_replace(s, '[0-9]+', '#')     ──►  replace(s, automata, '#')  both directions: ends and starts of matches
//!
//! Same      patterns, flags, Unicode and preferences as in DataFusion, which uses the `regex` crate.
//! NULL      of any argument is NULL; NULL flags of `regexp_like` mean no flags.
//! Constants patterns, flags and replacements. Another pattern has the same structure, and needs no new compilation.
//! CPU       references to groups (`$1`, `\1`, a subexpression); automata of more than 256 KiB; patterns that
//!           DataFusion refuses. Word boundaries (`\b`) are exact in ASCII alone: if a text has another character
//!           there, the CPU takes over.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal as LiteralExpr};
use millpond_kernels::codegen::ir::{NodeId, Overflow, Repr, TextFunction};
use millpond_kernels::regex::{Automata, automata};

use crate::column::is_characters;
use crate::expr::row::Call;
use crate::expr::{Lowered, Lowering, Scope, Value, refusal};

/// Maximum number of patterns whose automata are cached; beyond it the cache is cleared.
const MOST_KEPT: usize = 64;

type Kept = HashMap<(String, bool), Result<Arc<Automata>, String>>;

/// The automata of a pattern, built on the first request.
fn known(pattern: &str, places: bool) -> Result<Arc<Automata>, String> {
    static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);
    let key = (pattern.to_string(), places);
    if let Some(known) = KEPT.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return known.clone();
    }
    let made = automata(pattern, places).map(Arc::new);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() == MOST_KEPT {
        kept.clear();
    }
    kept.insert(key, made.clone());
    made
}

/// A pattern of ILIKE as a regular expression: `é%` is `é` and then anything.
pub(super) fn of_ilike(pattern: &str) -> String {
    let mut expression = "(?is)^".to_string();
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        let own = match character {
            '%' => {
                expression.push_str(".*");
                continue;
            }
            '_' => {
                expression.push('.');
                continue;
            }
            '\\' => characters.next().unwrap_or('\\'),
            own => own,
        };
        // Writing to a string cannot fail.
        let _ = write!(expression, "\\x{{{:x}}}", u32::from(own));
    }
    expression.push('$');
    expression
}

/// True for a replacement that refers to a group of its pattern.
fn names_group(replacement: &str) -> bool {
    let digit = |pair: &[u8]| pair[0] == b'\\' && pair[1].is_ascii_digit();
    replacement.contains('$') || replacement.as_bytes().windows(2).any(digit)
}

impl Lowering<'_> {
    /// `~`, `~*`, `!~` and `!~*`; `None` for other operators.
    pub(super) fn regex_operator(&mut self, binary: &BinaryExpr, scope: &Scope) -> Lowered<Option<Value>> {
        let (negated, any_case) = match binary.op() {
            Operator::RegexMatch => (false, false),
            Operator::RegexIMatch => (false, true),
            Operator::RegexNotMatch => (true, false),
            Operator::RegexNotIMatch => (true, true),
            _ => return Ok(None),
        };
        let Some(pattern) = constant(binary.right(), "its pattern is")? else {
            return Ok(Some(self.nothing(Repr::Bool, DataType::Boolean)));
        };
        let pattern = if any_case { format!("(?i){pattern}") } else { pattern };
        let mut node = self.matched(binary.left(), &pattern, scope)?;
        if negated {
            node = self.graph.not(node)?;
        }
        Ok(Some(Value { node, data_type: DataType::Boolean, dictionary: None }))
    }

    /// `regexp_like(text, pattern[, flags])`.
    pub(super) fn regex_like(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [of, pattern, others @ ..] = call.arguments else { return Ok(None) };
        let Some(pattern) = constant(pattern, "its pattern is")? else {
            return Ok(Some(self.nothing(Repr::Bool, call.data_type.clone())));
        };
        let flags = others.first().map(|flags| constant(flags, "its flags are")).transpose()?.flatten();
        if flags.as_ref().is_some_and(|flags| flags.contains('g')) {
            return Err(refusal("DataFusion refuses its flags"));
        }
        let pattern = flags.map_or_else(|| pattern.clone(), |flags| format!("(?{flags}){pattern}"));
        let node = self.matched(of, &pattern, call.scope)?;
        call.plain(node)
    }

    /// `regexp_count`, and with `places` `regexp_instr`.
    pub(super) fn regex_number(&mut self, call: &Call<'_>, places: bool) -> Lowered<Option<Value>> {
        let [of, pattern, others @ ..] = call.arguments else { return Ok(None) };
        let node = match constant(pattern, "its pattern is")? {
            Some(pattern) => self.measured(places, of, &pattern, others, call.scope)?,
            None => None,
        };
        self.regex_result(node, Repr::I64, call)
    }

    /// `regexp_replace(text, pattern, replacement[, flags])`.
    pub(super) fn regex_replace(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [of, pattern, others @ ..] = call.arguments else { return Ok(None) };
        let node = match constant(pattern, "its pattern is")? {
            Some(pattern) => self.replaced(of, &pattern, others, call.scope)?,
            None => None,
        };
        self.regex_result(node, Repr::Text, call)
    }

    fn regex_result(&mut self, node: Option<NodeId>, repr: Repr, call: &Call<'_>) -> Lowered<Option<Value>> {
        match node {
            None => Ok(Some(self.nothing(repr, call.data_type.clone()))),
            Some(node) if self.graph.ty(node).repr == repr => call.plain(node),
            Some(_) => Err(refusal(format!("it gives {}", call.data_type))),
        }
    }

    /// Whether `of` matches anywhere.
    pub(super) fn matched(&mut self, of: &Arc<dyn PhysicalExpr>, pattern: &str, scope: &Scope) -> Lowered<NodeId> {
        let of = self.subject(of, scope)?;
        let (own, quits) = self.automata(pattern, false)?;
        Ok(self.graph.text(TextFunction::RegexMatch { quits }, &[of, own])?)
    }

    /// `regexp_count` and `regexp_instr`; `None` if an argument is NULL.
    fn measured(
        &mut self,
        places: bool,
        of: &Arc<dyn PhysicalExpr>,
        pattern: &str,
        others: &[Arc<dyn PhysicalExpr>],
        scope: &Scope,
    ) -> Lowered<Option<NodeId>> {
        let (numbers, others) = others.split_at(others.len().min(1 + usize::from(places)));
        let (flags, group) = (others.first(), others.get(1));
        let flags = match flags.map(|flags| constant(flags, "its flags are")).transpose()? {
            None => String::new(),
            Some(Some(flags)) => flags,
            Some(None) => return Ok(None),
        };
        if flags.contains('g') {
            return Err(refusal("DataFusion refuses its flags"));
        }
        match group.map(|group| group.downcast_ref::<LiteralExpr>().map(LiteralExpr::value)) {
            None | Some(Some(ScalarValue::Int64(Some(..=0)))) => {}
            Some(Some(null)) if null.is_null() => return Ok(None),
            Some(_) => return Err(refusal("groups of a regular expression have no device form")),
        }
        let pattern = if flags.is_empty() { pattern.to_string() } else { format!("(?{flags}){pattern}") };
        let of = self.subject(of, scope)?;
        let (own, quits) = self.automata(&pattern, places)?;
        let mut nodes = vec![of, own];
        for number in numbers {
            let number = self.lower(number, scope)?;
            nodes.push(self.graph.convert(number.node, Repr::I64, Overflow::Fail)?);
        }
        nodes.resize_with(if places { 4 } else { 3 }, || self.graph.integer(1, Repr::I64));
        let function = if places { TextFunction::RegexPlace { quits } } else { TextFunction::RegexCount { quits } };
        let mut node = self.graph.text(function, &nodes)?;
        node = self.graph.convert(node, Repr::I64, Overflow::Fail)?;
        Ok(Some(node))
    }

    /// `regexp_replace`; `None` if an argument is NULL.
    fn replaced(
        &mut self,
        of: &Arc<dyn PhysicalExpr>,
        pattern: &str,
        others: &[Arc<dyn PhysicalExpr>],
        scope: &Scope,
    ) -> Lowered<Option<NodeId>> {
        let Some(to) = others.first() else { return Err(refusal("it has no replacement")) };
        let (to, flags) = (constant(to, "its replacement is")?, others.get(1));
        let flags = flags.map(|flags| constant(flags, "its flags are")).transpose()?;
        let (Some(to), false) = (to, flags == Some(None)) else { return Ok(None) };
        if names_group(&to) {
            return Err(refusal("groups of a regular expression have no device form"));
        }
        let (pattern, all) = match flags.flatten().as_deref() {
            None => (pattern.to_string(), false),
            Some("g") => (pattern.to_string(), true),
            Some(flags) => (format!("(?{}){pattern}", flags.replace('g', "")), flags.contains('g')),
        };
        let of = self.subject(of, scope)?;
        let (own, quits) = self.automata(&pattern, true)?;
        let to = self.constant_bytes(to.into_bytes())?;
        let node = self.graph.text(TextFunction::RegexReplace { all, quits }, &[of, own, to]);
        Ok(node.map(Some)?)
    }

    /// A string of characters, as a text.
    pub(super) fn subject(&mut self, of: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Lowered<NodeId> {
        let of = self.lower(of, scope)?;
        match is_characters(&of.data_type) {
            true => self.as_text(&of),
            false => Err(refusal(format!("it has no device form over {}", of.data_type))),
        }
    }

    /// The automata of a pattern as a constant, and whether they cannot decide some texts.
    fn automata(&mut self, pattern: &str, places: bool) -> Lowered<(NodeId, bool)> {
        let own = known(pattern, places).map_err(refusal)?;
        Ok((self.constant_bytes(own.bytes.clone())?, own.quits))
    }

    /// NULL in every row.
    fn nothing(&mut self, repr: Repr, data_type: DataType) -> Value {
        Value { node: self.graph.null(repr), data_type, dictionary: None }
    }
}

/// A constant string argument; `None` if it is NULL.
fn constant(of: &Arc<dyn PhysicalExpr>, what: &str) -> Lowered<Option<String>> {
    let literal = of.downcast_ref::<LiteralExpr>().map(LiteralExpr::value);
    match literal.and_then(|value| value.try_as_str()) {
        Some(value) => Ok(value.map(str::to_string)),
        None => Err(refusal(format!("{what} no constant, and only those have a device form"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_ilike_are_taken_letter_by_letter() {
        for (pattern, expression) in
            [("", "(?is)^$"), ("é%", r"(?is)^\x{e9}.*$"), (r"_\%\", r"(?is)^.\x{25}\x{5c}$"), (".", r"(?is)^\x{2e}$")]
        {
            assert_eq!(of_ilike(pattern), expression, "{pattern:?}");
        }
    }

    #[test]
    fn replacements_that_name_groups_are_told_from_others() {
        assert!(["$1", "a\\1", "\\\\2", "$$", "\\0"].into_iter().all(names_group));
        assert!(!["", "x", "\\", "1\\n", "é"].into_iter().any(names_group));
    }
}
