//! Percentiles of DataFusion's t-digests, if they are a function of the sorted values alone.
//!
//!   values of a group   1   4   9   9   12      apart: one centroid each, of weight 1, in order, for any batches
//!   q = 0.35                    ▲               rank 0.35 · 5 = 1.75: value 1, three quarters into its width
//!   its width                ├─────┤            half of the way from the value before to the value behind
//!   4 + (0.75 − 0.5) · (9 − 1) / 2 = 5
//!
//! Apart    a merge begins a new centroid where the weight up to a value passes a limit, a share of all weights. Both
//!          grow with the number of values, so that with up to [`most_apart`] values no merge joins two, and no merge
//!          of digests does.
//! Equal    if all values of a group are one number, the result is this number, for any count: with up to 24 binary
//!          digits no sum of a digest rounds.
//! Undecided   larger groups; and percentiles that need a digest's least or greatest value if that is NaN, which
//!             batches keep or skip, or if it is a zero and the group has the other zero: the error flag is raised, and
//!             the CPU takes over.
//! After    DataFusion's `TDigest`: `merge_sorted_f64`, `merge_digests`, `estimate_quantile`.

use millpond_kernels::abi::MAX_EXTENT_ROWS;
use millpond_kernels::codegen::ir::{
    Arithmetic, Comparison, FloatFunction, Graph, GraphError, Node, NodeId, Overflow, Range, Repr,
};

/// Number of centroids of a digest if the query gives none.
pub(crate) const USUAL_SIZE: u64 = 100;

/// Maximum number of centroids: a digest with more is treated as if it had this many.
const LARGEST_SIZE: u64 = 1 << 16;

/// Maximum number of equal values: with 24 binary digits each, their sum has no more than 53.
const MOST_EQUAL: i64 = 1 << 29;

/// Bits that [`zeros`] sets for a group: for -0.0, for 0.0.
const ZEROS: [i128; 2] = [1, 2];

/// Number of values of a group that a digest of `max_size` centroids certainly keeps apart.
pub(crate) fn most_apart(max_size: u64) -> u64 {
    let mut most = max_size.min(LARGEST_SIZE);
    let mut before = 1;
    while before < most {
        // Merged digests use each limit one value later, the first limit twice.
        let share = share(before, max_size).max(share((before - 1).max(1), max_size));
        while before < most && (before + 1) as f64 <= share * most as f64 {
            most -= 1;
        }
        before += 1;
    }
    most
}

/// Share of all weights up to which centroid number `k` of `max_size` may take values.
fn share(k: u64, max_size: u64) -> f64 {
    let part = k as f64 / max_size as f64;
    match part >= 0.5 {
        true => {
            let base = 1.0 - part;
            1.0 - 2.0 * base * base
        }
        false => 2.0 * part * part,
    }
}

/// True for floats that were converted from integers: none of them is -0.0 or NaN.
pub(super) fn is_whole(graph: &Graph, value: NodeId) -> bool {
    matches!(graph.node(value), Node::Convert { of, .. } if graph.ty(*of).repr.is_integer())
}

/// Marks a value that is a zero; an OR over a group's marks shows which zeros it has.
pub(super) fn zeros(graph: &mut Graph, value: NodeId) -> Result<NodeId, GraphError> {
    let key = graph.float_key(value)?;
    let repr = graph.ty(key).repr;
    let mut branches = vec![];
    // In the total order the number of -0.0 is the one before that of 0.0.
    for (number, mark) in [-1, 0].into_iter().zip(ZEROS) {
        let zero = graph.integer(number, repr);
        branches.push((graph.compare(Comparison::Equal, key, zero)?, graph.integer(mark, Repr::U8)));
    }
    let nothing = graph.integer(0, Repr::U8);
    graph.case(branches, Some(nothing))
}

