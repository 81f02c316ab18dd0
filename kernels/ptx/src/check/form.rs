//! The form of every instruction: its valid modifiers and the kind of each operand.
//!
//!   mad.wide.s32 %rd1, %r1, %r2, %rd2     modifiers one of lo, hi, wide; one type; d:64 a:32 b:32 c:64
//!
//! After     PTX ISA 8.2, chapter 9. Forms used neither by NVRTC for compute_70 nor by our generator are not supported:
//!           the error names them.

use super::operand::{Checked, Operands, Width};
use crate::ast::{Opcode, Operand, Space, Type};

const INTEGERS: &[Type] = &[Type::U16, Type::U32, Type::U64, Type::S16, Type::S32, Type::S64];
const BITS: &[Type] = &[Type::B16, Type::B32, Type::B64];
const WORDS: &[Type] = &[Type::B32, Type::B64];
const FLOATS: &[Type] = &[Type::F32, Type::F64];
const ROUNDINGS: &[&str] = &["rn", "rz", "rm", "rp"];
const SCOPES: &[&str] = &["cta", "gpu", "sys"];
const COMPARISONS: &[&str] = &[
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

/// Reads the modifiers of one opcode, each at most once.
struct Modifiers<'a> {
    opcode: &'a Opcode,
    taken: u32,
}

impl<'a> Modifiers<'a> {
    /// Takes the first untaken modifier that `choose` accepts.
    fn take<T>(&mut self, choose: impl Fn(&'a str) -> Option<T>) -> Option<T> {
        for (i, modifier) in self.opcode.modifiers.iter().enumerate().take(32) {
            if self.taken & (1 << i) == 0
                && let Some(chosen) = choose(modifier)
            {
                self.taken |= 1 << i;
                return Some(chosen);
            }
        }
        None
    }

    fn one_of(&mut self, names: &[&str]) -> Option<&'a str> {
        self.take(|modifier| names.contains(&modifier).then_some(modifier))
    }

    fn has(&mut self, name: &str) -> bool {
        self.one_of(&[name]).is_some()
    }

    fn require(&mut self, names: &[&str]) -> Checked<&'a str> {
        self.one_of(names).ok_or_else(|| format!("one of .{} is missing", names.join(", .")))
    }

    /// The next type modifier, which must be one of `allowed`.
    fn ty(&mut self, allowed: &[&[Type]]) -> Checked<Type> {
        let Some(ty) = self.take(Type::from_name) else { return Err("the type is missing".to_string()) };
        if allowed.iter().any(|list| list.contains(&ty)) {
            Ok(ty)
        } else {
            Err(format!(".{} is no type for this instruction", ty.name()))
        }
    }

    /// Checks that every modifier was taken.
    fn finish(&self) -> Checked {
        for (i, modifier) in self.opcode.modifiers.iter().enumerate() {
            if i >= 32 || self.taken & (1 << i) == 0 {
                return Err(format!(".{modifier} does not belong here"));
            }
        }
        Ok(())
    }
}

/// The integer type of twice the width.
fn doubled(ty: Type) -> Checked<Type> {
    Ok(match ty {
        Type::U16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 => Type::U64,
        Type::S32 => Type::S64,
        _ => return Err(format!(".wide has no form for .{}", ty.name())),
    })
}

/// Checks one instruction's modifiers and operands; the caller checks for surplus operands.
pub(super) fn check(opcode: &Opcode, operands: &mut Operands<'_, '_>) -> Checked {
    let m = &mut Modifiers { opcode, taken: 0 };
    match opcode.name.as_str() {
        "add" | "sub" | "addc" | "subc" | "mul" | "mad" | "madc" | "fma" | "div" | "rem" | "min" | "max" | "mul24"
        | "mad24" | "sad" | "abs" | "neg" => arithmetic(opcode, m, operands),
        "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "copysign" | "testp" => {
            functions(opcode, m, operands)
        }
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "lop3" | "bfe" | "bfi" | "bfind" | "brev"
        | "popc" | "clz" | "prmt" | "fns" | "dp4a" => bits(opcode, m, operands),
        "setp" | "set" | "selp" | "slct" => compare(opcode, m, operands),
        "mov" | "cvt" | "cvta" | "isspacep" => moves(opcode, m, operands),
        "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" | "membar" | "fence" => {
            memory(opcode, m, operands)
        }
        "shfl" | "vote" | "match" | "activemask" | "redux" | "bar" | "barrier" => lanes(opcode, m, operands),
        "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "pmevent" => {
            control(opcode, m, operands)
        }
        name => Err(format!("{name} is no instruction that this project's device code uses")),
    }
}

