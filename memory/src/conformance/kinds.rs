//! Which pools a device has, what they are made with, and what the driver tells of an address.
//!
//!   default pool ─ is current until another is set ─► an allocation that names no pool
//!   explicit pools: a place, a maximum, a handle type                  address ─► its device, its pool, no context
//!
//! Process    the current pool is the whole process's: a claim that sets one puts the old one back.

use std::num::NonZeroUsize;
use std::panic::Location;

use super::rig::{Outcome, fill, read, refused};
use super::{Claim, Needs, Over, Rig};
use crate::checks::{CheckError, same};
use crate::driver::{
    CaptureMode, DeviceAttribute, DeviceId, DevicePtr, HandleTypes, MemoryType, PoolAccess, PoolHandle, PoolProperties,
    StreamPriority,
};
use crate::stream::Stream;
use crate::{DeviceBuffer, MemoryPool, Strategy};

pub(super) const CLAIMS: &[Claim] = &[
    Claim::new(
        "kinds/support",
        &["S1.35"],
        "the driver's version comes first, then pools and handle types are asked for, and what is said holds",
        support,
    )
    .over(Over::Driver),
    Claim::new(
        "kinds/current_pool",
        &["S0.14"],
        "the default pool is current until another is set, and allocations that name no pool take the current one",
        current_pool,
    )
    .over(Over::Driver),
    Claim::new(
        "kinds/current_pool_is_local",
        &["S1.15"],
        "an allocation that names no pool lies on its stream's device, whose current pool is one of its own",
        current_pool_is_local,
    )
    .over(Over::Driver),
    Claim::new(
        "kinds/current_pool_of_another_device",
        &["S1.15"],
        "a pool of another device cannot be made current",
        current_pool_of_another_device,
    )
    .over(Over::Driver)
    .needs(Needs::TwoDevices),
    Claim::new(
        "kinds/default_pool",
        &["S1.16"],
        "the default pool is there, open to its device, always the same, and neither destroyed nor exported",
        default_pool,
    )
    .over(Over::Driver),
    Claim::new(
        "kinds/explicit_pool",
        &["S1.17", "S1.18"],
        "an explicit pool lies where it was asked to, whether it is made for export or not",
        explicit_pool,
    )
    .over(Over::Driver),
    Claim::new(
        "kinds/impossible_pools",
        &["S1.17", "S1.18"],
        "a pool on a device that is not there, or on a host node where that is not supported, is refused",
        impossible_pools,
    )
    .over(Over::Driver),
    Claim::new(
        "kinds/pointer_attributes",
        &["S1.49"],
        "an address of a pool has no context; its device, its pool and its extent are told",
        pointer_attributes,
    )
    .over(Over::Driver),
    Claim::new(
        "kinds/memset_in_a_graph",
        &["S1.48"],
        "a memset of a pool's memory is captured and replayed; a node made by hand may not name such memory",
        memset_in_a_graph,
    )
    .over(Over::Driver),
];

const PIECE: NonZeroUsize = NonZeroUsize::new(100_000).expect("not zero");

fn support(rig: &Rig) -> Outcome {
    let ask = |attribute| rig.call(rig.driver().attribute(rig.base.device.id(), attribute));
    // From 11.2 and 11.3 on the two questions are known; this crate wants a newer driver.
    same("a driver that knows both questions", rig.driver().version().0 >= 11030, true)?;
    let pools = ask(DeviceAttribute::MemoryPoolsSupported)?;
    same("pools that are supported, as the limits say", pools == 1, rig.base.device.limits().memory_pools)?;
    let types = HandleTypes(ask(DeviceAttribute::MemoryPoolSupportedHandleTypes)?.max(0) as u32);
    let properties = PoolProperties { handle_types: HandleTypes::POSIX_FD, ..PoolProperties::on(rig.base.device.id()) };
    let made = rig.driver().pool_create(&properties);
    same("a pool with a descriptor, as the device said", made.is_ok(), types.contains(HandleTypes::POSIX_FD))?;
    made.map_or(Ok(()), |pool| rig.call(rig.driver().pool_destroy(pool)))
}

fn pool_of(rig: &Rig, ptr: DevicePtr) -> Outcome<Option<PoolHandle>> {
    Ok(rig.call(rig.driver().pointer_attributes(ptr))?.pool)
}

