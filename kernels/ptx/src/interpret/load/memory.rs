//! Decodes loads, stores, atomics and fences.

use super::body::{Body, Place};
use crate::ast::{Instruction, Operand, Type, TypeKind};
use crate::interpret::alu::Source;
use crate::interpret::image::LoadError;
use crate::interpret::op::*;

/// Modifiers that affect caching or timing only, not results.
fn is_hint(modifier: &str) -> bool {
    matches!(modifier, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc" | "unified" | "noftz" | "weak")
        || modifier.starts_with("L1::")
        || modifier.starts_with("L2::")
        || modifier.starts_with("level::")
}

impl Body<'_> {
    /// Collects the ordering modifiers of a memory instruction; `rest` must accept all others.
    fn strength(
        &self,
        instruction: &Instruction,
        default: Strength,
        rest: impl Fn(&str) -> bool,
    ) -> Result<Strength, LoadError> {
        let mut strength = default;
        let mut scope = None;
        for modifier in &instruction.opcode.modifiers {
            match modifier.as_str() {
                "volatile" | "relaxed" | "mmio" => strength.scope = Some(Scope::Device),
                "acquire" => strength = Strength { acquire: true, scope: Some(Scope::Device), ..strength },
                "release" => strength = Strength { release: true, scope: Some(Scope::Device), ..strength },
                "acq_rel" => strength = Strength { scope: Some(Scope::Device), acquire: true, release: true },
                "cta" => scope = Some(Scope::Block),
                "gpu" | "sys" | "cluster" => scope = Some(Scope::Device),
                "global" | "shared" | "shared::cta" | "local" | "const" | "param" | "param::entry" | "param::func"
                | "v2" | "v4" => {}
                other if is_hint(other) || Type::from_name(other).is_some() || rest(other) => {}
                other => return self.fail(format!("the modifier `.{other}` is not known")),
            }
        }
        if let (Some(scope), Some(_)) = (scope, strength.scope) {
            strength.scope = Some(scope);
        }
        Ok(strength)
    }

    fn memory_space(&self, instruction: &Instruction, place: &Place) -> MemorySpace {
        use crate::ast::Space;
        match (instruction.opcode.space(), place.space) {
            // The space of a symbol takes precedence: `.param` in a body is part of the frame, `[symbol]` needs no
            // space.
            (_, Some(space @ (MemorySpace::Local { .. } | MemorySpace::Param))) => space,
            (None, Some(space)) => space,
            (Some(Space::Global), _) => MemorySpace::Global,
            (Some(Space::Const), _) => MemorySpace::Const,
            (Some(Space::Shared), _) => MemorySpace::Shared,
            (Some(Space::Local), _) => MemorySpace::Local { frame: false },
            (Some(Space::Param), _) if self.kernel => MemorySpace::Param,
            (Some(Space::Param), _) => MemorySpace::Local { frame: false },
            (Some(Space::Reg) | None, None) => MemorySpace::Generic,
            (Some(Space::Reg), Some(space)) => space,
        }
    }

    fn element(&self, instruction: &Instruction) -> Result<Type, LoadError> {
        match instruction.opcode.types().collect::<Vec<_>>().as_slice() {
            [ty] if *ty != Type::Pred && ty.bytes() <= 8 => Ok(*ty),
            _ => self.fail("needs one type of 8 to 64 bits"),
        }
    }

    pub fn load(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        let [to, from] = instruction.operands.as_slice() else { return self.fail("takes a register and an address") };
        let strength = self.strength(instruction, Strength::WEAK, |_| false)?;
        let ty = self.element(instruction)?;
        let count = instruction.opcode.vector();
        let list = match to {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != count as usize {
            return self.fail(format!("has {} registers for {count} elements", list.len()));
        }
        let mut values = [Source::register(SINK); 4];
        let mut extend = 0;
        for (value, operand) in values.iter_mut().zip(list) {
            if *operand == Operand::Sink {
                continue;
            }
            let (row, bits) = self.destination_bits(operand)?;
            if bits < ty.bits() {
                return self.fail(format!("a register of {bits} bits cannot take {} bits", ty.bits()));
            }
            if ty.is_signed() && bits > ty.bits() {
                extend = bits as u8;
            }
            *value = Source::register(row);
        }
        let place = self.place(from)?;
        let space = self.memory_space(instruction, &place);
        Ok(Op::Load(Access {
            base: place.base,
            narrow: place.narrow,
            offset: place.offset,
            space,
            size: ty.bytes() as u8,
            count,
            extend,
            strength,
            values,
        }))
    }

    pub fn store(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        let [to, from] = instruction.operands.as_slice() else { return self.fail("takes an address and a value") };
        let strength = self.strength(instruction, Strength::WEAK, |_| false)?;
        let ty = self.element(instruction)?;
        let count = instruction.opcode.vector();
        let list = match from {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != count as usize {
            return self.fail(format!("has {} values for {count} elements", list.len()));
        }
        let mut values = [Source::register(SINK); 4];
        for (value, operand) in values.iter_mut().zip(list) {
            *value = self.value(operand)?;
        }
        let place = self.place(to)?;
        let space = self.memory_space(instruction, &place);
        Ok(Op::Store(Access {
            base: place.base,
            narrow: place.narrow,
            offset: place.offset,
            space,
            size: ty.bytes() as u8,
            count,
            extend: 0,
            strength,
            values,
        }))
    }

    pub fn atomic(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        const KINDS: [&str; 10] = ["exch", "cas", "add", "min", "max", "and", "or", "xor", "inc", "dec"];
        let is_red = instruction.opcode.name == "red";
        let (to, rest) = match instruction.operands.as_slice() {
            rest if is_red => (SINK, rest),
            [to, rest @ ..] => (self.destination(to)?, rest),
            [] => return self.fail("takes a register, an address and a value"),
        };
        let strength = self.strength(instruction, Strength::RELAXED, |modifier| KINDS.contains(&modifier))?;
        let ty = self.element(instruction)?;
        if instruction.opcode.vector() != 1 {
            return self.fail("vector atomics need a newer target than sm_70");
        }
        let Some(name) = instruction.opcode.modifiers.iter().find(|modifier| KINDS.contains(&modifier.as_str())) else {
            return self.fail(format!("names none of the operations {KINDS:?}"));
        };
        let bits = ty.bits();
        let word = bits == 32 || bits == 64;
        let kind = match (name.as_str(), ty) {
            ("exch", _) if word && ty.kind() == TypeKind::Bits && !is_red => AtomicKind::Exchange,
            ("cas", Type::B16 | Type::B32 | Type::B64 | Type::U32 | Type::U64 | Type::S32) if !is_red => {
                AtomicKind::CompareSwap
            }
            ("add", Type::U32 | Type::S32 | Type::U64 | Type::S64) => AtomicKind::Add,
            ("add", Type::F16) => AtomicKind::AddF16,
            ("add", Type::F16x2) => AtomicKind::AddF16x2,
            ("add", Type::BF16) => AtomicKind::AddBf16,
            ("add", Type::BF16x2) => AtomicKind::AddBf16x2,
            ("add", Type::F32) => AtomicKind::AddF32,
            ("add", Type::F64) => AtomicKind::AddF64,
            ("min", Type::S32 | Type::S64) => AtomicKind::MinSigned,
            ("min", Type::U32 | Type::U64) => AtomicKind::MinUnsigned,
            ("max", Type::S32 | Type::S64) => AtomicKind::MaxSigned,
            ("max", Type::U32 | Type::U64) => AtomicKind::MaxUnsigned,
            ("and", Type::B32 | Type::B64) => AtomicKind::And,
            ("or", Type::B32 | Type::B64) => AtomicKind::Or,
            ("xor", Type::B32 | Type::B64) => AtomicKind::Xor,
            ("inc", Type::U32) => AtomicKind::Increment,
            ("dec", Type::U32) => AtomicKind::Decrement,
            _ => return self.fail(format!("`.{name}` has no form for .{}", ty.name())),
        };
        let (address, operand, second) = match (rest, kind) {
            ([address, operand, second], AtomicKind::CompareSwap) => (address, operand, Some(second)),
            ([address, operand], kind) if kind != AtomicKind::CompareSwap => (address, operand, None),
            _ => return self.fail("has the wrong number of operands"),
        };
        let operand = self.value(operand)?;
        let second = match second {
            Some(second) => self.value(second)?,
            None => operand,
        };
        let place = self.place(address)?;
        let space = self.memory_space(instruction, &place);
        if !matches!(space, MemorySpace::Generic | MemorySpace::Global | MemorySpace::Shared) {
            return self.fail("atomics work on global and shared memory");
        }
        Ok(Op::Atomic(Box::new(Atomic {
            base: place.base,
            narrow: place.narrow,
            offset: place.offset,
            space,
            size: ty.bytes() as u8,
            kind,
            strength,
            to,
            operand,
            second,
        })))
    }

    pub fn fence(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        let mut scope = None;
        // From sm_70 on, `membar` means `fence.sc`.
        let mut sequential = instruction.opcode.name == "membar";
        for modifier in &instruction.opcode.modifiers {
            match modifier.as_str() {
                "cta" => scope = Some(Scope::Block),
                "gl" | "gpu" | "sys" | "cluster" => scope = Some(Scope::Device),
                "sc" => sequential = true,
                "acq_rel" | "acquire" | "release" => {}
                "proxy" => return Ok(Op::Nothing),
                other => return self.fail(format!("the modifier `.{other}` is not known")),
            }
        }
        match scope {
            Some(scope) => Ok(Op::Fence { scope, sequential }),
            None => self.fail("names no scope"),
        }
    }
}
