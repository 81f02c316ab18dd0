//! Launches that must fail, and the content of their faults.

use crate::device::*;
use millpond_ptx::interpret::{AllocationInfo, FaultKind, Options};

const ADDRESS: &str =
    "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;";

#[test]
fn a_read_past_the_end_is_found_and_named() {
    let mut device = Device::new();
    let buffer = device.upload(&[0_u32; 40]);
    let body = format!("{ADDRESS}\n add.u32 %r2, %r1, 1;\n ld.global.u32 %r2, [%rd1+36];");
    let found = expect_fault(device.body(1, 32, &[buffer], &body), FaultKind::OutOfBounds);
    assert_eq!((found.kernel.as_str(), found.block, found.thread), ("k", [0; 3], [31, 0, 0]));
    assert_eq!(found.address, Some(buffer + 160));
    assert_eq!(found.allocation, Some(AllocationInfo { base: buffer, len: 160 }));
    // Three header lines, one of the entry, two of registers, and the third line of the body.
    assert_eq!(found.line, 9);
    assert!(found.instruction.contains("ld.global.u32 %r2, [%rd1+36]"), "{}", found.instruction);
    let text = found.to_string();
    assert!(text.contains("160 bytes into the allocation of 160 bytes"), "{text}");
    // The heap remains usable, and the next launch runs.
    let body = format!("{ADDRESS}\n st.global.u32 [%rd1], %r1;");
    expect_ok(device.body(1, 40, &[buffer], &body));
    assert_eq!(device.download::<u32>(buffer, 40), (0..40).collect::<Vec<_>>());
}

#[test]
fn accesses_outside_of_everything_are_found() {
    for (body, from) in [
        ("ld.global.u32 %r2, [%rd1+-4];", "a read below the start"),
        ("st.global.u32 [%rd1+256], %r1;", "a write between allocations"),
        ("mov.u64 %rd3, 0; ld.global.u32 %r2, [%rd3];", "a read of the null pointer"),
        ("mov.u64 %rd3, 16; st.u32 [%rd3], %r1;", "a generic write near the null pointer"),
        ("atom.global.add.u32 %r2, [%rd1+128], 1;", "an atomic past the end"),
        ("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+128];", "a vector past the end"),
        ("ld.global.v2.u64 {%rd2, %rd3}, [%rd1+120];", "a vector that starts inside"),
    ] {
        let mut device = Device::new();
        let buffer = device.upload(&[0_u32; 32]);
        let result = device.body(1, 1, &[buffer], &format!("{ADDRESS}\n{body}"));
        assert_eq!(fault(result).kind, FaultKind::OutOfBounds, "{from}");
    }
}

#[test]
fn freed_memory_is_outside() {
    let mut device = Device::new();
    let buffer = device.upload(&[0_u32; 32]);
    device.heap.free(buffer).unwrap();
    expect_fault(
        device.body(1, 32, &[buffer], &format!("{ADDRESS}\n ld.global.u32 %r2, [%rd1];")),
        FaultKind::OutOfBounds,
    );
}

#[test]
fn shared_local_and_parameter_memory_have_ends() {
    let mut device = Device::new();
    for body in [
        ".shared .align 4 .b8 s[128]; mov.u32 %r1, s; st.shared.u32 [%r1+128], %r2;",
        ".shared .align 4 .b8 s[128]; cvta.shared.u64 %rd1, s; mov.u32 %r2, 0; st.u32 [%rd1+128], %r2;",
        ".local .align 8 .b8 l[16]; mov.u64 %rd1, l; mov.u32 %r2, 0; st.local.u32 [%rd1+16], %r2;",
        "mov.u64 %rd1, 8; ld.param.u64 %rd2, [%rd1];",
    ] {
        assert_eq!(fault(device.body(1, 32, &[0], body)).kind, FaultKind::OutOfBounds, "{body}");
    }
}

