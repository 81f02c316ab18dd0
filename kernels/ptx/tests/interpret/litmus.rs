//! Outcomes of strong accesses between blocks: every outcome that the PTX memory model allows occurs under some seed,
//! and no other outcome occurs.
//!
//!   message passing     x = 1; y = 1       │  r0 = y; r1 = x       r = 1 0 unless released and acquired
//!   store buffering     x = 1; r0 = y      │  y = 1; r1 = x        r = 0 0 unless `fence.sc` is between on both sides
//!
//! Test names from Alglave, Maranget & Tautschnig 2014. Each thread is a block; words and results start at 0.

use crate::device::*;
use millpond_ptx::interpret::Options;
use std::collections::BTreeSet;

const SEEDS: u64 = 400;

/// A test with the bodies of its threads. `X`, `Y`, `Z` are words, `R0`, `R1`, … results; registers from `%r10` are
/// free.
struct Litmus<'a> {
    threads: &'a [&'a str],
    results: usize,
}

impl Litmus<'_> {
    fn text(&self) -> String {
        let mut body = String::from("ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %ctaid.x;\n");
        for number in 0..self.threads.len() {
            body += &format!("setp.eq.u32 %p1, %r1, {number}; @%p1 bra thread{number};\n");
        }
        for (number, thread) in self.threads.iter().enumerate() {
            body += &format!("thread{number}: {thread} bra done;\n");
        }
        for (word, at) in [("X", 0), ("Y", 64), ("Z", 128)] {
            body = body.replace(&format!("{word},"), &format!("[%rd1+{at}],"));
            body = body.replace(&format!("{word};"), &format!("[%rd1+{at}];"));
        }
        for result in 0..self.results {
            body = body.replace(&format!("R{result},"), &format!("[%rd2+{}],", 4 * result));
        }
        body + "done:"
    }

    fn outcomes_under(&self, seeds: impl Iterator<Item = Option<u64>>) -> BTreeSet<Vec<u32>> {
        let image = load(&kernel(2, &self.text())).unwrap_or_else(|error| panic!("{error}"));
        let outcome = |seed| {
            let mut device = Device::new();
            let (words, results) = (device.zeros(192), device.zeros(4 * self.results as u64));
            let options = Options { seed, ..Options::default() };
            let args = [Arg::U64(words), Arg::U64(results)];
            expect_ok(device.launch(&image, self.threads.len() as u32, 1, &args, &options));
            device.download(results, self.results)
        };
        seeds.map(outcome).collect()
    }

    fn outcomes(&self) -> BTreeSet<Vec<u32>> {
        self.outcomes_under((0..SEEDS).map(Some))
    }

    #[track_caller]
    fn allows(&self, outcome: &[u32]) {
        let outcomes = self.outcomes();
        assert!(outcomes.contains(outcome), "{outcome:?} never came, only {outcomes:?}");
    }

    #[track_caller]
    fn forbids(&self, outcome: &[u32]) {
        assert!(!self.outcomes().contains(outcome), "{outcome:?} came");
    }
}

/// Message passing with an instruction between the accesses of each side, and the forms of the flag's store and load.
fn message_passing(writer: [&str; 2], reader: [&str; 2]) -> (String, String) {
    let ([between, store], [load, after]) = (writer, reader);
    (
        format!("st.relaxed.gpu.global.u32 X, 1; {between} {store}.gpu.global.u32 Y, 1;"),
        format!(
            "{load}.gpu.global.u32 %r10, Y; {after} ld.relaxed.gpu.global.u32 %r11, X; st.global.u32 R0, %r10; st.global.u32 R1, %r11;"
        ),
    )
}

