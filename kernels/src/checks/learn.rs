//! Claim about learning: sums over rows, and draws, equal those of plain loops bit for bit.

use millpond_memory::Device;
use millpond_memory::checks::{CheckError, same};

use super::{Rig, mixed, word};
use crate::Rows;
use crate::learn::{self, Numbers, Sums};
use crate::tune::LEARN_CHUNK_ROWS;

const CHUNK: usize = LEARN_CHUNK_ROWS as usize;
const COLUMNS: usize = 3;
const CLUSTERS: usize = 4;

fn bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Sums within chunks, then over the chunk sums.
fn summed(rows: usize, count: usize, term: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let chunk = |of: usize, first: usize| (first..rows.min(first + CHUNK)).fold(0.0, |sum, row| sum + term(row, of));
    (0..count).map(|of| (0..rows).step_by(CHUNK).fold(0.0, |sum, first| sum + chunk(of, first))).collect()
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + (a - b) * (a - b))
}

pub(super) fn sums_and_draws(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    for rows in [1, 33, CHUNK + 1, 2 * CHUNK + 100] {
        let value = |row: usize, column: usize| mixed((row * COLUMNS + column) as u64) as f64 / 1e15;
        let row = |row: usize| -> Vec<f64> { (0..COLUMNS).map(|column| value(row, column)).collect() };
        let all: Vec<f64> = (0..COLUMNS).flat_map(|column| (0..rows).map(move |row| value(row, column))).collect();
        let values = rig.upload(&bytes(&all))?;
        let numbers = Numbers::new(values.as_view().clone(), rows as u64, COLUMNS as u32, Rows::known(rows as u64))?;

        // The first centre is a given row; the others are drawn.
        let (mut chosen, mut centers, mut weights) = (rows / 2, vec![], vec![f64::INFINITY; rows]);
        let on_device = rig.upload(&(chosen as u64).to_le_bytes())?;
        let (starts, distances) = (rig.output(8 * COLUMNS * CLUSTERS)?, rig.output(8 * rows)?);
        let chunk_sums = rig.output(8 * learn::chunks(rows as u64) as usize)?;
        for step in 0..CLUSTERS {
            if step > 0 {
                let u = step as f64 / 4.5;
                learn::draw(&rig.images, &distances, &chunk_sums, numbers.rows(), (u, 0), &on_device, rig.stream())?;
                chosen = drawn(&weights, u);
            }
            let of = (step as u32, CLUSTERS as u32);
            let stream = rig.stream();
            learn::nearer(&rig.images, &numbers, &on_device, &starts, of, &distances, &chunk_sums, stream)?;
            centers.push(row(chosen));
            weights = (0..rows).map(|at| weights[at].min(squared_distance(&row(at), &centers[step]))).collect();
        }
        same(&format!("the row drawn last of {rows}"), word(&rig.download(&on_device)?, 0), chosen as u64)?;

        let width = COLUMNS + 2;
        let (labels, sums) = (rig.output(4 * rows)?, rig.output(8 * CLUSTERS * width)?);
        let scratch = rig.output(learn::scratch_bytes(rows as u64, (CLUSTERS * width) as u64) as usize)?;
        let to = Sums { sums: &sums, scratch: &scratch };
        let clusters = CLUSTERS as u32;
        learn::assign(&rig.images, &numbers, &starts, clusters, &labels, &distances, to, rig.stream())?;
        let nearest = |of: usize| {
            let apart = |center: &Vec<f64>| squared_distance(&row(of), center);
            let distances: Vec<f64> = centers.iter().map(apart).collect();
            (0..CLUSTERS)
                .fold((0, distances[0]), |best, at| if distances[at] < best.1 { (at, distances[at]) } else { best })
        };
        let nearest: Vec<(usize, f64)> = (0..rows).map(nearest).collect();
        let expected = summed(rows, CLUSTERS * width, |at, sum| match (nearest[at].0 == sum / width, sum % width) {
            (false, _) => 0.0,
            (true, COLUMNS) => 1.0,
            (true, place) if place > COLUMNS => nearest[at].1,
            (true, place) => value(at, place),
        });
        let found = rig.download(&sums)?;
        let found: Vec<u64> = (0..CLUSTERS * width).map(|sum| word(&found, 8 * sum)).collect();
        same(&format!("the sums of clusters of {rows} rows"), found, bits(&expected))?;
    }
    rig.base.finish()
}

/// The first row whose prefix sum exceeds its share of the total; row 0 if all weights are 0.
fn drawn(weights: &[f64], u: f64) -> usize {
    let sums: Vec<f64> =
        weights.chunks(CHUNK).map(|chunk| chunk.iter().fold(0.0, |sum, weight| sum + weight)).collect();
    let goal = u * sums.iter().fold(0.0, |sum, chunk| sum + chunk);
    let mut before = 0.0;
    for (number, chunk) in weights.chunks(CHUNK).enumerate() {
        let mut within = 0.0;
        for (place, weight) in chunk.iter().enumerate() {
            within += weight;
            if before + within > goal {
                return number * CHUNK + place;
            }
        }
        before += within;
    }
    0
}
