//! Sizes chosen by measurement or by arithmetic, once. Generated kernels and their launchers read them here.

/// Threads of a block of an aggregating pipeline. Few, so that the bins of more groups fit a block.
pub const AGGREGATE_THREADS: u32 = 128;

/// Threads of a block that compacts: one row each, so this is the tile of the look-back as well.
/// One row per thread keeps every value in registers between the filter and the store.
pub const COMPACT_THREADS: u32 = 512;

/// Threads of a block that writes every row at its own place.
pub const DENSE_THREADS: u32 = 256;

/// Bytes of an extent descriptor that travels in the parameters (CUDA allows 4 KiB for all of them).
pub const MAX_EXTENT_PARAM_BYTES: u64 = 3072;

/// Threads per multiprocessor that a persistent grid asks for.
pub const RESIDENT_THREADS: u32 = 2048;

/// Bytes of thread-private bins that a block may use: three such blocks fit a multiprocessor of 228 KiB.
/// Devices with less shared memory per block choose the direct table instead.
pub const PRIVATE_BIN_BYTES: u64 = 72 * 1024;

/// Bytes of a thread block's own table of groups: two such blocks fit a multiprocessor of 228 KiB, four up to half of this.
/// Devices with less shared memory per block choose the direct table instead. See decisions/006.
pub const BLOCK_TABLE_BYTES: u64 = 96 * 1024;

/// Threads of a block with such a table. Many, so that they share few tables.
pub const BLOCK_TABLE_THREADS: u32 = 512;

/// Rows of the input for each record of such a table that make up for clearing and merging it: smaller inputs take fewer blocks.
pub const BLOCK_ROWS_PER_RECORD: u64 = 4;

/// Rows of the input for each group that make such tables worth their while at all.
pub const BLOCK_ROWS_PER_GROUP: u64 = 64;

/// Rows that one block with such a table may accumulate in one launch, give or take a row per thread and extent: half of
/// [`MAX_ROWS_PER_THREAD`], for the same sums.
pub const MAX_ROWS_PER_BLOCK: u64 = 1 << 25;

/// Words that a thread keeps in registers; beyond that an ungrouped aggregation updates its table row by row.
/// 128 threads' words then fit the 48 KiB of shared memory that every launch may have.
pub const REGISTER_WORDS: u32 = 40;

/// Copies of a small direct-address table, at most, each for some of the thread blocks: rows of one group then meet in the
/// same word less often. See decisions/006.
pub const DIRECT_MAX_COPIES: u32 = 32;

/// Bytes of all copies of such a table: what stays in the L2 cache beside the input.
pub const DIRECT_COPIES_BYTES: u64 = 4 << 20;

/// Rows of the input for each record of every copy that make up for clearing and folding it.
pub const DIRECT_ROWS_PER_COPY: u64 = 64;

/// Words of a record that is still folded in registers.
pub const DIRECT_FOLDED_WORDS: u32 = 24;

/// Rows of a warp that are of one group are put together before they update a table, where a row brings at most so many words.
pub const RUN_WORDS: u32 = 12;

/// So many lanes of a warp must be of the group of the lane before them.
pub const RUN_NEIGHBOURS: u32 = 8;

/// Bytes of a direct-address table below which it is always preferred to a hash table.
pub const DIRECT_ALWAYS_BYTES: u64 = 1 << 20;

/// Bytes of a direct-address table that is never exceeded: order keys of TPC-H at scale 10 and a sum take 960 MB.
pub const DIRECT_NEVER_BYTES: u64 = 1 << 30;

/// Bytes of a direct-address table when the number of input rows is unknown.
pub const DIRECT_UNKNOWN_BYTES: u64 = 1 << 26;

/// Bytes of direct-address table per input row that are worth clearing and scanning.
pub const DIRECT_BYTES_PER_ROW: u64 = 64;

/// A hash table is grown when more than one slot in this many could become occupied.
pub const HASH_SLOTS_PER_GROUP: u64 = 2;

/// Parts into which the keys of a hash table may be split, at most: bits at the top of their hash.
pub const MAX_KEY_PARTS: u32 = 256;

/// Rows for which sums are laid out: limbs of 32 bits stay exact in 64-bit words. Sums that take more say so.
pub const MAX_ROWS_PER_STATE: u64 = 1 << 32;

/// Rows that one thread may accumulate in one launch: sums of addends below 2^37 stay exact in 64 bits.
pub const MAX_ROWS_PER_THREAD: u64 = 1 << 26;

/// Shared memory, static and dynamic, that every launch may have without asking for more.
pub const SHARED_WITHOUT_ASKING: u64 = 48 * 1024;

