//! Floats: IEEE arithmetic with every operation rounded once, and their total order.
//!
//!   key       -NaN < -inf < … < -1 < 0 = -0 < 1 < … < inf < NaN    as signed integers: bits ^ (bits < 0 ? 0x7fff… : 0)
//!   NaN       inf - inf = -NaN       NaN + 1 = NaN       -NaN * 2 = -NaN       -(NaN) = -NaN       |-NaN| = NaN
//!
//! Zero      comparisons treat -0.0 as 0.0 (DataFusion normalizes before it compares); `Identical` does not.
//! NaN       made by + - × ÷ % √ from numbers is the negative quiet NaN, as on x86; with NaN operands the result is the
//!           first of them, made quiet. The device has one NaN for F32 and specifies none for F64, so this code selects
//!           the NaN wherever one can occur. Negation and absolute value change only the sign bit; the device's
//!           instructions do not do so for a NaN.
//! Narrow    a 16-bit float is represented as F32; results of operations on 16-bit floats are rounded to 16 bits again.
//! Remainder has the sign of the dividend and is exact, like `%` in Rust.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, FunctionBuilder, Reg, Value as Operand};

use super::lanes::{Number, type_of};
use super::{Computed, Row};
use crate::codegen::ir::{Arithmetic, FloatFunction, FloatTest, Graph, Lane, Node, NodeId, Repr};
use crate::codegen::value::CodegenError;

/// Possible values of a float, as far as the graph proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    Finite,
    /// Finite or infinite.
    Number,
    Anything,
}

impl Reach {
    /// Reach of every node; for a node that is not a float, that of the float it converts to.
    pub(super) fn of_nodes(graph: &Graph) -> Vec<Reach> {
        let mut known = vec![Reach::Finite; graph.len()];
        for id in graph.ids() {
            known[id.0 as usize] = Reach::of(graph, id, &known);
        }
        known
    }

    /// Reach of a node whose inputs are known.
    fn of(graph: &Graph, id: NodeId, known: &[Reach]) -> Reach {
        let repr = graph.ty(id).repr;
        if !repr.is_float() {
            return Reach::Finite;
        }
        let of = |id: &NodeId| known[id.0 as usize];
        match graph.node(id) {
            Node::Constant { bits } => {
                let value = float_of(*bits, repr);
                match (value.is_finite(), value.is_nan()) {
                    (true, _) => Reach::Finite,
                    (_, false) => Reach::Number,
                    _ => Reach::Anything,
                }
            }
            Node::Null => Reach::Finite,
            Node::Convert { of: from, .. } => match (of(from), graph.ty(*from).repr, repr) {
                // Large values become infinite.
                (Reach::Finite, Repr::F64, Repr::F32) => Reach::Number,
                (reach, ..) => reach,
            },
            Node::Present { of: from } | Node::Require { of: from, .. } => of(from),
            Node::Negate { of: from, .. } | Node::Absolute { of: from, .. } => of(from),
            // Large values become infinite.
            Node::Float { function: FloatFunction::Narrow, of: from } => of(from).max(Reach::Number),
            Node::Float { function, of: from } if *function != FloatFunction::Sqrt => of(from),
            Node::Case { branches, otherwise } => {
                let values = branches.iter().map(|(_, value)| value).chain(otherwise);
                values.map(of).max().unwrap_or(Reach::Anything)
            }
            Node::Arithmetic { op, left, right, .. } => {
                let numbers = of(left).max(of(right)) <= Reach::Number;
                if numbers && !makes_nan(graph, *op, *left, *right, known) { Reach::Number } else { Reach::Anything }
            }
            _ => Reach::Anything,
        }
    }
}

/// The float with a constant's bits.
fn float_of(bits: i128, repr: Repr) -> f64 {
    if repr == Repr::F32 { f32::from_bits(bits as u32).into() } else { f64::from_bits(bits as u64) }
}

