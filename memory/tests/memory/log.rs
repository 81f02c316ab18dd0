//! The allocation log: a written log reads back unchanged, and an unreadable one reports where and why.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::log::{Action, After, COLUMNS, LogError, LogFile, Record};
use millpond_memory::{ByteSize, Device, DeviceBuffer, MemoryLog, MemoryPool, Strategy as Resource, Stream};
use proptest::prelude::*;

/// A log's output that a test can read.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn read(text: &str) -> Result<LogFile, String> {
    LogFile::read(text.as_bytes()).map_err(|error| error.to_string())
}

fn written(records: &[Record]) -> String {
    let mut out = format!("{}\n", COLUMNS.join(",")).into_bytes();
    records.iter().for_each(|record| record.write(&mut out).unwrap());
    String::from_utf8(out).unwrap()
}

fn any_record() -> impl Strategy<Value = Record> {
    let place = (any::<u64>(), any::<u64>()).prop_map(|(stream, position)| After::Place { stream, position });
    let after = prop_oneof![Just(After::All), place];
    let numbers = (any::<u64>(), 0..86_400_000_000u64, any::<u64>(), any::<u64>(), any::<u64>());
    let ours = (any::<u64>(), any::<u64>(), any::<u64>(), proptest::option::of(after), "[ -~é\n\",]{0,12}");
    (0..Action::ALL.len(), numbers, ours).prop_map(|(action, numbers, (seq, time_ns, position, after, tag))| {
        let (thread, time_us, pointer, size, stream) = numbers;
        let action = Action::ALL[action];
        // A wait needs a target.
        let after = if action == Action::Wait { after.or(Some(After::All)) } else { after };
        Record { thread, time_us, action, pointer, size, stream, seq, time_ns, alloc_id: 1, position, after, tag }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(mut records in proptest::collection::vec(any_record(), 0..20)) {
        for (index, record) in records.iter_mut().enumerate() {
            // A log makes IDs and call numbers unique.
            record.alloc_id = index as u64 + 1;
            record.seq = index as u64 * 3;
        }
        let log = LogFile::read(written(&records).as_bytes()).unwrap();
        prop_assert!(log.ordered);
        prop_assert_eq!(log.records, records);
    }

    /// For any file contents, reading returns a log or an error message.
    #[test]
    fn nothing_that_is_read_panics(text in "([A-Za-z0-9x:,\"\n. ]|Action|Pointer|Size|allocate|free){0,60}") {
        let _ = LogFile::read(text.as_bytes());
        let _ = LogFile::read(format!("{}\n{text}", COLUMNS.join(",")).as_bytes());
    }
}

#[test]
fn lines_are_in_the_order_of_the_calls() {
    let record = |seq, alloc_id| Record {
        thread: 1,
        time_us: 0,
        action: Action::Allocate,
        pointer: 0x1000,
        size: 1,
        stream: 0,
        seq,
        time_ns: 0,
        alloc_id,
        position: 0,
        after: None,
        tag: String::new(),
    };
    let log = read(&written(&[record(2, 3), record(0, 1), record(1, 2)])).unwrap();
    assert_eq!(log.records.iter().map(|record| record.alloc_id).collect::<Vec<_>>(), [1, 2, 3]);
}

/// As RMM's logging adaptor writes it: six columns, a null pointer as C prints it, a colon before the microseconds in
/// older releases.
const RMM: &str = "\
Thread,Time,Action,Pointer,Size,Stream
140202,11:20:05.123456,allocate,0x7f5a00000000,1048576,0x0
140202,11:20:05:123500,allocate,0x7f5a00100000,256,0x2
140202,11:20:05.123600,free,0x7f5a00000000,1048576,0x0

140202,11:20:05.123700,allocate,0x7f5a00000000,512,0x2
140202,11:20:05.123800,allocate failure,(nil),99999999999,0x2\r
140202,11:20:05.123900,free,0x7f5a00000000,512,0x0
140202,11:20:05.124000,free,0x7f5a00200000,4,0x0
";

#[test]
fn a_log_of_rmms_is_read_with_names_for_its_addresses() {
    let log = read(RMM).unwrap();
    assert!(!log.ordered, "it has no waits");
    let told: Vec<_> = log.records.iter().map(|r| (r.action.name(), r.alloc_id, r.size, r.stream)).collect();
    assert_eq!(
        told,
        [
            ("allocate", 1, 1_048_576, 0),
            ("allocate", 2, 256, 2),
            ("free", 1, 1_048_576, 0),
            // The address was reused by another allocation.
            ("allocate", 3, 512, 2),
            ("allocate failure", 0, 99_999_999_999, 2),
            ("free", 3, 512, 0),
            ("free", 0, 4, 0),
        ]
    );
    assert_eq!(log.records[0].time_us, (11 * 3600 + 20 * 60 + 5) * 1_000_000 + 123_456);
    assert_eq!(log.records[1].time_us - log.records[0].time_us, 44);
}

#[test]
fn columns_are_found_by_their_names() {
    let log = read("\u{feff}Size, Action ,Colour,Pointer\n64,allocate,blue,256\n").unwrap();
    assert_eq!((log.records[0].size, log.records[0].pointer, log.records[0].stream), (64, 256, 0));
}

#[test]
fn what_cannot_be_read_says_line_column_value_and_way_out() {
    let ours = COLUMNS.join(",");
    let after_rmm = |line: &str| {
        format!("Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00.000000,allocate,0x100,8,0x0\n{line}\n")
    };
    for (text, says) in [
        ("".to_string(), "the log is empty: not even a line of columns is in it"),
        ("\n \n".to_string(), "the log is empty"),
        ("1,10:00:00.000000,allocate,0x1,8,0x0\n".to_string(), "line 1: there is no column Action in `1,10:00:00"),
        ("Action,Pointer\n".to_string(), "line 1: there is no column Size in `Action,Pointer`; a log begins with"),
        (after_rmm("2,10:00:00.0,free,0x100"), "line 3: 4 fields for 6 columns; the line was cut off: delete it"),
        (
            after_rmm("2,10:00:00.0,free,0x100,many,0x0"),
            "line 3, column Size: 'many' is not a number of bytes; correct the line or delete it",
        ),
        (after_rmm("2,10:00:00.0,free,0xzz,8,0x0"), "line 3, column Pointer: '0xzz' is not an address such as"),
        (after_rmm("2,10:00:00.0,free,0x100,-8,0x0"), "line 3, column Size: '-8' is not a number of bytes"),
        (after_rmm("2,25:00:00.0,free,0x100,8,0x0"), "line 3, column Time: '25:00:00.0' is not a time of day such as"),
        (after_rmm("2,10:00:00.0,release,0x100,8,0x0"), "line 3, column Action: 'release' is not an action; those are"),
        (after_rmm("2,10:00:00.0,free,0x100,8,none"), "line 3, column Stream: 'none' is not a stream such as 0x2"),
        (after_rmm("x,10:00:00.0,free,0x100,8,0x0"), "line 3, column Thread: 'x' is not the number of a thread"),
        (
            after_rmm("1,10:00:00.0,allocate,0x100,8,0x0"),
            "line 3, column Pointer: '0x100' is allocated already, on line 2, and was not freed since; the file holds two \
             logs: replay each on its own",
        ),
        (
            format!("{ours}\n1,10:00:00.0,wait,0x0,0,0x1,0,0,0,7,2-41,\n"),
            "line 2, column After: '2-41' is not `stream:position` such as 0x2:41, or `all`",
        ),
        (
            format!("{ours}\n1,10:00:00.0,wait,0x0,0,0x1,0,0,0,7,,\n"),
            "line 2, column After: '' is not what the stream waits for",
        ),
        (
            format!("{ours}\n1,10:00:00.0,allocate,0x0,1,0x1,0,0,0,7,,\n"),
            "line 2, column AllocId: '0' is not the number",
        ),
        (format!("{ours}\n1,10:00:00.0,free,0x0,1,0x1,0,0,0,7,,\"cut\n"), "line 2: a quoted field is not closed"),
    ] {
        let error = read(&text).expect_err(&text);
        assert!(error.contains(says), "{text:?}\n  says  {error}\n  not   {says}");
    }
    let error = LogFile::read(&b"Action,Pointer,Size\nallocate,0x1,\xff\xfe\n"[..]).unwrap_err();
    assert!(error.to_string().starts_with("line 2 is not text"), "{error}");
    struct Broken;
    impl io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let error = LogFile::read(io::BufReader::new(Broken)).unwrap_err();
    assert!(matches!(error, LogError::Read(_)) && error.to_string().contains("the disk is gone"));
}

#[test]
fn lines_after_a_quoted_line_end_keep_their_numbers() {
    let ours = COLUMNS.join(",");
    let error = read(&format!(
        "{ours}\n1,10:00:00.0,trim,0x0,1,0x0,0,0,0,0,,\"a\nb\"\n1,10:00:00.0,trim,0x0,x,0x0,0,0,0,0,,\n"
    ));
    assert!(error.unwrap_err().starts_with("line 4, column Size: 'x'"));
}

#[test]
fn a_device_logs_uses_waits_events_and_synchronisations() {
    let sim = SimDriver::new(SimOptions::default());
    let device = Device::open(sim.clone(), 0).unwrap();
    let out = Shared::default();
    let log = MemoryLog::new(out.clone()).unwrap();
    let pool = MemoryPool::builder(&device).strategy(Resource::Caching).log(Arc::clone(&log)).build().unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let a = a.with_scope(&device.scope().child("query 7"));
    let buffer = DeviceBuffer::new(1000, &a, &pool).unwrap();
    buffer.fill(1, &a).unwrap();
    let other = DeviceBuffer::zeroed(1000, &b, &pool).unwrap();
    buffer.copy_to(&other, &b).unwrap();
    drop(buffer.share(&b).unwrap());
    drop((buffer, other));
    a.synchronize().unwrap();
    pool.trim_to(ByteSize::ZERO).unwrap();
    let refused = DeviceBuffer::new(1 << 44, &a, &pool);
    assert!(refused.is_err());
    log.spilled(ByteSize(77), "cache");
    log.flush().unwrap();

    let text = out.text();
    let read = read(&text).unwrap();
    let of = |action: Action| read.records.iter().filter(|r| r.action == action).collect::<Vec<_>>();
    let (allocated, freed) = (of(Action::Allocate), of(Action::Free));
    assert_eq!(
        allocated.iter().map(|r| (r.alloc_id, r.size, r.stream)).collect::<Vec<_>>(),
        [(1, 1024, 0), (2, 1024, 1)]
    );
    assert_eq!(allocated[0].tag, "query 7");
    let mut names: Vec<u64> = freed.iter().map(|r| r.alloc_id).collect();
    names.sort_unstable();
    assert_eq!(names, [1, 2]);
    // The padding, the fill, the zeros, the target of the copy.
    assert_eq!(
        of(Action::UseWrite).iter().map(|r| (r.alloc_id, r.stream)).collect::<Vec<_>>(),
        [(1, 0), (1, 0), (2, 1), (2, 1)]
    );
    assert_eq!(of(Action::UseRead).iter().map(|r| (r.alloc_id, r.stream)).collect::<Vec<_>>(), [(1, 1)]);
    assert_eq!(of(Action::UseShare).iter().map(|r| (r.alloc_id, r.stream)).collect::<Vec<_>>(), [(1, 1)]);
    // b waits for a's fill before it reads; there are no other waits.
    let [wait] = of(Action::Wait)[..] else { panic!("{text}") };
    let filled = of(Action::UseWrite)[1].position;
    assert_eq!((wait.stream, wait.after), (1, Some(After::Place { stream: 0, position: filled })));
    assert_eq!(of(Action::Record)[0].stream, 0);
    assert!(of(Action::Sync).iter().any(|r| matches!(r.after, Some(After::Place { stream: 0, .. }))), "{text}");
    assert!(of(Action::Sync).iter().any(|r| r.after == Some(After::All)), "{text}");
    assert!(!of(Action::Trim).is_empty() && of(Action::Trim)[0].size == 0, "{text}");
    assert_eq!((of(Action::Spill)[0].size, of(Action::Spill)[0].tag.as_str()), (77, "cache"));
    assert_eq!(sim.take_findings(), []);
}

#[test]
fn a_device_has_one_log() {
    let device = Device::open(SimDriver::with_seed(0), 0).unwrap();
    let log = MemoryLog::new(io::sink()).unwrap();
    device.log_to(&log).unwrap();
    device.log_to(&log).expect("the same one");
    let another = MemoryLog::new(io::sink()).unwrap();
    assert!(device.log_to(&another).is_err());
    let refused = MemoryPool::builder(&device).log(another).build().unwrap_err();
    assert!(refused.to_string().contains("has a log already"), "{refused}");
}

#[test]
fn without_a_log_nothing_is_kept() {
    let device = Device::open(SimDriver::with_seed(0), 0).unwrap();
    assert!(device.log().is_none());
    let stream = Stream::new(&device).unwrap();
    let resource = Resource::CudaAsync.create(&device).unwrap();
    let raw = resource.allocate(NonZeroUsize::new(8).unwrap(), &stream, Location::caller()).unwrap();
    resource.deallocate(raw, &stream, Location::caller()).unwrap();
    assert!(device.log().is_none());
}

/// A folder that is removed with its test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("millpond-log-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_log_replaces_logs_and_nothing_else() {
    let folder = Folder::new("replaces");
    let path = folder.0.join("log.csv");
    let write = || {
        let log = MemoryLog::create(&path)?;
        log.spilled(ByteSize(1), "a test");
        log.flush()
    };
    write().unwrap();
    let first = std::fs::read_to_string(&path).unwrap();
    assert_eq!(first.lines().count(), 2);
    write().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2, "the log of before is replaced");
    std::fs::write(&path, "").unwrap();
    write().unwrap();

    let header = COLUMNS.join(",");
    for text in ["i,v\n1,2\n", "x", &header[..header.len() - 1], &header[1..]] {
        std::fs::write(&path, text).unwrap();
        let error = write().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{text}");
        assert!(error.to_string().contains("is no allocation log"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it is left as it is");
    }
    assert!(MemoryLog::create(&folder.0).is_err(), "a folder");
    assert!(MemoryLog::create(folder.0.join("absent/log.csv")).is_err());
}

#[cfg(unix)]
#[test]
fn devices_and_links_are_written_as_they_are() {
    let folder = Folder::new("devices");
    MemoryLog::create("/dev/null").unwrap().flush().unwrap();
    let full = MemoryLog::create("/dev/full").unwrap();
    full.spilled(ByteSize(1), "a test");
    assert!(full.flush().is_err());
    let (data, link) = (folder.0.join("data.csv"), folder.0.join("link.csv"));
    std::fs::write(&data, "1,2\n").unwrap();
    std::os::unix::fs::symlink(&data, &link).unwrap();
    assert!(MemoryLog::create(&link).is_err(), "what it leads to is no log");
    assert_eq!(std::fs::read_to_string(&data).unwrap(), "1,2\n");
}
