//! Sums over rows, draws and labels, against plain loops: equal bits under every schedule.

use millpond_kernels::learn::{self, Numbers, Scored, Sums};
use millpond_kernels::tune::LEARN_CHUNK_ROWS;
use millpond_kernels::{Images, Rows};
use millpond_memory::DeviceBuffer;

use crate::pipeline_rig::Rig;

const CHUNK: usize = LEARN_CHUNK_ROWS as usize;
const LENGTHS: [usize; 6] = [1, 31, 33, CHUNK, CHUNK + 1, 3 * CHUNK - 7];

/// Rows on the device and as lists, one per column.
struct Table<'r> {
    rig: &'r Rig,
    images: Images,
    columns: Vec<Vec<f64>>,
    numbers: Numbers,
}

fn bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
}

fn integers(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

/// Values whose sums round differently in another order.
fn value(row: usize, column: usize) -> f64 {
    ((row * 7919 + column * 104_729) % 10_007) as f64 / 13.0 - 300.0 * (column % 2) as f64
}

impl<'r> Table<'r> {
    fn new(rig: &'r Rig, rows: usize, columns: usize) -> Self {
        let columns: Vec<Vec<f64>> =
            (0..columns).map(|column| (0..rows).map(|row| value(row, column)).collect()).collect();
        Self::over(rig, columns)
    }

    fn over(rig: &'r Rig, columns: Vec<Vec<f64>>) -> Self {
        let images = Images::new(&rig.device);
        let rows = columns[0].len();
        let stride = rows + 5;
        let mut all = vec![];
        for column in &columns {
            all.extend_from_slice(column);
            all.extend([f64::NAN; 5]);
        }
        let values = rig.upload(&bytes(&all), &rig.stream).as_view().clone();
        let numbers = Numbers::new(values, stride as u64, columns.len() as u32, Rows::known(rows as u64)).unwrap();
        Self { rig, images, columns, numbers }
    }

    fn rows(&self) -> usize {
        self.columns[0].len()
    }

    fn row(&self, row: usize) -> Vec<f64> {
        self.columns.iter().map(|column| column[row]).collect()
    }

    fn room(&self, bytes: u64) -> DeviceBuffer {
        DeviceBuffer::new(bytes as usize, &self.rig.stream, &self.rig.pool).unwrap()
    }

    fn zeroed(&self, bytes: usize) -> DeviceBuffer {
        DeviceBuffer::zeroed(bytes, &self.rig.stream, &self.rig.pool).unwrap()
    }

    fn upload(&self, values: &[f64]) -> DeviceBuffer {
        self.rig.upload(&bytes(values), &self.rig.stream)
    }

    /// Uploads these rows column by column.
    fn upload_rows(&self, rows: &[Vec<f64>]) -> DeviceBuffer {
        let columns = (0..self.columns.len()).flat_map(|column| rows.iter().map(move |row| row[column]));
        self.upload(&columns.collect::<Vec<_>>())
    }

    fn summed(&self, count: usize, launch: impl FnOnce(Sums<'_>)) -> Vec<f64> {
        let sums = self.room(8 * count as u64);
        let scratch = self.room(learn::scratch_bytes(self.rows() as u64, count as u64));
        launch(Sums { sums: &sums, scratch: &scratch });
        doubles(&self.rig.download(&sums))
    }

    /// Sums of `count` terms per row: within each chunk, then over the chunk sums.
    fn expected(&self, count: usize, term: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        let sum = |of: usize| {
            let chunks = (0..self.rows()).step_by(CHUNK);
            let chunk =
                |first: usize| (first..(first + CHUNK).min(self.rows())).fold(0.0, |sum, row| sum + term(row, of));
            chunks.map(chunk).fold(0.0, |sum, chunk| sum + chunk)
        };
        (0..count).map(sum).collect()
    }

    fn nearest(&self, row: usize, centers: &[Vec<f64>]) -> (usize, f64) {
        let mut best = (0, f64::INFINITY);
        for (number, center) in centers.iter().enumerate() {
            let distance = squared_distance(&self.row(row), center);
            if distance < best.1 {
                best = (number, distance);
            }
        }
        best
    }
}

/// All kernels whose last thread block sums the results of the others.
pub fn sums_over_chunks(rig: &Rig) {
    let table = Table::new(rig, CHUNK + 40, 1);
    let (images, stream, numbers) = (&table.images, &rig.stream, &table.numbers);
    let x = |row: usize| table.columns[0][row];
    let found = table.summed(2, |to| learn::moments(images, numbers, None, to, stream).unwrap());
    same(&found[..1], &table.expected(1, |row, _| x(row)), "moments");

    let (rows, center) = (table.rows() as u64, table.upload(&[0.0]));
    let (labels, distances) = (table.room(4 * rows), table.room(8 * rows));
    let found = table.summed(3, |to| {
        learn::assign(images, numbers, &center, 1, &labels, &distances, to, stream).unwrap();
    });
    same(&found, &table.expected(3, |row, sum| [x(row), 1.0, x(row) * x(row)][sum]), "assign");

    let (truths, at, losses) = (table.upload(&vec![0.0; rows as usize]), table.upload(&[0.0; 2]), table.room(8 * rows));
    let found = table.summed(3, |to| {
        learn::loss(images, numbers, &truths, &at, &distances, &losses, to, stream).unwrap();
    });
    same(&found[..2], &table.expected(2, |row, sum| 0.5 * [x(row), 1.0][sum]), "loss");
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + (a - b) * (a - b))
}

fn same(found: &[f64], expected: &[f64], what: &str) {
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(found), bits(expected), "{what}: {found:?}, expected {expected:?}");
}

