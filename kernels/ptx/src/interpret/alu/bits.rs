//! Logic, shifts and bit fields.
//!
//!   and or xor not cnot lop3 · shl shr shf · popc clz bfind fns brev · bfe bfi bmsk szext · prmt
//!
//! Shifts   amounts are .u32 and saturate at the width: shl and logical shr then give 0, arithmetic shr all sign bits.
//!          shf clamps or wraps at 32, depending on its mode.
//! Fields   position and length of bfe and bfi are in 0 … 255, as the manual requires. Larger values are taken modulo
//!          256 by the 32-bit forms and as they are by the 64-bit forms, as on an H200.

use super::decode::{Decoder, op, untyped};
use super::lanes::{
    binary, by_bits, by_type, by_wide_int, lanes1, lanes2, lanes3, lanes4, store, ternary, unary, uniform,
};
use super::{AluOp, Row, Run};
use crate::ast::{Operand, Type};

pub(super) fn decode(decoder: &mut Decoder) -> Result<AluOp, String> {
    match decoder.name() {
        "and" | "or" | "xor" | "not" | "cnot" => logic(decoder),
        "lop3" => lookup(decoder),
        "shl" | "shr" => shift(decoder),
        "shf" => funnel(decoder),
        "popc" | "clz" | "bfind" => count(decoder),
        "brev" => {
            let ty = decoder.one_type()?;
            let run = by_type!(ty, T in [B32 u32, B64 u64] => unary!(|a: T| -> T { a.reverse_bits() }));
            decoder.simple(run.ok_or_else(|| decoder.no_type(ty, ".b32 .b64"))?, ty.bits(), &[ty])
        }
        "prmt" => permute(decoder),
        _ => field(decoder),
    }
}

fn logic(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    if ty == Type::Pred {
        let (run, count): (Run, usize) = match decoder.name() {
            "and" => (binary!(|a: bool, b: bool| -> bool { a & b }), 2),
            "or" => (binary!(|a: bool, b: bool| -> bool { a | b }), 2),
            "xor" => (binary!(|a: bool, b: bool| -> bool { a ^ b }), 2),
            "not" => (unary!(|a: bool| -> bool { !a }), 1),
            _ => return Err(decoder.no_type(ty, ".b16 .b32 .b64")),
        };
        return decoder.simple(run, 1, &[ty; 2][..count]);
    }
    let (run, count) = match decoder.name() {
        "and" => (by_bits!(ty, T => binary!(|a: T, b: T| -> T { a & b })), 2),
        "or" => (by_bits!(ty, T => binary!(|a: T, b: T| -> T { a | b })), 2),
        "xor" => (by_bits!(ty, T => binary!(|a: T, b: T| -> T { a ^ b })), 2),
        "not" => (by_bits!(ty, T => unary!(|a: T| -> T { !a })), 1),
        _ => (by_bits!(ty, T => unary!(|a: T| -> T { T::from(a == 0) })), 1),
    };
    let known = if decoder.name() == "cnot" { ".b16 .b32 .b64" } else { ".pred .b16 .b32 .b64" };
    decoder.simple(run.ok_or_else(|| decoder.no_type(ty, known))?, ty.bits(), &[ty; 2][..count])
}

/// Bit `4a + 2b + c` of the table is the result of the bits `a`, `b` and `c`.
#[inline(always)]
fn look_up(table: &[u32; 8], a: u32, b: u32, c: u32) -> u32 {
    let mut out = 0;
    for (index, all) in table.iter().enumerate() {
        let a = if index & 4 != 0 { a } else { !a };
        let b = if index & 2 != 0 { b } else { !b };
        let c = if index & 1 != 0 { c } else { !c };
        out |= a & b & c & all;
    }
    out
}

/// The table in the low byte of `op.detail`, each bit spread over a word.
fn spread(detail: u32) -> [u32; 8] {
    std::array::from_fn(|index| 0u32.wrapping_sub(detail >> index & 1))
}

fn lop3(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let table = spread(op.detail);
    lanes3(op, registers, constants, mask, |a, b, c| u64::from(look_up(&table, a as u32, b as u32, c as u32)));
}

/// Also `p = (d != 0) op q`; the fourth source is `q`.
fn lop3_predicate<const AND: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let table = spread(op.detail);
    let [a, b, c, q, _] = op.sources.map(|source| source.row(registers, constants));
    let (mut out, mut predicate) = ([0; 32], [0; 32]);
    for lane in 0..32 {
        let value = look_up(&table, a[lane] as u32, b[lane] as u32, c[lane] as u32);
        let some = u64::from(value != 0);
        out[lane] = u64::from(value);
        let q = q[lane] & 1;
        predicate[lane] = if AND { some & q } else { some | q };
    }
    store(&mut registers[op.destinations[0] as usize], &out, mask);
    store(&mut registers[op.destinations[1] as usize], &predicate, mask);
}

