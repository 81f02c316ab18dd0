//! The main handle: a DataFusion session that plans for a device, and reports on its queries.
//!
//!   Millpond::builder() ─ options, device, config ─ build() ─► Millpond { context, device, note }
//!                                                                  ├─ execute ─► batches + QueryReport
//!                                                                  └─ stream ─► batches … ─ report() ─► QueryReport
//!
//! Without a device the session is DataFusion's own, except for the level limit (`levels`) and mended rules (`mends`,
//! `contradictions`, `memberships`, `namesakes`): plans contain no device nodes, and `device_note` says why.
//! Panics  in a query become errors of the query ([`EngineError::Panicked`]); the session stays usable.

mod create;
mod parameters;
mod state;
mod url_tables;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::ParamValues;
use datafusion::common::config::ConfigOptions;
use datafusion::common::parquet_config::DFParquetWriterVersion;
use datafusion::dataframe::DataFrame;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::SessionContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::logical_expr::{DdlStatement, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::{Stream, StreamExt, TryStreamExt};
use millpond_memory::Strategy;
use millpond_memory::recorder::{self, Path};
use millpond_parquet::rewrite::{DICTIONARY_BYTES, PAGE_ROWS, ROW_GROUP_ROWS};

use crate::contract::{DeviceOperator, Operators};
use crate::device::{Engine, Opened};
use crate::error::EngineError;
use crate::expr::udf::{DeviceFunction, UdfError};
use crate::levels::{self, OnStack};
use crate::operator::registry;
use crate::options::{Cache, DeviceChoice, Fallback, MillpondOptions};
use crate::plan_cache::{Asked, Key, MadeOf, Now, PlansFound, Sight};
use crate::profile::{self, Profile, Profiler};
use crate::report::QueryReport;
use crate::result::node::{DownloadExec, downloads, runs_ended};
use crate::store::Store;
use crate::template::Template;
use crate::{overflow, panics};

pub use crate::session::create::Created;
pub use crate::session::state::WithMillpond;
pub use crate::session::url_tables::enable as with_url_tables;

use crate::session::state::Equipment;

/// A session with its device.
#[derive(Clone)]
pub struct Millpond {
    context: SessionContext,
    equipment: Arc<Equipment>,
}

impl fmt::Debug for Millpond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Millpond").field("session", &self.context.session_id()).field("engine", &self.engine()).finish()
    }
}

/// A statement with the logical plan from [`Millpond::statement`].
#[derive(Debug)]
pub struct PlannedStatement {
    sql: String,
    plan: LogicalPlan,
    /// Inputs of planning, if its physical plan may be kept.
    made_of: Option<MadeOf>,
}

impl PlannedStatement {
    /// Logical plan of the statement.
    pub fn plan(&self) -> &LogicalPlan {
        &self.plan
    }

    /// Replaces the statement's plan. The physical plan is then not kept for the statement's text.
    pub fn with_plan(self, plan: LogicalPlan) -> Self {
        Self { plan, made_of: None, ..self }
    }
}

/// Result of [`Millpond::execute`].
pub struct QueryResult {
    /// Columns of the result.
    pub schema: SchemaRef,
    /// Rows of the result.
    pub batches: Vec<RecordBatch>,
    /// Report of the query.
    pub report: QueryReport,
    /// The executed plan, with its metrics.
    pub plan: Arc<dyn ExecutionPlan>,
}

/// A running query: its batches, and afterwards its report. Dropping it ends the query.
pub struct QueryStream {
    session: Millpond,
    plan: Arc<dyn ExecutionPlan>,
    /// `None` after the last batch or an error.
    batches: Option<SendableRecordBatchStream>,
    began: Instant,
    planned: Instant,
    ended: Option<Instant>,
    /// Number of rows returned so far.
    rows: u64,
}

/// DataFusion's settings for a session without a configuration. They differ from DataFusion's defaults in the Parquet
/// files that COPY, INSERT and `DataFrame::write_parquet` write: these have the layout of `millpond parquet rewrite`,
/// as far as it can be set for all columns.
pub fn default_config() -> SessionConfig {
    let mut config = SessionConfig::new();
    let parquet = &mut config.options_mut().execution.parquet;
    parquet.writer_version = DFParquetWriterVersion::V2_0;
    parquet.max_row_group_size = ROW_GROUP_ROWS;
    parquet.data_page_row_count_limit = PAGE_ROWS;
    parquet.dictionary_page_size_limit = DICTIONARY_BYTES;
    parquet.statistics_enabled = Some("page".to_string());
    // ZSTD, DataFusion's default, is decompressed on the host.
    parquet.compression = Some("snappy".to_string());
    // Encoding of pages after an abandoned dictionary. For strings, version 2 would use DELTA_BYTE_ARRAY, which the
    // host decodes.
    parquet.encoding = Some("plain".to_string());
    config
}

