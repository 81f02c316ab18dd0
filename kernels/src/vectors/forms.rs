//! Instruction forms of PTX that have vectors, and the form of an instruction.
//!
//! ```text
//!   add.cc.u32 %r3, %r1, %r2          form  add.cc.u32        sources  u32 u32       results  u32, carry
//!   mov.b64 {%r1, %r2}, %rd1                mov.b64 {2}, 1             b64                    b32 b32
//!   cvt.s32.s8 %r2, %r1                     cvt.s32.s8/32/32           s8 in 32 bits          s32 in 32 bits
//! ```
//!
//! Form       opcode with modifiers and types; for `mov` the shape of a vector; for `cvt` the widths of its registers
//!            if they differ from its types (of at least 16 bits).
//! List       [`forms`]: all forms that the images use, and all that the builder can write for its types. A test checks
//!            every image and every generated module of the tests against it.
//! Outside    instructions that are more than functions of registers: memory and addresses (ld, st, atom, red, cvta,
//!            mov of a symbol, fences), control flow (bra, call, ret, exit, trap), other lanes (shfl, vote, match,
//!            activemask, barriers) and the thread's identity (mov of a special register). Other checks cover their
//!            effects.

use std::collections::{BTreeMap, BTreeSet};

use millpond_ptx::ast::{Instruction, Module, Opcode, Operand, Space, Statement, Type};

/// Kind of an instruction, for vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A function of registers, with its form.
    Value(String),
    /// The instruction accesses more than registers.
    Outside,
}

/// Meaning of an operand; it selects the tested values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A number or bits of its type.
    Plain,
    /// A number of bits: a shift count, or position or length of a bit field.
    Bits,
    /// Byte selector of `prmt`.
    Bytes,
    /// An integer that is converted to a float of this width.
    ToFloat(u32),
    /// A float that is converted to an integer, or rounded to an integral float.
    ToInteger,
    /// A float that is converted to a narrower float.
    ToNarrower,
    /// 0 or 1: a predicate, or the carry flag.
    Flag,
}

/// A source operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    pub ty: Type,
    /// Width of its register in bits.
    pub bits: u32,
    pub role: Role,
}

/// Comparison of a result with the recorded one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Agreement {
    /// Bits must be equal, also for NaN.
    Bits,
    /// Maximum distance, in units of the last place of `.f32`.
    Ulps(u32),
    /// Maximum difference if the argument is in ½ … 2; otherwise maximum relative error.
    NearOne(f64),
    /// Maximum difference of the upper words of an `.f64`.
    UpperWord(u32),
}

/// One form: its name, its sources and its results.
#[derive(Debug, Clone, PartialEq)]
pub struct Form {
    pub name: String,
    pub sources: Vec<Source>,
    /// Widths of the result registers; 1 for a predicate or the carry flag.
    pub results: Vec<u32>,
    pub agreement: Agreement,
    pub(super) opcode: String,
    pub(super) shape: Shape,
}

/// Syntax of the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Results, then sources.
    Plain,
    /// The last source is read from the carry flag, the last result is written to it.
    Carry { reads: bool, writes: bool },
    /// The sources are one vector.
    Pack,
    /// The results are one vector.
    Unpack,
}

