//! Splits a text into sentences, and a sentence into words.
//!
//! ```text
//!   "Fine. Bad! Why? - no"   any_lower ─► [fine] [ bad] [ why] [ - no]       words of the last: [no]
//!                            spaced    ─► [Fine] [Bad] [Why] [- no]          a terminator at the very end is kept
//!                            stop      ─► [Fine] [ Bad! Why? - no]
//! ```
//!
//! Empty   sentences and words are dropped; a sentence of blanks is kept, and has no words.
//! è       separates sentences in all rules except `stop`: the data has it in place of terminators.

use std::fmt;

use millpond::datafusion::arrow::array::{ArrayRef, AsArray, StringViewArray};
use millpond::datafusion::arrow::compute::cast;
use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::error::Result;

/// Rule for splitting a text into sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SentenceRule {
    /// Converts to lower case, and splits at every `.`, `?` and `!`.
    #[default]
    AnyLower,
    /// Splits at every `.`, `?` and `!`.
    Any,
    /// Splits at `. `, `? ` and `! `, each including its blank.
    Spaced,
    /// Splits at every `.`.
    Stop,
}

impl SentenceRule {
    pub const ALL: [SentenceRule; 4] = [Self::AnyLower, Self::Any, Self::Spaced, Self::Stop];

    /// Name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::AnyLower => "any_lower",
            Self::Any => "any",
            Self::Spaced => "spaced",
            Self::Stop => "stop",
        }
    }

    /// The rule called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// Calls `each` for every sentence of `text`, in order.
    ///
    /// ```
    /// use millpond_queries::functions::SentenceRule;
    /// let mut found = vec![];
    /// SentenceRule::Spaced.sentences("Good value. Ugly! Really?", |sentence| found.push(sentence.to_string()));
    /// assert_eq!(found, ["Good value", "Ugly", "Really?"]);
    /// ```
    pub fn sentences(self, text: &str, mut each: impl FnMut(&str)) {
        let lower;
        let text = match self {
            Self::AnyLower => {
                lower = text.to_lowercase();
                lower.as_str()
            }
            _ => text,
        };
        let mut start = 0;
        let mut characters = text.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            let separator = match (self, character) {
                (Self::Stop, '.') | (Self::AnyLower | Self::Any, '.' | '?' | '!') => 1,
                (Self::AnyLower | Self::Any | Self::Spaced, 'è') => 'è'.len_utf8(),
                (Self::Spaced, '.' | '?' | '!') if characters.next_if(|(_, next)| *next == ' ').is_some() => 2,
                _ => continue,
            };
            if at > start {
                each(&text[start..at]);
            }
            start = at + separator;
        }
        if text.len() > start {
            each(&text[start..]);
        }
    }
}

impl fmt::Display for SentenceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Calls `each` for every word of `sentence`: split at blanks, without `.` `,` `;` `-` and `"`.
///
/// ```
/// let mut found = vec![];
/// millpond_queries::functions::words("  well-made, \"cheap\" - fine!", |word| found.push(word.to_string()));
/// assert_eq!(found, ["wellmade", "cheap", "fine!"]);
/// ```
pub fn words(sentence: &str, mut each: impl FnMut(&str)) {
    const DELETED: [char; 5] = ['.', ',', ';', '-', '"'];
    for word in sentence.split(' ') {
        if !word.contains(DELETED) {
            if !word.is_empty() {
                each(word);
            }
            continue;
        }
        let word = word.replace(DELETED, "");
        if !word.is_empty() {
            each(&word);
        }
    }
}

/// A text column in the view layout.
pub(crate) fn views(array: &ArrayRef) -> Result<StringViewArray> {
    Ok(cast(array, &DataType::Utf8View)?.as_string_view().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(rule: SentenceRule, text: &str) -> Vec<String> {
        let mut found = vec![];
        rule.sentences(text, |sentence| found.push(sentence.to_string()));
        found
    }

    #[test]
    fn each_rule_cuts_where_it_says() {
        let text = "One. Two?Three!  ..End.";
        assert_eq!(sentences(SentenceRule::AnyLower, text), ["one", " two", "three", "  ", "end"]);
        assert_eq!(sentences(SentenceRule::Any, text), ["One", " Two", "Three", "  ", "End"]);
        assert_eq!(sentences(SentenceRule::Spaced, text), ["One", "Two?Three", " ..End."]);
        assert_eq!(sentences(SentenceRule::Stop, text), ["One", " Two?Three!  ", "End"]);
    }

    #[test]
    fn the_separator_letter_separates() {
        assert_eq!(sentences(SentenceRule::AnyLower, "aÈbèc"), ["a", "b", "c"]);
        assert_eq!(sentences(SentenceRule::Any, "aÈbèc"), ["aÈb", "c"]);
        assert_eq!(sentences(SentenceRule::Stop, "aèb"), ["aèb"]);
    }

    #[test]
    fn nothing_has_no_sentences_and_no_words() {
        for rule in SentenceRule::ALL {
            assert_eq!(sentences(rule, ""), [""; 0]);
            assert_eq!(SentenceRule::named(rule.name()), Some(rule));
        }
        assert_eq!(SentenceRule::named("Any"), None);
        words("  - ;; ", |word| panic!("{word} is no word"));
    }
}