#[test]
fn misaligned_accesses_are_found() {
    for body in [
        "ld.global.u32 %r2, [%rd1+2];",
        "ld.global.u16 %r2, [%rd1+1];",
        "ld.global.u64 %rd2, [%rd1+4];",
        "ld.global.v2.u32 {%r2, %r3}, [%rd1+4];",
        "ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+8];",
        "st.global.u32 [%rd1+1], %r1;",
        "atom.global.add.u64 %rd2, [%rd1+4], 1;",
        ".shared .align 8 .b8 s[16]; mov.u32 %r2, s; st.shared.u64 [%r2+4], %rd1;",
        ".local .align 8 .b8 s[16]; st.local.u64 [s+4], %rd1;",
    ] {
        let mut device = Device::new();
        let buffer = device.upload(&[0_u32; 64]);
        let found = fault(device.body(1, 1, &[buffer], &format!("ld.param.u64 %rd1, [p0]; mov.u32 %r1, 0;\n{body}")));
        assert_eq!(found.kind, FaultKind::Misaligned, "{body}: {found}");
    }
    // A whole row of threads, each misaligned by two bytes.
    let mut device = Device::new();
    let buffer = device.upload(&[0_u32; 64]);
    expect_fault(
        device.body(1, 32, &[buffer], &format!("{ADDRESS}\n ld.global.u32 %r2, [%rd1+2];")),
        FaultKind::Misaligned,
    );
}

#[test]
fn bytes_that_nothing_wrote_are_found() {
    let mut device = Device::new();
    let buffer = device.alloc(128);
    device.heap.write(buffer, &[0; 99]).unwrap();
    let found = expect_fault(
        device.body(1, 32, &[buffer], &format!("{ADDRESS}\n ld.global.u32 %r2, [%rd1];")),
        FaultKind::Uninitialised,
    );
    assert_eq!((found.address, found.thread), (Some(buffer + 99), [24, 0, 0]));
    for body in [
        "ld.global.u8 %r2, [%rd1+99];",
        "atom.global.add.u32 %r2, [%rd1+100], 1;",
        "ld.relaxed.gpu.global.u32 %r2, [%rd1+100];",
        ".shared .align 4 .b8 s[16]; ld.shared.u32 %r2, [s];",
        ".shared .align 4 .b8 s[16]; st.shared.u16 [s], 7; ld.shared.u32 %r2, [s];",
        ".local .align 4 .b8 s[16]; st.local.u8 [s], 7; ld.local.u16 %r2, [s];",
    ] {
        let found = fault(device.body(1, 1, &[buffer], &format!("ld.param.u64 %rd1, [p0];\n{body}")));
        assert_eq!(found.kind, FaultKind::Uninitialised, "{body}: {found}");
    }
    let mut options = Options::default();
    options.checks.initialised = false;
    expect_ok(device.body_with(1, 32, &[buffer], &format!("{ADDRESS}\n ld.global.u32 %r2, [%rd1];"), &options));
}

#[test]
fn shared_memory_of_one_block_is_not_that_of_the_next() {
    let body = ".shared .align 4 .b8 s[4]; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [s], 1; ld.shared.u32 %r2, [s];";
    let found = expect_fault(Device::new().body(2, 1, &[], body), FaultKind::Uninitialised);
    assert_eq!(found.block, [1, 0, 0]);
}

#[test]
fn constants_and_parameters_cannot_be_written() {
    let image = load(&format!(".const .u32 c = 1;\n{}", kernel(0, "mov.u32 %r1, 1; st.const.u32 [c], %r1;"))).unwrap();
    expect_fault(Device::new().launch(&image, 1, 1, &[], &Options::default()), FaultKind::ReadOnly);
    expect_fault(Device::new().body(1, 1, &[0], "st.param.u64 [p0], %rd1;"), FaultKind::ReadOnly);
}

#[test]
fn traps_and_endless_loops_end() {
    let found = expect_fault(
        Device::new().body(2, 64, &[], "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 40; @%p1 trap;"),
        FaultKind::Trap,
    );
    assert_eq!((found.block, found.thread), ([0; 3], [40, 0, 0]));
    let options = Options { max_warp_instructions: 10_000, ..Options::default() };
    expect_fault(Device::new().body_with(1, 1, &[], "loop: bra loop;", &options), FaultKind::Runaway);
    let options = Options { max_idle_instructions: 10_000, ..Options::default() };
    expect_fault(Device::new().body_with(1, 1, &[], "loop: bra loop;", &options), FaultKind::Deadlock);
}

