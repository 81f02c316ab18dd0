//! One device's pool in the hands of another device.
//!
//!   owner  pool: earlier buffer, later buffer ◄── peer_access(&other)?.enable()? ── checks first, sets once, stays
//!   other  ──────────────────── fills both
//!
//! Two        devices are needed; where they cannot reach each other, that is what must be said.

use std::num::NonZeroUsize;
use std::panic::Location;

use super::rig::{Outcome, refused};
use super::{Claim, Needs, Over, Rig};
use crate::checks::{CheckError, same};
use crate::driver::{Access, DriverCode, PoolAccess, PoolProperties};
use crate::error::MemoryError;
use crate::stream::Stream;
use crate::{ByteSize, DeviceBuffer, MemoryPool};

pub(super) const CLAIMS: &[Claim] = &[
    Claim::new(
        "peers/own_device",
        &["S1.20"],
        "a pool's own device has access from the beginning, and cannot be shut out",
        own_device,
    )
    .over(Over::Driver),
    Claim::new(
        "peers/closed_until_opened",
        &["S1.19", "S1.20", "S3.22"],
        "another device has no access to a pool until it is given, and its use is refused",
        closed_until_opened,
    )
    .over(Over::Driver)
    .needs(Needs::TwoDevices),
    Claim::new(
        "peers/whole_pool",
        &["S1.19", "S1.21", "S1.22", "S3.22"],
        "access opens all of a pool to a device that can reach it: what was allocated before, and what comes after",
        whole_pool,
    )
    .over(Over::Driver)
    .needs(Needs::TwoDevices),
    Claim::new(
        "peers/stays_open",
        &["S1.24"],
        "access that was given stays through trims and synchronisations, and giving it again asks the driver for nothing",
        stays_open,
    )
    .over(Over::Driver)
    .needs(Needs::TwoDevices),
    Claim::new(
        "peers/copies",
        &[],
        "bytes are copied between devices without access, in the order of both",
        copies,
    )
    .over(Over::Driver)
    .needs(Needs::TwoDevices),
    Claim::new(
        "peers/unreachable",
        &["S1.21", "S1.23", "S1.25"],
        "a device that cannot reach the memory is refused before the driver is asked, and an empty pool stays whole",
        unreachable,
    )
    .over(Over::Driver)
    .needs(Needs::DevicesApart),
    Claim::new(
        "peers/trap",
        &["S1.23"],
        "the bare driver may take an impossible peer on an empty pool and fail the next allocation",
        trap,
    )
    .over(Over::Driver)
    .needs(Needs::DevicesApart)
    .only_simulated("what the driver does with such a peer is not documented for all versions"),
];

const LEN: usize = 100_000;

fn foreign(bytes: Vec<u8>, byte: u8) -> Outcome {
    same("a foreign byte", bytes.into_iter().find(|&found| found != byte), None)
}

fn own_device(rig: &Rig) -> Outcome {
    let (driver, id) = (rig.driver(), rig.base.device.id());
    let pool = rig.call(driver.pool_create(&PoolProperties::on(id)))?;
    same("its own device's access", rig.call(driver.pool_access(pool, id))?, PoolAccess::ReadWrite)?;
    let shut = rig.base.device.check(driver.pool_set_access(pool, id, false));
    refused("shutting a pool's own device out", &rig.base.device, shut)?;
    same("its own device's access after that", rig.call(driver.pool_access(pool, id))?, PoolAccess::ReadWrite)?;
    rig.call(driver.pool_destroy(pool))?;
    let access = rig.base.pool.peer_access(&rig.base.device)?;
    same("access of the pool's own device", (access.is_supported()?, access.is_enabled()), (true, true))?;
    Ok(access.enable()?)
}

