//! The native half of the Python module `millpond`: sessions, streams of batches, tables over frames, and the program.
//!
//! ```text
//!   millpond/__init__.py ─ Session.sql ─► tokio's threads run it, the GIL is released ─► Stream ─► Arrow's C stream
//!                        └ Session.register(frame) ◄─ Arrow's C stream, without a copy where the frame cannot change
//! ```
//!
//! Signals   are looked at every 50 ms while a query runs: Ctrl-C drops it.
//! Forks     a forked process gets an error: tokio's threads are not there, and no device can be used.
//! Exit      the module registers `leave`, so that devices close before the driver's exit handlers.

mod ending;
mod frames;
mod parameters;
mod show;

use std::ffi::OsString;
use std::future::Future;
use std::mem;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use millpond::datafusion::common::ParamValues;
use millpond::datafusion::error::DataFusionError;
use millpond::{Millpond, QueryReport, QueryStream};
use millpond_cli::args::SessionArgs;
use millpond_cli::error::{CliError, Exit};
use millpond_cli::statements::{self, Statement};
use millpond_cli::types::type_name;
use millpond_cli::unreadable::{planning_error, statement_error};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3_arrow::{PyRecordBatch, PyScalar, PyTable};
use tokio::runtime::Runtime;

use ending::Returning;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

create_exception!(
    millpond,
    Error,
    PyException,
    "An error of Millpond: of a statement, unless it is one of the other kinds."
);
create_exception!(millpond, UsageError, Error, "An option, an argument or a parameter that is refused.");
create_exception!(millpond, DeviceError, Error, "A device that is absent, or a fallback to the CPU that is forbidden.");
create_exception!(millpond, FileError, Error, "A file or an object store that cannot be read or written.");

/// How often signals are looked at while a query runs.
const SIGNALS: Duration = Duration::from_millis(50);

/// How long devices may take to close when Python ends.
const LEAVING: Duration = Duration::from_secs(5);

/// tokio's threads, and the process that started them.
static RUNTIME: OnceLock<(u32, Runtime)> = OnceLock::new();

/// # Errors
/// In a process that was forked after the threads had been started.
fn runtime() -> PyResult<&'static Runtime> {
    let (process, runtime) = RUNTIME.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        (std::process::id(), runtime.expect("the system has threads"))
    });
    match *process == std::process::id() {
        true => Ok(runtime),
        false => Err(Error::new_err(format!(
            "millpond was opened by process {process}, of which this one is a fork: no device can be used across a fork; \
             start processes by spawn (multiprocessing.set_start_method('spawn')), or fork before the first connection"
        ))),
    }
}

/// Runs `work` on tokio's threads with the GIL released. Ctrl-C, or any signal whose handler raises, drops it.
fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl Future<Output = Result<T, Trouble>> + Send + 'static,
) -> PyResult<T> {
    let runtime = runtime()?;
    // A clock of tokio's would stand still while a query keeps all of its threads busy.
    let (sender, done) = mpsc::sync_channel(1);
    let task = runtime.spawn(async move {
        // After a signal the receiver is gone.
        let _ = sender.send(work.await);
    });
    // Python handles signals in its main thread alone.
    let handles_signals = is_main_thread(py)?;
    let (ended, returning) = py.detach(move || {
        let ended = loop {
            let step = match handles_signals {
                true => done.recv_timeout(SIGNALS),
                false => done.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match step {
                Ok(ended) => break Ok(Some(ended)),
                Err(RecvTimeoutError::Disconnected) => break Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(raised) = Python::attach(|py| py.check_signals()) {
                        task.abort();
                        break Err(raised);
                    }
                }
            }
        };
        let returning = if handles_signals { None } else { Some(Returning::or_park()) };
        (ended, returning)
    });
    drop(returning);
    match ended? {
        Some(result) => result.map_err(Trouble::into_py),
        None => Err(PyRuntimeError::new_err("the query's task has ended without a result")),
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import(intern!(py, "threading"))?;
    let this = threading.call_method0(intern!(py, "get_ident"))?;
    this.eq(threading.call_method0(intern!(py, "main_thread"))?.getattr(intern!(py, "ident"))?)
}

/// Why a statement gave no answer.
enum Trouble {
    Told(CliError),
    /// An exception raised by Python code that the query called.
    Raised(PyErr),
}

impl From<CliError> for Trouble {
    fn from(error: CliError) -> Self {
        Self::Told(error)
    }
}

impl Trouble {
    fn usage(message: impl Into<String>) -> Self {
        Self::Told(CliError::usage(message))
    }

    fn into_py(self) -> PyErr {
        match self {
            Self::Raised(error) => error,
            Self::Told(CliError { exit, message }) => match exit {
                Exit::Usage => UsageError::new_err(message),
                Exit::Device => DeviceError::new_err(message),
                Exit::File => FileError::new_err(message),
                _ => Error::new_err(message),
            },
        }
    }

    /// The error of a statement, with a caret where its place is known.
    async fn of(session: &Millpond, statement: &Statement, error: &DataFusionError, planned: bool) -> Self {
        if let Some(raised) = raised(error) {
            return Self::Raised(raised);
        }
        Self::Told(match planned {
            true => statement_error(session, statement, error).await,
            false => planning_error(session, statement, error).await,
        })
    }
}

/// The Python exception inside a query's error, through all errors that wrap it.
fn raised(error: &DataFusionError) -> Option<PyErr> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(raised) = error.downcast_ref::<PyErr>() {
            return Some(Python::attach(|py| raised.clone_ref(py)));
        }
        if let Some(shared) = error.downcast_ref::<Arc<DataFusionError>>() {
            return raised(shared);
        }
        next = error.source();
    }
    None
}