#[test]
fn a_relaxed_flag_may_be_seen_before_its_data() {
    for (writer, reader) in [
        (["", "st.relaxed"], ["ld.relaxed", ""]),
        (["", "st.relaxed"], ["ld.acquire", ""]),
        (["", "st.release"], ["ld.relaxed", ""]),
        (["fence.acq_rel.gpu;", "st.relaxed"], ["ld.relaxed", ""]),
        (["", "st.relaxed"], ["ld.relaxed", "fence.acq_rel.gpu;"]),
        (["", "st.relaxed"], ["ld.relaxed", "membar.gl;"]),
        (["membar.cta;", "st.relaxed"], ["ld.relaxed", "membar.cta;"]),
    ] {
        let (writer, reader) = message_passing(writer, reader);
        Litmus { threads: &[&writer, &reader], results: 2 }.allows(&[1, 0]);
    }
}

#[test]
fn a_released_flag_is_seen_after_its_data() {
    for (writer, reader) in [
        (["", "st.release"], ["ld.acquire", ""]),
        (["fence.acq_rel.gpu;", "st.relaxed"], ["ld.relaxed", "fence.acq_rel.gpu;"]),
        (["", "st.release"], ["ld.relaxed", "fence.acq_rel.gpu;"]),
        (["membar.gl;", "st.relaxed"], ["ld.acquire", ""]),
        (["membar.gl;", "st.relaxed"], ["ld.relaxed", "membar.gl;"]),
        (["fence.sc.gpu;", "st.relaxed"], ["ld.relaxed", "fence.sc.gpu;"]),
    ] {
        let (writer, reader) = message_passing(writer, reader);
        let litmus = Litmus { threads: &[&writer, &reader], results: 2 };
        litmus.forbids(&[1, 0]);
        litmus.allows(&[1, 1]);
        litmus.allows(&[0, 0]);
    }
}

#[test]
fn without_a_seed_or_without_the_check_of_races_every_load_is_the_newest() {
    let (writer, reader) = message_passing(["", "st.relaxed"], ["ld.relaxed", ""]);
    let litmus = Litmus { threads: &[&writer, &reader], results: 2 };
    assert!(!litmus.outcomes_under([None].into_iter()).contains([1, 0].as_slice()));
    let image = load(&kernel(2, &litmus.text())).unwrap();
    for seed in 0..SEEDS {
        let mut device = Device::new();
        let (words, results) = (device.zeros(192), device.zeros(8));
        let mut options = seeded(seed);
        options.checks.global_races = false;
        expect_ok(device.launch(&image, 2, 1, &[Arg::U64(words), Arg::U64(results)], &options));
        assert_ne!(device.download::<u32>(results, 2), [1, 0]);
    }
}

#[test]
fn stores_and_loads_crosswise_need_sequential_fences_on_both_sides() {
    let side = |own: &str, other: &str, fence: &str, result: &str| {
        format!(
            "st.relaxed.gpu.global.u32 {own}, 1; {fence} ld.relaxed.gpu.global.u32 %r10, {other}; st.global.u32 {result}, %r10;"
        )
    };
    let threads = |first: &str, second: &str| [side("X", "Y", first, "R0"), side("Y", "X", second, "R1")];
    for (first, second, allowed) in [
        ("", "", true),
        ("fence.acq_rel.gpu;", "fence.acq_rel.gpu;", true),
        ("fence.sc.gpu;", "", true),
        ("fence.sc.gpu;", "fence.acq_rel.gpu;", true),
        ("fence.sc.gpu;", "fence.sc.gpu;", false),
        ("membar.gl;", "membar.sys;", false),
    ] {
        let [a, b] = threads(first, second);
        let litmus = Litmus { threads: &[&a, &b], results: 2 };
        assert_eq!(litmus.outcomes().contains([0, 0].as_slice()), allowed, "{first:?} and {second:?}");
        litmus.allows(&[1, 1]);
    }
}

