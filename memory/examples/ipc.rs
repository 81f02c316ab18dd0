//! Two processes that use the same device memory, and two devices that use each other's.
//!
//!   cargo run --release -p millpond-memory --example ipc                  exporter, with an importer as child process
//!   cargo run --release -p millpond-memory --example ipc -- --crash       the importer exits without a message
//!   cargo run --release -p millpond-memory --example ipc -- --peer 1      devices 0 and 1 of this process
//!   … --simulated                                                         without a GPU: two simulated processes
//!
//!   exporter                                        importer
//!   pool, descriptor  ───────── socket ──────────►  imports, opens its device
//!   buffer, bytes, `ready` ─────────────────────►   waits on its device, checks every byte, writes its own
//!   checks every byte, frees  ◄────────────────     frees, `finished`
//!
//! Ends    with 0 if all bytes were right, 1 on a failure, 2 for an invalid argument, 3 without a GPU.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::{Access, CudaDriver, Driver, HandleTypes};
use millpond_memory::ipc::{OnSilence, Returned};
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceView, ExportedPool, IpcChannel, LentBuffer, MemoryPool, PinnedPool, Stream,
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Action that ends a crashing process.
type End = Box<dyn FnOnce() + Send>;

/// Lengths in bytes: one that needs padding, one of many pages, and one that a pool takes from the system separately.
const LENGTHS: [usize; 3] = [5_000, 1 << 20, 48 << 20];
const PATIENCE: Duration = Duration::from_secs(30);
const NO_GPU: u8 = 3;

#[derive(Default)]
struct Arguments {
    /// Set by the exporter for its child, for which standard input is the socket.
    import: bool,
    crash: bool,
    simulated: bool,
    peer: Option<u32>,
}

impl Arguments {
    fn read() -> Result<Self, String> {
        let mut arguments = Arguments::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--import" => arguments.import = true,
                "--crash" => arguments.crash = true,
                "--simulated" => arguments.simulated = true,
                "--peer" => {
                    let ordinal = words.next().ok_or("--peer needs the number of a device")?;
                    let ordinal =
                        ordinal.parse().map_err(|_| format!("--peer {ordinal}: not the number of a device"))?;
                    arguments.peer = Some(ordinal);
                }
                other => return Err(format!("{other}: know --peer N, --crash and --simulated")),
            }
        }
        Ok(arguments)
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let driver: Arc<dyn Driver> = if arguments.simulated {
        return finish(simulated(&arguments));
    } else {
        match CudaDriver::open() {
            Ok(driver) => driver,
            Err(error) => {
                eprintln!("no GPU here: {error}; `--simulated` runs two simulated processes instead");
                return ExitCode::from(NO_GPU);
            }
        }
    };
    finish(match (arguments.import, arguments.peer) {
        (true, _) => {
            let end: Option<End> = arguments.crash.then(|| Box::new(|| -> () { std::process::abort() }) as End);
            standard_input().and_then(|socket| importer(driver, socket, end))
        }
        (false, Some(peer)) => peers(driver, peer),
        (false, None) => parent(driver, arguments.crash),
    })
}

fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Two simulated processes, as threads: a simulated machine exists in one process.
fn simulated(arguments: &Arguments) -> Outcome {
    let driver = SimDriver::new(SimOptions { devices: 2, ..SimOptions::default() });
    if let Some(peer) = arguments.peer {
        peers(driver.clone(), peer)?;
    } else {
        let (ours, theirs) = UnixStream::pair()?;
        let (second, crash) = (driver.second_process(), arguments.crash);
        let crashing = second.clone();
        let end: Option<End> = crash.then(|| Box::new(move || crashing.crash()) as End);
        let thread = std::thread::spawn(move || importer(second, theirs, end).map_err(|error| error.to_string()));
        exporter(driver.clone(), ours, crash)?;
        thread.join().map_err(|_| "the importer panicked")??;
    }
    driver.settle()?;
    match &driver.take_findings()[..] {
        [] => Ok(()),
        findings => Err(findings.iter().map(|finding| format!("\n{finding}")).collect::<String>().into()),
    }
}

