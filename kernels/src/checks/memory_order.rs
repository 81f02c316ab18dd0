//! Claims about memory order between thread blocks, in the forms that sinks and scans use.
//!
//! ```text
//!   message passing     block A: data = 1; release flag = 1          block B: acquire flag; data        never 1 and 0
//!   store buffering     block A: x = 1; fence.sc; read y             block B: y = 1; fence.sc; read x  never 0 and 0
//!   coherence           block A: x = 1, 2, 3, …                      block B: reads x repeatedly       never decreases
//!   look-back           block n: ticket, own sum, sums of the preceding blocks, nearest first
//! ```
//!
//! Pairs     blocks 2n and 2n + 1: a thread of one with a thread in a different warp of the other, over fresh words
//!           each round.
//! Waits     readers poll a bounded number of times: nothing depends on which blocks run concurrently. Only look-back
//!           waits, for blocks that already have their ticket.
//! A pass    proves little; a failure proves a violation, since the outcome is forbidden. The simulated device shows
//! that these checks can fail: under a seed, relaxed loads return old values, and stale messages are counted
//! (`relaxed_messages`).

use millpond_memory::checks::{CheckError, same};
use millpond_memory::{Device, DeviceBuffer, Kernel};
use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Atomic, Compare, FunctionBuilder, ModuleBuilder, Reg};

use super::{Rig, word};
use crate::{Launch, LaunchConfig};

const THREADS: u32 = 128;
const ROUNDS: u32 = 32;
/// Polls of a flag per reader.
const POLLS: u32 = 16;

/// Block pairs per launch, and number of launches.
struct Size {
    pairs: u32,
    launches: u32,
}

impl Size {
    /// Two blocks per multiprocessor, so that both blocks of a pair run concurrently.
    fn of(device: &Device) -> Size {
        let pairs = device.limits().multiprocessors.max(1);
        Size { pairs, launches: 4 * pairs }
    }

    fn threads(&self) -> u32 {
        self.pairs * THREADS
    }

    fn words(&self) -> usize {
        (self.threads() * ROUNDS) as usize * 4
    }

    fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(2 * self.pairs, THREADS)
    }
}

fn load(device: &Device, f: FunctionBuilder) -> Result<Kernel, CheckError> {
    let name = f.name().to_string();
    let mut module = ModuleBuilder::new();
    module.add(f);
    let module = module.finish().map_err(|error| CheckError::Refused(error.to_string()))?;
    Ok(device.load_module(&module.to_string())?.kernel(&name)?)
}

fn zeroed(rig: &Rig, bytes: usize) -> Result<DeviceBuffer, CheckError> {
    Ok(DeviceBuffer::zeroed(bytes, rig.stream(), &rig.base.pool)?)
}

fn counted(rig: &Rig, wrong: &DeviceBuffer) -> Result<u32, CheckError> {
    let bytes = rig.download(&wrong.view(0..4)?)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// A kernel over three buffers. In each round the first block of every pair runs one body, the second block the other.
fn paired(
    name: &str,
    pairs: u32,
    first: impl FnOnce(&mut FunctionBuilder, [Reg; 3], Reg),
    second: impl FnOnce(&mut FunctionBuilder, [Reg; 3], Reg),
) -> FunctionBuilder {
    let mut f = FunctionBuilder::kernel(name);
    let buffers = ["first", "second", "third"].map(|name| f.param(name, Type::U64));
    let buffers = buffers.map(|buffer| f.load_param(&buffer));
    let (block, thread) = (f.block_index(), f.thread_index());
    let pair = f.shr(block, 1u32);
    let role = f.and(block, 1u32);
    // The thread with the mirrored index in the other block is in a different warp.
    let mirrored = f.sub(THREADS - 1, thread);
    let is_first = f.setp(Compare::Eq, role, 0u32);
    let own = f.select(is_first, thread, mirrored);
    let at = f.mad(pair, THREADS, own);
    let at = f.copy(Type::U32, at);
    f.if_else(
        is_first,
        |f| rounds(f, pairs, at, |f| first(f, buffers, at)),
        |f| rounds(f, pairs, at, |f| second(f, buffers, at)),
    );
    f.tidy();
    f
}

/// Runs `body` for one word after another.
fn rounds(f: &mut FunctionBuilder, pairs: u32, at: Reg, body: impl FnOnce(&mut FunctionBuilder)) {
    let end = f.copy(Type::U32, ROUNDS);
    f.for_(0u32, end, 1u32, |f, _| {
        body(f);
        let next = f.add(at, pairs * THREADS);
        f.assign(at, next);
    });
}

fn count_wrong(f: &mut FunctionBuilder, wrong: Reg, when: Reg) {
    f.if_(when, |f| f.reduce(Atomic::Add, Space::Global, Type::U32, wrong, 1u32));
}

/// Memory order of a flag's store and load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    Released,
    ByAtomics,
    /// The flag is relaxed and does not order the data.
    Relaxed,
}

