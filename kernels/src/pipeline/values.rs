//! Values of a launch's parameters: one for each slot that the generated kernel declares.
//!
//! ```text
//!   table of groups   number of records, masks, ranges of the keys             from the layout of the state
//!   input             extents, literals, lookup tables, arena                  from the caller
//!   output            offsets of values and validity                           from the layout of the output
//! ```

use crate::codegen::aggregate::cells::{AggregatePlan, DenseKey};
use crate::codegen::ir::*;
use crate::codegen::params::Slot;
use crate::launch::Launch;
use crate::layout::{OutputLayout, StateLayout};
use crate::pipeline::{Input, Pipeline, Result, shape};

impl Pipeline {
    pub(super) fn dense_key(&self, index: u32) -> DenseKey {
        let plan = self.compiled.plan.as_ref().expect("keys belong to aggregates");
        plan.keys[index as usize].dense.expect("dense regimes have dense keys")
    }

    /// Value of a parameter that describes the table of groups.
    pub(super) fn table_value(&self, slot: Slot, layout: &StateLayout) -> Option<Scalar> {
        Some(match slot {
            Slot::Records => Scalar::U32(layout.records),
            Slot::SlotMask => Scalar::U32(layout.records - 1),
            Slot::CopyMask => Scalar::U32(layout.copies - 1),
            Slot::CopyBytes => {
                Scalar::U64(layout.records as u64 * self.compiled.plan.as_ref().map_or(0, AggregatePlan::record_bytes))
            }
            Slot::PartMask => Scalar::U32(layout.part.parts() - 1),
            Slot::Part => Scalar::U32(layout.part.index()),
            Slot::KeyLow(i) => Scalar::U32(self.dense_key(i).low as u32),
            Slot::KeyNull(i) => Scalar::U32((self.dense_key(i).codes - 1) as u32),
            Slot::KeyCodes(i) => Scalar::U32(self.dense_key(i).codes as u32),
            _ => return None,
        })
    }

    /// Adds the parameter of an extent, a literal, a lookup table or an output column.
    pub(crate) fn input_or_output<'k>(
        &self,
        launch: Launch<'k>,
        slot: Slot,
        input: &Input<'_>,
        layout: Option<&OutputLayout>,
    ) -> Result<Launch<'k>> {
        let literal = |i: u32| {
            let value = match input.literals[i as usize] {
                Literal::Variant => Literal::Int(input.variant.into()),
                Literal::Extent => Literal::Int(input.extent.into()),
                value => value,
            };
            (self.compiled.spec.literals[i as usize], value)
        };
        Ok(match slot {
            Slot::Extent => {
                let mut bytes = Vec::new();
                self.describe(&input.extents[0], &mut bytes)?;
                launch.bytes(&bytes, 8)
            }
            Slot::Extents => match input.descriptors {
                Some(descriptors) => launch.read(descriptors),
                None => return Err(shape("the input", "no descriptors".into())),
            },
            Slot::NumExtents => launch.value(input.extents.len() as u32),
            Slot::Literal(i) => {
                let (ty, value) = literal(i);
                let bits = literal_bits(i, ty, value)?;
                match lane(ty).bytes() {
                    4 => launch.value(bits as u32),
                    _ => launch.value(bits as u64),
                }
            }
            Slot::LiteralHigh(i) => {
                let (ty, value) = literal(i);
                launch.value((literal_bits(i, ty, value)? >> 64) as u64)
            }
            Slot::LiteralValid(i) => launch.value((literal(i).1 != Literal::Null) as u32),
            Slot::LookupValues(i) => launch.read(input.lookups[i as usize].values.padded()),
            Slot::LookupValidity(i) => match &input.lookups[i as usize].validity {
                Some(validity) => launch.read(validity.padded()),
                None => return Err(shape("the input", format!("lookup table {i} has no validity, its type has NULL"))),
            },
            Slot::Arena | Slot::ArenaBytes => match (slot, input.arena) {
                (Slot::Arena, Some(arena)) => launch.write(arena),
                (_, Some(arena)) => launch.value((arena.len() as u64).saturating_sub(crate::text::ARENA_HEAD_BYTES)),
                (_, None) => return Err(shape("the input", "no room for the texts that the pipeline makes".into())),
            },
            slot => match layout.and_then(|layout| output_value(slot, layout)) {
                Some(value) => value.give(launch),
                None => self.join_value(launch, slot, input)?,
            },
        })
    }
}

/// A numeric parameter.
pub(super) enum Scalar {
    U32(u32),
    U64(u64),
}

impl Scalar {
    pub(super) fn give(self, launch: Launch<'_>) -> Launch<'_> {
        match self {
            Scalar::U32(value) => launch.value(value),
            Scalar::U64(value) => launch.value(value),
        }
    }
}

/// Value of a parameter of an output column.
pub(super) fn output_value(slot: Slot, layout: &OutputLayout) -> Option<Scalar> {
    match slot {
        Slot::OutputValues(i) => Some(Scalar::U64(layout.columns[i as usize].values.start as u64)),
        Slot::OutputValidity(i) => {
            layout.columns[i as usize].validity.as_ref().map(|validity| Scalar::U64(validity.start as u64))
        }
        _ => None,
    }
}

/// Bits of a literal in its slot.
fn literal_bits(index: u32, ty: Ty, value: Literal) -> Result<i128> {
    let lane = lane(ty);
    Ok(match (value, lane) {
        (Literal::Null, _) if ty.nullable => 0,
        (Literal::Bool(truth), Lane::Pred) => truth as i128,
        (Literal::F32(number), Lane::F32) => number.to_bits() as i128,
        (Literal::F64(number), Lane::F64) => number.to_bits() as i128,
        (Literal::Int(number), Lane::S32 | Lane::U32 | Lane::S64 | Lane::U64 | Lane::S128)
            if ty.bounds().is_some_and(|bounds| bounds.holds(number)) =>
        {
            number
        }
        _ => return Err(shape("a literal", format!("{value:?} does not fit slot {index} of type {ty:?}"))),
    })
}
