//! Results of directed rounding bracket the exact value, computed with integers.
//!
//!   rm ≤ exact ≤ rp, adjacent floats · rz is the one nearer to zero · rn the nearer one, ties to even
//!
//! Two methods. With moderate exponents, the exact value is a 128-bit integer or a comparison of such integers. Over
//! all bit patterns, the four roundings must be adjacent and agree with the host's round-to-nearest.

use crate::harness::*;
use std::cmp::Ordering;

/// ± significand · 2^exponent
#[derive(Clone, Copy, Debug)]
struct Dyadic {
    significand: i128,
    exponent: i32,
}

impl Dyadic {
    fn of(bits: u64, wide: bool) -> Dyadic {
        let (fraction_bits, bias) = if wide { (52, 1023) } else { (23, 127) };
        let exponent_bits = if wide { 11 } else { 8 };
        let field = (bits >> fraction_bits & ((1 << exponent_bits) - 1)) as i32;
        let fraction = i128::from(bits & ((1 << fraction_bits) - 1));
        let magnitude = if field == 0 { fraction } else { fraction | 1 << fraction_bits };
        let negative = bits >> (fraction_bits + exponent_bits) & 1 != 0;
        Dyadic {
            significand: if negative { -magnitude } else { magnitude },
            exponent: field.max(1) - bias - fraction_bits,
        }
    }

    fn times(self, other: Dyadic) -> Dyadic {
        Dyadic { significand: self.significand * other.significand, exponent: self.exponent + other.exponent }
    }

    fn aligned(self, exponent: i32) -> i128 {
        if self.significand == 0 {
            return 0;
        }
        let shift = (self.exponent - exponent) as u32;
        let out = self.significand << shift;
        assert_eq!(out >> shift, self.significand, "the test's own integers overflow");
        out
    }

    fn plus(self, other: Dyadic) -> Dyadic {
        let exponent = self.exponent.min(other.exponent);
        Dyadic { significand: self.aligned(exponent) + other.aligned(exponent), exponent }
    }

    fn halved(self) -> Dyadic {
        Dyadic { exponent: self.exponent - 1, ..self }
    }

    fn compare(self, other: Dyadic) -> Ordering {
        if self.significand.signum() != other.significand.signum() || self.significand == 0 {
            return self.significand.signum().cmp(&other.significand.signum());
        }
        let exponent = self.exponent.min(other.exponent);
        self.aligned(exponent).cmp(&other.aligned(exponent))
    }
}

/// The next representable number in the given direction, computed from the bits.
fn neighbour(bits: u64, wide: bool, up: bool) -> u64 {
    if wide {
        let x = f64::from_bits(bits);
        (if up { x.next_up() } else { x.next_down() }).to_bits()
    } else {
        let x = f32::from_bits(bits as u32);
        u64::from((if up { x.next_up() } else { x.next_down() }).to_bits())
    }
}

/// Checks one result. `exact(x)` compares the exact value with `x`.
fn check(what: &str, rounding: &str, found: u64, wide: bool, exact: impl Fn(Dyadic) -> Ordering) {
    let at = |bits| Dyadic::of(bits, wide);
    let (above, below) = (neighbour(found, wide, true), neighbour(found, wide, false));
    let here = exact(at(found));
    let down = here != Ordering::Less && exact(at(above)) == Ordering::Less;
    let up = here != Ordering::Greater && exact(at(below)) == Ordering::Greater;
    let positive = exact(Dyadic { significand: 0, exponent: 0 }) != Ordering::Less;
    let holds = match rounding {
        "rm" => down,
        "rp" => up,
        "rz" => {
            if positive {
                down
            } else {
                up
            }
        }
        _ => {
            let even = found & 1 == 0;
            let high = exact(at(found).plus(at(above)).halved());
            let low = exact(at(found).plus(at(below)).halved());
            (high == Ordering::Less || even && high == Ordering::Equal)
                && (low == Ordering::Greater || even && low == Ordering::Equal)
        }
    };
    assert!(holds, "{what}: {found:#x} is not the {rounding} of the exact value");
}

