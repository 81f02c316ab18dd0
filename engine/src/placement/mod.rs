//! Turns subtrees of DataFusion's physical plan into device nodes.
//!
//!   fence     while DataFusion moves projections: what is computed stays out of scans
//!   judge     per node: Device, or Host with reasons (pure; no change)
//!   convert   CPU node → device node; a Partial/Final aggregate pair goes together or not at all
//!   simplify  repartitions and merges vanish between device nodes and below uploads
//!   bridge    UploadExec / DownloadExec at the borders
//!   check     DataFusion's plan sanity check over the result; a plan that fails it goes back to the CPU with a reason
//!
//! Runs after  every rule of DataFusion: distribution is enforced, limits and projections are in place.
//! No device   the rule is not even registered; with `millpond.enabled = false` it returns the plan it was given.
//! Errors      none of its own, except under `millpond.fallback = 'error'`.

mod bridge;
mod check;
mod convert;
pub mod fallback;
mod fence;
mod judge;
mod simplify;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::column::ColumnInfo;
use crate::device::Engine;
use crate::error::EngineError;
use crate::options::{DeviceChoice, Fallback, MillpondOptions};
use crate::placement::fallback::FallbackExec;
use crate::reason::Reason;

pub(crate) use crate::placement::fence::rules;
pub use crate::placement::judge::counts_as_operator;
pub(crate) use crate::placement::judge::statistics;

/// What placement made of a subtree.
pub(crate) enum Placed {
    /// A device subtree without its upper border.
    Device(DeviceTree),
    /// A plan that runs on the CPU (device subtrees inside it have their borders), and reasons no border shows yet.
    Host { plan: Arc<dyn ExecutionPlan>, pending: Vec<Reason> },
}

/// A device subtree, and what is known of its output.
pub(crate) struct DeviceTree {
    pub plan: Arc<dyn ExecutionPlan>,
    /// What DataFusion planned for the same rows.
    pub cpu: Arc<dyn ExecutionPlan>,
    pub columns: Vec<ColumnInfo>,
    /// At most this many rows leave it, because a limit was built into its top node.
    pub row_limit: Option<usize>,
    /// The rows leave it sorted.
    pub sorted: bool,
    /// Its number of rows is not that of a scan: an aggregate is inside.
    pub aggregated: bool,
}

/// What placement read and lowered to place a plan, all tries together.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// Times that the expressions of a node were lowered, to see whether it can run on the device.
    pub lowerings: AtomicU64,
    /// Times that statistics of a node were computed.
    pub statistics_read: AtomicU64,
}

/// The physical optimizer rule.
pub struct PlaceOnDevice {
    engine: Arc<Engine>,
}

impl std::fmt::Debug for PlaceOnDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlaceOnDevice")
    }
}

impl PlaceOnDevice {
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

impl PhysicalOptimizerRule for PlaceOnDevice {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let defaults = MillpondOptions::default();
        let options = config.extensions.get::<MillpondOptions>().unwrap_or(&defaults);
        if !options.enabled || options.device == DeviceChoice::Cpu {
            return Ok(plan);
        }
        let placed = match self.engine.device().is_lost() {
            true => lost(plan, &self.engine)?,
            false => place(&plan, &self.engine, options, config)?,
        };
        let reasons = judge::reasons_shown(&placed);
        if !reasons.is_empty() {
            match options.fallback {
                Fallback::Allow => {}
                Fallback::Warn => tracing::warn!("part of the query runs on the CPU: {}", reasons.join("; ")),
                Fallback::Error => return Err(EngineError::FallbackForbidden { reasons }.into()),
            }
        }
        Ok(placed)
    }

    fn name(&self) -> &str {
        "place_on_device"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The plan as DataFusion made it, with the reason why the device has no part in it.
fn lost(plan: Arc<dyn ExecutionPlan>, engine: &Engine) -> Result<Arc<dyn ExecutionPlan>> {
    let works = plan.exists(|node| Ok(counts_as_operator(node.as_ref())))?;
    let reason = Reason::DeviceLost { device: engine.name().to_string() };
    Ok(if works { Arc::new(FallbackExec::new(plan, vec![reason])) } else { plan })
}

/// All steps, in order.
fn place(
    plan: &Arc<dyn ExecutionPlan>,
    engine: &Arc<Engine>,
    options: &MillpondOptions,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let bridge = bridge::Bridge::new(engine);
    let mut refused = String::new();
    // Rows that are sorted again have the order that their node names, and none of those that go with it: where a plan counts
    // on one of these, what keeps it stays on the CPU.
    for restores in [true, false] {
        let converted = convert::Converter::new(options, &bridge, restores).convert(plan)?;
        match check::checked(plan, bridge.root(converted)?, config) {
            Ok(placed) => return Ok(placed),
            Err(what) => refused = what,
        }
    }
    Ok(check::refused(plan, refused))
}

/// Every reason that the plan's borders show, each once, sorted.
pub fn plan_reasons(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    judge::reasons_shown(plan)
}
