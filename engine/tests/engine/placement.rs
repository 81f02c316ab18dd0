//! Which plans come out: text after placement, one case per reason.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{Float64Array, Int64Array, ListViewArray, types::Int64Type};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::{DeviceChoice, Fallback, error};

use crate::support::{plan_text, register_parquet, session, session_with};

async fn placed(sql: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let session = session(DeviceChoice::Sim);
    register_parquet(session.context(), &folder).await;
    plan_text(&session, sql).await
}

/// The reasons of a plan, and that `fallback = 'error'` refuses it with the same words.
async fn reasons(settings: &[&str], sql: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut found = Vec::new();
    for fallback in [Fallback::Allow, Fallback::Error] {
        let session = session_with(DeviceChoice::Sim, 4, fallback);
        register_parquet(session.context(), &folder).await;
        let lists = ListViewArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(1)]), None, Some([Some(2)])]);
        let numbers = Int64Array::from(vec![1, 2, 3]);
        let floats = Float64Array::from(vec![1.0, -0.0, f64::NAN]);
        let batch = RecordBatch::try_from_iter([
            ("a", Arc::new(lists) as _),
            ("n", Arc::new(numbers) as _),
            ("f", Arc::new(floats) as _),
        ]);
        session.context().register_batch("lists", batch.unwrap()).unwrap();
        for setting in settings {
            session.context().sql(setting).await.unwrap();
        }
        let planned = session.context().sql(sql).await.unwrap().create_physical_plan().await;
        found.push(match fallback {
            Fallback::Error => {
                let refused = planned.err().unwrap_or_else(|| panic!("{sql} is planned"));
                assert!(error::is_forbidden_fallback(&refused), "{refused}");
                refused.to_string()
            }
            _ => session.report(&planned.unwrap()).reasons.join("; "),
        });
    }
    assert!(found[1].contains(&found[0]), "{} is not in {}", found[0], found[1]);
    found.swap_remove(0)
}

#[tokio::test]
async fn filter_project_aggregate_go_to_the_device() {
    assert_eq!(
        placed("SELECT sum(price * 2) FROM parts WHERE size > 10").await,
        "DownloadExec\n\
         \x20 DeviceAggregateExec: gby=[], aggr=[sum(parts.price * Int64(2))]\n\
         \x20   DeviceFilterExec: size@0 > 10, projection=[price@1]\n\
         \x20     DeviceScanExec\n\
         \x20       DataSourceExec"
    );
}

#[tokio::test]
async fn repartitions_and_merges_vanish() {
    assert_eq!(
        placed("SELECT name, count(*) AS n FROM parts GROUP BY name ORDER BY n DESC LIMIT 3").await,
        "DownloadExec\n\
         \x20 DeviceProjectExec: expr=[name@0 as name, count(Int64(1))@1 as n]\n\
         \x20   DeviceSortExec: TopK(fetch=3), expr=[count(Int64(1))@1 DESC]\n\
         \x20     DeviceAggregateExec: gby=[name@0 as name], aggr=[count(Int64(1))]\n\
         \x20       DeviceScanExec\n\
         \x20         DataSourceExec"
    );
}

#[tokio::test]
async fn a_join_of_two_subtrees_is_one_subtree() {
    assert_eq!(
        placed("SELECT count(*) FROM parts a JOIN parts b ON a.id = b.size WHERE a.weight > 3 AND b.good").await,
        "DownloadExec\n\
         \x20 DeviceProjectExec: expr=[count(Int64(1))@0 as count(*)]\n\
         \x20   DeviceAggregateExec: gby=[], aggr=[count(Int64(1))]\n\
         \x20     DeviceJoinExec: join_type=Inner, build=left, on=[(CAST(b.size AS Int64)@1, id@0)], columns=[]\n\
         \x20       DeviceProjectExec: expr=[size@0 as size, CAST(size@0 AS Int64) as CAST(b.size AS Int64)]\n\
         \x20         DeviceFilterExec: good@1, projection=[size@0]\n\
         \x20           DeviceScanExec\n\
         \x20             DataSourceExec\n\
         \x20       DeviceFilterExec: weight@1 > 3, projection=[id@0]\n\
         \x20         DeviceScanExec\n\
         \x20           DataSourceExec"
    );
}