#[test]
fn sums_are_those_of_plain_loops_to_the_last_bit() {
    for (seed, rows) in LENGTHS.into_iter().enumerate() {
        let rig = Rig::seeded(seed as u64);
        let table = Table::new(&rig, rows, 3);
        let what = format!("{rows} rows");
        let found = table.summed(6, |to| {
            learn::moments(&table.images, &table.numbers, None, to, &table.rig.stream).unwrap();
        });
        let neither = |value: f64| f64::from(u8::from(value != 0.0 && value != 1.0));
        let expected = table.expected(6, |row, sum| match sum {
            0..3 => table.columns[sum][row],
            _ => neither(table.columns[sum - 3][row]),
        });
        same(&found, &expected, &what);

        let means: Vec<f64> = expected[..3].iter().map(|sum| sum / rows as f64).collect();
        let uploaded = table.upload(&means);
        let found = table.summed(6, |to| {
            learn::moments(&table.images, &table.numbers, Some(&uploaded), to, &table.rig.stream).unwrap();
        });
        let expected = table.expected(6, |row, sum| match sum {
            0..3 => (table.columns[sum][row] - means[sum]) * (table.columns[sum][row] - means[sum]),
            _ => f64::from(u8::from(table.columns[sum - 3][row] != table.columns[sum - 3][0])),
        });
        same(&found, &expected, &what);
        table.rig.assert_clean();
    }
}

