//! k-means with k-means++ starting centers, restarts, and Lloyd's iterations.
//!
//! ```text
//!   for each restart r:
//!     center 0     = row ⌊u·n⌋                                     u = uniform(seed, r, step)
//!     center c > 0 = the first row whose prefix sum of D² exceeds u·ΣD²   D² = squared distance to the nearest center
//!                                                                         so far; sums in chunks, then over chunks
//!     repeat: assign rows to their nearest centers; move centers to the means of their rows; until the moves are small
//!   the restart with the least sum of squared distances wins
//! ```
//!
//! Ties      the lowest center, the lowest row, the first restart.
//! Odd data  a center without rows does not move; if every row is a center already, the next one is row ⌊u·n⌋; without
//!           rows there are no centers.
//! After     Arthur and Vassilvitskii 2007 (k-means++); Lloyd 1982.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicBool;

use super::{CHUNK_ROWS, Matrix, MlError, add_to, at_least_one, go_on, not_negative};

/// Maximum number of clusters; bounds the sums per thread.
const MAX_CLUSTERS: usize = 65_536;

/// Options of k-means.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct KMeansOptions {
    pub clusters: usize,
    /// Maximum number of iterations per restart.
    pub max_iterations: usize,
    pub restarts: usize,
    pub seed: u64,
    /// A restart ends when the sum of the centers' squared moves is at most this times the mean variance of the
    /// columns.
    pub tolerance: f64,
}

impl KMeansOptions {
    /// Options of the workload: 20 iterations, 5 restarts, seed 37, tolerance 10⁻⁴.
    pub fn new(clusters: usize) -> Self {
        Self { clusters, max_iterations: 20, restarts: 5, seed: 37, tolerance: 1e-4 }
    }

    /// # Errors
    /// [`MlError::Option`] with the option, its value, and the valid values.
    pub fn validate(&self) -> Result<(), MlError> {
        if !(1..=MAX_CLUSTERS).contains(&self.clusters) {
            let given = self.clusters.to_string();
            return Err(MlError::Option { option: "k", given, wanted: "1 to 65536" });
        }
        at_least_one("max_iterations", self.max_iterations)?;
        at_least_one("restarts", self.restarts)?;
        not_negative("tolerance", self.tolerance)
    }
}

/// A tolerance accepted by [`KMeansOptions::validate`] is not NaN.
impl Eq for KMeansOptions {}

impl Hash for KMeansOptions {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { clusters, max_iterations, restarts, seed, tolerance } = self;
        (clusters, max_iterations, restarts, seed, tolerance.to_bits()).hash(state);
    }
}

impl fmt::Display for KMeansOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, max_iterations, restarts, seed, tolerance } = self;
        write!(
            f,
            "k={clusters}, max_iterations={max_iterations}, restarts={restarts}, seed={seed}, tolerance={tolerance:e}"
        )
    }
}

/// Clusters of the rows of a matrix.
///
/// ```
/// use millpond_queries::functions::ml::{KMeans, KMeansOptions, Matrix};
/// let rows = Matrix::try_new(4, 1, vec![1.0, 2.0, 11.0, 12.0])?;
/// let model = KMeans::fit(&rows, &KMeansOptions::new(2))?;
/// assert_eq!(model.labels[0], model.labels[1]);
/// assert_ne!(model.labels[1], model.labels[2]);
/// assert_eq!(model.wssse, 1.0);
/// # Ok::<(), millpond_queries::functions::ml::MlError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct KMeans {
    /// One row per center.
    pub centers: Matrix,
    /// By row, its center.
    pub labels: Vec<u32>,
    /// By center, its number of rows.
    pub sizes: Vec<u64>,
    /// By cluster, the sum of squared distances to its center.
    pub cluster_wssse: Vec<f64>,
    /// Sum of `cluster_wssse`.
    pub wssse: f64,
    /// Index of the best restart, and its iterations.
    pub restart: usize,
    pub iterations: usize,
}

impl KMeans {
    /// Clusters `rows`.
    ///
    /// # Errors
    /// [`MlError::Option`] for invalid options, [`MlError::Range`] if sums of squares overflow.
    pub fn fit(rows: &Matrix, options: &KMeansOptions) -> Result<Self, MlError> {
        Self::fit_until(rows, options, &AtomicBool::new(false))
    }

