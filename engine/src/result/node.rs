//! The upper border: a device subtree's rows become Arrow batches.
//!
//!   first poll ──► Run: feeders, kernels, one wait ──► batches
//!        └─ trouble before the first batch ──► the CPU subplan it replaced, with a note
//!
//! Partitions one.
//! Order      the order of the sort below, if there is one.
//! Waits      once per run, for the result.
//! Cancelled  when its stream is dropped: the run's work and memory end in stream order.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use tokio::sync::watch;

use crate::column::dictionary::SourceDictionaries;
use crate::column::is_coded;
use crate::device::Engine;
use crate::device::learnt::PlanKey;
use crate::looks::Looks;
use crate::node::REPLACE;
use crate::options::Fallback;
use crate::placement::judged::Judged;
use crate::profile::{Border, Profile, RunProfiles};
use crate::program::attempts::Runs;
use crate::program::context::Notes;
use crate::program::contract::Operators;
use crate::program::contract::SourceRun;
use crate::program::counts::Tally;
use crate::program::failure::Failure;
use crate::program::keep::Keeps;
use crate::program::prepared::{Lessons, Prepared};
use crate::program::segments::{NodeWork, Program};
use crate::reason::Reason;
use crate::result::takeover;
use crate::source::parquet::DeviceScanExec;
use crate::source::upload::UploadExec;
use crate::subqueries::{Subqueries, reads_subquery};

/// Runs the device subtree below it.
#[derive(Clone)]
pub struct DownloadExec {
    reasons: Vec<Reason>,
    engine: Arc<Engine>,
    operators: Operators,
    /// What DataFusion planned for the same rows; it takes over when the device cannot answer.
    cpu: Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// What happened in runs, such as a subplan that the CPU took over. A record, like the metrics; no run reads it.
    notes: Arc<BorderNotes>,
    /// The device subtree as a program, or why it could not be cut.
    program: Result<Arc<Program>, String>,
    /// Its structure.
    key: PlanKey,
    /// What runs of it have in common: as the last one prepared it, and the values of its strings.
    prepared: Arc<Mutex<Option<Arc<Prepared>>>>,
    dictionaries: SourceDictionaries,
    /// Below an EXPLAIN ANALYZE: runs say where their time goes.
    analyzed: Arc<Analyzed>,
    /// What placing the plan took; borders of one plan share it.
    judged: Arc<Judged>,
    /// Who keeps the rows on the device; nobody if they come home.
    keeper: Option<Arc<dyn Keeps>>,
    /// Where subqueries have their values; in a copy for another run, which containers stand for the plan's.
    subqueries: Subqueries,
    /// The files of this copy's run, as they were when it was planned.
    looks: Option<Arc<Looks>>,
    /// Runs that have not ended; one whose stream was dropped ends a moment later.
    under_way: Arc<watch::Sender<usize>>,
}

/// Whether runs are profiled, and the profiles of those that have ended.
#[derive(Default)]
struct Analyzed {
    asked: AtomicBool,
    runs: RunProfiles,
}

/// What happened in runs, such as a subplan that the CPU took over.
#[derive(Default)]
struct BorderNotes(Mutex<Vec<String>>);

/// A run, until it is dropped.
pub(crate) struct UnderWay(Arc<watch::Sender<usize>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|runs| *runs -= 1);
    }
}

impl fmt::Debug for DownloadExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DownloadExec").field("reasons", &self.reasons).field("input", &self.input).finish()
    }
}

impl DownloadExec {
    /// A border above the device node `input`, which `operators` cut into segments, and which stands for `cpu`.
    pub fn new(
        engine: Arc<Engine>,
        operators: Operators,
        input: Arc<dyn ExecutionPlan>,
        cpu: Arc<dyn ExecutionPlan>,
    ) -> Self {
        let sorted = input.properties().output_ordering().cloned();
        let properties = crate::node::properties(input.schema(), sorted);
        let program = Program::of(&input, &operators).map(Arc::new).map_err(|error| error.to_string());
        let key = PlanKey::of(&input);
        Self {
            reasons: vec![],
            engine,
            operators,
            cpu,
            input,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
            notes: Arc::default(),
            program,
            key,
            prepared: Arc::default(),
            dictionaries: SourceDictionaries::default(),
            analyzed: Arc::default(),
            judged: Arc::default(),
            keeper: None,
            subqueries: Subqueries::default(),
            looks: None,
            under_way: Arc::new(watch::Sender::new(0)),
        }
    }