/// A float with an exponent within ± `spread` of zero.
fn moderate(random: &mut Random, wide: bool, spread: u64) -> u64 {
    let exponent = random.below(2 * spread + 1);
    if wide {
        let fraction = random.word(52);
        (random.next() & 1) << 63 | (1023 - spread + exponent) << 52 | fraction
    } else {
        let fraction = random.word(23);
        (random.next() & 1) << 31 | (127 - spread + exponent) << 23 | fraction
    }
}

const ROUNDINGS: [&str; 4] = ["rn", "rz", "rm", "rp"];

fn register(wide: bool) -> &'static str {
    if wide { "fd" } else { "f" }
}

fn name(wide: bool) -> &'static str {
    if wide { "f64" } else { "f32" }
}

#[test]
fn sums_products_and_fma_bracket_the_exact_value() {
    let mut random = Random(11);
    for wide in [false, true] {
        let spread = if wide { 3 } else { 12 };
        let (r, ty) = (register(wide), name(wide));
        let cases: Vec<_> =
            (0..3_000).map(|_| (0..3).map(|_| moderate(&mut random, wide, spread)).collect::<Vec<_>>()).collect();
        for rounding in ROUNDINGS {
            let of = |index: usize, case: &[u64]| Dyadic::of(case[index], wide);
            for (operation, text) in [
                ("add", format!("add.{rounding}.{ty} %{r}0, %{r}1, %{r}2")),
                ("sub", format!("sub.{rounding}.{ty} %{r}0, %{r}1, %{r}2")),
                ("mul", format!("mul.{rounding}.{ty} %{r}0, %{r}1, %{r}2")),
                ("fma", format!("fma.{rounding}.{ty} %{r}0, %{r}1, %{r}2, %{r}3")),
            ] {
                for (case, out) in cases.iter().zip(load(&text).run(&cases)) {
                    let (a, b, c) = (of(0, case), of(1, case), of(2, case));
                    let value = match operation {
                        "add" => a.plus(b),
                        "sub" => a.plus(Dyadic { significand: -b.significand, ..b }),
                        "mul" => a.times(b),
                        _ => a.times(b).plus(c),
                    };
                    check(&format!("{text} of {case:x?}"), rounding, out.first, wide, |x| value.compare(x));
                }
            }
        }
    }
}

#[test]
fn quotients_and_roots_bracket_the_exact_value() {
    let mut random = Random(12);
    for wide in [false, true] {
        let spread = if wide { 2 } else { 12 };
        let (r, ty) = (register(wide), name(wide));
        let cases: Vec<_> =
            (0..3_000).map(|_| (0..2).map(|_| moderate(&mut random, wide, spread)).collect::<Vec<_>>()).collect();
        let magnitudes: Vec<_> =
            cases.iter().map(|case| vec![case[0] & if wide { u64::MAX >> 1 } else { 0x7fff_ffff }]).collect();
        for rounding in ROUNDINGS {
            // compares a/b with x by comparing a with x·b
            let against = |a: Dyadic, b: Dyadic, x: Dyadic| {
                let order = a.compare(x.times(b));
                if b.significand < 0 { order.reverse() } else { order }
            };
            let text = format!("div.{rounding}.{ty} %{r}0, %{r}1, %{r}2");
            for (case, out) in cases.iter().zip(load(&text).run(&cases)) {
                let (a, b) = (Dyadic::of(case[0], wide), Dyadic::of(case[1], wide));
                check(&format!("{text} of {case:x?}"), rounding, out.first, wide, |x| against(a, b, x));
            }
            let text = format!("rcp.{rounding}.{ty} %{r}0, %{r}1");
            for (case, out) in cases.iter().zip(load(&text).run(&cases)) {
                let (one, b) = (Dyadic { significand: 1, exponent: 0 }, Dyadic::of(case[0], wide));
                check(&format!("{text} of {case:x?}"), rounding, out.first, wide, |x| against(one, b, x));
            }
            let text = format!("sqrt.{rounding}.{ty} %{r}0, %{r}1");
            for (case, out) in magnitudes.iter().zip(load(&text).run(&magnitudes)) {
                let a = Dyadic::of(case[0], wide);
                check(&format!("{text} of {case:x?}"), rounding, out.first, wide, |x| {
                    if x.significand < 0 { Ordering::Greater } else { a.compare(x.times(x)) }
                });
            }
        }
    }
}

