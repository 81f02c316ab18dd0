//! What a pool of the driver's is made with, and what it is told and asked afterwards.
//!
//!   properties   fixed when it is made    where it lies · its maximum · what it can be exported by
//!   attributes   settable at any time     release threshold · three policies of reuse
//!                only to be read          reserved and used bytes, now and at most
//!
//! Own, default, current   a pool of our own takes every property. The device's default pool is shared with whatever else is
//!                         in the process: it takes none, and its threshold is raised only where nobody has.

use crate::units::ByteSize;

/// How much unused memory the driver's pool keeps at a synchronisation.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum ReleaseThreshold {
    /// Everything: memory goes back only by `trim_to`.
    #[default]
    Max,
    Bytes(ByteSize),
    /// A share, from 0 to 1, of the pool's maximum, or of the device's memory where it has none.
    Fraction(f64),
    /// What the driver starts with, 0 so far: every synchronisation may give everything back.
    DriverDefault,
}

/// When the driver's pool may reuse what one stream freed for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReusePolicy {
    /// When an event chain orders the free before the allocation.
    pub follow_event_dependencies: bool,
    /// When the freeing stream has in fact passed the free. Addresses then vary from run to run.
    pub opportunistic: bool,
    /// By making the allocating stream wait for the freeing one.
    pub internal_dependencies: bool,
}

impl Default for ReusePolicy {
    fn default() -> Self {
        ReusePolicy { follow_event_dependencies: true, opportunistic: true, internal_dependencies: false }
    }
}

/// The driver's own view of its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolAttributes {
    pub release_threshold: ByteSize,
    pub reuse: ReusePolicy,
    pub reserved_current: ByteSize,
    pub reserved_high: ByteSize,
    /// Includes frees that the device has not come to yet.
    pub used_current: ByteSize,
    pub used_high: ByteSize,
}

/// The most that the driver lets the pool hold. The pool's `limit` comes before it, and asks the holders of spare memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MaxSize {
    /// The memory of its place.
    #[default]
    Unlimited,
    Bytes(ByteSize),
}

/// Where the memory of a pool lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Location {
    /// In the memory of the device.
    #[default]
    Device,
    /// On a NUMA node of the host, open to the device.
    HostNuma(u32),
}

/// Which of the driver's pools.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DriverPool {
    /// One that nobody else has.
    #[default]
    Own,
    /// The one that every device has, shared with whatever else is in the process.
    DeviceDefault,
    /// Whichever is the device's current pool at each allocation.
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
