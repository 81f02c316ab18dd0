//! Frame functions other than folds: medians, percentiles, bivariate statistics and texts, against loops over each
//! frame's rows.

use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::window::{
    Bivariate, Column, Concatenated, Frame, Out, Place, Statistic, bivariate_bytes, counted_bytes, matrix_bytes,
    matrix_scratch_bytes, ranks_bytes, scratch_bytes,
};
use millpond_memory::DeviceBuffer;

use crate::pipeline_rig::Rig;
use crate::window::{Ordered, Rows, Scratch, bits, bytes, frames};

/// Row numbers sorted by value and number, NULLs last.
fn sorted(rig: &Rig, values: &[Option<i64>]) -> DeviceBuffer {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_by_key(|row| (values[*row as usize].is_none(), values[*row as usize], *row));
    let bytes: Vec<u8> = order.iter().flat_map(|row| row.to_le_bytes()).collect();
    rig.upload(&bytes, &rig.stream)
}

/// Percentile of sorted values, as in DataFusion.
fn percentile(values: &[i64], share: f64) -> f64 {
    let place = share * (values.len() - 1) as f64;
    let (low, high) = (values[place.floor() as usize] as f64, values[place.ceil() as usize] as f64);
    let weight = ((place - place.floor()) * 1e6).trunc() / 1e6;
    if place.floor() == place.ceil() { low } else { low + (high - low) * weight }
}

#[test]
fn medians_and_percentiles_of_frames() {
    let rig = Rig::new();
    // One level, and several; a full word, and a full tile; values with many repetitions.
    for (length, partitions, keys, values) in [
        (1, 1, 1, 9),
        (2, 1, 1, 9),
        (32, 2, 9, 3),
        (33, 2, 9, 900),
        (150, 3, 30, 50),
        (1024, 1, 40, 7),
        (2100, 2, 500, 1000),
    ] {
        for nulls in [true, false] {
            let mut rows = Rows::new(length, partitions, keys);
            rows.value
                .iter_mut()
                .for_each(|value| *value = value.or((!nulls).then_some(-7)).map(|value| value % values));
            let ordered = Ordered::new(&rig, &rows);
            let (window, count) = (ordered.window(), length as u64);
            let (lists, scratch) = (rig.buffer(counted_bytes(count)), rig.buffer(scratch_bytes(count)));
            let validity = ordered.value.validity.as_ref().unwrap();
            let counted = nulls.then(|| window.count_valid(validity, lists.as_view(), scratch.as_view()).unwrap());
            let (words, ranks) = (rig.buffer(matrix_bytes(count)), rig.buffer(ranks_bytes(count)));
            let scratch = rig.buffer(matrix_scratch_bytes(count));
            let (order, views) = (sorted(&rig, &rows.value), (words.as_view(), ranks.as_view(), scratch.as_view()));
            let matrix = window.matrix(order.as_view(), counted.as_ref(), views.0, views.1, views.2).unwrap();
            let doubles = bytes(rows.value.iter().map(|value| (value.unwrap_or(77) as f64).to_bits() as i64));
            let doubles = rig.upload(&doubles, &rig.stream);
            let doubles =
                Column { values: doubles.as_view().clone(), physical: Physical::F64, ..ordered.value.clone() };
            let few = if length > 1000 { 7 } else { 1 };
            for frame in frames(&ordered).iter().step_by(few) {
                let pick = |of: &Column, place| {
                    ordered.written(|out| {
                        let out = Out { physical: of.physical, ..out.clone() };
                        window.pick(&ordered.positions, frame, of, &matrix, place, &out).unwrap();
                    })
                };
                let medians = pick(&ordered.value, Place::Median);
                let shares = [0.0, 0.3, 1.0].map(|share| (share, pick(&doubles, Place::Percentile(share))));
                for row in 0..length {
                    let mut inside: Vec<i64> =
                        rows.frame(row, frame).iter().filter_map(|row| rows.value[*row]).collect();
                    inside.sort_unstable();
                    let place = format!("{row} of {length}, {nulls}: {frame:?}");
                    let middle = |of: &[i64]| (of[(of.len() - 1) / 2] + of[of.len() / 2]) / 2;
                    let expected = (!inside.is_empty()).then(|| middle(&inside));
                    assert_eq!(medians[row].map(|bits| bits as i64), expected, "{place}");
                    for (share, found) in &shares {
                        let expected = (!inside.is_empty()).then(|| percentile(&inside, *share));
                        assert_eq!(found[row].map(f64::from_bits), expected, "{share} {place}");
                    }
                }
            }
        }
    }
}

