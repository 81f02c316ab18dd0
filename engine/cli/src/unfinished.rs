//! Files that this process has begun to write and not yet renamed; an early end must remove them.
//!
//! ```text
//!   COPY … TO 'x.csv'      x.csv#1            open for writing ─► renamed to x.csv
//!   -o, rewrite, gen       .millpond-3fGh#1
//! ```
//!
//! Found   Among the files that the process has open, so that files of other processes are never removed. Empty if the
//!         system does not list them.
//! Never   A file that was already open when the process began: a shell has opened it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Files already open for writing when the process began.
static INHERITED: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Remembers the open files; called before the process writes anything.
pub fn leave_inherited_alone() {
    INHERITED.get_or_init(written);
}

/// Files with an unfinished file's name that the process has open for writing.
pub fn files() -> Vec<PathBuf> {
    let inherited = INHERITED.get().map_or(&[][..], Vec::as_slice);
    written().into_iter().filter(|path| is_unfinished(path) && !inherited.contains(path)).collect()
}

fn is_unfinished(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let number = name.rsplit_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Removes files. For a file of COPY, also removes the other unfinished files of that COPY in its folder: some may have
/// been created after the open files were listed.
pub fn remove(paths: impl Iterator<Item = PathBuf>) {
    for path in paths {
        let _ = fs::remove_file(&path);
        let (Some(folder), Some(copy)) = (path.parent(), copy_of(&path)) else { continue };
        for beside in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if copy_of(&beside).as_deref() == Some(copy.as_str()) {
                let _ = fs::remove_file(&beside);
            }
        }
    }
}

/// The random letters that DataFusion chose for a COPY: `bV3x6chhdsyVshER` in the unfinished file
/// `bV3x6chhdsyVshER_0.csv#1`.
fn copy_of(path: &Path) -> Option<String> {
    const LETTERS: usize = 16;
    let (copy, part) = path.file_name()?.to_str()?.split_once('_')?;
    let is_drawn = copy.len() == LETTERS && copy.bytes().all(|b| b.is_ascii_alphanumeric());
    (is_drawn && part.starts_with(|c: char| c.is_ascii_digit()) && is_unfinished(path)).then(|| copy.to_string())
}

/// The files that the process has open for writing.
fn written() -> Vec<PathBuf> {
    let descriptors = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open = descriptors.filter(|entry| is_written(&entry.file_name().to_string_lossy()));
    let mut paths: Vec<PathBuf> = open.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    // A deleted file reads as "NAME (deleted)", an unnamed one as "pipe:[1]".
    paths.retain(|path| path.is_absolute() && path.is_file());
    paths
}

/// True for a descriptor that is open for writing.
fn is_written(descriptor: &str) -> bool {
    /// O_WRONLY and O_RDWR.
    const WRITES: u32 = 0o3;
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = facts.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & WRITES != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_copy_has_begun_goes_together() {
        let folder = tempfile::tempdir().expect("folder");
        let names = [
            "bV3x6chhdsyVshER_0.csv#1",
            "bV3x6chhdsyVshER_1.csv#1",
            "bV3x6chhdsyVshER_2.csv",
            "aV3x6chhdsyVshER_0.csv#1",
            "x_0.csv#1",
        ];
        names.iter().for_each(|name| fs::write(folder.path().join(name), "").expect("a file"));
        remove([folder.path().join(names[0]), folder.path().join("absent")].into_iter());
        let left = names.map(|name| folder.path().join(name).exists());
        assert_eq!(left, [false, false, true, true, true]);
    }

    #[test]
    fn what_is_open_for_writing_under_a_name_of_unfinished_files_is_found() {
        let folder = tempfile::tempdir().expect("folder");
        let at = |name: &str| fs::canonicalize(folder.path()).expect("a path").join(name);
        let names = ["x.csv#1", ".millpond-abc#1", "x.csv", "x#y", "x#", "other#2"];
        names.iter().for_each(|name| fs::write(at(name), "").expect("a file"));
        let write = |name: &str| fs::OpenOptions::new().append(true).open(at(name)).expect("a file");
        let open: Vec<fs::File> = names[..5].iter().map(|name| write(name)).collect();
        let read = fs::File::open(at("other#2")).expect("a file");
        let mut found: Vec<PathBuf> = files().into_iter().filter(|path| path.starts_with(at(""))).collect();
        found.sort();
        assert_eq!(found, [at(".millpond-abc#1"), at("x.csv#1")]);
        drop((open, read));
        assert!(!files().iter().any(|path| path.starts_with(at(""))));
    }
}
