//! Kept plans of sessions that a program extends: functions that replace others, rules, planners, stores.
//!
//!   a statement, until its plan is kept ─ something is added ─► the statement again: the answer that what was added
//!                                                               gives
//!
//! Doors  the text of a statement, its logical plan (DataFusion's own door), and the template of statements that differ
//!        in constants.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::compute::cast;
use millpond::datafusion::arrow::datatypes::{DataType, Int64Type};
use millpond::datafusion::catalog::Session;
use millpond::datafusion::common::config::ConfigOptions;
use millpond::datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use millpond::datafusion::common::{DFSchema, Result, ScalarValue};
use millpond::datafusion::datasource::{MemTable, provider_as_source};
use millpond::datafusion::execution::SessionStateBuilder;
use millpond::datafusion::execution::context::QueryPlanner;
use millpond::datafusion::functions_aggregate::min_max::max_udaf;
use millpond::datafusion::functions_aggregate::sum::sum_udaf;
use millpond::datafusion::functions_window::row_number::row_number_udwf;
use millpond::datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use millpond::datafusion::logical_expr::planner::{
    ExprPlanner, PlannedRelation, PlannerResult, RawBinaryExpr, RelationPlanner, RelationPlannerContext,
    RelationPlanning,
};
use millpond::datafusion::logical_expr::registry::FunctionRegistry;
use millpond::datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, Operator, ScalarUDF, Volatility, create_udf,
};
use millpond::datafusion::object_store::memory::InMemory;
use millpond::datafusion::object_store::path::Path;
use millpond::datafusion::object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult,
};
use millpond::datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};
use millpond::datafusion::physical_optimizer::PhysicalOptimizerRule;
use millpond::datafusion::physical_plan::limit::GlobalLimitExec;
use millpond::datafusion::physical_plan::{ExecutionPlan, collect};
use millpond::datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use millpond::datafusion::sql::sqlparser::ast::TableFactor;
use millpond::{DeviceChoice, DeviceFunction, Fallback, Millpond};

use crate::counted_store::{URL, put, register};
use crate::support::session_with;

/// `t`: v from 0 to 9, and s of three letters.
fn rows(first: i64) -> RecordBatch {
    let v: Int64Array = (first..first + 10).collect();
    let s = StringArray::from(vec!["abc"; 10]);
    RecordBatch::try_from_iter([("v", Arc::new(v) as ArrayRef), ("s", Arc::new(s) as ArrayRef)]).expect("columns")
}

