//! Prints a [`Module`] as PTX text in the layout of compilers.
//!
//!   Instruction { @!%p1, ld.global.v2.u32, [{%r1, %r2}, [%rd1 + 8]] }  →  @!%p1 ld.global.v2.u32 {%r1, %r2}, [%rd1+8];
//!
//! Identity   `parse(&module.to_string())` returns an equal module.
//! Floats     are written as their bits, so no value is rounded.

use crate::ast::*;
use std::fmt::{Display, Formatter, Result, Write};

impl Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, ".version {}.{}", self.version.0, self.version.1)?;
        writeln!(f, ".target {}", self.target.join(", "))?;
        writeln!(f, ".address_size {}", self.address_size)?;
        for item in &self.items {
            writeln!(f)?;
            write!(f, "{item}")?;
        }
        Ok(())
    }
}

impl Display for Item {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Item::Variable(variable) => writeln!(f, "{variable};"),
            Item::Function(function) => write!(f, "{function}"),
            Item::Pragma(texts) => writeln!(f, "{}", PragmaText(texts)),
            Item::Alias { name, target, .. } => writeln!(f, ".alias {name}, {target};"),
        }
    }
}

struct PragmaText<'a>(&'a [String]);

impl Display for PragmaText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(".pragma ")?;
        separated(f, self.0, |f, text| write!(f, "\"{text}\""))?;
        f.write_str(";")
    }
}

fn separated<T>(f: &mut Formatter<'_>, list: &[T], one: impl Fn(&mut Formatter<'_>, &T) -> Result) -> Result {
    for (i, item) in list.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        one(f, item)?;
    }
    Ok(())
}

fn parameters(f: &mut Formatter<'_>, list: &[Variable]) -> Result {
    if list.is_empty() {
        return f.write_str("()");
    }
    f.write_str("(\n")?;
    for (i, param) in list.iter().enumerate() {
        writeln!(f, "\t{param}{}", if i + 1 < list.len() { "," } else { "" })?;
    }
    f.write_str(")")
}

impl Display for Linkage {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Linkage::Private => "",
            Linkage::Visible => ".visible ",
            Linkage::Extern => ".extern ",
            Linkage::Weak => ".weak ",
            Linkage::Common => ".common ",
        })
    }
}

/// The declaration without its semicolon.
impl Display for Variable {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}.{} ", self.linkage, self.space.name())?;
        if let Some(align) = self.align {
            write!(f, ".align {align} ")?;
        }
        if let Some(vector) = self.vector {
            write!(f, ".v{vector} ")?;
        }
        write!(f, ".{} ", self.ty.name())?;
        if let Some(pointer) = &self.pointer {
            f.write_str(".ptr ")?;
            if let Some(space) = pointer.space {
                write!(f, ".{} ", space.name())?;
            }
            if let Some(align) = pointer.align {
                write!(f, ".align {align} ")?;
            }
        }
        f.write_str(&self.name)?;
        if let Some(count) = self.count {
            write!(f, "<{count}>")?;
        }
        for &dim in &self.dims {
            if dim == 0 { f.write_str("[]")? } else { write!(f, "[{dim}]")? }
        }
        if let Some(init) = &self.init {
            write!(f, " = {init}")?;
        }
        Ok(())
    }
}

fn symbol(f: &mut Formatter<'_>, name: &str, offset: i64, generic: bool) -> Result {
    if generic {
        write!(f, "generic({name})")?
    } else {
        f.write_str(name)?
    }
    if offset != 0 { write!(f, "+{offset}") } else { Ok(()) }
}

impl Display for Init {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Init::List(list) => {
                f.write_char('{')?;
                separated(f, list, |f, item| write!(f, "{item}"))?;
                f.write_char('}')
            }
            Init::Integer(value) => write!(f, "{value}"),
            Init::F32(bits) => write!(f, "0f{bits:08X}"),
            Init::F64(bits) => write!(f, "0d{bits:016X}"),
            Init::Symbol { name, offset, generic } => symbol(f, name, *offset, *generic),
            Init::Mask { mask, name, offset, generic } => {
                write!(f, "0x{mask:X}(")?;
                symbol(f, name, *offset, *generic)?;
                f.write_char(')')
            }
        }
    }
}

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_fmt(format_args!("{}", self.linkage))?;
        match self.kind {
            FunctionKind::Entry => f.write_str(".entry ")?,
            FunctionKind::Func => f.write_str(".func ")?,
        }
        if !self.returns.is_empty() {
            f.write_char('(')?;
            separated(f, &self.returns, |f, variable| write!(f, "{variable}"))?;
            f.write_str(") ")?;
        }
        f.write_str(&self.name)?;
        parameters(f, &self.params)?;
        for directive in &self.directives {
            write!(f, "\n{directive}")?;
        }
        match &self.body {
            None => f.write_str("\n;\n"),
            Some(body) => {
                f.write_str("\n{\n")?;
                statements(f, body, 1)?;
                f.write_str("}\n")
            }
        }
    }
}

