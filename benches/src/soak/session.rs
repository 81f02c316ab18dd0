//! One session after another, as users have them: opened, used for a while, dropped.
//!
//! ```text
//!   open ─► SET · ask · ask · cancel · make and drop · ask · … ─► drop ─► open ─► …        until the run ends, in the
//!                                                                                          middle of a statement
//! ```
//!
//! Ask      a statement by one of three doors; its answer is compared with the CPU's.
//! Cancel   a statement is dropped after some milliseconds, or after its first batch. What is left of it is seen when
//!          the run has ended.
//! Make     CREATE TABLE AS a statement, all rows of that table, DROP TABLE: the rows are compared with the CPU's
//!          answer.
//! Set      an option that a session may set, to one of a few values. A new session begins with those of the run.
//! Again    a session's draws follow from the seed and its number; what runs beside it, and so the schedule, does not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use millpond::Millpond;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::runtime_env::RuntimeEnvBuilder;
use millpond_queries::answer::Answer;

use super::workload::{Expected, Query, Statement, Workload};
use super::{Failure, Shared};
use crate::fuzz::lab::{self, Operators, Ran, Verdict};
use crate::fuzz::pair::Door;
use crate::fuzz::rng::Rng;
use crate::runner::{run_query, validate};

/// Next action of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Set,
    Ask(Door),
    CancelAfter(Duration),
    CancelAfterFirst,
    Make,
}

impl Act {
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(100) {
            0..=7 => Act::Set,
            8..=10 => Act::CancelAfter(Duration::from_micros(rng.draw() % 30_000)),
            11..=13 => Act::CancelAfterFirst,
            14..=19 => Act::Make,
            20..=27 => Act::Ask(Door::Sql),
            28..=35 => Act::Ask(Door::Anew),
            _ => Act::Ask(Door::Execute),
        }
    }
}

/// Options that a session may set, with values for tables of a few rows and for others.
const SETTINGS: [(&str, &[&str], &[&str]); 9] = [
    ("cache", &["auto", "off", "host"], &["auto", "auto", "off", "host"]),
    ("cache_bytes", &["0", "16KiB", "256KiB"], &["0", "4MiB", "64MiB"]),
    ("cache_host_bytes", &["0", "1MiB"], &["0", "64MiB"]),
    ("batch_rows", &["0", "3", "30", "100"], &["0", "5000", "100000"]),
    ("batch_bytes", &["268435456", "4096"], &["268435456", "1MiB"]),
    ("partitions", &["1", "3", "16"], &["1", "3", "16"]),
    ("parquet_decoder", &["auto", "host", "device"], &["auto", "host", "device"]),
    ("deterministic_floats", &["false", "true"], &["false", "true"]),
    ("pinned_bytes", &["0", "64MiB"], &["0", "64MiB"]),
];

/// Statements of one session, at least and at most.
const LIFE: (i64, i64) = (10, 120);

/// The table that sessions make and drop.
const MADE: &str = "soak_made";

/// Runs sessions one after the other, until it is dropped.
pub(super) async fn sessions(shared: &Shared, number: usize) {
    let workload = Arc::clone(&shared.workloads[number % shared.workloads.len()]);
    let mut rng = Rng::new(shared.options.seed ^ 0x50ac, number as u64);
    let mut done = 0;
    loop {
        let opened = match open(shared, &workload).await {
            Ok(session) => session,
            Err(error) => {
                let nothing = Lane { shared, workload: &workload, number, statement: done, set: BTreeMap::new() };
                nothing.fail("a session cannot be opened", &error.strip_backtrace());
                return;
            }
        };
        shared.tally(|tally| tally.sessions += 1);
        let mut lane = Lane { shared, workload: &workload, number, statement: done, set: BTreeMap::new() };
        let life = rng.between(LIFE.0, LIFE.1) as u64;
        for _ in 0..life {
            lane.statement += 1;
            let goes_on = lane.act(&opened, &mut rng).await;
            shared.plans[number].store(opened.plans_kept() as u64, Ordering::Relaxed);
            if !goes_on {
                break;
            }
        }
        done = lane.statement;
    }
}

async fn open(shared: &Shared, workload: &Workload) -> Result<Millpond> {
    let runtime = RuntimeEnvBuilder::new().with_temp_file_path(shared.temporary.path()).build_arc()?;
    workload.session(&shared.options.millpond, &shared.engine, runtime).await
}

