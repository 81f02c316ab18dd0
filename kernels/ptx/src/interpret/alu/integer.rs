//! Integer arithmetic without carry.
//!
//!   add sub · mul mad in .lo .hi .wide · mul24 mad24 · sad · div rem · abs neg · min max · dp4a dp2a
//!
//! Wrap       all operations wrap, except .sat.s32, which saturates.
//! Division   by zero: quotient and remainder have all bits set (unspecified in the manual; NVIDIA's assembler folds to
//!            this). The minimum divided by -1 wraps: quotient the minimum, remainder 0.
//! 24 bits    mul24 and mad24 read the low 24 bits of their factors, sign-extended for .s32.

use super::decode::Decoder;
use super::lanes::{Word, binary, by_int, by_type, lanes3, ternary, unary};
use super::{AluOp, Row, Run};
use crate::ast::Type;

/// Operations that Rust's wrapping arithmetic lacks.
trait Integer: Word {
    /// The upper half of the full product.
    fn high(self, other: Self) -> Self;
    fn quotient(self, other: Self) -> Self;
    fn remainder(self, other: Self) -> Self;
    /// |self − other|, in the width of the type.
    fn distance(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($T:ident $Double:ident),*) => {$(
        impl Integer for $T {
            #[inline(always)]
            fn high(self, other: Self) -> Self {
                (($Double::from(self) * $Double::from(other)) >> $T::BITS) as $T
            }
            #[inline(always)]
            fn quotient(self, other: Self) -> Self {
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn remainder(self, other: Self) -> Self {
                if other == 0 { !0 } else { self.wrapping_rem(other) }
            }
            #[inline(always)]
            fn distance(self, other: Self) -> Self {
                if self < other { other.wrapping_sub(self) } else { self.wrapping_sub(other) }
            }
        }
    )*};
}
integers!(u16 u32, u32 u64, u64 u128, i16 i32, i32 i64, i64 i128);

const ALL: &str = ".u16 .u32 .u64 .s16 .s32 .s64";
const SIGNED: &str = ".s16 .s32 .s64";

pub(super) fn decode(decoder: &mut Decoder) -> Result<AluOp, String> {
    match decoder.name() {
        "mul" | "mad" => product(decoder),
        "mul24" | "mad24" => product24(decoder),
        "dp4a" | "dp2a" => dot(decoder),
        "abs" | "neg" => one(decoder),
        "sad" => {
            let ty = decoder.one_type()?;
            let run = by_int!(ty, T => ternary!(|a: T, b: T, c: T| -> T { c.wrapping_add(a.distance(b)) }));
            decoder.simple(run.ok_or_else(|| decoder.no_type(ty, ALL))?, ty.bits(), &[ty; 3])
        }
        _ => two(decoder),
    }
}

fn two(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    let saturating = decoder.flag("sat");
    let run = match (decoder.name(), saturating) {
        ("add", true) if ty == Type::S32 => Some(binary!(|a: i32, b: i32| -> i32 { a.saturating_add(b) })),
        ("sub", true) if ty == Type::S32 => Some(binary!(|a: i32, b: i32| -> i32 { a.saturating_sub(b) })),
        (_, true) => {
            return Err("cannot have .sat: among integers only add.sat.s32, sub.sat.s32 and mad.hi.sat.s32 do".into());
        }
        ("add", _) => by_int!(ty, T => binary!(|a: T, b: T| -> T { a.wrapping_add(b) })),
        ("sub", _) => by_int!(ty, T => binary!(|a: T, b: T| -> T { a.wrapping_sub(b) })),
        ("div", _) => by_int!(ty, T => binary!(|a: T, b: T| -> T { a.quotient(b) })),
        ("rem", _) => by_int!(ty, T => binary!(|a: T, b: T| -> T { a.remainder(b) })),
        ("min", _) => by_int!(ty, T => binary!(|a: T, b: T| -> T { a.min(b) })),
        _ => by_int!(ty, T => binary!(|a: T, b: T| -> T { a.max(b) })),
    };
    decoder.simple(run.ok_or_else(|| decoder.no_type(ty, ALL))?, ty.bits(), &[ty; 2])
}

fn one(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    let run = match decoder.name() {
        "abs" => by_type!(ty, T in [S16 i16, S32 i32, S64 i64] => unary!(|a: T| -> T { a.wrapping_abs() })),
        _ => by_type!(ty, T in [S16 i16, S32 i32, S64 i64] => unary!(|a: T| -> T { a.wrapping_neg() })),
    };
    decoder.simple(run.ok_or_else(|| decoder.no_type(ty, SIGNED))?, ty.bits(), &[ty])
}

#[derive(Clone, Copy)]
enum Part {
    Low,
    High,
    Wide,
}

fn product(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    let Some(part) = decoder.choice(&[("lo", Part::Low), ("hi", Part::High), ("wide", Part::Wide)]) else {
        return Err(format!("needs .lo, .hi or .wide: `{}` of integers has no other form", decoder.name()));
    };
    let with_addend = decoder.name() == "mad";
    if with_addend && decoder.flag("sat") {
        if !matches!(part, Part::High) || ty != Type::S32 {
            return Err("cannot have .sat: of the integer mad only mad.hi.sat.s32 does".into());
        }
        let run = ternary!(|a: i32, b: i32, c: i32| -> i32 { a.high(b).saturating_add(c) });
        return decoder.simple(run, 32, &[ty; 3]);
    }
    let run = match (part, with_addend) {
        (Part::Low, false) => by_int!(ty, T => binary!(|a: T, b: T| -> T { a.wrapping_mul(b) })),
        (Part::Low, true) => {
            by_int!(ty, T => ternary!(|a: T, b: T, c: T| -> T { a.wrapping_mul(b).wrapping_add(c) }))
        }
        (Part::High, false) => by_int!(ty, T => binary!(|a: T, b: T| -> T { a.high(b) })),
        (Part::High, true) => by_int!(ty, T => ternary!(|a: T, b: T, c: T| -> T { a.high(b).wrapping_add(c) })),
        (Part::Wide, false) => match ty {
            Type::U16 => Some(binary!(|a: u16, b: u16| -> u32 { u32::from(a) * u32::from(b) })),
            Type::S16 => Some(binary!(|a: i16, b: i16| -> i32 { i32::from(a) * i32::from(b) })),
            Type::U32 => Some(binary!(|a: u32, b: u32| -> u64 { u64::from(a) * u64::from(b) })),
            Type::S32 => Some(binary!(|a: i32, b: i32| -> i64 { i64::from(a) * i64::from(b) })),
            _ => None,
        },
        (Part::Wide, true) => match ty {
            Type::U16 => {
                Some(ternary!(|a: u16, b: u16, c: u32| -> u32 { (u32::from(a) * u32::from(b)).wrapping_add(c) }))
            }
            Type::S16 => {
                Some(ternary!(|a: i16, b: i16, c: i32| -> i32 { (i32::from(a) * i32::from(b)).wrapping_add(c) }))
            }
            Type::U32 => {
                Some(ternary!(|a: u32, b: u32, c: u64| -> u64 { (u64::from(a) * u64::from(b)).wrapping_add(c) }))
            }
            Type::S32 => {
                Some(ternary!(|a: i32, b: i32, c: i64| -> i64 { (i64::from(a) * i64::from(b)).wrapping_add(c) }))
            }
            _ => None,
        },
    };
    let known = if matches!(part, Part::Wide) { ".u16 .u32 .s16 .s32" } else { ALL };
    let run = run.ok_or_else(|| decoder.no_type(ty, known))?;
    let result = match (part, ty) {
        (Part::Wide, Type::U16) => Type::U32,
        (Part::Wide, Type::S16) => Type::S32,
        (Part::Wide, Type::U32) => Type::U64,
        (Part::Wide, _) => Type::S64,
        _ => ty,
    };
    let sources = [ty, ty, result];
    decoder.simple(run, result.bits(), if with_addend { &sources } else { &sources[..2] })
}

/// The low 24 bits as a number.
#[inline(always)]
fn unsigned24(a: u32) -> u64 {
    u64::from(a & 0x00ff_ffff)
}

#[inline(always)]
fn signed24(a: u32) -> i64 {
    i64::from((a << 8) as i32 >> 8)
}

fn product24(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    let Some(high) = decoder.choice(&[("lo", false), ("hi", true)]) else {
        return Err(format!("needs .lo or .hi: `{}` has no other form", decoder.name()));
    };
    let with_addend = decoder.name() == "mad24";
    let saturating = with_addend && decoder.flag("sat");
    if saturating && (!high || ty != Type::S32) {
        return Err("cannot have .sat: of mad24 only mad24.hi.sat.s32 does".into());
    }
    // .hi is bits 47…16 of the product, .lo bits 31…0
    let run = match (ty, high, with_addend) {
        (Type::U32, false, false) => binary!(|a: u32, b: u32| -> u32 { (unsigned24(a) * unsigned24(b)) as u32 }),
        (Type::U32, true, false) => binary!(|a: u32, b: u32| -> u32 { ((unsigned24(a) * unsigned24(b)) >> 16) as u32 }),
        (Type::S32, false, false) => binary!(|a: u32, b: u32| -> u32 { (signed24(a) * signed24(b)) as u32 }),
        (Type::S32, true, false) => binary!(|a: u32, b: u32| -> u32 { ((signed24(a) * signed24(b)) >> 16) as u32 }),
        (Type::U32, false, true) => {
            ternary!(|a: u32, b: u32, c: u32| -> u32 { ((unsigned24(a) * unsigned24(b)) as u32).wrapping_add(c) })
        }
        (Type::U32, true, true) => {
            ternary!(|a: u32, b: u32, c: u32| -> u32 {
                (((unsigned24(a) * unsigned24(b)) >> 16) as u32).wrapping_add(c)
            })
        }
        (Type::S32, false, true) => {
            ternary!(|a: u32, b: u32, c: u32| -> u32 { ((signed24(a) * signed24(b)) as u32).wrapping_add(c) })
        }
        (Type::S32, true, true) if saturating => {
            ternary!(|a: u32, b: u32, c: i32| -> i32 { (((signed24(a) * signed24(b)) >> 16) as i32).saturating_add(c) })
        }
        (Type::S32, true, true) => {
            ternary!(|a: u32, b: u32, c: u32| -> u32 { (((signed24(a) * signed24(b)) >> 16) as u32).wrapping_add(c) })
        }
        _ => return Err(decoder.no_type(ty, ".u32 .s32")),
    };
    let sources = [ty; 3];
    decoder.simple(run, 32, if with_addend { &sources } else { &sources[..2] })
}

#[inline(always)]
fn byte<const SIGNED: bool>(word: u32, index: u32) -> i32 {
    let byte = (word >> (8 * index)) as u8;
    if SIGNED { i32::from(byte as i8) } else { i32::from(byte) }
}

#[inline(always)]
fn half<const SIGNED: bool>(word: u32, index: u32) -> i32 {
    let half = (word >> (16 * index)) as u16;
    if SIGNED { i32::from(half as i16) } else { i32::from(half) }
}

fn four<const A: bool, const B: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes3(op, registers, constants, mask, |a, b, c| {
        let mut sum = c as i32;
        for i in 0..4 {
            sum = sum.wrapping_add(byte::<A>(a as u32, i) * byte::<B>(b as u32, i));
        }
        u64::from(sum as u32)
    });
}