#[test]
fn a_flag_that_nobody_sets_is_a_deadlock() {
    let mut device = Device::new();
    let flag = device.zeros(4);
    let body = "ld.param.u64 %rd1, [p0];
spin: ld.acquire.gpu.global.u32 %r1, [%rd1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra spin;";
    let options = Options { max_idle_instructions: 100_000, ..Options::default() };
    let found = expect_fault(device.body_with(100, 64, &[flag], body, &options), FaultKind::Deadlock);
    assert!(found.to_string().contains("every thread waits"), "{found}");
    expect_fault(device.body_with(3, 64, &[flag], body, &Options { seed: Some(5), ..options }), FaultKind::Deadlock);
}

#[test]
fn a_long_loop_that_only_reads_is_no_deadlock() {
    let mut device = Device::new();
    let list = device.zeros(4 * 1024);
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, 0; mov.u32 %r3, 0;
next: and.b32 %r2, %r1, 1023; mul.wide.u32 %rd2, %r2, 4; add.u64 %rd2, %rd1, %rd2; ld.global.u32 %r2, [%rd2];
add.u32 %r3, %r3, %r2; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 40000; @%p1 bra next; st.global.u32 [%rd1], %r3;";
    let options = Options { max_idle_instructions: 20_000, ..Options::default() };
    expect_ok(device.body_with(1, 1, &[list], body, &options));
}

#[test]
fn launches_that_cannot_be_are_refused() {
    let image = load(&format!("{}.visible .entry fixed() .reqntid 64 {{ ret; }}", kernel(1, ""))).unwrap();
    let mut device = Device::new();
    let mut refuse = |kernel: &str, grid, block, shared, args: &[Arg], words: &str| {
        let result = device.launch_as(&image, kernel, grid, block, shared, args, &Options::default());
        let found = expect_fault(result, FaultKind::InvalidLaunch);
        assert!(found.message.contains(words), "{}", found.message);
    };
    let arg = [Arg::U64(0)];
    refuse("none", [1; 3], [1; 3], 0, &arg, "\"fixed\"");
    refuse("k", [1; 3], [1025, 1, 1], 0, &arg, "1025");
    refuse("k", [1; 3], [32, 33, 1], 0, &arg, "32 × 33 × 1");
    refuse("k", [1; 3], [0, 1, 1], 0, &arg, "0 × 1 × 1");
    refuse("k", [0, 1, 1], [1; 3], 0, &arg, "0 × 1 × 1");
    refuse("k", [1, 70_000, 1], [1; 3], 0, &arg, "70000");
    refuse("k", [1; 3], [1; 3], 1 << 20, &arg, "1048576");
    refuse("k", [1; 3], [1; 3], 0, &[], "the kernel has 8");
    refuse("fixed", [1; 3], [32, 1, 1], 0, &[], "[64, 1, 1]");
}

#[test]
fn unknown_instructions_and_names_are_refused_with_their_line() {
    for (body, words) in [
        ("\n\nfrobnicate.u32 %r1, %r2;", "frobnicate"),
        ("\n\nld.global.wide.u32 %r1, [%rd1];", ".wide"),
        ("\n\nbra nowhere;", "nowhere"),
        ("\n\nmov.u32 %r1, nothing;", "nothing"),
        ("\n\nld.global.u64 %r1, [%rd1];", "32 bits"),
        ("\n\nshfl.down.b32 %r1, %r2, 1, 31;", ".sync"),
        ("\n\natom.global.add.b32 %r1, [%rd1], 1;", ".add"),
        ("\n\n@%r1 bra here; here:", "predicate"),
        ("\n\ncall missing, ();", "missing"),
    ] {
        let error = load(&kernel(0, body)).expect_err(body);
        assert_eq!(error.line, 9, "{body}: {error}");
        assert!(error.message.contains(words), "{body}: {error}");
    }
}
