//! What host and kernels agree on: descriptors, lists of work, results. Device side: `cuda/parquet.cuh`.
//!
//! ```text
//!   descriptors   header │ columns │ dictionaries │ pages │ lists of work       little-endian, each part at a multiple of 16
//!   results       tickets │ an error word per page │ facts per column           zeroed before the first launch
//! ```

/// A structure that device code reads: its fields, in the order and at the places that C gives them.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal { $($field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default)]
        pub(super) struct $name {
            $(pub(super) $field: $ty,)*
        }
        const _: () = assert!(size_of::<$name>() == $bytes && ($bytes == 0 $(+ size_of::<$ty>())*));

        impl $name {
            pub(super) fn put(&self, bytes: &mut Vec<u8>) {
                $(bytes.extend_from_slice(&self.$field.to_le_bytes());)*
            }
        }
    )*};
}

structures! {
    /// How many there are of each, and at which byte they begin.
    Header: 32 {
        columns: u32,
        columns_at: u32,
        dictionaries: u32,
        dictionaries_at: u32,
        pages: u32,
        pages_at: u32,
        errors_at: u32,
        facts_at: u32,
    }
    Column: 96 {
        values: u64,
        validity: u64,
        bytes: u64,
        room: u64,
        base: i64,
        low: i64,
        high: i64,
        rows: u64,
        source: u32,
        width_in: u32,
        width_out: u32,
        first_offset: u32,
        stored: u32,
        utf8: u32,
        pages: u32,
        pages_at: u32,
    }
    Dictionary: 32 {
        values: u64,
        bytes: u64,
        entries: u32,
        width: u32,
        room: u64,
    }
    Page: 96 {
        source: u64,
        scratch: u64,
        work: u64,
        first_row: u64,
        compressed: u32,
        raw: u32,
        values: u32,
        skip: u32,
        rows: u32,
        level_bytes: u32,
        column: u32,
        dictionary: u32,
        most_runs: u32,
        starts: u32,
        codec: u8,
        encoding: u8,
        flags: u8,
        spare: u8,
        spare_word: u32,
        spare_words: u64,
        spare_end: u64,
    }
    /// Compressed bytes of a page, behind its levels, that one block takes, and where they go.
    Piece: 20 {
        page: u32,
        at: u32,
        bytes: u32,
        out: u32,
        raw: u32,
    }
    /// Rows of a page that one warp takes.
    Segment: 8 {
        page: u32,
        first: u32,
    }
}

/// Bytes that kernels tell one another of a page.
pub(super) const STATE_BYTES: u64 = 80;
/// Rows of a page that one warp takes.
pub(super) const SEGMENT: u32 = 4096;
/// Rows of a column that one block takes where facts are sought.
pub(super) const FACT_ROWS: u64 = 16384;
/// Bytes of the tickets before the error words.
pub(super) const TICKET_BYTES: u64 = 64;
/// Bytes of the facts of a column.
pub(super) const FACT_BYTES: u64 = 48;

/// `Page::flags`.
pub(super) const V2: u8 = 1;
/// `Page::flags`.
pub(super) const HAS_LEVELS: u8 = 2;
/// For what is not there.
pub(super) const NONE: u32 = u32::MAX;
