//! The commands of docs/rust.md, over this checkout instead of the repository's address. Its programs are doc tests.

use std::path::Path;
use std::process::Command;

use millpond_memory::checks::skipped;

#[test]
fn the_commands_of_the_rust_page_make_a_crate_that_resolves() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/rust.md")).expect("the page");
    let (_, block) = page.split_once("```sh\n").expect("commands");
    let (commands, _) = block.split_once("```").expect("their end");
    let here = root.join("engine").canonicalize().expect("a path");
    let published = "--git https://github.com/millpond-sql/millpond";
    assert!(commands.contains(published), "{commands}");
    let commands = commands.replace(published, &format!("--path {}", here.display()));
    // The crate's own folder is in no workspace.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = format!("set -e\n{commands}\ncargo metadata --format-version 1 > metadata.json");
    let output = Command::new("bash").arg("-c").arg(&script).current_dir(folder.path()).output().expect("bash starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("failed to download")
        || said.contains("Could not resolve host")
        || said.contains("failed to query")
    {
        return skipped("the index of crates cannot be reached");
    }
    assert!(output.status.success(), "{said}");
    let metadata = std::fs::read_to_string(folder.path().join("sums/metadata.json")).expect("what cargo resolved");
    assert!(metadata.contains("\"name\":\"millpond\"") && metadata.contains("\"name\":\"datafusion\""));
}
