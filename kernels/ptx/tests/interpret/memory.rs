//! Loads and stores of every width, in every space.

use crate::device::*;
use millpond_ptx::interpret::Options;

/// out[i] = a[i] + i, one thread per element.
const ADD_INDEX: &str = "
 ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd7, [p2];
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
 mad.lo.s32 %r4, %r1, %r2, %r3;
 cvt.u32.u64 %r6, %rd7;
 setp.ge.u32 %p1, %r4, %r6; @%p1 bra done;
 mul.wide.u32 %rd3, %r4, 4;
 add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
 ld.global.u32 %r5, [%rd4]; add.u32 %r5, %r5, %r4; st.global.u32 [%rd5], %r5;
done:";

#[test]
fn a_streaming_kernel_gives_its_sums_at_every_length() {
    for rows in [1_usize, 31, 32, 33, 127, 128, 129, 1000] {
        let mut device = Device::new();
        let input: Vec<u32> = (0..rows as u32).map(|n| n.wrapping_mul(2_654_435_761)).collect();
        let (a, out) = (device.upload(&input), device.alloc(rows as u64 * 4));
        let blocks = (rows as u32).div_ceil(128);
        let report = expect_ok(device.body(blocks, 128, &[a, out, rows as u64], ADD_INDEX));
        let expected: Vec<u32> = input.iter().zip(0..).map(|(value, n): (&u32, u32)| value.wrapping_add(n)).collect();
        assert_eq!(device.download::<u32>(out, rows), expected);
        assert_eq!(report.footprints.len(), 2);
        let sectors = (rows as u64 * 4).div_ceil(32);
        assert_eq!(report.footprints[0].reads.runs(), [(0, sectors)]);
        assert!(report.footprints[0].writes.is_empty());
        assert_eq!(report.footprints[1].writes.runs(), [(0, sectors)]);
        assert!(report.footprints[1].atomics.is_empty());
    }
}

#[test]
fn narrow_loads_extend_by_their_type() {
    let mut device = Device::new();
    let input = device.upload(&[0x80_u8, 0xFF, 0x7F, 0x01, 0xFE, 0xFF, 0xFF, 0xFF]);
    let out = device.alloc(64);
    expect_ok(device.body(
        1,
        1,
        &[input, out],
        "
 ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1];
 ld.global.u8 %r1, [%rd1]; st.global.u32 [%rd2], %r1;
 ld.global.s8 %r1, [%rd1]; st.global.u32 [%rd2+4], %r1;
 ld.global.s8 %h1, [%rd1]; st.global.u16 [%rd2+8], %h1; mov.u16 %h2, 0; st.global.u16 [%rd2+10], %h2;
 ld.global.s16 %r1, [%rd1]; st.global.u32 [%rd2+12], %r1;
 ld.global.u16 %r1, [%rd1]; st.global.u32 [%rd2+16], %r1;
 ld.global.s32 %rd3, [%rd1+4]; st.global.u64 [%rd2+24], %rd3;
 ld.global.u32 %rd3, [%rd1+4]; st.global.u64 [%rd2+32], %rd3;
 ld.global.b64 %rd3, [%rd1]; st.global.b64 [%rd2+40], %rd3;
 st.global.u32 [%rd2+20], 7;
 mov.u32 %r2, 0x12345678; st.global.u8 [%rd2+48], %r2; st.global.u8 [%rd2+49], 255; st.global.u16 [%rd2+50], %h2;
 st.global.u32 [%rd2+52], 0; st.global.u64 [%rd2+56], 0xFFFFFFFFFFFFFFFF;",
    ));
    let words = device.download::<u32>(out, 16);
    assert_eq!(words[..6], [0x80, 0xFFFF_FF80, 0xFF80, 0xFFFF_FF80, 0xFF80, 7]);
    assert_eq!(device.download::<u64>(out + 24, 3), [0xFFFF_FFFF_FFFF_FFFE, 0xFFFF_FFFE, 0xFFFF_FFFE_017F_FF80]);
    assert_eq!(words[12], 0x0000_FF78);
    assert_eq!(device.download::<u64>(out + 56, 1), [u64::MAX]);
}