pub(super) fn message_passing(device: &Device) -> Result<(), CheckError> {
    for flag in [Flag::Released, Flag::ByAtomics] {
        let stale = stale_messages(device, flag, Size::of(device).launches)?;
        same(&format!("the number of flags seen before their data, {flag:?}"), stale, 0)?;
    }
    Ok(())
}

/// Counts flags seen before their data, in one launch where no order forbids it.
pub(super) fn relaxed_messages(device: &Device) -> Result<u32, CheckError> {
    stale_messages(device, Flag::Relaxed, 1)
}

fn stale_messages(device: &Device, how: Flag, launches: u32) -> Result<u32, CheckError> {
    let rig = Rig::new(device)?;
    let size = Size::of(device);
    let write = |f: &mut FunctionBuilder, [data, flags, _]: [Reg; 3], at: Reg| {
        let (data, flag) = (f.element(data, at, 4), f.element(flags, at, 4));
        let value = f.add(at, 7u32);
        match how {
            Flag::Relaxed => f.store_with("st.relaxed.gpu.global", Type::U32, data, value),
            _ => f.store(Space::Global, Type::U32, data, value),
        }
        match how {
            Flag::ByAtomics => {
                f.atomic_with("atom.release.gpu.global", Atomic::Exchange, Type::B32, flag, 1u32);
            }
            Flag::Released => f.store_with("st.release.gpu.global", Type::U32, flag, 1u32),
            Flag::Relaxed => f.store_with("st.relaxed.gpu.global", Type::U32, flag, 1u32),
        }
    };
    let read = |f: &mut FunctionBuilder, [data, flags, wrong]: [Reg; 3], at: Reg| {
        let (data, flag) = (f.element(data, at, 4), f.element(flags, at, 4));
        let seen = f.copy(Type::U32, 0u32);
        let polls = f.copy(Type::U32, 0u32);
        f.loop_(|f| {
            let word = match how {
                Flag::ByAtomics => {
                    f.compare_exchange_with("atom.acquire.gpu.global", Type::B32, flag, 2u32, 2u32).view(Type::U32)
                }
                Flag::Released => f.load_with("ld.acquire.gpu.global", Type::U32, flag),
                Flag::Relaxed => f.load_with("ld.relaxed.gpu.global", Type::U32, flag),
            };
            f.assign(seen, word);
            let found = f.setp(Compare::Ne, seen, 0u32);
            f.break_if(found);
            let more = f.add(polls, 1u32);
            f.assign(polls, more);
            let enough = f.setp(Compare::Ge, polls, POLLS);
            f.break_if(enough);
        });
        let found = f.setp(Compare::Ne, seen, 0u32);
        f.if_(found, |f| {
            let value = match how {
                Flag::Relaxed => f.load_with("ld.relaxed.gpu.global", Type::U32, data),
                _ => f.load(Space::Global, Type::U32, data),
            };
            let expected = f.add(at, 7u32);
            let stale = f.setp(Compare::Ne, value, expected);
            count_wrong(f, wrong, stale);
        });
    };
    let kernel = load(device, paired("message_passing", size.pairs, write, read))?;
    let wrong = zeroed(&rig, 4)?;
    for _ in 0..launches {
        let (data, flags) = (zeroed(&rig, size.words())?, zeroed(&rig, size.words())?);
        Launch::new(&kernel, size.config()).write(&data).write(&flags).write(&wrong).submit(rig.stream())?;
    }
    let stale = counted(&rig, &wrong)?;
    drop(wrong);
    rig.base.finish()?;
    Ok(stale)
}

