//! Floating-point arithmetic of .f32 and .f64 with IEEE 754 rounding in all four directions.
//!
//!   add sub mul · fma mad · div · sqrt rcp (with .rn .rz .rm .rp) · abs neg min max · copysign testp
//!
//! Rounding   .rn uses the host's arithmetic; .rz .rm .rp round an exact result (`exact`).
//! Subnormal  kept. With .ftz (.f32 only), subnormal inputs and results become zero with their sign.
//! .sat       clamps into [+0.0, 1.0]; NaN becomes +0.0.
//! NaN        .f32 results are 0x7fffffff (the manual leaves them open; old versions specify this one). .f64 keeps
//!            payloads, as the manual specifies: the payload of one NaN operand (see [`name_nans`]), made quiet;
//!            without a NaN operand 0xfff8000000000000. abs and neg make a NaN quiet and keep its sign; copysign
//!            changes only the sign bit.
//! min max    -0.0 is less than +0.0. A number takes precedence over a NaN, except with .NaN. .xorsign.abs compares
//!            magnitudes and combines both signs.

use super::decode::Decoder;
use super::exact::{self, F32, F64, Format, Number, ROUNDINGS, Rounding};
use super::lanes::{lanes1, lanes2, lanes3, store, unary};
use super::{AluOp, Row, Run};
use crate::ast::Type;

const SIGN: u32 = 1 << 31;
const NAN32: u32 = F32.nan as u32;

/// Flushes a subnormal number to the zero of its sign.
#[inline(always)]
pub(super) fn flush(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 { bits & SIGN } else { bits }
}

/// A lane as an .f32 operand.
#[inline(always)]
pub(super) fn take32<const FTZ: bool>(lane: u64) -> f32 {
    f32::from_bits(if FTZ { flush(lane as u32) } else { lane as u32 })
}

/// An .f32 result as a lane.
#[inline(always)]
pub(super) fn put32<const FTZ: bool, const SAT: bool>(value: f32) -> u64 {
    if SAT {
        // A comparison with NaN is false, so NaN and all values up to zero become +0.0.
        let value = if value > 0.0 { value } else { 0.0 };
        let value = if value < 1.0 { value } else { 1.0 };
        return u64::from(if FTZ { flush(value.to_bits()) } else { value.to_bits() });
    }
    let bits = value.to_bits();
    let bits = if FTZ { flush(bits) } else { bits };
    u64::from(if value.is_nan() { NAN32 } else { bits })
}

fn add32<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes2(op, registers, constants, mask, |a, b| put32::<FTZ, SAT>(take32::<FTZ>(a) + take32::<FTZ>(b)));
}

fn sub32<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes2(op, registers, constants, mask, |a, b| put32::<FTZ, SAT>(take32::<FTZ>(a) - take32::<FTZ>(b)));
}

fn mul32<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes2(op, registers, constants, mask, |a, b| put32::<FTZ, SAT>(take32::<FTZ>(a) * take32::<FTZ>(b)));
}

/// `a · b + c` rounded once, without the host's fused instruction, which a portable build cannot assume.
///
/// The product is exact in .f64. The sum is rounded to odd there, which makes the second rounding harmless because .f64
/// has more than two extra bits (Boldo and Melquiond 2008).
#[inline(always)]
fn fused32(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let rest = sum - product;
    let error = (product - (sum - rest)) + (c - rest);
    let bits = sum.to_bits();
    let step = if (error > 0.0) == (sum > 0.0) { 1 } else { u64::MAX };
    // false for NaN, the error of an infinite sum
    let inexact = error.abs() > 0.0;
    let odd = if inexact && bits & 1 == 0 { bits.wrapping_add(step) } else { bits };
    f64::from_bits(odd) as f32
}

fn fma32<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes3(op, registers, constants, mask, |a, b, c| {
        put32::<FTZ, SAT>(fused32(take32::<FTZ>(a), take32::<FTZ>(b), take32::<FTZ>(c)))
    });
}

fn div32<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes2(op, registers, constants, mask, |a, b| put32::<FTZ, SAT>(take32::<FTZ>(a) / take32::<FTZ>(b)));
}

