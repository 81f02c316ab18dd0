//! Effects of each adaptor on its inner resource.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use millpond_memory::adaptor::{
    FREED, FRESH, Failure, FailureAction, FailureCallbackResourceAdaptor, LimitingResourceAdaptor,
    LoggingResourceAdaptor, PoisonResourceAdaptor, StatisticsResourceAdaptor, TrackingResourceAdaptor,
};
use millpond_memory::driver::Driver;
use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts, SimDriver, SimOptions};
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceMemoryResource, MemoryError, MemoryPool, OomAction, PinnedPool, Strategy,
    Stream,
};

fn open(options: SimOptions) -> (Arc<SimDriver>, Device, Stream) {
    let driver = SimDriver::new(options);
    let device = Device::open(driver.clone(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    (driver, device, stream)
}

fn len(bytes: usize) -> NonZeroUsize {
    NonZeroUsize::new(bytes).unwrap()
}

fn pool_over(resource: Arc<dyn DeviceMemoryResource>) -> MemoryPool {
    let device = resource.device().clone();
    MemoryPool::builder(&device).limit(ByteSize::MAX).resource(resource).build().unwrap()
}

#[test]
fn limit_counts_the_same_on_the_way_out_and_back() {
    let (_driver, device, stream) = open(SimOptions::default());
    let limiting = LimitingResourceAdaptor::new(Strategy::Caching.create(&device).unwrap(), ByteSize::mib(1));
    let raws: Vec<_> =
        (1..=700).map(|bytes| limiting.allocate(len(bytes), &stream, Location::caller()).unwrap()).collect();
    let rounded: u64 = (1..=700u64).map(|bytes| bytes.next_multiple_of(256)).sum();
    assert_eq!(limiting.used_bytes(), ByteSize(rounded));
    for raw in raws {
        limiting.deallocate(raw, &stream, Location::caller()).unwrap();
    }
    assert_eq!(limiting.used_bytes(), ByteSize::ZERO);
    let whole = limiting.allocate(len(1 << 20), &stream, Location::caller()).unwrap();
    let error = limiting.allocate(len(1), &stream, Location::caller()).unwrap_err();
    let MemoryError::OutOfMemory { wanted, free, limit, .. } = error else { panic!("{error}") };
    assert_eq!((wanted, free, limit), (ByteSize(256), ByteSize::ZERO, ByteSize::mib(1)));
    limiting.deallocate(whole, &stream, Location::caller()).unwrap();
}

#[test]
fn limit_does_not_count_what_failed_below() {
    let fail_calls = vec![FailCall::new(CallKind::Allocate, 1, FailureLasts::Once)];
    let (_driver, device, stream) = open(SimOptions { fail_calls, ..SimOptions::default() });
    let limiting = LimitingResourceAdaptor::new(Strategy::Cuda.create(&device).unwrap(), ByteSize::kib(4));
    assert!(limiting.allocate(len(4096), &stream, Location::caller()).unwrap_err().is_out_of_memory());
    assert_eq!(limiting.used_bytes(), ByteSize::ZERO);
    let raw = limiting.allocate(len(4096), &stream, Location::caller()).unwrap();
    limiting.deallocate(raw, &stream, Location::caller()).unwrap();
}

#[test]
fn callback_makes_room_until_it_is_enough() {
    let (_driver, device, stream) = open(SimOptions::default());
    let limiting = Arc::new(LimitingResourceAdaptor::new(Strategy::Caching.create(&device).unwrap(), ByteSize::mib(4)));
    let spare: Arc<Mutex<Vec<DeviceBuffer>>> = Arc::default();
    let asked: Arc<Mutex<Vec<Failure>>> = Arc::default();
    let asking = FailureCallbackResourceAdaptor::new(limiting, {
        let (spare, asked) = (Arc::clone(&spare), Arc::clone(&asked));
        move |failure| {
            asked.lock().unwrap().push(failure);
            match spare.lock().unwrap().pop() {
                Some(_) => FailureAction::Retry,
                None => FailureAction::Fail,
            }
        }
    });
    let pool = pool_over(Arc::new(asking));
    for _ in 0..4 {
        let buffer = DeviceBuffer::new(1 << 20, &stream, &pool).unwrap();
        spare.lock().unwrap().push(buffer);
    }
    let large = DeviceBuffer::new(2 << 20, &stream, &pool).unwrap();
    assert_eq!(spare.lock().unwrap().len(), 2);
    let expected = [0, 1].map(|attempt| Failure { wanted: ByteSize::mib(2), stream: stream.id(), attempt });
    assert_eq!(*asked.lock().unwrap(), expected);
    drop(large);
    spare.lock().unwrap().clear();
    assert!(DeviceBuffer::new(5 << 20, &stream, &pool).unwrap_err().is_out_of_memory());
}

#[test]
fn callback_that_allocates_is_not_called_inside_itself_nor_without_end() {
    let (_driver, device, stream) = open(SimOptions::default());
    let limiting = Arc::new(LimitingResourceAdaptor::new(Strategy::Cuda.create(&device).unwrap(), ByteSize::kib(1)));
    let asked = Arc::new(Mutex::new(0));
    let own: Arc<Mutex<Option<Arc<FailureCallbackResourceAdaptor>>>> = Arc::default();
    let asking = Arc::new(FailureCallbackResourceAdaptor::new(limiting, {
        let (asked, own, stream) = (Arc::clone(&asked), Arc::clone(&own), stream.clone());
        move |_| {
            *asked.lock().unwrap() += 1;
            let own = own.lock().unwrap().clone().expect("set before the first call");
            assert!(own.allocate(len(4096), &stream, Location::caller()).unwrap_err().is_out_of_memory());
            FailureAction::Retry
        }
    }));
    *own.lock().unwrap() = Some(Arc::clone(&asking));
    assert!(asking.allocate(len(2048), &stream, Location::caller()).unwrap_err().is_out_of_memory());
    assert_eq!(*asked.lock().unwrap(), 100, "once an attempt, and not for ever");
    own.lock().unwrap().take();
}

#[test]
fn only_out_of_memory_is_worth_a_call() {
    let (driver, device, stream) = open(SimOptions::default());
    let asking = FailureCallbackResourceAdaptor::new(Strategy::CudaAsync.create(&device).unwrap(), |failure| {
        panic!("asked for {failure:?}")
    });
    driver.lose_device(device.id());
    assert!(stream.synchronize().is_err());
    assert!(asking.allocate(len(100), &stream, Location::caller()).unwrap_err().is_device_lost());
}

#[test]
fn statistics_count_under_the_tag_of_the_allocation() {
    let (_driver, device, stream) = open(SimOptions::default());
    let statistics = StatisticsResourceAdaptor::new(Strategy::Binning.create(&device).unwrap());
    let query = device.scope().child("query 7");
    let (sort, scan) = (stream.with_scope(&query.child("sort")), stream.with_scope(&query.child("scan")));
    let a = statistics.allocate(len(1000), &sort, Location::caller()).unwrap();
    let b = statistics.allocate(len(500), &sort, Location::caller()).unwrap();
    let c = statistics.allocate(len(70), &scan, Location::caller()).unwrap();
    // Freed under another scope.
    statistics.deallocate(a, &scan, Location::caller()).unwrap();
    let all = statistics.counts();
    assert_eq!((all.bytes.current, all.bytes.peak, all.bytes.total), (570, 1570, 1570));
    assert_eq!((all.allocations.current, all.allocations.peak, all.allocations.total), (2, 3, 3));
    let tags = statistics.counts_by_tag();
    let seen: Vec<_> =
        tags.iter().map(|(tag, c)| (tag.as_str(), c.bytes.current, c.bytes.peak, c.bytes.total)).collect();
    assert_eq!(seen, [("query 7/scan", 70, 70, 70), ("query 7/sort", 500, 1500, 1500)]);
    statistics.reset_peaks().unwrap();
    assert_eq!(statistics.counts().bytes.peak, 570);
    for raw in [b, c] {
        statistics.deallocate(raw, &stream, Location::caller()).unwrap();
    }
    assert!(statistics.allocate(len(1 << 46), &scan, Location::caller()).is_err());
    assert_eq!((statistics.counts().failures, statistics.counts_by_tag()[0].1.failures), (1, 1));
    assert_eq!(statistics.counts().bytes.current, 0);
}

#[test]
fn tracking_names_who_holds_what() {
    let (_driver, device, stream) = open(SimOptions::default());
    let tracking = Arc::new(TrackingResourceAdaptor::new(Strategy::Arena.create(&device).unwrap()));
    let pool = pool_over(tracking.clone());
    let on = stream.with_scope(&device.scope().child("query 7").child("sort"));
    let gone = DeviceBuffer::new(4096, &on, &pool).unwrap();
    let line = line!() + 1;
    let held = DeviceBuffer::new(1000, &on, &pool).unwrap();
    drop(gone);
    let outstanding = tracking.outstanding();
    assert_eq!(outstanding.len(), 1);
    assert_eq!((outstanding[0].id, outstanding[0].bytes, outstanding[0].site.line()), (2, ByteSize(1024), line));
    let text = outstanding[0].to_string();
    assert!(text.starts_with("1 KiB on stream 0 for query 7/sort, allocated at "), "{text}");
    assert!(text.contains("adaptors.rs") && text.ends_with("(allocation 2)"), "{text}");
    drop(held);
    assert!(tracking.outstanding().is_empty());
    let foreign = Strategy::Cuda.create(&device).unwrap();
    let raw = foreign.allocate(len(100), &stream, Location::caller()).unwrap();
    let error = tracking.deallocate(raw, &stream, Location::caller()).unwrap_err();
    assert!(matches!(error, MemoryError::NotHandedOut { .. }), "{error}");
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn log_begins_with_rmms_columns() {
    let (_driver, device, stream) = open(SimOptions::default());
    let out = Shared::default();
    let logging = LoggingResourceAdaptor::new(Strategy::Caching.create(&device).unwrap(), out.clone()).unwrap();
    let on = stream.with_scope(&device.scope().child("query \"7\", again"));
    let a = logging.allocate(len(4096), &on, Location::caller()).unwrap();
    let address = a.ptr();
    logging.deallocate(a, &on, Location::caller()).unwrap();
    let again = logging.allocate(len(4096), &stream, Location::caller()).unwrap();
    assert_eq!(again.ptr(), address, "an address is not a name");
    assert!(logging.allocate(len(1 << 46), &stream, Location::caller()).is_err());
    logging.deallocate(again, &stream, Location::caller()).unwrap();
    logging.flush().unwrap();
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Thread,Time,Action,Pointer,Size,Stream,Seq,TimeNs,AllocId,Position,After,Tag");
    let fields: Vec<Vec<&str>> = lines[1..].iter().map(|line| line.splitn(12, ',').collect()).collect();
    let column = |index: usize| -> Vec<&str> { fields.iter().map(|fields| fields[index]).collect() };
    assert_eq!(column(2), ["allocate", "free", "allocate", "allocate failure", "free"]);
    assert_eq!(column(3)[..2], [format!("{address:?}"), format!("{address:?}")]);
    assert_eq!(column(4), ["4096", "4096", "4096", "70368744177664", "4096"]);
    assert_eq!(column(5), ["0x0"; 5]);
    assert_eq!(column(6), ["0", "1", "2", "3", "4"]);
    assert_eq!(column(8), ["1", "1", "2", "0", "2"]);
    assert_eq!(column(11)[0], "\"query \"\"7\"\", again\"");
    assert_eq!(column(11)[2], "device 0");
    let time: Vec<&str> = column(1)[0].split([':', '.']).collect();
    assert_eq!(time.iter().map(|part| part.len()).collect::<Vec<_>>(), [2, 2, 2, 6], "{time:?}");
}

#[test]
fn log_that_cannot_be_written_says_so_and_allocation_goes_on() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("disk full"))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (_driver, device, stream) = open(SimOptions::default());
    let logging = LoggingResourceAdaptor::new(Strategy::Cuda.create(&device).unwrap(), Full).unwrap();
    let raw = logging.allocate(len(100), &stream, Location::caller()).unwrap();
    assert_eq!(logging.flush().unwrap_err().to_string(), "disk full");
    logging.deallocate(raw, &stream, Location::caller()).unwrap();
}

#[test]
fn poison_shows_what_is_fresh_and_what_is_freed() {
    let (driver, device, stream) = open(SimOptions::default());
    let caching = Strategy::Caching.create(&device).unwrap();
    let poisoned = pool_over(Arc::new(PoisonResourceAdaptor::new(Arc::clone(&caching))));
    let plain = pool_over(caching);
    let pinned = PinnedPool::builder(&device).build();
    let fresh = DeviceBuffer::new(300, &stream, &poisoned).unwrap();
    let address = fresh.address();
    let bytes = fresh.padded().download_vec(&stream, &pinned).unwrap().wait().unwrap();
    assert_eq!(bytes, [[FRESH; 300].as_slice(), &[0; 212]].concat(), "the padding is zeroed after it");
    fresh.fill(1, &stream).unwrap();
    drop(fresh);
    let next = DeviceBuffer::new(512, &stream, &plain).unwrap();
    assert_eq!(next.address(), address);
    assert_eq!(next.download_vec(&stream, &pinned).unwrap().wait().unwrap(), [FREED; 512]);
    drop((next, poisoned, plain));
    let _ = driver.settle();
    assert!(driver.take_findings().is_empty());
}

#[test]
fn blocks_of_statistics_nest() {
    let (_driver, device, stream) = open(SimOptions::default());
    let statistics = StatisticsResourceAdaptor::new(Strategy::CudaAsync.create(&device).unwrap());
    let allocate = |bytes| statistics.allocate(len(bytes), &stream, Location::caller()).unwrap();
    let free = |raw| statistics.deallocate(raw, &stream, Location::caller()).unwrap();
    assert!(statistics.pop().is_none());
    let before = allocate(1000);
    statistics.push();
    let a = allocate(300);
    statistics.push();
    let b = allocate(500);
    free(before);
    free(a);
    let inner = statistics.pop().unwrap();
    // 500 up, 1000 and 300 down: memory freed inside may have been allocated outside.
    assert_eq!((inner.bytes.current, inner.bytes.peak, inner.bytes.total), (-800, 500, 500));
    assert_eq!((inner.allocations.current, inner.allocations.peak, inner.allocations.total), (-1, 1, 1));
    let outer = statistics.pop().unwrap();
    assert_eq!((outer.bytes.current, outer.bytes.peak, outer.bytes.total), (-500, 800, 800));
    let all = statistics.counts();
    assert_eq!((all.bytes.current, all.bytes.peak, all.bytes.total), (500, 1800, 1800));
    free(b);
    let (allocations, frees) = statistics.latencies();
    assert_eq!((allocations.count(), frees.count()), (3, 3));
    assert!(allocations.quantile_ns(0.5) <= allocations.quantile_ns(1.0) && allocations.quantile_ns(0.0) > 0);
}

#[test]
fn current_and_peak_move_together_under_many_threads() {
    let (_driver, device, _stream) = open(SimOptions::default());
    let limit = ByteSize::kib(8);
    let limiting = Arc::new(LimitingResourceAdaptor::new(Strategy::Caching.create(&device).unwrap(), limit));
    let statistics = StatisticsResourceAdaptor::new(limiting.clone());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (statistics, device) = (&statistics, &device);
            scope.spawn(move || {
                let stream = Stream::new(device).unwrap();
                for round in 0..200 {
                    // Allocations fill the limit exactly, so a counted peak above it would be wrong.
                    if let Ok(raw) =
                        statistics.allocate(len(1024 * (1 + (thread + round) % 3)), &stream, Location::caller())
                    {
                        statistics.deallocate(raw, &stream, Location::caller()).unwrap();
                    }
                }
            });
        }
    });
    let all = statistics.counts();
    assert_eq!((all.bytes.current, all.allocations.current, limiting.used_bytes()), (0, 0, ByteSize::ZERO));
    assert!(ByteSize(all.bytes.peak) <= limit, "never more than the limit let through: {}", all.bytes.peak);
    assert_eq!(all.allocations.total + all.failures, 800);
}

