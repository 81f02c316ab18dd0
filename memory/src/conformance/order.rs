//! Stream order: from which moment, on which stream and until when an address may be used.
//!
//!   A   allocate ─ event ───────────────────────────────
//!   B               └─ wait ─ use ─ event                     all of it queued; the host waits for nothing
//!   C                                └─ wait ─ free
//!
//! Edges      these claims make their order by hand, with one wait where one is needed: `every_edge_counts` says that a
//!            run with any of them missing must be noticed.

use std::num::NonZeroUsize;
use std::panic::Location;

use super::rig::{Outcome, allocate, fill, out_of_memory, read};
use super::{Claim, Needs, Over, Rig};
use crate::checks::{CheckError, same};
use crate::driver::{HostKind, HostSpan};
use crate::event::Event;
use crate::order::Waited;
use crate::stream::Stream;
use crate::{ByteSize, DeviceBuffer, DeviceMemoryResource, MemoryPool, ReleaseThreshold, ReusePolicy};

/// Bytes of a piece: small, for the simulated device looks at each.
const PIECE: usize = 100_000;

pub(super) const CLAIMS: &[Claim] = &[
    Claim::new(
        "order/one_stream",
        &["S0.6", "S0.7", "S1.7"],
        "on one stream, memory is used from its allocation to its free with no wait of any kind",
        one_stream,
    ),
    Claim::new(
        "order/refusal",
        &["S0.6"],
        "an allocation that cannot be is an error and no address, and leaves nothing behind",
        refusal,
    ),
    Claim::new(
        "order/event",
        &["S0.8"],
        "another stream uses memory once it waits for an event behind the allocation",
        event,
    )
    .every_edge_counts(),
    Claim::new(
        "order/host_sync",
        &["S0.9", "S1.40"],
        "once the host has waited past the allocation, every stream uses the memory, with no wait on the device",
        host_sync,
    ),
    Claim::new(
        "order/free_joins",
        &["S0.10"],
        "a free comes after every stream that used the memory: one joined by an event, one by the host",
        free_joins,
    )
    .every_edge_counts(),
    Claim::new(
        "order/three_streams",
        &["S0.11", "S1.10"],
        "one stream allocates, another uses, a third frees, in every arrangement, tied by events alone",
        three_streams,
    )
    .every_edge_counts(),
    Claim::new(
        "order/address_until_free",
        &["S1.7"],
        "bytes stay what they are until the free's turn comes, whatever is allocated meanwhile",
        address_until_free,
    ),
    Claim::new(
        "order/any_thread",
        &["S1.6"],
        "a thread that never spoke to the driver allocates and frees on the device of its stream",
        any_thread,
    ),
    Claim::new(
        "order/device_of_the_stream",
        &["S1.6"],
        "a thread that has just used another device still allocates on the device of its pool and stream",
        device_of_the_stream,
    )
    .over(Over::Driver)
    .needs(Needs::TwoDevices),
    Claim::new(
        "order/plain_memory_freed_in_order",
        &["S1.11"],
        "memory that was allocated without a stream may be freed in stream order, behind its uses",
        plain_memory_freed_in_order,
    )
    .over(Over::Driver),
    Claim::new(
        "order/pool_memory_freed_plainly",
        &["S1.12", "S1.13"],
        "memory of a pool may be freed without a stream once the host has waited: for stream, event or device, or by asking",
        pool_memory_freed_plainly,
    )
    .over(Over::Pools),
    Claim::new(
        "order/plain_free_does_not_wait",
        &["S1.12"],
        "a free without a stream of a pool's memory does not make the host wait for other work",
        plain_free_does_not_wait,
    )
    .over(Over::Pools)
    .only_simulated("whether a call waited shows only where nothing runs by itself"),
    Claim::new(
        "order/one_pool_or_many",
        &["S2.3"],
        "streams share one pool tied by events, or have one each: both keep their bytes apart",
        one_pool_or_many,
    ),
];

fn one_stream(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let before = rig.base.device.counters();
    let first = rig.allocate(PIECE, on)?;
    rig.fill(&first, 1, on)?;
    let second = rig.allocate(PIECE, on)?;
    rig.copy(&first, &second, on)?;
    let spent = rig.base.device.counters().since(&before);
    same("waits so far", (spent.host_waits, spent.waits_inserted), (0, 0))?;
    rig.free(first, on)?;
    let third = rig.allocate(PIECE, on)?;
    rig.fill(&third, 2, on)?;
    rig.expect("the copy", &second, 1, on)?;
    rig.expect("what came after", &third, 2, on)?;
    rig.free(second, on)?;
    rig.free(third, on)
}

fn refusal(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let used = || -> Outcome<ByteSize> { Ok(rig.base.pool.statistics()?.used) };
    let before = used()?;
    out_of_memory("an allocation of 64 TiB", rig.allocate(1 << 46, on))?;
    same("bytes in use after the refusal", used()?, before)?;
    let raw = rig.allocate(1000, on)?;
    rig.fill(&raw, 3, on)?;
    rig.expect("what was allocated after a refusal", &raw, 3, on)?;
    rig.free(raw, on)
}

