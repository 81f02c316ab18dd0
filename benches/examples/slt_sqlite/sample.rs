//! Writes a sample of drawn records as files that `benches/tests/slt` runs: `--write DIR`.
//!
//! ```text
//!   scripts ─► those of short set-ups, of tables alone ─► queries in both dialects ─► DIR/<folder>.slt, tables dropped
//!                                                                                     between scripts
//! ```
//!
//! Rule      a record is left out for the form of its SQL, never for our answer (`kinds::of_form`).
//! Answers   the file's own, which are SQLite's.

use std::collections::BTreeMap;
use std::path::Path;

use crate::reader::Record;
use crate::{Script, draw, kinds};

/// A set-up with more statements is left out: it would fill the sample.
const SHORT: usize = 40;

/// A script of the sample: the statements that make its tables, and queries over them.
struct Taken<'a> {
    name: &'a str,
    statements: Vec<&'a Record>,
    queries: Vec<&'a Record>,
}

/// Part of a script that the sample may take.
fn taken(script: &Script) -> Option<Taken<'_>> {
    let (queries, statements): (Vec<&Record>, Vec<&Record>) = script.records.iter().partition(|it| it.is_query());
    let plain = statements.len() <= SHORT && statements.iter().all(|it| kinds::makes_a_table(&it.sql));
    let texts = statements.iter().any(|it| it.sql.to_uppercase().contains(" TEXT"));
    let differs = |sql: &str| kinds::of_form(sql).is_some() || texts && kinds::signs_a_column(sql);
    let queries: Vec<&Record> = queries.into_iter().filter(|it| !differs(&it.sql)).collect();
    (plain && !queries.is_empty()).then_some(Taken { name: &script.name, statements, queries })
}

/// The file for a script: its folder, without the numbers of rows in it.
fn file_of(name: &str) -> String {
    let parts = Path::new(name).parent().into_iter().flat_map(Path::components);
    let words = parts.map(|part| part.as_os_str().to_string_lossy().into_owned());
    let words: Vec<String> = words.filter(|word| word.parse::<usize>().is_err()).collect();
    if words.is_empty() { "select".to_string() } else { words.join("_") }
}

/// Writes files of `wanted` queries in all, with an equal share of each script; the number that there are.
pub fn write(folder: &Path, scripts: &[Script], wanted: usize) -> Result<usize, String> {
    let taken: Vec<Taken<'_>> = scripts.iter().filter_map(taken).collect();
    let has: Vec<usize> = taken.iter().map(|script| script.queries.len()).collect();
    let shares = draw::shares(&has, wanted);
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for (script, share) in taken.iter().zip(&shares) {
        let text = files.entry(file_of(script.name)).or_insert_with(head);
        add(text, script, *share);
    }
    for (name, text) in files {
        let path = folder.join(format!("{name}.slt"));
        std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(shares.iter().sum())
}

/// Adds a script to its file, and drops its tables.
fn add(text: &mut String, script: &Taken<'_>, share: usize) {
    if share == 0 {
        return;
    }
    *text += &format!("# {}\n\n", script.name);
    for record in script.statements.iter().chain(&script.queries[..share]) {
        *text += &format!("{}\n", record.text());
    }
    for table in script.statements.iter().filter_map(|record| kinds::made_table(&record.sql)) {
        *text += &format!("statement ok\nDROP TABLE {table}\n\n");
    }
}

/// The beginning of a file: values one a line, and SQLite's threshold for digests.
fn head() -> String {
    "# Written by cargo slt-sqlite --write: do not edit.\n\ncontrol resultmode valuewise\n\nhash-threshold 8\n\n"
        .to_string()
}