fn lookup(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    if ty != Type::B32 {
        return Err(decoder.no_type(ty, ".b32"));
    }
    let combine = decoder.choice(&[("and", true), ("or", false)]);
    decoder.end()?;
    decoder.operands(if combine.is_some() { 6 } else { 5 })?;
    let mut sources = vec![decoder.source(1, ty)?, decoder.source(2, ty)?, decoder.source(3, ty)?];
    let table = decoder.constant(4)?;
    if table > 255 {
        return Err(format!("has the table {table:#x}; it must lie in 0 … 0xff"));
    }
    let Some(and) = combine else {
        let destination = decoder.destination(0, 32)?;
        return Ok(op(lop3, &[destination], &sources, table as u32));
    };
    let Operand::Pair(word, predicate) = &decoder.instruction.operands[0] else {
        return Err("needs a destination `d|p`, because it also writes a predicate".into());
    };
    let destinations = [decoder.destination_of(word, 32)?, decoder.destination_of(predicate, 1)?];
    sources.push(decoder.source(5, Type::Pred)?);
    let run: Run = if and { lop3_predicate::<true> } else { lop3_predicate::<false> };
    Ok(op(run, &destinations, &sources, table as u32))
}

fn shift(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    let left = decoder.name() == "shl";
    let run = match (left, untyped(ty)) {
        (true, _) => by_bits!(ty, T => binary!(|a: T, n: u32| -> T { if n < T::BITS { a << n } else { 0 } })),
        (false, _) if ty.is_signed() => {
            by_type!(ty, T in [S16 i16, S32 i32, S64 i64] => binary!(|a: T, n: u32| -> T { a >> n.min(T::BITS - 1) }))
        }
        (false, bits) if !ty.is_float() => {
            by_bits!(bits, T => binary!(|a: T, n: u32| -> T { if n < T::BITS { a >> n } else { 0 } }))
        }
        _ => None,
    };
    let known = if left { ".b16 .b32 .b64" } else { ".b16 .b32 .b64 .u16 .u32 .u64 .s16 .s32 .s64" };
    decoder.simple(run.ok_or_else(|| decoder.no_type(ty, known))?, ty.bits(), &[ty, Type::U32])
}

fn funnel(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    if ty != Type::B32 {
        return Err(decoder.no_type(ty, ".b32"));
    }
    let Some(left) = decoder.choice(&[("l", true), ("r", false)]) else {
        return Err("needs a direction: .l or .r".into());
    };
    let Some(clamp) = decoder.choice(&[("clamp", true), ("wrap", false)]) else {
        return Err("needs .clamp or .wrap".into());
    };
    // [b, a] as one 64-bit value: a left shift returns the upper word, a right shift the lower one
    let run = match (left, clamp) {
        (true, true) => ternary!(|a: u32, b: u32, c: u32| -> u32 {
            ((u128::from(u64::from(b) << 32 | u64::from(a)) << c.min(32)) >> 32) as u32
        }),
        (true, false) => {
            ternary!(|a: u32, b: u32, c: u32| -> u32 { ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32 })
        }
        (false, true) => {
            ternary!(|a: u32, b: u32, c: u32| -> u32 { ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32 })
        }
        (false, false) => {
            ternary!(|a: u32, b: u32, c: u32| -> u32 { ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32 })
        }
    };
    decoder.simple(run, 32, &[ty, ty, Type::U32])
}

fn count(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    let (run, known) = match decoder.name() {
        "popc" => (by_type!(ty, T in [B32 u32, B64 u64] => unary!(|a: T| -> u32 { a.count_ones() })), ".b32 .b64"),
        "clz" => (by_type!(ty, T in [B32 u32, B64 u64] => unary!(|a: T| -> u32 { a.leading_zeros() })), ".b32 .b64"),
        // most significant bit that differs from the sign; .shiftamt counts from the top, so it is `clz`
        _ if decoder.flag("shiftamt") => (
            by_wide_int!(ty, T => unary!(|a: T| -> u32 {
                let a = a ^ sign::<T>(a);
                if a == 0 { u32::MAX } else { a.leading_zeros() }
            })),
            ".u32 .u64 .s32 .s64",
        ),
        _ => (
            by_wide_int!(ty, T => unary!(|a: T| -> u32 {
                let a = a ^ sign::<T>(a);
                if a == 0 { u32::MAX } else { T::BITS - 1 - a.leading_zeros() }
            })),
            ".u32 .u64 .s32 .s64",
        ),
    };
    decoder.simple(run.ok_or_else(|| decoder.no_type(ty, known))?, 32, &[ty])
}

