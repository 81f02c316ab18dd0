//! The kinds of difference between SQLite's dialect and ours that a person has looked at. `docs/sql.md` has a paragraph on each.

use crate::reader::Record;

/// Kinds that an error's words tell.
const ERRORS: [(&str, &str); 7] = [
    ("Divide by zero", "division by zero"),
    ("non-boolean predicate", "numbers as conditions"),
    ("Projections require unique expression names", "columns of one name"),
    ("which would be ambiguous", "columns of one name"),
    ("must appear in GROUP BY clause", "columns outside GROUP BY"),
    ("Replace Into not implemented", "REPLACE"),
    ("found: TRIGGER", "triggers"),
];

/// The kind of an error, if it has a name.
pub fn of_error(error: &str) -> Option<&'static str> {
    ERRORS.iter().find(|(words, _)| error.contains(words)).map(|(_, kind)| *kind)
}

/// True for a statement that makes a table or puts rows into it.
pub fn makes_a_table(sql: &str) -> bool {
    made_table(sql).is_some()
        || matches!(words(sql).as_slice(), [insert, into, ..] if insert == "INSERT" && into == "INTO")
}

/// The name of the table that a statement makes.
pub fn made_table(sql: &str) -> Option<&str> {
    let rest = sql.trim_start();
    let rest =
        rest.get(..12).filter(|words| words.eq_ignore_ascii_case("CREATE TABLE")).map(|_| rest[12..].trim_start())?;
    rest.split(|letter: char| letter == '(' || letter.is_whitespace()).next()
}

/// The first three words, as capitals.
fn words(sql: &str) -> Vec<String> {
    sql.split_whitespace().take(3).map(str::to_uppercase).collect()
}

/// Statements about indexes change no answer: they are left out.
pub fn is_about_an_index(sql: &str) -> bool {
    let words = words(sql);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    matches!(words.as_slice(), ["CREATE", "UNIQUE", "INDEX"] | ["CREATE" | "DROP", "INDEX", ..] | ["REINDEX", ..])
}

/// Statements that do not exist here: what they would have changed, queries after them see unchanged.
pub fn of_statement(sql: &str) -> Option<&'static str> {
    let words = words(sql);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["CREATE" | "DROP", "TRIGGER", ..] | ["CREATE", "TEMP" | "TEMPORARY", "TRIGGER"] => Some("triggers"),
        ["REPLACE", ..] | ["INSERT", "OR", _] => Some("REPLACE"),
        _ => None,
    }
}

/// The kind of an answer that differs, by the form of its SQL.
pub fn of_answer(_record: &Record) -> Option<&'static str> {
    None
}

/// The kind of a query that may differ, by its form alone: what a sample leaves out.
pub fn of_form(_sql: &str) -> Option<&'static str> {
    None
}
