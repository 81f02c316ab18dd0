//! Devices of a sweep, and the judgment of one run on one of them.
//!
//! ```text
//!   order a failure ─► query ─► answer · answer and note · error ─► equal to the CPU?  clear?
//!                                        └─► nothing in use, nothing found, the next query is answered
//! ```
//!
//! Warm    one device serves most cases: what is made once, such as modules and streams, is there.
//! Fresh   a device of its own for a case that loses it, or that fails what a device makes once.
//! Short   calls that make room fail while an allocation looks for some.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millpond::datafusion::error::{DataFusionError, Result};
use millpond::datafusion::prelude::{ParquetReadOptions, SessionConfig};
use millpond::device::Engine;
use millpond::session::QueryResult;
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond, QueryReport};
use millpond_data::tpch::{self, Table};
use millpond_memory::DriverCode;
use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts, SimDriver};
use millpond_queries::answer::{Answer, compare};

use super::queries::Named;
use crate::runner::is_ordered;

/// How calls fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// One call is refused; the next attempt succeeds.
    Once,
    /// One call and all later ones of its kind are refused, until memory is freed or spilled.
    UntilFree,
    /// One call and all later ones of its kind are refused.
    Forever,
    /// One call reports that the device is lost.
    Lost,
    /// One call is accepted, and its work loses the device.
    Late,
}

impl Fault {
    pub const ALL: [Fault; 5] = [Fault::Once, Fault::UntilFree, Fault::Forever, Fault::Lost, Fault::Late];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Once => "once",
            Fault::UntilFree => "until-free",
            Fault::Forever => "forever",
            Fault::Lost => "lost",
            Fault::Late => "late",
        }
    }

    /// Whether calls of this kind can fail so.
    pub fn is_of(self, call: CallKind) -> bool {
        match self {
            Fault::Once | Fault::Lost => true,
            // Only what takes memory can hope that a free helps.
            Fault::UntilFree => call.refusal() == DriverCode::OUT_OF_MEMORY,
            Fault::Forever => true,
            Fault::Late => call.is_work(),
        }
    }

    fn loses_the_device(self) -> bool {
        matches!(self, Fault::Lost | Fault::Late)
    }
}

/// One injected failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub call: CallKind,
    pub fault: Fault,
    pub nth: u64,
    pub fallback: Fallback,
}

/// Calls that are made when an allocation finds no room, to make some.
const WHEN_SHORT: [CallKind; 6] = [
    CallKind::MemoryInfo,
    CallKind::PoolAttribute,
    CallKind::PoolTrim,
    CallKind::StreamSynchronize,
    CallKind::EventSynchronize,
    CallKind::DeviceSynchronize,
];

impl Case {
    /// The failure, and the injections that cause it.
    fn orders(self) -> Vec<FailCall> {
        if !WHEN_SHORT.contains(&self.call) {
            return vec![self.order()];
        }
        // The n-th allocation finds no room, and what is done about it fails.
        vec![FailCall::new(CallKind::Allocate, self.nth, FailureLasts::UntilFree), Case { nth: 1, ..self }.order()]
    }

    /// Whether it came to the failure, by how often its call was made.
    fn is_reached(self, seen: u64) -> bool {
        seen >= if WHEN_SHORT.contains(&self.call) { 1 } else { self.nth }
    }

    fn order(self) -> FailCall {
        let Case { call, fault, nth, .. } = self;
        match fault {
            Fault::Once => FailCall::new(call, nth, FailureLasts::Once),
            Fault::UntilFree => FailCall::new(call, nth, FailureLasts::UntilFree),
            Fault::Forever => FailCall::new(call, nth, FailureLasts::Forever),
            Fault::Lost => FailCall::with_code(call, nth, DriverCode::ECC_UNCORRECTABLE),
            // Of a kernel, of memory that the GPU contained, of another client of the MPS server.
            Fault::Late => {
                let codes = [DriverCode::ILLEGAL_ADDRESS, DriverCode::CONTAINED, DriverCode::MPS_CLIENT_TERMINATED];
                FailCall::late(call, nth, codes[nth as usize % codes.len()])
            }
        }
    }
}

