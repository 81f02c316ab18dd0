//! Comparison and selection: setp set selp slct.
//!
//!   setp.lt.and.s32  p|q, a, b, !c     t = a < b     p = t and !c     q = !t and !c
//!   set.eq.f32.u32   d, a, b           d = 1.0 where equal, else 0.0; .u32 and .s32 get all bits set
//!
//! Unordered  eq ne lt le gt ge of floats are false if an operand is NaN (ne, too); equ neu ltu leu gtu geu are then
//!            true. num is true if no operand is NaN, nan if one is. Zeros of both signs are equal.
//! Signs      lt le gt ge follow the type; lo ls hi hs are their names for unsigned numbers.
//! slct       selects the first value if c ≥ 0: true for -0.0, false for NaN.

use super::convert::{bf16_to_f32, f16_to_f32};
use super::decode::{Decoder, op, untyped};
use super::float::take32;
use super::lanes::{Word, by_type, lanes2, store, ternary};
use super::{AluOp, Row, Run, Source};
use crate::ast::{Operand, Type};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// The `…OrUnordered` comparisons are also true if an operand is NaN.
    EqualOrUnordered,
    NotEqualOrUnordered,
    LessOrUnordered,
    LessEqualOrUnordered,
    GreaterOrUnordered,
    GreaterEqualOrUnordered,
    Ordered,
    Unordered,
}

use Comparison::*;

const SIGNED_AND_FLOAT: [(&str, Comparison); 6] =
    [("eq", Equal), ("ne", NotEqual), ("lt", Less), ("le", LessOrEqual), ("gt", Greater), ("ge", GreaterOrEqual)];
const UNSIGNED: [(&str, Comparison); 4] = [("lo", Less), ("ls", LessOrEqual), ("hi", Greater), ("hs", GreaterOrEqual)];
const FLOAT_ONLY: [(&str, Comparison); 8] = [
    ("equ", EqualOrUnordered),
    ("neu", NotEqualOrUnordered),
    ("ltu", LessOrUnordered),
    ("leu", LessEqualOrUnordered),
    ("gtu", GreaterOrUnordered),
    ("geu", GreaterEqualOrUnordered),
    ("num", Ordered),
    ("nan", Unordered),
];

/// A comparison compiled twice: for `setp` with one destination and no combination, and for all other forms.
struct Test {
    plain: Run,
    general: Run,
}

macro_rules! test {
    (|$a:ident, $b:ident| $take:expr => $body:expr) => {{
        fn plain(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
            lanes2(op, registers, constants, mask, |a, b| {
                let ($a, $b) = ($take(a), $take(b));
                u64::from($body)
            });
        }
        fn general(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
            let a = op.sources[0].row(registers, constants);
            let b = op.sources[1].row(registers, constants);
            let mut truth = [0; 32];
            for lane in 0..32 {
                let ($a, $b) = ($take(a[lane]), $take(b[lane]));
                truth[lane] = u64::from($body);
            }
            finish(op, registers, constants, mask, &truth);
        }
        Test { plain, general }
    }};
}

/// Comparison of integers of type `T`.
macro_rules! integer_test {
    ($comparison:expr, $T:ident) => {
        match $comparison {
            Equal => test!(|a, b| <$T as Word>::take => a == b),
            NotEqual => test!(|a, b| <$T as Word>::take => a != b),
            Less => test!(|a, b| <$T as Word>::take => a < b),
            LessOrEqual => test!(|a, b| <$T as Word>::take => a <= b),
            Greater => test!(|a, b| <$T as Word>::take => a > b),
            _ => test!(|a, b| <$T as Word>::take => a >= b),
        }
    };
}

