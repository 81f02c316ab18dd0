//! `cvt`: between all integer and floating-point types.
//!
//!   cvt.rzi.s32.f64   2^40 → 2147483647 (clamped)   -1.9 → -1   NaN → 0x80000000
//!   cvt.sat.u8.s32    -5 → 0   300 → 255            cvt.u8.s32   300 → 44
//!   cvt.rn.f32.s64    nearest                       cvt.rmi.f32.f32   -0.5 → -1.0
//!
//! Registers  may be wider than their type: the source is read at its type's width, and the result is sign- or
//!            zero-extended, as its type requires, to the width of the destination.
//! Rounding   .rni .rzi .rmi .rpi are required from float to integer; .rn .rz .rm .rp from integer to float and where a
//!            float loses precision or range. Elsewhere they are errors, except .r?i within one float type.
//! NaN        to an integer: 0; the integer with only its top bit set if the source is .f64 or the result has 64 bits.
//!            (Manuals up to 8.2 specify 0 for all; later manuals specify this behavior of devices.) To a float:
//!            0x7fff, 0x7fffffff; conversion to .f64 keeps the payload.
//! Saturation float to integer always clamps. .sat between integers clamps, and is an error where it has no effect.
//!            .sat to a float clamps into [+0.0, 1.0], NaN becomes +0.0. .relu clamps at zero, .satfinite at the
//!            largest number.

use super::decode::{Decoder, op};
use super::exact::{self, BF16, F16, F32, F64, Format, Number, ROUNDINGS, Rounding};
use super::float::{put32, take32};
use super::lanes::{Word, by_type, lanes1, lanes2};
use super::{AluOp, Row, Run, Source};
use crate::ast::Type;

/// An integer type of `cvt`.
trait Integer: Word {
    const BITS: u32;
    const MIN: i128;
    const MAX: i128;
    fn widen(self) -> i128;
    fn wrap(value: i128) -> Self;
    /// Sign- or zero-extended to 64 bits.
    fn extend(self) -> u64;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    /// Truncated and clamped; 0 for NaN.
    fn from_f64(value: f64) -> Self;
    fn top_bit() -> Self;
}

macro_rules! integers {
    ($($T:ident),*) => {$(
        impl Integer for $T {
            const BITS: u32 = $T::BITS;
            const MIN: i128 = $T::MIN as i128;
            const MAX: i128 = $T::MAX as i128;
            #[inline(always)]
            fn widen(self) -> i128 { self as i128 }
            #[inline(always)]
            fn wrap(value: i128) -> Self { value as $T }
            #[inline(always)]
            fn extend(self) -> u64 { self as i64 as u64 }
            #[inline(always)]
            fn to_f32(self) -> f32 { self as f32 }
            #[inline(always)]
            fn to_f64(self) -> f64 { self as f64 }
            #[inline(always)]
            fn from_f64(value: f64) -> Self { value as $T }
            #[inline(always)]
            fn top_bit() -> Self { 1 << ($T::BITS - 1) }
        }
    )*};
}
integers!(u8, u16, u32, u64, i8, i16, i32, i64);

macro_rules! by_any_int {
    ($ty:expr, $T:ident => $body:expr) => {
        by_type!($ty, $T in [U8 u8, U16 u16, U32 u32, U64 u64, S8 i8, S16 i16, S32 i32, S64 i64] => $body)
    };
}

/// `op.detail` is the width of the destination register.
fn between_integers<A: Integer, B: Integer, const SAT: bool>(
    op: &AluOp,
    registers: &mut [Row],
    constants: &[Row],
    mask: u32,
) {
    let keep = u64::MAX >> (64 - op.detail);
    lanes1(op, registers, constants, mask, |a| {
        let wide = A::take(a).widen();
        let wide = if SAT { wide.clamp(B::MIN, B::MAX) } else { wide };
        B::wrap(wide).extend() & keep
    });
}

const FROM_F32: u8 = 0;
const FROM_F32_FTZ: u8 = 1;
const FROM_F64: u8 = 2;
const FROM_F16: u8 = 3;
const FROM_BF16: u8 = 4;

const NEAREST: u8 = Rounding::Nearest as u8;
const DOWN: u8 = Rounding::Down as u8;
const UP: u8 = Rounding::Up as u8;
const ZERO: u8 = Rounding::Zero as u8;

