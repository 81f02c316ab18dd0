//! Variance, covariance, correlation and regression: second moments about an anchor.
//!
//! ```text
//!   rows     a = some x of the group       n = count   d = Σ (x − a)   q = Σ (x − a)²   p = Σ (x − a)(y − b)
//!   groups   mean = a + d / n              m2 = q − d² / n              c = p − d e / n
//! ```
//!
//! The anchor is one of the group's own values, so a large mean beside a small spread costs no digits.
//!
//! NULL     a pair counts where both are valid; statistics of too few rows are NULL, as DataFusion's.
//! Order    not needed; last bits depend on it.
//! NaN      among the values makes a statistic NaN, with an unspecified sign.

use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use millpond_kernels::codegen::ir::{
    Accumulator, Aggregate, AggregateSpec, Arithmetic, Comparison, FloatFunction, Graph, GraphError, NodeId, Overflow,
    Repr,
};

use crate::error::reason::Reason;
use crate::expr::{Lowering, Scope, Value};
use crate::operator::aggregate::call::{Call, unsupported};

/// Statistic that is computed from the moments.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Statistic {
    Variance { sample: bool, root: bool },
    Covariance { sample: bool },
    Correlation,
    Slope,
    Intercept,
    RSquared,
    MeanX,
    MeanY,
    SquaresX,
    SquaresY,
    Products,
}

/// The accumulators of one column: its anchor, its deviations and their squares.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    anchor: usize,
    sum: usize,
    squares: usize,
}

/// The accumulators of one statistic, by position. For one column, `y` and `products` repeat `x`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Moments {
    statistic: Statistic,
    grouped: bool,
    count: usize,
    x: Axis,
    y: Axis,
    products: usize,
}

/// A statistic of one column.
pub(crate) fn single(
    lowering: &mut Lowering<'_>,
    spec: &mut AggregateSpec,
    function: &AggregateFunctionExpr,
    value: &Value,
    filter: Option<NodeId>,
) -> Result<Moments, Reason> {
    let statistic = match function.fun().name() {
        "var" => Statistic::Variance { sample: true, root: false },
        "var_pop" => Statistic::Variance { sample: false, root: false },
        "stddev" => Statistic::Variance { sample: true, root: true },
        "stddev_pop" => Statistic::Variance { sample: false, root: true },
        _ => return Err(unsupported(function, "this function is not lowered")),
    };
    let x = value.node;
    accumulate(lowering, spec, function, statistic, (x, x, x), filter)
}

/// A statistic of pairs: `f(y, x)`.
pub(crate) fn pair(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    call: &Call,
    filter: Option<NodeId>,
) -> Result<Moments, Reason> {
    let function = call.function.as_ref();
    let statistic = match function.fun().name() {
        "covar_samp" => Statistic::Covariance { sample: true },
        "covar_pop" => Statistic::Covariance { sample: false },
        "corr" => Statistic::Correlation,
        "regr_slope" => Statistic::Slope,
        "regr_intercept" => Statistic::Intercept,
        "regr_r2" => Statistic::RSquared,
        "regr_avgx" => Statistic::MeanX,
        "regr_avgy" => Statistic::MeanY,
        "regr_sxx" => Statistic::SquaresX,
        "regr_syy" => Statistic::SquaresY,
        "regr_sxy" => Statistic::Products,
        _ => return Err(unsupported(function, "this function is not lowered")),
    };
    let nodes = pair_nodes(lowering, scope, call)?;
    accumulate(lowering, spec, function, statistic, nodes, filter)
}

/// The accumulator of the number of pairs.
pub(crate) fn pair_count(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    call: &Call,
    filter: Option<NodeId>,
) -> Result<usize, Reason> {
    let (x, y, both) = pair_nodes(lowering, scope, call)?;
    check_floats(lowering, &call.function, [x, y])?;
    Ok(spec.accumulate(&lowering.graph, Accumulator { aggregate: Aggregate::Count(both), filter }))
}

