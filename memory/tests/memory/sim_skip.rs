//! Launches that are accepted but not run: the host reads the results of an earlier run, with no other effect.

use super::sim_launch::{ALL, BYTES, KERNELS, LEN};
use super::sim_rig::{Rig, declare};
use millpond_memory::driver::*;
use std::sync::Arc;

/// `LEN` consecutive numbers, starting with `first`.
fn numbers(first: u32) -> Vec<u8> {
    (first..).take(LEN).flat_map(u32::to_le_bytes).collect()
}

/// Uploads, adds one, and returns the bytes that the host reads.
fn run(rig: &Rig, function: FunctionHandle, first: u32) -> Vec<u8> {
    let stream = rig.stream();
    let (from, to) = (rig.alloc(BYTES, stream), rig.alloc(BYTES, stream));
    let host = rig.upload(&numbers(first), from, stream);
    let accesses = [declare(from, BYTES, Access::Read), declare(to, BYTES, Access::Write)];
    rig.launch(function, ALL, &[from.0, to.0, 0, LEN as u64], &accesses, stream);
    let read = rig.fetch(to, BYTES, stream);
    rig.free(from, stream);
    rig.free(to, stream);
    rig.sync(stream);
    rig.host_free(&host);
    read
}

#[test]
fn a_skipped_run_reads_what_the_kept_one_read_and_executes_nothing() {
    let rig = Rig::new(3);
    let function = rig.kernel(KERNELS, "add_one");
    rig.driver.keep_downloads();
    assert_eq!(run(&rig, function, 10), numbers(11));
    let kept = Arc::new(rig.driver.run_launches().expect("something was kept"));
    assert_eq!(kept.len(), 1);

    let before = rig.driver.counters();
    assert_eq!(rig.driver.first_skipped_launch(), None);
    rig.driver.skip_launches(&kept);
    // Other rows are uploaded, but their results are not computed.
    assert_eq!(run(&rig, function, 500), numbers(11));
    assert!(rig.driver.run_launches().is_none(), "nothing was to be kept");
    let after = rig.driver.counters();
    assert_eq!(after.warp_instructions, before.warp_instructions);
    assert_eq!(after.launches, before.launches + 1);
    assert_eq!(after.uploaded_bytes, before.uploaded_bytes + BYTES as u64);
    assert!(rig.driver.first_skipped_launch().is_some());

    assert_eq!(run(&rig, function, 500), numbers(501));
    assert!(rig.driver.take_findings().is_empty());
}

#[test]
fn a_download_that_was_not_kept_is_refused() {
    let rig = Rig::new(0);
    let function = rig.kernel(KERNELS, "add_one");
    rig.driver.keep_downloads();
    run(&rig, function, 0);
    let kept = Arc::new(rig.driver.run_launches().expect("something was kept"));
    rig.driver.skip_launches(&kept);
    run(&rig, function, 0);
    let stream = rig.stream();
    let buffer = rig.alloc(BYTES, stream);
    let to = rig.host(BYTES);
    let copy = CopyOp::DeviceToHost { from: buffer, to: to.clone() };
    let refused = rig.driver.copy(&copy, stream, std::panic::Location::caller()).expect_err("it is refused");
    let words = refused.to_string();
    assert!(words.contains("no download 1 of 4096 bytes") && words.contains("sim_skip.rs"), "{words}");
    rig.free(buffer, stream);
    rig.sync(stream);
    rig.host_free(&to);
}
