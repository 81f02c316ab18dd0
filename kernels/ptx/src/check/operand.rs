//! Checks the operands of one instruction from left to right.
//!
//!   add.s32 %r1, %r2, 5     destination(S32) · source(S32) · source(S32) · finish
//!
//! A message contains the wrong operand and its requirement; the caller adds the instruction and its position.

use super::{Checker, Entity};
use crate::ast::*;

pub(super) type Checked<T = ()> = Result<T, String>;

/// How strictly a register's type must agree with the instruction's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// Equal width.
    Equal,
    /// The register may be wider (ld, st, cvt).
    AtLeast,
}

pub(super) struct Operands<'c, 'a> {
    checker: &'c Checker<'a>,
    all: &'a [Operand],
    rest: &'a [Operand],
}

/// Whether a register of type `register` may be used as an operand of type `wanted`.
fn agrees(register: Type, wanted: Type, width: Width) -> bool {
    use TypeKind::*;
    let kinds = match (wanted.kind(), register.kind()) {
        (Predicate, Predicate) => return true,
        (Predicate, _) | (_, Predicate) => return false,
        (Bits, _) | (Unsigned | Signed, Bits | Unsigned | Signed) | (Float, Bits) => true,
        // A float operand needs a float register of exactly its width.
        (Float, Float) => return register.bits() == wanted.bits(),
        (Float, _) | (Unsigned | Signed, Float) => false,
    };
    let widths = match width {
        Width::Equal => register.bits() == wanted.bits(),
        Width::AtLeast => register.bits() >= wanted.bits(),
    };
    kinds && widths
}

/// Type of a special register readable by `mov`.
fn special(name: &str) -> Option<Type> {
    let (stem, component) = name.split_once('.').map_or((name, None), |(stem, component)| (stem, Some(component)));
    match stem {
        "%tid" | "%ntid" | "%ctaid" | "%nctaid" => {
            component.filter(|c| matches!(*c, "x" | "y" | "z")).map(|_| Type::U32)
        }
        _ if component.is_some() => None,
        "%laneid" | "%warpid" | "%nwarpid" | "%smid" | "%nsmid" | "%lanemask_eq" | "%lanemask_le" | "%lanemask_lt"
        | "%lanemask_ge" | "%lanemask_gt" | "%clock" | "%clock_hi" | "%globaltimer_lo" | "%globaltimer_hi"
        | "%dynamic_smem_size" | "%total_smem_size" | "WARP_SZ" => Some(Type::U32),
        "%gridid" | "%clock64" | "%globaltimer" => Some(Type::U64),
        _ => None,
    }
}

impl<'c, 'a> Operands<'c, 'a> {
    pub(super) fn new(checker: &'c Checker<'a>, instruction: &'a Instruction) -> Operands<'c, 'a> {
        Operands { checker, all: &instruction.operands, rest: &instruction.operands }
    }