/// A session's number, what it has set, and how far it is.
struct Lane<'s> {
    shared: &'s Shared,
    workload: &'s Workload,
    number: usize,
    statement: u64,
    set: BTreeMap<&'static str, &'static str>,
}

impl Lane<'_> {
    /// Does the next thing. False when the session must end: a cancelled query of several statements may leave a table
    /// of its own.
    async fn act(&mut self, session: &Millpond, rng: &mut Rng) -> bool {
        let act = Act::draw(rng);
        if act == Act::Set {
            self.set_something(session, rng).await;
            return true;
        }
        // Of all sessions together each has numbers of its own.
        let fresh = self.statement * self.shared.options.sessions as u64 + self.number as u64;
        let statement = match self.workload.draw(rng, fresh) {
            Ok(statement) => statement,
            Err(error) => {
                self.fail("no statement", &error.strip_backtrace());
                return true;
            }
        };
        match act {
            Act::Set => true,
            Act::Make if statement.is_single => {
                self.make(session, &statement).await;
                true
            }
            Act::CancelAfter(..) | Act::CancelAfterFirst => {
                self.cancel(session, &statement, act).await;
                statement.is_single
            }
            Act::Make => {
                self.ask(session, &statement, Door::Execute).await;
                true
            }
            Act::Ask(door) => {
                self.ask(session, &statement, door).await;
                true
            }
        }
    }

    async fn set_something(&mut self, session: &Millpond, rng: &mut Rng) {
        let (name, few, many) = SETTINGS[rng.below(SETTINGS.len())];
        let value = rng.pick(if self.workload.is_small() { few } else { many });
        self.set.insert(name, value);
        self.shared.tally(|tally| tally.set += 1);
        let text = format!("SET millpond.{name} = '{value}'");
        if let Err(error) = session.execute(&text).await {
            self.fail(&text, &error.strip_backtrace());
        }
    }

    async fn ask(&self, session: &Millpond, statement: &Statement, door: Door) {
        let expected = self.workload.expected(statement).await;
        match (&statement.query, &expected) {
            (Query::Random(query), Expected::Random(expected)) => {
                let actual = lab::run(session, &statement.text, door).await;
                self.count(&actual);
                self.judge(statement, &lab::compare_runs(query, &statement.text, expected, actual));
            }
            (Query::Suite(query), Expected::Suite(expected)) => {
                let actual = run_query(session, query).await.map_err(|error| error.to_string());
                if let Ok(outcome) = &actual {
                    self.shared.count(&outcome.report);
                }
                let same = match (&**expected, &actual) {
                    (_, Ok(actual)) if lab::internal_error(&actual.report).is_some() => {
                        Err(lab::internal_error(&actual.report).unwrap_or_default().to_string())
                    }
                    (Ok(expected), Ok(actual)) if actual.report.findings.is_empty() => {
                        validate(query, expected, actual).map_err(|difference| difference.to_string())
                    }
                    (_, Ok(actual)) if !actual.report.findings.is_empty() => Err(actual.report.findings.join(" | ")),
                    (Err(error), _) => Err(format!("the CPU's run failed: {error}")),
                    (_, Err(error)) => Err(format!("the device fails alone: {error}")),
                    _ => Ok(()),
                };
                self.judge_suite(statement, same);
            }
            _ => self.fail(&statement.text, "the CPU answered another kind of statement"),
        }
    }

    /// Drops a statement while it runs; one that was faster has just ended.
    async fn cancel(&self, session: &Millpond, statement: &Statement, act: Act) {
        self.shared.tally(|tally| tally.cancelled += 1);
        match (&statement.query, act) {
            (Query::Suite(query), Act::CancelAfter(time)) => {
                let _ = tokio::time::timeout(time, run_query(session, query)).await;
            }
            (_, Act::CancelAfter(time)) => {
                let _ = tokio::time::timeout(time, session.execute(&statement.text)).await;
            }
            _ if statement.is_single => {
                if let Ok(mut stream) = session.stream(&statement.text).await {
                    let _ = stream.next().await;
                }
            }
            _ => {}
        }
    }

    async fn make(&self, session: &Millpond, statement: &Statement) {
        self.shared.tally(|tally| tally.made += 1);
        let expected = self.workload.expected(statement).await;
        let text = statement.text.trim_end().trim_end_matches(';');
        let actual = made(session.clone(), format!("CREATE TABLE {MADE} AS {text}")).await;
        self.count(&actual);
        // Rows of a table have no order.
        let unordered = format!("SELECT * FROM {MADE}");
        match (&statement.query, &expected) {
            (Query::Random(query), Expected::Random(expected)) => {
                self.judge(statement, &lab::compare_runs(query, &unordered, expected, actual));
            }
            (Query::Suite(query), Expected::Suite(expected)) => {
                let same = match (&**expected, actual) {
                    (_, Ran::Answer(_, report, _)) if lab::internal_error(&report).is_some() => {
                        Err(lab::internal_error(&report).unwrap_or_default().to_string())
                    }
                    (Ok(expected), Ran::Answer(actual, report, _)) if report.findings.is_empty() => query
                        .check
                        .verify(&expected.answer, &actual, false)
                        .map_err(|difference| format!("as a table: {difference}")),
                    (Err(error), Ran::Answer(..)) => Err(format!("the CPU's run failed: {error}")),
                    (Ok(_), Ran::Answer(_, report, _)) => Err(report.findings.join(" | ")),
                    (_, other) => Err(format!("it cannot be made a table: {other:?}")),
                };
                self.judge_suite(statement, same);
            }
            _ => {}
        }
        if let Err(error) = session.execute(&format!("DROP TABLE IF EXISTS {MADE}")).await {
            self.fail(&statement.text, &format!("its table cannot be dropped: {}", error.strip_backtrace()));
        }
    }

    fn count(&self, ran: &Ran) {
        if let Ran::Answer(_, report, _) = ran {
            self.shared.count(report);
        }
    }

    fn judge(&self, statement: &Statement, verdict: &Verdict) {
        match verdict {
            Verdict::Differs { kind, message } => self.fail(&statement.text, &format!("{kind:?}: {message}")),
            Verdict::Same { .. } => self.shared.tally(|tally| tally.same += 1),
            Verdict::BothFail { .. } => self.shared.tally(|tally| tally.both_fail += 1),
            Verdict::DeviceAnswersAlone { .. } | Verdict::DeviceFailsAlone { .. } => {
                self.shared.tally(|tally| tally.one_fails += 1);
            }
        }
    }

    fn judge_suite(&self, statement: &Statement, same: Result<(), String>) {
        match same {
            Ok(()) => self.shared.tally(|tally| tally.same += 1),
            Err(why) => self.fail(&statement.text, &why),
        }
    }

    fn fail(&self, text: &str, what: &str) {
        self.shared.fail(Failure {
            workload: self.workload.name.clone(),
            session: self.number,
            statement: self.statement,
            settings: self.set.iter().map(|(name, value)| format!("millpond.{name} = '{value}'")).collect(),
            text: text.to_string(),
            what: what.to_string(),
        });
    }
}

