//! The progress of long queries: shown on a terminal only.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::terminal::{CTRL_C, Terminal};
use crate::{command, interrupt};

const ENDLESS: &str = "SELECT sum(value % 7) AS n FROM generate_series(1, 1000000000000)";

#[test]
fn a_long_query_shows_its_progress_on_a_terminal() {
    let mut terminal = Terminal::start(command(&["--device", "cpu", "-c", ENDLESS]), (24, 100));
    terminal.until("progress", |screen| screen.contents().contains(" s · ") && screen.contents().contains(" rows"));
    terminal.keys(CTRL_C);
    assert_eq!(terminal.end(), Some(130));
    // The line is erased when the query has ended.
    assert!(!terminal.screen().contains(" rows"), "{}", terminal.screen());
}

#[test]
fn quiet_shows_none_and_neither_does_a_pipe() {
    // The query returns rows for more than a second; the terminal of standard output shows nothing else.
    let rows = "SELECT value FROM generate_series(1, 1000000000000)";
    let mut child = command(&["--device", "cpu", "-c", rows])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let (began, mut line) = (Instant::now(), String::new());
    while began.elapsed() < Duration::from_millis(2500) {
        line.clear();
        assert!(lines.read_line(&mut line).expect("a line") > 0);
    }
    interrupt(&child);
    std::io::copy(&mut lines, &mut std::io::sink()).expect("the rest");
    let mut errors = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    assert_eq!(errors, "error: interrupted\n");
}
