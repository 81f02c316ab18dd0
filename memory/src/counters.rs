//! Counters of device work, per scope.
//!
//!   device ──┬── query 7 ──┬── scan          a count at "scan" is a count at "query 7" and at the device, too
//!            │             └── aggregate
//!            └── query 8
//!
//! A `Scope` is a name with counters, children and a parent. Streams carry a scope, and buffers keep theirs until they
//! are freed.
//!
//! Peak       of the live bytes of the scope and its children together. Exact, because `used` changes in one atomic
//!            step.
//! Counts     are stored where they occur and summed on a snapshot: counting costs one atomic step at any depth. A
//!            dropped scope adds its counts to its parent.
//! Threads    a snapshot taken while work is being submitted may miss the latest counts, but never decreases.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::Holder;
use crate::gauge::Gauge;
use crate::units::ByteSize;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// Values of the counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Bytes allocated and not yet freed.
            pub used_bytes: u64,
            /// Maximum of `used_bytes` so far.
            pub peak_bytes: u64,
        }

        #[derive(Default)]
        pub(crate) struct Cells {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Cells {
            fn add_to(&self, counters: &mut Counters) {
                $(counters.$name += self.$name.load(Relaxed);)*
            }

            fn add(&self, counters: &Counters) {
                $(self.$name.fetch_add(counters.$name, Relaxed);)*
            }
        }

        impl Counters {
            /// Differences since `earlier`. `used_bytes` and `peak_bytes` are the current values.
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters {
                    $($name: self.$name - earlier.$name,)*
                    ..*self
                }
            }
        }
    };
}

counters! {
    launches
    /// Number of host waits for a result of the device.
    host_waits
    /// Number of host waits for an upload to release its pinned memory.
    feed_waits
    allocations
    frees
    allocated_bytes
    freed_bytes
    /// Nanoseconds that the host spent in the allocator: allocating, waiting for memory when it was short, and freeing,
    /// summed over threads. 0 on the simulated device, which has no meaningful time.
    allocator_ns
    uploads
    uploaded_bytes
    downloads
    downloaded_bytes
    /// Waits of one stream for another that reached the driver, and those that were already implied.
    waits_inserted
    waits_elided
    events_recorded
    /// Allocation attempts after the first, and allocations that finally failed for lack of memory.
    num_alloc_retries
    num_ooms
    /// Number of host waits for a stream because memory was short.
    num_stream_syncs
    /// Device bytes moved to host memory, and bytes moved back.
    spilled_bytes
    restored_bytes
    /// Bytes that could not be freed safely and never will be.
    leaked_bytes
}

/// Counters of a scope's own work, and of its children.
#[derive(Default)]
struct Tally {
    own: Cells,
    children: Mutex<Vec<Arc<Tally>>>,
}

impl Tally {
    /// While the lock is held no child merges into its parent, so each count is seen exactly once.
    fn add_to(&self, counters: &mut Counters) {
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        self.own.add_to(counters);
        children.iter().for_each(|child| child.add_to(counters));
    }
}

struct ScopeInner {
    name: String,
    tally: Arc<Tally>,
    used: Gauge,
    parent: Option<Scope>,
    registry: Arc<Mutex<Vec<Weak<ScopeInner>>>>,
}

impl ScopeInner {
    fn children(&self) -> MutexGuard<'_, Vec<Arc<Tally>>> {
        self.tally.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Live bytes and allocations of this scope alone. Counts merged from dropped children cancel out, because those
    /// held nothing any more.
    fn holds(&self) -> (u64, u64) {
        let own = &self.tally.own;
        let live = |begun: &AtomicU64, ended: &AtomicU64| begun.load(Relaxed).saturating_sub(ended.load(Relaxed));
        (live(&own.allocated_bytes, &own.freed_bytes), live(&own.allocations, &own.frees))
    }
}

impl Drop for ScopeInner {
    /// The children are already dropped, because each holds its parent.
    fn drop(&mut self) {
        let Some(parent) = &self.parent else { return };
        let mut siblings = parent.inner.children();
        let mut counters = Counters::default();
        self.tally.add_to(&mut counters);
        siblings.retain(|tally| !Arc::ptr_eq(tally, &self.tally));
        parent.inner.tally.own.add(&counters);
    }
}

/// A name under which work is counted: a device, a query or an operator.
#[derive(Clone)]
pub struct Scope {
    inner: Arc<ScopeInner>,
}

impl Scope {
    pub(crate) fn root(name: impl Into<String>) -> Scope {
        Self::with(name.into(), None, Arc::default())
    }

    fn with(name: String, parent: Option<Scope>, registry: Arc<Mutex<Vec<Weak<ScopeInner>>>>) -> Scope {
        let inner = Arc::new(ScopeInner { name, tally: Arc::default(), used: Gauge::default(), parent, registry });
        if let Some(parent) = &inner.parent {
            parent.inner.children().push(Arc::clone(&inner.tally));
        }
        let mut registered = inner.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registered.retain(|scope| scope.strong_count() > 0);
        registered.push(Arc::downgrade(&inner));
        drop(registered);
        Scope { inner }
    }

