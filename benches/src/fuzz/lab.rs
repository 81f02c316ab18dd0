//! Runs one query on the CPU and on a device, and judges the device's answer.
//!
//! ```text
//!            ┌─► DataFusion alone ──────► answer or error ─┐
//!   query ───┤                                             ├─► same · skipped an error · differs
//!            └─► device, in one of ─────► answer or error ─┘
//!                several variants         findings, bytes in use
//! ```
//!
//! Devices  each session has a simulated device of its own, with a seed for its schedule. A CUDA device, or one that
//!          the caller supplies, is shared by all sessions and workers: leaked bytes are checked for when all have
//!          ended.
//!
//! Errors   where DataFusion fails, the device fails too. One freedom: DataFusion says nothing about which rows and
//!          which expressions it evaluates when a WHERE, a FILTER, a CASE, a LIMIT or another operand makes some of
//!          them unneeded, so there the device may answer where DataFusion fails. Rarely the reverse holds:
//!          DataFusion never polls one side of a join whose other side has no rows, and the device has already run
//!          it. Both are counted. A failure of the device itself is a difference.
//! Pairs    a query may have a twin with other constants ([`Trial::pair`]); the two run in turn, each against its own
//!          answer.
//! Tables   a query may be made a table of ([`Trial::made`]), after it has run: creating the table reuses the
//!          findings of that run.
//! Alarms   a finding of the simulated device, bytes of the pool that stay in use, a hang and a panic are differences,
//!          a panic of DataFusion itself and one on both sides too: the generator avoids the forms that DataFusion
//!          panics over.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use millpond::datafusion::arrow::compute::concat_batches;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::datafusion::error::{DataFusionError, Result};
use millpond::datafusion::physical_plan::{ExecutionPlan, collect};
use millpond::datafusion::prelude::SessionConfig;
use millpond::options::Cache;
use millpond::{DeviceChoice, Millpond, MillpondOptions, QueryReport};
use millpond_queries::answer::{Answer, compare};
use tokio::task::AbortHandle;

use super::data::{Folder, TABLES, register, register_rows, rows_of};
use super::devices::Devices;
use super::made::{self, Surprises};
use super::pair::{self, Door, Order, Outcome};
use super::query::Query;
use super::variant::{Trial, VARIANTS};
use crate::runner::is_ordered;

/// Longest time that a query may take; small tables take milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Kinds of differences. A reduced query must show the original's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Answer,
    Error,
    Panic,
    Hang,
    Finding,
    Leak,
    /// The engine hit an internal error. The CPU took over, and its answer is correct.
    Internal,
}

/// Operators of executed plans by name: how many ran on the device, and how many on the CPU.
pub type Operators = BTreeMap<String, (u64, u64)>;

/// Result of one query.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Equal answers; whether all operators ran on the device, and none did.
    Same {
        rows: usize,
        wholly: bool,
        none: bool,
        reasons: Vec<String>,
        operators: Operators,
    },
    /// Both failed.
    BothFail {
        message: String,
    },
    /// DataFusion failed over a row or an expression that the device did not need.
    DeviceAnswersAlone {
        message: String,
    },
    /// The other way round: the device, or the CPU part below it, evaluated what DataFusion left out.
    DeviceFailsAlone {
        message: String,
    },
    Differs {
        kind: Kind,
        message: String,
    },
}

