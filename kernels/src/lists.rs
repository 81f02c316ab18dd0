//! Words of lists whose items have been written one behind the other. Device side: `cuda/lists.cu`.
//!
//! ```text
//!   a word, 64 bits: where the items of a row begin (high half), and how many there are (low half)
//!   [`words`] ─┬─ by running sums of how many each row has
//!              ├─ by the row of each item, where items were left out
//!              └─ one item a row
//! ```
//!
//! NULL     is the caller's: a row without a list gets some word.
//! Waits    never.

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::join::Expansion;
use crate::pipeline::ExtentRows;
use crate::rows::{Rows, expect_bytes, striding};
use crate::{Launch, abi, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Which items are whose.
#[derive(Clone, Copy)]
pub enum Whose<'a> {
    /// Running sums tell how many each row has.
    Ends(&'a Expansion),
    /// The row of each item (u32, ascending), and the control block of the output that they are a column of; so many at most.
    Rows { of: &'a DeviceView, control: &'a DeviceView, most: u64 },
    /// Each row has one.
    One,
}

/// Writes the word of each row. The items begin at `base` among all; `base` and their number must be below 2^32 together.
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
