//! The stream-ordered pool of the simulated device: reuse, thresholds, trimming, limits.

use super::sim_rig::{DEVICE, Rig, seeds};
use millpond_memory::driver::sim::SimOptions;
use millpond_memory::driver::*;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::panic::Location;

const MIB: usize = 1 << 20;

/// A device that fits one large buffer, but not two.
fn tight(seed: u64) -> Rig {
    Rig::with(SimOptions { seed, memory_bytes: 64 << 20, ..SimOptions::default() })
}

#[test]
fn a_free_serves_the_same_stream_at_once() {
    for seed in seeds() {
        let rig = tight(seed);
        rig.reuse(false, false, false);
        let s = rig.stream();
        for _ in 0..4 {
            let a = rig.alloc(40 * MIB, s);
            rig.fill(a, 1, 64, s);
            rig.free(a, s);
        }
        assert_eq!(rig.driver.counters().host_waits, 0);
        rig.assert_silent();
    }
}

#[test]
fn without_a_policy_another_stream_gets_nothing_until_the_host_has_waited() {
    for seed in seeds() {
        let rig = tight(seed);
        rig.reuse(false, false, false);
        let (s, t) = (rig.stream(), rig.stream());
        let a = rig.alloc(40 * MIB, s);
        rig.free(a, s);
        rig.order(s, t);
        assert_eq!(rig.try_alloc(40 * MIB, t).unwrap_err().code, DriverCode::OUT_OF_MEMORY);
        rig.sync(s);
        let b = rig.alloc(40 * MIB, t);
        rig.fill(b, 1, 64, t);
        rig.assert_silent();
    }
}

#[test]
fn event_chains_let_another_stream_reuse() {
    for seed in seeds() {
        let rig = tight(seed);
        rig.reuse(true, false, false);
        let (s, t, u) = (rig.stream(), rig.stream(), rig.stream());
        let a = rig.alloc(40 * MIB, s);
        rig.fill(a, 1, 64, s);
        rig.free(a, s);
        assert!(rig.try_alloc(40 * MIB, u).is_err(), "no chain leads here");
        rig.order(s, t);
        rig.order(t, u);
        let b = rig.alloc(40 * MIB, u);
        assert_eq!(a, b);
        rig.fill(b, 2, 64, u);
        rig.assert_silent();
    }
}

#[test]
fn opportunistic_reuse_takes_what_has_been_freed_in_fact() {
    let mut outcomes = BTreeSet::new();
    for seed in seeds() {
        let rig = tight(seed);
        rig.reuse(false, true, false);
        let (s, t) = (rig.stream(), rig.stream());
        let a = rig.alloc(8 * MIB, s);
        rig.free(a, s);
        // Unrelated work may let the device run ahead.
        let other = rig.alloc(64, t);
        rig.fill(other, 1, 64, t);
        let event = rig.record(t);
        while !rig.driver.event_query(event).unwrap() {}
        let b = rig.alloc(8 * MIB, t);
        rig.fill(b, 1, 64, t);
        outcomes.insert(a == b);
        rig.assert_silent();
    }
    assert_eq!(outcomes, BTreeSet::from([false, true]), "which address comes back is not to be relied on");
}

#[test]
fn internal_dependencies_wait_when_nothing_else_is_left() {
    for seed in seeds() {
        let rig = tight(seed);
        rig.reuse(false, false, true);
        let (s, t) = (rig.stream(), rig.stream());
        let a = rig.alloc(40 * MIB, s);
        rig.fill(a, 1, 40 * MIB, s);
        rig.free(a, s);
        let b = rig.alloc(40 * MIB, t);
        rig.fill(b, 2, 64, t);
        assert_eq!(rig.fetch(b, 64, t), [2; 64]);
        rig.assert_silent();
    }
}

