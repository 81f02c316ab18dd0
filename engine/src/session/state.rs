//! Equips a session's state: mends DataFusion's rules and planners, and adds those that place plans on a device.
//!
//! ```text
//!   SessionStateBuilder ─ with_millpond(&engine) ─► equipped builder ─ build() ─► SessionContext ─ of ─► Millpond
//!     own planner, rules, catalog, functions, stores: kept                          └─ sql(), frames: on the device
//! ```
//!
//! Order   the application's rules keep their positions; placement runs after them. Rules added to the state later run
//!         after placement: rules that expect DataFusion's nodes must be added before.
//! Missing if an application's list lacks a rule that ours wrap or precede, [`Millpond::unmended`] names that rule.
//! Plans   are kept as usual. With an application's rules or planner, statements that differ only in constants share no
//!         plan.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::{QueryPlanner, SessionContext};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::optimizer::Optimizer;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

use crate::device::{Engine, Opened};
use crate::error::EngineError;
use crate::operator::registry;
use crate::options::MillpondOptions;
use crate::placement::PlaceOnDevice;
use crate::placement::contract::Operators;
use crate::plan::levels::LimitLevels;
use crate::plan::missing::Missing;
use crate::session::object_stores::ObjectStores;
use crate::session::plan_cache::PlanCache;
use crate::session::planned_by::Rules;
use crate::session::planner::KeepingPlanner;
use crate::session::{INT96, Millpond, default_config};
use crate::store::{Checks, SessionMark};

/// Adds a device to an application's DataFusion session state.
pub trait WithMillpond: Sized {
    /// Makes plans of this state run on the device. The state's contents are kept; options are taken from its
    /// configuration (`SessionConfig::with_option_extension(MillpondOptions)`), and a state without a configuration
    /// gets [`default_config`].
    ///
    /// `device` is an engine, or the result of opening one: without a device the state gets only the mended rules, and
    /// plans for the CPU.
    ///
    /// # Errors
    /// [`EngineError::HasDevice`] if the state already has a device; an option's error if a value is refused.
    fn with_millpond(self, device: impl Into<Opened>) -> Result<Self, EngineError>;
}

impl WithMillpond for SessionStateBuilder {
    fn with_millpond(self, device: impl Into<Opened>) -> Result<Self, EngineError> {
        equipped(self, device.into(), registry())
    }
}

impl Millpond {
    /// The session of a DataFusion context whose state was built [`with_millpond`](WithMillpond::with_millpond), or by
    /// Millpond; `None` for others.
    pub fn of(context: &SessionContext) -> Option<Self> {
        let equipment = context.state_ref().read().config().get_extension::<Equipment>()?;
        Some(Self { context: context.clone(), equipment })
    }

    /// Names of DataFusion's rules and table factories that would be mended, but are missing from this session's own
    /// lists.
    pub fn unmended(&self) -> &[&'static str] {
        self.equipment.missing.names()
    }
}

/// Per-session state besides DataFusion's; stored as an extension of the session's configuration.
pub(super) struct Equipment {
    pub engine: Option<Arc<Engine>>,
    /// Why the automatic choice found no device.
    pub note: Option<String>,
    pub operators: Operators,
    pub plans: Arc<PlanCache>,
    /// The planning rules at build time, if they are only DataFusion's and ours: only then plans may be shared through
    /// templates.
    pub rules: Option<Rules>,
    missing: Missing,
}

impl fmt::Debug for Equipment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Equipment").field("engine", &self.engine).field("plans", &self.plans).finish_non_exhaustive()
    }
}