fn sources(operands: &mut Operands<'_, '_>, types: &[Type]) -> Checked {
    types.iter().try_for_each(|&ty| operands.source(ty))
}

fn arithmetic(opcode: &Opcode, m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    let name = opcode.name.as_str();
    let float = opcode.types().any(Type::is_float);
    if float && matches!(name, "addc" | "subc" | "madc" | "rem" | "mul24" | "mad24" | "sad") {
        return Err(format!("{name} is for integers"));
    }
    if float {
        match name {
            "fma" => {
                m.require(ROUNDINGS)?;
            }
            "div" => {
                m.require(&["rn", "rz", "rm", "rp", "approx", "full"])?;
            }
            "add" | "sub" | "mul" | "mad" => {
                m.one_of(ROUNDINGS);
            }
            "min" | "max" => {
                m.one_of(&["NaN"]);
            }
            _ => {}
        }
        m.has("ftz");
        if matches!(name, "add" | "sub" | "mul" | "mad" | "fma") {
            m.has("sat");
        }
        let ty = m.ty(&[FLOATS, &[Type::F16, Type::F16x2]])?;
        m.finish()?;
        operands.destination(ty)?;
        return match name {
            "abs" | "neg" => operands.source(ty),
            "fma" | "mad" => sources(operands, &[ty, ty, ty]),
            _ => sources(operands, &[ty, ty]),
        };
    }
    let half = match name {
        "mul" | "mad" => Some(m.require(&["lo", "hi", "wide"])?),
        "madc" | "mul24" | "mad24" => Some(m.require(&["lo", "hi"])?),
        _ => None,
    };
    match name {
        "addc" | "subc" | "madc" => {
            m.has("cc");
        }
        "mad" if half != Some("wide") => {
            m.one_of(&["cc", "sat"]);
        }
        "add" | "sub" => {
            m.one_of(&["cc", "sat"]);
        }
        _ => {}
    }
    let ty = match name {
        "abs" | "neg" => m.ty(&[&[Type::S16, Type::S32, Type::S64]])?,
        "fma" => return Err("fma is for floats".to_string()),
        "mul24" | "mad24" => m.ty(&[&[Type::U32, Type::S32]])?,
        _ => m.ty(&[INTEGERS])?,
    };
    if opcode.has("cc") && ty.bits() == 16 || opcode.has("sat") && ty != Type::S32 {
        return Err(format!(".{} has no such form", ty.name()));
    }
    m.finish()?;
    let wide = if half == Some("wide") { doubled(ty)? } else { ty };
    operands.destination(wide)?;
    match name {
        "abs" | "neg" => operands.source(ty),
        "mad" | "madc" | "mad24" => sources(operands, &[ty, ty, wide]),
        "sad" => sources(operands, &[ty, ty, ty]),
        _ => sources(operands, &[ty, ty]),
    }
}

fn functions(opcode: &Opcode, m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    let name = opcode.name.as_str();
    match name {
        "rcp" | "sqrt" => {
            m.require(&["rn", "rz", "rm", "rp", "approx"])?;
        }
        "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => {
            m.require(&["approx"])?;
        }
        "testp" => {
            m.require(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"])?;
        }
        _ => {}
    }
    if !matches!(name, "testp" | "copysign") {
        m.has("ftz");
    }
    let ty = match name {
        "sin" | "cos" | "lg2" | "ex2" | "tanh" => m.ty(&[&[Type::F32]])?,
        _ => m.ty(&[FLOATS])?,
    };
    m.finish()?;
    operands.destination(if name == "testp" { Type::Pred } else { ty })?;
    operands.source(ty)?;
    if name == "copysign" { operands.source(ty) } else { Ok(()) }
}

