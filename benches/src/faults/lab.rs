//! One device that serves a whole sweep, and the judgement over one run on it.
//!
//! ```text
//!   order a failure ─► query ─► answer · answer and note · error ─► equal to the CPU?  clear?
//!                                        └─► nothing in use, nothing found, the next query is answered
//! ```

use std::sync::Arc;
use std::time::Duration;

use millpond::datafusion::error::{DataFusionError, Result};
use millpond::datafusion::prelude::{ParquetReadOptions, SessionConfig};
use millpond::device::Engine;
use millpond::session::QueryResult;
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond, QueryReport};
use millpond_data::tpch::{self, Table};
use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts, SimDriver};
use millpond_queries::answer::{Answer, compare};

use super::queries::Named;
use crate::runner::is_ordered;

/// Which allocations fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// One fails; the next try succeeds.
    Once,
    /// One and all later ones fail, until something is freed or spilled.
    UntilFree,
}

impl Fault {
    pub const ALL: [Fault; 2] = [Fault::Once, Fault::UntilFree];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Once => "once",
            Fault::UntilFree => "until-free",
        }
    }

    fn order(self, nth: u64) -> FailCall {
        let lasts = match self {
            Fault::Once => FailureLasts::Once,
            Fault::UntilFree => FailureLasts::UntilFree,
        };
        FailCall::new(CallKind::Allocate, nth, lasts)
    }
}

/// How a run ended that is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// The run had fewer allocations: its tasks came in another order than when they were counted.
    NotReached,
    /// The device gave the right answer.
    Answered,
    /// The CPU gave the right answer, and a note says why.
    Noted,
    /// A clear out-of-memory error: the CPU is forbidden, or rows had left already.
    Refused,
}

/// Longest time that a query may take; these take a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(180);

/// What is asked after every run: the engine must still answer.
const AFTERWARDS: &str = "SELECT n_regionkey, count(*), sum(n_nationkey) FROM nation GROUP BY n_regionkey";

/// Sessions over TPC-H at scale 0.001: without a device, and two that share one simulated device.
pub struct Lab {
    cpu: Millpond,
    allow: Millpond,
    error: Millpond,
    engine: Arc<Engine>,
    sim: Arc<SimDriver>,
    afterwards: Answer,
    _data: tempfile::TempDir,
}

