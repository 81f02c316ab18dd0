//! Instructions on registers only.

use super::function::{agree, widened};
use super::{FunctionBuilder, Reg, Value};
use crate::ast::{Operand, Type, TypeKind};

use TypeKind::{Bits, Float, Predicate, Signed, Unsigned};

/// Relation of a comparison. The `…OrNan` forms are true if either value is NaN; the others are false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    NeOrNan,
    /// Both values are numbers.
    Num,
    /// Either value is NaN.
    Nan,
}

impl Compare {
    fn name(self) -> &'static str {
        match self {
            Compare::Eq => "eq",
            Compare::Ne => "ne",
            Compare::Lt => "lt",
            Compare::Le => "le",
            Compare::Gt => "gt",
            Compare::Ge => "ge",
            Compare::NeOrNan => "neu",
            Compare::Num => "num",
            Compare::Nan => "nan",
        }
    }
}

impl FunctionBuilder {
    // Moves

    /// A fresh register of type `ty` with the value `value`.
    pub fn copy(&mut self, ty: Type, value: impl Into<Value>) -> Reg {
        let result = self.register(ty);
        self.assign(result, value);
        result
    }

    /// Writes `value` into an existing register. Use it to change a variable in a loop or branch.
    pub fn assign(&mut self, to: Reg, value: impl Into<Value>) {
        let ty = to.ty();
        let opcode = format!("mov.{}", if ty.bits() < 32 { widened(ty) } else { ty }.name());
        self.expect_type(&opcode, ty, to);
        let operand = self.operand(&opcode, ty, value.into());
        self.emit(&opcode, vec![Operand::Name(to.name()), operand]);
    }

    /// A predicate that is constantly `truth`.
    pub fn constant_pred(&mut self, truth: bool) -> Reg {
        let result = self.register(Type::Pred);
        self.assign_pred(result, truth);
        result
    }

    /// Writes a constant into a predicate.
    pub fn assign_pred(&mut self, to: Reg, truth: bool) {
        self.expect_type("setp", Type::Pred, to);
        let relation = if truth { "setp.eq.u32" } else { "setp.ne.u32" };
        self.emit(relation, vec![Operand::Name(to.name()), Operand::Integer(0), Operand::Integer(0)]);
    }

    /// The bits of a register as another type of its width, floats included.
    pub fn reinterpret(&mut self, ty: Type, value: Reg) -> Reg {
        if agree(ty, value.ty()) && ty.is_float() == value.ty().is_float() {
            return value.view(ty);
        }
        let bits = if ty.bits() == 64 { Type::B64 } else { Type::B32 };
        let result = self.register(ty);
        let full = format!("mov.{}", bits.name());
        self.expect_type(&full, bits, value.view(value.ty()));
        self.emit(&full, vec![Operand::Name(result.name()), Operand::Name(value.name())]);
        result
    }

    /// Two 32-bit halves as 64 bits.
    pub fn pack(&mut self, low: Reg, high: Reg) -> Reg {
        let result = self.register(Type::B64);
        for half in [low, high] {
            self.expect_type("mov.b64", Type::B32, half);
        }
        let halves = Operand::Vector(vec![Operand::Name(low.name()), Operand::Name(high.name())]);
        self.emit("mov.b64", vec![Operand::Name(result.name()), halves]);
        result
    }

    /// The low and the high half of 64 bits.
    pub fn unpack(&mut self, value: Reg) -> (Reg, Reg) {
        let (low, high) = (self.register(Type::B32), self.register(Type::B32));
        self.expect_type("mov.b64", Type::B64, value);
        let halves = Operand::Vector(vec![Operand::Name(low.name()), Operand::Name(high.name())]);
        self.emit("mov.b64", vec![halves, Operand::Name(value.name())]);
        (low, high)
    }

    // Arithmetic

    fn two(&mut self, opcode: &str, float: &str, kinds: &[TypeKind], a: Value, b: Value) -> Reg {
        let ty = self.common_type(opcode, &[a, b]);
        self.expect_kind(opcode, ty, kinds);
        self.simple(if ty.is_float() { float } else { opcode }, arithmetic_type(ty), &[a, b])
    }

