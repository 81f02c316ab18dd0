//! Sizes chosen by measurement or arithmetic, for generated kernels and their launchers.

/// Threads of a block of an aggregating pipeline. A small block has room for the bins of more groups.
pub const AGGREGATE_THREADS: u32 = 128;

/// Threads of a block that compacts: one row each, so this is also the tile size of the look-back.
/// One row per thread keeps every value in registers between the filter and the store.
pub const COMPACT_THREADS: u32 = 512;

/// Threads of a block that writes every row at its own index.
pub const DENSE_THREADS: u32 = 256;

/// Maximum bytes of an extent descriptor in the parameters (CUDA allows 4 KiB for all parameters).
pub const MAX_EXTENT_PARAM_BYTES: u64 = 3072;

/// Threads per multiprocessor that a persistent grid requests.
pub const RESIDENT_THREADS: u32 = 2048;

/// Maximum bytes of thread-private bins per block: three such blocks fit a multiprocessor of 228 KiB. Devices with less
/// shared memory per block use the direct table instead.
pub const PRIVATE_BIN_BYTES: u64 = 72 * 1024;

/// Maximum bytes of a thread block's own table of groups: two such blocks fit a multiprocessor of 228 KiB, four blocks
/// with half as much. Devices with less shared memory per block use the direct table instead. See decisions/006.
pub const BLOCK_TABLE_BYTES: u64 = 96 * 1024;

/// Threads of a block with its own table. A large block means fewer tables.
pub const BLOCK_TABLE_THREADS: u32 = 512;

/// Input rows per record that pay for clearing and merging a block's own table: smaller inputs use fewer blocks.
pub const BLOCK_ROWS_PER_RECORD: u64 = 4;

/// Input rows per group from which tables per block are used at all.
pub const BLOCK_ROWS_PER_GROUP: u64 = 64;

/// Approximate maximum rows that one block with its own table accumulates per launch (exceeded by at most one row per
/// thread and extent): half of [`MAX_ROWS_PER_THREAD`], for the same sums.
pub const MAX_ROWS_PER_BLOCK: u64 = 1 << 25;

/// Maximum words of accumulators that a thread keeps in registers; an ungrouped aggregation with more updates its table
/// row by row. The words of 128 threads then fit the 48 KiB of shared memory that every launch may use.
pub const REGISTER_WORDS: u32 = 40;

/// Maximum copies of a small direct-address table, each used by some of the thread blocks: rows of one group then
/// update the same word less often. See decisions/006.
pub const DIRECT_MAX_COPIES: u32 = 32;

/// Maximum bytes of all copies of a direct-address table: they stay in the L2 cache beside the input.
pub const DIRECT_COPIES_BYTES: u64 = 4 << 20;

/// Input rows per record of every copy that pay for clearing and folding the copies.
pub const DIRECT_ROWS_PER_COPY: u64 = 64;

/// Maximum words of a record that is folded in registers.
pub const DIRECT_FOLDED_WORDS: u32 = 24;

/// Maximum words per row for which rows of one group in a warp are combined before they update a table.
pub const RUN_WORDS: u32 = 12;

/// Minimum lanes of a warp whose group is that of the previous lane: with fewer, rows are not combined.
pub const RUN_NEIGHBOURS: u32 = 8;

/// Bytes of a direct-address table up to which it is always preferred to a hash table.
pub const DIRECT_ALWAYS_BYTES: u64 = 1 << 20;

/// Maximum bytes of a direct-address table: the order keys of TPC-H at scale 10 with one sum take 960 MB.
pub const DIRECT_NEVER_BYTES: u64 = 1 << 30;

/// Maximum bytes of a direct-address table if the number of input rows is unknown.
pub const DIRECT_UNKNOWN_BYTES: u64 = 1 << 26;

/// Bytes of a direct-address table per input row that are worth clearing and scanning.
pub const DIRECT_BYTES_PER_ROW: u64 = 64;

/// Hash-table slots per group: a table grows before more than one in this many slots is occupied.
pub const HASH_SLOTS_PER_GROUP: u64 = 2;

/// Maximum number of parts into which the keys of a hash table are split, by the top bits of their hash.
pub const MAX_KEY_PARTS: u32 = 256;

/// Rows for which sums are exact: limbs of 32 bits in 64-bit words. Sums with a larger limit state it.
pub const MAX_ROWS_PER_STATE: u64 = 1 << 32;

/// Maximum rows that one thread accumulates per launch: sums of addends below 2^37 stay exact in 64 bits.
pub const MAX_ROWS_PER_THREAD: u64 = 1 << 26;

/// Bytes of shared memory, static and dynamic, that a launch may use without raising the kernel's limit.
pub const SHARED_WITHOUT_ASKING: u64 = 48 * 1024;

