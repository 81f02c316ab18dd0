//! Logic, shifts, bit fields and byte permutation, from the manual's definitions.

use crate::harness::*;

const ALL64: u64 = u64::MAX;

#[test]
fn logic_works_on_bits_and_predicates() {
    table("and.b16 %rs0, %rs1, %rs2", &[([0xff00, 0x0ff0], 0x0f00)]);
    table("and.b32 %r0, %r1, 255", &[([0x1234_5678], 0x78)]);
    table("and.b64 %rd0, %rd1, %rd2", &[([ALL64, 0xf0], 0xf0)]);
    table("or.b16 %rs0, %rs1, %rs2", &[([0xff00, 0x0ff0], 0xfff0)]);
    table("or.b32 %r0, %r1, %r2", &[([0xff00, 0x0ff0], 0xfff0)]);
    table("or.b64 %rd0, %rd1, %rd2", &[([1 << 63, 1], 1 << 63 | 1)]);
    table("xor.b16 %rs0, %rs1, %rs2", &[([0xff00, 0x0ff0], 0xf0f0)]);
    table("xor.b32 %r0, %r1, -1", &[([0x0f0f_0f0f], 0xf0f0_f0f0)]);
    table("xor.b64 %rd0, %rd1, %rd2", &[([ALL64, 1], ALL64 - 1)]);
    table("not.b16 %rs0, %rs1", &[([0], 0xffff)]);
    table("not.b32 %r0, %r1", &[([0xffff_0000], 0xffff)]);
    table("not.b64 %rd0, %rd1", &[([0], ALL64)]);
    table("cnot.b16 %rs0, %rs1", &[([0], 1), ([5], 0)]);
    table("cnot.b32 %r0, %r1", &[([0], 1), ([1 << 31], 0)]);
    table("cnot.b64 %rd0, %rd1", &[([0], 1), ([1 << 63], 0)]);
    table("and.pred %p0, %p1, %p2", &[([0, 0], 0), ([0, 1], 0), ([1, 0], 0), ([1, 1], 1)]);
    table("or.pred %p0, %p1, %p2", &[([0, 0], 0), ([0, 1], 1), ([1, 0], 1), ([1, 1], 1)]);
    table("xor.pred %p0, %p1, %p2", &[([0, 0], 0), ([0, 1], 1), ([1, 0], 1), ([1, 1], 0)]);
    table("not.pred %p0, %p1", &[([0], 1), ([1], 0)]);
}

#[test]
fn lop3_is_its_table() {
    // Tables from the manual: the operation applied to 0xf0, 0xcc and 0xaa.
    let (a, b, c) = (0x0f0f_3355, 0x1234_5678, 0xdead_beef_u32);
    let of = |value: u32| [([u64::from(a), u64::from(b), u64::from(c)], u64::from(value))];
    table("lop3.b32 %r0, %r1, %r2, %r3, 0x80", &of(a & b & c));
    table("lop3.b32 %r0, %r1, %r2, %r3, 0xfe", &of(a | b | c));
    table("lop3.b32 %r0, %r1, %r2, %r3, 0x40", &of(a & b & !c));
    table("lop3.b32 %r0, %r1, %r2, %r3, 0x1a", &of((a & b | c) ^ a));
    table("lop3.b32 %r0, %r1, %r2, %r3, 0x96", &of(a ^ b ^ c));
    table("lop3.b32 %r0, %r1, %r2, %r3, 0xca", &of(a & b | !a & c));
    table("lop3.b32 %r0, %r1, %r2, %r3, 0", &of(0));
    table("lop3.b32 %r0, %r1, %r2, %r3, 255", &of(u32::MAX));
}

#[test]
fn lop3_finds_every_table_bit() {
    // With these inputs every combination of bits occurs once in each byte: the result is the table itself.
    for lut in 0..256u64 {
        table(
            &format!("lop3.b32 %r0, %r1, %r2, %r3, {lut}"),
            &[([0xf0, 0xcc, 0xaa], lut | if lut & 1 != 0 { 0xffff_ff00 } else { 0 })],
        );
    }
}

