//! Buffers over the simulated device: the order they establish suffices, and every wait they insert is needed.

use super::sim_rig::seeds;
use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::{Driver, FindingKind};
use millpond_memory::{Device, DeviceBuffer, MemoryPool, PinnedPool, Stream};
use proptest::prelude::*;
use std::sync::Arc;

const BYTES: usize = 1024;
const PART: usize = 64;

struct World {
    driver: Arc<SimDriver>,
    device: Device,
    pool: MemoryPool,
    pinned: PinnedPool,
    streams: Vec<Stream>,
}

fn world(options: SimOptions, streams: usize) -> World {
    let driver = SimDriver::new(options);
    let device = Device::open(driver.clone(), 0).unwrap();
    World {
        pool: MemoryPool::builder(&device).build().unwrap(),
        pinned: PinnedPool::builder(&device).build(),
        streams: (0..streams).map(|_| Stream::new(&device).unwrap()).collect(),
        driver,
        device,
    }
}

/// Closes the device, and returns the findings.
fn close(world: World) -> Vec<String> {
    let World { driver, device, pool, pinned, streams } = world;
    drop((streams, pinned, pool, device));
    driver.take_findings().iter().map(ToString::to_string).collect()
}

#[derive(Debug, Clone)]
struct Op {
    stream: usize,
    inputs: Vec<prop::sample::Index>,
    /// Buffers dropped after the operator, even if the device still uses them.
    drops: Vec<prop::sample::Index>,
    /// Downloads its result at once, or leaves it on the device.
    download: bool,
}

fn op(streams: usize) -> impl Strategy<Value = Op> {
    let some = |most| proptest::collection::vec(any::<prop::sample::Index>(), 0..most);
    (0..streams, some(4), some(2), any::<bool>()).prop_map(|(stream, inputs, drops, download)| Op {
        stream,
        inputs,
        drops,
        download,
    })
}

fn graph() -> impl Strategy<Value = (usize, Vec<Op>, u64)> {
    (2usize..=8, any::<u64>())
        .prop_flat_map(|(streams, seed)| (Just(streams), proptest::collection::vec(op(streams), 4..30), Just(seed)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Operators on several streams that pass on buffers, read them concurrently and drop them early.
    #[test]
    fn operator_graphs_are_silent_and_right((streams, ops, seed) in graph()) {
        let world = world(SimOptions { seed, ..SimOptions::default() }, streams);
        let mut live: Vec<(Arc<DeviceBuffer>, Vec<u8>)> = Vec::new();
        let mut results = Vec::new();
        for (step, op) in ops.iter().enumerate() {
            let stream = &world.streams[op.stream];
            let out = Arc::new(DeviceBuffer::new(BYTES, stream, &world.pool).unwrap());
            let mut expected = vec![step as u8; BYTES];
            out.fill(step as u8, stream).unwrap();
            for (i, input) in op.inputs.iter().filter(|_| !live.is_empty()).enumerate() {
                let (input, bytes) = input.get(&live);
                let to = out.view(i * PART..(i + 1) * PART).unwrap();
                input.view(0..PART).unwrap().copy_to(&to, stream).unwrap();
                expected[i * PART..][..PART].copy_from_slice(&bytes[..PART]);
            }
            if op.download {
                results.push((out.download_vec(stream, &world.pinned).unwrap(), expected.clone()));
            }
            live.push((out, expected));
            for index in &op.drops {
                if !live.is_empty() {
                    live.swap_remove(index.index(live.len()));
                }
            }
        }
        for (result, expected) in results {
            prop_assert_eq!(result.wait().unwrap(), expected);
        }
        drop(live);
        prop_assert_eq!(close(world), Vec::<String>::new());
    }
}

/// Written on one stream, read on two, written again on a third, freed after all: four hand-overs, each with an
/// inserted wait.
fn diamond(options: SimOptions) -> (Vec<u8>, u64, Vec<String>) {
    let world = world(options, 4);
    let [a, b, c, d] = &world.streams[..] else { unreachable!("four streams were made") };
    let source = DeviceBuffer::new(BYTES, a, &world.pool).unwrap();
    source.fill(1, a).unwrap();
    let left = DeviceBuffer::new(BYTES, b, &world.pool).unwrap();
    let right = DeviceBuffer::new(BYTES, c, &world.pool).unwrap();
    source.copy_to(&left, b).unwrap();
    source.copy_to(&right, c).unwrap();
    source.fill(2, d).unwrap();
    let joined = DeviceBuffer::new(2 * BYTES, a, &world.pool).unwrap();
    left.copy_to(&joined.view(0..BYTES).unwrap(), a).unwrap();
    right.copy_to(&joined.view(BYTES..2 * BYTES).unwrap(), a).unwrap();
    drop((left, right, source));
    let result = joined.download_vec(a, &world.pinned).unwrap();
    drop(joined);
    // Waiting and closing join everything: all findings exist by then.
    let bytes = result.wait().unwrap();
    let waits = world.driver.counters().stream_waits;
    (bytes, waits, close(world))
}

#[test]
fn a_diamond_of_hand_overs_is_silent_and_each_of_its_waits_is_needed() {
    for seed in seeds() {
        let (bytes, waits, findings) = diamond(SimOptions { seed, ..SimOptions::default() });
        assert_eq!((bytes, findings), (vec![1; 2 * BYTES], Vec::new()));
        assert!(waits >= 6, "{waits} waits");
        for wait in 1..=waits {
            let (_, _, findings) = diamond(SimOptions { seed, ignore_wait: Some(wait), ..SimOptions::default() });
            assert!(!findings.is_empty(), "seed {seed}: nothing found without wait {wait} of {waits}");
        }
    }
}

#[test]
fn the_host_may_not_look_before_a_download_is_over() {
    for seed in seeds() {
        let world = world(SimOptions { seed, ..SimOptions::default() }, 1);
        let stream = &world.streams[0];
        let buffer = DeviceBuffer::new(BYTES, stream, &world.pool).unwrap();
        buffer.fill(5, stream).unwrap();
        let pending = buffer.download(stream, &world.pinned).unwrap();
        let bytes = pending.wait().unwrap();
        assert_eq!(bytes.read().unwrap()[..BYTES], [5; BYTES]);
        drop((bytes, buffer));
        assert_eq!(close(world), Vec::<String>::new());
    }
}

#[test]
fn a_buffer_that_is_forgotten_is_a_leak() {
    let world = world(SimOptions::default(), 1);
    let scope = world.driver.scope();
    let buffer = DeviceBuffer::zeroed(BYTES, &world.streams[0], &world.pool).unwrap();
    assert_eq!(world.driver.end_scope(scope), 1);
    let findings = world.driver.take_findings();
    assert_eq!(findings[0].kind, FindingKind::Leak);
    drop(buffer);
    let _ = world.driver.settle();
    assert_eq!(close(world), Vec::<String>::new());
}