fn event(rig: &Rig) -> Outcome {
    let [owner, user, ..] = &rig.base.streams;
    let raw = rig.allocate(PIECE, owner)?;
    rig.fill(&raw, 1, owner)?;
    let ready = owner.record()?;
    same("the wait for the event", user.wait_for(ready.position())?, Waited::Inserted)?;
    rig.fill(&raw, 2, user)?;
    rig.expect("what the other stream wrote", &raw, 2, user)?;
    rig.free(raw, user)
}

/// A way in which the host waits for a stream, or for an event behind its work.
type HostWait = fn(&Stream, Event) -> Outcome;

const HOST_WAITS: [(&str, HostWait); 5] = [
    ("a stream's synchronisation", |on, _| Ok(on.synchronize()?)),
    ("an event's synchronisation", |_, event| Ok(event.synchronize()?)),
    ("the device's synchronisation", |on, _| Ok(on.device().synchronize()?)),
    ("asking an event until it has passed", |_, event| {
        while !event.query()? {
            std::thread::yield_now();
        }
        Ok(())
    }),
    ("awaiting an event", |_, event| Ok(event.completed().wait()?)),
];

fn host_sync(rig: &Rig) -> Outcome {
    let [owner, others @ ..] = &rig.base.streams;
    for (what, wait) in HOST_WAITS {
        let raw = rig.allocate(PIECE, owner)?;
        rig.fill(&raw, 1, owner)?;
        let ready = owner.record()?;
        let position = ready.position();
        wait(owner, ready)?;
        for other in others {
            same(&format!("a wait after {what}"), other.wait_for(position)?, Waited::Elided)?;
            rig.expect(what, &raw, 1, other)?;
        }
        rig.free(raw, &others[0])?;
    }
    Ok(())
}

fn free_joins(rig: &Rig) -> Outcome {
    let [a, b, c, d] = &rig.base.streams;
    let raw = rig.allocate(PIECE, a)?;
    rig.fill(&raw, 7, a)?;
    let copies = [rig.allocate(PIECE, b)?, rig.allocate(PIECE, c)?];
    for (user, copy) in [b, c].into_iter().zip(&copies) {
        user.wait_for(a.position())?;
        rig.copy(&raw, copy, user)?;
    }
    d.wait_for(b.position())?;
    c.synchronize()?;
    rig.free(raw, d)?;
    // Who is given the bytes next on D comes after B and C, too.
    let next = rig.allocate(PIECE, d)?;
    rig.fill(&next, 8, d)?;
    let [of_b, of_c] = copies;
    rig.expect("what B copied", &of_b, 7, b)?;
    rig.expect("what C copied", &of_c, 7, c)?;
    rig.free(of_b, b)?;
    rig.free(of_c, c)?;
    rig.free(next, d)
}

fn three_streams(rig: &Rig) -> Outcome {
    let [a, b, c, reader] = &rig.base.streams;
    for (allocates, uses, frees) in [(a, b, c), (b, c, a), (c, a, b), (a, c, b), (b, a, c), (c, b, a)] {
        let raw = rig.allocate(PIECE, allocates)?;
        rig.fill(&raw, 1, allocates)?;
        let ready = allocates.record()?;
        uses.wait_for(ready.position())?;
        let copy = rig.allocate(PIECE, uses)?;
        rig.copy(&raw, &copy, uses)?;
        let done = uses.record()?;
        frees.wait_for(done.position())?;
        rig.free(raw, frees)?;
        let next = rig.allocate(PIECE, frees)?;
        rig.fill(&next, 2, frees)?;
        reader.wait_for(done.position())?;
        rig.expect("what was used before the free", &copy, 1, reader)?;
        rig.free(copy, reader)?;
        rig.free(next, frees)?;
    }
    Ok(())
}

fn address_until_free(rig: &Rig) -> Outcome {
    let [on, other, ..] = &rig.base.streams;
    let mut kept = Vec::new();
    for round in 0..6 {
        let raw = rig.allocate(300_000, on)?;
        rig.fill(&raw, round, on)?;
        let copy = rig.allocate(300_000, on)?;
        rig.copy(&raw, &copy, on)?;
        rig.free(raw, on)?;
        // What others are given meanwhile may be the freed bytes, and never the copies.
        let busy = rig.allocate(300_000, other)?;
        rig.fill(&busy, 0xee, other)?;
        rig.free(busy, other)?;
        kept.push((round, copy));
    }
    for (round, copy) in kept {
        rig.expect("a copy", &copy, round, on)?;
        rig.free(copy, on)?;
    }
    Ok(())
}

fn any_thread(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let raw = std::thread::scope(|scope| {
        let there = scope.spawn(|| -> Outcome<_> {
            let raw = rig.allocate(PIECE, on)?;
            rig.fill(&raw, 5, on)?;
            Ok(raw)
        });
        there.join().unwrap_or_else(|_| Err(CheckError::Wrong("the thread ended early".into())))
    })?;
    rig.expect("what another thread wrote", &raw, 5, on)?;
    rig.free(raw, on)
}

