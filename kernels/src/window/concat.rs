//! `string_agg` over frames: texts of frames as slices of one concatenated text. Device side: `cuda/concat.cu`.
//!
//! ```text
//!   texts a, bc, NULL, d     concatenated: -a-bc-d     frame of rows 1 to 3: a view of bc-d
//! ```

use millpond_memory::DeviceView;

use crate::Launch;
use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::rows::expect_bytes;
use crate::window::{Counted, Frame, Out, Positions, Result, Window};

/// All texts of a window, concatenated in its order, each preceded by the separator.
#[derive(Debug, Clone)]
pub struct Concatenated<'a> {
    /// View of the whole text (16 bytes), which points to `bytes`.
    pub whole: &'a DeviceView,
    pub bytes: &'a DeviceView,
    /// End offset of each row's text (u64).
    pub ends: &'a DeviceView,
    /// Bytes of the separator before each text.
    pub separator_bytes: u32,
}

impl Window<'_> {
    /// Writes the text of each row's frame as a view; NULL if no row of the frame counts. With `counted`, rows that are
    /// NULL do not count.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for an output that is not nullable views.
    pub fn concat(
        &self,
        positions: &Positions,
        frame: &Frame,
        counted: Option<&Counted>,
        texts: &Concatenated<'_>,
        out: &Out,
    ) -> Result<()> {
        out.check(self.bound())?;
        expect_bytes("window", "ends of texts", texts.ends, 8 * self.bound())?;
        expect_bytes("window", "a view", texts.whole, 16)?;
        let Some(validity) = out.validity.as_ref().filter(|_| out.physical == Physical::View) else {
            return Err(KernelError::Shape { what: "window", why: "texts are views that may be NULL".into() });
        };
        let kernel = self.images.kernel("concat", "concat_parts")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).bytes(&frame.bytes(), 8);
        let launch = match counted {
            Some(counted) => launch.read(&counted.before),
            None => launch.value(0u64),
        };
        let launch = launch.read(texts.ends).read(texts.whole).value(texts.separator_bytes);
        self.submit(frame.read_by(launch).reads(texts.bytes).write(&out.values).write(validity))
    }
}
