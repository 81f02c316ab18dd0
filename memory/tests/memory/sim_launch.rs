//! Kernels on the simulated device: they run, are checked against their declarations, and their accesses are ordered.

use super::sim_rig::{DEVICE, Rig, declare, seeds};
use millpond_memory::driver::sim::{CallKind, FailCall, SimOptions};
use millpond_memory::driver::*;
use std::collections::BTreeMap;
use std::panic::Location;

pub const LEN: usize = 1024;
pub const BYTES: usize = 4 * LEN;
pub const ALL: (u32, u32) = (8, 128);

/// Kernels over u32 elements, one thread each; all parameters are 64-bit.
pub const KERNELS: &str = r"
.version 8.2
.target sm_70
.address_size 64

.global .align 4 .u32 factor = 3;

// out[i] = in[i] + 1, for first <= i < end
.visible .entry add_one(.param .u64 in, .param .u64 out, .param .u64 first, .param .u64 end)
{
    .reg .pred %p;
    .reg .u32 %r<5>;
    .reg .u64 %rd<8>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    cvt.u64.u32 %rd1, %r1;
    ld.param.u64 %rd2, [first];
    add.u64 %rd1, %rd1, %rd2;
    ld.param.u64 %rd3, [end];
    setp.ge.u64 %p, %rd1, %rd3;
    @%p bra DONE;
    ld.param.u64 %rd4, [in];
    ld.param.u64 %rd5, [out];
    shl.b64 %rd6, %rd1, 2;
    add.u64 %rd4, %rd4, %rd6;
    add.u64 %rd5, %rd5, %rd6;
    ld.global.u32 %r4, [%rd4];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd5], %r4;
DONE:
    ret;
}

// every thread adds 1 to *counter
.visible .entry count(.param .u64 counter)
{
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [counter];
    red.global.add.u32 [%rd1], 1;
    ret;
}

// *(u32*)address = 7
.visible .entry poke(.param .u64 address)
{
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [address];
    st.global.u32 [%rd1], 7;
    ret;
}

// *out = **pointer
.visible .entry chase(.param .u64 pointer, .param .u64 out)
{
    .reg .u32 %r<2>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [pointer];
    ld.param.u64 %rd2, [out];
    ld.global.u64 %rd3, [%rd1];
    ld.global.u32 %r1, [%rd3];
    st.global.u32 [%rd2], %r1;
    ret;
}

// *out = factor
.visible .entry get_factor(.param .u64 out)
{
    .reg .u32 %r<2>;
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [factor];
    st.global.u32 [%rd1], %r1;
    ret;
}

// every thread of every block writes *address, plainly
.visible .entry clash(.param .u64 address)
{
    .reg .u32 %r<3>;
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [address];
    mov.u32 %r2, %ctaid.x;
    st.global.u32 [%rd1], %r2;
    ret;
}

// every thread writes the same word of shared memory, plainly
.visible .entry clash_shared(.param .u64 out)
{
    .shared .align 4 .b32 word[1];
    .reg .u32 %r<2>;
    mov.u32 %r1, %tid.x;
    st.shared.u32 [word], %r1;
    ret;
}

.visible .entry fail()
{
    trap;
}
";

fn line_of(instruction: &str) -> Option<u32> {
    KERNELS.lines().position(|line| line.trim() == instruction).map(|index| index as u32 + 1)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

#[test]
fn a_kernel_runs_and_is_counted() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let add_one = rig.kernel(KERNELS, "add_one");
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        let numbers: Vec<u8> = (0..LEN as u32).flat_map(u32::to_le_bytes).collect();
        let source = rig.upload(&numbers, a, s);
        for _ in 0..3 {
            rig.launch(add_one, ALL, &[a.0, a.0, 0, LEN as u64], &[declare(a, BYTES, Access::ReadWrite)], s);
        }
        assert_eq!(words(&rig.fetch(a, BYTES, s)), (3..LEN as u32 + 3).collect::<Vec<_>>());
        rig.host_free(&source);
        rig.free(a, s);
        let counters = rig.driver.counters();
        assert_eq!(counters.launches, 3);
        assert_eq!(rig.driver.launched(), BTreeMap::from([("add_one".to_string(), 3)]));
        assert!(counters.lane_instructions >= 3 * 18 * LEN as u64, "{counters:?}");
        assert_eq!(rig.close(), []);
    }
}