/// A group, and the parameters of its estimate.
pub(super) struct Asked {
    /// Number of values (`I64`), NULL if there are none.
    pub count: NodeId,
    /// `F64`, from 0 to 1.
    pub percentile: NodeId,
    /// Maximum number of values that are kept apart (`I64`).
    pub most: NodeId,
    /// Marks of the group's [`zeros`]; `None` if it has neither -0.0 nor NaN.
    pub zeros: Option<NodeId>,
    /// Type of the values and of the result.
    pub repr: Repr,
}

/// The estimate of a digest. `at` returns the value at a position (`I64`) in the group's order.
pub(super) fn estimate(
    graph: &mut Graph,
    asked: &Asked,
    at: &dyn Fn(&mut Graph, NodeId) -> Result<NodeId, GraphError>,
) -> Result<NodeId, GraphError> {
    let (zero, one) = (graph.integer(0, Repr::I64), graph.integer(1, Repr::I64));
    let last = graph.arithmetic(Arithmetic::Subtract, asked.count, one, Overflow::Wrap)?;
    let count = graph.convert(asked.count, Repr::F64, Overflow::Wrap)?;
    let rank = graph.arithmetic(Arithmetic::Multiply, asked.percentile, count, Overflow::Wrap)?;
    let place = graph.float_function(FloatFunction::Floor, rank)?;
    let place = graph.convert(place, Repr::I64, Overflow::Null)?;
    let place = graph.assume(place, Range { low: 0, high: MAX_EXTENT_ROWS.into() });
    let place = lesser(graph, place, last)?;
    let before = graph.arithmetic(Arithmetic::Subtract, place, one, Overflow::Wrap)?;
    let is_first = graph.compare(Comparison::Equal, place, zero)?;
    let before = graph.case(vec![(is_first, zero)], Some(before))?;
    let behind = graph.arithmetic(Arithmetic::Add, place, one, Overflow::Wrap)?;
    let behind = lesser(graph, behind, last)?;
    let is_last = graph.compare(Comparison::Equal, place, last)?;

    let double = |graph: &mut Graph, place| {
        let value = at(graph, place)?;
        graph.convert(value, Repr::F64, Overflow::Wrap)
    };
    let (low, own, high) = (double(graph, before)?, double(graph, place)?, double(graph, behind)?);
    let (low_mean, own_mean, high_mean) = (mean(graph, low)?, mean(graph, own)?, mean(graph, high)?);
    let width = width(graph, (low_mean, high_mean), (is_first, is_last))?;
    let place = graph.convert(place, Repr::F64, Overflow::Wrap)?;
    let into = graph.arithmetic(Arithmetic::Subtract, rank, place, Overflow::Wrap)?;
    let half = graph.float(0.5, Repr::F64);
    let into = graph.arithmetic(Arithmetic::Subtract, into, half, Overflow::Wrap)?;
    let step = graph.arithmetic(Arithmetic::Multiply, into, width, Overflow::Wrap)?;
    let value = graph.arithmetic(Arithmetic::Add, own_mean, step, Overflow::Wrap)?;

    // At its ends a digest has its least and greatest value unchanged, elsewhere means.
    let least = graph.case(vec![(is_first, low)], Some(low_mean))?;
    let greatest = graph.case(vec![(is_last, high)], Some(high_mean))?;
    let within = within(graph, value, (low_mean, least), (high_mean, greatest))?;
    let (nothing, everything) = (graph.float(0.0, Repr::F64), graph.float(1.0, Repr::F64));
    let is_least = graph.compare(Comparison::LessEqual, asked.percentile, nothing)?;
    let is_greatest = graph.compare(Comparison::GreaterEqual, asked.percentile, everything)?;
    let result = graph.case(vec![(is_greatest, high), (is_least, low)], Some(within))?;
    let result = graph.convert(result, asked.repr, Overflow::Wrap)?;
    let (first, last) = (at(graph, zero)?, at(graph, last)?);
    let known = is_known(graph, asked, (first, is_first), (last, is_last))?;
    graph.decided(result, known)
}

fn lesser(graph: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
    let less = graph.compare(Comparison::Less, a, b)?;
    graph.case(vec![(less, a)], Some(b))
}

