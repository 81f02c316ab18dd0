//! Exact float sums: every addend is added, digit by digit, to a number that is wide enough for all floats.
//!
//! ```text
//!   addend     ± m · 2^p units of 2^-1074        m below 2^53, p from 0 to 2045
//!   words      limb p/32: 32 bits of m · 2^(p mod 32); the rest in the next two limbs     each with the addend's sign
//!   result     Σ limb · 2^(32 · i), carried from the lowest limb on, rounded once to 53 bits, half to even
//! ```
//!
//! Order     none: integers are added. The result is the f64 nearest to the exact sum, independent of the order.
//! Room      a limb takes less than 2^32 from each row, so 64 bits hold 2^31 rows of one sign, and the carries.
//! Special   infinities and NaNs of either sign set flags beside the limbs; they decide as in IEEE 754 addition. The
//!           NaN of a sum is positive if all NaN addends are; it is negative if they have both signs, or if infinities
//!           make it. Payloads are lost.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Atomic, Compare, FunctionBuilder, Reg};

use super::accumulate::guarded;

/// Limbs of 32 bits, in words of 64.
const LIMBS: u32 = 66;

/// Maximum rows of a sum: each adds less than 2^32 of one sign to a limb of 63 bits.
pub(crate) const MAX_ROWS: u64 = 1 << 31;

/// Words of a sum: the limbs, then the flags.
pub(crate) const WORDS: u32 = LIMBS + 1;

const PLUS: u64 = 1;
const MINUS: u64 = 2;
const PLUS_NAN: u64 = 4;
const MINUS_NAN: u64 = 8;
const SIGN: u64 = 1 << 63;
const INFINITY: u64 = 0x7ff0_0000_0000_0000;
const QUIET_NAN: u64 = 0x7ff8_0000_0000_0000;

/// Adds `value` (F64) to the words at address `at` (U64), if `when` is true.
pub(crate) fn add(f: &mut FunctionBuilder, value: Reg, at: Reg, when: Option<Reg>) {
    let open = when.map(|when| f.open_if(when));
    let bits = f.reinterpret(Type::B64, value).view(Type::U64);
    let high = f.shr(bits, 52);
    let exponent = f.and(high, 0x7ffu64);
    let negative = f.setp(Compare::Ge, bits, SIGN);
    let fraction = f.and(bits, (1u64 << 52) - 1).view(Type::U64);
    let special = f.setp(Compare::Eq, exponent, 0x7ffu64);
    f.if_else(
        special,
        |f| {
            let nan = f.setp(Compare::Ne, fraction, 0u64);
            let plus = f.copy(Type::U64, PLUS);
            let infinity = f.select(negative, MINUS, plus);
            let plus = f.copy(Type::U64, PLUS_NAN);
            let not_a_number = f.select(negative, MINUS_NAN, plus);
            let flag = f.select(nan, not_a_number, infinity);
            f.reduce(Atomic::Or, Space::Global, Type::B64, at.at(LIMBS as i64 * 8), flag);
        },
        |f| {
            // A subnormal number has no hidden bit; its exponent is that of the smallest normal number.
            let normal = f.setp(Compare::Ne, exponent, 0u64);
            let with = f.or(fraction, 1u64 << 52).view(Type::U64);
            let mantissa = f.select(normal, with, fraction);
            let less = f.sub(exponent, 1u64);
            let place = f.select(normal, less, 0u64);
            let place = f.convert(Type::U32, place);
            let shift = f.and(place, 31u32);
            let limb = f.shr(place, 5);
            let low = f.shl(mantissa, shift);
            // Bits shifted out of 64 bits; a shift by 64 gives 0.
            let back = f.sub(64u32, shift);
            let above = f.shr(mantissa, back);
            let first = f.and(low, 0xffff_ffffu64).view(Type::U64);
            let second = f.shr(low, 32);
            let to = f.element(at, limb, 8);
            for (i, digit) in [first, second, above].into_iter().enumerate() {
                let less = f.sub(0u64, digit);
                let signed = f.select(negative, less, digit);
                let some = f.setp(Compare::Ne, digit, 0u64);
                guarded(f, Some(some), |f| {
                    f.reduce(Atomic::Add, Space::Global, Type::U64, to.at(i as i64 * 8), signed)
                });
            }
        },
    );
    if let Some(open) = open {
        f.close(open);
    }
}