/// A session with its device.
#[pyclass(frozen, module = "millpond")]
struct Session {
    /// `None` once it is closed.
    session: Mutex<Option<Millpond>>,
    process: u32,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Closing a device waits for its threads, which a fork does not have.
            mem::forget(self.session.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Session {
    fn session(&self) -> PyResult<Millpond> {
        runtime()?;
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        session.ok_or_else(|| UsageError::new_err("the connection is closed: millpond.connect() opens another"))
    }
}

#[pymethods]
impl Session {
    /// Opens a session: `set` has `KEY=VALUE` as the program's `--set`.
    #[new]
    fn new(
        py: Python<'_>,
        device: Option<String>,
        allocator: Option<String>,
        fallback: Option<String>,
        set: Vec<String>,
    ) -> PyResult<Self> {
        let arguments = SessionArgs { device, allocator, fallback, set, ..SessionArgs::default() };
        let session = wait(py, async move { Ok(millpond_cli::session::open(&arguments, None).await?) })?;
        Ok(Self { session: Mutex::new(Some(session)), process: std::process::id() })
    }

    /// Why queries run on the CPU although a device was welcome.
    #[getter]
    fn note(&self) -> PyResult<Option<String>> {
        Ok(self.session()?.device_note().map(str::to_string))
    }

    /// The device's name; `None` on the CPU.
    #[getter]
    fn device(&self) -> PyResult<Option<String>> {
        Ok(self.session()?.engine().map(|engine| engine.name().to_string()))
    }

    /// Bytes of device memory that queries use now, beside columns that stay.
    #[getter]
    fn device_bytes_in_use(&self) -> PyResult<u64> {
        Ok(self.session()?.pool_used_bytes())
    }

    /// Another session on the same device.
    fn another(&self) -> PyResult<Self> {
        let another = self.session()?.another().map_err(|error| Trouble::from(CliError::from(error)).into_py())?;
        Ok(Self { session: Mutex::new(Some(another)), process: self.process })
    }

    /// Runs the statements of a text; the stream is the last one's.
    fn sql(&self, py: Python<'_>, text: String, parameters: Option<Bound<'_, PyAny>>) -> PyResult<Stream> {
        let session = self.session()?;
        let parameters = parameters.map(|values| parameters::values(&values)).transpose()?;
        let state = wait(py, async move { begin(session, &text, parameters).await })?;
        Ok(Stream { state: Mutex::new(Some(state)), process: self.process })
    }

    /// Makes a frame a table, in the place of one of that name. A `live` frame is read anew by each query.
    fn register(&self, py: Python<'_>, name: &str, frame: Bound<'_, PyAny>, live: bool) -> PyResult<()> {
        let session = self.session()?;
        let table = frames::table(&frame, live)?;
        let name = name.to_string();
        wait(py, async move {
            frames::register(&session, &name, table).map_err(|error| CliError::from_datafusion(&error).into())
        })
    }

    /// Forgets a table; false if there is none of that name.
    fn unregister(&self, name: &str) -> PyResult<bool> {
        let session = self.session()?;
        let forgotten = frames::unregister(&session, name);
        forgotten.map_err(|error| Trouble::from(CliError::from_datafusion(&error)).into_py())
    }

    /// Closes the session; the device goes with its last one.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        runtime()?;
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The device may close here.
        let returning = py.detach(|| {
            drop(session);
            Returning::or_park()
        });
        drop(returning);
        Ok(())
    }
}

/// A statement that runs.
struct Running {
    session: Millpond,
    statement: Statement,
    stream: QueryStream,
}

/// The answer of a statement.
enum State {
    /// A query, whose rows come as they are asked for.
    Query(Box<Running>),
    /// What defines or changes something has run.
    Done(Box<Answer>),
}

async fn begin(session: Millpond, text: &str, parameters: Option<ParamValues>) -> Result<State, Trouble> {
    let mut all = statements::split(text).map_err(|error| CliError::script(&error, text))?;
    let Some(last) = all.pop() else { return Err(Trouble::usage("the text has no statement")) };
    if parameters.is_some() && !all.is_empty() {
        return Err(Trouble::usage("parameters are for one statement, and the text has several"));
    }
    for statement in all {
        let (running, _) = begun(session.clone(), statement, None).await?;
        running.answer().await?;
    }
    let (running, is_query) = begun(session, last, parameters).await?;
    match is_query {
        true => Ok(State::Query(Box::new(running))),
        false => Ok(State::Done(Box::new(running.answer().await?))),
    }
}

/// A statement that has begun to run, and whether it is a query.
async fn begun(
    session: Millpond,
    statement: Statement,
    parameters: Option<ParamValues>,
) -> Result<(Running, bool), Trouble> {
    let began = Instant::now();
    let stream = async {
        if let Some(parameters) = parameters {
            return Ok((session.stream_with(&statement.sql, parameters).await?, true));
        }
        let (plan, is_query) = match session.kept_plan(&statement.sql).await? {
            // Plans of queries alone are kept.
            Some(plan) => (plan, true),
            None => {
                let planned = session.statement(&statement.sql).await?;
                let is_query = !millpond::session::sql::defines(planned.plan());
                (session.plan_statement(planned).await?, is_query)
            }
        };
        Ok((session.stream_plan_since(plan, began)?, is_query))
    };
    match stream.await {
        Ok((stream, is_query)) => Ok((Running { session, statement, stream }, is_query)),
        Err(error) => Err(Trouble::of(&session, &statement, &error, false).await),
    }
}

impl Running {
    async fn next(&mut self) -> Result<Option<RecordBatch>, Trouble> {
        match self.stream.next().await {
            Some(Ok(batch)) => Ok(Some(batch)),
            Some(Err(error)) => Err(Trouble::of(&self.session, &self.statement, &error, true).await),
            None => Ok(None),
        }
    }