/// The mean of a value's centroid: the value was added to 0.0, so the mean is never -0.0.
fn mean(graph: &mut Graph, value: NodeId) -> Result<NodeId, GraphError> {
    let (is_zero, zero) = (graph.is_zero(value)?, graph.float(0.0, Repr::F64));
    graph.case(vec![(is_zero, zero)], Some(value))
}

/// Width of a centroid between the means around it; at an end the distance to its only neighbor; without neighbors 0.
fn width(
    graph: &mut Graph,
    (low, high): (NodeId, NodeId),
    (is_first, is_last): (NodeId, NodeId),
) -> Result<NodeId, GraphError> {
    let gap = graph.arithmetic(Arithmetic::Subtract, high, low, Overflow::Wrap)?;
    let two = graph.float(2.0, Repr::F64);
    let half = graph.arithmetic(Arithmetic::Divide, gap, two, Overflow::Wrap)?;
    let alone = graph.and(is_first, is_last)?;
    let nothing = graph.float(0.0, Repr::F64);
    graph.case(vec![(alone, nothing), (is_first, gap), (is_last, gap)], Some(half))
}

/// `value` within bounds: compared with `low` and `high`, and replaced by `least` and `greatest`. A bound that is the
/// opposite infinity is ignored; NaN, which infinities make, stays.
fn within(
    graph: &mut Graph,
    value: NodeId,
    (low, least): (NodeId, NodeId),
    (high, greatest): (NodeId, NodeId),
) -> Result<NodeId, GraphError> {
    let is_nan = graph.is_nan(value)?;
    let (most, fewest) = (graph.float(f64::INFINITY, Repr::F64), graph.float(f64::NEG_INFINITY, Repr::F64));
    let (is_below, bounds) =
        (graph.compare(Comparison::Less, value, low)?, graph.compare(Comparison::Less, low, most)?);
    let is_below = graph.and(is_below, bounds)?;
    let (is_above, bounds) =
        (graph.compare(Comparison::Greater, value, high)?, graph.compare(Comparison::Greater, high, fewest)?);
    let is_above = graph.and(is_above, bounds)?;
    graph.case(vec![(is_nan, value), (is_below, least), (is_above, greatest)], Some(value))
}

/// Whether the estimate equals DataFusion's for any batches. `first` and `last` are the group's end values, and whether
/// the estimate uses them.
fn is_known(
    graph: &mut Graph,
    asked: &Asked,
    first: (NodeId, NodeId),
    last: (NodeId, NodeId),
) -> Result<NodeId, GraphError> {
    let few = graph.compare(Comparison::LessEqual, asked.count, asked.most)?;
    let equal = is_one_number(graph, asked.count, first.0, last.0)?;
    let mut known = graph.or(few, equal)?;
    let Some(zeros) = asked.zeros else { return Ok(known) };
    let all = graph.integer(ZEROS.iter().sum(), Repr::U8);
    let both = graph.compare(Comparison::Equal, zeros, all)?;
    for (value, is_asked) in [first, last] {
        let (is_nan, is_zero) = (graph.is_nan(value)?, graph.is_zero(value)?);
        let either = graph.and(both, is_zero)?;
        let open = graph.or(is_nan, either)?;
        let open = graph.and(is_asked, open)?;
        let settled = graph.not(open)?;
        known = graph.and(known, settled)?;
    }
    Ok(known)
}

