//! Calls of `.func`: parameters in registers and memory, recursion, addresses, divergence.

use crate::device::*;
use millpond_ptx::interpret::{FaultKind, Image, Options};

fn run(image: &Image, threads: u32, seed: Option<u64>) -> Vec<u32> {
    let mut device = Device::new();
    let out = device.alloc(u64::from(threads) * 4);
    expect_ok(device.launch(image, 1, threads, &[Arg::U64(out)], &Options { seed, ..Options::default() }));
    device.download::<u32>(out, threads as usize)
}

const STORE: &str =
    "ld.param.u64 %rd1, [p0]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r5;";

#[test]
fn parameters_pass_through_param_space() {
    // In compiler style: blocks with their own .param variables, structs as bytes.
    let text = format!(
        ".func (.param .align 8 .b8 result[16]) swap(.param .align 8 .b8 pair[16], .param .b32 extra) {{
 .reg .b64 %rd<4>; .reg .b32 %r<4>; .local .align 8 .b8 scratch[8];
 ld.param.u64 %rd1, [pair]; ld.param.u64 %rd2, [pair+8]; ld.param.u32 %r1, [extra]; st.local.u32 [scratch], %r1; ld.local.u32 %r2, [scratch];
 cvt.u64.u32 %rd3, %r2; add.s64 %rd1, %rd1, %rd3; st.param.v2.b64 [result], {{%rd2, %rd1}}; ret; }}\n{}",
        kernel(
            1,
            &format!(
                "mov.u32 %r1, %tid.x; cvt.u64.u32 %rd5, %r1; mov.u64 %rd6, 7;
 {{ .param .align 8 .b8 param0[16]; .param .b32 param1; .param .align 8 .b8 retval0[16];
 st.param.b64 [param0+0], %rd5; st.param.b64 [param0+8], %rd6; st.param.b32 [param1+0], 1000;
 call.uni (retval0), swap, (param0, param1);
 ld.param.b64 %rd7, [retval0+0]; ld.param.b64 %rd8, [retval0+8]; }}
 mad.lo.s64 %rd9, %rd7, 10000, %rd8; cvt.u32.u64 %r5, %rd9; {STORE}"
            )
        )
    );
    let image = load(&text).unwrap();
    assert_eq!(run(&image, 40, None), (0..40).map(|n| 70_000 + 1000 + n).collect::<Vec<_>>());
}

#[test]
fn recursion_follows_each_lane() {
    // fib(n) with n = lane modulo 12: lanes return from different depths.
    let text = format!(
        ".func (.reg .b32 r) fib(.reg .b32 n) {{ .reg .pred %p; .reg .b32 %a<4>;
 setp.lt.u32 %p, n, 2; @%p bra small; sub.u32 %a1, n, 1; call (%a2), fib, (%a1); sub.u32 %a1, n, 2; call (%a3), fib, (%a1); add.u32 r, %a2, %a3; ret;
small: mov.u32 r, n; ret; }}\n{}",
        kernel(1, &format!("mov.u32 %r1, %tid.x; rem.u32 %r2, %r1, 12; call (%r5), fib, (%r2); {STORE}"))
    );
    let image = load(&text).unwrap();
    let mut fib = vec![0, 1];
    (2..12).for_each(|n| fib.push(fib[n - 1] + fib[n - 2]));
    let expected: Vec<u32> = (0..32).map(|n| fib[n % 12]).collect();
    for seed in [None, Some(1), Some(2), Some(3)] {
        assert_eq!(run(&image, 32, seed), expected);
    }
}

