//! EXPLAIN and EXPLAIN ANALYZE of TPC-H, as text.
//!
//!   22 queries at scale 0.001, device = sim, one partition ─► `explained/plans/q01.txt …` ·
//!                                                             `explained/analyzed/q01.txt …`
//!
//! Write   `MILLPOND_EXPLAINED_WRITE=1 cargo test --workspace --test engine -- explained` writes the files; what
//!         changes wants reading.
//! Masked  times and shares are `_`, and so is the cause of the limit of a run: it is a matter of time.
//! Width   120 columns of a terminal, in every line.

use std::path::Path;

use millpond::datafusion::common::cast::as_string_array;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::support::session;
use crate::tpch::{config, data, parquet_session, queries};

/// Columns of a terminal that a line takes at most; no text here has wide characters.
const WIDTH: usize = 120;

/// The one text of an EXPLAIN.
async fn explained(session: &Millpond, sql: &str) -> String {
    let result = session.execute(sql).await.expect("an answer");
    let [batch] = result.batches.as_slice() else { panic!("one batch is expected: {}", result.batches.len()) };
    assert_eq!(batch.num_rows(), 1, "one text");
    as_string_array(batch.column(1)).expect("texts").value(0).to_string()
}

fn assert_fits(what: &str, text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "{what}: {} columns: {line}", line.chars().count());
    }
}

/// The last line, which names what limits the query.
fn limit<'t>(what: &str, text: &'t str) -> &'t str {
    let last = text.lines().last().expect("lines");
    let limit = last.strip_prefix("limited by: ");
    limit.filter(|limit| !limit.is_empty()).unwrap_or_else(|| panic!("{what}: the last line is {last}"))
}

/// Causes that a run on the simulated device may have.
const CAUSES: [&str; 14] = [
    "planning",
    "assembling kernels",
    "preparing the program",
    "submitting launches",
    "download",
    "kernels",
    "feeding the device",
    "reading Parquet",
    "reading files",
    "giving codes to strings",
    "upload",
    "copies between host and device",
    "CPU operators",
    "rows between operators",
];

/// An answer of EXPLAIN ANALYZE without what differs from run to run.
fn masked(what: &str, text: &str) -> String {
    let header = text.lines().next().expect("a header");
    let end_of = |name: &str| header.find(name).map(|at| at + name.len()).expect("a column");
    // The cells of ms and wall lie between the ends of the columns before and after.
    let (from, middle, to) = (end_of("rows"), end_of("ms"), end_of("wall"));
    let mut masked = Vec::new();
    let mut in_tree = true;
    for (number, line) in text.lines().enumerate() {
        in_tree &= !line.is_empty();
        if number > 0 && in_tree {
            let cells: Vec<char> = line.chars().collect();
            let cell = |from: usize, to: usize| -> String {
                let is_blank = cells.iter().take(to).skip(from).all(|c| *c == ' ');
                format!("{:>width$}", if is_blank { "" } else { "_" }, width = to - from)
            };
            let head: String = cells.iter().take(from).collect();
            let tail: String = cells.iter().skip(to).collect();
            masked
                .push(format!("{head:<from$}{}{}{tail}", cell(from, middle), cell(middle, to)).trim_end().to_string());
        } else if line.starts_with("wall: ") || line.starts_with("feeding: ") || line.starts_with(' ') && number > 0 {
            // Steps, and the further lines of a list of them.
            if let Some((name, _)) = line.split_once(": ").filter(|_| !line.starts_with(' ')) {
                masked.push(format!("{name}: _"));
            }
        } else if line.starts_with("limited by: ") {
            let cause = limit(what, text);
            assert!(CAUSES.iter().any(|known| cause.starts_with(known)), "{what}: {cause}");
            assert!(cause.contains(" % of wall)") && cause.ends_with("say nothing of a GPU"), "{what}: {cause}");
            masked.push("limited by: _".to_string());
        } else {
            masked.push(line.to_string());
        }
    }
    masked.join("\n")
}

