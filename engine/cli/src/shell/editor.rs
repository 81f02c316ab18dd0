//! The line editor: completeness of statements, colors, completions, history.
//!
//! Enter    Ends a statement after its semicolon, and a command at the end of its line; otherwise it starts another
//!          line.
//! Colors   Keywords are bold, strings green, numbers cyan, comments dim, from the terminal's own palette.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use millpond::datafusion::sql::sqlparser::dialect::GenericDialect;
use millpond::datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer, Whitespace};
use rustyline::completion::{Completer, Pair};
use rustyline::config::{ColorMode, CompletionType, Config};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Editor, Helper};

use super::commands::{is_command, is_word_of_the_shell};
use super::complete::Completions;
use super::words::is_keyword;
use crate::statements;
use crate::terminal;

/// Maximum number of statements in the history.
const HISTORY: usize = 10_000;
const PROMPT: &str = "millpond> ";

// Legible on light and dark backgrounds; green, cyan, yellow and blue of the usual palettes are not.
const BOLD: &str = "\x1b[1m";
const MAGENTA: &str = "\x1b[35m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

/// The user's input at the prompt.
pub enum Typed {
    Text(String),
    /// Ctrl-C: the line is discarded.
    Interrupted,
    /// Ctrl-D, or the terminal is closed.
    End,
}

/// The editor with its history.
pub struct LineEditor {
    editor: Editor<Sql, FileHistory>,
    history: Option<PathBuf>,
}

impl LineEditor {
    /// An editor that uses `completions` and keeps its history in a file.
    ///
    /// # Errors
    /// Errors of the terminal.
    pub fn new(completions: Completions, history: Option<PathBuf>) -> rustyline::Result<Self> {
        let colours = if terminal::has_colours() { ColorMode::Enabled } else { ColorMode::Disabled };
        let config = Config::builder()
            .max_history_size(HISTORY)?
            .history_ignore_dups(true)?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .color_mode(colours)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Sql { completions }));
        Ok(Self { editor, history })
    }

    /// Reads the history, and creates its folder, accessible only to this user.
    ///
    /// # Errors
    /// Errors of the file system, except for a missing file.
    pub fn open_history(&mut self) -> Result<(), (PathBuf, io::Error)> {
        let Some(path) = self.history.clone() else { return Ok(()) };
        let opened = make_folder(&path).and_then(|()| match self.editor.load_history(&path) {
            Err(ReadlineError::Io(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
        opened.map_err(|error| {
            self.history = None;
            (path, error)
        })
    }

    /// Waits for a statement or a command. Blocks the calling thread.
    ///
    /// # Errors
    /// Errors of the terminal.
    pub fn read(&mut self) -> rustyline::Result<Typed> {
        match self.editor.readline(PROMPT) {
            Ok(text) => {
                self.remember(&text);
                Ok(Typed::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error),
        }
    }

    /// Drops cached names, because a statement may have changed tables.
    pub fn forget_names(&self) {
        if let Some(helper) = self.editor.helper() {
            helper.completions.forget();
        }
    }

    fn remember(&mut self, text: &str) {
        let text = text.trim_end();
        // Several shells append to one file. A write error was already reported when the history was opened.
        if !text.trim().is_empty()
            && self.editor.add_history_entry(text).unwrap_or(false)
            && let Some(path) = &self.history
        {
            let _ = self.editor.append_history(path);
        }
    }
}

fn make_folder(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// SQL support for the editor.
struct Sql {
    completions: Completions,
}

impl Helper for Sql {}

impl Hinter for Sql {
    type Hint = String;
}

impl Completer for Sql {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        self.completions.at(line, pos)
    }
}

impl Validator for Sql {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input();
        let is_whole =
            is_command(text) || is_word_of_the_shell(text) || text.trim().is_empty() || statements::ends(text);
        Ok(if is_whole { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Highlighter for Sql {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if is_command(line) { Cow::Borrowed(line) } else { coloured(line) }
    }

    fn highlight_char(&self, _: &str, _: usize, kind: CmdKind) -> bool {
        kind != CmdKind::MoveCursor
    }
}

/// SQL with colors; unchanged if the tokenizer rejects it. An open string extends to the end of the line.
fn coloured(line: &str) -> Cow<'_, str> {
    let tokens = |text: &str| Tokenizer::new(&GenericDialect {}, text).with_unescape(false).tokenize();
    let closed = format!("{line}'");
    let (tokens, is_open) = match (tokens(line), tokens(&closed)) {
        (Ok(tokens), _) => (tokens, false),
        (Err(_), Ok(tokens)) => (tokens, true),
        (Err(_), Err(_)) => return Cow::Borrowed(line),
    };
    let mut text = String::with_capacity(line.len() * 2);
    for (at, token) in tokens.iter().enumerate() {
        let colour = match token {
            Token::Word(word) if word.quote_style.is_none() && is_keyword(&word.value) => BOLD,
            Token::SingleQuotedString(_) | Token::DollarQuotedString(_) => MAGENTA,
            Token::Whitespace(Whitespace::SingleLineComment { .. } | Whitespace::MultiLineComment(_)) => DIM,
            _ => "",
        };
        let mut written = token.to_string();
        if is_open && at + 1 == tokens.len() {
            written.pop();
        }
        if colour.is_empty() { text.push_str(&written) } else { text.extend([colour, &written, RESET]) }
    }
    // The editor requires that the text without colors is unchanged.
    let is_same = strip(&text) == line;
    if is_same { Cow::Owned(text) } else { Cow::Borrowed(line) }
}

fn strip(text: &str) -> String {
    [BOLD, MAGENTA, DIM, RESET].iter().fold(text.to_string(), |text, code| text.replace(code, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_colours_and_letters_stay() {
        let text = "select a, 'it''s', 1.5 -- x\nFROM t";
        let expected =
            format!("{BOLD}select{RESET} a, {MAGENTA}'it''s'{RESET}, 1.5 {DIM}-- x\n{RESET}{BOLD}FROM{RESET} t");
        assert_eq!(coloured(text), expected);
        assert_eq!(coloured("SELECT 'op"), format!("{BOLD}SELECT{RESET} {MAGENTA}'op{RESET}"));
        for text in ["SELECT \"open", "SELECT \"select\", é, $$x$$ /* c */;", "", "SELECT E'a\\n'"] {
            assert_eq!(strip(&coloured(text)), text);
        }
    }
}
