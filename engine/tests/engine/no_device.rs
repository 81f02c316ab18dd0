//! Without a device the plan is DataFusion's, byte for byte, and the note says why.

use millpond::datafusion::physical_plan::displayable;
use millpond::datafusion::prelude::{SessionConfig, SessionContext};
use millpond::{DeviceChoice, Fallback, Millpond, error};

use crate::support::{register_parquet, session, session_with};
use crate::tpch;

const QUERIES: &[&str] = &[
    "SELECT count(*), sum(price) FROM parts WHERE size > 10",
    "SELECT name, avg(weight) FROM parts GROUP BY name ORDER BY name LIMIT 3",
    "SELECT id, price * 2 FROM parts WHERE name LIKE 'b%' AND made > DATE '1992-01-01'",
    "SELECT a.name FROM parts a JOIN parts b ON a.id = b.size",
];

#[tokio::test]
async fn plans_are_datafusions_own() {
    let folder = tempfile::tempdir().unwrap();
    let plain = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(4));
    register_parquet(&plain, &folder).await;
    for device in [DeviceChoice::Cpu, DeviceChoice::Auto] {
        let session = session(device);
        if session.engine().is_some() {
            continue; // a CUDA device is here: then `auto` is not without one
        }
        register_parquet(session.context(), &folder).await;
        for sql in QUERIES {
            let mut texts = Vec::new();
            for context in [&plain, session.context()] {
                let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
                texts.push(displayable(plan.as_ref()).indent(true).to_string());
            }
            assert_eq!(texts[0], texts[1], "{sql}");
        }
    }
}

#[tokio::test]
async fn plans_of_tpch_are_datafusions_own() {
    let data = tpch::data("0.001");
    for partitions in [1, 3] {
        let session = tpch::parquet_session(DeviceChoice::Auto, Fallback::Allow, tpch::config(partitions), &data).await;
        if session.engine().is_some() {
            return; // a CUDA device is here: then `auto` is not without one
        }
        assert!(session.device_note().expect("a note").contains("running on CPU"));
        let plain = SessionContext::new_with_config(tpch::config(partitions));
        for table in millpond_data::tpch::Table::ALL.map(|table| table.name()) {
            let path = data.join(format!("{table}.parquet"));
            plain.register_parquet(table, path.to_str().unwrap(), Default::default()).await.unwrap();
        }
        for (number, sql) in tpch::queries() {
            let mut texts = Vec::new();
            for context in [&plain, session.context()] {
                let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
                texts.push(displayable(plan.as_ref()).indent(true).to_string());
            }
            assert_eq!(texts[0], texts[1], "Q{number}");
            assert!(!texts[1].contains("Device") && !texts[1].contains("UploadExec"), "Q{number}: {}", texts[1]);
        }
    }
}

#[tokio::test]
async fn switched_off_the_plans_are_datafusions_too() {
    let folder = tempfile::tempdir().unwrap();
    let plain = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(4));
    let session = session(DeviceChoice::Sim);
    register_parquet(&plain, &folder).await;
    register_parquet(session.context(), &folder).await;
    session.context().sql("SET millpond.enabled = false").await.unwrap();
    for sql in QUERIES {
        let mut texts = Vec::new();
        for context in [&plain, session.context()] {
            let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            texts.push(displayable(plan.as_ref()).indent(true).to_string());
        }
        assert_eq!(texts[0], texts[1], "{sql}");
    }
}

#[test]
fn the_note_says_why() {
    let session = session(DeviceChoice::Auto);
    match session.engine() {
        Some(_) => assert_eq!(session.device_note(), None),
        None => assert!(session.device_note().unwrap().contains("running on CPU")),
    }
    assert_eq!(session_with(DeviceChoice::Cpu, 4, Fallback::Allow).device_note(), None);
}

#[test]
fn a_device_that_does_not_exist_is_an_error() {
    let refused = Millpond::builder().with_own_engine().with_device(DeviceChoice::Cuda(99)).build();
    let error = refused.expect_err("no machine has a hundred devices");
    assert!(error.is_device_missing(), "{error}");
    assert!(error.to_string().contains("cuda:99"), "{error}");
}

#[tokio::test]
async fn set_of_an_unknown_option_suggests_the_nearest() {
    let session = session(DeviceChoice::Cpu);
    let refused = session.context().sql("SET millpond.fallbak = 'error'").await.unwrap_err();
    assert!(error::is_usage(&refused), "{refused}");
    assert!(refused.to_string().contains("did you mean millpond.fallback?"), "{refused}");
    session.context().sql("SET millpond.batch_rows = 100").await.unwrap();
    let shown = session.execute("SHOW millpond.batch_rows").await.unwrap();
    assert_eq!(shown.batches.iter().map(|b| b.num_rows()).sum::<usize>(), 1);
}
