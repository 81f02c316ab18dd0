//! Statements of a soak run, and the CPU's answers to them.
//!
//! ```text
//!   random   tables that a seed makes, in memory and in files       ─┐           ┌─► half of them again and again:
//!                                                                                    plans and columns are kept
//!   tpch     a folder of tables; other constants in each statement   ├─► draw ───┤
//!   gpu-bdb  a folder of tables; its thirty queries                 ─┘           └─► half of them new: what is kept
//!                                                                                    for them must go again
//! ```
//!
//! Oracle   DataFusion alone, over the same tables. Answers to repeated statements are kept by SQL text.
//! Equal    as `millpond run --validate cpu` and `cargo fuzz-sql` have it: with tolerances for floats, in order where
//!          there is one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use millpond::datafusion::catalog::TableProvider;
use millpond::datafusion::error::{DataFusionError, Result};
use millpond::datafusion::execution::runtime_env::RuntimeEnv;
use millpond::datafusion::prelude::SessionConfig;
use millpond::datafusion::sql::parser::DFParserBuilder;
use millpond::device::Engine;
use millpond::session::default_config;
use millpond::{DeviceChoice, IntegerOverflow, Millpond, MillpondOptions};
use millpond_queries::Suite;
use tokio::sync::RwLock;

use crate::fuzz::data::{Folder, TABLES, register};
use crate::fuzz::lab::{self, Ran};
use crate::fuzz::pair::Door;
use crate::fuzz::query::Query as RandomQuery;
use crate::fuzz::rng::Rng;
use crate::runner::{Outcome, register_functions, register_tables, run_query};

/// Sources of a workload.
#[derive(Debug, Clone)]
pub enum Source {
    /// The tables and queries of `cargo fuzz-sql` under a seed.
    Random { seed: u64 },
    /// A suite over the tables in a folder. The seed chooses TPC-H's constants.
    Suite { suite: Box<Suite>, data: PathBuf, seed: u64 },
}

/// Statements over one set of tables, with the CPU's answers.
pub struct Workload {
    pub name: String,
    of: Of,
    cpu: Millpond,
    /// Held alone by statements that make tables: a query drops what is new in its session when it ends.
    cpu_tables: RwLock<()>,
    /// Keyed by SQL text.
    known: Mutex<HashMap<String, Expected>>,
}

