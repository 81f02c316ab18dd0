//! SQL on devices with other limits than an H200's: the same answers, with smaller tables and grids.
//!
//!   sm_70 · sm_75 · sm_86 · sm_120 ─► Q1 (sort) · Q3 (top-k) · Q9, Q13 (texts) · Q18 (hash groups) · Q22 ─►
//!                                     DataFusion's answers

use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::tpch::{config, data, parquet_session, queries, register_files};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_answer_alike_on_devices_of_every_shape() {
    let data = data("0.01");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &data).await;
    let mut expected = Vec::new();
    for (number, sql) in queries().into_iter().filter(|(number, _)| [1, 3, 9, 13, 18, 22].contains(number)) {
        let answer = cpu.execute(&sql).await.unwrap_or_else(|error| panic!("Q{number} on the CPU: {error}"));
        expected.push((number, sql, Answer::new(&answer.schema, &answer.batches)));
    }
    for shape in ["sm_70", "sm_75", "sm_86", "sm_120"] {
        let builder =
            Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_fallback(Fallback::Error);
        let builder =
            builder.with_config(config(2)).with_option("debug_sim_shape", shape).expect("the option is taken");
        let sim = builder.build().expect("the device opens");
        register_files(sim.context(), &data).await;
        for (number, sql, expected) in &expected {
            let actual = sim.execute(sql).await.unwrap_or_else(|error| panic!("Q{number} on {shape}: {error}"));
            let difference = expected.difference(&Answer::new(&actual.schema, &actual.batches), true);
            assert_eq!(difference, None, "Q{number} on {shape}");
            assert!(actual.report.launches > 0 && actual.report.findings.is_empty(), "Q{number} on {shape}");
        }
    }
}