#[test]
fn lop3_combines_with_a_predicate() {
    table2(
        "lop3.or.b32 %r0|%p9, %r1, %r2, %r3, 0x80, %p4",
        &[([1, 1, 1, 0], (1, 1)), ([1, 1, 0, 0], (0, 0)), ([1, 1, 0, 1], (0, 1))],
    );
    table2(
        "lop3.and.b32 %r0|%p9, %r1, %r2, %r3, 0x80, %p4",
        &[([1, 1, 1, 0], (1, 0)), ([1, 1, 1, 1], (1, 1)), ([1, 1, 0, 1], (0, 0))],
    );
    table("lop3.and.b32 _|%p0, %r1, %r2, %r3, 0x80, %p4", &[([2, 2, 2, 1], 1), ([2, 2, 1, 1], 0)]);
}

#[test]
fn shl_clamps() {
    table("shl.b16 %rs0, %rs1, %r2", &[([0x00ff, 8], 0xff00), ([1, 15], 0x8000), ([1, 16], 0), ([1, 0xffff_ffff], 0)]);
    table("shl.b32 %r0, %r1, %r2", &[([1, 31], 1 << 31), ([1, 32], 0), ([3, 33], 0), ([5, 0], 5), ([1, 0x1_0000], 0)]);
    table("shl.b64 %rd0, %rd1, %r2", &[([1, 63], 1 << 63), ([1, 64], 0), ([3, 32], 3 << 32)]);
}

#[test]
fn shr_clamps_and_fills() {
    table("shr.u16 %rs0, %rs1, %r2", &[([0x8000, 15], 1), ([0x8000, 16], 0)]);
    table("shr.s16 %rs0, %rs1, %r2", &[([0x8000, 15], 0xffff), ([0x8000, 200], 0xffff), ([0x7000, 16], 0)]);
    table("shr.b16 %rs0, %rs1, 4", &[([0xf000], 0x0f00)]);
    table("shr.u32 %r0, %r1, %r2", &[([1 << 31, 31], 1), ([1 << 31, 32], 0)]);
    table("shr.s32 %r0, %r1, %r2", &[([1 << 31, 31], 0xffff_ffff), ([1 << 31, 32], 0xffff_ffff), ([1 << 30, 40], 0)]);
    table("shr.b32 %r0, %r1, %r2", &[([1 << 31, 4], 1 << 27)]);
    table("shr.u64 %rd0, %rd1, %r2", &[([1 << 63, 63], 1), ([1 << 63, 64], 0)]);
    table("shr.s64 %rd0, %rd1, %r2", &[([1 << 63, 63], ALL64), ([1 << 63, 64], ALL64), ([s64(-8), 1], s64(-4))]);
    table("shr.b64 %rd0, %rd1, %r2", &[([ALL64, 60], 15)]);
}

#[test]
fn shf_shifts_the_pair() {
    // [b, a] = 0x89abcdef_01234567
    let (a, b) = (0x0123_4567, 0x89ab_cdef);
    table(
        "shf.l.clamp.b32 %r0, %r1, %r2, %r3",
        &[([a, b, 0], b), ([a, b, 8], 0xabcd_ef01), ([a, b, 32], a), ([a, b, 40], a)],
    );
    table(
        "shf.l.wrap.b32 %r0, %r1, %r2, %r3",
        &[([a, b, 32], b), ([a, b, 40], 0xabcd_ef01), ([a, b, 31], 0x8091_a2b3)],
    );
    table(
        "shf.r.clamp.b32 %r0, %r1, %r2, %r3",
        &[([a, b, 0], a), ([a, b, 8], 0xef01_2345), ([a, b, 32], b), ([a, b, 0xffff_ffff], b)],
    );
    table("shf.r.wrap.b32 %r0, %r1, %r2, %r3", &[([a, b, 32], a), ([a, b, 40], 0xef01_2345)]);
}

