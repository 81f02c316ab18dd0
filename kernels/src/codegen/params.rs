//! Parameters of generated kernels: declared during code generation, packed by the host from the same list.
//!
//!   extent (one)          descriptor, by value          output columns          materialise, emit
//!   extents, how many     array in device memory        table · capacity …      aggregate
//!   control               error word, rows, ticket      literals, lookups       as the spec numbers them
//!
//! Layout   that of PTX parameters: in order, each at its natural alignment.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{FunctionBuilder, Param};

/// Meaning of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Slot {
    /// The descriptor of the only extent, by value.
    Extent,
    /// Address of the array of extent descriptors.
    Extents,
    /// Number of extent descriptors (u32).
    NumExtents,
    /// Address of the control block.
    Control,
    /// Number of tiles of the whole input, from upper bounds (u32).
    NumTiles,
    /// Number of rows that fit the output (u64); later rows are counted but not written.
    Room,
    /// Base address of the output allocation.
    Output,
    /// Byte offset of output column `i` in the output allocation.
    OutputValues(u32),
    /// Byte offset of the validity of output column `i`.
    OutputValidity(u32),
    /// Address of the table of groups.
    Table,
    /// Address of the table that a rehash reads.
    OldTable,
    /// Number of records in the table (u32); in a rehash or an emit, of the table that is read.
    Records,
    /// Number of copies of the table minus one: a power of two minus one (u32).
    CopyMask,
    /// Bytes of a copy (u64).
    CopyBytes,
    /// Number of slots of the hash table minus one: a power of two minus one (u32).
    SlotMask,
    /// Number of key parts minus one: a power of two minus one (u32); rows of parts other than `Part` are skipped.
    PartMask,
    /// Part of the keys that the hash table holds (u32).
    Part,
    /// Address of the notes of rows that found a hash table full; 0 if no row may be deferred.
    Leftover,
    /// Not 0 if only noted rows are processed (u32).
    Again,
    /// Maximum number of groups of a hash table (u64).
    Limit,
    /// Lowest value of key `i`: modulo 2^32 in keys that address a table (u32), complete in an emit (u64).
    KeyLow(u32),
    /// For key `i`, the code of NULL; without NULL, the number of codes (u32).
    KeyNull(u32),
    /// Number of codes of key `i`, NULL included (u32).
    KeyCodes(u32),
    /// Literal `i`: its only word, or its low half.
    Literal(u32),
    /// High half of a 128-bit literal.
    LiteralHigh(u32),
    /// Validity of nullable literal `i` (u32).
    LiteralValid(u32),
    /// Address of the values of lookup table `i`.
    LookupValues(u32),
    /// Address of the validity of lookup table `i`.
    LookupValidity(u32),
    /// Address of join table `i`.
    Join(u32),
    /// Number of rows of join table `i`, if every row matches (u32).
    JoinRows(u32),
    /// Binary logarithm of the bytes of a slot of join table `i`, if it is an array (u32).
    JoinShift(u32),
    /// Bit mask of such a slot (u32).
    JoinField(u32),
    /// Number of slots of join table `i`, if it is hashed (u32).
    JoinSlots(u32),
    /// Address of the lists of join table `i`.
    JoinLists(u32),
    /// Lowest value of key `k` of join table `i`, if keys address it (u64).
    JoinLow(u32, u32),
    /// Number of values of that key, without NULL (u64).
    JoinCodes(u32, u32),
    /// Address of the leaders of the rows, which a build writes.
    Scratch,
    /// Address of the marks, for a pipeline that both writes and marks rows.
    Marks,
    /// Address of the running sums of an expansion, behind their control block.
    Ends,
    /// First expanded row of this launch (u64).
    FirstRow,
    /// Address of the arena for new texts.
    Arena,
    /// Capacity of the arena in bytes (u64).
    ArenaBytes,
}

/// One parameter and its offset in the parameter block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamSlot {
    pub slot: Slot,
    pub offset: u32,
    pub bytes: u32,
}

