//! The stream-ordered pool of the simulated device: reuse, thresholds, trimming, limits.

use super::sim_rig::{DEVICE, Rig, seeds};
use millpond_memory::driver::sim::SimOptions;
use millpond_memory::driver::*;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::panic::Location;

const MIB: usize = 1 << 20;

/// A device on which one large buffer fits, and not two.
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
        // Somebody else's work lets the device run ahead, or not.
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

/// Streams, events and devices: each synchronisation retires frees and looks at the threshold (S1.45).
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

/// Allocate, use, free, synchronise, again and again: with a threshold the same memory serves every round (S0.18).
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