/// True if an operation can make a NaN from operands that are not NaN.
fn makes_nan(graph: &Graph, op: Arithmetic, left: NodeId, right: NodeId, known: &[Reach]) -> bool {
    let finite = |id: NodeId| known[id.0 as usize] == Reach::Finite;
    match op {
        Arithmetic::Add | Arithmetic::Subtract => !finite(left) && !finite(right),
        Arithmetic::Multiply => !finite(left) || !finite(right),
        Arithmetic::Divide | Arithmetic::Remainder => {
            let repr = graph.ty(right).repr;
            let divides = matches!(graph.node(right), Node::Constant { bits } if {
                let divisor = float_of(*bits, repr);
                divisor.is_finite() && divisor != 0.0
            });
            !divides || (op == Arithmetic::Remainder && !finite(left))
        }
    }
}

/// Bit patterns of a lane's floats: integer type, sign bit, quiet bit.
struct Bits {
    ty: Type,
    sign: u64,
    quiet: u64,
}

impl Bits {
    fn of(lane: Lane) -> Bits {
        match lane {
            Lane::F32 => Bits { ty: Type::B32, sign: 1 << 31, quiet: 1 << 22 },
            _ => Bits { ty: Type::B64, sign: 1 << 63, quiet: 1 << 51 },
        }
    }
}

/// A float constant of a lane.
pub(super) fn constant(lane: Lane, value: f64) -> Operand {
    if lane == Lane::F32 { Operand::F32(value as f32) } else { Operand::F64(value) }
}

impl Row<'_, '_> {
    pub(super) fn float_arithmetic(
        &mut self,
        op: Arithmetic,
        left: NodeId,
        right: NodeId,
    ) -> Result<Computed, CodegenError> {
        let (a, b) = (self.node(left)?, self.node(right)?);
        let valid = self.both_valid(a.valid, b.valid);
        let lane = a.number.lane;
        let x = a.number.low_reg(self.f);
        let y = b.number.low;
        let makes = makes_nan(self.graph, op, left, right, self.reach);
        let suspects = self.suspects(&[(left, a.number), (right, b.number)]);
        let result = match op {
            Arithmetic::Add => self.f.add(x, y),
            Arithmetic::Subtract => self.f.sub(x, y),
            Arithmetic::Multiply => self.f.mul(x, y),
            Arithmetic::Divide => self.f.div(x, y),
            Arithmetic::Remainder => {
                let y = b.number.low_reg(self.f);
                let result = remainder(self.f, lane, x, y, |f| nan(f, lane, &suspects));
                return Ok(Computed { number: Number::reg(lane, result), valid });
            }
        };
        if makes || !suspects.is_empty() {
            choose_nan(self.f, lane, result, &suspects);
        }
        Ok(Computed { number: Number::reg(lane, result), valid })
    }

    /// Registers of the operands that can be NaN, once each.
    fn suspects(&mut self, operands: &[(NodeId, Number)]) -> Vec<Reg> {
        let mut suspects = Vec::new();
        for &(id, number) in operands {
            if self.reach[id.0 as usize] == Reach::Anything {
                let operand = number.low_reg(self.f);
                if !suspects.contains(&operand) {
                    suspects.push(operand);
                }
            }
        }
        suspects
    }

    pub(super) fn float_function(&mut self, function: FloatFunction, of: NodeId) -> Result<Computed, CodegenError> {
        let a = self.node(of)?;
        let lane = a.number.lane;
        let ty = type_of(lane);
        let x = a.number.low_reg(self.f);
        let f = &mut *self.f;
        let result = match function {
            FloatFunction::Sqrt => f.sqrt(x),
            FloatFunction::Floor => f.convert_with(".rmi", ty, x),
            FloatFunction::Ceil => f.convert_with(".rpi", ty, x),
            FloatFunction::Truncate => f.convert_with(".rzi", ty, x),
            FloatFunction::Round => round_half_away(f, lane, x),
            FloatFunction::Narrow => {
                let result = narrow(f, x, self.reach[of.0 as usize] == Reach::Anything);
                return Ok(Computed { number: Number::reg(lane, result), valid: a.valid });
            }
        };
        let result = if function == FloatFunction::Sqrt {
            let suspects = self.suspects(&[(of, a.number)]);
            choose_nan(self.f, lane, result, &suspects);
            result
        } else if self.reach[of.0 as usize] != Reach::Anything {
            result
        } else {
            // A NaN is returned unchanged, so that it equals itself in the total order.
            let number = self.f.setp(Compare::Eq, x, x);
            self.f.select(number, result, x)
        };
        Ok(Computed { number: Number::reg(lane, result), valid: a.valid })
    }

