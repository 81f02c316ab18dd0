//! Selection and widths of the columns of a table.
//!
//! ```text
//!   all fit                   ─► as wide as their widest cells
//!   all fit with texts cut    ─► the longest texts are cut
//!   else                      ─► columns from both ends, … in the middle
//! ```

use super::{ELLIPSIS, width_of_cell};

/// Minimum width to which text is cut to make room for other columns.
const LEAST: usize = 16;
/// Width around a cell: `| ` and ` `.
const AROUND: usize = 3;

/// A column of a table.
pub struct Column {
    name: String,
    type_name: String,
    /// Width of its widest cell.
    cells: usize,
    is_number: bool,
    may_be_cut: bool,
}

impl Column {
    pub fn new(name: String, type_name: String, is_number: bool, may_be_cut: bool) -> Self {
        Self { name, type_name, cells: 0, is_number, may_be_cut }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Widens the column to a cell's width.
    pub fn widen(&mut self, width: usize) {
        self.cells = self.cells.max(width);
    }

    fn heading(&self) -> usize {
        width_of_cell(&self.name).max(width_of_cell(&self.type_name))
    }

    /// The column's width if texts and headings are cut to `most` columns of the terminal. Numbers and times are not
    /// cut.
    fn width(&self, most: usize) -> usize {
        let cells = if self.may_be_cut { self.cells.min(most) } else { self.cells };
        cells.max(self.heading().min(most)).max(1)
    }
}

/// The columns and widths of a table.
pub struct Layout {
    /// Indices of the shown columns.
    pub columns: Vec<usize>,
    /// Position in `columns` before which columns are left out.
    pub gap: Option<usize>,
    pub widths: Vec<usize>,
    /// Whether each column is right-aligned.
    pub right: Vec<bool>,
    /// True if texts are cut.
    pub cuts: bool,
}

impl Layout {
    /// The layout of a table in at most `room` columns of a terminal. The first column is always shown.
    pub fn new(all: &[Column], room: Option<usize>) -> Self {
        let Some(room) = room else { return Self::of(all, (0..all.len()).collect(), None, usize::MAX) };
        let (mut columns, mut gap): (Vec<usize>, _) = ((0..all.len()).collect(), None);
        if total(all, &columns, LEAST, gap) > room {
            (columns, gap) = ends(all, room);
        }
        // Search the greatest width for texts. At `LEAST` they fit, or only one column is left.
        let (mut fits, mut exceeds) = (LEAST, room.max(LEAST) + 1);
        while exceeds - fits > 1 {
            let middle = fits.midpoint(exceeds);
            if total(all, &columns, middle, gap) <= room { fits = middle } else { exceeds = middle }
        }
        Self::of(all, columns, gap, fits)
    }

    fn of(all: &[Column], columns: Vec<usize>, gap: Option<usize>, most: usize) -> Self {
        let widths = columns.iter().map(|at| all[*at].width(most)).collect();
        let right = columns.iter().map(|at| all[*at].is_number).collect();
        Self { columns, gap, widths, right, cuts: most < usize::MAX }
    }
}

/// The width of a table.
fn total(all: &[Column], columns: &[usize], most: usize, gap: Option<usize>) -> usize {
    let cells: usize = columns.iter().map(|at| all[*at].width(most) + AROUND).sum();
    1 + cells + gap.map_or(0, |_| width_of_cell(ELLIPSIS) + AROUND)
}

/// The columns from both ends that fit into `room`, and the position of the gap.
fn ends(all: &[Column], room: usize) -> (Vec<usize>, Option<usize>) {
    let (mut first, mut last) = (vec![0], Vec::new());
    let with = |first: &[usize], last: &[usize]| -> Vec<usize> {
        first.iter().copied().chain(last.iter().rev().copied()).collect()
    };
    loop {
        let from_end = last.len() < first.len();
        let (mut more_first, mut more_last) = (first.clone(), last.clone());
        if from_end {
            more_last.push(all.len() - 1 - last.len())
        } else {
            more_first.push(first.len())
        }
        let columns = with(&more_first, &more_last);
        if columns.len() >= all.len() || total(all, &columns, LEAST, Some(0)) > room {
            break;
        }
        (first, last) = (more_first, more_last);
    }
    (with(&first, &last), Some(first.len()))
}
