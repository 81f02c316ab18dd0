//! Logistic regression: standardised features, an intercept, no penalty, fitted by L-BFGS.
//!
//! ```text
//!   z = (x - mean) / scale          p = 1 / (1 + exp(-(w·z + b)))          predicts 1 where w·z + b > 0
//!   loss(w, b) = mean of ln(1 + exp(-s (w·z + b))),  s = ±1
//!   start at 0; direction from the last 5 steps; step 1, halved until the loss falls enough (Armijo, c₁ = 10⁻⁴)
//! ```
//!
//! Ends      when no slope exceeds tolerance · max(loss, 10⁻⁹), when the loss falls by at most tolerance/100 · max(loss, 10⁻⁹), after
//!           `max_iterations`, or when 50 halvings find nothing lower.
//! Odd data  a constant column has scale 1 and gets no weight. With one class, or when a plane separates the classes, the weights grow
//!           until the loss hardly moves: the predictions are right, the weights mean nothing. Without rows all is zero.
//! After     Liu and Nocedal 1989 (L-BFGS); Nocedal and Wright, Numerical Optimization, algorithms 3.1 and 7.4.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicBool;

use super::{Matrix, MlError, at_least_one, go_on, not_negative};

/// Steps that the direction is made from.
const MEMORY: usize = 5;
const MAX_HALVINGS: usize = 50;
const ARMIJO: f64 = 1e-4;
/// Below this the loss counts as this, in the tests for the end.
const LEAST_LOSS: f64 = 1e-9;

/// How to fit.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct LogisticOptions {
    pub max_iterations: usize,
    pub tolerance: f64,
}

/// The workload's: 100 iterations, tolerance 10⁻⁹.
impl Default for LogisticOptions {
    fn default() -> Self {
        Self { max_iterations: 100, tolerance: 1e-9 }
    }
}

impl LogisticOptions {
    /// # Errors
    /// [`MlError::Option`] names the option, its value, and what it may be.
    pub fn validate(&self) -> Result<(), MlError> {
        at_least_one("max_iterations", self.max_iterations)?;
        not_negative("tolerance", self.tolerance)
    }
}

/// A tolerance that [`LogisticOptions::validate`] accepts is no NaN.
impl Eq for LogisticOptions {}

impl Hash for LogisticOptions {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.max_iterations, self.tolerance.to_bits()).hash(state);
    }
}

impl fmt::Display for LogisticOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "max_iterations={}, tolerance={:e}", self.max_iterations, self.tolerance)
    }
}

/// A fitted model.
///
/// ```
/// use millpond_queries::functions::ml::{Logistic, LogisticOptions, Matrix};
/// let rows = Matrix::try_new(4, 1, vec![1.0, 2.0, 3.0, 4.0])?;
/// let model = Logistic::fit(&rows, &[false, true, false, true], &LogisticOptions::default())?;
/// assert!(model.score(&[4.0]) > model.score(&[1.0]));
/// # Ok::<(), millpond_queries::functions::ml::MlError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Logistic {
    /// One per feature, for its standardised value.
    pub weights: Vec<f64>,
    pub intercept: f64,
    pub means: Vec<f64>,
    /// Sample standard deviations; 1 for a constant feature.
    pub scales: Vec<f64>,
    /// The mean loss at the end.
    pub loss: f64,
    pub iterations: usize,
    /// Whether a test for the end was met, rather than a limit.
    pub converged: bool,
}

impl Logistic {
    /// Fits a model to rows and their labels.
    ///
    /// # Errors
    /// [`MlError::Labels`] if there are more or fewer labels than rows, [`MlError::Option`] for options that cannot be used,
    /// [`MlError::Range`] if sums of squares overflow.
    pub fn fit(rows: &Matrix, labels: &[bool], options: &LogisticOptions) -> Result<Self, MlError> {
        Self::fit_until(rows, labels, options, &AtomicBool::new(false))
    }

