//! Builds list words for items that were written one after the other. Device side: `cuda/lists.cu`.
//!
//! ```text
//!   a list word, 64 bits: index of the row's first item (high half), number of items (low half)
//!   [`words`] ─┬─ from running sums of the item counts
//!              ├─ from the row number of each item, if items were left out
//!              └─ one item per row
//! ```
//!
//! NULL     callers handle NULL: the word of a row without a list has no meaning.
//! Waits    never.

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::join::Expansion;
use crate::pipeline::ExtentRows;
use crate::rows::{Rows, expect_bytes, striding};
use crate::{Launch, abi, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Assignment of items to rows.
#[derive(Clone, Copy)]
pub enum Whose<'a> {
    /// Running sums of the item counts.
    Ends(&'a Expansion),
    /// Row number of each item (u32, ascending), the control block of the output that holds this column, and its
    /// maximum length.
    Rows { of: &'a DeviceView, control: &'a DeviceView, most: u64 },
    /// One item per row.
    One,
}

/// Writes the list word of each row. The first item has index `base`; `base` plus the number of items must be below
/// 2^32.
///
/// | name    | length           | unit |
/// |---------|------------------|------|
/// | `words` | at least `rows`  | u64  |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn words(
    images: &Images,
    whose: Whose<'_>,
    base: u64,
    rows: &ExtentRows,
    words: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let bound = rows.upper_bound();
    expect_bytes("lists", "words", words, bound * 8)?;
    let kernel = images.kernel(
        "lists",
        match whose {
            Whose::Ends(_) => "lists_by_ends",
            Whose::Rows { .. } => "lists_by_rows",
            Whose::One => "lists_of_one",
        },
    )?;
    let launch = Launch::new(&kernel, striding(images.device(), bound.max(1), tune::LISTS_THREADS));
    let ends;
    let items;
    let launch = match whose {
        Whose::Ends(sums) => {
            let from = abi::CONTROL_BYTES as usize;
            ends = sums.sums.view(from..from + bound as usize * 8)?;
            launch.read(&ends)
        }
        Whose::Rows { of, control, most } => {
            expect_bytes("lists", "rows of items", of, most * 4)?;
            let at = abi::CONTROL_ROWS as usize;
            items = control.view(at..at + 8)?;
            launch.read(of).value(most).read(&items)
        }
        Whose::One => launch,
    };
    Rows::try_from(rows)?.put(launch.value(base).write(words)).submit(on)?;
    Ok(())
}