/// Allocates from the current pool, looks where it is from, and frees it.
fn from_current(rig: &Rig, on: &Stream) -> Outcome<Option<PoolHandle>> {
    let here = Location::caller();
    let (ptr, _) = on.submit(|driver, on| driver.alloc_current(PIECE, on, here))?;
    fill(ptr, PIECE.get(), 4, on)?;
    let pool = pool_of(rig, ptr);
    let bytes = read(ptr, PIECE, on)?;
    on.submit(|driver, on| driver.free_async(ptr, on, here))?;
    same("a foreign byte", bytes.into_iter().find(|&byte| byte != 4), None)?;
    pool
}

fn current_pool(rig: &Rig) -> Outcome {
    let (driver, id, on) = (rig.driver(), rig.base.device.id(), &rig.base.streams[0]);
    let before = rig.call(driver.device_current_pool(id))?;
    let default = rig.call(driver.device_default_pool(id))?;
    if rig.is_simulated() {
        same("the current pool at first", before, default)?;
    }
    let own = rig.call(driver.pool_create(&PoolProperties::on(id)))?;
    let tried = (|| {
        for pool in [own, default] {
            rig.call(driver.device_set_current_pool(id, pool))?;
            same("the current pool", rig.call(driver.device_current_pool(id))?, pool)?;
            same("the pool of an allocation that names none", from_current(rig, on)?, Some(pool))?;
        }
        Ok(())
    })();
    rig.call(driver.device_set_current_pool(id, before))?;
    on.synchronize()?;
    rig.call(driver.pool_destroy(own))?;
    tried
}

fn current_pool_is_local(rig: &Rig) -> Outcome {
    let here = Location::caller();
    for on in &rig.base.streams[..2] {
        let (ptr, _) = on.submit(|driver, on| driver.alloc_current(PIECE, on, here))?;
        let told = rig.call(rig.driver().pointer_attributes(ptr))?;
        on.submit(|driver, on| driver.free_async(ptr, on, here))?;
        on.synchronize()?;
        same("the device of an allocation that names no pool", told.device, Some(rig.base.device.id()))?;
    }
    Ok(())
}

fn current_pool_of_another_device(rig: &Rig) -> Outcome {
    let (driver, other) = (rig.driver(), rig.other()?);
    let far = rig.call(driver.pool_create(&PoolProperties::on(other.id())))?;
    let set = rig.base.device.check(driver.device_set_current_pool(rig.base.device.id(), far));
    refused("a current pool of another device", &rig.base.device, set)?;
    rig.call(driver.pool_destroy(far))?;
    // Each device has its own.
    let on = Stream::new(other)?;
    let pool = from_current(rig, &on)?;
    on.synchronize()?;
    same("the pool that the other device's stream took", pool, Some(rig.call(driver.device_current_pool(other.id()))?))
}

fn default_pool(rig: &Rig) -> Outcome {
    let (driver, id) = (rig.driver(), rig.base.device.id());
    let pool = rig.call(driver.device_default_pool(id))?;
    same("the default pool, asked again", rig.call(driver.device_default_pool(id))?, pool)?;
    same("its own device's access", rig.call(driver.pool_access(pool, id))?, PoolAccess::ReadWrite)?;
    refused("exporting the default pool", &rig.base.device, rig.base.device.check(driver.pool_export(pool)))?;
    refused("destroying the default pool", &rig.base.device, rig.base.device.check(driver.pool_destroy(pool)))?;
    same("the default pool after all that", rig.call(driver.device_default_pool(id))?, pool)
}

fn explicit_pool(rig: &Rig) -> Outcome {
    let (driver, id, on) = (rig.driver(), rig.base.device.id(), &rig.base.streams[0]);
    let types = rig.call(driver.attribute(id, DeviceAttribute::MemoryPoolSupportedHandleTypes))?;
    let exportable = HandleTypes(types.max(0) as u32).contains(HandleTypes::POSIX_FD);
    for handle_types in [HandleTypes::NONE, HandleTypes::POSIX_FD] {
        if handle_types == HandleTypes::POSIX_FD && !exportable {
            continue;
        }
        let pool = rig.call(driver.pool_create(&PoolProperties { handle_types, ..PoolProperties::on(id) }))?;
        let here = Location::caller();
        let (ptr, _) = on.submit(|driver, on| driver.pool_alloc(pool, PIECE, on, here))?;
        let told = rig.call(driver.pointer_attributes(ptr))?;
        on.submit(|driver, on| driver.free_async(ptr, on, here))?;
        on.synchronize()?;
        same("where its memory lies", (told.memory, told.device), (MemoryType::Device, Some(id)))?;
        same("the pool of its memory", told.pool, Some(pool))?;
        rig.call(driver.pool_destroy(pool))?;
    }
    Ok(())
}