#[test]
fn one_word_never_goes_back() {
    // One thread stores 1 to 6; another loads six times.
    let stores: String = (1..=6).map(|n| format!("st.relaxed.gpu.global.u32 X, {n}; ")).collect();
    let loads: String = (10..16).map(|r| format!("ld.relaxed.gpu.global.u32 %r{r}, X; ")).collect();
    let results: String = (0..6).map(|n| format!("st.global.u32 R{n}, %r{}; ", 10 + n)).collect();
    let outcomes = Litmus { threads: &[&stores, &format!("{loads} {results}")], results: 6 }.outcomes();
    assert!(outcomes.iter().all(|loads| loads.is_sorted()), "{outcomes:?}");
    assert!(outcomes.len() > 20, "{outcomes:?}");
    // A load after a store of its own thread never returns an older value.
    let own = "st.relaxed.gpu.global.u32 X, 5; ld.relaxed.gpu.global.u32 %r10, X; st.global.u32 R0, %r10;";
    let outcomes = Litmus { threads: &["st.relaxed.gpu.global.u32 X, 4;", own], results: 1 }.outcomes();
    assert!(!outcomes.contains([0].as_slice()) && outcomes.contains([5].as_slice()), "{outcomes:?}");
}

#[test]
fn what_was_seen_stays_seen_for_whoever_is_told() {
    // WRC: the second thread has seen X and signals the third.
    let write = "st.relaxed.gpu.global.u32 X, 1;";
    let relay = |release: &str| {
        format!("ld.relaxed.gpu.global.u32 %r10, X; st.{release}.gpu.global.u32 Y, 1; st.global.u32 R0, %r10;")
    };
    let read = |acquire: &str| {
        format!(
            "ld.{acquire}.gpu.global.u32 %r10, Y; ld.relaxed.gpu.global.u32 %r11, X; st.global.u32 R1, %r10; st.global.u32 R2, %r11;"
        )
    };
    Litmus { threads: &[write, &relay("release"), &read("acquire")], results: 3 }.forbids(&[1, 1, 0]);
    Litmus { threads: &[write, &relay("relaxed"), &read("relaxed")], results: 3 }.allows(&[1, 1, 0]);
}

#[test]
fn releases_and_acquires_chain() {
    // ISA2.
    let write = "st.relaxed.gpu.global.u32 X, 1; st.release.gpu.global.u32 Y, 1;";
    let relay = |acquire: &str| {
        format!("ld.{acquire}.gpu.global.u32 %r10, Y; st.release.gpu.global.u32 Z, 1; st.global.u32 R0, %r10;")
    };
    let read = "ld.acquire.gpu.global.u32 %r10, Z; ld.relaxed.gpu.global.u32 %r11, X; st.global.u32 R1, %r10; st.global.u32 R2, %r11;";
    Litmus { threads: &[write, &relay("acquire"), read], results: 3 }.forbids(&[1, 1, 0]);
    Litmus { threads: &[write, &relay("relaxed"), read], results: 3 }.allows(&[1, 1, 0]);
}

#[test]
fn an_acquire_may_load_an_older_release_and_gets_what_that_one_tells() {
    let write = "st.relaxed.gpu.global.u32 X, 1; st.release.gpu.global.u32 Y, 1; st.relaxed.gpu.global.u32 X, 2; st.release.gpu.global.u32 Y, 2;
 st.relaxed.gpu.global.u32 Z, 1;";
    // A relaxed read of Z = 1 implies no order; it only makes it likely that the writer has finished.
    let read =
        "ld.relaxed.gpu.global.u32 %r12, Z; ld.acquire.gpu.global.u32 %r10, Y; ld.relaxed.gpu.global.u32 %r11, X;
 st.global.u32 R0, %r12; st.global.u32 R1, %r10; st.global.u32 R2, %r11;";
    let outcomes = Litmus { threads: &[write, read], results: 3 }.outcomes_under((0..5 * SEEDS).map(Some));
    assert!(outcomes.iter().all(|seen| seen[2] >= seen[1]), "{outcomes:?}");
    for allowed in [[1, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 2]] {
        assert!(outcomes.contains(allowed.as_slice()), "{allowed:?} never came, only {outcomes:?}");
    }
}