#[test]
fn a_race_of_two_kernels_names_kernel_buffer_streams_and_sites() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let add_one = rig.kernel(KERNELS, "add_one");
        let (s, t) = (rig.stream(), rig.stream());
        let a = rig.alloc(BYTES, s);
        let b = rig.alloc(BYTES, s);
        rig.fill(a, 0, BYTES, s);
        rig.fill(b, 0, BYTES, s);
        rig.order(s, t);
        let first = line!() + 1;
        rig.launch(
            add_one,
            ALL,
            &[a.0, b.0, 0, LEN as u64],
            &[declare(a, BYTES, Access::Read), declare(b, BYTES, Access::Write)],
            s,
        );
        rig.launch(add_one, ALL, &[b.0, b.0, 512, LEN as u64], &[declare(b, BYTES, Access::ReadWrite)], t);
        let finding = rig.findings().remove(0);
        assert_eq!(finding.kind, FindingKind::UnorderedAccess);
        assert_eq!(finding.kernel.as_deref(), Some("add_one"));
        let lines = [line_of("ld.global.u32 %r4, [%rd4];"), line_of("st.global.u32 [%rd5], %r4;")];
        assert!(lines.contains(&finding.ptx_line), "{finding}");
        assert_eq!((finding.stream, finding.earlier_stream), (Some(t), Some(s)));
        assert_eq!(finding.earlier_site.map(|site| (site.file(), site.line())), Some((file!(), first)));
        assert!(finding.message.contains(&format!("{:#x}", b.0)), "{finding}");
        assert!(finding.message.contains("bytes 2048..2080"), "the first bytes where they meet: {finding}");
        assert_eq!(finding.seed, Some(seed));
    }
}

#[test]
fn footprints_let_kernels_share_a_buffer_in_disjoint_parts() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let add_one = rig.kernel(KERNELS, "add_one");
        let home = rig.stream();
        let a = rig.alloc(BYTES, home);
        rig.fill(a, 0, BYTES, home);
        let streams: Vec<_> = (0..4).map(|_| rig.stream()).collect();
        for (i, &stream) in (0..).zip(&streams) {
            rig.order(home, stream);
            // Each launch declares the whole buffer and accesses a quarter of it.
            rig.launch(
                add_one,
                (2, 128),
                &[a.0, a.0, i * 256, (i + 1) * 256],
                &[declare(a, BYTES, Access::Atomic)],
                stream,
            );
        }
        for &stream in &streams {
            rig.order(stream, home);
        }
        assert_eq!(words(&rig.fetch(a, BYTES, home)), [1; LEN]);
        rig.assert_silent();
    }
}

#[test]
fn atomics_of_several_streams_go_together_and_plain_touches_do_not() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (count, poke) = (rig.kernel(KERNELS, "count"), rig.kernel(KERNELS, "poke"));
        let (home, s, t) = (rig.stream(), rig.stream(), rig.stream());
        let a = rig.alloc(64, home);
        rig.fill(a, 0, 64, home);
        for stream in [s, t] {
            rig.order(home, stream);
            rig.launch(count, ALL, &[a.0], &[declare(a, 4, Access::Atomic)], stream);
            rig.order(stream, home);
        }
        assert_eq!(words(&rig.fetch(a, 4, home)), [2 * LEN as u32]);
        rig.assert_silent();
        rig.launch(count, ALL, &[a.0], &[declare(a, 4, Access::Atomic)], s);
        rig.launch(poke, (1, 1), &[a.0], &[declare(a, 4, Access::Write)], t);
        let finding = rig.only_finding(FindingKind::UnorderedAccess);
        assert!(finding.message.contains("changes atomically"), "{finding}");
    }
}

