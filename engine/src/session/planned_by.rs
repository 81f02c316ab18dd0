//! Planning components of a session, as objects whose identity is compared later.
//!
//!   rules and planners ─────── the same objects in the same order? ─┐
//!   each function name ─────── the same objects under it? ──────────┴─ yes ─► a plan made with them may be reused
//!
//! Compared  analyzer rules, function rewrites, optimizer rules of both kinds, planners of expressions, relations and
//!           queries, statistics providers, the runtime. By address: the objects are kept alive, so that their
//!           addresses are not reused.
//! Names     of a function are its own and its aliases. A session looks a call up among scalar functions, then
//!           higher-order functions, then windows and aggregates: a changed object under one of the names in any of
//!           these requires a new plan.
//! Elsewhere options and operators ([`crate::session::plan_cache`]); tables, views, catalogs, looked up by name; object
//!           stores, with the files of a table.
//! Left out  table functions and their results, which are in no catalog: their plans are not kept. Table factories,
//!           file formats, function and cache factories, serializers: only definitions use these, and a definition
//!           empties the cache. Prepared statements and variables: plans with one are not kept. Extensions of a
//!           session's configuration: rules do not receive them.
//! Unseen    the planner of SQL types, which a session does not expose. It can only be set while a session is built.

use std::sync::{Arc, Weak};