#[test]
fn rows_go_to_the_first_of_the_nearest_centres() {
    for (seed, rows) in LENGTHS.into_iter().enumerate() {
        let rig = Rig::seeded(seed as u64);
        let table = Table::new(&rig, rows, 2);
        // The second and the third centre are equal.
        let centers: Vec<Vec<f64>> = [0.1, 0.4, 0.4, 0.9].map(|at| table.row((rows as f64 * at) as usize)).to_vec();
        let (k, width) = (centers.len(), 4);
        let uploaded = table.upload_rows(&centers);
        let (labels, distances) = (table.room(4 * rows as u64), table.room(8 * rows as u64));
        let found = table.summed(k * width, |to| {
            let (images, stream) = (&table.images, &table.rig.stream);
            learn::assign(images, &table.numbers, &uploaded, k as u32, &labels, &distances, to, stream).unwrap();
        });
        let nearest: Vec<(usize, f64)> = (0..rows).map(|row| table.nearest(row, &centers)).collect();
        let expected = table.expected(k * width, |row, sum| match (nearest[row].0 == sum / width, sum % width) {
            (false, _) => 0.0,
            (true, place @ 0..2) => table.columns[place][row],
            (true, 2) => 1.0,
            (true, _) => nearest[row].1,
        });
        same(&found, &expected, &format!("{rows} rows"));

        for names in [None, Some([40_i64, -41, 42, 1 << 40])] {
            let (own, refused) = (table.room(8 * rows as u64), table.zeroed(4));
            let bytes: Option<Vec<u8>> = names.map(|names| names.iter().flat_map(|name| name.to_le_bytes()).collect());
            let uploaded_names = bytes.map(|bytes| table.rig.upload(&bytes, &table.rig.stream));
            let names_view = uploaded_names.as_ref().map(DeviceBuffer::as_view);
            let (images, stream) = (&table.images, &table.rig.stream);
            learn::nearest(images, &table.numbers, &uploaded, k as u32, names_view, &own, &refused, stream).unwrap();
            let expected: Vec<i64> =
                nearest.iter().map(|(label, _)| names.map_or(*label as i64, |names| names[*label])).collect();
            assert_eq!(integers(&table.rig.download(&own)), expected, "{rows} rows");
            assert_eq!(table.rig.download(&refused), [0; 4]);
        }
        table.rig.assert_clean();
    }
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let rig = Rig::seeded(1);
        let table =
            Table::over(&rig, vec![vec![1.0; 40], (0..40).map(|row| if row == 37 { odd } else { 2.0 }).collect()]);
        let (centers, labels, refused) = (table.upload(&[1.0, 2.0]), table.room(320), table.zeroed(4));
        let (images, stream) = (&table.images, &table.rig.stream);
        learn::nearest(images, &table.numbers, &centers, 1, None, &labels, &refused, stream).unwrap();
        assert_eq!(table.rig.download(&refused), [1, 0, 0, 0], "{odd}");
        table.rig.assert_clean();
    }
}

/// Draws with the squared distances to one row as weights.
fn draw(table: &Table, first: u64, u: f64, any: u64) -> (u64, Vec<f64>, Vec<f64>) {
    let rows = table.rows() as u64;
    let chosen = table.rig.upload(&first.to_le_bytes(), &table.rig.stream);
    let (centers, distances) = (table.zeroed(2 * table.columns.len() * 8), table.room(8 * rows));
    let sums = table.room(8 * learn::chunks(rows));
    let (images, stream) = (&table.images, &table.rig.stream);
    learn::nearer(images, &table.numbers, &chosen, &centers, (0, 2), &distances, &sums, stream).unwrap();
    learn::draw(images, &distances, &sums, table.numbers.rows(), (u, any), &chosen, stream).unwrap();
    let drawn = u64::from_le_bytes(table.rig.download(&chosen).try_into().unwrap());
    learn::nearer(images, &table.numbers, &chosen, &centers, (1, 2), &distances, &sums, stream).unwrap();
    (drawn, doubles(&table.rig.download(&centers)), doubles(&table.rig.download(&distances)))
}

#[test]
fn rows_are_drawn_by_prefix_sums() {
    for (seed, rows) in LENGTHS.into_iter().enumerate().skip(1) {
        let rig = Rig::seeded(seed as u64);
        let table = Table::new(&rig, rows, 2);
        let first = rows / 3;
        let weights: Vec<f64> = (0..rows).map(|row| squared_distance(&table.row(row), &table.row(first))).collect();
        let total: f64 = weights.chunks(CHUNK).map(|chunk| chunk.iter().sum::<f64>()).sum();
        for u in [0.0, 0.3, 0.999_999] {
            let mut before = 0.0;
            let mut expected = None;
            for (number, chunk) in weights.chunks(CHUNK).enumerate() {
                let mut within = 0.0;
                for (place, weight) in chunk.iter().enumerate() {
                    within += weight;
                    if expected.is_none() && before + within > u * total {
                        expected = Some(number * CHUNK + place);
                    }
                }
                before += within;
            }
            let expected = expected.expect("some prefix is greater");
            let (drawn, centers, distances) = draw(&table, first as u64, u, 0);
            assert_eq!(drawn, expected as u64, "{rows} rows, u = {u}");
            let (a, b) = (table.row(first), table.row(expected));
            same(&centers, &[a[0], b[0], a[1], b[1]], "centres");
            let nearer = |row: usize| weights[row].min(squared_distance(&table.row(row), &b));
            same(&distances, &(0..rows).map(nearer).collect::<Vec<_>>(), "distances");
        }
        table.rig.assert_clean();
    }
}

