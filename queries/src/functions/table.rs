//! The table functions and the word lists in SQL.
//!
//! ```text
//!   SELECT … FROM sessionize('clicks', 'user', 'ts', 3600) AS s WHERE s.user = 7
//!                 └─ a view over a RelationNode, which the optimizer expands like any view
//! ```

use std::sync::Arc;

use millpond::datafusion::arrow::array::{RecordBatch, StringArray};
use millpond::datafusion::arrow::datatypes::{DataType, Field, Schema};
use millpond::datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use millpond::datafusion::datasource::{MemTable, ViewTable};
use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::LogicalPlan;

use super::ml::{KMeansOptions, LogisticOptions, NaiveBayesOptions};
use super::relation::Arguments;
use super::{Companies, KMeansOutput, Lexicon, LogisticOutput, calls};

/// A table function in SQL.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RelationFunction {
    Sessionize,
    BasketPairs,
    LastBefore,
    KMeans(KMeansOutput),
    KMeansPredict,
    Logistic(LogisticOutput),
    NaiveBayes,
}

/// All names in SQL.
pub(crate) const RELATION_FUNCTIONS: [(&str, RelationFunction); 10] = [
    ("sessionize", RelationFunction::Sessionize),
    ("basket_pairs", RelationFunction::BasketPairs),
    ("last_n_before", RelationFunction::LastBefore),
    ("kmeans", RelationFunction::KMeans(KMeansOutput::Labels)),
    ("kmeans_centers", RelationFunction::KMeans(KMeansOutput::Centers)),
    ("kmeans_predict", RelationFunction::KMeansPredict),
    ("logistic_regression", RelationFunction::Logistic(LogisticOutput::Model)),
    ("logistic_report", RelationFunction::Logistic(LogisticOutput::Report)),
    ("logistic_predict", RelationFunction::Logistic(LogisticOutput::Predictions)),
    ("naive_bayes", RelationFunction::NaiveBayes),
];

impl TableFunctionImpl for RelationFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let plan = match self {
            Self::Sessionize => sessionize(&args),
            Self::BasketPairs => basket_pairs(&args),
            Self::LastBefore => last_n_before(&args),
            Self::KMeans(output) => kmeans(&args, *output),
            Self::KMeansPredict => kmeans_predict(&args),
            Self::Logistic(output) => logistic(&args, *output),
            Self::NaiveBayes => naive_bayes(&args),
        };
        Ok(Arc::new(ViewTable::new(plan?, None)))
    }
}

const COLUMN: &str = "a column's name, as a string";

fn sessionize(args: &TableFunctionArgs) -> Result<LogicalPlan> {
    let usage = "sessionize('relation', 'key' | ['key', …], 'time', gap)";
    let given = Arguments::try_new("sessionize", usage, args.exprs(), 4, 4)?;
    let input = given.relation(0, "relation", args.session())?;
    let gap = given.at_least(
        3,
        "gap",
        0,
        "an integer, 0 or more, in the unit of the time column (seconds for a TIMESTAMP)",
    )?;
    calls::sessionize(input, &given.texts(1, "key")?, given.text(2, "time", COLUMN)?, gap)
}

fn basket_pairs(args: &TableFunctionArgs) -> Result<LogicalPlan> {
    let usage = "basket_pairs('relation', 'group' | ['group', …], 'element')";
    let given = Arguments::try_new("basket_pairs", usage, args.exprs(), 3, 3)?;
    let input = given.relation(0, "relation", args.session())?;
    calls::basket_pairs(input, &given.texts(1, "group")?, given.text(2, "element", COLUMN)?)
}

fn last_n_before(args: &TableFunctionArgs) -> Result<LogicalPlan> {
    let usage = "last_n_before('relation', 'key' | ['key', …], 'order' | ['order', …], 'anchor', n [, within])";
    let given = Arguments::try_new("last_n_before", usage, args.exprs(), 5, 6)?;
    let input = given.relation(0, "relation", args.session())?;
    let n = given.at_least(4, "n", 1, "an integer, 1 or more")?;
    let wanted = "an integer, 0 or more, in the unit of the first order column (seconds for a TIMESTAMP)";
    let within = given.has(5).then(|| given.at_least(5, "within", 0, wanted)).transpose()?;
    let (keys, order) = (given.texts(1, "key")?, given.texts(2, "order")?);
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    calls::last_n_before(input, &keys, &order, given.text(3, "anchor", COLUMN)?, n, within)
}

/// An option that is a count.
fn count(given: &Arguments, index: usize, name: &'static str, default: usize) -> Result<usize> {
    if !given.has(index) {
        return Ok(default);
    }
    Ok(usize::try_from(given.at_least(index, name, 1, "an integer, 1 or more")?).unwrap_or(usize::MAX))
}

/// An option that is a number.
fn number(given: &Arguments, index: usize, name: &'static str, default: f64) -> Result<f64> {
    if given.has(index) { given.double(index, name, "a number") } else { Ok(default) }
}

