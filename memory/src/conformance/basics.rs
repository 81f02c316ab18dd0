//! What this crate promises of itself: bytes arrive, results are awaited, what cannot be is refused.
//!
//!   upload ─► hand over ─► download ─► the same bytes

use super::rig::Outcome;
use super::{Claim, Over, Rig};
use crate::checks::{CheckError, block_on, same};
use crate::{ByteSize, DeviceBuffer, HostKind, Waited};

pub(super) const CLAIMS: &[Claim] = &[
    Claim::new("memory/copies", &[], "bytes go up and come home, whatever their number", copies).over(Over::Driver),
    Claim::new("memory/pieces", &[], "pinned memory is copied in pieces, each to its place", pieces).over(Over::Driver),
    Claim::new("memory/zeroed", &[], "a zeroed buffer is zero to the end of its padding", zeroed),
    Claim::new("memory/hand_over", &["S1.10"], "a buffer handed from stream to stream keeps its bytes", hand_over),
    Claim::new("memory/readers", &["S0.8"], "a write waits for the readers on other streams", readers),
    Claim::new("memory/reuse", &[], "memory freed on one stream and reused on another is not mixed up", reuse),
    Claim::new("memory/pool", &[], "the pool keeps its memory, counts it, and gives it back when told", pool)
        .over(Over::Driver),
    Claim::new("memory/limit", &["S0.6"], "too large an allocation is refused, and the next one works", limit),
    Claim::new("memory/events", &[], "events pass in order, and a wait that is implied costs nothing", events)
        .over(Over::Driver),
    Claim::new("memory/pending", &[], "results are awaited without blocking, in any order", pending).over(Over::Driver),
    Claim::new("memory/modules", &[], "PTX is loaded, and text that is not PTX is refused with a reason", modules)
        .over(Over::Driver),
];

/// Bytes that differ from place to place and from round to round.
fn pattern(round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ round.wrapping_mul(97)) as u8).collect()
}

fn copies(rig: &Rig) -> Outcome {
    for (round, len) in [0, 1, 3, 255, 256, 257, 4096, 65_537, 3 << 20].into_iter().enumerate() {
        let (up, down) = (&rig.base.streams[round % 4], &rig.base.streams[(round + 1) % 4]);
        let buffer = rig.base.upload(&pattern(round, len), up)?;
        same(&format!("what came home of {len} bytes"), rig.base.download(&buffer, down)?, pattern(round, len))?;
    }
    Ok(())
}

fn pieces(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let bytes = pattern(1, 10_000);
    let buffer = DeviceBuffer::new(bytes.len(), on, &rig.base.pool)?;
    let mut staging = rig.base.pinned.take_now(HostKind::Upload, bytes.len())?;
    staging.write()?.copy_from_slice(&bytes);
    for range in [7_000..10_000, 0..1, 1..4_000, 4_000..7_000] {
        staging.enqueue_to_device(range.clone(), &buffer.view(range)?, on)?;
    }
    staging.idle()?.wait()?;
    let mut home = rig.base.pinned.take_now(HostKind::Download, bytes.len())?;
    for range in [5_000..10_000, 0..5_000] {
        home.enqueue_to_host(range.clone(), &buffer.view(range)?, &rig.base.streams[1])?;
    }
    let home = home.idle()?.wait()?;
    same("what came home in pieces", home.read()?.to_vec(), bytes)?;
    Ok(())
}

fn zeroed(rig: &Rig) -> Outcome {
    for len in [1, 100, 256, 1_000_001] {
        // Dirty memory first, so that zeros are written and not found.
        drop(rig.base.upload(&vec![0xa5; len], &rig.base.streams[0])?);
        let buffer = DeviceBuffer::zeroed(len, &rig.base.streams[0], &rig.base.pool)?;
        let padded = buffer.padded();
        same("a zeroed buffer's padded length", padded.len() % 256, 0)?;
        let bytes = rig.base.download(&padded, &rig.base.streams[1])?;
        same("the place of a byte that is not zero", bytes.iter().position(|byte| *byte != 0), None)?;
    }
    Ok(())
}

fn hand_over(rig: &Rig) -> Outcome {
    for round in 0..8 {
        let len = 100_003 + round;
        let mut buffer = rig.base.upload(&pattern(round, len), &rig.base.streams[round % 4])?;
        for step in 1..7 {
            // Each step reads on a stream of its own what another stream has written, and frees it.
            let on = &rig.base.streams[(round + step) % 4];
            let next = DeviceBuffer::new(len, on, &rig.base.pool)?;
            buffer.copy_to(&next, on)?;
            buffer = next;
        }
        same(
            "what was handed over",
            rig.base.download(&buffer, &rig.base.streams[(round + 3) % 4])?,
            pattern(round, len),
        )?;
    }
    Ok(())
}