/// Unit of INT96 timestamps: covers all years in files of Hive, Spark or Impala.
const INT96: &str = "us";

/// Builder of a session.
#[derive(Default)]
pub struct MillpondBuilder {
    options: MillpondOptions,
    config: Option<SessionConfig>,
    runtime: Option<Arc<RuntimeEnv>>,
    engine: Option<Arc<Engine>>,
    own_engine: bool,
    url_tables: bool,
    operators: Vec<Arc<dyn DeviceOperator>>,
}

impl MillpondBuilder {
    /// Replaces all options.
    pub fn with_options(mut self, options: MillpondOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the device.
    pub fn with_device(mut self, device: DeviceChoice) -> Self {
        self.options.device = device;
        self
    }

    /// Sets the handling of parts that cannot run on the device.
    pub fn with_fallback(mut self, fallback: Fallback) -> Self {
        self.options.fallback = fallback;
        self
    }

    /// Sets the allocation strategy of device memory.
    pub fn with_allocator(mut self, allocator: Strategy) -> Self {
        self.options.memory_resource = allocator;
        self
    }

    /// Sets the maximum bytes of device memory in the pool; 0 means three quarters of the free memory when the device
    /// opens.
    pub fn with_memory_limit(mut self, bytes: usize) -> Self {
        self.options.memory_limit_bytes = bytes;
        self
    }

    /// Sets whether columns of tables are stored between queries.
    pub fn with_cache(mut self, cache: Cache) -> Self {
        self.options.cache = cache;
        self
    }

    /// Sets an option by its name without the prefix, as `SET millpond.<name>` does.
    pub fn with_option(mut self, name: &str, value: &str) -> Result<Self, EngineError> {
        self.options.try_set(name, value)?;
        Ok(self)
    }

    /// Applies all `MILLPOND_*` variables of the process.
    pub fn with_environment(mut self) -> Result<Self, EngineError> {
        // Variables whose names are not valid text are ignored; a value that is not valid text is refused like any
        // invalid value.
        let variables = std::env::vars_os();
        let texts =
            variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into())));
        self.options.apply_environment(texts)?;
        Ok(self)
    }

    /// Sets DataFusion's configuration, replacing [`default_config`]. Its settings are unchanged, except that INT96
    /// times in Parquet files are read as microseconds unless it sets `datafusion.execution.parquet.coerce_int96`.
    pub fn with_config(mut self, config: SessionConfig) -> Self {
        self.config = Some(config);
        self
    }

    /// Sets DataFusion's memory pool, object stores and caches, replacing its defaults and the
    /// [`ObjectStores`](crate::ObjectStores) from the environment. The session wraps them in its own runtime, whose
    /// store of local files detects changes that preserve sizes and times; a store registered for `file://` is kept.
    pub fn with_runtime_env(mut self, runtime: Arc<RuntimeEnv>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Uses the device of another session instead of opening one.
    pub fn with_engine(mut self, engine: Arc<Engine>) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Opens the device for this session only. Otherwise all sessions of a process with the same device and the same
    /// device options share one engine ([`Engine::shared`]): its memory, its stored columns, its compiled pipelines.
    pub fn with_own_engine(mut self) -> Self {
        self.own_engine = true;
        self
    }

    /// Allows queries to read files by name: `FROM 'file.parquet'`.
    pub fn with_url_tables(mut self) -> Self {
        self.url_tables = true;
        self
    }

    /// Adds an operator, replacing a built-in one of the same name.
    pub fn operator(mut self, operator: Arc<dyn DeviceOperator>) -> Self {
        self.operators.push(operator);
        self
    }

    /// The current options.
    pub fn options(&self) -> &MillpondOptions {
        &self.options
    }

    /// Opens the device and creates the session.
    ///
    /// # Errors
    /// [`EngineError::DeviceMissing`] if a device was requested and is absent, also with `device = auto` if `fallback =
    /// error` forbids the CPU; an option's error if a value is refused.
    pub fn build(self) -> Result<Millpond, EngineError> {
        self.options.validate()?;
        let opened = match self.engine {
            Some(engine) => Opened { engine: Some(engine), note: None },
            None if self.own_engine => Engine::open(&self.options)?,
            None => Engine::shared(&self.options)?,
        };
        // The simulated device has no background start-up: tests count its allocations.
        if let Some(engine) = opened.engine.as_ref().filter(|engine| !engine.is_simulated()) {
            engine.start_up();
        }
        if let (None, DeviceChoice::Auto, Fallback::Error) =
            (&opened.engine, self.options.device, self.options.fallback)
        {
            return Err(EngineError::DeviceMissing {
                device: "auto (with millpond.fallback = 'error')".to_string(),
                reason: opened.note.unwrap_or_else(|| "no device found".to_string()),
            });
        }

        let operators = registry();
        self.operators.into_iter().for_each(|operator| operators.add(operator));
        let mut config = self.config.unwrap_or_else(default_config);
        config.options_mut().extensions.insert(self.options);
        let mut state = SessionStateBuilder::new().with_default_features().with_config(config);
        *state.runtime_env() = self.runtime;
        let state = state::equipped(state, opened, operators)?;
        let mut context = SessionContext::new_with_state(state.build());
        if self.url_tables {
            context = url_tables::enable(context);
        }
        let session = Millpond::of(&context);
        let session = session.ok_or_else(|| EngineError::internal("a state that was equipped has no equipment"))?;
        match session.unmended() {
            [] => Ok(session),
            [name, ..] => Err(EngineError::internal(format!("DataFusion has no table factory {name}"))),
        }
    }
}