/// Sums beyond 128 bits, and 32-bit floats.
#[test]
fn the_middle_of_two_values() {
    let rig = Rig::new();
    let rows = Rows::new(2, 1, 1);
    let ordered = Ordered::new(&rig, &rows);
    let window = ordered.window();
    let median = |physical: Physical, bytes: Vec<u8>| {
        let (words, ranks) = (rig.buffer(matrix_bytes(2)), rig.buffer(ranks_bytes(2)));
        let scratch = rig.buffer(matrix_scratch_bytes(2));
        let order = sorted(&rig, &[Some(0), Some(1)]);
        let matrix = window.matrix(order.as_view(), None, words.as_view(), ranks.as_view(), scratch.as_view()).unwrap();
        let of = Column { values: rig.upload(&bytes, &rig.stream).as_view().clone(), validity: None, physical };
        let (values, validity) = (rig.buffer(32), rig.buffer(4));
        let out = Out { values: values.as_view().clone(), validity: Some(validity.as_view().clone()), physical };
        window.pick(&ordered.positions, &Frame::whole(), &of, &matrix, Place::Median, &out).unwrap();
        rig.download(&values)[..physical.width() as usize].to_vec()
    };
    for (a, b) in [
        (i128::MIN, i128::MIN + 1),
        (i128::MAX - 2, i128::MAX),
        (i128::MAX - 1, i128::MAX),
        (i128::MIN, i128::MAX),
        (-4, -1),
        (-1, 0),
        (-3, 4),
        (3, 4),
    ] {
        // Halves plus the remainders, which cannot overflow.
        let expected = if (a < 0) == (b < 0) { a / 2 + b / 2 + (a % 2 + b % 2) / 2 } else { (a + b) / 2 };
        let found = median(Physical::I128, [a.to_le_bytes(), b.to_le_bytes()].concat());
        assert_eq!(i128::from_le_bytes(found.try_into().unwrap()), expected, "{a} {b}");
    }
    for (a, b) in
        [(1.0f32, 2.0f32), (0.1, 0.2), (f32::MAX, f32::MAX), (1e-45, 1e-45), (-0.0, 0.0), (1.0, f32::INFINITY)]
    {
        let found = median(Physical::F32, [a.to_le_bytes(), b.to_le_bytes()].concat());
        assert_eq!(f32::from_le_bytes(found.try_into().unwrap()), (a + b) / 2.0, "{a} {b}");
    }
}

/// A column of doubles.
fn doubles(rig: &Rig, values: &[Option<f64>]) -> Column {
    let numbers = bytes(values.iter().map(|value| value.unwrap_or(f64::NAN).to_bits() as i64));
    let validity = rig.upload(&bits(values.iter().map(Option::is_some)), &rig.stream);
    let values = rig.upload(&numbers, &rig.stream);
    Column { values: values.as_view().clone(), validity: Some(validity.as_view().clone()), physical: Physical::F64 }
}

/// A statistic of pairs, by its definition.
fn statistic(of: Statistic, pairs: &[(f64, f64)]) -> Option<f64> {
    let n = pairs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
    let (xx, yy) = (sum(&|pair| (pair.0 - x).powi(2)), sum(&|pair| (pair.1 - y).powi(2)));
    let xy = sum(&|pair| (pair.0 - x) * (pair.1 - y));
    let (some, several) = (!pairs.is_empty(), pairs.len() > 1);
    let (value, there) = match of {
        Statistic::CovarPop => (xy / n, some),
        Statistic::CovarSamp => (xy / (n - 1.0), several),
        Statistic::Corr => (xy / (xx * yy).sqrt(), several && xx > 0.0 && yy > 0.0),
        Statistic::RegrSlope => (xy / xx, several && xx > 0.0),
        Statistic::RegrIntercept => (y - xy / xx * x, several && xx > 0.0),
        Statistic::RegrCount => (n, true),
        Statistic::RegrR2 => (xy * xy / (xx * yy), several && xx > 0.0 && yy > 0.0),
        Statistic::RegrAvgX => (x, some),
        Statistic::RegrAvgY => (y, some),
        Statistic::RegrSxx => (xx, some),
        Statistic::RegrSyy => (yy, some),
        Statistic::RegrSxy => (xy, some),
    };
    there.then_some(value)
}

