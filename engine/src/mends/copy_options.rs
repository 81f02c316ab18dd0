//! COPY options in the syntax of DuckDB and PostgreSQL, and file formats derived from target names.
//!
//! ```text
//!   text    COPY q TO 'x' (FORMAT csv, DELIMITER ';', PARTITION_BY (k))
//!      ─►   COPY q TO 'x' STORED AS CSV PARTITIONED BY (k) OPTIONS ('format.delimiter' ';')
//!   tree    TO 'x.csv.gz' ─► STORED AS CSV OPTIONS ('format.compression' 'gzip')      x.tsv, x.ndjson ─► CSV, JSON
//!           TO 'folder/', TO '/dev/stdout' without a format ─► refused: name one
//! ```
//!
//! Left   unchanged: options in OPTIONS (…), which are DataFusion's; a format named by STORED AS.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::sql::parser::{CopyToStatement, Statement};
use datafusion::sql::sqlparser::ast::Value;
use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

/// Formats that COPY writes, by their names in statements: the format, and the delimiter that the name implies.
const FORMATS: [(&str, &str, Option<&str>); 7] = [
    ("csv", "CSV", None),
    ("tsv", "CSV", Some("\t")),
    ("json", "JSON", None),
    ("ndjson", "JSON", None),
    ("jsonl", "JSON", None),
    ("parquet", "PARQUET", None),
    ("arrow", "ARROW", None),
];

/// Extensions of compressed files, and their compressions.
const COMPRESSIONS: [(&str, &str); 4] = [("gz", "gzip"), ("zst", "zstd"), ("bz2", "bzip2"), ("xz", "xz")];

/// Options in parentheses that DataFusion has under another name.
const RENAMED: [(&str, &str); 14] = [
    ("header", "format.has_header"),
    ("delimiter", "format.delimiter"),
    ("delim", "format.delimiter"),
    ("sep", "format.delimiter"),
    ("quote", "format.quote"),
    ("escape", "format.escape"),
    ("null", "format.null_value"),
    ("nullstr", "format.null_value"),
    ("dateformat", "format.date_format"),
    ("timestampformat", "format.timestamp_format"),
    ("compression", "format.compression"),
    ("codec", "format.compression"),
    ("row_group_size", "format.max_row_group_size"),
    ("compression_level", "format.compression_level"),
];

/// Parquet compressions for which DataFusion requires a level, with the default levels of other programs.
const LEVELS: [(&str, &str); 3] = [("zstd", "zstd(3)"), ("gzip", "gzip(6)"), ("brotli", "brotli(4)")];

const DELIMITER: &str = "format.delimiter";
const COMPRESSION: &str = "format.compression";

/// Option names in parentheses, for messages.
const KNOWN: &str = "FORMAT, HEADER, DELIMITER, QUOTE, ESCAPE, NULL, DATEFORMAT, TIMESTAMPFORMAT, COMPRESSION, ROW_GROUP_SIZE and PARTITION_BY";

/// Rewrites the COPY statements of a text with their options in DataFusion's form.
///
/// # Errors
/// If an option is unknown. A text that cannot be tokenized is left to the parser.
pub(crate) fn written_out<'a>(sql: &'a str, dialect: &dyn Dialect) -> Result<Cow<'a, str>> {
    let is_copy = |word: &[u8]| word.eq_ignore_ascii_case(b"copy");
    if !sql.as_bytes().windows(4).any(is_copy) {
        return Ok(Cow::Borrowed(sql));
    }
    let mut tokens = Tokenizer::new(dialect, sql).tokenize_with_location().unwrap_or_default();
    tokens.retain(|token| !matches!(token.token, Token::Whitespace(_) | Token::EOF));
    let mut written = Cow::Borrowed(sql);
    // In reverse order, so that earlier positions stay valid.
    for statement in tokens.split(|token| token.token == Token::SemiColon).rev() {
        let Some(group) = group_of(statement) else { continue };
        let (open, close) = (&statement[group.start], &statement[group.end - 1]);
        let inside = &statement[group.start..group.end];
        let inside = if word(open).is_some() { &inside[2..inside.len() - 1] } else { &inside[1..inside.len() - 1] };
        let clauses = clauses(inside)?;
        let bytes = offset(sql, open.span.start)..offset(sql, close.span.start) + 1;
        written.to_mut().replace_range(bytes, &clauses);
    }
    Ok(written)
}

