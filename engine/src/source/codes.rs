//! Interns the string columns of a feeder, or decides to drop their dictionaries; nested values always need them.
//!
//!   strings ─► own cache ─► the column's dictionary ─► codes
//!                                └─ nearly all distinct, or too many ─► the run restarts with texts, if no row is sent

use std::collections::HashSet;

use crate::column::{ColumnInfo, Form, is_nested};
use crate::error::failure::Failure;
use crate::program::interning::ReaderCodes;
use crate::program::run::Run;

/// Interning state of one feeder.
pub(super) struct Codes {
    source: usize,
    columns: Vec<Option<ColumnCodes>>,
}

struct ColumnCodes {
    codes: ReaderCodes,
    /// The column has no form without codes: an expression needs them, or the values are nested.
    needed: bool,
}

impl Codes {
    /// Interning state for the used coded columns of source `source`.
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

    /// Applies `code` to each coded column, with its maximum dictionary size and whether the dictionary is required.
    ///
    /// # Errors
    /// [`Failure::Texts`] if some columns are better without a dictionary, as long as no row has been sent; after that,
    /// dictionaries may grow instead. Other failures of `code`.
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
                let most =
                    if *needed { run.most_values_if_needed() } else { run.context.options.most_dictionary_values() };
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
            // Rows have been sent, so the dictionaries must be kept.
            for (_, index) in &texts {
                self.columns[*index].iter_mut().for_each(|column| column.needed = true);
            }
            run.lessons().strings.needed.extend(texts);
        }
    }
}