    /// The next operand; an error if there is none.
    pub(super) fn next(&mut self) -> Checked<&'a Operand> {
        let [first, rest @ ..] = self.rest else { return Err(format!("{} operands are too few", self.all.len())) };
        self.rest = rest;
        Ok(first)
    }

    pub(super) fn peek(&self) -> Option<&'a Operand> {
        self.rest.first()
    }

    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Checks that no operand is left.
    pub(super) fn finish(&self) -> Checked {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(format!("{} operands are {extra} too many", self.all.len())),
        }
    }

    /// The type of the register called `name`.
    fn register(&self, name: &str) -> Checked<Type> {
        // `%v.x` is a component of a vector register.
        if let Some((stem, _)) = name.split_once('.')
            && special(name).is_none()
        {
            return match self.checker.find(stem) {
                Some(Entity::Register(register)) if register.vector.is_some() => Ok(register.ty),
                Some(_) => Err(format!("{stem} is no vector register")),
                None => Err(format!("{stem} is not declared")),
            };
        }
        match self.checker.find(name) {
            Some(Entity::Register(register)) if register.vector.is_some() => Err(format!("{name} is a whole vector")),
            Some(Entity::Register(register)) => Ok(register.ty),
            Some(_) => Err(format!("{name} is no register")),
            None if special(name).is_some() => Err(format!("{name} can only be read by mov")),
            None => Err(format!("{name} is not declared")),
        }
    }

    fn expect_register(&self, name: &str, wanted: Type, width: Width) -> Checked {
        let found = self.register(name)?;
        if agrees(found, wanted, width) {
            return Ok(());
        }
        let than = if width == Width::AtLeast { " or wider" } else { "" };
        Err(format!("{name} is .{}, where .{}{than} is wanted", found.name(), wanted.name()))
    }

    /// A destination register, or `_` if the instruction allows discarding the result.
    pub(super) fn destination(&mut self, wanted: Type) -> Checked {
        let operand = self.next()?;
        self.expect_destination(operand, wanted, Width::Equal)
    }

    pub(super) fn destination_or_sink(&mut self, wanted: Type) -> Checked {
        match self.next()? {
            Operand::Sink => Ok(()),
            operand => self.expect_destination(operand, wanted, Width::Equal),
        }
    }

    pub(super) fn expect_destination(&self, operand: &Operand, wanted: Type, width: Width) -> Checked {
        match operand {
            Operand::Name(name) => self.expect_register(name, wanted, width),
            other => Err(format!("{other} is no register to write .{} to", wanted.name())),
        }
    }

    /// `d` or `d|p`, where `p` is a predicate.
    pub(super) fn destination_and_predicate(&mut self, wanted: Type) -> Checked {
        match self.next()? {
            Operand::Pair(first, second) => {
                if **first != Operand::Sink {
                    self.expect_destination(first, wanted, Width::Equal)?;
                }
                match &**second {
                    Operand::Sink => Ok(()),
                    second => self.expect_destination(second, Type::Pred, Width::Equal),
                }
            }
            operand => self.expect_destination(operand, wanted, Width::Equal),
        }
    }

    /// A register or an immediate to read.
    pub(super) fn source(&mut self, wanted: Type) -> Checked {
        let operand = self.next()?;
        self.expect_source(operand, wanted, Width::Equal)
    }

    pub(super) fn expect_source(&self, operand: &Operand, wanted: Type, width: Width) -> Checked {
        match operand {
            Operand::Name(name) if name == "WARP_SZ" => {
                if wanted.is_float() || wanted == Type::Pred {
                    return Err(format!("WARP_SZ is an integer, where .{} is wanted", wanted.name()));
                }
                Ok(())
            }
            Operand::Name(name) => self.expect_register(name, wanted, width),
            Operand::Integer(value) => {
                if wanted.is_float() {
                    return Err(format!("{value} is an integer, where .{} is wanted", wanted.name()));
                }
                let bits = wanted.bits();
                let fits = match wanted {
                    // Any value but 0 is true; compilers write -1.
                    Type::Pred => true,
                    _ => bits >= 64 || (-(1i128 << (bits - 1))..1i128 << bits).contains(value),
                };
                if fits { Ok(()) } else { Err(format!("{value} does not fit .{}", wanted.name())) }
            }
            Operand::F32(_) if matches!(wanted, Type::F32 | Type::B32) => Ok(()),
            Operand::F64(_) if matches!(wanted, Type::F64 | Type::B64 | Type::F32) => Ok(()),
            other => Err(format!("{other} is no value of .{}", wanted.name())),
        }
    }

    /// A predicate to read, negated or not.
    pub(super) fn predicate(&mut self) -> Checked {
        match self.next()? {
            Operand::Not(inner) => match &**inner {
                Operand::Name(name) => self.expect_register(name, Type::Pred, Width::Equal),
                other => Err(format!("{other} is no predicate")),
            },
            operand => self.expect_source(operand, Type::Pred, Width::Equal),
        }
    }

    /// The source of a `mov`: a value, a special register, or the address of a symbol.
    pub(super) fn movable(&mut self, wanted: Type) -> Checked {
        let operand = self.next()?;
        let (name, symbol_only) = match operand {
            Operand::Name(name) => (name, false),
            Operand::SymbolOffset { name, .. } => (name, true),
            other => return self.expect_source(other, wanted, Width::Equal),
        };
        let address = |what: &str| match wanted {
            Type::U64 | Type::B64 | Type::S64 => Ok(()),
            Type::U32 | Type::B32 | Type::S32 if what == "shared" => Ok(()),
            _ => Err(format!("the address of {name} is 64 bits, where .{} is wanted", wanted.name())),
        };
        if let (Some(ty), false) = (special(name), symbol_only) {
            return if agrees(ty, wanted, Width::Equal) {
                Ok(())
            } else {
                Err(format!("{name} is .{}, where .{} is wanted", ty.name(), wanted.name()))
            };
        }
        match self.checker.find(name) {
            Some(Entity::Memory(variable) | Entity::Parameter(variable)) => address(variable.space.name()),
            Some(Entity::Function(_)) if !symbol_only => address("function"),
            _ if symbol_only => Err(format!("{name} is no variable")),
            _ => self.expect_register(name, wanted, Width::Equal),
        }
    }

    /// `[base+offset]` in `space` for an access of `bytes`; no space means a generic address.
    pub(super) fn address(&mut self, space: Option<Space>, bytes: u64) -> Checked {
        let Operand::Address { base, offset } = self.next()? else {
            return Err("an address in brackets is wanted".to_string());
        };
        let AddressBase::Name(name) = base else { return Ok(()) };
        let variable = match self.checker.find(name) {
            Some(Entity::Memory(variable) | Entity::Parameter(variable)) => variable,
            _ => {
                let ty = self.register(name)?;
                let integer = matches!(ty.kind(), TypeKind::Bits | TypeKind::Unsigned | TypeKind::Signed);
                // Spaces of at most 2³² bytes may be addressed by 32-bit registers.
                let narrow = ty.bits() == 32 && matches!(space, Some(Space::Shared | Space::Local | Space::Const));
                // Parameters of a kernel have addresses; parameters of a function may be registers.
                let entry = self.checker.function.is_some_and(|function| function.kind == FunctionKind::Entry);
                return if integer && (ty.bits() == 64 || narrow) && (space != Some(Space::Param) || entry) {
                    Ok(())
                } else {
                    Err(format!("{name} is .{}, which holds no address of this space", ty.name()))
                };
            }
        };
        match space {
            Some(space) if space == variable.space => {}
            Some(space) => return Err(format!("{name} is .{}, not .{}", variable.space.name(), space.name())),
            None => return Err(format!("{name} is .{}, not a generic address", variable.space.name())),
        }
        let unsized_array = variable.dims.first() == Some(&0) && variable.init.is_none();
        let Some(size) = variable.size().filter(|_| !unsized_array) else { return Ok(()) };
        let end = i128::from(*offset) + i128::from(bytes);
        if *offset < 0 || end > i128::from(size) {
            return Err(format!("bytes {offset}..{end} are outside {name}, which has {size}"));
        }
        Ok(())
    }

    pub(super) fn label(&mut self) -> Checked {
        match self.next()? {
            Operand::Name(name) => match self.checker.find(name) {
                Some(Entity::Label) => Ok(()),
                Some(_) => Err(format!("{name} is no label")),
                None => Err(format!("{name} is no label in this scope")),
            },
            other => Err(format!("{other} is no label")),
        }
    }

    pub(super) fn branch_targets(&mut self) -> Checked {
        match self.next()? {
            Operand::Name(name) if matches!(self.checker.find(name), Some(Entity::Branches)) => Ok(()),
            other => Err(format!("{other} names no .branchtargets")),
        }
    }

    /// All operands of a call.
    pub(super) fn call(&mut self) -> Checked {
        let whole = Instruction::new("call", self.all.to_vec());
        let Some(call) = whole.call() else { return Err("this call lacks a target".to_string()) };
        self.rest = &[];
        let (returns, params) = match (self.checker.find(call.target), call.prototype) {
            (Some(Entity::Function(function)), None) if function.kind == FunctionKind::Func => {
                (function.returns.as_slice(), function.params.as_slice())
            }
            (Some(Entity::Function(_)), _) => return Err(format!("{} is not called this way", call.target)),
            (Some(Entity::Register(register)), Some(prototype)) => {
                if !agrees(register.ty, Type::U64, Width::Equal) {
                    return Err(format!("{} is .{}, which holds no function", call.target, register.ty.name()));
                }
                match self.checker.find(prototype) {
                    Some(Entity::Prototype(returns, params)) => (returns, params),
                    Some(Entity::CallTargets) => return Ok(()),
                    _ => return Err(format!("{prototype} names no .callprototype or .calltargets")),
                }
            }
            (Some(Entity::Register(_)), None) => return Err("an indirect call needs its prototype".to_string()),
            (Some(_), _) => return Err(format!("{} is no function", call.target)),
            (None, _) => return Err(format!("{} is no function declared before", call.target)),
        };
        for (what, given, wanted) in [("results", call.returns, returns), ("arguments", call.arguments, params)] {
            if given.len() != wanted.len() {
                return Err(format!("{} takes {} {what}, not {}", call.target, wanted.len(), given.len()));
            }
            for (given, wanted) in given.iter().zip(wanted) {
                self.argument(given, wanted, what == "arguments")?;
            }
        }
        Ok(())
    }

    fn argument(&self, given: &Operand, wanted: &Variable, readable: bool) -> Checked {
        if let Operand::Name(name) = given
            && let Some(Entity::Memory(variable) | Entity::Parameter(variable)) = self.checker.find(name)
        {
            return if variable.space != Space::Param {
                Err(format!("{name} is .{}, not .param", variable.space.name()))
            } else if variable.size() != wanted.size() {
                let bytes = |v: &Variable| v.size().map_or("too many".to_string(), |bytes| bytes.to_string());
                Err(format!("{name} has {} bytes, where {} are wanted", bytes(variable), bytes(wanted)))
            } else {
                Ok(())
            };
        }
        match given {
            Operand::Sink if !readable => Ok(()),
            _ if !wanted.dims.is_empty() => Err(format!("{given} is no .param array")),
            _ if readable => self.expect_source(given, wanted.ty, Width::Equal),
            _ => self.expect_destination(given, wanted.ty, Width::Equal),
        }
    }
}
