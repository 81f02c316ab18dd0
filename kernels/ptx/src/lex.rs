//! Splits a PTX text into tokens.
//!
//!   @%p1 ld.global.u32 %r1, [%rd1+-4];  →  @  %p1  ld  .global  .u32  %r1  ,  [  %rd1  +  -  4  ]  ;
//!
//! Numbers    stay text here, because `8.2` is a version in `.version 8.2` and a literal elsewhere.
//! Dropped    white space and both kinds of comments.
//! Columns    count bytes.

use crate::{PtxError, ast::Span};

/// A token; slices point into the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// `ld`, `%r1`, `$L__BB0_2`, `_`
    Word(&'a str),
    /// `.global` without its dot; may contain `::`
    Dotted(&'a str),
    /// Starts with a digit: `12`, `0x1F`, `0f3F800000`, `8.2`, `7U`
    Number(&'a str),
    /// Without its quotes; no escapes are interpreted.
    Text(&'a str),
    /// One of `{ } ( ) [ ] < > , ; : @ ! | + - =` and the like
    Mark(char),
    End,
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Word(word) | Token::Number(word) => write!(f, "`{}`", shortened(word)),
            Token::Dotted(word) => write!(f, "`.{}`", shortened(word)),
            Token::Text(_) => write!(f, "a string"),
            Token::Mark(mark) => write!(f, "`{mark}`"),
            Token::End => write!(f, "the end of the text"),
        }
    }
}

/// The first characters of a token, for messages. Words are ASCII, so every byte is a character boundary.
fn shortened(word: &str) -> &str {
    word.get(..60).unwrap_or(word)
}

pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    line_start: usize,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0, line: 1, line_start: 0 }
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn span(&self) -> Span {
        Span { line: self.line, column: (self.at - self.line_start) as u32 + 1 }
    }

    fn newline(&mut self) {
        self.at += 1;
        self.line += 1;
        self.line_start = self.at;
    }

    /// Skips white space and comments.
    fn skip_blank(&mut self) -> Result<(), PtxError> {
        loop {
            match self.peek(0) {
                b'\n' => self.newline(),
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => self.at += 1,
                b'/' if self.peek(1) == b'/' => {
                    while self.at < self.text.len() && self.peek(0) != b'\n' {
                        self.at += 1;
                    }
                }
                b'/' if self.peek(1) == b'*' => {
                    let start = self.span();
                    self.at += 2;
                    while !(self.peek(0) == b'*' && self.peek(1) == b'/') {
                        if self.at >= self.text.len() {
                            return Err(PtxError::Syntax { span: start, message: "this comment is not closed".into() });
                        }
                        if self.peek(0) == b'\n' { self.newline() } else { self.at += 1 }
                    }
                    self.at += 2;
                }
                _ => return Ok(()),
            }
        }
    }

    /// The bytes from the current position that satisfy `keep`; advances past them.
    fn run(&mut self, keep: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.at < self.text.len() && keep(self.peek(0)) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// The next token and its position.
    pub(crate) fn next(&mut self) -> Result<(Token<'a>, Span), PtxError> {
        self.skip_blank()?;
        let span = self.span();
        if self.at >= self.text.len() {
            return Ok((Token::End, span));
        }
        let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'$';
        let first = self.peek(0);
        let token = match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | b'%' => {
                let start = self.at;
                self.at += 1;
                self.run(word);
                Token::Word(&self.text[start..self.at])
            }
            b'0'..=b'9' => Token::Number(self.number()),
            b'.' if word(self.peek(1)) => {
                self.at += 1;
                let start = self.at;
                self.run(word);
                while self.peek(0) == b':' && self.peek(1) == b':' && word(self.peek(2)) {
                    self.at += 2;
                    self.run(word);
                }
                Token::Dotted(&self.text[start..self.at])
            }
            b'"' => {
                self.at += 1;
                let text = self.run(|c| c != b'"' && c != b'\n');
                if self.peek(0) != b'"' {
                    return Err(PtxError::Syntax { span, message: "this string is not closed on its line".into() });
                }
                self.at += 1;
                Token::Text(text)
            }
            b'{' | b'}' | b'(' | b')' | b'[' | b']' | b'<' | b'>' | b',' | b';' | b':' | b'@' | b'!' | b'|' | b'+'
            | b'-' | b'=' => {
                self.at += 1;
                Token::Mark(first as char)
            }
            _ => {
                // Every token ends at a character boundary, so a character starts here.
                let found = self.text[self.at..].chars().next().unwrap_or('?');
                let message = format!("PTX has no character `{}` here", found.escape_default());
                return Err(PtxError::Syntax { span, message });
            }
        };
        Ok((token, span))
    }

    /// A number with all its parts: base prefix, fraction, exponent, `U`.
    fn number(&mut self) -> &'a str {
        let start = self.at;
        self.run(|c| c.is_ascii_alphanumeric() || c == b'_');
        let head = &self.text[start..self.at];
        let decimal = head.bytes().all(|c| c.is_ascii_digit());
        if decimal && self.peek(0) == b'.' && self.peek(1).is_ascii_digit() {
            self.at += 1;
            self.run(|c| c.is_ascii_alphanumeric());
        }
        let so_far = &self.text[start..self.at];
        let exponent = so_far.bytes().next_back().is_some_and(|c| c == b'e' || c == b'E')
            && so_far[..so_far.len() - 1].bytes().all(|c| c.is_ascii_digit() || c == b'.')
            && (self.peek(0) == b'-' || self.peek(0) == b'+')
            && self.peek(1).is_ascii_digit();
        if exponent {
            self.at += 1;
            self.run(|c| c.is_ascii_digit());
        }
        &self.text[start..self.at]
    }
}
