//! Frames of Python as tables.
//!
//! ```text
//!   register(polars, pyarrow, duckdb …) ─► Arrow's C stream, read once ─► a table in memory: its columns stay on the
//!                                                                         device
//!   register(pandas)                    ─► LiveFrame ─ each query ─► Arrow's C stream ─► a copy ─► rows of this query
//!                                                                                        alone
//! ```
//!
//! Live   frames lie in memory that their owner may write (NumPy's, under pandas). Each query reads the values of its
//!        time, and copies them before it runs, so that no write reaches it on the way.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, MutableArrayData, RecordBatch, make_array};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use async_trait::async_trait;
use millpond::Millpond;
use millpond::datafusion::catalog::streaming::StreamingTable;
use millpond::datafusion::catalog::{MemTable, Session, TableProvider};
use millpond::datafusion::common::{TableReference, exec_err};
use millpond::datafusion::datasource::TableType;
use millpond::datafusion::error::{DataFusionError, Result};
use millpond::datafusion::execution::{SendableRecordBatchStream, TaskContext};
use millpond::datafusion::logical_expr::Expr;
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use millpond::datafusion::physical_plan::streaming::PartitionStream;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;

use crate::ending::Returning;
use crate::{Trouble, UsageError};

/// The rows of a frame now.
fn rows(frame: &Bound<'_, PyAny>) -> PyResult<(SchemaRef, Vec<RecordBatch>)> {
    let unreadable = |why: &dyn fmt::Display| UsageError::new_err(format!("the frame cannot be read: {why}"));
    let reader = frame.extract::<AnyRecordBatch>().and_then(AnyRecordBatch::into_reader);
    let reader = reader.map_err(|error| match is_ours(frame.py(), &error) {
        // A single column, such as a Series.
        true => unreadable(&format!("{}; it takes a frame of columns", error.value(frame.py()))),
        false => error,
    })?;
    // What the library notes of itself there is not true of answers: pandas notes the types of its columns.
    let schema: SchemaRef = Arc::new(reader.schema().as_ref().clone().with_metadata(HashMap::new()));
    let batches = reader.map(|batch| RecordBatch::try_new(Arc::clone(&schema), batch?.columns().to_vec()));
    // Arrow's crate panics on slices of structures within structures (`ArrayData::slice` cuts twice).
    let batches = catch_unwind(AssertUnwindSafe(|| batches.collect::<Result<Vec<_>, ArrowError>>()));
    let batches =
        batches.map_err(|_| unreadable(&"it is a slice of structures within structures: register a copy of it"))?;
    let batches = batches.map_err(|error| unreadable(&error))?;
    Ok((schema, batches))
}

/// True for an error of the reader's, and false for one that Python code of the frame has raised.
fn is_ours(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyValueError>(py) && error.traceback(py).is_none()
}

/// The table of a frame.
pub fn table(frame: &Bound<'_, PyAny>, live: bool) -> PyResult<Arc<dyn TableProvider>> {
    let (schema, batches) = rows(frame)?;
    if live {
        return Ok(Arc::new(LiveFrame { frame: Arc::new(frame.clone().unbind()), schema }));
    }
    // One partition: rows keep their order.
    let table = MemTable::try_new(schema, vec![batches]);
    Ok(Arc::new(table.map_err(|error| Trouble::usage(error.strip_backtrace()).into_py())?))
}

/// Registers a table, in the place of one of that name.
///
/// # Errors
/// DataFusion's, of the catalog.
pub fn register(session: &Millpond, name: &str, table: Arc<dyn TableProvider>) -> Result<()> {
    let name = TableReference::parse_str_normalized(name, false);
    session.context().deregister_table(name.clone())?;
    session.context().register_table(name, table).map(drop)
}

/// Forgets a table; false if there is none.
///
/// # Errors
/// DataFusion's, of the catalog.
pub fn unregister(session: &Millpond, name: &str) -> Result<bool> {
    let name = TableReference::parse_str_normalized(name, false);
    Ok(session.context().deregister_table(name)?.is_some())
}

/// A frame that may change between queries.
struct LiveFrame {
    /// Counted here: a count of Python's wants the GIL.
    frame: Arc<Py<PyAny>>,
    schema: SchemaRef,
}

impl fmt::Debug for LiveFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveFrame")
    }
}

#[async_trait]
impl TableProvider for LiveFrame {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows = Arc::new(Rows { frame: Arc::clone(&self.frame), schema: Arc::clone(&self.schema) });
        let table = StreamingTable::try_new(Arc::clone(&self.schema), vec![rows])?;
        table.scan(state, projection, filters, limit).await
    }
}

/// The rows of a frame when a query begins to read them.
struct Rows {
    frame: Arc<Py<PyAny>>,
    schema: SchemaRef,
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveFrame")
    }
}

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let frame = Arc::clone(&self.frame);
        let schema = Arc::clone(&self.schema);
        let read = tokio::task::spawn_blocking(move || copied(&frame, &schema));
        let batches = async move {
            match read.await {
                Ok(batches) => Ok(futures::stream::iter(batches?.into_iter().map(Ok))),
                Err(error) => exec_err!("a thread ended while it read a frame: {error}"),
            }
        };
        let stream = futures::TryStreamExt::try_flatten(futures::stream::once(batches));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream))
    }
}

/// The rows of a frame, in memory of their own.
fn copied(frame: &Py<PyAny>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
    let Some(_returning) = Returning::begin() else { return exec_err!("Python has ended before the frame was read") };
    // Python code that writes into the frame holds the GIL.
    Python::attach(|py| {
        let raised = |error: PyErr| DataFusionError::External(Box::new(error));
        let (now, batches) = rows(frame.bind(py)).map_err(raised)?;
        if now.fields() != schema.fields() {
            return exec_err!("the frame has other columns than when it was registered: register it again");
        }
        let copied = |column: &ArrayRef| {
            let data = column.to_data();
            let mut copy = MutableArrayData::new(vec![&data], false, data.len());
            copy.try_extend(0, 0, data.len())?;
            Ok(make_array(copy.freeze()))
        };
        let batches = batches.into_iter().map(|batch| {
            let columns = batch.columns().iter().map(copied).collect::<Result<_, ArrowError>>()?;
            Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
        });
        batches.collect()
    })
}