    pub fn add(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.two("add", "add.rn", &[Signed, Unsigned, Bits, Float], a.into(), b.into())
    }

    pub fn sub(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.two("sub", "sub.rn", &[Signed, Unsigned, Bits, Float], a.into(), b.into())
    }

    /// The low half of an integer product, or the product of floats.
    pub fn mul(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.two("mul.lo", "mul.rn", &[Signed, Unsigned, Bits, Float], a.into(), b.into())
    }

    /// The high half of an integer product.
    pub fn mul_hi(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.two("mul.hi", "mul.hi", &[Signed, Unsigned], a.into(), b.into())
    }

    /// The whole product of two 32-bit integers, 64 bits wide.
    pub fn mul_wide(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        let (a, b) = (a.into(), b.into());
        let ty = self.common_type("mul.wide", &[a, b]);
        let (full, result) = self.wide("mul.wide", ty);
        let operands = vec![Operand::Name(result.name()), self.operand(&full, ty, a), self.operand(&full, ty, b)];
        self.emit(&full, operands);
        result
    }

    /// `a * b + c`, the low half.
    pub fn mad(&mut self, a: impl Into<Value>, b: impl Into<Value>, c: impl Into<Value>) -> Reg {
        let (a, b, c) = (a.into(), b.into(), c.into());
        let ty = self.common_type("mad.lo", &[a, b, c]);
        self.expect_kind("mad.lo", ty, &[Signed, Unsigned, Bits]);
        self.simple("mad.lo", arithmetic_type(ty), &[a, b, c])
    }

    /// `a * b + c` with 32-bit factors and 64-bit `c` and result.
    pub fn mad_wide(&mut self, a: impl Into<Value>, b: impl Into<Value>, c: impl Into<Value>) -> Reg {
        let (a, b, c) = (a.into(), b.into(), c.into());
        let ty = self.common_type("mad.wide", &[a, b]);
        let (full, result) = self.wide("mad.wide", ty);
        let operands = vec![
            Operand::Name(result.name()),
            self.operand(&full, ty, a),
            self.operand(&full, ty, b),
            self.operand(&full, result.ty(), c),
        ];
        self.emit(&full, operands);
        result
    }

    fn wide(&mut self, opcode: &str, ty: Type) -> (String, Reg) {
        let result = match ty {
            Type::S32 => Type::S64,
            Type::U32 => Type::U64,
            _ => {
                self.refuse(format!("{opcode} takes u32 or s32, not {}", ty.name()));
                Type::U64
            }
        };
        (format!("{opcode}.{}", ty.name()), self.register(result))
    }

    /// `a * b + c` of floats, rounded once.
    pub fn fma(&mut self, a: impl Into<Value>, b: impl Into<Value>, c: impl Into<Value>) -> Reg {
        let (a, b, c) = (a.into(), b.into(), c.into());
        let ty = self.common_type("fma", &[a, b, c]);
        self.expect_kind("fma", ty, &[Float]);
        self.simple("fma.rn", ty, &[a, b, c])
    }

    /// Division. Integers truncate; integer division by zero gives an unspecified result and does not trap.
    pub fn div(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.two("div", "div.rn", &[Signed, Unsigned, Float], a.into(), b.into())
    }

    /// Integer remainder with the sign of `a`.
    pub fn rem(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.two("rem", "rem", &[Signed, Unsigned], a.into(), b.into())
    }

    pub fn min(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.two("min", "min", &[Signed, Unsigned, Float], a.into(), b.into())
    }

    pub fn max(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.two("max", "max", &[Signed, Unsigned, Float], a.into(), b.into())
    }

    fn one(&mut self, opcode: &str, kinds: &[TypeKind], a: Value) -> Reg {
        let ty = self.common_type(opcode, &[a]);
        self.expect_kind(opcode, ty, kinds);
        self.simple(opcode, ty, &[a])
    }