/// Every form that has vectors, once each, in order. Braces expand to each of their words.
const LIST: &[&str] = &[
    // Integers.
    "{add,sub,min,max,div,rem}.{u16,s16,u32,s32,u64,s64}",
    "mul.{lo,hi}.{u16,s16,u32,s32,u64,s64}",
    "mad.{lo,hi}.{u16,s16,u32,s32,u64,s64}",
    "{mul,mad}.wide.{u16,s16,u32,s32}",
    "{abs,neg}.{s16,s32,s64}",
    // Carries.
    "{add.cc,addc,addc.cc,sub.cc,subc,subc.cc}.{u32,s32,u64,s64}",
    "{mad.lo.cc,mad.hi.cc,madc.lo,madc.hi,madc.lo.cc,madc.hi.cc}.{u32,s32,u64,s64}",
    // Bits.
    "{and,or,xor,not}.{pred,b16,b32,b64}",
    "shl.{b16,b32,b64}",
    "shr.{b16,u16,s16,b32,u32,s32,b64,u64,s64}",
    "shf.{l,r}.{wrap,clamp}.b32",
    "{popc,clz,brev}.{b32,b64}",
    "bfind.{u32,s32,u64,s64}",
    "bfind.shiftamt.{u32,s32,u64,s64}",
    "bfe.{u32,s32,u64,s64}",
    "bfi.{b32,b64}",
    "prmt.b32",
    // Comparison and choice.
    "setp.{eq,ne}.{b16,b32,b64}",
    "setp.{eq,ne,lt,le,gt,ge}.{u16,s16,u32,s32,u64,s64}",
    "setp.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}.{f32,f64}",
    "selp.{b16,u16,s16,b32,u32,s32,b64,u64,s64,f32,f64}",
    "mov.{pred,b16,u16,s16,b32,u32,s32,b64,u64,s64,f32,f64}",
    "mov.b32 {2}, 1",
    "mov.b32 1, {2}",
    "mov.b64 {2}, 1",
    "mov.b64 1, {2}",
    // Floats.
    "{add,sub,mul,add.rn,sub.rn,mul.rn,div.rn,min,max}.{f32,f64}",
    "fma.rn.{f32,f64}",
    "{abs,neg,sqrt.rn,rcp.rn}.{f32,f64}",
    "ex2.approx.ftz.f32",
    "lg2.approx.ftz.f32",
    "rcp.approx.ftz.f64",
    "rsqrt.approx.ftz.f64",
    // Conversions between registers of the types' own widths, and for 8 and 16 bits in 32-bit registers, as the builder
    // writes them.
    "cvt.{u16,s16,u32,s32,u64,s64}.{u16,s16,u32,s32,u64,s64}",
    "cvt.{u16,s16,u32,s32,u64,s64}.{u8,s8}/=/16",
    "cvt.{u32,s32}.{u8,s8,u16,s16}/32/32",
    "cvt.{u64,s64}.{u8,s8,u16,s16}/64/32",
    "cvt.{u8,s8,u16,s16}.{u32,s32}/32/32",
    "cvt.{u8,s8,u16,s16}.{u64,s64}/32/64",
    "cvt.rn.{f32,f64}.{u16,s16,u32,s32,u64,s64}",
    "cvt.rn.f32.{u8,s8,u16,s16}/32/32",
    "cvt.rn.f64.{u8,s8,u16,s16}/64/32",
    "cvt.{rni,rzi,rmi,rpi}.{u16,s16,u32,s32,u64,s64}.{f32,f64}",
    "cvt.{rni,rzi,rmi,rpi}.{u8,s8,u16,s16}.f32/32/32",
    "cvt.{rni,rzi,rmi,rpi}.{u8,s8,u16,s16}.f64/32/64",
    "cvt.{rni,rzi,rmi,rpi}.f32.f32",
    "cvt.{rni,rzi,rmi,rpi}.f64.f64",
    "cvt.rn.f32.f64",
    "cvt.f64.f32",
];

/// Every form that has vectors.
pub fn forms() -> Vec<Form> {
    let names = LIST.iter().flat_map(|line| expanded(line));
    names.map(|name| Form::named(&name).unwrap_or_else(|reason| panic!("{name}: {reason}"))).collect()
}

/// Expands `a.{b,c}` to `a.b` and `a.c`. Braces around a number are a vector of that length.
fn expanded(text: &str) -> Vec<String> {
    let braces = text.match_indices('{').find_map(|(open, _)| {
        let close = open + text[open..].find('}')?;
        let inner = &text[open + 1..close];
        inner.parse::<u32>().is_err().then_some((open, close, inner))
    });
    let Some((open, close, inner)) = braces else { return vec![text.to_string()] };
    let words = inner.split(',');
    words.flat_map(|word| expanded(&format!("{}{word}{}", &text[..open], &text[close + 1..]))).collect()
}

/// Default width of the register for a `ty`.
fn own_width(ty: Type) -> u32 {
    if ty == Type::Pred { 1 } else { ty.bits().max(16) }
}

