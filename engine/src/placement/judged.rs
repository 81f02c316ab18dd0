//! What it took to place a plan, for its report.
//!
//!   walk, statistics ─ count ─► Judged ─ kept by every border of the plan ─► QueryReport, EXPLAIN

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use datafusion::physical_plan::ExecutionPlan;

use crate::reason::Reason;

/// What placement read and lowered to place a plan, all tries together.
#[derive(Default)]
pub(crate) struct Judged {
    /// Times that the expressions of a node were lowered, to see whether it can run on the device.
    pub lowerings: AtomicU64,
    /// Times that statistics of a source were computed.
    pub statistics_read: AtomicU64,
    /// Nodes of the placed plan, and of plans that were tried before it, that stay on the CPU, with their reasons.
    /// Weak: a node that stays may lie above a border, which keeps this.
    stayed: Mutex<Vec<(Weak<dyn ExecutionPlan>, Reason)>>,
}

impl Judged {
    /// Adds a reason of `node` to stay on the CPU.
    pub fn stays(&self, node: &Arc<dyn ExecutionPlan>, reason: Reason) {
        self.stayed.lock().unwrap_or_else(PoisonError::into_inner).push((Arc::downgrade(node), reason));
    }

    /// The reasons of `node` to stay on the CPU.
    pub fn why(&self, node: &Arc<dyn ExecutionPlan>) -> Vec<Reason> {
        let stayed = self.stayed.lock().unwrap_or_else(PoisonError::into_inner);
        let own = stayed.iter().filter(|(stayed, _)| std::ptr::addr_eq(stayed.as_ptr(), Arc::as_ptr(node)));
        let mut reasons: Vec<Reason> = own.map(|(_, reason)| reason.clone()).collect();
        reasons.sort();
        reasons.dedup();
        reasons
    }
}

impl fmt::Debug for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judged").field("lowerings", &self.lowerings).finish_non_exhaustive()
    }
}
