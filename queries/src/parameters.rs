//! Query parameters: values from suite.toml or the command line, inserted into the SQL as literals.
//!
//! ```text
//!   [parameters]  categories = [1, 2, 3]   kind = "it's"        IN ($categories) AND k = $kind
//!   --param categories=4,5                                 ──►  IN (4, 5) AND k = 'it''s'
//! ```
//!
//! Types   are the types of the defaults: integer, float, text, or a list of one of them, separated by commas.
//! Text    in strings, quoted names and comments is unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Deserializer};

/// A parameter value.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    Integer(i64),
    Float(f64),
    Text(String),
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Texts(Vec<String>),
}

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Parameter::of(toml::Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Values by name.
pub type Parameters = BTreeMap<String, Parameter>;

impl Parameter {
    /// Converts a value of suite.toml.
    fn of(value: toml::Value) -> Result<Parameter, String> {
        use toml::Value;
        let refused = |what: &str| {
            let takes = "a parameter is an integer, a finite number, a text in quotes, or a list of one of them";
            Err(format!("{what} cannot be a parameter: {takes}"))
        };
        match value {
            Value::Integer(integer) => Ok(Parameter::Integer(integer)),
            Value::Float(float) if float.is_finite() => Ok(Parameter::Float(float)),
            Value::Float(float) => refused(&float.to_string()),
            Value::String(text) => Ok(Parameter::Text(text)),
            Value::Array(items) => {
                let count = |wanted: fn(&Value) -> bool| items.iter().filter(|item| wanted(item)).count();
                let (integers, floats, texts) =
                    (count(Value::is_integer), count(Value::is_float), count(Value::is_str));
                if integers == items.len() {
                    Ok(Parameter::Integers(items.iter().filter_map(Value::as_integer).collect()))
                } else if texts == items.len() {
                    Ok(Parameter::Texts(items.iter().filter_map(Value::as_str).map(str::to_string).collect()))
                } else if integers + floats == items.len() {
                    let number = |item: &Value| item.as_float().or(item.as_integer().map(|integer| integer as f64));
                    let numbers: Vec<f64> = items.iter().filter_map(number).collect();
                    if numbers.iter().all(|number| number.is_finite()) {
                        Ok(Parameter::Floats(numbers))
                    } else {
                        refused("a list with a number that is not finite")
                    }
                } else {
                    refused("a list of several types")
                }
            }
            Value::Datetime(date) => refused(&format!("{date} without quotes")),
            other => refused(&format!("a value of type {}", other.type_str())),
        }
    }

    /// Parses a value of this value's type.
    ///
    /// # Errors
    /// A description of valid values.
    pub fn parse_like(&self, text: &str) -> Result<Parameter, &'static str> {
        fn each<T: std::str::FromStr>(text: &str, expected: &'static str) -> Result<Vec<T>, &'static str> {
            text.split(',').map(|item| item.trim().parse().map_err(|_| expected)).collect()
        }
        fn one<T: std::str::FromStr>(text: &str, expected: &'static str) -> Result<T, &'static str> {
            text.trim().parse().map_err(|_| expected)
        }
        Ok(match self {
            Parameter::Integer(_) => Parameter::Integer(one(text, "an integer")?),
            Parameter::Float(_) => Parameter::Float(finite(one(text, "a number")?)?),
            Parameter::Text(_) => Parameter::Text(text.to_string()),
            Parameter::Integers(_) => Parameter::Integers(each(text, "integers separated by commas")?),
            Parameter::Floats(_) => {
                let numbers: Vec<f64> = each(text, "numbers separated by commas")?;
                Parameter::Floats(numbers.into_iter().map(finite).collect::<Result<_, _>>()?)
            }
            Parameter::Texts(_) => Parameter::Texts(text.split(',').map(|item| item.trim().to_string()).collect()),
        })
    }

    /// The value as an integer.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Parameter::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// The value as a float; integers are converted.
    pub fn float(&self) -> Option<f64> {
        match self {
            Parameter::Integer(value) => Some(*value as f64),
            Parameter::Float(value) => Some(*value),
            _ => None,
        }
    }
}

fn finite(number: f64) -> Result<f64, &'static str> {
    if number.is_finite() { Ok(number) } else { Err("a finite number") }
}

/// The value as an SQL literal.
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T>(f: &mut fmt::Formatter<'_>, items: &[T], write: impl Fn(&T) -> String) -> fmt::Result {
            // `IN (NULL)` matches nothing, like an empty list.
            let text =
                if items.is_empty() { "NULL".into() } else { items.iter().map(write).collect::<Vec<_>>().join(", ") };
            f.write_str(&text)
        }
        // `{:?}` prints a decimal point, so that the literal stays a float in SQL.
        let float = |value: &f64| format!("{value:?}");
        let text = |value: &String| format!("'{}'", value.replace('\'', "''"));
        match self {
            Parameter::Integer(value) => write!(f, "{value}"),
            Parameter::Float(value) => f.write_str(&float(value)),
            Parameter::Text(value) => f.write_str(&text(value)),
            Parameter::Integers(values) => list(f, values, i64::to_string),
            Parameter::Floats(values) => list(f, values, float),
            Parameter::Texts(values) => list(f, values, text),
        }
    }
}

/// A `$name` without a value, and its line number, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPlaceholder {
    pub name: String,
    pub line: usize,
}

