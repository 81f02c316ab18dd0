//! Launching kernels: parameters by value, buffers by use, and the one door through which device code starts.
//!
//!   Launch::new(&kernel, config)
//!       .read(&input)          parameter: its address        waits for the last write
//!       .write(&output)        parameter: its address        waits for every use
//!       .value(rows)           parameter: the value
//!       .reads(&dictionary)    no parameter: an address in memory leads there
//!       .submit(&stream)?      takes every use, launches, notes the position
//!
//! Parameters are packed in the order of the calls, each aligned to its own size, as PTX lays them out.
//! Order      uses are taken before the launch and noted after it, together, whatever else happens meanwhile.
//! Errors     a wrong count or size of parameters, where the driver knows them, before anything is launched.
//! Waits      never on the host.

use std::panic::Location;

use millpond_memory::driver::{DeclaredAccess, KernelLaunch, Site};
use millpond_memory::recorder::{LaunchShape, Submission};
use millpond_memory::{Access, DevicePtr, DeviceView, Kernel, MemoryError, Position, Result, Stream, UseSet};

/// The shape of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchConfig {
    /// Thread blocks.
    pub grid: [u32; 3],
    /// Threads of each block.
    pub block: [u32; 3],
    /// Dynamic shared memory of each block.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads in a row.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        LaunchConfig { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// One thread for each of `n` items, in blocks of `threads`. No items are no blocks, and such a launch does nothing.
    pub fn over(n: usize, threads: u32) -> Self {
        let blocks = n.div_ceil(threads as usize).min(i32::MAX as usize);
        Self::linear(blocks as u32, threads)
    }

    pub const fn with_shared(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// A value that is a kernel parameter by its bytes.
pub trait ParamValue: Copy {
    /// Puts the little-endian bytes at the end, aligned to their number, which is returned.
    fn put(self, params: &mut Vec<u8>) -> usize;
}

macro_rules! param_values {
    ($($ty:ty)*) => {$(
        impl ParamValue for $ty {
            fn put(self, params: &mut Vec<u8>) -> usize {
                align(params, size_of::<$ty>());
                params.extend_from_slice(&self.to_le_bytes());
                size_of::<$ty>()
            }
        }
    )*};
}

param_values!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

impl ParamValue for bool {
    /// A byte, as C++ has it.
    fn put(self, params: &mut Vec<u8>) -> usize {
        u8::from(self).put(params)
    }
}

impl ParamValue for DevicePtr {
    fn put(self, params: &mut Vec<u8>) -> usize {
        self.0.put(params)
    }
}

fn align(params: &mut Vec<u8>, alignment: usize) {
    params.resize(params.len().next_multiple_of(alignment), 0);
}

/// A launch being put together.
#[must_use = "nothing runs before `submit`"]
pub struct Launch<'a> {
    kernel: &'a Kernel,
    config: LaunchConfig,
    params: Vec<u8>,
    num_params: usize,
    /// Every parameter so far lies where the kernel has it, as far as the driver knows.
    fits: bool,
    uses: UseSet,
    /// Rows that it works on at most, for whoever records.
    rows: Option<u64>,
    site: Site,
}

impl<'a> Launch<'a> {
    #[track_caller]
    pub fn new(kernel: &'a Kernel, config: LaunchConfig) -> Self {
        let site = Location::caller();
        Launch {
            kernel,
            config,
            params: Vec::with_capacity(64),
            num_params: 0,
            fits: true,
            uses: UseSet::new(),
            rows: None,
            site,
        }
    }

    /// The next parameter is an address whose bytes are read.
    pub fn read(self, view: impl AsRef<DeviceView>) -> Self {
        self.buffer(view.as_ref(), Access::Read)
    }

    /// The next parameter is an address whose bytes are written (and may be read).
    pub fn write(self, view: impl AsRef<DeviceView>) -> Self {
        self.buffer(view.as_ref(), Access::ReadWrite)
    }

    /// The next parameter is an address whose bytes other streams use at the same time: by atomics, or in other parts.
    pub fn share(self, view: impl AsRef<DeviceView>) -> Self {
        self.buffer(view.as_ref(), Access::Atomic)
    }

    /// The next parameter is a value.
    pub fn value(mut self, value: impl ParamValue) -> Self {
        let size = value.put(&mut self.params);
        self.placed(size)
    }

    /// The next parameter is a structure: its bytes as `repr(C)` has them, aligned to `alignment`.
    pub fn bytes(mut self, bytes: &[u8], alignment: usize) -> Self {
        align(&mut self.params, alignment.max(1));
        self.params.extend_from_slice(bytes);
        self.placed(bytes.len())
    }

    /// A parameter of `size` bytes was put at the end.
    fn placed(mut self, size: usize) -> Self {
        let offset = self.params.len() - size;
        if let Some(expected) = self.kernel.params() {
            let param = expected.get(self.num_params);
            self.fits &= param.is_some_and(|param| (param.offset, param.size) == (offset, size));
        }
        self.num_params += 1;
        self
    }

    /// The kernel reads these bytes through an address in memory or in a structure.
    pub fn reads(mut self, view: impl AsRef<DeviceView>) -> Self {
        self.uses.add(view.as_ref(), Access::Read);
        self
    }

