//! Sums over rows for k-means and logistic regression, and predictions of fitted models. Device side: `cuda/learn.cu`.
//!
//!   Numbers ── moments · assign · loss ──► sums, bit for bit those of plain loops over chunks
//!      └────── nearer · draw ──► choice of the next centre            nearest · score ──► columns of labels
//!
//! Chunks   of [`tune::LEARN_CHUNK_ROWS`] rows: values are added within a chunk, then the chunk sums in order.
//! Waits    never: the host reads the sums later.

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, expect_bytes, striding};
use crate::{Launch, LaunchConfig, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of a double or a 64-bit integer.
const WORD: u64 = 8;

/// Columns of doubles without NULLs, stored one after the other.
#[derive(Debug, Clone)]
pub struct Numbers {
    values: DeviceView,
    stride: u64,
    columns: u32,
    rows: Rows,
}

/// Destination of sums over chunks.
#[derive(Debug, Clone, Copy)]
pub struct Sums<'a> {
    /// One double per sum.
    pub sums: &'a DeviceView,
    /// Buffer of [`scratch_bytes`] bytes; prepared here.
    pub scratch: &'a DeviceView,
}

/// Columns that [`score`] fills if present: one value per row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scored<'a> {
    /// True labels, as 64-bit integers.
    pub labels: Option<&'a DeviceView>,
    /// Scores: doubles.
    pub scores: Option<&'a DeviceView>,
    /// Probabilities: doubles.
    pub chances: Option<&'a DeviceView>,
    /// Predicted labels: 64-bit integers.
    pub predictions: Option<&'a DeviceView>,
}

/// Bytes of scratch for `sums` sums over at most `rows` rows.
pub fn scratch_bytes(rows: u64, sums: u64) -> u64 {
    64 + chunks(rows).saturating_mul(sums).saturating_mul(WORD)
}

/// Number of chunks of `rows` rows.
pub fn chunks(rows: u64) -> u64 {
    rows.div_ceil(u64::from(tune::LEARN_CHUNK_ROWS))
}

impl Numbers {
    /// `columns` columns in `values`, `stride` values apart, of `rows` rows (at most `stride`).
    ///
    /// # Errors
    /// [`KernelError::Shape`] if the lengths do not fit.
    pub fn new(values: DeviceView, stride: u64, columns: u32, rows: Rows) -> Result<Self> {
        let most = rows.upper_bound();
        if columns == 0 || most > stride {
            let why = format!("{columns} columns of {most} rows, {stride} apart");
            return Err(KernelError::Shape { what: "numbers", why });
        }
        let wanted = (u64::from(columns) - 1).saturating_mul(stride).saturating_add(most).saturating_mul(WORD);
        expect_bytes("numbers", "values", &values, wanted)?;
        Ok(Self { values, stride, columns, rows })
    }

    pub fn columns(&self) -> u32 {
        self.columns
    }

    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Column `index`.
    ///
    /// # Errors
    /// Errors of the memory layer if there is no such column.
    pub fn column(&self, index: u32) -> Result<DeviceView> {
        let from = u64::from(index) * self.stride * WORD;
        Ok(self.values.view(from as usize..(from + self.rows.upper_bound() * WORD) as usize)?)
    }

    /// The columns from `index` on.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if no column is left.
    pub fn from_column(&self, index: u32) -> Result<Self> {
        let values = self.values.view((u64::from(index) * self.stride * WORD) as usize..self.values.len())?;
        Self::new(values, self.stride, self.columns.saturating_sub(index), self.rows.clone())
    }

    fn put<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        launch.read(&self.values).value(self.stride).value(self.columns)
    }

    /// One thread block per chunk.
    fn by_chunk(&self) -> LaunchConfig {
        LaunchConfig::linear(chunks(self.rows.upper_bound()) as u32, tune::LEARN_THREADS)
    }

    fn expect(&self, kernel: &'static str, what: &'static str, view: &DeviceView, width: u64) -> Result<()> {
        expect_bytes(kernel, what, view, self.rows.upper_bound() * width)
    }

    fn expect_sums(&self, kernel: &'static str, to: &Sums<'_>, sums: u64, on: &Stream) -> Result<()> {
        expect_bytes(kernel, "sums", to.sums, sums * WORD)?;
        expect_bytes(kernel, "scratch", to.scratch, scratch_bytes(self.rows.upper_bound(), sums))?;
        Ok(to.scratch.view(0..8)?.fill(0, on)?)
    }
}

