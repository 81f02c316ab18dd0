//! Texts of frames as parts of one joined text. Device side: `cuda/joined.cu`.
//!
//! ```text
//!   texts a, bc, NULL, d     joined: -a-bc-d     frame of rows 1 to 3: a view of bc-d
//! ```

use millpond_memory::DeviceView;

use crate::Launch;
use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::rows::expect_bytes;
use crate::window::{Counted, Frame, Out, Positions, Result, Window};

/// All texts of a window, one behind the other in its order, each behind what comes between two.
#[derive(Debug, Clone)]
pub struct Joined<'a> {
    /// The view of the whole (16 bytes), which leads to `bytes`.
    pub whole: &'a DeviceView,
    pub bytes: &'a DeviceView,
    /// Where each row's text ends (u64).
    pub ends: &'a DeviceView,
    /// Bytes of what comes between two.
    pub between: u32,
}

impl Window<'_> {
    /// The text of each row's frame, as a view; NULL where no row of it counts. Rows that are NULL do not where `counted` says which.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for results that are no views or may not be NULL.
    pub fn joined(
        &self,
        positions: &Positions,
        frame: &Frame,
        counted: Option<&Counted>,
        texts: &Joined<'_>,
        out: &Out,
    ) -> Result<()> {
        out.check(self.bound())?;
        expect_bytes("window", "ends of texts", texts.ends, 8 * self.bound())?;
        expect_bytes("window", "a view", texts.whole, 16)?;
        let Some(validity) = out.validity.as_ref().filter(|_| out.physical == Physical::View) else {
            return Err(KernelError::Shape { what: "window", why: "texts are views that may be NULL".into() });
        };
        let kernel = self.images.kernel("joined", "joined_parts")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).bytes(&frame.bytes(), 8);
        let launch = match counted {
            Some(counted) => launch.read(&counted.before),
            None => launch.value(0u64),
        };
        let launch = launch.read(texts.ends).read(texts.whole).value(texts.between);
        self.submit(frame.read_by(launch).reads(texts.bytes).write(&out.values).write(validity))
    }
}