#[test]
fn touches_that_were_not_declared() {
    let rig = Rig::new(3);
    let add_one = rig.kernel(KERNELS, "add_one");
    let s = rig.stream();
    let (a, b) = (rig.alloc(BYTES, s), rig.alloc(BYTES, s));
    rig.fill(a, 0, BYTES, s);
    let params = [a.0, b.0, 0, LEN as u64];
    let input = declare(a, BYTES, Access::Read);
    for (accesses, said) in [
        (vec![input], "writes bytes 0..4096"),
        (vec![input, declare(b, BYTES, Access::Read)], "writes bytes 0..4096"),
        (vec![input, declare(b, BYTES - 32, Access::Write)], "writes bytes 4064..4096"),
        (vec![declare(b, BYTES, Access::Write)], "reads bytes 0..4096"),
    ] {
        rig.launch(add_one, ALL, &params, &accesses, s);
        let finding = rig.only_finding(FindingKind::Undeclared);
        assert!(finding.message.contains(said), "{finding}");
        let instruction =
            if said.starts_with("reads") { "ld.global.u32 %r4, [%rd4];" } else { "st.global.u32 [%rd5], %r4;" };
        assert_eq!(finding.ptx_line, line_of(instruction));
        assert_eq!(finding.kernel.as_deref(), Some("add_one"));
    }
    rig.launch(add_one, ALL, &params, &[input, declare(b, BYTES, Access::Write)], s);
    rig.assert_silent();
}

#[test]
fn a_kernel_out_of_bounds_loses_the_device() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let add_one = rig.kernel(KERNELS, "add_one");
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        rig.fill(a, 0, BYTES, s);
        let event = rig.record(s);
        rig.launch(add_one, (9, 128), &[a.0, a.0, 0, u64::MAX], &[declare(a, BYTES, Access::ReadWrite)], s);
        let error = rig.driver.stream_synchronize(s).unwrap_err();
        assert_eq!(error.code, DriverCode::ILLEGAL_ADDRESS);
        assert!(error.detail.as_deref().is_some_and(|detail| detail.contains("add_one")), "{error}");
        assert!(rig.driver.event_query(event).is_err(), "the context is poisoned for good");
        let finding = rig.only_finding(FindingKind::OutOfBounds);
        assert_eq!(finding.kernel.as_deref(), Some("add_one"));
        assert_eq!(finding.ptx_line, line_of("ld.global.u32 %r4, [%rd4];"));
        assert!(finding.message.contains(file!()), "names where the buffer was allocated: {finding}");
        assert_eq!(rig.close(), []);
    }
}

#[test]
fn faults_of_kernels_are_findings_and_sticky() {
    type Case = (&'static str, fn(&Rig, DevicePtr) -> Vec<u64>, FindingKind, DriverCode, Option<&'static str>);
    let cases: [Case; 5] = [
        (
            "poke",
            |_, a| vec![a.0 + 2],
            FindingKind::Misaligned,
            DriverCode::MISALIGNED_ADDRESS,
            Some("st.global.u32 [%rd1], 7;"),
        ),
        (
            "chase",
            |_, a| vec![a.0, a.0],
            FindingKind::Uninitialised,
            DriverCode::LAUNCH_FAILED,
            Some("ld.global.u64 %rd3, [%rd1];"),
        ),
        (
            "clash",
            |_, a| vec![a.0],
            FindingKind::GlobalRace,
            DriverCode::LAUNCH_FAILED,
            Some("st.global.u32 [%rd1], %r2;"),
        ),
        (
            "clash_shared",
            |_, a| vec![a.0],
            FindingKind::SharedRace,
            DriverCode::LAUNCH_FAILED,
            Some("st.shared.u32 [word], %r1;"),
        ),
        ("fail", |_, _| vec![], FindingKind::Fault, DriverCode::LAUNCH_FAILED, Some("trap;")),
    ];
    for (kernel, params, kind, code, instruction) in cases {
        let rig = Rig::new(1);
        let function = rig.kernel(KERNELS, kernel);
        let s = rig.stream();
        let a = rig.alloc(64, s);
        rig.launch(function, (2, 64), &params(&rig, a), &[declare(a, 64, Access::ReadWrite)], s);
        assert_eq!(rig.driver.stream_synchronize(s).unwrap_err().code, code, "{kernel}");
        let finding = rig.only_finding(kind);
        assert_eq!(finding.ptx_line, instruction.and_then(line_of), "{finding}");
        assert!(code.is_sticky());
    }
}

/// A buffer that the kernel accesses only through a pointer in memory: freed, and still used.
#[test]
fn use_after_free_through_a_pointer_in_memory() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let chase = rig.kernel(KERNELS, "chase");
        let (s, t) = (rig.stream(), rig.stream());
        let (a, pointer, out) = (rig.alloc(64, s), rig.alloc(64, s), rig.alloc(64, s));
        rig.fill(a, 1, 64, s);
        let source = rig.upload(&a.0.to_le_bytes(), pointer, s);
        rig.sync(s);
        rig.free(a, t);
        rig.launch(
            chase,
            (1, 1),
            &[pointer.0, out.0],
            &[declare(pointer, 8, Access::Read), declare(out, 4, Access::Write)],
            s,
        );
        let kinds = rig.kinds();
        assert!(kinds.contains(&FindingKind::UseAfterFree), "{kinds:?}");
        let _ = source;
    }
}