    /// As [`Self::fit`]; ends in [`MlError::Stopped`] soon after `stop` is set.
    ///
    /// # Errors
    /// As for [`Self::fit`].
    pub fn fit_until(
        rows: &Matrix,
        labels: &[bool],
        options: &LogisticOptions,
        stop: &AtomicBool,
    ) -> Result<Self, MlError> {
        options.validate()?;
        let (n, width) = (rows.num_rows(), rows.num_columns());
        if labels.len() != n {
            return Err(MlError::Labels { labels: labels.len(), rows: n });
        }
        if n == 0 {
            let (weights, scales) = (vec![0.0; width], vec![1.0; width]);
            return Ok(Self {
                means: weights.clone(),
                weights,
                intercept: 0.0,
                scales,
                loss: 0.0,
                iterations: 0,
                converged: true,
            });
        }
        let (means, scales) = standard(rows);
        if means.iter().chain(&scales).any(|value| !value.is_finite()) {
            return Err(MlError::Range);
        }
        let problem = Problem { rows, labels, means: &means, scales: &scales };
        let end = problem.minimise(options, stop)?;
        let (intercept, weights) = end.at.split_last().map_or((0.0, vec![]), |(b, w)| (*b, w.to_vec()));
        Ok(Self {
            weights,
            intercept,
            means,
            scales,
            loss: end.loss,
            iterations: end.iterations,
            converged: end.converged,
        })
    }

    /// w·z + b of one row: above zero it predicts 1.
    ///
    /// # Panics
    /// If `row` has fewer values than the model has weights.
    pub fn score(&self, row: &[f64]) -> f64 {
        score(&self.weights, self.intercept, row, &self.means, &self.scales)
    }

    /// The probability of 1.
    ///
    /// # Panics
    /// As [`Self::score`].
    pub fn probability(&self, row: &[f64]) -> f64 {
        probability(self.score(row))
    }

    /// How often the model is right on `rows`.
    ///
    /// # Errors
    /// [`MlError::Labels`] if there are more or fewer labels than rows.
    pub fn confusion(&self, rows: &Matrix, labels: &[bool]) -> Result<Confusion, MlError> {
        if labels.len() != rows.num_rows() {
            return Err(MlError::Labels { labels: labels.len(), rows: rows.num_rows() });
        }
        let mut all = Confusion::default();
        let part = |range: std::ops::Range<usize>| {
            let mut part = Confusion::default();
            range.for_each(|row| part.count(labels[row], self.score(rows.row(row)) > 0.0));
            part
        };
        rows.chunks(part, |part| all = all.plus(part));
        Ok(all)
    }
}

/// Counts of truth against prediction: `[[tn, fp], [fn, tp]]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Confusion {
    pub true_negatives: u64,
    pub false_positives: u64,
    pub false_negatives: u64,
    pub true_positives: u64,
}

impl Confusion {
    /// Counts one row.
    pub fn count(&mut self, truth: bool, predicted: bool) {
        let counter = match (truth, predicted) {
            (false, false) => &mut self.true_negatives,
            (false, true) => &mut self.false_positives,
            (true, false) => &mut self.false_negatives,
            (true, true) => &mut self.true_positives,
        };
        *counter += 1;
    }

    fn plus(self, other: Self) -> Self {
        Self {
            true_negatives: self.true_negatives + other.true_negatives,
            false_positives: self.false_positives + other.false_positives,
            false_negatives: self.false_negatives + other.false_negatives,
            true_positives: self.true_positives + other.true_positives,
        }
    }

    pub fn total(&self) -> u64 {
        self.true_negatives + self.false_positives + self.false_negatives + self.true_positives
    }

    /// The share of predicted ones that are ones; `None` if none is predicted.
    pub fn precision(&self) -> Option<f64> {
        share(self.true_positives, self.true_positives + self.false_positives)
    }

    /// Area under the curve of the hard predictions: the mean of both classes' recall; `None` if a class has no rows.
    pub fn auc(&self) -> Option<f64> {
        let ones = share(self.true_positives, self.true_positives + self.false_negatives)?;
        let zeros = share(self.true_negatives, self.true_negatives + self.false_positives)?;
        Some((ones + zeros) / 2.0)
    }

