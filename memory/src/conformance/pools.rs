//! What pools keep, give back, count and refuse.
//!
//!   reserved  ████████████░░░░   held of the system          a synchronisation takes it down to the release threshold,
//!   used      █████░░░           handed out, not reusable    a trim to its argument
//!
//! Numbers    are compared where CUDA promises them: what is at least held, what is gone after a synchronisation. How
//!            much a pool takes at a time is the driver's affair.

use std::panic::Location;

use super::rig::{MIB, Outcome, allocate, fill, refused};
use super::{Claim, Over, Rig};
use crate::checks::same;
use crate::driver::{PoolAttribute, PoolProperties};
use crate::resource::{CudaAsyncMemoryResource, DeviceMemoryResource, Strategy};
use crate::stream::Stream;
use crate::{ByteSize, ReleaseThreshold, ReusePolicy};

pub(super) const CLAIMS: &[Claim] = &[
    Claim::new(
        "pools/freed_serves_next",
        &["S0.16", "S3.14", "S3.15"],
        "an allocation is served from what the pool has before the system is asked; a free goes back to the same pool",
        freed_serves_next,
    )
    .over(Over::Driver),
    Claim::new(
        "pools/threshold",
        &["S0.17", "S1.36", "S3.18"],
        "a synchronisation leaves unused memory up to the release threshold, and all of it where that is the maximum",
        threshold,
    )
    .over(Over::Driver),
    Claim::new(
        "pools/threshold_zero",
        &["S0.16", "S3.15", "S3.16"],
        "with a threshold of zero, a synchronisation gives back all that is unused, and nothing goes before it",
        threshold_zero,
    )
    .over(Over::Driver),
    Claim::new(
        "pools/driver_default",
        &["S1.36", "S3.16"],
        "a new pool's threshold is zero until it is set",
        driver_default,
    )
    .over(Over::Driver)
    .only_simulated("what a driver starts with may change; this crate sets it"),
    Claim::new(
        "pools/loop",
        &["S0.18", "S3.17", "S3.18"],
        "a hundred rounds of allocate, use, free, synchronise: the tuned pool asks the system once, the untuned one each time",
        hundred_rounds,
    )
    .over(Over::Pools),
    Claim::new(
        "pools/each_synchronisation",
        &["S1.45"],
        "stream, event and device synchronisation each retire frees and look at the threshold",
        each_synchronisation,
    )
    .over(Over::Driver),
    Claim::new(
        "pools/trim",
        &["S1.37", "S1.38"],
        "after a synchronisation a trim gives back what is unused and keeps what it is told to; a high threshold leaves it to that",
        trim,
    )
    .over(Over::Driver),
    Claim::new(
        "pools/trim_before_frees",
        &["S1.37"],
        "a trim before the driver knows of the frees gives nothing back",
        trim_before_frees,
    )
    .over(Over::Driver)
    .only_simulated("elsewhere the device may be past the frees by itself"),
    Claim::new(
        "pools/statistics",
        &["S1.39", "S3.2"],
        "reserved and used bytes and their high watermarks move as they should, and a watermark starts anew when reset to zero",
        statistics,
    )
    .over(Over::Driver),
    Claim::new(
        "pools/reserved_and_used",
        &["S3.2"],
        "with every strategy, reserved bytes cover used ones, used ones cover what was asked for, and both end at zero",
        reserved_and_used,
    ),
    Claim::new("pools/by_name", &["S3.3"], "each strategy is chosen by its name, the driver's pool and a cache among them", by_name),
    Claim::new(
        "pools/apart",
        &["S1.17", "S3.14"],
        "explicit pools of one device count apart, and a free goes to the pool that the memory came from",
        apart,
    )
    .over(Over::Driver),
    Claim::new(
        "pools/max_size",
        &["S1.18"],
        "an explicit pool with a maximum size refuses what goes beyond it, and serves the rest",
        max_size,
    )
    .over(Over::Driver),
];

const LARGE: usize = 32 * MIB;

fn large() -> ByteSize {
    ByteSize::from(LARGE)
}

fn pool(rig: &Rig, threshold: ReleaseThreshold) -> Outcome<CudaAsyncMemoryResource> {
    rig.own_pool(None, threshold, ReusePolicy::default())
}