/// Whether a case of this kind needs a device of its own: it is lost, or it makes what warm devices have.
fn wants_fresh(call: CallKind, fault: Fault) -> bool {
    use CallKind::{Assemble, CodeLoad, EventCreate, FunctionAttribute, ModuleFunction, ModuleLoad, StreamCreate};
    let once_made = [Assemble, CodeLoad, EventCreate, FunctionAttribute, ModuleFunction, ModuleLoad, StreamCreate];
    fault.loses_the_device() || once_made.contains(&call)
}

/// Whether assembled kernels are kept on disk: then they are assembled and loaded by calls of their own.
fn keeps_kernels(call: CallKind) -> bool {
    matches!(call, CallKind::Assemble | CallKind::CodeLoad)
}

/// How a run ended that is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// The run made fewer calls: its tasks ran in another order than when the calls were counted.
    NotReached,
    /// The device gave the right answer.
    Answered,
    /// The CPU gave the right answer, and a note says why.
    Noted,
    /// A clear error: the CPU is forbidden, or rows had already been returned.
    Refused,
}

/// Longest time that a query may take; these take a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(180);

/// Query run after every case: the engine must still answer it.
const AFTERWARDS: &str = "SELECT n_regionkey, count(*), sum(n_nationkey) FROM nation GROUP BY n_regionkey";

/// How often a query makes each kind of call when nothing fails.
pub type Seen = BTreeMap<CallKind, u64>;

/// A query without failures.
pub struct Undisturbed {
    /// The CPU's answer.
    pub answer: Answer,
    /// On a device that has run it before, on a fresh one, and on a fresh one that keeps assembled kernels.
    pub warm: Seen,
    pub fresh: Seen,
    pub keeping: Seen,
}

impl Undisturbed {
    /// Number of calls that can fail.
    pub fn calls(&self, call: CallKind, fault: Fault) -> u64 {
        let seen = match wants_fresh(call, fault) {
            _ if keeps_kernels(call) => &self.keeping,
            true => &self.fresh,
            false => &self.warm,
        };
        let call = if WHEN_SHORT.contains(&call) { CallKind::Allocate } else { call };
        seen.get(&call).copied().unwrap_or(0)
    }
}

/// Two sessions that share a simulated device: one where the CPU may take over, and one where it may not.
struct Bench {
    allow: Millpond,
    error: Millpond,
    engine: Arc<Engine>,
    sim: Arc<SimDriver>,
    _kernels: tempfile::TempDir,
}

/// TPC-H at scale 0.001, a session without a device, and a warm device.
pub struct Lab {
    cpu: Millpond,
    warm: Bench,
    config: SessionConfig,
    afterwards: Answer,
    data: tempfile::TempDir,
}