    /// The rest of the answer, and the report.
    async fn answer(mut self) -> Result<Answer, Trouble> {
        let (schema, mut batches) = (self.stream.schema(), vec![]);
        while let Some(batch) = self.next().await? {
            batches.push(batch);
        }
        let report = self.stream.report().await;
        match report.findings.is_empty() {
            true => Ok(Answer { schema, batches, report }),
            false => Err(CliError::sql(format!("the simulated device found: {}", report.findings.join(" | "))).into()),
        }
    }
}

/// The batches of an answer as they come.
#[pyclass(frozen, module = "millpond")]
struct Stream {
    /// `None` once it was read, and while a thread reads it.
    state: Mutex<Option<State>>,
    process: u32,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            mem::forget(self.state.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Stream {
    fn take(&self) -> PyResult<State> {
        runtime()?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        state.ok_or_else(|| UsageError::new_err("the result was read, or another thread reads it"))
    }

    fn put(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }
}

#[pymethods]
impl Stream {
    /// The next batch; `None` at the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<PyRecordBatch>> {
        match self.take()? {
            State::Query(mut running) => {
                let (running, batch) = wait(py, async move {
                    let batch = running.next().await?;
                    Ok((running, batch))
                })?;
                self.put(State::Query(running));
                Ok(batch.map(PyRecordBatch::new))
            }
            State::Done(mut answer) => {
                let batch = (!answer.batches.is_empty()).then(|| answer.batches.remove(0));
                self.put(State::Done(answer));
                Ok(batch.map(PyRecordBatch::new))
            }
        }
    }

    /// What is left of the answer, and the report.
    fn collect(&self, py: Python<'_>) -> PyResult<Answer> {
        match self.take()? {
            State::Query(running) => wait(py, async move { running.answer().await }),
            State::Done(answer) => Ok(*answer),
        }
    }
}

/// An answer with its report.
#[pyclass(frozen, module = "millpond")]
struct Answer {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    report: QueryReport,
}

#[pymethods]
impl Answer {
    /// Its rows as an object with Arrow's C stream. `plain` has strings as offsets and bytes, not as views.
    fn table(&self, plain: bool) -> PyResult<PyTable> {
        let (schema, batches) = match plain {
            true => show::plain(&self.schema, &self.batches).map_err(|error| Error::new_err(error.to_string()))?,
            false => (Arc::clone(&self.schema), self.batches.clone()),
        };
        PyTable::try_new(batches, schema)
    }

