//! A feeder's way to the codes of its string columns, and to doing without; nested values cannot do without.
//!
//!   strings ─► own cache ─► the column's dictionary ─► codes
//!                                └─ nearly all different, or too many ─► the run begins again with texts, unless rows have left

use std::collections::HashSet;

use crate::column::{ColumnInfo, Form, is_nested};
use crate::program::failure::Failure;
use crate::program::interning::ReaderCodes;
use crate::program::run::Run;

/// The codes of one feeder.
pub(super) struct Codes {
    source: usize,
    columns: Vec<Option<ColumnCodes>>,
}

struct ColumnCodes {
    codes: ReaderCodes,
    /// There is no form without: an expression needs them, or the values are nested.
    needed: bool,
}

impl Codes {
    /// Of the columns of source `source` that are codes, and used.
    pub fn of(run: &Run, source: usize) -> Self {
        let (columns, used) = (&run.prepared.sources[source].columns, &run.prepared.used[source]);
        let needed: HashSet<usize> = run.lessons().strings.needed_of(source);
        let tables = run.prepared.tables();
        let of = |(index, column): (usize, &ColumnInfo)| match column.form {
            Form::Codes(_, id) if used[index] => {
                let codes = ReaderCodes::new(tables.source(id)?);
                Some(ColumnCodes { codes, needed: needed.contains(&index) || is_nested(&column.data_type) })
            }
            _ => None,
        };
        Self { source, columns: columns.iter().enumerate().map(of).collect() }
    }

    /// What `code` makes of each column of codes, given how many values its dictionary may have, and whether it is needed.
    ///
    /// # Errors
    /// [`Failure::Texts`] where some are better off without a dictionary, as long as no row has left; later a dictionary may
    /// become larger. Others as `code` has them.
    pub fn intern<T>(
        &mut self,
        run: &Run,
        mut code: impl FnMut(usize, &mut ReaderCodes, (usize, bool)) -> Result<T, Failure>,
    ) -> Result<Vec<Option<T>>, Failure> {
        loop {
            let mut texts = Vec::new();
            let mut coded = Vec::with_capacity(self.columns.len());
            for (index, column) in self.columns.iter_mut().enumerate() {
                let Some(ColumnCodes { codes, needed }) = column else {
                    coded.push(None);
                    continue;
                };
                let most = if *needed { run.most_values_if_needed() } else { run.options.most_dictionary_values() };
                match code(index, codes, (most, *needed)) {
                    _ if !*needed && codes.nearly_all_different() => texts.push((self.source, index)),
                    Ok(codes) => coded.push(Some(codes)),
                    Err(Failure::Texts(_)) => texts.push((self.source, index)),
                    Err(_) if !*needed && codes.is_full() => texts.push((self.source, index)),
                    Err(failure) => return Err(failure),
                }
            }
            if texts.is_empty() {
                return Ok(coded);
            }
            if run.results.give_up(&texts) {
                return Err(Failure::Texts(texts));
            }
            // Rows have left, and it is too late to do without.
            for (_, index) in &texts {
                self.columns[*index].iter_mut().for_each(|column| column.needed = true);
            }
            run.lessons().strings.needed.extend(texts);
        }
    }
}
