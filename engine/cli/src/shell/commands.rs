//! Commands of the shell: psql's with a backslash, and DuckDB's with a dot.
//!
//! ```text
//!   \d sales    .schema sales ─► Command::Describe("sales")
//! ```
//!
//! A line that begins with `\`, or with `.` and a letter, is a command, up to the end of the line. No SQL statement
//! begins like this.

use millpond::options::nearest;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Help,
    /// The columns of a table or file.
    Describe(String),
    Tables,
    Schemas,
    Timing(Option<bool>),
    /// Writes answers to a file; `None` selects the screen.
    Output(Option<String>),
    Read(String),
    /// Prints one line per value.
    Lines(Option<bool>),
    Format(Option<String>),
    Rows(Option<String>),
    Pager(Option<bool>),
    Why,
    Cache,
    Quit,
}

/// A command's entry in the help.
pub struct Entry {
    pub name: &'static str,
    /// DuckDB's name.
    pub twin: &'static str,
    pub argument: &'static str,
    pub does: &'static str,
}

const fn entry(name: &'static str, twin: &'static str, argument: &'static str, does: &'static str) -> Entry {
    Entry { name, twin, argument, does }
}

/// All commands.
pub const ALL: [Entry; 14] = [
    entry("\\?", ".help", "", "list the commands"),
    entry("\\d", ".schema", "[NAME|'FILE']", "columns of a table or file; without a name, the tables"),
    entry("\\dt", ".tables", "", "tables and views"),
    entry("\\l", ".databases", "", "catalogs and schemas"),
    entry("\\timing", ".timer", "[on|off]", "the line after each answer: rows, time, where it ran"),
    entry(
        "\\o",
        ".output",
        "[FILE]",
        "write answers to a file, its format by its ending; without a file, to the screen",
    ),
    entry("\\i", ".read", "FILE", "run the statements of a file"),
    entry("\\x", ".lines", "[on|off]", "a line for each value"),
    entry("\\format", ".mode", "[FORMAT]", "table, line, csv, tsv, json, ndjson, markdown, none"),
    entry("\\rows", ".maxrows", "[N|all]", "rows of an answer that a table shows"),
    entry("\\pager", ".pager", "[on|off]", "show long answers with $PAGER, or less"),
    entry("\\why", ".why", "", "why parts of the last query did not run on the device"),
    entry("\\cache", ".cache", "", "columns that are kept on the device, and the memory that queries use"),
    entry("\\q", ".quit", "", "leave (Ctrl-D)"),
];

/// True for a line that is a command.
pub fn is_command(line: &str) -> bool {
    let line = line.trim_start();
    let mut letters = line.chars();
    match letters.next() {
        Some('\\') => true,
        Some('.') => letters.next().is_some_and(|letter| letter.is_ascii_alphabetic()),
        _ => false,
    }
}

/// True for words that people type to leave a shell or to get help.
pub fn is_word_of_the_shell(text: &str) -> bool {
    ["exit", "quit", "help"].iter().any(|word| text.trim().eq_ignore_ascii_case(word))
}

/// Reads a command.
///
/// # Errors
/// A message for an unknown command or a wrong argument.
pub fn parse(line: &str) -> Result<Command, String> {
    let line = line.trim().trim_end_matches(';').trim_end();
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let argument = argument.trim();
    let given = (!argument.is_empty()).then(|| argument.to_string());
    let switch = || match argument {
        "" => Ok(None),
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        other => Err(format!("{name} takes on or off, not '{other}'")),
    };
    let needed = |what: &str| given.clone().ok_or_else(|| format!("{name} takes {what}"));
    let command = match name {
        "\\?" | "\\h" | "\\help" | ".help" => Command::Help,
        "\\d" | ".schema" => match given {
            Some(table) => Command::Describe(table),
            None => Command::Tables,
        },
        "\\dt" | "\\dv" | ".tables" => Command::Tables,
        "\\l" | "\\dn" | ".databases" => Command::Schemas,
        "\\timing" | ".timer" => Command::Timing(switch()?),
        "\\o" | ".output" | ".once" => Command::Output(given.map(unquoted)),
        "\\i" | "\\ir" | ".read" => Command::Read(unquoted(needed("a file of statements")?)),
        "\\x" | ".lines" => Command::Lines(switch()?),
        "\\format" | ".mode" => Command::Format(given),
        "\\rows" | ".maxrows" => Command::Rows(given),
        "\\pager" | ".pager" => Command::Pager(switch()?),
        "\\why" | ".why" => Command::Why,
        "\\cache" | ".cache" => Command::Cache,
        "\\q" | "\\quit" | ".quit" | ".exit" => Command::Quit,
        unknown => {
            let names: Vec<&str> = ALL.iter().flat_map(|entry| [entry.name, entry.twin]).collect();
            let meant = nearest(unknown, &names).map_or_else(String::new, |name| format!("; did you mean {name}?"));
            return Err(format!("there is no command {unknown}{meant} (\\? lists them)"));
        }
    };
    Ok(command)
}

/// A path without its enclosing quotes.
fn unquoted(path: String) -> String {
    let inner = path.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
    inner.map_or(path.clone(), str::to_string)
}

/// The list of commands.
pub fn help() -> String {
    let usage = |entry: &Entry| format!("{} {}", entry.name, entry.argument).trim_end().to_string();
    let width = ALL.iter().map(|entry| usage(entry).len()).max().unwrap_or(0);
    let lines = ALL.iter().map(|entry| format!("  {:width$}  {:10}  {}\n", usage(entry), entry.twin, entry.does));
    let statements = "Statements end with a semicolon, on as many lines as they take. Tab completes names; Ctrl-C ends the query that runs,\n\
                      or clears the line.\n\n";
    statements.to_string() + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command_by_its_first_letters() {
        assert!(["\\d", "  \\timing on", ".tables", "\\"].iter().all(|line| is_command(line)));
        assert!(![".5 + 1;", "SELECT 1;", "", "-- \\d"].iter().any(|line| is_command(line)));
    }

    #[test]
    fn both_names_mean_one_command() {
        for (line, twin) in
            [("\\d t", ".schema t"), ("\\dt", ".tables"), ("\\q", ".exit"), ("\\x", ".lines"), ("\\?", ".help")]
        {
            assert_eq!(parse(line), parse(twin), "{line}");
        }
        assert_eq!(parse("\\d"), Ok(Command::Tables));
        assert_eq!(parse("\\timing off;"), Ok(Command::Timing(Some(false))));
        assert_eq!(parse(".timer"), Ok(Command::Timing(None)));
        assert_eq!(parse("\\o 'a b.csv'"), Ok(Command::Output(Some("a b.csv".to_string()))));
        assert_eq!(parse("\\o"), Ok(Command::Output(None)));
        for entry in &ALL {
            assert!(parse(&format!("{} on", entry.name)).is_ok(), "{}", entry.name);
            assert!(parse(&format!("{} on", entry.twin)).is_ok(), "{}", entry.twin);
            assert!(help().contains(entry.does));
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_a_way_out() {
        let error = |line| parse(line).expect_err("an error");
        assert_eq!(error("\\timin"), "there is no command \\timin; did you mean \\timing? (\\? lists them)");
        assert_eq!(error("\\zzzzzz"), "there is no command \\zzzzzz (\\? lists them)");
        assert_eq!(error("\\x maybe"), "\\x takes on or off, not 'maybe'");
        assert_eq!(error("\\i"), "\\i takes a file of statements");
    }
}
