//! Exact float sums: against Shewchuk's partial sums, at edge values, in any order.

use millpond_kernels::codegen::ir::*;

use super::pipeline_rig::*;

/// The exact sum, rounded once: non-overlapping partials (Shewchuk 1997), then the rounding of Python's `math.fsum`.
fn exact(values: &[f64]) -> f64 {
    let mut partials: Vec<f64> = Vec::new();
    for &value in values {
        let mut x = value;
        let mut kept = Vec::new();
        for &y in &partials {
            let (large, small) = if x.abs() < y.abs() { (y, x) } else { (x, y) };
            let high = large + small;
            let low = small - (high - large);
            if low != 0.0 {
                kept.push(low);
            }
            x = high;
        }
        kept.push(x);
        partials = kept;
    }
    let Some(mut high) = partials.pop() else { return 0.0 };
    let mut low = 0.0;
    while let Some(next) = partials.pop() {
        let before = high;
        high = before + next;
        low = next - (high - before);
        if low != 0.0 {
            break;
        }
    }
    // Half to even; the lower partials break the tie.
    if let Some(&below) = partials.last()
        && ((low < 0.0 && below < 0.0) || (low > 0.0 && below > 0.0))
    {
        let twice = low * 2.0;
        let up = high + twice;
        if up - high == twice {
            high = up;
        }
    }
    high
}

fn sum_of(values: Vec<Cell>, keys: Option<Vec<i32>>, regime: Option<Regime>) -> Case {
    let key = column(Repr::I32, keys.clone().unwrap_or_else(|| vec![0; values.len()])).ranged(0, 2);
    let values = stored(Physical::F64, Ty::new(Repr::F64).nullable(true), None, values);
    let mut case = Case::new(vec![key, values]);
    let x = case.column(1);
    let list: &[u32] = if keys.is_some() { &[0] } else { &[] };
    case.group(list, regime, |_| vec![all(Aggregate::SumExact(x)), all(Aggregate::CountStar)])
}

fn total(rig: &Rig, values: &[f64]) -> f64 {
    match rig.aggregate(&sum_of(cells(values.iter().copied()), None, None))[0][0] {
        Cell::F64(bits) => f64::from_bits(bits),
        other => panic!("{other:?} is no float"),
    }
}

#[test]
fn nothing_is_lost_before_the_one_rounding() {
    let rig = Rig::new();
    let (tiny, least) = (f64::from_bits(1), f64::MIN_POSITIVE);
    let cases: Vec<Vec<f64>> = vec![
        vec![1e300, 1.0, -1e300],
        vec![tiny, tiny, tiny],
        vec![least, -tiny],
        vec![least, tiny, -least],
        vec![f64::MAX, -f64::MAX, tiny],
        vec![1.0, f64::EPSILON / 2.0],
        vec![1.0, f64::EPSILON / 2.0, tiny],
        vec![1.0 + f64::EPSILON, f64::EPSILON / 2.0],
        vec![-1.0, -f64::EPSILON / 2.0, -tiny],
        vec![f64::MAX, f64::MAX * f64::EPSILON / 8.0],
        vec![0.1; 10],
        vec![-0.1; 10],
        vec![1.0, -1.0],
        vec![2f64.powi(52), 0.5, 0.25],
        vec![2f64.powi(31), 2f64.powi(32), 2f64.powi(-33)],
    ];
    for values in cases {
        assert_eq!(total(&rig, &values), exact(&values), "{values:?}");
    }
    assert_eq!(total(&rig, &[f64::MAX, f64::MAX]), f64::INFINITY);
    assert_eq!(total(&rig, &[f64::MIN, f64::MIN]), f64::NEG_INFINITY);
    assert_eq!(total(&rig, &[1.0, f64::INFINITY]), f64::INFINITY);
    assert_eq!(total(&rig, &[f64::NEG_INFINITY, 1.0]), f64::NEG_INFINITY);
    // The negative NaN results from infinities, and from NaNs of which any is negative.
    let nans = [
        (vec![f64::INFINITY, f64::NEG_INFINITY], 0xfff8_0000_0000_0000_u64),
        (vec![1.0, f64::NAN, f64::INFINITY, f64::NAN], 0x7ff8_0000_0000_0000),
        (vec![1.0, -f64::NAN], 0xfff8_0000_0000_0000),
        (vec![f64::NAN, -f64::NAN], 0xfff8_0000_0000_0000),
    ];
    for (values, bits) in nans {
        assert_eq!(total(&rig, &values).to_bits(), bits, "{values:?}");
    }
}

#[test]
fn random_sums_are_exact_in_any_order_and_every_table() {
    let rig = Rig::new();
    for (round, spread) in [(0, 4), (1, 200), (2, 1000)] {
        let mut random = Random(round);
        let mut values: Vec<f64> = (0..600)
            .map(|_| {
                let bits = random.next();
                let exponent = 1023 + (random.below(2 * spread) as i64 - spread as i64);
                f64::from_bits((bits & !(0x7ff << 52)) | (exponent as u64) << 52)
            })
            .collect();
        let keys: Vec<i32> = (0..600).map(|row| row % 3).collect();
        for regime in [None, Some(Regime::Direct), Some(Regime::Hash)] {
            let grouped = regime.map(|_| keys.clone());
            let mut cells = cells(values.iter().copied());
            cells[7] = Cell::Null;
            let actual = rig.aggregate(&sum_of(cells, grouped, regime).fed(&[200, 400]));
            let expected: Vec<Cell> = (0..if regime.is_some() { 3 } else { 1 })
                .map(|key| {
                    let own = (0..600).filter(|&row| row != 7 && (regime.is_none() || keys[row] == key));
                    exact(&own.map(|row| values[row]).collect::<Vec<_>>()).into()
                })
                .collect();
            let sums: Vec<Cell> = actual.iter().map(|row| row[row.len() - 2]).collect();
            assert_eq!(sums, expected, "spread {spread}, {regime:?}");
        }
        let before = total(&rig, &values);
        values.reverse();
        assert_eq!(total(&rig, &values).to_bits(), before.to_bits());
    }
}
