//! Decodes an instruction of the syntax tree into an [`AluOp`]: its form and its rows.
//!
//!   mad.lo.s32 %r4, %r1, 7, %r2   name `mad` selects a family · its function takes the modifiers `lo` and `s32`,
//!                                 operand 0 as a 32-bit destination, 1…3 as .s32 sources · any rest is an error
//!
//! Types   an operand has exactly the width of its type; only the width is checked, as in PTX. `cvt` alone may use
//!         wider registers.
//! Order   modifiers are accepted in any order.

use super::{AluError, AluOp, Names, Register, Run, Source};
use super::{approx, bits, carry, compare, convert, float, integer, moves};
use crate::ast::{Instruction, Operand, Type, TypeKind};

/// Decodes `instruction`. Returns `None` if it is not arithmetic: memory, control flow, exchange between lanes, or a
/// `mov` of a symbol or special register; the machine runs those itself.
pub fn decode(instruction: &Instruction, names: &mut dyn Names) -> Option<Result<AluOp, AluError>> {
    let opcode = &instruction.opcode;
    let family: fn(&mut Decoder) -> Result<AluOp, String> = match opcode.name.as_str() {
        "add" | "sub" if opcode.has("cc") => carry::decode,
        "mad" if opcode.has("cc") => carry::decode,
        "addc" | "subc" | "madc" => carry::decode,
        "add" | "sub" | "mul" | "mad" | "div" | "abs" | "neg" | "min" | "max"
            if opcode.types().next().is_some_and(Type::is_float) =>
        {
            float::decode
        }
        "fma" | "copysign" | "testp" => float::decode,
        "sqrt" | "rcp" if !opcode.has("approx") => float::decode,
        "sqrt" | "rcp" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => approx::decode,
        "add" | "sub" | "mul" | "mad" | "mul24" | "mad24" | "sad" | "div" | "rem" | "abs" | "neg" | "min" | "max" => {
            integer::decode
        }
        "dp4a" | "dp2a" => integer::decode,
        "popc" | "clz" | "bfind" | "fns" | "brev" | "bfe" | "bfi" | "bmsk" | "szext" | "prmt" | "lop3" | "shf"
        | "shl" | "shr" | "and" | "or" | "xor" | "not" | "cnot" => bits::decode,
        "set" | "setp" | "selp" | "slct" => compare::decode,
        "mov" if moves::is_between_registers(instruction, names) => moves::decode,
        "cvt" => convert::decode,
        _ => return None,
    };
    let mut decoder = Decoder {
        instruction,
        names,
        modifiers: opcode.modifiers.iter().map(String::as_str).collect(),
        num_modifiers: opcode.modifiers.len(),
    };
    Some(family(&mut decoder).map_err(|reason| AluError {
        line: instruction.span.line,
        instruction: instruction.to_string(),
        reason,
    }))
}

pub(super) struct Decoder<'a> {
    pub instruction: &'a Instruction,
    pub names: &'a mut dyn Names,
    /// Modifiers not taken so far.
    modifiers: Vec<&'a str>,
    num_modifiers: usize,
}