enum Of {
    Random { seed: u64, tables: Vec<(&'static str, Arc<dyn TableProvider>)>, _folder: Folder },
    Suite { suite: Box<Suite>, data: PathBuf, seed: u64 },
}

/// One statement, or the statements of a suite's query.
#[derive(Debug, Clone)]
pub struct Statement {
    pub text: String,
    pub query: Query,
    /// True if the statement may follow CREATE TABLE AS.
    pub is_single: bool,
    comes_again: bool,
}

#[derive(Debug, Clone)]
pub enum Query {
    Random(Box<RandomQuery>),
    Suite(Box<millpond_queries::Query>),
}

/// The CPU's answer, or its error.
#[derive(Debug, Clone)]
pub enum Expected {
    Random(Arc<Ran>),
    Suite(Arc<Result<Outcome, String>>),
}

/// Number of repeated random queries; below, number of repeated sets of constants of a suite's queries.
const RANDOM_AGAIN: u64 = 64;
const CONSTANTS_AGAIN: u64 = 3;

fn outside(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Integer overflow behavior of random statements on both sides: checked under every other seed.
fn overflow(seed: u64) -> IntegerOverflow {
    if seed.is_multiple_of(2) { IntegerOverflow::Error } else { IntegerOverflow::Wrap }
}

impl Workload {
    /// Makes the tables, or finds them, and opens a session on the CPU.
    ///
    /// # Errors
    /// When tables are missing or cannot be written.
    pub async fn open(source: Source) -> Result<Self> {
        let builder = Millpond::builder().with_device(DeviceChoice::Cpu);
        let (name, of, cpu) = match source {
            Source::Random { seed } => {
                let folder = Folder::write(seed)?;
                let config = lab::row_by_row(lab::config(TARGETS, false));
                let mut options = MillpondOptions::default();
                options.device = DeviceChoice::Cpu;
                options.integer_overflow = overflow(seed);
                let cpu = builder.with_options(options).with_config(config).build().map_err(outside)?;
                register(cpu.context(), seed, &folder).await?;
                let mut tables = Vec::new();
                for (name, ..) in TABLES {
                    tables.push((name, cpu.context().table_provider(name).await?));
                }
                ("random".to_string(), Of::Random { seed, tables, _folder: folder }, cpu)
            }
            Source::Suite { suite, data, seed } => {
                let cpu = builder.build().map_err(outside)?;
                register_functions(&cpu, &suite).map_err(outside)?;
                register_tables(&cpu, &suite, &data).await.map_err(outside)?;
                (suite.name.clone(), Of::Suite { suite, data, seed }, cpu)
            }
        };
        Ok(Self { name, of, cpu, cpu_tables: RwLock::default(), known: Mutex::default() })
    }

    /// A session on the device over the same tables. Random ones are the same arrays and files in all sessions.
    ///
    /// # Errors
    /// When it cannot be opened, or a table no longer exists.
    pub async fn session(
        &self,
        options: &MillpondOptions,
        engine: &Arc<Engine>,
        runtime: Arc<RuntimeEnv>,
    ) -> Result<Millpond> {
        let mut options = options.clone();
        if let Of::Random { seed, .. } = &self.of {
            options.integer_overflow = overflow(*seed);
        }
        let builder = Millpond::builder().with_options(options).with_engine(Arc::clone(engine));
        let session = builder.with_config(self.config()).with_runtime_env(runtime).build().map_err(outside)?;
        match &self.of {
            Of::Random { tables, .. } => {
                for (name, table) in tables {
                    session.context().register_table(*name, Arc::clone(table))?;
                }
            }
            Of::Suite { suite, data, .. } => {
                register_functions(&session, suite).map_err(outside)?;
                register_tables(&session, suite, data).await.map_err(outside)?;
            }
        }
        Ok(session)
    }

    /// Errors of random queries depend on partitions: both sessions use the same number.
    fn config(&self) -> SessionConfig {
        match self.of {
            Of::Random { .. } => lab::config(TARGETS, false),
            Of::Suite { .. } => default_config(),
        }
    }

    /// True for tables of so few rows that tiny batches are no burden.
    pub fn is_small(&self) -> bool {
        matches!(self.of, Of::Random { .. })
    }

    /// The next statement: one that comes again, or number `fresh` of those that do not.
    ///
    /// # Errors
    /// When a suite has no other constants for one of its queries, which [`Suite::varied`] says.
    pub fn draw(&self, rng: &mut Rng, fresh: u64) -> Result<Statement> {
        let comes_again = rng.chance(50);
        match &self.of {
            Of::Random { seed, .. } => {
                let number = if comes_again { rng.draw() % RANDOM_AGAIN } else { RANDOM_AGAIN + fresh };
                let query = RandomQuery::random(*seed, number);
                let text = query.sql();
                Ok(Statement { text, query: Query::Random(Box::new(query)), is_single: true, comes_again })
            }
            Of::Suite { suite, seed, .. } => {
                let query = &suite.queries[rng.below(suite.queries.len())];
                let run = if comes_again { rng.draw() % CONSTANTS_AGAIN } else { CONSTANTS_AGAIN + fresh };
                let varies = suite.name == "tpch";
                let query = match varies {
                    true => suite.varied(query, *seed, run).map_err(outside)?,
                    false => query.clone(),
                };
                let parsed = DFParserBuilder::new(query.sql.as_str()).build()?.parse_statements()?;
                let (is_single, comes_again) = (parsed.len() == 1, comes_again || !varies);
                Ok(Statement { text: query.sql.clone(), query: Query::Suite(Box::new(query)), is_single, comes_again })
            }
        }
    }

    /// The CPU's answer to a statement.
    pub async fn expected(&self, statement: &Statement) -> Expected {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(expected) = known().get(&statement.text) {
            return expected.clone();
        }
        let (_alone, _among);
        match statement.is_single {
            true => _among = self.cpu_tables.read().await,
            false => _alone = self.cpu_tables.write().await,
        }
        let expected = match &statement.query {
            Query::Random(_) => Expected::Random(Arc::new(lab::run(&self.cpu, &statement.text, Door::Execute).await)),
            Query::Suite(query) => {
                let ran = run_query(&self.cpu, query).await.map_err(|error| error.to_string());
                Expected::Suite(Arc::new(ran))
            }
        };
        if statement.comes_again {
            known().insert(statement.text.clone(), expected.clone());
        }
        expected
    }
}

/// DataFusion's partitions in sessions of random queries.
const TARGETS: usize = 4;
