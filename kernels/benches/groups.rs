//! Speed of grouping rows, by the number of groups, the order of the rows and the kind of table.
//!
//! ```text
//!   Varies   groups × order of the keys × table    Holds   one stream, warm pool, resident columns, allocated table
//!   Reports  device time of clearing and filling the table: median of 5, rows per second, bytes read per second
//!   Growing  a hash table with initial room for 65,536 groups, including its waits, growth and retried rows
//!   Proof    the groups are read back once: their number, the sum of their counts, and their sums modulo 2⁶⁴
//!   Without  a GPU: the smoke size runs once on the simulated device, which reports no time
//! ```
//!
//! `cargo bench -p millpond-kernels --bench groups`

use std::error::Error;
use std::sync::Arc;

use millpond_kernels::codegen::ir::*;
use millpond_kernels::layout::{OutputLayout, StateLayout};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, Leftover, Pipeline, PipelineCache};
use millpond_kernels::tune;
use millpond_memory::driver::CudaDriver;
use millpond_memory::driver::sim::SimDriver;
use millpond_memory::{ByteSize, Device, DeviceBuffer, Driver, DriverKind, MemoryPool, PinnedPool, Stream};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of a row: a key and two values.
const ROW_BYTES: u64 = 4 + 8 + 8;

#[derive(Debug, Clone, Copy)]
enum Order {
    Random,
    /// Sorted by key.
    Clustered,
    /// Nine of ten rows have one key.
    Skewed,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Table {
    Block,
    Direct,
    Hash,
    Growing,
}

struct Bench {
    device: Device,
    stream: Stream,
    pool: MemoryPool,
    pinned: PinnedPool,
    cache: PipelineCache,
}

fn mixed(row: u64) -> u64 {
    let z = row.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ z >> 27
}

impl Order {
    fn key(self, row: u64, rows: u64, groups: u64) -> u32 {
        (match self {
            Order::Random => mixed(row) % groups,
            Order::Clustered => (row as u128 * groups as u128 / rows as u128) as u64,
            Order::Skewed if !mixed(row).is_multiple_of(10) => groups / 2,
            Order::Skewed => mixed(row + 1) % groups,
        }) as u32
    }
}

/// `SELECT key, count(*), sum(a), sum(b), max(a) GROUP BY key`
fn spec(table: Table, groups: u64, rows: u64) -> PipelineSpec {
    let key = Ty::new(Repr::U32);
    // Keys without a range get a hash table.
    let key = if matches!(table, Table::Block | Table::Direct) { key.within(0, i128::from(groups) - 1) } else { key };
    let value = Ty::new(Repr::I64);
    let mut graph = Graph::new();
    let [k, a, b] = [(0, key), (1, value), (2, value)].map(|(index, ty)| graph.column(index, ty));
    let regime = match table {
        Table::Block => Regime::Block,
        Table::Direct => Regime::Direct,
        Table::Hash | Table::Growing => Regime::Hash,
    };
    let mut sink = AggregateSpec { regime: Some(regime), rows_hint: Some(rows), ..AggregateSpec::new(vec![k]) };
    for aggregate in [Aggregate::CountStar, Aggregate::Sum(a), Aggregate::Sum(b), Aggregate::Max(a)] {
        sink.accumulate(&graph, Accumulator { aggregate, filter: None });
    }
    let column = |physical, ty| ColumnSpec { physical, has_base: false, ty };
    PipelineSpec {
        extents: Extents::One,
        columns: vec![column(Physical::U32, key), column(Physical::I64, value), column(Physical::I64, value)],
        literals: vec![],
        lookups: vec![],
        tables: vec![],
        expanded: false,
        graph,
        filters: vec![],
        sink: SinkSpec::Aggregate(sink),
    }
}

impl Bench {
    fn column(&self, bytes: Vec<u8>) -> Result<Option<ColumnInput>> {
        let values = DeviceBuffer::upload(&bytes, &self.stream, &self.pool, &self.pinned)?;
        Ok(Some(ColumnInput { values: values.as_view().clone(), validity: None, base: 0 }))
    }

    /// Fills a table that starts small and grows; returns the final table.
    fn grown(&self, pipeline: &Pipeline, extent: &ExtentInput, rows: u64) -> Result<(DeviceBuffer, StateLayout)> {
        let on = &self.stream;
        let mut layout = pipeline.state_layout(rows.min(1 << 16))?;
        let mut state = DeviceBuffer::zeroed(layout.bytes, on, &self.pool)?;
        let noted = DeviceBuffer::zeroed(Leftover::bytes(rows), on, &self.pool)?;
        let mut again = false;
        loop {
            let leftover = Leftover { noted: noted.as_view().clone(), again, limit: layout.max_groups() };
            let extents = std::slice::from_ref(extent);
            let input = Input { extents, leftover: Some(&leftover), ..Input::default() };
            pipeline.accumulate(input, &state, &layout, on)?;
            if noted.view(Leftover::COUNT)?.download_vec(on, &self.pinned)?.wait()? == [0; 8] {
                return Ok((state, layout));
            }
            noted.view(Leftover::COUNT)?.fill(0, on)?;
            let larger = pipeline.state_layout(layout.max_groups() * if layout.bytes < 32 << 20 { 8 } else { 2 })?;
            let next = DeviceBuffer::zeroed(larger.bytes, on, &self.pool)?;
            pipeline.rehash(&state, &layout, &next, &larger, on)?;
            (state, layout, again) = (next, larger, true);
        }
    }

