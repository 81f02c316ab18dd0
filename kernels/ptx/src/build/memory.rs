//! Loads, stores, atomics, fences and addresses.

use super::{FunctionBuilder, Param, Reg, Symbol, Value};
use crate::ast::{Operand, Space, Type, TypeKind};

/// Address of an access: a register or symbol plus an offset in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    base: Base,
    offset: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Base {
    Reg(Reg),
    Symbol(String),
}

impl From<Reg> for Address {
    fn from(reg: Reg) -> Address {
        Address { base: Base::Reg(reg), offset: 0 }
    }
}

impl From<&Symbol> for Address {
    fn from(symbol: &Symbol) -> Address {
        symbol.at(0)
    }
}

impl From<&Param> for Address {
    fn from(param: &Param) -> Address {
        param.at(0)
    }
}

impl Address {
    pub(super) fn symbol(name: &str, offset: i64) -> Address {
        Address { base: Base::Symbol(name.to_string()), offset }
    }

    /// This address plus `offset` bytes.
    pub fn plus(mut self, offset: i64) -> Address {
        self.offset += offset;
        self
    }
}

/// Read-modify-write operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Atomic {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
}

impl Atomic {
    fn name(self) -> &'static str {
        match self {
            Atomic::Add => "add",
            Atomic::Min => "min",
            Atomic::Max => "max",
            Atomic::And => "and",
            Atomic::Or => "or",
            Atomic::Xor => "xor",
            Atomic::Exchange => "exch",
        }
    }
}

impl FunctionBuilder {
    pub(super) fn address(&mut self, opcode: &str, address: Address) -> Operand {
        match address.base {
            Base::Reg(reg) => {
                // Shared addresses may be 32 bits wide; everything else is 64.
                let shared = opcode.contains(".shared") && reg.ty().bits() == 32;
                self.expect_type(opcode, if shared { Type::B32 } else { Type::B64 }, reg);
                Operand::address(reg.name(), address.offset)
            }
            Base::Symbol(name) => Operand::address(name, address.offset),
        }
    }

    /// Reads a parameter of a fundamental type.
    pub fn load_param(&mut self, param: &Param) -> Reg {
        self.load(Space::Param, param.ty(), param.at(0))
    }

    /// Loads a value. Narrow types are extended to 32 bits.
    pub fn load(&mut self, space: Space, ty: Type, address: impl Into<Address>) -> Reg {
        self.load_with(&format!("ld.{}", space.name()), ty, address)
    }

    /// Loads a value through the read-only path; the kernel must not write it.
    pub fn load_constant(&mut self, ty: Type, address: impl Into<Address>) -> Reg {
        self.load_with("ld.global.nc", ty, address)
    }

    /// Loads with any form of `ld`: `ld.acquire.gpu.global`, `ld.volatile.shared`, …
    pub fn load_with(&mut self, opcode: &str, ty: Type, address: impl Into<Address>) -> Reg {
        let result = self.register(ty);
        self.load_into(opcode, ty, result, address);
        result
    }

    /// Loads into an existing register; where a guard fails, the register keeps its value.
    pub fn load_into(&mut self, opcode: &str, ty: Type, to: Reg, address: impl Into<Address>) {
        let full = format!("{opcode}.{}", ty.name());
        self.expect_type(&full, ty, to);
        let address = self.address(&full, address.into());
        self.emit(&full, vec![Operand::Name(to.name()), address]);
    }

    /// Loads `count` (2 or 4) adjacent values at once; the address must be aligned to their total size.
    pub fn load_vector(&mut self, opcode: &str, count: u32, ty: Type, address: impl Into<Address>) -> Vec<Reg> {
        let full = self.vector_opcode(opcode, count, ty);
        let results: Vec<Reg> = (0..count).map(|_| self.register(ty)).collect();
        let address = self.address(&full, address.into());
        let names = results.iter().map(|result| Operand::Name(result.name())).collect();
        self.emit(&full, vec![Operand::Vector(names), address]);
        results
    }

    fn vector_opcode(&mut self, opcode: &str, count: u32, ty: Type) -> String {
        let full = format!("{opcode}.v{count}.{}", ty.name());
        if !matches!(count, 2 | 4) || ty.bytes() * count > 16 {
            self.refuse(format!("{full} does not exist: vectors have 2 or 4 elements and at most 16 bytes"));
        }
        full
    }

    /// Stores a value, truncated to the type.
    pub fn store(&mut self, space: Space, ty: Type, address: impl Into<Address>, value: impl Into<Value>) {
        self.store_with(&format!("st.{}", space.name()), ty, address, value);
    }

    /// Stores with any form of `st`: `st.release.gpu.global`, `st.volatile.shared`, …
    pub fn store_with(&mut self, opcode: &str, ty: Type, address: impl Into<Address>, value: impl Into<Value>) {
        let full = format!("{opcode}.{}", ty.name());
        let address = self.address(&full, address.into());
        let value = self.operand(&full, ty, value.into());
        self.emit(&full, vec![address, value]);
    }

