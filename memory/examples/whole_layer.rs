//! The complete memory layer, on a GPU if there is one and else on the simulated device.
//!
//! ```text
//!   cargo run -p millpond-memory --example whole_layer [STRATEGY]
//! ```

use std::error::Error;
use std::sync::Arc;

use millpond_memory::adaptor::StatisticsResourceAdaptor;
use millpond_memory::driver::{CudaDriver, sim::SimDriver};
use millpond_memory::{ByteSize, Device, DeviceBuffer, Driver, MemoryPool, PinnedPool, Strategy, StreamPool};

fn main() -> Result<(), Box<dyn Error>> {
    // 1. A driver and a device. This opens libcuda; without it, the reason is printed.
    let driver: Arc<dyn Driver> = match CudaDriver::open() {
        Ok(driver) => driver,
        Err(reason) => {
            println!("no GPU: {reason}");
            SimDriver::with_seed(1)
        }
    };
    let device = Device::open(driver, 0)?;
    println!("{device:?}, {} of memory", device.limits().total_memory);

    // 2. A strategy, wrapped in counts, and a pool with a limit on top.
    let strategy: Strategy = std::env::args().nth(1).as_deref().unwrap_or("cuda_async").parse()?;
    let counted = Arc::new(StatisticsResourceAdaptor::new(strategy.create(&device)?));
    let pool = MemoryPool::builder(&device).limit(ByteSize::mib(256)).resource(counted.clone()).build()?;
    let pinned = PinnedPool::builder(&device).build();

    // 3. Streams, lent for a query; its work is counted under its own name.
    let streams = StreamPool::new(&device);
    let query = device.scope().child("query 1");
    let (load, compute) = (streams.take(&query)?, streams.take(&query)?);

    // 4. Uploaded on one stream, copied on another, downloaded on the first: the order is automatic.
    let input: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let uploaded = DeviceBuffer::upload(&input, &load, &pool, &pinned)?;
    let copy = DeviceBuffer::new(input.len(), &compute, &pool)?;
    uploaded.copy_to(&copy, &compute)?;
    drop(uploaded);
    let home = copy.download_vec(&load, &pinned)?;
    drop(copy);
    // The only wait of the host. A query would `.await`.
    assert_eq!(home.wait()?, input);

    // 5. Counters of the query.
    let (counters, bytes) = (query.counters(), counted.counts().bytes);
    println!("{strategy}: {} allocations, peak {}", counters.allocations, ByteSize(counters.peak_bytes));
    println!("waits between streams: {} made, {} implied", counters.waits_inserted, counters.waits_elided);
    println!("the strategy was asked for {} and holds {} now", ByteSize(bytes.total), pool.statistics()?.reserved);
    println!("{} given back", pool.trim_to(ByteSize::ZERO)?);
    Ok(())
}
