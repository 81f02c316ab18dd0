//! The shell on a terminal: each behavior as a transcript.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::command;
use crate::terminal::{CTRL_C, CTRL_D, TAB, Terminal, UP};

const SIZE: (u16, u16) = (200, 100);

/// A user with a separate home folder.
struct User {
    home: TempDir,
}

impl User {
    fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).to_str().expect("UTF-8").to_string()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        for name in ["XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "NO_COLOR", "PAGER"] {
            command.env_remove(name);
        }
        command.env("HOME", self.home.path());
        command
    }

    /// A shell on the CPU, at its first prompt.
    fn shell(&self) -> Terminal {
        self.shell_with(&["--device", "cpu"])
    }

    fn shell_with(&self, args: &[&str]) -> Terminal {
        started(self.command(args))
    }
}

fn started(command: Command) -> Terminal {
    let mut terminal = Terminal::start(command, SIZE);
    terminal.until_prompt();
    terminal
}

fn write(path: &str, text: &str) {
    if let Some(folder) = Path::new(path).parent() {
        fs::create_dir_all(folder).expect("a folder");
    }
    fs::write(path, text).expect("a file");
}

/// An answer without its last line, which contains times.
fn without_footer(answer: &str) -> String {
    let lines: Vec<&str> = answer.lines().collect();
    let (footer, rows) = lines.split_last().expect("a footer");
    assert!(footer.contains(" s · "), "{answer}");
    rows.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_statement_ends_with_its_semicolon_on_as_many_lines_as_it_takes() {
    let user = User::new();
    let mut shell = user.shell();
    assert!(shell.screen().contains("\\? lists the commands"), "{}", shell.screen());
    let answer = shell.ask("SELECT 1 AS n, 'x' AS s;");
    let table = "+--------+---------+\n|      n | s       |\n| bigint | varchar |\n+--------+---------+\n|      1 | x       |\n\
                 +--------+---------+\n";
    assert_eq!(without_footer(&answer), table);
    shell.type_line("SELECT ';'");
    shell.type_line("  AS semicolon,");
    let answer = shell.ask("2 AS two;");
    assert!(answer.contains("| ;         |      2 |"), "{answer}");
    // Two statements on one line, then an empty statement.
    let answer = shell.ask("SELECT 11 AS a; SELECT 22 AS b;");
    assert!(answer.contains("11 |") && answer.contains("22 |"), "{answer}");
    assert_eq!(shell.ask(""), "");
    shell.keys(CTRL_D);
    assert_eq!(shell.end(), Some(0));
}

#[test]
fn what_is_typed_or_pasted_at_once_is_all_run() {
    let user = User::new();
    let mut shell = user.shell();
    shell.keys("SELECT 11 AS a;\rCREATE TABLE kept AS SELECT 22 AS b;\rSELECT b + 1 AS c FROM kept;\r");
    shell.until_shows("|     23 |");
    shell.until_prompt();
    // A bracketed paste is one input, with commands on separate lines.
    shell.keys("\x1b[200~SELECT 31 AS d;\n\\x on\nSELECT 32 AS e;\x1b[201~\r");
    shell.until_shows("e = 32");
    shell.until_prompt();
}

#[test]
fn quit_by_its_names_leaves() {
    for word in ["\\q", ".quit", ".exit", "exit", "quit;"] {
        let user = User::new();
        let mut shell = user.shell_with(&["--device", "cpu", "-q"]);
        shell.type_line(word);
        assert_eq!(shell.end(), Some(0), "{word}");
        assert!(shell.echoes());
    }
}

#[test]
fn the_history_is_that_of_earlier_shells_and_closed_to_others() {
    let user = User::new();
    let mut shell = user.shell();
    shell.ask("SELECT 41 + 1 AS answer;");
    // A line that begins with a blank is not added to the history.
    shell.ask(" SELECT 'secret';");
    shell.keys(CTRL_D);
    assert_eq!(shell.end(), Some(0));
    let folder = user.home.path().join(".local/state/millpond");
    assert_eq!(fs::metadata(&folder).expect("a folder").permissions().mode() & 0o777, 0o700);
    let history = fs::read_to_string(folder.join("history")).expect("a file");
    assert!(history.contains("41 + 1") && !history.contains("secret"), "{history}");

    let mut shell = user.shell();
    shell.keys(UP);
    shell.until_shows("SELECT 41 + 1 AS answer;");
    shell.keys("\r");
    shell.until_shows("42");
    shell.until_prompt();
}

#[test]
fn a_history_that_cannot_be_kept_is_a_note() {
    let user = User::new();
    write(&user.path(".local/state/millpond"), "no folder");
    let mut shell = user.shell();
    assert!(shell.screen().contains("note: the history is not kept: '"), "{}", shell.screen());
    assert!(shell.ask("SELECT 7 AS n;").contains('7'));
}

#[test]
fn tab_completes_keywords_tables_columns_functions_files_and_commands() {
    let user = User::new();
    write(&user.path("rows.csv"), "first,second\n1,2\n");
    let mut command = user.command(&["--device", "cpu"]);
    command.current_dir(user.home.path());
    let mut shell = started(command);
    shell.ask("CREATE TABLE sales (price BIGINT, product TEXT);");
    for (typed, completed) in [
        ("SEL", "SELECT"),
        ("SELECT * FROM sal", "SELECT * FROM sales"),
        ("SELECT s.pri", "SELECT s.pri"),
        ("SELECT date_tr", "SELECT date_trunc("),
        ("SELECT * FROM 'row", "SELECT * FROM 'rows.csv"),
        ("SELECT * FROM sales WHERE pric", "SELECT * FROM sales WHERE price"),
        ("SELECT * FROM 'rows.csv' AS r WHERE r.sec", "SELECT * FROM 'rows.csv' AS r WHERE r.second"),
        ("\\tim", "\\timing"),
        (".data", ".databases"),
        ("\\d sal", "\\d sales"),
        ("\\i ro", "\\i rows.csv"),
    ] {
        shell.keys(typed);
        shell.keys(TAB);
        shell.until_shows(&format!("millpond> {completed}"));
        shell.keys(CTRL_C);
        shell.until_prompt();
    }
}

#[test]
fn words_have_colours_unless_they_are_not_wanted() {
    let user = User::new();
    let mut shell = user.shell();
    shell.ask("SELECT 'words' AS s;");
    let raw = String::from_utf8_lossy(&shell.raw).into_owned();
    assert!(raw.contains("\x1b[1mSELECT\x1b[0m") && raw.contains("\x1b[35m'words'\x1b[0m"), "{raw}");
    let answer = shell.ask("SELECT nothing;");
    assert!(answer.starts_with("error: "), "{answer}");
    assert!(String::from_utf8_lossy(&shell.raw).contains("\x1b[1;31merror:\x1b[0m"));

    let mut command = user.command(&["--device", "cpu"]);
    command.env("NO_COLOR", "1");
    let mut shell = started(command);
    shell.ask("SELECT nothing;");
    let raw = String::from_utf8_lossy(&shell.raw).into_owned();
    assert!(!raw.contains("\x1b[1m") && !raw.contains("\x1b[32m") && !raw.contains("\x1b[1;31m"), "{raw}");
}

#[test]
fn tables_are_listed_and_described() {
    let user = User::new();
    let mut shell = user.shell();
    shell.ask("CREATE TABLE t (a BIGINT, b TEXT);");
    shell.ask("CREATE VIEW v AS SELECT a FROM t;");
    for list in ["\\dt", ".tables", "\\d"] {
        let tables = shell.ask(list);
        assert!(tables.contains("| public  | t       | BASE TABLE |"), "{tables}");
        assert!(tables.contains("| public  | v       | VIEW       |"), "{tables}");
        // Tables of the information schema are hidden, and these answers have no footer.
        assert!(!tables.contains("columns") && !tables.contains(" s · "), "{tables}");
    }
    let columns = shell.ask("\\d t");
    assert!(columns.contains("| a       | bigint  | yes      |\n| b       | varchar | yes      |"), "{columns}");
    assert!(shell.ask(".schema 'data/samples/sales.parquet'").contains("| category "));
    assert!(shell.ask("\\d data/samples/sales.parquet").contains("| category "));
    assert!(shell.ask("\\l").contains("| datafusion | public "));
    assert!(shell.ask("\\d absent").contains("absent' not found"));
    assert!(shell.ask("\\d t WHERE a").contains("error: "));
}

#[test]
fn settings_are_switched_and_told() {
    let user = User::new();
    let mut shell = user.shell();
    assert_eq!(shell.ask("\\timing off"), "the line after each answer is off\n");
    assert!(!shell.ask("SELECT 1 AS n;").contains(" s · "));
    assert_eq!(shell.ask(".timer"), "the line after each answer is on\n");
    assert!(shell.ask("SELECT 1 AS n;").contains(" s · "));
    assert_eq!(shell.ask("\\x"), "a line for each value is on\n");
    assert_eq!(without_footer(&shell.ask("SELECT 1 AS n, NULL AS nothing;")), "      n = 1\nnothing = NULL\n");
    assert_eq!(shell.ask("\\x off"), "a line for each value is off\n");
    assert_eq!(shell.ask("\\format csv"), "answers are shown as csv\n");
    assert_eq!(without_footer(&shell.ask("SELECT 1 AS n;")), "n\n1\n");
    assert_eq!(shell.ask(".mode"), "answers are shown as csv\n");
    assert!(shell.ask("\\format xml").starts_with("error: there is no format 'xml': there are auto, table, line, csv"));
    assert!(
        shell.ask("\\format parquet").starts_with("error: a terminal cannot show parquet: \\o FILE.parquet writes it")
    );
    shell.ask("\\format table");
    assert_eq!(shell.ask("\\rows 4"), "a table shows 4 rows\n");
    let answer = shell.ask("SELECT value FROM generate_series(1, 100);");
    assert!(answer.contains("note: the table shows 4 of 100 rows (\\rows all)"), "{answer}");
    assert_eq!(shell.ask("\\rows all"), "a table shows all rows\n");
    assert!(shell.ask("\\rows none").starts_with("error: \\rows: "));
    assert_eq!(shell.ask("\\pager off"), "the pager is off\n");
    assert!(shell.ask("\\help").contains("\\why"));
    assert!(
        shell.ask("\\timin").starts_with("error: there is no command \\timin; did you mean \\timing? (\\? lists them)")
    );
}

#[test]
fn answers_go_to_a_file_and_statements_come_from_one() {
    let user = User::new();
    let (csv, parquet, script) = (user.path("a b.csv"), user.path("x.parquet"), user.path("s.sql"));
    let mut shell = user.shell();
    assert_eq!(shell.ask(&format!("\\o '{csv}'")), "");
    assert!(shell.ask("SELECT 5 AS n;").contains(" s · "));
    let refused = shell.ask("SELECT 6 AS n;");
    assert!(refused.contains("has an answer, and a file of csv holds one: choose another file"), "{refused}");
    // The file appears, complete, at the next \o.
    assert!(!Path::new(&csv).exists());
    shell.ask(&format!("\\o {parquet}"));
    assert_eq!(fs::read_to_string(&csv).expect("a file"), "n\n5\n");
    shell.ask("SELECT 8 AS eight;");
    shell.ask("\\o");
    assert!(shell.ask(&format!("SELECT * FROM '{parquet}';")).contains("|      8 |"));
    assert!(shell.ask("\\o /nowhere/x.csv").starts_with("error: cannot write '/nowhere/x.csv'"));

    write(&script, "\\x on\nSELECT 1 AS one;\n\\x off\nSELECT 2 AS two;\nSELECT absent;\nSELECT 3 AS three;\n");
    let read = shell.ask(&format!("\\i {script}"));
    assert!(read.contains("one = 1") && read.contains("|      2 |"), "{read}");
    // The first error ends the file, and is reported with its line.
    assert!(read.contains("line 5: SELECT absent") && !read.contains("three"), "{read}");
    assert!(shell.ask("\\i absent.sql").starts_with("error: cannot read SQL from 'absent.sql'"));
    write(&script, &format!("\\i {script}\n"));
    assert!(shell.ask(&format!("\\i {script}")).contains("is read by files that read each other"));
}

#[test]
fn the_rc_file_is_run_at_the_start() {
    let user = User::new();
    write(&user.path(".config/millpond/rc.sql"), "\\timing off\nCREATE VIEW mine AS SELECT 77 AS n;\n");
    let mut shell = user.shell();
    let answer = shell.ask("SELECT * FROM mine;");
    assert!(answer.contains("77") && !answer.contains(" s · "), "{answer}");
    let mut shell = user.shell_with(&["--device", "cpu", "--no-rc"]);
    assert!(shell.ask("SELECT * FROM mine;").starts_with("error: "));
    write(&user.path(".config/millpond/rc.sql"), "\\q\n");
    assert_eq!(Terminal::start(user.command(&["--device", "cpu"]), SIZE).end(), Some(0));
    // An error in rc.sql is printed, and the prompt appears.
    write(&user.path(".config/millpond/rc.sql"), "SELECT absent;\n");
    let mut shell = user.shell();
    assert!(shell.screen().contains("line 1: SELECT absent"), "{}", shell.screen());
    assert!(shell.ask("SELECT 9 AS n;").contains('9'));
}

#[test]
fn an_error_leaves_the_session_as_it_is() {
    let user = User::new();
    let mut shell = user.shell();
    shell.ask("CREATE TABLE t AS SELECT 3 AS a;");
    for (statement, words) in [
        ("SELECT b FROM t;", "^"),
        ("SELEC 1;", "error: "),
        ("SELECT 1 / 0;", "error: "),
        ("SELECT * FROM 'absent.parquet';", "absent.parquet"),
        ("SELECT CAST('x' AS INT);", "error: "),
        ("SELECT $;", "error: "),
    ] {
        let answer = shell.ask(statement);
        assert!(answer.contains("error: ") && answer.contains(words), "{statement}: {answer}");
    }
    assert!(shell.ask("SELECT a + 39 AS n FROM t;").contains("42"));
}

#[test]
fn ctrl_c_clears_the_line_and_ends_a_query_and_frees_its_memory() {
    let user = User::new();
    let mut shell = user.shell_with(&["--device", "sim"]);
    shell.keys("SELECT 'half of a li");
    shell.until_shows("half of a li");
    shell.keys(CTRL_C);
    shell.until_prompt();
    let memory = shell.ask("\\cache");
    assert!(memory.contains("device memory in use by queries: "), "{memory}");

    for _ in 0..2 {
        shell.type_line("SELECT value % 7 AS k, count(*) FROM generate_series(1, 1000000000000) GROUP BY k;");
        // Progress proves that the query runs.
        shell.until("progress", |screen| screen.contents().lines().any(|line| line.contains(" rows")));
        shell.keys(CTRL_C);
        shell.until_prompt();
        assert!(shell.screen().contains("interrupted"), "{}", shell.screen());
    }
    assert!(shell.ask("SELECT 6 * 7 AS n;").contains("42"));
    // Memory of dropped tasks is freed asynchronously, when they end.
    let mut after = shell.ask("\\cache");
    for _ in 0..1000 {
        if after == memory {
            break;
        }
        after = shell.ask("\\cache");
        shell.keys("\x0c");
        shell.until_prompt();
    }
    assert_eq!(after, memory);
    shell.keys(CTRL_D);
    assert_eq!(shell.end(), Some(0));
}

#[test]
fn a_copy_that_was_ended_leaves_no_file() {
    let user = User::new();
    let target = user.path("copy.csv");
    let mut shell = user.shell();
    shell.type_line(&format!("COPY (SELECT value FROM generate_series(1, 1000000000000)) TO '{target}';"));
    let names = || -> Vec<String> {
        let entries = fs::read_dir(user.home.path()).expect("a folder").flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains("copy"))
            .collect()
    };
    while names().is_empty() {
        assert!(shell.child.try_wait().expect("a state").is_none());
        std::thread::yield_now();
    }
    shell.keys(CTRL_C);
    shell.until_prompt();
    assert_eq!(names(), Vec::<String>::new());
    assert!(shell.ask("SELECT 5 AS n;").contains('5'));
}