    /// Stores 2 or 4 adjacent values at once; the address must be aligned to their total size.
    pub fn store_vector(&mut self, opcode: &str, ty: Type, address: impl Into<Address>, values: &[Reg]) {
        let full = self.vector_opcode(opcode, values.len() as u32, ty);
        let address = self.address(&full, address.into());
        let values = values.iter().map(|&value| self.operand(&full, ty, Value::Reg(value))).collect();
        self.emit(&full, vec![address, Operand::Vector(values)]);
    }

    /// Reads, combines and writes atomically; returns the old value.
    pub fn atomic(
        &mut self,
        op: Atomic,
        space: Space,
        ty: Type,
        address: impl Into<Address>,
        value: impl Into<Value>,
    ) -> Reg {
        self.atomic_with(&format!("atom.{}", space.name()), op, ty, address, value)
    }

    /// Like [`Self::atomic`] with any form of `atom`: `atom.acq_rel.gpu.global`, …
    pub fn atomic_with(
        &mut self,
        opcode: &str,
        op: Atomic,
        ty: Type,
        address: impl Into<Address>,
        value: impl Into<Value>,
    ) -> Reg {
        let full = self.atomic_opcode(opcode, op, ty);
        let result = self.register(ty);
        let address = self.address(&full, address.into());
        let value = self.operand(&full, ty, value.into());
        self.emit(&full, vec![Operand::Name(result.name()), address, value]);
        result
    }

    /// Like [`Self::atomic`] without a result, which is cheaper.
    pub fn reduce(&mut self, op: Atomic, space: Space, ty: Type, address: impl Into<Address>, value: impl Into<Value>) {
        let full = self.atomic_opcode(&format!("red.{}", space.name()), op, ty);
        let address = self.address(&full, address.into());
        let value = self.operand(&full, ty, value.into());
        self.emit(&full, vec![address, value]);
    }

    fn atomic_opcode(&mut self, opcode: &str, op: Atomic, ty: Type) -> String {
        let bits = ty.kind() == TypeKind::Bits;
        let right = match op {
            Atomic::And | Atomic::Or | Atomic::Xor | Atomic::Exchange => bits,
            Atomic::Add => matches!(ty, Type::U32 | Type::S32 | Type::U64 | Type::F32 | Type::F64),
            Atomic::Min | Atomic::Max => !bits && !ty.is_float(),
        };
        let full = format!("{opcode}.{}.{}", op.name(), ty.name());
        if !right || ty.bits() < 32 || ty == Type::Pred {
            self.refuse(format!("{full} does not exist"));
        }
        full
    }

    /// Writes `new` if the current value equals `expected`; returns the old value.
    pub fn compare_exchange(
        &mut self,
        space: Space,
        ty: Type,
        address: impl Into<Address>,
        expected: impl Into<Value>,
        new: impl Into<Value>,
    ) -> Reg {
        self.compare_exchange_with(&format!("atom.{}", space.name()), ty, address, expected, new)
    }

    /// Like [`Self::compare_exchange`] with any form of `atom`, such as `atom.acq_rel.gpu.global`.
    pub fn compare_exchange_with(
        &mut self,
        opcode: &str,
        ty: Type,
        address: impl Into<Address>,
        expected: impl Into<Value>,
        new: impl Into<Value>,
    ) -> Reg {
        let full = format!("{opcode}.cas.{}", ty.name());
        self.expect_kind(&full, ty, &[TypeKind::Bits]);
        let result = self.register(ty);
        let address = self.address(&full, address.into());
        let operands = vec![
            Operand::Name(result.name()),
            address,
            self.operand(&full, ty, expected.into()),
            self.operand(&full, ty, new.into()),
        ];
        self.emit(&full, operands);
        result
    }

    /// Memory fence of a kind: `acq_rel.gpu`, `sc.sys`, …
    pub fn fence(&mut self, kind: &str) {
        self.emit(&format!("fence.{kind}"), Vec::new());
    }

    /// The address of a variable in its own space, 64 bits wide.
    pub fn symbol_address(&mut self, symbol: &Symbol) -> Reg {
        let result = self.register(Type::U64);
        self.emit("mov.u64", vec![Operand::Name(result.name()), Operand::Name(symbol.name().to_string())]);
        result
    }

    /// `base + index * size`: `index` is `U32`, `S32`, `U64` or `S64`; `base` is `U64`.
    pub fn element(&mut self, base: Reg, index: Reg, size: u32) -> Reg {
        match index.ty() {
            Type::U32 => self.mad_wide(index, size, base),
            Type::S32 => self.mad_wide(index, size, base.view(Type::S64)).view(Type::U64),
            Type::U64 => self.mad(index, u64::from(size), base),
            Type::S64 => self.mad(index.view(Type::U64), u64::from(size), base),
            other => {
                self.refuse(format!("element: an index of type {}", other.name()));
                base
            }
        }
    }
}
