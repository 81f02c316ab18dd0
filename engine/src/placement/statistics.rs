//! Statistics of a plan's inputs, each computed once during placement.
//!
//!   the rows of a scan    requested by its upload, by a sort above it, and again if its order is needed after all
//!                         └─► DataFusion computes them once
//!
//! Keys  are node addresses: every plan in the cache is kept alive as long as its statistics.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::common::Statistics;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::program::judged::Judged;

/// Statistics of the nodes of one plan.
pub(super) struct PlanStatistics<'a> {
    context: StatisticsContext,
    /// Plans whose statistics were requested.
    plans: RefCell<Vec<Arc<dyn ExecutionPlan>>>,
    /// Addresses of the sources below them.
    sources: RefCell<HashSet<*const ()>>,
    judged: &'a Judged,
}

impl<'a> PlanStatistics<'a> {
    /// Empty cache; `judged` counts the statistics of sources.
    pub(super) fn new(judged: &'a Judged) -> Self {
        let context = StatisticsContext::new();
        Self { context, plans: RefCell::default(), sources: RefCell::default(), judged }
    }

    /// DataFusion's statistics of `plan`. A failed estimate is not an error of the query.
    pub(super) fn of(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<Statistics>> {
        self.plans.borrow_mut().push(Arc::clone(plan));
        self.count_sources(plan);
        self.context.compute(plan.as_ref(), &StatisticsArgs::new()).ok()
    }

    fn count_sources(&self, plan: &Arc<dyn ExecutionPlan>) {
        let children = plan.children();
        if children.is_empty() && self.sources.borrow_mut().insert(Arc::as_ptr(plan).cast()) {
            self.judged.statistics_read.fetch_add(1, Ordering::Relaxed);
        }
        children.into_iter().for_each(|child| self.count_sources(child));
    }
}
