//! Figures of a process and its device at one moment.
//!
//! ```text
//!   /proc/self/statm   resident bytes      pool      used and reserved          folder    temporary files
//!   /proc/self/fd      descriptors         pinned    held and lent              kernels   assembled ones that are kept
//!   /proc/self/task    threads             store     bytes of columns           caches    plans, pipelines
//! ```
//!
//! Where there is no /proc, its figures are 0.

use std::path::Path;

use millpond::device::Engine;
use millpond::store::Store;

use super::judge::Bound;

/// Figures of one moment. Each is judged by [`FIGURES`], or only reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sighting {
    /// Since the beginning.
    pub at_ms: u64,
    pub statements: u64,
    pub findings: u64,
    pub resident_bytes: u64,
    pub descriptors: u64,
    pub threads: u64,
    pub memory: Memory,
    /// Plans of all sessions that are open.
    pub plans: u64,
    pub pipelines: u64,
    pub temporary_files: u64,
    pub kernel_files: u64,
}

/// Bytes of the device's pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Handed out, columns that stay among it.
    pub used_bytes: u64,
    /// Taken from the device.
    pub reserved_bytes: u64,
    /// Of columns that stay.
    pub stored_bytes: u64,
    pub pinned_held_bytes: u64,
    pub pinned_lent_bytes: u64,
}

/// A figure's name, how it is found, and what it may gain; `None` where it may grow, up to a bound of its own.
pub type Figure = (&'static str, fn(&Sighting) -> u64, Option<Bound>);

const BYTES: Bound = Bound { least: (64 << 20) as f64, share: 0.05 };
const HANDLES: Bound = Bound::of(2.0);

/// What a thread may keep for itself: the pages of its heap and its stack. On the simulated device kernels run on the
/// threads that wait for them, and 17 to 19 MiB were seen.
pub const OF_A_THREAD: f64 = (24 << 20) as f64;

/// Maximum number of threads of `sessions` sessions. A thread that waits for the device gives its worker away, and
/// tokio keeps a thread as long as it is needed now and then: the number rises to the most that ever waited at once,
/// which are a session's feeders and readers.
pub fn most_threads(sessions: usize) -> u64 {
    32 * sessions as u64 + 64
}

/// The figure that threads add to.
pub const RESIDENT: &str = "resident bytes";

pub const FIGURES: [Figure; 12] = [
    (RESIDENT, |seen| seen.resident_bytes, Some(BYTES)),
    ("descriptors", |seen| seen.descriptors, Some(HANDLES)),
    // They have a bound of their own, `most_threads`.
    ("threads", |seen| seen.threads, None),
    ("temporary files", |seen| seen.temporary_files, Some(HANDLES)),
    // Without the columns that stay, which have a bound of their own.
    ("device bytes of queries", |seen| seen.memory.used_bytes.saturating_sub(seen.memory.stored_bytes), Some(BYTES)),
    ("device bytes reserved", |seen| seen.memory.reserved_bytes, None),
    ("device bytes of columns", |seen| seen.memory.stored_bytes, None),
    ("pinned bytes lent", |seen| seen.memory.pinned_lent_bytes, Some(BYTES)),
    ("pinned bytes held", |seen| seen.memory.pinned_held_bytes, None),
    ("plans kept", |seen| seen.plans, None),
    ("pipelines kept", |seen| seen.pipelines, None),
    ("kernel files", |seen| seen.kernel_files, None),
];

impl Sighting {
    /// Current figures; the caller adds the time and the sessions' figures.
    pub fn now(engine: &Engine, temporary: &Path) -> Self {
        let pinned = engine.pinned().statistics();
        let reserved = engine.pool().statistics().map_or(0, |pool| pool.reserved.as_u64());
        Self {
            resident_bytes: resident_bytes(),
            descriptors: entries(Path::new("/proc/self/fd")),
            threads: entries(Path::new("/proc/self/task")),
            memory: Memory {
                used_bytes: engine.pool().used_bytes().as_u64(),
                reserved_bytes: reserved,
                stored_bytes: Store::of(engine).allocated_bytes(),
                pinned_held_bytes: pinned.held.as_u64(),
                pinned_lent_bytes: pinned.lent.as_u64(),
            },
            pipelines: engine.pipelines_kept() as u64,
            temporary_files: files_below(temporary),
            kernel_files: engine.kernel_cache().map_or(0, |kernels| files_below(kernels.folder())),
            ..Self::default()
        }
    }
}

fn resident_bytes() -> u64 {
    // Assumes pages of 4 KiB; with larger pages, growth is only underreported.
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * PAGE)
}

fn entries(folder: &Path) -> u64 {
    std::fs::read_dir(folder).map_or(0, |entries| entries.count() as u64)
}

/// Files in a folder and those below it.
pub fn files_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_has_memory_descriptors_and_threads() {
        assert!(resident_bytes() > 1 << 20);
        let before = entries(Path::new("/proc/self/task"));
        assert!(entries(Path::new("/proc/self/fd")) >= 3 && before >= 1);
    }

    #[test]
    fn files_are_counted_in_folders_of_folders() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(files_below(folder.path()), 0);
        std::fs::create_dir(folder.path().join("inner")).expect("a folder");
        for name in ["one", "inner/two"] {
            std::fs::write(folder.path().join(name), "").expect("a file");
        }
        assert_eq!(files_below(folder.path()), 2);
        assert_eq!(files_below(&folder.path().join("absent")), 0);
    }
}