fn reserved(pool: &CudaAsyncMemoryResource) -> Outcome<ByteSize> {
    Ok(pool.attributes()?.reserved_current)
}

/// Allocates, writes and frees pieces of one large size, that many at once.
fn use_some(pool: &CudaAsyncMemoryResource, count: usize, on: &Stream) -> Outcome {
    let mut pieces = Vec::new();
    for _ in 0..count {
        let raw = allocate(pool, LARGE, on)?;
        fill(raw.ptr(), 4096, 1, on)?;
        pieces.push(raw);
    }
    for raw in pieces {
        pool.deallocate(raw, on, Location::caller())?;
    }
    Ok(())
}

fn freed_serves_next(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let [pool, other] = [pool(rig, ReleaseThreshold::Max)?, pool(rig, ReleaseThreshold::Max)?];
    use_some(&pool, 1, on)?;
    let once = reserved(&pool)?;
    same("bytes held for one piece cover it", once >= large(), true)?;
    for _ in 0..5 {
        use_some(&pool, 1, on)?;
    }
    same("bytes held after more of the same", reserved(&pool)?, once)?;
    use_some(&pool, 2, on)?;
    same("bytes held for two pieces cover them", reserved(&pool)? >= large() + large(), true)?;
    same("bytes held by another pool", reserved(&other)?, ByteSize::ZERO)
}

fn threshold(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let pool = pool(rig, ReleaseThreshold::Max)?;
    same("the threshold that was set", pool.attributes()?.release_threshold, ByteSize::MAX)?;
    use_some(&pool, 3, on)?;
    let all = reserved(&pool)?;
    on.synchronize()?;
    same("bytes kept below the highest threshold", reserved(&pool)?, all)?;
    pool.set_threshold(ReleaseThreshold::Bytes(large()))?;
    same("the threshold that was set", pool.attributes()?.release_threshold, large())?;
    use_some(&pool, 3, on)?;
    on.synchronize()?;
    let kept = reserved(&pool)?;
    same(&format!("{kept} kept of {all} are less"), kept < all, true)?;
    // CUDA promises no more than to try; how much it takes at a time decides where it can stop.
    same(&format!("{kept} kept are at least the threshold"), kept >= large() || !rig.is_simulated(), true)
}

fn threshold_zero(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let pool = pool(rig, ReleaseThreshold::Bytes(ByteSize::ZERO))?;
    for _ in 0..3 {
        use_some(&pool, 2, on)?;
        same("bytes held before a synchronisation cover what was used", reserved(&pool)? >= large(), true)?;
        on.synchronize()?;
        same("bytes kept at a threshold of zero", reserved(&pool)?, ByteSize::ZERO)?;
    }
    // What is in use stays.
    let raw = allocate(&pool, LARGE, on)?;
    on.synchronize()?;
    same("bytes held beside one piece in use cover it", reserved(&pool)? >= large(), true)?;
    Ok(pool.deallocate(raw, on, Location::caller())?)
}

fn driver_default(rig: &Rig) -> Outcome {
    let fresh = pool(rig, ReleaseThreshold::DriverDefault)?;
    same("the threshold of a new pool", fresh.attributes()?.release_threshold, ByteSize::ZERO)?;
    let on = &rig.base.streams[0];
    use_some(&fresh, 1, on)?;
    on.synchronize()?;
    same("bytes that a new pool keeps", reserved(&fresh)?, ByteSize::ZERO)
}

fn hundred_rounds(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let keeps = rig.strategy() == Strategy::CudaAsync;
    for round in 0..100 {
        let raw = rig.allocate(MIB, on)?;
        let held = rig.resource().statistics()?.reserved;
        same("bytes held beside what is in use cover it", held >= ByteSize::mib(1), true)?;
        fill(raw.ptr(), 4096, 1, on)?;
        rig.free(raw, on)?;
        on.synchronize()?;
        let kept = rig.resource().statistics()?.reserved;
        let what = format!("bytes kept after round {round}");
        same(&what, kept, if keeps { held } else { ByteSize::ZERO })?;
    }
    Ok(())
}

