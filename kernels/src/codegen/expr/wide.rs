//! 128-bit integers as two 64-bit words: carry chains, products from 64-bit halves, and division by a called function.
//!
//!   (a.low, a.high) + (b.low, b.high)     add.cc.u64 low; addc.u64 high
//!
//! After    Hacker's Delight 2nd ed.: 9-4 (128 by 64 bits with 32-bit digits), 9-5 (double words by double words).

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Callee, Compare, FunctionBuilder, ModuleBuilder, Reg, Value as Operand};

use super::lanes::Number;

pub(super) fn add(f: &mut FunctionBuilder, a: Number, b: Number) -> Number {
    let (al, ah) = a.words(f);
    let (bl, bh) = b.word_operands();
    let low = f.add_cc(al, bl);
    let high = f.addc(ah, bh);
    Number::wide(low, high)
}

pub(super) fn subtract(f: &mut FunctionBuilder, a: Number, b: Number) -> Number {
    let (al, ah) = a.words(f);
    let (bl, bh) = b.word_operands();
    let low = f.sub_cc(al, bl);
    let high = f.subc(ah, bh);
    Number::wide(low, high)
}

pub(super) fn negate(f: &mut FunctionBuilder, a: Number) -> Number {
    let (al, ah) = a.word_operands();
    let zero = f.copy(Type::U64, 0);
    let low = f.sub_cc(zero, al);
    let high = f.subc(zero.view(Type::S64), ah);
    Number::wide(low, high)
}

/// The product of two signed 64-bit words.
pub(super) fn multiply_words(f: &mut FunctionBuilder, a: Operand, b: Operand) -> Number {
    let low = f.mul(a, b);
    let high = f.mul_hi(a, b);
    Number::wide(low, high)
}

/// The low 128 bits of a product.
pub(super) fn multiply(f: &mut FunctionBuilder, a: Number, b: Number) -> Number {
    let (al, ah) = a.words(f);
    let (bl, bh) = b.words(f);
    let low = f.mul(al, bl);
    let high = f.mul_hi(al, bl);
    let high = f.mad(al, bh.view(Type::U64), high);
    let high = f.mad(ah.view(Type::U64), bl, high);
    Number::wide(low, high)
}

/// The product, and a predicate that is true if it does not fit 128 bits.
pub(super) fn multiply_checked(f: &mut FunctionBuilder, a: Number, b: Number) -> (Number, Reg) {
    let sign = {
        let (_, ah) = a.words(f);
        let (_, bh) = b.words(f);
        let sign = f.xor(ah, bh);
        f.setp(Compare::Lt, sign, 0)
    };
    let (al, ah) = magnitude(f, a);
    let (bl, bh) = magnitude(f, b);
    let (a_wide, b_wide) = (f.setp(Compare::Ne, ah, 0), f.setp(Compare::Ne, bh, 0));
    let mut overflow = f.and(a_wide, b_wide);
    // Now one of the two high words is zero, or the product is too large anyway.
    let low = f.mul(al, bl);
    let carried = f.mul_hi(al, bl);
    let mut cross = f.mul(ah, bl);
    cross = f.mad(al, bh, cross);
    for (x, y) in [(ah, bl), (al, bh)] {
        let beyond = f.mul_hi(x, y);
        let beyond = f.setp(Compare::Ne, beyond, 0);
        overflow = f.or(overflow, beyond);
    }
    let high = f.add(carried, cross);
    let carry = f.setp(Compare::Lt, high, cross);
    overflow = f.or(overflow, carry);
    let product = Number::wide(low, high);
    let negative = negate(f, product);
    let result = select(f, sign, negative, product);
    // The result must have the expected sign; zero has none.
    let (rl, rh) = result.words(f);
    let negative = f.setp(Compare::Lt, rh, 0);
    let differs = f.xor(negative, sign);
    let any = f.or(rl, rh.view(Type::U64));
    let nonzero = f.setp(Compare::Ne, any, 0);
    let differs = f.and(differs, nonzero);
    (result, f.or(overflow, differs))
}

/// The magnitude as an unsigned number.
pub(super) fn magnitude(f: &mut FunctionBuilder, a: Number) -> (Reg, Reg) {
    let (low, high) = a.words(f);
    let sign = f.shr(high, 63).view(Type::U64);
    let (low, high) = (f.xor(low, sign), f.xor(high.view(Type::U64), sign));
    let low = f.sub_cc(low, sign);
    let high = f.subc(high, sign);
    (low, high)
}