/// Rounds `value` to an integer.
#[inline(always)]
fn integral<const ROUNDING: u8>(value: f64) -> f64 {
    match ROUNDING {
        NEAREST => value.round_ties_even(),
        DOWN => value.floor(),
        UP => value.ceil(),
        _ => value.trunc(),
    }
}

fn to_integer<B: Integer, const FROM: u8, const ROUNDING: u8>(
    op: &AluOp,
    registers: &mut [Row],
    constants: &[Row],
    mask: u32,
) {
    let keep = u64::MAX >> (64 - op.detail);
    lanes1(op, registers, constants, mask, |a| {
        // every source is exactly representable in .f64
        let value = match FROM {
            FROM_F32 => f64::from(f32::from_bits(a as u32)),
            FROM_F32_FTZ => f64::from(take32::<true>(a)),
            FROM_F64 => f64::from_bits(a),
            FROM_F16 => f64::from(f16_to_f32(a as u16)),
            _ => f64::from(bf16_to_f32(a as u16)),
        };
        let value_out = if ROUNDING == ZERO { B::from_f64(value) } else { B::from_f64(integral::<ROUNDING>(value)) };
        let nan = if FROM == FROM_F64 || B::BITS == 64 { B::top_bit() } else { B::wrap(0) };
        (if value.is_nan() { nan } else { value_out }).extend() & keep
    });
}

fn to_f32<A: Integer>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| u64::from(A::take(a).to_f32().to_bits()));
}

fn to_f64<A: Integer>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| A::take(a).to_f64().to_bits());
}

#[inline(always)]
fn f32_to_f64(value: f32) -> u64 {
    if value.is_nan() {
        let bits = u64::from(value.to_bits());
        return (bits >> 31) << 63 | 0x7ff8_0000_0000_0000 | (bits & 0x007f_ffff) << 29;
    }
    f64::from(value).to_bits()
}

fn widen_f32<const FTZ: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| f32_to_f64(take32::<FTZ>(a)));
}

fn narrow_f64<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| {
        let value = f64::from_bits(a);
        if value.is_nan() && !SAT { narrow_nan(a) } else { put32::<FTZ, SAT>(value as f32) }
    });
}

/// Converts an .f64 NaN to .f32: quiet, with its sign and the upper bits of its payload.
#[inline(always)]
fn narrow_nan(bits: u64) -> u64 {
    (bits >> 63) << 31 | 0x7fc0_0000 | bits >> 29 & 0x003f_ffff
}

fn within_f32<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| put32::<FTZ, SAT>(take32::<FTZ>(a)));
}

/// Rounds an .f32 to an integer; every such integer is an .f32.
fn integral_f32<const ROUNDING: u8, const FTZ: bool, const SAT: bool>(
    op: &AluOp,
    registers: &mut [Row],
    constants: &[Row],
    mask: u32,
) {
    lanes1(op, registers, constants, mask, |a| {
        put32::<FTZ, SAT>(integral::<ROUNDING>(f64::from(take32::<FTZ>(a))) as f32)
    });
}

fn integral_f64<const ROUNDING: u8>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| {
        let value = f64::from_bits(a);
        if value.is_nan() { a | 1 << 51 } else { integral::<ROUNDING>(value).to_bits() }
    });
}

/// Exact, because .f32 represents every .f16. NaN stays NaN.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    f32::from_bits(exact::pack(exact::unpack(u64::from(bits), F16), F32, Rounding::Zero) as u32)
}

#[inline(always)]
pub(super) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Parameters of the general conversion, packed into `op.detail`.
#[derive(Clone, Copy)]
struct Plan {
    from: Type,
    to: Type,
    rounding: Rounding,
    /// Round to an integer first.
    integral: bool,
    ftz: bool,
    sat: bool,
    relu: bool,
    finite: bool,
}

impl Plan {
    fn encode(self) -> u32 {
        let place = |ty: Type| Type::ALL.iter().position(|known| *known == ty).unwrap_or(0) as u32;
        place(self.from)
            | place(self.to) << 5
            | (self.rounding as u32) << 10
            | u32::from(self.integral) << 12
            | u32::from(self.ftz) << 13
            | u32::from(self.sat) << 14
            | u32::from(self.relu) << 15
            | u32::from(self.finite) << 16
    }

    fn of(detail: u32) -> Plan {
        let flag = |bit: u32| detail >> bit & 1 != 0;
        Plan {
            from: Type::ALL[(detail & 31) as usize],
            to: Type::ALL[(detail >> 5 & 31) as usize],
            rounding: Rounding::from_index(detail >> 10),
            integral: flag(12),
            ftz: flag(13),
            sat: flag(14),
            relu: flag(15),
            finite: flag(16),
        }
    }