    pub fn neg(&mut self, a: impl Into<Value>) -> Reg {
        self.one("neg", &[Signed, Float], a.into())
    }

    pub fn abs(&mut self, a: impl Into<Value>) -> Reg {
        self.one("abs", &[Signed, Float], a.into())
    }

    pub fn sqrt(&mut self, a: impl Into<Value>) -> Reg {
        self.one("sqrt.rn", &[Float], a.into())
    }

    // Carry chains. The carry flag is valid only between adjacent instructions: emit a chain without a gap.

    fn chain(&mut self, opcode: &str, a: Value, b: Value) -> Reg {
        let ty = self.common_type(opcode, &[a, b]);
        self.expect_kind(opcode, ty, &[Signed, Unsigned, Bits]);
        self.simple(opcode, unsigned_type(ty), &[a, b])
    }

    /// Adds and sets the carry.
    pub fn add_cc(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.chain("add.cc", a.into(), b.into())
    }

    /// Adds with the carry and sets it.
    pub fn addc_cc(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.chain("addc.cc", a.into(), b.into())
    }

    /// Adds with the carry.
    pub fn addc(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.chain("addc", a.into(), b.into())
    }

    /// Subtracts and sets the borrow.
    pub fn sub_cc(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.chain("sub.cc", a.into(), b.into())
    }

    /// Subtracts with the borrow and sets it.
    pub fn subc_cc(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.chain("subc.cc", a.into(), b.into())
    }

    /// Subtracts with the borrow.
    pub fn subc(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.chain("subc", a.into(), b.into())
    }

    // Bits and predicates

    fn logic(&mut self, opcode: &str, a: Value, b: Value) -> Reg {
        let ty = self.common_type(opcode, &[a, b]);
        self.expect_kind(opcode, ty, &[Signed, Unsigned, Bits, Predicate]);
        let result = self.simple(opcode, bits_type(ty), &[a, b]);
        result.view(widened(ty))
    }

    pub fn and(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.logic("and", a.into(), b.into())
    }

    pub fn or(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.logic("or", a.into(), b.into())
    }

    pub fn xor(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        self.logic("xor", a.into(), b.into())
    }

    pub fn not(&mut self, a: impl Into<Value>) -> Reg {
        let a = a.into();
        let ty = self.common_type("not", &[a]);
        self.expect_kind("not", ty, &[Signed, Unsigned, Bits, Predicate]);
        let result = self.simple("not", bits_type(ty), &[a]);
        result.view(widened(ty))
    }

    /// `a and not b` of predicates.
    pub fn and_not(&mut self, a: Reg, b: Reg) -> Reg {
        let b = self.not(b);
        self.and(a, b)
    }

    fn shift(&mut self, opcode: &str, ty: Type, a: Value, count: Value) -> Reg {
        let full = format!("{opcode}.{}", ty.name());
        let result = self.register(ty);
        let operands =
            vec![Operand::Name(result.name()), self.operand(&full, ty, a), self.operand(&full, Type::U32, count)];
        self.emit(&full, operands);
        result
    }

    /// Shifts left; a count of at least the width gives zero.
    pub fn shl(&mut self, a: impl Into<Value>, count: impl Into<Value>) -> Reg {
        let a = a.into();
        let ty = self.common_type("shl", &[a]);
        self.expect_kind("shl", ty, &[Signed, Unsigned, Bits]);
        self.shift("shl", bits_type(ty), a, count.into()).view(widened(ty))
    }

    /// Shifts right: arithmetic for signed types, logical otherwise. A count of at least the width shifts out all bits.
    pub fn shr(&mut self, a: impl Into<Value>, count: impl Into<Value>) -> Reg {
        let a = a.into();
        let ty = self.common_type("shr", &[a]);
        self.expect_kind("shr", ty, &[Signed, Unsigned, Bits]);
        self.shift("shr", ty, a, count.into())
    }