#[test]
fn statistics_of_pairs() {
    use Statistic::*;
    let rig = Rig::new();
    for (length, partitions, keys) in [(1, 1, 1), (33, 2, 9), (150, 3, 30)] {
        let rows = Rows::new(length, partitions, keys);
        let ordered = Ordered::new(&rig, &rows);
        let window = ordered.window();
        // Multiples of one half, so that equal values have a sum of squares of exactly 0 on both sides.
        let x: Vec<Option<f64>> =
            rows.value.iter().map(|value| value.map(|value| (value % 8) as f64 / 2.0 + 1e6)).collect();
        let y: Vec<Option<f64>> =
            (0..length).map(|row| rows.key[row].map(|key| key as f64 * 4.0 - (row % 5) as f64)).collect();
        let pairs = Bivariate { x: doubles(&rig, &x), y: doubles(&rig, &y) };
        let tree = rig.buffer(bivariate_bytes(length as u64));
        window.grow_bivariate(&pairs, tree.as_view()).unwrap();
        for frame in frames(&ordered) {
            for of in [
                CovarPop,
                CovarSamp,
                Corr,
                RegrSlope,
                RegrIntercept,
                RegrCount,
                RegrR2,
                RegrAvgX,
                RegrAvgY,
                RegrSxx,
                RegrSyy,
                RegrSxy,
            ] {
                let found = ordered.written(|out| {
                    window.fold_bivariate(&ordered.positions, &frame, &pairs, (of, tree.as_view()), out).unwrap();
                });
                for (row, found) in found.iter().enumerate() {
                    let inside: Vec<(f64, f64)> =
                        rows.frame(row, &frame).iter().filter_map(|row| Some((x[*row]?, y[*row]?))).collect();
                    let place = format!("{of:?} {row} of {length}: {frame:?}");
                    let found = found.map(|bits| if of == RegrCount { bits as f64 } else { f64::from_bits(bits) });
                    match (found, statistic(of, &inside)) {
                        (None, None) => {}
                        (Some(found), Some(expected)) => {
                            let most = if of == RegrIntercept { 1e-3 } else { 1e-6 };
                            assert!(
                                (found - expected).abs() <= most * expected.abs().max(1.0),
                                "{place}: {found} {expected}"
                            );
                        }
                        other => panic!("{place}: {other:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn texts_of_frames() {
    let rig = Rig::new();
    for (length, partitions, keys) in [(1, 1, 1), (33, 2, 9), (150, 3, 30)] {
        let rows = Rows::new(length, partitions, keys);
        let ordered = Ordered::new(&rig, &rows);
        let window = ordered.window();
        let text =
            |row: usize| rows.value[row].map(|value| "abcdefgh"[..value.unsigned_abs() as usize % 6].to_string());
        for between in ["", ", "] {
            let (mut whole, mut ends) = (String::new(), vec![]);
            for row in 0..length {
                whole.extend(text(row).map(|text| format!("{between}{text}")));
                ends.push(whole.len() as i64);
            }
            let dense = rig.upload(format!("{whole:8}").as_bytes(), &rig.stream);
            let view =
                rig.upload(&bytes([whole.len() as i64, dense.as_view().address().0 as i64].into_iter()), &rig.stream);
            let ends = rig.upload(&bytes(ends.into_iter()), &rig.stream);
            let (lists, scratch) = (rig.buffer(counted_bytes(length as u64)), rig.buffer(scratch_bytes(length as u64)));
            let validity = ordered.value.validity.as_ref().unwrap();
            let counted = window.count_valid(validity, lists.as_view(), scratch.as_view()).unwrap();
            let texts = Concatenated {
                whole: view.as_view(),
                bytes: dense.as_view(),
                ends: ends.as_view(),
                separator_bytes: between.len() as u32,
            };
            for frame in frames(&ordered) {
                let (values, bits) = (rig.buffer(16 * length as u64), rig.buffer(length.div_ceil(32) as u64 * 4));
                let validity = Some(bits.as_view().clone());
                let out = Out { values: values.as_view().clone(), validity, physical: Physical::View };
                window.concat(&ordered.positions, &frame, Some(&counted), &texts, &out).unwrap();
                let (values, bits) = (rig.download(&values), rig.download(&bits));
                for row in 0..length {
                    let inside: Vec<String> = rows.frame(row, &frame).into_iter().filter_map(text).collect();
                    let expected = (!inside.is_empty()).then(|| inside.join(between));
                    let view = &values[16 * row..16 * row + 16];
                    let (size, rest) = (u32::from_le_bytes(view[..4].try_into().unwrap()) as usize, &view[8..]);
                    let found = (bits[row / 8] >> (row % 8) & 1 == 1).then(|| match size {
                        0..=12 => String::from_utf8(view[4..4 + size].to_vec()).unwrap(),
                        _ => {
                            let at = u64::from_le_bytes(rest.try_into().unwrap()) - dense.as_view().address().0;
                            let found = &whole[at as usize..at as usize + size];
                            assert_eq!(found.as_bytes()[..4], view[4..8], "the first bytes are in the view, too");
                            found.to_string()
                        }
                    });
                    assert_eq!(found, expected, "{row} of {length}: {frame:?}");
                }
            }
        }
    }
}