#[test]
fn a_read_modify_write_hands_a_release_on() {
    let write = "st.relaxed.gpu.global.u32 X, 1; st.release.gpu.global.u32 Y, 1;";
    let add = "atom.relaxed.gpu.global.add.u32 %r10, Y, 2; st.global.u32 R0, %r10;";
    let read = "ld.acquire.gpu.global.u32 %r10, Y; ld.relaxed.gpu.global.u32 %r11, X; st.global.u32 R1, %r10; st.global.u32 R2, %r11;";
    let outcomes = Litmus { threads: &[write, add, read], results: 3 }.outcomes();
    assert!(outcomes.iter().all(|seen| seen[1] & 1 <= seen[2]), "{outcomes:?}");
    assert!(outcomes.contains([1, 3, 1].as_slice()), "{outcomes:?}");
    // A value of 2 alone was stored before the release and implies no order.
    assert!(outcomes.contains([0, 2, 0].as_slice()), "{outcomes:?}");
}

#[test]
fn two_readers_may_disagree_on_the_order_of_two_writers_unless_they_fence() {
    // IRIW.
    let write = |word: &str| format!("st.relaxed.gpu.global.u32 {word}, 1;");
    let read = |first: &str, second: &str, fence: &str, at: usize| {
        format!(
            "ld.acquire.gpu.global.u32 %r10, {first}; {fence} ld.acquire.gpu.global.u32 %r11, {second}; st.global.u32 R{at}, %r10; st.global.u32 R{}, %r11;",
            at + 1
        )
    };
    for (fence, allowed) in [("", true), ("fence.sc.gpu;", false)] {
        let threads = [write("X"), write("Y"), read("X", "Y", fence, 0), read("Y", "X", fence, 2)];
        let threads = threads.each_ref().map(String::as_str);
        let outcomes = Litmus { threads: &threads, results: 4 }.outcomes();
        assert_eq!(outcomes.contains([1, 0, 1, 0].as_slice()), allowed, "{fence:?}");
    }
}

#[test]
fn what_a_fence_orders_goes_on_through_releases() {
    // The fences of the first two threads are ordered; the third learns of it from the second.
    let first =
        "st.relaxed.gpu.global.u32 X, 1; fence.sc.gpu; ld.relaxed.gpu.global.u32 %r10, Z; st.global.u32 R0, %r10;";
    let second = "st.relaxed.gpu.global.u32 Z, 1; fence.sc.gpu; st.release.gpu.global.u32 Y, 1;";
    let third = "ld.acquire.gpu.global.u32 %r10, Y; ld.relaxed.gpu.global.u32 %r11, X; st.global.u32 R1, %r10; st.global.u32 R2, %r11;";
    // The first thread did not see Z, so its fence was first.
    Litmus { threads: &[first, second, third], results: 3 }.forbids(&[0, 1, 0]);
}

#[test]
fn plain_stores_and_other_widths_leave_no_old_values_behind() {
    // Y is released last: a thread that acquires it must see the earlier stores, of any kind.
    let read = |ty: &str, at: &str| {
        format!(
            "ld.acquire.gpu.global.u32 %r10, Y; setp.eq.u32 %p1, %r10, 0; @%p1 bra done; ld.relaxed.gpu.global.{ty} %r11, {at}; st.global.u32 R0, %r11;"
        )
    };
    let release = "st.release.gpu.global.u32 Y, 1;";
    for (write, reader, expected) in [
        ("st.relaxed.gpu.global.u32 X, 1; st.global.u32 X, 2;", read("u32", "X"), 2),
        ("st.relaxed.gpu.global.u32 X, 1; st.global.u8 [%rd1+2], 1;", read("u32", "X"), 0x1_0001),
        ("st.relaxed.gpu.global.u32 X, 1; st.global.u32 X, 2; st.relaxed.gpu.global.u32 X, 3;", read("u32", "X"), 3),
        (
            "st.relaxed.gpu.global.u32 [%rd1+4], 1; mov.u64 %rd9, 0x700000000; st.relaxed.gpu.global.u64 X, %rd9;",
            read("u32", "[%rd1+4]"),
            7,
        ),
        (
            "mov.u64 %rd9, 0x700000000; st.relaxed.gpu.global.u64 X, %rd9; st.relaxed.gpu.global.u16 [%rd1+6], 1; ",
            read("u32", "[%rd1+4]"),
            0x1_0007,
        ),
        (
            "mov.u32 %r9, 7; st.relaxed.gpu.global.u32 X, 1; st.volatile.global.v4.u32 X, {%r9, %r9, %r9, %r9};",
            read("u32", "X"),
            7,
        ),
    ] {
        let litmus = Litmus { threads: &[&format!("{write} {release}"), &reader], results: 1 };
        let outcomes = litmus.outcomes();
        assert_eq!(outcomes, BTreeSet::from([vec![0], vec![expected]]), "{write}");
    }
}

