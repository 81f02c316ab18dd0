//! Interns the string columns of a reader, or gives up their dictionaries; nested values always need them.
//!
//!   strings ─► own cache ─► the column's dictionary ─► codes
//!                                └─ nearly all distinct, or too many ─► given up: the columns are read as texts
//!
//! Whole    all columns of the rows are examined before any is given up, so that the read restarts once for all.

use crate::error::failure::Failure;
use crate::parquet::decode::Undecoded;
use crate::program::interning::ReaderCodes;

/// Interning state of one reader, by column; `None` for columns without codes.
pub(crate) struct Codes(pub Vec<Option<ColumnCodes>>);

/// Interning state of one column.
pub(crate) struct ColumnCodes {
    pub codes: ReaderCodes,
    /// Maximum number of dictionary values.
    pub most: usize,
    /// The column has no form without codes: an expression needs them, or the values are nested.
    pub needed: bool,
}

impl Codes {
    /// Applies `code` to each coded column. If some are better without a dictionary, `give_up` either ends the read
    /// with an error, or returns the number of values that their dictionaries, which have to be kept, may have instead.
    ///
    /// # Errors
    /// Those of `give_up` and `code`.
    pub fn intern<T>(
        &mut self,
        give_up: impl Fn(&[usize]) -> Result<usize, Failure>,
        mut code: impl FnMut(usize, &mut ColumnCodes) -> Result<T, Undecoded>,
    ) -> Result<Vec<Option<T>>, Undecoded> {
        loop {
            let mut given_up = Vec::new();
            let mut coded = Vec::with_capacity(self.0.len());
            for (index, column) in self.0.iter_mut().enumerate() {
                let Some(column) = column else {
                    coded.push(None);
                    continue;
                };
                let interned = code(index, column);
                let ColumnCodes { codes, needed, .. } = column;
                match interned {
                    Err(error @ (Undecoded::Page(_) | Undecoded::Range)) => return Err(error),
                    _ if !*needed && codes.nearly_all_different() => given_up.push(index),
                    Ok(codes) => coded.push(Some(codes)),
                    Err(Undecoded::Failed(Failure::Texts(_))) => given_up.push(index),
                    Err(_) if !*needed && codes.is_full() => given_up.push(index),
                    Err(failed) => return Err(failed),
                }
            }
            if given_up.is_empty() {
                return Ok(coded);
            }
            let most = give_up(&given_up)?;
            for index in given_up {
                self.0[index].iter_mut().for_each(|column| (column.most, column.needed) = (most, true));
            }
        }
    }
}