    fn count(&mut self, opcode: &str, a: Value) -> Reg {
        let ty = self.common_type(opcode, &[a]);
        self.expect_kind(opcode, ty, &[Signed, Unsigned, Bits]);
        let full = format!("{opcode}.{}", bits_type(ty).name());
        let result = self.register(Type::U32);
        let operands = vec![Operand::Name(result.name()), self.operand(&full, ty, a)];
        self.emit(&full, operands);
        result
    }

    /// Number of set bits.
    pub fn popc(&mut self, a: impl Into<Value>) -> Reg {
        self.count("popc", a.into())
    }

    /// Number of leading zeros.
    pub fn clz(&mut self, a: impl Into<Value>) -> Reg {
        self.count("clz", a.into())
    }

    /// Bits in reverse order.
    pub fn brev(&mut self, a: impl Into<Value>) -> Reg {
        let a = a.into();
        let ty = self.common_type("brev", &[a]);
        self.simple("brev", bits_type(ty), &[a]).view(ty)
    }

    /// The `length` bits of `a` from bit `start`, sign-extended for signed types.
    pub fn bfe(&mut self, a: impl Into<Value>, start: impl Into<Value>, length: impl Into<Value>) -> Reg {
        let a = a.into();
        let ty = self.common_type("bfe", &[a]);
        self.expect_kind("bfe", ty, &[Signed, Unsigned]);
        let full = format!("bfe.{}", ty.name());
        let result = self.register(ty);
        let operands = vec![
            Operand::Name(result.name()),
            self.operand(&full, ty, a),
            self.operand(&full, Type::U32, start.into()),
            self.operand(&full, Type::U32, length.into()),
        ];
        self.emit(&full, operands);
        result
    }

    // Comparison, selection, conversion

    /// Compares two values of one type.
    pub fn setp(&mut self, relation: Compare, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        let result = self.register(Type::Pred);
        self.setp_into(result, relation, a, b);
        result
    }

    /// Compares into an existing predicate.
    pub fn setp_into(&mut self, to: Reg, relation: Compare, a: impl Into<Value>, b: impl Into<Value>) {
        let (a, b) = (a.into(), b.into());
        let ty = self.common_type("setp", &[a, b]);
        let ordered = !matches!(relation, Compare::Eq | Compare::Ne);
        let kinds: &[TypeKind] = match relation {
            Compare::NeOrNan | Compare::Num | Compare::Nan => &[Float],
            _ if ordered => &[Signed, Unsigned, Float],
            _ => &[Signed, Unsigned, Bits, Float],
        };
        self.expect_kind("setp", ty, kinds);
        let full = format!("setp.{}.{}", relation.name(), ty.name());
        self.expect_type(&full, Type::Pred, to);
        let operands = vec![Operand::Name(to.name()), self.operand(&full, ty, a), self.operand(&full, ty, b)];
        self.emit(&full, operands);
    }

    /// `a` where `condition` holds, else `b`. Predicates are selected as words, because ptxas miscompiles logic forms.
    pub fn select(&mut self, condition: Reg, a: impl Into<Value>, b: impl Into<Value>) -> Reg {
        let (a, b) = (a.into(), b.into());
        let ty = self.common_type("selp", &[a, b]);
        if let (Type::Pred, Value::Reg(a), Value::Reg(b)) = (ty, a, b) {
            return self.select_predicate(condition, a, b);
        }
        self.expect_kind("selp", ty, &[Signed, Unsigned, Bits, Float]);
        let bits = if ty.is_float() { ty } else { bits_type(ty) };
        let full = format!("selp.{}", bits.name());
        let result = self.register(ty);
        self.expect_type(&full, Type::Pred, condition);
        let operands = vec![
            Operand::Name(result.name()),
            self.operand(&full, ty, a),
            self.operand(&full, ty, b),
            Operand::Name(condition.name()),
        ];
        self.emit(&full, operands);
        result
    }

