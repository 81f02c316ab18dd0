//! Runs without their kernels, on the simulated device: the remaining time is the host cost of a query.
//!
//!   millpond.debug_sim_skip_launches = true
//!     first run of a plan   a normal run; what the host reads from the device is recorded    a result
//!     every later run       launches are skipped; the host reads the recording               no result, but an error
//!
//! Warm     a plan that runs before the option is set has learnt its sizes, so the recording is that of a repeated run.
//!          A run that needed several attempts, or waited for work that later runs reuse, is not recorded; the next one
//!          is.
//! Same     a plan is identified by its device subtree as EXPLAIN prints it. If its path differs, an error says so.
//! Alone    the device records or skips for all its users, so such a run requires that no other run is active and none
//!          starts meanwhile: a query with two parts on the device, or two concurrent sessions, get an error.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond_memory::Driver;
use millpond_memory::driver::sim::{KeptDownloads, SimDriver};

use crate::device::learnt::PlanKey;
use crate::error::EngineError;

const OPTION: &str = "millpond.debug_sim_skip_launches";

/// Users of a simulated device, and the recordings of plans.
#[derive(Debug, Default)]
pub(crate) struct NullDevice {
    users: Mutex<Users>,
}

#[derive(Debug, Default)]
struct Users {
    /// Number of active runs, and whether one of them uses the device exclusively.
    runs: usize,
    alone: bool,
    kept: HashMap<PlanKey, Arc<KeptDownloads>>,
}

/// Treatment of a run's launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Runs,
    Keeps,
    Skips,
}

/// A run's use of the device, until it is dropped.
pub(crate) struct Turn<'e> {
    device: Option<(&'e NullDevice, &'e SimDriver)>,
    kind: Kind,
    plan: PlanKey,
    /// The recording is worth keeping.
    is_steady: bool,
}

impl NullDevice {
    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a run; `plan` is `Some` if the option is set. `sim` is the simulated driver, if the device is simulated.
    ///
    /// # Errors
    /// If the option is set on a real device, or if exclusive use conflicts with another run.
    pub(crate) fn begin<'e>(
        &'e self,
        sim: Option<&'e SimDriver>,
        plan: Option<PlanKey>,
    ) -> Result<Turn<'e>, EngineError> {
        let refused = |expected: &str| {
            let (name, value, expected) = (OPTION.to_string(), "true".to_string(), expected.to_string());
            Err(EngineError::OptionValue { name, value, expected })
        };
        let Some(sim) = sim else {
            return match plan {
                None => Ok(Turn { device: None, kind: Kind::Runs, plan: PlanKey::default(), is_steady: false }),
                Some(_) => refused("false on a real device"),
            };
        };
        let mut users = self.users();
        if users.alone || (plan.is_some() && users.runs > 0) {
            return refused(
                "one run at a time, of a query with one part on the device, and no other session meanwhile",
            );
        }
        if plan.is_some() {
            // Completes the pending work of earlier runs before this one; if the device is lost, the run will detect
            // it.
            let _ = sim.settle();
        }
        let kind = match plan.map(|plan| users.kept.get(&plan)) {
            None => Kind::Runs,
            Some(None) => {
                sim.keep_downloads();
                Kind::Keeps
            }
            Some(Some(kept)) => {
                sim.skip_launches(kept);
                Kind::Skips
            }
        };
        users.runs += 1;
        users.alone = plan.is_some();
        Ok(Turn { device: Some((self, sim)), kind, plan: plan.unwrap_or_default(), is_steady: false })
    }
}

impl Turn<'_> {
    /// True if launches are skipped: the run's output is not a result.
    pub(crate) fn skips(&self) -> bool {
        self.kind == Kind::Skips
    }

    /// Marks a run that completed in one attempt and learnt nothing: a repeated run takes the same path.
    pub(crate) fn is_steady(&mut self) {
        self.is_steady = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some((device, sim)) = self.device else { return };
        let mut users = device.users();
        users.runs -= 1;
        if self.kind != Kind::Runs {
            users.alone = false;
            if let (Some(kept), true) = (sim.run_launches(), self.is_steady) {
                users.kept.insert(self.plan, Arc::new(kept));
            }
        }
    }
}
