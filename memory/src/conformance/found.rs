//! What CUDA leaves undefined, done on purpose: the simulated device must say so, each time and by its right name.
//!
//!   A   allocate ─ fill ───────────────── free
//!   B               ╳ no wait ╳  fill               found whichever of the two runs first
//!
//! Exactly    one kind of finding each, and nothing else. What is planted leaves the device alive.

use std::panic::Location;

use super::rig::{Outcome, allocate, fill};
use super::{Claim, Over, Rig};
use crate::checks::same;
use crate::driver::FindingKind;
use crate::{ReleaseThreshold, ReusePolicy};

const PIECE: usize = 10_000;

pub(super) const CLAIMS: &[Claim] = &[
    Claim::new(
        "found/use_before_allocation",
        &["S1.8"],
        "a use on another stream that nothing orders behind the allocation is found",
        use_before_allocation,
    )
    .over(Over::Pools)
    .finds(FindingKind::UseBeforeAllocation),
    Claim::new(
        "found/use_after_free",
        &["S1.9"],
        "a use that is submitted after the free is found, though on the same stream",
        use_after_free,
    )
    .over(Over::Pools)
    .finds(FindingKind::UseAfterFree),
    Claim::new(
        "found/free_beside_a_use",
        &["S0.10", "S1.9"],
        "a free that no event and no wait of the host orders behind another stream's use is found",
        free_beside_a_use,
    )
    .over(Over::Pools)
    .finds(FindingKind::UnorderedFree),
    Claim::new(
        "found/free_before_allocation",
        &["S0.11", "S1.10"],
        "a free on a stream that does not come after the allocation is found",
        free_before_allocation,
    )
    .over(Over::Pools)
    .finds(FindingKind::UnorderedFree),
    Claim::new(
        "found/unordered_uses",
        &["S0.8"],
        "two streams that write the same bytes with no event between them are found, whatever the strategy",
        unordered_uses,
    )
    .finds(FindingKind::UnorderedAccess),
    Claim::new(
        "found/plain_memory_freed_early",
        &["S1.11"],
        "a free in stream order of plain memory that another stream still uses is found",
        plain_memory_freed_early,
    )
    .over(Over::Driver)
    .finds(FindingKind::UnorderedFree),
    Claim::new(
        "found/plain_free_unwaited",
        &["S1.12", "S1.13"],
        "a free without a stream of a pool's memory that the host has not waited for is found",
        plain_free_unwaited,
    )
    .over(Over::Pools)
    .finds(FindingKind::UnorderedFree),
    Claim::new(
        "found/attributes_after_free",
        &["S1.47"],
        "asking whose a freed address is gives no answer and is found, though a stream may still touch it",
        attributes_after_free,
    )
    .over(Over::Pools)
    .finds(FindingKind::UseAfterFree),
    Claim::new("found/freed_twice", &["S1.9"], "a second free is refused and found", freed_twice)
        .over(Over::Pools)
        .finds(FindingKind::DoubleFree),
];

fn use_before_allocation(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let raw = rig.allocate(PIECE, a)?;
    rig.fill(&raw, 1, b)?;
    a.wait_for(b.position())?;
    rig.free(raw, a)
}

fn use_after_free(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let raw = rig.allocate(PIECE, on)?;
    let ptr = raw.ptr();
    rig.fill(&raw, 1, on)?;
    rig.free(raw, on)?;
    same("a use after the free that is refused", fill(ptr, PIECE, 2, on).is_err(), true)
}

fn free_beside_a_use(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let raw = rig.allocate(PIECE, a)?;
    b.wait_for(a.position())?;
    rig.fill(&raw, 1, b)?;
    rig.free(raw, a)
}

fn free_before_allocation(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let raw = rig.allocate(PIECE, a)?;
    rig.free(raw, b)
}

fn unordered_uses(rig: &Rig) -> Outcome {
    let [a, b, c, ..] = &rig.base.streams;
    let raw = rig.allocate(PIECE, a)?;
    b.wait_for(a.position())?;
    c.wait_for(a.position())?;
    rig.fill(&raw, 1, b)?;
    rig.fill(&raw, 2, c)?;
    a.wait_for(b.position())?;
    a.wait_for(c.position())?;
    rig.free(raw, a)
}

fn plain_memory_freed_early(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let here = Location::caller();
    let len = std::num::NonZeroUsize::new(PIECE).expect("not zero");
    let ptr = rig.call(rig.driver().alloc_sync(rig.base.device.id(), len, here))?;
    fill(ptr, PIECE, 1, a)?;
    b.submit(|driver, on| driver.free_async(ptr, on, here))?;
    Ok(())
}

fn plain_free_unwaited(rig: &Rig) -> Outcome {
    let own = rig.own_pool(None, ReleaseThreshold::Max, ReusePolicy::default())?;
    let on = &rig.base.streams[0];
    let raw = allocate(&own, PIECE, on)?;
    fill(raw.ptr(), PIECE, 1, on)?;
    rig.call(rig.driver().free_sync(raw.ptr(), Location::caller()))
}

fn attributes_after_free(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let raw = rig.allocate(PIECE, on)?;
    let ptr = raw.ptr();
    rig.fill(&raw, 1, on)?;
    rig.free(raw, on)?;
    same("attributes of a freed address that are refused", rig.driver().pointer_attributes(ptr).is_err(), true)
}

fn freed_twice(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let raw = rig.allocate(PIECE, on)?;
    let ptr = raw.ptr();
    rig.free(raw, on)?;
    let here = Location::caller();
    let again = on.submit(|driver, on| driver.free_async(ptr, on, here));
    same("a second free that is refused", again.is_err(), true)
}