/// Sums of each column, then the number of its values that are neither 0 nor 1. With `means`: sums of squared distances
/// to the mean of each column, then the number of values that differ from the first row's.
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn moments(
    images: &Images,
    numbers: &Numbers,
    means: Option<&DeviceView>,
    to: Sums<'_>,
    on: &Stream,
) -> Result<()> {
    let columns = u64::from(numbers.columns);
    numbers.expect_sums("moments", &to, 2 * columns, on)?;
    if let Some(means) = means {
        expect_bytes("moments", "means", means, columns * WORD)?;
    }
    let kernel = images.kernel("learn", "learn_moments")?;
    let launch = numbers.put(Launch::new(&kernel, numbers.by_chunk()));
    let launch = match means {
        Some(means) => launch.read(means),
        None => launch.value(0u64),
    };
    numbers.rows.put(launch.write(to.sums).write(to.scratch)).submit(on)?;
    Ok(())
}

/// Assigns each row to the nearest of `clusters` centres; among equals the first. Sums per centre: the columns of its
/// rows, the number of rows, and their squared distances.
///
/// | name        | length               | unit                                             |
/// |-------------|----------------------|--------------------------------------------------|
/// | `centers`   | `clusters` × columns | doubles, column after column                     |
/// | `labels`    | `rows`               | 32-bit integers, written                         |
/// | `distances` | `rows`               | doubles, written                                 |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, scratch, stream, as in every launcher")]
pub fn assign(
    images: &Images,
    numbers: &Numbers,
    centers: &DeviceView,
    clusters: u32,
    labels: &DeviceView,
    distances: &DeviceView,
    to: Sums<'_>,
    on: &Stream,
) -> Result<()> {
    let columns = u64::from(numbers.columns);
    expect_bytes("assign", "centers", centers, u64::from(clusters) * columns * WORD)?;
    numbers.expect("assign", "labels", labels, 4)?;
    numbers.expect("assign", "distances", distances, WORD)?;
    numbers.expect_sums("assign", &to, u64::from(clusters) * (columns + 2), on)?;
    let kernel = images.kernel("learn", "learn_assign")?;
    let launch = numbers.put(Launch::new(&kernel, numbers.by_chunk())).read(centers).value(clusters);
    let launch = launch.write(labels).write(distances).write(to.sums).write(to.scratch);
    numbers.rows.put(launch).submit(on)?;
    Ok(())
}

/// Makes row `chosen` centre `step` of `clusters`. Updates `distances`, each row's squared distance to its nearest
/// centre so far, and `chunk_sums`, their sum per [chunk](chunks).
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, scratch, stream, as in every launcher")]
pub fn nearer(
    images: &Images,
    numbers: &Numbers,
    chosen: &DeviceView,
    centers: &DeviceView,
    (step, clusters): (u32, u32),
    distances: &DeviceView,
    chunk_sums: &DeviceView,
    on: &Stream,
) -> Result<()> {
    if step >= clusters {
        return Err(KernelError::Shape { what: "nearer", why: format!("centre {step} of {clusters}") });
    }
    expect_bytes("nearer", "chosen", chosen, WORD)?;
    expect_bytes("nearer", "centers", centers, u64::from(clusters) * u64::from(numbers.columns) * WORD)?;
    numbers.expect("nearer", "distances", distances, WORD)?;
    expect_bytes("nearer", "chunk_sums", chunk_sums, chunks(numbers.rows.upper_bound()) * WORD)?;
    let kernel = images.kernel("learn", "learn_nearer")?;
    let launch = numbers.put(Launch::new(&kernel, numbers.by_chunk())).read(chosen).write(centers);
    let launch = launch.value(clusters).value(step).write(distances).write(chunk_sums);
    numbers.rows.put(launch).submit(on)?;
    Ok(())
}

/// Draws a row by weight, given the sums of the weights per chunk: the first row whose prefix sum exceeds `u` times the
/// total; row `any` if no weight is above 0. Writes the row's number to `chosen` (8 bytes).
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn draw(
    images: &Images,
    weights: &DeviceView,
    chunk_sums: &DeviceView,
    rows: &Rows,
    (u, any): (f64, u64),
    chosen: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let chunks = chunks(rows.upper_bound());
    expect_bytes("draw", "weights", weights, rows.upper_bound() * WORD)?;
    expect_bytes("draw", "chunk_sums", chunk_sums, chunks * WORD)?;
    expect_bytes("draw", "chosen", chosen, WORD)?;
    let kernel = images.kernel("learn", "learn_draw")?;
    let launch = Launch::new(&kernel, LaunchConfig::linear(1, 32)).read(weights).read(chunk_sums).value(chunks);
    rows.put(launch.value(u).value(any).write(chosen)).submit(on)?;
    Ok(())
}