/// The sessions of a run: one without a device and one with it per variant, so that both plan alike: which rows
/// DataFusion evaluates, and so whose errors it meets, depends on its partitions.
pub struct Lab {
    cpus: Vec<Millpond>,
    devices: Vec<Millpond>,
    /// Others use the devices, too.
    shared: bool,
    seed: u64,
    device_seed: u64,
    folder: Folder,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ran {
    Answer(Answer, Box<QueryReport>, Operators),
    Error(String),
    Panic(String),
    Hang,
}

pub(super) fn outside(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

pub(crate) fn config(target_partitions: usize, partitioned: bool) -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(target_partitions);
    // It keeps -0.0 and 0.0 apart, which DataFusion's groups without a LIMIT do not: the oracle would contradict
    // itself.
    config.options_mut().optimizer.enable_topk_aggregation = false;
    if partitioned {
        config.options_mut().optimizer.hash_join_single_partition_threshold = 0;
        config.options_mut().optimizer.hash_join_single_partition_threshold_rows = 0;
    }
    config
}

/// The same for the oracle, which believes no statistics of files: those of floats know nothing of NaN.
pub(crate) fn row_by_row(mut config: SessionConfig) -> SessionConfig {
    let options = config.options_mut();
    options.execution.collect_statistics = false;
    options.execution.parquet.pruning = false;
    options.execution.parquet.enable_page_index = false;
    options.execution.parquet.bloom_filter_on_read = false;
    // Filters that sorts and joins fill in prune under every setting of the options.
    options.optimizer.enable_topk_dynamic_filter_pushdown = false;
    options.optimizer.enable_join_dynamic_filter_pushdown = false;
    options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    config
}

/// Counts the operators of a plan that work on rows.
pub(crate) fn operators(session: &Millpond, plan: &Arc<dyn ExecutionPlan>) -> Operators {
    let mut operators = Operators::new();
    let walked = plan.apply(|node| {
        if session.operators().counts(node.as_ref()) {
            let name = node.name().trim_end_matches("Exec");
            let (name, on_device) = match name.strip_prefix("Device") {
                Some(name) => (name, true),
                None => (name, false),
            };
            // One name for all kinds of joins, windows, sorts and sets of rows.
            let name =
                ["Join", "Window", "TopK", "Project"].into_iter().find(|kind| name.contains(kind)).unwrap_or(name);
            let counts = operators.entry(name.to_lowercase()).or_default();
            *(if on_device { &mut counts.0 } else { &mut counts.1 }) += 1;
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    operators
}

impl Lab {
    /// Opens the sessions over the tables of `seed`.
    ///
    /// # Errors
    /// When the files cannot be written or a session cannot be opened.
    pub async fn open(seed: u64, devices: &Devices) -> Result<Lab> {
        Self::open_over(seed, seed, devices).await
    }

    /// As [`open`](Self::open), with other tables for the device: a lab whose every alarm should ring.
    async fn open_over(seed: u64, device_seed: u64, on: &Devices) -> Result<Lab> {
        note_panics();
        let folder = Folder::write(seed)?;
        let (mut cpus, mut devices) = (Vec::new(), Vec::new());
        for variant in VARIANTS {
            let config = config(variant.target_partitions, variant.partitioned);
            let cpu = row_by_row(config.clone());
            let mut options = MillpondOptions::default();
            options.device = DeviceChoice::Cpu;
            options.integer_overflow = variant.integer_overflow;
            let cpu = Millpond::builder().with_own_engine().with_options(options).with_config(cpu).build();
            let cpu = cpu.map_err(outside)?;
            register(cpu.context(), seed, &folder).await?;
            cpus.push(cpu);
            let mut builder =
                Millpond::builder().with_own_engine().with_options(on.options(&variant)).with_config(config);
            if let Some(engine) = on.shared(&variant) {
                builder = builder.with_engine(Arc::clone(engine));
            }
            let session = builder.build().map_err(outside)?;
            register(session.context(), device_seed, &folder).await?;
            devices.push(session);
        }
        Ok(Lab { cpus, devices, shared: on.is_shared(), seed, device_seed, folder })
    }

    /// Runs a query, or a pair, and judges the device by DataFusion.
    pub async fn judge(&self, query: &Query, trial: Trial) -> Verdict {
        match (trial.pair, trial.made) {
            (Some(order), _) => self.judge_pair(query, trial.variant, order).await.verdict,
            (None, Some(surprises)) => self.judge_made(query, trial.variant, surprises).await,
            (None, None) => self.judge_alone(query, trial.variant).await,
        }
    }

    async fn judge_made(&self, query: &Query, variant: usize, surprises: usize) -> Verdict {
        let (cpu, session) = (&self.cpus[variant % self.cpus.len()], &self.devices[variant % self.devices.len()]);
        let usual = VARIANTS[variant % VARIANTS.len()].surprises;
        let verdict = made::judge(query, [cpu, session], Surprises { surprises, usual }, self.shared).await;
        self.alarmed(verdict, session).await
    }

    async fn judge_alone(&self, query: &Query, variant: usize) -> Verdict {
        let session = &self.devices[variant % self.devices.len()];
        let sql = query.sql();
        let expected = run(&self.cpus[variant % self.cpus.len()], &sql, Door::Execute).await;
        let actual = run(session, &sql, Door::Execute).await;
        let mut verdict = compare_runs(query, &sql, &expected, actual);
        // A second run uses the kept plan, the loaded columns and the first run's findings.
        let stays = VARIANTS[variant % VARIANTS.len()].cache == Cache::Auto;
        if stays && matches!(verdict, Verdict::Same { .. }) {
            verdict = compare_runs(query, &sql, &expected, run(session, &sql, Door::Execute).await);
        }
        self.alarmed(verdict, session).await
    }

    /// Runs a query and its twin alternately, and judges each run by DataFusion's answer to the same text.
    pub async fn judge_pair(&self, query: &Query, variant: usize, order: Order) -> Outcome {
        let (cpu, session) = (&self.cpus[variant % self.cpus.len()], &self.devices[variant % self.devices.len()]);
        let twin = query.twin();
        let texts = [query.sql(), twin.sql()];
        let expected = [run(cpu, &texts[0], Door::Execute).await, run(cpu, &texts[1], Door::Execute).await];
        let mut actual = Vec::new();
        for (statement, door) in order.runs() {
            actual.push(run(session, &texts[*statement], *door).await);
            if let Some(Ran::Hang | Ran::Panic(_)) = actual.last() {
                break;
            }
        }
        let Outcome { verdict, apart } = pair::judge([query, &twin], &expected, order, actual);
        Outcome { verdict: self.alarmed(verdict, session).await, apart }
    }

    /// `verdict`, if the session's device has nothing to add to it.
    async fn alarmed(&self, verdict: Verdict, session: &Millpond) -> Verdict {
        let differs = |kind, message| Verdict::Differs { kind, message };
        let findings = session.engine().map(|engine| engine.take_findings()).unwrap_or_default();
        if let Some(finding) = findings.first() {
            return differs(Kind::Finding, format!("{} findings; the first: {finding}", findings.len()));
        }
        if self.shared {
            return verdict;
        }
        // A cancelled or failed run frees its memory when its tasks end, which may be a moment later.
        for _ in 0..PATIENCE.as_millis() / 10 {
            if session.pool_used_bytes() == 0 {
                return verdict;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        match verdict {
            Verdict::Differs { .. } => verdict,
            _ => differs(Kind::Leak, format!("{} bytes of the pool stay in use", session.pool_used_bytes())),
        }
    }

    /// Both answers to a query as text: DataFusion's, then the device's with its plan.
    pub async fn both(&self, sql: &str, variant: usize) -> String {
        use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
        use millpond::datafusion::physical_plan::displayable;
        let mut text = String::new();
        for session in [&self.cpus[variant % self.cpus.len()], &self.devices[variant % self.devices.len()]] {
            let answer = match session.execute(sql).await {
                Err(error) => error.strip_backtrace(),
                Ok(result) => {
                    let table =
                        pretty_format_batches(&result.batches).map_or_else(|e| e.to_string(), |t| t.to_string());
                    format!("{}\n{table}", displayable(result.plan.as_ref()).indent(false))
                }
            };
            text += &format!("{answer}\n");
        }
        text
    }

    /// The smallest query with the same kind of difference, after at most `runs` further runs.
    pub async fn reduce(&self, query: &Query, trial: Trial, kind: Kind, runs: usize) -> (Query, String) {
        let (mut smallest, mut why, mut left) = (query.clone(), String::new(), runs);
        'again: loop {
            for candidate in smallest.smaller() {
                if left == 0 {
                    return (smallest, why);
                }
                left -= 1;
                if let Verdict::Differs { kind: found, message } = self.judge(&candidate, trial).await
                    && found == kind
                {
                    (smallest, why) = (candidate, message);
                    continue 'again;
                }
            }
            return (smallest, why);
        }
    }
}

impl Lab {
    /// Fewer rows with which `query` still differs in the same way; says which. The tables are whole again afterwards.
    ///
    /// # Errors
    /// When a table cannot be registered.
    pub async fn reduce_rows(&self, query: &Query, trial: Trial, kind: Kind, runs: usize) -> Result<String> {
        let variant = trial.variant;
        let (sql, mut left, mut text) = (query.sql(), runs, String::new());
        let device = &self.devices[variant % self.devices.len()];
        let contexts = [self.cpus[variant % self.cpus.len()].context(), device.context()];
        let used = TABLES.iter().filter(|(name, ..)| sql.split(|c: char| !c.is_alphanumeric()).any(|w| w == *name));
        for (name, rows, _) in used {
            let mut kept = rows_of(self.seed, name, *rows)?;
            let mut piece = kept.num_rows().div_ceil(2);
            while piece > 0 && kept.num_rows() > 0 {
                let mut at = 0;
                while at < kept.num_rows() && left > 0 {
                    left -= 1;
                    let end = (at + piece).min(kept.num_rows());
                    let rest = [kept.slice(0, at), kept.slice(end, kept.num_rows() - end)];
                    let fewer: RecordBatch = concat_batches(&kept.schema(), &rest)?;
                    for context in contexts {
                        register_rows(context, name, &fewer)?;
                    }
                    match self.judge(query, trial).await {
                        Verdict::Differs { kind: found, .. } if found == kind => kept = fewer,
                        _ => at = end,
                    }
                }
                piece /= 2;
            }
            for context in contexts {
                register_rows(context, name, &kept)?;
            }
            text += &format!("{name}: {} rows; ", kept.num_rows());
            if kept.num_rows() <= 5 {
                text += &format!("\n{}\n", columns_in(&kept, &sql)?);
            }
        }
        register(contexts[0], self.seed, &self.folder).await?;
        register(contexts[1], self.device_seed, &self.folder).await?;
        Ok(text)
    }
}

/// The columns of `rows` that a query names, as a table.
fn columns_in(rows: &RecordBatch, sql: &str) -> Result<String> {
    use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
    let named = |name: &str| sql.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    let schema = rows.schema();
    let columns: Vec<usize> = (0..rows.num_columns()).filter(|index| named(schema.field(*index).name())).collect();
    Ok(pretty_format_batches(&[rows.project(&columns)?])?.to_string())
}

/// Recent panics with their locations, newest last: a task that ends in a panic keeps the message and loses the
/// location.
static PANICS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Notes the places of panics from here on; the hook that was there still runs.
pub(crate) fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let words = panic.payload_as_str().unwrap_or_default().to_string();
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
            let surplus = panics.len().saturating_sub(100);
            panics.drain(..surplus);
            panics.push((words, place));
            drop(panics);
            before(panic);
        }));
    });
}