/// Comparison of floats that `take` reads from lanes.
macro_rules! float_test {
    ($comparison:expr, $take:expr) => {
        match $comparison {
            Equal => test!(|a, b| $take => a == b),
            NotEqual => test!(|a, b| $take => a != b && !unordered(a, b)),
            Less => test!(|a, b| $take => a < b),
            LessOrEqual => test!(|a, b| $take => a <= b),
            Greater => test!(|a, b| $take => a > b),
            GreaterOrEqual => test!(|a, b| $take => a >= b),
            EqualOrUnordered => test!(|a, b| $take => a == b || unordered(a, b)),
            NotEqualOrUnordered => test!(|a, b| $take => a != b),
            LessOrUnordered => test!(|a, b| $take => a < b || unordered(a, b)),
            LessEqualOrUnordered => test!(|a, b| $take => a <= b || unordered(a, b)),
            GreaterOrUnordered => test!(|a, b| $take => a > b || unordered(a, b)),
            GreaterEqualOrUnordered => test!(|a, b| $take => a >= b || unordered(a, b)),
            Ordered => test!(|a, b| $take => !unordered(a, b)),
            Unordered => test!(|a, b| $take => unordered(a, b)),
        }
    };
}

/// Whether an operand is NaN.
#[inline(always)]
fn unordered<T: PartialOrd>(a: T, b: T) -> bool {
    a.partial_cmp(&b).is_none()
}

/// Boolean combination, in bits 0 and 1 of `op.detail`.
const AND: u32 = 1;
const OR: u32 = 2;
const XOR: u32 = 3;
/// Set if the third source is negated.
const NEGATED: u32 = 4;
/// Representation of true.
const AS_BITS: u32 = 8;
const AS_FLOAT: u32 = 16;

#[inline(never)]
fn finish(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32, truth: &Row) {
    let one = match op.detail & (AS_BITS | AS_FLOAT) {
        AS_BITS => 0xffff_ffff,
        AS_FLOAT => u64::from(1f32.to_bits()),
        _ => 1,
    };
    let combine = op.detail & 3;
    let flip = u64::from(op.detail & NEGATED != 0);
    let with = op.sources[2].row(registers, constants);
    let (mut first, mut second) = ([0; 32], [0; 32]);
    for lane in 0..32 {
        let c = with[lane] & 1 ^ flip;
        let (p, q) = match combine {
            AND => (truth[lane] & c, (truth[lane] ^ 1) & c),
            OR => (truth[lane] | c, (truth[lane] ^ 1) | c),
            XOR => (truth[lane] ^ c, truth[lane] ^ 1 ^ c),
            _ => (truth[lane], truth[lane] ^ 1),
        };
        (first[lane], second[lane]) = (p * one, q);
    }
    store(&mut registers[op.destinations[0] as usize], &first, mask);
    if op.num_destinations == 2 {
        store(&mut registers[op.destinations[1] as usize], &second, mask);
    }
}

fn test_of(decoder: &mut Decoder, ty: Type) -> Result<Test, String> {
    let float = matches!(ty, Type::F16 | Type::BF16 | Type::F32 | Type::F64);
    let mut known = vec![("eq", Equal), ("ne", NotEqual)];
    if untyped(ty) != ty {
        known.extend(&SIGNED_AND_FLOAT[2..]);
    }
    if !float && untyped(ty) != ty && !ty.is_signed() {
        known.extend(UNSIGNED);
    }
    if float {
        known.extend(FLOAT_ONLY);
    }
    let Some(comparison) = decoder.choice(&known) else {
        let known: String = known.iter().map(|(name, _)| format!(" .{name}")).collect();
        return Err(format!("needs a comparison that .{} has:{known}", ty.name()));
    };
    let ftz = ty == Type::F32 && decoder.flag("ftz");
    let test = match ty {
        Type::F32 if ftz => Some(float_test!(comparison, take32::<true>)),
        Type::F32 => Some(float_test!(comparison, take32::<false>)),
        Type::F64 => Some(float_test!(comparison, f64::from_bits)),
        Type::F16 => Some(float_test!(comparison, |lane: u64| f16_to_f32(lane as u16))),
        Type::BF16 => Some(float_test!(comparison, |lane: u64| bf16_to_f32(lane as u16))),
        Type::S16 | Type::S32 | Type::S64 => {
            by_type!(ty, T in [S16 i16, S32 i32, S64 i64] => integer_test!(comparison, T))
        }
        _ => by_type!(untyped(ty), T in [B16 u16, B32 u32, B64 u64] => integer_test!(comparison, T)),
    };
    test.ok_or_else(|| decoder.no_type(ty, ".b16 .b32 .b64 .u16 .u32 .u64 .s16 .s32 .s64 .f16 .bf16 .f32 .f64"))
}