/// Slots of the smallest hash table.
pub const HASH_MIN_SLOTS: u64 = 1024;

/// Slots of a hashed join table for each row.
pub const JOIN_SLOTS_PER_ROW: u64 = 2;

/// Threads of a block that counts, allots and places the rows of join tables.
pub const JOIN_THREADS: u32 = 256;

/// Threads of a block that takes texts apart into grams.
pub const BAYES_THREADS: u32 = 256;

/// Slots for the classes of texts, a power of two; one more is for the key that stands for a free slot.
pub const BAYES_SLOTS: u32 = 2048;

/// Threads of a block that learns from a chunk of rows.
pub const LEARN_THREADS: u32 = 256;

/// Rows of such a chunk. Sums over chunks are added in their order, on the device as on the CPU: another number is another answer, in the
/// last bits.
pub const LEARN_CHUNK_ROWS: u32 = 4096;

/// Threads of a block that writes the words of lists.
pub const LISTS_THREADS: u32 = 256;

/// Threads of a block that sums up counts: four each.
pub const SCAN_THREADS: u32 = 256;

/// Threads of a block that puts chunks of a column at their place.
pub const STORE_THREADS: u32 = 256;

/// Threads of a block that reduces a column.
pub const REDUCE_THREADS: u32 = 256;

/// Blocks that reduce one column at most, and so partial results; the scratch does not depend on the device.
pub const REDUCE_MAX_BLOCKS: u32 = 1024;

/// Keys of a sort that travel in the parameters, 64 bytes each (CUDA allows 4 KiB for all of them).
pub const SORT_FEW_KEYS: u32 = 16;

/// Threads of a block that sorts: four rows each, which stay in registers while runs are merged.
pub const SORT_THREADS: u32 = 512;

/// Rows that a block sorts on its own: words and row numbers take 24 KiB of shared memory.
pub const SORT_TILE_ROWS: u32 = 2048;

/// Threads of a block that sorts by digits.
pub const RADIX_THREADS: u32 = 512;

/// Rows that such a block takes at a time: eight a thread, and 32 KiB of shared memory for words of 8 bytes.
pub const RADIX_TILE_ROWS: u32 = 4096;

/// Digits that are sorted in the time of one merge of the same rows: merging compares, and its branches diverge.
pub const RADIX_DIGITS_PER_MERGE: u32 = 4;

/// Rows that are kept without sorting the others, at most: as many again must fit a tile beside them.
pub const TOP_MAX_ROWS: u32 = 1024;

/// Tiles that a thread block looks at, at least, where the first rows of an order are sought.
pub const TOP_TILES_PER_BLOCK: u32 = 8;

/// Thread blocks of such a search at most: four for each multiprocessor of an H200.
pub const TOP_MAX_BLOCKS: u32 = 528;

/// Threads of a block that works on windows; where it scans, four rows each.
pub const WINDOW_THREADS: u32 = 256;

/// Rows of a window's state, and states of one a level up: a frame reads twice seven of a level at most, and all levels take 4.6
/// bytes a row.
pub const WINDOW_FANOUT: u32 = 8;

/// Levels of such states for the most rows that a window takes.
pub const WINDOW_LEVELS: u32 = 10;

/// Threads of a block that decodes pages: eight warps, each with its own work.
pub const PARQUET_THREADS: u32 = 256;

/// Threads of a block that decompresses pages: one warp parses, the other copies. The source has the same number.
pub const PARQUET_PAGE_THREADS: u32 = 64;

/// Such blocks on a multiprocessor: what 64 registers a thread leave room for.
pub const PARQUET_BLOCKS: u32 = 16;

/// Threads of a block that only moves values.
pub const MOVE_THREADS: u32 = 256;

/// Outputs of at most this many bytes are zeroed whole, past what the launch needs.
pub const SMALL_OUTPUT_BYTES: u64 = 1 << 20;

/// Pipelines that a cache keeps, before it forgets half of them.
pub const CACHED_PIPELINES: usize = 512;

/// Bytes that a multiprocessor should have on their way to reach the memory's speed (H100 32 KiB, H200 48 KiB, published).
pub const BYTES_IN_FLIGHT: u64 = 48 * 1024;

/// Shared memory of a multiprocessor that bounds how many blocks with bins it holds (sm_90).
pub const SHARED_PER_MULTIPROCESSOR: u64 = 227 * 1024;

/// Rows that a thread loads ahead, at most.
pub const MAX_ROWS_AHEAD: u32 = 4;

/// Instructions up to which a kernel that loads several rows ahead may grow; above, it loads fewer.
pub const UNROLLED_INSTRUCTIONS: u32 = 560;