fn device_of_the_stream(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let far = Stream::new(rig.other()?)?;
    let far_pool = MemoryPool::builder(rig.other()?).limit(ByteSize::mib(64)).build()?;
    for round in 0..4 {
        // The thread's last call was for the other device.
        let there = DeviceBuffer::zeroed(PIECE, &far, &far_pool)?;
        let here = rig.allocate(PIECE, on)?;
        there.fill(round, &far)?;
        rig.fill(&here, round + 100, on)?;
        there.fill(round + 1, &far)?;
        same("memory of the pool's own device", rig.base.pool.statistics()?.used >= ByteSize::from(PIECE), true)?;
        rig.expect("memory of the pool's own device", &here, round + 100, on)?;
        drop(there);
        rig.free(here, on)?;
    }
    same("memory in use on the other device", far_pool.used_bytes(), ByteSize::ZERO)
}

fn plain_memory_freed_in_order(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let here = Location::caller();
    let len = NonZeroUsize::new(3 * PIECE).expect("not zero");
    let free = || -> Outcome<u64> { Ok(rig.base.device.memory_info()?.free_bytes) };
    let before = free()?;
    for round in 0..3 {
        let ptr = rig.call(rig.driver().alloc_sync(rig.base.device.id(), len, here))?;
        fill(ptr, len.get(), round, a)?;
        b.wait_for(a.position())?;
        same("a foreign byte", read(ptr, len, b)?.into_iter().find(|&byte| byte != round), None)?;
        fill(ptr, len.get(), 9, b)?;
        b.submit(|driver, on| driver.free_async(ptr, on, here))?;
    }
    rig.base.device.synchronize()?;
    if rig.is_simulated() {
        same("free bytes of the device", free()?, before)?;
    }
    Ok(())
}

fn pool_memory_freed_plainly(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let own = rig.own_pool(None, ReleaseThreshold::Max, ReusePolicy::default())?;
    for (what, wait) in HOST_WAITS {
        let raw = allocate(&own, PIECE, a)?;
        fill(raw.ptr(), PIECE, 1, a)?;
        b.wait_for(a.position())?;
        fill(raw.ptr(), PIECE, 2, b)?;
        wait(b, b.record()?)?;
        rig.call(rig.driver().free_sync(raw.ptr(), Location::caller()))?;
        // The driver's count of bytes in use may leave plain frees out (580 does); that none is held shows in a trim.
        rig.base.device.synchronize()?;
        own.trim(ByteSize::ZERO)?;
        same(&format!("bytes held after {what} and a plain free"), own.attributes()?.reserved_current, ByteSize::ZERO)?;
    }
    Ok(())
}

const WORD: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");

fn plain_free_does_not_wait(rig: &Rig) -> Outcome {
    let [a, b, ..] = &rig.base.streams;
    let own = rig.own_pool(None, ReleaseThreshold::Max, ReusePolicy::default())?;
    let raw = allocate(&own, PIECE, a)?;
    a.synchronize()?;
    let here = Location::caller();
    let block = rig.call(rig.driver().host_alloc(rig.base.device.id(), WORD, HostKind::Download, here))?;
    block.claim_words()?;
    b.write_word(&HostSpan::new(&block, 0, WORD.get())?, 1)?;
    rig.call(rig.driver().free_sync(raw.ptr(), here))?;
    same("the word that another stream stores in time", block.load_word(0)?, 0)?;
    rig.base.device.synchronize()?;
    same("the word that another stream has stored", block.load_word(0)?, 1)?;
    rig.call(rig.driver().host_free(&block, here))
}

fn one_pool_or_many(rig: &Rig) -> Outcome {
    let own = || MemoryPool::builder(&rig.base.device).limit(ByteSize::mib(64)).strategy(rig.strategy()).build();
    let each = [own()?, own()?, own()?, own()?];
    let shared = [(); 4].map(|()| rig.base.pool.clone());
    for pools in [shared, each] {
        let mut buffers = Vec::new();
        for round in 0..5u8 {
            for (index, (on, pool)) in rig.base.streams.iter().zip(&pools).enumerate() {
                let buffer = DeviceBuffer::new(100_000, on, pool)?;
                buffer.fill(round * 4 + index as u8, on)?;
                let next = &rig.base.streams[(index + 1) % 4];
                let copy = DeviceBuffer::new(100_000, next, &pools[(index + 1) % 4])?;
                buffer.copy_to(&copy, next)?;
                buffers.push((round * 4 + index as u8, copy));
            }
        }
        for (byte, copy) in buffers {
            let bytes = rig.base.download(&copy, &rig.base.streams[usize::from(byte) % 4])?;
            same("a foreign byte", bytes.into_iter().find(|&found| found != byte), None)?;
        }
    }
    Ok(())
}
