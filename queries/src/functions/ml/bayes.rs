//! Multinomial naive Bayes on hashed words and word pairs.
//!
//! ```text
//!   "Good good value" ─► good · good · good good · value · good value ─► murmur3 mod buckets ─► counts by class
//!   score of class c   =   ln(N_c / N) + Σ over grams of  ln(F_c,bucket + α) - ln(ΣF_c + α · buckets)
//! ```
//!
//! Same      scores are summed in gram order, and logarithms of counts are our own: the device computes equal bits.
//! Text      lower case, split at blanks, empty words dropped; punctuation is kept.
//! Ties      the lowest class.
//! Odd data  a class without documents has prior 0 and is never predicted. Without any documents the lowest class is
//!           predicted, without classes none.
//! Memory    4 bytes per bucket, and 8 per class for each bucket used by a training text.
//! After     McCallum and Nigam 1998 (the multinomial model); Weinberger et al. 2009 (hashing).

use std::fmt;
use std::hash::{Hash, Hasher};

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::exponential::ln_positive;
use super::{MlError, murmur3_32};

/// Maximum number of buckets; more would need over 4 GiB for their numbers.
const MAX_BUCKETS: u32 = 1 << 30;
/// Number of counts with precomputed logarithms; larger counts are rare.
const KNOWN_LOGARITHMS: u64 = 1 << 12;

/// Options of naive Bayes.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct NaiveBayesOptions {
    /// Smoothing: initial count of every bucket in every class.
    pub alpha: f64,
    pub buckets: u32,
}

/// Options of the workload: alpha 0.001, 2²³ buckets.
impl Default for NaiveBayesOptions {
    fn default() -> Self {
        Self { alpha: 0.001, buckets: 1 << 23 }
    }
}

impl NaiveBayesOptions {
    /// # Errors
    /// [`MlError::Option`] with the option, its value, and the valid values.
    pub fn validate(&self) -> Result<(), MlError> {
        NgramHasher::try_new(self.buckets)?;
        match self.alpha.is_finite() && self.alpha > 0.0 {
            true => Ok(()),
            false => Err(MlError::Option {
                option: "alpha",
                given: self.alpha.to_string(),
                wanted: "a finite number above 0",
            }),
        }
    }
}

/// An alpha accepted by [`NaiveBayesOptions::validate`] is not NaN.
impl Eq for NaiveBayesOptions {}

impl Hash for NaiveBayesOptions {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.alpha.to_bits(), self.buckets).hash(state);
    }
}

impl fmt::Display for NaiveBayesOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "alpha={}, buckets={}", self.alpha, self.buckets)
    }
}

/// Computes the buckets of a text's words and adjacent word pairs.
///
/// ```
/// use millpond_queries::functions::ml::{NgramHasher, murmur3_32};
/// let mut buckets = vec![];
/// NgramHasher::try_new(1 << 23)?.buckets("Fine  shoes", &mut buckets);
/// let expected = ["fine", "shoes", "fine shoes"].map(|gram| murmur3_32(gram.as_bytes(), 0) % (1 << 23));
/// assert_eq!(buckets, expected);
/// # Ok::<(), millpond_queries::functions::ml::MlError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramHasher {
    buckets: u32,
}

impl NgramHasher {
    /// # Errors
    /// [`MlError::Option`] unless there are 1 to 2³⁰ buckets.
    pub fn try_new(buckets: u32) -> Result<Self, MlError> {
        match (1..=MAX_BUCKETS).contains(&buckets) {
            true => Ok(Self { buckets }),
            false => Err(MlError::Option {
                option: "buckets",
                given: buckets.to_string(),
                wanted: "1 to 1073741824; 8388608 is the usual number",
            }),
        }
    }

    /// Appends the buckets of `text`: for each word its own bucket, then that of the pair with the previous word.
    pub fn buckets(&self, text: &str, into: &mut Vec<u32>) {
        let lower = text.to_lowercase();
        let bucket = |gram: &str| murmur3_32(gram.as_bytes(), 0) % self.buckets;
        let (mut before, mut pair) = (None, String::new());
        for word in lower.split(' ').filter(|word| !word.is_empty()) {
            into.push(bucket(word));
            if let Some(before) = before.replace(word) {
                pair.clear();
                pair.extend([before, " ", word]);
                into.push(bucket(&pair));
            }
        }
    }
}