#[test]
fn a_signal_at_the_prompt_ends_the_shell_and_restores_the_terminal() {
    let user = User::new();
    let mut shell = user.shell();
    assert!(!shell.echoes());
    let sent = Command::new("kill").arg(shell.child.id().to_string()).status().expect("kill runs");
    assert!(sent.success());
    assert_eq!(shell.end(), Some(143));
    assert!(shell.echoes());
}

#[test]
fn a_signal_in_a_query_ends_the_shell() {
    for (signal, code) in [("TERM", 143), ("HUP", 129)] {
        let user = User::new();
        let mut shell = user.shell();
        shell.type_line("SELECT sum(value % 7) AS n FROM generate_series(1, 1000000000000);");
        shell.until("progress", |screen| screen.contents().contains(" rows"));
        let process = shell.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &process]).status().expect("kill runs");
        assert!(sent.success());
        assert_eq!(shell.end(), Some(code));
        assert!(shell.echoes());
    }
}

#[test]
fn why_names_where_the_last_query_ran_and_what_stayed_on_the_cpu() {
    let user = User::new();
    let mut shell = user.shell_with(&["--device", "sim"]);
    assert_eq!(shell.ask("\\why"), "no query has run yet\n");
    shell.ask("SELECT category, count(*) AS n FROM 'data/samples/sales.parquet' GROUP BY category;");
    assert!(shell.ask("\\why").starts_with("1 of 1 operators ran on simulated device"), "{}", shell.screen());
    shell.ask("SET millpond.min_rows = 1000000;");
    shell.ask("SELECT sum(price) AS n FROM 'data/samples/sales.parquet';");
    let why = shell.ask("\\why");
    assert!(
        why.starts_with("0 of 1 operators") && why.contains("\n- its input has 60000 rows, and millpond.min_rows"),
        "{why}"
    );
    assert!(why.ends_with("\ntoo-few-rows: docs/reasons.md#too-few-rows; millpond.min_rows changes it\n"), "{why}");
    // Internal queries of commands do not count as the user's last query.
    shell.ask("\\dt");
    assert_eq!(shell.ask(".why"), why);
    let mut shell = user.shell();
    shell.ask("SELECT 1 AS n;");
    assert!(shell.ask("\\why").starts_with("this session has no device"));
    assert_eq!(shell.ask("\\cache"), "columns are kept on a device, and there is none\n");
}