fn closed_until_opened(rig: &Rig) -> Outcome {
    let (other, on) = (rig.other()?, &rig.base.streams[0]);
    let far = Stream::new(other)?;
    let buffer = DeviceBuffer::new(LEN, on, &rig.base.pool)?;
    buffer.fill(1, on)?;
    same("access before it is given", rig.base.pool.peer_access(other)?.is_enabled(), false)?;
    match buffer.use_on_peer(Access::Write, on, &far) {
        Err(MemoryError::NoPeerAccess { .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(CheckError::Wrong("a use by another device is not refused".into())),
    }
    let driver = rig.driver();
    let pool = rig.call(driver.pool_create(&PoolProperties::on(rig.base.device.id())))?;
    same("the driver's word on a new pool", rig.call(driver.pool_access(pool, other.id()))?, PoolAccess::None)?;
    rig.call(driver.pool_destroy(pool))?;
    foreign(rig.base.download(&buffer, on)?, 1)
}

fn whole_pool(rig: &Rig) -> Outcome {
    let (other, on) = (rig.other()?, &rig.base.streams[0]);
    let far = Stream::new(other)?;
    let access = rig.base.pool.peer_access(other)?;
    let earlier = DeviceBuffer::new(LEN, on, &rig.base.pool)?;
    earlier.fill(1, on)?;
    if !access.is_supported()? {
        return refused("access of a device that cannot have it", &rig.base.device, access.enable());
    }
    access.enable()?;
    same("access after it was given", access.is_enabled(), true)?;
    let later = DeviceBuffer::new(LEN, &rig.base.streams[1], &rig.base.pool)?;
    for (byte, buffer) in [(2, &earlier), (3, &later)] {
        let there = buffer.use_on_peer(Access::Write, on, &far)?;
        there.fill(byte)?;
        there.hand_back()?;
        foreign(rig.base.download(buffer, &rig.base.streams[2])?, byte)?;
    }
    Ok(())
}

fn stays_open(rig: &Rig) -> Outcome {
    let (other, on) = (rig.other()?, &rig.base.streams[0]);
    let far = Stream::new(other)?;
    if !rig.base.pool.peer_access(other)?.is_supported()? {
        return Ok(());
    }
    rig.base.pool.peer_access(other)?.enable()?;
    for byte in 0..3 {
        let before = rig.base.device.driver_calls();
        rig.base.pool.peer_access(other)?.enable()?;
        same("calls of the driver for access that is there", rig.base.device.driver_calls() - before, 0)?;
        let buffer = DeviceBuffer::new(LEN, on, &rig.base.pool)?;
        let there = buffer.use_on_peer(Access::Write, on, &far)?;
        there.fill(byte)?;
        there.hand_back()?;
        foreign(rig.base.download(&buffer, on)?, byte)?;
        drop(buffer);
        rig.base.pool.trim_to(ByteSize::ZERO)?;
        same("access after a trim", rig.base.pool.peer_access(other)?.is_enabled(), true)?;
    }
    Ok(())
}

fn copies(rig: &Rig) -> Outcome {
    let (other, on) = (rig.other()?, &rig.base.streams[0]);
    let far = Stream::new(other)?;
    let far_pool = MemoryPool::builder(other).limit(ByteSize::mib(64)).build()?;
    for byte in 0..3 {
        let from = DeviceBuffer::new(LEN, on, &rig.base.pool)?;
        from.fill(byte, on)?;
        let to = DeviceBuffer::new(LEN, &far, &far_pool)?;
        from.copy_to_peer(on, &to, &far)?;
        from.fill(0xee, on)?;
        let home = DeviceBuffer::new(LEN, on, &rig.base.pool)?;
        to.copy_to_peer(&far, &home, on)?;
        foreign(rig.base.download(&home, &rig.base.streams[1])?, byte)?;
    }
    same("memory in use on the other device", far_pool.used_bytes(), ByteSize::ZERO)
}

fn unreachable(rig: &Rig) -> Outcome {
    let (other, on) = (rig.other()?, &rig.base.streams[0]);
    let access = rig.base.pool.peer_access(other)?;
    same("access that is supported", access.is_supported()?, false)?;
    match access.enable() {
        Err(error @ MemoryError::PeerUnsupported { .. }) => {
            let words = error.to_string();
            same(&format!("\"{words}\" names both devices and the rule"), words.contains("peer"), true)?;
        }
        Err(error) => return Err(error.into()),
        Ok(()) => return Err(CheckError::Wrong("an impossible peer is not refused".into())),
    }
    // The refused call left the empty pool unchanged: it still allocates.
    let buffer = DeviceBuffer::new(LEN, on, &rig.base.pool)?;
    buffer.fill(1, on)?;
    same("access afterwards", access.is_enabled(), false)?;
    foreign(rig.base.download(&buffer, on)?, 1)
}

fn trap(rig: &Rig) -> Outcome {
    let (driver, other, here) = (rig.driver(), rig.other()?, Location::caller());
    let len = NonZeroUsize::new(LEN).expect("not zero");
    let pool = rig.call(driver.pool_create(&PoolProperties::on(rig.base.device.id())))?;
    rig.call(driver.pool_set_access(pool, other.id(), true))?;
    let next = rig.base.streams[0].submit(|driver, on| driver.pool_alloc(pool, len, on, here));
    let code = next.err().and_then(|error| error.driver_code());
    same("the code of the next allocation", code, Some(DriverCode::INVALID_DEVICE))?;
    rig.call(driver.pool_destroy(pool))
}