    /// The kernel writes these bytes through an address in memory or in a structure.
    pub fn writes(mut self, view: impl AsRef<DeviceView>) -> Self {
        self.uses.add(view.as_ref(), Access::ReadWrite);
        self
    }

    /// The kernel shares these bytes with other streams, through an address in memory or in a structure.
    pub fn shares(mut self, view: impl AsRef<DeviceView>) -> Self {
        self.uses.add(view.as_ref(), Access::Atomic);
        self
    }

    /// It works on so many rows, or fewer. A recorder counts by it.
    pub fn over_rows(mut self, rows: u64) -> Self {
        self.rows = Some(rows);
        self
    }

    fn buffer(mut self, view: &DeviceView, access: Access) -> Self {
        self.uses.add(view, access);
        self.value(view.address())
    }

    /// Launches on `stream`, behind everything that the buffers' uses ask for. A grid of no blocks launches nothing.
    ///
    /// # Errors
    /// [`MemoryError::Parameters`] if they do not fit the kernel; else what the driver says.
    pub fn submit(self, stream: &Stream) -> Result<Position> {
        self.check_params()?;
        if self.config.is_empty() {
            return Ok(stream.position());
        }
        let mut guards = self.uses.take(stream, self.site)?;
        let submission = Submission::begin(stream);
        let launch = KernelLaunch {
            function: self.kernel.function(),
            name: self.kernel.name(),
            grid: self.config.grid,
            block: self.config.block,
            shared_bytes: self.config.shared_bytes,
            params: &self.params,
            accesses: guards.declared(),
            figures: submission.as_ref().and_then(Submission::figures),
            site: self.site,
        };
        let (_, position) = stream.submit(|driver, on| launch_raw(driver, &launch, on))?;
        if let Some(submission) = submission {
            record(submission, self.kernel, &self.config, self.rows, guards.declared());
        }
        guards.submitted(position);
        self.kernel.launched(stream, position);
        Ok(position)
    }

    fn check_params(&self) -> Result<()> {
        let Some(expected) = self.kernel.params() else { return Ok(()) };
        if self.fits && expected.len() == self.num_params {
            return Ok(());
        }
        let end = expected.last().map_or(0, |param| param.offset + param.size);
        Err(MemoryError::Parameters {
            kernel: self.kernel.name().into(),
            expected: expected.len(),
            expected_bytes: end,
            given: self.num_params,
            given_bytes: self.params.len(),
        })
    }
}

/// Bytes that lie under any of the views.
fn bytes_under<'v>(views: impl Iterator<Item = &'v DeclaredAccess>) -> u64 {
    let mut ranges: Vec<(u64, u64)> = views.map(|view| (view.ptr.0, view.ptr.0 + view.len as u64)).collect();
    ranges.sort_unstable();
    let (mut bytes, mut end) = (0, 0);
    for (from, to) in ranges {
        bytes += to.saturating_sub(from.max(end));
        end = end.max(to);
    }
    bytes
}

/// Tells a recorder of a launch, with the bytes of the buffers that it was given, each once.
fn record(
    submission: Submission,
    kernel: &Kernel,
    config: &LaunchConfig,
    rows: Option<u64>,
    declared: &[DeclaredAccess],
) {
    let bytes = |of: fn(Access) -> bool| bytes_under(declared.iter().filter(|view| of(view.access)));
    let shape = LaunchShape {
        blocks: config.grid.iter().map(|&blocks| u64::from(blocks)).product(),
        threads: config.block.iter().product(),
        shared_bytes: config.shared_bytes,
        rows,
    };
    // An output is written; what a kernel reads back of it comes from near by.
    let reads = |access| matches!(access, Access::Read | Access::Atomic);
    submission.launched(kernel, shape, bytes(reads), bytes(Access::writes));
}

#[expect(unsafe_code, reason = "the one door through which device code starts")]
fn launch_raw(
    driver: &dyn millpond_memory::Driver,
    launch: &KernelLaunch<'_>,
    on: millpond_memory::driver::StreamHandle,
) -> millpond_memory::driver::Result<()> {
    // SAFETY: the caller holds guards for every buffer it names, so these stay allocated and in order until the stream is
    //         past the launch; the parameters were compared with the kernel's where the driver knows them, and which
    //         bytes a kernel reaches from them is its launcher's word, checked on the simulated device by every test.
    unsafe { driver.launch(launch, on) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_aligned_to_their_own_size() {
        let mut params = Vec::new();
        1u8.put(&mut params);
        2u32.put(&mut params);
        3u16.put(&mut params);
        4u64.put(&mut params);
        assert_eq!(params.len(), 24);
        assert_eq!((params[0], params[4], params[8], params[16]), (1, 2, 3, 4));
    }

    #[test]
    fn bytes_that_lie_under_several_views_count_once() {
        let view = |at, len| DeclaredAccess { ptr: DevicePtr(at), len, access: Access::Read };
        assert_eq!(bytes_under([view(100, 10), view(100, 64), view(120, 100), view(500, 0)].iter()), 120);
        assert_eq!(bytes_under([].iter()), 0);
    }

    #[test]
    fn a_grid_covers_every_item() {
        assert_eq!(LaunchConfig::over(257, 256).grid, [2, 1, 1]);
        assert_eq!(LaunchConfig::over(256, 256).grid, [1, 1, 1]);
        assert!(LaunchConfig::over(0, 256).is_empty());
    }
}
