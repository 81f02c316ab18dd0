//! A DataFusion session state of one's own, on the device: its query planner, optimizer rule and catalog stay what they
//! are.
//!
//!   cargo run -p millpond --example own_state

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, MemorySchemaProvider, Session};
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use millpond::datafusion;
use millpond::prelude::*;

/// A planner that counts what it plans.
#[derive(Debug, Default)]
pub struct Planner {
    pub planned: AtomicUsize,
}

#[async_trait]
impl QueryPlanner for Planner {
    async fn create_physical_plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        self.planned.fetch_add(1, Ordering::Relaxed);
        DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await
    }
}

/// A rule that counts the plans that it sees.
#[derive(Debug, Default)]
pub struct Rule {
    pub seen: AtomicUsize,
}

impl OptimizerRule for Rule {
    fn name(&self) -> &str {
        "counting"
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        self.seen.fetch_add(1, Ordering::Relaxed);
        Ok(Transformed::no(plan))
    }
}

/// A session with these, whose tables lie in the catalog `shop`.
pub fn session(
    options: &MillpondOptions,
    planner: &Arc<Planner>,
    rule: &Arc<Rule>,
) -> Result<Millpond, Box<dyn Error>> {
    let device = Engine::shared(options)?;
    let catalog = Arc::new(MemoryCatalogProvider::new());
    catalog.register_schema("public", Arc::new(MemorySchemaProvider::new()))?;
    let config = SessionConfig::new().with_option_extension(options.clone());
    let config = config.with_default_catalog_and_schema("shop", "public");
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config.with_create_default_catalog_and_schema(false))
        .with_query_planner(Arc::clone(planner) as _)
        .with_optimizer_rule(Arc::clone(rule) as _)
        .with_millpond(&device)?
        .build();
    let context = SessionContext::new_with_state(state);
    context.register_catalog("shop", catalog);
    Ok(Millpond::of(&context).ok_or("the state has a device")?)
}

#[tokio::main]
#[allow(dead_code, reason = "a test runs `session`")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (planner, rule) = (Arc::default(), Arc::default());
    let session = session(&MillpondOptions::default(), &planner, &rule)?;
    // DataFusion's own interface plans for the device, too; Millpond's reports what ran there.
    session.context().sql("CREATE TABLE t AS VALUES (1, 2.5), (2, 0.5), (1, 1.5)").await?.collect().await?;
    let frame = session.context().sql("SELECT column1, sum(column2) FROM t GROUP BY column1").await?;
    let result = session.collect(frame).await?;
    println!("{}\n{}", pretty_format_batches(&result.batches)?, result.report);
    println!(
        "{} plans, {} passes of the rule",
        planner.planned.load(Ordering::Relaxed),
        rule.seen.load(Ordering::Relaxed)
    );
    Ok(())
}
