//! What a device, its driver and this crate promise together, as claims that can be run anywhere.
//!
//!   claims() ──► order/…   pools/…   reuse/…   found/… ──► for each strategy they cover: Rig ─► run ─► nothing left
//!
//! Lines      a claim names the lines of the checklist it stands for (`S1.10`); `docs/memory-conformance.md` is their
//!            table.
//! Run by     `cargo test` on the simulated device under several seeds and over the shim, and by `millpond selftest` on
//!            the device a user has. None asserts on time, and none faults a kernel.
//! Wrong on   a claim with `finds` does what CUDA leaves undefined; it is for the simulated device, whose checks must
//! purpose    report exactly that.
//! Mutated    a claim that cannot fail is worth nothing: tests run those that hang on single waits with each wait
//!            removed in turn, and those about a pool's settings on a driver that forgets the setting. Then they must
//!            fail.
//! Memory     a rig's own; nothing is in use when a claim ends.

mod basics;
mod found;
mod ipc;
mod kinds;
mod order;
mod peers;
mod pools;
mod reuse;
mod rig;
pub mod table;

use std::fmt;
use std::sync::{Arc, OnceLock};

pub use rig::Rig;

use crate::checks::CheckError;
use crate::device::Device;
use crate::driver::{DeviceId, DriverKind, FindingKind};
use crate::error::Result;
use crate::resource::Strategy;

/// Which resources a claim is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// Each strategy of allocation.
    Each,
    /// Those that are a pool of the driver.
    Pools,
    /// The driver itself, or what is the same whatever the strategy.
    Driver,
}

impl Over {
    pub fn strategies(self) -> &'static [Strategy] {
        match self {
            Over::Each => &Strategy::ALL,
            Over::Pools => &[Strategy::CudaAsyncDefault, Strategy::CudaAsync],
            Over::Driver => &[Strategy::CudaAsync],
        }
    }
}

/// What a claim needs beside one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    Nothing,
    TwoDevices,
    /// Two devices that cannot reach each other's memory.
    DevicesApart,
    /// Another process, whose device a test hands in.
    TwoProcesses,
}

/// A promise with a name.
#[derive(Clone, Copy)]
pub struct Claim {
    /// `area/claim`.
    pub name: &'static str,
    /// The lines of the checklist that it stands for; none where the promise is this crate's alone.
    pub lines: &'static [&'static str],
    /// The promise as a sentence.
    pub claim: &'static str,
    pub over: Over,
    pub needs: Needs,
    /// Why only the simulated device can show it.
    pub only_simulated: Option<&'static str>,
    /// What the simulated device must find, where the claim does what it must not.
    pub finds: Option<FindingKind>,
    /// Whether the order it makes hangs on single waits, so that none of them may be missing.
    pub edges: bool,
    pub run: fn(&Rig) -> Result<(), CheckError>,
}

impl Claim {
    const fn new(
        name: &'static str,
        lines: &'static [&'static str],
        claim: &'static str,
        run: fn(&Rig) -> Result<(), CheckError>,
    ) -> Self {
        Claim {
            name,
            lines,
            claim,
            over: Over::Each,
            needs: Needs::Nothing,
            only_simulated: None,
            finds: None,
            edges: false,
            run,
        }
    }

    const fn over(self, over: Over) -> Self {
        Claim { over, ..self }
    }

    const fn needs(self, needs: Needs) -> Self {
        Claim { needs, ..self }
    }

    const fn only_simulated(self, why: &'static str) -> Self {
        Claim { only_simulated: Some(why), ..self }
    }

    const fn finds(self, kind: FindingKind) -> Self {
        Claim { finds: Some(kind), ..self }
    }

    const fn every_edge_counts(self) -> Self {
        Claim { edges: true, ..self }
    }

    /// Why it cannot be tried on `device` by this process alone, if so.
    pub fn unfit(&self, device: &Device) -> Option<&'static str> {
        const UNDEFINED: &str = "undefined on purpose: for the simulated device";
        let driver = device.driver();
        let next = another(device);
        let reach = || next.is_some_and(|next| driver.can_access_peer(next, device.id()).unwrap_or(true));
        match self.needs {
            _ if self.only_simulated.is_some() && driver.kind() == DriverKind::Cuda => self.only_simulated,
            _ if self.finds.is_some() && !rig::is_simulated(device) => Some(UNDEFINED),
            _ if self.over != Over::Each && !device.limits().memory_pools => Some("the device has no memory pools"),
            Needs::TwoProcesses => Some("needs two processes"),
            Needs::TwoDevices if next.is_none() => Some("needs two devices"),
            Needs::DevicesApart if next.is_none() || reach() => Some("needs two devices that cannot reach each other"),
            _ => None,
        }
    }

    /// Tries it on `device`, with each strategy that it is about and that the device has.
    ///
    /// # Errors
    /// What did not hold, and with which strategy.
    pub fn try_on(&self, device: &Device) -> Result<(), CheckError> {
        for &strategy in self.over.strategies() {
            if device.limits().memory_pools || matches!(strategy, Strategy::Cuda | Strategy::Caching) {
                let other = match (self.needs, another(device)) {
                    (Needs::TwoDevices | Needs::DevicesApart, Some(next)) => {
                        Some(Device::open(Arc::clone(device.driver()), next.0)?)
                    }
                    _ => None,
                };
                self.try_with(device, strategy, other)?;
            }
        }
        Ok(())
    }

    /// Tries it on `device` with one strategy, and with the other device that it needs.
    ///
    /// # Errors
    /// What did not hold.
    pub fn try_with(&self, device: &Device, strategy: Strategy, other: Option<Device>) -> Result<(), CheckError> {
        let named = |error: CheckError| match error {
            lost @ CheckError::Memory(_) if device.is_lost() => lost,
            error if self.over == Over::Driver => error,
            error => CheckError::Wrong(format!("{strategy}: {error}")),
        };
        let rig = Rig::new(device, strategy, other).map_err(named)?;
        (self.run)(&rig).and_then(|()| rig.finish()).map_err(named)
    }
}

/// The next device of the same driver.
fn another(device: &Device) -> Option<DeviceId> {
    let count = device.driver().device_count().unwrap_or(1);
    (count > 1).then(|| DeviceId((device.id().0 + 1) % count))
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Every claim, cheap ones first.
pub fn claims() -> &'static [Claim] {
    static ALL: OnceLock<Vec<Claim>> = OnceLock::new();
    ALL.get_or_init(|| {
        let areas = [basics::CLAIMS, order::CLAIMS, kinds::CLAIMS, pools::CLAIMS, reuse::CLAIMS];
        areas.into_iter().chain([peers::CLAIMS, ipc::CLAIMS, found::CLAIMS]).flatten().copied().collect()
    })
}
