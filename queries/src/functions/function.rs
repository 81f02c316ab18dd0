//! The table functions: constants, columns and result schema of each.
//!
//! ```text
//!   Function::Sessionize { keys: 1, gap: 3600 }  +  columns [user, ts]  +  input (user, ts, page)
//!                                                                        ─►  (user, ts, page, session_id)
//! ```
//!
//! The logical plan, the physical plan and EXPLAIN describe a function by one such value.

use std::fmt;
use std::sync::Arc;

use millpond::datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use millpond::datafusion::common::{DFSchema, TableReference};
use millpond::datafusion::error::Result;

use super::FunctionError;
use super::ml::{KMeansOptions, LogisticOptions, NaiveBayesOptions};
use super::time;

/// A function of one or two relations with its constants; its columns are listed separately, in the order documented
/// here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
#[non_exhaustive]
pub enum Function {
    /// Columns: `keys` keys, time.
    Sessionize { keys: usize, gap: i64 },
    /// Columns: the groups, element.
    BasketPairs,
    /// Columns: `keys` keys, the order, anchor.
    LastBefore { keys: usize, n: usize, within: Option<i64> },
    /// Columns: id, the features.
    KMeans { options: KMeansOptions, output: KMeansOutput },
    /// Columns: id and the features of the rows; label and the features of the centers.
    KMeansPredict { features: usize },
    /// Columns: id (only for predictions), label, the features.
    Logistic { options: LogisticOptions, output: LogisticOutput },
    /// Columns: text and class of the training rows; id, text and class of the test rows.
    NaiveBayes { options: NaiveBayesOptions },
}

/// Result table of k-means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum KMeansOutput {
    /// id, label.
    Labels,
    /// label, size, the means, wssse.
    Centers,
}

/// Result table of logistic regression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum LogisticOutput {
    /// term, weight, mean, scale.
    Model,
    /// One row of counts and measures.
    Report,
    /// id, label, score, probability, prediction.
    Predictions,
}

/// A result column: its table, if it is an input column, and its field.
pub(crate) type OutputField = (Option<TableReference>, FieldRef);

