//! The engine's options: `millpond.*` in SQL, `MILLPOND_*` in the environment, fields in Rust.
//!
//!   SET millpond.batch_rows = 1000      MILLPOND_BATCH_ROWS=1000      options.batch_rows = 1000
//!
//! A doc comment says what an option does, its unit, what zero means, and what it trades. Options that only tests
//! want begin with `debug_`. Every value is checked when it is set; an unknown name suggests the nearest one.

mod value;

use std::any::Any;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::error::Result;
use millpond_kernels::codegen::ir::MAX_TEXT_BYTES;
use millpond_memory::Strategy;
use millpond_memory::driver::sim::Shape;

use crate::error::EngineError;
use crate::options::value::Value;

pub use crate::options::value::{Cache, DeviceChoice, DeviceTimeout, Fallback, IntegerOverflow, ParquetDecoder};

/// DataFusion's `extensions_options!`, with values checked as they are set and names suggested.
macro_rules! options {
    (
        $(#[doc = $struct_doc:literal])*
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])* $([$with:ident])? pub $field:ident : $type:ty, default = $default:expr )*
        }
    ) => {
        $(#[doc = $struct_doc])*
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub struct $name {
            $( $(#[doc = $doc])* pub $field: $type, )*
            /// A device is open: what it was opened with stays.
            opened: bool,
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* opened: false }
            }
        }

        impl $name {
            /// Every option's name, without the prefix.
            pub const NAMES: &'static [&'static str] = &[ $( stringify!($field), )* ];

            $( $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), "), in SQL `millpond.", stringify!($field), "`.")]
                #[must_use]
                pub fn $with(mut self, value: $type) -> Self {
                    self.$field = value;
                    self
                }
            )? )*

            fn set_field(&mut self, key: &str, value: &str) -> Result<(), EngineError> {
                match key {
                    $( stringify!($field) => {
                        self.$field = Value::read(value).map_err(|expected| EngineError::OptionValue {
                            name: format!("millpond.{key}"), value: value.to_string(), expected,
                        })?;
                        Ok(())
                    } )*
                    _ => Err(unknown(key)),
                }
            }
        }

        impl ExtensionOptions for $name {
            fn as_any(&self) -> &dyn Any { self }
            fn as_any_mut(&mut self) -> &mut dyn Any { self }
            fn cloned(&self) -> Box<dyn ExtensionOptions> { Box::new(self.clone()) }
            fn set(&mut self, key: &str, value: &str) -> Result<()> { Ok(self.try_set(key, value)?) }
            fn entries(&self) -> Vec<ConfigEntry> {
                vec![ $( ConfigEntry {
                    key: format!("millpond.{}", stringify!($field)),
                    value: self.$field.print(),
                    description: concat!($($doc),*).trim(),
                }, )* ]
            }
        }
    };
}