/// `a · (1/b)`: the reciprocal of a large `b` underflows to zero, as the manual describes.
fn div32_approx<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    const LIMIT: f32 = f32::from_bits(253 << 23); // 2^126
    lanes2(op, registers, constants, mask, |a, b| {
        let (a, b) = (take32::<FTZ>(a), take32::<FTZ>(b));
        let lost = b.abs() > LIMIT && b.is_finite();
        put32::<FTZ, SAT>(if lost { a * 0.0f32.copysign(b) } else { a / b })
    });
}

pub(super) fn sqrt32<const FTZ: bool, const SAT: bool>(
    op: &AluOp,
    registers: &mut [Row],
    constants: &[Row],
    mask: u32,
) {
    lanes1(op, registers, constants, mask, |a| put32::<FTZ, SAT>(take32::<FTZ>(a).sqrt()));
}

pub(super) fn rcp32<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| put32::<FTZ, SAT>(1.0 / take32::<FTZ>(a)));
}

/// Selects one of four instances by the two switches.
macro_rules! by_switches {
    ($function:ident, $ftz:expr, $sat:expr) => {
        match ($ftz, $sat) {
            (false, false) => $function::<false, false> as Run,
            (false, true) => $function::<false, true>,
            (true, false) => $function::<true, false>,
            (true, true) => $function::<true, true>,
        }
    };
}
pub(super) use by_switches;

const QUIET: u64 = 1 << 51;

/// The NaN result of an operation: the first NaN among these operands, made quiet.
#[inline(always)]
fn nan64(operands: &[f64]) -> u64 {
    operands.iter().find(|operand| operand.is_nan()).map_or(F64.nan, |operand| operand.to_bits() | QUIET)
}

/// Stores results after setting the payloads of NaNs from the operands.
#[inline(always)]
fn store64(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32, out: &mut Row) {
    if out.iter().fold(false, |any, &bits| any | f64::from_bits(bits).is_nan()) {
        name_nans(op, registers, constants, out);
    }
    store(&mut registers[op.destinations[0] as usize], out, mask);
}

/// The manual does not specify which of several NaN operands is returned. An H200 prefers the second to the first, and
/// for `a · b + c` b, then c, then a; its division is software and returns the first. An assembler may exchange
/// operands.
#[cold]
fn name_nans(op: &AluOp, registers: &[Row], constants: &[Row], out: &mut Row) {
    let kind = KINDS[(op.detail & 0xf) as usize];
    for (lane, out) in out.iter_mut().enumerate().filter(|(_, out)| f64::from_bits(**out).is_nan()) {
        let [a, b, c, ..] = op.sources.map(|source| f64::from_bits(source.row(registers, constants)[lane]));
        *out = match kind {
            Kind::SquareRoot | Kind::Reciprocal => nan64(&[a]),
            Kind::Divide => nan64(&[a, b]),
            Kind::Add | Kind::Subtract | Kind::Multiply => nan64(&[b, a]),
            Kind::MultiplyAdd => nan64(&[b, c, a]),
        };
    }
}

#[inline(always)]
fn doubles1(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32, f: impl Fn(f64) -> f64) {
    let a = op.sources[0].row(registers, constants);
    let mut out = a.map(|a| f(f64::from_bits(a)).to_bits());
    store64(op, registers, constants, mask, &mut out);
}

#[inline(always)]
fn doubles2(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32, f: impl Fn(f64, f64) -> f64) {
    let [a, b, ..] = op.sources.map(|source| source.row(registers, constants));
    let mut out = [0; 32];
    for lane in 0..32 {
        out[lane] = f(f64::from_bits(a[lane]), f64::from_bits(b[lane])).to_bits();
    }
    store64(op, registers, constants, mask, &mut out);
}

fn add64(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    doubles2(op, registers, constants, mask, |a, b| a + b);
}

fn sub64(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    doubles2(op, registers, constants, mask, |a, b| a - b);
}

fn mul64(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    doubles2(op, registers, constants, mask, |a, b| a * b);
}

fn div64(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    doubles2(op, registers, constants, mask, |a, b| a / b);
}

fn fma64(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let [a, b, c, ..] = op.sources.map(|source| source.row(registers, constants));
    let mut out = [0; 32];
    for lane in 0..32 {
        out[lane] = f64::from_bits(a[lane]).mul_add(f64::from_bits(b[lane]), f64::from_bits(c[lane])).to_bits();
    }
    store64(op, registers, constants, mask, &mut out);
}

