//! Integer instructions compared with i128, on random words with many special values.

use crate::harness::*;

#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    class: &'static str,
    bits: u32,
    signed: bool,
}

const KINDS: [Kind; 6] = [
    Kind { name: "u16", class: "rs", bits: 16, signed: false },
    Kind { name: "u32", class: "r", bits: 32, signed: false },
    Kind { name: "u64", class: "rd", bits: 64, signed: false },
    Kind { name: "s16", class: "rs", bits: 16, signed: true },
    Kind { name: "s32", class: "r", bits: 32, signed: true },
    Kind { name: "s64", class: "rd", bits: 64, signed: true },
];

impl Kind {
    fn read(self, word: u64) -> i128 {
        let value = i128::from(word & u64::MAX >> (64 - self.bits));
        if self.signed && value >> (self.bits - 1) & 1 != 0 { value - (1 << self.bits) } else { value }
    }

    fn write(self, value: i128) -> u64 {
        value as u64 & u64::MAX >> (64 - self.bits)
    }
}

/// Compares `text` with `expected` on random cases; `expected` is `None` where the manual specifies no result.
fn property(text: &str, kind: Kind, count: usize, seed: u64, expected: impl Fn(&[u64]) -> Option<u64>) {
    let mut random = Random(seed);
    let cases: Vec<_> = (0..2_000).map(|_| (0..count).map(|_| random.word(kind.bits)).collect::<Vec<_>>()).collect();
    for (case, out) in cases.iter().zip(load(text).run(&cases)) {
        if let Some(expected) = expected(case) {
            assert_eq!(out.first, expected, "{text} of {case:x?}");
        }
    }
}

#[test]
fn two_operands() {
    for kind in KINDS {
        let Kind { name, class: r, bits, .. } = kind;
        for operation in ["add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"] {
            property(&format!("{operation}.{name} %{r}0, %{r}1, %{r}2"), kind, 2, 21, |case| {
                let (a, b) = (kind.read(case[0]), kind.read(case[1]));
                // the full product of two 64-bit words needs all of u128
                let product = (a as u128).wrapping_mul(b as u128);
                Some(kind.write(match operation {
                    "add" => a + b,
                    "sub" => a - b,
                    "mul.lo" => product as i128,
                    "mul.hi" if kind.signed => (product as i128) >> bits,
                    "mul.hi" => (product >> bits) as i128,
                    "div" if b == 0 => return None,
                    "div" => a / b,
                    "rem" if b == 0 => return None,
                    "rem" => a % b,
                    "min" => a.min(b),
                    _ => a.max(b),
                }))
            });
        }
        if kind.signed {
            property(&format!("abs.{name} %{r}0, %{r}1"), kind, 1, 22, |case| {
                Some(kind.write(kind.read(case[0]).abs()))
            });
            property(&format!("neg.{name} %{r}0, %{r}1"), kind, 1, 23, |case| Some(kind.write(-kind.read(case[0]))));
        }
    }
}

#[test]
fn three_operands() {
    for kind in KINDS {
        let Kind { name, class: r, bits, .. } = kind;
        for operation in ["mad.lo", "mad.hi", "sad"] {
            property(&format!("{operation}.{name} %{r}0, %{r}1, %{r}2, %{r}3"), kind, 3, 24, |case| {
                let [a, b, c] = [0, 1, 2].map(|index| kind.read(case[index]));
                let product = (a as u128).wrapping_mul(b as u128);
                Some(kind.write(match operation {
                    "mad.lo" => (product as i128).wrapping_add(c),
                    "mad.hi" if kind.signed => ((product as i128) >> bits) + c,
                    "mad.hi" => (product >> bits) as i128 + c,
                    _ => c + (a - b).abs(),
                }))
            });
        }
    }
}

#[test]
fn saturation() {
    let kind = KINDS[4];
    let clamp = |value: i128| Some(kind.write(value.clamp(i128::from(i32::MIN), i128::from(i32::MAX))));
    property("add.sat.s32 %r0, %r1, %r2", kind, 2, 25, |case| clamp(kind.read(case[0]) + kind.read(case[1])));
    property("sub.sat.s32 %r0, %r1, %r2", kind, 2, 26, |case| clamp(kind.read(case[0]) - kind.read(case[1])));
    property("mad.hi.sat.s32 %r0, %r1, %r2, %r3", kind, 3, 27, |case| {
        clamp(((kind.read(case[0]) * kind.read(case[1])) >> 32) + kind.read(case[2]))
    });
}

