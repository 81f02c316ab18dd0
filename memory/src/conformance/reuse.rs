//! Who is given what another stream has freed: the driver's three policies, and what holds without them.
//!
//!   pool of 64 MiB   A   allocate 40 ─ fill ─ free ─ event
//!                    B                                └─?─ allocate 40      fits only where A's bytes may be had
//!
//! CUDA       promises what a policy forbids, and that reuse keeps the bytes in order. That it reuses where it may is
//!            its own affair, so there a refusal is accepted; the simulated device must do it.

use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::Arc;

use super::rig::{MIB, Outcome, allocate, fill, out_of_memory, read};
use super::{Claim, Over, Rig};
use crate::checks::{CheckError, same};
use crate::driver::{PoolAttribute, PoolProperties};
use crate::resource::{CudaAsyncMemoryResource, DeviceMemoryResource, RawAllocation};
use crate::stream::Stream;
use crate::{ByteSize, DeviceBuffer, MemoryPool, ReleaseThreshold, ReusePolicy};

pub(super) const CLAIMS: &[Claim] = &[
    Claim::new(
        "reuse/same_stream",
        &["S0.16", "S1.40"],
        "what a stream has freed serves it again at once, with every policy off, before more is asked of the system",
        same_stream,
    )
    .over(Over::Driver),
    Claim::new(
        "reuse/after_host_sync",
        &["S1.40", "S1.42"],
        "what a stream has freed serves every stream once the host has waited, with every policy off",
        after_host_sync,
    )
    .over(Over::Driver),
    Claim::new(
        "reuse/never_unordered",
        &["S1.41", "S1.42", "S1.44"],
        "with every policy off, another stream is not given what the host has not seen freed",
        never_unordered,
    )
    .over(Over::Driver),
    Claim::new(
        "reuse/event_chain",
        &["S1.41"],
        "an event chain from the free, over a third stream, lets another stream have the bytes; without the chain it has not",
        event_chain,
    )
    .over(Over::Driver)
    .every_edge_counts(),
    Claim::new(
        "reuse/opportunistic",
        &["S0.19", "S1.42"],
        "opportunistic reuse keeps bytes apart, whether the driver noticed the free or not",
        opportunistic,
    )
    .over(Over::Driver),
    Claim::new(
        "reuse/internal_dependency",
        &["S1.43"],
        "when there is no more, the driver may wait for another stream's free, and the bytes are in order",
        internal_dependency,
    )
    .over(Over::Driver),
    Claim::new(
        "reuse/switches",
        &["S0.20", "S1.44"],
        "each policy is switched by itself, for one pool alone, and reads as it was set",
        switches,
    )
    .over(Over::Driver),
    Claim::new(
        "reuse/synchronise_oneself",
        &["S1.44"],
        "with internal dependencies off, a pool that is full waits for frees itself before an allocation fails",
        synchronise_oneself,
    )
    .over(Over::Driver),
];

const LARGE: usize = 40 * MIB;

/// Bytes of a large piece that are written and read: enough to overlap another user of the same memory.
const TOUCHED: NonZeroUsize = NonZeroUsize::new(64 << 10).expect("not zero");

const OFF: ReusePolicy =
    ReusePolicy { follow_event_dependencies: false, opportunistic: false, internal_dependencies: false };

/// A pool in which one large piece fits, and not two.
fn tight(rig: &Rig, reuse: ReusePolicy) -> Outcome<CudaAsyncMemoryResource> {
    rig.own_pool(Some(ByteSize::mib(64)), ReleaseThreshold::Max, reuse)
}

/// Allocated, written and freed on one stream, all of it queued.
fn used_and_freed(pool: &CudaAsyncMemoryResource, on: &Stream) -> Outcome {
    let raw = allocate(pool, LARGE, on)?;
    fill(raw.ptr(), TOUCHED.get(), 1, on)?;
    Ok(pool.deallocate(raw, on, Location::caller())?)
}

/// Writes what was allocated, reads it, and frees it.
fn use_it(pool: &CudaAsyncMemoryResource, raw: RawAllocation, on: &Stream) -> Outcome {
    fill(raw.ptr(), TOUCHED.get(), 2, on)?;
    let foreign = read(raw.ptr(), TOUCHED, on)?.into_iter().find(|&byte| byte != 2);
    same("a foreign byte of what was reused", foreign, None)?;
    Ok(pool.deallocate(raw, on, Location::caller())?)
}

/// What the simulated device must give, and CUDA may.
fn may_have(rig: &Rig, pool: &CudaAsyncMemoryResource, on: &Stream) -> Outcome {
    match allocate(pool, LARGE, on) {
        Ok(raw) => use_it(pool, raw, on),
        Err(CheckError::Memory(error)) if error.is_out_of_memory() && !rig.is_simulated() => Ok(()),
        Err(error) => Err(error),
    }
}