/// `-a` if `negative` is true, else `a`.
pub(super) fn with_sign(f: &mut FunctionBuilder, low: Reg, high: Reg, negative: Reg) -> Number {
    let number = Number::wide(low, high);
    let opposite = negate(f, number);
    select(f, negative, opposite, number)
}

pub(super) fn select(f: &mut FunctionBuilder, condition: Reg, a: Number, b: Number) -> Number {
    let (al, ah) = a.words(f);
    let (bl, bh) = b.words(f);
    let low = f.select(condition, al, bl);
    let high = f.select(condition, ah, bh);
    Number::wide(low, high)
}

pub(super) fn compare(f: &mut FunctionBuilder, relation: Compare, a: Number, b: Number) -> Reg {
    let (al, ah) = a.words(f);
    let (bl, bh) = b.word_operands();
    let (low, high) = match relation {
        Compare::Eq | Compare::Ne => {
            let (low, high) = (f.setp(relation, al, bl), f.setp(relation, ah, bh));
            return if relation == Compare::Eq { f.and(low, high) } else { f.or(low, high) };
        }
        Compare::Lt | Compare::Le => (relation, Compare::Lt),
        _ => (relation, Compare::Gt),
    };
    let beyond = f.setp(high, ah, bh);
    let same = f.setp(Compare::Eq, ah, bh);
    let low = f.setp(low, al, bl);
    let low = f.and(same, low);
    f.or(beyond, low)
}

/// Quotient and remainder of magnitudes. A zero divisor is replaced by one.
pub(super) fn divide_unsigned(
    module: &mut ModuleBuilder,
    f: &mut FunctionBuilder,
    (nl, nh): (Reg, Reg),
    (dl, dh): (Operand, Operand),
) -> ((Reg, Reg), (Reg, Reg)) {
    let callee = divide_function(module);
    let words = f.call(&callee, &[nl.into(), nh.into(), dl, dh]);
    let word = |index: usize| words.get(index).copied().unwrap_or(nl).view(Type::U64);
    ((word(0), word(1)), (word(2), word(3)))
}

const DIVIDE: &str = "millpond_divide_u128";
const DIVIDE_BY_WORD: &str = "millpond_divide_u128_by_u64";

/// `(numerator, divisor) -> (quotient, remainder)`, all unsigned and 128 bits wide.
fn divide_function(module: &mut ModuleBuilder) -> Callee {
    if let Some(callee) = module.callee(DIVIDE) {
        return callee;
    }
    let by_word = divide_by_word_function(module);
    let mut f = FunctionBuilder::function(DIVIDE);
    let params = ["nl", "nh", "dl", "dh"].map(|name| f.param(name, Type::B64));
    let result = f.return_bytes(16, 32);
    let [nl, nh, dl, dh] = params.map(|param| f.load_param(&param).view(Type::U64));
    // The correction loops end only for divisors above zero, and NULL rows may hold zero.
    let any = f.or(dl, dh);
    let zero = f.setp(Compare::Eq, any, 0);
    let dl = f.select(zero, 1, dl);
    let quotient = (f.copy(Type::U64, 0), f.copy(Type::U64, 0));
    let rest = (f.copy(Type::U64, nl), f.copy(Type::U64, nh));
    let narrow = f.setp(Compare::Eq, dh, 0);
    f.if_else(
        narrow,
        |f| {
            f.assign(rest.1, 0);
            let one_word = f.setp(Compare::Eq, nh, 0);
            f.if_else(
                one_word,
                |f| {
                    let q = f.div(nl, dl);
                    f.assign(quotient.0, q);
                    let product = f.mul(q, dl);
                    let r = f.sub(nl, product);
                    f.assign(rest.0, r);
                },
                |f| {
                    let q = f.div(nh, dl);
                    f.assign(quotient.1, q);
                    let product = f.mul(q, dl);
                    let high = f.sub(nh, product);
                    let words = f.call(&by_word, &[nl.into(), high.into(), dl.into()]);
                    f.assign(quotient.0, words[0].view(Type::U64));
                    f.assign(rest.0, words[1].view(Type::U64));
                },
            );
        },
        |f| {
            // The quotient has one word. The estimate from the divisor's leading word is at most one too large.
            let shift = f.clz(dh);
            let back = f.sub(64, shift);
            let leading = {
                let (high, low) = (f.shl(dh, shift), f.shr(dl, back));
                f.or(high, low)
            };
            let half = {
                let (low, carried) = (f.shr(nl, 1), f.shl(nh, 63));
                (f.or(low, carried), f.shr(nh, 1))
            };
            let words = f.call(&by_word, &[half.0.into(), half.1.into(), leading.into()]);
            let down = f.sub(63, shift);
            let estimate = f.shr(words[0].view(Type::U64), down);
            let nonzero = f.setp(Compare::Ne, estimate, 0);
            let one_less = f.sub(estimate, 1);
            let estimate = f.select(nonzero, one_less, estimate);
            let low = f.mul(estimate, dl);
            let high = f.mul_hi(estimate, dl);
            let high = f.mad(estimate, dh, high);
            let rl = f.sub_cc(nl, low);
            let rh = f.subc(nh, high);
            f.assign(quotient.0, estimate);
            f.assign(rest.0, rl);
            f.assign(rest.1, rh);
            let above = f.setp(Compare::Gt, rh, dh);
            let same = f.setp(Compare::Eq, rh, dh);
            let low_above = f.setp(Compare::Ge, rl, dl);
            let same = f.and(same, low_above);
            let again = f.or(above, same);
            f.if_(again, |f| {
                let q = f.add(estimate, 1);
                f.assign(quotient.0, q);
                let low = f.sub_cc(rl, dl);
                let high = f.subc(rh, dh);
                f.assign(rest.0, low);
                f.assign(rest.1, high);
            });
        },
    );
    for (index, word) in [quotient.0, quotient.1, rest.0, rest.1].into_iter().enumerate() {
        f.store(Space::Param, Type::B64, result.at(8 * index as i64), word);
    }
    module.add(f)
}

