//! Arguments of table functions: table names, column names and constants.
//!
//! ```text
//!   sessionize('clicks', ['user', 'device'], 'ts', 3600)
//!               │         │                   │     └─ number
//!               │         └─ columns: exact name, else any case ─────► Expr::Column of the relation's schema
//!               └─ table, view, 'schema.table' or 'SELECT …' ────────► LogicalPlan
//! ```
//!
//! Waits    a table function is called during planning and must not wait; in-memory catalogs answer at once, others are
//!          queried on a separate thread.

use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::catalog::{Session, TableProvider};
use millpond::datafusion::common::{Column, DFSchema, DataFusionError, ScalarValue, TableReference};
use millpond::datafusion::datasource::provider_as_source;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::context::{SQLOptions, SessionState};
use millpond::datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};

use super::FunctionError;
use super::error::{caused, shown};

/// Maximum number of names listed in a message.
const LISTED: usize = 12;

/// Arguments of one call.
pub(crate) struct Arguments<'a> {
    function: &'static str,
    values: &'a [Expr],
}

impl<'a> Arguments<'a> {
    /// # Errors
    /// [`FunctionError::Count`] unless there are `least` to `most` arguments.
    pub(crate) fn try_new(
        function: &'static str,
        usage: &'static str,
        values: &'a [Expr],
        least: usize,
        most: usize,
    ) -> Result<Self> {
        if (least..=most).contains(&values.len()) {
            return Ok(Self { function, values });
        }
        let wanted = match (least, most) {
            (0, 0) => "no arguments".to_string(),
            (least, most) if least == most => format!("{least} arguments"),
            (least, most) => format!("{least} to {most} arguments"),
        };
        Err(FunctionError::Count { function, wanted, given: values.len(), usage }.into())
    }

    fn refused(&self, index: usize, argument: &'static str, wanted: &'static str) -> DataFusionError {
        let given = match self.values.get(index) {
            Some(Expr::Literal(value, _)) => shown(value),
            Some(other) => other.to_string(),
            None => "missing".to_string(),
        };
        FunctionError::Argument { function: self.function, argument, given, wanted }.into()
    }

    fn literal(&self, index: usize) -> Option<&'a ScalarValue> {
        match self.values.get(index)? {
            Expr::Literal(value, _) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn text(&self, index: usize, argument: &'static str, wanted: &'static str) -> Result<&'a str> {
        let text = self.literal(index).and_then(|value| value.try_as_str().flatten());
        text.ok_or_else(|| self.refused(index, argument, wanted))
    }

    /// One string, or a list of strings.
    pub(crate) fn texts(&self, index: usize, argument: &'static str) -> Result<Vec<String>> {
        const WANTED: &str = "a column's name, or a list of names: ['a', 'b']";
        let refused = || self.refused(index, argument, WANTED);
        let value = self.literal(index).ok_or_else(refused)?;
        if let Some(text) = value.try_as_str().flatten() {
            return Ok(vec![text.to_string()]);
        }
        let ScalarValue::List(list) = value else { return Err(refused()) };
        let items = list.values();
        let texts: Option<Vec<String>> = (0..items.len())
            .map(|item| ScalarValue::try_from_array(items, item).ok()?.try_as_str().flatten().map(str::to_string))
            .collect();
        texts.filter(|texts| !texts.is_empty()).ok_or_else(refused)
    }

    pub(crate) fn integer(&self, index: usize, argument: &'static str, wanted: &'static str) -> Result<i64> {
        let integer = self.literal(index).filter(|value| value.data_type().is_integer());
        let integer = integer.and_then(|value| match value.cast_to(&DataType::Int64) {
            Ok(ScalarValue::Int64(integer)) => integer,
            _ => None,
        });
        integer.ok_or_else(|| self.refused(index, argument, wanted))
    }

    /// An integer of at least `least`.
    pub(crate) fn at_least(
        &self,
        index: usize,
        argument: &'static str,
        least: i64,
        wanted: &'static str,
    ) -> Result<i64> {
        self.within(index, argument, least, i64::MAX, wanted)
    }

    /// An integer from `least` to `most`.
    pub(crate) fn within(
        &self,
        index: usize,
        argument: &'static str,
        least: i64,
        most: i64,
        wanted: &'static str,
    ) -> Result<i64> {
        let integer = self.integer(index, argument, wanted)?;
        if (least..=most).contains(&integer) { Ok(integer) } else { Err(self.refused(index, argument, wanted)) }
    }

    pub(crate) fn double(&self, index: usize, argument: &'static str, wanted: &'static str) -> Result<f64> {
        let number = self.literal(index).filter(|value| value.data_type().is_numeric());
        let number = number.and_then(|value| match value.cast_to(&DataType::Float64) {
            Ok(ScalarValue::Float64(number)) => number,
            _ => None,
        });
        number.ok_or_else(|| self.refused(index, argument, wanted))
    }

    /// Whether an optional argument is present.
    pub(crate) fn has(&self, index: usize) -> bool {
        index < self.values.len()
    }