impl Function {
    /// Name in SQL.
    pub fn sql_name(&self) -> &'static str {
        match self {
            Self::Sessionize { .. } => "sessionize",
            Self::BasketPairs => "basket_pairs",
            Self::LastBefore { .. } => "last_n_before",
            Self::KMeans { output: KMeansOutput::Labels, .. } => "kmeans",
            Self::KMeans { output: KMeansOutput::Centers, .. } => "kmeans_centers",
            Self::KMeansPredict { .. } => "kmeans_predict",
            Self::Logistic { output: LogisticOutput::Model, .. } => "logistic_regression",
            Self::Logistic { output: LogisticOutput::Report, .. } => "logistic_report",
            Self::Logistic { output: LogisticOutput::Predictions, .. } => "logistic_predict",
            Self::NaiveBayes { .. } => "naive_bayes",
        }
    }

    /// Name of the logical node in EXPLAIN.
    pub fn node_name(&self) -> &'static str {
        match self {
            Self::Sessionize { .. } => "Sessionize",
            Self::BasketPairs => "BasketPairs",
            Self::LastBefore { .. } => "LastBefore",
            Self::KMeans { .. } => "KMeans",
            Self::KMeansPredict { .. } => "KMeansPredict",
            Self::Logistic { .. } => "LogisticRegression",
            Self::NaiveBayes { .. } => "NaiveBayes",
        }
    }

    /// Name of the CPU operator in EXPLAIN.
    pub fn exec_name(&self) -> &'static str {
        match self {
            Self::Sessionize { .. } => "SessionizeExec",
            Self::BasketPairs => "BasketPairsExec",
            Self::LastBefore { .. } => "LastBeforeExec",
            Self::KMeans { .. } => "KMeansExec",
            Self::KMeansPredict { .. } => "KMeansPredictExec",
            Self::Logistic { .. } => "LogisticRegressionExec",
            Self::NaiveBayes { .. } => "NaiveBayesExec",
        }
    }

    /// Number of input relations.
    pub fn num_inputs(&self) -> usize {
        match self {
            Self::NaiveBayes { .. } | Self::KMeansPredict { .. } => 2,
            _ => 1,
        }
    }

    /// Index of the input that has the column at `position` of the list.
    pub fn input_of(&self, position: usize) -> usize {
        match self {
            Self::NaiveBayes { .. } => usize::from(position >= 2),
            Self::KMeansPredict { features } => usize::from(position > *features),
            _ => 0,
        }
    }

    /// Number of first columns that define the hash partition; zero: all rows must be in one partition.
    pub fn num_keys(&self, num_columns: usize) -> usize {
        match self {
            Self::Sessionize { keys, .. } | Self::LastBefore { keys, .. } => *keys,
            Self::BasketPairs => num_columns.saturating_sub(1),
            Self::KMeans { .. } | Self::KMeansPredict { .. } | Self::Logistic { .. } | Self::NaiveBayes { .. } => 0,
        }
    }

    /// Positions in the column list of the sort key of `input`.
    pub fn sorted_by(&self, input: usize, num_columns: usize) -> std::ops::Range<usize> {
        match self {
            // The anchor is not a key.
            Self::LastBefore { .. } => 0..num_columns - 1,
            Self::NaiveBayes { .. } if input == 0 => 0..0,
            Self::NaiveBayes { .. } => 2..3,
            Self::KMeansPredict { .. } if input == 0 => 0..0,
            Self::KMeansPredict { features } => features + 1..num_columns,
            // Machine learning sums in row order: sorting equal ids by their values makes the result independent of the
            // scan order.
            _ => 0..num_columns,
        }
    }

    /// Whether NULLs are first in the sort order. Where the result does not depend on it they are last, as in SQL.
    pub fn nulls_first(&self) -> bool {
        matches!(self, Self::LastBefore { .. })
    }

    /// Positions of the columns of `input` that the function reads if only `output_columns` of its result are used.
    pub(crate) fn reads(&self, input: usize, width: usize, columns: &[usize], output_columns: &[usize]) -> Vec<usize> {
        let mine = columns.iter().enumerate().filter(|(position, _)| self.input_of(*position) == input);
        let mut read: Vec<usize> = mine.map(|(_, column)| *column).collect();
        match self {
            Self::Sessionize { .. } => read.extend(output_columns.iter().filter(|column| **column < width)),
            Self::LastBefore { .. } => read.extend(
                output_columns.iter().filter(|column| **column < 2 * width).map(|column| column % width.max(1)),
            ),
            _ => {}
        }
        read.sort_unstable();
        read.dedup();
        read
    }

    /// Columns of the result.
    ///
    /// # Errors
    /// [`FunctionError`] if a column has a wrong type or a result name is taken.
    pub(crate) fn output(&self, inputs: &[&DFSchema], columns: &[usize]) -> Result<Vec<OutputField>> {
        let function = self.sql_name();
        let all = |input: usize| -> Vec<OutputField> {
            inputs[input].iter().map(|(table, field)| (table.cloned(), Arc::clone(field))).collect()
        };
        let column = |position: usize| -> OutputField {
            let (table, field) = inputs[self.input_of(position)].qualified_field(columns[position]);
            (table.cloned(), Arc::clone(field))
        };
        let last = columns.len() - 1;
        let check = |position: usize, role: &'static str, wanted: &'static str, fits: fn(&DataType) -> bool| {
            let (_, field) = column(position);
            match fits(field.data_type()) {
                true => Ok(()),
                false => Err(FunctionError::ColumnType {
                    function,
                    column: field.name().clone(),
                    role,
                    data_type: field.data_type().clone(),
                    wanted,
                }),
            }
        };
        let key = |position: usize, role: &'static str| check(position, role, "of a type that can be sorted", sortable);
        let number = |position: usize| check(position, "feature", "a number or BOOLEAN", numeric);
        let output = match self {
            Self::Sessionize { keys, .. } => {
                (0..*keys).try_for_each(|position| key(position, "key"))?;
                check(last, "time", time::WANTED, time::fits)?;
                let mut output = all(0);
                output.push(new("session_id", DataType::Int64, false));
                output
            }
            Self::BasketPairs => {
                (0..last).try_for_each(|position| key(position, "group"))?;
                key(last, "element")?;
                let mut output: Vec<OutputField> = (0..last).map(column).collect();
                let (_, element) = column(last);
                for end in ["_1", "_2"] {
                    output.push(new(&format!("{}{end}", element.name()), element.data_type().clone(), false));
                }
                output
            }
            Self::LastBefore { within, .. } => {
                let keys = self.num_keys(columns.len());
                (0..keys).try_for_each(|position| key(position, "key"))?;
                (keys..last).try_for_each(|position| key(position, "order"))?;
                if within.is_some() {
                    check(keys, "first order column with within", time::WANTED, time::fits)?;
                }
                check(last, "anchor", "BOOLEAN", |data_type| *data_type == DataType::Boolean)?;
                let mut output = all(0);
                let anchors: Vec<OutputField> = output.iter().map(|(_, field)| anchored(field)).collect();
                output.extend(anchors);
                output.push(new("steps_before", DataType::Int64, false));
                output
            }
            Self::KMeans { output, .. } => {
                key(0, "id")?;
                (1..columns.len()).try_for_each(number)?;
                match output {
                    KMeansOutput::Labels => vec![column(0), new("label", DataType::Int64, false)],
                    KMeansOutput::Centers => centers((1..columns.len()).map(column)),
                }
            }
            Self::KMeansPredict { features } => {
                key(0, "id")?;
                key(features + 1, "label")?;
                (1..columns.len()).filter(|position| *position != features + 1).try_for_each(number)?;
                vec![column(0), new("label", column(features + 1).1.data_type().clone(), true)]
            }
            Self::Logistic { output, .. } => {
                let label = usize::from(*output == LogisticOutput::Predictions);
                if label == 1 {
                    key(0, "id")?;
                }
                check(label, "label", "0 or 1, as BOOLEAN or a number", numeric)?;
                (label + 1..columns.len()).try_for_each(number)?;
                logistic_columns(*output, column)
            }
            Self::NaiveBayes { .. } => {
                [0, 3].into_iter().try_for_each(|position| check(position, "text", "TEXT", text))?;
                key(1, "class")?;
                key(2, "id")?;
                key(4, "class")?;
                let (_, class) = column(1);
                vec![column(2), column(4), new("prediction", class.data_type().clone(), true)]
            }
        };
        for (index, (_, field)) in output.iter().enumerate() {
            let from_input =
                matches!(self, Self::Sessionize { .. } | Self::LastBefore { .. }) && index < inputs[0].fields().len();
            // Two input columns may have one name under two tables; a new column must not have it, too.
            if !from_input && output.iter().filter(|(_, other)| other.name() == field.name()).count() > 1 {
                return Err(FunctionError::NameTaken { function, name: field.name().clone() }.into());
            }
        }
        Ok(output)
    }
}

