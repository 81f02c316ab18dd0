//! Kernel launches: parameters by value, buffers with their access. All device code starts here.
//!
//!   Launch::new(&kernel, config)
//!       .read(&input)          parameter: its address        waits for the last write
//!       .write(&output)        parameter: its address        waits for every use
//!       .value(rows)           parameter: the value
//!       .reads(&dictionary)    no parameter: the kernel finds the address in memory
//!       .submit(&stream)?      acquires every use, launches, records the position
//!
//! Parameters are packed in the order of the calls, each aligned to its own size, as PTX lays them out.
//! Order      all uses are acquired together before the launch and recorded together after it.
//! Errors     a wrong number or size of parameters is an error before the launch, if the driver reports what the kernel
//!            expects.
//! Waits      never on the host.

use std::panic::Location;

use millpond_memory::driver::{DeclaredAccess, KernelLaunch, Site};
use millpond_memory::recorder::{LaunchShape, Submission};
use millpond_memory::{Access, DevicePtr, DeviceView, Kernel, MemoryError, Position, Result, Stream, UseSet};

/// The shape of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchConfig {
    /// Thread blocks per dimension.
    pub grid: [u32; 3],
    /// Threads of each block, per dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of each block.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// One-dimensional launch: `blocks` blocks of `threads` threads.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        LaunchConfig { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// One thread for each of `n` items, in blocks of `threads`. With no items the grid is empty, and the launch does
    /// nothing.
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

/// A value that is passed to a kernel as a parameter.
pub trait ParamValue: Copy {
    /// Appends the little-endian bytes, aligned to their size; returns the size.
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
    /// One byte, as in C++.
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

/// A launch under construction.
#[must_use = "nothing runs before `submit`"]
pub struct Launch<'a> {
    kernel: &'a Kernel,
    config: LaunchConfig,
    params: Vec<u8>,
    num_params: usize,
    /// True while every parameter is at the offset that the kernel expects, as far as the driver reports offsets.
    fits: bool,
    uses: UseSet,
    /// Maximum number of rows that the launch processes; for a recorder.
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

    /// Adds a parameter: an address whose bytes the kernel reads.
    pub fn read(self, view: impl AsRef<DeviceView>) -> Self {
        self.buffer(view.as_ref(), Access::Read)
    }

    /// Adds a parameter: an address whose bytes the kernel writes (and may read).
    pub fn write(self, view: impl AsRef<DeviceView>) -> Self {
        self.buffer(view.as_ref(), Access::ReadWrite)
    }

    /// Adds a parameter: an address whose bytes other streams may use concurrently, by atomics or in disjoint parts.
    pub fn share(self, view: impl AsRef<DeviceView>) -> Self {
        self.buffer(view.as_ref(), Access::Atomic)
    }

    /// Adds a parameter: a value.
    pub fn value(mut self, value: impl ParamValue) -> Self {
        let size = value.put(&mut self.params);
        self.placed(size)
    }

    /// Adds a parameter: the bytes of a `repr(C)` structure, aligned to `alignment`.
    pub fn bytes(mut self, bytes: &[u8], alignment: usize) -> Self {
        align(&mut self.params, alignment.max(1));
        self.params.extend_from_slice(bytes);
        self.placed(bytes.len())
    }

    /// Checks the offset of a parameter of `size` bytes that was just appended.
    fn placed(mut self, size: usize) -> Self {
        let offset = self.params.len() - size;
        if let Some(expected) = self.kernel.params() {
            let param = expected.get(self.num_params);
            self.fits &= param.is_some_and(|param| (param.offset, param.size) == (offset, size));
        }
        self.num_params += 1;
        self
    }

    /// Declares bytes that the kernel reads through an address in memory or in a structure.
    pub fn reads(mut self, view: impl AsRef<DeviceView>) -> Self {
        self.uses.add(view.as_ref(), Access::Read);
        self
    }

    /// Declares bytes that the kernel writes through an address in memory or in a structure.
    pub fn writes(mut self, view: impl AsRef<DeviceView>) -> Self {
        self.uses.add(view.as_ref(), Access::ReadWrite);
        self
    }

    /// Declares bytes that the kernel shares with other streams, through an address in memory or in a structure.
    pub fn shares(mut self, view: impl AsRef<DeviceView>) -> Self {
        self.uses.add(view.as_ref(), Access::Atomic);
        self
    }

    /// Sets the maximum number of rows that the launch processes. Only a recorder uses it.
    pub fn over_rows(mut self, rows: u64) -> Self {
        self.rows = Some(rows);
        self
    }

    fn buffer(mut self, view: &DeviceView, access: Access) -> Self {
        self.uses.add(view, access);
        self.value(view.address())
    }

    /// Launches on `stream`, ordered after all earlier uses of the buffers. An empty grid launches nothing.
    ///
    /// # Errors
    /// [`MemoryError::Parameters`] if the parameters do not fit the kernel; else errors of the driver.
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

/// Number of bytes covered by at least one of the views.
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

/// Reports a launch to a recorder, with the bytes of its buffers. Bytes in several views count once.
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
    // Bytes of an output count as written only: reads of an output mostly hit the cache.
    let reads = |access| matches!(access, Access::Read | Access::Atomic);
    submission.launched(kernel, shape, bytes(reads), bytes(Access::writes));
}

#[expect(unsafe_code, reason = "the one door through which device code starts")]
fn launch_raw(
    driver: &dyn millpond_memory::Driver,
    launch: &KernelLaunch<'_>,
    on: millpond_memory::driver::StreamHandle,
) -> millpond_memory::driver::Result<()> {
    // SAFETY: the caller holds guards for every buffer it names, so these stay allocated and ordered until the stream
    //         has passed the launch; the parameters were compared with the kernel's, if the driver reports them. Each
    //         launcher vouches for the bytes that its kernel reaches from them; every test on the simulated device
    //         checks that.
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
