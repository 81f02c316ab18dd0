//! `mov` between registers, with packing and unpacking.
//!
//!   mov.b64 %rd1, {%r1, %r2}     %r1 is the low word          mov.b64 {%r1, _}, %rd1     the high word is dropped
//!
//! The machine runs a `mov` of a symbol's address or of a special register, which are not in `Names`.

use super::decode::{Decoder, op, untyped};
use super::lanes::{binary, by_type, store, unary};
use super::{AluOp, Names, Row, Run};
use crate::ast::{Instruction, Operand, Type};

/// Whether the source of this `mov` is a register, an immediate, or a vector of them.
pub(super) fn is_between_registers(instruction: &Instruction, names: &mut dyn Names) -> bool {
    match instruction.operands.get(1) {
        Some(Operand::Name(name)) => name == "WARP_SZ" || names.register(name).is_some(),
        Some(Operand::SymbolOffset { .. }) => false,
        _ => true,
    }
}

/// Packs any number of parts; `op.detail` is the width of one.
fn pack(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let width = op.detail;
    let keep = u64::MAX >> (64 - width);
    let mut out = [0; 32];
    for (index, source) in op.sources().iter().enumerate() {
        let row = source.row(registers, constants);
        for lane in 0..32 {
            out[lane] |= (row[lane] & keep) << (index as u32 * width);
        }
    }
    store(&mut registers[op.destinations[0] as usize], &out, mask);
}

fn unpack<const WIDTH: u32>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    let keep = u64::MAX >> (64 - WIDTH);
    let whole = *op.sources[0].row(registers, constants);
    for (index, &destination) in op.destinations().iter().enumerate() {
        let out = whole.map(|word| (word >> (index as u32 * WIDTH)) & keep);
        store(&mut registers[destination as usize], &out, mask);
    }
}

pub(super) fn decode(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    decoder.end()?;
    decoder.operands(2)?;
    let instruction = decoder.instruction;
    match (&instruction.operands[0], &instruction.operands[1]) {
        (Operand::Vector(_), Operand::Vector(_)) => Err("cannot have vectors on both sides".into()),
        (Operand::Vector(parts), _) => {
            let part = part_of(ty, parts.len())?;
            let mut destinations = Vec::new();
            for operand in parts {
                destinations.push(decoder.destination_of(operand, part.bits())?);
            }
            let source = decoder.source(1, ty)?;
            let run: Run = match part {
                Type::B8 => unpack::<8>,
                Type::B16 => unpack::<16>,
                _ => unpack::<32>,
            };
            Ok(op(run, &destinations, &[source], 0))
        }
        (_, Operand::Vector(parts)) => {
            let part = part_of(ty, parts.len())?;
            let mut sources = Vec::new();
            for operand in parts {
                sources.push(decoder.source_of(operand, part)?);
            }
            let destination = decoder.destination(0, ty.bits())?;
            let run: Run = match (part, sources.len()) {
                (Type::B32, 2) => binary!(|low: u32, high: u32| -> u64 { u64::from(low) | u64::from(high) << 32 }),
                (Type::B16, 2) => binary!(|low: u16, high: u16| -> u32 { u32::from(low) | u32::from(high) << 16 }),
                _ => pack,
            };
            Ok(op(run, &[destination], &sources, part.bits()))
        }
        _ => {
            let run = match ty {
                Type::Pred => Some(unary!(|a: bool| -> bool { a })),
                _ => by_type!(untyped(ty), T in [B16 u16, B32 u32, B64 u64] => unary!(|a: T| -> T { a })),
            };
            let run: Run = run.ok_or_else(|| decoder.no_type(ty, ".pred and words of 16, 32 and 64 bits"))?;
            decoder.simple(run, ty.bits(), &[ty])
        }
    }
}

/// The type of one part when a `ty` has `count` parts.
fn part_of(ty: Type, count: usize) -> Result<Type, String> {
    match (ty, count) {
        (Type::B16, 2) | (Type::B32, 4) => Ok(Type::B8),
        (Type::B32, 2) | (Type::B64, 4) => Ok(Type::B16),
        (Type::B64, 2) => Ok(Type::B32),
        _ => Err(format!(
            "cannot split .{} into {count}; it can be .b16 in 2, .b32 in 2 or 4, .b64 in 2 or 4",
            ty.name()
        )),
    }
}
