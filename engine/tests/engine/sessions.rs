//! The scripts of `tests/sessions`: several sessions over one device, with files that change between statements.
//!
//!   script ─► as it is · in batches of seven rows, under another schedule of the device ─► its expected answers, both
//!                                                                                          times

#[path = "../../examples/sessions/driver.rs"]
mod driver;

use std::path::Path;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_give_their_answers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions");
    let entries = std::fs::read_dir(&folder).expect("the scripts are here");
    let mut scripts: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    scripts.sort();
    assert!(scripts.len() >= 8, "{scripts:?}");
    let ways: [&[(&str, &str)]; 2] = [&[], &[("debug_sim_seed", "7"), ("batch_rows", "7")]];
    let (mut wrong, mut statements, mut kept, mut by_template) = (Vec::new(), 0, 0, 0);
    for script in &scripts {
        let name = script.file_name().expect("a name").to_string_lossy();
        let text = std::fs::read_to_string(script).expect("a script");
        for options in ways {
            match driver::run(&name, &text, options).await {
                Ok(done) => {
                    statements += done.statements;
                    kept += done.kept;
                    by_template += done.by_template;
                }
                Err(why) => wrong.push(format!("{options:?} {why}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    println!("{statements} statements: {kept} took a plan of their own that was kept, {by_template} one by template");
    assert!(kept > 0 && by_template > 0, "no statement took a plan that was kept");
}

/// A wrong expectation fails, at its line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_does_not_hold_says_where() {
    let wrong = async |text: &str| driver::run("script", text, &[]).await.expect_err("it does not hold");
    let begin = "!new a\n";
    assert!(
        wrong(&format!("{begin}[a] SELECT 1\n----\n2\n"))
            .await
            .starts_with("script:2: SELECT 1: expected\n  2\ngot\n  1")
    );
    assert!(wrong(&format!("{begin}\n[a kept] SELECT 1\n")).await.starts_with("script:3: SELECT 1: claimed kept"));
    assert!(
        wrong(&format!("{begin}[a] SELECT 1\n----\nerror: no\n")).await.contains("expected\n  error: no\ngot\n  1")
    );
    assert!(wrong("[a] SELECT 1\n").await.contains("there is no session a"));
    assert!(wrong("!sh exit 3\n").await.starts_with("script:1: exit 3"));
    assert!(wrong("!new a\n[a/door] SELECT 1\n").await.contains("there is no door door"));
}
