//! What does the order of the tiles cost? Compaction in order (`select`) beside compaction into an arena (`pick`).
//!
//! ```text
//!   Varies   share of rows kept × rows          Holds   one stream, warm pool, input resident, arena and output large enough
//!   Reports  device time of one launch with what it needs before it (zeroed scratch, a cursor at 0): median of 20
//!   Proof    number and sum of the row numbers, the same for both
//!   Without  a GPU: the smoke size runs once on the simulated device, which has no time to report
//! ```
//!
//! `cargo bench -p millpond-kernels --bench pick`

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;

use millpond_kernels::pick::{self, Run};
use millpond_kernels::{Images, Rows, select};
use millpond_memory::driver::CudaDriver;
use millpond_memory::driver::sim::SimDriver;
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceBumpArena, Driver, DriverKind, MemoryPool, PinnedPool, Stream,
};

struct Bench {
    device: Device,
    stream: Stream,
    pool: MemoryPool,
    pinned: PinnedPool,
    images: Images,
}

/// How many row numbers, and their sum.
type Digest = (u64, u64);

fn digest(numbers: &[u8]) -> Digest {
    let (words, _) = numbers.as_chunks::<4>();
    words.iter().fold((0, 0), |(count, sum), word| (count + 1, sum + u64::from(u32::from_le_bytes(*word))))
}

impl Bench {
    fn home(&self, view: &millpond_memory::DeviceView) -> Result<Vec<u8>, Box<dyn Error>> {
        Ok(view.download_vec(&self.stream, &self.pinned)?.wait()?)
    }

    /// Milliseconds of device time, the median over the rounds.
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

    fn case(&self, rows: u64, one_in: u64, rounds: usize) -> Result<(), Box<dyn Error>> {
        let bit = |row: u64| (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(one_in);
        let mut mask = vec![0u8; rows.div_ceil(32) as usize * 4];
        (0..rows).filter(|row| bit(*row)).for_each(|row| mask[row as usize / 8] |= 1 << (row % 8));
        let (on, number) = (&self.stream, Rows::known(rows));
        let mask = DeviceBuffer::upload(&mask, on, &self.pool, &self.pinned)?;

        let out = DeviceBuffer::new(rows as usize * 4, on, &self.pool)?;
        let selected = DeviceBuffer::new(8, on, &self.pool)?;
        let scratch = DeviceBuffer::new(select::scratch_bytes(rows) as usize, on, &self.pool)?;
        let in_order = self.time(rounds, || {
            select::select_rows(&self.images, &mask, &number, &out, &selected, &scratch, on)?;
            Ok(())
        })?;
        let count = self.home(&selected)?.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        let expected = digest(&self.home(&out.view(0..count as usize * 4)?)?);
        drop((out, scratch));

        let capacity = NonZeroUsize::new(pick::most_bytes(rows, 4) as usize).ok_or("no rows")?;
        let arena = DeviceBumpArena::new(capacity, on, &self.pool)?;
        let directory = DeviceBuffer::new(pick::directory_bytes(rows) as usize, on, &self.pool)?;
        let in_arena = self.time(rounds, || {
            arena.reset(on)?;
            pick::pick_rows(&self.images, &mask, &number, &arena, &directory, on)?;
            Ok(())
        })?;
        let mut actual = (0, 0);
        for run in Run::list(&self.home(&directory)?).iter().filter(|run| run.count > 0) {
            let start = run.start.ok_or("the arena is large enough")? as usize;
            let (count, sum) = digest(&self.home(&arena.bytes().view(start..start + run.count as usize * 4)?)?);
            actual = (actual.0 + count, actual.1 + sum);
        }
        assert_eq!(actual, expected, "both keep the same rows");
        let needed = arena.outcome(on, &self.pinned)?.wait()?.needed;
        print!("{rows:>11} rows, 1 in {one_in:<3} kept {count:>10}, arena {needed:>10}");
        match self.device.driver().kind() {
            DriverKind::Cuda => println!("   select {in_order:>8.4} ms   pick {in_arena:>8.4} ms"),
            DriverKind::Sim => println!("   (simulated: no times)"),
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (driver, rows, rounds): (Arc<dyn Driver>, &[u64], usize) = match CudaDriver::open() {
        Ok(driver) => (driver, &[1_000_000, 100_000_000], 20),
        Err(reason) => {
            println!("no GPU: {reason}");
            (SimDriver::with_seed(1), &[100_000], 1)
        }
    };
    let device = Device::open(driver, 0)?;
    println!("{device:?}");
    let bench = Bench {
        stream: Stream::new(&device)?,
        pool: MemoryPool::builder(&device).limit(ByteSize::gib(4)).build()?,
        pinned: PinnedPool::builder(&device).build(),
        images: Images::new(&device),
        device,
    };
    for rows in rows {
        for one_in in [100, 2, 1] {
            bench.case(*rows, one_in, rounds)?;
        }
    }
    Ok(())
}
