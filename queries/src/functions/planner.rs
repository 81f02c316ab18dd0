//! Plans operators for logical nodes.
//!
//! ```text
//!   RelationNode ─► extension planners in order: [ the caller's …, ours ] ─► RelationExec on the CPU
//!                                                   └─ a device plan goes here
//! ```
//!
//! Order        planners registered with [`register_with`](super::register_with) run before the CPU planner; `None`
//!              passes a node on. A device plan for one function needs only such a planner.
//! Other plans  without our nodes are passed unchanged to the session's previous planner.

use std::sync::Arc;

use async_trait::async_trait;
use millpond::datafusion::catalog::Session;
use millpond::datafusion::common::tree_node::TreeNodeRecursion;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::SessionStateBuilder;
use millpond::datafusion::execution::context::{QueryPlanner, SessionState};
use millpond::datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use millpond::datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::{RelationExec, RelationNode};

/// A planner of nodes, shared.
pub type SharedExtensionPlanner = Arc<dyn ExtensionPlanner + Send + Sync>;

/// Plans a [`RelationExec`] for each [`RelationNode`]. For sessions with their own query planner.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkloadExtensionPlanner;

#[async_trait]
impl ExtensionPlanner for WorkloadExtensionPlanner {
    async fn plan_extension(
        &self,
        _planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
        _planning_ctx: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(relation) = node.as_any().downcast_ref::<RelationNode>() else { return Ok(None) };
        let schema = Arc::clone(node.schema().inner());
        let exec = RelationExec::try_new(
            relation.function().clone(),
            relation.positions()?,
            physical_inputs.to_vec(),
            schema,
        )?;
        Ok(Some(Arc::new(exec)))
    }
}

/// The session's planner, extended for our nodes.
pub(crate) struct WorkloadQueryPlanner {
    before: Arc<dyn QueryPlanner + Send + Sync>,
    planners: Vec<SharedExtensionPlanner>,
}

impl std::fmt::Debug for WorkloadQueryPlanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WorkloadQueryPlanner {{ before: {:?}, planners: {} }}", self.before, self.planners.len())
    }
}

#[async_trait]
impl QueryPlanner for WorkloadQueryPlanner {
    async fn create_physical_plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        if !has_node(plan)? {
            return self.before.create_physical_plan(plan, session).await;
        }
        let planners = self.planners.clone();
        DefaultPhysicalPlanner::with_extension_planners(planners).create_physical_plan(plan, session).await
    }
}

fn has_node(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= matches!(node, LogicalPlan::Extension(extension) if extension.node.as_any().is::<RelationNode>());
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// The state with our planner around its own. `first` run before the CPU planner; if empty, a state that already has
/// our planner is unchanged.
pub(crate) fn with_planner(state: SessionState, first: Vec<SharedExtensionPlanner>) -> SessionState {
    let existing = Arc::clone(state.query_planner());
    let any: &dyn std::any::Any = existing.as_ref();
    let ours = any.downcast_ref::<WorkloadQueryPlanner>();
    if ours.is_some() && first.is_empty() {
        return state;
    }
    let (before, behind) = match ours {
        Some(ours) => (Arc::clone(&ours.before), ours.planners.clone()),
        None => (existing, vec![Arc::new(WorkloadExtensionPlanner) as SharedExtensionPlanner]),
    };
    let planners = first.into_iter().chain(behind).collect();
    let planner = Arc::new(WorkloadQueryPlanner { before, planners });
    SessionStateBuilder::new_from_existing(state).with_query_planner(planner).build()
}
