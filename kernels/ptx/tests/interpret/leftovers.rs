//! Initial values of registers and local memory: zero without a seed, random values of the right width with one.

use crate::device::*;
use millpond_ptx::interpret::{Checks, FaultKind, Options};
use std::collections::HashSet;

/// Values of `%rd9` stored by 64 threads of each of two blocks after `body`.
fn stored(body: &str, functions: &str, options: &Options) -> Vec<u64> {
    let mut device = Device::new();
    let out = device.alloc(128 * 8);
    let store = "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r1, %r2, 64, %r1;
 ld.param.u64 %rd1, [p0]; mad.wide.u32 %rd1, %r1, 8, %rd1; st.global.u64 [%rd1], %rd9;";
    let image = load(&format!("{functions}{}", kernel(1, &format!("{body} {store}")))).unwrap();
    expect_ok(device.launch(&image, 2, 64, &[Arg::U64(out)], options));
    device.download(out, 128)
}

fn different(values: &[u64]) -> usize {
    values.iter().collect::<HashSet<_>>().len()
}

#[test]
fn registers_begin_with_values_by_seed() {
    assert_eq!(stored("", "", &Options::default()), [0; 128]);
    let values = stored("", "", &seeded(1));
    assert!(different(&values) > 120, "threads find different values: {values:x?}");
    assert_eq!(stored("", "", &seeded(1)), values, "a seed means the same values");
    assert_ne!(stored("", "", &seeded(2)), values);
}

#[test]
fn a_guarded_write_leaves_the_others_what_was_there() {
    let body = "mov.u32 %r5, %tid.x; setp.lt.u32 %p1, %r5, 8; @%p1 mov.u64 %rd9, 7;";
    for (thread, value) in stored(body, "", &seeded(3)).into_iter().enumerate() {
        assert_eq!(value == 7, thread % 64 < 8, "thread {thread}: {value:x}");
    }
}

#[test]
fn each_value_fits_its_register() {
    for seed in 0..8 {
        // Unconverted 16 and 32 bits, and a predicate as a guard, in logic and as a number.
        let body = "cvt.u64.u16 %rd2, %h3; cvt.u64.u32 %rd3, %r9; shl.b64 %rd3, %rd3, 16; or.b64 %rd9, %rd2, %rd3;";
        let values = stored(body, "", &seeded(seed));
        assert!(values.iter().all(|value| value >> 48 == 0), "{values:x?}");
        let body = "selp.b64 %rd2, 1, 0, %p3; mov.u64 %rd3, 0; @%p3 mov.u64 %rd3, 2; not.pred %p4, %p3; selp.b64 %rd4, 4, 0, %p4;
 add.u64 %rd9, %rd2, %rd3; add.u64 %rd9, %rd9, %rd4;";
        let values = stored(body, "", &seeded(seed));
        assert!(values.iter().all(|value| [3, 4].contains(value)), "{values:x?}");
        assert_eq!(different(&values), 2, "both truths occur: {values:x?}");
    }
}

#[test]
fn frames_of_callees_begin_so_too() {
    let functions = ".func (.reg .b64 r) old() { .reg .b64 %x; mov.u64 r, %x; mov.u64 %x, 5; ret; }\n";
    let body = "call (%rd8), old; call (%rd9), old; xor.b64 %rd9, %rd8, %rd9;";
    assert_eq!(stored(body, functions, &Options::default()), [0; 128]);
    let values = stored(body, functions, &seeded(1));
    assert!(different(&values) > 1 && !values.contains(&0), "two calls find different values: {values:x?}");
}

#[test]
fn local_memory_holds_anything_where_reading_it_is_no_fault() {
    let body = ".local .align 8 .b8 words[8]; ld.local.u64 %rd9, [words];";
    let unchecked = |seed| Options { checks: Checks::NONE, ..seeded(seed) };
    let values = stored(body, "", &unchecked(1));
    assert!(different(&values) > 120, "{values:x?}");
    assert_ne!(stored(body, "", &unchecked(2)), values);
    let checked = Device::new().body_with(1, 32, &[], body, &seeded(1));
    expect_fault(checked, FaultKind::Uninitialised);
}

#[test]
fn the_carry_flag_is_anything_before_its_first_sum() {
    let body = "mov.u64 %rd9, 0; addc.u64 %rd9, %rd9, 0;";
    let values = stored(body, "", &seeded(1));
    assert!(values.iter().all(|value| *value <= 1) && different(&values) == 2, "{values:x?}");
}