    /// The relation named by argument `index`.
    pub(crate) fn relation(&self, index: usize, argument: &'static str, session: &dyn Session) -> Result<LogicalPlan> {
        let name = self.text(index, argument, "the name of a table or view, or a query, as a string")?;
        relation(self.function, name, session)
    }
}

/// The plan of a name or a query.
fn relation(function: &'static str, name: &str, session: &dyn Session) -> Result<LogicalPlan> {
    if let Some(plan) = table(name, session)? {
        return Ok(plan);
    }
    let first = name.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("").to_ascii_lowercase();
    let is_query =
        matches!(first.as_str(), "select" | "with" | "values" | "table") || name.trim_start().starts_with('(');
    match session.as_any().downcast_ref::<SessionState>() {
        Some(state) if is_query => {
            let planned = at_once(|| millpond::session::sql::logical_plan(state, name));
            let plan = planned.map_err(|error| FunctionError::Query {
                function,
                sql: name.to_string(),
                reason: caused(&error),
            })?;
            let queries = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
            let refused = |_| FunctionError::NotAQuery { function, sql: name.to_string() };
            queries.verify_plan(&plan).map_err(refused)?;
            Ok(plan)
        }
        _ => {
            let known = known_tables(session);
            Err(FunctionError::UnknownRelation { function, name: name.to_string(), known }.into())
        }
    }
}

fn table(name: &str, session: &dyn Session) -> Result<Option<LogicalPlan>> {
    // First the name as given; then as SQL parses it: in parts, and in lower case unless quoted.
    for reference in [TableReference::bare(name.to_string()), TableReference::from(name)] {
        if let Some(provider) = provider(&reference, session)? {
            return Ok(Some(LogicalPlanBuilder::scan(reference, provider_as_source(provider), None)?.build()?));
        }
    }
    Ok(None)
}

fn provider(reference: &TableReference, session: &dyn Session) -> Result<Option<Arc<dyn TableProvider>>> {
    let catalogs = &session.config_options().catalog;
    let resolved = reference.clone().resolve(&catalogs.default_catalog, &catalogs.default_schema);
    let catalog = session.catalog_list().catalog(&resolved.catalog);
    let Some(schema) = catalog.and_then(|catalog| catalog.schema(&resolved.schema)) else { return Ok(None) };
    at_once(|| schema.table(&resolved.table))
}

fn known_tables(session: &dyn Session) -> String {
    let catalogs = &session.config_options().catalog;
    let catalog = session.catalog_list().catalog(&catalogs.default_catalog);
    let schema = catalog.and_then(|catalog| catalog.schema(&catalogs.default_schema));
    let mut names = schema.map(|schema| schema.table_names()).unwrap_or_default();
    names.sort_unstable();
    match names.is_empty() {
        true => "there are none yet".to_string(),
        false => format!("there are {}", listed(names)),
    }
}

fn listed(names: Vec<String>) -> String {
    let more = names.len().saturating_sub(LISTED);
    let mut text = names.into_iter().take(LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// Result of a future; if it has to wait, it runs on a separate thread with its own runtime.
fn at_once<T: Send, F: Future<Output = Result<T>> + Send>(future: impl Fn() -> F + Send + Sync) -> Result<T> {
    if let Some(ready) = future().now_or_never() {
        return ready;
    }
    let waiting = || -> Result<T> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DataFusionError::IoError)?;
        runtime.block_on(future())
    };
    std::thread::scope(|scope| scope.spawn(waiting).join())
        .unwrap_or_else(|_| Err(DataFusionError::Internal("a catalog panicked while it was asked".to_string())))
}

/// The column called `name`.
pub(crate) fn column(function: &'static str, name: &str, plan: &LogicalPlan) -> Result<Expr> {
    let schema: &DFSchema = plan.schema();
    let exact: Vec<Column> = schema.columns().into_iter().filter(|column| column.name == name).collect();
    let found = match exact.is_empty() {
        false => exact,
        true => {
            let loosely = |column: &Column| {
                column.name.eq_ignore_ascii_case(name) || column.flat_name().eq_ignore_ascii_case(name)
            };
            schema.columns().into_iter().filter(loosely).collect()
        }
    };
    match found.as_slice() {
        [column] => Ok(Expr::Column(column.clone())),
        [] => {
            let known = listed(schema.columns().into_iter().map(|column| column.name).collect());
            let tables: Vec<String> =
                schema.iter().filter_map(|(table, _)| table.map(|table| format!("'{table}'"))).collect();
            let relation = tables.first().cloned().unwrap_or_else(|| "the query".to_string());
            Err(FunctionError::UnknownColumn { function, relation, name: name.to_string(), known }.into())
        }
        many => {
            let candidates = many.iter().map(Column::flat_name).collect::<Vec<_>>().join(" or ");
            Err(FunctionError::AmbiguousColumn { function, name: name.to_string(), candidates }.into())
        }
    }
}

pub(crate) fn columns(function: &'static str, names: &[String], plan: &LogicalPlan) -> Result<Vec<Expr>> {
    names.iter().map(|name| column(function, name, plan)).collect()
}
