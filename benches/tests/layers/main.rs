//! Holds the import arrows between the crates, and the fences around cudarc, DataFusion and `unsafe`.
//! `engine` holds the arrows inside the engine, `numbers` sizes and names.
//!
//! ```text
//!   ptx ← memory ← kernels ← engine ← queries ← benches ← cli          parquet ← engine, cli; data stands alone
//! ```

mod engine;
mod imports;
mod numbers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each crate, and the crates of ours it may import.
const MAY_IMPORT: [(&str, &[&str]); 10] = [
    ("millpond-ptx", &[]),
    ("millpond-memory", &["millpond-ptx"]),
    ("millpond-kernels", &["millpond-ptx", "millpond-memory"]),
    ("millpond-parquet", &[]),
    ("millpond", &["millpond-kernels", "millpond-memory", "millpond-parquet"]),
    ("millpond-queries", &["millpond", "millpond-kernels", "millpond-data"]),
    (
        "millpond-bench",
        &["millpond-queries", "millpond", "millpond-kernels", "millpond-memory", "millpond-ptx", "millpond-data"],
    ),
    (
        "millpond-cli",
        &[
            "millpond-bench",
            "millpond-queries",
            "millpond",
            "millpond-kernels",
            "millpond-memory",
            "millpond-parquet",
            "millpond-data",
        ],
    ),
    ("millpond-python", &["millpond-cli", "millpond"]),
    ("millpond-data", &[]),
];

/// Where `unsafe` may stand.
const UNSAFE_FENCE: [&str; 8] = [
    "memory/src/driver/cuda",
    "memory/src/pinned",
    "memory/src/ffi",
    "memory/examples/shim",
    "kernels/src/launch",
    // The word alone: `Driver::launch` is declared so, and so implemented.
    "memory/src/driver/mod.rs",
    "memory/src/driver/sim/driver.rs",
    // Below `kernels::launch`, a test launches by itself.
    "memory/tests/memory/",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is one level up").to_path_buf()
}

struct Package {
    /// Name of each dependency, with whether it is for tests only.
    dependencies: BTreeSet<(String, bool)>,
}

fn packages() -> BTreeMap<String, Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies").iter().map(|dependency| {
                let name = dependency["name"].as_str().expect("name").to_string();
                (name, dependency["kind"].as_str() == Some("dev"))
            });
            (package["name"].as_str().expect("name").to_string(), Package { dependencies: dependencies.collect() })
        })
        .collect()
}

/// Rust files of the workspace, as paths from its root.
fn rust_files() -> Vec<String> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["memory", "kernels", "engine", "queries", "benches", "data"].iter().map(|room| root().join(room)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("folder").flatten() {
            let path = entry.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path.strip_prefix(root()).expect("inside").to_string_lossy().replace('\\', "/"));
            }
        }
    }
    files.sort();
    assert!(files.len() > 20, "only {} files found", files.len());
    files
}

/// The file without its comments, so that prose may say any word.
fn code(file: &str) -> String {
    let text = fs::read_to_string(root().join(file)).expect("source");
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

#[test]
fn imports_point_one_way() {
    let packages = packages();
    let names: BTreeSet<&str> = packages.keys().map(String::as_str).collect();
    assert_eq!(names, MAY_IMPORT.iter().map(|(name, _)| *name).collect(), "every crate has its line in this test");
    for (name, allowed) in MAY_IMPORT {
        for (dependency, _) in packages[name].dependencies.iter().filter(|(_, dev)| !dev) {
            if names.contains(dependency.as_str()) {
                assert!(allowed.contains(&dependency.as_str()), "{name} may not import {dependency}");
            }
        }
    }
}

#[test]
fn only_the_engine_depends_on_datafusion_and_only_memory_on_cudarc() {
    for (name, package) in packages() {
        for (dependency, _) in &package.dependencies {
            assert!(!dependency.starts_with("datafusion") || name == "millpond", "{name} depends on {dependency}");
            assert!(dependency != "cudarc" || name == "millpond-memory", "{name} depends on {dependency}");
        }
    }
}

#[test]
fn only_one_file_names_cudarc() {
    let naming: Vec<String> = rust_files()
        .into_iter()
        .filter(|file| !file.starts_with("benches/tests/layers/") && has_word(&code(file), "cudarc"))
        .collect();
    let allowed = |file: &String| file.starts_with("memory/src/driver/cuda");
    assert!(naming.iter().all(allowed) && !naming.is_empty(), "{naming:?}");
}

#[test]
fn unsafe_stays_inside_its_fence() {
    for file in rust_files() {
        let fenced = UNSAFE_FENCE.iter().any(|place| file.starts_with(place));
        assert!(
            fenced || file.starts_with("benches/tests/layers/") || !has_word(&code(&file), "unsafe"),
            "{file} has unsafe outside the fence"
        );
    }
}
