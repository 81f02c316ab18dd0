//! Draws records from the files of a checkout.
//!
//! ```text
//!   files with their queries ─► a share for each file ─► that many of its queries, by seed and path
//!                                                ─► in the file's order, with the statements before them
//! ```
//!
//! Shares   equal ones; a file of fewer queries gives all it has, and the others share the rest.
//! Left out files of 4 MiB and more: their tables are those of the smaller files beside them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millpond_data::rng::ColumnRng;

use crate::reader::Record;

/// A file of this many bytes is left out.
const TOO_LONG: u64 = 4 << 20;

/// The files below a folder, as paths relative to it, in the order of their names.
pub fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next)? {
            let entry = entry?;
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "test") && entry.metadata()?.len() < TOO_LONG {
                found.extend(path.strip_prefix(folder).map(Path::to_path_buf));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Number of queries taken from each file, out of `wanted`; `has` is the number in each file.
pub fn shares(has: &[usize], wanted: usize) -> Vec<usize> {
    let mut by_size: Vec<usize> = (0..has.len()).collect();
    by_size.sort_by_key(|file| (has[*file], *file));
    let mut shares = vec![0; has.len()];
    let mut left = wanted;
    for (done, file) in by_size.into_iter().enumerate() {
        shares[file] = has[file].min(left.div_ceil(has.len() - done));
        left -= shares[file];
    }
    shares
}

/// The numbers of the `wanted` queries that are drawn from `has` of them.
pub fn drawn(seed: u64, path: &Path, has: usize, wanted: usize) -> BTreeSet<usize> {
    let words = ColumnRng::new(seed, digest(path));
    let mut chosen = BTreeSet::new();
    // Floyd's sampling: each set of this size is as probable as any other.
    for last in has - wanted..has {
        let number = words.below(last as u64, last as u64 + 1) as usize;
        if !chosen.insert(number) {
            chosen.insert(last);
        }
    }
    chosen
}

/// A number for a path that is the same everywhere: FNV-1a of its names.
fn digest(path: &Path) -> u64 {
    let names = path.components().flat_map(|name| name.as_os_str().as_encoded_bytes().iter().chain(b"/"));
    names.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The drawn queries with the statements before the last of them, in the file's order.
pub fn script(records: Vec<Record>, chosen: &BTreeSet<usize>) -> Vec<Record> {
    let mut number = 0;
    let mut script: Vec<Record> = records
        .into_iter()
        .filter(|record| {
            let taken = !record.is_query() || chosen.contains(&number);
            number += usize::from(record.is_query());
            taken
        })
        .collect();
    let end = script.iter().rposition(Record::is_query).map_or(0, |last| last + 1);
    script.truncate(end);
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::{Kind, Query};

    #[test]
    fn short_files_give_all_and_the_others_share_the_rest() {
        assert_eq!(shares(&[100, 3, 100, 0], 43), [20, 3, 20, 0]);
        assert_eq!(shares(&[2, 1], 50), [2, 1]);
        assert_eq!(shares(&[9, 9, 9], 2).iter().sum::<usize>(), 2);
    }

    #[test]
    fn a_draw_is_a_function_of_seed_and_path() {
        let draw = |seed, path: &str| drawn(seed, Path::new(path), 1_000, 30);
        assert_eq!(draw(1, "index/a.test"), draw(1, "index/a.test"));
        assert_ne!(draw(1, "index/a.test"), draw(2, "index/a.test"));
        assert_ne!(draw(1, "index/a.test"), draw(1, "index/b.test"));
        assert_eq!(draw(1, "index/a.test").len(), 30);
        assert!(draw(1, "index/a.test").iter().all(|number| *number < 1_000));
        assert_eq!(drawn(5, Path::new("all"), 4, 4), BTreeSet::from([0, 1, 2, 3]));
    }

    #[test]
    fn a_script_ends_with_the_last_drawn_query() {
        let statement = |line| Record { line, sql: String::new(), kind: Kind::Statement { fails: false } };
        let query = |line| {
            let query = Query { letters: String::new(), sort: String::new(), answer: Vec::new() };
            Record { line, sql: String::new(), kind: Kind::Query(query) }
        };
        let file = vec![statement(1), query(2), query(3), statement(4), query(5), statement(6), query(7)];
        let lines: Vec<usize> = script(file, &BTreeSet::from([1, 2])).iter().map(|record| record.line).collect();
        assert_eq!(lines, [1, 3, 4, 5]);
    }

    #[test]
    fn files_are_found_in_order_and_long_ones_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("index")).expect("a folder inside");
        for (name, length) in
            [("select1.test", 3), ("index/b.test", 3), ("index/long.test", TOO_LONG), ("about.wiki", 3)]
        {
            let file = std::fs::File::create(folder.path().join(name)).expect("a file");
            file.set_len(length).expect("the file gets its length");
        }
        let found = files(folder.path()).expect("the folder is read");
        assert_eq!(found, [Path::new("index/b.test"), Path::new("select1.test")]);
    }
}