/// Naive Bayes model: counts per class and bucket.
///
/// ```
/// use millpond_queries::functions::ml::{NaiveBayes, NaiveBayesOptions};
/// let mut model = NaiveBayes::try_new(2, NaiveBayesOptions::default())?;
/// model.train(&["good shoes", "bad shoes", "really bad"], &[1, 0, 0])?;
/// assert_eq!(model.predict(&["bad value", "good value"]), [Some(0), Some(1)]);
/// # Ok::<(), millpond_queries::functions::ml::MlError>(())
/// ```
#[derive(Debug, Clone)]
pub struct NaiveBayes {
    options: NaiveBayesOptions,
    hasher: NgramHasher,
    classes: usize,
    documents: Vec<u64>,
    /// By class, the sum of its counts.
    totals: Vec<u64>,
    /// By bucket, the slot of its counts, from 1; 0 if no training text uses the bucket.
    slots: Vec<u32>,
    /// `classes` counts per slot.
    counts: Vec<u64>,
}

impl NaiveBayes {
    /// A model without training data.
    ///
    /// # Errors
    /// [`MlError::Option`] for invalid options.
    pub fn try_new(classes: usize, options: NaiveBayesOptions) -> Result<Self, MlError> {
        options.validate()?;
        let hasher = NgramHasher::try_new(options.buckets)?;
        Ok(Self {
            options,
            hasher,
            classes,
            documents: vec![0; classes],
            totals: vec![0; classes],
            slots: vec![0; options.buckets as usize],
            counts: vec![],
        })
    }

    /// Counts texts with known classes.
    ///
    /// # Errors
    /// [`MlError::Labels`] if the numbers of classes and texts differ, [`MlError::Class`] for a class outside the
    /// model.
    pub fn train(&mut self, texts: &[&str], classes: &[usize]) -> Result<(), MlError> {
        if texts.len() != classes.len() {
            return Err(MlError::Labels { labels: classes.len(), rows: texts.len() });
        }
        if let Some(class) = classes.iter().find(|class| **class >= self.classes) {
            return Err(MlError::Class { class: *class, classes: self.classes });
        }
        // Hashing is most of the work; sums of integers do not depend on the order.
        for (buckets, class) in self.hash(texts).into_iter().zip(classes) {
            self.documents[*class] += 1;
            self.totals[*class] += buckets.len() as u64;
            for bucket in buckets {
                let slot = &mut self.slots[bucket as usize];
                if *slot == 0 {
                    // At most 2³⁰ buckets, so the number fits.
                    *slot = (self.counts.len() / self.classes) as u32 + 1;
                    self.counts.resize(self.counts.len() + self.classes, 0);
                }
                self.counts[(*slot as usize - 1) * self.classes + class] += 1;
            }
        }
        Ok(())
    }

    /// Adds a class at the end.
    pub(crate) fn add_class(&mut self) {
        let classes = self.classes + 1;
        let slots = self.counts.len().checked_div(self.classes).unwrap_or(0);
        let mut counts = vec![0; slots * classes];
        for (new, old) in counts.chunks_exact_mut(classes).zip(self.counts.chunks_exact(self.classes.max(1))) {
            new[..self.classes].copy_from_slice(old);
        }
        (self.counts, self.classes) = (counts, classes);
        self.documents.push(0);
        self.totals.push(0);
    }

    /// Renumbers the classes: the new class `i` is the old class `order[i]`.
    pub(crate) fn renumber(&mut self, order: &[usize]) {
        let pick = |old: &[u64]| -> Vec<u64> { order.iter().map(|class| old[*class]).collect() };
        (self.documents, self.totals) = (pick(&self.documents), pick(&self.totals));
        for counts in self.counts.chunks_exact_mut(self.classes.max(1)) {
            let new = pick(counts);
            counts.copy_from_slice(&new);
        }
    }

    fn hash(&self, texts: &[&str]) -> Vec<Vec<u32>> {
        let hash = |text: &&str| {
            let mut buckets = vec![];
            self.hasher.buckets(text, &mut buckets);
            buckets
        };
        texts.par_iter().map(hash).collect()
    }

    /// Occurrences of `bucket` in texts of `class`; 0 outside the model.
    pub fn count(&self, class: usize, bucket: u32) -> u64 {
        match self.slots.get(bucket as usize) {
            Some(slot) if *slot > 0 && class < self.classes => self.counts[(*slot as usize - 1) * self.classes + class],
            _ => 0,
        }
    }

    /// Number of training texts by class.
    pub fn documents(&self) -> &[u64] {
        &self.documents
    }

    /// Bytes held by the model.
    pub fn held_bytes(&self) -> usize {
        size_of_val(self.slots.as_slice()) + self.counts.capacity() * size_of::<u64>()
    }

    /// The most likely class of each text; `None` if the model has no classes.
    pub fn predict(&self, texts: &[&str]) -> Vec<Option<usize>> {
        let weights = self.weights();
        let predict = |text: &&str| {
            let scores = self.scores(text, &weights);
            (0..self.classes).reduce(|best, class| if scores[class] > scores[best] { class } else { best })
        };
        texts.par_iter().map(predict).collect()
    }