use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::planner::{ExprPlanner, RelationPlanner};
use datafusion::logical_expr::{
    AggregateUDF, Expr, HigherOrderUDF, ScalarUDF, Volatility, WindowFunctionDefinition, WindowUDF,
};
use datafusion::optimizer::{AnalyzerRule, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::operator_statistics::StatisticsProvider;

use crate::expr::mended::bare;

/// The rules of a session, and its query planner.
pub(crate) struct Rules {
    pub analyzer: Vec<Arc<dyn AnalyzerRule + Send + Sync>>,
    pub rewrites: Vec<Arc<dyn FunctionRewrite + Send + Sync>>,
    pub optimizer: Vec<Arc<dyn OptimizerRule + Send + Sync>>,
    pub physical: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>,
    pub statistics: Vec<Arc<dyn StatisticsProvider>>,
    /// Weak, because a session's own planner owns the kept plans: a strong reference would form a cycle that keeps the
    /// device alive. The address is still not reused.
    pub query: Weak<dyn QueryPlanner + Send + Sync>,
}

/// The rules and planners of a session.
pub(crate) struct Planners {
    rules: Rules,
    expressions: Vec<Arc<dyn ExprPlanner>>,
    relations: Vec<Arc<dyn RelationPlanner>>,
    runtime: Arc<RuntimeEnv>,
}

impl Planners {
    pub fn of(state: &SessionState) -> Self {
        Self {
            rules: Rules::of(state),
            expressions: state.expr_planners().to_vec(),
            relations: state.relation_planners().to_vec(),
            runtime: Arc::clone(state.runtime_env()),
        }
    }

    /// True if the session still has the same components in the same order.
    pub fn are_those_of(&self, state: &SessionState) -> bool {
        self.rules.are_those_of(state)
            && Arc::ptr_eq(&self.runtime, state.runtime_env())
            && same(&self.expressions, state.expr_planners())
            && same(&self.relations, state.relation_planners())
    }
}

impl Rules {
    fn of(state: &SessionState) -> Self {
        Self {
            analyzer: state.analyzer().rules.clone(),
            rewrites: state.analyzer().function_rewrites().to_vec(),
            optimizer: state.optimizers().to_vec(),
            physical: state.physical_optimizers().to_vec(),
            statistics: providers(state).to_vec(),
            query: Arc::downgrade(state.query_planner()),
        }
    }

    /// True if the session still has the same rules and the same query planner.
    pub fn are_those_of(&self, state: &SessionState) -> bool {
        std::ptr::addr_eq(self.query.as_ptr(), Arc::as_ptr(state.query_planner()))
            && same(&self.optimizer, state.optimizers())
            && same(&self.physical, state.physical_optimizers())
            && same(&self.analyzer, &state.analyzer().rules)
            && same(&self.rewrites, state.analyzer().function_rewrites())
            && same(&self.statistics, providers(state))
    }
}

fn providers(state: &SessionState) -> &[Arc<dyn StatisticsProvider>] {
    state.statistics_registry().map_or(&[], |registry| registry.providers())
}

/// Functions that a query calls; for a function that one of our rules has replaced, the original.
#[derive(Default, Clone)]
pub(crate) struct Called {
    scalar: Vec<Arc<ScalarUDF>>,
    higher_order: Vec<Arc<HigherOrderUDF>>,
    aggregate: Vec<Arc<AggregateUDF>>,
    window: Vec<Arc<WindowUDF>>,
}

impl Called {
    /// True if both contain the same objects.
    pub fn are(&self, other: &Self) -> bool {
        same(&self.scalar, &other.scalar)
            && same(&self.higher_order, &other.higher_order)
            && same(&self.aggregate, &other.aggregate)
            && same(&self.window, &other.window)
    }

    /// Records the functions of an expression; returns false if it is not deterministic.
    pub fn note(&mut self, expr: &Expr) -> bool {
        let volatility = match expr {
            Expr::ScalarFunction(call) => {
                note(&mut self.scalar, &call.func);
                call.func.signature().volatility
            }
            Expr::HigherOrderFunction(call) => {
                note(&mut self.higher_order, &call.func);
                call.func.signature().volatility
            }
            Expr::AggregateFunction(call) => {
                note(&mut self.aggregate, bare(&call.func));
                call.func.signature().volatility
            }
            Expr::WindowFunction(call) => match &call.fun {
                WindowFunctionDefinition::AggregateUDF(of) => {
                    note(&mut self.aggregate, bare(of));
                    of.signature().volatility
                }
                WindowFunctionDefinition::WindowUDF(of) => {
                    note(&mut self.window, of);
                    of.signature().volatility
                }
            },
            Expr::ScalarVariable(..) | Expr::Placeholder(_) => Volatility::Volatile,
            _ => Volatility::Immutable,
        };
        volatility == Volatility::Immutable
    }

    /// The session's functions under their names.
    pub fn names(&self, state: &SessionState) -> Names {
        let scalar = self.scalar.iter().flat_map(|f| names(f.name(), f.aliases()));
        let higher_order = self.higher_order.iter().flat_map(|f| names(f.name(), f.aliases()));
        let aggregate = self.aggregate.iter().flat_map(|f| names(f.name(), f.aliases()));
        let window = self.window.iter().flat_map(|f| names(f.name(), f.aliases()));
        let mut all: Vec<&str> = scalar.chain(higher_order).chain(aggregate).chain(window).collect();
        all.sort_unstable();
        all.dedup();
        Names(all.into_iter().map(|name| (name.to_string(), Meaning::of(name, state))).collect())
    }
}

/// Function names, and the session's functions under each.
#[derive(Default)]
pub(crate) struct Names(Vec<(String, Meaning)>);

impl Names {
    /// True if the session still has the same functions under each name.
    pub fn mean_the_same_in(&self, state: &SessionState) -> bool {
        self.0.iter().all(|(name, meaning)| meaning.is_that_in(name, state))
    }
}

/// The functions with one name.
struct Meaning {
    scalar: Option<Arc<ScalarUDF>>,
    higher_order: Option<Arc<HigherOrderUDF>>,
    aggregate: Option<Arc<AggregateUDF>>,
    window: Option<Arc<WindowUDF>>,
}

impl Meaning {
    fn of(name: &str, state: &SessionState) -> Self {
        Self {
            scalar: state.scalar_functions().get(name).cloned(),
            higher_order: state.higher_order_functions().get(name).cloned(),
            aggregate: state.aggregate_functions().get(name).cloned(),
            window: state.window_functions().get(name).cloned(),
        }
    }

    fn is_that_in(&self, name: &str, state: &SessionState) -> bool {
        is(self.scalar.as_ref(), state.scalar_functions().get(name))
            && is(self.higher_order.as_ref(), state.higher_order_functions().get(name))
            && is(self.aggregate.as_ref(), state.aggregate_functions().get(name))
            && is(self.window.as_ref(), state.window_functions().get(name))
    }
}

/// True if both are the same object, or both are absent.
fn is<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}

/// A function's own name and its aliases.
fn names<'a>(own: &'a str, aliases: &'a [String]) -> impl Iterator<Item = &'a str> {
    std::iter::once(own).chain(aliases.iter().map(String::as_str))
}

/// Adds a function unless it is already listed.
fn note<T>(to: &mut Vec<Arc<T>>, function: &Arc<T>) {
    if !to.iter().any(|known| Arc::ptr_eq(known, function)) {
        to.push(Arc::clone(function));
    }
}

/// True if both are the same objects in the same order.
fn same<T: ?Sized>(a: &[Arc<T>], b: &[Arc<T>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}
