//! Machine learning over plain arrays: k-means, logistic regression, naive Bayes on text.
//!
//! ```text
//!   Matrix (rows × columns, f64) ─► fit(&matrix, &options) ─► a model
//!        chunks of CHUNK_ROWS rows on rayon's threads ─► partial sums ─► added in chunk order
//! ```
//!
//! Same     results depend on the rows, their order, the options and the seed; not on threads or runs.
//! Numbers  double precision. Numbers that are not finite are rejected earlier.
//! Cancel   each iteration checks `stop`; a stopped fit returns [`MlError::Stopped`].

pub(crate) mod bayes;
mod exponential;
mod hash;
pub(crate) mod kmeans;
pub(crate) mod logistic;
pub(crate) mod tables;

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::iter::{IntoParallelIterator, ParallelIterator};

pub use bayes::{NaiveBayes, NaiveBayesOptions, NgramHasher};
pub use hash::murmur3_32;
pub use kmeans::{KMeans, KMeansOptions};
pub use logistic::{Confusion, Logistic, LogisticOptions};

/// Rows per chunk: one thread sums a chunk, then chunk sums are added in order. A constant for a fixed order of
/// additions, and equal to the device's.
const CHUNK_ROWS: usize = millpond::kernels::tune::LEARN_CHUNK_ROWS as usize;
/// Chunk sums held at a time: enough for many threads, and a bound on memory for wide sums.
const CHUNKS_HELD: usize = 64;

/// Error of fitting a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MlError {
    #[error("{rows} rows of {columns} columns are {} values; {values} are given", rows * columns)]
    Shape { rows: usize, columns: usize, values: usize },
    #[error("{option} is {given}; it must be {wanted}")]
    Option { option: &'static str, given: String, wanted: &'static str },
    #[error("row {row}, column {column} is {value}; only finite numbers can be used")]
    NotFinite { row: usize, column: usize, value: f64 },
    #[error("{labels} labels for {rows} rows; each row needs one")]
    Labels { labels: usize, rows: usize },
    #[error("class {class} of {classes}; classes count from 0")]
    Class { class: usize, classes: usize },
    #[error("sums of the features leave the range of a DOUBLE; divide the features by a constant first")]
    Range,
    #[error("the fit was stopped")]
    Stopped,
}

/// Row-major matrix of doubles.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Matrix {
    values: Vec<f64>,
    rows: usize,
    columns: usize,
}

impl Matrix {
    /// Creates a matrix from `rows` × `columns` row-major values.
    ///
    /// # Errors
    /// [`MlError::Shape`] for another number of values, [`MlError::NotFinite`] for the first NaN or infinity.
    pub fn try_new(rows: usize, columns: usize, values: Vec<f64>) -> Result<Self, MlError> {
        if rows.checked_mul(columns) != Some(values.len()) {
            return Err(MlError::Shape { rows, columns, values: values.len() });
        }
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => Err(MlError::NotFinite { row: at / columns, column: at % columns, value: values[at] }),
            None => Ok(Self { values, rows, columns }),
        }
    }

    pub fn num_rows(&self) -> usize {
        self.rows
    }

    pub fn num_columns(&self) -> usize {
        self.columns
    }

    /// The values in column-major order.
    pub(crate) fn by_column(&self) -> Vec<f64> {
        (0..self.columns).flat_map(|column| (0..self.rows).map(move |row| self.row(row)[column])).collect()
    }

    /// Like [`Self::try_new`] from column-major values, without a check for finite values.
    pub(crate) fn from_columns(rows: usize, columns: usize, values: &[f64]) -> Result<Self, MlError> {
        if rows.checked_mul(columns) != Some(values.len()) {
            return Err(MlError::Shape { rows, columns, values: values.len() });
        }
        let row = |row: usize| (0..columns).map(move |column| values[column * rows + row]);
        Ok(Self { values: (0..rows).flat_map(row).collect(), rows, columns })
    }

    /// Row `index`, as a slice.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn row(&self, index: usize) -> &[f64] {
        &self.values[index * self.columns..(index + 1) * self.columns]
    }

    /// Computes a value for each chunk of rows, and passes the values on in order; few are held at a time.
    fn chunks<T: Send>(&self, each: impl Fn(std::ops::Range<usize>) -> T + Sync + Send, mut take: impl FnMut(T)) {
        let chunk = |number: usize| number * CHUNK_ROWS..((number + 1) * CHUNK_ROWS).min(self.rows);
        let chunks = self.rows.div_ceil(CHUNK_ROWS);
        for first in (0..chunks).step_by(CHUNKS_HELD) {
            let last = (first + CHUNKS_HELD).min(chunks);
            let parts: Vec<T> = (first..last).into_par_iter().map(|number| each(chunk(number))).collect();
            parts.into_iter().for_each(&mut take);
        }
    }

    /// Sums over rows, in `width` numbers, the contributions of `add`: within chunks, then over chunks in order.
    fn sums(&self, width: usize, add: impl Fn(usize, &mut [f64]) + Sync + Send) -> Vec<f64> {
        let mut sums = vec![0.0; width];
        let part = |rows: std::ops::Range<usize>| {
            let mut part = vec![0.0; width];
            rows.for_each(|row| add(row, &mut part));
            part
        };
        self.chunks(part, |part| add_to(&mut sums, &part));
        sums
    }

    /// Mean of each column.
    fn means(&self) -> Vec<f64> {
        let sums = self.sums(self.columns, |row, part| add_to(part, self.row(row)));
        sums.into_iter().map(|sum| sum / self.rows as f64).collect()
    }

    /// Sum of squared distances to `means`, per column.
    fn squares(&self, means: &[f64]) -> Vec<f64> {
        self.sums(self.columns, |row, part| {
            for ((part, value), mean) in part.iter_mut().zip(self.row(row)).zip(means) {
                *part += (value - mean) * (value - mean);
            }
        })
    }
}

fn add_to(sum: &mut [f64], values: &[f64]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value;
    }
}

fn go_on(stop: &AtomicBool) -> Result<(), MlError> {
    if stop.load(Ordering::Relaxed) { Err(MlError::Stopped) } else { Ok(()) }
}

/// An option that must be a finite number at or above zero.
fn not_negative(option: &'static str, value: f64) -> Result<(), MlError> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => Err(MlError::Option { option, given: value.to_string(), wanted: "a finite number, 0 or more" }),
    }
}

/// An option that must be at least one.
fn at_least_one(option: &'static str, value: usize) -> Result<(), MlError> {
    match value {
        0 => Err(MlError::Option { option, given: "0".to_string(), wanted: "1 or more" }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_refuses_wrong_shapes_and_values_that_are_not_finite() {
        let shape = Matrix::try_new(2, 2, vec![1.0; 3]).expect_err("three values").to_string();
        assert_eq!(shape, "2 rows of 2 columns are 4 values; 3 are given");
        let nan = Matrix::try_new(2, 2, vec![0.0, 1.0, f64::NAN, 2.0]).expect_err("NaN").to_string();
        assert_eq!(nan, "row 1, column 0 is NaN; only finite numbers can be used");
        assert_eq!(Matrix::try_new(0, 3, vec![]).map(|matrix| matrix.num_rows()), Ok(0));
    }

    #[test]
    fn sums_do_not_depend_on_the_number_of_threads() {
        let values: Vec<f64> = (0..40_000).map(|i| 1.0 / f64::from(i + 1)).collect();
        let matrix = Matrix::try_new(20_000, 2, values).expect("matrix");
        let means = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            pool.install(|| matrix.means())
        };
        assert_eq!(means(1), means(3));
    }
}