fn bits(opcode: &Opcode, m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    let name = opcode.name.as_str();
    const PRED: &[Type] = &[Type::Pred];
    const WHOLE: &[Type] = &[Type::U32, Type::U64, Type::S32, Type::S64];
    match name {
        "and" | "or" | "xor" | "not" => {
            let ty = m.ty(&[BITS, PRED])?;
            m.finish()?;
            operands.destination(ty)?;
            operands.source(ty)?;
            if name == "not" { Ok(()) } else { operands.source(ty) }
        }
        "cnot" | "brev" => {
            let ty = m.ty(&[if name == "cnot" { BITS } else { WORDS }])?;
            m.finish()?;
            operands.destination(ty)?;
            operands.source(ty)
        }
        "shl" | "shr" => {
            let ty = if name == "shl" { m.ty(&[BITS])? } else { m.ty(&[BITS, INTEGERS])? };
            m.finish()?;
            operands.destination(ty)?;
            sources(operands, &[ty, Type::U32])
        }
        "shf" => {
            m.require(&["l", "r"])?;
            m.require(&["wrap", "clamp"])?;
            let ty = m.ty(&[&[Type::B32]])?;
            m.finish()?;
            operands.destination(ty)?;
            sources(operands, &[ty, ty, Type::U32])
        }
        "lop3" => {
            let ty = m.ty(&[&[Type::B32]])?;
            m.finish()?;
            operands.destination(ty)?;
            sources(operands, &[ty, ty, ty])?;
            match operands.next()? {
                Operand::Integer(0..=255) => Ok(()),
                other => Err(format!("{other} is no truth table of lop3")),
            }
        }
        "bfe" | "bfi" => {
            let ty = if name == "bfe" { m.ty(&[WHOLE])? } else { m.ty(&[WORDS])? };
            m.finish()?;
            operands.destination(ty)?;
            operands.source(ty)?;
            if name == "bfi" {
                operands.source(ty)?;
            }
            sources(operands, &[Type::U32, Type::U32])
        }
        "bfind" => {
            m.has("shiftamt");
            let ty = m.ty(&[WHOLE])?;
            m.finish()?;
            operands.destination(Type::U32)?;
            operands.source(ty)
        }
        "popc" | "clz" => {
            let ty = m.ty(&[WORDS])?;
            m.finish()?;
            operands.destination(Type::U32)?;
            operands.source(ty)
        }
        "prmt" => {
            m.ty(&[&[Type::B32]])?;
            m.one_of(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]);
            m.finish()?;
            operands.destination(Type::B32)?;
            sources(operands, &[Type::B32; 3])
        }
        "fns" => {
            m.ty(&[&[Type::B32]])?;
            m.finish()?;
            operands.destination(Type::B32)?;
            sources(operands, &[Type::B32, Type::B32, Type::S32])
        }
        _ => {
            m.ty(&[&[Type::U32, Type::S32]])?;
            m.ty(&[&[Type::U32, Type::S32]])?;
            m.finish()?;
            operands.destination(Type::B32)?;
            sources(operands, &[Type::B32; 3])
        }
    }
}

fn compare(opcode: &Opcode, m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    const ANY: &[&[Type]] = &[INTEGERS, BITS, FLOATS];
    match opcode.name.as_str() {
        name @ ("setp" | "set") => {
            let comparison = m.require(COMPARISONS)?;
            let combined = m.one_of(&["and", "or", "xor"]).is_some();
            m.has("ftz");
            let result = if name == "set" { m.ty(&[&[Type::U32, Type::S32, Type::F32]])? } else { Type::Pred };
            let ty = m.ty(ANY)?;
            m.finish()?;
            comparable(comparison, ty)?;
            if name == "setp" {
                operands.destination_and_predicate(result)?
            } else {
                operands.destination(result)?
            }
            sources(operands, &[ty, ty])?;
            if combined { operands.predicate() } else { Ok(()) }
        }
        "selp" => {
            let ty = m.ty(ANY)?;
            m.finish()?;
            operands.destination(ty)?;
            sources(operands, &[ty, ty])?;
            match operands.next()? {
                operand @ Operand::Name(_) => operands.expect_source(operand, Type::Pred, Width::Equal),
                other => Err(format!("{other} is no predicate register")),
            }
        }
        _ => {
            m.has("ftz");
            let ty = m.ty(ANY)?;
            let selector = m.ty(&[&[Type::S32, Type::F32]])?;
            m.finish()?;
            operands.destination(ty)?;
            sources(operands, &[ty, ty, selector])
        }
    }
}

