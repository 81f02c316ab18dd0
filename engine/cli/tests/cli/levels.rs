//! Statements with very many terms and levels: every entry point gives an answer or an error with a number, and never a
//! signal.

use std::fs;

use crate::{Ended, millpond, millpond_reading};

fn chain(first: &str, link: impl Fn(usize) -> String, links: usize) -> String {
    let mut text = first.to_string();
    (0..links).for_each(|number| text.push_str(&link(number)));
    text
}

/// The numbers from 0 to 49, and their remainders modulo 7.
const ROWS: &str = "FROM (SELECT value AS a, value % 7 AS b FROM generate_series(0, 49)) AS t";

fn or(links: usize) -> String {
    let condition = chain("a = 100", |number| format!(" OR {} = {number}", ["a", "b"][number % 2]), links);
    format!("SELECT count(*) AS n {ROWS} WHERE {condition}")
}

fn sum(links: usize) -> String {
    format!("SELECT {} AS n {ROWS}", chain("a", |_| "+1".to_string(), links))
}

/// The process was not killed by a signal: `millpond` fails on one. Of the 50 numbers, 25 are even, and 12 others have
/// the remainder 1, 3 or 5 when divided by 7.
fn answers(ended: &Ended, what: &str) {
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "n\n37\n"), "{what}: {}", ended.stderr);
}

fn refuses(ended: &Ended, says: &str, what: &str) {
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{what}: {}", ended.stderr);
    assert!(ended.stderr.contains(says), "{what}: {}", ended.stderr);
}

#[test]
fn no_statement_ends_the_process() {
    let folder = tempfile::tempdir().expect("folder");
    for device in ["cpu", "sim"] {
        for links in [2000, 8000] {
            answers(&millpond(&["-q", "--device", device, "-c", &or(links)]), &format!("{links} terms on {device}"));
        }
        let script = folder.path().join("deep.sql");
        fs::write(&script, or(2000)).expect("a file");
        let script = script.to_str().expect("UTF-8");
        answers(&millpond(&["-q", "--device", device, "-f", script]), "from a file");
        answers(&millpond_reading(&or(2000), &["-q", "--device", device]), "from standard input");
        for links in [600, 5000, 200_000] {
            let ended = millpond_reading(&sum(links), &["-q", "--device", device]);
            refuses(&ended, "a chain of", &format!("{links} sums on {device}"));
        }
        let unions = chain("SELECT 1 AS n", |number| format!(" UNION SELECT {number}"), 20_000);
        refuses(&millpond_reading(&unions, &["-q", "--device", device]), "set operations", "unions");
        let and = chain("a >= 0", |number| format!(" AND a + b <> {number}"), 5000);
        let and = format!("SELECT count(*) AS n {ROWS} WHERE {and}");
        refuses(&millpond_reading(&and, &["-q", "--device", device]), "joined by AND", "AND");
        let broken = millpond_reading(&format!("{} FROM", sum(200_000)), &["-q", "--device", device]);
        assert_eq!(broken.code, 1, "{}", broken.stderr);
        // The other statements of a script still run.
        let script = format!("{}; SELECT 37 AS n", sum(5000));
        let ended = millpond_reading(&script, &["-q", "--device", device, "--keep-going"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (1, "n\n37\n"), "{}", ended.stderr);
    }
}

#[test]
fn a_suite_goes_on_after_a_statement_that_is_too_deep() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", &path("data"), "--tables", "nation"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    fs::write(path("suite.toml"), "name = \"deep\"\n").expect("a file");
    let keys = |link: &dyn Fn(usize) -> String, links| chain("n_nationkey = 0", link, links);
    let or = keys(&|number| format!(" OR {} = {number}", ["n_nationkey", "n_regionkey"][number % 2]), 2000);
    fs::write(path("q1.sql"), format!("SELECT count(*) AS n FROM nation WHERE {or}")).expect("a file");
    let sum = chain("n_nationkey", |_| " + 1".to_string(), 20_000);
    fs::write(path("q2.sql"), format!("SELECT {sum} AS n FROM nation")).expect("a file");
    fs::write(path("q3.sql"), "SELECT count(*) AS n FROM nation").expect("a file");
    for device in ["cpu", "sim"] {
        let suite = format!("{}/", folder.path().display());
        let ran = millpond(&["run", &suite, "--data", &path("data"), "--device", device, "--validate", "cpu", "-q"]);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(said.contains("a chain of 20000 operators"), "{said}");
        assert!(said.contains("3 queries, 1 with problems"), "{said}");
    }
}
