//! The upper border: converts a device subtree's rows to Arrow batches.
//!
//!   first poll ──► Run: feeders, kernels, one wait ──► batches
//!        └─ failure before the first batch ──► the CPU subplan it replaced, with a note
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
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::options::Fallback;
use crate::plan::node::REPLACE;
use crate::plan::snapshot::Looks;
use crate::plan::subqueries::{Subqueries, reads_subquery};
use crate::profile::{Border, Profile, RunProfiles};
use crate::program::attempts::Runs;
use crate::program::context::Notes;
use crate::program::contract::Operators;
use crate::program::contract::SourceRun;
use crate::program::counts::Tally;
use crate::program::judged::Judged;
use crate::program::keeper::Keeps;
use crate::program::prepared::{Lessons, Prepared};
use crate::program::segments::{NodeWork, Program};
use crate::result::takeover;
use crate::source::SourceExec;

/// Runs the device subtree below it.
#[derive(Clone)]
pub struct DownloadExec {
    reasons: Vec<Reason>,
    engine: Arc<Engine>,
    operators: Operators,
    /// DataFusion's plan for the same rows; runs if the device fails.
    cpu: Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    /// The device subtree as a program, or why it could not be split into segments.
    program: Result<Arc<Program>, String>,
    /// Hash of its structure.
    key: PlanKey,
    /// State shared by its runs: the last preparation, and the dictionaries of its strings.
    prepared: Arc<Mutex<Option<Arc<Prepared>>>>,
    dictionaries: SourceDictionaries,
    /// Keeper of the rows on the device; `None` if they are downloaded.
    keeper: Option<Arc<dyn Keeps>>,
    /// Inputs and records of this copy's runs.
    copy: RunsOfCopy,
}

/// Inputs and records of the runs of one copy of a border.
#[derive(Clone)]
struct RunsOfCopy {
    /// Value slots of subqueries; in a copy for another run, a mapping from the plan's slots.
    subqueries: Subqueries,
    /// File metadata for this copy's run, from planning.
    looks: Option<Arc<Looks>>,
    metrics: ExecutionPlanMetricsSet,
    /// Events in runs, such as a CPU fallback of the subplan. Like the metrics, only a record: no run reads it.
    notes: Arc<BorderNotes>,
    /// Below an EXPLAIN ANALYZE: profiles of the runs.
    analyzed: Arc<Analyzed>,
    /// Record of placing the plan; borders of one plan share it.
    judged: Arc<Judged>,
    /// Number of active runs; a run whose stream was dropped ends slightly later.
    under_way: Arc<watch::Sender<usize>>,
}

impl RunsOfCopy {
    fn new(subqueries: Subqueries, looks: Option<Arc<Looks>>) -> Self {
        Self {
            subqueries,
            looks,
            metrics: ExecutionPlanMetricsSet::new(),
            notes: Arc::default(),
            analyzed: Arc::default(),
            judged: Arc::default(),
            under_way: Arc::new(watch::Sender::new(0)),
        }
    }
}

/// Whether runs are profiled, and the profiles of completed runs.
#[derive(Default)]
struct Analyzed {
    asked: AtomicBool,
    runs: RunProfiles,
}

/// Events in runs, such as a CPU fallback of the subplan.
#[derive(Default)]
struct BorderNotes(Mutex<Vec<String>>);

