//! Where things lie in the two allocations of a pipeline: its output, and the state of an aggregation.
//!
//!   output   control block │ tile status │ bitmaps │ values          the first three are zeroed before the launch
//!   state    control block │ records                                 all zeroed
//!
//! Regions  begin at multiples of 256 bytes, so each column is a view that obeys the padding contract.
//! Bounds   sizes come from upper bounds; the true number of rows is in the control block, on the device.

use std::ops::Range;

use crate::abi;
use crate::codegen::ir::{Physical, Regime, Ty};
use crate::tune;

const ALIGNMENT: u64 = 256;

/// One column of an output allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputColumn {
    pub ty: Ty,
    pub physical: Physical,
    /// Bytes of the values.
    pub values: Range<usize>,
    /// Bytes of the validity bitmap, for a nullable type.
    pub validity: Option<Range<usize>>,
}

/// An output allocation for up to `rows_upper_bound` rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLayout {
    /// Length of the allocation.
    pub bytes: usize,
    /// The launcher zeroes this many bytes from the beginning.
    pub zeroed_bytes: usize,
    pub rows_upper_bound: u64,
    /// Tiles of the launch that fills it.
    pub num_tiles: u32,
    pub columns: Vec<OutputColumn>,
}

impl OutputLayout {
    /// Bytes of the control block: the error word and the number of rows. Its first 16 bytes are what the host wants.
    pub const CONTROL: Range<usize> = 0..abi::CONTROL_BYTES as usize;

    /// Lays out columns of `types` for a launch of `num_tiles` tiles.
    pub(crate) fn new(types: &[Ty], rows: u64, num_tiles: u64) -> OutputLayout {
        let mut end = abi::CONTROL_BYTES + 8 * num_tiles;
        let mut place = |bytes: u64| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + bytes;
            (start as usize)..(end as usize)
        };
        // Bitmaps are written by whole words.
        let bitmap = rows.div_ceil(32) * 4;
        let mut columns: Vec<OutputColumn> = Vec::with_capacity(types.len());
        for &ty in types {
            let physical = Physical::of(ty);
            let validity = ty.nullable.then(|| place(bitmap));
            let values = if physical == Physical::Bit { place(bitmap) } else { 0..0 };
            columns.push(OutputColumn { ty, physical, values, validity });
        }
        let zeroed_bytes = place(0).start;
        for column in columns.iter_mut().filter(|column| column.physical != Physical::Bit) {
            column.values = place(column.physical.value_bytes(rows));
        }
        let bytes = place(0).start;
        OutputLayout { bytes, zeroed_bytes, rows_upper_bound: rows, num_tiles: num_tiles as u32, columns }
    }
}

/// The state of an aggregation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateLayout {
    /// Length of the allocation, all of it zero at first.
    pub bytes: usize,
    /// Records: groups of a dense table, slots of a hash table.
    pub records: u32,
    pub regime: Regime,
}

impl StateLayout {
    /// Bytes of the control block: the error word, and in a hash table the number of groups.
    pub const CONTROL: Range<usize> = 0..abi::CONTROL_BYTES as usize;

    pub(crate) fn dense(regime: Regime, groups: u64, record_bytes: u64) -> StateLayout {
        StateLayout { bytes: (abi::CONTROL_BYTES + groups * record_bytes) as usize, records: groups as u32, regime }
    }

    pub(crate) fn hash(groups: u64, record_bytes: u64) -> StateLayout {
        let slots = groups.saturating_mul(tune::HASH_SLOTS_PER_GROUP).max(tune::HASH_MIN_SLOTS).next_power_of_two();
        let slots = slots.min(1 << 31);
        StateLayout {
            bytes: (abi::CONTROL_BYTES + slots * record_bytes) as usize,
            records: slots as u32,
            regime: Regime::Hash,
        }
    }

    /// Groups that fit. Before each launch over `n` rows a hash table must have room for `n` groups more than it has.
    pub fn room(&self) -> u64 {
        match self.regime {
            Regime::Hash => self.records as u64 / tune::HASH_SLOTS_PER_GROUP,
            _ => u64::MAX,
        }
    }
}