impl Millpond {
    /// Creates a builder with default options.
    pub fn builder() -> MillpondBuilder {
        MillpondBuilder::default()
    }

    /// DataFusion's session, including our rules if there is a device.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// The device, or `None` when queries run on the CPU.
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        self.equipment.engine.as_ref()
    }

    /// Operators that place plans. Operators added to this list take part from the next plan on.
    pub fn operators(&self) -> &Operators {
        &self.equipment.operators
    }

    /// Why queries run on the CPU although a device was allowed; one line, without "note:".
    pub fn device_note(&self) -> Option<&str> {
        self.equipment.note.as_deref()
    }

    /// Bytes of the device's pool that queries use now, without stored columns and start-up; 0 without a device.
    pub fn pool_used_bytes(&self) -> u64 {
        let beside = |engine: &Arc<Engine>| engine.used_bytes().saturating_sub(Store::of(engine).allocated_bytes());
        self.engine().map_or(0, beside)
    }

    /// Registers a function with a device body, under its own name and its aliases. An earlier function of that name is
    /// replaced. Without a device, its CPU body runs.
    ///
    /// # Errors
    /// [`UdfError::Simulated`] if the device is simulated and does not support an instruction of the body.
    pub fn register_function(&self, function: DeviceFunction) -> Result<(), UdfError> {
        if self.engine().is_some_and(|engine| engine.is_simulated()) {
            function.runs_simulated()?;
        }
        self.context.register_udf(function.into_udf());
        Ok(())
    }

    /// Another session on the same device, with the current options, settings, object stores and operators of this one,
    /// but without its tables, views and functions.
    ///
    /// # Errors
    /// [`EngineError::Forked`] in a process that was forked after the device was opened.
    pub fn another(&self) -> Result<Self, EngineError> {
        if let Some(engine) = self.engine() {
            engine.check_process()?;
        }
        let old = self.context.copied_config();
        // Extensions of the old configuration belong to the old session.
        let mut config = SessionConfig::from(ConfigOptions::clone(old.options()));
        config.options_mut().catalog.create_default_catalog_and_schema = true;
        let mut state = SessionStateBuilder::new().with_default_features().with_config(config);
        *state.runtime_env() = Some(self.context.runtime_env());
        let operators = Operators::new(self.operators().all().iter().cloned());
        let opened = Opened { engine: self.engine().cloned(), note: self.equipment.note.clone() };
        let state = state::equipped(state, opened, operators)?.build();
        let mut context = SessionContext::new_with_state(state);
        if url_tables::are_enabled(&self.context) {
            context = url_tables::enable(context);
        }
        Millpond::of(&context).ok_or_else(|| EngineError::internal("a state that was equipped has no equipment"))
    }

    /// Plans and runs one query; returns its rows and report.
    ///
    /// # Errors
    /// DataFusion's, from the parser, the planner and the query; the engine's ([`EngineError::find`]).
    pub async fn execute(&self, sql: &str) -> Result<QueryResult> {
        let began = Instant::now();
        let run = async {
            let plan = self.plan(sql).await?;
            self.stream_plan_since(plan, began)?.collect().await
        };
        if profile::is_asked_by(sql) { Profiler::begin(sql).around(run).await } else { run.await }
    }

    /// Like [`execute`](Self::execute), with values for the statement's parameters: a list for `$1`, `$2` and so on, or
    /// names with values for `$name`.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use millpond::datafusion::common::ScalarValue;
    /// use millpond::{DeviceChoice, Millpond};
    ///
    /// let session = Millpond::builder().with_device(DeviceChoice::Cpu).build()?;
    /// let sql = "SELECT x FROM (VALUES (1), (2), (3)) AS t(x) WHERE x > $least";
    /// let result = session.execute_with(sql, vec![("least", ScalarValue::from(1_i64))]).await?;
    /// assert_eq!(result.report.answer_rows, 2);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Like `execute`; also for parameters without a value, and values without a parameter.
    pub async fn execute_with(&self, sql: &str, parameters: impl Into<ParamValues>) -> Result<QueryResult> {
        self.stream_with(sql, parameters).await?.collect().await
    }

    /// Like [`stream`](Self::stream), with parameter values as in [`execute_with`](Self::execute_with).
    ///
    /// # Errors
    /// Like `execute_with`.
    pub async fn stream_with(&self, sql: &str, parameters: impl Into<ParamValues>) -> Result<QueryStream> {
        let (began, parameters) = (Instant::now(), parameters.into());
        let PlannedStatement { plan: query, .. } = self.statement(sql).await?;
        parameters::check(&query, &parameters)?;
        let query = query.with_param_values(parameters)?;
        let by_template = match self.keeps_plans() {
            true => self.on_stack_by_template(&query).await?,
            false => None,
        };
        let plan = match by_template {
            Some(plan) => plan,
            None => self.plan_statement(PlannedStatement { sql: sql.to_string(), plan: query, made_of: None }).await?,
        };
        self.stream_plan_since(plan, began)
    }

    /// Runs a data frame of this session's context; returns its rows and report.
    ///
    /// # Errors
    /// Like [`execute`](Self::execute).
    pub async fn collect(&self, frame: DataFrame) -> Result<QueryResult> {
        let began = Instant::now();
        let (state, plan) = frame.into_parts();
        let plan = crate::sql::physical_plan(&state, &plan).await?;
        self.stream_plan_since(plan, began)?.collect().await
    }

    /// A data frame of one statement, like `context().sql()`, but with the meaning that [`execute`](Self::execute)
    /// gives to the statement where DataFusion's planner differs (`docs/sql.md`). Definitions and settings take effect
    /// immediately.
    ///
    /// # Errors
    /// DataFusion's, from the parser and the planner.
    pub async fn sql(&self, sql: &str) -> Result<DataFrame> {
        let plan = crate::sql::logical_plan(&self.context.state(), sql).await?;
        crate::sql::frame(&self.context, plan).await
    }

    /// The physical plan of one statement: a copy of its kept plan if nothing has changed since. Definitions and
    /// settings take effect during this call and return a plan without columns.
    ///
    /// # Errors
    /// DataFusion's, from the parser and the planner.
    pub async fn plan(&self, sql: &str) -> Result<Arc<dyn ExecutionPlan>> {
        match self.kept_plan(sql).await? {
            Some(plan) => Ok(plan),
            None if self.keeps_plans() => self.plan_statement(self.statement(sql).await?).await,
            None => crate::sql::plan(&self.context, sql).await,
        }
    }

    /// Parses one statement and plans it logically, for callers that inspect it before execution.
    ///
    /// # Errors
    /// DataFusion's, from the parser and the planner.
    pub async fn statement(&self, sql: &str) -> Result<PlannedStatement> {
        let state = self.context.state();
        let (statement, names) = crate::sql::statement_and_names(&state, sql)?;
        // Recorded before planning: a change in the meantime is detected the next time.
        let now = Now::State(&state);
        let begun = match self.keeps_plans() {
            true => panics::caught(async { Ok(MadeOf::begin(now, &names).await) }).await?,
            false => None,
        };
        let plan = crate::address::in_plan(crate::sql::statement_plan(&state, statement).await?)?;
        let made_of = match begun {
            Some(begun) => panics::caught(async { Ok(begun.read_by(now, &plan).await) }).await?,
            None => None,
        };
        Ok(PlannedStatement { sql: sql.to_string(), plan, made_of })
    }

    /// The physical plan of a logically planned statement. Definitions and settings take effect during this call, as in
    /// [`plan`](Self::plan).
    ///
    /// # Errors
    /// DataFusion's, from the planner.
    pub async fn plan_statement(&self, statement: PlannedStatement) -> Result<Arc<dyn ExecutionPlan>> {
        let PlannedStatement { sql, plan: query, made_of } = statement;
        if let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) = query {
            self.create_table(create).await?;
            let nothing = LogicalPlanBuilder::empty(false).build()?;
            return crate::sql::plan_logical(&self.context, nothing).await;
        }
        let defines = crate::sql::defines(&query);
        let by_template = match &made_of {
            Some(_) => self.on_stack_by_template(&query).await?,
            None => None,
        };
        let plan = match by_template {
            Some(plan) => plan,
            None => crate::sql::plan_logical(&self.context, query).await?,
        };
        if defines {
            // The definition may concern inputs of kept plans.
            self.equipment.plans.clear();
        } else if let Some(made_of) = made_of {
            self.equipment.plans.keep(Key::Text(sql), made_of, &plan);
        }
        Ok(plan)
    }

    async fn on_stack_by_template(&self, query: &LogicalPlan) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let bytes = levels::stack_of_plan(query)?;
        panics::caught(async { Ok(OnStack::new(bytes, self.plan_by_template(query)).await) }).await
    }

    /// Plans a query by the template that it shares with queries that differ only in constants; `None` without a usable
    /// template.
    async fn plan_by_template(&self, query: &LogicalPlan) -> Option<Arc<dyn ExecutionPlan>> {
        let state = self.context.state();
        if !self.equipment.rules.as_ref().is_some_and(|rules| rules.are_those_of(&state)) {
            // An application's rule may need constants that a template hides.
            return None;
        }
        let template = Template::of(query, &state)?;
        let (number, now) = (template.hash(), Now::State(&state));
        match self.equipment.plans.sight(number) {
            Sight::Seen => {}
            Sight::New | Sight::Refused => return None,
        }
        let asked = Asked::of_template(query, &template.plan)?;
        let known = self.equipment.plans.find(now, &Key::Template(number), Some(&asked)).await;
        let is_known = known.is_some();
        let bound = async {
            let (plan, made_of) = match known {
                Some(plan) => (plan, None),
                None => {
                    // Recorded before planning: a change in the meantime is detected the next time.
                    let made_of = MadeOf::asked(now, asked).await;
                    crate::store::refresh_listings(query, &state).await?;
                    (template.planned(&state).await?, made_of)
                }
            };
            let bound = template.bound(Arc::clone(&plan), &state)?;
            Ok::<_, DataFusionError>((bound, plan, made_of))
        };
        match recorder::during(profile::step::PLAN, bound).await {
            Ok((Some(bound), plan, made_of)) => {
                if let Some(made_of) = made_of {
                    self.equipment.plans.keep_template(number, made_of, &plan);
                }
                tracing::debug!("planned by template {number:x}");
                self.equipment.plans.found_by_template();
                Some(bound)
            }
            // The constants of this statement do not fit the template; others may.
            _ if is_known => None,
            refused => {
                let why = refused.err().map_or("not wholly on the device".to_string(), |error| error.to_string());
                tracing::debug!("statements that differ in constants alone are planned each time: {why}");
                self.equipment.plans.refuse(number);
                None
            }
        }
    }

    /// A copy of this statement's kept plan, if there is one and nothing has changed since.
    ///
    /// # Errors
    /// Only [`EngineError::Panicked`].
    pub async fn kept_plan(&self, sql: &str) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !self.keeps_plans() {
            return Ok(None);
        }
        let (now, key) = (Now::Context(&self.context), Key::Text(sql.to_string()));
        let found = panics::caught(async { Ok(self.equipment.plans.find(now, &key, None).await) });
        recorder::during(profile::step::PLAN, found).await
    }

    /// Number of statements that used a kept plan.
    pub fn plans_found(&self) -> PlansFound {
        self.equipment.plans.plans_found()
    }

    /// Number of plans that this session keeps.
    pub fn plans_kept(&self) -> usize {
        self.equipment.plans.kept()
    }

    /// True if plans of statements are kept: there is a device, and it is not lost.
    fn keeps_plans(&self) -> bool {
        self.engine().is_some_and(|engine| !engine.device().is_lost())
    }

    /// True if columns are stored on the device.
    fn keeps_columns(&self) -> bool {
        let state = self.context.state_ref();
        let state = state.read();
        let options = state.config_options().extensions.get::<MillpondOptions>();
        self.engine().is_some() && options.is_some_and(|options| options.cache.stores())
    }

    /// Runs a physical plan of this session; returns its rows and report.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn execute_plan(&self, plan: Arc<dyn ExecutionPlan>) -> Result<QueryResult> {
        self.stream_plan(plan)?.collect().await
    }

    /// Plans one query and starts it; its rows are not collected.
    ///
    /// # Errors
    /// Those of the planner. Errors in the stream are DataFusion's and the engine's.
    pub async fn stream(&self, sql: &str) -> Result<QueryStream> {
        let began = Instant::now();
        let plan = self.plan(sql).await?;
        self.stream_plan_since(plan, began)
    }

    /// Starts a physical plan of this session.
    ///
    /// # Errors
    /// Like [`stream`](Self::stream).
    pub fn stream_plan(&self, plan: Arc<dyn ExecutionPlan>) -> Result<QueryStream> {
        self.stream_plan_since(plan, Instant::now())
    }

    /// Starts the plan of a statement that was received at `began`: the report's times count from then on.
    ///
    /// # Errors
    /// Like [`stream`](Self::stream).
    pub fn stream_plan_since(&self, plan: Arc<dyn ExecutionPlan>, began: Instant) -> Result<QueryStream> {
        if let Some(engine) = self.engine() {
            engine.check_process()?;
        }
        ask_borders(&plan);
        let planned = Instant::now();
        let batches = panics::caught_now(|| execute_stream(Arc::clone(&plan), profile::task_context(&self.context)))??;
        Ok(QueryStream { session: self.clone(), plan, batches: Some(batches), began, planned, ended: None, rows: 0 })
    }

    /// Profile of a query that `profiler` recorded on this session.
    pub fn profile(&self, profiler: &Profiler) -> Profile {
        profiler.finish(self.engine().map(|engine| engine.facts()))
    }

    /// Report of an executed plan. Takes the findings of the simulated device: the next report starts empty.
    pub fn report(&self, plan: &Arc<dyn ExecutionPlan>) -> QueryReport {
        QueryReport {
            device: self.engine().map(|e| e.name().to_string()),
            memory_resource: self.engine().map(|e| e.memory_resource().name()),
            findings: self.engine().map(|e| e.take_findings()).unwrap_or_default(),
            pool_used_bytes: self.pool_used_bytes(),
            ..QueryReport::of(plan, self.operators())
        }
    }
}

