//! Default limit of page-locked memory per process, by the machine's memory.
//!
//! ```text
//!   1 GiB     a quarter of memory (of the machine, or of the control group)     memlock      the minimum of these
//!   └──────────────── at least 256 MiB, if a quarter of memory is at least that much ────┘
//! ```
//!
//! Memlock    `ulimit -l` is the administrator's limit on locked memory. NVIDIA's driver 580 does not check it: it
//!            page-locked 4 GiB for an unprivileged user under a limit of 64 KiB (H200). So it lowers the default, but
//!            not so far that copies become tiny.
//! Unknown    values that cannot be read are ignored.

use std::fs;
use std::path::{Path, PathBuf};

use crate::units::ByteSize;

/// Maximum default limit on any machine.
const MOST: ByteSize = ByteSize::gib(1);

/// Minimum that a low memlock can lower the default to: four feeders' extents of 16 MiB, each with the next one
/// started.
const LEAST: ByteSize = ByteSize::mib(256);

/// Memory figures of the system, where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Machine {
    memory: Option<u64>,
    group: Option<u64>,
    memlock: Option<u64>,
}

/// Default limit of page-locked memory for a pool on this machine.
pub(super) fn default_limit() -> ByteSize {
    Machine::ask(Path::new("/")).limit()
}

impl Machine {
    /// Reads the system files below `root`.
    fn ask(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        Machine {
            memory: read("proc/meminfo").as_deref().and_then(total_memory),
            group: read("proc/self/cgroup").and_then(|groups| group_limit(root, &groups)),
            memlock: read("proc/self/limits").as_deref().and_then(locked_memory),
        }
    }

    fn limit(self) -> ByteSize {
        let memory = [self.memory, self.group].into_iter().flatten().min();
        let quarter = memory.map_or(u64::MAX, |bytes| bytes / 4);
        let memlock = self.memlock.unwrap_or(u64::MAX).max(LEAST.as_u64());
        ByteSize(MOST.as_u64().min(quarter).min(memlock))
    }
}

/// `MemTotal:       65840124 kB`
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `Max locked memory         8388608              8388608              bytes`: the first number is the limit, unless
/// it is `unlimited`.
fn locked_memory(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Minimum limit of the process's control group and its ancestors. Inside a container its own group is the root.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let (tree, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return None,
        };
        let tree = root.join(tree);
        let inner: PathBuf = tree.join(group.trim_start_matches('/'));
        // Inside a container the host's group path does not exist: then only the tree's root has a limit.
        let folders = inner.ancestors().take_while(|folder| folder.starts_with(&tree));
        folders.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn limit(memory: Option<u64>, group: Option<u64>, memlock: Option<u64>) -> ByteSize {
        Machine { memory, group, memlock }.limit()
    }

    #[test]
    fn a_large_machine_gives_a_gibibyte() {
        assert_eq!(limit(Some(64 * GIB), None, None), ByteSize::gib(1));
        assert_eq!(limit(None, None, None), ByteSize::gib(1));
        assert_eq!(limit(Some(64 * GIB), Some(u64::MAX), Some(u64::MAX)), ByteSize::gib(1));
    }

    #[test]
    fn a_small_machine_or_group_gives_a_quarter() {
        assert_eq!(limit(Some(2 * GIB), None, None), ByteSize::mib(512));
        assert_eq!(limit(Some(64 * GIB), Some(GIB), None), ByteSize::mib(256));
        assert_eq!(limit(Some(64 * GIB), Some(GIB / 2), Some(GIB)), ByteSize::mib(128));
    }

    #[test]
    fn memlock_counts_down_to_what_copies_need() {
        assert_eq!(limit(Some(64 * GIB), None, Some(GIB / 2)), ByteSize::mib(512));
        assert_eq!(limit(Some(64 * GIB), None, Some(64 << 10)), ByteSize::mib(256));
        assert_eq!(limit(Some(GIB / 2), None, Some(64 << 10)), ByteSize::mib(128));
    }

    #[test]
    fn the_systems_words_are_read() {
        assert_eq!(total_memory("MemTotal:       65840124 kB\nMemFree:  1 kB\n"), Some(65_840_124 * 1024));
        assert_eq!(total_memory("MemFree: 1 kB"), None);
        let limits = |value: &str| format!("Limit   Soft Limit\nMax locked memory         {value}   8388608  bytes\n");
        assert_eq!(locked_memory(&limits("8388608")), Some(8_388_608));
        assert_eq!(locked_memory(&limits("unlimited")), None);
    }

    #[test]
    fn the_least_of_the_groups_around_counts() {
        let root = std::env::temp_dir().join(format!("millpond-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/user/job\n");
        write("sys/fs/cgroup/user/job/memory.max", "max\n");
        write("sys/fs/cgroup/user/memory.max", "3000\n");
        assert_eq!(Machine::ask(&root).group, Some(3000));
        write("sys/fs/cgroup/user/job/memory.max", "2000\n");
        assert_eq!(Machine::ask(&root).group, Some(2000));
        // Inside a container the host's paths do not exist.
        write("proc/self/cgroup", "0::/../elsewhere\n");
        write("sys/fs/cgroup/memory.max", "5000\n");
        assert_eq!(Machine::ask(&root).group, Some(5000));
        write("proc/self/cgroup", "9:memory:/box\n3:cpu:/box\n");
        write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "7000\n");
        assert_eq!(Machine::ask(&root).group, Some(7000));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(Machine::ask(&root), Machine::default());
    }

    #[test]
    fn this_machine_gives_something() {
        let limit = default_limit();
        assert!(limit > ByteSize::ZERO && limit <= ByteSize::gib(1), "{limit}");
    }
}