    /// `-of`, or the absolute value of `of`.
    pub(super) fn float_sign(&mut self, of: NodeId, magnitude: bool) -> Result<Computed, CodegenError> {
        let a = self.node(of)?;
        let lane = a.number.lane;
        let x = a.number.low_reg(self.f);
        let f = &mut *self.f;
        let result = match (self.reach[of.0 as usize], magnitude) {
            (Reach::Anything, _) => {
                let Bits { ty, sign, .. } = Bits::of(lane);
                let bits = f.reinterpret(ty, x);
                let bits = if magnitude { f.and(bits, sign - 1) } else { f.xor(bits, sign) };
                f.reinterpret(type_of(lane), bits)
            }
            (_, true) => f.abs(x),
            (_, false) => f.neg(x),
        };
        Ok(Computed { number: Number::reg(lane, result), valid: a.valid })
    }

    pub(super) fn float_test(&mut self, test: FloatTest, of: NodeId) -> Result<Computed, CodegenError> {
        let a = self.node(of)?;
        let lane = a.number.lane;
        let x = a.number.low_reg(self.f);
        let truth = match test {
            // Only a NaN differs from itself.
            FloatTest::Nan => self.f.setp(Compare::NeOrNan, x, x),
            FloatTest::Zero => self.f.setp(Compare::Eq, x, constant(lane, 0.0)),
            FloatTest::Negative => self.f.setp(Compare::Lt, x, constant(lane, 0.0)),
        };
        Ok(Computed { number: Number::reg(Lane::Pred, truth), valid: a.valid })
    }

    pub(super) fn float_order(&mut self, of: NodeId) -> Result<Computed, CodegenError> {
        let a = self.node(of)?;
        let bits = self.float_bits(a.number, false);
        let key = ordered(self.f, a.number.lane, bits);
        let lane = if a.number.lane == Lane::F32 { Lane::S32 } else { Lane::S64 };
        Ok(Computed { number: Number::reg(lane, key), valid: a.valid })
    }

    /// Integer that sorts in the float's total order, with both zeros equal.
    pub(super) fn float_key(&mut self, of: NodeId, number: Number) -> Reg {
        if let Some(&key) = self.known.float_keys.get(&of) {
            return key;
        }
        let lane = number.lane;
        let bits = self.float_bits(number, true);
        let key = ordered(self.f, lane, bits);
        self.known.float_keys.insert(of, key);
        key
    }

    /// Bits of a float; with `one_zero`, -0.0 gives those of 0.0.
    pub(super) fn float_bits(&mut self, number: Number, one_zero: bool) -> Reg {
        let lane = number.lane;
        let mut x = number.low_reg(self.f);
        if one_zero {
            let zero = self.f.setp(Compare::Eq, x, constant(lane, 0.0));
            x = self.f.select(zero, constant(lane, 0.0), x);
        }
        self.f.reinterpret(if lane == Lane::F32 { Type::B32 } else { Type::B64 }, x)
    }
}

/// Bits of a float as a signed integer in the total order: for negative numbers, all bits except the sign are inverted.
fn ordered(f: &mut FunctionBuilder, lane: Lane, bits: Reg) -> Reg {
    let (signed, unsigned, width) =
        if lane == Lane::F32 { (Type::S32, Type::U32, 32) } else { (Type::S64, Type::U64, 64) };
    let sign = f.shr(bits.view(signed), width - 1);
    let mask = f.shr(sign.view(unsigned), 1);
    f.xor(bits.view(signed), mask.view(signed))
}

