//! Which columns a table shows, and how wide they are.
//!
//! ```text
//!   all fit                   ─► as wide as their cells
//!   all fit with texts cut    ─► the longest texts are cut
//!   else                      ─► columns from both ends, … in the middle
//! ```

use super::{ELLIPSIS, width_of_cell};

/// No text is cut below this width to make room for another column.
const LEAST: usize = 16;
/// What stands around a cell: `| ` and ` `.
const AROUND: usize = 3;

/// A column of a table.
pub struct Column {
    name: String,
    type_name: String,
    /// The widest of its cells.
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

    /// Takes a cell's width.
    pub fn widen(&mut self, width: usize) {
        self.cells = self.cells.max(width);
    }

    fn heading(&self) -> usize {
        width_of_cell(&self.name).max(width_of_cell(&self.type_name))
    }

    /// Its width where texts and headings are cut to `most` columns of the terminal. Numbers and times are not cut.
    fn width(&self, most: usize) -> usize {
        let cells = if self.may_be_cut { self.cells.min(most) } else { self.cells };
        cells.max(self.heading().min(most)).max(1)
    }
}

/// What a table shows.
pub struct Layout {
    /// The columns that are shown.
    pub columns: Vec<usize>,
    /// The one of them before which others are left out.
    pub gap: Option<usize>,
    pub widths: Vec<usize>,
    /// The ones that stand at the right.
    pub right: Vec<bool>,
    /// True if texts are cut.
    pub cuts: bool,
}

impl Layout {
    /// The layout of a table that takes at most `room` columns of a terminal. Its first column is always shown.
    pub fn new(all: &[Column], room: Option<usize>) -> Self {
        let Some(room) = room else { return Self::of(all, (0..all.len()).collect(), None, usize::MAX) };
        let (mut columns, mut gap): (Vec<usize>, _) = ((0..all.len()).collect(), None);
        if total(all, &columns, LEAST, gap) > room {
            (columns, gap) = ends(all, room);
        }
        // The greatest width that texts may have. With `LEAST` they fit, or there is one column alone.
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

/// The columns from both ends that `room` has a place for, and where the others would stand.
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