/// Slots of the smallest hash table.
pub const HASH_MIN_SLOTS: u64 = 1024;

/// Slots of a hashed join table for each row.
pub const JOIN_SLOTS_PER_ROW: u64 = 2;

/// Threads of a block that counts, allocates and places the rows of join tables.
pub const JOIN_THREADS: u32 = 256;

/// Threads of a block that splits texts into grams.
pub const BAYES_THREADS: u32 = 256;

/// Slots for the classes of texts, a power of two; one more slot holds the key that otherwise marks a free slot.
pub const BAYES_SLOTS: u32 = 2048;

/// Threads of a block that processes a chunk of rows for k-means or logistic regression.
pub const LEARN_THREADS: u32 = 256;

/// Rows of a chunk. Chunk sums are added in order, on the device as on the CPU: another chunk size changes the last
/// bits of the result.
pub const LEARN_CHUNK_ROWS: u32 = 4096;

/// Threads of a block that writes list words.
pub const LISTS_THREADS: u32 = 256;

/// Threads of a block that computes running sums: four counts each.
pub const SCAN_THREADS: u32 = 256;

/// Threads of a block that writes chunks of a column.
pub const STORE_THREADS: u32 = 256;

/// Threads of a block that reduces a column.
pub const REDUCE_THREADS: u32 = 256;

/// Maximum number of blocks, and so of partial results, that reduce one column; the scratch does not depend on the
/// device.
pub const REDUCE_MAX_BLOCKS: u32 = 1024;

/// Keys of a sort whose descriptors fit the parameters, 64 bytes each (CUDA allows 4 KiB for all parameters).
pub const SORT_FEW_KEYS: u32 = 16;

/// Threads of a block that sorts: four rows each, in registers while runs are merged.
pub const SORT_THREADS: u32 = 512;

/// Rows that one block sorts alone: words and row numbers take 24 KiB of shared memory.
pub const SORT_TILE_ROWS: u32 = 2048;

/// Threads of a block of a radix sort.
pub const RADIX_THREADS: u32 = 512;

/// Rows per tile of a radix sort: eight per thread, and 32 KiB of shared memory for words of 8 bytes.
pub const RADIX_TILE_ROWS: u32 = 4096;

/// Radix passes that take as long as one merge of the same rows: merging compares, and its branches diverge.
pub const RADIX_DIGITS_PER_MERGE: u32 = 4;

/// Maximum k of a top-k sort: as many newcomers must fit into a tile beside the k rows.
pub const TOP_MAX_ROWS: u32 = 1024;

/// Minimum number of tiles per thread block of a top-k sort.
pub const TOP_TILES_PER_BLOCK: u32 = 8;

/// Maximum thread blocks of a top-k sort: four per multiprocessor of an H200.
pub const TOP_MAX_BLOCKS: u32 = 528;

/// Threads of a block of window kernels; four rows each in scans.
pub const WINDOW_THREADS: u32 = 256;

/// Rows per window state, and states per state of the next level: a frame reads at most twice seven states of a level,
/// and all levels take 4.6 bytes per row.
pub const WINDOW_FANOUT: u32 = 8;

/// Levels of window states for the maximum number of rows.
pub const WINDOW_LEVELS: u32 = 10;

/// Threads of a block that decodes pages: eight independent warps.
pub const PARQUET_THREADS: u32 = 256;

/// Threads of a block that decompresses pages: one warp parses, the other copies. The CUDA source repeats this number.
pub const PARQUET_PAGE_THREADS: u32 = 64;

/// Resident decompressing blocks per multiprocessor: 64 registers per thread leave room for this many.
pub const PARQUET_BLOCKS: u32 = 16;

/// Threads of a block that moves values.
pub const MOVE_THREADS: u32 = 256;

/// Bytes up to which an output is zeroed completely, beyond what the launch needs.
pub const SMALL_OUTPUT_BYTES: u64 = 1 << 20;

/// Number of pipelines that fill a cache; it then drops half of them.
pub const CACHED_PIPELINES: usize = 512;

/// Bytes in flight per multiprocessor that saturate the memory bandwidth (H100 32 KiB, H200 48 KiB, published).
pub const BYTES_IN_FLIGHT: u64 = 48 * 1024;

/// Bytes of shared memory per multiprocessor, which bound its number of resident blocks with bins (sm_90).
pub const SHARED_PER_MULTIPROCESSOR: u64 = 227 * 1024;

/// Maximum rows that a thread loads ahead.
pub const MAX_ROWS_AHEAD: u32 = 4;

/// Maximum instructions of a kernel that loads several rows ahead; a larger kernel loads fewer rows.
pub const UNROLLED_INSTRUCTIONS: u32 = 560;