/// Counts a run as active until dropped.
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
    /// A border above the device node `input`, which replaces `cpu` and is split into segments by `operators`.
    pub fn new(
        engine: Arc<Engine>,
        operators: Operators,
        input: Arc<dyn ExecutionPlan>,
        cpu: Arc<dyn ExecutionPlan>,
    ) -> Self {
        let sorted = input.properties().output_ordering().cloned();
        let properties = crate::plan::node::properties(input.schema(), sorted);
        let program = Program::of(&input, &operators).map(Arc::new).map_err(|error| error.to_string());
        let key = PlanKey::of(&input);
        Self {
            reasons: vec![],
            engine,
            operators,
            cpu,
            input,
            properties,
            program,
            key,
            prepared: Arc::default(),
            dictionaries: SourceDictionaries::default(),
            keeper: None,
            copy: RunsOfCopy::new(Subqueries::default(), None),
        }
    }

    /// Copy of this border for another run: with its own metrics, notes, file metadata and subquery values, and the
    /// shared preparation.
    ///
    /// # Errors
    /// DataFusion's, if a plan below cannot be reset.
    pub(crate) fn as_new(&self, subqueries: &Subqueries, looks: Option<&Arc<Looks>>) -> Result<Self> {
        let input = as_new(&self.input, subqueries)?;
        let program = Program::of(&input, &self.operators).map(Arc::new).map_err(|error| error.to_string());
        let copy = RunsOfCopy::new(subqueries.of_copy(&self.copy.subqueries), looks.cloned());
        Ok(Self { input, program, copy, ..self.clone() })
    }

    /// Copy of this border with a keeper, which may keep the rows on the device instead of downloading them.
    pub(crate) fn kept_by(&self, keeper: Arc<dyn Keeps>) -> Self {
        let stays = |program: &Arc<Program>| Arc::new(Program { stays: true, ..Program::clone(program) });
        Self { program: self.program.as_ref().map(stays).map_err(String::clone), keeper: Some(keeper), ..self.clone() }
    }

    /// True if its runs can have their own subquery values: the CPU subplan can be rewritten for them, and no
    /// preparation depends on a value.
    pub(crate) fn lets_subqueries_differ(&self, subqueries: &Subqueries) -> bool {
        let walked = self.input.exists(|node| Ok(reads_subquery(node.as_ref(), is_coded)));
        subqueries.rewrite(&self.cpu).is_ok() && matches!(walked, Ok(false))
    }

    /// Value slots of subqueries.
    pub(crate) fn subqueries(&self) -> &Subqueries {
        &self.copy.subqueries
    }

    /// The CPU plans that are uploaded, and the scans that the device reads.
    pub(crate) fn host_inputs(&self) -> Vec<Arc<dyn ExecutionPlan>> {
        let mut inputs = Vec::new();
        let walked = self.input.apply(|node| {
            let read = node.downcast_ref::<SourceExec>().map(SourceExec::input);
            inputs.extend(read.cloned());
            Ok(if read.is_some() { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
        });
        debug_assert!(walked.is_ok(), "the walk above returns no error");
        inputs
    }

    /// Counts a run as active until the returned value is dropped.
    pub(crate) fn run_begins(&self) -> UnderWay {
        self.copy.under_way.send_modify(|runs| *runs += 1);
        UnderWay(Arc::clone(&self.copy.under_way))
    }

    /// Waits until all runs have ended and recorded their counts.
    pub(crate) async fn runs_ended(&self) {
        // The sender is a field of `self`, so it is not dropped.
        let _ = self.copy.under_way.subscribe().wait_for(|runs| *runs == 0).await;
    }

    /// From now on, runs write their time profile to the metrics.
    pub(crate) fn analyze(&self) {
        self.copy.analyzed.asked.store(true, Ordering::Relaxed);
    }

    /// Profiles of its runs so far, if [requested](Self::analyze).
    pub(crate) fn run_profiles(&self) -> Vec<Profile> {
        self.copy.analyzed.runs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Nodes of the device subtree, and the segments that do their work; empty if it could not be split into segments.
    pub(crate) fn works(&self) -> &[NodeWork] {
        self.program.as_ref().map_or(&[], |program| &program.works)
    }

    /// Destination of a run's profile, if requested.
    pub(crate) fn analyzed(&self) -> Option<Border> {
        let engine = Arc::clone(&self.engine);
        let runs = Arc::clone(&self.copy.analyzed.runs);
        let border = || Border { metrics: self.copy.metrics.clone(), runs, device: Box::new(move || engine.facts()) };
        self.copy.analyzed.asked.load(Ordering::Relaxed).then(border)
    }

    /// Sets the reasons why the operators above stayed on the CPU.
    pub fn with_reasons(mut self, reasons: Vec<Reason>) -> Self {
        self.reasons = reasons;
        self
    }

    /// Sets the record of placing the plan.
    pub(crate) fn with_judged(mut self, judged: Arc<Judged>) -> Self {
        self.copy.judged = judged;
        self
    }

    /// Record of placing the plan.
    pub(crate) fn judged(&self) -> &Arc<Judged> {
        &self.copy.judged
    }

    /// Why operators above stayed on the CPU.
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Operators of the device subtree's nodes.
    pub fn operators(&self) -> &Operators {
        &self.operators
    }

    /// The device subtree.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The CPU subplan that the device subtree replaced.
    pub fn cpu(&self) -> &Arc<dyn ExecutionPlan> {
        &self.cpu
    }

    /// Metrics that runs update.
    pub fn metrics_set(&self) -> &ExecutionPlanMetricsSet {
        &self.copy.metrics
    }

    /// Notes of runs for the user.
    pub fn notes(&self) -> Vec<String> {
        self.copy.notes.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a note about a CPU fallback, once; also logs it as a warning if `fallback` requires that.
    pub(crate) fn note_once(&self, note: String, fallback: Fallback) {
        self.copy.notes.note_once(note, fallback);
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        let border = Self::new(Arc::clone(&self.engine), Arc::clone(&self.operators), input, Arc::clone(&self.cpu));
        let border = border.with_reasons(self.reasons.clone()).with_judged(Arc::clone(&self.copy.judged));
        let copy = RunsOfCopy { subqueries: self.copy.subqueries.clone(), ..border.copy.clone() };
        Self { copy, ..border }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

/// Upper borders of a plan.
pub(crate) fn downloads(plan: &Arc<dyn ExecutionPlan>) -> Vec<DownloadExec> {
    let mut downloads = Vec::new();
    let walked = plan.apply(|node| {
        downloads.extend(node.downcast_ref::<DownloadExec>().cloned());
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    downloads
}

/// Maximum wait for runs that a LIMIT above has ended.
const ENDING: Duration = Duration::from_secs(10);

/// Waits until the runs of a plan have ended. A LIMIT above drops their streams, and they record their counts slightly
/// later.
pub(crate) async fn runs_ended(plan: &Arc<dyn ExecutionPlan>) {
    let downloads = downloads(plan);
    let all = futures::future::join_all(downloads.iter().map(DownloadExec::runs_ended));
    if tokio::time::timeout(ENDING, all).await.is_err() {
        tracing::warn!("a run goes on after its query: its counts are not in the report");
    }
}

/// Copy of a device subtree for another run.
fn as_new(plan: &Arc<dyn ExecutionPlan>, subqueries: &Subqueries) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(source) = plan.downcast_ref::<SourceExec>() {
        return Ok(Arc::new(source.as_new(subqueries)?));
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
        &self.copy.subqueries
    }

    fn looks(&self) -> Option<Arc<Looks>> {
        self.copy.looks.clone()
    }

    fn under_way(&self) -> Box<dyn Send + Sync> {
        Box::new(self.run_begins())
    }

    fn notes(&self) -> Arc<dyn Notes> {
        Arc::clone(&self.copy.notes) as _
    }
}

impl DisplayAs for DownloadExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let reasons = crate::error::reason::reasons_text(&self.reasons);
        match (t, reasons.is_empty()) {
            (DisplayFormatType::TreeRender, true) => Ok(()),
            (DisplayFormatType::TreeRender, false) => write!(f, "CPU above: {reasons}"),
            (_, true) => write!(f, "DownloadExec"),
            (_, false) => write!(f, "DownloadExec: above stays on the CPU because {reasons}"),
        }
    }
}

crate::plan::node::device_node!(DownloadExec, {
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return Err(crate::EngineError::internal(format!("DownloadExec has no partition {partition}")).into());
        }
        takeover::execute(self, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.copy.metrics.clone_inner())
    }
});