    /// Like [`Self::fit`]; returns [`MlError::Stopped`] soon after `stop` is set.
    ///
    /// # Errors
    /// Those of [`Self::fit`].
    pub fn fit_until(rows: &Matrix, options: &KMeansOptions, stop: &AtomicBool) -> Result<Self, MlError> {
        options.validate()?;
        let mut best: Option<Self> = None;
        for restart in 0..options.restarts {
            let start = starting_centers(rows, options, restart, stop)?;
            let model = Self { restart, ..Self::lloyd(rows, start, options, stop)? };
            if best.as_ref().is_none_or(|best| model.wssse < best.wssse) {
                best = Some(model);
            }
        }
        let best = best.expect("there is at least one restart");
        if best.wssse.is_finite() { Ok(best) } else { Err(MlError::Range) }
    }

    /// The nearest center of each row, the first one on ties. For the training rows, this is [`Self::labels`].
    ///
    /// # Errors
    /// [`MlError::Shape`] if rows and centers have different numbers of columns.
    pub fn predict(&self, rows: &Matrix) -> Result<Vec<u32>, MlError> {
        nearest(rows, &self.centers)
    }

    /// Clusters `rows` from given centers, one per row of `start`; `clusters`, `restarts` and `seed` of the options are
    /// ignored.
    ///
    /// # Errors
    /// [`MlError::Shape`] if rows and centers have different numbers of columns.
    pub fn fit_from(rows: &Matrix, start: Matrix, options: &KMeansOptions) -> Result<Self, MlError> {
        at_least_one("max_iterations", options.max_iterations)?;
        not_negative("tolerance", options.tolerance)?;
        if start.num_columns() != rows.num_columns() {
            let (rows, columns) = (start.num_rows(), rows.num_columns());
            return Err(MlError::Shape { rows, columns, values: start.values.len() });
        }
        Self::lloyd(rows, start, options, &AtomicBool::new(false))
    }

    /// Starting centers of a restart.
    ///
    /// # Errors
    /// Those of [`Self::fit`].
    pub fn starting_centers(rows: &Matrix, options: &KMeansOptions, restart: usize) -> Result<Matrix, MlError> {
        options.validate()?;
        starting_centers(rows, options, restart, &AtomicBool::new(false))
    }

    fn lloyd(rows: &Matrix, start: Matrix, options: &KMeansOptions, stop: &AtomicBool) -> Result<Self, MlError> {
        if start.num_rows() == 0 || rows.num_rows() == 0 {
            return Ok(Self::without_rows(rows.num_columns()));
        }
        let mut lloyd = Lloyd::new(start, options, &rows.squares(&rows.means()), rows.num_rows());
        while lloyd.goes_on() {
            go_on(stop)?;
            lloyd.step(&assign(rows, lloyd.centers()).sums);
        }
        go_on(stop)?;
        let Assigned { labels, sums } = assign(rows, lloyd.centers());
        Ok(Self { labels, ..lloyd.model(&sums) })
    }

    /// The model for no rows.
    pub(crate) fn without_rows(columns: usize) -> Self {
        Self {
            centers: Matrix { values: vec![], rows: 0, columns },
            labels: vec![],
            sizes: vec![],
            cluster_wssse: vec![],
            wssse: 0.0,
            restart: 0,
            iterations: 0,
        }
    }
}

/// Lloyd's iterations, independent of where the rows are: consumes sums over rows, and moves the centers.
pub(crate) struct Lloyd {
    centers: Matrix,
    /// Sum of squared moves that ends the iterations.
    threshold: f64,
    max_iterations: usize,
    iterations: usize,
    still: bool,
}

impl Lloyd {
    /// Starts from given centers; `squares` has each column's sum of squared distances to its mean over `rows` rows.
    pub(crate) fn new(start: Matrix, options: &KMeansOptions, squares: &[f64], rows: usize) -> Self {
        // Without columns the mean variance is 0, and no center moves.
        let mean_variance = squares.iter().sum::<f64>() / rows as f64 / squares.len().max(1) as f64;
        let threshold = options.tolerance * mean_variance;
        Self { centers: start, threshold, max_iterations: options.max_iterations, iterations: 0, still: false }
    }

