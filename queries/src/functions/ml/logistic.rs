//! Logistic regression: standardized features, an intercept, no penalty, fitted by L-BFGS.
//!
//! ```text
//!   z = (x - mean) / scale          p = 1 / (1 + exp(-(w·z + b)))          predicts 1 where w·z + b > 0
//!   loss(w, b) = mean of ln(1 + exp(-s (w·z + b))),  s = ±1
//!   start at 0; direction from the last 5 steps; step 1, halved until the loss falls enough (Armijo, c₁ = 10⁻⁴)
//! ```
//!
//! Ends      when no slope exceeds tolerance · max(loss, 10⁻⁹), when the loss falls by at most tolerance/100 ·
//!           max(loss, 10⁻⁹), after `max_iterations`, or when 50 halvings do not reduce the loss.
//! Odd data  a constant column has scale 1 and weight 0. With one class, or if a plane separates the classes, the
//!           weights grow until the loss hardly changes: predictions are right, weights are meaningless. Without rows
//!           all values are zero.
//! After     Liu and Nocedal 1989 (L-BFGS); Nocedal and Wright, Numerical Optimization, algorithms 3.1 and 7.4.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicBool;

use super::exponential::{exp_below, ln_1p_unit};
use super::{Matrix, MlError, at_least_one, go_on, not_negative};

/// Number of previous steps used for the direction.
const MEMORY: usize = 5;
const MAX_HALVINGS: usize = 50;
const ARMIJO: f64 = 1e-4;
/// Minimum loss in the convergence tests.
const LEAST_LOSS: f64 = 1e-9;

/// Options of logistic regression.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct LogisticOptions {
    pub max_iterations: usize,
    pub tolerance: f64,
}

/// Options of the workload: 100 iterations, tolerance 10⁻⁹.
impl Default for LogisticOptions {
    fn default() -> Self {
        Self { max_iterations: 100, tolerance: 1e-9 }
    }
}

impl LogisticOptions {
    /// # Errors
    /// [`MlError::Option`] with the option, its value, and the valid values.
    pub fn validate(&self) -> Result<(), MlError> {
        at_least_one("max_iterations", self.max_iterations)?;
        not_negative("tolerance", self.tolerance)
    }
}

/// A tolerance accepted by [`LogisticOptions::validate`] is not NaN.
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
    /// One per feature, for its standardized value.
    pub weights: Vec<f64>,
    pub intercept: f64,
    pub means: Vec<f64>,
    /// Sample standard deviations; 1 for a constant feature.
    pub scales: Vec<f64>,
    /// Mean loss at the end.
    pub loss: f64,
    pub iterations: usize,
    /// Whether a convergence test ended the fit, not a limit.
    pub converged: bool,
}

impl Logistic {
    /// Fits a model to rows and their labels.
    ///
    /// # Errors
    /// [`MlError::Labels`] if the numbers of labels and rows differ, [`MlError::Option`] for invalid options,
    /// [`MlError::Range`] if sums of squares overflow.
    pub fn fit(rows: &Matrix, labels: &[bool], options: &LogisticOptions) -> Result<Self, MlError> {
        Self::fit_until(rows, labels, options, &AtomicBool::new(false))
    }

    /// Like [`Self::fit`]; returns [`MlError::Stopped`] soon after `stop` is set.
    ///
    /// # Errors
    /// Those of [`Self::fit`].
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
            return Ok(Self::without_rows(width));
        }
        let (means, scales) = standard(rows)?;
        let problem = Problem { rows, labels, means: &means, scales: &scales };
        let mut search = Search::new(width, options);
        while let Some(at) = search.wanted() {
            go_on(stop)?;
            search.take(problem.value(&at));
        }
        Ok(Self::found(search, means, scales))
    }

    /// The model for no rows.
    pub(crate) fn without_rows(columns: usize) -> Self {
        let (weights, scales) = (vec![0.0; columns], vec![1.0; columns]);
        let means = weights.clone();
        Self { means, weights, intercept: 0.0, scales, loss: 0.0, iterations: 0, converged: true }
    }

    /// The model at the end of a search.
    pub(crate) fn found(search: Search, means: Vec<f64>, scales: Vec<f64>) -> Self {
        let Search { at, loss, iterations, converged, .. } = search;
        let (intercept, weights) = at.split_last().map_or((0.0, vec![]), |(b, w)| (*b, w.to_vec()));
        Self { weights, intercept, means, scales, loss, iterations, converged }
    }

    /// w·z + b of one row; the prediction is 1 if it is positive.
    ///
    /// # Panics
    /// If `row` has fewer values than the model has weights.
    pub fn score(&self, row: &[f64]) -> f64 {
        score(&self.weights, self.intercept, row, &self.means, &self.scales)
    }

    /// The probability of class 1.
    ///
    /// # Panics
    /// Those of [`Self::score`].
    pub fn probability(&self, row: &[f64]) -> f64 {
        probability(self.score(row))
    }

    /// Confusion matrix of the model on `rows`.
    ///
    /// # Errors
    /// [`MlError::Labels`] if the numbers of labels and rows differ.
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

