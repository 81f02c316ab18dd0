//! Reads a file of SQLite's logic tests.
//!
//! ```text
//!   skipif mysql # not compatible       conditions, for an engine of the name `millpond`
//!   query II rowsort label-0            head
//!   SELECT a / b, c FROM t              SQL, on one line or several
//!   ----
//!   3 values, one a line                answer
//! ```
//!
//! Name      an engine with a name of its own runs every record that is written for SQL at large (`skipif other`) and
//!           none that is written for one engine (`onlyif other`), those for SQLite included: they use its dialect.
//! Dropped   records under `skipif sqlite`, which have no answer of SQLite; everything after `halt`; labels and
//!           comments.

use std::path::Path;

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Line in the file, from 1.
    pub line: usize,
    pub sql: String,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A statement, which SQLite carries out or refuses.
    Statement {
        fails: bool,
    },
    Query(Query),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// I, R or T for each column.
    pub letters: String,
    /// How rows are ordered before they are compared.
    pub sort: String,
    /// Its values, one a line, or their number and their digest.
    pub answer: Vec<String>,
}

impl Record {
    pub fn is_query(&self) -> bool {
        matches!(self.kind, Kind::Query(_))
    }

    /// The record as the crate `sqllogictest` reads it.
    pub fn text(&self) -> String {
        match &self.kind {
            Kind::Statement { fails: false } => format!("statement ok\n{}\n", self.sql),
            Kind::Statement { fails: true } => format!("statement error\n{}\n", self.sql),
            Kind::Query(Query { letters, sort, answer }) => {
                let answer: String = answer.iter().map(|value| format!("{value}\n")).collect();
                format!("query {letters} {sort}\n{}\n----\n{answer}", self.sql)
            }
        }
    }
}

pub fn read(path: &Path) -> Result<Vec<Record>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(records(&String::from_utf8_lossy(&bytes)))
}

fn records(text: &str) -> Vec<Record> {
    let mut records = Vec::new();
    let mut block: Vec<(usize, &str)> = Vec::new();
    for (number, line) in text.lines().enumerate().chain([(0, "")]) {
        match line.trim_end() {
            "" => match record(&std::mem::take(&mut block)) {
                Read::Record(record) => records.push(record),
                Read::Nothing => {}
                Read::Halt => break,
            },
            line if line.starts_with('#') => {}
            line => block.push((number + 1, line)),
        }
    }
    records
}

enum Read {
    Record(Record),
    Nothing,
    Halt,
}

fn record(mut lines: &[(usize, &str)]) -> Read {
    let begins = lines.first().map_or(0, |(number, _)| *number);
    while let Some(((_, line), rest)) = lines.split_first() {
        let mut words = line.split_whitespace();
        let runs = match (words.next(), words.next()) {
            (Some("skipif"), Some(engine)) => engine != "sqlite",
            (Some("onlyif"), _) => false,
            _ => break,
        };
        if !runs {
            return Read::Nothing;
        }
        lines = rest;
    }
    let Some(((_, head), body)) = lines.split_first() else { return Read::Nothing };
    let head: Vec<&str> = head.split_whitespace().collect();
    let kind = match head.as_slice() {
        ["halt", ..] => return Read::Halt,
        ["statement", expected, ..] => Kind::Statement { fails: *expected == "error" },
        ["query", letters, sort, ..] => {
            let Some(end) = body.iter().position(|(_, line)| *line == "----") else { return Read::Nothing };
            let answer = body[end + 1..].iter().map(|(_, line)| (*line).to_string()).collect();
            let query = Query { letters: (*letters).to_string(), sort: (*sort).to_string(), answer };
            return Read::Record(Record { line: begins, sql: sql(&body[..end]), kind: Kind::Query(query) });
        }
        _ => return Read::Nothing,
    };
    Read::Record(Record { line: begins, sql: sql(body), kind })
}

fn sql(lines: &[(usize, &str)]) -> String {
    let lines: Vec<&str> = lines.iter().map(|(_, line)| *line).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
hash-threshold 8

# A table.
statement ok
CREATE TABLE t(a INTEGER,
               b INTEGER)

onlyif mysql # DIV is an integer division:
query I rowsort label-3
SELECT a DIV b FROM t
----
1

skipif mysql # no integers
skipif postgresql
query I rowsort label-3
SELECT a / b FROM t
# a comment inside
WHERE b <> 0
----
1
NULL

skipif sqlite
statement error
CREATE TABLE t(a INTEGER)

query IT nosort
SELECT a, 'x' FROM t WHERE a < 0
----

onlyif sqlite
halt

statement error
CREATE TABLE t(a INTEGER)

halt

query I nosort
SELECT 1
----
1
";

    fn query(letters: &str, sort: &str, answer: &[&str]) -> Kind {
        let answer = answer.iter().map(|value| (*value).to_string()).collect();
        Kind::Query(Query { letters: letters.to_string(), sort: sort.to_string(), answer })
    }

    #[test]
    fn an_engine_of_another_name_runs_what_is_written_for_sql_at_large() {
        let record = |line, sql: &str, kind| Record { line, sql: sql.to_string(), kind };
        let expected = [
            record(4, "CREATE TABLE t(a INTEGER,\n               b INTEGER)", Kind::Statement { fails: false }),
            record(14, "SELECT a / b FROM t\nWHERE b <> 0", query("I", "rowsort", &["1", "NULL"])),
            record(28, "SELECT a, 'x' FROM t WHERE a < 0", query("IT", "nosort", &[])),
            record(35, "CREATE TABLE t(a INTEGER)", Kind::Statement { fails: true }),
        ];
        assert_eq!(records(FILE), expected);
    }

    #[test]
    fn a_record_is_written_as_it_is_read() {
        for record in records(FILE) {
            let mut again = records(&record.text());
            again[0].line = record.line;
            assert_eq!(again, [record]);
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = read(Path::new("no/such.test")).expect_err("there is none");
        assert!(error.contains("no/such.test"), "{error}");
        assert!(records(FILE)[1].is_query());
    }
}
