//! Loops over the 32 lanes of a warp, compiled once per operation and type.
//!
//! ```text
//!   sources ──► out[0..32] = f(a[i], b[i])  for every lane, no branch ──► store(out, mask) into the destination row
//! ```
//!
//! Every lane is computed, masked or not: operations are pure and total, and a wasted lane is cheaper than a branch.

use super::{AluOp, Row, Source};

/// A value as an operation reads it from and writes it to a 64-bit lane.
pub(super) trait Word: Copy {
    fn take(lane: u64) -> Self;
    fn put(self) -> u64;
}

macro_rules! words {
    ($($signed:ty as $unsigned:ty),*) => {$(
        impl Word for $unsigned {
            #[inline(always)]
            fn take(lane: u64) -> Self { lane as $unsigned }
            #[inline(always)]
            fn put(self) -> u64 { self as u64 }
        }
        impl Word for $signed {
            #[inline(always)]
            fn take(lane: u64) -> Self { lane as $signed }
            #[inline(always)]
            fn put(self) -> u64 { self as $unsigned as u64 }
        }
    )*};
}
words!(i8 as u8, i16 as u16, i32 as u32, i64 as u64);

impl Word for bool {
    #[inline(always)]
    fn take(lane: u64) -> Self {
        lane & 1 != 0
    }
    #[inline(always)]
    fn put(self) -> u64 {
        u64::from(self)
    }
}

impl Word for f64 {
    #[inline(always)]
    fn take(lane: u64) -> Self {
        f64::from_bits(lane)
    }
    #[inline(always)]
    fn put(self) -> u64 {
        self.to_bits()
    }
}

/// Writes `out` into the lanes of `mask`.
#[inline(always)]
pub(super) fn store(row: &mut Row, out: &Row, mask: u32) {
    if mask == u32::MAX {
        *row = *out;
    } else {
        store_some(row, out, mask);
    }
}

/// By four mask bits, the lanes to keep as words of ones or zeros.
const KEPT: [[u64; 4]; 16] = {
    let mut kept = [[0; 4]; 16];
    let mut index = 0;
    while index < 64 {
        kept[index / 4][index % 4] = if (index / 4) >> (index % 4) & 1 == 0 { u64::MAX } else { 0 };
        index += 1;
    }
    kept
};

#[inline(never)]
fn store_some(row: &mut Row, out: &Row, mask: u32) {
    for (group, (row, out)) in row.chunks_exact_mut(4).zip(out.chunks_exact(4)).enumerate() {
        let kept = &KEPT[(mask >> (4 * group) & 15) as usize];
        for lane in 0..4 {
            row[lane] = (row[lane] & kept[lane]) | (out[lane] & !kept[lane]);
        }
    }
}

/// The value of a constant source, equal in all lanes.
#[inline(always)]
pub(super) fn uniform(source: Source, constants: &[Row]) -> Option<u64> {
    match source.as_register() {
        Some(_) => None,
        None => Some(source.row(&[], constants)[0]),
    }
}

#[inline(always)]
pub(super) fn lanes1(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32, f: impl Fn(u64) -> u64) {
    let a = op.sources[0].row(registers, constants);
    let mut out = [0; 32];
    for lane in 0..32 {
        out[lane] = f(a[lane]);
    }
    store(&mut registers[op.destinations[0] as usize], &out, mask);
}

#[inline(always)]
pub(super) fn lanes2(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32, f: impl Fn(u64, u64) -> u64) {
    let a = op.sources[0].row(registers, constants);
    let b = op.sources[1].row(registers, constants);
    let mut out = [0; 32];
    for lane in 0..32 {
        out[lane] = f(a[lane], b[lane]);
    }
    store(&mut registers[op.destinations[0] as usize], &out, mask);
}

#[inline(always)]
pub(super) fn lanes3(
    op: &AluOp,
    registers: &mut [Row],
    constants: &[Row],
    mask: u32,
    f: impl Fn(u64, u64, u64) -> u64,
) {
    let a = op.sources[0].row(registers, constants);
    let b = op.sources[1].row(registers, constants);
    let c = op.sources[2].row(registers, constants);
    let mut out = [0; 32];
    for lane in 0..32 {
        out[lane] = f(a[lane], b[lane], c[lane]);
    }
    store(&mut registers[op.destinations[0] as usize], &out, mask);
}

