//! Exact binary floating point: lossless operations, then one rounding in any direction to any format.
//!
//!   bits ──unpack──► (sign, significand, exponent) ──► exact operation ──► Exact { …, sticky } ──round──► bits
//!
//! An [`Exact`] is  ± (significand + ε) · 2^exponent  with 0 < ε < 1 if `sticky` is set and ε = 0 otherwise. Operations
//! that are not exact in 128 bits keep at least 60 bits of significand above ε, more than any format has, so that one
//! rounding gives the IEEE 754 result.
//!
//! Used for directed rounding and for conversions between widths; round-to-nearest arithmetic uses the host's.

/// Rounding direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Rounding {
    /// `.rn`: to nearest, ties to even.
    Nearest,
    /// `.rz`: towards zero.
    Zero,
    /// `.rm`: towards minus infinity.
    Down,
    /// `.rp`: towards plus infinity.
    Up,
}

pub(super) const ROUNDINGS: [(&str, Rounding); 4] =
    [("rn", Rounding::Nearest), ("rz", Rounding::Zero), ("rm", Rounding::Down), ("rp", Rounding::Up)];

impl Rounding {
    pub fn from_index(index: u32) -> Rounding {
        ROUNDINGS[(index & 3) as usize].1
    }
}

/// An IEEE 754 interchange format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// Bits of the stored fraction.
    pub fraction: u32,
    pub exponent: u32,
    /// The NaN of an invalid operation.
    pub nan: u64,
}

pub(super) const F16: Format = Format { fraction: 10, exponent: 5, nan: 0x7fff };
pub(super) const BF16: Format = Format { fraction: 7, exponent: 8, nan: 0x7fff };
pub(super) const F32: Format = Format { fraction: 23, exponent: 8, nan: 0x7fff_ffff };
pub(super) const F64: Format = Format { fraction: 52, exponent: 11, nan: 0xfff8_0000_0000_0000 };

impl Format {
    pub const fn sign(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }

    pub const fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    /// Exponent of the smallest normal number.
    const fn min_exponent(self) -> i32 {
        2 - (1 << (self.exponent - 1))
    }

