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
use datafusion::physical_expr::expressions::{BinaryExpr, Literal as LiteralExpr};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{NodeId, Overflow, Repr, TextFunction};
use millpond_kernels::regex::{Automata, automata};

use crate::column::is_characters;
use crate::error::reason::Reason;
use crate::expr::{Lowering, Scope, Value, refused, unsupported};

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
    pub(super) fn regex_operator(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        binary: &BinaryExpr,
        scope: &Scope,
    ) -> Result<Option<Value>, Reason> {
        let (negated, any_case) = match binary.op() {
            Operator::RegexMatch => (false, false),
            Operator::RegexIMatch => (false, true),
            Operator::RegexNotMatch => (true, false),
            Operator::RegexNotIMatch => (true, true),
            _ => return Ok(None),
        };
        let Some(pattern) = constant(expr, binary.right(), "its pattern is")? else {
            return Ok(Some(self.nothing(Repr::Bool, DataType::Boolean)));
        };
        let pattern = if any_case { format!("(?i){pattern}") } else { pattern };
        let mut node = self.matched(expr, binary.left(), &pattern, scope)?;
        if negated {
            node = self.graph.not(node).map_err(|e| refused(expr, &e))?;
        }
        Ok(Some(Value { node, data_type: DataType::Boolean, dictionary: None }))
    }

    /// Functions of regular expressions; `None` for other functions.
    pub(super) fn regex_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        data_type: &DataType,
        scope: &Scope,
    ) -> Result<Option<Value>, Reason> {
        let arguments = function.args();
        let repr = match function.fun().name() {
            "regexp_like" => Repr::Bool,
            "regexp_count" | "regexp_instr" => Repr::I64,
            "regexp_replace" => Repr::Text,
            _ => return Ok(None),
        };
        let [of, pattern, others @ ..] = arguments else { return Ok(None) };
        let Some(pattern) = constant(expr, pattern, "its pattern is")? else {
            return Ok(Some(self.nothing(repr, data_type.clone())));
        };
        let node = match function.fun().name() {
            "regexp_like" => {
                let flags = others.first().map(|flags| constant(expr, flags, "its flags are")).transpose()?.flatten();
                if flags.as_ref().is_some_and(|flags| flags.contains('g')) {
                    return Err(unsupported(expr, "DataFusion refuses its flags"));
                }
                let pattern = flags.map_or_else(|| pattern.clone(), |flags| format!("(?{flags}){pattern}"));
                Some(self.matched(expr, of, &pattern, scope)?)
            }
            "regexp_replace" => self.replaced(expr, of, &pattern, others, scope)?,
            name => self.measured(expr, name, of, &pattern, others, scope)?,
        };
        let Some(node) = node else { return Ok(Some(self.nothing(repr, data_type.clone()))) };
        match self.graph.ty(node).repr == repr {
            true => Ok(Some(Value { node, data_type: data_type.clone(), dictionary: None })),
            false => Err(unsupported(expr, &format!("it gives {data_type}"))),
        }
    }

    /// Whether `of` matches anywhere.
    pub(super) fn matched(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        pattern: &str,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        let of = self.subject(expr, of, scope)?;
        let (own, quits) = self.automata(expr, pattern, false)?;
        self.graph.text(TextFunction::RegexMatch { quits }, &[of, own]).map_err(|e| refused(expr, &e))
    }

    /// `regexp_count` and `regexp_instr`; `None` if an argument is NULL.
    fn measured(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        name: &str,
        of: &Arc<dyn PhysicalExpr>,
        pattern: &str,
        others: &[Arc<dyn PhysicalExpr>],
        scope: &Scope,
    ) -> Result<Option<NodeId>, Reason> {
        let places = name == "regexp_instr";
        let (numbers, others) = others.split_at(others.len().min(1 + usize::from(places)));
        let (flags, group) = (others.first(), others.get(1));
        let flags = match flags.map(|flags| constant(expr, flags, "its flags are")).transpose()? {
            None => String::new(),
            Some(Some(flags)) => flags,
            Some(None) => return Ok(None),
        };
        if flags.contains('g') {
            return Err(unsupported(expr, "DataFusion refuses its flags"));
        }
        match group.map(|group| group.downcast_ref::<LiteralExpr>().map(LiteralExpr::value)) {
            None | Some(Some(ScalarValue::Int64(Some(..=0)))) => {}
            Some(Some(null)) if null.is_null() => return Ok(None),
            Some(_) => return Err(unsupported(expr, "groups of a regular expression have no device form")),
        }
        let pattern = if flags.is_empty() { pattern.to_string() } else { format!("(?{flags}){pattern}") };
        let of = self.subject(expr, of, scope)?;
        let (own, quits) = self.automata(expr, &pattern, places)?;
        let mut nodes = vec![of, own];
        for number in numbers {
            let number = self.lower(number, scope)?;
            nodes.push(self.graph.convert(number.node, Repr::I64, Overflow::Fail).map_err(|e| refused(expr, &e))?);
        }
        nodes.resize_with(if places { 4 } else { 3 }, || self.graph.integer(1, Repr::I64));
        let function = if places { TextFunction::RegexPlace { quits } } else { TextFunction::RegexCount { quits } };
        let mut node = self.graph.text(function, &nodes).map_err(|e| refused(expr, &e))?;
        node = self.graph.convert(node, Repr::I64, Overflow::Fail).map_err(|e| refused(expr, &e))?;
        Ok(Some(node))
    }

    /// `regexp_replace`; `None` if an argument is NULL.
    fn replaced(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        pattern: &str,
        others: &[Arc<dyn PhysicalExpr>],
        scope: &Scope,
    ) -> Result<Option<NodeId>, Reason> {
        let Some(to) = others.first() else { return Err(unsupported(expr, "it has no replacement")) };
        let (to, flags) = (constant(expr, to, "its replacement is")?, others.get(1));
        let flags = flags.map(|flags| constant(expr, flags, "its flags are")).transpose()?;
        let (Some(to), false) = (to, flags == Some(None)) else { return Ok(None) };
        if names_group(&to) {
            return Err(unsupported(expr, "groups of a regular expression have no device form"));
        }
        let (pattern, all) = match flags.flatten().as_deref() {
            None => (pattern.to_string(), false),
            Some("g") => (pattern.to_string(), true),
            Some(flags) => (format!("(?{}){pattern}", flags.replace('g', "")), flags.contains('g')),
        };
        let of = self.subject(expr, of, scope)?;
        let (own, quits) = self.automata(expr, &pattern, true)?;
        let to = self.constant_bytes(expr, to.into_bytes())?;
        let node = self.graph.text(TextFunction::RegexReplace { all, quits }, &[of, own, to]);
        node.map(Some).map_err(|e| refused(expr, &e))
    }

    /// The searched string, as a text.
    fn subject(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        let of = self.lower(of, scope)?;
        match is_characters(&of.data_type) {
            true => self.as_text(expr, &of),
            false => Err(unsupported(expr, &format!("it has no device form over {}", of.data_type))),
        }
    }

    /// The automata of a pattern as a constant, and whether they cannot decide some texts.
    fn automata(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        pattern: &str,
        places: bool,
    ) -> Result<(NodeId, bool), Reason> {
        let own = known(pattern, places).map_err(|why| unsupported(expr, &why))?;
        Ok((self.constant_bytes(expr, own.bytes.clone())?, own.quits))
    }

    /// NULL in every row.
    fn nothing(&mut self, repr: Repr, data_type: DataType) -> Value {
        Value { node: self.graph.null(repr), data_type, dictionary: None }
    }
}

/// A constant string argument; `None` if it is NULL.
fn constant(expr: &Arc<dyn PhysicalExpr>, of: &Arc<dyn PhysicalExpr>, what: &str) -> Result<Option<String>, Reason> {
    let literal = of.downcast_ref::<LiteralExpr>().map(LiteralExpr::value);
    match literal.and_then(|value| value.try_as_str()) {
        Some(value) => Ok(value.map(str::to_string)),
        None => Err(unsupported(expr, &format!("{what} no constant, and only those have a device form"))),
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
