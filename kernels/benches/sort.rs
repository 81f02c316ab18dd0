//! Speed of sorting, by digits and by comparison, and the cost of the first ten rows.
//!
//! ```text
//!   Varies   kind of key × rows × method     Holds   one stream, warm pool, resident keys, allocated scratch, order
//!   Reports  device time of a whole sort, including clearing its scratch: median of 10, and rows per second
//!   Proof    the row numbers are read back once: each is in order after its predecessor; their sum is checked
//!   Without  a GPU: the smoke size runs once on the simulated device, which reports no time
//! ```
//!
//! `cargo bench -p millpond-kernels --bench sort`

use std::error::Error;
use std::sync::Arc;

use millpond_kernels::Images;
use millpond_kernels::codegen::ir::{Physical, Range};
use millpond_kernels::pipeline::ExtentRows;
use millpond_kernels::sort::{Method, Sort, SortKey};
use millpond_memory::driver::CudaDriver;
use millpond_memory::driver::sim::SimDriver;
use millpond_memory::{ByteSize, Device, DeviceBuffer, Driver, DriverKind, MemoryPool, PinnedPool, Stream};

struct Bench {
    device: Device,
    stream: Stream,
    pool: MemoryPool,
    pinned: PinnedPool,
    images: Images,
}

/// Distribution of a key's values, by row number.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// All 64 bits.
    Wide,
    /// 2²⁰ distinct values, in a range that the sort knows.
    Narrow,
    /// 64 bits; nine of ten rows have one value.
    Skewed,
    /// 64 bits, already sorted.
    Sorted,
}

fn mixed(row: u64) -> u64 {
    let z = row.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ z >> 27
}

impl Values {
    fn of(self, row: u64) -> u64 {
        match self {
            Values::Wide => mixed(row),
            Values::Narrow => mixed(row) & ((1 << 20) - 1),
            Values::Skewed if !mixed(row).is_multiple_of(10) => 1 << 40,
            Values::Skewed => mixed(row + 1),
            Values::Sorted => row << 12,
        }
    }

    fn range(self) -> Option<Range> {
        matches!(self, Values::Narrow).then_some(Range { low: 0, high: (1 << 20) - 1 })
    }
}

impl Bench {
    /// Milliseconds of device time: the median over the rounds.
    fn time(&self, rounds: usize, mut work: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f32, Box<dyn Error>> {
        work()?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            let start = self.stream.mark_time()?;
            work()?;
            let end = self.stream.mark_time()?;
            self.stream.synchronize()?;
            times.push(end.ms_since(&start)?);
        }
        times.sort_by(f32::total_cmp);
        Ok(times[times.len() / 2])
    }

    fn case(&self, values: Values, rows: u64, rounds: usize) -> Result<(), Box<dyn Error>> {
        let on = &self.stream;
        let bytes: Vec<u8> = (0..rows).flat_map(|row| values.of(row).to_le_bytes()).collect();
        let column = DeviceBuffer::upload(&bytes, on, &self.pool, &self.pinned)?;
        for (method, limit) in [(Method::Radix, None), (Method::Merge, None), (Method::Top, Some(10))] {
            let key = SortKey { range: values.range(), ..SortKey::new(&column, Physical::U64) };
            let sort = Sort::new(vec![key], rows, limit)?.by(method)?;
            let order = DeviceBuffer::new(sort.order_bytes(), on, &self.pool)?;
            let scratch = DeviceBuffer::new(sort.scratch_bytes(), on, &self.pool)?;
            let known = ExtentRows::Known(rows);
            let ms = self.time(rounds, || {
                sort.run(&self.images, &[], &known, &order, Some(&scratch), on)?;
                Ok(())
            })?;
            let extent = sort.order(&order)?;
            let numbers = extent.columns[0].as_ref().ok_or("an order has row numbers")?;
            let bytes = numbers.values.download_vec(on, &self.pinned)?.wait()?;
            let (words, _) = bytes.as_chunks::<4>();
            let order: Vec<u64> = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).collect();
            let ordered = order.windows(2).all(|w| (values.of(w[0]), w[0]) < (values.of(w[1]), w[1]));
            assert!(ordered, "{method:?} of {rows} {values:?} keys");
            assert!(limit.is_some() || order.iter().sum::<u64>() == rows * (rows - 1) / 2);
            print!(
                "{rows:>11} rows, {:<8} {:<6} {:>3} launches",
                format!("{values:?}"),
                format!("{method:?}"),
                sort.launches()
            );
            match self.device.driver().kind() {
                DriverKind::Cuda => println!("{ms:>10.4} ms {:>8.2} G rows/s", rows as f32 / ms / 1e6),
                DriverKind::Sim => println!("   (simulated: no times)"),
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (driver, rows, rounds): (Arc<dyn Driver>, &[u64], usize) = match CudaDriver::open() {
        Ok(driver) => (driver, &[100_000, 1_000_000, 10_000_000, 100_000_000], 10),
        Err(reason) => {
            println!("no GPU: {reason}");
            (SimDriver::with_seed(1), &[20_000], 1)
        }
    };
    let device = Device::open(driver, 0)?;
    println!("{device:?}");
    let bench = Bench {
        stream: Stream::new(&device)?,
        pool: MemoryPool::builder(&device).limit(ByteSize::gib(8)).build()?,
        pinned: PinnedPool::builder(&device).build(),
        images: Images::new(&device),
        device,
    };
    for rows in rows {
        for values in [Values::Wide, Values::Narrow, Values::Skewed, Values::Sorted] {
            bench.case(values, *rows, rounds)?;
        }
    }
    Ok(())
}