#[test]
fn calls_through_addresses_go_where_each_lane_wants() {
    let text = format!(
        ".func (.reg .b32 r) twice(.reg .b32 a) {{ shl.b32 r, a, 1; ret; }}
.func (.reg .b32 r) square(.reg .b32 a) {{ mul.lo.u32 r, a, a; ret; }}
.func (.reg .b32 r) same(.reg .b32 a) {{ mov.u32 r, a; ret; }}
.global .align 8 .u64 table[3] = {{twice, square, same}};\n{}",
        kernel(
            1,
            &format!(
                "mov.u32 %r1, %tid.x; rem.u32 %r2, %r1, 3; mul.wide.u32 %rd3, %r2, 8; mov.u64 %rd4, table; add.s64 %rd4, %rd4, %rd3; ld.global.u64 %rd5, [%rd4];
 call (%r5), %rd5, (%r1), shape; {STORE}
shape: .callprototype (.reg .b32 _) _ (.reg .b32 _);"
            )
        )
    );
    let image = load(&text).unwrap();
    let expected: Vec<u32> = (0..64).map(|n| [2 * n, n * n, n][n as usize % 3]).collect();
    assert_eq!(run(&image, 64, None), expected);
    // An address without a function.
    let text = kernel(0, "mov.u64 %rd1, 12345; call %rd1, (), shape; shape: .callprototype _ ();");
    let image = load(&text).unwrap();
    expect_fault(Device::new().launch(&image, 1, 1, &[], &Options::default()), FaultKind::Call);
}

#[test]
fn endless_recursion_is_found() {
    let text = format!(".func f() {{ call f, (); ret; }}\n{}", kernel(0, "call f, ();"));
    let image = load(&text).unwrap();
    let options = Options { max_call_depth: 50, ..Options::default() };
    let found = expect_fault(Device::new().launch(&image, 1, 32, &[], &options), FaultKind::Call);
    assert!(found.message.contains("50 deep"), "{found}");
}

#[test]
fn guarded_calls_returns_and_exits_take_their_lanes_only() {
    let text = format!(
        ".func (.reg .b32 r) f(.reg .b32 a) {{ .reg .pred %p; add.u32 r, a, 1; setp.lt.u32 %p, a, 8; @%p ret; add.u32 r, r, 100; setp.ge.u32 %p, a, 24; @%p exit; add.u32 r, r, 1000; ret; }}\n{}",
        kernel(
            1,
            &format!(
                "mov.u32 %r1, %tid.x; mov.u32 %r5, 7; setp.ne.u32 %p1, %r1, 3; @%p1 call (%r5), f, (%r1); {STORE}"
            )
        )
    );
    let image = load(&text).unwrap();
    let mut device = Device::new();
    let out = device.upload(&[9_u32; 32]);
    expect_ok(device.launch(&image, 1, 32, &[Arg::U64(out)], &Options::default()));
    let expected: Vec<u32> = (0..32)
        .map(|n| match n {
            3 => 7,
            0..8 => n + 1,
            8..24 => n + 1101,
            _ => 9,
        })
        .collect();
    assert_eq!(device.download::<u32>(out, 32), expected);
}

#[test]
fn indexed_branches_take_each_lane_to_its_label() {
    let image = load(&kernel(
        1,
        &format!(
            "mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; list: .branchtargets a, b, c, b; brx.idx %r2, list;
a: mov.u32 %r5, 10; bra end; b: mov.u32 %r5, 20; bra end; c: mov.u32 %r5, 30;
end: {STORE}"
        ),
    ))
    .unwrap();
    assert_eq!(run(&image, 32, None), (0..32).map(|n| [10, 20, 30, 20][n % 4]).collect::<Vec<_>>());
}

#[test]
fn blocks_have_their_own_names_and_labels() {
    let image = load(&kernel(
        1,
        &format!(
            "mov.u32 %r1, %tid.x; mov.u32 %r5, 0;
 {{ .reg .b32 t; mov.u32 t, 3; again: add.u32 %r5, %r5, t; setp.lt.u32 %p1, %r5, 9; @%p1 bra again; }}
 {{ .reg .b32 t; mov.u32 t, 5; again: add.u32 %r5, %r5, t; setp.lt.u32 %p1, %r5, 20; @%p1 bra again; }} {STORE}"
        ),
    ))
    .unwrap();
    assert_eq!(run(&image, 3, None), [24; 3]);
}