#[test]
fn integers_to_floats_bracket_the_exact_value() {
    let mut random = Random(13);
    for wide in [false, true] {
        let (r, ty) = (register(wide), name(wide));
        for (from, class, bits) in [("s32", "r", 32), ("u32", "r", 32), ("s64", "rd", 64), ("u64", "rd", 64)] {
            let cases: Vec<_> = (0..2_000).map(|_| vec![random.word(bits)]).collect();
            for rounding in ROUNDINGS {
                let text = format!("cvt.{rounding}.{ty}.{from} %{r}0, %{class}1");
                for (case, out) in cases.iter().zip(load(&text).run(&cases)) {
                    let significand = match from {
                        "s32" => i128::from(case[0] as i32),
                        "s64" => i128::from(case[0] as i64),
                        _ => i128::from(case[0]),
                    };
                    if significand == 0 {
                        assert_eq!(out.first, 0);
                        continue;
                    }
                    let value = Dyadic { significand, exponent: 0 };
                    check(&format!("{text} of {case:x?}"), rounding, out.first, wide, |x| value.compare(x));
                }
            }
        }
    }
}

/// Any bit pattern, with exponents that often give subnormal results or overflow.
fn anything(random: &mut Random, wide: bool) -> u64 {
    let (bits, fraction) = if wide { (64, 52) } else { (32, 23) };
    match random.below(4) {
        0 => random.word(bits),
        1 => random.word(fraction) | (random.next() & 1) << (bits - 1), // subnormal
        2 => random.next() & (u64::MAX >> (64 - bits)),
        _ => moderate(random, wide, 60),
    }
}

#[test]
fn the_four_roundings_are_neighbours_everywhere() {
    let mut random = Random(14);
    for wide in [false, true] {
        let (r, ty) = (register(wide), name(wide));
        let infinity = if wide { D_INF } else { INF };
        let sign: u64 = if wide { 1 << 63 } else { 1 << 31 };
        let cases: Vec<_> =
            (0..20_000).map(|_| (0..3).map(|_| anything(&mut random, wide)).collect::<Vec<_>>()).collect();
        for (operation, operands) in
            [("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3), ("sqrt", 1), ("rcp", 1)]
        {
            let list: String = (1..=operands).map(|index| format!(", %{r}{index}")).collect();
            let [rn, rz, rm, rp] =
                ROUNDINGS.map(|rounding| load(&format!("{operation}.{rounding}.{ty} %{r}0{list}")).run(&cases));
            for (index, case) in cases.iter().enumerate() {
                let [rn, rz, rm, rp] = [&rn, &rz, &rm, &rp].map(|out| out[index].first);
                let what = format!("{operation}.{ty} of {case:x?}: rn {rn:#x} rz {rz:#x} rm {rm:#x} rp {rp:#x}");
                if rn & !sign > infinity {
                    assert!([rz, rm, rp].iter().all(|bits| *bits == rn), "{what}");
                    continue;
                }
                let value =
                    |bits: u64| if wide { f64::from_bits(bits) } else { f64::from(f32::from_bits(bits as u32)) };
                let exact = value(rm) == value(rp);
                assert!(exact || value(neighbour(rm, wide, true)) == value(rp), "{what}: not neighbours");
                assert!(value(rn) == value(rm) || value(rn) == value(rp), "{what}: rn");
                let toward_zero = if rn & sign != 0 { rp } else { rm };
                assert!(value(rz) == value(toward_zero), "{what}: rz");
                // zeros: an exact cancellation is -0 when rounding down; other results have one sign in all directions
                if value(rn) != 0.0 {
                    assert_eq!(rn & sign, rz & sign, "{what}: sign");
                }
            }
        }
    }
}