#[test]
fn vectors_go_to_consecutive_elements() {
    let mut device = Device::new();
    let input: Vec<u32> = (100..100 + 32 * 4).collect();
    let (a, b) = (device.upload(&input), device.alloc(32 * 16));
    expect_ok(device.body(
        1,
        32,
        &[a, b],
        "
 ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1];
 mov.u32 %r9, %tid.x; mul.wide.u32 %rd3, %r9, 16; add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
 ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
 st.global.v2.u32 [%rd2], {%r4, %r3};
 st.global.v2.b32 [%rd2+8], {%r2, 9};",
    ));
    let expected: Vec<u32> = input.chunks(4).flat_map(|c| [c[3], c[2], c[1], 9]).collect();
    assert_eq!(device.download::<u32>(b, 128), expected);
    // Two 64-bit elements, and an ignored element.
    let wide: Vec<u64> = (0..64).map(|n| n << 40 | 5).collect();
    let (a, b) = (device.upload(&wide), device.alloc(32 * 8));
    expect_ok(device.body(
        1,
        32,
        &[a, b],
        "
 ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1];
 mov.u32 %r9, %tid.x; mul.wide.u32 %rd3, %r9, 16; add.s64 %rd1, %rd1, %rd3; shr.u64 %rd3, %rd3, 1; add.s64 %rd2, %rd2, %rd3;
 ld.global.v2.u64 {_, %rd5}, [%rd1]; st.global.cs.u64 [%rd2], %rd5;",
    ));
    let expected: Vec<u64> = wide.chunks(2).map(|c| c[1]).collect();
    assert_eq!(device.download::<u64>(b, 32), expected);
}

#[test]
fn every_space_has_generic_addresses() {
    let mut device = Device::new();
    let out = device.alloc(32 * 32);
    let text = format!(
        ".global .align 4 .u32 counter = 41;\n.const .align 4 .u32 table[3] = {{7, 8, 9}};\n{}",
        kernel(
            1,
            "
 .shared .align 8 .b8 tile[256];
 .local .align 8 .b8 depot[24];
 ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 32; add.s64 %rd1, %rd1, %rd2;
 // Shared memory by symbol, by 32-bit address and by generic address.
 mov.u32 %r2, tile; shl.b32 %r3, %r1, 3; add.u32 %r4, %r2, %r3;
 mul.lo.u32 %r5, %r1, 3; st.shared.u32 [%r4], %r5; st.shared.u32 [%r4+4], 1;
 cvta.shared.u64 %rd3, tile; mul.wide.u32 %rd4, %r1, 8; add.s64 %rd3, %rd3, %rd4;
 ld.u32 %r6, [%rd3]; st.global.u32 [%rd1], %r6;
 isspacep.shared %p1, %rd3; selp.u32 %r7, 1, 0, %p1;
 isspacep.global %p1, %rd3; selp.u32 %r8, 2, 0, %p1; or.b32 %r7, %r7, %r8;
 // Local memory, too, is each thread's own.
 mov.u64 %rd5, depot; cvta.local.u64 %rd6, %rd5; st.u32 [%rd6+4], %r1; st.local.u64 [%rd5+8], %rd2;
 ld.local.u32 %r9, [depot+4]; st.global.u32 [%rd1+4], %r9; ld.u32 %r9, [%rd6+8]; st.global.u32 [%rd1+8], %r9;
 isspacep.local %p1, %rd6; selp.u32 %r8, 4, 0, %p1; or.b32 %r7, %r7, %r8; st.global.u32 [%rd1+12], %r7;
 // Module variables.
 ld.global.u32 %r10, [counter]; st.global.u32 [%rd1+16], %r10;
 mov.u64 %rd7, counter; ld.u32 %r10, [%rd7]; st.global.u32 [%rd1+20], %r10;
 ld.const.u32 %r10, [table+8]; st.global.u32 [%rd1+24], %r10;
 cvta.to.global.u64 %rd8, %rd7; cvta.const.u64 %rd9, table; ld.u32 %r10, [%rd9+4]; st.global.u32 [%rd1+28], %r10;"
        )
    );
    let image = load(&text).unwrap();
    assert_eq!(image.kernel("k").unwrap().static_shared_bytes, 256);
    expect_ok(device.launch(&image, 1, 32, &[Arg::U64(out)], &Options::default()));
    for (thread, words) in device.download::<u32>(out, 256).chunks(8).enumerate() {
        let n = thread as u32;
        assert_eq!(words, [3 * n, n, 32 * n, 1 | 4, 41, 41, 9, 8], "thread {thread}");
    }
}