options! {
    /// Options of the GPU engine. In SQL: `SET millpond.<name> = <value>`.
    pub struct MillpondOptions {
        /// Run what can run on the device. Off leaves every plan as DataFusion made it.
        [with_enabled]
        pub enabled: bool, default = true
        /// Which device: auto, cuda, cuda:N, sim or cpu. Chosen when the session starts; later only cpu is accepted, which switches the device off.
        [with_device]
        pub device: DeviceChoice, default = DeviceChoice::Auto
        /// What a part that cannot run on the device does: allow (CPU), warn (CPU, logged) or error.
        [with_fallback]
        pub fallback: Fallback, default = Fallback::Allow
        /// What `sum`, `+`, `-` and `*` of whole numbers do where the result leaves its type, on the device and on the CPU: error, or wrap (modulo 2^64, 2^32 and so on).
        [with_integer_overflow]
        pub integer_overflow: IntegerOverflow, default = IntegerOverflow::Error
        /// Bytes of input columns in a device batch. Larger batches spread launch cost, and raise peak memory in step.
        [with_batch_bytes]
        pub batch_bytes: usize, default = 268_435_456
        /// Rows in a device batch, at most 16777216; 0 means that batch_bytes alone decides. Small values are for tests.
        [with_batch_rows]
        pub batch_rows: usize, default = 0
        /// Batches of a fed source that are sent up at the same time, each on a stream of its own; no more than the source has partitions; and, at most, sources that are fed at the same time. More overlap narrowing, copying and kernels, and each takes pinned and device memory.
        [with_partitions]
        pub partitions: usize, default = 16
        /// Sums and averages of floats are exact until they are rounded once, so that neither threads nor batches change a bit. Each group takes 536 bytes for each such sum, and variances and correlations stay on the CPU.
        [with_deterministic_floats]
        pub deterministic_floats: bool, default = false
        /// Inputs known to have fewer rows stay on the CPU; 0 sends everything. Launch cost dominates small inputs.
        [with_min_rows]
        pub min_rows: usize, default = 0
        /// Device bytes the pool may hold; 0 means three quarters of what is free at start.
        [with_memory_limit_bytes]
        pub memory_limit_bytes: usize, default = 0
        /// Where device memory comes from: cuda, cuda_async_default, cuda_async, caching, arena or binning. Chosen when the device opens; later only its own value is accepted.
        [with_memory_resource]
        pub memory_resource: Strategy, default = Strategy::CudaAsync
        /// A file that gets a line for each allocation, use, wait and free of device memory, for `millpond mem replay`; empty means none. Chosen when the device opens. Costs host time.
        [with_memory_log]
        pub memory_log: String, default = String::new()
        /// Where assembled kernels are kept for later processes: off, auto (millpond/kernels in the user's cache folder; on the simulated device nowhere), or a folder. The folder is closed to other users, holds at most 256 MiB, and may be deleted at any time. Chosen when the device opens; later only its own value is accepted.
        [with_kernel_cache]
        pub kernel_cache: String, default = "auto".to_string()
        /// Seconds in which nothing completes on the device while a query waits, after which it counts as lost: the query ends or runs on the CPU, and the device is not used again. 0 means no limit. Every event of the device that completes begins the time anew, so a long query is not cut, but one kernel may not take longer. Off on the simulated device unless it is set. Chosen when the device opens; later only its own value is accepted.
        [with_device_timeout]
        pub device_timeout: DeviceTimeout, default = DeviceTimeout::Default
        /// Seconds without a query after which memory that nothing uses goes back to the device, for other processes; 0 means never. The next query then asks the driver for it again. Chosen when the device opens; later only its own value is accepted.
        [with_idle_trim]
        pub idle_trim: u32, default = 30
        /// Pinned host memory that copies may have under way; 0 means 1 GiB, or less where the machine has little memory or locks little of it. It bounds the size of batches, too.
        [with_pinned_bytes]
        pub pinned_bytes: usize, default = 0
        /// For tests: maximum values of a string column's dictionary; 0 means 1,048,576. A column with more has no dictionary: its strings are offsets and bytes on the device.
        pub debug_dictionary_values: usize, default = 0
        /// Whether columns of tables stay between queries: auto (on the device), off, or host (in pinned host memory, copied to the device for each run).
        [with_cache]
        pub cache: Cache, default = Cache::Auto
        /// Device bytes that such columns may take; 0 means 60 % of what the pool may hold.
        [with_cache_bytes]
        pub cache_bytes: usize, default = 0
        /// Pinned host memory for columns that have left the device: they come back by a copy instead of being read; 0 means none. With cache = host it is for all columns, and 0 means as much as pinned_bytes does. One for all sessions of a device: what the session that read last has set.
        [with_cache_host_bytes]
        pub cache_host_bytes: usize, default = 0
        /// Seconds for which it holds what a remote store said of a table's files: within them, a file that has changed is not noticed; 0 asks before each run. Local files are always looked at.
        [with_cache_check_seconds]
        pub cache_check_seconds: u32, default = 0
        /// Seconds after its last change in which a local file may change again without its times showing it: within them it is read for each run, and nothing of it is kept; 0 trusts the times at once. Chosen when the session starts; later only its own value is accepted.
        [with_cache_settle_seconds]
        pub cache_settle_seconds: u32, default = 2
        /// The side that decodes Parquet pages: auto (the device, if it has kernels for them; on the simulated device the host), host, or device.
        [with_parquet_decoder]
        pub parquet_decoder: ParquetDecoder, default = ParquetDecoder::Auto
        /// Bytes of a stored column of strings without a dictionary, offsets among them, beyond which its offsets have 64 bits, for tests; 0 means 2 GiB.
        pub debug_cache_text_bytes: usize, default = 0
        /// For tests: maximum rows of a table whose columns stay on the device; 0 means 2^31. Longer tables are read by each query.
        pub debug_cache_rows: usize, default = 0
        /// For tests: initial capacity of a hash table of groups; 0 means 65,536. It grows when there are more groups.
        pub debug_groups_at_first: usize, default = 0
        /// For tests: maximum rows of one aggregation state; 0 means the number for which its sums are exact.
        pub debug_rows_per_state: usize, default = 0
        /// A folder that gets the PTX of each generated pipeline, with its plan and its segment; empty means none.
        pub debug_keep_ptx: String, default = String::new()
        /// For tests: every n-th value that a run takes over from an earlier run is falsified, so that the run must start again; 0 means none.
        pub debug_surprises: usize, default = 0
        /// For tests that must then find a wrong answer: a change of the ranks of strings during an aggregation is not detected.
        pub debug_forget_ranks: bool, default = false
        /// Simulated device: seed of the schedule of streams, blocks and warps; 0 means the fixed order.
        pub debug_sim_seed: usize, default = 0
        /// Simulated device: architecture whose limits of thread blocks it has: sm_70, sm_75, sm_86, sm_90 or sm_120.
        pub debug_sim_shape: Shape, default = Shape::SM_90
        /// Simulated device: its memory in bytes; 0 means the device's own default.
        pub debug_sim_memory_bytes: usize, default = 0
        /// Simulated device: the n-th allocation fails, counted from 1; 0 means none.
        pub debug_sim_fail_allocation: usize, default = 0
        /// Simulated device: once an allocation failed, all fail until something is freed.
        pub debug_sim_fail_until_free: bool, default = false
        /// Simulated device: the device is lost at the n-th launch, counted from 1; 0 means never.
        pub debug_sim_lose_at_launch: usize, default = 0
        /// Simulated device: the n-th launch, counted from 1, never ends; 0 means that all end. Needs device_timeout.
        pub debug_sim_hang_at_launch: usize, default = 0
        /// Simulated device, to measure what queries cost the host: the first run of a plan is kept, and later ones skip their launches, read from the device what the kept run read, and end in an error instead of an answer. Set it after a warm-up, so that a repeated run is kept. One query at a time, with one part on the device; partitions = 1.
        pub debug_sim_skip_launches: bool, default = false
        /// Simulated device: allocations of pinned memory fail from the n-th on, counted from 1; 0 means none.
        pub debug_sim_fail_pinned: usize, default = 0
    }
}

