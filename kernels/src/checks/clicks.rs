//! Claims about sessions, earlier rows and row pairs, over thousands of rows with few keys.

use millpond_memory::checks::{CheckError, same};
use millpond_memory::{Device, DeviceBuffer, DeviceView};

use super::{Rig, mixed, packed, some_bits, word};
use crate::abi;
use crate::clicks::{self, Near, Sorted};
use crate::codegen::ir::{Physical, Range};
use crate::pipeline::{ColumnInput, ExtentInput, ExtentRows};
use crate::sort::SortKey;

const ROWS: usize = 20_000;
const GAP: i64 = 400;
const NEAR: Near = Near { most: 6, within: Some(900) };

/// Row numbers as an order.
fn order_of(rig: &Rig, numbers: &[u32]) -> Result<ExtentInput, CheckError> {
    let values = rig.words(numbers)?.as_view().clone();
    let numbers_column = ColumnInput { values, validity: None, base: 0 };
    Ok(ExtentInput { rows: ExtentRows::Known(numbers.len() as u64), columns: vec![Some(numbers_column)] })
}

/// Columns that `launch` writes for `number` rows.
fn columns(
    rig: &Rig,
    number: usize,
    rows: usize,
    launch: impl FnOnce(&DeviceView) -> Result<(), crate::KernelError>,
) -> Result<Vec<Vec<u32>>, CheckError> {
    let layout = clicks::layout(number, rows as u64);
    let output: DeviceBuffer = rig.output(layout.bytes)?;
    launch(output.as_view())?;
    let control = rig.download(&output.view(0..abi::CONTROL_RESULT_BYTES as usize)?)?;
    same("the error word", word(&control, abi::CONTROL_ERROR as usize), 0)?;
    let found = word(&control, abi::CONTROL_ROWS as usize) as usize;
    same("a number of rows within its bound", found <= rows, true)?;
    let mut columns = Vec::with_capacity(number);
    for column in &layout.columns {
        let bytes = rig.download(&output.view(column.values.start..column.values.start + 4 * found)?)?;
        columns.push(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect());
    }
    Ok(columns)
}

pub fn clicks_are_followed(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    follow(&rig)?;
    rig.base.finish()
}

fn follow(rig: &Rig) -> Result<(), CheckError> {
    let row = |row: usize| row as u64;
    // Every third row has the same key.
    let keys: Vec<i64> = (0..ROWS).map(|r| if r % 3 == 0 { 5 } else { (mixed(row(r)) % 2_000) as i64 - 9 }).collect();
    let times: Vec<i64> = (0..ROWS).map(|r| (mixed(row(r) + 1) % 100_000) as i64 - 50_000).collect();
    let (anchors, valid) = (some_bits(ROWS, 2), some_bits(ROWS, 3));
    let integers = |values: &[i64]| rig.upload(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    let (key_bytes, time_bytes) = (integers(&keys)?, integers(&times)?);
    let (anchor_bytes, valid_bytes) = (rig.upload(&packed(&anchors))?, rig.upload(&packed(&valid))?);
    let key = SortKey { range: Some(Range { low: -9, high: 2_000 }), ..SortKey::new(&key_bytes, Physical::I64) };
    let time = SortKey::new(&time_bytes, Physical::I64);
    let anchor =
        SortKey { validity: Some(valid_bytes.as_view().clone()), ..SortKey::new(&anchor_bytes, Physical::Bit) };
    let mut numbers: Vec<u32> = (0..ROWS as u32).collect();
    numbers.sort_by_key(|&row| (keys[row as usize], times[row as usize], row));
    let at = |place: usize| numbers[place] as usize;
    let order = order_of(rig, &numbers)?;
    let sorted = |keys| Sorted { order: &order, keys, reached: &[] };
    let (images, on) = (&rig.images, rig.stream());

    let timed = [key.clone(), time.clone()];
    let found = columns(rig, 2, ROWS, |output| clicks::sessions(images, sorted(&timed), GAP as u64, output, on))?;
    let mut sessions: Vec<u32> = Vec::with_capacity(ROWS);
    for place in 0..ROWS {
        sessions.push(match place.checked_sub(1).map(at).filter(|before| keys[*before] == keys[at(place)]) {
            Some(before) => sessions[place - 1] + u32::from(times[at(place)] - times[before] > GAP),
            None => 0,
        });
    }
    same("sessions", found, vec![numbers.clone(), sessions])?;

    let near = [key.clone(), time.clone(), anchor];
    let found = columns(rig, 2, ROWS, |output| clicks::before(images, sorted(&near), NEAR, output, on))?;
    let (mut places, mut counts) = (vec![], vec![]);
    for place in (0..ROWS).filter(|place| anchors[at(*place)] && valid[at(*place)]) {
        let is_near =
            |earlier: &usize| keys[at(*earlier)] == keys[at(place)] && times[at(place)] - times[at(*earlier)] <= 900;
        let count = (place.saturating_sub(6)..place).rev().take_while(is_near).count();
        if count > 0 {
            places.push(place as u32);
            counts.push(count as u32);
        }
    }
    same("earlier rows", found, vec![places, counts])?;

    let found = columns(rig, 1, ROWS, |output| clicks::distinct(images, sorted(&timed), output, on))?;
    let differs = |place: &usize| {
        let before = place.checked_sub(1).map(at);
        before.is_none_or(|before| (keys[before], times[before]) != (keys[at(*place)], times[at(*place)]))
    };
    let distinct: Vec<u32> = (0..ROWS).filter(differs).map(|place| numbers[place]).collect();
    same("distinct rows", found, vec![distinct.clone()])?;

    let left = order_of(rig, &distinct)?;
    let groups = [key];
    let rows = Sorted { order: &left, keys: &groups, reached: &[] };
    let found = columns(rig, 2, distinct.len(), |output| clicks::after(images, rows, output, on))?;
    let key_at = |place: usize| keys[distinct[place] as usize];
    let (mut places, mut counts) = (vec![], vec![]);
    for place in 0..distinct.len() {
        // Keys ascend: a key ends at the first row with a greater key.
        let end = distinct.partition_point(|row| keys[*row as usize] <= key_at(place));
        if end - place > 1 {
            places.push(place as u32);
            counts.push((end - place - 1) as u32);
        }
    }
    same("later rows", found, vec![places, counts])
}