/// NaN of an operation: the first NaN among `suspects`, made quiet; else the negative quiet NaN.
fn nan(f: &mut FunctionBuilder, lane: Lane, suspects: &[Reg]) -> Reg {
    let Bits { ty, sign, quiet } = Bits::of(lane);
    // Exponent and quiet bits are adjacent, directly below the sign.
    let default = sign | (sign - quiet);
    let default = match lane {
        Lane::F32 => Operand::F32(f32::from_bits(default as u32)),
        _ => Operand::F64(f64::from_bits(default)),
    };
    let mut chosen = default;
    for &operand in suspects.iter().rev() {
        let is_nan = f.setp(Compare::Nan, operand, operand);
        chosen = f.select(is_nan, operand, chosen).into();
    }
    let Operand::Reg(chosen) = chosen else { return f.copy(type_of(lane), default) };
    let bits = f.reinterpret(ty, chosen);
    let bits = f.or(bits, quiet);
    f.reinterpret(type_of(lane), bits)
}

/// Replaces a NaN in `result` by the one that [`nan`] selects.
fn choose_nan(f: &mut FunctionBuilder, lane: Lane, result: Reg, suspects: &[Reg]) {
    let is_nan = f.setp(Compare::Nan, result, result);
    f.guarded(is_nan, true, |f| {
        let chosen = nan(f, lane, suspects);
        f.assign(result, chosen);
    });
}

/// Rounds to the nearest 16-bit float, as F32: 11 bits of significand, ties to even, infinite from 65520 on.
///
///   |x| < 2^-14   a multiple of 2^-24, which is the last place of 0.5 + |x|
///   above         drops 13 bits: adds half of the last kept bit first, less one if the last kept bit is 0
///   NaN           is quiet, and keeps its sign and the upper 10 bits of its payload
fn narrow(f: &mut FunctionBuilder, x: Reg, may_be_nan: bool) -> Reg {
    const DROPPED: u32 = 13;
    const KEPT: u64 = !0 << DROPPED & u32::MAX as u64;
    const INFINITY: u64 = 0x7f80_0000;
    let Bits { ty, sign, quiet } = Bits::of(Lane::F32);
    let bits = f.reinterpret(Type::U32, x);
    let size = f.and(bits, sign - 1);
    let last = f.shr(size, DROPPED);
    let last = f.and(last, 1);
    let sum = f.add(size, (1 << (DROPPED - 1)) - 1);
    let sum = f.add(sum, last);
    let normal = f.and(sum, KEPT);
    let beyond = f.setp(Compare::Ge, normal, 65536_f32.to_bits());
    let normal = f.select(beyond, INFINITY, normal);
    let small = f.reinterpret(Type::F32, size);
    let small = f.add(small, constant(Lane::F32, 0.5));
    let small = f.sub(small, constant(Lane::F32, 0.5));
    let small = f.reinterpret(Type::U32, small);
    let is_small = f.setp(Compare::Lt, size, 2_f32.powi(-14).to_bits());
    let mut result = f.select(is_small, small, normal);
    if may_be_nan {
        let is_nan = f.setp(Compare::Gt, size, INFINITY);
        let nan = f.or(size, quiet);
        let nan = f.and(nan, KEPT);
        result = f.select(is_nan, nan, result);
    }
    let own = f.and(bits, sign);
    let result = f.or(result, own);
    let result = f.reinterpret(ty, result);
    f.reinterpret(Type::F32, result)
}

/// Rounds to the nearest integer, halves away from zero.
pub(super) fn round_half_away(f: &mut FunctionBuilder, lane: Lane, x: Reg) -> Reg {
    let whole = f.convert_with(".rzi", type_of(lane), x);
    // The difference is exact, so that 0.49999999999999994 becomes 0; for infinities it is NaN, and they are kept.
    let rest = f.sub(x, whole);
    let rest = f.abs(rest);
    let away = f.setp(Compare::Ge, rest, constant(lane, 0.5));
    let negative = f.setp(Compare::Lt, x, constant(lane, 0.0));
    let minus_one = f.copy(type_of(lane), constant(lane, -1.0));
    let step = f.select(negative, minus_one, constant(lane, 1.0));
    let next = f.add(whole, step);
    f.select(away, next, whole)
}

