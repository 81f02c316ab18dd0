//! Values that count once in a frame. Device side: `cuda/distinct.cu`.
//!
//! ```text
//!   rows by partition and value ── near ──► the row before each, or behind it, with the same value
//!   near ─┬─ firsts ──► a validity for fold: frames from the start of the partition, or to its end
//!         └─ changes ─► a column for fold: what other frames have too much of ── less ──► taken off
//! ```
//!
//! NULL     counts nowhere, or as a value where the caller says so.
//! Memory   [`near_bytes`], and [`firsts_bytes`] or [`changes_bytes`]; [`spans_bytes`] while changes are found.
//! Waits    never.
//! Cost     two searches a row, whatever the frames hold.

use millpond_memory::DeviceView;

use crate::Launch;
use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::rows::{Rows, bitmap_words, expect_bytes};
use crate::sort::{PARAMETER_ALIGNMENT, SortKey, few_keys, kind};
use crate::window::{Bound, Column, Frame, Out, Positions, Result, Units, Window, list_bytes, lists};

/// On which side of a row its value is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    Before,
    Behind,
}

/// Bytes of what [`Window::near`] writes.
pub fn near_bytes(rows: u64) -> u64 {
    list_bytes(rows)
}

/// Bytes of what [`Window::firsts`] writes.
pub fn firsts_bytes(rows: u64) -> u64 {
    rows.div_ceil(32).max(1) * 4
}

/// Bytes of what [`Window::changes`] writes.
pub fn changes_bytes(rows: u64) -> u64 {
    8 * rows.max(1)
}

/// Bytes that [`Window::changes`] needs while it runs.
pub fn spans_bytes(rows: u64) -> u64 {
    2 * list_bytes(rows)
}

impl Window<'_> {
    /// Finds of each row the one next to it with the same value; NULL is one where `nulls`. `order` has the numbers of the rows by
    /// partition, value and number.
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

    /// Marks the rows that are not NULL and have no such row: whole words of a validity.
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

    /// What the frame of each row has more of than that of the row before it, of values that it has too often: the sum of all up to a
    /// row is to be taken off its result. Without `of` each value counts one. `near` looks [`Side::Before`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for values of other than 64 bits or less.
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

    /// Launches that [`changes`](Self::changes) makes.
    pub const CHANGES_LAUNCHES: u64 = 2;

    /// Takes `too_much`, 64 bits a row, off the results of the frames that have rows.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for results that have neither 32 bits nor 64.
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