fn sqrt64(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    doubles1(op, registers, constants, mask, f64::sqrt);
}

fn rcp64(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    doubles1(op, registers, constants, mask, |a| 1.0 / a);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Add,
    Subtract,
    Multiply,
    MultiplyAdd,
    Divide,
    SquareRoot,
    Reciprocal,
}

const KINDS: [Kind; 7] =
    [Kind::Add, Kind::Subtract, Kind::Multiply, Kind::MultiplyAdd, Kind::Divide, Kind::SquareRoot, Kind::Reciprocal];

/// `op.detail` of the exact path: kind in bits 0…3, rounding in 4 and 5, .ftz in 6, .sat in 7.
fn detail(kind: Kind, rounding: Rounding, ftz: bool, sat: bool) -> u32 {
    kind as u32 | (rounding as u32) << 4 | u32::from(ftz) << 6 | u32::from(sat) << 7
}

/// Any operation with any rounding, through exact numbers. Slow, so only lanes of the mask are computed.
fn exactly<const WIDE: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let format = if WIDE { F64 } else { F32 };
    let kind = KINDS[(op.detail & 0xf) as usize];
    let rounding = Rounding::from_index(op.detail >> 4);
    let (ftz, sat) = (op.detail >> 6 & 1 != 0, op.detail >> 7 & 1 != 0);
    // operations with fewer than three operands repeat the first
    let [a, b, c, ..] = op.sources.map(|source| source.row(registers, constants));
    let mut out = [0; 32];
    for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
        let operands = [a[lane], b[lane], c[lane]].map(|bits| if ftz { u64::from(flush(bits as u32)) } else { bits });
        let value = calculate(kind, operands, format, rounding);
        let value = if ftz { u64::from(flush(value as u32)) } else { value };
        out[lane] = if sat { put32::<false, true>(f32::from_bits(value as u32)) } else { value };
    }
    if WIDE {
        store64(op, registers, constants, mask, &mut out);
    } else {
        store(&mut registers[op.destinations[0] as usize], &out, mask);
    }
}

fn calculate(kind: Kind, operands: [u64; 3], format: Format, rounding: Rounding) -> u64 {
    let [a, b, c] = operands.map(|bits| exact::unpack(bits, format));
    let number = match kind {
        Kind::Add => exact::add(a, b, rounding),
        Kind::Subtract => exact::add(a, negated(b), rounding),
        Kind::Multiply => exact::multiply(a, b),
        Kind::MultiplyAdd => exact::multiply_add(a, b, c, rounding),
        Kind::Divide => exact::divide(a, b),
        Kind::SquareRoot => exact::square_root(a),
        Kind::Reciprocal => exact::divide(Number::Finite(exact::integer(false, 1)), a),
    };
    exact::pack(number, format, rounding)
}

fn negated(number: Number) -> Number {
    match number {
        Number::Nan => number,
        Number::Infinite { negative } => Number::Infinite { negative: !negative },
        Number::Finite(exact) => Number::Finite(exact::Exact { negative: !exact.negative, ..exact }),
    }
}

pub(super) fn decode(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    if !matches!(ty, Type::F32 | Type::F64) {
        return Err(decoder.no_type(ty, ".f32 .f64 (arithmetic on halves is not interpreted)"));
    }
    match decoder.name() {
        "abs" | "neg" | "copysign" | "testp" => sign_and_class(decoder, ty),
        "min" | "max" => extremum(decoder, ty),
        _ => arithmetic(decoder, ty),
    }
}