impl ConfigExtension for MillpondOptions {
    const PREFIX: &'static str = "millpond";
}

/// Least pinned memory: some feeders' batches, and a large lookup table.
const LEAST_PINNED_BYTES: usize = 64 << 20;

/// Most values of a dictionary, unless expressions need one whatever its size.
pub const MAX_DICTIONARY_VALUES: usize = 1 << 20;

/// Most rows of an extent, and so of a batch: a row number is extent and offset by shift and mask.
pub const MAX_BATCH_ROWS: usize = 1 << 24;

impl MillpondOptions {
    /// Sets one option by name, without the prefix, and checks the result; on an error nothing has changed.
    pub fn try_set(&mut self, key: &str, value: &str) -> Result<(), EngineError> {
        let mut changed = self.clone();
        changed.set_field(key, value)?;
        changed.validate()?;
        if self.opened && self.of_device() != changed.of_device() {
            let now = match key {
                "memory_resource" => self.memory_resource.to_string(),
                "device_timeout" => self.device_timeout.to_string(),
                "idle_trim" => self.idle_trim.to_string(),
                "cache_settle_seconds" => self.cache_settle_seconds.to_string(),
                "kernel_cache" => format!("'{}'", self.kernel_cache),
                _ if self.memory_log.is_empty() => "empty".to_string(),
                _ => format!("'{}'", self.memory_log),
            };
            return Err(EngineError::OptionFixed { name: format!("millpond.{key}"), value: value.to_string(), now });
        }
        *self = changed;
        Ok(())
    }