#[test]
fn fresh_memory_is_poison_whoever_had_it_before() {
    let rig = tight(4);
    let s = rig.stream();
    let a = rig.alloc(64, s);
    rig.fill(a, 1, 64, s);
    rig.free(a, s);
    let b = rig.alloc(64, s);
    assert_eq!(rig.fetch(b, 64, s), [0xCD; 64]);
    rig.only_finding(FindingKind::Uninitialised);
}

#[test]
fn a_threshold_of_zero_gives_memory_back_at_a_synchronisation() {
    for seed in seeds() {
        let rig = tight(seed);
        let s = rig.stream();
        let held = |rig: &Rig| rig.pool_attribute(PoolAttribute::ReservedCurrent);
        for (threshold, kept) in [(0, 0), (u64::MAX, 16 * MIB as u64)] {
            rig.driver.pool_set_attribute(rig.pool, PoolAttribute::ReleaseThreshold, threshold).unwrap();
            let a = rig.alloc(16 * MIB, s);
            rig.free(a, s);
            assert_eq!(held(&rig), 16 * MIB as u64, "nothing is given back before a synchronisation");
            rig.sync(s);
            assert_eq!(held(&rig), kept);
            assert_eq!(rig.driver.memory_info(DEVICE).unwrap().free_bytes, (64 << 20) - kept);
        }
    }
}

/// Streams, events and devices: each synchronization retires frees and applies the threshold (S1.45).
#[test]
fn every_kind_of_synchronisation_counts() {
    type Wait = fn(&Rig, StreamHandle);
    let waits: [Wait; 3] = [
        |rig, s| rig.driver.stream_synchronize(s).unwrap(),
        |rig, s| rig.driver.event_synchronize(rig.record(s)).unwrap(),
        |rig, _| rig.driver.device_synchronize(DEVICE).unwrap(),
    ];
    for seed in seeds() {
        let rig = tight(seed);
        rig.driver.pool_set_attribute(rig.pool, PoolAttribute::ReleaseThreshold, 0).unwrap();
        let s = rig.stream();
        for wait in waits {
            let a = rig.alloc(4 * MIB, s);
            rig.free(a, s);
            assert!(rig.pool_attribute(PoolAttribute::ReservedCurrent) > 0);
            wait(&rig, s);
            assert_eq!(rig.pool_attribute(PoolAttribute::ReservedCurrent), 0);
        }
    }
}

/// Repeated allocate, use, free, synchronize: with a threshold the same memory serves every round (S0.18).
#[test]
fn a_threshold_makes_rounds_reuse_memory() {
    let rig = tight(1);
    let s = rig.stream();
    let mut addresses = BTreeSet::new();
    for _ in 0..100 {
        let a = rig.alloc(MIB, s);
        rig.fill(a, 1, 64, s);
        rig.free(a, s);
        rig.sync(s);
        addresses.insert(a);
    }
    assert_eq!(addresses.len(), 1);
    rig.assert_silent();
}

#[test]
fn trim_needs_the_host_to_have_waited_and_keeps_what_it_is_told() {
    for seed in seeds() {
        let rig = tight(seed);
        let s = rig.stream();
        let buffers: Vec<_> = (0..4).map(|_| rig.alloc(8 * MIB, s)).collect();
        buffers.into_iter().for_each(|a| rig.free(a, s));
        let held = || rig.pool_attribute(PoolAttribute::ReservedCurrent);
        rig.driver.pool_trim(rig.pool, 0).unwrap();
        assert_eq!(held(), 32 * MIB as u64, "the driver has not seen the frees finish");
        rig.sync(s);
        rig.driver.pool_trim(rig.pool, 10 * MIB as u64).unwrap();
        assert_eq!(held(), 16 * MIB as u64);
        rig.driver.pool_trim(rig.pool, 0).unwrap();
        assert_eq!(held(), 0);
    }
}