fn kmeans(args: &TableFunctionArgs, output: KMeansOutput) -> Result<LogicalPlan> {
    let (name, usage) = match output {
        KMeansOutput::Labels => {
            ("kmeans", "kmeans('relation', 'id', ['feature', …], k [, max_iterations, restarts, seed, tolerance])")
        }
        KMeansOutput::Centers => (
            "kmeans_centers",
            "kmeans_centers('relation', 'id', ['feature', …], k [, max_iterations, restarts, seed, tolerance])",
        ),
    };
    let given = Arguments::try_new(name, usage, args.exprs(), 4, 8)?;
    let input = given.relation(0, "relation", args.session())?;
    let default = KMeansOptions::new(count(&given, 3, "k", 1)?);
    let seed = match given.has(6) {
        true => given.at_least(6, "seed", 0, "an integer, 0 or more")?.unsigned_abs(),
        false => default.seed,
    };
    let options = KMeansOptions {
        max_iterations: count(&given, 4, "max_iterations", default.max_iterations)?,
        restarts: count(&given, 5, "restarts", default.restarts)?,
        seed,
        tolerance: number(&given, 7, "tolerance", default.tolerance)?,
        ..default
    };
    calls::kmeans(input, given.text(1, "id", COLUMN)?, &given.texts(2, "features")?, options, output)
}

fn kmeans_predict(args: &TableFunctionArgs) -> Result<LogicalPlan> {
    let usage = "kmeans_predict('relation', 'id', ['feature', …], 'centers')";
    let given = Arguments::try_new("kmeans_predict", usage, args.exprs(), 4, 4)?;
    let (rows, centers) =
        (given.relation(0, "relation", args.session())?, given.relation(3, "centers", args.session())?);
    calls::kmeans_predict(rows, centers, given.text(1, "id", COLUMN)?, &given.texts(2, "features")?)
}

fn logistic(args: &TableFunctionArgs, output: LogisticOutput) -> Result<LogicalPlan> {
    let (name, usage) = match output {
        LogisticOutput::Model => (
            "logistic_regression",
            "logistic_regression('relation', 'label', ['feature', …] [, max_iterations, tolerance])",
        ),
        LogisticOutput::Report => {
            ("logistic_report", "logistic_report('relation', 'label', ['feature', …] [, max_iterations, tolerance])")
        }
        LogisticOutput::Predictions => (
            "logistic_predict",
            "logistic_predict('relation', 'id', 'label', ['feature', …] [, max_iterations, tolerance])",
        ),
    };
    let ids = usize::from(output == LogisticOutput::Predictions);
    let given = Arguments::try_new(name, usage, args.exprs(), 3 + ids, 5 + ids)?;
    let input = given.relation(0, "relation", args.session())?;
    let id = (ids == 1).then(|| given.text(1, "id", COLUMN)).transpose()?;
    let default = LogisticOptions::default();
    let options = LogisticOptions {
        max_iterations: count(&given, 3 + ids, "max_iterations", default.max_iterations)?,
        tolerance: number(&given, 4 + ids, "tolerance", default.tolerance)?,
    };
    let (label, features) = (given.text(1 + ids, "label", COLUMN)?, given.texts(2 + ids, "features")?);
    calls::logistic(input, id, label, &features, options, output)
}

fn naive_bayes(args: &TableFunctionArgs) -> Result<LogicalPlan> {
    let usage = "naive_bayes('train', 'test', 'id', 'text', 'class' [, alpha, buckets])";
    let given = Arguments::try_new("naive_bayes", usage, args.exprs(), 5, 7)?;
    let (train, test) = (given.relation(0, "train", args.session())?, given.relation(1, "test", args.session())?);
    let default = NaiveBayesOptions::default();
    let buckets = match given.has(6) {
        true => given.within(6, "buckets", 1, i64::from(u32::MAX), "1 to 1073741824; 8388608 is the usual number")?,
        false => i64::from(default.buckets),
    };
    let options = NaiveBayesOptions {
        alpha: number(&given, 5, "alpha", default.alpha)?,
        buckets: u32::try_from(buckets).unwrap_or(default.buckets),
    };
    let [id, text, class] = [(2, "id"), (3, "text"), (4, "class")].map(|(index, role)| given.text(index, role, COLUMN));
    calls::naive_bayes(train, test, id?, text?, class?, options)
}

/// A word list as a table.
#[derive(Debug, Clone)]
pub(crate) struct WordTable {
    name: &'static str,
    usage: &'static str,
    table: Arc<MemTable>,
}

impl WordTable {
    /// `sentiment_words()`: word, sentiment.
    pub(crate) fn sentiment_words(lexicon: &Lexicon) -> Result<(&'static str, Self)> {
        let rows = lexicon.rows();
        let words = StringArray::from_iter_values(rows.iter().map(|(word, _)| word));
        let codes = StringArray::from_iter_values(rows.iter().map(|(_, sentiment)| sentiment.code()));
        Self::try_new("sentiment_words", "sentiment_words()", &["word", "sentiment"], vec![words, codes])
    }

    /// `companies()`: name.
    pub(crate) fn companies(companies: &Companies) -> Result<(&'static str, Self)> {
        Self::try_new("companies", "companies()", &["name"], vec![StringArray::from(companies.names())])
    }

    fn try_new(
        name: &'static str,
        usage: &'static str,
        names: &[&str],
        columns: Vec<StringArray>,
    ) -> Result<(&'static str, Self)> {
        let fields: Vec<Field> = names.iter().map(|name| Field::new(*name, DataType::Utf8, false)).collect();
        let schema = Arc::new(Schema::new(fields));
        let columns = columns.into_iter().map(|column| Arc::new(column) as _).collect();
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
        Ok((name, Self { name, usage, table: Arc::new(MemTable::try_new(schema, vec![vec![batch]])?) }))
    }
}

impl TableFunctionImpl for WordTable {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        Arguments::try_new(self.name, self.usage, args.exprs(), 0, 0)?;
        Ok(Arc::clone(&self.table) as Arc<dyn TableProvider>)
    }
}
