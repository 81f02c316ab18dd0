//! Every strategy of device memory gives the same answers, and gets all of its memory back.
//!
//!   six strategies × queries over generated rows, device = sim ─► DataFusion's answers, no findings, 0 bytes left
//!
//! All 22 queries: `millpond run tpch --data DIR --device sim --allocator NAME --validate cpu`, for each name.

use millpond::{DeviceChoice, Fallback, Millpond};
use millpond_memory::Strategy;
use millpond_memory::log::{Action, LogFile};
use millpond_memory::replay::Player;
use millpond_memory::{ByteSize, Device};

use crate::answers::Answer;
use crate::tpch::{config, data, parquet_session, queries, register_parquet};

/// One aggregate alone, one that sorts, one with many groups, one with a join on the CPU.
const QUERIES: [usize; 4] = [1, 6, 13, 18];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_answers_alike_and_keeps_nothing() {
    let data = data("0.001");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(3), &data).await;
    for strategy in Strategy::ALL {
        let session = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_config(config(3));
        let session = session.with_option("memory_resource", strategy.name()).unwrap();
        let session = session.with_option("batch_rows", "1024").unwrap().build().expect("the device opens");
        register_parquet(session.context(), &data).await;
        for number in QUERIES {
            let sql = &queries()[number - 1].1;
            let expected = cpu.execute(sql).await.expect("the CPU's answer");
            let actual = session.execute(sql).await.expect("the device's answer");
            let report = &actual.report;
            let what = format!("Q{number} from {strategy}");
            let ordered = sql.to_lowercase().contains("order by");
            let expected = Answer::new(&expected.schema, &expected.batches);
            let difference = expected.difference(&Answer::new(&actual.schema, &actual.batches), ordered);
            assert_eq!(difference, None, "{what}");
            assert_eq!(report.memory_resource, Some(strategy.name()), "{what}");
            assert_eq!(report.findings, Vec::<String>::new(), "{what}");
            assert_eq!(report.pool_used_bytes, 0, "{what}");
            assert!(report.launches > 0 && report.allocations > 0, "{what}: {report:?}");
        }
        let engine = session.engine().expect("a device");
        assert_eq!(engine.pool().resource().name(), strategy.name());
        millpond::store::Store::of(engine).clear();
        let held = || engine.pool().statistics().expect("statistics");
        if strategy == Strategy::Arena {
            // The run's end does this, but for what another task still held at that moment.
            engine.pool().end_of_query().expect("nothing is in use");
            assert_eq!(held().reserved, ByteSize::ZERO, "an arena's chunks go back at the end of a query");
        }
        // Pools of the driver's lend what they were given back until the device has come to it: the trim waits for
        // that.
        engine.pool().trim_to(ByteSize::ZERO).expect("trimmed");
        assert_eq!(held().used, ByteSize::ZERO, "{strategy} still lends");
        assert_eq!(held().reserved, ByteSize::ZERO, "{strategy} keeps memory");
    }
}

#[tokio::test]
async fn a_session_keeps_the_strategy_it_began_with() {
    let session =
        Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).build().expect("the device opens");
    let set = |name: &str| format!("SET millpond.memory_resource = '{name}'");
    let refused = session.context().sql(&set("arena")).await.expect_err("a device is open").strip_backtrace();
    assert!(
        refused.contains("it is cuda_async since the session began; start a session with --allocator arena"),
        "{refused}"
    );
    let unknown = session.context().sql(&set("aren")).await.expect_err("no such strategy").strip_backtrace();
    assert!(unknown.contains("did you mean arena?"), "{unknown}");
    assert!(session.context().sql(&set("cuda_async")).await.is_ok(), "what it is already");
    assert_eq!(session.engine().expect("a device").memory_resource(), Strategy::CudaAsync);

    // Without a device nothing was chosen yet, and nothing comes of it.
    let cpu = Millpond::builder().with_device(DeviceChoice::Cpu).build().expect("a session");
    assert!(cpu.context().sql(&set("arena")).await.is_ok());

    // A session that shares a device has that device's strategy.
    let engine = session.engine().expect("a device").clone();
    let shared = Millpond::builder().with_option("memory_resource", "caching").unwrap().with_engine(engine);
    let shared = shared.build().expect("a session");
    assert!(shared.context().sql(&set("caching")).await.is_err(), "it is the device's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_querys_log_is_replayed_without_findings_by_every_strategy() {
    let data = data("0.001");
    let file = data.join("memory.csv");
    let session = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_config(config(3));
    let session = session.with_option("memory_log", file.to_str().expect("UTF-8")).unwrap();
    let session = session.with_option("cache", "off").unwrap();
    let session = session.with_option("batch_rows", "1024").unwrap().build().expect("the device opens");
    register_parquet(session.context(), &data).await;
    let result = session.execute(&queries()[0].1).await.expect("an answer");
    session.engine().expect("a device").flush_memory_log().expect("written");
    let log = LogFile::read(std::io::BufReader::new(std::fs::File::open(&file).expect("the log"))).expect("it reads");
    let count = |action| log.records.iter().filter(|record| record.action == action).count() as u64;
    assert!(log.ordered);
    assert_eq!(count(Action::Allocate), result.report.allocations);
    assert_eq!(count(Action::Free), result.report.allocations);
    assert!(count(Action::UseRead) > 0 && count(Action::UseWrite) > 0 && count(Action::UseShare) > 0);
    for strategy in Strategy::ALL {
        let sim = millpond_memory::driver::sim::SimDriver::with_seed(7);
        let device = Device::open(sim.clone(), 0).expect("a device");
        let resource = strategy.create(&device).expect("a resource");
        let report = Player::new(&device).play(&log, &resource).expect("it plays");
        assert_eq!(
            (report.allocations, report.failures, report.skipped),
            (result.report.allocations, 0, 0),
            "{strategy}"
        );
        assert_eq!((report.left_allocations, report.uses > 0), (0, true), "{strategy}");
        drop(resource);
        assert_eq!(sim.take_findings(), [], "{strategy}");
    }
}

#[test]
fn a_log_that_cannot_be_made_is_an_error_with_its_path() {
    let session = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim);
    let refused = session.with_option("memory_log", "/no/such/folder/log.csv").unwrap().build().expect_err("no folder");
    assert!(refused.is_file(), "{refused}");
    assert!(refused.to_string().contains("'/no/such/folder/log.csv', which millpond.memory_log names"), "{refused}");
}
