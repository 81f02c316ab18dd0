//! Output columns: their location in the output allocation, and the code that stores a value.
//!
//!   output allocation   control │ tile status │ bitmaps │ values
//!                       └──────── zeroed ─────────────┘
//!
//! Flags     validity and booleans are bits: a row's flags are collected in one register and written by the warp.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{FunctionBuilder, Reg};

use super::compact::{Compaction, Places, merge_bits};
use crate::codegen::ir::*;
use crate::codegen::load::stored_type;
use crate::codegen::params::{ParamList, Slot};
use crate::codegen::value::Value;

/// Registers of the output columns.
pub(crate) struct Outputs {
    columns: Vec<OutputRegisters>,
    /// Addresses of all bitmaps, in the order of the flags.
    bitmaps: Vec<Reg>,
}

struct OutputRegisters {
    physical: Physical,
    /// Address of the values; `None` for booleans, which have a flag instead.
    values: Option<Reg>,
    value_flag: Option<usize>,
    valid_flag: Option<usize>,
}

/// Flags of one row: a register per 32 flags.
pub(crate) struct Flags {
    registers: Vec<Reg>,
}

impl Outputs {
    /// Declares and reads the columns' parameters; `base` is the output allocation's address.
    pub(crate) fn new(f: &mut FunctionBuilder, params: &mut ParamList, base: Reg, types: &[Ty]) -> Outputs {
        let mut columns = Vec::new();
        let mut bitmaps = Vec::new();
        for (i, ty) in types.iter().enumerate() {
            let mut address = |f: &mut FunctionBuilder, slot: Slot| {
                let offset = params.declare(f, slot, Type::U64);
                let offset = f.load_param(&offset);
                f.add(base, offset)
            };
            let physical = Physical::of(*ty);
            let values = address(f, Slot::OutputValues(i as u32));
            let validity = ty.nullable.then(|| address(f, Slot::OutputValidity(i as u32)));
            let mut flag = |address: Reg| {
                bitmaps.push(address);
                bitmaps.len() - 1
            };
            let valid_flag = validity.map(&mut flag);
            let (values, value_flag) =
                if physical == Physical::Bit { (None, Some(flag(values))) } else { (Some(values), None) };
            columns.push(OutputRegisters { physical, values, value_flag, valid_flag });
        }
        Outputs { columns, bitmaps }
    }

    pub(crate) fn has_flags(&self) -> bool {
        !self.bitmaps.is_empty()
    }

    /// Cleared flags for a row.
    pub(crate) fn flags(&self, f: &mut FunctionBuilder) -> Flags {
        Flags { registers: (0..self.bitmaps.len().div_ceil(32)).map(|_| f.copy(Type::U32, 0u32)).collect() }
    }

    /// Stores a value, in the form of [`Expressions::stored`](crate::codegen::expr::Expressions::stored), as column `i`
    /// of output row `index` (U64), and sets its flags.
    pub(crate) fn store(&self, f: &mut FunctionBuilder, i: usize, value: Value, index: Reg, flags: &Flags) {
        let column = &self.columns[i];
        if let Some(flag) = column.valid_flag {
            flags.set(f, flag, value.valid);
        }
        if let Some(flag) = column.value_flag {
            flags.set(f, flag, Some(value.low));
        }
        let Some(values) = column.values else { return };
        let address = f.element(values, index, column.physical.width());
        match value.high {
            Some(high) if matches!(column.physical, Physical::I128 | Physical::View) => {
                f.store_vector("st.global", Type::U64, address, &[value.low, high.view(Type::U64)]);
            }
            _ => {
                let ty = stored_type(column.physical);
                f.store(Space::Global, ty, address, value.low);
            }
        }
    }

    /// Writes the flags of all rows that the block keeps. All threads of the block must call it.
    pub(crate) fn write_flags(&self, f: &mut FunctionBuilder, compaction: &Compaction, places: &Places, flags: &Flags) {
        for (bitmaps, &register) in self.bitmaps.chunks(32).zip(&flags.registers) {
            compaction.write_flags(f, places, register, bitmaps);
        }
    }

    /// Writes the flags of the only row of the output. Exactly one thread must call it.
    pub(crate) fn write_single_flags(&self, f: &mut FunctionBuilder, flags: &Flags) {
        for (i, &bitmap) in self.bitmaps.iter().enumerate() {
            let bit = f.bfe(flags.registers[i / 32], i as u32 % 32, 1u32);
            f.store(Space::Global, Type::U32, bitmap, bit);
        }
    }

    /// Writes the flags of 32 consecutive rows, the first of which is output row `first` (U64). The whole warp must
    /// call it.
    pub(crate) fn write_dense_flags(&self, f: &mut FunctionBuilder, first: Reg, first_lane: Reg, flags: &Flags) {
        for (i, &bitmap) in self.bitmaps.iter().enumerate() {
            let bit = f.and(flags.registers[i / 32], 1u32 << (i % 32));
            let set = f.setp(millpond_ptx::build::Compare::Ne, bit, 0u32);
            let mask = f.ballot(set);
            merge_bits(f, mask, first, bitmap, first_lane);
        }
    }
}

impl Flags {
    /// Sets flag `flag` if `when` is true (`None`: always).
    fn set(&self, f: &mut FunctionBuilder, flag: usize, when: Option<Reg>) {
        let register = self.registers[flag / 32];
        let with = f.or(register, 1u32 << (flag % 32)).view(Type::U32);
        match when {
            Some(when) => f.guarded(when, true, |f| f.assign(register, with)),
            None => f.assign(register, with),
        }
    }
}
