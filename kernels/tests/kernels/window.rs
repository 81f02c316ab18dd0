//! Windows against loops over each row's partition and frame in plain Rust.

use std::collections::BTreeSet;

use crate::pipeline_rig::Rig;
use millpond_kernels::Images;
use millpond_kernels::codegen::ir::{Physical, Range};
use millpond_kernels::pipeline::ExtentRows;
use millpond_kernels::sort::SortKey;
use millpond_kernels::window::{
    Argument, Bound, Column, Folding, Frame, FrameKey, Operation, Out, Positions, Ranking, Side, Taken, Units, Window,
    changes_bytes, counted_bytes, firsts_bytes, near_bytes, positions_bytes, scratch_bytes, spans_bytes, tree_bytes,
};
use millpond_memory::{DeviceBuffer, DeviceView};

/// Lengths around a word, a tile (1,024), two levels of states; several tiles.
const LENGTHS: [usize; 9] = [1, 7, 31, 32, 33, 64, 1023, 1025, 3000];

/// Range of a 64-bit integer type.
pub const BIGINT: Range = Range { low: i64::MIN as i128, high: i64::MAX as i128 };

/// Rows in order: partition, order key (NULLS LAST), value.
pub struct Rows {
    part: Vec<i64>,
    pub key: Vec<Option<i64>>,
    pub value: Vec<Option<i64>>,
    places: Vec<Place>,
}

/// For a row: its partition, its peers, and its group number.
pub type Place = ((usize, usize), (usize, usize), i64);

impl Rows {
    pub fn new(count: usize, partitions: u64, keys: u64) -> Rows {
        let mut draw = 0x9e37_79b9_u64;
        let mut next = |below: u64| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (draw >> 33) % below
        };
        let mut rows: Vec<(i64, bool, i64)> = (0..count)
            .map(|_| (next(partitions) as i64, next(9) == 0, next(keys) as i64))
            .map(|(part, null, key)| (part, null, if null { 0 } else { key }))
            .collect();
        rows.sort_unstable();
        let value = (0..count).map(|row| (next(4) > 0).then(|| next(1000) as i64 - 500 + row as i64 % 3)).collect();
        let key = rows.iter().map(|(_, null, key)| (!null).then_some(*key)).collect();
        Rows::of(rows.iter().map(|row| row.0).collect(), key, value)
    }

    /// Takes rows that are already in order.
    pub fn of(part: Vec<i64>, key: Vec<Option<i64>>, value: Vec<Option<i64>>) -> Rows {
        let mut rows = Rows { part, key, value, places: vec![] };
        for row in 0..rows.len() {
            let last = rows.places.last().map(|place| (place.1.1, place.2));
            let (partition, peers) = (rows.find(row, |_| None), rows.find(row, |row| rows.key[row]));
            let group = match last {
                Some((end, group)) if end > row => group,
                Some((_, group)) => group + 1,
                None => 0,
            };
            rows.places.push((partition, peers, group));
        }
        rows
    }

    fn len(&self) -> usize {
        self.part.len()
    }

    /// Rows around `row` in its partition with an equal `key`.
    fn find(&self, row: usize, key: impl Fn(usize) -> Option<i64>) -> (usize, usize) {
        let same = |other: &usize| self.part[*other] == self.part[row] && key(*other) == key(row);
        ((0..row).rev().take_while(same).last().unwrap_or(row), (row..self.len()).take_while(same).last().unwrap() + 1)
    }

    pub fn partition(&self, row: usize) -> (usize, usize) {
        self.places[row].0
    }

    pub fn peers(&self, row: usize) -> (usize, usize) {
        self.places[row].1
    }

    /// Rows of a frame, by a test of each row.
    pub fn frame(&self, row: usize, frame: &Frame) -> Vec<usize> {
        let (first, end) = self.partition(row);
        let peers = self.peers(row);
        let group = |row: usize| self.places[row].2;
        let from = |other: usize| match frame.units {
            Units::Rows => other as i64 - row as i64,
            Units::Groups => group(other) - group(row),
            // NULLs are only near each other, and last.
            Units::Range => match (self.key[other], self.key[row]) {
                (Some(a), Some(b)) => a - b,
                (None, None) => 0,
                (None, Some(_)) => 1 << 40,
                (Some(_), None) => -(1 << 40),
            },
        };
        let inside = |other: &usize| {
            let after = match frame.start {
                Bound::Unbounded => true,
                Bound::Current if frame.units != Units::Rows => *other >= peers.0,
                Bound::Current => *other >= row,
                Bound::Preceding(by) => from(*other) >= if self.ends(row, frame) { 0 } else { -(by as i64) },
                Bound::Following(by) => from(*other) >= if self.ends(row, frame) { 0 } else { by as i64 },
            };
            let before = match frame.end {
                Bound::Unbounded => true,
                Bound::Current if frame.units != Units::Rows => *other < peers.1,
                Bound::Current => *other <= row,
                Bound::Preceding(by) => from(*other) <= if self.ends(row, frame) { 0 } else { -(by as i64) },
                Bound::Following(by) => from(*other) <= if self.ends(row, frame) { 0 } else { by as i64 },
            };
            after && before
        };
        (first..end).filter(inside).collect()
    }

    /// True for a distance from NULL, which reaches exactly its peers.
    fn ends(&self, row: usize, frame: &Frame) -> bool {
        frame.units == Units::Range && self.key[row].is_none()
    }
}