/// The parameters of a kernel, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParamList {
    pub slots: Vec<ParamSlot>,
    bytes: u32,
}

impl ParamList {
    /// Declares a parameter of a fundamental type.
    pub(crate) fn declare(&mut self, f: &mut FunctionBuilder, slot: Slot, ty: Type) -> Param {
        self.place(slot, ty.bytes(), ty.bytes());
        f.param(&name(slot), ty)
    }

    /// Declares a parameter of `bytes` bytes, aligned to 8.
    pub(crate) fn declare_bytes(&mut self, f: &mut FunctionBuilder, slot: Slot, bytes: u32) -> Param {
        self.place(slot, 8, bytes);
        f.param_bytes(&name(slot), 8, bytes as u64)
    }

    fn place(&mut self, slot: Slot, align: u32, bytes: u32) {
        let offset = self.bytes.next_multiple_of(align);
        self.slots.push(ParamSlot { slot, offset, bytes });
        self.bytes = offset + bytes;
    }

    /// Bytes of the parameter block.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

fn name(slot: Slot) -> String {
    match slot {
        Slot::Extent => "extent".into(),
        Slot::Extents => "extents".into(),
        Slot::NumExtents => "num_extents".into(),
        Slot::Control => "control".into(),
        Slot::NumTiles => "num_tiles".into(),
        Slot::Room => "room".into(),
        Slot::Output => "output".into(),
        Slot::OutputValues(i) => format!("output_{i}_values"),
        Slot::OutputValidity(i) => format!("output_{i}_validity"),
        Slot::Table => "table".into(),
        Slot::OldTable => "old_table".into(),
        Slot::Records => "records".into(),
        Slot::CopyMask => "copy_mask".into(),
        Slot::CopyBytes => "copy_bytes".into(),
        Slot::SlotMask => "slot_mask".into(),
        Slot::PartMask => "part_mask".into(),
        Slot::Part => "part".into(),
        Slot::Leftover => "leftover".into(),
        Slot::Again => "again".into(),
        Slot::Limit => "limit".into(),
        Slot::KeyLow(i) => format!("key_{i}_low"),
        Slot::KeyNull(i) => format!("key_{i}_null"),
        Slot::KeyCodes(i) => format!("key_{i}_codes"),
        Slot::Literal(i) => format!("literal_{i}"),
        Slot::LiteralHigh(i) => format!("literal_{i}_high"),
        Slot::LiteralValid(i) => format!("literal_{i}_valid"),
        Slot::LookupValues(i) => format!("lookup_{i}_values"),
        Slot::LookupValidity(i) => format!("lookup_{i}_validity"),
        Slot::Join(i) => format!("join_{i}"),
        Slot::JoinRows(i) => format!("join_{i}_rows"),
        Slot::JoinShift(i) => format!("join_{i}_shift"),
        Slot::JoinField(i) => format!("join_{i}_field"),
        Slot::JoinSlots(i) => format!("join_{i}_slots"),
        Slot::JoinLists(i) => format!("join_{i}_lists"),
        Slot::JoinLow(i, k) => format!("join_{i}_key_{k}_low"),
        Slot::JoinCodes(i, k) => format!("join_{i}_key_{k}_codes"),
        Slot::Scratch => "scratch".into(),
        Slot::Marks => "marks".into(),
        Slot::Ends => "ends".into(),
        Slot::FirstRow => "first_row".into(),
        Slot::Arena => "arena".into(),
        Slot::ArenaBytes => "arena_bytes".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_lie_as_ptx_lays_them() {
        let mut f = FunctionBuilder::kernel("k");
        let mut list = ParamList::default();
        list.declare(&mut f, Slot::NumTiles, Type::U32);
        list.declare(&mut f, Slot::Control, Type::U64);
        list.declare(&mut f, Slot::NumExtents, Type::U32);
        list.declare_bytes(&mut f, Slot::Extent, 40);
        let offsets: Vec<u32> = list.slots.iter().map(|slot| slot.offset).collect();
        assert_eq!((offsets, list.bytes()), (vec![0, 8, 16, 24], 64));
    }
}