fn session() -> Millpond {
    let sim = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    let batch = rows(0);
    let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a table");
    sim.context().register_table("t", Arc::new(table)).expect("a name");
    sim
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Door {
    Text,
    Logical,
    Template,
}

const DOORS: [Door; 3] = [Door::Text, Door::Logical, Door::Template];

/// The number that a statement gives; `None` for one without rows.
async fn number(session: &Millpond, door: Door, sql: &str) -> Option<i64> {
    let batches = match door {
        Door::Text | Door::Template => {
            session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}")).batches
        }
        Door::Logical => {
            let frame = session.context().sql(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            let plan = frame.create_physical_plan().await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            collect(plan, session.context().task_ctx()).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
        }
    };
    let batch = batches.iter().find(|batch| batch.num_rows() > 0)?;
    let column = cast(batch.column(0), &DataType::Int64).expect("a number");
    let column = column.as_primitive::<Int64Type>();
    column.is_valid(0).then(|| column.value(0))
}

/// Runs a statement with `{}` for a constant that no row meets until its plan is kept, lets something be `added`, and
/// runs it again: the numbers before and after.
async fn before_and_after(door: Door, sql: &str, added: impl AsyncFn(&Millpond)) -> (Option<i64>, Option<i64>) {
    let session = session();
    let text = |constant: i64| match door {
        Door::Text | Door::Logical => sql.replace("{}", "-1"),
        Door::Template => sql.replace("{}", &(-constant).to_string()),
    };
    let before = number(&session, door, &text(1)).await;
    for constant in 2..4 {
        assert_eq!(number(&session, door, &text(constant)).await, before, "{door:?}: {sql}");
    }
    let found = session.plans_found();
    let kept = if door == Door::Template { found.by_template } else { found.kept };
    assert_eq!(kept, 2, "{door:?}: {sql} has no plan that is kept");
    added(&session).await;
    (before, number(&session, door, &text(4)).await)
}

/// A function of one number, or of one text, that gives `value` and the number.
fn function(name: &str, of: DataType, value: i64) -> ScalarUDF {
    let body = move |args: &[ColumnarValue]| {
        let values = args[0].to_array(1)?;
        let given = |row: usize| match values.as_primitive_opt::<Int64Type>() {
            Some(numbers) => numbers.value(row),
            None => 0,
        };
        let numbers: Int64Array = (0..values.len()).map(|row| value + given(row)).collect();
        Ok(ColumnarValue::Array(Arc::new(numbers)))
    };
    create_udf(name, vec![of], DataType::Int64, Volatility::Immutable, Arc::new(body))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_under_the_name_of_another_is_noticed() {
    for door in DOORS {
        // An alias of character_length.
        let sql = "SELECT sum(length(s)) FROM t WHERE v > {}";
        let added = async |session: &Millpond| session.context().register_udf(function("length", DataType::Utf8, 7));
        assert_eq!(before_and_after(door, sql, added).await, (Some(30), Some(70)), "{door:?}");
        // An alias of avg.
        let sql = "SELECT mean(v) FROM t WHERE v > {}";
        let added = async |session: &Millpond| {
            session.context().register_udaf(sum_udaf().as_ref().clone().with_aliases(["mean"]));
        };
        assert_eq!(before_and_after(door, sql, added).await, (Some(4), Some(45)), "{door:?}");
        // A scalar function is found before an aggregate of the name.
        let sql = "SELECT sum(m) FROM (SELECT max(v) AS m FROM t WHERE v > {}) AS q";
        let added = async |session: &Millpond| session.context().register_udf(function("max", DataType::Int64, 1));
        assert_eq!(before_and_after(door, sql, added).await, (Some(9), Some(55)), "{door:?}");
        // Under its own name, by the engine's own door.
        let sql = "SELECT sum(abs(v)) FROM t WHERE v > {}";
        let added = async |session: &Millpond| {
            let cpu = function("abs", DataType::Int64, 100);
            let abs = DeviceFunction::from_builder(cpu, &[DataType::Int64], &DataType::Int64, |b, x| {
                let value = b.constant(100_i64)?;
                b.add(&value, &x[0])
            });
            session.register_function(abs.expect("it is built")).expect("it runs here");
        };
        assert_eq!(before_and_after(door, sql, added).await, (Some(45), Some(1045)), "{door:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_under_another_name_changes_nothing() {
    let session = session();
    let sql = "SELECT sum(length(s)) FROM t WHERE v > -1";
    for _ in 0..2 {
        assert_eq!(number(&session, Door::Text, sql).await, Some(30));
    }
    session.context().register_udf(function("other", DataType::Utf8, 7));
    session.context().register_udwf(row_number_udwf().as_ref().clone().with_aliases(["another"]));
    session.context().register_udaf(max_udaf().as_ref().clone().with_aliases(["largest"]));
    let kept = session.plans_found().kept;
    assert_eq!(number(&session, Door::Text, sql).await, Some(30));
    assert_eq!(session.plans_found().kept, kept + 1);
}

/// Rows with v < 8 become rows with v < 3.
#[derive(Debug)]
struct Fewer;

fn fewer(expr: Expr) -> Result<Transformed<Expr>> {
    expr.transform_up(|part| match part {
        Expr::Literal(ScalarValue::Int64(Some(8)), meta) => {
            Ok(Transformed::yes(Expr::Literal(ScalarValue::Int64(Some(3)), meta)))
        }
        other => Ok(Transformed::no(other)),
    })
}

fn with_fewer(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up(|node| match node {
        LogicalPlan::Filter(_) => node.map_expressions(fewer),
        other => Ok(Transformed::no(other)),
    })
}

impl OptimizerRule for Fewer {
    fn name(&self) -> &str {
        "fewer"
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        with_fewer(plan)
    }
}

impl AnalyzerRule for Fewer {
    fn name(&self) -> &str {
        "fewer"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        with_fewer(plan).data()
    }
}

impl FunctionRewrite for Fewer {
    fn name(&self) -> &str {
        "fewer"
    }

    fn rewrite(&self, expr: Expr, _: &DFSchema, _: &ConfigOptions) -> Result<Transformed<Expr>> {
        match expr {
            Expr::Literal(ScalarValue::Int64(Some(8)), _) => fewer(expr),
            other => Ok(Transformed::no(other)),
        }
    }
}

impl ExprPlanner for Fewer {
    fn plan_binary_op(&self, expr: RawBinaryExpr, _: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let right = fewer(expr.right.clone())?;
        if !right.transformed {
            return Ok(PlannerResult::Original(expr));
        }
        let fewer = BinaryExpr::new(Box::new(expr.left), Operator::Lt, Box::new(right.data));
        Ok(PlannerResult::Planned(Expr::BinaryExpr(fewer)))
    }
}

/// No rows at all.
#[derive(Debug)]
struct Nothing;

impl PhysicalOptimizerRule for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(GlobalLimitExec::new(plan, 0, Some(0))))
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[async_trait]
impl QueryPlanner for Nothing {
    async fn create_physical_plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await?;
        Ok(Arc::new(GlobalLimitExec::new(plan, 0, Some(0))))
    }
}

/// `t` has the rows of another table.
#[derive(Debug)]
struct Elsewhere(Arc<MemTable>);

impl RelationPlanner for Elsewhere {
    fn plan_relation(&self, _: TableFactor, _: &mut dyn RelationPlannerContext) -> Result<RelationPlanning> {
        let source = provider_as_source(Arc::clone(&self.0) as _);
        let plan = LogicalPlanBuilder::scan("t", source, None)?.build()?;
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, None))))
    }
}