#[test]
fn attributes_tell_what_is_reserved_and_used() {
    let rig = tight(9);
    let s = rig.stream();
    let all = || {
        [
            PoolAttribute::ReservedCurrent,
            PoolAttribute::ReservedHigh,
            PoolAttribute::UsedCurrent,
            PoolAttribute::UsedHigh,
        ]
        .map(|attribute| rig.pool_attribute(attribute))
    };
    let mib = |n: u64| n << 20;
    let a = rig.alloc(3 * MIB, s);
    assert_eq!(all(), [mib(4), mib(4), mib(3), mib(3)]);
    rig.free(a, s);
    assert_eq!(all(), [mib(4), mib(4), mib(3), mib(3)], "a free that the device has not reached still counts");
    rig.sync(s);
    assert_eq!(all(), [mib(4), mib(4), 0, mib(3)]);
    rig.driver.pool_set_attribute(rig.pool, PoolAttribute::UsedHigh, 0).unwrap();
    rig.driver.pool_trim(rig.pool, 0).unwrap();
    rig.driver.pool_set_attribute(rig.pool, PoolAttribute::ReservedHigh, 0).unwrap();
    assert_eq!(all(), [0; 4]);
    let refused = rig.driver.pool_set_attribute(rig.pool, PoolAttribute::UsedHigh, 1).unwrap_err();
    assert_eq!(refused.code, DriverCode::INVALID_VALUE);
}

#[test]
fn a_pool_has_a_largest_size() {
    let rig = tight(0);
    let s = rig.stream();
    let pool =
        rig.driver.pool_create(&PoolProperties { max_bytes: Some(8 << 20), ..PoolProperties::on(DEVICE) }).unwrap();
    let bytes = |n: usize| NonZeroUsize::new(n * MIB).unwrap();
    let a = rig.driver.pool_alloc(pool, bytes(8), s, Location::caller()).unwrap();
    let error = rig.driver.pool_alloc(pool, bytes(1), s, Location::caller()).unwrap_err();
    assert_eq!(error.code, DriverCode::OUT_OF_MEMORY);
    rig.free(a, s);
    rig.sync(s);
    rig.driver.pool_destroy(pool).unwrap();
    rig.assert_silent();
}

#[test]
fn a_destroyed_pool_lives_until_its_last_block_is_back() {
    let rig = tight(6);
    let s = rig.stream();
    let a = rig.alloc(MIB, s);
    rig.driver.pool_destroy(rig.pool).unwrap();
    rig.only_finding(FindingKind::Leak);
    assert!(rig.try_alloc(MIB, s).is_err());
    rig.only_finding(FindingKind::Handle);
    rig.fill(a, 1, MIB, s);
    rig.free(a, s);
    assert!(rig.driver.memory_info(DEVICE).unwrap().free_bytes < 64 << 20);
    rig.sync(s);
    assert_eq!(rig.driver.memory_info(DEVICE).unwrap().free_bytes, 64 << 20);
    rig.assert_silent();
}

#[test]
fn blocks_are_aligned_and_apart() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let sizes = [1, 255, 256, 257, 511, 513, 4096, 3 * MIB + 1];
        let blocks: Vec<_> = sizes.map(|size| (rig.alloc(size, s).0, size as u64)).into();
        for (i, &(a, a_len)) in blocks.iter().enumerate() {
            assert_eq!(a % 256, 0);
            assert!(blocks[..i].iter().all(|&(b, b_len)| a + a_len <= b || b + b_len <= a));
        }
    }
}