/// Requests time profiles from the borders below an EXPLAIN ANALYZE.
fn ask_borders(plan: &Arc<dyn ExecutionPlan>) {
    if plan.is::<AnalyzeExec>() {
        downloads(plan).iter().for_each(DownloadExec::analyze);
    }
}

impl QueryStream {
    /// Collects all batches; returns them with the report.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn collect(mut self) -> Result<QueryResult> {
        let batches = (&mut self).try_collect().await?;
        let plan = Arc::clone(&self.plan);
        Ok(QueryResult { schema: plan.schema(), batches, report: self.report().await, plan })
    }

    /// Columns of the batches.
    pub fn schema(&self) -> SchemaRef {
        self.plan.schema()
    }

    /// The running plan, with its metrics so far.
    pub fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// Report of the query. Ends the query if batches are left.
    pub async fn report(mut self) -> QueryReport {
        self.batches = None;
        runs_ended(&self.plan).await;
        // The recording of a query ends with its last report.
        recorder::current().iter().for_each(Path::end);
        let nanoseconds = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let ended = self.ended.unwrap_or_else(Instant::now);
        QueryReport {
            answer_rows: self.rows,
            wall_ns: nanoseconds(ended - self.began),
            planning_ns: nanoseconds(self.planned - self.began),
            ..self.session.report(&self.plan)
        }
    }
}

impl Stream for QueryStream {
    type Item = Result<RecordBatch>;

    /// The next batch; `None` after an error.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(batches) = &mut self.batches else { return Poll::Ready(None) };
        let next = match panics::caught_now(|| batches.poll_next_unpin(context)) {
            Ok(next) => next.map_err(|error| overflow::explained(panics::named(error))),
            Err(panicked) => Poll::Ready(Some(Err(panicked))),
        };
        if let Poll::Ready(Some(Ok(batch))) = &next {
            self.rows += batch.num_rows() as u64;
        }
        if let Poll::Ready(None | Some(Err(_))) = next {
            self.batches = None;
            self.ended = Some(Instant::now());
        }
        next
    }
}
