//! The command line as seen by people and scripts: its output and its exit codes.

mod commands;
#[cfg(target_os = "linux")]
mod cuda;
mod errors;
#[cfg(target_os = "linux")]
mod exits;
mod flags;
mod levels;
mod mem;
mod names;
mod output;
mod packages;
mod pages;
mod parquet;
mod places;
mod profile;
#[cfg(target_os = "linux")]
mod progress;
mod qualify;
mod queries;
mod scripts;
mod selftest;
#[cfg(target_os = "linux")]
mod shell;
mod signals;
mod soak;
mod streams;
mod suites;
#[cfg(target_os = "linux")]
mod terminal;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Result of a run of the binary.
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs the binary in the workspace's root, without options from the environment.
fn millpond(args: &[&str]) -> Ended {
    millpond_reading("", args)
}

/// Like [`millpond`], with `input` on standard input.
fn millpond_reading(input: &str, args: &[&str]) -> Ended {
    millpond_in(&[], input, args)
}

/// Like [`millpond_reading`], with additional environment variables.
fn millpond_in(environment: &[(&str, &str)], input: &str, args: &[&str]) -> Ended {
    let mut child = command(args)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("input is read");
    let output = child.wait_with_output().expect("the binary ends");
    Ended {
        code: output.status.code().expect("no signal"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// A command for the binary in the workspace's root, without options from the environment.
fn command(args: &[&str]) -> Command {
    let mut command = clean(env!("CARGO_BIN_EXE_millpond"));
    command.args(args).current_dir(root());
    command
}

/// A command that inherits no options from the environment.
fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MILLPOND_")) {
        command.env_remove(name);
    }
    command
}

/// Sends SIGINT, as Ctrl-C does.
#[cfg(unix)]
fn interrupt(child: &std::process::Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}