fn readers(rig: &Rig) -> Outcome {
    let len = 2 << 20;
    for round in 0..4 {
        let [writer, first, second, last] = &rig.base.streams;
        let buffer = rig.base.upload(&pattern(round, len), writer)?;
        let copies = [first, second].map(|on| {
            let copy = DeviceBuffer::new(len, on, &rig.base.pool)?;
            buffer.copy_to(&copy, on).map(|()| copy)
        });
        buffer.fill(0xee, last)?;
        for copy in copies {
            same("what a reader saw", rig.base.download(&copy?.view(0..len)?, first)?, pattern(round, len))?;
        }
        same("what the writer left", rig.base.download(&buffer, second)?, vec![0xee; len])?;
    }
    Ok(())
}

fn reuse(rig: &Rig) -> Outcome {
    let mut results = Vec::new();
    for round in 0..40 {
        let on = &rig.base.streams[round % 4];
        let buffer = DeviceBuffer::new(65_536, on, &rig.base.pool)?;
        buffer.fill(round as u8, on)?;
        let copy = DeviceBuffer::new(65_536, &rig.base.streams[(round + 1) % 4], &rig.base.pool)?;
        buffer.copy_to(&copy, &rig.base.streams[(round + 1) % 4])?;
        drop(buffer);
        results.push((round, copy.download_vec(&rig.base.streams[(round + 2) % 4], &rig.base.pinned)?));
    }
    for (round, result) in results {
        let bytes = result.wait()?;
        same(&format!("a foreign byte of round {round}"), bytes.iter().find(|byte| **byte != round as u8), None)?;
    }
    Ok(())
}

fn pool(rig: &Rig) -> Outcome {
    let attributes = rig.base.pool.attributes()?;
    same("the release threshold", attributes.release_threshold, ByteSize::MAX)?;
    same("reuse along events", attributes.reuse.follow_event_dependencies, true)?;
    same("reuse with dependencies of the driver's own", attributes.reuse.internal_dependencies, false)?;
    let buffer = rig.base.upload(&pattern(0, 1 << 20), &rig.base.streams[0])?;
    same("used bytes beside one buffer", rig.base.pool.used_bytes() >= ByteSize::mib(1), true)?;
    drop(buffer);
    rig.base.device.synchronize()?;
    same("memory that is kept after a free", rig.base.pool.attributes()?.reserved_current >= ByteSize::mib(1), true)?;
    rig.base.pool.trim_to(ByteSize::ZERO)?;
    same("memory that is kept after a trim", rig.base.pool.attributes()?.reserved_current, ByteSize::ZERO)?;
    Ok(())
}

fn limit(rig: &Rig) -> Outcome {
    let refused = DeviceBuffer::new(257 << 20, &rig.base.streams[0], &rig.base.pool);
    same("an allocation beyond the limit that is out of memory", refused.is_err_and(|e| e.is_out_of_memory()), true)?;
    let buffer = rig.base.upload(&pattern(3, 1000), &rig.base.streams[0])?;
    same("a buffer after the refusal", rig.base.download(&buffer, &rig.base.streams[0])?, pattern(3, 1000))?;
    Ok(())
}

fn events(rig: &Rig) -> Outcome {
    let [first, second, third, _] = &rig.base.streams;
    let buffer = DeviceBuffer::new(1 << 20, first, &rig.base.pool)?;
    buffer.fill(1, first)?;
    let filled = first.position();
    let earlier = first.record()?;
    same("the first wait for other work", second.wait_for(filled)?, Waited::Inserted)?;
    same("the same wait again", second.wait_for(filled)?, Waited::Elided)?;
    buffer.fill(2, second)?;
    // Waiting for the second stream implies the first.
    third.wait_for(second.position())?;
    same("a wait that another one implies", third.wait_for(filled)?, Waited::Elided)?;
    let later = second.record()?;
    later.synchronize()?;
    same("an event that was waited for", later.query()?, true)?;
    same("an event before it in order", earlier.query()?, true)?;
    Ok(())
}

fn pending(rig: &Rig) -> Outcome {
    let mut results = Vec::new();
    for round in 0..32 {
        let on = &rig.base.streams[round % 4];
        let buffer = rig.base.upload(&pattern(round, 1_000 + round), on)?;
        results.push(buffer.download_vec(on, &rig.base.pinned)?.map(move |bytes| (round, bytes)));
    }
    // The last first: none depends on the order in which they are asked for.
    for result in results.into_iter().rev() {
        let (round, bytes) = block_on(result)?;
        same("an awaited result", bytes, pattern(round, 1_000 + round))?;
    }
    block_on(rig.base.streams[0].record()?.completed())?;
    Ok(())
}

fn modules(rig: &Rig) -> Outcome {
    const NOTHING: &str =
        ".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry nothing(.param .u64 unused)\n{\n    ret;\n}\n";
    let module = rig.base.device.load_module(NOTHING)?;
    let kernel = module.kernel("nothing")?;
    let attributes = kernel.attributes()?;
    same("a kernel that may run in blocks of 32", attributes.max_threads_per_block >= 32, true)?;
    same("a kernel that is not there", module.kernel("something").is_err(), true)?;
    match rig.base.device.load_module("this is no PTX") {
        Ok(_) => Err(CheckError::Wrong("text that is no PTX was loaded".into())),
        Err(error) if error.is_device_lost() => Err(error.into()),
        Err(_) => Ok(()),
    }
}
