//! Runs without their kernels, on the simulated device: what is left of a query is what it costs its host.
//!
//!   millpond.debug_sim_skip_launches = true
//!     first run of a plan   as ever, and what the host reads from the device is kept           an answer
//!     every later one       launches are skipped, and the host reads what was kept             no answer: the run ends in an error
//!
//! Warm     a plan that is run before the option is set has learnt its sizes by then, so what is kept is a repeated run's. A run
//!          that needed several attempts, or waited for what later ones take over, is not kept; the next one is.
//! Same     a plan is known by its device subtree as EXPLAIN prints it. A plan whose path differs is told so.
//! Alone    the device keeps or skips for all who use it, so such a run tolerates no other beside it, and none begins meanwhile:
//!          a query with two parts on the device, or two sessions at once, get an error.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond_memory::Driver;
use millpond_memory::driver::sim::{KeptDownloads, SimDriver};

use crate::device::learnt::PlanKey;
use crate::error::EngineError;

const OPTION: &str = "millpond.debug_sim_skip_launches";

/// Who uses a simulated device, and what was kept of whose run.
#[derive(Debug, Default)]
pub(crate) struct NullDevice {
    users: Mutex<Users>,
}

#[derive(Debug, Default)]
struct Users {
    /// Runs under way, and whether one of them wants the device alone.
    runs: usize,
    alone: bool,
    kept: HashMap<PlanKey, Arc<KeptDownloads>>,
}

/// What a run makes of launches.
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
    /// It is worth keeping.
    is_steady: bool,
}

impl NullDevice {
    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a run; with `plan`, the option is set for it. `sim` is the simulated driver, if the device is simulated.
    ///
    /// # Errors
    /// If the option is set on a real device, or if the device is in use and would be for two at once.
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
            // What earlier runs left to do lies before this one; if the device is lost, the run will find out.
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
    /// True where launches are skipped: nothing of what the run gives is an answer.
    pub(crate) fn skips(&self) -> bool {
        self.kind == Kind::Skips
    }

    /// The run has come to its end in one attempt, and has learnt nothing: a repeated one takes the same path.
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
