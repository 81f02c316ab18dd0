//! Machine learning on the device: k-means with predictions, logistic regression, and naive Bayes.
//!
//! ```text
//!   KMeansExec: [id, x, y], k=8                  DeviceKMeansExec: [id, x, y], k=8
//!     SortExec: id, x, y                           DeviceSortExec: id, x, y
//!
//!   rows ──► id │ label │ x │ y      dense columns of doubles; the label column is allocated in advance
//!                  ▲      └───┴─ launches: sums over rows ─► host: centers, weights ─► launches … ─┐
//!                  └────────────────────── last launch: writes the labels ◄────────────────────────┘
//! ```
//!
//! NULL     a NULL, NaN or infinity in a number, or a sum beyond the range of a double: the CPU takes over and reports
//!          the error.
//! Order    rows and additions are in the CPU's order, so that results are equal to the last bit.
//! Memory   the rows as doubles in one part; for a fit 12 bytes per row, for regression 16 and a copy of the rows;
//!          partial sums.
//! Waits    for the sums of each iteration. k-means: twice, twice per restart, and once per move of the centers.
//!          Regression: twice, and once per loss. Predictions: once at the end.
//! Texts    for naive Bayes see `bayes`, whose header has these entries.
//! Stands for KMeansExec, KMeansPredictExec, LogisticRegressionExec, NaiveBayesExec.

mod bayes;
mod fit;
mod lower;
mod predict;
mod rows;
mod table;

use std::sync::Arc;

use millpond::column::ColumnInfo;
use millpond::contract::{DeviceOperator, DeviceTree, Placed};
use millpond::datafusion::error::Result;
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::error::EngineError;
use millpond::error::reason::Reason;
use millpond::expr::Lowering;
use millpond::placement::Placing;
use millpond::program::contract::ToSegments;
use millpond::program::materialise::Materialise;
use millpond::program::segments::{Open, Origin, Segments};

use self::bayes::{JudgeSink, TrainSink};
use self::fit::LearnSink;
use self::lower::Written;
use self::predict::{CentersSink, PredictSink};
use super::device::node::DeviceRelationExec;
use super::{Function, LogisticOutput, RelationExec};

/// Maximum number of sums per launch; k-means needs the number of columns plus two per cluster.
const MAX_SUMS: usize = 4096;

/// Whether this is a machine learning function.
fn learns(function: &Function) -> bool {
    matches!(
        function,
        Function::KMeans { .. }
            | Function::KMeansPredict { .. }
            | Function::Logistic { .. }
            | Function::NaiveBayes { .. }
    )
}

/// Placement of machine learning functions, and their segments.
#[derive(Debug)]
pub(crate) struct Learn;

impl DeviceOperator for Learn {
    fn name(&self) -> &'static str {
        "functions that learn"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        let relation = node.downcast_ref::<RelationExec>()?;
        learns(relation.function()).then(|| place(node, relation, to))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        DeviceRelationExec::of(node, learns).map(|_| true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        DeviceRelationExec::of(node, learns).is_some()
    }
}

/// Places all inputs on the device, or keeps the node on the CPU.
fn place(node: &Arc<dyn ExecutionPlan>, relation: &RelationExec, to: &Placing<'_>) -> Result<Placed> {
    let place = |input| to.after_limit(to.in_order(|| to.place(input))?);
    let inputs = node.children().into_iter().map(place).collect::<Result<Vec<_>>>()?;
    match judge(node, relation, &inputs, to) {
        Ok(tree) => Ok(Placed::Device(tree)),
        Err(reason) => to.stay(node, inputs, Some(reason)),
    }
}

/// The device form of `node` over `inputs`, or the reason against it.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    relation: &RelationExec,
    inputs: &[Placed],
    to: &Placing<'_>,
) -> std::result::Result<DeviceTree, Reason> {
    check_function(relation)?;
    let rows = rows_input(relation.function());
    let mut plans = vec![];
    let mut columns = vec![];
    for (number, input) in inputs.iter().enumerate() {
        let tree = to.tree(input)?;
        let written = Written { cpu: relation.clone(), input: number };
        let outputs = given(&written, &tree, to)?;
        if number == rows {
            columns = outputs;
        }
        plans.push(in_order(node, number, tree, to)?.plan);
    }
    Ok(DeviceTree {
        plan: Arc::new(DeviceRelationExec::new(
            relation.clone(),
            plans,
            relation.properties().output_ordering().cloned(),
        )),
        cpu: Arc::clone(node),
        columns,
        row_limit: None,
        sorted: node.properties().output_ordering().is_some(),
        aggregated: true,
    })
}

