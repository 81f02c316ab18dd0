//! Splits a script into statements by SQL tokens.
//!
//! ```text
//!   SELECT 'a;b' -- c;d⏎ ; SELECT 2   ─►   "SELECT 'a;b' -- c;d⏎ "   " SELECT 2"
//! ```
//!
//! A semicolon in a string, a quoted name, a comment or a dollar-quoted string is not a separator.

use millpond::datafusion::sql::sqlparser::dialect::GenericDialect;
use millpond::datafusion::sql::sqlparser::tokenizer::{Location, Token, Tokenizer, TokenizerError};

/// One statement of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub sql: String,
    /// The line of the script where `sql` begins, from 0.
    pub first_line: u64,
}

/// The statements of `script`, except those with only blanks and comments.
///
/// # Errors
/// The tokenizer's error with its position, for an unterminated string or comment.
pub fn split(script: &str) -> Result<Vec<Statement>, TokenizerError> {
    let tokens = Tokenizer::new(&GenericDialect {}, script).tokenize_with_location()?;
    let offsets = LineOffsets::new(script);
    let mut statements = Vec::new();
    let (mut start, mut has_words) = (0, false);
    for token in &tokens {
        match token.token {
            Token::SemiColon => {
                let end = offsets.byte(token.span.start);
                if has_words {
                    statements.push(statement(script, start, end));
                }
                (start, has_words) = (end + 1, false);
            }
            Token::Whitespace(_) | Token::EOF => {}
            _ => has_words = true,
        }
    }
    if has_words {
        statements.push(statement(script, start, script.len()));
    }
    Ok(statements)
}

/// True if a text ends with a semicolon, ignoring blanks and comments. If the tokenizer rejects the text: true if it
/// ends with a semicolon and the reason is not an open string, name or comment.
pub fn ends(text: &str) -> bool {
    match Tokenizer::new(&GenericDialect {}, text).tokenize() {
        Ok(tokens) => {
            let last = tokens.iter().rev().find(|token| !matches!(token, Token::Whitespace(_)));
            matches!(last, Some(Token::SemiColon))
        }
        Err(error) => {
            let is_open = ["Unterminated", "Unexpected EOF", "Expected close delimiter"];
            !is_open.iter().any(|words| error.message.contains(words)) && text.trim_end().ends_with(';')
        }
    }
}

fn statement(script: &str, start: usize, end: usize) -> Statement {
    // Skip blank lines before a statement, so that line numbers count from its first visible line.
    let text = &script[start..end];
    let blank = text.len() - text.trim_start().len();
    let first_line = script[..start + blank].matches('\n').count() as u64;
    Statement { sql: text.trim().to_string(), first_line }
}

/// Converts the tokenizer's lines and columns (both from 1, columns in characters) to byte offsets.
struct LineOffsets<'a> {
    lines: Vec<(usize, &'a str)>,
    end: usize,
}

impl<'a> LineOffsets<'a> {
    fn new(script: &'a str) -> Self {
        let mut offset = 0;
        let lines = script
            .split_inclusive('\n')
            .map(|line| {
                let start = offset;
                offset += line.len();
                (start, line)
            })
            .collect();
        Self { lines, end: script.len() }
    }

    fn byte(&self, location: Location) -> usize {
        let Some((start, line)) = self.lines.get((location.line as usize).saturating_sub(1)) else { return self.end };
        let column = (location.column as usize).saturating_sub(1);
        start + line.char_indices().nth(column).map_or(line.len(), |(byte, _)| byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(script: &str) -> Vec<String> {
        split(script).expect("tokens").into_iter().map(|statement| statement.sql).collect()
    }

    #[test]
    fn semicolons_inside_strings_names_and_comments_split_nothing() {
        assert_eq!(
            texts("SELECT 'a;\n;b' -- c;\n, \"x;y\" /* ; */; SELECT 2;"),
            ["SELECT 'a;\n;b' -- c;\n, \"x;y\" /* ; */", "SELECT 2"]
        );
        assert_eq!(texts("SELECT $$ ; $$; SELECT 1"), ["SELECT $$ ; $$", "SELECT 1"]);
    }

    #[test]
    fn a_text_ends_behind_a_semicolon_of_its_own() {
        for text in ["SELECT 1;", "SELECT ';';", "SELECT 1; -- done", "SELECT 1;\n\n"] {
            assert!(ends(text), "{text}");
        }
        for text in ["SELECT 1", "SELECT 'a;", "SELECT \"a;", "/* ;", "SELECT $$ ;", "SELECT 1 -- ;", "-- x"] {
            assert!(!ends(text), "{text}");
        }
    }

    #[test]
    fn blanks_and_comments_alone_are_no_statement() {
        assert_eq!(texts(""), Vec::<String>::new());
        assert_eq!(texts(" ;; -- nothing\n ; /* here */"), Vec::<String>::new());
    }

    #[test]
    fn text_beyond_ascii_keeps_its_place() {
        assert_eq!(texts("SELECT 'é;ü'; SELECT 'ß'; SELECT 3"), ["SELECT 'é;ü'", "SELECT 'ß'", "SELECT 3"]);
    }

    #[test]
    fn statements_know_their_line() {
        let lines: Vec<u64> =
            split("SELECT 1;\n\nSELECT\n2; SELECT 3").expect("tokens").iter().map(|s| s.first_line).collect();
        assert_eq!(lines, [0, 2, 3]);
    }

    #[test]
    fn a_string_without_end_is_an_error_with_its_place() {
        let error = split("SELECT 1;\nSELECT 'oops").expect_err("unterminated");
        assert_eq!(error.location.line, 2);
    }
}