/// The arguments x and y of a statistic of pairs, and a node that is valid if both are.
fn pair_nodes(lowering: &mut Lowering<'_>, scope: &Scope, call: &Call) -> Result<(NodeId, NodeId, NodeId), Reason> {
    let function = call.function.as_ref();
    let [y, x] = call.arguments.as_slice() else {
        return Err(unsupported(function, "it takes two arguments on the device"));
    };
    let (y, x) = (lowering.lower(y, scope)?.node, lowering.lower(x, scope)?.node);
    let graph = &mut lowering.graph;
    let both = match (graph.ty(x).nullable, graph.ty(y).nullable) {
        (_, false) => x,
        (false, true) => y,
        (true, true) => {
            graph.arithmetic(Arithmetic::Add, x, y, Overflow::Wrap).map_err(|e| unsupported(function, e.to_string()))?
        }
    };
    Ok((x, y, both))
}

fn check_floats(lowering: &Lowering<'_>, function: &AggregateFunctionExpr, nodes: [NodeId; 2]) -> Result<(), Reason> {
    match nodes.iter().all(|node| lowering.graph.ty(*node).repr.is_float()) {
        true => Ok(()),
        false => Err(unsupported(function, "it takes floats on the device")),
    }
}

/// True if the query has groups. Arguments of DISTINCT, and the keys behind them, are the device's own.
fn is_grouped(spec: &AggregateSpec) -> bool {
    spec.bitwise.first().map_or(!spec.keys.is_empty(), |first_argument| *first_argument > 0)
}

fn accumulate(
    lowering: &mut Lowering<'_>,
    spec: &mut AggregateSpec,
    function: &AggregateFunctionExpr,
    statistic: Statistic,
    (x, y, among): (NodeId, NodeId, NodeId),
    filter: Option<NodeId>,
) -> Result<Moments, Reason> {
    check_floats(lowering, function, [x, y])?;
    let grouped = is_grouped(spec);
    let mut add = |aggregate| spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
    let count = add(Aggregate::Count(among));
    let of = statistic;
    let wants_x = !matches!(of, Statistic::MeanY | Statistic::SquaresY);
    let wants_y = !matches!(of, Statistic::MeanX | Statistic::SquaresX | Statistic::Variance { .. });
    let anchored = matches!(of, Statistic::MeanX | Statistic::MeanY | Statistic::Intercept | Statistic::Correlation);
    let squared =
        !matches!(of, Statistic::MeanX | Statistic::MeanY | Statistic::Covariance { .. } | Statistic::Products);
    let mut axis = |of: NodeId, wanted: bool| Axis {
        anchor: if wanted && anchored { add(Aggregate::Anchor { of, among }) } else { count },
        sum: if wanted { add(Aggregate::Deviation { of, among }) } else { count },
        squares: if wanted && squared { add(Aggregate::CoDeviation { left: of, right: of, among }) } else { count },
    };
    let x_axis = axis(x, wants_x);
    let y_axis = axis(y, wants_y);
    let products = match wants_x && wants_y {
        true => add(Aggregate::CoDeviation { left: x, right: y, among }),
        false => count,
    };
    Ok(Moments { statistic, grouped, count, x: x_axis, y: y_axis, products })
}

impl Moments {
    /// The statistic; `accumulator` returns an accumulator's node.
    pub(crate) fn finish(
        &self,
        graph: &mut Graph,
        accumulator: &impl Fn(usize) -> Result<NodeId, Reason>,
    ) -> Result<Result<NodeId, GraphError>, Reason> {
        let axis = |axis: &Axis| Ok((accumulator(axis.anchor)?, accumulator(axis.sum)?, accumulator(axis.squares)?));
        let nodes = Nodes {
            count: accumulator(self.count)?,
            x: axis(&self.x)?,
            y: axis(&self.y)?,
            products: accumulator(self.products)?,
        };
        Ok(self.statistic(graph, &nodes))
    }