pub(super) fn store_buffering(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let size = Size::of(device);
    // Words of the first role, words of the second role, and the values that each of them read.
    let side = |own: usize| {
        move |f: &mut FunctionBuilder, buffers: [Reg; 3], at: Reg| {
            let (mine, other) = (f.element(buffers[own], at, 4), f.element(buffers[1 - own], at, 4));
            f.store_with("st.relaxed.gpu.global", Type::U32, mine, 1u32);
            f.fence("sc.gpu");
            let seen = f.load_with("ld.relaxed.gpu.global", Type::U32, other);
            let word = f.element(buffers[2], at, 8);
            f.store(Space::Global, Type::U32, word.at(4 * own as i64), seen);
        }
    };
    let kernel = load(device, paired("store_buffering", size.pairs, side(0), side(1)))?;
    for _ in 0..size.launches {
        let (x, y, seen) = (zeroed(&rig, size.words())?, zeroed(&rig, size.words())?, zeroed(&rig, 2 * size.words())?);
        Launch::new(&kernel, size.config()).write(&x).write(&y).write(&seen).submit(rig.stream())?;
        let seen = rig.download(&seen)?;
        let neither = seen.chunks_exact(8).filter(|both| word(both, 0) == 0).count();
        same("the number of pairs of which neither saw the other", neither, 0)?;
    }
    rig.base.finish()
}

pub(super) fn coherence(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let size = Size::of(device);
    const STEPS: u32 = 16;
    let write = |f: &mut FunctionBuilder, [words, _, _]: [Reg; 3], at: Reg| {
        let word = f.element(words, at, 4);
        let end = f.copy(Type::U32, STEPS);
        f.for_(1u32, end, 1u32, |f, step| f.store_with("st.relaxed.gpu.global", Type::U32, word, step));
    };
    let read = |f: &mut FunctionBuilder, [words, _, wrong]: [Reg; 3], at: Reg| {
        let word = f.element(words, at, 4);
        let last = f.copy(Type::U32, 0u32);
        let end = f.copy(Type::U32, STEPS);
        f.for_(0u32, end, 1u32, |f, _| {
            let now = f.load_with("ld.relaxed.gpu.global", Type::U32, word);
            let back = f.setp(Compare::Lt, now, last);
            count_wrong(f, wrong, back);
            f.assign(last, now);
        });
    };
    let kernel = load(device, paired("coherence", size.pairs, write, read))?;
    let (unused, wrong) = (zeroed(&rig, 4)?, zeroed(&rig, 4)?);
    for _ in 0..size.launches.div_ceil(8) {
        let words = zeroed(&rig, size.words())?;
        Launch::new(&kernel, size.config()).write(&words).write(&unused).write(&wrong).submit(rig.stream())?;
    }
    same("the number of words that went back", counted(&rig, &wrong)?, 0)?;
    drop((unused, wrong));
    rig.base.finish()
}

/// State bits of a status word, beside its sum, as in `cuda/lookback.cuh`.
const SUM: u64 = 1 << 62;
const PREFIX: u64 = 2 << 62;
const VALUE: u64 = SUM - 1;

/// Sum that block `ticket` contributes.
fn brought(ticket: u64) -> u64 {
    ticket * 3 + 1
}