impl<'a> Decoder<'a> {
    pub fn name(&self) -> &'a str {
        &self.instruction.opcode.name
    }

    /// Removes the modifier `name`; returns whether it was present.
    pub fn flag(&mut self, name: &str) -> bool {
        let found = self.modifiers.iter().position(|m| *m == name);
        if let Some(index) = found {
            self.modifiers.remove(index);
        }
        found.is_some()
    }

    /// Removes the first modifier in `table` and returns its value.
    pub fn choice<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        let (index, value) = self
            .modifiers
            .iter()
            .enumerate()
            .find_map(|(index, m)| table.iter().find(|(name, _)| name == m).map(|(_, value)| (index, *value)))?;
        self.modifiers.remove(index);
        Some(value)
    }

    /// Removes all type modifiers, in order.
    pub fn types(&mut self) -> Vec<Type> {
        let mut types = Vec::new();
        self.modifiers.retain(|m| match Type::from_name(m) {
            Some(ty) => {
                types.push(ty);
                false
            }
            None => true,
        });
        types
    }

    pub fn one_type(&mut self) -> Result<Type, String> {
        match self.types()[..] {
            [ty] => Ok(ty),
            ref types => Err(format!("has {} types; `{}` takes one", types.len(), self.name())),
        }
    }

    pub fn two_types(&mut self) -> Result<(Type, Type), String> {
        match self.types()[..] {
            [first, second] => Ok((first, second)),
            ref types => Err(format!("has {} types; `{}` takes two", types.len(), self.name())),
        }
    }

    /// Error message for a type, with the supported types.
    pub fn no_type(&self, ty: Type, known: &str) -> String {
        let mut form = self.name().to_string();
        for modifier in &self.instruction.opcode.modifiers {
            if Type::from_name(modifier).is_none() {
                form.push('.');
                form.push_str(modifier);
            }
        }
        format!("has no .{} form; `{form}` takes {known}", ty.name())
    }

    /// Fails if a modifier is left.
    pub fn end(&self) -> Result<(), String> {
        match self.modifiers.first() {
            None => Ok(()),
            Some(modifier) if self.num_modifiers == 0 => Err(format!("needs a type, found .{modifier}")),
            Some(modifier) => Err(format!("cannot have .{modifier} in this form")),
        }
    }

    /// Fails unless there are `count` operands.
    pub fn operands(&self, count: usize) -> Result<(), String> {
        match self.instruction.operands.len() {
            found if found == count => Ok(()),
            found => Err(format!("has {found} operands; this form takes {count}")),
        }
    }

    /// The operand as a register of any width.
    pub fn register(&mut self, operand: &Operand) -> Result<Register, String> {
        match operand {
            Operand::Name(name) => {
                self.names.register(name).ok_or_else(|| format!("names `{name}`, which is not a register"))
            }
            _ => Err("has an operand that must be a register and is not".into()),
        }
    }

    /// Row of the destination operand `index`, which must have `bits` bits.
    pub fn destination(&mut self, index: usize, bits: u32) -> Result<u32, String> {
        let instruction = self.instruction;
        self.destination_of(&instruction.operands[index], bits)
    }

    pub fn destination_of(&mut self, operand: &Operand, bits: u32) -> Result<u32, String> {
        if *operand == Operand::Sink {
            return Ok(self.names.sink());
        }
        let register = self.register(operand)?;
        self.same_width(operand, register, bits)?;
        Ok(register.row)
    }

    fn same_width(&self, operand: &Operand, register: Register, bits: u32) -> Result<(), String> {
        if register.bits == bits {
            return Ok(());
        }
        let Operand::Name(name) = operand else { unreachable!("only names are registers") };
        Err(format!("uses `{name}`, a register of {} bits, where {bits} are needed", register.bits))
    }

    /// Operand `index` as a source of type `ty`: a register of its width, or an immediate.
    pub fn source(&mut self, index: usize, ty: Type) -> Result<Source, String> {
        let instruction = self.instruction;
        self.source_of(&instruction.operands[index], ty)
    }

    pub fn source_of(&mut self, operand: &Operand, ty: Type) -> Result<Source, String> {
        if let Some(bits) = immediate(operand, ty)? {
            return Ok(Source::constant(self.names.constant(bits)));
        }
        let register = self.register(operand)?;
        self.same_width(operand, register, ty.bits())?;
        Ok(Source::register(register.row))
    }

    /// An immediate integer, for operands that must be constant.
    pub fn constant(&self, index: usize) -> Result<u64, String> {
        match &self.instruction.operands[index] {
            Operand::Integer(value) => Ok(*value as u64),
            _ => Err(format!("needs an integer constant as operand {index}")),
        }
    }

    /// A constant row in place of an omitted optional operand.
    pub fn fill(&mut self, bits: u64) -> Source {
        Source::constant(self.names.constant(bits))
    }

    /// The common form: destination first, then one operand per entry of `sources`.
    pub fn simple(&mut self, run: Run, destination_bits: u32, sources: &[Type]) -> Result<AluOp, String> {
        self.end()?;
        self.operands(1 + sources.len())?;
        let destination = self.destination(0, destination_bits)?;
        let mut rows = Vec::with_capacity(sources.len());
        for (index, &ty) in sources.iter().enumerate() {
            rows.push(self.source(index + 1, ty)?);
        }
        Ok(op(run, &[destination], &rows, 0))
    }
}

/// Builds an operation over these rows.
pub(super) fn op(run: Run, destinations: &[u32], sources: &[Source], detail: u32) -> AluOp {
    // Unused entries repeat the first source, so that every entry is a valid row.
    let mut all_sources = [sources[0]; 5];
    all_sources[..sources.len()].copy_from_slice(sources);
    let mut all_destinations = [destinations[0]; 4];
    all_destinations[..destinations.len()].copy_from_slice(destinations);
    AluOp {
        run,
        destinations: all_destinations,
        sources: all_sources,
        num_destinations: destinations.len() as u8,
        num_sources: sources.len() as u8,
        detail,
    }
}

/// The bits of an immediate operand of type `ty`, or `None` for a name.
fn immediate(operand: &Operand, ty: Type) -> Result<Option<u64>, String> {
    let mask = u64::MAX >> (64 - ty.bits().min(64));
    let wrong = |what: &str| Err(format!("has {what} where a .{} is needed", ty.name()));
    Ok(Some(match (operand, ty) {
        (Operand::Name(name), _) if name != "WARP_SZ" => return Ok(None),
        (Operand::Name(_), ty) if !ty.is_float() => 32,
        (Operand::Integer(value), Type::Pred) => u64::from(*value != 0),
        (Operand::Integer(value), ty) if !ty.is_float() => *value as u64 & mask,
        (Operand::F32(bits), Type::F64) => f64::from(f32::from_bits(*bits)).to_bits(),
        (Operand::F64(bits), Type::F32) => u64::from((f64::from_bits(*bits) as f32).to_bits()),
        (Operand::F32(bits), Type::F32 | Type::B32) => u64::from(*bits),
        (Operand::F64(bits), Type::F64 | Type::B64) => *bits,
        (Operand::Integer(_), _) => return wrong("an integer constant"),
        (Operand::F32(_) | Operand::F64(_), _) => return wrong("a floating-point constant"),
        (Operand::Name(_), _) => return wrong("WARP_SZ"),
        _ => return wrong("an operand of another shape"),
    }))
}

/// The untyped type of equal width.
pub(super) fn untyped(ty: Type) -> Type {
    match (ty.kind(), ty.bits()) {
        (TypeKind::Predicate, _) => Type::Pred,
        (_, 8) => Type::B8,
        (_, 16) => Type::B16,
        (_, 32) => Type::B32,
        (_, 64) => Type::B64,
        _ => Type::B128,
    }
}