/// All bits set for a negative number, else zero.
trait Sign {
    fn sign(self) -> Self;
}
macro_rules! signs {
    ($($T:ident $sign:expr),*) => {$(
        impl Sign for $T {
            #[inline(always)]
            fn sign(self) -> Self {
                let f: fn($T) -> $T = $sign;
                f(self)
            }
        }
    )*};
}
signs!(u32 | _ | 0, u64 | _ | 0, i32 | a | a >> 31, i64 | a | a >> 63);

#[inline(always)]
fn sign<T: Sign>(a: T) -> T {
    a.sign()
}

/// A position or length as an instruction of this width reads it.
#[inline(always)]
fn place<const BITS: u32>(word: u32) -> u32 {
    if BITS == 32 { word & 0xff } else { word }
}

/// The `len` bits of `a` from `pos` up; above them the sign bit of the field, or 0 when unsigned.
#[inline(always)]
fn extract<const BITS: u32, const SIGNED: bool>(a: u64, pos: u32, len: u32) -> u64 {
    let (pos, len) = (place::<BITS>(pos), place::<BITS>(len));
    if len == 0 {
        return 0;
    }
    let all = u64::MAX >> (64 - BITS);
    let fill = if SIGNED && a >> pos.saturating_add(len - 1).min(BITS - 1) & 1 != 0 { all } else { 0 };
    // number of field bits inside the input
    let present = len.min(BITS.saturating_sub(pos));
    if present == 0 {
        return fill;
    }
    let low = u64::MAX >> (64 - present);
    (a >> pos & low | fill & !low) & all
}

/// `b` with its `len` bits from `pos` up replaced by the low bits of `a`.
#[inline(always)]
fn insert<const BITS: u32>(a: u64, b: u64, pos: u32, len: u32) -> u64 {
    let b = b & (u64::MAX >> (64 - BITS));
    let (pos, len) = (place::<BITS>(pos), place::<BITS>(len));
    let present = len.min(BITS.saturating_sub(pos));
    if present == 0 {
        return b;
    }
    let field = u64::MAX >> (64 - present) << pos;
    a << pos & field | b & !field
}

fn bfe<const BITS: u32, const SIGNED: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    // usual case: constant position and length, so that all lanes shift by one amount
    if let (Some(pos), Some(len)) = (uniform(op.sources[1], constants), uniform(op.sources[2], constants)) {
        let (pos, len) = (pos as u32, len as u32);
        return lanes1(op, registers, constants, mask, |a| extract::<BITS, SIGNED>(a, pos, len));
    }
    lanes3(op, registers, constants, mask, |a, pos, len| extract::<BITS, SIGNED>(a, pos as u32, len as u32));
}

fn bfi<const BITS: u32>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes4(op, registers, constants, mask, |a, b, pos, len| insert::<BITS>(a, b, pos as u32, len as u32));
}

/// Position of the `offset`-th set bit of `mask` from bit `base`: upwards if positive, downwards if negative.
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX; // undefined in the manual
    }
    if offset == 0 {
        return if mask >> base & 1 != 0 { base } else { u32::MAX };
    }
    let mut left = if offset > 0 { mask >> base << base } else { mask << (31 - base) >> (31 - base) };
    for _ in 1..offset.unsigned_abs().min(33) {
        left &= if offset > 0 { left.wrapping_sub(1) } else { !(1u32 << 31 >> left.leading_zeros().min(31)) };
    }
    match (left, offset > 0) {
        (0, _) => u32::MAX,
        (_, true) => left.trailing_zeros(),
        (_, false) => 31 - left.leading_zeros(),
    }
}

#[inline(always)]
fn bit_mask<const CLAMP: bool>(a: u32, b: u32) -> u32 {
    if CLAMP && a >= 32 {
        return 0;
    }
    let from = u32::MAX << (a & 31);
    let end = (a & 31) + (b & 31);
    if end >= 32 || CLAMP && b >= 32 {
        from
    } else if b & 31 == 0 {
        0
    } else {
        from & !(u32::MAX << end)
    }
}

#[inline(always)]
fn extend<const CLAMP: bool, const SIGNED: bool>(a: u32, b: u32) -> u32 {
    let n = b & 31;
    if CLAMP && b >= 32 {
        return a;
    }
    if n == 0 {
        return 0;
    }
    let unused = 32 - n;
    if SIGNED { ((a << unused) as i32 >> unused) as u32 } else { a << unused >> unused }
}