/// Writes each row's nearest centre: its number, or its entry in `names`. Sets `refused` to 1 if a value is not finite.
///
/// | name      | length               | unit                                        |
/// |-----------|----------------------|---------------------------------------------|
/// | `centers` | `clusters` × columns | doubles, column after column                |
/// | `names`   | `clusters`           | 64-bit integers                             |
/// | `labels`  | `rows`               | 64-bit integers, written                    |
/// | `refused` | 1                    | a 32-bit integer, zeroed before             |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, scratch, stream, as in every launcher")]
pub fn nearest(
    images: &Images,
    numbers: &Numbers,
    centers: &DeviceView,
    clusters: u32,
    names: Option<&DeviceView>,
    labels: &DeviceView,
    refused: &DeviceView,
    on: &Stream,
) -> Result<()> {
    if clusters == 0 {
        return Err(KernelError::Shape { what: "nearest", why: "there are no centres".into() });
    }
    expect_bytes("nearest", "centers", centers, u64::from(clusters) * u64::from(numbers.columns) * WORD)?;
    numbers.expect("nearest", "labels", labels, WORD)?;
    expect_bytes("nearest", "refused", refused, 4)?;
    let kernel = images.kernel("learn", "learn_nearest")?;
    let config = striding(images.device(), numbers.rows.upper_bound(), tune::LEARN_THREADS);
    let launch = numbers.put(Launch::new(&kernel, config)).read(centers).value(clusters);
    let launch = match names {
        Some(names) => {
            expect_bytes("nearest", "names", names, u64::from(clusters) * WORD)?;
            launch.read(names)
        }
        None => launch.value(0u64),
    };
    numbers.rows.put(launch.write(labels).share(refused)).submit(on)?;
    Ok(())
}

/// Writes each value as its distance to the mean of its column, divided by the column's scale. Output columns are
/// `stride` values apart.
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn standardise(
    images: &Images,
    numbers: &Numbers,
    means: &DeviceView,
    scales: &DeviceView,
    out: &DeviceView,
    stride: u64,
    on: &Stream,
) -> Result<Numbers> {
    for (what, view) in [("means", means), ("scales", scales)] {
        expect_bytes("standardise", what, view, u64::from(numbers.columns) * WORD)?;
    }
    let standardised = Numbers::new(out.clone(), stride, numbers.columns, numbers.rows.clone())?;
    let kernel = images.kernel("learn", "learn_standardise")?;
    let config = striding(images.device(), numbers.rows.upper_bound(), tune::LEARN_THREADS);
    let launch = numbers.put(Launch::new(&kernel, config)).read(means).read(scales).write(out).value(stride);
    numbers.rows.put(launch).submit(on)?;
    Ok(standardised)
}

/// Over standardised rows: the gradient of the loss (per weight, and for the intercept), and the loss.
///
/// | name        | length      | unit                             |
/// |-------------|-------------|----------------------------------|
/// | `truths`    | `rows`      | doubles, 0 or 1                  |
/// | `at`        | columns + 1 | doubles: weights, then intercept |
/// | `residuals` | `rows`      | doubles, written                 |
/// | `losses`    | `rows`      | doubles, written                 |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, scratch, stream, as in every launcher")]
pub fn loss(
    images: &Images,
    numbers: &Numbers,
    truths: &DeviceView,
    at: &DeviceView,
    residuals: &DeviceView,
    losses: &DeviceView,
    to: Sums<'_>,
    on: &Stream,
) -> Result<()> {
    let columns = u64::from(numbers.columns);
    expect_bytes("loss", "at", at, (columns + 1) * WORD)?;
    for (what, view) in [("truths", truths), ("residuals", residuals), ("losses", losses)] {
        numbers.expect("loss", what, view, WORD)?;
    }
    numbers.expect_sums("loss", &to, columns + 2, on)?;
    let kernel = images.kernel("learn", "learn_loss")?;
    let launch = numbers.put(Launch::new(&kernel, numbers.by_chunk())).read(truths).read(at);
    let launch = launch.write(residuals).write(losses).write(to.sums).write(to.scratch);
    numbers.rows.put(launch).submit(on)?;
    Ok(())
}

/// Scores standardised rows. `counts` is four 64-bit integers, zeroed by the caller: true negatives, false positives,
/// false negatives, true positives.
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn score(
    images: &Images,
    numbers: &Numbers,
    truths: &DeviceView,
    at: &DeviceView,
    counts: &DeviceView,
    to: Scored<'_>,
    on: &Stream,
) -> Result<()> {
    numbers.expect("score", "truths", truths, WORD)?;
    expect_bytes("score", "at", at, (u64::from(numbers.columns) + 1) * WORD)?;
    expect_bytes("score", "counts", counts, 4 * WORD)?;
    let kernel = images.kernel("learn", "learn_score")?;
    let config = striding(images.device(), numbers.rows.upper_bound(), tune::LEARN_THREADS);
    let mut launch = numbers.put(Launch::new(&kernel, config)).read(truths).read(at).share(counts);
    for (what, view) in
        [("labels", to.labels), ("scores", to.scores), ("chances", to.chances), ("predictions", to.predictions)]
    {
        launch = match view {
            Some(view) => {
                numbers.expect("score", what, view, WORD)?;
                launch.write(view)
            }
            None => launch.value(0u64),
        };
    }
    numbers.rows.put(launch).submit(on)?;
    Ok(())
}