fn each_synchronisation(rig: &Rig) -> Outcome {
    let [on, idle, ..] = &rig.base.streams;
    let pool = pool(rig, ReleaseThreshold::Bytes(ByteSize::ZERO))?;
    type Wait = fn(&Stream) -> Outcome;
    let waits: [(&str, Wait); 3] = [
        ("stream", |on| Ok(on.synchronize()?)),
        ("event", |on| Ok(on.record()?.synchronize()?)),
        ("device", |on| Ok(on.device().synchronize()?)),
    ];
    for (what, wait) in waits {
        use_some(&pool, 1, on)?;
        wait(on)?;
        let attributes = pool.attributes()?;
        same(&format!("bytes in use after a {what} synchronisation"), attributes.used_current, ByteSize::ZERO)?;
        same(&format!("bytes kept after a {what} synchronisation"), attributes.reserved_current, ByteSize::ZERO)?;
    }
    // Another stream's synchronisation proves nothing about this one's frees.
    if rig.is_lazy() {
        let raw = allocate(&pool, LARGE, on)?;
        idle.record()?.synchronize()?;
        same("bytes held for a piece in use", reserved(&pool)? >= large(), true)?;
        pool.deallocate(raw, on, Location::caller())?;
    }
    Ok(())
}

fn trim(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let pool = pool(rig, ReleaseThreshold::Max)?;
    let held = allocate(&pool, LARGE, on)?;
    use_some(&pool, 3, on)?;
    on.synchronize()?;
    let before = reserved(&pool)?;
    same("bytes held after four pieces cover them", before.as_u64() >= 4 * large().as_u64(), true)?;
    let keep = ByteSize::from(2 * LARGE);
    pool.trim(keep)?;
    let kept = reserved(&pool)?;
    same(
        &format!("{kept} after a trim are at least what was to be kept, and less"),
        kept >= keep && kept < before,
        true,
    )?;
    pool.trim(ByteSize::ZERO)?;
    let left = reserved(&pool)?;
    same(&format!("{left} left cover what is in use"), left >= large() && left <= kept, true)?;
    same(&format!("{left} left are no second piece"), left < keep || !rig.is_simulated(), true)?;
    pool.deallocate(held, on, Location::caller())?;
    on.synchronize()?;
    pool.trim(ByteSize::ZERO)?;
    same("bytes held when nothing is in use", reserved(&pool)?, ByteSize::ZERO)
}

fn trim_before_frees(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let pool = pool(rig, ReleaseThreshold::Max)?;
    use_some(&pool, 2, on)?;
    let before = reserved(&pool)?;
    pool.trim(ByteSize::ZERO)?;
    same("bytes held after a trim that came too early", reserved(&pool)?, before)?;
    on.synchronize()?;
    pool.trim(ByteSize::ZERO)?;
    same("bytes held after a trim in time", reserved(&pool)?, ByteSize::ZERO)
}

fn statistics(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let pool = pool(rig, ReleaseThreshold::Max)?;
    let empty = pool.attributes()?;
    same("bytes of an empty pool", (empty.reserved_current, empty.used_current), (ByteSize::ZERO, ByteSize::ZERO))?;
    let raw = allocate(&pool, LARGE, on)?;
    let one = pool.attributes()?;
    same("used bytes cover what was asked for", one.used_current >= large(), true)?;
    same("reserved bytes cover used ones", one.reserved_current >= one.used_current, true)?;
    same(
        "watermarks are as high",
        one.reserved_high >= one.reserved_current && one.used_high >= one.used_current,
        true,
    )?;
    pool.deallocate(raw, on, Location::caller())?;
    if rig.is_lazy() {
        // Still in use: the free has not run on its stream.
        same("used bytes before the free's turn", pool.attributes()?.used_current >= large(), true)?;
    }
    on.synchronize()?;
    let freed = pool.attributes()?;
    same("used bytes after the free", freed.used_current, ByteSize::ZERO)?;
    same("watermarks stay", (freed.used_high, freed.reserved_high), (one.used_high, one.reserved_high))?;
    pool.trim(ByteSize::ZERO)?;
    pool.reset_peaks()?;
    let reset = pool.attributes()?;
    same("watermarks after a reset", (reset.used_high, reset.reserved_high), (ByteSize::ZERO, ByteSize::ZERO))?;
    use_some(&pool, 1, on)?;
    on.synchronize()?;
    let again = pool.attributes()?;
    same("watermarks rise again", again.used_high >= large() && again.reserved_high >= large(), true)?;
    // A pool created directly through the driver, to test invalid attribute values.
    let bare = rig.call(rig.driver().pool_create(&PoolProperties::on(rig.base.device.id())))?;
    for attribute in [PoolAttribute::UsedHigh, PoolAttribute::ReservedHigh] {
        refused(
            &format!("a {attribute:?} of 5"),
            &rig.base.device,
            rig.base.device.check(rig.driver().pool_set_attribute(bare, attribute, 5)),
        )?;
    }
    for attribute in [PoolAttribute::UsedCurrent, PoolAttribute::ReservedCurrent] {
        refused(
            &format!("setting {attribute:?}"),
            &rig.base.device,
            rig.base.device.check(rig.driver().pool_set_attribute(bare, attribute, 0)),
        )?;
    }
    rig.call(rig.driver().pool_destroy(bare))
}