/// `(low, high, divisor) -> (quotient, remainder)` where `high < divisor`, so that the quotient has one word.
fn divide_by_word_function(module: &mut ModuleBuilder) -> Callee {
    if let Some(callee) = module.callee(DIVIDE_BY_WORD) {
        return callee;
    }
    let mut f = FunctionBuilder::function(DIVIDE_BY_WORD);
    let params = ["low", "high", "divisor"].map(|name| f.param(name, Type::B64));
    let result = f.return_bytes(16, 16);
    let [low, high, divisor] = params.map(|param| f.load_param(&param).view(Type::U64));
    const DIGIT: u64 = 1 << 32;
    let shift = f.clz(divisor);
    let divisor = f.shl(divisor, shift);
    let (d1, d0) = (f.shr(divisor, 32), f.and(divisor, DIGIT - 1));
    let back = f.sub(64, shift);
    let top = {
        let (shifted, carried) = (f.shl(high, shift), f.shr(low, back));
        f.or(shifted, carried)
    };
    let bottom = f.shl(low, shift);
    let (b1, b0) = (f.shr(bottom, 32), f.and(bottom, DIGIT - 1));
    let first = digit(&mut f, top, b1, d1, d0);
    let middle = remove(&mut f, top, b1, first, divisor);
    let second = digit(&mut f, middle, b0, d1, d0);
    let rest = remove(&mut f, middle, b0, second, divisor);
    let rest = f.shr(rest, shift);
    let quotient = f.shl(first, 32);
    let quotient = f.add(quotient, second);
    f.store(Space::Param, Type::B64, result.at(0), quotient);
    f.store(Space::Param, Type::B64, result.at(8), rest);
    module.add(f)
}

/// One 32-bit digit of the quotient of `(top, next)` by `(d1, d0)`: estimated from the leading digit, corrected at most
/// twice.
fn digit(f: &mut FunctionBuilder, top: Reg, next: Reg, d1: Reg, d0: Reg) -> Reg {
    const DIGIT: u64 = 1 << 32;
    let quotient = f.div(top, d1);
    let product = f.mul(quotient, d1);
    let rest = f.sub(top, product);
    f.loop_(|f| {
        let large = f.setp(Compare::Ge, quotient, DIGIT);
        let left = f.mul(quotient, d0);
        let right = f.shl(rest, 32);
        let right = f.add(right, next);
        let exceeds = f.setp(Compare::Gt, left, right);
        let wrong = f.or(large, exceeds);
        let right = f.not(wrong);
        f.break_if(right);
        let less = f.sub(quotient, 1);
        f.assign(quotient, less);
        let more = f.add(rest, d1);
        f.assign(rest, more);
        let done = f.setp(Compare::Ge, rest, DIGIT);
        f.break_if(done);
    });
    quotient
}

/// Remainder of `(top, next)` after subtracting `digit` times the divisor.
fn remove(f: &mut FunctionBuilder, top: Reg, next: Reg, digit: Reg, divisor: Reg) -> Reg {
    let shifted = f.shl(top, 32);
    let shifted = f.add(shifted, next);
    let product = f.mul(digit, divisor);
    f.sub(shifted, product)
}