fn arithmetic(decoder: &mut Decoder, ty: Type) -> Result<AluOp, String> {
    let kind = match decoder.name() {
        "add" => Kind::Add,
        "sub" => Kind::Subtract,
        "mul" => Kind::Multiply,
        "fma" | "mad" => Kind::MultiplyAdd,
        "div" => Kind::Divide,
        "sqrt" => Kind::SquareRoot,
        _ => Kind::Reciprocal,
    };
    let single = ty == Type::F32;
    let ftz = single && decoder.flag("ftz");
    let saturates = matches!(kind, Kind::Add | Kind::Subtract | Kind::Multiply | Kind::MultiplyAdd);
    let sat = single && saturates && decoder.flag("sat");
    let sources: &[Type] = match kind {
        Kind::MultiplyAdd => &[ty; 3],
        Kind::SquareRoot | Kind::Reciprocal => &[ty],
        _ => &[ty; 2],
    };
    if kind == Kind::Divide && single {
        // .full allows 2 ulp; the result here is correctly rounded
        if decoder.flag("full") {
            return decoder.simple(by_switches!(div32, ftz, false), 32, sources);
        }
        if decoder.flag("approx") {
            return decoder.simple(by_switches!(div32_approx, ftz, false), 32, sources);
        }
    }
    let rounding = match (decoder.choice(&ROUNDINGS), kind) {
        (Some(rounding), _) => rounding,
        (None, Kind::Add | Kind::Subtract | Kind::Multiply) => Rounding::Nearest,
        (None, _) => return Err("needs a rounding: .rn, .rz, .rm or .rp".into()),
    };
    let run = match (rounding, kind, single) {
        (Rounding::Nearest, Kind::Add, true) => by_switches!(add32, ftz, sat),
        (Rounding::Nearest, Kind::Subtract, true) => by_switches!(sub32, ftz, sat),
        (Rounding::Nearest, Kind::Multiply, true) => by_switches!(mul32, ftz, sat),
        (Rounding::Nearest, Kind::MultiplyAdd, true) => by_switches!(fma32, ftz, sat),
        (Rounding::Nearest, Kind::Divide, true) => by_switches!(div32, ftz, sat),
        (Rounding::Nearest, Kind::SquareRoot, true) => by_switches!(sqrt32, ftz, sat),
        (Rounding::Nearest, Kind::Reciprocal, true) => by_switches!(rcp32, ftz, sat),
        (Rounding::Nearest, Kind::Add, false) => add64,
        (Rounding::Nearest, Kind::Subtract, false) => sub64,
        (Rounding::Nearest, Kind::Multiply, false) => mul64,
        (Rounding::Nearest, Kind::MultiplyAdd, false) => fma64,
        (Rounding::Nearest, Kind::Divide, false) => div64,
        (Rounding::Nearest, Kind::SquareRoot, false) => sqrt64,
        (Rounding::Nearest, Kind::Reciprocal, false) => rcp64,
        (_, _, true) => exactly::<false>,
        (_, _, false) => exactly::<true>,
    };
    let mut decoded = decoder.simple(run, ty.bits(), sources)?;
    decoded.detail = detail(kind, rounding, ftz, sat);
    Ok(decoded)
}

fn sign_and_class(decoder: &mut Decoder, ty: Type) -> Result<AluOp, String> {
    const SIGN64: u64 = 1 << 63;
    let single = ty == Type::F32;
    match decoder.name() {
        "abs" => {
            let run = match (single, single && decoder.flag("ftz")) {
                (true, false) => unary!(|a: u32| -> u32 { number_or_nan32(a, a & !SIGN) }),
                (true, true) => unary!(|a: u32| -> u32 { number_or_nan32(a, flush(a) & !SIGN) }),
                (false, _) => unary!(|a: u64| -> u64 { number_or_nan64(a, a & !SIGN64) }),
            };
            decoder.simple(run, ty.bits(), &[ty])
        }
        "neg" => {
            let run = match (single, single && decoder.flag("ftz")) {
                (true, false) => unary!(|a: u32| -> u32 { number_or_nan32(a, a ^ SIGN) }),
                (true, true) => unary!(|a: u32| -> u32 { number_or_nan32(a, flush(a) ^ SIGN) }),
                (false, _) => unary!(|a: u64| -> u64 { number_or_nan64(a, a ^ SIGN64) }),
            };
            decoder.simple(run, ty.bits(), &[ty])
        }
        "copysign" => {
            let run: Run = if single { copysign::<{ SIGN as u64 }> } else { copysign::<SIGN64> };
            decoder.simple(run, ty.bits(), &[ty; 2])
        }
        _ => {
            let classes: [(&str, Run); 6] = if single { classes::<23, 8>() } else { classes::<52, 11>() };
            let Some(run) = decoder.choice(&classes) else {
                return Err("needs a property: .finite .infinite .number .notanumber .normal or .subnormal".into());
            };
            decoder.simple(run, 1, &[ty])
        }
    }
}

/// `result` if `a` is a number, else the NaN result of an operation on `a`.
#[inline(always)]
fn number_or_nan32(a: u32, result: u32) -> u32 {
    if f32::from_bits(a).is_nan() { NAN32 } else { result }
}