// 1. Two processes.

/// Starts this program again, with a socket as its standard input, and exports to it.
fn parent(driver: Arc<dyn Driver>, crash: bool) -> Outcome {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--import").stdin(Stdio::from(OwnedFd::from(theirs)));
    if crash {
        command.arg("--crash");
    }
    let mut child = command.spawn()?;
    // The command held our copy of the child's end: with it the socket would never close.
    drop(command);
    say("exporter", &format!("process {}, its child is {}", std::process::id(), child.id()));
    let outcome = exporter(driver, ours, crash);
    let status = child.wait()?;
    outcome?;
    match status.success() || crash {
        true => Ok(()),
        false => Err(format!("the importer ended with {status}").into()),
    }
}

fn standard_input() -> Outcome<UnixStream> {
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

fn say(who: &str, what: &str) {
    println!("{who:9} {what}");
}

/// The bytes that one side writes, by seed.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(31) ^ index >> 8 ^ seed.wrapping_mul(0x9D)) as u8).collect()
}

struct Side {
    device: Device,
    pinned: PinnedPool,
    stream: Stream,
}

impl Side {
    fn open(driver: Arc<dyn Driver>, ordinal: u32) -> Outcome<Self> {
        let device = Device::open(driver, ordinal)?;
        let (pinned, stream) = (PinnedPool::builder(&device).build(), Stream::new(&device)?);
        Ok(Side { device, pinned, stream })
    }

    fn check(&self, what: &str, view: &DeviceView, expected: &[u8]) -> Outcome {
        let bytes = view.download_vec(&self.stream, &self.pinned)?.wait()?;
        match bytes.iter().zip(expected).position(|(is, should)| is != should) {
            None if bytes.len() == expected.len() => Ok(()),
            None => Err(format!("{what}: {} bytes instead of {}", bytes.len(), expected.len()).into()),
            Some(at) => Err(format!("{what}: byte {at} is {}, not {}", bytes[at], expected[at]).into()),
        }
    }
}

/// Bytes that the importer leaves in a buffer: its own in the first half, the exporter's in the second.
fn answer(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = pattern(number, len);
    bytes[..len / 2].copy_from_slice(&pattern(number + 100, len / 2));
    bytes
}

fn exporter(driver: Arc<dyn Driver>, socket: UnixStream, crash: bool) -> Outcome {
    let side = Side::open(driver, 0)?;
    let pool = MemoryPool::builder(&side.device).export(HandleTypes::POSIX_FD).build()?;
    let mut channel = IpcChannel::new(socket);
    let exported = ExportedPool::of(&pool)?;
    channel.send_pool(&exported)?;
    say("exporter", &format!("sent a pool of {:?}", side.device));

    let mut lent = Vec::new();
    for (number, len) in LENGTHS.into_iter().enumerate() {
        lent.push(lend(&side, &exported, &mut channel, number, len)?);
    }
    for (number, lent) in lent.into_iter().enumerate() {
        let len = LENGTHS[number];
        match channel.reclaim(lent, &side.stream, PATIENCE, OnSilence::Drop)? {
            Returned::Buffer(buffer) => {
                side.check("what came back", &buffer, &answer(number, len))?;
                say("exporter", &format!("{len} bytes came back with the importer's in them; freed"));
            }
            Returned::Dropped { silence } if crash => {
                say("exporter", &format!("{len} bytes freed without the importer's word ({silence:?})"));
            }
            other => return Err(format!("{len} bytes: {other:?}").into()),
        }
    }
    side.stream.synchronize()?;
    let used = pool.attributes()?.used_current;
    if used > ByteSize::ZERO {
        return Err(format!("{used} are still used in the pool").into());
    }
    say("exporter", "the pool is empty");
    Ok(())
}