impl Display for Directive {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut extents = |name: &str, list: &[u32]| {
            write!(f, ".{name} ")?;
            separated(f, list, |f, extent| write!(f, "{extent}"))
        };
        match self {
            Directive::MaxThreads(list) => extents("maxntid", list),
            Directive::RequiredThreads(list) => extents("reqntid", list),
            Directive::MinBlocksPerSm(n) => write!(f, ".minnctapersm {n}"),
            Directive::MaxBlocksPerSm(n) => write!(f, ".maxnctapersm {n}"),
            Directive::MaxRegisters(n) => write!(f, ".maxnreg {n}"),
            Directive::NoReturn => f.write_str(".noreturn"),
            Directive::Pragma(texts) => write!(f, "{}", PragmaText(texts)),
        }
    }
}

fn indent(f: &mut Formatter<'_>, depth: usize) -> Result {
    for _ in 0..depth {
        f.write_char('\t')?;
    }
    Ok(())
}

fn statements(f: &mut Formatter<'_>, list: &[Statement], depth: usize) -> Result {
    for statement in list {
        match statement {
            Statement::Label { name, .. } => {
                writeln!(f, "{name}:")?;
                continue;
            }
            Statement::Block(inner) => {
                indent(f, depth)?;
                f.write_str("{\n")?;
                statements(f, inner, depth + 1)?;
                indent(f, depth)?;
                f.write_str("}\n")?;
                continue;
            }
            _ => indent(f, depth)?,
        }
        match statement {
            Statement::Variable(variable) => writeln!(f, "{variable};")?,
            Statement::Instruction(instruction) => writeln!(f, "{instruction};")?,
            Statement::Pragma(texts) => writeln!(f, "{}", PragmaText(texts))?,
            Statement::BranchTargets { name, targets, .. } => {
                writeln!(f, "{name}: .branchtargets {};", targets.join(", "))?;
            }
            Statement::CallTargets { name, targets, .. } => {
                writeln!(f, "{name}: .calltargets {};", targets.join(", "))?;
            }
            Statement::CallPrototype { name, returns, params, no_return, .. } => {
                write!(f, "{name}: .callprototype (")?;
                separated(f, returns, |f, variable| write!(f, "{variable}"))?;
                f.write_str(") _ (")?;
                separated(f, params, |f, variable| write!(f, "{variable}"))?;
                writeln!(f, "){};", if *no_return { " .noreturn" } else { "" })?;
            }
            Statement::Label { .. } | Statement::Block(_) => {}
        }
    }
    Ok(())
}

/// The instruction without its semicolon, on one line, as findings quote it.
impl Display for Instruction {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Some(guard) = &self.guard {
            write!(f, "@{}{} ", if guard.negated { "!" } else { "" }, guard.register)?;
        }
        write!(f, "{}", self.opcode)?;
        if !self.operands.is_empty() {
            f.write_char(' ')?;
            separated(f, &self.operands, |f, operand| write!(f, "{operand}"))?;
        }
        Ok(())
    }
}

impl Display for Opcode {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(&self.name)?;
        for modifier in &self.modifiers {
            write!(f, ".{modifier}")?;
        }
        Ok(())
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Operand::Name(name) => f.write_str(name),
            Operand::Integer(value) => write!(f, "{value}"),
            Operand::F32(bits) => write!(f, "0f{bits:08X}"),
            Operand::F64(bits) => write!(f, "0d{bits:016X}"),
            Operand::Address { base: AddressBase::Name(name), offset: 0 } => write!(f, "[{name}]"),
            Operand::Address { base: AddressBase::Name(name), offset } => write!(f, "[{name}+{offset}]"),
            Operand::Address { base: AddressBase::Absolute(address), offset } => {
                write!(f, "[{}]", address.wrapping_add_signed(*offset))
            }
            Operand::SymbolOffset { name, offset } => write!(f, "{name}+{offset}"),
            Operand::Vector(list) => {
                f.write_char('{')?;
                separated(f, list, |f, operand| write!(f, "{operand}"))?;
                f.write_char('}')
            }
            Operand::Pair(first, second) => write!(f, "{first}|{second}"),
            Operand::Not(inner) => write!(f, "!{inner}"),
            Operand::Sink => f.write_char('_'),
            Operand::List(list) => {
                f.write_char('(')?;
                separated(f, list, |f, operand| write!(f, "{operand}"))?;
                f.write_char(')')
            }
        }
    }
}
