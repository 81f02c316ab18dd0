//! Costs and reasons of placing a plan, for its report.
//!
//!   walk, statistics ─ count ─► Judged ─ shared by all borders of the plan ─► QueryReport, EXPLAIN

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use datafusion::physical_plan::ExecutionPlan;

use crate::error::reason::Reason;

/// Counts of placement's work on a plan, over all attempts, and its reasons.
#[derive(Default)]
pub(crate) struct Judged {
    /// Number of times that a node's expressions were lowered to check whether it can run on the device.
    pub lowerings: AtomicU64,
    /// Number of times that statistics of a source were computed.
    pub statistics_read: AtomicU64,
    /// Nodes that stay on the CPU, in the placed plan and in earlier attempts, with their reasons. Weak, because such a
    /// node may be above a border, which owns this.
    stayed: Mutex<Vec<(Weak<dyn ExecutionPlan>, Reason)>>,
}

impl Judged {
    /// Adds a reason why `node` stays on the CPU.
    pub fn stays(&self, node: &Arc<dyn ExecutionPlan>, reason: Reason) {
        self.stayed.lock().unwrap_or_else(PoisonError::into_inner).push((Arc::downgrade(node), reason));
    }

    /// Reasons why `node` stays on the CPU.
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