    /// Its batches, each with `__arrow_c_array__`.
    fn batches(&self) -> Vec<PyRecordBatch> {
        self.batches.iter().cloned().map(PyRecordBatch::new).collect()
    }

    /// Its rows as tuples of Python's own values.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        if let Some(field) = self.schema.fields().iter().find(|field| !show::has_python_value(field.data_type())) {
            let (name, of) = (field.name(), type_name(field.data_type()));
            return Err(UsageError::new_err(format!(
                "column {name} of type {of} has no value in Python: cast it to text, or take arrow() or to_polars()"
            )));
        }
        let mut rows = Vec::with_capacity(self.rows());
        for batch in &self.batches {
            for row in 0..batch.num_rows() {
                let values = batch.columns().iter().map(|column| {
                    let value = Py::new(py, PyScalar::try_from_array_ref(column.slice(row, 1))?)?;
                    value.bind(py).call_method0("as_py")
                });
                rows.push(PyTuple::new(py, values.collect::<PyResult<Vec<_>>>()?)?);
            }
        }
        Ok(rows)
    }

    #[getter]
    fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Names of its columns, and their types.
    #[getter]
    fn columns(&self) -> Vec<(String, String)> {
        self.schema.fields().iter().map(|field| (field.name().clone(), type_name(field.data_type()))).collect()
    }

    /// The report as one line, and as JSON.
    #[getter]
    fn report(&self) -> PyResult<(String, String)> {
        let json = serde_json::to_string(&self.report).map_err(|error| Error::new_err(error.to_string()))?;
        Ok((self.report.to_string(), json))
    }

    /// Its first rows as a table with types, and the report below.
    fn text(&self) -> PyResult<String> {
        show::text(&self.schema, &self.batches, &self.report).map_err(|error| Error::new_err(error.to_string()))
    }

    /// The same in HTML.
    fn html(&self) -> PyResult<String> {
        show::html(&self.schema, &self.batches, &self.report).map_err(|error| Error::new_err(error.to_string()))
    }
}

/// Runs the program with these arguments, of which the first is its name; it ends the process.
#[pyfunction]
fn program(py: Python<'_>, arguments: Vec<OsString>) {
    py.detach(|| millpond_cli::run(arguments))
}

/// Closes devices at the end of the process.
#[pyfunction]
fn leave(py: Python<'_>) {
    if RUNTIME.get().is_some_and(|(process, _)| *process == std::process::id()) {
        py.detach(|| {
            ending::begin(LEAVING);
            millpond::leave(LEAVING);
        });
    }
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<Session>()?;
    module.add_class::<Stream>()?;
    module.add_class::<Answer>()?;
    module.add_function(wrap_pyfunction!(program, module)?)?;
    module.add_function(wrap_pyfunction!(leave, module)?)?;
    module.add("Error", py.get_type::<Error>())?;
    module.add("UsageError", py.get_type::<UsageError>())?;
    module.add("DeviceError", py.get_type::<DeviceError>())?;
    module.add("FileError", py.get_type::<FileError>())?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))
}