    /// What an engine is opened with; all else is the default.
    pub(crate) fn of_engine(&self) -> Self {
        Self {
            device: self.device,
            memory_limit_bytes: self.memory_limit_bytes,
            memory_resource: self.memory_resource,
            memory_log: self.memory_log.clone(),
            kernel_cache: self.kernel_cache.clone(),
            device_timeout: self.device_timeout,
            idle_trim: self.idle_trim,
            pinned_bytes: self.pinned_bytes,
            debug_sim_seed: self.debug_sim_seed,
            debug_sim_shape: self.debug_sim_shape,
            debug_sim_memory_bytes: self.debug_sim_memory_bytes,
            debug_sim_fail_allocation: self.debug_sim_fail_allocation,
            debug_sim_fail_until_free: self.debug_sim_fail_until_free,
            debug_sim_lose_at_launch: self.debug_sim_lose_at_launch,
            debug_sim_hang_at_launch: self.debug_sim_hang_at_launch,
            debug_sim_fail_pinned: self.debug_sim_fail_pinned,
            ..Self::default()
        }
    }

    /// What a device is opened with, and a session's files.
    fn of_device(&self) -> (Strategy, &str, String, u32, &str, u32) {
        let timeout = self.device_timeout.to_string();
        (self.memory_resource, &self.memory_log, timeout, self.idle_trim, &self.kernel_cache, self.cache_settle_seconds)
    }

    /// Checks every value; names the option, the value, and the values that work.
    pub fn validate(&self) -> Result<(), EngineError> {
        let refuse = |name: &str, value: usize, expected: &str| {
            Err(EngineError::OptionValue {
                name: format!("millpond.{name}"),
                value: value.to_string(),
                expected: expected.to_string(),
            })
        };
        if self.batch_bytes < 1024 {
            return refuse("batch_bytes", self.batch_bytes, "at least 1024 bytes");
        }
        if self.pinned_bytes != 0 && self.pinned_bytes < LEAST_PINNED_BYTES {
            return refuse("pinned_bytes", self.pinned_bytes, "0 or at least 64 MiB");
        }
        if self.batch_rows > MAX_BATCH_ROWS {
            return refuse("batch_rows", self.batch_rows, "0 to 16777216 rows");
        }
        if !(1..=64).contains(&self.partitions) {
            return refuse("partitions", self.partitions, "1 to 64 batches at a time");
        }
        Ok(())
    }

    /// Takes every `MILLPOND_<NAME>` from `variables` (for example [`std::env::vars`]); an unknown one is an error.
    pub fn apply_environment(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), EngineError> {
        for (name, value) in variables {
            let Some(key) = name.strip_prefix("MILLPOND_") else { continue };
            let key = key.to_ascii_lowercase();
            self.try_set(&key, &value).map_err(|e| match e {
                EngineError::UnknownOption { suggestion, .. } => EngineError::UnknownOption {
                    name: name.clone(),
                    suggestion: suggestion
                        .map(|s| format!("MILLPOND_{}", s.trim_start_matches("millpond.").to_ascii_uppercase())),
                },
                EngineError::OptionValue { value, expected, .. } => {
                    EngineError::OptionValue { name: name.clone(), value, expected }
                }
                other => other,
            })?;
        }
        Ok(())
    }

    /// From now on, what a device was opened with cannot be changed.
    pub(crate) fn device_opened(&mut self) {
        self.opened = true;
    }

    /// Values that a string column's dictionary may have.
    pub fn most_dictionary_values(&self) -> usize {
        if self.debug_dictionary_values == 0 { MAX_DICTIONARY_VALUES } else { self.debug_dictionary_values }
    }

    /// Bytes that a stored column of texts may have with offsets of 32 bits.
    pub fn short_text_bytes(&self) -> u64 {
        if self.debug_cache_text_bytes == 0 { MAX_TEXT_BYTES.into() } else { self.debug_cache_text_bytes as u64 }
    }

    /// Rows that a stored column may have, which the kernels number with 31 bits.
    pub fn most_cached_rows(&self) -> u64 {
        if self.debug_cache_rows == 0 { 1 << 31 } else { self.debug_cache_rows as u64 }
    }

    /// Rows that a device batch may hold.
    pub fn max_batch_rows(&self) -> usize {
        if self.batch_rows == 0 { MAX_BATCH_ROWS } else { self.batch_rows }
    }
}

fn unknown(key: &str) -> EngineError {
    let nearest = nearest(key, MillpondOptions::NAMES).map(|name| format!("millpond.{name}"));
    EngineError::UnknownOption { name: format!("millpond.{key}"), suggestion: nearest }
}

/// The name that was probably meant.
#[doc(hidden)]
pub fn nearest<'n>(meant: &str, names: &[&'n str]) -> Option<&'n str> {
    let (distance, name) = names.iter().map(|name| (edit_distance(meant, name), *name)).min()?;
    (distance <= 2.max(name.len() / 3)).then_some(name)
}