/// The rows on the device.
pub struct Ordered<'a> {
    rig: &'a Rig,
    images: Images,
    rows: ExtentRows,
    pub key: Column,
    pub value: Column,
    pub positions: Positions,
    _held: Vec<DeviceBuffer>,
}

pub fn bits(of: impl Iterator<Item = bool>) -> Vec<u8> {
    let of: Vec<bool> = of.collect();
    let mut bytes = vec![0u8; of.len().div_ceil(32) * 4];
    of.iter().enumerate().for_each(|(row, bit)| bytes[row / 8] |= u8::from(*bit) << (row % 8));
    bytes
}

pub fn bytes(of: impl Iterator<Item = i64>) -> Vec<u8> {
    of.flat_map(i64::to_le_bytes).collect()
}

impl<'a> Ordered<'a> {
    pub fn new(rig: &'a Rig, of: &Rows) -> Ordered<'a> {
        Ordered::stored(rig, of, Physical::I64)
    }

    /// Stores the keys as `physical`.
    pub fn stored(rig: &'a Rig, of: &Rows, physical: Physical) -> Ordered<'a> {
        let images = Images::new(&rig.device);
        let up = |bytes: &[u8]| rig.upload(bytes, &rig.stream).as_view().clone();
        let column = |of: &[Option<i64>], physical: Physical| {
            let width = physical.width() as usize;
            let value = |value: &Option<i64>| value.unwrap_or(77).to_le_bytes()[..width].to_vec();
            Column {
                values: up(&of.iter().flat_map(value).collect::<Vec<u8>>()),
                validity: Some(up(&bits(of.iter().map(Option::is_some)))),
                physical,
            }
        };
        let (key, value) = (column(&of.key, physical), column(&of.value, Physical::I64));
        let part = up(&bytes(of.part.iter().copied()));
        let rows = ExtentRows::Known(of.len() as u64);
        let keys = [
            SortKey::new(&part, Physical::I64),
            SortKey { validity: key.validity.clone(), ..SortKey::new(&key.values, physical) },
        ];
        let lists = rig.buffer(positions_bytes(of.len() as u64));
        let scratch = rig.buffer(scratch_bytes(of.len() as u64));
        let window = Window { images: &images, rows: &rows, on: &rig.stream };
        let positions = window.heads(&keys, 1, &[], None, lists.as_view(), scratch.as_view()).unwrap();
        Ordered { rig, images, rows, key, value, positions, _held: vec![lists] }
    }

    pub fn window(&self) -> Window<'_> {
        Window { images: &self.images, rows: &self.rows, on: &self.rig.stream }
    }

    /// Output of `launch`: eight bytes per row, or NULL.
    pub fn written(&self, launch: impl FnOnce(&Out)) -> Vec<Option<u64>> {
        let rows = self.rows.upper_bound();
        let (values, validity) = (self.rig.buffer(8 * rows), self.rig.buffer(rows.div_ceil(32) * 4));
        let view = |of: &DeviceBuffer| -> DeviceView { of.as_view().clone() };
        launch(&Out { values: view(&values), validity: Some(view(&validity)), physical: Physical::I64 });
        let (values, validity) = (self.rig.download(&values), self.rig.download(&validity));
        let value = |row: usize| u64::from_le_bytes(values[row * 8..row * 8 + 8].try_into().unwrap());
        (0..rows as usize).map(|row| (validity[row / 8] >> (row % 8) & 1 == 1).then(|| value(row))).collect()
    }
}

pub trait Scratch {
    fn buffer(&self, bytes: u64) -> DeviceBuffer;
}

impl Scratch for Rig {
    fn buffer(&self, bytes: u64) -> DeviceBuffer {
        DeviceBuffer::new((bytes as usize).next_multiple_of(256), &self.stream, &self.pool).unwrap()
    }
}

#[test]
fn ranks() {
    let rig = Rig::new();
    for (length, partitions, keys) in
        LENGTHS.iter().flat_map(|length| [(*length, 1, 5), (*length, 40, 900), (*length, 3, 1)])
    {
        let rows = Rows::new(length, partitions, keys);
        let ordered = Ordered::new(&rig, &rows);
        let rank = |ranking| {
            let out = rig.buffer(8 * length as u64);
            ordered.window().rank(&ordered.positions, ranking, out.as_view()).unwrap();
            let bytes = rig.download(&out);
            bytes[..8 * length].chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect::<Vec<_>>()
        };
        let expect = |of: &dyn Fn(usize) -> u64| (0..length).map(of).collect::<Vec<_>>();
        let first = |row: usize| rows.partition(row).0;
        assert_eq!(rank(Ranking::RowNumber), expect(&|row| (row - first(row) + 1) as u64));
        assert_eq!(rank(Ranking::Rank), expect(&|row| (rows.peers(row).0 - first(row) + 1) as u64));
        let dense = |row: usize| (rows.places[row].2 - rows.places[first(row)].2 + 1) as u64;
        assert_eq!(rank(Ranking::DenseRank), expect(&dense));
        let share = |row: usize| {
            let (first, end) = rows.partition(row);
            ((rows.peers(row).1 - first) as f64 / (end - first) as f64).to_bits()
        };
        assert_eq!(rank(Ranking::CumeDist), expect(&share));
        let tile = |row: usize| {
            // ntile gives one more row to each of the first tiles.
            let (first, end) = rows.partition(row);
            let sizes = (0..7).map(|tile| (end - first) / 7 + usize::from(tile < (end - first) % 7));
            let ends = sizes.scan(first, |end, size| {
                *end += size;
                Some(*end)
            });
            ends.take_while(|end| *end <= row).count() as u64 + 1
        };
        assert_eq!(rank(Ranking::Ntile(7)), expect(&tile));
    }
}

pub fn frames(ordered: &Ordered<'_>) -> Vec<Frame> {
    let near = [Bound::Unbounded, Bound::Preceding(3), Bound::Current, Bound::Following(2)];
    let mut frames = vec![];
    for units in [Units::Rows, Units::Groups, Units::Range] {
        for start in near {
            for end in [Bound::Preceding(1), Bound::Current, Bound::Following(40), Bound::Unbounded] {
                let key = Some(FrameKey { column: ordered.key.clone(), descending: false, limits: Some(BIGINT) });
                frames.push(Frame { units, start, end, key });
            }
        }
    }
    frames
}

#[test]
fn frames_are_folded() {
    let rig = Rig::new();
    for (length, partitions, keys) in [(1, 1, 1), (33, 2, 9), (150, 3, 30)] {
        let rows = Rows::new(length, partitions, keys);
        let ordered = Ordered::new(&rig, &rows);
        let window = ordered.window();
        for (operation, fold) in [
            (Operation::Sum, (|values: &[i64]| values.iter().sum()) as fn(&[i64]) -> i64),
            (Operation::Min, |values| *values.iter().min().unwrap()),
            (Operation::Max, |values| *values.iter().max().unwrap()),
            (Operation::BitXor, |values| values.iter().fold(0, |a, b| a ^ b)),
            (Operation::DecimalMean(100), |values| 100 * values.iter().sum::<i64>() / values.len() as i64),
        ] {
            let argument = Argument { column: Some(ordered.value.clone()), ranks: None };
            let folding = Folding { argument, operation };
            let tree = rig.buffer(tree_bytes(length as u64));
            window.grow(&folding, tree.as_view()).unwrap();
            for frame in frames(&ordered) {
                let folded = ordered.written(|out| {
                    window.fold(&ordered.positions, &frame, &folding, Some(tree.as_view()), out).unwrap();
                });
                for (row, folded) in folded.iter().enumerate() {
                    let inside: Vec<i64> = rows.frame(row, &frame).iter().filter_map(|row| rows.value[*row]).collect();
                    let expected = (!inside.is_empty()).then(|| fold(&inside));
                    assert_eq!(folded.map(|bits| bits as i64), expected, "{operation:?} {row} of {length}: {frame:?}");
                }
            }
        }
    }
}

/// Row numbers sorted by partition, value and number.
fn by_value(rig: &Rig, rows: &Rows) -> DeviceBuffer {
    let mut order: Vec<u32> = (0..rows.len() as u32).collect();
    let key = |row: u32| (rows.part[row as usize], rows.value[row as usize].is_none(), rows.value[row as usize]);
    order.sort_by_key(|row| (key(*row), *row));
    let bytes: Vec<u8> = order.iter().flat_map(|row| row.to_le_bytes()).collect();
    rig.upload(&bytes, &rig.stream)
}

#[test]
fn values_count_once() {
    let rig = Rig::new();
    for (length, partitions, keys) in [(1, 1, 1), (33, 2, 9), (150, 3, 30)] {
        let mut rows = Rows::new(length, partitions, keys);
        rows.value.iter_mut().for_each(|value| *value = value.map(|value| value % 7));
        let ordered = Ordered::new(&rig, &rows);
        let window = ordered.window();
        let (order, count) = (by_value(&rig, &rows), length as u64);
        let value =
            SortKey { validity: ordered.value.validity.clone(), ..SortKey::new(&ordered.value.values, Physical::I64) };
        let near = |side: Side| {
            let near = rig.buffer(near_bytes(count));
            window.near(&ordered.positions, &value, &[], order.as_view(), (side, false), near.as_view()).unwrap();
            near
        };
        let fold = |column: Column, operation, frame: &Frame, out: &Out| {
            let folding = Folding { argument: Argument { column: Some(column), ranks: None }, operation };
            let tree = rig.buffer(tree_bytes(count));
            window.grow(&folding, tree.as_view()).unwrap();
            window.fold(&ordered.positions, frame, &folding, Some(tree.as_view()), out).unwrap();
        };
        for frame in frames(&ordered) {
            for operation in [Operation::Sum, Operation::Count] {
                let once = ordered.written(|out| match (frame.start, frame.end) {
                    (Bound::Unbounded, _) | (_, Bound::Unbounded) => {
                        let side = if frame.start == Bound::Unbounded { Side::Before } else { Side::Behind };
                        let (near, firsts) = (near(side), rig.buffer(firsts_bytes(count)));
                        window.firsts(ordered.value.validity.as_ref(), near.as_view(), firsts.as_view()).unwrap();
                        let column = Column { validity: Some(firsts.as_view().clone()), ..ordered.value.clone() };
                        fold(column, operation, &frame, out);
                    }
                    _ => {
                        fold(ordered.value.clone(), operation, &frame, out);
                        let (near, spans) = (near(Side::Before), rig.buffer(spans_bytes(count)));
                        let changes = rig.buffer(changes_bytes(count));
                        let values = (operation == Operation::Sum).then_some(&ordered.value);
                        let (spans, changes) = (spans.as_view(), changes.as_view());
                        window.changes(&ordered.positions, &frame, values, near.as_view(), spans, changes).unwrap();
                        let sums = rig.buffer(changes_bytes(count));
                        let column = Column { values: changes.clone(), validity: None, physical: Physical::I64 };
                        let too_much = Out { values: sums.as_view().clone(), validity: None, physical: Physical::I64 };
                        fold(column, Operation::Sum, &Frame::up_to_row(), &too_much);
                        window.less(&ordered.positions, &frame, sums.as_view(), out).unwrap();
                    }
                });
                for (row, once) in once.iter().enumerate() {
                    let inside = rows.frame(row, &frame);
                    let values: BTreeSet<i64> = inside.iter().filter_map(|row| rows.value[*row]).collect();
                    let expected = match operation {
                        Operation::Count => Some(values.len() as i64),
                        _ => (!values.is_empty()).then(|| values.iter().sum()),
                    };
                    assert_eq!(once.map(|bits| bits as i64), expected, "{operation:?} {row} of {length}: {frame:?}");
                }
            }
        }
    }
}

#[test]
fn frames_are_lists() {
    let rig = Rig::new();
    for (length, partitions, keys) in [(1, 1, 1), (33, 2, 9), (150, 3, 30)] {
        let rows = Rows::new(length, partitions, keys);
        let ordered = Ordered::new(&rig, &rows);
        let window = ordered.window();
        let (counts, scratch) = (rig.buffer(counted_bytes(length as u64)), rig.buffer(scratch_bytes(length as u64)));
        let validity = ordered.value.validity.clone().unwrap();
        let counted = window.count_valid(&validity, counts.as_view(), scratch.as_view()).unwrap();
        for frame in frames(&ordered) {
            for counted in [None, Some(&counted)] {
                let lists = ordered.written(|out| {
                    let out = Out { physical: Physical::U64, ..out.clone() };
                    window.list(&ordered.positions, &frame, counted, &out).unwrap();
                });
                let counts = |row: &usize| counted.is_none() || rows.value[*row].is_some();
                for (row, list) in lists.iter().enumerate() {
                    let inside: Vec<usize> = rows.frame(row, &frame).into_iter().filter(counts).collect();
                    let first = inside.first().map(|first| (0..*first).filter(counts).count() as u64);
                    let expected = first.map(|first| first << 32 | inside.len() as u64);
                    assert_eq!(*list, expected, "{row} of {length}: {frame:?}");
                }
            }
        }
    }
}

#[test]
fn values_of_other_rows_are_taken() {
    let rig = Rig::new();
    for (length, partitions, keys) in [(1, 1, 1), (33, 2, 9), (120, 3, 20)] {
        let rows = Rows::new(length, partitions, keys);
        let ordered = Ordered::new(&rig, &rows);
        let window = ordered.window();
        let (lists, scratch) = (rig.buffer(counted_bytes(length as u64)), rig.buffer(scratch_bytes(length as u64)));
        let validity = ordered.value.validity.as_ref().unwrap();
        let counted = window.count_valid(validity, lists.as_view(), scratch.as_view()).unwrap();
        for by in [-40, -3, -1, 0, 1, 2, 50] {
            let taken = Taken::Shift(by);
            let found = ordered.written(|out| {
                window.take(&ordered.positions, &ordered.value, &taken, None, Some(9), out).unwrap();
            });
            for (row, found) in found.iter().enumerate() {
                let (first, end) = rows.partition(row);
                let other = row as i64 + by;
                let there = other >= first as i64 && other < end as i64;
                let expected = if there { rows.value[other as usize] } else { Some(9) };
                assert_eq!(found.map(|bits| bits as i64), expected, "{row} of {length}, {by}");
            }
        }
        for number in [1, 2, 5, -1, -3] {
            for frame in frames(&ordered) {
                for skips in [false, true] {
                    let taken = Taken::Nth(number, frame.clone());
                    let counted = skips.then_some(&counted);
                    let found = ordered.written(|out| {
                        window.take(&ordered.positions, &ordered.value, &taken, counted, None, out).unwrap();
                    });
                    for (row, found) in found.iter().enumerate() {
                        let mut inside = rows.frame(row, &frame);
                        inside.retain(|row| !skips || rows.value[*row].is_some());
                        let at = if number > 0 { number - 1 } else { inside.len() as i64 + number };
                        let expected =
                            usize::try_from(at).ok().and_then(|at| inside.get(at)).and_then(|row| rows.value[*row]);
                        assert_eq!(
                            found.map(|bits| bits as i64),
                            expected,
                            "{number} {skips} {row} of {length}: {frame:?}"
                        );
                    }
                }
            }
        }
    }
}