    /// The share of rows that are right; `None` without rows.
    pub fn accuracy(&self) -> Option<f64> {
        share(self.true_positives + self.true_negatives, self.total())
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Each column's mean and sample standard deviation.
fn standard(rows: &Matrix) -> (Vec<f64>, Vec<f64>) {
    let (n, width) = (rows.num_rows(), rows.num_columns());
    let mut means = rows.means();
    let squares = rows.squares(&means);
    // Whether a column is constant is asked of its values: the rounding of the mean would make a small deviation of it.
    let first = rows.row(0);
    let mut differs = vec![false; width];
    let part = |range: std::ops::Range<usize>| {
        let mut part = vec![false; width];
        range.for_each(|row| part.iter_mut().zip(rows.row(row)).zip(first).for_each(|((part, a), b)| *part |= a != b));
        part
    };
    rows.chunks(part, |part| differs.iter_mut().zip(part).for_each(|(all, part)| *all |= part));
    let scales = (0..width)
        .map(|column| {
            let deviation = (squares[column] / (n - 1).max(1) as f64).sqrt();
            match differs[column] {
                true if deviation > 0.0 => deviation,
                true => 1.0,
                false => {
                    means[column] = first[column];
                    1.0
                }
            }
        })
        .collect();
    (means, scales)
}

fn score(weights: &[f64], intercept: f64, row: &[f64], means: &[f64], scales: &[f64]) -> f64 {
    let terms = (0..weights.len()).map(|column| weights[column] * ((row[column] - means[column]) / scales[column]));
    terms.sum::<f64>() + intercept
}

fn probability(score: f64) -> f64 {
    if score >= 0.0 {
        1.0 / (1.0 + (-score).exp())
    } else {
        let odds = score.exp();
        odds / (1.0 + odds)
    }
}

/// ln(1 + exp(-margin)), without overflow.
fn margin_loss(margin: f64) -> f64 {
    if margin >= 0.0 { (-margin).exp().ln_1p() } else { margin.exp().ln_1p() - margin }
}

struct Problem<'a> {
    rows: &'a Matrix,
    labels: &'a [bool],
    means: &'a [f64],
    scales: &'a [f64],
}

/// Where a search ended; the intercept is the last number of `at`.
struct End {
    at: Vec<f64>,
    loss: f64,
    iterations: usize,
    converged: bool,
}

impl Problem<'_> {
    /// The loss at `at`, and its slopes.
    fn value(&self, at: &[f64]) -> (f64, Vec<f64>) {
        let width = self.rows.num_columns();
        let n = self.rows.num_rows() as f64;
        let mut sums = self.rows.sums(width + 2, |index, part| {
            let row = self.rows.row(index);
            let z = score(&at[..width], at[width], row, self.means, self.scales);
            let label = self.labels[index];
            // p - y, exactly as small as it is on the right side of the plane.
            let residual = if label { -probability(-z) } else { probability(z) };
            for column in 0..width {
                part[column] += residual * ((row[column] - self.means[column]) / self.scales[column]);
            }
            part[width] += residual;
            part[width + 1] += margin_loss(if label { z } else { -z });
        });
        let loss = sums.pop().unwrap_or(0.0) / n;
        (loss, sums.into_iter().map(|sum| sum / n).collect())
    }

    fn minimise(&self, options: &LogisticOptions, stop: &AtomicBool) -> Result<End, MlError> {
        let mut at = vec![0.0; self.rows.num_columns() + 1];
        let (mut loss, mut slopes) = self.value(&at);
        let mut steps: VecDeque<Step> = VecDeque::with_capacity(MEMORY);
        let flat = |slopes: &[f64], loss: f64| {
            slopes.iter().fold(0.0_f64, |most, slope| most.max(slope.abs())) <= options.tolerance * loss.max(LEAST_LOSS)
        };
        let mut iterations = 0;
        let mut converged = flat(&slopes, loss);
        while !converged && iterations < options.max_iterations {
            let mut direction = direction(&slopes, &steps);
            let mut descent = dot(&direction, &slopes);
            if descent.is_nan() || descent >= 0.0 {
                // Rounding has spoilt the remembered steps: straight down instead.
                steps.clear();
                direction = slopes.iter().map(|slope| -slope).collect();
                descent = dot(&direction, &slopes);
            }
            let mut found = None;
            let mut length = 1.0;
            for _ in 0..=MAX_HALVINGS {
                go_on(stop)?;
                let next: Vec<f64> = at.iter().zip(&direction).map(|(x, d)| x + length * d).collect();
                let (next_loss, next_slopes) = self.value(&next);
                if next_loss <= loss + ARMIJO * length * descent {
                    found = Some((next, next_loss, next_slopes));
                    break;
                }
                length *= 0.5;
            }
            let Some((next, next_loss, next_slopes)) = found else { break };
            iterations += 1;
            let step = Step::new(&at, &next, &slopes, &next_slopes);
            if step.curvature > 0.0 {
                if steps.len() == MEMORY {
                    steps.pop_front();
                }
                steps.push_back(step);
            }
            let still = (loss - next_loss).abs() <= options.tolerance * 1e-2 * next_loss.max(LEAST_LOSS);
            (at, loss, slopes) = (next, next_loss, next_slopes);
            converged = still || flat(&slopes, loss);
        }
        Ok(End { at, loss, iterations, converged })
    }
}

