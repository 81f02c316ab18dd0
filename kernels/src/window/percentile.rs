//! Medians and percentiles of frames, through a wavelet matrix. Device side: `cuda/percentile.cu`.
//!
//! ```text
//!   rows by value ── matrix ──► a level per bit of their ranks: the bits of 32 rows, and the count before them
//!   matrix, frames ── pick ───► the k-th smallest value of each frame, or an interpolation of two
//! ```
//!
//! NULL     is not a value; a frame without values gives NULL.
//! Memory   [`matrix_bytes`]: a quarter of a byte per row and level; [`ranks_bytes`] while the matrix is built.
//! Waits    never.
//! Cost     per frame: logarithmic in the number of all rows, independent of the frame's size.

use millpond_memory::DeviceView;

use crate::Launch;
use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::rows::expect_bytes;
use crate::sort::kind;
use crate::window::{
    Column, Counted, Frame, Out, Positions, Result, Window, list_bytes, lists, put_address, scratch_bytes,
};

/// Position of the wanted value among the sorted values of a frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    Median,
    /// Fraction of the other values below the wanted value, from 0 to 1; for floats only.
    Percentile(f64),
}

/// Wavelet matrix: finds the k-th smallest value of any range of rows.
#[derive(Debug, Clone)]
pub struct Matrix {
    words: DeviceView,
    order: DeviceView,
    before: Option<DeviceView>,
}

/// Bytes of a [`Matrix`] of `rows` rows.
pub fn matrix_bytes(rows: u64) -> u64 {
    u64::from(levels(rows)) * words(rows) * 8
}

/// Bytes that [`Window::matrix`] needs in addition to [`matrix_scratch_bytes`].
pub fn ranks_bytes(rows: u64) -> u64 {
    2 * list_bytes(rows)
}

/// Bytes of scratch of [`Window::matrix`].
pub fn matrix_scratch_bytes(rows: u64) -> u64 {
    scratch_bytes(rows + 1)
}

/// Number of levels: one per bit of a rank.
fn levels(rows: u64) -> u32 {
    (u64::BITS - rows.saturating_sub(1).leading_zeros()).max(1)
}

/// Words of a level, including the word for the end position.
fn words(rows: u64) -> u64 {
    rows / 32 + 1
}

impl Window<'_> {
    /// Builds the matrix of a column. `order` holds the row numbers sorted by value, NULLs last; `counted` gives the
    /// valid rows if there are NULLs. `matrix` has [`matrix_bytes`], `ranks` [`ranks_bytes`], `scratch`
    /// [`matrix_scratch_bytes`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit.
    pub fn matrix(
        &self,
        order: &DeviceView,
        counted: Option<&Counted>,
        matrix: &DeviceView,
        ranks: &DeviceView,
        scratch: &DeviceView,
    ) -> Result<Matrix> {
        let rows = self.bound();
        expect_bytes("window", "an order by value", order, 4 * rows)?;
        expect_bytes("window", "a matrix", matrix, matrix_bytes(rows))?;
        expect_bytes("window", "scratch of a matrix", scratch, matrix_scratch_bytes(rows))?;
        let scratch = scratch.view(0..matrix_scratch_bytes(rows) as usize)?;
        let ranks = lists("ranks", ranks, rows, 2)?;
        let before = counted.map(|counted| &counted.before);
        let kernel = self.images.kernel("percentile", "percentile_ranks")?;
        let launch = Launch::new(&kernel, self.striding(rows)).read(order);
        self.submit(read_or_null(launch, before).write(&ranks[0]))?;
        let kernel = self.images.kernel("percentile", "percentile_level")?;
        let bytes = (words(rows) * 8) as usize;
        for level in 0..levels(rows) {
            let own = matrix.view(level as usize * bytes..(level as usize + 1) * bytes)?;
            let (from, next) = (&ranks[level as usize % 2], &ranks[(level as usize + 1) % 2]);
            let bit = levels(rows) - 1 - level;
            scratch.fill(0, self.on)?;
            let launch = Launch::new(&kernel, self.scanning()).read(from).value(bit);
            let launch = read_or_null(launch, before).write(&own);
            let launch = if bit == 0 { launch.value(0u64) } else { launch.write(next) };
            self.submit(launch.write(&scratch))?;
        }
        Ok(Matrix { words: matrix.clone(), order: order.clone(), before: before.cloned() })
    }

    /// Number of launches of [`matrix`](Self::matrix).
    pub fn matrix_launches(&self) -> u64 {
        1 + u64::from(levels(self.bound()))
    }

    /// Computes the median or percentile of each row's frame; `of` is the column of the matrix.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, for results that are not nullable, for values that are not
    /// numbers, and for percentiles of values that are not floats.
    pub fn pick(
        &self,
        positions: &Positions,
        frame: &Frame,
        of: &Column,
        matrix: &Matrix,
        place: Place,
        out: &Out,
    ) -> Result<()> {
        of.check("an argument", self.bound())?;
        out.check(self.bound())?;
        let shape = |why: String| Err(KernelError::Shape { what: "window", why });
        let Some(validity) = &out.validity else { return shape("percentiles that may not be NULL".into()) };
        let floats = matches!(of.physical, Physical::F32 | Physical::F64);
        if matches!(of.physical, Physical::Bit | Physical::View) || out.physical == Physical::Bit {
            return shape(format!("a percentile of {:?}", of.physical));
        }
        let (code, share) = match place {
            Place::Median => (0u32, 0.0),
            Place::Percentile(share) if floats && (0.0..=1.0).contains(&share) => (1, share),
            Place::Percentile(share) => return shape(format!("the percentile {share} of {:?}", of.physical)),
        };
        let mut bytes = frame.bytes();
        put_address(&mut bytes, Some(&matrix.words));
        put_address(&mut bytes, Some(&matrix.order));
        put_address(&mut bytes, matrix.before.as_ref());
        bytes.extend(words(self.bound()).to_le_bytes());
        [levels(self.bound()), 0].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        put_address(&mut bytes, Some(&of.values));
        [kind(of.physical), out.physical.width(), code, 0].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(share.to_le_bytes());
        let kernel = self.images.kernel("percentile", "percentile_pick")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).bytes(&bytes, 8);
        let launch =
            matrix.before.iter().fold(frame.read_by(of.read_by(launch)), |launch, before| launch.reads(before));
        self.submit(launch.reads(&matrix.words).reads(&matrix.order).write(&out.values).write(validity))
    }
}

/// Adds a parameter that may be null.
fn read_or_null<'l>(launch: Launch<'l>, view: Option<&DeviceView>) -> Launch<'l> {
    match view {
        Some(view) => launch.read(view),
        None => launch.value(0u64),
    }
}
