//! SIMILAR TO: SQL's own pattern syntax, which DataFusion treats as a regular expression.
//!
//! ```text
//!   'a%'         ─► LIKE 'a%'                    no operator of regular expressions
//!   '(ab|c)_\%'  ─► ~ '^(?s:(?:ab|c).\%)$'       matches the whole text, including newlines
//! ```
//!
//! Words   `%` any text, `_` a character, `| * + ? {m,n} ( ) [ ]` as in regular expressions; all others are literal.
//! Escape  a backslash, or the character of ESCAPE.
//! NULL    as text or pattern makes the result NULL.
//! Refused patterns that are not constant: they would have to be translated row by row.

use datafusion::common::plan_err;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{BinaryExpr, Expr, Like};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{LogicalPlan, Operator, lit};
use datafusion::scalar::ScalarValue;

/// True for a node with a SIMILAR TO.
pub(super) fn is_in(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.apply_expressions(|expr| {
        expr.apply(|part| {
            found |= matches!(part, Expr::SimilarTo(_));
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    })?;
    Ok(found)
}

/// Rewrites the SIMILAR TO patterns of a node to patterns that DataFusion interprets correctly.
///
/// # Errors
/// If a pattern is not constant, or is invalid.
pub(super) fn translated(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_in(&node)? {
        return Ok(Transformed::no(node));
    }
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        let name = names.save(&expr);
        let expr = expr.transform_up(|part| match part {
            Expr::SimilarTo(like) => Ok(Transformed::yes(of(like)?)),
            part => Ok(Transformed::no(part)),
        })?;
        Ok(expr.update_data(|expr| name.restore(expr)))
    })
}

fn of(like: Like) -> Result<Expr> {
    let pattern = match like.pattern.as_ref() {
        Expr::Literal(value, _) if value.is_null() => return Ok(lit(ScalarValue::Boolean(None))),
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        _ => None,
    };
    let Some(pattern) = pattern else {
        return plan_err!(
            "the pattern of SIMILAR TO is a constant text here, and {} is none: \
             write LIKE, or ~ with a regular expression",
            like.pattern
        );
    };
    if like.escape_char.is_none() && !pattern.contains(|c: char| WORDS.contains(c) || c == '\\') {
        return Ok(Expr::Like(like));
    }
    let regex = regex(pattern, like.escape_char.unwrap_or('\\'))?;
    let op = if like.negated { Operator::RegexNotMatch } else { Operator::RegexMatch };
    Ok(Expr::BinaryExpr(BinaryExpr::new(like.expr, op, Box::new(lit(regex)))))
}

/// Operators of SIMILAR TO that LIKE does not have.
const WORDS: &str = "|*+?{}()[]";

/// Regular expression of a pattern.
fn regex(pattern: &str, escape: char) -> Result<String> {
    let mut regex = String::from("^(?s:");
    let mut rest = pattern.chars().peekable();
    // Number of characters of the current set; `None` outside a set.
    let mut set: Option<usize> = None;
    while let Some(c) = rest.next() {
        if c == escape {
            let Some(literal) = rest.next() else {
                return plan_err!(
                    "the pattern '{pattern}' of SIMILAR TO ends with its escape character {escape}: double it"
                );
            };
            plain(&mut regex, literal);
            set = set.map(|characters| characters + 1);
            continue;
        }
        match (set, c) {
            // A closing bracket that is the first character of a set belongs to it.
            (Some(characters), ']') if characters > 0 => {
                regex.push(']');
                set = None;
            }
            (Some(characters), '[') if rest.peek() == Some(&':') => {
                // A named class: [[:alpha:]].
                regex.push('[');
                for named in rest.by_ref() {
                    regex.push(named);
                    if named == ']' {
                        break;
                    }
                }
                set = Some(characters + 1);
            }
            (Some(0), '^') => {
                regex.push('^');
                continue;
            }
            (Some(characters), '-') => {
                regex.push('-');
                set = Some(characters + 1);
            }
            (Some(characters), c) => {
                plain(&mut regex, c);
                set = Some(characters + 1);
            }
            (None, '[') => {
                regex.push('[');
                set = Some(0);
            }
            (None, '%') => regex.push_str(".*"),
            (None, '_') => regex.push('.'),
            (None, '(') => regex.push_str("(?:"),
            (None, '|' | '*' | '+' | '?' | '{' | '}' | ')') => regex.push(c),
            (None, c) => plain(&mut regex, c),
        }
    }
    if set.is_some() {
        return plan_err!("the pattern '{pattern}' of SIMILAR TO has a [ without its ]: escape it, {escape}[");
    }
    regex.push_str(")$");
    Ok(regex)
}

/// Adds a literal character.
fn plain(regex: &mut String, c: char) {
    if c.is_ascii_punctuation() && c != '_' {
        regex.push('\\');
    }
    regex.push(c);
}
