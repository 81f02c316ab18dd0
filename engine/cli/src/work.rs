//! The log of `-v`: a query's plan before it runs, and the cost of its kernels and its memory.

use std::sync::Arc;

use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::explain::{Placement, tree};
use millpond::{Millpond, QueryReport};

use crate::query::bytes;

/// The log of one query.
pub struct Work {
    /// Number of pipelines generated and assembled before the query.
    before: (u64, u64),
}

impl Work {
    /// Logs the plan.
    pub fn begin(session: &Millpond, plan: &Arc<dyn ExecutionPlan>) -> Self {
        if tracing::enabled!(tracing::Level::INFO) {
            let placement = Placement::of(plan, session.operators());
            let (on_device, of) = (placement.operators_on_device, placement.operators);
            tracing::info!("plan\n{}", tree(plan, session.operators()));
            tracing::info!("placement: {on_device} of {of} operators on the device");
            for reason in placement.reasons {
                tracing::info!("on the CPU because {}: {}", reason.code, reason.text);
            }
        }
        Self { before: pipelines(session) }
    }

    /// Logs the kernels and the memory.
    pub fn log(self, session: &Millpond, report: &QueryReport) {
        if report.launches == 0 {
            return;
        }
        let now = pipelines(session);
        tracing::info!(
            "kernels: {} launches, {} of generated pipelines; {} pipelines generated, {} assembled; {:.1} ms to prepare, {} host waits",
            report.launches,
            report.pipeline_launches,
            now.0 - self.before.0,
            now.1 - self.before.1,
            report.prepare_ns as f64 / 1e6,
            report.host_waits,
        );
        tracing::info!(
            "memory: {} allocations of {} together, peak {}; {} copied to the device, {} from it",
            report.allocations,
            bytes(report.allocated_bytes),
            bytes(report.peak_bytes),
            bytes(report.uploaded_bytes),
            bytes(report.downloaded_bytes),
        );
    }
}

/// Number of pipelines generated and assembled since the start of the process.
fn pipelines(session: &Millpond) -> (u64, u64) {
    let statistics = session.engine().map(|engine| engine.pipeline_statistics());
    statistics.map_or((0, 0), |statistics| (statistics.compiled, statistics.loaded))
}
