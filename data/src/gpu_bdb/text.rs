//! Text of reviews: sentences whose wording depends on the rating.
//!
//! ```text
//!   words by rank (share ~ rank^-0.9)  ─►  a sentiment word  ─►  a stock phrase  ─►  a company  ─►  punctuation
//!   "The mola is a great teki, of to have it was Acme Corp rumo. …"
//! ```
//!
//! Vocabulary  60 function words, then made-up words of two to four syllables; at ranks near 2,000 the dictionary words
//!             that are also store names. No made-up word is a sentiment word or contains a store name.
//! Sentiment   about three hits per review; rating and wording agree, so that a classifier can learn from it.
//! Letters     plain ASCII: the separator `è` of the queries never occurs.

use std::collections::HashSet;
use std::fmt::Write;

use super::lexicon::{
    COMPANIES, DICTIONARY_STORE_NAMES, FUNCTION_WORDS, NEGATIVE, NUM_STORE_NAMES, POSITIVE, USED_SENTIMENT_WORDS,
    sentiment_words, store_name,
};
use super::math;
use super::random::{Draws, Random};

/// Number of words in the vocabulary.
const NUM_WORDS: usize = 4_060;
const MADE_UP_WORDS: usize = NUM_WORDS - FUNCTION_WORDS.len();
/// Ranks, from 0, of the dictionary words that are store names.
const DICTIONARY_RANKS: std::ops::Range<usize> = 1_999..1_999 + DICTIONARY_STORE_NAMES;
/// Seed of the vocabulary, which is equal for every data seed.
const VOCABULARY_SEED: u64 = 0x6d69_6c6c_706f_6e64;
const CONSONANTS: [char; 14] = ['b', 'd', 'f', 'g', 'k', 'l', 'm', 'n', 'p', 'r', 's', 't', 'v', 'z'];
const VOWELS: [char; 5] = ['a', 'e', 'i', 'o', 'u'];
/// Number of entries in the guide table for rank lookups.
const GUIDE: usize = 4_096;
/// Number of stock phrases per class (negative, neutral, positive): three made-up words, most of them otherwise rare,
/// so that a phrase identifies its class.
const PHRASES: usize = 40;
/// Mean of the Poisson-distributed number of sentences after the first.
const MEAN_SENTENCES: f64 = 7.0;
const LEAST_SENTENCES: usize = 2;
const MOST_SENTENCES: usize = 30;
/// Maximum draws of a sentence; sentence `s` starts at draw `s · SENTENCE_DRAWS`.
const SENTENCE_DRAWS: u64 = 64;
/// First draw of the review as a whole, after those of its sentences.
const REVIEW_DRAWS: u64 = SENTENCE_DRAWS * MOST_SENTENCES as u64;

/// Input of a review's text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) rating: i64,
    /// Probability of a company name in each sentence.
    pub(crate) company: f64,
    /// Store to name.
    pub(crate) store: Option<&'a str>,
    /// Word that the second sentence must contain.
    pub(crate) must_say: Option<&'a str>,
}

/// The vocabulary and the phrases.
#[derive(Debug)]
pub(crate) struct TextModel {
    words: Vec<String>,
    /// Cumulative share of the words up to each rank.
    cumulative: Vec<f64>,
    /// First rank whose cumulative share is at least step/GUIDE.
    guide: Vec<usize>,
    phrases: Vec<[usize; 3]>,
    /// Cumulative probability of the number of further sentences.
    sentences: Vec<f64>,
}

impl TextModel {
    pub(crate) fn new() -> Self {
        let words = vocabulary();
        let mut cumulative: Vec<f64> = Vec::with_capacity(NUM_WORDS);
        let mut total = 0.0;
        for rank in 1..=NUM_WORDS {
            total += math::exp(-0.9 * math::ln(rank as f64));
            cumulative.push(total);
        }
        cumulative.iter_mut().for_each(|share| *share /= total);
        let mut rank = 0;
        let guide = (0..GUIDE)
            .map(|step| {
                while cumulative[rank] < step as f64 / GUIDE as f64 {
                    rank += 1;
                }
                rank
            })
            .collect();

        let draws = Random::new(VOCABULARY_SEED).column(0, 2);
        let mut seen = HashSet::new();
        let phrases = (0..)
            .map(|row| [0, 1, 2].map(|word| FUNCTION_WORDS.len() + draws.row(row).index(word, MADE_UP_WORDS)))
            .filter(|phrase| !phrase.iter().any(|rank| DICTIONARY_RANKS.contains(rank)) && seen.insert(*phrase))
            .take(3 * PHRASES)
            .collect();

        let mut share = math::exp(-MEAN_SENTENCES);
        let mut sum = 0.0;
        let sentences = (1..=MOST_SENTENCES)
            .map(|count| {
                sum += share;
                share = share * MEAN_SENTENCES / count as f64;
                sum
            })
            .collect();
        Self { words, cumulative, guide, phrases, sentences }
    }