    pub(crate) fn centers(&self) -> &Matrix {
        &self.centers
    }

    /// Whether another step is needed, with rows assigned to [`Self::centers`].
    pub(crate) fn goes_on(&self) -> bool {
        !self.still && self.iterations < self.max_iterations
    }

    /// Moves each center to the mean of its rows. `sums` has, per center, the column sums, the row count, and one
    /// unused number.
    pub(crate) fn step(&mut self, sums: &[f64]) {
        let width = self.centers.num_columns();
        self.iterations += 1;
        let mut moved = 0.0;
        for (cluster, sum) in sums.chunks_exact(width + 2).enumerate() {
            let size = sum[width];
            if size == 0.0 {
                continue;
            }
            for (center, sum) in self.centers.values[cluster * width..(cluster + 1) * width].iter_mut().zip(sum) {
                let mean = sum / size;
                moved += (mean - *center) * (mean - *center);
                *center = mean;
            }
        }
        self.still = moved <= self.threshold;
    }

    /// The model without labels; `sums` as for [`Self::step`], with the squared distances as the last number.
    pub(crate) fn model(self, sums: &[f64]) -> KMeans {
        let width = self.centers.num_columns();
        let of_cluster = |place: usize| sums.chunks_exact(width + 2).map(move |sum| sum[width + place]);
        let cluster_wssse: Vec<f64> = of_cluster(1).collect();
        KMeans {
            labels: vec![],
            sizes: of_cluster(0).map(|size| size as u64).collect(),
            wssse: cluster_wssse.iter().sum(),
            cluster_wssse,
            restart: 0,
            iterations: self.iterations,
            centers: self.centers,
        }
    }
}

/// The nearest of `centers` for each row; empty without centers.
///
/// # Errors
/// Those of [`KMeans::predict`].
pub(crate) fn nearest(rows: &Matrix, centers: &Matrix) -> Result<Vec<u32>, MlError> {
    if centers.num_rows() == 0 {
        return Ok(Vec::new());
    }
    if rows.num_columns() != centers.num_columns() {
        let (rows, columns) = (centers.num_rows(), rows.num_columns());
        return Err(MlError::Shape { rows, columns, values: centers.values.len() });
    }
    Ok(assign(rows, centers).labels)
}

/// Center of each row; per center the column sums of its rows, their number, and their squared distances.
struct Assigned {
    labels: Vec<u32>,
    sums: Vec<f64>,
}

fn assign(rows: &Matrix, centers: &Matrix) -> Assigned {
    let (clusters, width) = (centers.num_rows(), rows.num_columns());
    let part = |range: std::ops::Range<usize>| {
        let mut sums = vec![0.0; clusters * (width + 2)];
        let mut labels = Vec::with_capacity(range.len());
        for row in range {
            let values = rows.row(row);
            let (mut nearest, mut least) = (0, f64::INFINITY);
            for cluster in 0..clusters {
                let distance = squared_distance(values, centers.row(cluster));
                if distance < least {
                    (nearest, least) = (cluster, distance);
                }
            }
            labels.push(nearest as u32);
            let sum = &mut sums[nearest * (width + 2)..(nearest + 1) * (width + 2)];
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum += value;
            }
            sum[width] += 1.0;
            sum[width + 1] += least;
        }
        (labels, sums)
    };
    let mut all = Assigned { labels: Vec::with_capacity(rows.num_rows()), sums: vec![0.0; clusters * (width + 2)] };
    rows.chunks(part, |(labels, sums)| {
        all.labels.extend(labels);
        add_to(&mut all.sums, &sums);
    });
    all
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + (a - b) * (a - b))
}