    /// The same border for another run: with metrics, notes, looks and values of subqueries of its own, and what has been prepared.
    ///
    /// # Errors
    /// DataFusion's, of a plan below that cannot be made ready again.
    pub(crate) fn as_new(&self, subqueries: &Subqueries, looks: Option<&Arc<Looks>>) -> Result<Self> {
        let input = as_new(&self.input, subqueries)?;
        let program = Program::of(&input, &self.operators).map(Arc::new).map_err(|error| error.to_string());
        Ok(Self {
            input,
            program,
            metrics: ExecutionPlanMetricsSet::new(),
            notes: Arc::default(),
            analyzed: Arc::default(),
            judged: Arc::default(),
            subqueries: subqueries.of_copy(&self.subqueries),
            looks: looks.cloned(),
            under_way: Arc::new(watch::Sender::new(0)),
            ..self.clone()
        })
    }

    /// The same border, whose rows `keeper` may keep on the device: they do not leave, then.
    pub(crate) fn kept_by(&self, keeper: Arc<dyn Keeps>) -> Self {
        let stays = |program: &Arc<Program>| Arc::new(Program { stays: true, ..Program::clone(program) });
        Self { program: self.program.as_ref().map(stays).map_err(String::clone), keeper: Some(keeper), ..self.clone() }
    }

    /// True if its runs can have values of subqueries of their own: what the CPU would take over can be made anew, and nothing that
    /// is prepared has the value of one.
    pub(crate) fn lets_subqueries_differ(&self, subqueries: &Subqueries) -> bool {
        let walked = self.input.exists(|node| Ok(reads_subquery(node.as_ref(), is_coded)));
        subqueries.rewrite(&self.cpu).is_ok() && matches!(walked, Ok(false))
    }

    /// Where subqueries have their values.
    pub(crate) fn subqueries(&self) -> &Subqueries {
        &self.subqueries
    }