    pub fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exact {
    pub negative: bool,
    pub significand: u128,
    pub exponent: i32,
    pub sticky: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Nan,
    Infinite { negative: bool },
    Finite(Exact),
}

use Number::{Finite, Infinite, Nan};

pub(super) fn unpack(bits: u64, format: Format) -> Number {
    let negative = bits & format.sign() != 0;
    let fraction = bits & ((1 << format.fraction) - 1);
    let exponent = (bits & format.infinity()) >> format.fraction;
    if bits & format.infinity() == format.infinity() {
        return if fraction != 0 { Nan } else { Infinite { negative } };
    }
    let significand = if exponent == 0 { fraction } else { fraction | 1 << format.fraction };
    Finite(Exact {
        negative,
        significand: u128::from(significand),
        exponent: format.min_exponent() - format.fraction as i32 + (exponent.max(1) - 1) as i32,
        sticky: false,
    })
}

/// The integer as an exact number.
pub(super) fn integer(negative: bool, magnitude: u64) -> Exact {
    Exact { negative, significand: u128::from(magnitude), exponent: 0, sticky: false }
}

/// The bits of `number` in `format`.
pub(super) fn pack(number: Number, format: Format, rounding: Rounding) -> u64 {
    match number {
        Nan => format.nan,
        Infinite { negative } => format.infinity() | if negative { format.sign() } else { 0 },
        Finite(exact) => round(exact, format, rounding),
    }
}

/// Rounds once.
pub(super) fn round(exact: Exact, format: Format, rounding: Rounding) -> u64 {
    let sign = if exact.negative { format.sign() } else { 0 };
    if exact.significand == 0 {
        return sign;
    }
    let top = 127 - exact.significand.leading_zeros() as i32;
    // exponent of the last kept bit; constant in the subnormal range
    let lowest = format.min_exponent() - format.fraction as i32;
    let last = (exact.exponent + top - format.fraction as i32).max(lowest);
    let shift = last - exact.exponent;
    let (kept, half, below) = if shift <= 0 {
        (exact.significand << -shift, false, exact.sticky)
    } else if shift > 128 {
        (0, false, true)
    } else {
        let kept = exact.significand.checked_shr(shift as u32).unwrap_or(0);
        let half = exact.significand >> (shift - 1) & 1 != 0;
        let below = exact.significand & ((1 << (shift - 1)) - 1) != 0;
        (kept, half, below | exact.sticky)
    };
    let away = match rounding {
        Rounding::Nearest => half && (below || kept & 1 != 0),
        Rounding::Zero => false,
        Rounding::Down => exact.negative && (half || below),
        Rounding::Up => !exact.negative && (half || below),
    };
    // The hidden bit of a normal number adds one to the exponent field, as does a carry out of the fraction.
    let steps = last - lowest;
    if steps >= 1 << format.exponent {
        return overflow(exact.negative, format, rounding);
    }
    let bits = ((steps as u64) << format.fraction) + kept as u64 + u64::from(away);
    if bits >= format.infinity() { overflow(exact.negative, format, rounding) } else { sign | bits }
}

fn overflow(negative: bool, format: Format, rounding: Rounding) -> u64 {
    let to_infinity = match rounding {
        Rounding::Nearest => true,
        Rounding::Zero => false,
        Rounding::Down => negative,
        Rounding::Up => !negative,
    };
    (format.infinity() - u64::from(!to_infinity)) | if negative { format.sign() } else { 0 }
}

/// Shifts the highest set bit of a non-zero significand up to bit `top`.
fn normalise(x: Exact, top: u32) -> Exact {
    let shift = x.significand.leading_zeros() - (127 - top);
    Exact { significand: x.significand << shift, exponent: x.exponent - shift as i32, ..x }
}

/// The exact product. Significands of up to 64 bits.
fn product(a: Exact, b: Exact) -> Exact {
    Exact {
        negative: a.negative != b.negative,
        significand: a.significand * b.significand,
        exponent: a.exponent + b.exponent,
        sticky: false,
    }
}

/// The sum of two exact numbers without ε, of at most 106 bits each. Bits shifted out are below the last bit of every
/// format, because the larger operand keeps 126 bits and then cancels at most one of them.
fn sum(a: Exact, b: Exact, rounding: Rounding) -> Exact {
    // An exact zero from opposite signs is +0, and -0 when rounding down.
    let zero = Exact { negative: rounding == Rounding::Down, significand: 0, exponent: 0, sticky: false };
    match (a.significand, b.significand) {
        (0, 0) if a.negative == b.negative => return a,
        (0, 0) => return zero,
        (0, _) => return b,
        (_, 0) => return a,
        _ => {}
    }
    let (mut a, mut b) = (normalise(a, 125), normalise(b, 125));
    if a.exponent < b.exponent {
        std::mem::swap(&mut a, &mut b);
    }
    let distance = (a.exponent - b.exponent) as u32;
    let aligned = b.significand.checked_shr(distance).unwrap_or(0);
    let sticky = aligned.checked_shl(distance).unwrap_or(0) != b.significand;
    if a.negative == b.negative {
        return Exact { significand: a.significand + aligned, sticky, ..a };
    }
    if a.significand == aligned && !sticky {
        return zero;
    }
    if a.significand < aligned {
        return Exact { negative: b.negative, significand: aligned - a.significand, ..a };
    }
    // a − (aligned + ε) = (a − aligned − 1) + (1 − ε)
    Exact { significand: a.significand - aligned - u128::from(sticky), sticky, ..a }
}

pub(super) fn add(a: Number, b: Number, rounding: Rounding) -> Number {
    match (a, b) {
        (Nan, _) | (_, Nan) => Nan,
        (Infinite { negative: x }, Infinite { negative: y }) if x != y => Nan,
        (Infinite { negative }, _) | (_, Infinite { negative }) => Infinite { negative },
        (Finite(a), Finite(b)) => Finite(sum(a, b, rounding)),
    }
}

pub(super) fn multiply(a: Number, b: Number) -> Number {
    match (a, b) {
        (Nan, _) | (_, Nan) => Nan,
        (Infinite { negative: x }, Infinite { negative: y }) => Infinite { negative: x != y },
        (Infinite { negative }, Finite(x)) | (Finite(x), Infinite { negative }) => match x.significand {
            0 => Nan,
            _ => Infinite { negative: negative != x.negative },
        },
        (Finite(a), Finite(b)) => Finite(product(a, b)),
    }
}

/// `a · b + c`, rounded once by the caller.
pub(super) fn multiply_add(a: Number, b: Number, c: Number, rounding: Rounding) -> Number {
    add(multiply(a, b), c, rounding)
}

pub(super) fn divide(a: Number, b: Number) -> Number {
    match (a, b) {
        (Nan, _) | (_, Nan) | (Infinite { .. }, Infinite { .. }) => Nan,
        (Infinite { negative }, Finite(b)) => Infinite { negative: negative != b.negative },
        (Finite(a), Infinite { negative }) => {
            Finite(Exact { negative: a.negative != negative, significand: 0, exponent: 0, sticky: false })
        }
        (Finite(a), Finite(b)) => {
            let negative = a.negative != b.negative;
            match (a.significand, b.significand) {
                (0, 0) => Nan,
                (_, 0) => Infinite { negative },
                (0, _) => Finite(Exact { negative, ..a }),
                (_, divisor) => {
                    let a = normalise(a, 127);
                    Finite(Exact {
                        negative,
                        significand: a.significand / divisor,
                        exponent: a.exponent - b.exponent,
                        sticky: !a.significand.is_multiple_of(divisor),
                    })
                }
            }
        }
    }
}

pub(super) fn square_root(a: Number) -> Number {
    match a {
        Finite(a) if a.significand == 0 => Finite(a),
        Nan | Infinite { negative: true } | Finite(Exact { negative: true, .. }) => Nan,
        Infinite { .. } => a,
        Finite(a) => {
            let mut a = normalise(a, 127);
            if a.exponent % 2 != 0 {
                a.significand >>= 1; // exact: the inputs have at most 53 bits
                a.exponent += 1;
            }
            let root = a.significand.isqrt();
            Finite(Exact {
                negative: false,
                significand: root,
                exponent: a.exponent / 2,
                sticky: root * root != a.significand,
            })
        }
    }
}
