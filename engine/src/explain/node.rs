//! EXPLAIN ANALYZE as a node: runs its input to completion, drops the rows, and returns one row with the text.
//!
//!   first poll ─► input's batches, counted and dropped ─► its runs have ended ─► figures ─► text
//!
//! Recorded  by the query's recorder, if any: its time begins with planning. Otherwise time begins with the first poll.
//! Cancelled by dropping its stream, which drops the input's stream.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, StringArray};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, execute_stream,
};
use futures::TryStreamExt;

use super::analyze::{Analyzed, analyzed};
use crate::placement::contract::Operators;
use crate::profile;
use crate::result::node::{DownloadExec, downloads, runs_ended};

/// Kind of the row, as named by DataFusion's node.
const KIND: &str = "Plan with Metrics";

/// Runs the plan below it and describes the run.
#[derive(Debug, Clone)]
pub(crate) struct ExplainAnalyzeExec {
    input: Arc<dyn ExecutionPlan>,
    operators: Operators,
    properties: Arc<PlanProperties>,
}

impl ExplainAnalyzeExec {
    /// Explains `input`, a plan placed with `operators`; `schema` has two columns, kind and text.
    pub fn new(input: Arc<dyn ExecutionPlan>, operators: Operators, schema: SchemaRef) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            input.boundedness(),
        );
        Self { input, operators, properties: Arc::new(properties) }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self::new(input, self.operators.clone(), self.schema())
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for ExplainAnalyzeExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "ExplainAnalyzeExec"),
        }
    }
}

crate::plan::node::device_node!(ExplainAnalyzeExec, {
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return Err(crate::EngineError::internal(format!("ExplainAnalyzeExec has no partition {partition}")).into());
        }
        let (context, profiler) = profile::recorded(&context);
        let (plan, operators, schema) = (Arc::clone(&self.input), self.operators.clone(), self.schema());
        let answer = Arc::clone(&schema);
        let row = async move {
            let borders = downloads(&plan);
            borders.iter().for_each(DownloadExec::analyze);
            let run = async {
                let mut rows = 0;
                let mut batches = execute_stream(Arc::clone(&plan), context)?;
                while let Some(batch) = batches.try_next().await? {
                    rows += batch.num_rows() as u64;
                }
                drop(batches);
                runs_ended(&plan).await;
                Ok::<_, DataFusionError>(rows)
            };
            let rows = profiler.around(run).await?;
            let engine = borders.first().map(DownloadExec::engine);
            let profile = profiler.finish(engine.map(|engine| engine.facts()));
            let simulated = engine.is_some_and(|engine| engine.is_simulated());
            let text = analyzed(&Analyzed { plan: &plan, operators: &operators, profile: &profile, rows, simulated });
            let columns: Vec<ArrayRef> =
                [KIND, &text].map(|text| Arc::new(StringArray::from(vec![text])) as ArrayRef).to_vec();
            Ok(RecordBatch::try_new(schema, columns)?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(answer, futures::stream::once(row))))
    }
});
