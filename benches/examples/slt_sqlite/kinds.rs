//! The kinds of difference between SQLite's dialect and ours that a person has looked at. `docs/sql.md` has a paragraph
//! on each.

use crate::reader::{Kind, Record};

/// The kinds that have an error's words.
const ERRORS: [(&str, &str); 20] = [
    ("Divide by zero", "division by zero"),
    ("non-boolean predicate", "numbers as conditions"),
    ("Projections require unique expression names", ONE_NAME),
    ("which would be ambiguous", ONE_NAME),
    ("Ambiguous reference", ONE_NAME),
    ("must appear in GROUP BY clause", OUTSIDE),
    ("must appear in the GROUP BY clause", OUTSIDE),
    ("does not support logical expression ScalarSubquery", CORRELATED),
    ("found: ) at", "empty lists"),
    ("found: INDEXED", "words about indexes"),
    ("Invalid function", "functions"),
    ("failed to match any signature", CONVERSIONS),
    ("can't cast to", CONVERSIONS),
    ("Cannot cast string", CONVERSIONS),
    ("Unary operator '+'", CONVERSIONS),
    ("Can't cast value", INTEGERS),
    ("Replace Into not implemented", REPLACE),
    ("found: TRIGGER", TRIGGERS),
    ("only supports a single SQL statement", "several statements in one text"),
    ("Cannot infer common argument type", CONVERSIONS),
];

const ONE_NAME: &str = "columns of one name";
const OUTSIDE: &str = "columns outside GROUP BY";
const CORRELATED: &str = "subqueries that compare with < or >";
const CONVERSIONS: &str = "conversions";
const INTEGERS: &str = "integers of 32 bits";
const REPLACE: &str = "REPLACE";
const TRIGGERS: &str = "triggers";

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
        ["CREATE" | "DROP", "TRIGGER", ..] | ["CREATE", "TEMP" | "TEMPORARY", "TRIGGER"] => Some(TRIGGERS),
        ["REPLACE", ..] | ["INSERT", "OR", _] => Some(REPLACE),
        _ => None,
    }
}

/// The kind of an answer that differs, by its SQL: what fails in SQLite and is carried out here, and quotients of a
/// value whose type SQLite takes from the operand that it comes from.
pub fn of_answer(record: &Record) -> Option<&'static str> {
    match record.kind {
        Kind::Statement { fails } => fails.then_some("statements that SQLite refuses"),
        Kind::Query(_) => divides_one_of_several(&record.sql).then_some("quotients of operands of two types"),
    }
}

/// True where a quotient may have an operand that is one of several, an average among them.
fn divides_one_of_several(sql: &str) -> bool {
    let sql = sql.to_uppercase();
    sql.contains('/') && sql.contains("AVG") && ["COALESCE", "NULLIF", "CASE"].iter().any(|word| sql.contains(word))
}

/// What a sample leaves out: a query that may differ by the form of its SQL.
pub fn of_form(sql: &str) -> Option<&'static str> {
    let sql = sql.to_uppercase();
    let has = |words: &str| sql.contains(words);
    let division = has("/") || has("%");
    let inner = sql.matches("SELECT").count() > 1 && (has("<T1.") || has(">T1."));
    let kinds = [
        (repeats_a_name(&sql), ONE_NAME),
        (division, "division by zero"),
        (inner, CORRELATED),
        (has("IN ()") || has("IN ( )"), "empty lists"),
        (has("INDEXED"), "words about indexes"),
        (has("TOTAL(") || has("GROUP_CONCAT("), "functions"),
    ];
    kinds.into_iter().find(|(is_there, _)| *is_there).map(|(_, kind)| kind)
}

/// True where a sign stands before a name, which may be that of a text.
pub fn signs_a_column(sql: &str) -> bool {
    let words: Vec<&str> = sql.split_whitespace().collect();
    words.windows(3).any(|words| {
        let operand = words[0].ends_with(|letter: char| letter.is_alphanumeric() || letter == ')');
        let keyword = ["SELECT", "NOT", "AND", "OR", "WHERE", "ALL", "DISTINCT"].contains(&words[0]);
        (keyword || !operand) && words[1] == "+" && words[2].starts_with(|letter: char| letter.is_alphabetic())
    })
}

/// True where two columns of a SELECT have the same name, or one has the name of a column in it. `sql` is in capitals.
fn repeats_a_name(sql: &str) -> bool {
    let list = sql.split(" FROM ").next().unwrap_or_default();
    let items = list.split(',').filter_map(|item| item.split_whitespace().next_back());
    let mut names: Vec<&str> = items.map(|item| item.rsplit('.').next().unwrap_or(item)).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Query;

    fn query(sql: &str) -> Record {
        let query = Query { letters: "I".to_string(), sort: "rowsort".to_string(), answer: Vec::new() };
        Record { line: 1, sql: sql.to_string(), kind: Kind::Query(query) }
    }

    #[test]
    fn the_page_names_every_kind() {
        let page = include_str!("../../../docs/sql.md");
        let errors = ERRORS.iter().map(|(_, kind)| *kind);
        let forms = ["x/y", "SELECT 1 IN ()", "SELECT total(a) FROM t"].map(|sql| of_form(sql).expect("a kind"));
        let refused = Record { line: 1, sql: String::new(), kind: Kind::Statement { fails: true } };
        let answers =
            [&refused, &query("SELECT 1 / COALESCE(2, AVG(3))")].map(|record| of_answer(record).expect("a kind"));
        for kind in errors.chain(forms).chain([TRIGGERS, REPLACE]).chain(answers) {
            assert!(page.contains(&format!("| {kind} |")), "docs/sql.md has no row for {kind}");
        }
    }

    #[test]
    fn errors_and_statements_have_kinds_by_their_words() {
        assert_eq!(of_error("Arrow error: Divide by zero error"), Some("division by zero"));
        assert_eq!(of_error("no such table"), None);
        assert_eq!(of_statement("REPLACE INTO t VALUES (1)"), Some(REPLACE));
        assert_eq!(of_statement("drop trigger r"), Some(TRIGGERS));
        assert_eq!(of_statement("INSERT INTO t VALUES (1)"), None);
        for other in ["SELECT 1 / COALESCE(2, 3)", "SELECT 1 / AVG(2)", "SELECT COALESCE(2, AVG(3))"] {
            assert_eq!(of_answer(&query(other)), None, "{other}");
        }
    }

    #[test]
    fn statements_about_indexes_and_tables_are_told_from_others() {
        assert!(is_about_an_index("CREATE UNIQUE INDEX i ON t(a)") && is_about_an_index("reindex"));
        assert!(!is_about_an_index("CREATE TABLE t(a INTEGER)"));
        assert_eq!(made_table("CREATE TABLE t1(a INTEGER)"), Some("t1"));
        assert!(makes_a_table("INSERT INTO t VALUES (1)") && !makes_a_table("DELETE FROM t"));
    }

    #[test]
    fn a_sample_leaves_forms_out() {
        for (sql, kind) in [
            ("SELECT a AS x, b AS x FROM t", Some(ONE_NAME)),
            ("SELECT a AS x, b AS y FROM t", None),
            ("SELECT a FROM t1 WHERE (SELECT count(*) FROM t1 AS x WHERE x.b<t1.b) > 0", Some(CORRELATED)),
        ] {
            assert_eq!(of_form(sql), kind, "{sql}");
        }
        assert!(signs_a_column("SELECT ALL + s FROM t"));
        assert!(!signs_a_column("SELECT a + b FROM t"));
    }
}