pub(super) fn atomics_and_look_back(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let size = Size::of(device);
    let blocks = 8 * size.pairs;
    let threads = blocks * THREADS;
    let kernel = load(device, look_back_kernel())?;
    for _ in 0..size.launches {
        let marks = zeroed(&rig, threads as usize * 4)?;
        let status = zeroed(&rig, blocks as usize * 8)?;
        let prefixes = zeroed(&rig, blocks as usize * 8)?;
        // A counter of threads, one of blocks, a sum, a maximum.
        let totals = zeroed(&rig, 32)?;
        let launch = Launch::new(&kernel, LaunchConfig::linear(blocks, THREADS));
        launch.write(&marks).write(&status).write(&prefixes).write(&totals).submit(rig.stream())?;
        let marks = rig.download(&marks)?;
        let once = marks.chunks_exact(4).filter(|mark| *mark == [1, 0, 0, 0]).count();
        same("the tickets of threads that were given once", once, threads as usize)?;
        let totals = rig.download(&totals)?;
        let n = u64::from(threads);
        let expected = [n, u64::from(blocks), n * (n - 1) / 2, n - 1];
        same("the counters, the sum and the maximum", [0, 8, 16, 24].map(|at| word(&totals, at)), expected)?;
        let prefixes = rig.download(&prefixes)?;
        let mut before = 0;
        for ticket in 0..u64::from(blocks) {
            same(&format!("the sum before block {ticket}"), word(&prefixes, ticket as usize * 8), before)?;
            before += brought(ticket);
        }
    }
    rig.base.finish()
}

fn look_back_kernel() -> FunctionBuilder {
    let mut f = FunctionBuilder::kernel("look_back");
    let params = ["marks", "status", "prefixes", "totals"].map(|name| f.param(name, Type::U64));
    let [marks, status, prefixes, totals] = params.map(|param| f.load_param(&param));
    let ticket = f.atomic_with("atom.relaxed.gpu.global", Atomic::Add, Type::U64, totals, 1u64);
    let mark = f.element(marks, ticket, 4);
    f.reduce(Atomic::Add, Space::Global, Type::U32, mark, 1u32);
    f.reduce(Atomic::Add, Space::Global, Type::U64, totals.at(16), ticket);
    f.reduce(Atomic::Max, Space::Global, Type::U64, totals.at(24), ticket);
    let thread = f.thread_index();
    let first = f.setp(Compare::Eq, thread, 0u32);
    f.if_(first, |f| {
        let ticket = f.atomic_with("atom.relaxed.gpu.global", Atomic::Add, Type::U64, totals.at(8), 1u64);
        let own_status = f.element(status, ticket, 8);
        let sum = f.mad(ticket, 3u64, 1u64);
        let word = f.or(sum, SUM);
        f.store_with("st.relaxed.gpu.global", Type::U64, own_status, word);
        let prefix = f.copy(Type::U64, 0u64);
        let at = f.copy(Type::U64, own_status);
        let left = f.copy(Type::U64, ticket);
        f.loop_(|f| {
            let none = f.setp(Compare::Eq, left, 0u64);
            f.break_if(none);
            let earlier = f.sub(at, 8u64);
            f.assign(at, earlier);
            let word = f.copy(Type::U64, 0u64);
            f.loop_(|f| {
                f.load_into("ld.relaxed.gpu.global", Type::U64, word, at);
                let there = f.setp(Compare::Ne, word, 0u64);
                f.break_if(there);
            });
            let value = f.and(word, VALUE).view(Type::U64);
            let more = f.add(prefix, value);
            f.assign(prefix, more);
            let whole = f.setp(Compare::Ge, word, PREFIX);
            f.break_if(whole);
            let less = f.sub(left, 1u64);
            f.assign(left, less);
        });
        let after = f.add(prefix, sum);
        let word = f.or(after, PREFIX);
        f.store_with("st.relaxed.gpu.global", Type::U64, own_status, word);
        let address = f.element(prefixes, ticket, 8);
        f.store(Space::Global, Type::U64, address, prefix);
    });
    f.tidy();
    f
}
