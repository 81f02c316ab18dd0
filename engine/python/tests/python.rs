//! The module in a Python: `tests/test_*.py` with the library that cargo has just built, and the commands of
//! docs/python.md.
//!
//! A Python of 3.9 or newer is looked for as `python3`, or as `MILLPOND_TEST_PYTHON` names it. What its own packages
//! lack (Polars, pandas, pyarrow, DuckDB) comes from the package index into an environment below the target folder.
//! Where there is no Python, or no index, the tests that need them are skipped, and the list of skipped tests says so.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millpond::memory::checks::skipped;

/// Packages of the frames that go in and out.
const PACKAGES: [&str; 4] = ["polars", "pandas", "pyarrow", "duckdb"];

fn output(command: &mut Command) -> Option<Output> {
    command.output().ok()
}

fn succeeds(command: &mut Command) -> bool {
    output(command).is_some_and(|output| output.status.success())
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A Python of 3.9 or newer.
fn python() -> Option<PathBuf> {
    let named = env::var_os("MILLPOND_TEST_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let is_new = "import sys; sys.exit(sys.version_info < (3, 9))";
    succeeds(Command::new(&named).args(["-c", is_new])).then_some(named)
}

fn has_packages(python: &Path) -> bool {
    succeeds(Command::new(python).arg("-c").arg(format!("import {}", PACKAGES.join(", "))))
}

/// A Python with the packages: this one, or that of an environment below the target folder.
fn with_packages(python: &Path) -> Option<PathBuf> {
    if has_packages(python) {
        return Some(python.to_path_buf());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let own = folder.join("bin/python");
    if has_packages(&own) {
        return Some(own);
    }
    let _ = fs::remove_dir_all(&folder);
    let made = succeeds(Command::new(python).args(["-m", "venv"]).arg(&folder))
        && succeeds(Command::new(&own).args(["-m", "pip", "install", "--quiet", "--timeout", "20"]).args(PACKAGES));
    (made && has_packages(&own)).then_some(own)
}

/// A folder with the module, as a wheel would install it.
fn module() -> tempfile::TempDir {
    let test = env::current_exe().expect("a path");
    let library = test.parent().expect("a folder").join("libmillpond_python.so");
    assert!(library.is_file(), "{} is built with these tests", library.display());
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let module = folder.path().join("millpond");
    fs::create_dir(&module).expect("a folder");
    std::os::unix::fs::symlink(library, module.join("_native.abi3.so")).expect("a link");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("millpond");
    for source in ["__init__.py", "__init__.pyi", "py.typed"] {
        fs::copy(sources.join(source), module.join(source)).expect("copied");
    }
    folder
}

fn run(python: &Path, file: &Path) {
    let module = module();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(python);
    // The variables of tests are no options of the module.
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MILLPOND_")) {
        command.env_remove(name);
    }
    command.env("PYTHONPATH", module.path()).env("PYTHONFAULTHANDLER", "1").current_dir(root);
    let output = output(command.args(["-m", "unittest", "-v"]).arg(file)).expect("Python starts");
    let said = text(&output);
    assert!(output.status.success(), "{}: {:?}\n{said}", file.display(), output.status);
    println!("{said}");
}

fn tests(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file)
}

#[test]
fn the_module_alone() {
    match python() {
        Some(python) => run(&python, &tests("test_module.py")),
        None => skipped("there is no Python of 3.9 or newer"),
    }
}

#[test]
fn frames_of_other_libraries() {
    match python().map(|python| with_packages(&python)) {
        Some(Some(python)) => {
            for file in ["test_frames.py", "test_page.py"] {
                run(&python, &tests(file));
            }
        }
        Some(None) => skipped("the package index cannot be reached"),
        None => skipped("there is no Python of 3.9 or newer"),
    }
}

#[test]
fn the_reader_of_symbol_versions_tells_and_refuses() {
    let Some(python) = python() else { return skipped("there is no Python of 3.9 or newer") };
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/elf");
    let program = env::current_exe().expect("a path");
    let read = |arguments: &[&str]| {
        let output = output(Command::new(&python).arg(&reader).args(arguments).arg(&program)).expect("Python starts");
        (output.status.code(), text(&output))
    };
    let (code, said) = read(&["--most-glibc", "2.999", "--most-bytes", "100000000000"]);
    assert!(code == Some(0) && said.contains("needs glibc 2."), "{said}");
    let (code, said) = read(&["--most-glibc", "2.1"]);
    assert!(code == Some(1) && said.contains("and may need 2.1 at most"), "{said}");
    let (code, said) = read(&["--most-bytes", "1000"]);
    assert!(code == Some(1) && said.contains("and may have 1000"), "{said}");
}