fn field(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    let clamp = || "needs .clamp or .wrap".to_string();
    const MODES: [(&str, bool); 2] = [("clamp", true), ("wrap", false)];
    match (decoder.name(), ty) {
        ("bfe", _) => {
            let run: Run = match ty {
                Type::U32 => bfe::<32, false>,
                Type::S32 => bfe::<32, true>,
                Type::U64 => bfe::<64, false>,
                Type::S64 => bfe::<64, true>,
                _ => return Err(decoder.no_type(ty, ".u32 .u64 .s32 .s64")),
            };
            decoder.simple(run, ty.bits(), &[ty, Type::U32, Type::U32])
        }
        ("bfi", _) => {
            let run: Run = match ty {
                Type::B32 => bfi::<32>,
                Type::B64 => bfi::<64>,
                _ => return Err(decoder.no_type(ty, ".b32 .b64")),
            };
            decoder.simple(run, ty.bits(), &[ty, ty, Type::U32, Type::U32])
        }
        ("fns", Type::B32) => {
            let run = ternary!(|mask: u32, base: u32, offset: i32| -> u32 { nth_set(mask, base, offset) });
            decoder.simple(run, 32, &[ty, Type::B32, Type::S32])
        }
        ("bmsk", Type::B32) => {
            let run = match decoder.choice(&MODES).ok_or_else(clamp)? {
                true => binary!(|a: u32, b: u32| -> u32 { bit_mask::<true>(a, b) }),
                false => binary!(|a: u32, b: u32| -> u32 { bit_mask::<false>(a, b) }),
            };
            decoder.simple(run, 32, &[ty, Type::U32])
        }
        ("szext", Type::U32 | Type::S32) => {
            let run = match (decoder.choice(&MODES).ok_or_else(clamp)?, ty.is_signed()) {
                (true, true) => binary!(|a: u32, b: u32| -> u32 { extend::<true, true>(a, b) }),
                (true, false) => binary!(|a: u32, b: u32| -> u32 { extend::<true, false>(a, b) }),
                (false, true) => binary!(|a: u32, b: u32| -> u32 { extend::<false, true>(a, b) }),
                (false, false) => binary!(|a: u32, b: u32| -> u32 { extend::<false, false>(a, b) }),
            };
            decoder.simple(run, 32, &[ty, Type::U32])
        }
        ("szext", _) => Err(decoder.no_type(ty, ".u32 .s32")),
        _ => Err(decoder.no_type(ty, ".b32")),
    }
}

/// Selects four of the eight bytes of `[b, a]`, one per control digit; the digit's top bit replicates the byte's sign
/// instead.
#[inline(always)]
fn pick(a: u32, b: u32, control: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut out = 0;
    for i in 0..4 {
        let digit = control >> (4 * i) & 0xf;
        let byte = (bytes >> (8 * (digit & 7))) as u8;
        let byte = if digit & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte };
        out |= u32::from(byte) << (8 * i);
    }
    out
}

fn prmt(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    if let Some(control) = uniform(op.sources[2], constants) {
        return lanes2(op, registers, constants, mask, |a, b| u64::from(pick(a as u32, b as u32, control as u32)));
    }
    lanes3(op, registers, constants, mask, |a, b, c| u64::from(pick(a as u32, b as u32, c as u32)));
}

/// Control words of the special modes, by the low two bits of the operand.
const FORWARD_EXTRACT: [u32; 4] = [0x3210, 0x4321, 0x5432, 0x6543];
const BACKWARD_EXTRACT: [u32; 4] = [0x5670, 0x6701, 0x7012, 0x0123];
const REPLICATE_8: [u32; 4] = [0x0000, 0x1111, 0x2222, 0x3333];
const EDGE_LEFT: [u32; 4] = [0x3210, 0x3211, 0x3222, 0x3333];
const EDGE_RIGHT: [u32; 4] = [0x0000, 0x1110, 0x2210, 0x3210];
const REPLICATE_16: [u32; 4] = [0x1010, 0x3232, 0x1010, 0x3232];

fn permute(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    if ty != Type::B32 {
        return Err(decoder.no_type(ty, ".b32"));
    }
    macro_rules! mode {
        ($table:ident) => {
            ternary!(|a: u32, b: u32, c: u32| -> u32 { pick(a, b, $table[(c & 3) as usize]) })
        };
    }
    let special: [(&str, Run); 6] = [
        ("f4e", mode!(FORWARD_EXTRACT)),
        ("b4e", mode!(BACKWARD_EXTRACT)),
        ("rc8", mode!(REPLICATE_8)),
        ("ecl", mode!(EDGE_LEFT)),
        ("ecr", mode!(EDGE_RIGHT)),
        ("rc16", mode!(REPLICATE_16)),
    ];
    let run = decoder.choice(&special).unwrap_or(prmt);
    decoder.simple(run, 32, &[ty, ty, Type::B32])
}
