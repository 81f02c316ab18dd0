//! Lexicon of words with a positive or negative sentiment.
//!
//! ```text
//!   "good but sick." ─ words ─► good: POS    but: -    sick: NEG, POS       a word in both lists counts twice
//! ```
//!
//! Match   exact; the lists are lower case, so "Good" at the start of a sentence matches only after conversion to lower
//!         case.

use std::collections::HashMap;

use millpond_data::gpu_bdb::lexicon;

use super::{SentenceRule, words};

/// Sentiment of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sentiment {
    Negative,
    Positive,
}

impl Sentiment {
    /// `POS` or `NEG`.
    pub fn code(self) -> &'static str {
        match self {
            Self::Positive => "POS",
            Self::Negative => "NEG",
        }
    }

    /// The sentiment with that code.
    pub fn coded(code: &str) -> Option<Self> {
        [Self::Negative, Self::Positive].into_iter().find(|sentiment| sentiment.code() == code)
    }
}

/// Positive and negative words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lexicon {
    /// For each word, whether it is in the negative and in the positive list.
    words: HashMap<String, [bool; 2]>,
}

/// The lists of the workload.
impl Default for Lexicon {
    fn default() -> Self {
        Self::new(lexicon::POSITIVE, lexicon::NEGATIVE)
    }
}

impl Lexicon {
    /// A lexicon of two lists; a word may be in both.
    pub fn new<'a>(positive: impl IntoIterator<Item = &'a str>, negative: impl IntoIterator<Item = &'a str>) -> Self {
        let mut words: HashMap<String, [bool; 2]> = HashMap::new();
        positive.into_iter().for_each(|word| words.entry(word.to_string()).or_default()[1] = true);
        negative.into_iter().for_each(|word| words.entry(word.to_string()).or_default()[0] = true);
        Self { words }
    }

    /// Sentiments of `word`: none, one, or both, the negative one first.
    pub fn sentiments(&self, word: &str) -> impl Iterator<Item = Sentiment> + use<> {
        let [negative, positive] = self.words.get(word).copied().unwrap_or_default();
        [negative.then_some(Sentiment::Negative), positive.then_some(Sentiment::Positive)].into_iter().flatten()
    }

    /// Every word with its sentiments, sorted by word.
    pub fn rows(&self) -> Vec<(&str, Sentiment)> {
        let mut words: Vec<&str> = self.words.keys().map(String::as_str).collect();
        words.sort_unstable();
        words.into_iter().flat_map(|word| self.sentiments(word).map(move |sentiment| (word, sentiment))).collect()
    }

    /// Calls `each` with the sentence, the sentiment and the word of every occurrence in `text`, restricted to `only`
    /// if given.
    ///
    /// ```
    /// use millpond_queries::functions::{Lexicon, SentenceRule, Sentiment};
    /// let mut found = vec![];
    /// let text = "Good shoes. A terrible box";
    /// Lexicon::default().hits(text, SentenceRule::AnyLower, None, |sentence, sentiment, word| {
    ///     found.push(format!("{sentence}: {word} {}", sentiment.code()));
    /// });
    /// assert_eq!(found, ["good shoes: good POS", " a terrible box: terrible NEG"]);
    /// ```
    pub fn hits(
        &self,
        text: &str,
        rule: SentenceRule,
        only: Option<Sentiment>,
        mut each: impl FnMut(&str, Sentiment, &str),
    ) {
        rule.sentences(text, |sentence| {
            words(sentence, |word| {
                let wanted = self.sentiments(word).filter(|sentiment| only.is_none_or(|only| only == *sentiment));
                wanted.for_each(|sentiment| each(sentence, sentiment, word));
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_both_lists_say_both() {
        let lexicon = Lexicon::new(["good", "sick"], ["bad", "sick"]);
        let codes = |word: &str| lexicon.sentiments(word).map(Sentiment::code).collect::<Vec<_>>();
        assert_eq!((codes("good"), codes("bad"), codes("Bad")), (vec!["POS"], vec!["NEG"], vec![]));
        assert_eq!(codes("sick"), ["NEG", "POS"]);
        assert_eq!(lexicon.rows().len(), 4);
        assert_eq!(Lexicon::default().rows().len(), 400);
    }

    #[test]
    fn every_occurrence_is_a_hit() {
        let mut found = vec![];
        Lexicon::default().hits(
            "bad, bad! Bad",
            SentenceRule::Spaced,
            Some(Sentiment::Negative),
            |sentence, _, word| {
                found.push((sentence.to_string(), word.to_string()));
            },
        );
        assert_eq!(found, [("bad, bad".to_string(), "bad".to_string()), ("bad, bad".to_string(), "bad".to_string())]);
    }
}
