//! Naive Bayes over words and word pairs: classes, counts, and the likeliest class of each text. Device:
//! `cuda/bayes.cu`.
//!
//! ```text
//!   texts, classes ─ classes ─► keys │ rows, texts, grams per class    the host numbers the classes, chooses the cells
//!   texts, slots ─── train ───► counts of cells
//!   texts ────────── predict ─► the value of the likeliest class
//! ```
//!
//! Memory   callers allocate: [`Classes::BYTES`], [`Cells::bytes`].
//! Waits    never: the host reads the classes later.

use std::ops::Range;

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::pipeline::ExtentRows;
use crate::rows::{Rows, bitmap_words, expect_bytes, striding};
use crate::{Launch, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of a view.
const VIEW_BYTES: u64 = 16;
/// Slots for classes, including the extra slot for the reserved key.
const SLOTS: u64 = tune::BAYES_SLOTS as u64 + 1;
/// Sums per class: rows, texts, grams.
const SUMS: u64 = 3;
/// Key of a free slot.
const NO_KEY: u64 = u64::MAX;

/// Lower-case texts.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    /// 16-byte views; empty for NULL.
    pub views: &'a DeviceView,
    pub rows: &'a ExtentRows,
    /// Buffers that the views point into.
    pub reached: &'a [DeviceView],
}

impl Texts<'_> {
    fn launch<'k>(&self, kernel: &'k millpond_memory::Kernel, images: &Images) -> Result<Launch<'k>> {
        let rows = self.rows.upper_bound();
        expect_bytes("bayes", "views", self.views, rows * VIEW_BYTES)?;
        let launch = Launch::new(kernel, striding(images.device(), rows, tune::BAYES_THREADS));
        let launch = self.reached.iter().fold(launch, |launch, view| launch.reads(view.padded()));
        Ok(launch.read(self.views))
    }
}

/// Table of the classes found so far.
#[derive(Debug, Clone, Copy)]
pub struct Classes<'a> {
    /// Buffer of [`Classes::BYTES`] bytes, [prepared](Self::prepare).
    pub table: &'a DeviceView,
}

/// One class with its counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundClass {
    pub slot: usize,
    pub key: i64,
    /// Rows of the class that have a text.
    pub texts: u64,
    /// Grams (words and word pairs) of these texts.
    pub grams: u64,
}

impl Classes<'_> {
    /// Bytes of a table: keys, sums, and a flag for a class that found no slot.
    pub const BYTES: usize = (SLOTS * (1 + SUMS) * 8 + 8) as usize;
    /// Number of slots.
    pub const SLOTS: usize = SLOTS as usize;
    const KEYS: Range<usize> = 0..(SLOTS * 8) as usize;
    const SUMS: Range<usize> = Self::KEYS.end..Self::BYTES - 8;

    /// Clears the table.
    ///
    /// # Errors
    /// Errors of the memory layer.
    pub fn prepare(&self, on: &Stream) -> Result<()> {
        self.table.view(Self::KEYS)?.fill(u8::MAX, on)?;
        Ok(self.table.view(Self::KEYS.end..Self::BYTES)?.fill(0, on)?)
    }

    /// Reads the classes from the bytes of a filled table; `None` if there were more classes than slots.
    pub fn found(bytes: &[u8]) -> Option<Vec<FoundClass>> {
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (keys, rest) = words.split_at_checked(Self::SLOTS)?;
        let (sums, refused) = rest.split_at_checked((SLOTS * SUMS) as usize)?;
        let classes = keys.iter().zip(sums.as_chunks::<{ SUMS as usize }>().0).enumerate();
        let classes = classes.filter(|(_, (_, [rows, ..]))| *rows > 0).map(|(slot, (key, [_, texts, grams]))| {
            // The last slot holds the class whose key equals the reserved key.
            let key = if slot + 1 == Self::SLOTS { NO_KEY } else { *key };
            FoundClass { slot, key: key as i64, texts: *texts, grams: *grams }
        });
        (refused.first() == Some(&0)).then(|| classes.collect())
    }
}

/// Finds the classes of rows, and counts the rows, texts and grams of each class.
///
/// | name      | length          | unit                                                      |
/// |-----------|-----------------|-----------------------------------------------------------|
/// | `valid`   | `rows`          | bits: rows that have a text; `None`: all rows             |
/// | `classes` | `rows`          | 64-bit integers: keys of the classes                      |
/// | `slots`   | `rows`          | u32, written: the table slot of the row's class           |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn classes(
    images: &Images,
    texts: Texts<'_>,
    valid: Option<&DeviceView>,
    classes: &DeviceView,
    to: Classes<'_>,
    slots: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let rows = Rows::try_from(texts.rows)?;
    expect_bytes("bayes_classes", "classes", classes, rows.upper_bound() * 8)?;
    expect_bytes("bayes_classes", "slots", slots, rows.upper_bound() * 4)?;
    expect_bytes("bayes_classes", "table", to.table, Classes::BYTES as u64)?;
    let kernel = images.kernel("bayes", "bayes_classes")?;
    let launch = texts.launch(&kernel, images)?;
    let launch = match valid {
        Some(valid) => launch.read(&bitmap_words("bayes_classes", "valid", valid, &rows)?),
        None => launch.value(0u64),
    };
    let launch = launch.read(classes).write(to.table.view(Classes::KEYS)?).write(to.table.view(Classes::SUMS)?);
    let launch = launch.write(slots).write(to.table.view(Classes::SUMS.end..Classes::BYTES)?);
    rows.put(launch).submit(on)?;
    Ok(())
}

