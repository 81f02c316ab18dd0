//! Interns the string columns of a feeder: the run restarts with texts, or goes on with large dictionaries once rows
//! have been sent.

use std::collections::HashSet;

use crate::column::{ColumnInfo, Form, is_nested};
use crate::error::failure::Failure;
use crate::parquet::{Codes, ColumnCodes};
use crate::program::interning::ReaderCodes;
use crate::program::run::Run;

/// Interning state of a feeder, for the used coded columns of source `source`.
pub(super) fn codes(run: &Run, source: usize) -> Codes {
    let (columns, used) = (&run.prepared.sources[source].columns, &run.prepared.used[source]);
    let needed: HashSet<usize> = run.lessons().strings.needed_of(source);
    let tables = run.prepared.tables();
    let of = |(index, column): (usize, &ColumnInfo)| match column.form {
        Form::Codes(_, id) if used[index] => {
            let codes = ReaderCodes::new(tables.source(id)?);
            let needed = needed.contains(&index) || is_nested(&column.data_type);
            let most = if needed { run.most_values_if_needed() } else { run.context.options.most_dictionary_values() };
            Some(ColumnCodes { codes, most, needed })
        }
        _ => None,
    };
    Codes(columns.iter().enumerate().map(of).collect())
}

/// Reads columns as texts, as long as no row has been sent; after that, their dictionaries may grow instead, up to the
/// returned number of values.
///
/// # Errors
/// [`Failure::Texts`]: the run restarts.
pub(super) fn give_up(run: &Run, source: usize, columns: &[usize]) -> Result<usize, Failure> {
    let texts: Vec<(usize, usize)> = columns.iter().map(|column| (source, *column)).collect();
    if run.results.give_up(&texts) {
        return Err(Failure::Texts(texts));
    }
    run.lessons().strings.needed.extend(texts);
    Ok(run.most_values_if_needed())
}
