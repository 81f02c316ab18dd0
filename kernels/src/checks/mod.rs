//! Named claims about kernels: every static kernel family and some generated pipelines, against plain Rust.
//!
//!   checks() ──► [ kernels/reduce, …, pipelines/hash_groups ]    each runs on a `Device` and reports the first failure
//!
//! Run by   `cargo test` on the simulated device, and by `millpond selftest` on the user's device.
//! Oracle   a few lines of Rust over the same values; no part of the code generator.

mod bayes;
mod clicks;
mod damage;
mod learn;
mod memory_order;
mod nans;
mod parquet;
mod predicates;
mod text;
mod vectors;

use std::collections::BTreeMap;

use millpond_memory::checks::{Check, CheckError, CheckRig, same};
use millpond_memory::{Device, DeviceBuffer, DeviceView};

use crate::abi;
use crate::codegen::Math;
use crate::codegen::ir::*;
use crate::layout::OutputLayout;
use crate::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, PipelineCache};
use crate::reduce::{self, Reduction};
use crate::sort::{Method, Sort, SortKey};
use crate::{Images, KernelError, Rows};

/// Every check of this crate: static kernels, then pipelines.
pub fn checks() -> &'static [Check] {
    &CHECKS
}

/// Checks that take minutes; run on request only.
pub fn thorough_checks() -> &'static [Check] {
    &THOROUGH
}

/// Number of times a reader saw stale data after its flag, in one launch without releases and acquires. With them
/// `order/message_passing` forbids it. Only seeds of the simulated device show it reliably.
///
/// # Errors
/// Errors of the device.
pub fn relaxed_messages(device: &Device) -> Result<u32, CheckError> {
    memory_order::relaxed_messages(device)
}

const THOROUGH: [Check; 2] = [
    Check {
        name: "predicates/all_formulas",
        claim: "every choice between small formulas of three predicates, and thousands of larger formulas, follow their truth tables",
        run: predicates::all_formulas,
    },
    Check {
        name: "kernels/parquet_million",
        claim: "the same of a million damaged pages; of 2,000 on the simulated device",
        run: damage::a_million_damaged_pages,
    },
];

const CHECKS: [Check; 27] = [
    Check {
        name: "kernels/vectors",
        claim: "each instruction that kernels use gives the values recorded on another GPU",
        run: vectors::instructions_give_the_recorded_values,
    },
    Check {
        name: "predicates/formulas",
        claim: "formulas of three predicates, as they are generated, follow their truth tables",
        run: predicates::some_formulas,
    },
    Check {
        name: "predicates/choices",
        claim: "CASE, AND, OR, NOT and comparisons of nullable columns have SQL's truth values",
        run: predicates::choices,
    },
    Check {
        name: "floats/instructions",
        claim: "what is NaN and what sign it keeps, by instruction",
        run: nans::instructions,
    },
    Check {
        name: "floats/made_nans",
        claim: "a NaN that + - * / sqrt make of numbers is negative; one operand that is NaN passes through",
        run: nans::made_nans,
    },
    Check {
        name: "order/message_passing",
        claim: "who sees a released flag sees what was written before it, in other blocks too",
        run: memory_order::message_passing,
    },
    Check {
        name: "order/store_buffering",
        claim: "of two that write and then read crosswise behind fence.sc, one sees the other",
        run: memory_order::store_buffering,
    },
    Check {
        name: "order/coherence",
        claim: "one address never goes back to an older value",
        run: memory_order::coherence,
    },
    Check {
        name: "order/atomics_and_look_back",
        claim: "atomics lose nothing, tickets are handed out once, and sums over all earlier blocks are exact",
        run: memory_order::atomics_and_look_back,
    },
    Check { name: "kernels/reduce", claim: "count, sum, min and max are exact", run: reductions },
    Check { name: "kernels/sort", claim: "rows are sorted by several keys, NULLs where they belong", run: sorts },
    Check { name: "kernels/radix", claim: "the same, digit by digit, over several words", run: radix_sorts },
    Check {
        name: "kernels/top",
        claim: "the first rows of an order are found without sorting the others",
        run: top_rows,
    },
    Check {
        name: "kernels/clicks",
        claim: "sessions, earlier rows and pairs of keys of any size are those of a loop over sorted rows",
        run: clicks::clicks_are_followed,
    },
    Check {
        name: "kernels/learn",
        claim: "sums over rows, and rows drawn by them, are those of plain loops to the last bit",
        run: learn::sums_and_draws,
    },
    Check {
        name: "kernels/bayes",
        claim: "words and pairs of texts, few of them very often, are counted for each class, and texts judged by them",
        run: bayes::texts_are_counted_and_judged,
    },
    Check {
        name: "kernels/parquet",
        claim: "compressed pages with NULLs become numbers, codes and texts; a damaged one is reported, and harms no other",
        run: parquet::pages_become_columns,
    },
    Check {
        name: "kernels/parquet_damage",
        claim: "pages with any bytes and sizes end, write to their own rows alone, and harm no other",
        run: damage::damaged_pages,
    },
    Check { name: "pipelines/materialise", claim: "filtered and computed rows keep their order", run: materialise },
    Check {
        name: "pipelines/texts",
        claim: "texts are searched, cut, and copied to dense bytes",
        run: text::texts_are_searched_and_cut,
    },
    Check {
        name: "pipelines/made_texts",
        claim: "texts are made in an arena, and are keys of groups over several launches",
        run: text::texts_are_made_and_grouped,
    },
    Check { name: "pipelines/functions", claim: "pasted functions of numbers give the host's results", run: functions },
    Check { name: "pipelines/total", claim: "one sum over all rows, NULLs left out", run: total },
    Check { name: "pipelines/few_groups", claim: "few groups, kept by each thread block", run: few_groups },
    Check { name: "pipelines/block_groups", claim: "groups in a table of each thread block", run: block_groups },
    Check { name: "pipelines/direct_groups", claim: "groups in a table that the key addresses", run: direct_groups },
    Check {
        name: "pipelines/hash_groups",
        claim: "thousands of groups in a hash table, fed by two streams",
        run: hash_groups,
    },
];

