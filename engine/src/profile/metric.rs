//! Names of the metrics that a run keeps on its `DownloadExec`, as EXPLAIN ANALYZE prints them.
//!
//!   run ─ counts ─► MetricsSet ─ by these names ─► EXPLAIN ANALYZE, QueryReport

pub const LAUNCHES: &str = "launches";
pub const PIPELINE_LAUNCHES: &str = "pipeline_launches";
/// Number of launched pipelines, and of instructions in their generated PTX.
pub const PIPELINES: &str = "pipelines";
pub const PTX_INSTRUCTIONS: &str = "ptx_instructions";
/// Number of segments of the program, and of attempts to run it.
pub const SEGMENTS: &str = "segments";
pub const ATTEMPTS: &str = "attempts";
/// Number of times that a run lowered a segment or the build part of a join, and computed statistics of a source.
pub const LOWERINGS: &str = "lowerings";
pub const STATISTICS_READ: &str = "statistics_read";
/// Host time for preparing the pipelines of a plan, in nanoseconds.
pub const PREPARE_NS: &str = "prepare_ns";
pub const HOST_WAITS: &str = "host_waits";
pub const ALLOCATIONS: &str = "allocations";
pub const ALLOCATED_BYTES: &str = "allocated_bytes";
/// Host time in the allocator, in nanoseconds; only on a real device.
pub const ALLOCATOR_NS: &str = "allocator_ns";
pub const UPLOADED_BYTES: &str = "uploaded_bytes";
pub const DOWNLOADED_BYTES: &str = "downloaded_bytes";
pub const PEAK_BYTES: &str = "peak_bytes";
pub const SPILLED_BYTES: &str = "spilled_bytes";
pub const RESTORED_BYTES: &str = "restored_bytes";
/// Number of runs that the CPU repeated because the device could not finish them.
pub const TAKEN_OVER: &str = "taken_over_by_cpu";
/// On a `DeviceScanExec`: row groups read by its decoder, row groups with invalid bytes and whole files read by
/// DataFusion.
pub const ROW_GROUPS: &str = "row_groups_decoded";
pub const FOREIGN_ROW_GROUPS: &str = "row_groups_by_datafusion";
pub const FOREIGN_FILES: &str = "files_by_datafusion";
/// On a `DeviceScanExec`: rows removed by a predicate on the dictionaries of its columns.
pub const ROWS_BY_DICTIONARY: &str = "rows_left_out_by_dictionaries";
/// On a `DeviceScanExec`: columns of row groups decoded on the device.
pub const COLUMNS_ON_DEVICE: &str = "columns_decoded_on_device";
/// On an `UploadExec` or a `DeviceScanExec`: number of uploaded extents.
pub const EXTENTS: &str = "extents";