#[test]
fn declarations_of_freed_and_unready_buffers_are_found_at_the_launch() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let count = rig.kernel(KERNELS, "count");
        let (s, t) = (rig.stream(), rig.stream());
        let (a, b) = (rig.alloc(64, s), rig.alloc(64, s));
        rig.fill(b, 0, 64, s);
        rig.sync(s);
        rig.free(a, s);
        let late = rig.alloc(64, s);
        let before = rig.driver.findings().len();
        assert_eq!(before, 0);
        rig.launch(count, (1, 1), &[b.0], &[declare(b, 4, Access::Atomic), declare(late, 64, Access::Read)], t);
        let kinds: Vec<_> = rig.driver.findings().iter().map(|finding| finding.kind).collect();
        // The freed buffer may have been reused as `late`, in the same stream.
        assert_eq!(kinds, [FindingKind::UseBeforeAllocation]);
    }
}

#[test]
fn module_variables() {
    let rig = Rig::new(2);
    let module = rig.driver.module_load(DEVICE, KERNELS).unwrap();
    let get_factor = rig.driver.module_function(module, "get_factor").unwrap();
    let s = rig.stream();
    let out = rig.alloc(64, s);
    let accesses = [declare(out, 4, Access::Write)];
    rig.launch(get_factor, (1, 1), &[out.0], &accesses, s);
    assert_eq!(words(&rig.fetch(out, 4, s)), [3]);
    let (factor, len) = rig.driver.module_global(module, "factor").unwrap();
    assert_eq!(len, 4);
    let source = rig.upload(&5u32.to_le_bytes(), factor, s);
    rig.launch(get_factor, (1, 1), &[out.0], &accesses, s);
    assert_eq!(words(&rig.fetch(out, 4, s)), [5]);
    assert_eq!(rig.driver.module_global(module, "nothing").unwrap_err().code, DriverCode::NOT_FOUND);
    assert!(rig.driver.free_async(factor, s, Location::caller()).is_err());
    rig.only_finding(FindingKind::ForeignFree);

    rig.launch(get_factor, (1, 1), &[out.0], &accesses, s);
    rig.driver.module_unload(module).unwrap();
    let finding = rig.only_finding(FindingKind::Handle);
    assert!(finding.message.contains("get_factor"), "{finding}");
    assert!(rig.try_launch(get_factor, (1, 1), &[out.0], &accesses, s).is_err());
    rig.only_finding(FindingKind::Handle);
    rig.free(out, s);
    rig.sync(s);
    rig.host_free(&source);
    assert_eq!(rig.close(), []);
}

#[test]
fn launches_that_cuda_refuses() {
    let rig = Rig::with(SimOptions { devices: 2, ..SimOptions::default() });
    let count = rig.kernel(KERNELS, "count");
    let s = rig.stream();
    let other = rig.driver.stream_create(DeviceId(1), StreamPriority::Normal).unwrap();
    let a = rig.alloc(64, s);
    rig.fill(a, 0, 64, s);
    let accesses = [declare(a, 4, Access::Atomic)];
    for (geometry, params, stream, code) in [
        ((0, 32), &[a.0][..], s, DriverCode::INVALID_VALUE),
        ((1, 0), &[a.0], s, DriverCode::INVALID_VALUE),
        ((1, 1025), &[a.0], s, DriverCode::INVALID_VALUE),
        ((1, 32), &[], s, DriverCode::INVALID_VALUE),
        ((1, 32), &[a.0, 0], s, DriverCode::INVALID_VALUE),
        ((1, 32), &[a.0], other, DriverCode::INVALID_HANDLE),
        ((1, 32), &[a.0], StreamHandle(0), DriverCode::INVALID_HANDLE),
    ] {
        let error = rig.try_launch(count, geometry, params, &accesses, stream).unwrap_err();
        assert_eq!(error.code, code, "{error}");
    }
    assert_eq!(rig.driver.counters().launches, 0);
    assert_eq!(
        rig.driver.function_params(count).unwrap(),
        [ParamLayout { offset: 0, size: 8 }],
        "the layout that packing needs"
    );
    let optin = rig.driver.attribute(DEVICE, DeviceAttribute::MaxSharedMemoryPerBlockOptin).unwrap() as u32;
    assert!(rig.driver.function_set_max_dynamic_shared(count, optin).is_ok());
    assert!(rig.driver.function_set_max_dynamic_shared(count, optin + 1).is_err());
    assert_eq!(rig.driver.occupancy(count, 1024, 0).unwrap(), 2, "2,048 threads");
    assert_eq!(rig.driver.occupancy(count, 32, optin).unwrap(), 1, "shared memory of one block");
    let module = rig.driver.module_load(DEVICE, KERNELS).unwrap();
    assert_eq!(rig.driver.module_function(module, "nothing").unwrap_err().code, DriverCode::NOT_FOUND);
    rig.assert_silent();
}

