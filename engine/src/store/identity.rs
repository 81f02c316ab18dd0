//! Identity of a table's rows: the current files with their metadata, or the in-memory batches themselves.
//!
//!   equal identity   the same bytes, read the same way, with the same types
//!   copied           some files in common, read the same way: their rows need not be read again
//!
//! Fresh    the metadata of a file is requested from its store: entity tag or modification time, and size. A plan may
//!          hold older metadata.
//! Local    tags consist of device, inode, size and both times; a file that has just changed has another tag at each
//!          request (`files`): its columns are only used by the run that has read them.

use std::collections::HashMap;
use std::sync::Weak;

use datafusion::arrow::array::Array;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path;

use crate::files::is_same_file;

/// Rows of a table.
#[derive(Debug, Clone)]
pub enum Identity {
    Files(Files),
    Batches(Batches),
}

/// Files, and how they are read.
#[derive(Debug, Clone, PartialEq)]
pub struct Files {
    /// Store, format, reader options, types.
    pub(super) reader: String,
    pub(super) schema: SchemaRef,
    pub(super) files: Vec<FileNow>,
}

/// Current metadata of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileNow {
    pub(super) meta: ObjectMeta,
    pub(super) partition_values: Vec<ScalarValue>,
}

/// In-memory arrays, all columns of all batches. Weak, because the table may be dropped.
#[derive(Debug, Clone)]
pub struct Batches {
    pub(super) schema: SchemaRef,
    pub(super) arrays: Vec<Vec<Weak<dyn Array>>>,
}

impl Identity {
    /// True if both are the same rows.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Files(a), Self::Files(b)) => a == b,
            (Self::Batches(a), Self::Batches(b)) => a.is(b),
            _ => false,
        }
    }

    /// True if the files are unchanged since `other` was recorded, so that everything read in between belongs to it.
    /// Unlike [`is`](Self::is), it compares files that have just changed by their times.
    pub fn is_still(&self, other: &Self) -> bool {
        let (Self::Files(now), Self::Files(then)) = (self, other) else { return self.is(other) };
        let same = |(now, then): (&FileNow, &FileNow)| {
            is_same_file(&now.meta, &then.meta) && now.partition_values == then.partition_values
        };
        now.reader == then.reader
            && now.schema == then.schema
            && now.files.len() == then.files.len()
            && now.files.iter().zip(&then.files).all(same)
    }

    /// True for an in-memory table whose batches have been dropped.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Files(_) => false,
            Self::Batches(batches) => batches.arrays.iter().flatten().any(|array| array.strong_count() == 0),
        }
    }

    /// Number of files; an in-memory table counts as one.
    pub fn num_files(&self) -> usize {
        match self {
            Self::Files(of) => of.files.len(),
            Self::Batches(_) => 1,
        }
    }

    /// For each of its files, the index of the same file in `other`, if unchanged; empty if the files are read in
    /// another way.
    pub fn files_in(&self, other: &Self) -> Vec<Option<usize>> {
        let (Self::Files(own), Self::Files(of)) = (self, other) else { return vec![] };
        if own.reader != of.reader || own.schema != of.schema {
            return vec![];
        }
        // Both are sorted by name; files with the same name differ in partition values.
        let mut at = 0;
        let find = |file: &FileNow| {
            while of.files.get(at).is_some_and(|known| known.meta.location < file.meta.location) {
                at += 1;
            }
            let same = of.files[at..].iter().take_while(|known| known.meta.location == file.meta.location);
            same.enumerate().find(|(_, known)| *known == file).map(|(next, _)| at + next)
        };
        own.files.iter().map(find).collect()
    }

    /// True if `newer` contains newer versions of some of its files, read in the same way.
    pub fn is_replaced_by(&self, newer: &Self) -> bool {
        let (Self::Files(old), Self::Files(new)) = (self, newer) else { return false };
        if old.reader != new.reader {
            return false;
        }
        let now: HashMap<&Path, &ObjectMeta> = new.files.iter().map(|file| (&file.meta.location, &file.meta)).collect();
        old.files.iter().any(|old| now.get(&old.meta.location).is_some_and(|now| **now != old.meta))
    }

    /// Name of a table for users: its first file, or a note that it is in memory.
    pub fn name(&self) -> String {
        match self {
            Self::Files(Files { files, .. }) => match files.as_slice() {
                [] => "no files".to_string(),
                [one] => one.meta.location.to_string(),
                [first, others @ ..] => format!("{} and {} more", first.meta.location, others.len()),
            },
            Self::Batches(batches) => format!("{} batches in memory", batches.arrays.len()),
        }
    }
}

impl Batches {
    /// Weak references keep the allocation, so its address is not reused: equal addresses mean the same array.
    fn is(&self, other: &Self) -> bool {
        let same = |(a, b): (&Weak<dyn Array>, &Weak<dyn Array>)| Weak::ptr_eq(a, b);
        let pairs = self.arrays.iter().zip(&other.arrays);
        self.schema == other.schema
            && self.arrays.len() == other.arrays.len()
            && pairs.into_iter().all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(same))
    }
}