#[tokio::test]
async fn when_nothing_goes_to_the_device_one_line_at_the_root_says_why() {
    assert_eq!(
        placed("SELECT approx_median(size) OVER () FROM parts").await.lines().next(),
        Some(
            "FallbackExec: stays on the CPU because approx_median(parts.size) ROWS BETWEEN UNBOUNDED PRECEDING AND \
             UNBOUNDED FOLLOWING has no device form: the device approximates nothing in a window"
        )
    );
}

#[tokio::test]
async fn one_row_plans_and_scans_stay_as_they_are() {
    assert!(!placed("SELECT 1 + 1").await.contains("Device"));
    assert!(!placed("SELECT count(*), sum(x) FROM (SELECT 1 AS x)").await.contains("Device"));
    assert_eq!(placed("SELECT id, name FROM parts").await, "DataSourceExec");
    assert!(!placed("SELECT count(*) FROM parts").await.contains("Device"), "statistics answer it");
}

#[tokio::test]
async fn reason_of_an_operator() {
    let sql = "WITH RECURSIVE up AS (SELECT id FROM parts UNION SELECT id + 1 FROM up WHERE id < 3) SELECT id FROM up";
    let said = reasons(&[], sql).await;
    assert!(said.contains("UNION of a recursive query has no device form"), "{said}");
}

#[tokio::test]
async fn reason_of_an_expression() {
    assert_eq!(
        reasons(&[], "SELECT id FROM parts WHERE to_hex(size) = 'a'").await,
        "to_hex(size@1) has no device form: function to_hex is not lowered"
    );
}

#[tokio::test]
async fn reason_of_a_type() {
    assert_eq!(
        reasons(&[], "SELECT a FROM lists WHERE n > 1").await,
        "a has type ListView(Int64), which has no device form"
    );
}

#[tokio::test]
async fn reason_of_an_aggregate() {
    assert_eq!(
        reasons(&[], "SELECT approx_median(size) FROM parts").await,
        "approx_median(parts.size) has no device form: of more than 86 values its answer depends on DataFusion's batches; median and percentile_cont give exact ones on the device"
    );
}

#[tokio::test]
async fn rows_behind_a_limit_are_out_of_sight() {
    // A sort gives its first rows alone.
    assert_eq!(
        placed("SELECT sum(x) FROM (SELECT size AS x FROM parts WHERE size > 3 ORDER BY id LIMIT 10)").await,
        "DownloadExec\n\
         \x20 DeviceAggregateExec: gby=[], aggr=[sum(x)]\n\
         \x20   DeviceProjectExec: expr=[x@0 as x]\n\
         \x20     DeviceProjectExec: expr=[size@1 as x, id@0 as id]\n\
         \x20       DeviceSortExec: TopK(fetch=10), expr=[id@0 ASC NULLS LAST]\n\
         \x20         DeviceFilterExec: size@1 > 3\n\
         \x20           DeviceScanExec\n\
         \x20             DataSourceExec"
    );
    // A filter that stops early may have more.
    let plan = placed("SELECT sum(x) FROM (SELECT size AS x FROM parts WHERE size > 3 LIMIT 10)").await;
    let [sum, filter] = ["DeviceAggregateExec", "DeviceFilterExec"].map(|node| plan.find(node).expect("it is placed"));
    assert!(plan[sum..filter].contains("DeviceLimitExec: skip=0, fetch=10"), "{plan}");
}

#[tokio::test]
async fn reason_of_few_rows() {
    assert_eq!(
        reasons(&["SET millpond.min_rows = 5000"], "SELECT sum(size) FROM parts").await,
        "its input has 1000 rows, and millpond.min_rows is 5000"
    );
}

#[tokio::test]
async fn what_is_computed_stays_above_the_scan() {
    let plan = placed("SELECT size + 1 AS next, id FROM parts").await;
    let [project, scan] =
        ["DeviceProjectExec: expr=[", "DataSourceExec"].map(|node| plan.find(node).expect("it is placed"));
    assert!(plan[project..scan].contains("as next") && !plan.contains("ScanFence"), "{plan}");
    // Only the scan knows its file.
    let (session, folder) = (session(DeviceChoice::Sim), tempfile::tempdir().unwrap());
    register_parquet(session.context(), &folder).await;
    let named = session.execute("SELECT id + 1, input_file_name() FROM parts").await.expect("a name");
    assert_eq!(named.batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 1000);
    // Expressions without a device form stay there, too, with a reason of their own.
    let reason = reasons(&[], "SELECT to_hex(size) FROM parts").await;
    assert!(reason.contains("to_hex") && !reason.contains("inside the scan"), "{reason}");
}
