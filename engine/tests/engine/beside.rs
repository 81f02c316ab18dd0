//! Threads beside each other on one device: random statements of two sessions, while columns are loaded, cleared and
//! leave.
//!
//!   session 1: room for all ───┬─ 16 threads ─► statements ─► the CPU's answers       MILLPOND_FUZZ_SEED chooses them,
//!                                                                                     or the commit
//!   session 2: room for little ┘      └─ millpond_cache_warm, millpond_cache_clear

use std::sync::Arc;

use millpond::datafusion::prelude::SessionConfig;
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond};
use millpond_data::seed::of_commit;

use crate::answers::Answer;
use crate::tpch::{config, data, parquet_session, register_files};

const THREADS: u64 = 16;
const STATEMENTS: u64 = 40;
const TURNS: u64 = 12;

/// The `number`-th random number of a seed.
fn random(seed: u64, number: u64) -> u64 {
    let mixed = (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33
}

/// A statement over some table, with constants that few others have.
fn statement(seed: u64, number: u64) -> String {
    let draw = |of: u64, below: u64| random(seed, number * 8 + of) % below;
    let (some, letter) = (draw(1, 50), char::from(b'A' + draw(2, 26) as u8));
    match draw(0, 8) {
        0 => {
            format!("SELECT l_returnflag, sum(l_quantity), count(*) FROM lineitem WHERE l_quantity > {some} GROUP BY 1")
        }
        1 => format!("SELECT count(*), max(p_name) FROM part WHERE p_type LIKE '%{letter}%' AND p_size < {some}"),
        2 => format!("SELECT o_orderpriority, min(o_totalprice) FROM orders WHERE o_custkey % 50 = {some} GROUP BY 1"),
        3 => format!(
            "SELECT n_name, count(*) FROM supplier JOIN nation ON s_nationkey = n_nationkey WHERE s_suppkey > {some} GROUP BY 1"
        ),
        4 => format!(
            "SELECT c_mktsegment, avg(c_acctbal) FROM customer WHERE c_nationkey < {some} GROUP BY c_mktsegment"
        ),
        5 => format!(
            "SELECT sum(l_extendedprice) FROM lineitem JOIN part ON l_partkey = p_partkey WHERE p_brand = 'Brand#{}'",
            11 + some % 5
        ),
        6 => format!("SELECT o_orderkey, o_clerk FROM orders WHERE o_orderkey > {some} ORDER BY o_clerk, 1 LIMIT 7"),
        _ => format!("SELECT count(DISTINCT ps_suppkey) FROM partsupp WHERE ps_availqty > {}", some * 100),
    }
}

#[test]
fn threads_of_two_sessions_agree_with_the_cpu() {
    let seed = of_commit("MILLPOND_FUZZ_SEED");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (sessions, engine, expected) = runtime.block_on(async {
        let files = data("0.001");
        let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
        let roomy = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
        let engine = Arc::clone(roomy.engine().expect("a device"));
        let tight = Millpond::builder().with_engine(Arc::clone(&engine));
        let tight = tight.with_config(SessionConfig::new().with_target_partitions(3)).build().expect("a session");
        register_files(tight.context(), &files).await;
        tight.execute("SET millpond.cache_bytes = 20000").await.expect("an option");
        let mut expected = Vec::new();
        for number in 0..STATEMENTS {
            let sql = statement(seed, number);
            let result = cpu.execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            expected.push((sql, Answer::new(&result.schema, &result.batches)));
        }
        ([roomy, tight], engine, expected)
    });
    let before = engine.pool().used_bytes();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (session, handle, expected) = (&sessions[(thread % 2) as usize], runtime.handle(), &expected);
            scope.spawn(move || {
                for turn in 0..TURNS {
                    let draw = random(seed ^ 1, thread * TURNS + turn);
                    let act = match (thread, turn % 4) {
                        (3, 1) => Some("SELECT * FROM millpond_cache_clear()"),
                        (4, 2) => Some("SELECT * FROM millpond_cache_clear('lineitem')"),
                        // Sessions of even threads have room for them.
                        (6 | 8, 0) => Some("SELECT * FROM millpond_cache_warm('orders', 'o_clerk', 'o_orderkey')"),
                        _ => None,
                    };
                    if let Some(act) = act {
                        handle.block_on(session.execute(act)).unwrap_or_else(|error| panic!("{act}: {error}"));
                    }
                    let (sql, expected) = &expected[(draw % STATEMENTS) as usize];
                    let result = handle.block_on(session.execute(sql));
                    let result = result.unwrap_or_else(|error| panic!("MILLPOND_FUZZ_SEED={seed:x}: {sql}: {error}"));
                    let difference = expected.difference(&Answer::new(&result.schema, &result.batches), false);
                    assert_eq!(difference, None, "MILLPOND_FUZZ_SEED={seed:x}: {sql}");
                }
            });
        }
    });
    assert_eq!(engine.take_findings(), Vec::<String>::new(), "MILLPOND_FUZZ_SEED={seed:x}");
    Store::of(&engine).clear();
    runtime.block_on(crate::support::until("memory comes back", || engine.pool().used_bytes() == before));
    assert_eq!((Store::of(&engine).bytes(), before.as_u64()), (0, 0));
}