    fn rank(&self, draws: Draws, draw: u64) -> usize {
        let real = draws.real(draw);
        let mut rank = self.guide[(real * GUIDE as f64) as usize];
        while self.cumulative[rank] <= real && rank + 1 < NUM_WORDS {
            rank += 1;
        }
        rank
    }

    /// A random word by its share in reviews.
    pub(crate) fn word(&self, draws: Draws, draw: u64) -> &str {
        &self.words[self.rank(draws, draw)]
    }

    /// Made-up word `index`, from 0.
    pub(crate) fn made_up(&self, index: usize) -> &str {
        &self.words[FUNCTION_WORDS.len() + index]
    }

    /// Writes a review of at least two sentences to `out`.
    pub(crate) fn review(&self, subject: Subject, draws: Draws, out: &mut String) {
        out.clear();
        let real = draws.real(REVIEW_DRAWS);
        let further = self.sentences.iter().position(|&share| real < share).unwrap_or(MOST_SENTENCES);
        let count = (1 + further).clamp(LEAST_SENTENCES, MOST_SENTENCES);
        let mut words = Vec::with_capacity(32);
        for sentence in 0..count {
            let must_say = subject.must_say.filter(|_| sentence == 1);
            self.sentence(subject, must_say, draws, sentence as u64 * SENTENCE_DRAWS, &mut words, out);
        }
        out.truncate(out.trim_end().len());
        if let Some(store) = subject.store {
            let blanks = out.bytes().filter(|&byte| byte == b' ').count();
            let chosen = draws.index(REVIEW_DRAWS + 1, blanks + 1);
            let at = out.bytes().enumerate().filter(|(_, byte)| *byte == b' ').nth(chosen).map(|(at, _)| at);
            let at = at.unwrap_or(out.len());
            out.insert_str(at, store);
            out.insert(at, ' ');
        }
    }

    fn sentence<'a>(
        &'a self,
        subject: Subject,
        must_say: Option<&'a str>,
        draws: Draws,
        first: u64,
        words: &mut Vec<&'a str>,
        out: &mut String,
    ) {
        // The first draws decide the structure; words use draws from 32 on.
        words.clear();
        let num_words = draws.int(first, 6, 18) as u64;
        words.extend((0..num_words).map(|word| self.word(draws, first + 32 + word)));

        let (positive, negative) = match subject.rating {
            1 => (0.05, 0.34),
            2 => (0.08, 0.28),
            3 => (0.18, 0.18),
            4 => (0.28, 0.08),
            _ => (0.34, 0.04),
        };
        let used = USED_SENTIMENT_WORDS;
        let place = 1 + draws.index(first + 1, words.len() - 1);
        if draws.chance(first + 2, positive) {
            words[place] = POSITIVE[draws.index(first + 3, used)];
        } else if draws.chance(first + 4, negative) {
            words[place] = NEGATIVE[draws.index(first + 3, used)];
        }
        if let Some(word) = must_say {
            words[place] = word;
        }

        if draws.chance(first + 5, 0.6) {
            let own = match subject.rating {
                1 | 2 => 0,
                3 => 1,
                _ => 2,
            };
            let class = if draws.chance(first + 6, 0.9) { own } else { draws.index(first + 7, 3) };
            let phrase = self.phrases[class * PHRASES + draws.index(first + 8, PHRASES)];
            let middle = words.len() / 2;
            words.splice(middle..middle, phrase.map(|rank| self.words[rank].as_str()));
        }
        if draws.chance(first + 9, subject.company) {
            // Not at the beginning: a sentence's first word is always capitalised.
            let place = 1 + draws.index(first + 10, words.len());
            words.insert(place, COMPANIES[draws.index(first + 11, COMPANIES.len())]);
        }

        let last = words.len() - 1;
        let comma = draws.chance(first + 12, 0.08).then(|| draws.index(first + 13, last));
        let mark = draws.chance(first + 14, 0.03).then(|| (draws.index(first + 15, last), draws.index(first + 16, 3)));
        for (index, word) in words.iter().enumerate() {
            let here = mark.filter(|(at, _)| *at == index).map(|(_, mark)| mark);
            if here == Some(2) {
                out.push('"');
            }
            if index == 0 {
                let mut letters = word.chars();
                out.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
                out.push_str(letters.as_str());
            } else {
                out.push_str(word);
            }
            match here {
                Some(0) => out.push(';'),
                Some(1) => out.push_str(" -"),
                Some(_) => out.push('"'),
                None => (),
            }
            if comma == Some(index) {
                out.push(',');
            }
            if index < last {
                out.push(' ');
            }
        }
        let end = draws.real(first + 17);
        out.push_str(if end < 0.85 {
            ". "
        } else if end < 0.95 {
            "! "
        } else {
            "? "
        });
    }

    /// Text of 150 to 200 characters.
    pub(crate) fn description(&self, draws: Draws, out: &mut String) {
        out.clear();
        let least = 150 + draws.index(0, 40);
        for draw in 1.. {
            if out.len() >= least {
                break;
            }
            let blank = if out.is_empty() { "" } else { " " };
            write!(out, "{blank}{}", self.word(draws, draw)).expect("a string takes any text");
        }
    }
}