#[test]
fn counting_and_finding() {
    table("popc.b32 %r0, %r1", &[([0], 0), ([0xffff_ffff], 32), ([0x8000_0001], 2)]);
    table("popc.b64 %r0, %rd1", &[([0], 0), ([ALL64], 64), ([1 << 63 | 1], 2)]);
    table("clz.b32 %r0, %r1", &[([0], 32), ([1], 31), ([1 << 31], 0), ([0xffff], 16)]);
    table("clz.b64 %r0, %rd1", &[([0], 64), ([1], 63), ([1 << 63], 0)]);
    table("bfind.u32 %r0, %r1", &[([0], 0xffff_ffff), ([1], 0), ([0x8000_0000], 31), ([0x0fff], 11)]);
    table(
        "bfind.s32 %r0, %r1",
        &[([0], 0xffff_ffff), ([0xffff_ffff], 0xffff_ffff), ([0x8000_0000], 30), ([0xffff_fffe], 0), ([5], 2)],
    );
    table("bfind.u64 %r0, %rd1", &[([0], 0xffff_ffff), ([1 << 40], 40), ([ALL64], 63)]);
    table("bfind.s64 %r0, %rd1", &[([ALL64], 0xffff_ffff), ([1 << 63], 62), ([s64(-256)], 7)]);
    table("bfind.shiftamt.u32 %r0, %r1", &[([0], 0xffff_ffff), ([1], 31), ([0x8000_0000], 0)]);
    table("bfind.shiftamt.s32 %r0, %r1", &[([0xffff_ffff], 0xffff_ffff), ([0x8000_0000], 1), ([1], 31)]);
    table("bfind.shiftamt.s64 %r0, %rd1", &[([1], 63), ([s64(-2)], 63)]);
    table("brev.b32 %r0, %r1", &[([1], 1 << 31), ([0x0000_00f0], 0x0f00_0000)]);
    table("brev.b64 %rd0, %rd1", &[([1], 1 << 63), ([0xf0], 0x0f00_0000_0000_0000)]);
}

#[test]
fn fns_walks_both_ways() {
    // Four examples from the manual, and edge cases.
    table(
        "fns.b32 %r0, %r1, %r2, %r3",
        &[
            ([0xaaaa_aaaa, 3, 1], 3),
            ([0xaaaa_aaaa, 3, s32(-1)], 3),
            ([0xaaaa_aaaa, 2, 1], 3),
            ([0xaaaa_aaaa, 2, s32(-1)], 1),
            ([0xaaaa_aaaa, 3, 0], 3),
            ([0xaaaa_aaaa, 2, 0], 0xffff_ffff),
            ([0xaaaa_aaaa, 0, 16], 31),
            ([0xaaaa_aaaa, 0, 17], 0xffff_ffff),
            ([0xaaaa_aaaa, 31, s32(-16)], 1),
            ([0xaaaa_aaaa, 31, s32(-17)], 0xffff_ffff),
            ([0xffff_ffff, 0, 32], 31),
            ([0xffff_ffff, 0, 33], 0xffff_ffff),
            ([0xffff_ffff, 31, s32(-32)], 0),
            ([0xffff_ffff, 31, 0x8000_0000], 0xffff_ffff),
            ([0, 5, 1], 0xffff_ffff),
        ],
    );
}

/// A position or length: 32-bit forms read it modulo 256, 64-bit forms read all bits, as recorded on an H200.
fn place(bits: u32, word: u64) -> u32 {
    if bits == 32 { word as u32 & 0xff } else { word as u32 }
}

/// The manual's loops, one bit at a time.
fn bfe_reference(bits: u32, signed: bool, a: u64, b: u64, c: u64) -> u64 {
    let (msb, pos, len) = (bits - 1, place(bits, b), place(bits, c));
    let sign = if !signed || len == 0 { 0 } else { a >> (pos + len - 1).min(msb) & 1 };
    (0..bits).fold(0, |d, i| {
        let bit = if i < len && pos + i <= msb { a >> (pos + i) & 1 } else { sign };
        d | bit << i
    })
}

