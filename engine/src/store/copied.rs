//! Columns assembled from stored ones: files that another table also contains are not read again.
//!
//!   stored   a.parquet  b.parquet                 a file was added, replaced or removed, or partitions were excluded
//!   wanted   a.parquet  b.parquet  c.parquet      a, b: copied on the device · c: read
//!
//! Order         is that of the new table's files.
//! Dictionaries  are merged; the copy translates the codes to the new dictionary.
//! Memory        of the sources is kept while they may be requested: columns of a table whose files are all in the new
//!               one, or one of whose files was replaced, are dropped after the new ones are stored.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::arrow::datatypes::DataType;

use crate::error::failure::Failure;
use crate::program::context::RunContext;
use crate::store::column::{ColumnForm, Merged, StoredColumn, Whole};
use crate::store::load::{ReadColumn, Wanted};
use crate::store::{Held, Lacking, Store, Table, lock};

/// A table that shares files with the new one.
pub(super) struct CopySource {
    table: Arc<Table>,
    /// For each file of the new table, the index of the same file in this table.
    files: Vec<Option<usize>>,
    /// Its columns are no longer needed after the new table has them.
    goes: bool,
    /// Its columns from host memory, temporarily on the device.
    held: Held,
}

/// Sources of a column's rows.
pub(super) struct Origin {
    /// For each file of the table, the stored column that contains it, and the file's index there; other files are
    /// read.
    stored: Vec<Option<(Arc<StoredColumn>, usize)>>,
    /// Columns that this one replaces.
    goes: Vec<(Arc<Table>, Arc<StoredColumn>)>,
    key: (usize, ColumnForm),
}

/// Result of assembling a column.
pub(super) enum Copied {
    Whole(Whole),
    /// The column is better without a dictionary.
    Text,
    /// The column needs a dictionary, but has too many values.
    TooMany,
}

impl Store {
    /// Tables that share files with `table`.
    pub(super) fn copy_sources(&self, table: &Arc<Table>) -> Vec<CopySource> {
        let others = lock(&self.tables).clone().into_iter().filter(|other| !Arc::ptr_eq(other, table));
        let sources = |other: Arc<Table>| {
            let files = table.identity.files_in(&other.identity);
            let shared = files.iter().flatten().count();
            let goes = shared == other.identity.num_files() || other.is_old.load(Ordering::Relaxed);
            (shared > 0).then_some(CopySource { table: other, files, goes, held: Held::new() })
        };
        others.filter_map(sources).collect()
    }

    /// Copies these columns of `sources` from host memory to the device.
    pub(super) fn hold(
        &self,
        sources: &mut [CopySource],
        lacking: &[Lacking],
        context: &RunContext,
    ) -> Result<(), Failure> {
        let keys: Vec<_> = lacking.iter().map(|(_, column, form)| (*column, *form)).collect();
        for of in sources {
            of.held = self.bring_up(&of.table, &keys, context, false)?;
        }
        Ok(())
    }
}

impl Table {
    /// Adopts from tables with shared files which string columns are better without a dictionary.
    pub(super) fn learn_texts(&self, sources: &[CopySource]) {
        for of in sources {
            let texts = lock(&of.table.stored).texts.clone();
            lock(&self.stored).texts.extend(texts);
        }
    }
}

impl Origin {
    /// Sources of a column's rows in a table of `files` files.
    pub(super) fn of((_, column, form): &Lacking, files: usize, sources: &[CopySource]) -> Self {
        let key = (*column, *form);
        let (mut stored, mut goes) = (vec![None; files], Vec::new());
        for of in sources {
            let known = lock(&of.table.stored).columns.get(&key).cloned();
            let Some(column) = known.or_else(|| of.held.get(&key).cloned()) else { continue };
            for (place, at) in stored.iter_mut().zip(&of.files) {
                if let (None, Some(at)) = (&place, at) {
                    *place = Some((Arc::clone(&column), *at));
                }
            }
            if of.goes {
                goes.push((Arc::clone(&of.table), column));
            }
        }
        Self { stored, goes, key }
    }

    /// Files that have to be read.
    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.stored.len()).filter(|file| self.stored[*file].is_none()).collect()
    }

    /// Numbers of the columns that this one replaces.
    pub(super) fn going(&self) -> impl Iterator<Item = u64> {
        self.goes.iter().map(|(_, column)| column.about.number)
    }

    /// Drops the replaced columns after this one is stored.
    pub(super) fn done(self) {
        for (table, column) in self.goes {
            let mut stored = lock(&table.stored);
            if stored.columns.get(&self.key).is_some_and(|now| now.about.number == column.about.number) {
                stored.columns.remove(&self.key);
            }
            if stored.host.get(&self.key).is_some_and(|now| now.about.number == column.about.number) {
                stored.host.remove(&self.key);
            }
        }
    }

    /// Assembles the column from stored files and those that were read.
    pub(super) fn copied(&self, wanted: &Wanted, read: ReadColumn) -> Result<Copied, Failure> {
        let mut dictionaries: Vec<_> = read.values.into_iter().collect();
        let mut numbers: Vec<u64> = Vec::new();
        let own = dictionaries.len();
        let mut read_pieces = read.pieces.into_iter().peekable();
        let mut pieces = Vec::new();
        for (file, stored) in self.stored.iter().enumerate() {
            let Some((column, at)) = stored else {
                while let Some(piece) = read_pieces.next_if(|piece| piece.file == file) {
                    pieces.push(piece);
                }
                continue;
            };
            let known = numbers.iter().position(|number| *number == column.about.number);
            let dictionary = own + known.unwrap_or(numbers.len());
            if known.is_none() {
                numbers.push(column.about.number);
                if let Some(values) = &column.about.dictionary {
                    dictionaries.push(values.lock().array(0, &DataType::Binary)?);
                }
            }
            if column.rows_of(*at) > 0 {
                pieces.push(column.piece(*at, file, dictionary)?);
            }
        }
        let dictionaries = match wanted.form {
            ColumnForm::Codes => match Merged::of(&dictionaries)? {
                Some(merged) if merged.len() <= wanted.most => Some(merged),
                _ if wanted.needed => return Ok(Copied::TooMany),
                _ => return Ok(Copied::Text),
            },
            _ => None,
        };
        let (name, form, data_type) = (wanted.name.clone(), wanted.form, wanted.data_type.clone());
        Ok(Copied::Whole(Whole { name, form, data_type, files: self.stored.len(), pieces, dictionaries }))
    }
}

/// Numbers of the columns that these replace.
pub(super) fn going(origins: &[Origin]) -> HashSet<u64> {
    origins.iter().flat_map(Origin::going).collect()
}

/// Files to read and the columns to read from them: columns that lack the same files are read together.
pub(super) fn reads(origins: &[Origin]) -> Vec<(Vec<usize>, Vec<usize>)> {
    let mut reads: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for (column, origin) in origins.iter().enumerate() {
        let files = origin.missing();
        match reads.iter_mut().find(|(known, _)| *known == files) {
            _ if files.is_empty() => {}
            Some((_, columns)) => columns.push(column),
            None => reads.push((files, vec![column])),
        }
    }
    reads
}
