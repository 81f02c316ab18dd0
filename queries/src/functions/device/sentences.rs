//! `sentences`, `words` and `sentiment_hits` on the device: words to find and sentence ends.
//!
//! ```text
//!   sentiment_hits(text, 'spaced', 'NEG')  ──►  negative words, sentences end at ". ", "? ", "! " and è
//!   sentences(text)                        ──►  sentences of the lower-case text, which end at . ? ! and è
//! ```

use std::sync::Arc;

use millpond::datafusion::physical_expr::ScalarFunctionExpr;
use millpond::kernels::sentences::{Ends, Lexicon as DeviceLexicon};
use millpond::operator::unnest::{Found, HitField, Items, ListFunction, WordHits};

use crate::functions::scalars::{Parts, parts_of};
use crate::functions::{Lexicon, SentenceRule, Sentiment};

/// Recognizes calls of functions with a device form.
#[derive(Debug)]
pub(super) struct TextFunctions;

/// Sentiments in the order of the results of a word.
const SAID: [Sentiment; 2] = [Sentiment::Negative, Sentiment::Positive];

impl ListFunction for TextFunctions {
    fn found(&self, call: &ScalarFunctionExpr) -> Option<Found> {
        let (items, rule) = match parts_of(call)? {
            Parts::Words => return Some(Found { lower: false, ends: Ends::Never, items: Items::Words }),
            Parts::Sentences(rule) => (Items::Sentences, rule),
            Parts::SentimentHits(lexicon, rule, only) => (Items::Hits(word_hits(&lexicon, only)?), rule),
        };
        let (lower, ends) = match rule {
            SentenceRule::AnyLower => (true, Ends::Any),
            SentenceRule::Any => (false, Ends::Any),
            SentenceRule::Spaced => (false, Ends::Spaced),
            SentenceRule::Stop => (false, Ends::Stop),
        };
        Some(Found { lower, ends, items })
    }
}

/// The words of `lexicon`, restricted to sentiment `only` if given.
fn word_hits(lexicon: &Lexicon, only: Option<Sentiment>) -> Option<WordHits> {
    // Rows of one word are adjacent.
    let mut words: Vec<(&str, u32)> = vec![];
    for (word, says) in lexicon.rows() {
        let bit = SAID.iter().position(|said| *said == says && only.is_none_or(|only| only == says));
        let Some(bit) = bit.map(|bit| 1 << bit) else { continue };
        match words.last_mut() {
            Some((last, bits)) if *last == word => *bits |= bit,
            _ => words.push((word, bit)),
        }
    }
    Some(WordHits {
        words: words.iter().map(|(word, _)| word.to_string()).collect(),
        says: SAID.iter().map(|said| said.code().to_string()).collect(),
        lexicon: Arc::new(DeviceLexicon::new(words.into_iter()).ok()?),
        fields: [("sentence", HitField::Sentence), ("sentiment", HitField::Says), ("word", HitField::Word)]
            .map(|(name, field)| (name.to_string(), field))
            .to_vec(),
    })
}