#[test]
fn draws_among_equal_rows_and_beyond_the_range_of_a_double_have_answers() {
    let rig = Rig::seeded(2);
    let equal = Table::over(&rig, vec![vec![7.0; 50]]);
    assert_eq!(draw(&equal, 3, 0.5, 21).0, 21);
    // Both distances are infinite: the last row with a weight is drawn.
    let huge = Table::over(&rig, vec![vec![0.0, 1e200, -1e200, 0.0]]);
    assert_eq!(draw(&huge, 0, 0.5, 3).0, 2);
    rig.assert_clean();
}

#[test]
fn the_loss_of_a_model_its_slopes_and_what_it_says() {
    for (seed, rows) in LENGTHS.into_iter().enumerate() {
        let rig = Rig::seeded(seed as u64);
        let mut table = Table::new(&rig, rows, 3);
        table.columns[0] = (0..rows).map(|row| f64::from(u8::from(row % 3 == 1))).collect();
        let table = Table::over(&rig, table.columns);
        let (truths, features) = (table.numbers.column(0).unwrap(), table.numbers.from_column(1).unwrap());
        let (means, scales) = ([20.0, -10.0], [300.0, 7.0]);
        let (images, stream) = (&table.images, &table.rig.stream);
        let out = table.room(16 * rows as u64);
        let (up_means, up_scales) = (table.upload(&means), table.upload(&scales));
        let z = learn::standardise(images, &features, &up_means, &up_scales, &out, rows as u64, stream).unwrap();
        let standard = |row: usize, column: usize| (table.columns[1 + column][row] - means[column]) / scales[column];
        let expected: Vec<f64> = (0..2)
            .flat_map(|column| (0..rows).map(move |row| (row, column)))
            .map(|(row, column)| standard(row, column))
            .collect();
        same(&doubles(&table.rig.download(&out)), &expected, "standardised");

        let at = [0.7, -0.02, 0.1];
        let up_at = table.upload(&at);
        let (residuals, losses) = (table.room(8 * rows as u64), table.room(8 * rows as u64));
        let found = table.summed(4, |to| {
            learn::loss(images, &z, &truths, &up_at, &residuals, &losses, to, stream).unwrap();
        });
        let score = |row: usize| at[0] * standard(row, 0) + at[1] * standard(row, 1) + at[2];
        let expected = table.expected(4, |row, sum| {
            let (score, truth) = (score(row), table.columns[0][row]);
            let residual = 1.0 / (1.0 + (-score).exp()) - truth;
            match sum {
                0 | 1 => residual * standard(row, sum),
                2 => residual,
                _ => (1.0 + (if truth == 1.0 { -score } else { score }).exp()).ln(),
            }
        });
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-12 * expected.abs().max(rows as f64), "{found}, {expected}");
        }

        let counts = table.zeroed(32);
        let columns = [0; 4].map(|_| table.room(8 * rows as u64));
        let to = Scored {
            labels: Some(&columns[0]),
            scores: Some(&columns[1]),
            chances: Some(&columns[2]),
            predictions: Some(&columns[3]),
        };
        learn::score(images, &z, &truths, &up_at, &counts, to, stream).unwrap();
        let mut expected = [0; 4];
        for row in 0..rows {
            expected[2 * usize::from(row % 3 == 1) + usize::from(score(row) > 0.0)] += 1;
        }
        assert_eq!(integers(&table.rig.download(&counts)), expected);
        same(&doubles(&table.rig.download(&columns[1])), &(0..rows).map(score).collect::<Vec<_>>(), "scores");
        let (labels, said) = (integers(&table.rig.download(&columns[0])), integers(&table.rig.download(&columns[3])));
        let chances = doubles(&table.rig.download(&columns[2]));
        for row in 0..rows {
            assert_eq!((labels[row], said[row]), (i64::from(row % 3 == 1), i64::from(score(row) > 0.0)));
            assert!((chances[row] - 1.0 / (1.0 + (-score(row)).exp())).abs() < 1e-15);
        }
        table.rig.assert_clean();
    }
}