/// Compares texts with files of a folder, or writes them.
fn compare(folder: &str, texts: &[(usize, String)]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/explained").join(folder);
    let mut changed = Vec::new();
    for (number, text) in texts {
        let file = folder.join(format!("q{number:02}.txt"));
        if std::env::var_os("MILLPOND_EXPLAINED_WRITE").is_some() {
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(&file, format!("{text}\n")).expect("a file");
            continue;
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        if expected.trim_end() != text.trim_end() {
            changed.push(format!("Q{number}, {}:\n--- expected\n{expected}\n+++ found\n{text}", file.display()));
        }
    }
    assert!(
        changed.is_empty(),
        "{} texts changed; MILLPOND_EXPLAINED_WRITE=1 writes them\n{}",
        changed.len(),
        changed.join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanations_of_tpch_are_those_on_file() {
    let session = parquet_session(DeviceChoice::Sim, Fallback::Allow, config(1), &data("0.001")).await;
    for set in ["SET millpond.partitions = 1", "SET millpond.cache = off"] {
        session.execute(set).await.expect("an option");
    }
    let (mut plans, mut analyzed) = (vec![], vec![]);
    for (number, sql) in queries() {
        let what = format!("Q{number}");
        let plan = explained(&session, &format!("EXPLAIN {sql}")).await;
        assert_fits(&what, &plan);
        limit(&what, &plan);
        plans.push((number, plan));
        let run = explained(&session, &format!("EXPLAIN ANALYZE {sql}")).await;
        assert_fits(&what, &run);
        analyzed.push((number, masked(&what, &run)));
    }
    compare("plans", &plans);
    compare("analyzed", &analyzed);
}

const PARTLY: &str = "SELECT count(*) FROM (SELECT random() AS r, v FROM t WHERE v > 1) WHERE r < 2";

async fn with_table(device: DeviceChoice) -> Millpond {
    let session = session(device);
    session.execute("CREATE TABLE t AS VALUES (1), (2), (3)").await.expect("a table");
    session.execute("CREATE VIEW named AS SELECT column1 AS v FROM t").await.expect("a view");
    session
}

#[tokio::test]
async fn nodes_of_the_cpu_say_why() {
    let sim = with_table(DeviceChoice::Sim).await;
    let sql = PARTLY.replace("FROM t", "FROM named");
    let text = explained(&sim, &format!("EXPLAIN {sql}")).await;
    assert_fits(&sql, &text);
    assert!(text.contains(" · CPU because unsupported-expression: "), "{text}");
    assert!(text.contains("\nreasons (docs/reasons.md has the ways out)\n  unsupported-expression  "), "{text}");
    assert!(limit(&sql, &text).starts_with("CPU operators: "), "{text}");
    // The run names them, too, and the operators that ran on the CPU.
    let text = explained(&sim, &format!("EXPLAIN ANALYZE {sql}")).await;
    assert!(text.contains("\n  unsupported-expression  ") && text.contains(" cpu\n"), "{text}");
    let report = sim.execute(&sql).await.expect("an answer").report;
    assert_eq!(report.reason_codes, ["unsupported-expression"], "{:?}", report.reasons);
    assert_eq!(serde_json::to_value(&report).expect("a map")["reason_codes"][0], "unsupported-expression");
}

#[tokio::test]
async fn definitions_have_the_plan_of_their_query_or_none() {
    let sim = with_table(DeviceChoice::Sim).await;
    for statement in ["CREATE TABLE u AS", "CREATE OR REPLACE TABLE t AS", "CREATE VIEW u AS"] {
        let text = explained(&sim, &format!("EXPLAIN {statement} SELECT v + 1 FROM named WHERE v > 1")).await;
        assert!(text.contains("DeviceFilterExec: ") && text.contains("\nwould run: "), "{statement}: {text}");
        limit(statement, &text);
    }
    for statement in ["DROP TABLE t", "DROP VIEW named", "SET millpond.partitions = 1"] {
        let text = explained(&sim, &format!("EXPLAIN {statement}")).await;
        assert!(text.starts_with("no plan: "), "{statement}: {text}");
        limit(statement, &text);
    }
    // Nothing of it was done.
    assert_eq!(sim.execute("SELECT v FROM named").await.expect("three rows").report.answer_rows, 3);
    let refused = sim.execute("EXPLAIN ANALYZE CREATE TABLE u AS SELECT 1").await.err().expect("refused");
    assert!(refused.to_string().contains("EXPLAIN ANALYZE runs queries"), "{refused}");
}

#[tokio::test]
async fn a_session_without_a_device_says_what_one_would_run() {
    let cpu = with_table(DeviceChoice::Cpu).await;
    let text = explained(&cpu, "EXPLAIN SELECT v, count(*) FROM named WHERE v > 1 GROUP BY v").await;
    assert!(!text.contains("Device") && !text.contains("DownloadExec"), "{text}");
    assert!(
        text.contains("\nwould run: 2 of 2 operators on the device; this session has none, and they run on the CPU\n"),
        "{text}"
    );
    assert!(limit("CPU", &text).starts_with("the CPU: no device ("), "{text}");
    let text = explained(&cpu, "EXPLAIN ANALYZE SELECT v, count(*) FROM named WHERE v > 1 GROUP BY v").await;
    assert!(text.contains("ran: 0 of ") && limit("CPU", &text).contains(" % of wall)"), "{text}");
}

#[tokio::test]
async fn other_forms_have_datafusions_answers() {
    let sim = with_table(DeviceChoice::Sim).await;
    let query = "SELECT column1 FROM t WHERE column1 > 1";
    for (form, wanted) in [
        ("EXPLAIN VERBOSE", "initial_logical_plan"),
        ("EXPLAIN FORMAT INDENT", "logical_plan"),
        ("EXPLAIN FORMAT TREE", "physical_plan"),
        ("EXPLAIN FORMAT PGJSON", "logical_plan"),
        ("EXPLAIN FORMAT GRAPHVIZ", "logical_plan"),
    ] {
        let result = sim.execute(&format!("{form} {query}")).await.expect("an answer");
        let kinds = as_string_array(result.batches[0].column(0)).expect("texts");
        assert_eq!(kinds.value(0), wanted, "{form}");
        let text = as_string_array(result.batches[0].column(1)).expect("texts").value(0);
        assert!(!text.contains("limited by"), "{form}: {text}");
    }
    let verbose = sim.execute(&format!("EXPLAIN ANALYZE VERBOSE {query}")).await.expect("an answer");
    let text = as_string_array(verbose.batches[0].column(1)).expect("texts").value(0);
    for counter in ["launches=", "kernel_0=", "host_steps="] {
        assert!(text.contains(counter), "{counter}: {text}");
    }
    // Settings of DataFusion's choose its answers, too.
    sim.execute("SET datafusion.explain.physical_plan_only = true").await.expect("an option");
    let text = explained(&sim, &format!("EXPLAIN {query}")).await;
    assert!(text.starts_with("DownloadExec\n") && !text.contains("limited by"), "{text}");
}

#[tokio::test]
async fn explain_verbose_lists_the_segments_of_programs() {
    let sim = with_table(DeviceChoice::Sim).await;
    let sql = "EXPLAIN VERBOSE SELECT a.column1, count(*) FROM t AS a JOIN t AS b ON a.column1 = b.column1 GROUP BY 1";
    let result = sim.execute(sql).await.expect("an answer");
    let [kinds, texts] = [0, 1].map(|at| as_string_array(result.batches[0].column(at)).expect("texts").clone());
    let last = result.batches[0].num_rows() - 1;
    assert_eq!(kinds.value(last), "physical_plan after segments");
    let text = texts.value(last);
    assert!(
        text.starts_with("program of DeviceProjectExec: ") || text.starts_with("program of DeviceAggregateExec: "),
        "{text}"
    );
    for part in ["\n  segment 0: upload ", "→ Probe 0 → AggregateSink", "\n  segment 2: rows of 1 "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Without a device there is no program.
    let cpu = with_table(DeviceChoice::Cpu).await;
    let result = cpu.execute(sql).await.expect("an answer");
    let kinds = as_string_array(result.batches[0].column(0)).expect("texts");
    assert!(kinds.iter().flatten().all(|kind| !kind.contains("segments")), "{kinds:?}");
}

#[tokio::test]
async fn generated_texts_are_kept_with_plan_and_segment() {
    let folder = tempfile::tempdir().expect("a folder");
    let sim = with_table(DeviceChoice::Sim).await;
    let sql = "SELECT a.column1, count(*) FROM t AS a JOIN t AS b ON a.column1 = b.column1 GROUP BY 1";
    // What was compiled before is written, too.
    sim.execute(sql).await.expect("an answer");
    let path = folder.path().join("ptx");
    sim.execute(&format!("SET millpond.debug_keep_ptx = '{}'", path.display())).await.expect("an option");
    sim.execute(sql).await.expect("an answer");
    let mut texts: Vec<(String, String)> = std::fs::read_dir(&path)
        .expect("a folder")
        .map(|entry| entry.expect("a file").path())
        .map(|path| {
            (
                path.file_name().expect("a name").to_string_lossy().into_owned(),
                std::fs::read_to_string(path).expect("text"),
            )
        })
        .collect();
    texts.sort();
    for segment in ["segment-1", "segment-2"] {
        let (_, text) =
            texts.iter().find(|(name, _)| name.contains(segment)).unwrap_or_else(|| panic!("{segment}: {texts:?}"));
        assert!(text.starts_with(&format!("// {}: ", segment.replace('-', " "))), "{text}");
        assert!(text.contains("\n//   DeviceAggregateExec: ") || text.contains("\n// DeviceAggregateExec: "), "{text}");
        assert!(text.contains("\n.version ") && text.contains(".entry "), "{text}");
    }
    // A folder that cannot be made fails no query.
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    sim.execute(&format!("SET millpond.debug_keep_ptx = '{}'", file.display())).await.expect("an option");
    sim.execute(sql).await.expect("an answer");
}

#[tokio::test]
async fn forbidden_fallbacks_and_errors_are_explained() {
    let sim = with_table(DeviceChoice::Sim).await;
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/samples/sales.parquet");
    let path = sample.to_str().expect("UTF-8");
    sim.context().register_parquet("sales", path, Default::default()).await.expect("a table");
    sim.execute("SET millpond.fallback = error").await.expect("an option");
    let sql = PARTLY.replace("FROM t", "FROM named");
    let text = explained(&sim, &format!("EXPLAIN {sql}")).await;
    assert!(text.contains("it is refused, because millpond.fallback is error"), "{text}");
    assert!(sim.execute(&format!("EXPLAIN ANALYZE {sql}")).await.is_err(), "it would run");
    let error = sim.execute("EXPLAIN SELECT nothing FROM t").await.err().expect("no such column");
    assert!(error.to_string().contains("nothing"), "{error}");
    let scan = explained(&sim, "EXPLAIN CREATE TABLE u AS SELECT * FROM sales").await;
    assert!(scan.ends_with("\nlimited by: reading sales.parquet on the CPU"), "{scan}");
    let text = explained(&sim, "EXPLAIN SELECT 1 AS one").await;
    assert!(text.contains("would run: 0 of 0 operators on the device; scans alone are not counted"), "{text}");
}