/// Token range of the options in parentheses of a COPY, including a preceding WITH.
fn group_of(statement: &[TokenWithSpan]) -> Option<Range<usize>> {
    let mut at = 0;
    while statement.get(at).and_then(word).is_some_and(|word| is_one_of(word, &["explain", "analyze", "verbose"])) {
        at += 1;
    }
    statement.get(at).and_then(word).filter(|word| word.eq_ignore_ascii_case("copy"))?;
    let (mut depth, mut is_behind_target) = (0_usize, false);
    for (place, token) in statement.iter().enumerate().skip(at) {
        match &token.token {
            Token::LParen if depth == 0 && is_behind_target => {
                let is_with = word(&statement[place - 1]).is_some_and(|word| word.eq_ignore_ascii_case("with"));
                let is_plain = is_with || matches!(statement[place - 1].token, Token::SingleQuotedString(_));
                // OPTIONS (…) and PARTITIONED BY (…) are left to the parser.
                let end = is_plain.then(|| closing(statement, place)).flatten()?;
                return Some(place - usize::from(is_with)..end);
            }
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.checked_sub(1)?,
            Token::SingleQuotedString(_) if depth == 0 => {
                is_behind_target |= word(&statement[place - 1]).is_some_and(|word| word.eq_ignore_ascii_case("to"));
            }
            _ => {}
        }
    }
    None
}

/// Index after the parenthesis that closes the one at `open`.
fn closing(tokens: &[TokenWithSpan], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(place + 1);
        }
    }
    None
}

/// Clauses equivalent to the options in parentheses.
fn clauses(options: &[TokenWithSpan]) -> Result<String> {
    let (mut stored_as, mut partitioned_by, mut others) = (None, None, Vec::new());
    for option in at_commas(options) {
        let Some((name, value)) = named(option) else {
            return plan_err!("COPY has no option '{}'; in parentheses it takes {KNOWN}", text(option));
        };
        match name.to_ascii_lowercase().as_str() {
            "format" => {
                let given = single(&name, value)?;
                let Some((_, format, delimiter)) = format(&given) else {
                    return plan_err!("COPY cannot write the format '{given}': it writes {}", formats());
                };
                stored_as = Some(format);
                others.extend(delimiter.map(|delimiter| (DELIMITER.to_string(), delimiter.to_string())));
            }
            "partition_by" => partitioned_by = Some(keys(value)?),
            "header" => others.push(("format.has_header".to_string(), truth(&name, value)?)),
            // Names with a dot are DataFusion's.
            dotted if dotted.contains('.') => others.push((dotted.to_string(), single(&name, value)?)),
            known => {
                let Some((_, option)) = RENAMED.iter().find(|(name, _)| *name == known) else {
                    return plan_err!(
                        "COPY has no option {}; in parentheses it takes {KNOWN}, and DataFusion's by their names, such as \
                         'format.max_row_group_size' 100000",
                        name.to_ascii_uppercase()
                    );
                };
                let value = single(&name, value)?;
                let value = if *option == DELIMITER && value == "\\t" { "\t".to_string() } else { value };
                others.push(((*option).to_string(), value));
            }
        }
    }
    let mut clauses = Vec::new();
    clauses.extend(stored_as.map(|format| format!("STORED AS {format}")));
    clauses.extend(partitioned_by.map(|keys| format!("PARTITIONED BY ({})", keys.join(", "))));
    if !others.is_empty() {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let others: Vec<String> =
            others.iter().map(|(key, value)| format!("{} {}", quoted(key), quoted(value))).collect();
        clauses.push(format!("OPTIONS ({})", others.join(", ")));
    }
    Ok(format!(" {}", clauses.join(" ")))
}