fn starting_centers(
    rows: &Matrix,
    options: &KMeansOptions,
    restart: usize,
    stop: &AtomicBool,
) -> Result<Matrix, MlError> {
    let (n, width) = (rows.num_rows(), rows.num_columns());
    if n == 0 {
        return Ok(Matrix { values: vec![], rows: 0, columns: width });
    }
    let mut centers = Matrix { values: vec![], rows: 0, columns: width };
    let (mut distances, mut chunk_sums) = (vec![f64::INFINITY; n], vec![]);
    for step in 0..options.clusters {
        go_on(stop)?;
        let draw = Draw::new(options, restart, step, n);
        let chosen = if step == 0 { draw.any } else { draw.row(&distances, &chunk_sums) };
        let center = rows.row(chosen);
        let (mut nearer, mut sums) = (Vec::with_capacity(n), Vec::with_capacity(chunk_sums.len()));
        let part = |range: std::ops::Range<usize>| {
            let distance = |row: usize| distances[row].min(squared_distance(rows.row(row), center));
            let part: Vec<f64> = range.map(distance).collect();
            let sum: f64 = part.iter().sum();
            (part, sum)
        };
        rows.chunks(part, |(part, sum)| {
            nearer.extend(part);
            sums.push(sum);
        });
        (distances, chunk_sums) = (nearer, sums);
        centers.values.extend_from_slice(center);
        centers.rows += 1;
    }
    Ok(centers)
}

/// Random draw of a starting center.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Draw {
    /// Share of the total weight before the drawn row.
    pub u: f64,
    /// The row to use if no weight is positive.
    pub any: usize,
}

impl Draw {
    /// Draws center `step` of a restart over `rows` rows, at least one.
    pub(crate) fn new(options: &KMeansOptions, restart: usize, step: usize, rows: usize) -> Self {
        let u = uniform(options.seed, restart as u64, step as u64);
        Self { u, any: ((u * rows as f64) as usize).min(rows - 1) }
    }

    /// The first row whose prefix sum exceeds its share of the total weight, summed by chunks.
    fn row(&self, weights: &[f64], chunk_sums: &[f64]) -> usize {
        // Total and prefixes add in one order, so that the last prefix equals the total exactly.
        let total = chunk_sums.iter().fold(0.0, |sum, chunk| sum + chunk);
        if total.is_nan() || total <= 0.0 {
            return self.any;
        }
        let chunk = |number: usize| {
            let first = number * CHUNK_ROWS;
            weights[first..weights.len().min(first + CHUNK_ROWS)]
                .iter()
                .enumerate()
                .map(move |(at, w)| (first + at, *w))
        };
        let goal = self.u * total;
        let mut before = 0.0;
        for (number, sum) in chunk_sums.iter().enumerate() {
            if before + sum > goal {
                let mut within = 0.0;
                let over = chunk(number).find(|(_, weight)| {
                    within += weight;
                    before + within > goal
                });
                return over.map_or(self.any, |(row, _)| row);
            }
            before += sum;
        }
        // If sums exceed the range of a double, no prefix exceeds the share.
        let weighty = chunk_sums.iter().rposition(|sum| *sum > 0.0);
        let last = weighty.and_then(|number| chunk(number).rfind(|(_, weight)| *weight > 0.0));
        last.map_or(self.any, |(row, _)| row)
    }
}

