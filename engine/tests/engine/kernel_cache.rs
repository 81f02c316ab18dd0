//! Assembled kernels that stay on disk: a second process of the suite assembles none.
//!
//!   22 queries ─► kernels ─► files          22 queries, last to first ─► files ─► the same answers, nothing assembled

use std::path::Path;

use millpond::{DeviceChoice, Fallback, Millpond, QueryResult};
use millpond_memory::KernelCacheStatistics;

use crate::answers::Answer;
use crate::tpch::{config, data, queries, register_files};

/// Results of a process: the answers by query, the cache's counts, and the number of texts its driver assembled.
struct Process {
    answers: Vec<(usize, Answer)>,
    kernels: KernelCacheStatistics,
    texts_assembled: u64,
}

/// A process of its own but for its address space: a device, a session, and tasks that have ended when it is over.
fn process(folder: &Path, mut queries: Vec<(usize, String)>, last_first: bool) -> Process {
    if last_first {
        queries.reverse();
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (mut answers, engine) = runtime.block_on(async {
        let folder = folder.to_str().expect("UTF-8");
        let builder =
            Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_fallback(Fallback::Error);
        let builder = builder.with_config(config(1)).with_option("kernel_cache", folder).expect("an option");
        let session = builder.with_option("partitions", "1").expect("an option").build().expect("the device opens");
        register_files(session.context(), &data("0.001")).await;
        let mut answers = Vec::new();
        for (number, sql) in queries {
            let result: QueryResult = session.execute(&sql).await.expect("an answer");
            assert_eq!(result.report.findings, Vec::<String>::new(), "q{number:02}");
            answers.push((number, Answer::new(&result.schema, &result.batches)));
        }
        (answers, session.engine().expect("a device").clone())
    });
    // Ends once pipelines that were compiled ahead are there.
    drop(runtime);
    answers.sort_by_key(|(number, _)| *number);
    let kernels = engine.kernel_cache().expect("a folder").statistics();
    let texts_assembled = engine.simulated().expect("the simulated device").counters().texts_assembled;
    Process { answers, kernels, texts_assembled }
}

#[test]
fn a_second_process_assembles_nothing_in_any_order() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let kernels = folder.path().join("kernels");
    let first = process(&kernels, queries(), false);
    assert!(first.kernels.assembled > 50 && first.kernels.written == first.kernels.assembled, "{:?}", first.kernels);
    assert_eq!(first.texts_assembled, first.kernels.assembled);
    let second = process(&kernels, queries(), true);
    assert!(second.kernels.read > 50, "{:?}", second.kernels);
    assert_eq!((second.kernels.assembled, second.kernels.written, second.kernels.refused), (0, 0, 0));
    assert_eq!(second.texts_assembled, 0, "no module went by the folder");
    for ((number, first), (_, second)) in first.answers.iter().zip(&second.answers) {
        assert_eq!(first.difference(second, true), None, "q{number:02}");
    }
}

#[test]
fn the_simulated_device_keeps_none_unless_told() {
    let session =
        Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).build().expect("the device opens");
    assert!(session.engine().expect("a device").kernel_cache().is_none());
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("UTF-8");
    let builder =
        Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_option("kernel_cache", path);
    let refused = builder.expect("an option").build().expect_err("a file is no folder").to_string();
    assert!(refused.contains("millpond.kernel_cache") && refused.contains(path), "{refused}");
}