impl Form {
    /// The form called `name`.
    ///
    /// # Errors
    /// The unknown part of the name.
    pub fn named(name: &str) -> Result<Form, String> {
        let (text, vectors) = name.split_once(' ').unwrap_or((name, ""));
        let mut parts = text.split('/');
        let opcode = Opcode::new(parts.next().unwrap_or_default());
        let types: Vec<Type> = opcode.types().collect();
        let Some(&ty) = types.first() else { return Err("has no type".into()) };
        let plain = |ty: Type| Source { ty, bits: own_width(ty), role: Role::Plain };
        let bits = Source { ty: Type::U32, bits: 32, role: Role::Bits };
        let flag = |ty: Type, bits: u32| Source { ty, bits, role: Role::Flag };
        let one = own_width(ty);
        let mut shape = Shape::Plain;
        let mut agreement = Agreement::Bits;
        let mut name = name.to_string();
        let (sources, results) = match opcode.name.as_str() {
            "add" | "sub" | "mad" if opcode.has("cc") => carried(&opcode, ty, &mut shape),
            "addc" | "subc" | "madc" => carried(&opcode, ty, &mut shape),
            "mul" if opcode.has("wide") => (vec![plain(ty); 2], vec![2 * one]),
            "mad" if opcode.has("wide") => (vec![plain(ty), plain(ty), plain(wide(ty)?)], vec![2 * one]),
            "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" => {
                (vec![plain(ty); 2], vec![one])
            }
            "mad" | "fma" => (vec![plain(ty); 3], vec![one]),
            "abs" | "neg" | "not" | "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "brev" => (vec![plain(ty)], vec![one]),
            "popc" | "clz" | "bfind" => (vec![plain(ty)], vec![32]),
            "shl" | "shr" => (vec![plain(ty), bits], vec![one]),
            "shf" => (vec![plain(ty), plain(ty), bits], vec![one]),
            "bfe" => (vec![plain(ty), bits, bits], vec![one]),
            "bfi" => (vec![plain(ty), plain(ty), bits, bits], vec![one]),
            "prmt" => (vec![plain(ty), plain(ty), Source { role: Role::Bytes, ..plain(ty) }], vec![one]),
            "setp" if ["and", "or", "xor"].iter().any(|logic| opcode.has(logic)) => {
                (vec![plain(ty), plain(ty), flag(Type::Pred, 1)], vec![1])
            }
            "setp" => (vec![plain(ty); 2], vec![1]),
            "selp" => (vec![plain(ty), plain(ty), flag(Type::Pred, 1)], vec![one]),
            "mov" => match vectors {
                "" => (vec![plain(ty)], vec![one]),
                "{2}, 1" => {
                    shape = Shape::Unpack;
                    (vec![plain(ty)], vec![one / 2; 2])
                }
                "1, {2}" => {
                    shape = Shape::Pack;
                    (vec![plain(half(ty)?); 2], vec![one])
                }
                other => return Err(format!("has operands {other}, which no form here has")),
            },
            "cvt" => {
                let [to, from] = types[..] else { return Err("needs two types".into()) };
                let mut width = |ty: Type| match parts.next() {
                    None | Some("=") => Ok(own_width(ty)),
                    Some(text) => text.parse::<u32>().map_err(|error| error.to_string()),
                };
                let (to_bits, from_bits) = (width(to)?, width(from)?);
                let role = match (from.is_float(), to.is_float()) {
                    (false, false) => Role::Plain,
                    (false, true) => Role::ToFloat(to.bits()),
                    (true, true) if to.bits() < from.bits() => Role::ToNarrower,
                    (true, true) if to.bits() > from.bits() => Role::Plain,
                    _ => Role::ToInteger,
                };
                name = converted(&opcode, to, to_bits, from, from_bits);
                (vec![Source { ty: from, bits: from_bits, role }], vec![to_bits])
            }
            other => return Err(format!("is no function of registers that is known here: {other}")),
        };
        match (opcode.name.as_str(), opcode.has("approx")) {
            (_, false) => {}
            ("ex2", _) => agreement = Agreement::Ulps(2),
            ("lg2", _) => agreement = Agreement::NearOne(1.0 / f64::from(1 << 22)),
            ("rcp" | "rsqrt", _) if ty == Type::F64 => agreement = Agreement::UpperWord(1),
            _ => return Err("has no documented error that is known here".into()),
        }
        Ok(Form { name, sources, results, agreement, opcode: opcode.to_string(), shape })
    }
}

fn converted(opcode: &Opcode, to: Type, to_bits: u32, from: Type, from_bits: u32) -> String {
    match (to_bits, from_bits) == (own_width(to), own_width(from)) {
        true => opcode.to_string(),
        false => format!("{opcode}/{to_bits}/{from_bits}"),
    }
}

/// Sources and results of an addition, subtraction or product in a chain.
fn carried(opcode: &Opcode, ty: Type, shape: &mut Shape) -> (Vec<Source>, Vec<u32>) {
    let (reads, writes) = (opcode.name.ends_with('c'), opcode.has("cc"));
    *shape = Shape::Carry { reads, writes };
    let plain = Source { ty, bits: ty.bits(), role: Role::Plain };
    let mut sources = vec![plain; if opcode.name.starts_with("mad") { 3 } else { 2 }];
    let mut results = vec![ty.bits()];
    if reads {
        sources.push(Source { role: Role::Flag, ..plain });
    }
    if writes {
        results.push(1);
    }
    (sources, results)
}

