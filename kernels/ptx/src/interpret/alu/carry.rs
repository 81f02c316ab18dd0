//! Integer arithmetic with the carry flag: add.cc addc sub.cc subc mad.cc madc.
//!
//!   add.cc.u32  lo, a0, b0     carry ◄── 1 if a0 + b0 exceeds 32 bits
//!   addc.u32    hi, a1, b1     hi = a1 + b1 + carry
//!
//! Carry    an ordinary row: the last source if it is read, the last destination if it is written. A subtraction writes
//!          the borrow, a multiply-add the carry of the addition.
//! Types    .u32 .s32 .u64 .s64; signedness matters only for mad.hi and madc.hi.

use super::decode::{Decoder, op};
use super::lanes::{Word, by_wide_int, store};
use super::{AluOp, Row, Run, Source};

/// One step of a chain: the addends, for products the factors in `a` and `b`, and the carry.
trait Chain: Word {
    fn sum(a: Self, b: Self, carry: bool) -> (Self, bool);
    fn difference(a: Self, b: Self, borrow: bool) -> (Self, bool);
    fn low(a: Self, b: Self) -> Self;
    fn high(a: Self, b: Self) -> Self;
}

macro_rules! chains {
    ($($T:ident $Unsigned:ident $Double:ident),*) => {$(
        impl Chain for $T {
            #[inline(always)]
            fn sum(a: Self, b: Self, carry: bool) -> (Self, bool) {
                let (partial, first) = (a as $Unsigned).overflowing_add(b as $Unsigned);
                let (sum, second) = partial.overflowing_add($Unsigned::from(carry));
                (sum as $T, first | second)
            }
            #[inline(always)]
            fn difference(a: Self, b: Self, borrow: bool) -> (Self, bool) {
                let (partial, first) = (a as $Unsigned).overflowing_sub(b as $Unsigned);
                let (difference, second) = partial.overflowing_sub($Unsigned::from(borrow));
                (difference as $T, first | second)
            }
            #[inline(always)]
            fn low(a: Self, b: Self) -> Self {
                a.wrapping_mul(b)
            }
            #[inline(always)]
            fn high(a: Self, b: Self) -> Self {
                (($Double::from(a) * $Double::from(b)) >> $T::BITS) as $T
            }
        }
    )*};
}
chains!(u32 u32 u64, i32 u32 i64, u64 u64 u128, i64 u64 i128);

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Add,
    Subtract,
    Low,
    High,
}
const ADD: u8 = Step::Add as u8;
const SUBTRACT: u8 = Step::Subtract as u8;
const LOW: u8 = Step::Low as u8;
const HIGH: u8 = Step::High as u8;

/// Sources: `a`, `b`, for products `c`, then the carry (a row of zeros if it is not read).
fn chain<T: Chain, const STEP: u8>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let product = STEP == LOW || STEP == HIGH;
    let a = op.sources[0].row(registers, constants);
    let b = op.sources[1].row(registers, constants);
    let c = op.sources[2].row(registers, constants);
    let carry = op.sources[2 + usize::from(product)].row(registers, constants);
    let (mut out, mut carry_out) = ([0; 32], [0; 32]);
    for lane in 0..32 {
        let (a, b, carry) = (T::take(a[lane]), T::take(b[lane]), bool::take(carry[lane]));
        let (value, flag) = match STEP {
            ADD => T::sum(a, b, carry),
            SUBTRACT => T::difference(a, b, carry),
            LOW => T::sum(T::low(a, b), T::take(c[lane]), carry),
            _ => T::sum(T::high(a, b), T::take(c[lane]), carry),
        };
        out[lane] = value.put();
        carry_out[lane] = flag.put();
    }
    store(&mut registers[op.destinations[0] as usize], &out, mask);
    if op.num_destinations == 2 {
        store(&mut registers[op.destinations[1] as usize], &carry_out, mask);
    }
}

pub(super) fn decode(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    let (step, reads) = match decoder.name() {
        "add" => (Step::Add, false),
        "addc" => (Step::Add, true),
        "sub" => (Step::Subtract, false),
        "subc" => (Step::Subtract, true),
        name => {
            let reads = name == "madc";
            match decoder.choice(&[("lo", Step::Low), ("hi", Step::High)]) {
                Some(step) => (step, reads),
                None => return Err("needs .lo or .hi: products with carry have no other form".into()),
            }
        }
    };
    let writes = decoder.flag("cc");
    let run: Option<Run> = match step {
        Step::Add => by_wide_int!(ty, T => chain::<T, ADD>),
        Step::Subtract => by_wide_int!(ty, T => chain::<T, SUBTRACT>),
        Step::Low => by_wide_int!(ty, T => chain::<T, LOW>),
        Step::High => by_wide_int!(ty, T => chain::<T, HIGH>),
    };
    let run = run.ok_or_else(|| decoder.no_type(ty, ".u32 .u64 .s32 .s64"))?;
    decoder.end()?;
    let num_operands = if matches!(step, Step::Low | Step::High) { 3 } else { 2 };
    decoder.operands(1 + num_operands)?;
    let mut destinations = vec![decoder.destination(0, ty.bits())?];
    let mut sources = Vec::new();
    for index in 1..=num_operands {
        sources.push(decoder.source(index, ty)?);
    }
    sources.push(if reads { Source::register(decoder.names.carry()) } else { decoder.fill(0) });
    if writes {
        destinations.push(decoder.names.carry());
    }
    Ok(op(run, &destinations, &sources, 0))
}
