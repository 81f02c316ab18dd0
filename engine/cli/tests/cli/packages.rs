//! Files that a package contains beside the program, and the program's version information.

use crate::{millpond, root};

/// The checkout's abbreviated commit; `None` outside a checkout.
fn commit() -> Option<String> {
    let git = std::process::Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output().ok()?;
    git.status.success().then(|| String::from_utf8(git.stdout).expect("UTF-8").trim().to_string())
}

#[test]
fn the_version_names_commit_datafusion_and_features() {
    let ended = millpond(&["--version"]);
    let features = if cfg!(feature = "object-stores") { "object-stores" } else { "none" };
    let words = ended.stdout.trim().strip_prefix("millpond 0.1.0 (commit ").expect("the version");
    let (named, rest) = words.split_once(", ").expect("more");
    assert_eq!(rest, format!("DataFusion 55.2.0, features: {features})"));
    // The program may be built from the previous commit, because cargo only watches git's log.
    let is_commit = named.len() >= 7 && named.chars().all(|c| c.is_ascii_hexdigit());
    assert!(is_commit == commit().is_some() || named == "unknown", "{named}");
}

#[test]
fn info_names_what_packages_need_and_where_kernels_are_kept() {
    let ended = millpond(&["info", "--device", "sim"]);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines[0].starts_with("millpond 0.1.0 (commit "), "{}", ended.stdout);
    assert!(lines[1].starts_with("needs  glibc 2.28 in packages (2."), "{}", ended.stdout);
    assert!(lines[1].ends_with("NVIDIA driver 535 and compute capability 7.0, or newer"), "{}", ended.stdout);
    assert!(lines[2].starts_with("caches kernels in /"), "{}", ended.stdout);
    let ended = millpond(&["info", "--device", "sim", "--json", "--set", "millpond.kernel_cache=off"]);
    let info: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(info["needs"]["nvidia_driver"], "535");
    assert_eq!(info["kernel_cache"], "none (millpond.kernel_cache = 'off')");
    assert_eq!(info["features"].as_array().map(Vec::len), Some(usize::from(cfg!(feature = "object-stores"))));
}

#[test]
fn completions_and_the_man_page_know_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = millpond(&["completions", shell]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        for word in ["selftest", "fallback", "completions"] {
            assert!(ended.stdout.contains(word), "{shell} does not complete {word}");
        }
    }
    let ended = millpond(&["completions", "tcsh"]);
    assert!(ended.code == 2 && ended.stderr.contains("possible values: bash"), "{}", ended.stderr);
    let page = millpond(&["man"]);
    assert!(page.stdout.starts_with(".ie") && page.stdout.contains(".TH millpond 1"), "{}", page.stdout);
    for word in ["\\-\\-device", "Exit codes", "millpond\\-selftest"] {
        assert!(page.stdout.contains(word), "the man page lacks {word}");
    }
}