/// Columns of cluster centers: one row for each label, the mean of each feature.
fn centers(features: impl Iterator<Item = OutputField>) -> Vec<OutputField> {
    let head = ["label", "size"].map(|name| new(name, DataType::Int64, false));
    let means = features.map(|(_, feature)| new(feature.name(), DataType::Float64, false));
    head.into_iter().chain(means).chain([new("wssse", DataType::Float64, false)]).collect()
}

/// Columns of a logistic regression's model, of its report, or of predictions, whose ID is the first input column.
fn logistic_columns(output: LogisticOutput, column: impl Fn(usize) -> OutputField) -> Vec<OutputField> {
    let double = |name: &str, nullable: bool| new(name, DataType::Float64, nullable);
    let count = |name: &str| new(name, DataType::Int64, false);
    match output {
        LogisticOutput::Model => vec![
            new("term", DataType::Utf8, false),
            double("weight", false),
            double("mean", true),
            double("scale", true),
        ],
        LogisticOutput::Report => {
            let counts = ["size", "positives", "tn", "fp", "fn", "tp"].map(count);
            let shares = ["precision", "auc", "accuracy", "loss"].map(|name| double(name, true));
            let end = [count("iterations"), new("converged", DataType::Boolean, false)];
            counts.into_iter().chain(shares).chain(end).collect()
        }
        LogisticOutput::Predictions => {
            vec![column(0), count("label"), double("score", false), double("probability", false), count("prediction")]
        }
    }
}

/// The constants, for EXPLAIN.
impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sessionize { gap, .. } => write!(f, "gap={gap}"),
            Self::BasketPairs | Self::KMeansPredict { .. } => Ok(()),
            Self::LastBefore { n, within, .. } => {
                write!(f, "n={n}")?;
                within.map_or(Ok(()), |within| write!(f, ", within={within}"))
            }
            Self::KMeans { options, output } => {
                write!(f, "{options}, output={}", if *output == KMeansOutput::Labels { "labels" } else { "centers" })
            }
            Self::Logistic { options, output } => {
                let output = match output {
                    LogisticOutput::Model => "model",
                    LogisticOutput::Report => "report",
                    LogisticOutput::Predictions => "predictions",
                };
                write!(f, "{options}, output={output}")
            }
            Self::NaiveBayes { options } => write!(f, "{options}"),
        }
    }
}

fn new(name: &str, data_type: DataType, nullable: bool) -> OutputField {
    (None, Arc::new(Field::new(name, data_type, nullable)))
}

fn anchored(field: &FieldRef) -> OutputField {
    (None, Arc::new(field.as_ref().clone().with_name(format!("anchor_{}", field.name()))))
}

/// Types that DataFusion can hash and sort. Nested types can be sorted, too, but are not needed as keys.
fn sortable(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => sortable(values),
        other => !other.is_nested() && *other != DataType::Null,
    }
}

fn numeric(data_type: &DataType) -> bool {
    data_type.is_numeric() || *data_type == DataType::Boolean
}

fn text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => text(values),
        other => matches!(other, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View),
    }
}
