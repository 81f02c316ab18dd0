//! Row counts of kernels: known to the host, or written on the device by an earlier kernel.
//!
//!   Rows::known(100)                          the host knows the count
//!   Rows::on_device(count, 100)               a u64 in device memory; at most 100, the number that sizes the grid

use millpond_memory::{Device, DeviceView, MemoryError};

use crate::error::KernelError;
use crate::pipeline::ExtentRows;
use crate::{Launch, LaunchConfig, abi, tune};

/// A row count.
#[derive(Debug, Clone)]
pub struct Rows {
    upper_bound: u64,
    count: Option<DeviceView>,
}

impl Rows {
    pub fn known(rows: u64) -> Rows {
        Rows { upper_bound: rows, count: None }
    }

    /// Row count on the device: `count` is 8 bytes, a little-endian u64 of at most `upper_bound`.
    ///
    /// # Errors
    /// [`MemoryError::Range`] if `count` has fewer bytes.
    pub fn on_device(count: &DeviceView, upper_bound: u64) -> Result<Rows, MemoryError> {
        Ok(Rows { upper_bound, count: Some(count.view(0..8)?) })
    }

    /// Upper bound of the count.
    pub fn upper_bound(&self) -> u64 {
        self.upper_bound
    }

    /// Adds the two parameters at the end of every static kernel: the upper bound and the address of the count, or
    /// null.
    pub(crate) fn put<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        let launch = launch.over_rows(self.upper_bound).value(self.upper_bound);
        match &self.count {
            Some(count) => launch.read(count),
            None => launch.value(0u64),
        }
    }
}

impl From<u64> for Rows {
    fn from(rows: u64) -> Rows {
        Rows::known(rows)
    }
}

impl TryFrom<&ExtentRows> for Rows {
    type Error = MemoryError;

    /// The row count of a pipeline's output is in its control block.
    fn try_from(rows: &ExtentRows) -> Result<Rows, MemoryError> {
        match rows {
            ExtentRows::Known(rows) => Ok(Rows::known(*rows)),
            ExtentRows::OnDevice { control, upper_bound } => {
                let at = abi::CONTROL_ROWS as usize;
                Rows::on_device(&control.view(at..at + 8)?, *upper_bound)
            }
        }
    }
}

/// Grid for kernels whose threads stride over `items`: at most as many blocks as can be resident.
pub(crate) fn striding(device: &Device, items: u64, threads: u32) -> LaunchConfig {
    let resident = device.limits().multiprocessors * (tune::RESIDENT_THREADS / threads);
    let blocks = items.div_ceil(u64::from(threads)).min(u64::from(resident));
    LaunchConfig::linear(blocks as u32, threads)
}

/// Returns an error if a view has fewer bytes than the kernel accesses.
pub(crate) fn expect_bytes(
    kernel: &'static str,
    what: &'static str,
    view: &DeviceView,
    wanted: u64,
) -> Result<(), KernelError> {
    let found = view.len();
    if found as u64 >= wanted {
        return Ok(());
    }
    Err(KernelError::Shape { what: kernel, why: format!("{what} has {found} bytes but {wanted} are needed") })
}

/// The whole 32-bit words that hold `rows` bits. The last word of an input bitmap may extend into the padding.
pub(crate) fn bitmap_words(
    kernel: &'static str,
    what: &'static str,
    bitmap: &DeviceView,
    rows: &Rows,
) -> Result<DeviceView, KernelError> {
    let padded = bitmap.padded();
    let wanted = rows.upper_bound().div_ceil(32) * 4;
    expect_bytes(kernel, what, &padded, wanted)?;
    Ok(padded.view(0..wanted as usize)?)
}