fn outside(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn answer(result: &QueryResult) -> Result<Answer> {
    Ok(Answer::try_new(&result.schema, &result.batches)?)
}

async fn register(session: &Millpond, data: &tempfile::TempDir) -> Result<()> {
    millpond_queries::functions::register(session.context())?;
    for table in Table::ALL.map(Table::name) {
        let path = data.path().join(format!("{table}.parquet"));
        let path = path.to_string_lossy();
        session.context().register_parquet(table, path, ParquetReadOptions::default()).await?;
    }
    Ok(())
}

impl Bench {
    /// Extents are small, so that there are several.
    async fn open(config: &SessionConfig, data: &tempfile::TempDir, keeps_kernels: bool) -> Result<Bench> {
        let kernels = tempfile::tempdir()?;
        let folder = kernels.path().join("kernels");
        let folder = folder.to_string_lossy();
        let on_device = |fallback, engine: Option<Arc<Engine>>| -> Result<Millpond> {
            let builder = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_fallback(fallback);
            // Which runs find columns stored must not depend on the age of the files.
            let builder = builder.with_option("cache_settle_seconds", "0").map_err(outside)?;
            let builder = builder.with_option("batch_rows", "1500").map_err(outside)?;
            let builder = builder.with_option("partitions", "2").map_err(outside)?.with_config(config.clone());
            let kept = if keeps_kernels { folder.as_ref() } else { "off" };
            let builder = builder.with_option("kernel_cache", kept).map_err(outside)?;
            let builder = match engine {
                Some(engine) => builder.with_engine(engine),
                None => builder,
            };
            builder.build().map_err(outside)
        };
        let allow = on_device(Fallback::Allow, None)?;
        let engine = Arc::clone(allow.engine().expect("the simulated device opens"));
        let error = on_device(Fallback::Error, Some(Arc::clone(&engine)))?;
        for session in [&allow, &error] {
            register(session, data).await?;
        }
        let sim = Arc::clone(engine.simulated().expect("the device is simulated"));
        Ok(Bench { allow, error, engine, sim, _kernels: kernels })
    }

    /// Number of calls of each kind since the last count.
    fn seen(&self) -> Seen {
        let seen = CallKind::ALL.iter().map(|call| (*call, self.sim.take_order_back(*call)));
        seen.filter(|(_, seen)| *seen > 0).collect()
    }

    /// Runs a query where nothing fails and the CPU is forbidden: a join that it takes over is an error already here.
    async fn undisturbed(&self, query: &Named, expected: &Answer) -> Result<Seen, String> {
        let text = |e: DataFusionError| e.strip_backtrace();
        self.seen();
        let result = self.error.execute(&query.sql).await.map_err(text)?;
        let seen = self.seen();
        let actual = answer(&result).map_err(text)?;
        compare(expected, &actual, is_ordered(&query.sql)).map_err(|difference| difference.to_string())?;
        self.nothing_is_left().await?;
        if result.report.launches == 0 || !seen.contains_key(&CallKind::Allocate) {
            return Err(format!("it does not use the device: {:?}", result.report.reasons));
        }
        Ok(seen)
    }

    async fn judge(&self, query: &Named, expected: &Answer, next: &Answer, case: Case) -> Result<Ended, String> {
        let session = if case.fallback == Fallback::Error { &self.error } else { &self.allow };
        let orders = case.orders();
        orders.iter().for_each(|order| _ = self.sim.order_failure(*order));
        let ran = run(session, &query.sql).await;
        let seen = orders.iter().fold(None, |_, order| Some(self.sim.take_order_back(order.call)));
        let reached = case.is_reached(seen.unwrap_or(0));
        let ended = ended(query, expected, case, ran?)?;
        self.nothing_is_left().await?;
        let after = run(session, AFTERWARDS).await?;
        match after {
            Ok(after) => {
                let actual = answer(&after).map_err(|error| error.strip_backtrace())?;
                compare(next, &actual, false).map_err(|difference| format!("the next query: {difference}"))?;
                let lost = self.engine.device().is_lost();
                let why = after.report.reasons.iter().chain(&after.report.notes).any(|why| why.contains("lost"));
                if lost && !why {
                    return Err("the next query does not say that the device is lost".to_string());
                }
                if !lost && after.report.launches == 0 {
                    return Err("the next query leaves a device alone that works".to_string());
                }
            }
            Err(error) if self.engine.device().is_lost() && case.fallback == Fallback::Error => {
                if !error.contains("lost") {
                    return Err(format!("the next query does not say that the device is lost: {error}"));
                }
            }
            Err(error) => return Err(format!("the next query fails: {error}")),
        }
        self.nothing_is_left().await?;
        Ok(if reached { ended } else { Ended::NotReached })
    }

    /// Waits until the run's tasks have released their resources; then nothing may be in use, and no finding may exist.
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

impl Lab {
    /// Generates the rows and opens the sessions.
    ///
    /// # Errors
    /// When files cannot be written or a session cannot be opened.
    pub async fn open() -> Result<Lab> {
        let data = tempfile::tempdir()?;
        tpch::generate(&tpch::Options::new(0.001, data.path()), &|_, _| ()).map_err(outside)?;
        let config = SessionConfig::new().with_target_partitions(2);
        let builder = Millpond::builder().with_device(DeviceChoice::Cpu).with_config(config.clone());
        let cpu = builder.build().map_err(outside)?;
        register(&cpu, &data).await?;
        let warm = Bench::open(&config, &data, false).await?;
        let afterwards = answer(&cpu.execute(AFTERWARDS).await?)?;
        Ok(Lab { cpu, warm, config, afterwards, data })
    }

    /// The CPU's answer, and the calls that the query makes when nothing fails.
    ///
    /// # Errors
    /// When it fails where nothing was made to fail, or does not run on the device as it should.
    pub async fn undisturbed(&self, query: &Named) -> Result<Undisturbed, String> {
        let text = |e: DataFusionError| e.strip_backtrace();
        let answer = self.cpu.execute(&query.sql).await.and_then(|result| answer(&result)).map_err(text)?;
        let mut seen = Vec::new();
        for keeps_kernels in [false, true] {
            let fresh = Bench::open(&self.config, &self.data, keeps_kernels).await.map_err(text)?;
            seen.push(fresh.undisturbed(query, &answer).await?);
        }
        let (keeping, fresh) = (seen.pop().unwrap_or_default(), seen.pop().unwrap_or_default());
        self.warm.undisturbed(query, &answer).await?;
        let warm = self.warm.undisturbed(query, &answer).await?;
        Ok(Undisturbed { answer, warm, fresh, keeping })
    }

    /// One run with a failure on order.
    ///
    /// # Errors
    /// A description of the misbehavior.
    pub async fn judge(&mut self, query: &Named, expected: &Answer, case: Case) -> Result<Ended, String> {
        let fresh = || async {
            let opened = Bench::open(&self.config, &self.data, keeps_kernels(case.call)).await;
            opened.map_err(|error| error.strip_backtrace())
        };
        if wants_fresh(case.call, case.fault) {
            let fresh = fresh().await?;
            return fresh.judge(query, expected, &self.afterwards, case).await;
        }
        let judged = self.warm.judge(query, expected, &self.afterwards, case).await;
        // Refusals that do not end lose a device as well, and what one case leaves behind is no matter of the next.
        if self.warm.engine.device().is_lost() || judged.is_err() {
            self.warm = fresh().await?;
        }
        judged
    }
}

fn ended(query: &Named, expected: &Answer, case: Case, ran: Result<QueryResult, String>) -> Result<Ended, String> {
    // A refused allocation is tried again, so that a single one is no trouble at all.
    let is_cured = case.call == CallKind::Allocate && case.fault == Fault::Once;
    let result = match ran {
        Ok(result) => result,
        Err(error) if is_cured => return Err(format!("one failure is enough for an error: {error}")),
        Err(error) => return is_clear(&error, case).map(|()| Ended::Refused),
    };
    let actual = answer(&result).map_err(|error| error.strip_backtrace())?;
    compare(expected, &actual, is_ordered(&query.sql)).map_err(|difference| difference.to_string())?;
    let notes = &result.report.notes;
    on_the_cpu(&result.report)?;
    match notes.iter().find(|note| note.contains("on the CPU")) {
        None if result.report.launches == 0 => Err("no launch".to_string()),
        None => Ok(Ended::Answered),
        Some(note) if is_cured => Err(format!("one failure is enough for the CPU: {note}")),
        Some(note) if case.fallback == Fallback::Error => Err(format!("the CPU answers where it is forbidden: {note}")),
        Some(note) => match says(note, case) {
            true => Ok(Ended::Noted),
            false => Err(format!("the note does not say what happened: {note}")),
        },
    }
}

/// Whether a text names what has failed: the call, or what it follows from it.
fn says(text: &str, case: Case) -> bool {
    let memory = ["out of device memory", "out of host memory"];
    let lost = ["is lost", "was lost"];
    match case.call {
        CallKind::Allocate if !case.fault.loses_the_device() => text.contains(memory[0]),
        // For a missing kernel, the driver's error lists the existing ones.
        CallKind::ModuleFunction if text.contains("module has no kernel") => true,
        call => text.contains(call.name()) || memory.iter().chain(&lost).any(|words| text.contains(words)),
    }
}

/// An error names what failed; one of memory what was wanted, and the way out.
fn is_clear(error: &str, case: Case) -> Result<(), String> {
    let of_memory = error.contains("out of device memory");
    let wanted = ["the device could not finish the query", "wanted", "lower millpond.batch_bytes"];
    let parts = if of_memory { &wanted[..] } else { &wanted[..1] };
    match parts.iter().find(|part| !error.contains(**part)) {
        Some(part) => Err(format!("the error does not say {part:?}: {error}")),
        None if !says(error, case) => Err(format!("the error does not say what failed: {error}")),
        None => Ok(()),
    }
}

/// Fails on unexplained CPU work: an operator that the plan leaves there, or one that no note explains.
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