#[test]
fn narrow_signed_loads_extend_old_values_too() {
    let write = "st.relaxed.gpu.global.u16 X, 65535; st.relaxed.gpu.global.u16 X, 3;";
    let read = "ld.relaxed.gpu.global.s16 %r10, X; st.global.u32 R0, %r10;";
    let outcomes = Litmus { threads: &[write, read], results: 1 }.outcomes();
    assert_eq!(outcomes, BTreeSet::from([vec![0], vec![3], vec![u32::MAX]]));
}

#[test]
fn read_modify_writes_lose_nothing_among_old_values() {
    // Each of 8 blocks of 48 threads adds one, reads with a relaxed load, and marks its ticket.
    let body = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1];
 ld.relaxed.gpu.global.u32 %r2, [%rd1]; atom.global.add.u32 %r1, [%rd1], 1; ld.relaxed.gpu.global.u32 %r3, [%rd1];
 setp.le.u32 %p1, %r3, %r1; @%p1 trap; setp.gt.u32 %p1, %r2, %r1; @%p1 trap;
 mul.wide.u32 %rd3, %r1, 4; add.s64 %rd3, %rd2, %rd3; st.global.u32 [%rd3], 1;";
    let image = load(&kernel(2, body)).unwrap();
    for seed in 0..50 {
        let mut device = Device::new();
        let (counter, marks) = (device.zeros(4), device.zeros(4 * 384));
        expect_ok(device.launch(&image, 8, 48, &[Arg::U64(counter), Arg::U64(marks)], &seeded(seed)));
        assert_eq!(device.download::<u32>(counter, 1), [384]);
        assert_eq!(device.download::<u32>(marks, 384), [1; 384]);
    }
}

#[test]
fn a_spin_on_a_relaxed_flag_ends() {
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 7; @%p1 bra set;
spin: ld.relaxed.gpu.global.u32 %r2, [%rd1]; setp.ne.u32 %p2, %r2, 3; @%p2 bra spin; bra done;
set: st.relaxed.gpu.global.u32 [%rd1], 1; st.relaxed.gpu.global.u32 [%rd1], 2; st.relaxed.gpu.global.u32 [%rd1], 3;
done:";
    let image = load(&kernel(1, body)).unwrap();
    for seed in 0..50 {
        let mut device = Device::new();
        let flag = device.zeros(4);
        let report = expect_ok(device.launch(&image, 8, 64, &[Arg::U64(flag)], &seeded(seed)));
        assert!(report.warp_instructions < 1_000_000, "seed {seed}: {}", report.warp_instructions);
    }
}

#[test]
fn the_end_of_a_launch_shows_everything() {
    let write = "ld.param.u64 %rd1, [p0]; st.relaxed.gpu.global.u32 [%rd1], 1; st.relaxed.gpu.global.u32 [%rd1], 2;";
    let read = "ld.param.u64 %rd1, [p0]; ld.relaxed.gpu.global.u32 %r1, [%rd1]; setp.ne.u32 %p1, %r1, 2; @%p1 trap;";
    for seed in 0..100 {
        let mut device = Device::new();
        let word = device.zeros(4);
        expect_ok(device.body_with(4, 1, &[word], write, &seeded(seed)));
        expect_ok(device.body_with(4, 1, &[word], read, &seeded(seed)));
    }
}