/// What one step taught: how far it went, how the slopes changed, and the product of both.
struct Step {
    moved: Vec<f64>,
    bent: Vec<f64>,
    curvature: f64,
}

impl Step {
    fn new(at: &[f64], next: &[f64], slopes: &[f64], next_slopes: &[f64]) -> Self {
        let difference = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| b - a).collect() };
        let (moved, bent) = (difference(at, next), difference(slopes, next_slopes));
        let curvature = dot(&moved, &bent);
        Self { moved, bent, curvature }
    }
}

/// The two-loop recursion.
fn direction(slopes: &[f64], steps: &VecDeque<Step>) -> Vec<f64> {
    let mut q = slopes.to_vec();
    let mut shares = Vec::with_capacity(steps.len());
    for step in steps.iter().rev() {
        let share = dot(&step.moved, &q) / step.curvature;
        q.iter_mut().zip(&step.bent).for_each(|(q, bent)| *q -= share * bent);
        shares.push(share);
    }
    if let Some(last) = steps.back() {
        let scale = last.curvature / dot(&last.bent, &last.bent);
        q.iter_mut().for_each(|q| *q *= scale);
    }
    for (step, share) in steps.iter().zip(shares.into_iter().rev()) {
        let back = dot(&step.bent, &q) / step.curvature;
        q.iter_mut().zip(&step.moved).for_each(|(q, moved)| *q += (share - back) * moved);
    }
    q.into_iter().map(|q| -q).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(columns: usize, values: &[f64], labels: &[bool]) -> Logistic {
        let rows = Matrix::try_new(labels.len(), columns, values.to_vec()).expect("matrix");
        Logistic::fit(&rows, labels, &LogisticOptions::default()).expect("fits")
    }

    #[test]
    fn one_feature_without_meaning_gives_the_share_of_ones() {
        // A constant column: only the intercept is left, and its best value is ln(3/1).
        let model = fit(1, &[0.1; 4], &[true, true, true, false]);
        assert_eq!((model.weights.as_slice(), model.scales.as_slice()), ([0.0].as_slice(), [1.0].as_slice()));
        assert!((model.intercept - 3.0_f64.ln()).abs() < 1e-6, "{}", model.intercept);
        assert!(model.converged);
    }

    #[test]
    fn separable_classes_are_separated() {
        let model = fit(1, &[1.0, 2.0, 3.0, 4.0], &[false, false, true, true]);
        let rows = Matrix::try_new(4, 1, vec![1.0, 2.0, 3.0, 4.0]).expect("matrix");
        let confusion = model.confusion(&rows, &[false, false, true, true]).expect("labels fit");
        assert_eq!((confusion.precision(), confusion.auc(), confusion.accuracy()), (Some(1.0), Some(1.0), Some(1.0)));
    }

    #[test]
    fn one_class_and_no_rows_have_answers() {
        let model = fit(1, &[1.0, 2.0], &[true, true]);
        assert!(model.score(&[1.5]) > 0.0 && model.loss.is_finite());
        let rows = Matrix::try_new(2, 1, vec![1.0, 2.0]).expect("matrix");
        assert_eq!(model.confusion(&rows, &[true, true]).expect("labels fit").auc(), None);
        let none = fit(2, &[], &[]);
        assert_eq!((none.weights, none.intercept, none.converged), (vec![0.0, 0.0], 0.0, true));
    }

    #[test]
    fn features_whose_sums_overflow_are_refused() {
        let huge = Matrix::try_new(3, 1, vec![1e308, -1e308, 1e308]).expect("a matrix");
        let fitted = Logistic::fit(&huge, &[true, false, true], &LogisticOptions::default());
        assert_eq!(fitted.err(), Some(MlError::Range));
    }

    #[test]
    fn losses_do_not_overflow() {
        assert_eq!(margin_loss(-1e6), 1e6);
        assert_eq!(margin_loss(1e6), 0.0);
        assert_eq!((probability(-1e6), probability(1e6)), (0.0, 1.0));
    }

    #[test]
    fn labels_and_options_are_checked() {
        let rows = Matrix::try_new(2, 1, vec![1.0, 2.0]).expect("matrix");
        let error = Logistic::fit(&rows, &[true], &LogisticOptions::default()).expect_err("one label").to_string();
        assert_eq!(error, "1 labels for 2 rows; each row needs one");
        let options = LogisticOptions { max_iterations: 0, ..LogisticOptions::default() };
        assert!(Logistic::fit(&rows, &[true, false], &options).is_err());
    }
}
