//! Frames as lists of their rows. Device side: `window_list` and `window_chosen` in `cuda/window.cu`.
//!
//! ```text
//!   frames     [0, 2) [0, 3) [3, 3)     ──►  words (0, 2) (0, 3) NULL: first item, number of items
//!   counted    1 . 2: rows 0 and 2      ──►  words (0, 1) (0, 2) NULL: only items that are not NULL
//! ```

use millpond_memory::DeviceView;

use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::pipeline::{ColumnInput, ExtentInput, ExtentRows};
use crate::rows::expect_bytes;
use crate::window::{Counted, Frame, Out, Positions, Result, Window};
use crate::{Launch, abi};

/// Bytes of the control block of [`Window::chosen`].
pub fn chosen_bytes() -> u64 {
    abi::CONTROL_BYTES
}

impl Window<'_> {
    /// Writes each frame as a list word of 64 bits: its begin (high half) and its number of rows; NULL for an empty
    /// frame. With `counted`, rows that are NULL do not count.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for an output that is not nullable list words.
    pub fn list(&self, positions: &Positions, frame: &Frame, counted: Option<&Counted>, out: &Out) -> Result<()> {
        out.check(self.bound())?;
        let Some(validity) = out.validity.as_ref().filter(|_| out.physical == Physical::U64) else {
            return Err(KernelError::Shape { what: "window", why: "lists are words that may be NULL".into() });
        };
        let kernel = self.images.kernel("window", "window_list")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).bytes(&frame.bytes(), 8);
        let launch = match counted {
            Some(counted) => launch.read(&counted.before),
            None => launch.value(0u64),
        };
        self.submit(frame.read_by(launch).write(&out.values).write(validity))
    }

    /// The valid rows of `counted`, as an order. `control` has [`chosen_bytes`]; the returned extent reads it.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit.
    pub fn chosen(&self, counted: &Counted, control: &DeviceView) -> Result<ExtentInput> {
        expect_bytes("window", "a control block", control, chosen_bytes())?;
        let control = control.view(0..chosen_bytes() as usize)?;
        control.fill(0, self.on)?;
        let kernel = self.images.kernel("window", "window_chosen")?;
        let launch = Launch::new(&kernel, self.striding(1)).write(&control);
        let launch = match self.rows {
            ExtentRows::OnDevice { control, .. } => launch.read(control),
            ExtentRows::Known(_) => launch.value(0u64),
        };
        self.submit(launch.read(&counted.before))?;
        let rows = ExtentRows::OnDevice { control, upper_bound: self.bound() };
        let values = counted.places.clone();
        Ok(ExtentInput { rows, columns: vec![Some(ColumnInput { values, validity: None, base: 0 })] })
    }
}