#[test]
fn nested_adaptors_count_each_byte_once_each() {
    let (_driver, device, stream) = open(SimOptions::default());
    let inner = Arc::new(StatisticsResourceAdaptor::new(Strategy::Arena.create(&device).unwrap()));
    let limiting = Arc::new(LimitingResourceAdaptor::new(inner.clone(), ByteSize::mib(1)));
    let outer = Arc::new(StatisticsResourceAdaptor::new(limiting.clone()));
    let pool = pool_over(outer.clone());
    let buffer = DeviceBuffer::new(1000, &stream, &pool).unwrap();
    for counted in [inner.counts().bytes.current, outer.counts().bytes.current, limiting.used_bytes().as_u64()] {
        assert_eq!(counted, 1024, "as the pool asked for it");
    }
    assert_eq!((pool.used_bytes(), device.counters().used_bytes), (ByteSize(1024), 1024));
    drop(buffer);
    assert_eq!(
        (inner.counts().bytes.current, outer.counts().bytes.current, limiting.used_bytes()),
        (0, 0, ByteSize::ZERO)
    );
}

#[test]
fn a_limit_inside_the_pool_takes_the_pools_steps_too() {
    // The adaptor refuses, and the pool's callback frees memory.
    let (_driver, device, stream) = open(SimOptions::default());
    for strategy in Strategy::ALL {
        let limiting = Arc::new(LimitingResourceAdaptor::new(strategy.create(&device).unwrap(), ByteSize::kib(64)));
        let pool = pool_over(limiting.clone());
        let spare = Mutex::new(Some(DeviceBuffer::new(48 << 10, &stream, &pool).unwrap()));
        let callback = pool.on_out_of_memory(move |_| match spare.lock().unwrap().take() {
            Some(_) => OomAction::Retry,
            None => OomAction::Fail,
        });
        let buffer = DeviceBuffer::new(32 << 10, &stream, &pool).unwrap();
        assert_eq!(
            (limiting.used_bytes(), pool.pressure_statistics().num_callbacks),
            (ByteSize::kib(32), 1),
            "{strategy}"
        );
        assert!(DeviceBuffer::new(48 << 10, &stream, &pool).unwrap_err().is_out_of_memory());
        drop((buffer, callback));
    }
}