/// The sum in the words at `at`, as an F64.
pub(crate) fn read(f: &mut FunctionBuilder, at: Reg) -> Reg {
    let end = f.add(at, LIMBS as u64 * 8);
    let negative = is_negative(f, at, end);
    let digits = digits(f, at, negative);
    let leading = leading(f, &digits);
    let result = rounded(f, &digits, leading, negative);
    with_specials(f, end, result)
}

/// Whether the sum of the limbs from `at` to `end` is negative.
fn is_negative(f: &mut FunctionBuilder, at: Reg, end: Reg) -> Reg {
    // The sign of the sum is that of the final carry.
    let carry = f.copy(Type::S64, 0i64);
    let here = f.copy(Type::U64, at);
    f.while_(
        |f| f.setp(Compare::Lt, here, end),
        |f| {
            let word = f.load(Space::Global, Type::U64, here).view(Type::S64);
            let sum = f.add(word, carry);
            let above = f.shr(sum, 32);
            f.assign(carry, above);
            let next = f.add(here, 8u64);
            f.assign(here, next);
        },
    );
    f.setp(Compare::Lt, carry, 0i64)
}

/// Digits of the magnitude of a sum.
struct Digits {
    /// Number of digits up to the highest that is not 0 (U32).
    top: Reg,
    /// That digit and the two below it, highest first (U64 each).
    best: Vec<Reg>,
    /// Not 0 if a lower digit is not 0 (U64).
    rest: Reg,
}

/// Finds the highest digits of the magnitude.
fn digits(f: &mut FunctionBuilder, at: Reg, negative: Reg) -> Digits {
    // From the lowest digit on: `digits` are the latest three, and `best` those at the highest that is not 0.
    let carry = f.copy(Type::S64, 0i64);
    let number = f.copy(Type::U32, 0u32);
    let digits: Vec<Reg> = (0..3).map(|_| f.copy(Type::U64, 0u64)).collect();
    let rest = f.copy(Type::U64, 0u64);
    let top = f.copy(Type::U32, 0u32);
    let best: Vec<Reg> = (0..3).map(|_| f.copy(Type::U64, 0u64)).collect();
    let best_rest = f.copy(Type::U64, 0u64);
    f.while_(
        // Two more digits take the final carry.
        |f| f.setp(Compare::Lt, number, LIMBS + 2),
        |f| {
            let inside = f.setp(Compare::Lt, number, LIMBS);
            let word = f.copy(Type::S64, 0i64);
            let address = f.element(at, number, 8);
            f.guarded(inside, true, |f| f.load_into("ld.global", Type::S64, word, address));
            let less = f.neg(word);
            let signed = f.select(negative, less, word);
            let sum = f.add(signed, carry);
            let above = f.shr(sum, 32);
            f.assign(carry, above);
            let digit = f.and(sum.view(Type::U64), 0xffff_ffffu64).view(Type::U64);
            let with = f.or(rest, digits[2]).view(Type::U64);
            f.assign(rest, with);
            f.assign(digits[2], digits[1]);
            f.assign(digits[1], digits[0]);
            f.assign(digits[0], digit);
            let next = f.add(number, 1u32);
            f.assign(number, next);
            let some = f.setp(Compare::Ne, digit, 0u64);
            f.guarded(some, true, |f| f.assign(top, number));
            for (&best, &digit) in best.iter().zip(&digits) {
                f.guarded(some, true, |f| f.assign(best, digit));
            }
            f.guarded(some, true, |f| f.assign(best_rest, rest));
        },
    );
    Digits { top, best, rest: best_rest }
}

/// The highest bits of a magnitude.
#[derive(Clone, Copy)]
struct Leading {
    /// 64 bits, the highest of which is set (U64).
    bits: Reg,
    /// Not 0 if a lower bit is set (U64).
    lost: Reg,
    /// Position of the highest bit, counted from 2^-1074 (U32).
    place: Reg,
}