/// Bit types compare for equality only, `lo ls hi hs` are for unsigned integers, unordered comparisons for floats.
fn comparable(comparison: &str, ty: Type) -> Checked {
    use crate::ast::TypeKind::*;
    let fits = match comparison {
        "eq" | "ne" => true,
        "lt" | "le" | "gt" | "ge" => ty.kind() != Bits,
        "lo" | "ls" | "hi" | "hs" => ty.kind() == Unsigned,
        _ => ty.is_float(),
    };
    if fits { Ok(()) } else { Err(format!(".{} values cannot be compared by .{comparison}", ty.name())) }
}

fn moves(opcode: &Opcode, m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    match opcode.name.as_str() {
        "mov" => {
            let ty = m.ty(&[INTEGERS, BITS, FLOATS, &[Type::Pred, Type::F16]])?;
            m.finish()?;
            let destination = operands.next()?;
            if let Operand::Vector(parts) = destination {
                let part = part_type(ty, parts.len())?;
                for register in parts.iter().filter(|part| **part != Operand::Sink) {
                    operands.expect_destination(register, part, Width::Equal)?;
                }
                return operands.source(ty);
            }
            operands.expect_destination(destination, ty, Width::Equal)?;
            if let Some(Operand::Vector(parts)) = operands.peek() {
                operands.next()?;
                let part = part_type(ty, parts.len())?;
                return parts.iter().try_for_each(|value| operands.expect_source(value, part, Width::Equal));
            }
            operands.movable(ty)
        }
        "cvt" => convert(m, operands),
        "cvta" => {
            m.has("to");
            m.require(&["global", "shared", "shared::cta", "local", "const", "param"])?;
            let ty = m.ty(&[&[Type::U64, Type::U32]])?;
            m.finish()?;
            operands.destination(ty)?;
            operands.movable(ty)
        }
        _ => {
            m.require(&["global", "shared", "shared::cta", "local", "const", "param"])?;
            m.finish()?;
            operands.destination(Type::Pred)?;
            operands.source(Type::U64)
        }
    }
}

/// The type of each part when `ty` is packed from or into `parts`.
fn part_type(ty: Type, parts: usize) -> Checked<Type> {
    let bits = ty.bits() as usize;
    match (ty.kind(), parts) {
        (crate::ast::TypeKind::Bits, 2 | 4) => match bits / parts {
            8 => Ok(Type::B8),
            16 => Ok(Type::B16),
            32 => Ok(Type::B32),
            64 => Ok(Type::B64),
            _ => Err(format!("{parts} parts of .{} have no type", ty.name())),
        },
        _ => Err(format!(".{} is not packed from {parts} parts", ty.name())),
    }
}

fn convert(m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    let rounding = m.one_of(&["rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"]);
    m.has("ftz");
    m.has("sat");
    const ANY: &[Type] = &[Type::U8, Type::S8, Type::F16];
    let to = m.ty(&[INTEGERS, FLOATS, ANY])?;
    let from = m.ty(&[INTEGERS, FLOATS, ANY])?;
    m.finish()?;
    let integral = rounding.is_some_and(|rounding| rounding.len() == 3);
    match (to.is_float(), from.is_float()) {
        (false, true) if !integral => return Err("float to integer needs .rni, .rzi, .rmi or .rpi".to_string()),
        (true, false) if rounding.is_none() || integral => {
            return Err("integer to float needs .rn, .rz, .rm or .rp".to_string());
        }
        (true, true) if to.bits() < from.bits() && (rounding.is_none() || integral) => {
            return Err("a narrower float needs .rn, .rz, .rm or .rp".to_string());
        }
        (true, true) if to.bits() > from.bits() && rounding.is_some() => {
            return Err("a wider float needs no rounding".to_string());
        }
        (true, true) if to.bits() == from.bits() && rounding.is_some() && !integral => {
            return Err("rounding to an integral float is .rni, .rzi, .rmi or .rpi".to_string());
        }
        (false, false) if rounding.is_some() => return Err("integers are not rounded".to_string()),
        _ => {}
    }
    let destination = operands.next()?;
    operands.expect_destination(destination, to, Width::AtLeast)?;
    let source = operands.next()?;
    operands.expect_source(source, from, Width::AtLeast)
}