fn outside(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn answer(result: &QueryResult) -> Result<Answer> {
    Ok(Answer::try_new(&result.schema, &result.batches)?)
}

impl Lab {
    /// Generates the rows and opens the sessions. Extents are small, so that there are several.
    ///
    /// # Errors
    /// When files cannot be written or a session cannot be opened.
    pub async fn open() -> Result<Lab> {
        let data = tempfile::tempdir()?;
        tpch::generate(&tpch::Options::new(0.001, data.path()), &|_, _| ()).map_err(outside)?;
        let config = SessionConfig::new().with_target_partitions(2);
        let builder = Millpond::builder().with_device(DeviceChoice::Cpu).with_config(config.clone());
        let cpu = builder.build().map_err(outside)?;
        let on_device = |fallback, engine: Option<Arc<Engine>>| -> Result<Millpond> {
            let builder = Millpond::builder().with_device(DeviceChoice::Sim).with_fallback(fallback);
            let builder = builder.with_option("batch_rows", "1500").map_err(outside)?;
            let builder = builder.with_option("partitions", "2").map_err(outside)?.with_config(config.clone());
            let builder = match engine {
                Some(engine) => builder.with_engine(engine),
                None => builder,
            };
            builder.build().map_err(outside)
        };
        let allow = on_device(Fallback::Allow, None)?;
        let engine = Arc::clone(allow.engine().expect("the simulated device opens"));
        let error = on_device(Fallback::Error, Some(Arc::clone(&engine)))?;
        for session in [&cpu, &allow, &error] {
            for table in Table::ALL.map(Table::name) {
                let path = data.path().join(format!("{table}.parquet"));
                let path = path.to_string_lossy();
                session.context().register_parquet(table, path, ParquetReadOptions::default()).await?;
            }
        }
        let afterwards = answer(&cpu.execute(AFTERWARDS).await?)?;
        let sim = Arc::clone(engine.simulated().expect("the device is simulated"));
        Ok(Lab { cpu, allow, error, engine, sim, afterwards, _data: data })
    }

    /// The CPU's answer, and how many allocations the query tries on the device when nothing fails.
    ///
    /// # Errors
    /// When it fails where nothing was made to fail, or does not run on the device as it should.
    pub async fn expected(&self, query: &Named) -> Result<(Answer, u64), String> {
        let text = |e: DataFusionError| e.strip_backtrace();
        let expected = self.cpu.execute(&query.sql).await.and_then(|result| answer(&result)).map_err(text)?;
        self.sim.take_order_back(CallKind::Allocate);
        // With the CPU forbidden: a join that it takes over is an error already here.
        let result = self.error.execute(&query.sql).await.map_err(text)?;
        let tried = self.sim.take_order_back(CallKind::Allocate);
        let actual = answer(&result).map_err(text)?;
        compare(&expected, &actual, is_ordered(&query.sql)).map_err(|difference| difference.to_string())?;
        self.nothing_is_left().await?;
        if result.report.launches == 0 || tried == 0 {
            return Err(format!("it does not use the device: {:?}", result.report.reasons));
        }
        Ok((expected, tried))
    }

    /// One run with a failure on order.
    ///
    /// # Errors
    /// What is not as it should be.
    pub async fn judge(
        &self,
        query: &Named,
        expected: &Answer,
        fault: Fault,
        nth: u64,
        fallback: Fallback,
    ) -> Result<Ended, String> {
        let session = if fallback == Fallback::Error { &self.error } else { &self.allow };
        self.sim.order_failure(fault.order(nth));
        let ran = run(session, &query.sql).await;
        let reached = self.sim.take_order_back(CallKind::Allocate) >= nth;
        let ended = self.ended(query, expected, fault, fallback, ran?)?;
        self.nothing_is_left().await?;
        let after = run(session, AFTERWARDS).await?.map_err(|error| format!("the next query fails: {error}"))?;
        let after = answer(&after).map_err(|error| error.strip_backtrace())?;
        compare(&self.afterwards, &after, false).map_err(|difference| format!("the next query: {difference}"))?;
        self.nothing_is_left().await?;
        Ok(if reached { ended } else { Ended::NotReached })
    }

    fn ended(
        &self,
        query: &Named,
        expected: &Answer,
        fault: Fault,
        fallback: Fallback,
        ran: Result<QueryResult, String>,
    ) -> Result<Ended, String> {
        let result = match ran {
            Ok(result) => result,
            Err(error) if fault == Fault::Once => return Err(format!("one failure is enough for an error: {error}")),
            // Without a lasting failure there is no error; with one it names what was wanted and the way out.
            Err(error) => {
                let clear = ["out of device memory", "wanted", "query", "lower millpond.batch_bytes"];
                return match clear.iter().find(|part| !error.contains(**part)) {
                    None => Ok(Ended::Refused),
                    Some(part) => Err(format!("the error does not say {part:?}: {error}")),
                };
            }
        };
        let actual = answer(&result).map_err(|error| error.strip_backtrace())?;
        compare(expected, &actual, is_ordered(&query.sql)).map_err(|difference| difference.to_string())?;
        let notes = &result.report.notes;
        on_the_cpu(&result.report)?;
        match notes.iter().find(|note| note.contains("on the CPU")) {
            None if result.report.launches == 0 => Err("no launch".to_string()),
            None => Ok(Ended::Answered),
            Some(note) if fault == Fault::Once => Err(format!("one failure is enough for the CPU: {note}")),
            Some(note) if fallback == Fallback::Error => Err(format!("the CPU answers where it is forbidden: {note}")),
            Some(note) if note.contains("out of device memory") => Ok(Ended::Noted),
            Some(note) => Err(format!("the note does not say what happened: {note}")),
        }
    }

    /// Waits for what the run's tasks still give back; then nothing may be in use, and nothing may have been found.
    async fn nothing_is_left(&self) -> Result<(), String> {
        // The next case loads its columns anew.
        Store::of(&self.engine).clear();
        let left = || (self.engine.pool().used_bytes(), self.engine.pinned().statistics().lent);
        let mut patience = PATIENCE.as_millis();
        while left() != Default::default() {
            if patience == 0 {
                let (device, pinned) = left();
                return Err(format!("{device} of the pool and {pinned} of pinned memory stay in use"));
            }
            patience -= 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let findings = self.engine.take_findings();
        let errors = self.engine.device().take_errors();
        match (findings.first(), errors.first()) {
            (Some(finding), _) => Err(format!("{} findings; the first: {finding}", findings.len())),
            (_, Some(error)) => Err(format!("{} errors in drops; the first: {error}", errors.len())),
            (None, None) => Ok(()),
        }
    }
}

/// What runs on the CPU without a word: an operator that the plan leaves there, or one that a note does not explain.
fn on_the_cpu(report: &QueryReport) -> Result<(), String> {
    let left = report.operators - report.operators_on_device;
    match (report.reasons.as_slice(), left) {
        ([], 0) => Ok(()),
        ([], _) if report.notes.iter().any(|note| note.contains("on the CPU")) => Ok(()),
        (reasons, _) => Err(format!("{left} of {} operators on the CPU: {reasons:?}", report.operators)),
    }
}

/// Runs a query in a task of its own, so that a panic and a hang are outcomes.
async fn run(session: &Millpond, sql: &str) -> Result<Result<QueryResult, String>, String> {
    let (session, sql) = (session.clone(), sql.to_string());
    let task = tokio::spawn(async move { session.execute(&sql).await });
    let stop = task.abort_handle();
    match tokio::time::timeout(PATIENCE, task).await {
        Err(_) => {
            stop.abort();
            Err(format!("no answer after {} seconds", PATIENCE.as_secs()))
        }
        Ok(Err(panic)) => Err(panic.to_string()),
        Ok(Ok(ran)) => Ok(ran.map_err(|error| error.strip_backtrace())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_on_the_cpu_is_a_failure_unless_a_note_explains_it() {
        let report = |on_device, reasons: &[&str], notes: &[&str]| {
            let mut report = QueryReport::default();
            (report.operators, report.operators_on_device) = (3, on_device);
            report.reasons = reasons.iter().map(ToString::to_string).collect();
            report.notes = notes.iter().map(ToString::to_string).collect();
            on_the_cpu(&report)
        };
        assert_eq!(report(3, &[], &[]), Ok(()));
        assert_eq!(report(0, &[], &["out of device memory – ran those rows on the CPU"]), Ok(()));
        assert!(report(2, &[], &[]).is_err());
        let why = report(2, &["HashJoinExec has no device form yet"], &["out of device memory – ran on the CPU"]);
        assert!(why.is_err_and(|why| why.contains("1 of 3") && why.contains("HashJoinExec")));
    }
}
