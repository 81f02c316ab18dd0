//! Columns made of what is stored already: a table's files that another table has, too, are not read again.
//!
//!   stored   a.parquet  b.parquet                        a file was added, replaced or removed, or partitions were left out
//!   wanted   a.parquet  b.parquet  c.parquet             a, b: copied on the device · c: read
//!
//! Order         that of the new table's files.
//! Dictionaries  are merged: codes become those of the new one, on the way.
//! Memory        what is copied from stays as long as it may be asked for: columns of a table whose files are all in the new one, or of
//!               which one was replaced, leave when the new ones are there.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::arrow::datatypes::DataType;

use crate::program::context::RunContext;
use crate::program::failure::Failure;
use crate::store::column::{ColumnForm, Merged, StoredColumn, Whole};
use crate::store::load::{ReadColumn, Wanted};
use crate::store::{Held, Lacking, Store, Table, lock};

/// A table with some of the same files.
pub(super) struct Kin {
    table: Arc<Table>,
    /// For each file of the new table, which of this one's it is.
    files: Vec<Option<usize>>,
    /// Nobody asks for its columns any more, once the new table has them.
    goes: bool,
    /// Its columns in host memory, on the device meanwhile.
    held: Held,
}

/// Where the rows of a column come from.
pub(super) struct Origin {
    /// For each file of the table, the stored column that has it, and as which file; the others are read.
    stored: Vec<Option<(Arc<StoredColumn>, usize)>>,
    /// Columns that leave when this one is there.
    goes: Vec<(Arc<Table>, Arc<StoredColumn>)>,
    key: (usize, ColumnForm),
}

/// How a column came out.
pub(super) enum Made {
    Whole(Whole),
    /// It is better off without a dictionary.
    Text,
    /// It needs a dictionary, and has too many values for one.
    TooMany,
}

impl Store {
    /// The tables that share files with `table`.
    pub(super) fn kin(&self, table: &Arc<Table>) -> Vec<Kin> {
        let others = lock(&self.tables).clone().into_iter().filter(|other| !Arc::ptr_eq(other, table));
        let kin = |other: Arc<Table>| {
            let files = table.identity.files_in(&other.identity);
            let shared = files.iter().flatten().count();
            let goes = shared == other.identity.num_files() || other.is_old.load(Ordering::Relaxed);
            (shared > 0).then_some(Kin { table: other, files, goes, held: Held::new() })
        };
        others.filter_map(kin).collect()
    }

    /// Copies to the device what `kin` have of these columns in host memory.
    pub(super) fn hold(&self, kin: &mut [Kin], lacking: &[Lacking], context: &RunContext) -> Result<(), Failure> {
        let keys: Vec<_> = lacking.iter().map(|(_, column, form)| (*column, *form)).collect();
        for of in kin {
            of.held = self.bring_up(&of.table, &keys, context, false)?;
        }
        Ok(())
    }
}

impl Table {
    /// String columns that are better off without a dictionary in tables that share files are so here.
    pub(super) fn learn_texts(&self, kin: &[Kin]) {
        for of in kin {
            let texts = lock(&of.table.stored).texts.clone();
            lock(&self.stored).texts.extend(texts);
        }
    }
}

impl Origin {
    /// Where the rows of a column of a table of `files` files are.
    pub(super) fn of((_, column, form): &Lacking, files: usize, kin: &[Kin]) -> Self {
        let key = (*column, *form);
        let (mut stored, mut goes) = (vec![None; files], Vec::new());
        for of in kin {
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

    /// The files that are to be read.
    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.stored.len()).filter(|file| self.stored[*file].is_none()).collect()
    }

    /// Numbers of the columns that leave when this one is there.
    pub(super) fn going(&self) -> impl Iterator<Item = u64> {
        self.goes.iter().map(|(_, column)| column.number)
    }

    /// The column is there.
    pub(super) fn done(self) {
        for (table, column) in self.goes {
            let mut stored = lock(&table.stored);
            if stored.columns.get(&self.key).is_some_and(|now| now.number == column.number) {
                stored.columns.remove(&self.key);
            }
            if stored.host.get(&self.key).is_some_and(|now| now.about.number == column.number) {
                stored.host.remove(&self.key);
            }
        }
    }

    /// The column of what was read of the other files.
    pub(super) fn made(&self, wanted: &Wanted, read: ReadColumn) -> Result<Made, Failure> {
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
            let known = numbers.iter().position(|number| *number == column.number);
            let dictionary = own + known.unwrap_or(numbers.len());
            if known.is_none() {
                numbers.push(column.number);
                if let Some(values) = &column.dictionary {
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
                _ if wanted.needed => return Ok(Made::TooMany),
                _ => return Ok(Made::Text),
            },
            _ => None,
        };
        let (name, form, data_type) = (wanted.name.clone(), wanted.form, wanted.data_type.clone());
        Ok(Made::Whole(Whole { name, form, data_type, files: self.stored.len(), pieces, dictionaries }))
    }
}

/// The columns that leave when these are there.
pub(super) fn going(origins: &[Origin]) -> HashSet<u64> {
    origins.iter().flat_map(Origin::going).collect()
}

/// Which files are to be read for which of the columns: those that lack the same ones are read together.
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