fn memory(opcode: &Opcode, m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    let name = opcode.name.as_str();
    match name {
        "membar" => {
            m.require(&["cta", "gl", "sys"])?;
            return m.finish();
        }
        "fence" => {
            m.require(&["sc", "acq_rel"])?;
            m.require(SCOPES)?;
            return m.finish();
        }
        _ => {}
    }
    let order = match name {
        "ld" => m.one_of(&["weak", "relaxed", "acquire", "volatile"]),
        "st" => m.one_of(&["weak", "relaxed", "release", "volatile"]),
        "atom" => m.one_of(&["relaxed", "acquire", "release", "acq_rel"]),
        "red" => m.one_of(&["relaxed", "release"]),
        _ => None,
    };
    let scope = match (name, order) {
        ("ld" | "st", Some("relaxed" | "acquire" | "release")) => Some(m.require(SCOPES)?),
        ("atom" | "red", _) => m.one_of(SCOPES),
        _ => None,
    };
    if order.is_some_and(|order| order != "weak" && order != "volatile") && scope.is_none() {
        return Err("a memory order needs its scope".to_string());
    }
    let space = m.take(Space::from_name);
    let spaces: &[Space] = match name {
        "ld" => &[Space::Global, Space::Shared, Space::Local, Space::Const, Space::Param],
        "st" => &[Space::Global, Space::Shared, Space::Local, Space::Param],
        "atom" | "red" => &[Space::Global, Space::Shared],
        _ => &[Space::Global, Space::Local],
    };
    if let Some(space) = space
        && !spaces.contains(&space)
    {
        return Err(format!("{name} has no .{} form", space.name()));
    }
    match name {
        "atom" | "red" => return atomic(name, space, m, operands),
        "prefetch" | "prefetchu" => {
            m.require(&["L1", "L2"])?;
            m.finish()?;
            return operands.address(space, 0);
        }
        _ => {}
    }
    if name == "ld" && m.has("nc") && space != Some(Space::Global) {
        return Err("only .global loads are .nc".to_string());
    }
    let cache: &[&str] = if name == "st" { &["wb", "cg", "cs", "wt"] } else { &["ca", "cg", "cs", "lu", "cv"] };
    m.one_of(cache);
    m.one_of(&["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"]);
    m.one_of(&["L2::64B", "L2::128B", "L2::256B"]);
    let vector = m.one_of(&["v2", "v4"]).map_or(1, |v| if v == "v2" { 2 } else { 4 });
    const NARROW: &[Type] = &[Type::B8, Type::U8, Type::S8];
    let ty = m.ty(&[INTEGERS, BITS, FLOATS, NARROW])?;
    m.finish()?;
    let bytes = u64::from(ty.bytes()) * vector as u64;
    if bytes > 16 {
        return Err(format!("{bytes} bytes at once, of at most 16"));
    }
    if name == "st" {
        operands.address(space, bytes)?;
    }
    let value = operands.next()?;
    let parts: &[Operand] = match (value, vector) {
        (Operand::Vector(parts), 2 | 4) if parts.len() == vector => parts,
        (_, 2 | 4) => return Err(format!("{value} is no vector of {vector}")),
        (value, _) => std::slice::from_ref(value),
    };
    for part in parts {
        match part {
            Operand::Sink if name != "st" && vector > 1 => {}
            _ if name == "st" => operands.expect_source(part, ty, Width::AtLeast)?,
            _ => operands.expect_destination(part, ty, Width::AtLeast)?,
        }
    }
    if name == "st" { Ok(()) } else { operands.address(space, bytes) }
}