/// Index of the input whose rows are in the result.
fn rows_input(function: &Function) -> usize {
    usize::from(matches!(function, Function::NaiveBayes { .. }))
}

/// Lowered form of the columns that this input contributes.
fn given(written: &Written, tree: &DeviceTree, to: &Placing<'_>) -> std::result::Result<Vec<ColumnInfo>, Reason> {
    let mut dictionaries = to.lowering();
    let mut lowering = Lowering::new(&tree.columns, &mut dictionaries);
    let scope = lowering.scope();
    let (_, columns) = match (written.function(), written.input) {
        (Function::NaiveBayes { .. }, 0) => bayes::trained(written, &mut lowering, &scope, &mut vec![])?,
        (Function::NaiveBayes { .. }, _) => bayes::judged(written, &mut lowering, &scope)?,
        _ => written.lower(&mut lowering, &scope)?,
    };
    Ok(columns)
}

/// An input in the required order: sorted here unless its subtree is.
fn in_order(
    node: &Arc<dyn ExecutionPlan>,
    number: usize,
    tree: DeviceTree,
    to: &Placing<'_>,
) -> std::result::Result<DeviceTree, Reason> {
    let required = node.required_input_ordering().swap_remove(number);
    let order = required.and_then(|required| {
        let keys = required.into_single().into_iter().map(Into::into);
        millpond::datafusion::physical_expr::LexOrdering::new(keys)
    });
    match order {
        Some(order) if !tree.sorted => to.sort(node.children()[number], tree, &order, None),
        _ => Ok(tree),
    }
}

/// Reason why the function itself has no device form.
fn check_function(relation: &RelationExec) -> std::result::Result<(), Reason> {
    let function = relation.function();
    let refused = |why: String| Err(Reason::ExprUnsupported { expr: function.sql_name().to_string(), why });
    if let Function::NaiveBayes { options } = function {
        return options.validate().or_else(|error| refused(error.to_string()));
    }
    let features = Written::num_features(function, relation.columns().len());
    if features == 0 {
        return refused("it has no features".to_string());
    }
    let valid = match function {
        Function::KMeans { options, .. } => options.validate(),
        Function::Logistic { options, .. } => options.validate(),
        _ => Ok(()),
    };
    if let Err(error) = valid {
        return refused(error.to_string());
    }
    let sums = match function {
        Function::KMeans { options, .. } => options.clusters.saturating_mul(features + 2),
        Function::Logistic { output: LogisticOutput::Model, .. } => {
            return refused("the names of its terms are made on the CPU".to_string());
        }
        _ => 2 * (features + 2),
    };
    match sums <= MAX_SUMS {
        true => Ok(()),
        false => refused(format!("it adds up {sums} sums, and the device up to {MAX_SUMS}")),
    }
}

impl ToSegments for Learn {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<std::result::Result<Open, EngineError>> {
        DeviceRelationExec::of(node.as_ref(), learns).map(|learn| cut(learn, into))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        Some(DeviceRelationExec::of(a, learns)?.computes_same(DeviceRelationExec::of(b, learns)?))
    }
}

/// Cuts into a sink that learns. Predictions need two: one sink for the model's input, and one for the rows.
fn cut(learn: &DeviceRelationExec, into: &mut Segments<'_>) -> std::result::Result<Open, EngineError> {
    let rows = rows_input(learn.function());
    let missing = || EngineError::internal("rows to learn from");
    let (own, other) = (learn.inputs().get(rows).ok_or_else(missing)?, learn.inputs().get(1 - rows));
    let written = |input| Written { cpu: learn.cpu().clone(), input };
    let Some(other) = other else {
        let open = into.open(own, false)?;
        return Ok(Open::reading(into.close(open, LearnSink { written: written(rows) })));
    };
    let open = into.open(other, false)?;
    let known = match learn.function() {
        Function::NaiveBayes { .. } => into.close(open, TrainSink { written: written(1 - rows) }),
        _ => into.close(open, CentersSink { written: written(1 - rows) }),
    };
    let open = into.open(own, false)?;
    // A source may run concurrently with that of the other input; a segment that reads another runs after all earlier
    // ones.
    let open = match open.origin {
        Origin::Source(_) => Open::reading(into.close(open, Materialise::default())),
        _ => open,
    };
    let written = written(rows);
    Ok(Open::reading(match learn.function() {
        Function::NaiveBayes { .. } => into.close(open, JudgeSink { written, model: known }),
        _ => into.close(open, PredictSink { written, centers: known }),
    }))
}