    /// Converts to a float through an exact number.
    fn convert(self, a: u64) -> u64 {
        let to = format_of(self.to).unwrap_or(F32);
        let mut number = match format_of(self.from) {
            Some(from) => {
                let a = if self.ftz && self.from == Type::F32 { u64::from(super::float::flush(a as u32)) } else { a };
                match exact::unpack(a, from) {
                    Number::Nan if self.to == Type::F64 && !self.sat => {
                        let wide = if from == F64 { a | 1 << 51 } else { f32_to_f64(widened(a, from)) };
                        return wide;
                    }
                    Number::Nan if self.from == Type::F64 && self.to == Type::F32 && !self.sat => return narrow_nan(a),
                    number => number,
                }
            }
            None => by_any_int!(self.from, T => {
                let value = T::take(a).widen();
                Number::Finite(exact::integer(value < 0, value.unsigned_abs() as u64))
            })
            .unwrap_or(Number::Nan),
        };
        if self.integral {
            number = to_integral(number, self.rounding);
        }
        let mut out = exact::pack(number, to, self.rounding);
        if self.ftz && self.to == Type::F32 {
            out = u64::from(super::float::flush(out as u32));
        }
        if self.finite && out & !to.sign() == to.infinity() {
            out -= 1;
        }
        if self.relu && out & to.sign() != 0 && !to.is_nan(out) {
            out = 0;
        }
        if self.sat {
            out = saturated(out, to);
        }
        out
    }
}

/// A 16-bit float as .f32; NaN stays NaN.
fn widened(a: u64, from: Format) -> f32 {
    match from {
        F16 => {
            let bits = a as u32 & 0xffff;
            if F16.is_nan(u64::from(bits)) {
                f32::from_bits((bits & 0x8000) << 16 | 0x7fc0_0000 | (bits & 0x3ff) << 13)
            } else {
                f16_to_f32(bits as u16)
            }
        }
        BF16 => bf16_to_f32(a as u16),
        _ => f32::from_bits(a as u32),
    }
}

/// Clamps to [+0.0, 1.0]; NaN becomes +0.0.
fn saturated(bits: u64, format: Format) -> u64 {
    let one = ((1u64 << (format.exponent - 1)) - 1) << format.fraction;
    if bits & format.sign() != 0 || format.is_nan(bits) { 0 } else { bits.min(one) }
}

/// Rounds an exact number to an integer.
fn to_integral(number: Number, rounding: Rounding) -> Number {
    let Number::Finite(x) = number else { return number };
    if x.exponent >= 0 || x.significand == 0 {
        return number;
    }
    let shift = x.exponent.unsigned_abs();
    let (kept, half, below) = if shift > 127 {
        (0, false, true)
    } else {
        (x.significand >> shift, x.significand >> (shift - 1) & 1 != 0, x.significand & ((1 << (shift - 1)) - 1) != 0)
    };
    let away = match rounding {
        Rounding::Nearest => half && (below || kept & 1 != 0),
        Rounding::Zero => false,
        Rounding::Down => x.negative && (half || below),
        Rounding::Up => !x.negative && (half || below),
    };
    Number::Finite(exact::Exact { significand: kept + u128::from(away), exponent: 0, ..x })
}

fn generally(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let plan = Plan::of(op.detail);
    lanes1(op, registers, constants, mask, |a| plan.convert(a));
}

/// Packs two floats into one word, the first into the upper half.
fn into_pair(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let plan = Plan::of(op.detail);
    lanes2(op, registers, constants, mask, |a, b| plan.convert(a) << 16 | plan.convert(b));
}

fn format_of(ty: Type) -> Option<Format> {
    match ty {
        Type::F16 => Some(F16),
        Type::BF16 => Some(BF16),
        Type::F32 => Some(F32),
        Type::F64 => Some(F64),
        _ => None,
    }
}

const INTEGRAL: [(&str, Rounding); 4] =
    [("rni", Rounding::Nearest), ("rzi", Rounding::Zero), ("rmi", Rounding::Down), ("rpi", Rounding::Up)];

const INTEGERS: &str = ".u8 .u16 .u32 .u64 .s8 .s16 .s32 .s64";

