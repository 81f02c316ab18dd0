//! DISTINCT in frames: a value counts once. Device side: `cuda/distinct.cu`.
//!
//! ```text
//!   rows by partition and value ── near ──► the previous, or next, row with an equal value
//!   near ─┬─ firsts ──► a validity for fold: frames from the start of the partition, or to its end
//!         └─ changes ─► a column for fold: surplus of repeated values in other frames ── less ──► subtracted
//! ```
//!
//! NULL     is not counted, or counts as a value if the caller chooses so.
//! Memory   [`near_bytes`], and [`firsts_bytes`] or [`changes_bytes`]; [`spans_bytes`] while [`Window::changes`] runs.
//! Waits    never.
//! Cost     two searches per row, independent of the size of the frames.

use millpond_memory::DeviceView;

use crate::Launch;
use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::rows::{Rows, bitmap_words, expect_bytes};
use crate::sort::{PARAMETER_ALIGNMENT, SortKey, few_keys, kind};
use crate::window::{Bound, Column, Frame, Out, Positions, Result, Units, Window, list_bytes, lists};

/// Side of a row that is searched for an equal value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    Before,
    Behind,
}

/// Bytes of the output of [`Window::near`].
pub fn near_bytes(rows: u64) -> u64 {
    list_bytes(rows)
}

/// Bytes of the output of [`Window::firsts`].
pub fn firsts_bytes(rows: u64) -> u64 {
    rows.div_ceil(32).max(1) * 4
}

/// Bytes of the output of [`Window::changes`].
pub fn changes_bytes(rows: u64) -> u64 {
    8 * rows.max(1)
}

/// Bytes of scratch of [`Window::changes`].
pub fn spans_bytes(rows: u64) -> u64 {
    2 * list_bytes(rows)
}

impl Window<'_> {
    /// Finds for each row the nearest row of its partition with an equal value; `nulls` treats NULL as a value. `order`
    /// holds the row numbers sorted by partition, value and number.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit.
    pub fn near(
        &self,
        positions: &Positions,
        value: &SortKey,
        reached: &[DeviceView],
        order: &DeviceView,
        (side, nulls): (Side, bool),
        near: &DeviceView,
    ) -> Result<()> {
        expect_bytes("window", "an order by value", order, 4 * self.bound())?;
        expect_bytes("window", "rows of the same value", near, near_bytes(self.bound()))?;
        let kernel = self.images.kernel("distinct", "distinct_near")?;
        let keys = few_keys(std::slice::from_ref(value), self.bound())?;
        let launch = Launch::new(&kernel, self.striding(self.bound())).bytes(&keys, PARAMETER_ALIGNMENT);
        let launch = launch.read(&positions.part_of).read(order).value(u32::from(side == Side::Behind));
        let mut launch = launch.value(u32::from(nulls)).write(near);
        launch = launch.reads(value.values.padded());
        for view in value.validity.iter().chain(&value.ranks) {
            launch = launch.reads(view.padded());
        }
        self.submit(reached.iter().fold(launch, |launch, view| launch.reads(view)))
    }

    /// Marks the valid rows without such a row, in whole words of a validity bitmap.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit.
    pub fn firsts(&self, validity: Option<&DeviceView>, near: &DeviceView, firsts: &DeviceView) -> Result<()> {
        expect_bytes("window", "rows of the same value", near, near_bytes(self.bound()))?;
        expect_bytes("window", "first rows", firsts, firsts_bytes(self.bound()))?;
        let kernel = self.images.kernel("distinct", "distinct_firsts")?;
        let launch = Launch::new(&kernel, self.striding(self.bound()));
        let launch = match validity {
            Some(validity) => launch.read(&bitmap_words("window", "validity", validity, &Rows::known(self.bound()))?),
            None => launch.value(0u64),
        };
        self.submit(launch.read(near).write(firsts))
    }

    /// Writes the change of the surplus from the previous row's frame to each row's frame; the surplus is the
    /// contribution of repeated values. The running sum of the changes is subtracted from the results. Without `of`
    /// each value counts 1. `near` was found on side [`Side::Before`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for values that are not integers of at most 64 bits.
    pub fn changes(
        &self,
        positions: &Positions,
        frame: &Frame,
        of: Option<&Column>,
        near: &DeviceView,
        spans: &DeviceView,
        changes: &DeviceView,
    ) -> Result<()> {
        expect_bytes("window", "rows of the same value", near, near_bytes(self.bound()))?;
        expect_bytes("window", "changes", changes, changes_bytes(self.bound()))?;
        of.iter().try_for_each(|of| of.check("an argument", self.bound()))?;
        let kind = of.map(|of| match of.physical {
            Physical::F32 | Physical::F64 | Physical::I128 | Physical::View => {
                Err(KernelError::Shape { what: "window", why: "changes of what is no integer of 64 bits".into() })
            }
            physical => Ok(kind(physical)),
        });
        let kind = kind.transpose()?.unwrap_or(0);
        let ends = lists("the ends of frames", spans, self.bound(), 2)?;
        let kernel = self.images.kernel("distinct", "distinct_spans")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).bytes(&frame.bytes(), 8);
        self.submit(ends.iter().fold(frame.read_by(launch), |launch, list| launch.write(list)))?;
        let changes = changes.view(0..changes_bytes(self.bound()) as usize)?;
        changes.fill(0, self.on)?;
        let kernel = self.images.kernel("distinct", "distinct_pairs")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).read(near);
        let launch = ends.iter().fold(launch, |launch, list| launch.read(list));
        let launch = match of {
            Some(of) => of.read_by(launch.value(of.values.address().0)),
            None => launch.value(0u64),
        };
        self.submit(launch.value(kind).write(&changes))
    }

    /// Number of launches of [`changes`](Self::changes).
    pub const CHANGES_LAUNCHES: u64 = 2;

    /// Subtracts `too_much`, 64 bits per row, from the results of frames that are not empty.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for results of other widths than 32 or 64 bits.
    pub fn less(&self, positions: &Positions, frame: &Frame, too_much: &DeviceView, out: &Out) -> Result<()> {
        expect_bytes("window", "what is too much", too_much, changes_bytes(self.bound()))?;
        out.check(self.bound())?;
        let bytes = out.physical.width();
        if !matches!(bytes, 4 | 8) {
            return Err(KernelError::Shape { what: "window", why: format!("results of {bytes} bytes") });
        }
        let kernel = self.images.kernel("distinct", "distinct_less")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).bytes(&frame.bytes(), 8);
        self.submit(frame.read_by(launch).read(too_much).value(bytes).write(&out.values))
    }
}

impl Frame {
    /// From the start of the partition up to the row.
    pub fn up_to_row() -> Frame {
        Frame { units: Units::Rows, start: Bound::Unbounded, end: Bound::Current, key: None }
    }
}
