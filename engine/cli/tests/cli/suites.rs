//! `gen` and `run`.

use crate::millpond;

#[test]
fn generated_tables_run_through_the_suite() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().to_str().expect("UTF-8");
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", out]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert_eq!(made.stdout.lines().count(), 8, "{}", made.stdout);

    let ran = millpond(&["run", "tpch", "--data", out, "--device", "cpu", "--validate", "cpu", "--json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stdout.lines().filter(|line| line.contains("\"status\":\"equal\"")).count(), 22, "{}", ran.stdout);

    let some = millpond(&["run", "tpch", "--data", out, "--device", "cpu", "--query", "1,q06", "-q"]);
    assert!(
        some.stdout.contains("q01") && some.stdout.contains("q06") && !some.stdout.contains("q02"),
        "{}",
        some.stdout
    );
    assert!(some.stdout.contains("2 queries, 0 with problems"), "{}", some.stdout);

    // What the CPU took over is told, not only counted.
    let lost = ["run", "tpch", "--data", out, "--query", "6", "--device", "sim", "--validate", "cpu"];
    let lost = millpond(&[&lost[..], &["--set", "millpond.debug_sim_lose_at_launch=1"]].concat());
    let told = lost.stdout.lines().any(|line| line.starts_with("q06: ") && line.ends_with("on the CPU"));
    assert!(told && lost.stdout.contains("equal"), "{}{}", lost.stdout, lost.stderr);
}

#[test]
fn refusals() {
    let gen_refused = |args: &[&str], code, says: &str| {
        let ended = millpond(args);
        assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    };
    gen_refused(&["gen", "tpcds", "--scale", "1", "--out", "x"], 2, "no data set named 'tpcds'");
    gen_refused(&["gen", "tpch", "--scale", "0", "--out", "x"], 2, "scale factor 0");
    gen_refused(&["gen", "tpch", "--scale", "1", "--out", "x", "--tables", "lines"], 2, "'lines'");
    gen_refused(&["gen", "tpch", "--scale", "0.001", "--out", "Cargo.toml/x"], 4, "Cargo.toml");
    gen_refused(&["run", "tpcds", "--data", "x"], 2, "no suite named 'tpcds'");
    gen_refused(&["run", "tpch", "--data", "x", "--query", "99"], 2, "no query '99'");
    gen_refused(&["run", "tpch", "--data", "no-such-folder", "--device", "cpu"], 4, "millpond gen tpch");
}
