//! Layouts of a pipeline's two allocations: its output, and the state of an aggregation.
//!
//!   output   control block │ tile status │ bitmaps │ values          the first three are zeroed before the launch
//!   state    control block │ records                                 all zeroed
//!
//! Regions  begin at multiples of 256 bytes, so each column is a view that obeys the padding contract.
//! Bounds   sizes are computed from upper bounds; the exact row count is in the control block, on the device.

use std::ops::Range;

use millpond_memory::DeviceView;

use crate::abi;
use crate::codegen::ir::{ColumnSpec, Physical, Regime, Ty};
use crate::pipeline::{ColumnInput, ExtentInput, ExtentRows};
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

/// Layout of an output allocation for up to `rows_upper_bound` rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLayout {
    /// Length of the allocation.
    pub bytes: usize,
    /// Bytes that the launcher zeroes, from the beginning; the whole allocation if it is small.
    pub zeroed_bytes: usize,
    pub rows_upper_bound: u64,
    /// Tiles of the launch that writes the output.
    pub num_tiles: u32,
    /// True if more rows may pass than fit: only the first are written, and [`OutputLayout::passed`] reads the full
    /// count.
    pub short: bool,
    pub columns: Vec<OutputColumn>,
}

impl OutputLayout {
    /// Range of the control block: the error word and the row count. The host reads its first 16 bytes.
    pub const CONTROL: Range<usize> = 0..abi::CONTROL_BYTES as usize;

    /// Lays out columns of `types` for a launch of `num_tiles` tiles.
    pub(crate) fn new(types: &[Ty], rows: u64, num_tiles: u64) -> OutputLayout {
        let mut end = abi::CONTROL_BYTES + 8 * num_tiles;
        let mut place = |bytes: u64| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + bytes;
            (start as usize)..(end as usize)
        };
        // Kernels write bitmaps in whole words.
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
        // A small output is zeroed whole, so that one copy can fetch all of it together with its row count.
        let zeroed_bytes = if bytes as u64 <= tune::SMALL_OUTPUT_BYTES { bytes } else { zeroed_bytes };
        OutputLayout { bytes, zeroed_bytes, rows_upper_bound: rows, num_tiles: num_tiles as u32, short: false, columns }
    }
}

impl OutputLayout {
    /// Appends columns that the launch does not write.
    #[must_use]
    pub fn beside(mut self, types: &[Ty]) -> OutputLayout {
        let rows = self.rows_upper_bound;
        let mut end = self.bytes as u64;
        let mut place = |bytes: u64| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = (start + bytes).next_multiple_of(ALIGNMENT);
            start as usize..(start + bytes) as usize
        };
        let bitmap = rows.div_ceil(32) * 4;
        for &ty in types {
            let physical = Physical::of(ty);
            let validity = ty.nullable.then(|| place(bitmap));
            let values = place(if physical == Physical::Bit { bitmap } else { physical.value_bytes(rows) });
            self.columns.push(OutputColumn { ty, physical, values, validity });
        }
        self.bytes = end as usize;
        self
    }

    /// Reads a copied control block: number of rows that passed, whether or not the output had room for them.
    pub fn passed(control: &[u8]) -> Option<u64> {
        let at = abi::CONTROL_PASSED as usize;
        control.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// The output as the input extent of the next pipeline. Its row count stays on the device.
    ///
    /// # Errors
    /// If `output` is not a buffer of this layout.
    pub fn extent(&self, output: &DeviceView) -> millpond_memory::Result<ExtentInput> {
        let columns = self.columns.iter().map(|column| {
            let values = output.view(column.values.clone())?;
            let validity = column.validity.clone().map(|range| output.view(range)).transpose()?;
            Ok(Some(ColumnInput { values, validity, base: 0 }))
        });
        let columns = columns.collect::<millpond_memory::Result<_>>()?;
        let control = output.view(Self::CONTROL)?;
        Ok(ExtentInput { rows: ExtentRows::OnDevice { control, upper_bound: self.rows_upper_bound }, columns })
    }

    /// Specs with which the next pipeline reads the columns.
    pub fn column_specs(&self) -> Vec<ColumnSpec> {
        let spec = |column: &OutputColumn| ColumnSpec { physical: column.physical, has_base: false, ty: column.ty };
        self.columns.iter().map(spec).collect()
    }
}