/// Layout of the counts: one cell per bucket, or a hash table of the buckets in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cells {
    pub buckets: u32,
    pub classes: u32,
    cells: u32,
}

impl Cells {
    /// Cells for at most `grams` grams; `None` if there would be too many counts.
    pub fn new(buckets: u32, classes: u32, grams: u64) -> Option<Cells> {
        // Half of a hash table stays free.
        let hashed = grams.saturating_mul(2).max(32).checked_next_power_of_two().unwrap_or(u64::MAX);
        let cells = if hashed < u64::from(buckets) { hashed as u32 } else { buckets };
        let counts = u64::from(cells) * u64::from(classes);
        (classes > 0 && counts < u64::from(u32::MAX)).then_some(Cells { buckets, classes, cells })
    }

    fn is_hashed(&self) -> bool {
        self.cells < self.buckets
    }

    fn counts(&self) -> Range<usize> {
        0..self.cells as usize * self.classes as usize * 8
    }

    /// Bytes of the counts and of the keys behind them. All are zero before training.
    pub fn bytes(&self) -> usize {
        self.counts().end + if self.is_hashed() { self.cells as usize * 4 } else { 0 }
    }

    /// Adds the address of the keys, or null, as a parameter.
    fn put_keys<'k>(&self, launch: Launch<'k>, table: &DeviceView, written: bool) -> Result<Launch<'k>> {
        if !self.is_hashed() {
            return Ok(launch.value(0u64));
        }
        let keys = table.view(self.counts().end..self.bytes())?;
        Ok(if written { launch.write(keys) } else { launch.read(keys) })
    }

    fn expect(&self, kernel: &'static str, table: &DeviceView) -> Result<DeviceView> {
        expect_bytes(kernel, "table", table, self.bytes() as u64)?;
        Ok(table.view(self.counts())?)
    }
}

/// Counts the grams of texts per class.
///
/// | name      | length               | unit                                                             |
/// |-----------|----------------------|------------------------------------------------------------------|
/// | `slots`   | `rows`               | u32: slots written by [`classes`]                                |
/// | `numbers` | [`Classes::SLOTS`]   | u32: class number per slot; any other number skips the slot      |
/// | `table`   | [`Cells::bytes`]     | counts, which are added to                                       |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn train(
    images: &Images,
    texts: Texts<'_>,
    slots: &DeviceView,
    numbers: &DeviceView,
    cells: Cells,
    table: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let rows = Rows::try_from(texts.rows)?;
    expect_bytes("bayes_train", "slots", slots, rows.upper_bound() * 4)?;
    expect_bytes("bayes_train", "numbers", numbers, SLOTS * 4)?;
    let counts = cells.expect("bayes_train", table)?;
    let kernel = images.kernel("bayes", "bayes_train")?;
    let launch = texts.launch(&kernel, images)?.read(slots).read(numbers).value(cells.classes);
    let launch = cells.put_keys(launch, table, true)?.write(counts).value(cells.cells).value(cells.buckets);
    rows.put(launch).submit(on)?;
    Ok(())
}

/// A trained model.
#[derive(Debug, Clone, Copy)]
pub struct Model<'a> {
    pub cells: Cells,
    /// Counts of the cells.
    pub table: &'a DeviceView,
    /// Smoothing: count that every bucket of every class starts with.
    pub alpha: f64,
    /// Start of the score of each class (doubles).
    pub priors: &'a DeviceView,
    /// Amount subtracted per gram, for each class (doubles).
    pub totals: &'a DeviceView,
}

/// Writes the value of the likeliest class of each text; among equals the first class.
///
/// | name     | length            | unit                                            |
/// |----------|-------------------|-------------------------------------------------|
/// | `values` | classes × `width` | bytes: the value of each class                  |
/// | `out`    | `rows` × `width`  | bytes, written                                  |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit or `width` is unsupported.
pub fn predict(
    images: &Images,
    texts: Texts<'_>,
    model: Model<'_>,
    values: &DeviceView,
    width: u32,
    out: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let rows = Rows::try_from(texts.rows)?;
    let Model { cells, table, alpha, priors, totals } = model;
    let classes = u64::from(cells.classes);
    if !matches!(width, 1 | 2 | 4 | 8 | 16) {
        return Err(KernelError::Shape { what: "bayes_predict", why: format!("values of {width} bytes") });
    }
    for (what, view, each) in [("priors", priors, 8), ("totals", totals, 8), ("values", values, width.into())] {
        expect_bytes("bayes_predict", what, view, classes * each)?;
    }
    expect_bytes("bayes_predict", "out", out, rows.upper_bound() * u64::from(width))?;
    let counts = cells.expect("bayes_predict", table)?;
    let kernel = images.kernel("bayes", "bayes_predict")?;
    let launch = texts.launch(&kernel, images)?.value(cells.classes);
    let launch = cells.put_keys(launch, table, false)?.read(counts).value(cells.cells).value(cells.buckets);
    let launch = launch.value(alpha).read(priors).read(totals).read(values).value(width).write(out);
    rows.put(launch).submit(on)?;
    Ok(())
}