/// Makes a table, and reads all of it.
async fn made(session: Millpond, create: String) -> Ran {
    lab::caught(async move {
        session.execute(&create).await?;
        let read = session.execute(&format!("SELECT * FROM {MADE}")).await?;
        let answer = Answer::try_new(&read.schema, &read.batches)?;
        Ok((answer, read.report, Operators::new()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use millpond::MillpondOptions;

    use super::*;

    #[test]
    fn a_session_may_set_what_sessions_set_here() {
        for (name, few, many) in SETTINGS {
            for value in few.iter().chain(many) {
                let mut options = MillpondOptions::default();
                assert!(options.try_set(name, value).is_ok(), "{name} = {value}");
            }
        }
    }

    #[test]
    fn every_act_is_drawn() {
        let mut rng = Rng::new(1, 1);
        let acts: Vec<Act> = (0..1000).map(|_| Act::draw(&mut rng)).collect();
        let count = |of: fn(&Act) -> bool| acts.iter().filter(|act| of(act)).count();
        assert!(count(|act| matches!(act, Act::Set)) > 40);
        assert!(count(|act| matches!(act, Act::CancelAfter(_))) > 10);
        assert!(count(|act| matches!(act, Act::CancelAfterFirst)) > 10);
        assert!(count(|act| matches!(act, Act::Make)) > 30);
        assert!(count(|act| matches!(act, Act::Ask(_))) > 700);
    }
}