/// Half of the memory is free, in fragments: pages are joined to one range without a driver allocation (S0.15).
#[test]
fn scattered_pages_serve_a_large_block() {
    for seed in seeds() {
        let rig = tight(seed);
        rig.reuse(false, false, false);
        let s = rig.stream();
        let pieces: Vec<_> = (0..8).map(|_| rig.alloc(8 * MIB, s)).collect();
        pieces.iter().for_each(|&piece| rig.fill(piece, 3, 8 * MIB, s));
        pieces.iter().step_by(2).for_each(|&piece| rig.free(piece, s));
        let failed = rig.try_alloc(32 * MIB, s).unwrap_err();
        assert_eq!(failed.code, DriverCode::OUT_OF_MEMORY, "the device has not come to the frees");
        rig.sync(s);
        let large = rig.alloc(32 * MIB, s);
        rig.fill(large, 4, 32 * MIB, s);
        assert_eq!(rig.pool_attribute(PoolAttribute::ReservedCurrent), 64 << 20);
        assert_eq!(rig.pool_attribute(PoolAttribute::ReservedHigh), 64 << 20);
        for &piece in pieces.iter().skip(1).step_by(2) {
            assert_eq!(rig.fetch(piece, 64, s), [3; 64], "what is live stays where it is");
            assert!(piece.0 + 8 * MIB as u64 <= large.0 || large.0 + 32 * MIB as u64 <= piece.0);
            rig.free(piece, s);
        }
        rig.free(large, s);
        rig.sync(s);
        rig.driver.pool_trim(rig.pool, 0).unwrap();
        assert_eq!(rig.driver.memory_info(DEVICE).unwrap().free_bytes, 64 << 20);
        rig.assert_silent();
    }
}

/// The number of free bytes does not suffice: half of every page is free, but no whole page.
#[test]
fn fragments_smaller_than_a_page_do_not_add_up() {
    for seed in seeds() {
        let rig = tight(seed);
        let s = rig.stream();
        let pieces: Vec<_> = (0..64).map(|_| rig.alloc(MIB, s)).collect();
        pieces.iter().step_by(2).for_each(|&piece| rig.free(piece, s));
        rig.sync(s);
        assert_eq!(rig.pool_attribute(PoolAttribute::UsedCurrent), 32 << 20);
        assert_eq!(rig.try_alloc(2 * MIB, s).unwrap_err().code, DriverCode::OUT_OF_MEMORY);
        assert!(rig.try_alloc(MIB, s).is_ok());
    }
}

#[test]
fn a_largest_size_counts_pages_that_moved_once() {
    let rig = tight(2);
    let s = rig.stream();
    let properties = PoolProperties { max_bytes: Some(8 << 20), ..PoolProperties::on(DEVICE) };
    let pool = rig.driver.pool_create(&properties).unwrap();
    rig.driver.pool_set_attribute(pool, PoolAttribute::ReleaseThreshold, u64::MAX).unwrap();
    let alloc = |n: usize| rig.driver.pool_alloc(pool, NonZeroUsize::new(n * MIB).unwrap(), s, Location::caller());
    let pieces: Vec<_> = (0..4).map(|_| alloc(2).unwrap()).collect();
    rig.free(pieces[0], s);
    rig.free(pieces[2], s);
    rig.sync(s);
    assert_eq!(alloc(6).unwrap_err().code, DriverCode::OUT_OF_MEMORY);
    let large = alloc(4).unwrap();
    assert_eq!(rig.driver.pool_attribute(pool, PoolAttribute::ReservedHigh).unwrap(), 8 << 20);
    for ptr in [large, pieces[1], pieces[3]] {
        rig.free(ptr, s);
    }
    rig.sync(s);
    rig.driver.pool_destroy(pool).unwrap();
    assert_eq!(rig.driver.memory_info(DEVICE).unwrap().free_bytes, 64 << 20);
    rig.assert_silent();
}