fn same_stream(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let pool = tight(rig, OFF)?;
    for _ in 0..4 {
        used_and_freed(&pool, on)?;
    }
    let held = pool.attributes()?;
    same("bytes held beside one large piece", held.reserved_high < ByteSize::mib(80), true)?;
    let raw = allocate(&pool, LARGE, on)?;
    use_it(&pool, raw, on)
}

fn after_host_sync(rig: &Rig) -> Outcome {
    let [a, others @ ..] = &rig.base.streams;
    let pool = tight(rig, OFF)?;
    let waits: [fn(&Stream) -> Outcome; 3] =
        [|on| Ok(on.synchronize()?), |on| Ok(on.record()?.synchronize()?), |on| Ok(on.device().synchronize()?)];
    for (wait, other) in waits.into_iter().zip(others) {
        used_and_freed(&pool, a)?;
        wait(a)?;
        let raw = allocate(&pool, LARGE, other)?;
        use_it(&pool, raw, other)?;
        other.synchronize()?;
    }
    Ok(())
}

fn never_unordered(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let pool = tight(rig, OFF)?;
    used_and_freed(&pool, a)?;
    // An event chain is not enough when it is not to be followed.
    b.wait_for(a.position())?;
    out_of_memory("what only an event orders, not followed", allocate(&pool, LARGE, b))?;
    a.synchronize()?;
    let raw = allocate(&pool, LARGE, b)?;
    use_it(&pool, raw, b)
}

fn event_chain(rig: &Rig) -> Outcome {
    let [a, b, c, stranger] = &rig.base.streams;
    let pool = tight(rig, ReusePolicy { follow_event_dependencies: true, ..OFF })?;
    used_and_freed(&pool, a)?;
    out_of_memory("what no event chain leads to", allocate(&pool, LARGE, stranger))?;
    b.wait_for(a.position())?;
    c.wait_for(b.position())?;
    may_have(rig, &pool, c)
}

fn opportunistic(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let pool = rig.own_pool(None, ReleaseThreshold::Max, ReusePolicy { opportunistic: true, ..OFF })?;
    for _ in 0..6 {
        used_and_freed(&pool, a)?;
        // Other work lets the device come past the free, or not.
        rig.base.upload(&[1; 1000], b)?;
        b.synchronize()?;
        let raw = allocate(&pool, LARGE, b)?;
        use_it(&pool, raw, b)?;
    }
    Ok(())
}

fn internal_dependency(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let pool = tight(rig, ReusePolicy { internal_dependencies: true, ..OFF })?;
    for _ in 0..3 {
        used_and_freed(&pool, a)?;
        may_have(rig, &pool, b)?;
        b.synchronize()?;
    }
    Ok(())
}

fn switches(rig: &Rig) -> Outcome {
    let [first, second] = [tight(rig, OFF)?, tight(rig, OFF)?];
    let all = [false, true].into_iter().flat_map(|a| [false, true].map(|b| [false, true].map(|c| (a, b, c))));
    for (follow_event_dependencies, opportunistic, internal_dependencies) in all.flatten() {
        let reuse = ReusePolicy { follow_event_dependencies, opportunistic, internal_dependencies };
        first.set_reuse(reuse)?;
        same("the policies that were set", first.attributes()?.reuse, reuse)?;
        same("the policies of another pool", second.attributes()?.reuse, OFF)?;
    }
    // All policies of a new pool are on by default.
    let fresh = rig.call(rig.driver().pool_create(&PoolProperties::on(rig.base.device.id())))?;
    for policy in [
        PoolAttribute::ReuseFollowEventDependencies,
        PoolAttribute::ReuseAllowOpportunistic,
        PoolAttribute::ReuseAllowInternalDependencies,
    ] {
        let on = rig.call(rig.driver().pool_attribute(fresh, policy));
        same(&format!("{policy:?} of a new pool"), on?, 1)?;
    }
    rig.call(rig.driver().pool_destroy(fresh))
}

fn synchronise_oneself(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let full = Arc::new(tight(rig, OFF)?);
    let resource: Arc<dyn DeviceMemoryResource> = full.clone();
    let pool = MemoryPool::builder(&rig.base.device).limit(ByteSize::MAX).resource(resource).build()?;
    for round in 0..3u8 {
        let buffer = DeviceBuffer::new(LARGE, a, &pool)?;
        buffer.view(0..TOUCHED.get())?.fill(round, a)?;
        drop(buffer);
        let buffer = DeviceBuffer::new(LARGE, b, &pool)?;
        let view = buffer.view(0..TOUCHED.get())?;
        view.fill(round + 10, b)?;
        let bytes = rig.base.download(&view, a)?;
        same("a foreign byte", bytes.into_iter().find(|&byte| byte != round + 10), None)?;
    }
    // What is really in use is not waited for.
    let held = DeviceBuffer::new(LARGE, a, &pool)?;
    let error = DeviceBuffer::new(LARGE, b, &pool).err();
    same("a second large piece that is out of memory", error.is_some_and(|error| error.is_out_of_memory()), true)?;
    drop(held);
    Ok(())
}