#[test]
fn initialisers_hold_numbers_floats_and_addresses() {
    let text = format!(
        ".global .align 4 .f32 floats[2] = {{0f3F800000, 0d4000000000000000}};\n\
         .global .align 2 .u16 grid[2][3] = {{{{1, 2}}, {{3, 4, 5}}}};\n\
         .global .align 8 .u64 links[3] = {{grid, generic(floats)+4, f}};\n\
         .global .align 1 .b8 text[6] = {{104, 105, 0}};\n\
         .func (.reg .b32 r) f(.reg .b32 a) {{ add.u32 r, a, 5; ret; }}\n{}",
        kernel(
            1,
            "
 .reg .b64 %t;
 ld.param.u64 %rd1, [p0];
 ld.global.u64 %rd2, [links]; ld.u16 %r1, [%rd2+8]; st.global.u32 [%rd1], %r1;
 ld.global.u64 %rd2, [links+8]; ld.b32 %r1, [%rd2]; st.global.u32 [%rd1+4], %r1;
 ld.global.u64 %t, [links+16]; mov.u32 %r2, 37; call (%r3), %t, (%r2), proto; st.global.u32 [%rd1+8], %r3;
 proto: .callprototype (.reg .b32 _) _ (.reg .b32 _);"
        )
    );
    let image = load(&text).unwrap();
    let by_name = |name: &str| image.globals().iter().find(|global| global.name == name).unwrap();
    assert_eq!(by_name("grid").init, [1, 0, 2, 0, 0, 0, 3, 0, 4, 0, 5, 0]);
    assert_eq!(by_name("text").init, [104, 105, 0, 0, 0, 0]);
    assert_eq!(by_name("floats").init, [0, 0, 0x80, 0x3F, 0, 0, 0, 0x40]);
    let mut device = Device::new();
    let out = device.alloc(12);
    expect_ok(device.launch(&image, 1, 1, &[Arg::U64(out)], &Options::default()));
    assert_eq!(device.download::<u32>(out, 3), [4, 0x4000_0000, 42]);
}

#[test]
fn parameters_are_read_by_name_and_by_address() {
    let text = ".visible .entry k(.param .u32 a, .param .align 16 .b8 s[16], .param .u64 out) {
 .reg .b32 %r<9>; .reg .b64 %rd<9>;
 ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [a]; st.global.u32 [%rd1], %r1;
 mov.b64 %rd2, s; ld.param.u32 %r1, [%rd2+4]; st.global.u32 [%rd1+4], %r1;
 ld.param.v2.u32 {%r1, %r2}, [s+8]; st.global.v2.u32 [%rd1+8], {%r2, %r1};
 cvta.param.u64 %rd3, s; ld.v4.u32 {%r1, %r2, %r3, %r4}, [%rd3]; st.global.v4.u32 [%rd1+16], {%r4, %r3, %r2, %r1};
 cvta.param.u64 %rd4, %rd2; ld.v2.u32 {%r1, %r2}, [%rd4+8]; st.global.v2.u32 [%rd1+32], {%r1, %r2};
 ret; }";
    let image = load(text).unwrap();
    let info = image.kernel("k").unwrap();
    assert_eq!(info.params.iter().map(|p| (p.offset, p.size)).collect::<Vec<_>>(), [(0, 4), (16, 16), (32, 8)]);
    assert_eq!(info.param_bytes, 40);
    let mut device = Device::new();
    let out = device.alloc(40);
    let args = [Arg::U32(1), Arg::U64(0), Arg::U64(2 << 32 | 9), Arg::U64(4 << 32 | 3), Arg::U64(out)];
    expect_ok(device.launch(&image, 1, 1, &args, &Options::default()));
    assert_eq!(device.download::<u32>(out, 10), [1, 2, 4, 3, 4, 3, 2, 9, 3, 4]);
}