fn reserved_and_used(rig: &Rig) -> Outcome {
    let [on, other, ..] = &rig.base.streams;
    let mut pieces = Vec::new();
    let mut asked = ByteSize::ZERO;
    for (round, len) in [1, 256, 1000, 65_536, 3 * MIB, 1 << 20].into_iter().enumerate() {
        let on = if round % 2 == 0 { on } else { other };
        let raw = rig.allocate(len, on)?;
        same("the start of a piece, modulo 256", raw.ptr().0 % 256, 0)?;
        rig.fill(&raw, 1, on)?;
        asked += ByteSize::from(len);
        let now = rig.resource().statistics()?;
        same(&format!("{} used cover {asked} asked for", now.used), now.used >= asked, true)?;
        same(&format!("{} reserved cover {} used", now.reserved, now.used), now.reserved >= now.used, true)?;
        same("peaks cover what is", now.used_peak >= now.used && now.reserved_peak >= now.reserved, true)?;
        pieces.push((raw, on));
    }
    for (raw, on) in pieces {
        rig.free(raw, on)?;
    }
    rig.base.device.synchronize()?;
    same("used bytes at the end", rig.resource().statistics()?.used, ByteSize::ZERO)
}

fn by_name(rig: &Rig) -> Outcome {
    let found = rig.strategy().name().parse::<Strategy>()?;
    same("the strategy of that name", found, rig.strategy())?;
    same("the name that its resource goes by", rig.resource().name(), rig.strategy().name())?;
    refused("a name that no strategy has", &rig.base.device, "native".parse::<Strategy>())
}

fn apart(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let [first, second] = [pool(rig, ReleaseThreshold::Max)?, pool(rig, ReleaseThreshold::Max)?];
    let raw = allocate(&first, LARGE, on)?;
    same("used bytes of the pool that was asked", first.attributes()?.used_current >= large(), true)?;
    same("used bytes of another pool", second.attributes()?.used_current, ByteSize::ZERO)?;
    // The driver frees to the owning pool, even if another pool is called.
    second.deallocate(raw, on, Location::caller())?;
    on.synchronize()?;
    same("used bytes of the pool it came from", first.attributes()?.used_current, ByteSize::ZERO)?;
    same("bytes that the pool it came from keeps", reserved(&first)? >= large(), true)?;
    same("bytes that the other pool holds", reserved(&second)?, ByteSize::ZERO)
}

fn max_size(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let pool = rig.own_pool(Some(ByteSize::mib(64)), ReleaseThreshold::Max, ReusePolicy::default())?;
    let raw = allocate(&pool, 40 * MIB, on)?;
    super::rig::out_of_memory("a second piece beyond the maximum", allocate(&pool, 40 * MIB, on))?;
    let small = allocate(&pool, 8 * MIB, on)?;
    for raw in [raw, small] {
        fill(raw.ptr(), 4096, 1, on)?;
        pool.deallocate(raw, on, Location::caller())?;
    }
    same("bytes held by the pool stay below it", reserved(&pool)? <= ByteSize::mib(64), true)
}