/// Layout of an aggregation's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateLayout {
    /// Length of the allocation. The caller zeroes all of it.
    pub bytes: usize,
    /// Number of records: groups of a dense table, slots of a hash table.
    pub records: u32,
    /// Number of tables, each shared by some of the thread blocks; a power of two.
    pub copies: u32,
    pub regime: Regime,
    /// Part of the keys that a hash table holds; all keys unless [`StateLayout::of_part`] is used.
    pub part: KeyPart,
}

/// One part of the keys, selected by bits of their hash: part `index` of `parts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPart {
    index: u32,
    parts: u32,
}

impl KeyPart {
    /// All keys.
    pub const ALL: KeyPart = KeyPart { index: 0, parts: 1 };

    /// Part `index` of `parts`; `None` unless `parts` is a power of two of at most [`tune::MAX_KEY_PARTS`] and `index`
    /// is less than `parts`.
    pub fn new(index: u32, parts: u32) -> Option<KeyPart> {
        let fits = parts.is_power_of_two() && parts <= tune::MAX_KEY_PARTS && index < parts;
        fits.then_some(KeyPart { index, parts })
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn parts(&self) -> u32 {
        self.parts
    }
}

impl StateLayout {
    /// Range of the control block: the error word and, for a hash table, the number of groups.
    pub const CONTROL: Range<usize> = 0..abi::CONTROL_BYTES as usize;

    pub(crate) fn dense(regime: Regime, groups: u64, record_bytes: u64, copies: u32) -> StateLayout {
        StateLayout {
            bytes: (abi::CONTROL_BYTES + groups * record_bytes * copies as u64) as usize,
            records: groups as u32,
            copies,
            regime,
            part: KeyPart::ALL,
        }
    }

    pub(crate) fn hash(groups: u64, record_bytes: u64) -> StateLayout {
        let slots = groups.saturating_mul(tune::HASH_SLOTS_PER_GROUP).max(tune::HASH_MIN_SLOTS).next_power_of_two();
        let slots = slots.min(1 << 31);
        StateLayout {
            bytes: (abi::CONTROL_BYTES + slots * record_bytes) as usize,
            records: slots as u32,
            copies: 1,
            regime: Regime::Hash,
            part: KeyPart::ALL,
        }
    }

    /// The layout for one part of the keys: rows of other parts are skipped. Aggregating the same rows once per part
    /// finds all groups in a fraction of the memory.
    pub fn of_part(self, part: KeyPart) -> StateLayout {
        StateLayout { part, ..self }
    }

    /// Number of groups that fit. Before each launch over `n` rows, a hash table must have room for `n` more groups.
    pub fn max_groups(&self) -> u64 {
        match self.regime {
            Regime::Hash => self.records as u64 / tune::HASH_SLOTS_PER_GROUP,
            _ => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::ir::Repr;

    #[test]
    fn columns_lie_apart_and_aligned_behind_what_is_zeroed() {
        let types = [Ty::new(Repr::Bool).nullable(true), Ty::new(Repr::I128), Ty::new(Repr::I8).nullable(true)];
        let rows = 100_001;
        let layout = OutputLayout::new(&types, rows, 196);
        let mut regions: Vec<Range<usize>> = Vec::new();
        regions.push(0..(abi::CONTROL_BYTES + 8 * 196) as usize);
        for column in &layout.columns {
            regions.push(column.values.clone());
            regions.extend(column.validity.clone());
        }
        regions.sort_by_key(|region| region.start);
        assert!(regions.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(regions.iter().all(|region| region.start % ALIGNMENT as usize == 0 && region.end <= layout.bytes));
        // 100,001 rows need 3,126 words of bits.
        assert_eq!(layout.columns[0].validity.clone().unwrap().len(), 12_504);
        assert_eq!(layout.columns[0].values.len(), 12_504);
        assert_eq!(layout.columns[1].values.len(), 1_600_016);
        assert!(layout.columns[0].values.end <= layout.zeroed_bytes);
        assert!(layout.columns[1].values.start >= layout.zeroed_bytes);
    }

    #[test]
    fn a_small_output_is_zeroed_whole() {
        let layout = OutputLayout::new(&[Ty::new(Repr::I64)], 10, 1);
        assert_eq!(layout.zeroed_bytes, layout.bytes);
    }

    #[test]
    fn a_hash_table_has_room_for_what_was_asked() {
        for groups in [0, 1, 512, 513, 1 << 20] {
            let layout = StateLayout::hash(groups, 40);
            assert!(layout.max_groups() >= groups && layout.records.is_power_of_two(), "{layout:?}");
            assert_eq!(layout.bytes as u64, abi::CONTROL_BYTES + 40 * layout.records as u64);
        }
    }
}