    /// The CPU plans that are uploaded, and the scans that the device reads.
    pub(crate) fn host_inputs(&self) -> Vec<Arc<dyn ExecutionPlan>> {
        let mut inputs = Vec::new();
        let walked = self.input.apply(|node| {
            let upload = node.downcast_ref::<UploadExec>().map(UploadExec::input);
            let read = upload.or_else(|| node.downcast_ref::<DeviceScanExec>().map(DeviceScanExec::input));
            inputs.extend(read.cloned());
            Ok(if read.is_some() { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
        });
        debug_assert!(walked.is_ok(), "the walk above returns no error");
        inputs
    }

    /// Counts a run for as long as what this gives lives.
    pub(crate) fn run_begins(&self) -> UnderWay {
        self.under_way.send_modify(|runs| *runs += 1);
        UnderWay(Arc::clone(&self.under_way))
    }

    /// Waits until all runs have ended, and so have counted what they did.
    pub(crate) async fn runs_ended(&self) {
        // The sender is here, so it cannot have gone.
        let _ = self.under_way.subscribe().wait_for(|runs| *runs == 0).await;
    }

    /// Runs say from now on where their time goes, in the metrics.
    pub(crate) fn analyze(&self) {
        self.analyzed.asked.store(true, Ordering::Relaxed);
    }

    /// The profiles of its runs so far, if they are [asked for](Self::analyze).
    pub(crate) fn run_profiles(&self) -> Vec<Profile> {
        self.analyzed.runs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The device subtree's nodes, and the segments that do their work; none if it could not be cut.
    pub(crate) fn works(&self) -> &[NodeWork] {
        self.program.as_ref().map_or(&[], |program| &program.works)
    }

    /// Where a run writes that, if it should.
    pub(crate) fn analyzed(&self) -> Option<Border> {
        let engine = Arc::clone(&self.engine);
        let runs = Arc::clone(&self.analyzed.runs);
        let border = || Border { metrics: self.metrics.clone(), runs, device: Box::new(move || engine.facts()) };
        self.analyzed.asked.load(Ordering::Relaxed).then(border)
    }

    /// Adds why the operators above stayed on the CPU.
    pub fn with_reasons(mut self, reasons: Vec<Reason>) -> Self {
        self.reasons = reasons;
        self
    }

    /// Says what placing the plan took.
    pub(crate) fn with_judged(mut self, judged: Arc<Judged>) -> Self {
        self.judged = judged;
        self
    }

    /// What placing the plan took.
    pub(crate) fn judged(&self) -> &Arc<Judged> {
        &self.judged
    }

    /// Why operators above stayed on the CPU.
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The operators whose nodes the device subtree has.
    pub fn operators(&self) -> &Operators {
        &self.operators
    }

    /// The device subtree.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The CPU subplan it replaced.
    pub fn cpu(&self) -> &Arc<dyn ExecutionPlan> {
        &self.cpu
    }

    /// Where runs count.
    pub fn metrics_set(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    /// Where runs note what a user should hear of.
    pub fn notes(&self) -> Vec<String> {
        self.notes.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what the CPU took over, once; where fallbacks are to be warned of, as a warning, too.
    pub(crate) fn note_once(&self, note: String, fallback: Fallback) {
        self.notes.note_once(note, fallback);
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        let border = Self::new(Arc::clone(&self.engine), Arc::clone(&self.operators), input, Arc::clone(&self.cpu));
        let border = border.with_reasons(self.reasons.clone()).with_judged(Arc::clone(&self.judged));
        Self { subqueries: self.subqueries.clone(), ..border }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

/// The upper borders of a plan.
pub(crate) fn downloads(plan: &Arc<dyn ExecutionPlan>) -> Vec<DownloadExec> {
    let mut downloads = Vec::new();
    let walked = plan.apply(|node| {
        downloads.extend(node.downcast_ref::<DownloadExec>().cloned());
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    downloads
}

/// The longest wait for runs that a LIMIT above has ended.
const ENDING: Duration = Duration::from_secs(10);

/// Waits until the runs of a plan have ended. A LIMIT above them drops their streams, and they count what they did a moment
/// later.
pub(crate) async fn runs_ended(plan: &Arc<dyn ExecutionPlan>) {
    let downloads = downloads(plan);
    let all = futures::future::join_all(downloads.iter().map(DownloadExec::runs_ended));
    if tokio::time::timeout(ENDING, all).await.is_err() {
        tracing::warn!("a run goes on after its query: its counts are not in the report");
    }
}

/// A device subtree for another run.
fn as_new(plan: &Arc<dyn ExecutionPlan>, subqueries: &Subqueries) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(upload) = plan.downcast_ref::<UploadExec>() {
        return Ok(Arc::new(upload.as_new(subqueries)?));
    }
    if let Some(scan) = plan.downcast_ref::<DeviceScanExec>() {
        return Ok(Arc::new(scan.as_new(subqueries)?));
    }
    let children = plan.children().into_iter().map(|child| as_new(child, subqueries)).collect::<Result<Vec<_>>>()?;
    Arc::clone(plan).replace_children(children, REPLACE)
}

impl Notes for BorderNotes {
    fn note_once(&self, note: String, fallback: Fallback) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.contains(&note) {
            return;
        }
        if fallback == Fallback::Warn {
            tracing::warn!("{note}");
        }
        notes.push(note);
    }
}

impl Runs for DownloadExec {
    fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn key(&self) -> PlanKey {
        self.key
    }

    fn program(&self) -> Result<&Arc<Program>, Failure> {
        self.program.as_ref().map_err(Failure::trouble)
    }

    fn prepared(
        &self,
        opened: &[Box<dyn SourceRun>],
        lessons: &mut Lessons,
        tally: &Tally,
    ) -> Result<Arc<Prepared>, Failure> {
        let program = self.program()?;
        tally.segments.store(program.segments.len() as u64, Ordering::Relaxed);
        let mut slot = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let known = slot.as_ref().filter(|prepared| prepared.serves(lessons, opened));
        let prepared = match known {
            Some(prepared) if prepared.lessons == *lessons && Arc::ptr_eq(&prepared.program, program) => {
                return Ok(Arc::clone(prepared));
            }
            // Another run of the same plan has prepared it.
            Some(prepared) if prepared.lessons == *lessons => return Ok(Arc::new(prepared.with_program(program))),
            Some(prepared) => prepared.with_lessons(lessons),
            None => Prepared::of(program, opened, lessons, &self.dictionaries, &tally.lowerings)?,
        };
        let prepared = Arc::new(prepared);
        *slot = Some(Arc::clone(&prepared));
        Ok(prepared)
    }

    fn keeper(&self) -> Option<&dyn Keeps> {
        self.keeper.as_deref()
    }

    fn subqueries(&self) -> &Subqueries {
        &self.subqueries
    }

    fn looks(&self) -> Option<Arc<Looks>> {
        self.looks.clone()
    }

    fn under_way(&self) -> Box<dyn Send + Sync> {
        Box::new(self.run_begins())
    }

    fn notes(&self) -> Arc<dyn Notes> {
        Arc::clone(&self.notes) as _
    }
}

impl DisplayAs for DownloadExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let reasons = crate::reason::reasons_text(&self.reasons);
        match (t, reasons.is_empty()) {
            (DisplayFormatType::TreeRender, true) => Ok(()),
            (DisplayFormatType::TreeRender, false) => write!(f, "CPU above: {reasons}"),
            (_, true) => write!(f, "DownloadExec"),
            (_, false) => write!(f, "DownloadExec: above stays on the CPU because {reasons}"),
        }
    }
}

crate::node::device_node!(DownloadExec, {
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return Err(crate::EngineError::internal(format!("DownloadExec has no partition {partition}")).into());
        }
        takeover::execute(self, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
});