fn rebuilt(session: &Millpond, change: impl FnOnce(SessionStateBuilder) -> SessionStateBuilder) {
    let state = session.context().state();
    *session.context().state_ref().write() = change(SessionStateBuilder::new_from_existing(state)).build();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_a_program_adds_is_noticed() {
    let sql = "SELECT sum(v) FROM t WHERE v < 8 AND v > {}";
    let (all, few) = (Some(28), Some(3));
    for door in DOORS {
        let added = async |session: &Millpond| session.context().add_optimizer_rule(Arc::new(Fewer));
        assert_eq!(before_and_after(door, sql, added).await, (all, few), "an optimizer rule, {door:?}");
        let added = async |session: &Millpond| session.context().add_analyzer_rule(Arc::new(Fewer));
        assert_eq!(before_and_after(door, sql, added).await, (all, few), "an analyzer rule, {door:?}");
        let added = async |session: &Millpond| {
            let state = session.context().state_ref();
            state.write().register_function_rewrite(Arc::new(Fewer)).expect("registered");
        };
        assert_eq!(before_and_after(door, sql, added).await, (all, few), "a function rewrite, {door:?}");
        let added = async |session: &Millpond| {
            rebuilt(session, |state| state.with_physical_optimizer_rule(Arc::new(Nothing)));
        };
        assert_eq!(before_and_after(door, sql, added).await, (all, None), "a physical rule, {door:?}");
        let added = async |session: &Millpond| rebuilt(session, |state| state.with_query_planner(Arc::new(Nothing)));
        assert_eq!(before_and_after(door, sql, added).await, (all, None), "a query planner, {door:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planner_that_a_program_adds_is_noticed() {
    let sql = "SELECT sum(v) FROM t WHERE v > {} AND v < 8";
    for door in DOORS {
        let added = async |session: &Millpond| {
            // The session's own planners come first, and leave comparisons alone.
            session.context().state_ref().write().register_expr_planner(Arc::new(Fewer)).expect("registered");
        };
        assert_eq!(before_and_after(door, sql, added).await, (Some(28), Some(3)), "of expressions, {door:?}");
        let added = async |session: &Millpond| {
            let batch = rows(1);
            let other = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a table");
            session.context().register_relation_planner(Arc::new(Elsewhere(Arc::new(other)))).expect("registered");
        };
        let least = sql.replace("sum(v)", "min(v)");
        assert_eq!(before_and_after(door, &least, added).await, (Some(0), Some(1)), "of relations, {door:?}");
    }
}

/// A rule that is taken away, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_is_removed_is_noticed() {
    for door in DOORS {
        let sql = "SELECT sum(v) FROM t WHERE v < 8 AND v > {}";
        let session = session();
        for constant in 1..4 {
            let constant = if door == Door::Template { -constant } else { -1 };
            assert_eq!(number(&session, door, &sql.replace("{}", &constant.to_string())).await, Some(28));
        }
        let before = session.plans_found();
        assert!(session.context().remove_optimizer_rule("push_down_filter"));
        assert_eq!(number(&session, door, &sql.replace("{}", "-1")).await, Some(28));
        assert_eq!(session.plans_found(), before, "{door:?}");
    }
}

/// A store whose files all have one time of change.
#[derive(Debug)]
struct OfOneTime(Arc<InMemory>);

impl fmt::Display for OfOneTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfOneTime")
    }
}