/// Counts by truth and prediction: `[[tn, fp], [fn, tp]]`.
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

    /// Share of rows with truth 1 among the rows predicted as 1; `None` if there are none.
    pub fn precision(&self) -> Option<f64> {
        share(self.true_positives, self.true_positives + self.false_positives)
    }

    /// Area under the curve of the hard predictions, which is the mean recall of both classes; `None` if a class has no
    /// rows.
    pub fn auc(&self) -> Option<f64> {
        let ones = share(self.true_positives, self.true_positives + self.false_negatives)?;
        let zeros = share(self.true_negatives, self.true_negatives + self.false_positives)?;
        Some((ones + zeros) / 2.0)
    }

    /// Share of correctly predicted rows; `None` without rows.
    pub fn accuracy(&self) -> Option<f64> {
        share(self.true_positives + self.true_negatives, self.total())
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Mean and sample standard deviation of each column.
fn standard(rows: &Matrix) -> Result<(Vec<f64>, Vec<f64>), MlError> {
    let width = rows.num_columns();
    let means = rows.means();
    let squares = rows.squares(&means);
    // Compare values to detect a constant column: rounding of the mean would give it a small deviation.
    let first = rows.row(0);
    let mut differs = vec![false; width];
    let part = |range: std::ops::Range<usize>| {
        let mut part = vec![false; width];
        range.for_each(|row| part.iter_mut().zip(rows.row(row)).zip(first).for_each(|((part, a), b)| *part |= a != b));
        part
    };
    rows.chunks(part, |part| differs.iter_mut().zip(part).for_each(|(all, part)| *all |= part));
    scales(rows.num_rows(), means, &squares, &differs, first)
}

/// Means and scales from means, sums of squared distances to them, and whether values differ from the first.
pub(crate) fn scales(
    rows: usize,
    mut means: Vec<f64>,
    squares: &[f64],
    differs: &[bool],
    first: &[f64],
) -> Result<(Vec<f64>, Vec<f64>), MlError> {
    let scales = (0..means.len()).map(|column| {
        let deviation = (squares[column] / (rows - 1).max(1) as f64).sqrt();
        match differs[column] {
            true if deviation > 0.0 => deviation,
            true => 1.0,
            false => {
                means[column] = first[column];
                1.0
            }
        }
    });
    let scales: Vec<f64> = scales.collect();
    match means.iter().chain(&scales).all(|value| value.is_finite()) {
        true => Ok((means, scales)),
        false => Err(MlError::Range),
    }
}

fn score(weights: &[f64], intercept: f64, row: &[f64], means: &[f64], scales: &[f64]) -> f64 {
    let terms = (0..weights.len()).map(|column| weights[column] * ((row[column] - means[column]) / scales[column]));
    terms.fold(0.0, |sum, term| sum + term) + intercept
}

fn probability(score: f64) -> f64 {
    if score >= 0.0 {
        1.0 / (1.0 + exp_below(-score))
    } else {
        let odds = exp_below(score);
        odds / (1.0 + odds)
    }
}

/// ln(1 + exp(-margin)) without overflow.
fn margin_loss(margin: f64) -> f64 {
    if margin >= 0.0 { ln_1p_unit(exp_below(-margin)) } else { ln_1p_unit(exp_below(margin)) - margin }
}

struct Problem<'a> {
    rows: &'a Matrix,
    labels: &'a [bool],
    means: &'a [f64],
    scales: &'a [f64],
}

impl Problem<'_> {
    /// The loss at `at`, and its gradient.
    fn value(&self, at: &[f64]) -> (f64, Vec<f64>) {
        let width = self.rows.num_columns();
        let sums = self.rows.sums(width + 2, |index, part| {
            let row = self.rows.row(index);
            let z = score(&at[..width], at[width], row, self.means, self.scales);
            let label = self.labels[index];
            // p - y without cancellation, so that it is exact for small values.
            let residual = if label { -probability(-z) } else { probability(z) };
            for column in 0..width {
                part[column] += residual * ((row[column] - self.means[column]) / self.scales[column]);
            }
            part[width] += residual;
            part[width + 1] += margin_loss(if label { z } else { -z });
        });
        value_of(sums, self.rows.num_rows())
    }
}