    fn statistic(&self, graph: &mut Graph, nodes: &Nodes) -> Result<NodeId, GraphError> {
        let g = &mut Floats(graph);
        let n = g.0.convert(nodes.count, Repr::F64, Overflow::Wrap)?;
        let zero = g.0.float(0.0, Repr::F64);
        let one = g.0.float(1.0, Repr::F64);
        let some = g.0.compare(Comparison::GreaterEqual, n, one)?;
        let several = g.0.compare(Comparison::Greater, n, one)?;
        let (x, y) = (nodes.x, nodes.y);
        Ok(match self.statistic {
            Statistic::Variance { sample, root } => {
                let m2 = g.about_mean(x.2, x.1, x.1, n)?;
                let m2 = g.at_least_zero(m2)?;
                let degrees = if sample { g.subtract(n, one)? } else { n };
                let mut value = g.divide(m2, degrees)?;
                if root {
                    value = g.0.float_function(FloatFunction::Sqrt, value)?;
                }
                match (sample, self.grouped) {
                    (true, _) => g.0.case(vec![(several, value)], None)?,
                    (false, true) => g.0.case(vec![(some, value)], None)?,
                    // Without groups DataFusion does not inspect a single value, which may not be finite.
                    (false, false) => g.0.case(vec![(several, value), (some, zero)], None)?,
                }
            }
            Statistic::Covariance { sample } => {
                let products = g.about_mean(nodes.products, x.1, y.1, n)?;
                let degrees = if sample { g.subtract(n, one)? } else { n };
                let value = g.divide(products, degrees)?;
                g.0.case(vec![(if sample { several } else { some }, value)], None)?
            }
            Statistic::Correlation => {
                let (mean_x, mean_y) = (g.mean(x.0, x.1, n)?, g.mean(y.0, y.1, n)?);
                let (no_x, no_y) = (g.is_nan(mean_x)?, g.is_nan(mean_y)?);
                let (neither, either) = (g.0.and(no_x, no_y)?, g.0.or(no_x, no_y)?);
                let (xx, yy) = (g.about_mean(x.2, x.1, x.1, n)?, g.about_mean(y.2, y.1, y.1, n)?);
                let (xx, yy) = (g.at_least_zero(xx)?, g.at_least_zero(yy)?);
                let constant = g.either_is_zero(xx, yy)?;
                let products = g.about_mean(nodes.products, x.1, y.1, n)?;
                let (root_x, root_y) =
                    (g.0.float_function(FloatFunction::Sqrt, xx)?, g.0.float_function(FloatFunction::Sqrt, yy)?);
                let value = g.divide(products, root_x)?;
                let value = g.divide(value, root_y)?;
                let (nan, null) = (g.0.float(f64::NAN, Repr::F64), g.0.null(Repr::F64));
                let few = g.0.not(several)?;
                g.0.case(vec![(neither, nan), (either, null), (few, null), (constant, null)], Some(value))?
            }
            Statistic::Slope | Statistic::Intercept => {
                let xx = g.about_mean(x.2, x.1, x.1, n)?;
                let xx = g.at_least_zero(xx)?;
                let products = g.about_mean(nodes.products, x.1, y.1, n)?;
                let slope = g.divide(products, xx)?;
                let value = match self.statistic {
                    Statistic::Slope => slope,
                    _ => {
                        let (mean_x, mean_y) = (g.mean(x.0, x.1, n)?, g.mean(y.0, y.1, n)?);
                        let rise = g.multiply(slope, mean_x)?;
                        g.subtract(mean_y, rise)?
                    }
                };
                let constant = g.0.compare(Comparison::Equal, xx, zero)?;
                let null = g.0.null(Repr::F64);
                let few = g.0.not(several)?;
                g.0.case(vec![(few, null), (constant, null)], Some(value))?
            }
            Statistic::RSquared => {
                let (xx, yy) = (g.about_mean(x.2, x.1, x.1, n)?, g.about_mean(y.2, y.1, y.1, n)?);
                let (xx, yy) = (g.at_least_zero(xx)?, g.at_least_zero(yy)?);
                let products = g.about_mean(nodes.products, x.1, y.1, n)?;
                let constant = g.either_is_zero(xx, yy)?;
                let (over_x, over_y) = (g.divide(products, xx)?, g.divide(products, yy)?);
                let value = g.multiply(over_x, over_y)?;
                let null = g.0.null(Repr::F64);
                let few = g.0.not(several)?;
                g.0.case(vec![(few, null), (constant, null)], Some(value))?
            }
            Statistic::MeanX | Statistic::MeanY => {
                let of = if self.statistic == Statistic::MeanX { x } else { y };
                let value = g.mean(of.0, of.1, n)?;
                g.0.case(vec![(some, value)], None)?
            }
            Statistic::SquaresX | Statistic::SquaresY => {
                let of = if self.statistic == Statistic::SquaresX { x } else { y };
                let value = g.about_mean(of.2, of.1, of.1, n)?;
                let value = g.at_least_zero(value)?;
                g.0.case(vec![(some, value)], None)?
            }
            Statistic::Products => {
                let value = g.about_mean(nodes.products, x.1, y.1, n)?;
                g.0.case(vec![(some, value)], None)?
            }
        })
    }
}