#[test]
fn special_registers_say_where_a_thread_is() {
    let text = kernel(
        1,
        "
 ld.param.u64 %rd1, [p0];
 mov.u32 %r1, %ctaid.z; mad.lo.u32 %r1, %r1, %nctaid.y, %ctaid.y; mad.lo.u32 %r1, %r1, %nctaid.x, %ctaid.x;
 mov.u32 %r2, %tid.z; mad.lo.u32 %r2, %r2, %ntid.y, %tid.y; mad.lo.u32 %r2, %r2, %ntid.x, %tid.x;
 mad.lo.u32 %r3, %r1, 60, %r2; mul.wide.u32 %rd2, %r3, 32; add.s64 %rd1, %rd1, %rd2;
 mov.u32 %r4, %laneid; st.global.u32 [%rd1], %r4; mov.u32 %r4, %warpid; st.global.u32 [%rd1+4], %r4;
 mov.u32 %r4, %lanemask_lt; st.global.u32 [%rd1+8], %r4; mov.u32 %r4, %lanemask_ge; st.global.u32 [%rd1+12], %r4;
 mov.u32 %r4, %lanemask_eq; mov.u32 %r5, %lanemask_le; mov.u32 %r6, %lanemask_gt; st.global.u32 [%rd1+16], %r4;
 st.global.u32 [%rd1+20], %r5; st.global.u32 [%rd1+24], %r6; mov.u32 %r4, %nwarpid; st.global.u32 [%rd1+28], %r4;",
    );
    let image = load(&text).unwrap();
    let mut device = Device::new();
    let out = device.alloc(12 * 60 * 32);
    expect_ok(device.launch_as(&image, "k", [2, 3, 2], [5, 4, 3], 0, &[Arg::U64(out)], &Options::default()));
    for (thread, words) in device.download::<u32>(out, 12 * 60 * 8).chunks(8).enumerate() {
        let lane = thread as u32 % 60 % 32;
        let below = (1_u32 << lane) - 1;
        let eq = 1 << lane;
        assert_eq!(words, [lane, thread as u32 % 60 / 32, below, !below, eq, below | eq, !(below | eq), 2]);
    }
}

#[test]
fn a_module_as_a_compiler_writes_it_loads() {
    let text = include_str!("../ptx/nvrtc.ptx");
    let image = millpond_ptx::interpret::Image::load(&millpond_ptx::parse(text).unwrap()).unwrap();
    let info = image.kernel("everything").unwrap();
    assert_eq!((info.max_threads, info.static_shared_bytes), (Some(256), 32 * 8));
    let by_name = |name: &str| image.globals().iter().position(|global| global.name == name).unwrap();
    let addresses: Vec<u64> = (1..=image.globals().len() as u64).map(|n| n << 32).collect();
    // `pointer` is the address of table[2]; `packed` is a byte followed by the unaligned address of table[1].
    let table = addresses[by_name("table")];
    assert_eq!(image.initial_bytes(by_name("pointer"), &addresses), (table + 8).to_le_bytes());
    assert_eq!(image.initial_bytes(by_name("packed"), &addresses)[1..9], (table + 4).to_le_bytes());
    assert_eq!(image.globals()[by_name("table")].init, [1, 0, 0, 0, 2, 0, 0, 0, 0xFD, 255, 255, 255, 4, 0, 0, 0]);
}

#[test]
fn a_row_of_lanes_may_run_from_one_allocation_into_the_next() {
    let mut device = Device::new();
    let base = 0x9_0000_0000;
    for half in 0..2 {
        let fill = millpond_ptx::interpret::Fill::Initialised(half + 1);
        device.heap.allocate(base + 64 * u64::from(half), 64, fill).unwrap();
    }
    let report = expect_ok(device.body(
        1,
        32,
        &[base],
        "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, %r1; st.global.u32 [%rd1], %r2;",
    ));
    let got: Vec<u32> = [device.download::<u32>(base, 16), device.download::<u32>(base + 64, 16)].concat();
    assert_eq!(got, (0..32).map(|n| n + if n < 16 { 0x0101_0101 } else { 0x0202_0202 }).collect::<Vec<_>>());
    assert_eq!(report.footprints.iter().map(|f| f.writes.runs()).collect::<Vec<_>>(), [[(0, 2)], [(0, 2)]]);
}
