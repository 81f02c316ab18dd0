//! RANGE frames by distance: the key's SQL type determines their ends, not the stored width of its values.

use crate::pipeline_rig::Rig;
use crate::window::{BIGINT, Ordered, Rows};
use millpond_kernels::codegen::ir::{Physical, Range};
use millpond_kernels::window::{Argument, Bound, Folding, Frame, FrameKey, Operation, Units};

const UNSIGNED: Range = Range { low: 0, high: u64::MAX as i128 };

/// Number of rows of each frame.
fn counts(
    ordered: &Ordered<'_>,
    (start, end): (Bound, Bound),
    (descending, limits): (bool, Option<Range>),
) -> Vec<u64> {
    let key = Some(FrameKey { column: ordered.key.clone(), descending, limits });
    let frame = Frame { units: Units::Range, start, end, key };
    let folding = Folding { argument: Argument { column: None, ranks: None }, operation: Operation::Count };
    let counts = ordered.written(|out| ordered.window().fold(&ordered.positions, &frame, &folding, None, out).unwrap());
    counts.into_iter().map(Option::unwrap).collect()
}

/// Rows of one partition, in order.
fn rows(keys: &[Option<i64>]) -> Rows {
    Rows::of(vec![0; keys.len()], keys.to_vec(), vec![None; keys.len()])
}

/// Number of rows of a frame by SQL's definition: NULLs are near each other only, and beyond any distance from other
/// values.
fn expected(of: &Rows, row: usize, (start, end): (Bound, Bound), (descending, nulls_first): (bool, bool)) -> u64 {
    const FAR: i128 = 1 << 100;
    let far = if nulls_first { -FAR } else { FAR };
    let place = |row: usize| match of.key[row] {
        None => far,
        Some(key) => i128::from(if descending { -key } else { key }),
    };
    let by = |by: u64| if of.key[row].is_none() { 0 } else { i128::from(by) };
    let inside = |other: &usize| {
        let from = place(*other) - place(row);
        let after = match start {
            Bound::Unbounded => true,
            Bound::Preceding(distance) => from >= -by(distance),
            Bound::Current => from >= 0,
            Bound::Following(distance) => from >= by(distance),
        };
        let before = match end {
            Bound::Unbounded => true,
            Bound::Preceding(distance) => from <= -by(distance),
            Bound::Current => from <= 0,
            Bound::Following(distance) => from <= by(distance),
        };
        after && before
    };
    (0..of.key.len()).filter(inside).count() as u64
}

#[test]
fn ranges_reach_beyond_the_width_in_which_a_key_lies() {
    let rig = Rig::new();
    let keys = [0, 1, 5, 50, 50, 100, 127];
    let stored =
        [Physical::I8, Physical::I16, Physical::I32, Physical::I64, Physical::U8, Physical::U16, Physical::U32];
    for (physical, descending, nulls_first) in stored
        .into_iter()
        .flat_map(|physical| [(false, false), (false, true), (true, false), (true, true)].map(|o| (physical, o.0, o.1)))
    {
        let mut all: Vec<Option<i64>> = keys.iter().copied().map(Some).collect();
        if descending {
            all.reverse();
        }
        let at = if nulls_first { 0 } else { all.len() };
        all.splice(at..at, [None, None]);
        let rows = rows(&all);
        let ordered = Ordered::stored(&rig, &rows, physical);
        for by in [0, 1, 49, 128, 300, 1 << 16, 1 << 31, 1 << 32, 2_592_000_000, 1 << 62] {
            let ends = [Bound::Preceding(by), Bound::Current, Bound::Following(by)];
            let mut frames = vec![(Bound::Unbounded, ends[0]), (ends[2], Bound::Unbounded)];
            for (at, start) in ends.iter().enumerate() {
                frames.extend(ends[at..].iter().map(|end| (*start, *end)));
            }
            for frame in frames {
                let found = counts(&ordered, frame, (descending, Some(BIGINT)));
                for (row, found) in found.into_iter().enumerate() {
                    let expected = expected(&rows, row, frame, (descending, nulls_first));
                    let order = (descending, nulls_first);
                    assert_eq!(found, expected, "row {row}, {frame:?} of {physical:?}, {order:?}");
                }
            }
        }
    }
}

/// As in DataFusion: beyond the limit of the type a frame extends to the end of the partition, including its NULLs.
#[test]
fn ranges_end_with_the_type() {
    let rig = Rig::new();
    let near = rows(&[Some(i64::MAX - 1), Some(i64::MAX), None]);
    let ordered = Ordered::new(&rig, &near);
    let ends = |by| (Bound::Current, Bound::Following(by));
    assert_eq!(counts(&ordered, ends(1), (false, Some(BIGINT))), [2, 2, 1]);
    assert_eq!(counts(&ordered, ends(2), (false, Some(BIGINT))), [3, 2, 1]);
    // A 32-bit key stored in 32 bits, and a 64-bit key stored in 32 bits.
    let near = rows(&[Some(i64::from(i32::MAX) - 1), Some(i64::from(i32::MAX)), None]);
    let ordered = Ordered::stored(&rig, &near, Physical::I32);
    assert_eq!(counts(&ordered, ends(2), (false, Physical::I32.bounds())), [3, 2, 1]);
    assert_eq!(counts(&ordered, ends(2), (false, Some(BIGINT))), [2, 1, 1]);
}

/// Distances of unsigned types end at zero, as in DataFusion, whatever the stored width; those of signed types continue
/// below.
#[test]
fn unsigned_distances_end_at_zero() {
    let rig = Rig::new();
    let few = rows(&[Some(0), Some(3), Some(10)]);
    let ends = (Bound::Preceding(20), Bound::Preceding(5));
    for physical in [Physical::U8, Physical::U32, Physical::I32, Physical::I64] {
        let ordered = Ordered::stored(&rig, &few, physical);
        assert_eq!(counts(&ordered, ends, (false, Some(UNSIGNED))), [1, 1, 2], "{physical:?}");
        assert_eq!(counts(&ordered, ends, (false, Some(BIGINT))), [0, 0, 2], "{physical:?}");
    }
}
