//! Which plans come out: text after placement, one case per reason.

use millpond::DeviceChoice;

use crate::support::{plan_text, register_parquet, session};

async fn placed(sql: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let session = session(DeviceChoice::Sim);
    register_parquet(session.context(), &folder).await;
    plan_text(&session, sql).await
}

#[tokio::test]
async fn filter_project_aggregate_go_to_the_device() {
    assert_eq!(
        placed("SELECT sum(price * 2) FROM parts WHERE size > 10").await,
        "DownloadExec\n\
         \x20 DeviceAggregateExec: gby=[], aggr=[sum(parts.price * Int64(2))]\n\
         \x20   DeviceFilterExec: size@0 > 10, projection=[price@1]\n\
         \x20     UploadExec\n\
         \x20       DataSourceExec"
    );
}