/// Levenshtein's distance: single-letter insertions, deletions and replacements between two names.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn set(key: &str, value: &str) -> Result<MillpondOptions, String> {
        let mut options = MillpondOptions::default();
        options.try_set(key, value).map_err(|e| e.to_string())?;
        Ok(options)
    }

    #[test]
    fn device() {
        assert_eq!(MillpondOptions::default().device, DeviceChoice::Auto);
        assert_eq!(set("device", "cuda:3").map(|o| o.device), Ok(DeviceChoice::Cuda(3)));
        assert_eq!(set("device", "SIM").map(|o| o.device), Ok(DeviceChoice::Sim));
        assert_eq!(
            set("device", "gpu").map(|o| o.device),
            Err("option millpond.device cannot be 'gpu': it takes auto, cuda, cuda:N, sim or cpu".into())
        );
    }

    #[test]
    fn fallback() {
        assert_eq!(set("fallback", "error").map(|o| o.fallback), Ok(Fallback::Error));
        assert!(set("fallback", "never").is_err());
    }

    #[test]
    fn integer_overflow() {
        let read = |text| set("integer_overflow", text).map(|options| options.integer_overflow);
        assert_eq!(read("Wrap"), Ok(IntegerOverflow::Wrap));
        assert_eq!(read("error"), Ok(IntegerOverflow::Error));
        assert!(read("null").is_err());
    }

    #[test]
    fn batch_bytes() {
        assert_eq!(MillpondOptions::default().batch_bytes, 256 << 20);
        assert_eq!(set("batch_bytes", "64MiB").map(|o| o.batch_bytes), Ok(64 << 20));
        assert_eq!(set("batch_bytes", "2G").map(|o| o.batch_bytes), Ok(2_000_000_000));
        assert!(set("batch_bytes", "12").is_err());
        assert!(set("batch_bytes", "-1").is_err());
        assert!(set("batch_bytes", "99999999999T").is_err());
    }

    #[test]
    fn deterministic_floats() {
        assert!(!MillpondOptions::default().deterministic_floats);
        assert_eq!(set("deterministic_floats", "true").map(|o| o.deterministic_floats), Ok(true));
        assert!(set("deterministic_floats", "maybe").is_err());
    }

    #[test]
    fn batch_rows() {
        assert_eq!(MillpondOptions::default().max_batch_rows(), 1 << 24);
        assert_eq!(set("batch_rows", "1000").map(|o| o.max_batch_rows()), Ok(1000));
        assert!(set("batch_rows", "16777217").is_err());
    }

    #[test]
    fn partitions() {
        assert_eq!(set("partitions", "16").map(|o| o.partitions), Ok(16));
        assert_eq!(
            set("partitions", "0").map(|o| o.partitions),
            Err("option millpond.partitions cannot be '0': it takes 1 to 64 batches at a time".into())
        );
    }

    #[test]
    fn pinned_bytes() {
        assert_eq!(MillpondOptions::default().pinned_bytes, 0);
        assert_eq!(set("pinned_bytes", "64MiB").map(|o| o.pinned_bytes), Ok(64 << 20));
        assert!(set("pinned_bytes", "1MiB").is_err());
    }

    #[test]
    fn device_timeout() {
        let seconds = |n| Some(Duration::from_secs(n));
        let default = MillpondOptions::default().device_timeout;
        assert_eq!((default.limit(false), default.limit(true)), (seconds(600), None));
        assert_eq!(default.print().as_deref(), Some("600"));
        // Set, it holds on the simulated device, too.
        let set_to = |value| set("device_timeout", value).map(|o| o.device_timeout);
        assert_eq!(set_to("600").map(|t| (t.limit(false), t.limit(true))), Ok((seconds(600), seconds(600))));
        assert_eq!(set_to("5").map(|t| t.limit(true)), Ok(seconds(5)));
        assert_eq!(set_to("0").map(|t| (t.limit(false), t.limit(true))), Ok((None, None)));
        for refused in ["-1", "1.5", "soon", ""] {
            assert_eq!(
                set_to(refused),
                Err(format!(
                    "option millpond.device_timeout cannot be '{refused}': it takes a whole number of seconds, or 0 for no limit"
                ))
            );
        }
    }

    #[test]
    fn idle_trim() {
        assert_eq!(MillpondOptions::default().idle_trim, 30);
        assert_eq!(set("idle_trim", "0").map(|o| o.idle_trim), Ok(0));
        assert_eq!(set("idle_trim", "3600").map(|o| o.idle_trim), Ok(3600));
        assert_eq!(
            set("idle_trim", "often").map(|_| ()),
            Err("option millpond.idle_trim cannot be 'often': it takes a whole number".into())
        );
    }

    #[test]
    fn cache() {
        assert_eq!(MillpondOptions::default().cache, Cache::Auto);
        assert_eq!(set("cache", "HOST").map(|o| o.cache), Ok(Cache::Host));
        assert_eq!(set("cache", "off").map(|o| o.cache.stores()), Ok(false));
        assert_eq!(
            set("cache", "disk").map(|_| ()),
            Err("option millpond.cache cannot be 'disk': it takes auto, off or host".into())
        );
    }

    #[test]
    fn parquet_decoder() {
        assert_eq!(MillpondOptions::default().parquet_decoder, ParquetDecoder::Auto);
        assert_eq!(set("parquet_decoder", "Device").map(|o| o.parquet_decoder), Ok(ParquetDecoder::Device));
        assert_eq!(
            set("parquet_decoder", "both").map(|_| ()),
            Err("option millpond.parquet_decoder cannot be 'both': it takes auto, host or device".into())
        );
    }

    #[test]
    fn cache_host_bytes() {
        assert_eq!(MillpondOptions::default().cache_host_bytes, 0);
        assert_eq!(set("cache_host_bytes", "2GiB").map(|o| o.cache_host_bytes), Ok(2 << 30));
        assert!(set("cache_host_bytes", "much").is_err());
    }

    #[test]
    fn cache_check_seconds() {
        assert_eq!(MillpondOptions::default().cache_check_seconds, 0);
        assert_eq!(set("cache_check_seconds", "30").map(|o| o.cache_check_seconds), Ok(30));
        assert!(set("cache_check_seconds", "-1").is_err());
    }

    #[test]
    fn cache_settle_seconds() {
        assert_eq!(MillpondOptions::default().cache_settle_seconds, 2);
        assert_eq!(set("cache_settle_seconds", "0").map(|o| o.cache_settle_seconds), Ok(0));
        assert!(set("cache_settle_seconds", "soon").is_err());
    }

    #[test]
    fn debug_dictionary_values() {
        assert_eq!(MillpondOptions::default().most_dictionary_values(), 1 << 20);
        assert_eq!(set("debug_dictionary_values", "8").map(|o| o.most_dictionary_values()), Ok(8));
        assert!(set("debug_dictionary_values", "few").is_err());
    }

    #[test]
    fn debug_cache_bounds() {
        let bounds = |of: MillpondOptions| (of.short_text_bytes(), of.most_cached_rows());
        assert_eq!(bounds(MillpondOptions::default()), (u64::from(MAX_TEXT_BYTES), 1 << 31));
        assert_eq!(set("debug_cache_text_bytes", "64KiB").map(|of| bounds(of).0), Ok(1 << 16));
        assert_eq!(set("debug_cache_rows", "1000").map(|of| bounds(of).1), Ok(1000));
        assert!(set("debug_cache_rows", "few").is_err() && set("debug_cache_text_bytes", "few").is_err());
    }

    #[test]
    fn debug_rows_per_state() {
        assert_eq!(MillpondOptions::default().debug_rows_per_state, 0);
        assert_eq!(set("debug_rows_per_state", "8").map(|o| o.debug_rows_per_state), Ok(8));
        assert!(set("debug_rows_per_state", "few").is_err());
    }

    #[test]
    fn debug_forget_ranks() {
        assert!(!MillpondOptions::default().debug_forget_ranks);
        assert_eq!(set("debug_forget_ranks", "true").map(|o| o.debug_forget_ranks), Ok(true));
        assert!(set("debug_forget_ranks", "some").is_err());
    }

    #[test]
    fn debug_surprises() {
        assert_eq!(MillpondOptions::default().debug_surprises, 0);
        assert_eq!(set("debug_surprises", "3").map(|o| o.debug_surprises), Ok(3));
        assert!(set("debug_surprises", "few").is_err());
    }

    #[test]
    fn debug_groups_at_first() {
        assert_eq!(MillpondOptions::default().debug_groups_at_first, 0);
        assert_eq!(set("debug_groups_at_first", "8").map(|o| o.debug_groups_at_first), Ok(8));
        assert!(set("debug_groups_at_first", "few").is_err());
    }

    #[test]
    fn debug_sim_shape() {
        assert_eq!(MillpondOptions::default().debug_sim_shape, Shape::SM_90);
        assert_eq!(set("debug_sim_shape", "SM_75").map(|o| o.debug_sim_shape), Ok(Shape::SM_75));
        assert_eq!(
            set("debug_sim_shape", "sm_60").map(|_| ()),
            Err("option millpond.debug_sim_shape cannot be 'sm_60': it takes sm_70, sm_75, sm_86, sm_90 or sm_120"
                .into())
        );
    }

    #[test]
    fn memory_resource() {
        assert_eq!(MillpondOptions::default().memory_resource, Strategy::CudaAsync);
        for strategy in Strategy::ALL {
            assert_eq!(set("memory_resource", strategy.name()).map(|o| o.memory_resource), Ok(strategy));
        }
        let all = "cuda, cuda_async_default, cuda_async, caching, arena or binning";
        assert_eq!(
            set("memory_resource", "cuda_asink").map(|_| ()),
            Err(format!(
                "option millpond.memory_resource cannot be 'cuda_asink': it takes {all}; did you mean cuda_async?"
            ))
        );
        assert_eq!(
            set("memory_resource", "slab").map(|_| ()),
            Err(format!("option millpond.memory_resource cannot be 'slab': it takes {all}"))
        );
    }

    #[test]
    fn memory_log() {
        assert_eq!(MillpondOptions::default().memory_log, "");
        assert_eq!(set("memory_log", "a b.csv").map(|o| o.memory_log), Ok("a b.csv".into()));
    }

    #[test]
    fn what_a_device_was_opened_with_stays() {
        let mut options = set("memory_resource", "caching").unwrap();
        options.device_opened();
        assert!(options.try_set("memory_resource", "caching").is_ok());
        let error = options.try_set("memory_resource", "arena").unwrap_err();
        assert!(error.is_usage());
        assert_eq!(
            error.to_string(),
            "option millpond.memory_resource cannot become 'arena' while the device is open: it is caching since the \
             session began; start a session with --allocator arena or MILLPOND_MEMORY_RESOURCE=arena"
        );
        let error = options.try_set("memory_log", "log.csv").unwrap_err();
        assert!(error.to_string().contains("it is empty since the session began"), "{error}");
        assert!(options.try_set("device_timeout", "600").is_ok() && options.try_set("idle_trim", "30").is_ok());
        let error = options.try_set("device_timeout", "60").unwrap_err();
        assert!(error.to_string().contains("it is 600 since the session began"), "{error}");
        let error = options.try_set("kernel_cache", "off").unwrap_err();
        assert!(error.to_string().contains("it is 'auto' since the session began"), "{error}");
        let error = options.try_set("idle_trim", "0").unwrap_err();
        assert!(error.to_string().contains("it is 30 since the session began"), "{error}");
        assert!(options.try_set("batch_rows", "100").is_ok(), "other options can still change");
    }

    #[test]
    fn unknown_name_suggests_the_nearest() {
        assert_eq!(
            set("fallbak", "error").map(|_| ()),
            Err("there is no option millpond.fallbak; did you mean millpond.fallback?".into())
        );
        assert_eq!(set("colour", "red").map(|_| ()), Err("there is no option millpond.colour".into()));
    }

    #[test]
    fn environment_sets_the_same_options() {
        let mut options = MillpondOptions::default();
        let vars = |name: &str, value: &str| vec![("HOME".into(), "/".into()), (name.to_string(), value.to_string())];
        options.apply_environment(vars("MILLPOND_BATCH_ROWS", "77")).unwrap();
        assert_eq!(options.batch_rows, 77);
        let error = options.apply_environment(vars("MILLPOND_BATCHROWS", "77")).unwrap_err();
        assert_eq!(error.to_string(), "there is no option MILLPOND_BATCHROWS; did you mean MILLPOND_BATCH_ROWS?");
    }

    #[test]
    fn a_refused_value_changes_nothing() {
        let mut options = MillpondOptions::default();
        assert!(options.try_set("partitions", "1000").is_err());
        assert_eq!(options, MillpondOptions::default());
    }
}