/// Splits a list at its top-level commas.
fn at_commas(list: &[TokenWithSpan]) -> Vec<&[TokenWithSpan]> {
    let (mut depth, mut first, mut parts) = (0_usize, 0, Vec::new());
    for (place, token) in list.iter().enumerate() {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            Token::Comma if depth == 0 => {
                parts.push(&list[first..place]);
                first = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[first..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Name of an option, which may contain dots, and the tokens of its value.
fn named(option: &[TokenWithSpan]) -> Option<(String, &[TokenWithSpan])> {
    let (first, mut rest) = option.split_first()?;
    let mut name = match &first.token {
        Token::Word(word) => word.value.clone(),
        Token::SingleQuotedString(name) => name.clone(),
        _ => return None,
    };
    while let [dot, next, more @ ..] = rest
        && dot.token == Token::Period
    {
        name = format!("{name}.{}", word(next)?);
        rest = more;
    }
    if let [equals, more @ ..] = rest
        && equals.token == Token::Eq
    {
        rest = more;
    }
    Some((name, rest))
}

/// The single value of an option.
fn single(name: &str, value: &[TokenWithSpan]) -> Result<String> {
    let one = match value {
        [one] => match &one.token {
            Token::Word(word) => Some(word.value.clone()),
            Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => Some(text.clone()),
            Token::Number(digits, _) => Some(digits.clone()),
            _ => None,
        },
        _ => None,
    };
    match one {
        Some(one) => Ok(one),
        None if value.is_empty() => plan_err!("COPY's option {} needs a value", name.to_ascii_uppercase()),
        None => plan_err!("COPY's option {} takes one value, not '{}'", name.to_ascii_uppercase(), text(value)),
    }
}

/// Boolean value of an option; true if it has no value.
fn truth(name: &str, value: &[TokenWithSpan]) -> Result<String> {
    if value.is_empty() {
        return Ok("true".to_string());
    }
    let given = single(name, value)?;
    match given.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok("true".to_string()),
        "false" | "off" | "0" => Ok("false".to_string()),
        _ => plan_err!("COPY's option {} takes true or false, not '{given}'", name.to_ascii_uppercase()),
    }
}

/// Column names, in parentheses or a single one, as written.
fn keys(value: &[TokenWithSpan]) -> Result<Vec<String>> {
    let list = match value {
        [open, inside @ .., close] if open.token == Token::LParen && close.token == Token::RParen => inside,
        alone => alone,
    };
    let names: Option<Vec<String>> = at_commas(list)
        .into_iter()
        .map(|name| (name.len() == 1 && word(&name[0]).is_some()).then(|| text(name)))
        .collect();
    match names.filter(|names| !names.is_empty()) {
        Some(names) => Ok(names),
        None => plan_err!("PARTITION_BY takes names of columns, such as (year, month), not '{}'", text(value)),
    }
}

/// Adds the format and the compression that the target's name implies to a COPY.
///
/// # Errors
/// If the target's format is unknown.
pub(super) fn completed(statement: &mut Statement) -> Result<()> {
    let mut statement = statement;
    while let Statement::Explain(explain) = statement {
        statement = &mut explain.statement;
    }
    let Statement::CopyTo(copy) = statement else { return Ok(()) };
    copy.partitioned_by.iter_mut().for_each(crate::files::address::unquote);
    let target = copy.target.clone();
    let path = Path::new(&target);
    let ending = ending(path);
    let compression = COMPRESSIONS.iter().find(|(end, _)| *end == ending).map(|(_, compression)| *compression);
    if copy.stored_as.is_none() {
        let inner = match compression {
            Some(_) => self::ending(Path::new(path.file_stem().unwrap_or_default())),
            None => ending.clone(),
        };
        let is_folder = target.ends_with('/') || path.is_dir();
        if is_folder || inner.is_empty() {
            let what = if is_folder { "a folder" } else { "a name without an ending" };
            return plan_err!(
                "COPY cannot tell the format of '{target}', which is {what}: add STORED AS PARQUET, or (FORMAT csv); it writes {}",
                formats()
            );
        }
        match format(&inner) {
            Some((_, format, delimiter)) => {
                // Extensions of DataFusion's own formats, and of those that a program has added, are left to
                // DataFusion.
                if compression.is_some() || !format.eq_ignore_ascii_case(&inner) {
                    copy.stored_as = Some(format.to_string());
                }
                add(copy, DELIMITER, delimiter);
            }
            None if compression.is_some() => {
                return plan_err!(
                    "COPY cannot tell the format of '{target}': before .{ending} it ends in .{inner}, and it writes {}",
                    formats()
                );
            }
            None => {}
        }
    }
    let is_text = |format: &String| is_one_of(format, &["csv", "json"]);
    match (&copy.stored_as, compression) {
        (Some(format), Some(compression)) if is_text(format) => add(copy, COMPRESSION, Some(compression)),
        (Some(format), Some(_)) => {
            return plan_err!(
                "COPY does not compress a file of {format} as a whole: name it without .{ending}; its pages are compressed, and \
                 OPTIONS ('format.compression' 'zstd(3)') says how"
            );
        }
        _ => {}
    }
    let format = copy.stored_as.as_ref().unwrap_or(&ending).to_ascii_lowercase();
    copy.options.iter().try_for_each(|(key, value)| checked(&format, key, value))?;
    if format == "parquet" {
        for (_, value) in copy.options.iter_mut().filter(|(key, _)| key.eq_ignore_ascii_case(COMPRESSION)) {
            if let Value::SingleQuotedString(name) = value
                && let Some((_, level)) = LEVELS.iter().find(|(plain, _)| plain.eq_ignore_ascii_case(name))
            {
                *name = (*level).to_string();
            }
        }
    }
    Ok(())
}

/// Options that csv alone has.
const CSV_OPTIONS: [&str; 7] = [
    "format.has_header",
    DELIMITER,
    "format.quote",
    "format.escape",
    "format.null_value",
    "format.date_format",
    "format.timestamp_format",
];

/// Refuses a value that DataFusion accepts and the writer of the format does not.
fn checked(format: &str, key: &str, value: &Value) -> Result<()> {
    let key = key.to_ascii_lowercase();
    let key = if key.starts_with("format.") { key } else { format!("format.{key}") };
    let name = RENAMED.iter().find(|(_, option)| *option == key).map_or(key.as_str(), |(name, _)| *name);
    let name = name.to_ascii_uppercase();
    let text = match value {
        Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => text.clone(),
        other => other.to_string(),
    };
    if format != "csv"
        && CSV_OPTIONS.contains(&key.as_str())
        && FORMATS.iter().any(|(_, known, _)| format.eq_ignore_ascii_case(known))
    {
        return plan_err!("COPY's option {name} is for csv, and this file is {format}: leave it out");
    }
    let is_character = ["format.quote", "format.escape", DELIMITER].contains(&key.as_str());
    if is_character && text.len() != 1 {
        return plan_err!("COPY's option {name} takes one ASCII character, not '{text}'");
    }
    if key == "format.max_row_group_size" && text.parse::<u64>().is_ok_and(|rows| rows == 0) {
        return plan_err!("COPY's option {name} takes a number of rows from 1, not '{text}'");
    }
    Ok(())
}

/// Adds an option unless the statement already has it.
fn add(copy: &mut CopyToStatement, option: &str, value: Option<&str>) {
    let is = |key: &str| key.eq_ignore_ascii_case(option) || format!("format.{key}").eq_ignore_ascii_case(option);
    if let (Some(value), false) = (value, copy.options.iter().any(|(key, _)| is(key))) {
        copy.options.push((option.to_string(), Value::SingleQuotedString(value.to_string())));
    }
}

fn ending(path: &Path) -> String {
    path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

fn format(name: &str) -> Option<(&'static str, &'static str, Option<&'static str>)> {
    FORMATS.into_iter().find(|(known, ..)| known.eq_ignore_ascii_case(name))
}

/// The formats, for messages.
fn formats() -> String {
    let [most @ .., last] = FORMATS.map(|(name, ..)| name);
    format!("{} and {last}", most.join(", "))
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|one| one.eq_ignore_ascii_case(word))
}

fn word(token: &TokenWithSpan) -> Option<&str> {
    match &token.token {
        Token::Word(word) => Some(&word.value),
        _ => None,
    }
}

fn text(tokens: &[TokenWithSpan]) -> String {
    tokens.iter().map(|token| token.token.to_string()).collect::<Vec<_>>().join(" ")
}

/// Byte offset of a tokenizer location: lines and columns from 1, columns in characters.
fn offset(sql: &str, location: Location) -> usize {
    let mut start = 0;
    for (line, number) in sql.split_inclusive('\n').zip(1..) {
        if number == location.line {
            let column = (location.column as usize).saturating_sub(1);
            return start + line.char_indices().nth(column).map_or(line.len(), |(byte, _)| byte);
        }
        start += line.len();
    }
    sql.len()
}

#[cfg(test)]
mod tests {
    use datafusion::error::DataFusionError;
    use datafusion::sql::parser::DFParserBuilder;
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::*;

    fn written(sql: &str) -> String {
        written_out(sql, &GenericDialect {}).expect("known options").into_owned()
    }

    fn refused(sql: &str) -> String {
        written_out(sql, &GenericDialect {}).expect_err("refused").strip_backtrace()
    }

    #[test]
    fn options_in_parentheses_become_clauses() {
        assert_eq!(
            written("COPY t TO 'é.csv' (FORMAT csv, HEADER false, DELIMITER ';')"),
            "COPY t TO 'é.csv'  STORED AS CSV OPTIONS ('format.has_header' 'false', 'format.delimiter' ';')"
        );
        assert_eq!(
            written(
                "EXPLAIN COPY (SELECT (1) AS a,\n 'TO' AS b) TO 'd'\nWITH (format PARQUET, partition_by (a, \"B c\"), row_group_size 10); SELECT 1"
            ),
            "EXPLAIN COPY (SELECT (1) AS a,\n 'TO' AS b) TO 'd'\n STORED AS PARQUET PARTITIONED BY (a, \"B c\") OPTIONS ('format.max_row_group_size' '10'); SELECT 1"
        );
        assert_eq!(
            written("copy t to 'x' (format tsv, header, null 'it''s', partition_by k, 'format.quote_style' Always)"),
            "copy t to 'x'  STORED AS CSV PARTITIONED BY (k) OPTIONS ('format.delimiter' '\t', 'format.has_header' 'true', \
             'format.null_value' 'it''s', 'format.quote_style' 'Always')"
        );
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for sql in [
            "SELECT copy FROM t WHERE a IN (1, 2)",
            "COPY t TO 'x.csv'",
            "COPY (SELECT 1) TO 'x' STORED AS CSV OPTIONS ('format.has_header' 'false')",
            "COPY t TO 'x' PARTITIONED BY (k)",
            "COPY t TO 'x' (FORMAT",
            "SELECT 'COPY t TO x (FORMAT csv)'",
        ] {
            assert_eq!(written(sql), sql);
        }
    }

    #[test]
    fn unknown_options_are_refused_with_those_that_are_known() {
        let unknown = refused("COPY t TO 'x' (FORMAT csv, OVERWRITE true)");
        assert!(unknown.contains("COPY has no option OVERWRITE; in parentheses it takes FORMAT, HEADER"), "{unknown}");
        let format = refused("COPY t TO 'x' (FORMAT xlsx)");
        assert!(format.contains("cannot write the format 'xlsx': it writes csv, tsv,"), "{format}");
        let header = refused("COPY t TO 'x' (HEADER maybe)");
        assert!(header.contains("HEADER takes true or false, not 'maybe'"), "{header}");
        let keys = refused("COPY t TO 'x' (PARTITION_BY (a + 1))");
        assert!(keys.contains("PARTITION_BY takes names of columns"), "{keys}");
        let none = refused("COPY t TO 'x' (DELIMITER)");
        assert!(none.contains("DELIMITER needs a value"), "{none}");
    }

    fn copy(sql: &str) -> Result<CopyToStatement, String> {
        let parse = || {
            let sql = written_out(sql, &GenericDialect {})?;
            let mut statements = DFParserBuilder::new(&*sql).build()?.parse_statements()?;
            let mut statement = statements.pop_front().expect("a statement");
            completed(&mut statement).map(|()| statement)
        };
        match parse().map_err(|error: DataFusionError| error.strip_backtrace())? {
            Statement::CopyTo(copy) => Ok(copy),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_says_format_and_compression() {
        let said = |target: &str| {
            let copy = copy(&format!("COPY t TO '{target}'")).expect("known");
            let options: Vec<String> = copy.options.iter().map(|(key, value)| format!("{key} {value}")).collect();
            (copy.stored_as, options.join(", "))
        };
        let csv = || Some("CSV".to_string());
        assert_eq!(said("a.csv"), (None, String::new()));
        assert_eq!(said("a.CSV.GZ"), (csv(), "format.compression 'gzip'".to_string()));
        assert_eq!(said("a.json.zst"), (Some("JSON".to_string()), "format.compression 'zstd'".to_string()));
        assert_eq!(said("a.jsonl"), (Some("JSON".to_string()), String::new()));
        assert_eq!(said("a.tsv.xz"), (csv(), "format.delimiter '\t', format.compression 'xz'".to_string()));
        let given = copy("COPY t TO 'a.csv.bz2' (FORMAT csv, COMPRESSION gzip)").expect("known");
        assert_eq!(given.options.len(), 1, "{given}");
        let pages = copy("COPY t TO 'a.parquet' (COMPRESSION zstd)").expect("known");
        assert_eq!(pages.options[0].1.to_string(), "'zstd(3)'");
        let refused = |target: &str| copy(&format!("COPY t TO '{target}'")).expect_err("refused");
        assert!(
            refused("folder/").contains("'folder/', which is a folder: add STORED AS PARQUET"),
            "{}",
            refused("folder/")
        );
        assert!(refused("/dev/stdout").contains("a name without an ending"), "{}", refused("/dev/stdout"));
        assert!(refused("a.gz").contains("a name without an ending"), "{}", refused("a.gz"));
        assert!(refused("a.xlsx.gz").contains("before .gz it ends in .xlsx"), "{}", refused("a.xlsx.gz"));
        assert!(refused("a.parquet.gz").contains("name it without .gz"), "{}", refused("a.parquet.gz"));
    }
}