/// Four sources, for `bfi` and the carry chains of `madc`.
#[inline(always)]
pub(super) fn lanes4(
    op: &AluOp,
    registers: &mut [Row],
    constants: &[Row],
    mask: u32,
    f: impl Fn(u64, u64, u64, u64) -> u64,
) {
    let [a, b, c, d, _] = op.sources.map(|source| source.row(registers, constants));
    let mut out = [0; 32];
    for lane in 0..32 {
        out[lane] = f(a[lane], b[lane], c[lane], d[lane]);
    }
    store(&mut registers[op.destinations[0] as usize], &out, mask);
}

/// A function over lanes, one per expression: `unary!(|a: u32| -> u32 { a.count_ones() })`.
macro_rules! unary {
    (|$a:ident: $A:ty| -> $R:ty $body:block) => {{
        fn run(
            op: &$crate::interpret::alu::AluOp,
            registers: &mut [$crate::interpret::alu::Row],
            constants: &[$crate::interpret::alu::Row],
            mask: u32,
        ) {
            $crate::interpret::alu::lanes::lanes1(op, registers, constants, mask, |a| {
                let $a = <$A as $crate::interpret::alu::lanes::Word>::take(a);
                let out: $R = $body;
                $crate::interpret::alu::lanes::Word::put(out)
            });
        }
        run as $crate::interpret::alu::Run
    }};
}

/// `binary!(|a: u32, b: u32| -> u32 { a.wrapping_add(b) })`
macro_rules! binary {
    (|$a:ident: $A:ty, $b:ident: $B:ty| -> $R:ty $body:block) => {{
        fn run(
            op: &$crate::interpret::alu::AluOp,
            registers: &mut [$crate::interpret::alu::Row],
            constants: &[$crate::interpret::alu::Row],
            mask: u32,
        ) {
            $crate::interpret::alu::lanes::lanes2(op, registers, constants, mask, |a, b| {
                let ($a, $b) = (
                    <$A as $crate::interpret::alu::lanes::Word>::take(a),
                    <$B as $crate::interpret::alu::lanes::Word>::take(b),
                );
                let out: $R = $body;
                $crate::interpret::alu::lanes::Word::put(out)
            });
        }
        run as $crate::interpret::alu::Run
    }};
}

/// `ternary!(|a: u32, b: u32, c: u32| -> u32 { a.wrapping_mul(b).wrapping_add(c) })`
macro_rules! ternary {
    (|$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| -> $R:ty $body:block) => {{
        fn run(
            op: &$crate::interpret::alu::AluOp,
            registers: &mut [$crate::interpret::alu::Row],
            constants: &[$crate::interpret::alu::Row],
            mask: u32,
        ) {
            $crate::interpret::alu::lanes::lanes3(op, registers, constants, mask, |a, b, c| {
                let ($a, $b, $c) = (
                    <$A as $crate::interpret::alu::lanes::Word>::take(a),
                    <$B as $crate::interpret::alu::lanes::Word>::take(b),
                    <$C as $crate::interpret::alu::lanes::Word>::take(c),
                );
                let out: $R = $body;
                $crate::interpret::alu::lanes::Word::put(out)
            });
        }
        run as $crate::interpret::alu::Run
    }};
}

/// Selects the integer type `T` of a [`Type`](crate::ast::Type) and evaluates the body with it; `None` for other types.
macro_rules! by_type {
    ($ty:expr, $T:ident in [$($variant:ident $rust:ty),*] => $body:expr) => {
        match $ty {
            $($crate::ast::Type::$variant => {
                type $T = $rust;
                Some($body)
            })*
            _ => None,
        }
    };
}

/// The six types of integer arithmetic.
macro_rules! by_int {
    ($ty:expr, $T:ident => $body:expr) => {
        $crate::interpret::alu::lanes::by_type!($ty, $T in [U16 u16, U32 u32, U64 u64, S16 i16, S32 i32, S64 i64] => $body)
    };
}

/// The types of 32 and 64 bits, for instructions without a 16-bit form.
macro_rules! by_wide_int {
    ($ty:expr, $T:ident => $body:expr) => {
        $crate::interpret::alu::lanes::by_type!($ty, $T in [U32 u32, U64 u64, S32 i32, S64 i64] => $body)
    };
}

/// The three widths of untyped words.
macro_rules! by_bits {
    ($ty:expr, $T:ident => $body:expr) => {
        $crate::interpret::alu::lanes::by_type!($ty, $T in [B16 u16, B32 u32, B64 u64] => $body)
    };
}

pub(super) use {binary, by_bits, by_int, by_type, by_wide_int, ternary, unary};