/// Whether all values are one number that the sums of a digest do not round.
fn is_one_number(graph: &mut Graph, count: NodeId, first: NodeId, last: NodeId) -> Result<NodeId, GraphError> {
    let repr = graph.ty(first).repr;
    let (most, fewest) = (graph.float(f64::INFINITY, repr), graph.float(f64::NEG_INFINITY, repr));
    let short = graph.convert(first, Repr::F32, Overflow::Wrap)?;
    let short = graph.convert(short, repr, Overflow::Wrap)?;
    let bound = graph.integer(MOST_EQUAL.into(), Repr::I64);
    let conditions = [
        graph.compare(Comparison::Equal, first, last)?,
        graph.compare(Comparison::Equal, first, short)?,
        graph.compare(Comparison::Less, first, most)?,
        graph.compare(Comparison::Greater, first, fewest)?,
        graph.compare(Comparison::LessEqual, count, bound)?,
    ];
    let mut is_one = graph.boolean(true);
    for condition in conditions {
        is_one = graph.and(is_one, condition)?;
    }
    Ok(is_one)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{Array, ArrayRef, Float64Array};
    use datafusion::arrow::datatypes::DataType;
    use datafusion::common::ScalarValue;
    use datafusion::functions_aggregate::approx_percentile_cont::ApproxPercentileAccumulator;
    use datafusion::logical_expr::Accumulator;

    use super::*;

    /// Pseudorandom numbers.
    struct Draws(u64);

    impl Draws {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) as usize) % n.max(1)
        }
    }

    fn digest(percentile: f64, max_size: u64) -> ApproxPercentileAccumulator {
        ApproxPercentileAccumulator::new_with_max_size(percentile, DataType::Float64, max_size as usize)
    }

    fn add(to: &mut ApproxPercentileAccumulator, values: &[f64]) {
        let values: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        to.update_batch(&[values]).expect("floats");
    }

    fn merge(into: &mut ApproxPercentileAccumulator, mut from: Vec<ApproxPercentileAccumulator>) {
        let states: Vec<Vec<ScalarValue>> = from.iter_mut().map(|digest| digest.state().expect("a state")).collect();
        let column = |at: usize| ScalarValue::iter_to_array(states.iter().map(|state| state[at].clone()));
        let columns: Vec<ArrayRef> = (0..6).map(|at| column(at).expect("one type")).collect();
        into.merge_batch(&columns).expect("states");
    }

    /// Result of DataFusion's digest for `values`, in an order, in batches and in partial digests that `draws` chooses.
    fn datafusions(values: &[f64], percentile: f64, max_size: u64, draws: &mut Draws) -> f64 {
        let mut values = values.to_vec();
        for last in (1..values.len()).rev() {
            values.swap(last, draws.below(last + 1));
        }
        let batch = 1 + draws.below(values.len());
        let mut parts: Vec<_> = (0..1 + draws.below(5)).map(|_| digest(percentile, max_size)).collect();
        let partitions = parts.len();
        for rows in values.chunks(batch) {
            add(&mut parts[draws.below(partitions)], rows);
        }
        if draws.below(4) == 0 && parts.len() == 1 {
            return result(&mut parts[0]);
        }
        let mut whole = digest(percentile, max_size);
        while !parts.is_empty() {
            let some = parts.split_off(parts.len() - 1 - draws.below(parts.len()));
            merge(&mut whole, some);
        }
        result(&mut whole)
    }

    fn result(digest: &mut ApproxPercentileAccumulator) -> f64 {
        match digest.evaluate().expect("a digest") {
            ScalarValue::Float64(Some(value)) => value,
            other => panic!("{other}"),
        }
    }

    /// The formula of [`estimate`] over sorted values.
    fn ours(values: &[f64], percentile: f64) -> f64 {
        let last = values.len() - 1;
        let rank = percentile * values.len() as f64;
        let place = (rank.floor() as usize).min(last);
        let mean = |value: f64| if value == 0.0 { 0.0 } else { value };
        let low = if place == 0 { values[0] } else { mean(values[place - 1]) };
        let high = if place == last { values[last] } else { mean(values[place + 1]) };
        let width = match (place == 0, place == last) {
            (true, true) => 0.0,
            (false, false) => (high - low) / 2.0,
            _ => high - low,
        };
        let value = mean(values[place]) + (rank - place as f64 - 0.5) * width;
        match percentile {
            1.0.. => high,
            ..=0.0 => low,
            _ if value < low && low < f64::INFINITY => low,
            _ if value > high && high > f64::NEG_INFINITY => high,
            _ => value,
        }
    }

    /// Result of [`is_known`] for groups whose values are kept apart.
    fn is_decided(values: &[f64], percentile: f64) -> bool {
        let last = values.len() - 1;
        let place = ((percentile * values.len() as f64).floor() as usize).min(last);
        let zeros = |sign| values.iter().any(|value| *value == 0.0 && value.is_sign_negative() == sign);
        let open = |value: f64| value.is_nan() || value == 0.0 && zeros(true) && zeros(false);
        !(place == 0 && open(values[0]) || place == last && open(values[last]))
    }

    const PERCENTILES: [f64; 9] = [0.0, 0.001, 0.05, 0.25, 0.5, 0.500001, 0.73, 0.999, 1.0];

    #[test]
    fn a_hundred_centroids_keep_86_values_apart() {
        assert_eq!([1, 2, 3, 4, 10, 100, 1000].map(most_apart), [1, 2, 3, 4, 9, 86, 854]);
        assert!(most_apart(u64::MAX) == LARGEST_SIZE);
    }

    #[test]
    fn no_order_and_no_batches_change_what_is_kept_apart() {
        let mut draws = Draws(7);
        for max_size in [1, 2, 3, 4, 5, 7, 10, 16, 33, 64, 99, 100, 101, 250, 1000] {
            let most = most_apart(max_size) as usize;
            for size in [1, 2, 3, most.saturating_sub(1), most] {
                let size = size.clamp(1, most);
                for round in 0..12 {
                    // Many equal values, or few; sometimes infinities.
                    let range = [3, 50, 100_000][round % 3];
                    let mut values: Vec<f64> = (0..size).map(|_| draws.below(range) as f64 / 7.0 - 5.0).collect();
                    if round == 5 {
                        let at = draws.below(size);
                        values[at] = f64::INFINITY;
                        values[size / 2] = f64::NEG_INFINITY;
                    }
                    if round > 8 {
                        let odd = [f64::NAN, -f64::NAN, 0.0, -0.0, 0.0, f64::NAN][draws.below(6)..].to_vec();
                        odd.into_iter().for_each(|value| values[draws.below(size)] = value);
                    }
                    if values.iter().all(|value| value.is_nan() || *value == 0.0) {
                        // DataFusion may panic where -0.0 is its greatest value and 0.0 its least.
                        values = vec![1.5; size];
                    }
                    values.sort_by(f64::total_cmp);
                    for percentile in PERCENTILES.into_iter().filter(|p| is_decided(&values, *p)) {
                        let expected = datafusions(&values, percentile, max_size, &mut draws);
                        let got = ours(&values, percentile);
                        assert_eq!(
                            got.to_bits() & !(u64::from(got.is_nan()) << 63),
                            expected.to_bits() & !(u64::from(expected.is_nan()) << 63),
                            "{percentile} of {values:?} by {max_size}: {got} and {expected}"
                        );
                    }
                }
            }
        }
    }

    /// The bound is tight: with one value more, a single batch already merges two.
    #[test]
    fn one_value_more_is_too_many() {
        for max_size in [1, 2, 3, 4, 5, 10, 50, 100, 101, 1000] {
            let values: Vec<f64> = (0..most_apart(max_size) + 1).map(|n| (n * n) as f64).collect();
            let mut all = digest(0.5, max_size);
            add(&mut all, &values);
            let state = all.state().expect("a state");
            let ScalarValue::List(centroids) = &state[5] else { panic!("{state:?}") };
            assert!(centroids.values().len() / 2 < values.len(), "{max_size} centroids");
        }
    }

    #[test]
    fn equal_numbers_of_24_digits_stay_what_they_are() {
        let mut draws = Draws(3);
        for value in [0.0, 1.0, -3.25, 1e30_f32 as f64, 0.1_f32 as f64, f64::from(f32::MAX), f64::from(1e-45_f32)] {
            for (size, max_size) in [(87, 100), (200, 100), (5000, 100), (40, 3), (2, 1), (999, 10)] {
                for percentile in PERCENTILES {
                    let got = datafusions(&vec![value; size], percentile, max_size, &mut draws);
                    assert_eq!(got.to_bits(), value.to_bits(), "{percentile} of {size} times {value} by {max_size}");
                }
            }
        }
    }
}