fn bfi_reference(bits: u32, a: u64, b: u64, c: u64, d: u64) -> u64 {
    let (msb, pos, len) = (bits - 1, place(bits, c), place(bits, d));
    let mut f = b;
    let mut i = 0;
    while i < len && pos + i <= msb {
        f = f & !(1 << (pos + i)) | (a >> i & 1) << (pos + i);
        i += 1;
    }
    f
}

#[test]
fn bfe_extracts() {
    table("bfe.u32 %r0, %r1, 8, 8", &[([0x1234_5678], 0x56)]);
    table("bfe.s32 %r0, %r1, 4, 4", &[([0x0000_00f0], 0xffff_ffff), ([0x70], 7)]);
    table("bfe.s32 %r0, %r1, 40, 4", &[([1 << 31], 0xffff_ffff), ([1], 0)]);
    table("bfe.u64 %rd0, %rd1, 60, 8", &[([0xa << 60], 0xa)]);
    table("bfe.u32 %r0, %r1, 0, 0", &[([0xffff_ffff], 0)]);
    // Recorded on an H200: only 32-bit forms ignore bits above the low eight.
    table("bfe.u32 %r0, %r1, %r2, %r3", &[([0x1234, 256, 8], 0x34), ([0x1234, 4, 256], 0)]);
    table("bfe.u64 %rd0, %rd1, %r2, %r3", &[([0x1234, 256, 8], 0), ([0x1234, 4, 256], 0x123)]);
    table(
        "bfe.s64 %rd0, %rd1, %r2, %r3",
        &[([1 << 63, 256, 256], ALL64), ([1 << 63, u64::from(u32::MAX), 256], ALL64)],
    );
    let mut random = Random(1);
    for (text, bits, signed) in [
        ("bfe.u32 %r0, %r1, %r2, %r3", 32, false),
        ("bfe.s32 %r0, %r1, %r2, %r3", 32, true),
        ("bfe.u64 %rd0, %rd1, %r2, %r3", 64, false),
        ("bfe.s64 %rd0, %rd1, %r2, %r3", 64, true),
    ] {
        let cases: Vec<_> =
            (0..4_000).map(|_| vec![random.word(bits), random.word(32) & 0x17f, random.word(32) & 0x17f]).collect();
        for (case, out) in cases.iter().zip(load(text).run(&cases)) {
            assert_eq!(out.first, bfe_reference(bits, signed, case[0], case[1], case[2]), "{text} {case:x?}");
        }
    }
}

#[test]
fn bfi_inserts() {
    table("bfi.b32 %r0, %r1, %r2, 8, 8", &[([0xab, 0x1234_5678], 0x1234_ab78)]);
    table("bfi.b32 %r0, %r1, %r2, 32, 8", &[([0xab, 0x1234_5678], 0x1234_5678)]);
    table("bfi.b32 %r0, %r1, %r2, 28, 8", &[([0xab, 0x1234_5678], 0xb234_5678)]);
    table("bfi.b32 %r0, %r1, %r2, 3, 0", &[([0xab, 7], 7)]);
    table("bfi.b64 %rd0, %rd1, %rd2, %r3, %r4", &[([2, u64::from(u32::MAX), 0, 256], 2), ([0, 5, 256, 8], 5)]);
    table("bfi.b64 %rd0, %rd1, %rd2, 32, 32", &[([0xdead_beef, 5], 0xdead_beef_0000_0005)]);
    let mut random = Random(2);
    for (text, bits) in [("bfi.b32 %r0, %r1, %r2, %r3, %r4", 32), ("bfi.b64 %rd0, %rd1, %rd2, %r3, %r4", 64)] {
        let cases: Vec<_> = (0..4_000)
            .map(|_| vec![random.word(bits), random.word(bits), random.word(32) & 0x15f, random.word(32) & 0x15f])
            .collect();
        for (case, out) in cases.iter().zip(load(text).run(&cases)) {
            assert_eq!(out.first, bfi_reference(bits, case[0], case[1], case[2], case[3]), "{text} {case:x?}");
        }
    }
}