/// Mean loss and gradient from sums over rows: the gradient by weights and intercept, then the loss.
pub(crate) fn value_of(mut sums: Vec<f64>, rows: usize) -> (f64, Vec<f64>) {
    let loss = sums.pop().unwrap_or(0.0) / rows as f64;
    (loss, sums.into_iter().map(|sum| sum / rows as f64).collect())
}

/// L-BFGS search for the minimum loss, independent of where the rows are: it requests loss and gradient at a point, and
/// consumes them.
///
/// ```text
///   new ─► wanted ─► take ─► wanted ─► take ─► … ─► wanted: None
///          the start          a step, halved until the loss falls enough; then the next
/// ```
pub(crate) struct Search {
    options: LogisticOptions,
    /// Current point; the intercept is the last number.
    at: Vec<f64>,
    loss: f64,
    slopes: Vec<f64>,
    steps: VecDeque<Step>,
    iterations: usize,
    converged: bool,
    stage: Stage,
}

/// State of a search.
enum Stage {
    /// Requests the starting point.
    Start,
    /// Requests a point in this direction.
    Steps { direction: Vec<f64>, descent: f64, length: f64, halvings: usize },
    /// The search has ended.
    Ended,
}

impl Search {
    pub(crate) fn new(columns: usize, options: &LogisticOptions) -> Self {
        Self {
            options: *options,
            at: vec![0.0; columns + 1],
            loss: 0.0,
            slopes: vec![],
            steps: VecDeque::with_capacity(MEMORY),
            iterations: 0,
            converged: false,
            stage: Stage::Start,
        }
    }

    /// The point at which loss and gradient are needed next; `None` at the end.
    pub(crate) fn wanted(&self) -> Option<Vec<f64>> {
        match &self.stage {
            Stage::Start => Some(self.at.clone()),
            Stage::Steps { direction, length, .. } => {
                Some(self.at.iter().zip(direction).map(|(x, d)| x + length * d).collect())
            }
            Stage::Ended => None,
        }
    }

    /// Consumes loss and gradient at the wanted point.
    pub(crate) fn take(&mut self, (loss, slopes): (f64, Vec<f64>)) {
        let Some(at) = self.wanted() else { return };
        match &mut self.stage {
            Stage::Start => {
                (self.loss, self.slopes) = (loss, slopes);
                self.converged = self.is_flat();
            }
            Stage::Steps { descent, length, halvings, .. } => {
                // A NaN loss has not fallen.
                let falls = loss <= self.loss + ARMIJO * *length * *descent;
                if !falls {
                    (*length, *halvings) = (*length * 0.5, *halvings + 1);
                    if *halvings > MAX_HALVINGS {
                        self.stage = Stage::Ended;
                    }
                    return;
                }
                self.iterations += 1;
                let step = Step::new(&self.at, &at, &self.slopes, &slopes);
                if step.curvature > 0.0 {
                    if self.steps.len() == MEMORY {
                        self.steps.pop_front();
                    }
                    self.steps.push_back(step);
                }
                let still = (self.loss - loss).abs() <= self.options.tolerance * 1e-2 * loss.max(LEAST_LOSS);
                (self.at, self.loss, self.slopes) = (at, loss, slopes);
                self.converged = still || self.is_flat();
            }
            Stage::Ended => return,
        }
        self.stage = match self.converged || self.iterations >= self.options.max_iterations {
            true => Stage::Ended,
            false => self.next_step(),
        };
    }

    fn is_flat(&self) -> bool {
        let steepest = self.slopes.iter().fold(0.0_f64, |most, slope| most.max(slope.abs()));
        steepest <= self.options.tolerance * self.loss.max(LEAST_LOSS)
    }

    fn next_step(&mut self) -> Stage {
        let mut direction = direction(&self.slopes, &self.steps);
        let mut descent = dot(&direction, &self.slopes);
        if descent.is_nan() || descent >= 0.0 {
            // Rounding has made the stored steps useless: use steepest descent.
            self.steps.clear();
            direction = self.slopes.iter().map(|slope| -slope).collect();
            descent = dot(&direction, &self.slopes);
        }
        Stage::Steps { direction, descent, length: 1.0, halvings: 0 }
    }
}

/// Correction pair of one step: change of the point, change of the gradient, and their product.
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

/// The two-loop recursion of L-BFGS.
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
        // A constant column leaves only the intercept; its best value is ln(3/1).
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