    /// Creates a child scope.
    pub fn child(&self, name: impl Into<String>) -> Scope {
        Self::with(name.into(), Some(self.clone()), Arc::clone(&self.inner.registry))
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn counters(&self) -> Counters {
        let used = &self.inner.used;
        let mut counters =
            Counters { used_bytes: used.level().as_u64(), peak_bytes: used.peak().as_u64(), ..Counters::default() };
        self.inner.tally.add_to(&mut counters);
        counters
    }

    /// Bytes allocated under this scope and its children, and not yet freed.
    pub fn used_bytes(&self) -> ByteSize {
        self.inner.used.level()
    }

    /// Resets the peak to the bytes in use now, in this scope but not in its parents.
    pub fn reset_peak(&self) {
        self.inner.used.reset_peak();
    }

    fn chain(&self) -> impl Iterator<Item = &ScopeInner> {
        std::iter::successors(Some(&*self.inner), |scope| scope.parent.as_ref().map(|p| &*p.inner))
    }

    pub(crate) fn count(&self, cell: impl Fn(&Cells) -> &AtomicU64) {
        self.add(cell, 1);
    }

    pub(crate) fn add(&self, cell: impl Fn(&Cells) -> &AtomicU64, n: u64) {
        cell(&self.inner.tally.own).fetch_add(n, Relaxed);
    }

    pub(crate) fn allocated(&self, bytes: u64) {
        self.count(|c| &c.allocations);
        self.add(|c| &c.allocated_bytes, bytes);
        self.chain().for_each(|scope| scope.used.raise(bytes));
    }

    pub(crate) fn freed(&self, bytes: u64) {
        self.count(|c| &c.frees);
        self.add(|c| &c.freed_bytes, bytes);
        self.chain().for_each(|scope| scope.used.lower(bytes));
    }

    /// The `count` scopes of this device that hold most, largest first.
    pub(crate) fn largest_holders(&self, count: usize) -> Vec<Holder> {
        let registered = self.inner.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut holders: Vec<Holder> = registered
            .iter()
            .filter_map(Weak::upgrade)
            .map(|scope| {
                let (bytes, allocations) = scope.holds();
                Holder { tag: Scope { inner: scope }.path(), bytes: ByteSize(bytes), allocations }
            })
            .filter(|holder| holder.bytes > ByteSize::ZERO)
            .collect();
        drop(registered);
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.tag.cmp(&b.tag)));
        holders.truncate(count);
        holders
    }

    /// Path such as "query 7/aggregate"; the device's name appears only for the device's own scope.
    pub fn path(&self) -> String {
        let mut names: Vec<&str> = self.chain().map(|scope| scope.name.as_str()).collect();
        if names.len() > 1 {
            names.pop();
        }
        names.reverse();
        names.join("/")
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scope {}", self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_reach_every_parent_and_peaks_are_their_own() {
        let device = Scope::root("device 0");
        let (one, two) = (device.child("query 1"), device.child("query 2"));
        let sort = one.child("sort");
        sort.allocated(100);
        two.allocated(50);
        sort.freed(100);
        two.allocated(50);
        assert_eq!((sort.counters().peak_bytes, one.counters().peak_bytes), (100, 100));
        assert_eq!((two.counters().peak_bytes, device.counters().peak_bytes), (100, 150));
        assert_eq!((one.used_bytes(), device.used_bytes()), (ByteSize(0), ByteSize(100)));
        let holders = device.largest_holders(3);
        assert_eq!(holders.len(), 1);
        assert_eq!((holders[0].tag.as_str(), holders[0].allocations), ("query 2", 2));
        assert_eq!(sort.path(), "query 1/sort");
    }

    #[test]
    fn a_scope_that_goes_leaves_its_counts_to_its_parent() {
        let device = Scope::root("device 0");
        let query = device.child("query");
        let sort = query.child("sort");
        sort.allocated(100);
        sort.count(|c| &c.launches);
        let before = query.counters();
        sort.freed(100);
        drop(sort);
        let after = query.counters();
        assert_eq!((after.allocations, after.frees, after.launches, after.used_bytes), (1, 1, 1, 0));
        assert_eq!((after.since(&before).frees, after.peak_bytes), (1, 100));
        assert!(device.largest_holders(3).is_empty());
        query.allocated(5);
        assert_eq!(device.largest_holders(3)[0].bytes, ByteSize(5));
        query.freed(5);
        drop(query);
        let all = device.counters();
        assert_eq!((all.allocations, all.allocated_bytes, all.freed_bytes, all.peak_bytes), (2, 105, 105, 100));
    }
}