#[test]
fn wide_products() {
    for kind in [KINDS[0], KINDS[1], KINDS[3], KINDS[4]] {
        let Kind { name, class: r, bits, .. } = kind;
        let wide = if bits == 16 { "r" } else { "rd" };
        let mask = u64::MAX >> (64 - 2 * bits);
        property(&format!("mul.wide.{name} %{wide}0, %{r}1, %{r}2"), kind, 2, 28, |case| {
            Some((kind.read(case[0]) * kind.read(case[1])) as u64 & mask)
        });
        property(&format!("mad.wide.{name} %{wide}0, %{r}1, %{r}2, %{wide}3"), kind, 3, 29, |case| {
            Some((kind.read(case[0]) * kind.read(case[1]) + i128::from(case[2])) as u64 & mask)
        });
    }
}

#[test]
fn shifts() {
    for kind in KINDS {
        let Kind { name, class: r, bits, .. } = kind;
        let mut random = Random(30);
        let cases: Vec<_> = (0..2_000).map(|_| vec![random.word(bits), random.word(32) & 0x8000_00ff]).collect();
        let text = format!("shr.{name} %{r}0, %{r}1, %r2");
        for (case, out) in cases.iter().zip(load(&text).run(&cases)) {
            let expected = kind.write(kind.read(case[0]) >> case[1].min(127));
            assert_eq!(out.first, expected, "{text} of {case:x?}");
        }
        let text = format!("shl.b{bits} %{r}0, %{r}1, %r2");
        for (case, out) in cases.iter().zip(load(&text).run(&cases)) {
            let expected = if case[1] >= 64 { 0 } else { kind.write(i128::from(case[0]) << case[1]) };
            assert_eq!(out.first, expected, "{text} of {case:x?}");
        }
    }
    let kind = KINDS[1];
    for (text, clamp, left) in [
        ("shf.l.clamp.b32 %r0, %r1, %r2, %r3", true, true),
        ("shf.l.wrap.b32 %r0, %r1, %r2, %r3", false, true),
        ("shf.r.clamp.b32 %r0, %r1, %r2, %r3", true, false),
        ("shf.r.wrap.b32 %r0, %r1, %r2, %r3", false, false),
    ] {
        property(text, kind, 3, 31, |case| {
            let n = if clamp { case[2].min(32) } else { case[2] & 31 };
            let pair = u128::from(case[1] << 32 | case[0]);
            Some(if left { (pair << n >> 32) as u64 } else { (pair >> n) as u64 } & 0xffff_ffff)
        });
    }
}

#[test]
fn bits_by_loops() {
    let word = KINDS[1];
    let long = KINDS[2];
    property("popc.b32 %r0, %r1", word, 1, 32, |case| Some((0..32).map(|i| case[0] >> i & 1).sum()));
    property("popc.b64 %r0, %rd1", long, 1, 33, |case| Some((0..64).map(|i| case[0] >> i & 1).sum()));
    property("clz.b64 %r0, %rd1", long, 1, 34, |case| {
        Some((0..64).take_while(|i| case[0] >> (63 - i) & 1 == 0).count() as u64)
    });
    property("brev.b32 %r0, %r1", word, 1, 35, |case| Some((0..32).map(|i| (case[0] >> i & 1) << (31 - i)).sum()));
    property("bfind.s64 %r0, %rd1", long, 1, 36, |case| {
        let sign = case[0] >> 63;
        Some((0..63).rev().find(|i| case[0] >> i & 1 != sign).unwrap_or(0xffff_ffff))
    });
    property("fns.b32 %r0, %r1, %r2, %r3", word, 3, 37, |case| {
        let (mask, base, offset) = (case[0], case[1] as i64, case[2] as i32);
        if base > 31 {
            return None;
        }
        if offset == 0 {
            return Some(if mask >> base & 1 != 0 { base as u64 } else { 0xffff_ffff });
        }
        let (mut position, mut left) = (base, i64::from(offset).abs() - 1);
        while (0..32).contains(&position) {
            if mask >> position & 1 != 0 {
                if left == 0 {
                    return Some(position as u64);
                }
                left -= 1;
            }
            position += i64::from(offset.signum());
        }
        Some(0xffff_ffff)
    });
    property("prmt.b32 %r0, %r1, %r2, %r3", word, 3, 38, |case| {
        let bytes = case[1] << 32 | case[0];
        Some((0..4).fold(0, |out, i| {
            let digit = case[2] >> (4 * i) & 15;
            let byte = bytes >> (8 * (digit & 7)) & 0xff;
            let byte = if digit < 8 {
                byte
            } else if byte >= 128 {
                0xff
            } else {
                0
            };
            out | byte << (8 * i)
        }))
    });
}
