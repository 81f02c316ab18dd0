//! Formats shared by host and kernels: descriptors, work lists, results. Device side: `cuda/parquet.cuh`.
//!
//! ```text
//!   descriptors   header │ columns │ dictionaries │ pages │ work lists       little-endian, parts aligned to 16 bytes
//!   results       tickets │ an error word per page │ facts per column           zeroed before the first launch
//! ```

/// A structure that device code reads, with the field order and offsets of C.
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
    /// Number of structures of each kind, and the byte offset of the first.
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
        capacity: u64,
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
        capacity: u64,
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
    /// Compressed bytes of a page (without levels) that one block decompresses, and their destination.
    Piece: 20 {
        page: u32,
        at: u32,
        bytes: u32,
        out: u32,
        raw: u32,
    }
    /// Rows of a page that one warp decodes.
    Segment: 8 {
        page: u32,
        first: u32,
    }
}

/// Bytes of a page's state, which kernels pass to one another.
pub(super) const STATE_BYTES: u64 = 80;
/// Rows of a page that one warp decodes.
pub(super) const SEGMENT: u32 = 4096;
/// Rows of a column that one block scans for facts.
pub(super) const FACT_ROWS: u64 = 16384;
/// Bytes of the tickets in front of the error words.
pub(super) const TICKET_BYTES: u64 = 64;
/// Bytes of the facts of a column.
pub(super) const FACT_BYTES: u64 = 48;

/// Bit of `Page::flags`: version 2.
pub(super) const V2: u8 = 1;
/// Bit of `Page::flags`: the page has levels.
pub(super) const HAS_LEVELS: u8 = 2;
/// Marks an absent index.
pub(super) const NONE: u32 = u32::MAX;
