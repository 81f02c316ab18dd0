//! Operators from outside: a session's plans are placed with those that it is given, beside the engine's own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond::contract::{DeviceOperator, Operators, Placed};
use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
use millpond::datafusion::catalog::TableProvider;
use millpond::datafusion::common::config::ConfigOptions;
use millpond::datafusion::common::stats::Precision;
use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::datafusion::common::{ScalarValue, Statistics};
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::{SendableRecordBatchStream, TaskContext};
use millpond::datafusion::logical_expr::Operator;
use millpond::datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use millpond::datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use millpond::datafusion::physical_optimizer::PhysicalOptimizerRule;
use millpond::datafusion::physical_plan::filter::FilterExec;
use millpond::datafusion::physical_plan::sorts::sort::SortExec;
use millpond::datafusion::physical_plan::statistics::StatisticsArgs;
use millpond::datafusion::physical_plan::unnest::UnnestExec;
use millpond::datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};
use millpond::error::reason::Reason;
use millpond::operator::registry;
use millpond::placement::{PlaceOnDevice, Placing};
use millpond::program::contract::ToSegments;
use millpond::source::SourceExec;
use millpond::{DeviceChoice, Fallback, Millpond, MillpondBuilder, QueryReport, error};

use crate::support::{parts, plan_text, session};

fn builder(fallback: Fallback) -> MillpondBuilder {
    Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_fallback(fallback)
}

/// A session with `parts` as a table in memory.
fn with_parts(builder: MillpondBuilder) -> Millpond {
    let session = builder.build().expect("the device opens");
    session.context().register_batch("parts", parts()).expect("the name is free");
    session
}

fn said_of_unnest(report: &QueryReport) -> Vec<&str> {
    report.reasons.iter().map(String::as_str).filter(|reason| reason.to_lowercase().starts_with("unnest")).collect()
}

/// Says in its own words why lists are not unnested on the device.
#[derive(Debug)]
struct Unnest;

impl ToSegments for Unnest {}

impl DeviceOperator for Unnest {
    fn name(&self) -> &'static str {
        "unnest"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        let unnest = node.downcast_ref::<UnnestExec>()?;
        let reason = Reason::ExprUnsupported { expr: "unnest".into(), why: "a test says so".into() };
        Some(to.in_order(|| to.place(unnest.input())).and_then(|input| to.stay(node, vec![input], Some(reason))))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        node.is::<UnnestExec>().then_some(true)
    }
}

/// Takes the place of the engine's own limits, and limits nothing.
#[derive(Debug)]
struct NoLimits;

impl ToSegments for NoLimits {}

impl DeviceOperator for NoLimits {
    fn name(&self) -> &'static str {
        "limit"
    }

    fn works(&self, _node: &dyn ExecutionPlan) -> Option<bool> {
        None
    }
}

#[tokio::test]
async fn an_added_operator_places_its_nodes_and_gives_its_reason() {
    let sql = "SELECT count(*) FROM (SELECT unnest(array_distinct([id, size])) FROM parts WHERE size > 10)";
    let said = "unnest has no device form: a test says so";
    let session = with_parts(builder(Fallback::Allow).operator(Arc::new(Unnest)));
    let answer = session.execute(sql).await.unwrap();
    assert_eq!(said_of_unnest(&answer.report), [said]);
    assert!(answer.report.operators_on_device > 0 && answer.report.findings.is_empty(), "{:?}", answer.report);
    let cpu = with_parts(Millpond::builder().with_device(DeviceChoice::Cpu)).execute(sql).await.unwrap();
    let text = |batches| pretty_format_batches(batches).unwrap().to_string();
    assert_eq!(text(&answer.batches), text(&cpu.batches));

    let strict = with_parts(builder(Fallback::Error).operator(Arc::new(Unnest)));
    let refused = strict.execute(sql).await.err().expect("fallback is an error");
    assert!(error::is_forbidden_fallback(&refused) && refused.to_string().contains(said), "{refused}");
}

#[tokio::test]
async fn an_operator_that_is_added_later_is_asked_from_the_next_plan_on() {
    let sql = "SELECT unnest(array_distinct([id, size])) FROM parts WHERE size > 10";
    let session = with_parts(builder(Fallback::Allow));
    let before = session.execute(sql).await.unwrap().report;
    assert!(said_of_unnest(&before).is_empty(), "{before:?}");
    let known = session.context().copied_config().get_extension::<Operators>().expect("the session has a list");
    for _ in 0..2 {
        known.add(Arc::new(Unnest));
        assert_eq!(session.operators().all().len(), registry().all().len());
    }
    let after = session.execute(sql).await.unwrap().report;
    assert_eq!(said_of_unnest(&after), ["unnest has no device form: a test says so"]);
    assert_eq!((after.operators, after.operators_on_device + 1), (before.operators, before.operators_on_device));
}