/// Message of a panic, with its location if that was recorded.
fn located(message: &str) -> String {
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    let place = panics.iter().rev().find(|(words, _)| !words.is_empty() && message.contains(words.as_str()));
    place.map_or_else(|| message.to_string(), |(_, place)| format!("{message} ({place})"))
}

pub(crate) async fn run(session: &Millpond, sql: &str, door: Door) -> Ran {
    static ANEW: AtomicU64 = AtomicU64::new(0);
    let session = session.clone();
    let sql = match door {
        Door::Execute | Door::Sql => sql.to_string(),
        Door::Anew => format!("{sql} -- {}", ANEW.fetch_add(1, Ordering::Relaxed)),
    };
    caught(async move {
        if door == Door::Sql {
            let plan = session.context().sql(&sql).await?.create_physical_plan().await?;
            let batches = collect(Arc::clone(&plan), session.context().task_ctx()).await?;
            let answer = Answer::try_new(&plan.schema(), &batches)?;
            return Ok((answer, QueryReport::default(), operators(&session, &plan)));
        }
        let result = session.execute(&sql).await?;
        let answer = Answer::try_new(&result.schema, &result.batches)?;
        Ok((answer, result.report, operators(&session, &result.plan)))
    })
    .await
}

/// Ends its task when it is dropped, so that a query without a reader stops.
struct Ends(AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits for a run in a task of its own, so that a panic is an outcome.
pub(crate) async fn caught(
    ran: impl Future<Output = Result<(Answer, QueryReport, Operators)>> + Send + 'static,
) -> Ran {
    let task = tokio::spawn(ran);
    let _ends = Ends(task.abort_handle());
    match tokio::time::timeout(PATIENCE, task).await {
        Err(_) => Ran::Hang,
        Ok(Err(panic)) => Ran::Panic(located(&panic.to_string())),
        Ok(Ok(Err(error))) => {
            let message = error.strip_backtrace();
            if message.contains("panic") { Ran::Panic(located(&message)) } else { Ran::Error(message) }
        }
        Ok(Ok(Ok((answer, report, operators)))) => Ran::Answer(answer, Box::new(report), operators),
    }
}

/// The note of an internal error that the CPU took over from.
pub(crate) fn internal_error(report: &QueryReport) -> Option<&str> {
    report.notes.iter().map(String::as_str).find(|note| note.contains("internal error of the engine"))
}

pub(crate) fn compare_runs(query: &Query, sql: &str, expected: &Ran, actual: Ran) -> Verdict {
    let differs = |kind, message| Verdict::Differs { kind, message };
    match (expected, actual) {
        (Ran::Panic(message), Ran::Panic(_)) => differs(Kind::Panic, format!("both sides panic: {message}")),
        (Ran::Panic(message), _) => differs(Kind::Panic, format!("DataFusion panics: {message}")),
        (_, Ran::Panic(message)) => differs(Kind::Panic, format!("the device's side panics: {message}")),
        (_, Ran::Hang) => differs(Kind::Hang, format!("no answer after {} seconds", PATIENCE.as_secs())),
        (Ran::Answer(expected, ..), Ran::Answer(actual, report, operators)) => {
            if let Err(difference) = compare(expected, &actual, is_ordered(sql)) {
                return differs(Kind::Answer, difference.to_string());
            }
            let finding = report.findings.first();
            if let Some(finding) = finding {
                return differs(Kind::Finding, finding.clone());
            }
            if let Some(note) = internal_error(&report) {
                return differs(Kind::Internal, note.to_string());
            }
            let wholly =
                report.launches > 0 && report.operators_on_device == report.operators && report.notes.is_empty();
            let none = report.launches == 0;
            Verdict::Same { rows: actual.num_rows(), wholly, none, reasons: report.reasons, operators }
        }
        // With fallback allowed a query's own error is DataFusion's, over a part of its plan: a join whose other side
        // has no rows, say, never asks for that part.
        (Ran::Answer(..), Ran::Error(message)) if query.may_skip_errors() && !message.contains("the device") => {
            Verdict::DeviceFailsAlone { message }
        }
        (Ran::Answer(..), Ran::Error(message)) => differs(Kind::Error, format!("the device fails alone: {message}")),
        (Ran::Error(message), Ran::Error(_)) => Verdict::BothFail { message: message.clone() },
        (Ran::Error(message), Ran::Answer(..)) if query.may_skip_errors() => {
            Verdict::DeviceAnswersAlone { message: message.clone() }
        }
        (Ran::Error(message), Ran::Answer(..)) => {
            differs(Kind::Error, format!("the device answers where DataFusion says: {message}"))
        }
        (Ran::Hang, _) => differs(Kind::Hang, "DataFusion gave no answer".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::*;

    #[test]
    fn a_panic_keeps_its_place() {
        note_panics();
        let panic = std::thread::spawn(|| panic!("the 7th wheel fell off")).join();
        assert!(panic.is_err());
        let message = located("task 3 panicked with message \"the 7th wheel fell off\"");
        assert!(message.contains("lab.rs:"), "{message}");
    }

    #[tokio::test]
    async fn a_panic_is_a_difference_on_either_side_and_on_both() {
        note_panics();
        let query = Query::random(1, 1);
        let panics = || caught(async { panic!("the cow jumped over the moon") });
        let fails = || caught(async { Err(DataFusionError::Execution("no".into())) });
        for (cpu, device) in
            [(panics().await, panics().await), (panics().await, fails().await), (fails().await, panics().await)]
        {
            let verdict = compare_runs(&query, "SELECT 1", &cpu, device);
            let Verdict::Differs { kind: Kind::Panic, message } = verdict else { panic!("{verdict:?}") };
            assert!(message.contains("over the moon") && message.contains("lab.rs:"), "{message}");
        }
        let verdict = compare_runs(&query, "SELECT 1", &fails().await, fails().await);
        assert!(matches!(verdict, Verdict::BothFail { .. }), "{verdict:?}");
    }

    /// Proves that the alarm rings: over other rows, queries differ, and the difference is reduced.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_device_that_reads_other_rows_is_caught() {
        let devices = Devices::open(DeviceChoice::Sim).expect("simulated devices need nothing");
        let lab = Lab::open_over(1, 2, &devices).await.expect("sessions open");
        let mut caught = Vec::new();
        for query in (0..600).map(|number| Query::random(1, number)) {
            if caught.len() > 5 {
                break;
            }
            if query.source == Source::Table("m33")
                && let Verdict::Differs { kind: Kind::Answer, .. } = lab.judge(&query, Trial::alone(0)).await
            {
                caught.push(query);
            }
        }
        assert!(caught.len() > 5, "only {} alarms", caught.len());
        let query = &caught[0];
        let (smallest, why) = lab.reduce(query, Trial::alone(0), Kind::Answer, 100).await;
        assert!(smallest.sql().len() <= query.sql().len());
        assert!(!why.is_empty(), "{}", query.sql());
    }
}
