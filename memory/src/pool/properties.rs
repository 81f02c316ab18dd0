//! Properties and attributes of the driver's pools.
//!
//!   properties   fixed at creation         location · maximum size · handle types for export
//!   attributes   settable at any time      release threshold · three reuse policies
//!                read-only                 reserved and used bytes, current and maximum
//!
//! Own, default, current   a pool created here takes all properties. The device's default pool is shared with all
//!                         other code of the process: it takes no properties, and its threshold is raised only if
//!                         it is not set yet.

use crate::units::ByteSize;

/// Unused memory that the driver's pool keeps at a synchronization.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum ReleaseThreshold {
    /// All: memory is freed only by `trim_to`.
    #[default]
    Max,
    Bytes(ByteSize),
    /// A fraction, from 0 to 1, of the pool's maximum, or of the device's memory if it has no maximum.
    Fraction(f64),
    /// The driver's initial value, currently 0: every synchronization may free everything.
    DriverDefault,
}

/// Conditions under which the driver's pool may reuse memory freed by another stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReusePolicy {
    /// If events order the free before the allocation.
    pub follow_event_dependencies: bool,
    /// If the freeing stream has already passed the free. Addresses then vary between runs.
    pub opportunistic: bool,
    /// By making the allocating stream wait for the freeing one.
    pub internal_dependencies: bool,
}

impl Default for ReusePolicy {
    fn default() -> Self {
        ReusePolicy { follow_event_dependencies: true, opportunistic: true, internal_dependencies: false }
    }
}

/// The driver's attributes of its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolAttributes {
    pub release_threshold: ByteSize,
    pub reuse: ReusePolicy,
    pub reserved_current: ByteSize,
    pub reserved_high: ByteSize,
    /// Includes frees that the device has not reached yet.
    pub used_current: ByteSize,
    pub used_high: ByteSize,
}

/// Driver's maximum size of the pool. The pool's own `limit` is checked first, and calls the holders of spare memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MaxSize {
    /// All memory of its location.
    #[default]
    Unlimited,
    Bytes(ByteSize),
}

/// Location of a pool's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Location {
    /// In device memory.
    #[default]
    Device,
    /// On a NUMA node of the host, accessible to the device.
    HostNuma(u32),
}

/// Selects one of the driver's pools.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DriverPool {
    /// A pool used only here.
    #[default]
    Own,
    /// The default pool of the device, shared with all other code of the process.
    DeviceDefault,
    /// The device's current pool at each allocation.
    DeviceCurrent,
}

impl DriverPool {
    pub(crate) fn words(self) -> &'static str {
        match self {
            DriverPool::Own => "a pool of its own",
            DriverPool::DeviceDefault => "the device's default pool",
            DriverPool::DeviceCurrent => "the device's current pool",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_keep_everything_and_let_plans_repeat() {
        assert_eq!(ReleaseThreshold::default(), ReleaseThreshold::Max);
        let reuse = ReusePolicy::default();
        assert!(reuse.follow_event_dependencies && reuse.opportunistic && !reuse.internal_dependencies);
        assert_eq!((MaxSize::default(), Location::default()), (MaxSize::Unlimited, Location::Device));
    }
}