/// Words by rank.
fn vocabulary() -> Vec<String> {
    let stores: Vec<String> = (0..NUM_STORE_NAMES).map(|name| store_name(name).to_lowercase()).collect();
    let mut taken: HashSet<String> = FUNCTION_WORDS.into_iter().map(str::to_string).collect();
    taken.extend(sentiment_words().map(|(word, _)| word.to_string()));
    taken.extend(COMPANIES.iter().flat_map(|name| name.split(' ')).map(str::to_lowercase));

    let column = Random::new(VOCABULARY_SEED).column(0, 1);
    let mut made_up = (0..).filter_map(move |row| {
        let draws = column.row(row);
        let mut word = String::new();
        for syllable in 0..draws.int(0, 2, 4) as u64 {
            word.push(CONSONANTS[draws.index(2 * syllable + 1, CONSONANTS.len())]);
            word.push(VOWELS[draws.index(2 * syllable + 2, VOWELS.len())]);
        }
        let free = !stores.iter().any(|store| word.contains(store.as_str())) && taken.insert(word.clone());
        free.then_some(word)
    });
    let mut words: Vec<String> = FUNCTION_WORDS.into_iter().map(str::to_string).collect();
    words.extend(made_up.by_ref().take(NUM_WORDS - words.len()));
    for (name, rank) in DICTIONARY_RANKS.enumerate() {
        words[rank] = store_name(name).to_lowercase();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(rating: i64) -> Subject<'static> {
        Subject { rating, company: 0.02, store: None, must_say: None }
    }

    fn reviews(model: &TextModel, count: u64, subject: Subject) -> Vec<String> {
        let column = Random::new(5).column(1, 1);
        (0..count)
            .map(|row| {
                let mut text = String::new();
                model.review(subject, column.row(row), &mut text);
                text
            })
            .collect()
    }

    #[test]
    fn vocabulary_is_distinct_and_apart_from_the_lists() {
        let model = TextModel::new();
        assert_eq!(model.words.iter().collect::<HashSet<_>>().len(), NUM_WORDS);
        let sentiment: HashSet<_> = sentiment_words().map(|(word, _)| word).collect();
        assert!(model.words.iter().all(|word| !sentiment.contains(word.as_str())));
        assert_eq!(&model.words[1_999..2_002], ["forest", "union", "liberty"]);
        let held = |word: &String| (0..NUM_STORE_NAMES).any(|name| word.contains(&store_name(name).to_lowercase()));
        assert_eq!(model.words.iter().filter(|word| held(word)).count(), DICTIONARY_STORE_NAMES);
    }

    #[test]
    fn words_occur_by_their_rank() {
        let model = TextModel::new();
        let column = Random::new(3).column(1, 1);
        let firsts = (0..100_000).filter(|&row| model.rank(column.row(row), 0) == 0).count();
        let expected: f64 = 1.0 / (1..=NUM_WORDS).map(|rank| (rank as f64).powf(-0.9)).sum::<f64>();
        assert!((firsts as f64 / 100_000.0 - expected).abs() < 0.003, "{firsts} {expected}");
    }

    #[test]
    fn reviews_are_as_long_and_as_opinionated_as_specified() {
        let model = TextModel::new();
        let texts = reviews(&model, 4_000, subject(5));
        let mean = texts.iter().map(String::len).sum::<usize>() as f64 / texts.len() as f64;
        assert!((640.0..690.0).contains(&mean), "{mean}");
        let lexicon: HashSet<_> = sentiment_words().map(|(word, _)| word).collect();
        let hits = texts
            .iter()
            .flat_map(|text| text.split([' ', '.', ',', ';', '"', '!', '?', '-']))
            .filter(|word| lexicon.contains(word))
            .count();
        assert!((2.7..3.2).contains(&(hits as f64 / texts.len() as f64)), "{hits}");
        for text in &texts {
            assert!(text.is_ascii() && !text.contains('\n') && text.len() < 2_500, "{text}");
            assert!(
                text.ends_with(['.', '!', '?'])
                    && text.trim_start_matches('"').starts_with(|first: char| first.is_ascii_uppercase())
            );
        }
    }

    #[test]
    fn a_store_and_a_word_are_said_when_asked_for() {
        let model = TextModel::new();
        let asked = Subject { store: Some("Avalon"), must_say: Some("terrible"), ..subject(1) };
        for text in reviews(&model, 500, asked) {
            assert!(text.contains(" Avalon"), "{text}");
            let second = text.split_inclusive(". ").flat_map(|part| part.split_inclusive(['!', '?'])).nth(1);
            assert!(second.expect("two sentences").contains("terrible"), "{text}");
        }
    }

    #[test]
    fn descriptions_have_150_to_200_characters() {
        let model = TextModel::new();
        let column = Random::new(5).column(1, 2);
        let mut text = String::new();
        for row in 0..1_000 {
            model.description(column.row(row), &mut text);
            assert!((150..=200).contains(&text.len()), "{text}");
        }
    }
}