pub(super) fn decode(decoder: &mut Decoder) -> Result<AluOp, String> {
    let (to, from) = decoder.two_types()?;
    if let Type::F16x2 | Type::BF16x2 = to {
        return pair(decoder, to, from);
    }
    for ty in [to, from] {
        if format_of(ty).is_none() && by_any_int!(ty, T => T::BITS).is_none() {
            return Err(decoder.no_type(ty, &format!("{INTEGERS} .f16 .bf16 .f32 .f64")));
        }
    }
    let mut plan = Plan {
        from,
        to,
        rounding: Rounding::Nearest,
        integral: false,
        ftz: (to == Type::F32 || from == Type::F32) && decoder.flag("ftz"),
        sat: decoder.flag("sat"),
        relu: false,
        finite: false,
    };
    let integral = decoder.choice(&INTEGRAL);
    let rounding = decoder.choice(&ROUNDINGS);
    let no_rounding = |why: &str| Err(format!("cannot have a rounding: {why}"));
    match (format_of(to), format_of(from)) {
        (None, None) => {
            if integral.is_some() || rounding.is_some() {
                return no_rounding("between integers nothing is rounded");
            }
            integers(decoder, to, from, plan.sat)
        }
        (None, Some(_)) => {
            let (Some(rounding), None) = (integral, rounding) else {
                return Err("needs .rni, .rzi, .rmi or .rpi from float to integer".into());
            };
            let run = to_integer_run(from, to, rounding, plan.ftz);
            finish(decoder, run, to, from, None)
        }
        (Some(_), None) => {
            let (None, Some(rounding)) = (integral, rounding) else {
                return Err("needs .rn, .rz, .rm or .rp from integer to float".into());
            };
            plan.rounding = rounding;
            let run = match (to, rounding, plan.sat) {
                (Type::F32, Rounding::Nearest, false) => by_any_int!(from, T => to_f32::<T> as Run),
                (Type::F64, Rounding::Nearest, false) => by_any_int!(from, T => to_f64::<T> as Run),
                _ => None,
            };
            finish(decoder, run.unwrap_or(generally), to, from, Some(plan))
        }
        (Some(target), Some(source)) => {
            let same = target == source;
            let loses = target.fraction < source.fraction || target.exponent < source.exponent;
            plan.integral = integral.is_some();
            plan.rounding = match (integral, rounding) {
                (Some(rounding), None) if same => rounding,
                (None, Some(rounding)) if loses => rounding,
                (None, None) if !loses => Rounding::Nearest,
                (Some(_), _) => return no_rounding("to an integer only within one float type"),
                (None, Some(_)) => return no_rounding("this conversion is exact"),
                (None, None) => return Err("needs .rn, .rz, .rm or .rp, because precision is lost".into()),
            };
            if loses && from == Type::F32 {
                plan.relu = decoder.flag("relu");
                plan.finite = decoder.flag("satfinite");
            }
            let run = floats(&plan);
            finish(decoder, run, to, from, Some(plan))
        }
    }
}

fn integers(decoder: &mut Decoder, to: Type, from: Type, sat: bool) -> Result<AluOp, String> {
    let range = |ty| by_any_int!(ty, T => (<T as Integer>::MIN, <T as Integer>::MAX)).unwrap_or((0, 0));
    let ((low, high), (from_low, from_high)) = (range(to), range(from));
    if sat && low <= from_low && from_high <= high {
        return Err(format!("cannot have .sat: .{} holds every .{}", to.name(), from.name()));
    }
    let run = by_any_int!(from, A => by_any_int!(to, B => {
        if sat { between_integers::<A, B, true> as Run } else { between_integers::<A, B, false> as Run }
    }));
    let run = run.flatten().ok_or_else(|| decoder.no_type(to, INTEGERS))?;
    finish(decoder, run, to, from, None)
}

fn to_integer_run(from: Type, to: Type, rounding: Rounding, ftz: bool) -> Run {
    macro_rules! by_rounding {
        ($T:ident, $from:ident) => {
            match rounding {
                Rounding::Nearest => to_integer::<$T, $from, NEAREST> as Run,
                Rounding::Zero => to_integer::<$T, $from, ZERO> as Run,
                Rounding::Down => to_integer::<$T, $from, DOWN> as Run,
                Rounding::Up => to_integer::<$T, $from, UP> as Run,
            }
        };
    }
    let run = by_any_int!(to, T => match (from, ftz) {
        (Type::F32, false) => by_rounding!(T, FROM_F32),
        (Type::F32, true) => by_rounding!(T, FROM_F32_FTZ),
        (Type::F64, _) => by_rounding!(T, FROM_F64),
        (Type::F16, _) => by_rounding!(T, FROM_F16),
        _ => by_rounding!(T, FROM_BF16),
    });
    run.expect("the caller knows that `to` is an integer type")
}