/// `x % y`: exact, by long division on the bits; `nan` if it is undefined.
///
/// One bit of the quotient per iteration. The number of iterations is the difference of the exponents, small for
/// similar numbers.
fn remainder(
    f: &mut FunctionBuilder,
    lane: Lane,
    x: Reg,
    y: Reg,
    nan: impl FnOnce(&mut FunctionBuilder) -> Reg,
) -> Reg {
    let (bits, float, width, mantissa) =
        if lane == Lane::F32 { (Type::U32, Type::F32, 32, 23) } else { (Type::U64, Type::F64, 64, 52) };
    let fraction = (1_i128 << mantissa) - 1;
    let xb = f.reinterpret(bits, x);
    let sign = f.and(xb, 1_i128 << (width - 1));
    let (ax, ay) = (f.abs(x), f.abs(y));
    // x itself if |x| is smaller; NaN if the remainder is undefined.
    let result = f.copy(float, x);
    let infinite = constant(lane, f64::INFINITY);
    let x_finite = f.setp(Compare::Lt, ax, infinite);
    let y_nonzero = f.setp(Compare::Gt, ay, constant(lane, 0.0));
    let defined = f.and(x_finite, y_nonzero);
    // y > 0 also excludes NaN; an infinite y leaves x.
    let undefined = f.not(defined);
    f.if_(undefined, |f| {
        let nan = nan(f);
        f.assign(result, nan);
    });
    let smaller = f.setp(Compare::Lt, ax, ay);
    let larger = f.not(smaller);
    let works = f.and(defined, larger);
    f.if_(works, |f| {
        // Significand normalized to the hidden bit's position, and exponent: at most zero for subnormal numbers.
        let spare = width - 1 - mantissa;
        let split = |f: &mut FunctionBuilder, value: Reg| {
            let b = f.reinterpret(bits, value);
            let exponent = f.shr(b, mantissa as u32);
            let significand = f.and(b, fraction);
            let normal = f.setp(Compare::Ne, exponent, 0);
            let with_hidden = f.or(significand, 1_i128 << mantissa);
            let significand = f.select(normal, with_hidden, significand);
            let exponent = f.convert(Type::U32, exponent);
            let exponent = f.max(exponent, 1);
            let zeros = f.clz(significand);
            let zeros = f.sub(zeros, spare);
            let significand = f.shl(significand, zeros);
            (significand, f.sub(exponent, zeros).view(Type::S32))
        };
        let (sx, ex) = split(f, ax);
        let (sy, ey) = split(f, ay);
        let rest = f.copy(bits, sx);
        let turns = f.sub(ex, ey);
        f.loop_(|f| {
            let fits = f.setp(Compare::Ge, rest, sy);
            let less = f.sub(rest, sy);
            let less = f.select(fits, less, rest);
            f.assign(rest, less);
            let done = f.setp(Compare::Eq, turns, 0);
            f.break_if(done);
            let doubled = f.shl(rest, 1);
            f.assign(rest, doubled);
            let fewer = f.sub(turns, 1);
            f.assign(turns, fewer);
        });
        // rest * 2^(ey - bias - mantissa): its leading bit is shifted up to the hidden bit's position, or as far as
        // exponent one allows. Otherwise it is shifted down; no bit is lost, since the divisor's bits came from there.
        let zeros = f.clz(rest);
        let wanted = f.sub(zeros.view(Type::S32), spare);
        let most = f.sub(ey, 1);
        let shift = f.min(wanted, most);
        let up = f.max(shift, 0);
        let down = f.neg(shift);
        let down = f.max(down, 0);
        let significand = f.shl(rest, up.view(Type::U32));
        let significand = f.shr(significand, down.view(Type::U32));
        let hidden = f.shr(significand, mantissa as u32);
        let exponent = f.sub(ey, shift).view(Type::U32);
        let exponent = if bits == Type::U64 { f.convert(Type::U64, exponent) } else { exponent };
        // Without the hidden bit the number is subnormal (or zero): its exponent field is zero.
        let exponent = f.mul(exponent, hidden);
        let exponent = f.shl(exponent, mantissa as u32);
        let low = f.and(significand, fraction);
        let magnitude = f.or(low, exponent);
        let whole = f.or(magnitude, sign);
        let value = f.reinterpret(float, whole);
        f.assign(result, value);
    });
    result
}