/// Adds our rules, planners, functions, files and extensions to the state.
pub(super) fn equipped(
    mut state: SessionStateBuilder,
    opened: Opened,
    operators: Operators,
) -> Result<SessionStateBuilder, EngineError> {
    let Opened { engine, note } = opened;
    let (mut missing, plans) = (Missing::default(), Arc::<PlanCache>::default());
    let mut config = state.config().take().unwrap_or_else(default_config);
    if config.get_extension::<Equipment>().is_some() {
        return Err(EngineError::HasDevice);
    }
    let mut options = config.options().extensions.get::<MillpondOptions>().cloned().unwrap_or_default();
    options.validate()?;
    if let Some(engine) = &engine {
        // A shared device keeps its own settings.
        engine.tell_options(&mut options);
        options.device_opened();
    }
    let settles = Duration::from_secs(options.cache_settle_seconds.into());
    // DataFusion's default is nanoseconds, which overflow before 1677 and after 2262.
    config.options_mut().execution.parquet.coerce_int96.get_or_insert_with(|| INT96.to_string());
    config.options_mut().extensions.insert(options);
    // A crate that has only the DataFusion session finds the operator list here, and can add to it.
    config.set_extension(Arc::new(operators.clone()));
    Checks::add_to(&mut config);
    SessionMark::add_to(&mut config);

    let no_runtime = |error| EngineError::internal(format!("no runtime: {error}"));
    let runtime = match state.runtime_env().take() {
        Some(runtime) => runtime,
        None => {
            let stores = Arc::new(ObjectStores::from_environment());
            RuntimeEnvBuilder::new().with_object_store_registry(stores).build_arc().map_err(no_runtime)?
        }
    };
    let runtime = crate::files::runtime(&runtime, settles).map_err(no_runtime)?;

    let own_planner = state.query_planner().take();
    let has_own = own_planner.is_some() || has_own_rules(&mut state);
    let is_plain = state.analyzer().is_none() && state.optimizer().is_none() && state.physical_optimizers().is_none();
    let mut analyzer = state.analyzer().take().unwrap_or_default();
    analyzer.rules = crate::mends::analyzer_rules(analyzer.rules, engine.is_some(), &mut missing);
    let optimizer = state.optimizer().take().unwrap_or_default();
    let mut optimizer = crate::mends::optimizer_rules(optimizer.rules, &mut missing);
    optimizer.extend(state.optimizer_rules().take().unwrap_or_default());
    let physical = state.physical_optimizers().take().unwrap_or_default();
    let mut physical = crate::placement::rules(physical.rules, engine.is_some(), &mut missing);
    physical.extend(state.physical_optimizer_rules().take().unwrap_or_default());
    let own: [Arc<dyn PhysicalOptimizerRule + Send + Sync>; 2] =
        [Arc::new(LimitLevels), Arc::new(crate::files::WholeFiles)];
    physical.extend(own);
    if let Some(engine) = &engine {
        optimizer.push(crate::operator::window::filter::rule());
        physical.push(Arc::new(PlaceOnDevice::new(Arc::clone(engine), operators.clone())));
    }
    if let (true, [name, ..]) = (is_plain, missing.names()) {
        return Err(EngineError::internal(format!("DataFusion has no rule {name}")));
    }
    // A state without table factories has no CREATE EXTERNAL TABLE.
    let factories = state.table_factories().take();
    let factories = factories.map(|factories| crate::tables::factories(factories, &mut missing)).unwrap_or_default();
    let mut relations = state.relation_planners().take().unwrap_or_default();
    relations.extend(crate::mends::relation_planners());
    let functions = state.table_functions().get_or_insert_with(HashMap::new);
    functions.extend(crate::store::functions::functions(engine.as_ref()));

    let kept = engine.as_ref().map(|_| &plans);
    let planner: Arc<dyn QueryPlanner + Send + Sync> = Arc::new(KeepingPlanner::new(own_planner, kept, note.clone()));
    let rules = (!has_own).then(|| Rules {
        analyzer: analyzer.rules.clone(),
        rewrites: analyzer.function_rewrites.clone(),
        optimizer: optimizer.clone(),
        physical: physical.clone(),
        statistics: vec![],
        query: Arc::downgrade(&planner),
    });
    config.set_extension(Arc::new(Equipment { engine, note, operators, plans, rules, missing }));
    *state.analyzer() = Some(analyzer);
    *state.optimizer() = Some(Optimizer::with_rules(optimizer));
    *state.physical_optimizers() = Some(PhysicalOptimizer::with_rules(physical));
    Ok(state
        .with_config(config)
        .with_runtime_env(runtime)
        .with_relation_planners(relations)
        .with_table_factories(factories)
        .with_query_planner(planner))
}

/// True for a state with rules beyond DataFusion's defaults; any given list counts, because rules are identified only
/// by name.
fn has_own_rules(state: &mut SessionStateBuilder) -> bool {
    let lists = state.analyzer().is_some() || state.optimizer().is_some() || state.physical_optimizers().is_some();
    lists
        || state.analyzer_rules().is_some()
        || state.optimizer_rules().is_some()
        || state.physical_optimizer_rules().is_some()
}
