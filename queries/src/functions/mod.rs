//! Workload functions: sessions, pairs, text and machine learning, in SQL, for data frames and over plain arrays.
//!
//! ```text
//!   SELECT … FROM sessionize('clicks', 'user', 'ts', 3600)      clicks.sessionize(&["user"], "ts", 3600)
//!                           └──────────────┬─────────────────────────────┘
//!                               RelationNode (logical)  ──  extension planners: a device's first, then the CPU's
//!                               RelationExec (CPU)      ──  SortExec, RepartitionExec as it requires
//!                                          └─ sessions · pairs · before · ml::tables
//!   SELECT sentences(text), words(sentence), sentiment_hits(text) …      scalar functions: text in, lists out
//! ```
//!
//! | file | idea |
//! | --- | --- |
//! | `function`, `node`, `exec`, `planner`, `operator` | table functions: nodes, CPU operator, planning |
//! | `calls`, `frame`, `table`, `relation` | calls: checking, data frames, SQL, and resolution of names |
//! | `sessions`, `pairs`, `before` | CPU forms of three functions over sorted rows |
//! | `clicks` | device forms of these three functions |
//! | `text`, `sentiment`, `companies`, `scalars` | text analysis, and the scalar functions in SQL |
//! | `device` | the text functions with a device form |
//! | `ml` | k-means, logistic regression and naive Bayes over arrays, and over the rows of a plan |
//! | `learn` | k-means, logistic regression and naive Bayes on the device |
//!
//! Slope and intercept of a line are DataFusion's `regr_slope(y, x)` and `regr_intercept(y, x)`: NULL if all x are
//! equal.
//! `docs/functions.md` is the page for users.
//!
//! ```
//! use millpond::{DeviceChoice, Millpond};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let session = Millpond::builder().with_device(DeviceChoice::Cpu).build()?;
//! millpond_queries::functions::register(session.context())?;
//! let clicks = "SELECT * FROM (VALUES ('ann', 0), ('ann', 50), ('ann', 5000)) AS t(who, at)";
//! session.execute(&format!("CREATE VIEW clicks AS {clicks}")).await?;
//! let answer = session.execute("SELECT DISTINCT who, session_id FROM sessionize('clicks', 'who', 'at', 3600)").await?;
//! assert_eq!(answer.batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 2);
//! # Ok(())
//! # }
//! ```

mod before;
mod calls;
mod clicks;
mod companies;
mod device;
mod error;
mod exec;
mod frame;
mod function;
mod keys;
mod learn;
pub mod ml;
mod node;
mod operator;
mod pairs;
mod planner;
mod relation;
mod scalars;
mod sentiment;
mod sessions;
mod table;
mod text;
mod time;

use std::sync::Arc;

use millpond::contract::Operators;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::context::SessionContext;

pub use companies::Companies;
pub use error::FunctionError;
pub use exec::RelationExec;
pub use frame::WorkloadFrame;
pub use function::{Function, KMeansOutput, LogisticOutput};
pub use node::RelationNode;
pub use planner::{SharedExtensionPlanner, WorkloadExtensionPlanner};
pub use sentiment::{Lexicon, Sentiment};
pub use text::{SentenceRule, words};

/// Registers all functions in a session, with the workload's word lists. Repeated calls have no effect.
///
/// # Errors
/// DataFusion's error if it rejects a function.
pub fn register(context: &SessionContext) -> Result<()> {
    Registration::default().register(context)
}

/// Registers all functions in a session; the planners `first` may plan a [`RelationNode`] before the CPU planner.
///
/// # Errors
/// Those of [`register`].
pub fn register_with(context: &SessionContext, first: Vec<SharedExtensionPlanner>) -> Result<()> {
    Registration { planners: first, ..Registration::default() }.register(context)
}

/// Options of the registration, to replace the workload's own lists.
///
/// ```
/// use millpond_queries::functions::{Lexicon, Registration};
/// # use millpond::{DeviceChoice, Millpond};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let session = Millpond::builder().with_device(DeviceChoice::Cpu).build()?;
/// let lexicon = Lexicon::new(["super"], ["mies"]);
/// Registration { lexicon, ..Registration::default() }.register(session.context())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Registration {
    /// For `sentiments`, `sentiment_hits` and `sentiment_words`.
    pub lexicon: Lexicon,
    /// For `companies_in`, `company_mentions` and `companies`.
    pub companies: Companies,
    /// Planners that may plan a [`RelationNode`] before the CPU planner.
    pub planners: Vec<SharedExtensionPlanner>,
}

impl Registration {
    /// Registers all functions in a session; functions with equal names are replaced.
    ///
    /// # Errors
    /// Those of [`register`].
    pub fn register(self, context: &SessionContext) -> Result<()> {
        let words = table::WordTable::sentiment_words(&self.lexicon)?;
        let names = table::WordTable::companies(&self.companies)?;
        for (name, table) in [words, names] {
            context.register_udtf(name, Arc::new(table));
        }
        for (name, function) in table::RELATION_FUNCTIONS {
            context.register_udtf(name, Arc::new(function));
        }
        for function in scalars::all(&Arc::new(self.lexicon), &Arc::new(self.companies)) {
            context.register_udf(function);
        }
        let state = context.state_ref();
        let mut state = state.write();
        // Only a session with the engine has this list.
        if let Some(operators) = state.config().get_extension::<Operators>() {
            operators.add(Arc::new(learn::Learn));
            operators.add(Arc::new(operator::RelationOperator));
            operators.add(Arc::new(clicks::Clicks));
            operators.add(Arc::new(device::unnest()));
        }
        *state = planner::with_planner(state.clone(), self.planners);
        Ok(())
    }
}
