//! Tells the program the commit that it is built from, where that is known: `BUILD_COMMIT`, or what git says of this
//! folder.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_string())
    };
    // The file changes with each commit and each change of branch.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let given = std::env::var("BUILD_COMMIT").ok();
    let commit = given.filter(|commit| !commit.is_empty()).or_else(|| git(&["rev-parse", "--short=9", "HEAD"]));
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}