/// Like [`number_or_nan32`].
#[inline(always)]
fn number_or_nan64(a: u64, result: u64) -> u64 {
    let value = f64::from_bits(a);
    if value.is_nan() { nan64(&[value]) } else { result }
}

/// The second operand with the sign of the first.
fn copysign<const SIGN: u64>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes2(op, registers, constants, mask, |a, b| (a & SIGN) | (b & (SIGN - 1)));
}

fn classes<const FRACTION: u32, const EXPONENT: u32>() -> [(&'static str, Run); 6] {
    macro_rules! class {
        (|$a:ident, $infinity:ident| $body:expr) => {{
            fn run<const FRACTION: u32, const EXPONENT: u32>(
                op: &AluOp,
                registers: &mut [Row],
                constants: &[Row],
                mask: u32,
            ) {
                let $infinity = ((1u64 << EXPONENT) - 1) << FRACTION;
                let magnitude = (1u64 << (EXPONENT + FRACTION)) - 1;
                lanes1(op, registers, constants, mask, |a| {
                    let $a = a & magnitude;
                    u64::from($body)
                });
            }
            run::<FRACTION, EXPONENT> as Run
        }};
    }
    [
        ("finite", class!(|a, infinity| a < infinity)),
        ("infinite", class!(|a, infinity| a == infinity)),
        ("number", class!(|a, infinity| a <= infinity)),
        ("notanumber", class!(|a, infinity| a > infinity)),
        // zeros count as normal
        ("normal", class!(|a, infinity| a < infinity && (a & infinity != 0 || a == 0))),
        ("subnormal", class!(|a, infinity| a & infinity == 0 && a != 0)),
    ]
}

/// `op.detail`: .ftz in bit 0, .NaN in 1, .xorsign.abs in 2.
fn extremum32<const MAX: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let (ftz, nan_wins, magnitudes) = (op.detail & 1 != 0, op.detail & 2 != 0, op.detail & 4 != 0);
    lanes2(op, registers, constants, mask, |a, b| {
        let (mut a, mut b) = (a as u32, b as u32);
        if ftz {
            (a, b) = (flush(a), flush(b));
        }
        let mut sign = 0;
        if magnitudes {
            sign = (a ^ b) & SIGN;
            (a, b) = (a & !SIGN, b & !SIGN);
        }
        let (x, y) = (f32::from_bits(a), f32::from_bits(b));
        let out = match (x.is_nan(), y.is_nan()) {
            (true, true) => return u64::from(NAN32),
            (true, false) | (false, true) if nan_wins => return u64::from(NAN32),
            (true, false) => b,
            (false, true) => a,
            // The magnitude in two's complement orders floats, with -0.0 below +0.0.
            (false, false) => {
                let key = |bits: u32| (bits as i32) ^ ((bits as i32 >> 31) as u32 >> 1) as i32;
                if (key(a) > key(b)) == MAX { a } else { b }
            }
        };
        u64::from(out | sign)
    });
}

fn extremum64<const MAX: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes2(op, registers, constants, mask, |a, b| {
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        match (x.is_nan(), y.is_nan()) {
            (true, true) => nan64(&[y, x]),
            (true, false) => b,
            (false, true) => a,
            (false, false) => {
                let key = |bits: u64| (bits as i64) ^ ((bits as i64 >> 63) as u64 >> 1) as i64;
                if (key(a) > key(b)) == MAX { a } else { b }
            }
        }
    });
}

fn extremum(decoder: &mut Decoder, ty: Type) -> Result<AluOp, String> {
    let max = decoder.name() == "max";
    let single = ty == Type::F32;
    let mut switches = 0;
    if single {
        switches |= u32::from(decoder.flag("ftz"));
        switches |= u32::from(decoder.flag("NaN")) << 1;
        if decoder.flag("xorsign") {
            if !decoder.flag("abs") {
                return Err("needs .abs after .xorsign".into());
            }
            switches |= 4;
        }
    }
    let run: Run = match (single, max) {
        (true, true) => extremum32::<true>,
        (true, false) => extremum32::<false>,
        (false, true) => extremum64::<true>,
        (false, false) => extremum64::<false>,
    };
    let mut decoded = decoder.simple(run, ty.bits(), &[ty; 2])?;
    decoded.detail = switches;
    Ok(decoded)
}