    /// Logarithm of each class's probability for one text, up to a common constant.
    pub fn log_scores(&self, text: &str) -> Vec<f64> {
        self.scores(text, &self.weights())
    }

    fn weights(&self) -> Weights {
        let priors = log_priors(&self.documents);
        let logarithms = (0..KNOWN_LOGARITHMS).map(|count| ln_positive(count as f64 + self.options.alpha)).collect();
        Weights { priors, totals: self.options.log_totals(&self.totals), logarithms }
    }

    fn scores(&self, text: &str, weights: &Weights) -> Vec<f64> {
        let mut buckets = vec![];
        self.hasher.buckets(text, &mut buckets);
        let mut scores = weights.priors.clone();
        for bucket in buckets {
            for (class, score) in scores.iter_mut().enumerate() {
                let count = self.count(class, bucket);
                let known = weights.logarithms.get(count as usize).copied();
                let logarithm = known.unwrap_or_else(|| ln_positive(count as f64 + self.options.alpha));
                *score += logarithm - weights.totals[class];
            }
        }
        scores
    }
}

/// Precomputed logarithms for scores.
struct Weights {
    priors: Vec<f64>,
    totals: Vec<f64>,
    /// Logarithms of the smallest counts.
    logarithms: Vec<f64>,
}

/// Initial score of each class.
pub(crate) fn log_priors(documents: &[u64]) -> Vec<f64> {
    // ln 0 is -∞: such a class is the maximum only if all classes tie.
    let all = documents.iter().sum::<u64>().max(1) as f64;
    documents.iter().map(|documents| (*documents as f64 / all).ln()).collect()
}

impl NaiveBayesOptions {
    /// Amount subtracted per gram from the score of each class.
    pub(crate) fn log_totals(&self, totals: &[u64]) -> Vec<f64> {
        let smoothing = self.alpha * f64::from(self.buckets);
        totals.iter().map(|total| (*total as f64 + smoothing).ln()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(classes: usize, texts: &[&str], labels: &[usize]) -> NaiveBayes {
        let mut model = NaiveBayes::try_new(classes, NaiveBayesOptions::default()).expect("options");
        model.train(texts, labels).expect("labels fit");
        model
    }

    #[test]
    fn scores_are_those_of_the_formula() {
        let model = model(2, &["a b", "a"], &[0, 1]);
        // Class 0 uses the buckets of "a", "b" and "a b"; class 1 that of "a".
        let (alpha, buckets) = (0.001_f64, f64::from(1 << 23));
        let expected = [
            0.5_f64.ln() + 1.001_f64.ln() - (3.0 + alpha * buckets).ln(),
            0.5_f64.ln() + 1.001_f64.ln() - (1.0 + alpha * buckets).ln(),
        ];
        for (score, expected) in model.log_scores("A").iter().zip(expected) {
            assert!((score - expected).abs() < 1e-12, "{score} and {expected}");
        }
        assert_eq!(model.predict(&["a", "b"]), [Some(1), Some(0)]);
    }

    #[test]
    fn ties_go_to_the_lowest_class_and_empty_classes_never_win() {
        assert_eq!(model(3, &["x", "y"], &[1, 2]).predict(&["z", ""]), [Some(1), Some(1)]);
        assert_eq!(model(2, &[], &[]).predict(&["z"]), [Some(0)]);
        assert_eq!(model(0, &[], &[]).predict(&["z"]), [None]);
    }

    #[test]
    fn classes_may_come_late_and_be_renumbered() {
        let mut late = model(1, &["a b", "c"], &[0, 0]);
        late.add_class();
        late.train(&["a", "b c"], &[1, 1]).expect("two classes");
        late.renumber(&[1, 0]);
        let early = model(2, &["a b", "c", "a", "b c"], &[1, 1, 0, 0]);
        for text in ["a", "b", "c", "a b", "x"] {
            assert_eq!(late.log_scores(text), early.log_scores(text), "{text}");
        }
        assert_eq!(late.documents(), early.documents());
    }

    #[test]
    fn options_and_classes_are_checked() {
        let buckets = NaiveBayesOptions { buckets: 0, ..NaiveBayesOptions::default() };
        let error = NaiveBayes::try_new(2, buckets).expect_err("no buckets").to_string();
        assert_eq!(error, "buckets is 0; it must be 1 to 1073741824; 8388608 is the usual number");
        let alpha = NaiveBayesOptions { alpha: 0.0, ..NaiveBayesOptions::default() };
        assert!(NaiveBayes::try_new(2, alpha).is_err());
        let error = model(2, &[], &[]).train(&["a"], &[2]).expect_err("class 2").to_string();
        assert_eq!(error, "class 2 of 2; classes count from 0");
    }
}