type Stored<T> = millpond::datafusion::object_store::Result<T>;

fn of_one_time(meta: ObjectMeta) -> ObjectMeta {
    ObjectMeta { last_modified: Default::default(), e_tag: None, ..meta }
}

#[async_trait]
impl ObjectStore for OfOneTime {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Stored<PutResult> {
        self.0.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, at: &Path, opts: PutMultipartOptions) -> Stored<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(at, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Stored<GetResult> {
        let got = self.0.get_opts(location, options).await?;
        Ok(GetResult { meta: of_one_time(got.meta.clone()), ..got })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Stored<Path>>) -> BoxStream<'static, Stored<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Stored<ObjectMeta>> {
        self.0.list(prefix).map(|meta| meta.map(of_one_time)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Stored<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Stored<()> {
        self.0.copy_opts(from, to, options).await
    }
}

/// Under the same address, with a file of the same size and time: its footer is the same, but for its rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_the_place_of_another_is_noticed() {
    let stores = [0, 1].map(|_| Arc::new(InMemory::new()));
    for (store, first) in stores.iter().zip([0, 1]) {
        put(store, "t.parquet", &rows(first)).await;
    }
    for door in [Door::Text, Door::Template] {
        let sim = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
        // Columns that stay are found by the address of their files.
        sim.execute("SET millpond.cache = off").await.expect("an option");
        register(&sim, Arc::new(OfOneTime(Arc::clone(&stores[0]))));
        sim.context().register_parquet("f", format!("{URL}t.parquet"), Default::default()).await.expect("read");
        let sql = |constant: i64| match door {
            Door::Template => format!("SELECT sum(v) FROM f WHERE v * 1 > -{constant}"),
            _ => "SELECT sum(v) FROM f WHERE v * 1 > -1".to_string(),
        };
        for constant in 1..4 {
            assert_eq!(number(&sim, door, &sql(constant)).await, Some(45));
        }
        let found = sim.plans_found();
        register(&sim, Arc::new(OfOneTime(Arc::clone(&stores[1]))));
        assert_eq!(number(&sim, door, &sql(4)).await, Some(55), "{door:?}");
        assert_eq!(sim.plans_found().kept, found.kept, "{door:?}");
    }
}