/// Part of a query's text.
enum Piece<'a> {
    Text(&'a str),
    /// `$name` and its line number, counted from 1.
    Name(&'a str, usize),
}

/// Splits the text at every `$name` outside strings, quoted names and comments.
fn pieces(sql: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut start, mut at) = (Vec::new(), 0, 0);
    while let Some(next) = sql[at..].chars().next() {
        let rest = &sql[at..];
        at += match next {
            '\'' | '"' => 1 + rest[1..].find(next).map_or(rest.len() - 1, |end| end + 1),
            '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '$' if rest[1..].starts_with(|c: char| c.is_ascii_alphabetic()) => {
                let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
                let end = 1 + rest[1..].find(ends).unwrap_or(rest.len() - 1);
                pieces.push(Piece::Text(&sql[start..at]));
                pieces.push(Piece::Name(&rest[1..end], sql[..at].matches('\n').count() + 1));
                start = at + end;
                end
            }
            other => other.len_utf8(),
        };
    }
    pieces.push(Piece::Text(&sql[start..]));
    pieces
}

/// The names of all `$name` placeholders in a text.
pub fn names(sql: &str) -> BTreeSet<&str> {
    pieces(sql)
        .into_iter()
        .filter_map(|piece| if let Piece::Name(name, _) = piece { Some(name) } else { None })
        .collect()
}

/// Replaces every `$name` with its value.
///
/// # Errors
/// The first `$name` without a value.
pub fn substitute(sql: &str, parameters: &Parameters) -> Result<String, UnknownPlaceholder> {
    let mut out = String::with_capacity(sql.len() + 64);
    for piece in pieces(sql) {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Name(name, line) => match parameters.get(name) {
                Some(value) => out.push_str(&value.to_string()),
                None => return Err(UnknownPlaceholder { name: name.to_string(), line }),
            },
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(text: &str) -> Parameters {
        toml::from_str(text).expect("parameters")
    }

    #[test]
    fn values_are_written_as_literals() {
        let values = parameters(
            "n = 7\nx = 2.0\ns = \"it's\"\nns = [1, 2]\nxs = [0.5, 1.0]\nss = [\"a\", \"b'c\"]\nnone = []\n",
        );
        let sql = "SELECT $n, $x, $s WHERE a IN ($ns) AND b IN ($xs) AND c IN ($ss) AND d IN ($none)";
        let expected =
            "SELECT 7, 2.0, 'it''s' WHERE a IN (1, 2) AND b IN (0.5, 1.0) AND c IN ('a', 'b''c') AND d IN (NULL)";
        assert_eq!(substitute(sql, &values), Ok(expected.to_string()));
    }

    #[test]
    fn strings_names_and_comments_are_left_alone() {
        let values = parameters("n = 7");
        let sql = "-- $n\nSELECT '$n é', \"$n\", /* $m\n */ $n, 'it''s $n', $1 -- $n";
        let expected = "-- $n\nSELECT '$n é', \"$n\", /* $m\n */ 7, 'it''s $n', $1 -- $n";
        assert_eq!(substitute(sql, &values), Ok(expected.to_string()));
        assert_eq!(substitute("SELECT 'open", &values), Ok("SELECT 'open".to_string()));
        assert_eq!(substitute("SELECT '", &values), Ok("SELECT '".to_string()));
        assert_eq!(names("-- $a\nSELECT $b, '$c', $b_1;$d"), BTreeSet::from(["b", "b_1", "d"]));
    }

    #[test]
    fn what_cannot_be_a_parameter_is_told() {
        let refused = |text: &str| toml::from_str::<Parameters>(text).expect_err("refused").to_string();
        for (text, what) in [
            ("a = true", "a value of type boolean"),
            ("a = nan", "NaN"),
            ("a = [1.0, inf]", "a list with a number that is not finite"),
            ("a = 2001-02-03", "2001-02-03 without quotes"),
            ("a = [1, \"b\"]", "a list of several types"),
            ("a = [[1]]", "a list of several types"),
            ("a = { b = 1 }", "a value of type table"),
        ] {
            let error = refused(text);
            assert!(error.contains(&format!("{what} cannot be a parameter: a parameter is an integer")), "{error}");
        }
        assert_eq!(parameters("a = [1, 2.5]")["a"], Parameter::Floats(vec![1.0, 2.5]));
    }

    #[test]
    fn a_name_without_a_value_is_told_with_its_line() {
        let error = substitute("SELECT 1,\n  $what", &Parameters::new());
        assert_eq!(error, Err(UnknownPlaceholder { name: "what".into(), line: 2 }));
    }

    #[test]
    fn values_from_text_have_the_type_of_the_default() {
        let like = |default: Parameter, text: &str| default.parse_like(text);
        assert_eq!(like(Parameter::Integer(1), " 42 "), Ok(Parameter::Integer(42)));
        assert_eq!(like(Parameter::Integer(1), "4x"), Err("an integer"));
        assert_eq!(like(Parameter::Float(1.0), "3"), Ok(Parameter::Float(3.0)));
        assert_eq!(like(Parameter::Float(1.0), "inf"), Err("a finite number"));
        assert_eq!(like(Parameter::Text(String::new()), "a, b"), Ok(Parameter::Text("a, b".into())));
        assert_eq!(like(Parameter::Integers(vec![]), "1, 2"), Ok(Parameter::Integers(vec![1, 2])));
        assert_eq!(like(Parameter::Integers(vec![1]), "1;2"), Err("integers separated by commas"));
        let texts = Parameter::Texts(vec!["a".into(), "b".into()]);
        assert_eq!(like(Parameter::Texts(vec![]), "a, b"), Ok(texts));
    }
}