/// `op.detail` is the index of the first of the two bytes of `b`: 0 for .lo, 2 for .hi.
fn halves<const A: bool, const B: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes3(op, registers, constants, mask, |a, b, c| {
        let mut sum = c as i32;
        for i in 0..2 {
            sum = sum.wrapping_add(half::<A>(a as u32, i).wrapping_mul(byte::<B>(b as u32, op.detail + i)));
        }
        u64::from(sum as u32)
    });
}

fn dot(decoder: &mut Decoder) -> Result<AluOp, String> {
    let (a, b) = decoder.two_types()?;
    for ty in [a, b] {
        if !matches!(ty, Type::U32 | Type::S32) {
            return Err(decoder.no_type(ty, ".u32 .s32"));
        }
    }
    let of_bytes = decoder.name() == "dp4a";
    let run: Run = match (of_bytes, a.is_signed(), b.is_signed()) {
        (true, false, false) => four::<false, false>,
        (true, false, true) => four::<false, true>,
        (true, true, false) => four::<true, false>,
        (true, true, true) => four::<true, true>,
        (false, false, false) => halves::<false, false>,
        (false, false, true) => halves::<false, true>,
        (false, true, false) => halves::<true, false>,
        (false, true, true) => halves::<true, true>,
    };
    let mut first = 0;
    if !of_bytes {
        let Some(byte) = decoder.choice(&[("lo", 0), ("hi", 2)]) else {
            return Err("needs .lo or .hi: which two bytes of the second operand".into());
        };
        first = byte;
    }
    let mut op = decoder.simple(run, 32, &[a, b, Type::B32])?;
    op.detail = first;
    Ok(op)
}