/// The accumulators as nodes; an axis is anchor, sum and squares.
struct Nodes {
    count: NodeId,
    x: (NodeId, NodeId, NodeId),
    y: (NodeId, NodeId, NodeId),
    products: NodeId,
}

/// Arithmetic of 64-bit floats in a graph.
struct Floats<'g>(&'g mut Graph);

impl Floats<'_> {
    fn subtract(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        self.0.arithmetic(Arithmetic::Subtract, a, b, Overflow::Wrap)
    }

    fn multiply(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        self.0.arithmetic(Arithmetic::Multiply, a, b, Overflow::Wrap)
    }

    fn divide(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        self.0.arithmetic(Arithmetic::Divide, a, b, Overflow::Wrap)
    }

    /// The sum of products about the means, from the sum about the anchors.
    fn about_mean(&mut self, products: NodeId, a: NodeId, b: NodeId, n: NodeId) -> Result<NodeId, GraphError> {
        let mean = self.divide(b, n)?;
        let both = self.multiply(a, mean)?;
        self.subtract(products, both)
    }

    fn mean(&mut self, anchor: NodeId, sum: NodeId, n: NodeId) -> Result<NodeId, GraphError> {
        let offset = self.divide(sum, n)?;
        self.0.arithmetic(Arithmetic::Add, anchor, offset, Overflow::Wrap)
    }

    /// Replaces a sum of squares that rounding has left slightly below zero.
    fn at_least_zero(&mut self, squares: NodeId) -> Result<NodeId, GraphError> {
        let zero = self.0.float(0.0, Repr::F64);
        let lowest = self.0.float(f64::NEG_INFINITY, Repr::F64);
        // A NaN with its sign bit set sorts below everything, and stays.
        let below = self.0.compare(Comparison::Less, squares, zero)?;
        let number = self.0.compare(Comparison::GreaterEqual, squares, lowest)?;
        let below = self.0.and(below, number)?;
        self.0.case(vec![(below, zero)], Some(squares))
    }

    fn either_is_zero(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        let zero = self.0.float(0.0, Repr::F64);
        let (a, b) = (self.0.compare(Comparison::Equal, a, zero)?, self.0.compare(Comparison::Equal, b, zero)?);
        self.0.or(a, b)
    }

    fn is_nan(&mut self, value: NodeId) -> Result<NodeId, GraphError> {
        let (low, high) = (self.0.float(f64::NEG_INFINITY, Repr::F64), self.0.float(f64::INFINITY, Repr::F64));
        let (below, above) =
            (self.0.compare(Comparison::Less, value, low)?, self.0.compare(Comparison::Greater, value, high)?);
        self.0.or(below, above)
    }
}