pub(super) fn decode(decoder: &mut Decoder) -> Result<AluOp, String> {
    match decoder.name() {
        "setp" => {
            let ty = decoder.one_type()?;
            let test = test_of(decoder, ty)?;
            comparison(decoder, test, ty, 0)
        }
        "set" => {
            let (to, ty) = decoder.two_types()?;
            let shape = match to {
                Type::U32 | Type::S32 => AS_BITS,
                Type::F32 => AS_FLOAT,
                _ => return Err(decoder.no_type(to, "a result of .u32 .s32 .f32")),
            };
            let test = test_of(decoder, ty)?;
            comparison(decoder, test, ty, shape)
        }
        "selp" => {
            let ty = decoder.one_type()?;
            let run = by_type!(untyped(ty), T in [B16 u16, B32 u32, B64 u64] => {
                ternary!(|a: T, b: T, p: bool| -> T { if p { a } else { b } })
            });
            let run = run.ok_or_else(|| decoder.no_type(ty, "words of 16, 32 and 64 bits"))?;
            decoder.simple(run, ty.bits(), &[ty, ty, Type::Pred])
        }
        _ => by_sign(decoder),
    }
}

fn comparison(decoder: &mut Decoder, test: Test, ty: Type, shape: u32) -> Result<AluOp, String> {
    let combine = decoder.choice(&[("and", AND), ("or", OR), ("xor", XOR)]);
    decoder.end()?;
    decoder.operands(if combine.is_some() { 4 } else { 3 })?;
    let mut sources: Vec<Source> = vec![decoder.source(1, ty)?, decoder.source(2, ty)?];
    let mut detail = shape;
    if let Some(combine) = combine {
        detail |= combine;
        let instruction = decoder.instruction;
        let with = match &instruction.operands[3] {
            Operand::Not(inner) => {
                detail |= NEGATED;
                &**inner
            }
            operand => operand,
        };
        sources.push(decoder.source_of(with, Type::Pred)?);
    }
    let bits = if shape == 0 { 1 } else { 32 };
    let instruction = decoder.instruction;
    let destinations = match &instruction.operands[0] {
        Operand::Pair(p, q) if shape == 0 => vec![decoder.destination_of(p, 1)?, decoder.destination_of(q, 1)?],
        operand => vec![decoder.destination_of(operand, bits)?],
    };
    let run = if detail == 0 && destinations.len() == 1 { test.plain } else { test.general };
    Ok(op(run, &destinations, &sources, detail))
}

fn by_sign(decoder: &mut Decoder) -> Result<AluOp, String> {
    let (ty, sign) = decoder.two_types()?;
    let run = match (sign, sign == Type::F32 && decoder.flag("ftz")) {
        (Type::S32, _) => by_type!(untyped(ty), T in [B16 u16, B32 u32, B64 u64] => {
            ternary!(|a: T, b: T, c: i32| -> T { if c >= 0 { a } else { b } })
        }),
        (Type::F32, false) => by_type!(untyped(ty), T in [B16 u16, B32 u32, B64 u64] => {
            ternary!(|a: T, b: T, c: u32| -> T { if f32::from_bits(c) >= 0.0 { a } else { b } })
        }),
        (Type::F32, true) => by_type!(untyped(ty), T in [B16 u16, B32 u32, B64 u64] => {
            ternary!(|a: T, b: T, c: u32| -> T { if take32::<true>(u64::from(c)) >= 0.0 { a } else { b } })
        }),
        _ => return Err(decoder.no_type(sign, "a selector of .s32 or .f32")),
    };
    let run = run.ok_or_else(|| decoder.no_type(ty, "words of 16, 32 and 64 bits"))?;
    decoder.simple(run, ty.bits(), &[ty, ty, sign])
}