fn lend(
    side: &Side,
    exported: &ExportedPool,
    channel: &mut IpcChannel,
    number: usize,
    len: usize,
) -> Outcome<LentBuffer> {
    let buffer = DeviceBuffer::upload(&pattern(number, len), &side.stream, exported.pool(), &side.pinned)?;
    let (lent, shared) = exported.share(buffer, &side.stream)?;
    if let Err(error) = channel.send(&shared) {
        // The importer does not know of it.
        lent.give_up(OnSilence::Drop);
        return Err(error.into());
    }
    say("exporter", &format!("lent {len} bytes; the copy to the device may still run"));
    Ok(lent)
}

fn importer(driver: Arc<dyn Driver>, socket: UnixStream, crash: Option<End>) -> Outcome {
    let side = Side::open(driver, 0)?;
    let mut channel = IpcChannel::new(socket);
    let imported = channel.receive_pool(&side.device, PATIENCE)?.ok_or("no pool came")?;
    let imported = imported.enable_access(&[&side.device])?;
    say("importer", &format!("process {}: {imported:?}", std::process::id()));

    // Opened on one stream and used on another: the buffers keep the order.
    let other = Stream::new(&side.device)?;
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let shared = channel.receive(PATIENCE)?.ok_or("no allocation came")?;
        let opened = imported.open(shared, &other)?;
        side.check("what was sent", &opened, &pattern(number, len))?;
        let half = opened.view(0..len / 2)?;
        half.upload_from(&pattern(number + 100, len / 2), &other, &side.pinned)?;
        say("importer", &format!("{len} bytes are right; wrote {} of my own", len / 2));
        if let Some(crash) = crash {
            // Receives all messages, so that the exporter notices the exit at its wait.
            for _ in number + 1..LENGTHS.len() {
                channel.receive(PATIENCE)?.ok_or("no allocation came")?;
            }
            say("importer", "ends without a word");
            crash();
            // A simulated process ends here without dropping anything. Its socket closes last.
            std::mem::forget((half, opened, imported, side, other));
            return Ok(());
        }
        drop((half, opened));
        channel.send_all_finished(&imported)?;
    }
    let bytes = imported.statistics();
    say("importer", &format!("all released; the most imported at once was {}", bytes.imported_peak));
    Ok(())
}

// 2. Two devices.

fn peers(driver: Arc<dyn Driver>, ordinal: u32) -> Outcome {
    let (home, peer) = (Side::open(driver.clone(), 0)?, Side::open(driver, ordinal)?);
    if ordinal == 0 {
        return Err("--peer 0: the other device is needed".into());
    }
    let (pool, peer_pool) = (MemoryPool::builder(&home.device).build()?, MemoryPool::builder(&peer.device).build()?);
    for len in LENGTHS {
        let bytes = pattern(len, len);
        let here = DeviceBuffer::upload(&bytes, &home.stream, &pool, &home.pinned)?;
        let there = DeviceBuffer::new(len, &peer.stream, &peer_pool)?;
        here.copy_to_peer(&home.stream, &there, &peer.stream)?;
        // Overwritten at once: the copy is ordered before.
        here.fill(0, &home.stream)?;
        peer.check("the copy on the peer", &there, &bytes)?;
        there.copy_to_peer(&peer.stream, &here, &home.stream)?;
        home.check("the copy back", &here, &bytes)?;
    }
    say("peers", "copies both ways are right");

    let access = pool.peer_access(&peer.device)?;
    let back = peer_pool.peer_access(&home.device)?.is_supported()?;
    if !access.is_supported()? {
        say("peers", &format!("no access: {}", access.enable().expect_err("the devices cannot")));
        return Ok(());
    }
    access.enable()?;
    let direction = if back { "both ways" } else { "one way" };
    say("peers", &format!("{} has access to the pool of {} ({direction})", peer.device.id(), home.device.id()));
    for len in LENGTHS {
        let buffer = DeviceBuffer::new(len, &home.stream, &pool)?;
        buffer.fill(0x11, &home.stream)?;
        let on_peer = buffer.use_on_peer(Access::Write, &home.stream, &peer.stream)?;
        on_peer.fill(0x5A)?;
        on_peer.hand_back()?;
        home.check("what the peer wrote", &buffer, &vec![0x5A; len])?;
    }
    say("peers", "the peer wrote into the pool, in order");
    Ok(())
}