#[test]
fn long_answers_go_through_the_pager() {
    let user = User::new();
    let shell_with = |pager: &str| {
        let mut command = user.command(&["--device", "cpu"]);
        command.env("PAGER", pager);
        started(command)
    };
    let mut shell = shell_with("sed s/^/paged:/");
    shell.ask("\\format csv");
    assert!(!shell.ask("SELECT value FROM generate_series(1, 50);").contains("paged"));
    let long = shell.ask("SELECT value FROM generate_series(1, 300);");
    assert!(long.contains("paged:299\n") && long.contains(" s · "), "{long}");
    shell.ask("\\pager off");
    // A pager that stops reading ends the answer without a message.
    let mut shell = shell_with("head -n 3");
    shell.ask("\\format csv");
    let short = shell.ask("SELECT value FROM generate_series(1, 10000000);");
    assert_eq!(short, "value\n1\n2\n");
    // A missing pager is ignored.
    let mut shell = shell_with("no-such-pager");
    shell.ask("\\format csv");
    assert!(shell.ask("SELECT value FROM generate_series(1, 150);").contains("\n150\n"));
}

#[test]
fn flags_that_a_shell_cannot_have_are_refused() {
    let user = User::new();
    for (args, words) in [
        (&["--trace", "t.json"][..], "error: --trace takes statements (-c, -f)"),
        (&["--format", "parquet"], "error: a terminal cannot show parquet: in the shell, \\o FILE.parquet writes it"),
    ] {
        let mut shell = Terminal::start(user.command(args), SIZE);
        assert_eq!(shell.end(), Some(2));
        assert!(shell.screen().contains(words), "{}", shell.screen());
    }
}