fn wide(ty: Type) -> Result<Type, String> {
    match ty {
        Type::U16 => Ok(Type::U32),
        Type::S16 => Ok(Type::S32),
        Type::U32 => Ok(Type::U64),
        Type::S32 => Ok(Type::S64),
        _ => Err(format!("has no wide form of .{}", ty.name())),
    }
}

fn half(ty: Type) -> Result<Type, String> {
    match ty {
        Type::B32 => Ok(Type::B16),
        Type::B64 => Ok(Type::B32),
        _ => Err(format!("has no halves of .{}", ty.name())),
    }
}

/// The forms that a module uses.
///
/// # Errors
/// The first instruction that is neither a known form nor known to be outside.
pub fn used(module: &Module) -> Result<BTreeSet<String>, String> {
    let mut found = BTreeSet::new();
    for function in module.functions() {
        let Some(body) = &function.body else { continue };
        let mut registers = BTreeMap::new();
        visit(body, &mut |statement| {
            if let Statement::Variable(variable) = statement
                && variable.space == Space::Reg
            {
                registers.insert((variable.name.clone(), variable.count.is_some()), variable.ty.bits());
            }
            Ok(())
        })?;
        visit(body, &mut |statement| {
            if let Statement::Instruction(instruction) = statement
                && let Kind::Value(name) = kind(instruction, &registers)?
            {
                found.insert(name);
            }
            Ok(())
        })?;
    }
    Ok(found)
}

fn visit(body: &[Statement], see: &mut impl FnMut(&Statement) -> Result<(), String>) -> Result<(), String> {
    for statement in body {
        see(statement)?;
        if let Statement::Block(inner) = statement {
            visit(inner, see)?;
        }
    }
    Ok(())
}

/// Widths of declared registers, by name and whether the name denotes a numbered row.
type Registers = BTreeMap<(String, bool), u32>;

fn width(name: &str, registers: &Registers) -> Option<u32> {
    let row = name.trim_end_matches(|c: char| c.is_ascii_digit());
    registers.get(&(name.to_string(), false)).or_else(|| registers.get(&(row.to_string(), true))).copied()
}

fn kind(instruction: &Instruction, registers: &Registers) -> Result<Kind, String> {
    let opcode = &instruction.opcode;
    match opcode.name.as_str() {
        // Memory and addresses.
        "ld" | "st" | "atom" | "red" | "cvta" | "membar" | "fence" | "prefetch" | "isspacep" => {
            return Ok(Kind::Outside);
        }
        // Control flow.
        "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "nanosleep" => return Ok(Kind::Outside),
        // Other lanes.
        "shfl" | "vote" | "match" | "activemask" | "bar" | "barrier" => return Ok(Kind::Outside),
        _ => {}
    }
    let unknown = || format!("`{instruction}` has operands that no form has");
    let mut name = opcode.to_string();
    match (opcode.name.as_str(), &instruction.operands[..]) {
        ("mov", [Operand::Vector(to), Operand::Name(_)]) => name += &format!(" {{{}}}, 1", to.len()),
        ("mov", [Operand::Name(_), Operand::Vector(from)]) => name += &format!(" 1, {{{}}}", from.len()),
        // A symbol, or a special register that identifies the thread.
        ("mov", [_, Operand::Name(from)]) if width(from, registers).is_none() => return Ok(Kind::Outside),
        ("mov", [_, Operand::SymbolOffset { .. }]) => return Ok(Kind::Outside),
        ("cvt", [Operand::Name(to), from]) => {
            let types: Vec<Type> = opcode.types().collect();
            let [to_type, from_type] = types[..] else { return Err(unknown()) };
            let from_bits = match from {
                Operand::Name(from) => width(from, registers).ok_or_else(unknown)?,
                _ => own_width(from_type),
            };
            let to_bits = width(to, registers).ok_or_else(unknown)?;
            name = converted(opcode, to_type, to_bits, from_type, from_bits);
        }
        (_, operands) => {
            let simple = |operand: &Operand| {
                matches!(
                    operand,
                    Operand::Name(_) | Operand::Integer(_) | Operand::F32(_) | Operand::F64(_) | Operand::Sink
                )
            };
            if !operands.iter().all(simple) {
                return Err(unknown());
            }
        }
    }
    Ok(Kind::Value(name))
}