fn impossible_pools(rig: &Rig) -> Outcome {
    let driver = rig.driver();
    let nowhere = DeviceId(rig.call(driver.device_count())? + 5);
    let made = rig.base.device.check(driver.pool_create(&PoolProperties::on(nowhere)));
    refused("a pool on a device that is not there", &rig.base.device, made)?;
    // Drivers before CUDA 13.0 do not know the question: then it is answered by trying.
    let asked = driver.attribute(rig.base.device.id(), DeviceAttribute::HostNumaMemoryPoolsSupported);
    let location = crate::driver::PoolLocation::HostNuma(0);
    match (asked, driver.pool_create(&PoolProperties { location, ..PoolProperties::default() })) {
        (Ok(1), Err(error)) => {
            Err(CheckError::Refused(format!("a pool on a host node, said to be supported: {error}")))
        }
        (_, Ok(pool)) => {
            let access = rig.call(driver.pool_access(pool, rig.base.device.id()))?;
            rig.call(driver.pool_destroy(pool))?;
            same("a device's access to a new pool on a host node", access, PoolAccess::None)
        }
        (_, Err(_)) => Ok(()),
    }
}

fn pointer_attributes(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let raw = rig.allocate(PIECE.get(), on)?;
    for offset in [0, 50_000] {
        let told = rig.call(rig.driver().pointer_attributes(raw.ptr().offset(offset)))?;
        same("what kind of memory it is", told.memory, MemoryType::Device)?;
        same("the context of an address of a pool", told.context, None)?;
        same("its device", told.device, Some(rig.base.device.id()))?;
        same("a pool that it is from", told.pool.is_some(), true)?;
        same("where its allocation begins", told.start, raw.ptr())?;
        same("an extent that covers it", told.len >= PIECE.get(), true)?;
    }
    rig.free(raw, on)?;
    // Plain memory is of no pool.
    let here = Location::caller();
    let plain = rig.call(rig.driver().alloc_sync(rig.base.device.id(), PIECE, here))?;
    let told = rig.call(rig.driver().pointer_attributes(plain))?;
    rig.call(rig.driver().free_sync(plain, here))?;
    same("the pool of plain memory", told.pool, None)?;
    same("the device of plain memory", told.device, Some(rig.base.device.id()))
}

fn memset_in_a_graph(rig: &Rig) -> Outcome {
    let on = &rig.base.streams[0];
    let buffer = DeviceBuffer::new(PIECE.get(), on, &rig.base.pool)?;
    buffer.fill(1, on)?;
    refused("a memset node by hand for a pool's memory", &rig.base.device, crate::graph::check_memset_node(&buffer))?;
    let plain = MemoryPool::builder(&rig.base.device).strategy(Strategy::Cuda).build()?;
    let of_none = DeviceBuffer::new(PIECE.get(), on, &plain)?;
    crate::graph::check_memset_node(&of_none)?;
    drop(of_none);
    on.synchronize()?;
    // A stream of the bare driver: on ours, captured work is refused.
    let (driver, here) = (rig.driver(), Location::caller());
    let bare = rig.call(driver.stream_create(rig.base.device.id(), StreamPriority::Normal))?;
    rig.call(driver.stream_capture_begin(bare, CaptureMode::ThreadLocal))?;
    let filled = driver.fill(buffer.address(), 2, PIECE.get(), bare, here);
    let graph = rig.call(driver.stream_capture_end(bare))?;
    rig.call(filled)?;
    let bytes = || -> Outcome<Option<u8>> {
        let bytes = rig.base.download(&buffer, on)?;
        Ok(if bytes.iter().all(|byte| *byte == bytes[0]) { bytes.first().copied() } else { None })
    };
    same("the bytes after a capture, which runs nothing", bytes()?, Some(1))?;
    let made = rig.call(driver.graph_instantiate(graph))?;
    rig.call(driver.graph_launch(made, bare, here))?;
    rig.call(driver.stream_synchronize(bare))?;
    same("the bytes after a launch of the graph", bytes()?, Some(2))?;
    rig.call(driver.graph_exec_destroy(made))?;
    rig.call(driver.graph_destroy(graph))?;
    rig.call(driver.stream_destroy(bare))
}
