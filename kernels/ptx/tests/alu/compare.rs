//! setp, set, selp, slct: all comparisons, all pairs of special values.

use crate::harness::*;
use std::cmp::Ordering;

/// Result of a comparison for an order; `None` is unordered.
fn truth(comparison: &str, order: Option<Ordering>) -> bool {
    use Ordering::*;
    match (comparison, order) {
        ("num", order) => order.is_some(),
        ("nan", order) => order.is_none(),
        ("equ" | "neu" | "ltu" | "leu" | "gtu" | "geu", None) => true,
        (_, None) => false,
        ("eq" | "equ", Some(order)) => order == Equal,
        ("ne" | "neu", Some(order)) => order != Equal,
        ("lt" | "ltu" | "lo", Some(order)) => order == Less,
        ("le" | "leu" | "ls", Some(order)) => order != Greater,
        ("gt" | "gtu" | "hi", Some(order)) => order == Greater,
        ("ge" | "geu" | "hs", Some(order)) => order != Less,
        other => panic!("{other:?}"),
    }
}

const ORDERED: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
const UNSIGNED: [&str; 4] = ["lo", "ls", "hi", "hs"];
const UNORDERED: [&str; 8] = ["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

fn every_pair(
    class: &str,
    ty: &str,
    comparisons: &[&str],
    values: &[u64],
    order: impl Fn(u64, u64) -> Option<Ordering>,
) {
    let pairs: Vec<_> = values.iter().flat_map(|&a| values.iter().map(move |&b| vec![a, b])).collect();
    for comparison in comparisons {
        let text = format!("setp.{comparison}.{ty} %p0, %{class}1, %{class}2");
        for (pair, out) in pairs.iter().zip(load(&text).run(&pairs)) {
            let expected = truth(comparison, order(pair[0], pair[1]));
            assert_eq!(out.first, u64::from(expected), "{text} of {pair:x?}");
        }
        let text = format!("set.{comparison}.u32.{ty} %r0, %{class}1, %{class}2");
        for (pair, out) in pairs.iter().zip(load(&text).run(&pairs)) {
            let expected = truth(comparison, order(pair[0], pair[1]));
            assert_eq!(out.first, if expected { 0xffff_ffff } else { 0 }, "{text} of {pair:x?}");
        }
    }
}

#[test]
fn integers_compare_by_their_type() {
    let v16 = [0, 1, 0x7fff, 0x8000, 0xffff];
    let v32 = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    let v64 = [0, 1, 1 << 32, u64::MAX >> 1, 1 << 63, u64::MAX];
    every_pair("rs", "s16", &ORDERED, &v16, |a, b| Some((a as i16).cmp(&(b as i16))));
    every_pair("rs", "u16", &ORDERED, &v16, |a, b| Some(a.cmp(&b)));
    every_pair("rs", "b16", &ORDERED[..2], &v16, |a, b| Some(a.cmp(&b)));
    every_pair("r", "s32", &ORDERED, &v32, |a, b| Some((a as i32).cmp(&(b as i32))));
    every_pair("r", "u32", &ORDERED, &v32, |a, b| Some(a.cmp(&b)));
    every_pair("r", "b32", &ORDERED[..2], &v32, |a, b| Some(a.cmp(&b)));
    every_pair("rd", "s64", &ORDERED, &v64, |a, b| Some((a as i64).cmp(&(b as i64))));
    every_pair("rd", "u64", &ORDERED, &v64, |a, b| Some(a.cmp(&b)));
    every_pair("rd", "b64", &ORDERED[..2], &v64, |a, b| Some(a.cmp(&b)));
    every_pair("rs", "u16", &UNSIGNED, &v16, |a, b| Some(a.cmp(&b)));
    every_pair("r", "u32", &UNSIGNED, &v32, |a, b| Some(a.cmp(&b)));
    every_pair("rd", "u64", &UNSIGNED, &v64, |a, b| Some(a.cmp(&b)));
}

/// Rank of special values, ascending; both zeros have one rank; `None` is NaN.
fn by_rank(table: &'static [(u64, Option<u32>)]) -> impl Fn(u64, u64) -> Option<Ordering> {
    move |a, b| {
        let rank = |x: u64| table.iter().find(|(value, _)| *value == x).expect("a listed value").1;
        Some(rank(a)?.cmp(&rank(b)?))
    }
}

static F32S: [(u64, Option<u32>); 10] = [
    (NEG_INF, Some(0)),
    (0xbf80_0000, Some(1)), // -1
    (0x8000_0001, Some(2)), // smallest subnormal, negative
    (NEG_ZERO, Some(3)),
    (0, Some(3)),
    (1, Some(4)),
    (0x3f80_0000, Some(5)),
    (INF, Some(6)),
    (NAN, None),
    (SNAN, None),
];
/// With .ftz subnormal numbers count as zeros.
static F32S_FTZ: [(u64, Option<u32>); 6] =
    [(0x8000_0001, Some(3)), (NEG_ZERO, Some(3)), (0, Some(3)), (1, Some(3)), (0x0080_0000, Some(4)), (NAN, None)];
static F64S: [(u64, Option<u32>); 9] = [
    (D_NEG_INF, Some(0)),
    (0xbff0_0000_0000_0000, Some(1)),
    (D_NEG_ZERO | 1, Some(2)),
    (D_NEG_ZERO, Some(3)),
    (0, Some(3)),
    (1, Some(4)),
    (0x3ff0_0000_0000_0000, Some(5)),
    (D_INF, Some(6)),
    (D_NAN, None),
];
static F16S: [(u64, Option<u32>); 7] = [
    (0xfc00, Some(0)),
    (0xbc00, Some(1)),
    (0x8000, Some(3)),
    (0, Some(3)),
    (1, Some(4)),
    (0x7c00, Some(6)),
    (0x7e00, None),
];
static BF16S: [(u64, Option<u32>); 6] =
    [(0xff80, Some(0)), (0xbf80, Some(1)), (0x8000, Some(3)), (0, Some(3)), (0x7f80, Some(6)), (0x7fc0, None)];

fn values(table: &[(u64, Option<u32>)]) -> Vec<u64> {
    table.iter().map(|(value, _)| *value).collect()
}

#[test]
fn floats_compare_with_nan_and_zeros() {
    for comparisons in [&ORDERED[..], &UNORDERED[..]] {
        every_pair("f", "f32", comparisons, &values(&F32S), by_rank(&F32S));
        every_pair("fd", "f64", comparisons, &values(&F64S), by_rank(&F64S));
        every_pair("rs", "f16", comparisons, &values(&F16S), by_rank(&F16S));
        every_pair("rs", "bf16", comparisons, &values(&BF16S), by_rank(&BF16S));
    }
    let flush = by_rank(&F32S_FTZ);
    let pairs: Vec<_> =
        values(&F32S_FTZ).iter().flat_map(|&a| values(&F32S_FTZ).into_iter().map(move |b| vec![a, b])).collect();
    for comparison in ORDERED.iter().chain(&UNORDERED) {
        let text = format!("setp.{comparison}.ftz.f32 %p0, %f1, %f2");
        for (pair, out) in pairs.iter().zip(load(&text).run(&pairs)) {
            assert_eq!(out.first, u64::from(truth(comparison, flush(pair[0], pair[1]))), "{text} of {pair:x?}");
        }
    }
}

#[test]
fn setp_combines_and_writes_both() {
    // p = (a < b) op c, q = !(a < b) op c
    table2("setp.lt.s32 %p0|%p9, %r1, %r2", &[([1, 2], (1, 0)), ([2, 1], (0, 1))]);
    table2(
        "setp.lt.and.s32 %p0|%p9, %r1, %r2, %p3",
        &[([1, 2, 0], (0, 0)), ([1, 2, 1], (1, 0)), ([2, 1, 0], (0, 0)), ([2, 1, 1], (0, 1))],
    );
    table2(
        "setp.lt.or.s32 %p0|%p9, %r1, %r2, %p3",
        &[([1, 2, 0], (1, 0)), ([1, 2, 1], (1, 1)), ([2, 1, 0], (0, 1)), ([2, 1, 1], (1, 1))],
    );
    table2(
        "setp.lt.xor.s32 %p0|%p9, %r1, %r2, %p3",
        &[([1, 2, 0], (1, 0)), ([1, 2, 1], (0, 1)), ([2, 1, 0], (0, 1)), ([2, 1, 1], (1, 0))],
    );
    table2("setp.lt.and.s32 %p0|%p9, %r1, %r2, !%p3", &[([1, 2, 0], (1, 0)), ([1, 2, 1], (0, 0)), ([2, 1, 0], (0, 1))]);
    table("setp.eq.and.u32 %p0, %r1, %r2, %p3", &[([5, 5, 1], 1), ([5, 5, 0], 0), ([5, 6, 1], 0)]);
    table("setp.eq.u32 _|%p0, %r1, %r2", &[([5, 5], 0), ([5, 6], 1)]);
    table("setp.eq.u32 %p0|_, %r1, %r2", &[([5, 5], 1), ([5, 6], 0)]);
    table("setp.ne.s16 %p0, %rs1, 0", &[([0], 0), ([7], 1)]);
    table("setp.gt.s32 %p0, %r1, -1", &[([0], 1), ([s32(-1)], 0)]);
    table("setp.eq.f32 %p0, %f1, 0f00000000", &[([NEG_ZERO], 1), ([f(1.0)], 0)]);
    table("setp.geu.f64 %p0, %fd1, 0d3FF0000000000000", &[([d(1.0)], 1), ([d(0.5)], 0), ([D_NAN], 1)]);
}

#[test]
fn set_writes_ones_or_one() {
    table("set.lt.u32.s32 %r0, %r1, %r2", &[([s32(-1), 0], 0xffff_ffff), ([0, 0], 0)]);
    table("set.lt.s32.u32 %r0, %r1, %r2", &[([s32(-1), 0], 0), ([0, 1], 0xffff_ffff)]);
    table("set.eq.f32.u32 %f0, %r1, %r2", &[([3, 3], 0x3f80_0000), ([3, 4], 0)]);
    table("set.gt.f32.f64 %f0, %fd1, %fd2", &[([d(2.0), d(1.0)], 0x3f80_0000), ([D_NAN, d(1.0)], 0)]);
    table("set.lt.and.f32.s32 %f0, %r1, %r2, %p3", &[([1, 2, 1], 0x3f80_0000), ([1, 2, 0], 0)]);
    table("set.lt.or.u32.s32 %r0, %r1, %r2, !%p3", &[([2, 1, 0], 0xffff_ffff), ([2, 1, 1], 0)]);
}

#[test]
fn selp_selects() {
    table("selp.b16 %rs0, %rs1, %rs2, %p3", &[([1, 2, 1], 1), ([1, 2, 0], 2)]);
    table("selp.b32 %r0, %r1, %r2, %p3", &[([1, 2, 1], 1), ([1, 2, 0], 2)]);
    table("selp.u32 %r0, 1, 0, %p1", &[([1], 1), ([0], 0)]);
    table("selp.s64 %rd0, %rd1, -1, %p2", &[([7, 1], 7), ([7, 0], u64::MAX)]);
    table("selp.f32 %f0, %f1, 0f7FC00000, %p2", &[([SNAN, 1], SNAN), ([0, 0], 0x7fc0_0000)]);
    table("selp.f64 %fd0, %fd1, %fd2, %p3", &[([d(1.5), d(2.5), 0], d(2.5))]);
    table("selp.u16 %rs0, 1, 0, %p1", &[([1], 1), ([0], 0)]);
}

#[test]
fn slct_looks_at_the_sign() {
    table("slct.u32.s32 %r0, %r1, %r2, %r3", &[([1, 2, 0], 1), ([1, 2, 5], 1), ([1, 2, s32(-1)], 2)]);
    table("slct.b64.s32 %rd0, %rd1, %rd2, %r3", &[([1 << 40, 2, 0], 1 << 40), ([1, 2, 0x8000_0000], 2)]);
    table("slct.s16.s32 %rs0, %rs1, %rs2, %r3", &[([1, 2, 0], 1)]);
    table(
        "slct.f32.f32 %f0, %f1, %f2, %f3",
        &[
            ([SNAN, f(2.0), 0], SNAN),
            ([f(1.0), f(2.0), NEG_ZERO], f(1.0)),
            ([f(1.0), f(2.0), 0x8000_0001], f(2.0)),
            ([f(1.0), f(2.0), NAN], f(2.0)),
        ],
    );
    table("slct.ftz.u64.f32 %rd0, %rd1, %rd2, %f3", &[([1, 2, 0x8000_0001], 1), ([1, 2, f(-1.0)], 2)]);
}