/// A pseudo-random number in [0, 1) from its arguments: SplitMix64's finalizer over each in turn, then 53 bits.
fn uniform(seed: u64, restart: u64, step: u64) -> f64 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |word: u64| {
        let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    };
    let word = [restart, step].iter().fold(mix(seed.wrapping_add(GAMMA)), |word, next| {
        mix(word.wrapping_add(next.wrapping_add(1).wrapping_mul(GAMMA)))
    });
    (word >> 11) as f64 * 2.0_f64.powi(-53)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, columns: usize, values: &[f64]) -> Matrix {
        Matrix::try_new(rows, columns, values.to_vec()).expect("matrix")
    }

    fn draw(weights: &[f64], u: f64) -> Option<usize> {
        let sums: Vec<f64> = weights.chunks(CHUNK_ROWS).map(|chunk| chunk.iter().sum()).collect();
        let row = Draw { u, any: usize::MAX }.row(weights, &sums);
        (row < usize::MAX).then_some(row)
    }

    #[test]
    fn weights_are_drawn_by_prefix_sums() {
        assert_eq!(draw(&[1.0, 0.0, 3.0], 0.0), Some(0));
        assert_eq!(draw(&[1.0, 0.0, 3.0], 0.25), Some(2));
        assert_eq!(draw(&[0.0, 0.0, 3.0, 0.0], 0.999_999), Some(2));
        assert_eq!(draw(&[0.0, 0.0], 0.5), None);
        assert_eq!(draw(&[f64::MAX, f64::MAX, 0.0], 0.5), Some(1));
        let many = vec![1.0; 3 * CHUNK_ROWS];
        for at in [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, 2 * CHUNK_ROWS + 5, 3 * CHUNK_ROWS - 1] {
            assert_eq!(draw(&many, (at as f64 + 0.5) / many.len() as f64), Some(at));
        }
    }

    #[test]
    fn uniform_numbers_differ_and_repeat() {
        let numbers: Vec<f64> = (0..100).map(|step| uniform(37, step / 10, step % 10)).collect();
        assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
        let mut sorted = numbers.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        assert_eq!(sorted.len(), 100);
        assert_eq!(uniform(37, 3, 4), numbers[34]);
        assert_ne!(uniform(38, 3, 4), numbers[34]);
    }

    #[test]
    fn more_clusters_than_rows_leave_some_empty() {
        let model = KMeans::fit(&matrix(2, 1, &[1.0, 5.0]), &KMeansOptions::new(4)).expect("fits");
        assert_eq!((model.wssse, model.centers.num_rows()), (0.0, 4));
        assert_eq!(model.sizes.iter().sum::<u64>(), 2);
        assert_eq!(model.sizes.iter().filter(|size| **size == 0).count(), 2);
    }

    #[test]
    fn rows_that_are_all_equal_and_no_rows_have_answers() {
        let model = KMeans::fit(&matrix(3, 2, &[7.0; 6]), &KMeansOptions::new(2)).expect("fits");
        assert_eq!((model.labels.as_slice(), model.wssse), ([0, 0, 0].as_slice(), 0.0));
        let none = KMeans::fit(&matrix(0, 2, &[]), &KMeansOptions::new(2)).expect("fits");
        assert_eq!((none.labels.len(), none.centers.num_rows(), none.wssse), (0, 0, 0.0));
        let no_columns = KMeans::fit(&matrix(3, 0, &[]), &KMeansOptions::new(2)).expect("fits");
        assert_eq!(no_columns.labels, [0, 0, 0]);
    }

    #[test]
    fn options_that_cannot_be_used_are_named() {
        let error = KMeans::fit(&matrix(1, 1, &[1.0]), &KMeansOptions::new(0)).expect_err("no clusters").to_string();
        assert_eq!(error, "k is 0; it must be 1 to 65536");
        let options = KMeansOptions { tolerance: f64::NAN, ..KMeansOptions::new(1) };
        let error = KMeans::fit(&matrix(1, 1, &[1.0]), &options).expect_err("NaN").to_string();
        assert_eq!(error, "tolerance is NaN; it must be a finite number, 0 or more");
    }

    #[test]
    fn threads_change_no_bit() {
        let values: Vec<f64> = (0..30_000).map(|i| f64::from(i * 7919 % 10_007) / 13.0).collect();
        let rows = matrix(10_000, 3, &values);
        let fit = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            pool.install(|| KMeans::fit(&rows, &KMeansOptions { restarts: 2, ..KMeansOptions::new(5) })).expect("fits")
        };
        assert_eq!(fit(1), fit(3));
    }

    #[test]
    fn predictions_of_the_fitted_rows_are_their_labels() {
        let values: Vec<f64> = (0..6_000).map(|i| f64::from(i * 7919 % 1_009) / 7.0).collect();
        let rows = matrix(3_000, 2, &values);
        let model = KMeans::fit(&rows, &KMeansOptions { max_iterations: 3, ..KMeansOptions::new(6) }).expect("fits");
        assert_eq!(model.predict(&rows), Ok(model.labels.clone()));
        assert_eq!(model.predict(&matrix(0, 2, &[])), Ok(vec![]));
        assert!(matches!(model.predict(&matrix(1, 1, &[1.0])), Err(MlError::Shape { .. })));
    }

    #[test]
    fn features_whose_sums_overflow_are_refused() {
        let huge = matrix(3, 1, &[1e308, 1e308, -1e308]);
        assert_eq!(KMeans::fit(&huge, &KMeansOptions::new(1)), Err(MlError::Range));
    }

    #[test]
    fn a_stopped_fit_ends() {
        let stopped = KMeans::fit_until(&matrix(1, 1, &[1.0]), &KMeansOptions::new(1), &AtomicBool::new(true));
        assert_eq!(stopped, Err(MlError::Stopped));
    }
}