/// Aligns the digits at their highest bit.
fn leading(f: &mut FunctionBuilder, digits: &Digits) -> Leading {
    let Digits { top, best, rest } = digits;
    let wide = f.shl(best[0], 32);
    let wide = f.or(wide, best[1]).view(Type::U64);
    let highest = f.convert(Type::U32, best[0]);
    let zeros = f.clz(highest).view(Type::U32);
    let shifted = f.shl(wide, zeros);
    let down = f.sub(32u32, zeros);
    let under = f.shr(best[2], down);
    let bits = f.or(shifted, under).view(Type::U64);
    let lost = f.shl(best[2], zeros);
    let lost = f.and(lost, 0xffff_ffffu64);
    let lost = f.or(lost, *rest).view(Type::U64);
    // top · 32 − 1 − zeros.
    let place = f.shl(*top, 5);
    let place = f.sub(place, 1u32);
    let place = f.sub(place, zeros);
    Leading { bits, lost, place }
}

/// Bits of the F64 nearest to the magnitude, with the sign of the sum (U64); 0 for a sum of 0.
fn rounded(f: &mut FunctionBuilder, digits: &Digits, of: Leading, negative: Reg) -> Reg {
    let Leading { bits: leading, lost, place } = of;
    let result = f.copy(Type::U64, 0u64);
    let any = f.setp(Compare::Ne, digits.top, 0u32);
    f.if_(any, |f| {
        let small = f.setp(Compare::Lt, place, 52u32);
        f.if_else(
            small,
            |f| {
                // An integer multiple of the smallest subnormal: exact.
                let down = f.sub(63u32, place);
                let bits = f.shr(leading, down);
                f.assign(result, bits);
            },
            |f| {
                let mantissa = f.shr(leading, 11);
                let below = f.and(leading, 0x7ffu64).view(Type::U64);
                let sticky = f.setp(Compare::Ne, lost, 0u64);
                let odd = f.and(mantissa, 1u64);
                let odd = f.setp(Compare::Ne, odd, 0u64);
                let decides = f.or(sticky, odd);
                let half = f.setp(Compare::Eq, below, 0x400u64);
                let above = f.setp(Compare::Gt, below, 0x400u64);
                let tie = f.and(half, decides);
                let up = f.or(above, tie);
                let more = f.add(mantissa, 1u64);
                let mantissa = f.select(up, more, mantissa);
                // The hidden bit adds one to the exponent, as does a carry out of the mantissa.
                let exponent = f.sub(place, 52u32);
                let exponent = f.convert(Type::U64, exponent);
                let exponent = f.shl(exponent, 52);
                let huge = f.setp(Compare::Gt, place, 2097u32);
                let bits = f.add(exponent, mantissa);
                let bits = f.min(bits, INFINITY);
                let bits = f.select(huge, INFINITY, bits);
                f.assign(result, bits);
            },
        );
        let signed = f.or(result, SIGN).view(Type::U64);
        f.guarded(negative, true, |f| f.assign(result, signed));
    });
    result
}

/// The result: `result`, or the infinity or NaN that the flags at `end` say.
fn with_specials(f: &mut FunctionBuilder, end: Reg, result: Reg) -> Reg {
    let flags = f.load(Space::Global, Type::U64, end);
    let minus = f.setp(Compare::Eq, flags, MINUS);
    let plus = f.copy(Type::U64, INFINITY);
    let infinity = f.select(minus, INFINITY | SIGN, plus);
    let both = f.setp(Compare::Gt, flags, MINUS);
    let nans = f.and(flags, PLUS_NAN | MINUS_NAN);
    let positive = f.setp(Compare::Eq, nans.view(Type::U64), PLUS_NAN);
    let plus = f.copy(Type::U64, QUIET_NAN);
    let minus = f.copy(Type::U64, QUIET_NAN | SIGN);
    let not_a_number = f.select(positive, plus, minus);
    let special = f.select(both, not_a_number, infinity);
    let some = f.setp(Compare::Ne, flags, 0u64);
    let bits = f.select(some, special, result);
    f.reinterpret(Type::F64, bits.view(Type::B64))
}