#[test]
fn pools_of_one_device_do_not_mix() {
    for seed in seeds() {
        let rig = Rig::with(SimOptions { seed, memory_bytes: 64 << 20, ..SimOptions::default() });
        let s = rig.stream();
        let other = rig.driver.pool_create(&PoolProperties::on(DEVICE)).unwrap();
        let of = |pool, attribute| rig.driver.pool_attribute(pool, attribute).unwrap();
        rig.driver.pool_set_attribute(other, PoolAttribute::ReuseAllowOpportunistic, 0).unwrap();
        assert_eq!(of(rig.pool, PoolAttribute::ReuseAllowOpportunistic), 1);
        assert_eq!(
            (of(other, PoolAttribute::ReleaseThreshold), of(rig.pool, PoolAttribute::ReleaseThreshold)),
            (0, u64::MAX)
        );
        let a = rig.alloc(40 * MIB, s);
        rig.free(a, s);
        rig.sync(s);
        let bytes = NonZeroUsize::new(40 * MIB).unwrap();
        let failed = rig.driver.pool_alloc(other, bytes, s, Location::caller()).unwrap_err();
        assert_eq!(failed.code, DriverCode::OUT_OF_MEMORY, "what one pool keeps, the other has not");
        rig.driver.pool_trim(other, 0).unwrap();
        assert_eq!(of(rig.pool, PoolAttribute::ReservedCurrent), 40 << 20);
        rig.driver.pool_trim(rig.pool, 0).unwrap();
        let b = rig.driver.pool_alloc(other, bytes, s, Location::caller()).unwrap();
        assert_eq!((of(other, PoolAttribute::UsedCurrent), of(rig.pool, PoolAttribute::UsedCurrent)), (40 << 20, 0));
        rig.driver.pool_set_attribute(rig.pool, PoolAttribute::UsedHigh, 0).unwrap();
        assert_eq!(of(other, PoolAttribute::UsedHigh), 40 << 20);
        rig.free(b, s);
        rig.sync(s);
        rig.driver.pool_destroy(other).unwrap();
        rig.assert_silent();
    }
}

#[test]
fn attributes_take_only_their_own_values() {
    let rig = tight(0);
    use PoolAttribute as A;
    for (attribute, value) in [
        (A::ReuseFollowEventDependencies, 2),
        (A::ReuseAllowOpportunistic, u64::MAX),
        (A::ReuseAllowInternalDependencies, 3),
        (A::ReservedCurrent, 0),
        (A::UsedCurrent, 0),
        (A::ReservedHigh, 1),
        (A::UsedHigh, 1),
    ] {
        let error = rig.driver.pool_set_attribute(rig.pool, attribute, value).unwrap_err();
        assert_eq!(error.code, DriverCode::INVALID_VALUE, "{attribute:?} {value}");
    }
}

/// A wait inserted by an internal dependency enables the reuse: without it the same calls fail.
#[test]
fn internal_dependencies_are_the_last_resort() {
    for seed in seeds() {
        let rig = tight(seed);
        rig.reuse(false, false, true);
        let (s, t) = (rig.stream(), rig.stream());
        let a = rig.alloc(8 * MIB, s);
        rig.free(a, s);
        // Memory suffices: no stream waits for another.
        let b = rig.alloc(8 * MIB, t);
        assert_ne!(a, b);
        // Memory does not suffice: t waits for s.
        let c = rig.alloc(32 * MIB, s);
        rig.free(c, s);
        let d = rig.alloc(30 * MIB, t);
        assert!((c.0..c.0 + 32 * MIB as u64).contains(&d.0), "{c:?} serves {d:?}");
        rig.fill(d, 1, 64, t);
        assert_eq!(rig.fetch(d, 64, t), [1; 64]);
        rig.assert_silent();
    }
}

#[test]
fn a_lost_device_refuses_what_its_pools_are_asked() {
    let rig = tight(0);
    let s = rig.stream();
    let a = rig.alloc(MIB, s);
    let default = rig.driver.device_default_pool(DEVICE).unwrap();
    rig.driver.lose_device(DEVICE);
    let lost = DriverCode::ECC_UNCORRECTABLE;
    assert_eq!(rig.try_alloc(MIB, s).unwrap_err().code, lost);
    assert_eq!(rig.driver.free_async(a, s, Location::caller()).unwrap_err().code, lost);
    assert_eq!(rig.driver.pool_trim(rig.pool, 0).unwrap_err().code, lost);
    assert_eq!(rig.driver.pool_attribute(default, PoolAttribute::UsedCurrent).unwrap_err().code, lost);
    assert_eq!(rig.driver.device_current_pool(DEVICE).unwrap_err().code, lost);
    assert_eq!(rig.driver.pool_create(&PoolProperties::on(DEVICE)).unwrap_err().code, lost);
    assert_eq!(rig.findings(), []);
}