#[test]
fn bmsk_makes_masks() {
    table(
        "bmsk.wrap.b32 %r0, %r1, %r2",
        &[
            ([1, 2], 0x0000_0006), // the manual's example
            ([0, 0], 0),
            ([0, 32], 0),
            ([4, 31], 0xffff_fff0),
            ([33, 2], 0x0000_0006),
            ([31, 1], 0x8000_0000),
        ],
    );
    table(
        "bmsk.clamp.b32 %r0, %r1, %r2",
        &[
            ([1, 2], 0x0000_0006),
            ([32, 2], 0),
            ([0, 32], 0xffff_ffff),
            ([8, 100], 0xffff_ff00),
            ([8, 0], 0),
            ([28, 8], 0xf000_0000),
        ],
    );
}

#[test]
fn szext_extends() {
    table(
        "szext.wrap.u32 %r0, %r1, %r2",
        &[
            ([0xffff_ffff, 0], 0), // the manual's example
            ([0xffff_ffff, 8], 0xff),
            ([0xffff_ffff, 32], 0),
            ([0xffff_ffff, 40], 0xff),
        ],
    );
    table("szext.clamp.u32 %r0, %r1, %r2", &[([0xffff_fff5, 32], 0xffff_fff5), ([0x1ff, 8], 0xff), ([5, 0], 0)]);
    table("szext.wrap.s32 %r0, %r1, %r2", &[([0x80, 8], 0xffff_ff80), ([0x7f, 8], 0x7f), ([1, 1], 0xffff_ffff)]);
    table("szext.clamp.s32 %r0, %r1, %r2", &[([0x80, 8], 0xffff_ff80), ([0x80, 33], 0x80), ([0xff, 0], 0)]);
}

#[test]
fn prmt_picks_bytes() {
    // bytes 7 … 0 of [b, a]
    let (a, b) = (0x3322_1180, 0x7766_55c4);
    table(
        "prmt.b32 %r0, %r1, %r2, %r3",
        &[
            ([a, b, 0x3210], a),
            ([a, b, 0x7654], b),
            ([a, b, 0x0123], 0x8011_2233),
            ([a, b, 0x4040], 0xc480_c480),
            ([a, b, 0x8888], 0xffff_ffff), // the sign of byte 0
            ([a, b, 0x9c80], 0x00ff_ff80), // signs of bytes 1, 4 and 0, then byte 0
            ([a, b, 0xffff_3210], a),
        ],
    );
    table(
        "prmt.b32.f4e %r0, %r1, %r2, %r3",
        &[
            ([a, b, 0], 0x3322_1180),
            ([a, b, 1], 0xc433_2211),
            ([a, b, 2], 0x55c4_3322),
            ([a, b, 3], 0x6655_c433),
            ([a, b, 4], 0x3322_1180),
        ],
    );
    table(
        "prmt.b32.b4e %r0, %r1, %r2, %r3",
        &[([a, b, 0], 0x5566_7780), ([a, b, 1], 0x6677_8011), ([a, b, 2], 0x7780_1122), ([a, b, 3], 0x8011_2233)],
    );
    table(
        "prmt.b32.rc8 %r0, %r1, %r2, %r3",
        &[([a, b, 0], 0x8080_8080), ([a, b, 3], 0x3333_3333), ([a, b, 1], 0x1111_1111)],
    );
    table(
        "prmt.b32.ecl %r0, %r1, %r2, %r3",
        &[([a, b, 0], 0x3322_1180), ([a, b, 1], 0x3322_1111), ([a, b, 2], 0x3322_2222), ([a, b, 3], 0x3333_3333)],
    );
    table(
        "prmt.b32.ecr %r0, %r1, %r2, %r3",
        &[([a, b, 0], 0x8080_8080), ([a, b, 1], 0x1111_1180), ([a, b, 2], 0x2222_1180), ([a, b, 3], 0x3322_1180)],
    );
    table(
        "prmt.b32.rc16 %r0, %r1, %r2, %r3",
        &[([a, b, 0], 0x1180_1180), ([a, b, 1], 0x3322_3322), ([a, b, 2], 0x1180_1180), ([a, b, 3], 0x3322_3322)],
    );
}