    fn select_predicate(&mut self, condition: Reg, a: Reg, b: Reg) -> Reg {
        if a == b {
            return a;
        }
        let words = [a, b].map(|predicate| {
            let word = self.register(Type::U32);
            let bits = [Operand::Name(word.name()), Operand::Integer(1), Operand::Integer(0)];
            self.emit("selp.b32", bits.into_iter().chain([Operand::Name(predicate.name())]).collect());
            word
        });
        let word = self.select(condition, words[0], words[1]);
        self.setp(Compare::Ne, word, 0u32)
    }

    /// Converts `value` to type `ty`. Integers are extended by their own sign or truncated. Integers to floats and
    /// floats to narrower floats round to nearest even. Floats to integers truncate and saturate; NaN gives zero.
    pub fn convert(&mut self, ty: Type, value: Reg) -> Reg {
        let from = value.ty();
        if from == ty {
            return value;
        }
        if !from.is_float() && !ty.is_float() && from.bits() == ty.bits() {
            return value.view(ty);
        }
        let rounding = match (from.is_float(), ty.is_float()) {
            (false, false) => "",
            (true, false) => ".rzi",
            (false, true) => ".rn",
            (true, true) if ty.bits() < from.bits() => ".rn",
            (true, true) => "",
        };
        self.convert_with(rounding, ty, value)
    }

    /// Like [`Self::convert`], with an explicit rounding: `.rmi`, `.rpi`, `.rni`, `.rzi`, `.rn`, …
    pub fn convert_with(&mut self, rounding: &str, ty: Type, value: Reg) -> Reg {
        let from = value.ty();
        self.expect_kind("cvt", ty, &[Signed, Unsigned, Float]);
        self.expect_kind("cvt", from, &[Signed, Unsigned, Float]);
        let full = format!("cvt{rounding}.{}.{}", ty.name(), from.name());
        let result = self.register(ty);
        let operands = vec![Operand::Name(result.name()), self.operand(&full, from, Value::Reg(value))];
        self.emit(&full, operands);
        result
    }

    /// The low bits of a 32-bit value in the width of `narrow`, sign- or zero-extended to 32 bits as `narrow` requires.
    pub fn extend(&mut self, narrow: Type, value: Reg) -> Reg {
        let wide = widened(narrow);
        self.expect_kind("cvt", narrow, &[Signed, Unsigned]);
        let full = format!("cvt.{}.{}", wide.name(), narrow.name());
        self.expect_type(&full, Type::B32, value.view(Type::B32));
        let result = self.register(wide);
        self.emit(&full, vec![Operand::Name(result.name()), Operand::Name(value.name())]);
        result
    }

    /// Any other instruction, from the result types and the operands as given. `check` validates it later.
    pub fn raw(&mut self, opcode: &str, results: &[Type], operands: &[Value]) -> Vec<Reg> {
        let results: Vec<Reg> = results.iter().map(|&ty| self.register(ty)).collect();
        let mut list: Vec<Operand> = results.iter().map(|result| Operand::Name(result.name())).collect();
        for operand in operands {
            list.push(match *operand {
                Value::Reg(reg) => Operand::Name(reg.name()),
                Value::Integer(number) => Operand::Integer(number),
                Value::F32(number) => Operand::F32(number.to_bits()),
                Value::F64(number) => Operand::F64(number.to_bits()),
            });
        }
        self.emit(opcode, list);
        results
    }
}

/// The bit type of the same width; predicates stay predicates.
fn bits_type(ty: Type) -> Type {
    match ty {
        Type::Pred => Type::Pred,
        _ if ty.bits() == 64 => Type::B64,
        _ => Type::B32,
    }
}

/// The type for arithmetic: `add.b32` does not exist, so bit types become unsigned.
fn arithmetic_type(ty: Type) -> Type {
    match ty {
        Type::B32 => Type::U32,
        Type::B64 => Type::U64,
        _ => ty,
    }
}

fn unsigned_type(ty: Type) -> Type {
    match ty {
        Type::B32 | Type::S32 => Type::U32,
        Type::B64 | Type::S64 => Type::U64,
        _ => ty,
    }
}