    fn case(&self, table: Table, order: Order, groups: u64, rows: u64, rounds: usize) -> Result<()> {
        let on = &self.stream;
        let keys: Vec<u32> = (0..rows).map(|row| order.key(row, rows, groups)).collect();
        let values = |salt: u64| (0..rows).flat_map(move |row| (mixed(row ^ salt) >> 20).to_le_bytes());
        let total = |salt: u64| (0..rows).fold(0u64, |sum, row| sum.wrapping_add(mixed(row ^ salt) >> 20));
        let sums = [total(1 << 40), total(2 << 40)];
        let columns = vec![
            self.column(keys.iter().flat_map(|key| key.to_le_bytes()).collect())?,
            self.column(values(1 << 40).collect())?,
            self.column(values(2 << 40).collect())?,
        ];
        let extent = ExtentInput { rows: ExtentRows::Known(rows), columns };
        let pipeline = self.cache.pipeline(&spec(table, groups, rows))?;
        let mut filled = (DeviceBuffer::new(0, on, &self.pool)?, pipeline.state_layout(groups)?);
        if table != Table::Growing {
            filled.0 = DeviceBuffer::new(filled.1.bytes, on, &self.pool)?;
        }
        let mut times = Vec::new();
        for _ in 0..=rounds {
            let start = on.mark_time()?;
            if table == Table::Growing {
                filled = self.grown(&pipeline, &extent, rows)?;
            } else {
                filled.0.fill(0, on)?;
                let input = Input { extents: std::slice::from_ref(&extent), ..Input::default() };
                pipeline.accumulate(input, &filled.0, &filled.1, on)?;
            }
            let end = on.mark_time()?;
            on.synchronize()?;
            times.push(end.ms_since(&start)?);
        }
        // Drop the first round, which includes lazy loading.
        times.remove(0);
        times.sort_by(f32::total_cmp);
        let ms = times[times.len() / 2];

        let (state, layout) = &filled;
        let out = pipeline.emit_layout(layout, groups)?;
        let output = DeviceBuffer::new(out.bytes, on, &self.pool)?;
        pipeline.emit(state, layout, &output, &out, on)?;
        let words = |range: std::ops::Range<usize>| -> Result<Vec<u64>> {
            let bytes = output.view(range)?.download_vec(on, &self.pinned)?.wait()?;
            Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
        };
        let control = words(OutputLayout::CONTROL)?;
        assert_eq!(control[0], 0, "error word {:?}", ErrorCode::from_word(control[0]));
        let found = control[1] as usize;
        let mut expected = keys;
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(found, expected.len(), "groups");
        for (column, total) in [(1, rows), (2, sums[0]), (3, sums[1])] {
            let start = out.columns[column].values.start;
            let all = words(start..start + found * 8)?.into_iter().fold(0u64, u64::wrapping_add);
            assert_eq!(all, total, "column {column}");
        }
        print!("{rows:>9} rows {groups:>9} groups  {:<9} {:<7}", format!("{order:?}"), format!("{table:?}"));
        print!(" {:>8.1} MiB", layout.bytes as f64 / f64::from(1 << 20));
        match self.device.driver().kind() {
            DriverKind::Cuda => {
                let (rate, read) = (rows as f32 / ms / 1e6, (rows * ROW_BYTES) as f32 / ms / 1e6);
                println!("{ms:>10.3} ms {rate:>8.2} G rows/s {read:>8.0} GB/s");
            }
            DriverKind::Sim => println!("   (simulated: no times)"),
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let (driver, rows, rounds): (Arc<dyn Driver>, u64, usize) = match CudaDriver::open() {
        Ok(driver) => (driver, 1 << 24, 5),
        Err(reason) => {
            println!("no GPU: {reason}");
            (SimDriver::with_seed(1), 5_000, 1)
        }
    };
    let device = Device::open(driver, 0)?;
    println!("{device:?}");
    let bench = Bench {
        stream: Stream::new(&device)?,
        pool: MemoryPool::builder(&device).limit(ByteSize::gib(16)).build()?,
        pinned: PinnedPool::builder(&device).build(),
        cache: PipelineCache::new(&device),
        device,
    };
    for groups in [30, 100, 300, 1_000, 2_400, 10_000, 1_000_000, rows / 4] {
        for order in [Order::Random, Order::Clustered, Order::Skewed] {
            for table in [Table::Block, Table::Direct, Table::Hash, Table::Growing] {
                // Four words per group, against the maximum of a block's table.
                if table == Table::Block && groups * 4 * 8 > tune::BLOCK_TABLE_BYTES {
                    continue;
                }
                // With fewer groups than its initial room, the table would not grow.
                if groups <= rows && (table != Table::Growing || groups > 1 << 16 || rows < 1 << 20) {
                    bench.case(table, order, groups, rows, rounds)?;
                }
            }
        }
    }
    Ok(())
}