/// A filter stops after some rows; without an operator that holds it to that, what reads it stays on the CPU.
#[tokio::test]
async fn without_an_operator_that_limits_the_cpu_does() {
    let sql = "SELECT count(id) FROM (SELECT id FROM parts WHERE size > 10 LIMIT 5)";
    let session = with_parts(builder(Fallback::Allow).operator(Arc::new(NoLimits)));
    assert_eq!(session.operators().all().len(), registry().all().len(), "one operator of a name");
    assert!(!plan_text(&session, sql).await.contains("DeviceLimitExec"));
    let answer = session.execute(sql).await.unwrap();
    let rows = answer.batches[0].column(0);
    assert_eq!(ScalarValue::try_from_array(rows, 0).unwrap(), ScalarValue::Int64(Some(5)));

    let session = with_parts(builder(Fallback::Allow));
    assert!(plan_text(&session, sql).await.contains("DeviceLimitExec"), "the plan has a limit to place");
}

/// A scan that counts how often its statistics are computed.
#[derive(Debug)]
struct Counted {
    scan: Arc<dyn ExecutionPlan>,
    rows: usize,
    reads: AtomicUsize,
}

impl Counted {
    async fn of_rows(rows: usize) -> Arc<Self> {
        let session = session(DeviceChoice::Cpu);
        let batch = parts();
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap();
        let scan = table.scan(&session.context().state(), None, &[], None).await.unwrap();
        Arc::new(Self { scan, rows, reads: AtomicUsize::new(0) })
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

impl DisplayAs for Counted {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

impl ExecutionPlan for Counted {
    fn name(&self) -> &str {
        "Counted"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.scan.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.scan.execute(partition, context)
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let unknown = Statistics::new_unknown(self.schema().as_ref());
        Ok(Arc::new(Statistics { num_rows: Precision::Exact(self.rows), ..unknown }))
    }
}

/// The upload asks for them, the sort asks how many rows it sorts, and a run asks the upload.
#[tokio::test]
async fn statistics_of_a_scan_are_read_once_for_a_plan() {
    let scan = Counted::of_rows(1000).await;
    let id: Arc<dyn PhysicalExpr> = Arc::new(Column::new("id", 0));
    let ten = Arc::new(Literal::new(ScalarValue::Int64(Some(10))));
    let over_ten = Arc::new(BinaryExpr::new(Arc::clone(&id), Operator::Gt, ten));
    let filter = Arc::new(FilterExec::try_new(over_ten, Arc::clone(&scan) as _).unwrap());
    let sort = Arc::new(SortExec::new([PhysicalSortExpr::new_default(id)].into(), filter));
    let session = session(DeviceChoice::Sim);
    let rule = PlaceOnDevice::new(Arc::clone(session.engine().unwrap()), registry());
    // Making a filter reads them, too.
    let before = scan.reads();
    let placed = rule.optimize(sort, &ConfigOptions::default()).unwrap();
    assert_eq!(scan.reads() - before, 1);

    let mut uploads = Vec::new();
    placed
        .apply(|node| {
            uploads.extend(node.is::<SourceExec>().then(|| Arc::clone(node)));
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
    let [upload] = uploads.as_slice() else { panic!("one scan is uploaded: {uploads:?}") };
    let rows =
        |upload: &Arc<dyn ExecutionPlan>| upload.downcast_ref::<SourceExec>().unwrap().statistics().unwrap().num_rows;
    assert_eq!(rows(upload), Precision::Exact(1000));
    let over = |input: &Arc<Counted>| {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Arc::clone(upload).replace_children(vec![Arc::clone(input) as _], options).unwrap()
    };
    let same = over(&scan);
    assert_eq!((rows(&same), scan.reads() - before), (Precision::Exact(1000), 1));

    let other = Counted::of_rows(7).await;
    let changed = over(&other);
    assert_eq!(
        (rows(&changed), rows(&changed)),
        (Precision::Exact(7), Precision::Exact(7)),
        "not those of another input"
    );
    assert_eq!((scan.reads() - before, other.reads()), (1, 1));
}