/// Fast paths between floats; other conversions use exact numbers.
fn floats(plan: &Plan) -> Run {
    use super::float::by_switches;
    if plan.relu || plan.finite {
        return generally;
    }
    macro_rules! integral_run {
        ($rounding:ident) => {
            match (plan.ftz, plan.sat) {
                (false, false) => integral_f32::<$rounding, false, false> as Run,
                (false, true) => integral_f32::<$rounding, false, true>,
                (true, false) => integral_f32::<$rounding, true, false>,
                (true, true) => integral_f32::<$rounding, true, true>,
            }
        };
    }
    match (plan.to, plan.from, plan.integral, plan.rounding) {
        (Type::F32, Type::F32, true, Rounding::Nearest) => integral_run!(NEAREST),
        (Type::F32, Type::F32, true, Rounding::Zero) => integral_run!(ZERO),
        (Type::F32, Type::F32, true, Rounding::Down) => integral_run!(DOWN),
        (Type::F32, Type::F32, true, Rounding::Up) => integral_run!(UP),
        (Type::F64, Type::F64, true, Rounding::Nearest) if !plan.sat => integral_f64::<NEAREST>,
        (Type::F64, Type::F64, true, Rounding::Zero) if !plan.sat => integral_f64::<ZERO>,
        (Type::F64, Type::F64, true, Rounding::Down) if !plan.sat => integral_f64::<DOWN>,
        (Type::F64, Type::F64, true, Rounding::Up) if !plan.sat => integral_f64::<UP>,
        (Type::F32, Type::F32, false, _) => by_switches!(within_f32, plan.ftz, plan.sat),
        (Type::F32, Type::F64, _, Rounding::Nearest) => by_switches!(narrow_f64, plan.ftz, plan.sat),
        (Type::F64, Type::F32, ..) if !plan.sat => {
            if plan.ftz {
                widen_f32::<true>
            } else {
                widen_f32::<false>
            }
        }
        _ => generally,
    }
}

/// Decodes the operands of `cvt`, whose registers may be wider than their types.
fn finish(decoder: &mut Decoder, run: Run, to: Type, from: Type, plan: Option<Plan>) -> Result<AluOp, String> {
    decoder.end()?;
    decoder.operands(2)?;
    let instruction = decoder.instruction;
    let destination = &instruction.operands[0];
    let (row, bits) = if *destination == crate::ast::Operand::Sink {
        (decoder.names.sink(), to.bits())
    } else {
        let register = decoder.register(destination)?;
        wide_enough(register.bits, to)?;
        (register.row, register.bits)
    };
    let source = match &instruction.operands[1] {
        operand @ crate::ast::Operand::Name(name) if name != "WARP_SZ" => {
            let register = decoder.register(operand)?;
            wide_enough(register.bits, from)?;
            Source::register(register.row)
        }
        operand => decoder.source_of(operand, from)?,
    };
    Ok(op(run, &[row], &[source], plan.map_or(bits, Plan::encode)))
}

fn wide_enough(bits: u32, ty: Type) -> Result<(), String> {
    if bits >= ty.bits() && bits <= 64 {
        return Ok(());
    }
    Err(format!("uses a register of {bits} bits for a .{}", ty.name()))
}

fn pair(decoder: &mut Decoder, to: Type, from: Type) -> Result<AluOp, String> {
    if from != Type::F32 {
        return Err(decoder.no_type(from, "a source of .f32"));
    }
    let Some(rounding @ (Rounding::Nearest | Rounding::Zero)) = decoder.choice(&ROUNDINGS) else {
        return Err("needs .rn or .rz".into());
    };
    let plan = Plan {
        from,
        to: if to == Type::F16x2 { Type::F16 } else { Type::BF16 },
        rounding,
        integral: false,
        ftz: false,
        sat: false,
        relu: decoder.flag("relu"),
        finite: decoder.flag("satfinite"),
    };
    let mut decoded = decoder.simple(into_pair, 32, &[from, from])?;
    decoded.detail = plan.encode();
    Ok(decoded)
}