/// Lengths around a lane, a warp, a thread block and a tile.
const LENGTHS: [usize; 8] = [0, 1, 31, 33, 256, 1_025, 4_096, 10_007];

impl From<KernelError> for CheckError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Memory(error) => error.into(),
            other => CheckError::Refused(other.to_string()),
        }
    }
}

impl From<GraphError> for CheckError {
    fn from(error: GraphError) -> Self {
        CheckError::Refused(error.to_string())
    }
}

/// Images of a device, in addition to the rig of every check.
struct Rig {
    base: CheckRig,
    images: Images,
}

impl Rig {
    fn new(device: &Device) -> Result<Self, CheckError> {
        Ok(Self { base: CheckRig::new(device)?, images: Images::new(device) })
    }

    fn stream(&self) -> &millpond_memory::Stream {
        &self.base.streams[0]
    }

    fn upload(&self, bytes: &[u8]) -> Result<DeviceBuffer, CheckError> {
        self.base.upload(bytes, self.stream())
    }

    fn words(&self, words: &[u32]) -> Result<DeviceBuffer, CheckError> {
        self.upload(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    fn output(&self, bytes: usize) -> Result<DeviceBuffer, CheckError> {
        Ok(DeviceBuffer::new(bytes, self.stream(), &self.base.pool)?)
    }

    fn download(&self, view: &DeviceView) -> Result<Vec<u8>, CheckError> {
        self.base.download(view, self.stream())
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// One output of SplitMix64.
fn mixed(of: u64) -> u64 {
    let mut z = of.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bits in whole 32-bit words; bits after the last row are 0.
fn packed(bits: &[bool]) -> Vec<u8> {
    let mut bytes = vec![0; bits.len().div_ceil(32) * 4];
    bits.iter().enumerate().for_each(|(row, bit)| bytes[row / 8] |= u8::from(*bit) << (row % 8));
    bytes
}

fn some_bits(rows: usize, salt: u64) -> Vec<bool> {
    (0..rows).map(|row| mixed(row as u64 ^ salt << 40).is_multiple_of(3)).collect()
}

fn reductions(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    for rows in LENGTHS {
        let valid = some_bits(rows, 5);
        let validity = rig.upload(&packed(&valid))?;
        let number = Rows::known(rows as u64);
        let (out, scratch) = (rig.output(reduce::RESULT_BYTES as usize)?, rig.output(reduce::SCRATCH_BYTES as usize)?);
        let integers: Vec<i64> = (0..rows as u64).map(|row| mixed(row) as i64).collect();
        let input = rig.upload(&integers.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())?;
        reduce::reduce(&rig.images, &input, Physical::I64, Some(&validity), &number, &out, &scratch, rig.stream())?;
        let kept: Vec<i128> = integers.iter().zip(&valid).filter(|(_, v)| **v).map(|(i, _)| i128::from(*i)).collect();
        let (min, max) = (kept.iter().min().copied().unwrap_or(0), kept.iter().max().copied().unwrap_or(0));
        let expected = Reduction { count: kept.len() as u64, min, max, sum: kept.iter().sum() };
        let actual = Reduction::from_bytes(&rig.download(&out)?);
        same(&format!("the reduction of {rows} integers"), actual, Some(expected))?;
    }
    rig.base.finish()
}

fn sorts(device: &Device) -> Result<(), CheckError> {
    ordered(device, &[0, 1, 2, 33, 2_048], 1, Method::Tile, None)?;
    ordered(device, &[2_049, 5_000], 1, Method::Merge, None)?;
    ordered(device, &[5_000], 40, Method::Merge, Some(3_000))
}

fn radix_sorts(device: &Device) -> Result<(), CheckError> {
    ordered(device, &[0, 1, 31, 33, 4_096, 4_097, 20_000], 1, Method::Radix, None)?;
    ordered(device, &[20_000], 1, Method::Radix, Some(3_000))
}

fn top_rows(device: &Device) -> Result<(), CheckError> {
    ordered(device, &[0, 1, 33, 5_000, 40_000], 1, Method::Top, Some(10))?;
    ordered(device, &[1_000, 40_000], 1, Method::Top, Some(1_024))
}

/// Sorts rows by a nullable integer, descending and NULLS FIRST, with duplicates as in `repeated`, then by a float.
fn ordered(
    device: &Device,
    lengths: &[usize],
    repeated: usize,
    method: Method,
    limit: Option<u64>,
) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    for &rows in lengths {
        let groups: Vec<i32> = (0..rows as u64).map(|row| (mixed(row) % 17) as i32 - 8).collect();
        let valid = some_bits(rows, 6);
        let floats: Vec<f64> = (0..rows as u64).map(|row| (mixed(row * 3) % 64) as f64 - 32.0).collect();
        let group_view = rig.upload(&groups.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())?;
        let float_view = rig.upload(&floats.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())?;
        let validity = rig.upload(&packed(&valid))?.as_view().clone();
        let group = SortKey {
            validity: Some(validity),
            range: Some(Range { low: -8, high: 8 }),
            descending: true,
            nulls_first: true,
            ..SortKey::new(&group_view, Physical::I32)
        };
        let mut keys = vec![group; repeated];
        keys.push(SortKey::new(&float_view, Physical::F64));
        let sort = Sort::new(keys, rows as u64, limit)?.by(method)?;
        let order = rig.output(sort.order_bytes())?;
        let scratch = rig.output(sort.scratch_bytes())?;
        let number = ExtentRows::Known(rows as u64);
        sort.run(&rig.images, &[], &number, &order, Some(&scratch), rig.stream())?;
        let mut expected: Vec<u32> = (0..rows as u32).collect();
        expected.sort_by(|a, b| {
            let (a, b) = (*a as usize, *b as usize);
            // NULLs first: a NULL group precedes all others.
            let group = |row: usize| valid[row].then(|| std::cmp::Reverse(groups[row]));
            group(a).cmp(&group(b)).then(floats[a].total_cmp(&floats[b]))
        });
        expected.truncate(limit.map_or(rows, |limit| limit as usize));
        let extent = sort.order(&order)?;
        let control = rig.download(&order.view(0..abi::CONTROL_RESULT_BYTES as usize)?)?;
        let what = format!("{method:?} of {rows} rows");
        same(&format!("the number left by {what}"), word(&control, abi::CONTROL_ROWS as usize), expected.len() as u64)?;
        let expected: Vec<u8> = expected.iter().flat_map(|row| row.to_le_bytes()).collect();
        for numbers in extent.columns.iter().flatten() {
            let bytes = rig.download(&numbers.values)?;
            same(&format!("the order by {what}"), bytes, expected.clone())?;
        }
    }
    rig.base.finish()
}

/// Input of every pipeline here: a key, a nullable number, a second number.
struct Table {
    keys: Vec<i64>,
    numbers: Vec<Option<i64>>,
    others: Vec<i64>,
}

impl Table {
    fn new(rows: usize, groups: u64) -> Self {
        let row = |row: usize| row as u64;
        Self {
            keys: (0..rows).map(|r| (mixed(row(r)) % groups) as i64).collect(),
            numbers: (0..rows)
                .map(|r| (!mixed(row(r) + 7).is_multiple_of(5)).then_some(r as i64 % 1_000 - 300))
                .collect(),
            others: (0..rows).map(|r| (mixed(row(r) + 9) % 1_000) as i64).collect(),
        }
    }

    fn rows(&self) -> usize {
        self.keys.len()
    }

    fn extent(&self, rig: &Rig, on: &millpond_memory::Stream) -> Result<ExtentInput, CheckError> {
        let column = |values: &[i64], valid: Option<Vec<bool>>| -> Result<Option<ColumnInput>, CheckError> {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let values = rig.base.upload(&bytes, on)?.as_view().clone();
            let validity = valid.map(|bits| rig.base.upload(&packed(&bits), on)).transpose()?;
            Ok(Some(ColumnInput { values, validity: validity.map(|bits| bits.as_view().clone()), base: 0 }))
        };
        let numbers: Vec<i64> = self.numbers.iter().map(|number| number.unwrap_or(i64::MAX)).collect();
        let valid = self.numbers.iter().map(Option::is_some).collect();
        let columns = vec![column(&self.keys, None)?, column(&numbers, Some(valid))?, column(&self.others, None)?];
        Ok(ExtentInput { rows: ExtentRows::Known(self.rows() as u64), columns })
    }
}

/// `FROM table WHERE other > $0`, with the column nodes of the graph; keys are in `0..groups` if `groups` is given.
fn spec(groups: Option<u64>) -> Result<(PipelineSpec, [NodeId; 3]), CheckError> {
    let mut graph = Graph::new();
    let mut key = Ty::new(Repr::I64);
    if let Some(groups) = groups {
        key = key.within(0, i128::from(groups) - 1);
    }
    let types = [key, Ty::new(Repr::I64).nullable(true), Ty::new(Repr::I64)];
    let nodes = [0, 1, 2].map(|index| graph.column(index, types[index as usize]));
    let literal = graph.literal(0, Ty::new(Repr::I64));
    let filter = graph.compare(Comparison::Greater, nodes[2], literal)?;
    let column = |ty: Ty| ColumnSpec { physical: Physical::I64, has_base: false, ty };
    let spec = PipelineSpec {
        extents: Extents::One,
        columns: types.into_iter().map(column).collect(),
        literals: vec![Ty::new(Repr::I64)],
        lookups: vec![],
        tables: vec![],
        expanded: false,
        graph,
        filters: vec![filter],
        sink: SinkSpec::Materialise { outputs: vec![] },
    };
    Ok((spec, nodes))
}

/// The value of `$0`: half of the rows pass.
const ABOVE: i64 = 499;

/// Rows of an output as integers.
fn integers(rig: &Rig, output: &DeviceBuffer, layout: &OutputLayout) -> Result<Vec<Vec<Option<i64>>>, CheckError> {
    let control = rig.download(&output.view(OutputLayout::CONTROL)?)?;
    same("the error word", word(&control, abi::CONTROL_ERROR as usize), 0)?;
    let rows = word(&control, abi::CONTROL_ROWS as usize) as usize;
    same("a number of rows within its bound", rows as u64 <= layout.rows_upper_bound, true)?;
    let mut columns = Vec::new();
    for column in &layout.columns {
        let part = |start: usize, len: usize| -> Result<Vec<u8>, CheckError> {
            rig.download(&output.view(start..start + len)?)
        };
        let width = column.physical.width() as usize;
        let bytes = part(column.values.start, rows * width)?;
        let validity = match &column.validity {
            Some(range) => Some(part(range.start, rows.div_ceil(8))?),
            None => None,
        };
        let value = |row: usize| {
            let mut wide = [0; 8];
            wide[..width.min(8)].copy_from_slice(&bytes[row * width..row * width + width.min(8)]);
            let shift = 64 - 8 * width.min(8) as u32;
            let valid = validity.as_ref().is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1);
            valid.then_some(i64::from_le_bytes(wide) << shift >> shift)
        };
        columns.push((0..rows).map(value).collect::<Vec<_>>());
    }
    Ok((0..rows).map(|row| columns.iter().map(|column: &Vec<Option<i64>>| column[row]).collect()).collect())
}

fn materialise(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let cache = PipelineCache::new(device);
    for rows in LENGTHS {
        let table = Table::new(rows, 50);
        let (mut spec, [key, number, other]) = spec(None)?;
        let sum = spec.graph.arithmetic(Arithmetic::Add, number, other, Overflow::Wrap)?;
        spec.sink = SinkSpec::Materialise { outputs: vec![key, sum] };
        let pipeline = cache.pipeline(&spec)?;
        let extents = [table.extent(&rig, rig.stream())?];
        let layout = pipeline.output_layout(&extents);
        let output = rig.output(layout.bytes)?;
        let literals = [Literal::Int(i128::from(ABOVE))];
        let input =
            Input { extents: &extents, descriptors: None, literals: &literals, lookups: &[], ..Input::default() };
        pipeline.materialise(input, &output, &layout, rig.stream())?;
        let kept = (0..rows).filter(|row| table.others[*row] > ABOVE);
        let expected: Vec<Vec<Option<i64>>> =
            kept.map(|row| vec![Some(table.keys[row]), table.numbers[row].map(|n| n + table.others[row])]).collect();
        same(&format!("the rows kept of {rows}"), integers(&rig, &output, &layout)?, expected)?;
    }
    drop(cache);
    rig.base.finish()
}

/// A sine, a power and a divisor per row, by functions that are pasted into the kernel.
fn functions(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let cache = PipelineCache::new(device);
    fn divisor(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    for rows in [33, 1_025] {
        let table = Table::new(rows, 50);
        let (mut spec, [_, number, other]) = spec(None)?;
        let graph = &mut spec.graph;
        let x = graph.convert(other, Repr::F64, Overflow::Wrap)?;
        let (sine, size) = (graph.math(Math::Sin, &[x])?, graph.absolute(x, Overflow::Wrap)?);
        let (third, one) = (graph.float(1.0 / 3.0, Repr::F64), graph.float(1.0, Repr::F64));
        let size = graph.arithmetic(Arithmetic::Add, size, one, Overflow::Wrap)?;
        let power = graph.math(Math::Power, &[size, third])?;
        let mut outputs = Vec::new();
        for value in [sine, power] {
            let scaled = graph.times(value, 1e6)?;
            let rounded = graph.float_function(FloatFunction::Round, scaled)?;
            outputs.push(graph.convert(rounded, Repr::I64, Overflow::Fail)?);
        }
        outputs.push(graph.gcd(number, other)?);
        spec.sink = SinkSpec::Materialise { outputs };
        let pipeline = cache.pipeline(&spec)?;
        let extents = [table.extent(&rig, rig.stream())?];
        let layout = pipeline.output_layout(&extents);
        let output = rig.output(layout.bytes)?;
        let literals = [Literal::Int(i128::from(ABOVE))];
        let input =
            Input { extents: &extents, descriptors: None, literals: &literals, lookups: &[], ..Input::default() };
        pipeline.materialise(input, &output, &layout, rig.stream())?;
        let row = |row: usize| {
            let (x, other) = (table.others[row] as f64, table.others[row].unsigned_abs());
            let near = |value: f64| Some((value * 1e6).round() as i64);
            let shared = table.numbers[row].map(|number| divisor(number.unsigned_abs(), other) as i64);
            vec![near(x.sin()), near((x.abs() + 1.0).powf(1.0 / 3.0)), shared]
        };
        let expected: Vec<Vec<Option<i64>>> = (0..rows).filter(|row| table.others[*row] > ABOVE).map(row).collect();
        same(&format!("functions of {rows} rows"), integers(&rig, &output, &layout)?, expected)?;
    }
    drop(cache);
    rig.base.finish()
}

/// Count, sum, min and max of the numbers by key, from two extents in two streams.
fn grouped(device: &Device, rows: usize, groups: u64, ranged: bool, regime: Regime) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let cache = PipelineCache::new(device);
    let (mut spec, [key, number, _]) = spec(ranged.then_some(groups))?;
    let keys = if regime == Regime::Scalar { vec![] } else { vec![key] };
    let mut aggregate = AggregateSpec { regime: Some(regime), ..AggregateSpec::new(keys) };
    for function in [Aggregate::CountStar, Aggregate::Sum(number), Aggregate::Min(number), Aggregate::Max(number)] {
        aggregate.accumulate(&spec.graph, Accumulator { aggregate: function, filter: None });
    }
    spec.sink = SinkSpec::Aggregate(aggregate);
    let pipeline = cache.pipeline(&spec)?;
    same("where the groups are kept", pipeline.regime(), Some(regime))?;

    let table = Table::new(rows, groups);
    let state_layout = pipeline.state_layout(2 * rows as u64)?;
    let state = DeviceBuffer::zeroed(state_layout.bytes, rig.stream(), &rig.base.pool)?;
    let literals = [Literal::Int(i128::from(ABOVE))];
    for on in &rig.base.streams[1..3] {
        let extents = [table.extent(&rig, on)?];
        let input =
            Input { extents: &extents, descriptors: None, literals: &literals, lookups: &[], ..Input::default() };
        pipeline.accumulate(input, &state, &state_layout, on)?;
    }
    let layout = pipeline.emit_layout(&state_layout, 2 * rows as u64)?;
    let output = rig.output(layout.bytes)?;
    pipeline.emit(&state, &state_layout, &output, &layout, rig.stream())?;
    let mut actual = integers(&rig, &output, &layout)?;
    actual.sort();

    // Both extents hold the same rows.
    let mut expected: BTreeMap<Option<i64>, (i64, Vec<i64>)> = BTreeMap::new();
    if regime == Regime::Scalar {
        expected.insert(None, (0, vec![]));
    }
    for row in (0..rows).filter(|row| table.others[*row] > ABOVE) {
        let group = expected.entry((regime != Regime::Scalar).then_some(table.keys[row])).or_default();
        group.0 += 2;
        group.1.extend(table.numbers[row]);
    }
    let expected: Vec<Vec<Option<i64>>> = expected
        .into_iter()
        .map(|(key, (count, numbers))| {
            let sum = (!numbers.is_empty()).then(|| 2 * numbers.iter().sum::<i64>());
            let results = [Some(count), sum, numbers.iter().min().copied(), numbers.iter().max().copied()];
            key.map(Some).into_iter().chain(results).collect()
        })
        .collect();
    same(&format!("the groups of {rows} rows"), actual, expected)?;
    drop((pipeline, cache, state, output));
    rig.base.finish()
}

fn total(device: &Device) -> Result<(), CheckError> {
    LENGTHS.iter().try_for_each(|rows| grouped(device, *rows, 1, true, Regime::Scalar))
}

fn few_groups(device: &Device) -> Result<(), CheckError> {
    LENGTHS.iter().try_for_each(|rows| grouped(device, *rows, 6, true, Regime::Private))
}

fn direct_groups(device: &Device) -> Result<(), CheckError> {
    LENGTHS.iter().try_for_each(|rows| grouped(device, *rows, 1_500, true, Regime::Direct))
}

fn block_groups(device: &Device) -> Result<(), CheckError> {
    LENGTHS.iter().try_for_each(|rows| grouped(device, *rows, 150, true, Regime::Block))
}

fn hash_groups(device: &Device) -> Result<(), CheckError> {
    LENGTHS.iter().try_for_each(|rows| grouped(device, *rows, 4_000, false, Regime::Hash))
}