fn atomic(name: &str, space: Option<Space>, m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    let operation = m.require(if name == "atom" {
        &["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"]
    } else {
        &["add", "min", "max", "and", "or", "xor", "inc", "dec"]
    })?;
    let ty = match operation {
        "add" => m.ty(&[&[Type::U32, Type::S32, Type::U64, Type::F32, Type::F64]])?,
        "min" | "max" => m.ty(&[&[Type::U32, Type::S32, Type::U64, Type::S64]])?,
        "inc" | "dec" => m.ty(&[&[Type::U32]])?,
        "cas" => m.ty(&[WORDS, &[Type::B16]])?,
        _ => m.ty(&[WORDS])?,
    };
    m.finish()?;
    if name == "atom" {
        operands.destination_or_sink(ty)?;
    }
    operands.address(space, u64::from(ty.bytes()))?;
    operands.source(ty)?;
    if operation == "cas" { operands.source(ty) } else { Ok(()) }
}

fn lanes(opcode: &Opcode, m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    match opcode.name.as_str() {
        "shfl" => {
            m.require(&["sync"])?;
            m.require(&["up", "down", "bfly", "idx"])?;
            m.ty(&[&[Type::B32]])?;
            m.finish()?;
            operands.destination_and_predicate(Type::B32)?;
            sources(operands, &[Type::B32; 4])
        }
        "vote" => {
            m.require(&["sync"])?;
            let ballot = m.require(&["all", "any", "uni", "ballot"])? == "ballot";
            let ty = m.ty(&[if ballot { &[Type::B32] } else { &[Type::Pred] }])?;
            m.finish()?;
            operands.destination(ty)?;
            operands.predicate()?;
            operands.source(Type::B32)
        }
        "match" => {
            let all = m.require(&["any", "all"])? == "all";
            m.require(&["sync"])?;
            let ty = m.ty(&[WORDS])?;
            m.finish()?;
            if all {
                operands.destination_and_predicate(Type::B32)?
            } else {
                operands.destination(Type::B32)?
            }
            sources(operands, &[ty, Type::B32])
        }
        "activemask" => {
            m.ty(&[&[Type::B32]])?;
            m.finish()?;
            operands.destination(Type::B32)
        }
        "redux" => {
            m.require(&["sync"])?;
            m.require(&["add", "min", "max", "and", "or", "xor"])?;
            let ty = m.ty(&[&[Type::U32, Type::S32, Type::B32]])?;
            m.finish()?;
            operands.destination(ty)?;
            sources(operands, &[ty, Type::B32])
        }
        name => {
            if m.has("warp") {
                m.require(&["sync"])?;
                m.finish()?;
                return operands.source(Type::B32);
            }
            m.one_of(&["cta"]);
            let what = m.require(&["sync", "arrive", "red"])?;
            if name == "barrier" {
                m.has("aligned");
            }
            if what != "red" {
                m.finish()?;
                operands.source(Type::U32)?;
                return if what == "arrive" || operands.left() > 0 { operands.source(Type::U32) } else { Ok(()) };
            }
            let count = m.require(&["popc", "and", "or"])? == "popc";
            let ty = m.ty(&[if count { &[Type::U32] } else { &[Type::Pred] }])?;
            m.finish()?;
            operands.destination(ty)?;
            operands.source(Type::U32)?;
            if operands.left() > 1 {
                operands.source(Type::U32)?;
            }
            operands.predicate()
        }
    }
}

fn control(opcode: &Opcode, m: &mut Modifiers<'_>, operands: &mut Operands<'_, '_>) -> Checked {
    match opcode.name.as_str() {
        "bra" => {
            m.has("uni");
            m.finish()?;
            operands.label()
        }
        "brx" => {
            m.require(&["idx"])?;
            m.has("uni");
            m.finish()?;
            operands.source(Type::U32)?;
            operands.branch_targets()
        }
        "call" => {
            m.has("uni");
            m.finish()?;
            operands.call()
        }
        "nanosleep" => {
            m.ty(&[&[Type::U32]])?;
            m.finish()?;
            operands.source(Type::U32)
        }
        "pmevent" => {
            m.has("mask");
            m.finish()?;
            operands.source(Type::B32)
        }
        "ret" => {
            m.has("uni");
            m.finish()
        }
        _ => m.finish(),
    }
}