#[test]
fn unknown_instructions_are_refused_with_their_line() {
    let rig = Rig::new(0);
    let ptx =
        ".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n    frobnicate.u32;\n    ret;\n}\n";
    let error = rig.driver.module_load(DEVICE, ptx).unwrap_err();
    assert_eq!(error.code, DriverCode::INVALID_PTX);
    let detail = error.detail.unwrap_or_default();
    assert!(detail.contains('6') && detail.contains("frobnicate"), "{detail}");
}

#[test]
fn ill_typed_instructions_are_refused_as_an_assembler_would() {
    let rig = Rig::new(0);
    let body = ".reg .b32 %r<2>;\n.reg .f32 %f<2>;\nmov.u32 %r0, 1;\nadd.s32 %r1, %r0, %f1;\nret;";
    let ptx = format!(".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry k()\n{{\n{body}\n}}\n");
    let error = rig.driver.module_load(DEVICE, &ptx).unwrap_err();
    assert_eq!(error.code, DriverCode::INVALID_PTX);
    let detail = error.detail.unwrap_or_default();
    assert!(detail.contains("line 9") && detail.contains("%f1 is .f32, where .s32 is wanted"), "{detail}");
}

#[test]
fn the_nth_launch_loses_the_device() {
    let fail_calls = vec![FailCall::with_code(CallKind::Launch, 2, DriverCode::LAUNCH_FAILED)];
    let rig = Rig::with(SimOptions { fail_calls, ..SimOptions::default() });
    let count = rig.kernel(KERNELS, "count");
    let s = rig.stream();
    let a = rig.alloc(64, s);
    rig.fill(a, 0, 64, s);
    let accesses = [declare(a, 4, Access::Atomic)];
    rig.launch(count, (1, 1), &[a.0], &accesses, s);
    let error = rig.try_launch(count, (1, 1), &[a.0], &accesses, s).unwrap_err();
    assert!(error.code.is_sticky(), "{error}");
    assert_eq!(rig.driver.stream_synchronize(s).unwrap_err().code, error.code);
    assert_eq!(rig.try_launch(count, (1, 1), &[a.0], &accesses, s).unwrap_err().code, error.code);
    assert_eq!(rig.close(), []);
}

#[test]
fn kernels_reach_a_peer_only_with_access() {
    for access in [false, true] {
        let rig = Rig::with(SimOptions { devices: 2, ..SimOptions::default() });
        let module = rig.driver.module_load(DeviceId(1), KERNELS).unwrap();
        let count = rig.driver.module_function(module, "count").unwrap();
        let (s, t) = (rig.stream(), rig.driver.stream_create(DeviceId(1), StreamPriority::Normal).unwrap());
        let a = rig.alloc(64, s);
        rig.fill(a, 0, 64, s);
        rig.order(s, t);
        if access {
            rig.driver.pool_set_access(rig.pool, DeviceId(1), true).unwrap();
        }
        rig.launch(count, ALL, &[a.0], &[declare(a, 4, Access::Atomic)], t);
        let result = rig.driver.stream_synchronize(t);
        match access {
            true => {
                result.unwrap();
                assert_eq!(words(&rig.fetch(a, 4, s)), [LEN as u32]);
                rig.assert_silent();
            }
            false => {
                assert_eq!(result.unwrap_err().code, DriverCode::ILLEGAL_ADDRESS);
                rig.only_finding(FindingKind::OutOfBounds);
            }
        }
    }
}
