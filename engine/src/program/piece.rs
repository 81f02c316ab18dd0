//! Lowered segments as data: kernels, the cuts between them, and the sink.
//!
//! ```text
//!   cut: rows [ + pieces beside ] ─► cut ─► … ─► last piece, with the sink [ + pieces beside ]
//! ```
//!
//! Columns  a piece before a cut writes only the columns that later pieces read.

use std::sync::Arc;

use millpond_kernels::codegen::ir::{PipelineSpec, SinkSpec};

use crate::column::{ColumnInfo, DictionaryId};
use crate::expr::{LookupTable, Parameter};
use crate::program::segment_result::Details;

/// One kernel of a segment.
#[derive(Debug, Clone)]
pub struct Piece {
    pub spec: PipelineSpec,
    /// Values for the parameter slots.
    pub parameters: Vec<Parameter>,
    /// Lookup tables and join tables, as the spec numbers them.
    pub lookups: Vec<LookupTable>,
    pub tables: Vec<usize>,
}

impl Piece {
    /// Removes the parameters and tables that nothing reads.
    pub fn pruned(self) -> Piece {
        let pruned = self.spec.pruned();
        Piece {
            parameters: pruned.literals.iter().map(|slot| self.parameters[*slot].clone()).collect(),
            lookups: pruned.lookups.iter().map(|table| self.lookups[*table].clone()).collect(),
            tables: pruned.tables.iter().map(|table| self.tables[*table]).collect(),
            spec: pruned.spec,
        }
    }

    /// Removes the outputs that are not `wanted`; returns the positions of the others.
    fn restrict(&mut self, wanted: &[bool]) -> Vec<Option<usize>> {
        let mut at = vec![None; wanted.len()];
        if let SinkSpec::Materialise { outputs } | SinkSpec::MaterialiseAndMark { outputs, .. } = &mut self.spec.sink {
            let mut kept = Vec::new();
            for (index, node) in outputs.iter().enumerate() {
                if wanted.get(index).copied().unwrap_or(true) {
                    if let Some(at) = at.get_mut(index) {
                        *at = Some(kept.len());
                    }
                    kept.push(*node);
                }
            }
            *outputs = kept;
        }
        at
    }
}

/// Cut of a segment between two kernels, because rows expand, or because matches decide which rows continue.
#[derive(Debug, Clone)]
pub struct Cut {
    /// Number of the stage that cuts the segment, and takes the rows to the next piece.
    pub stage: usize,
    /// Writes the rows.
    pub rows: Piece,
    /// Columns of the next piece, and the position of each among the written ones; `None` for unread columns.
    pub columns: Vec<ColumnInfo>,
    pub at: Vec<Option<usize>>,
    /// Position among `columns` of the number of rows that a row becomes; this column is always written.
    pub counts: usize,
    /// Pieces that the stage launches itself, over the written rows.
    pub beside: Vec<Piece>,
    /// Data of the stage.
    pub details: Details,
}

impl Cut {
    /// A cut behind `rows`, whose stage launches nothing itself. The lowering sets the stage.
    pub fn new(rows: Piece, columns: Vec<ColumnInfo>, counts: usize) -> Self {
        let at = vec![None; columns.len()];
        Self { stage: 0, rows, columns, at, counts, beside: vec![], details: Arc::new(()) }
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        std::iter::once(&self.rows).chain(&self.beside)
    }
}

/// A lowered sink.
#[derive(Debug, Clone)]
pub struct LoweredSink {
    pub spec: SinkSpec,
    /// Columns of the output.
    pub outputs: Vec<ColumnInfo>,
    /// Number of launches over the same rows.
    pub variants: u32,
    /// Pieces that the sink's run launches itself, over the columns that the last piece has written.
    pub beside: Vec<Piece>,
    /// Dictionaries whose codes are keys: the codes may get a bound.
    pub key_codes: Vec<DictionaryId>,
    /// Data for the sink's run, and for the segments that read its output.
    pub details: Details,
}

impl LoweredSink {
    /// A sink with these output columns, without details.
    pub fn new(spec: SinkSpec, outputs: Vec<ColumnInfo>) -> Self {
        Self { spec, outputs, variants: 1, beside: vec![], key_codes: vec![], details: Arc::new(()) }
    }
}

/// A lowered segment.
#[derive(Debug, Clone)]
pub struct LoweredSegment {
    pub cuts: Vec<Cut>,
    /// The piece with the sink.
    pub last: Piece,
    /// Output columns. Columns that the sink adds for itself may follow them.
    pub outputs: Vec<ColumnInfo>,
    /// Position of each output among the written columns; `None` for unread columns.
    pub at: Vec<Option<usize>>,
    /// Number of launches over the same rows.
    pub variants: u32,
    /// Pieces that the sink's run launches itself, over the columns that the last piece has written.
    pub beside: Vec<Piece>,
    /// Dictionaries whose codes are keys: the codes may get a bound.
    pub key_codes: Vec<DictionaryId>,
    /// Data for the sink's run, and for the segments that read its output.
    pub details: Details,
}

impl LoweredSegment {
    /// Details of the sink; `None` if they have another type.
    pub fn details<T: 'static>(&self) -> Option<&T> {
        self.details.downcast_ref()
    }

    /// The piece that reads the source.
    pub fn first(&self) -> &Piece {
        self.cuts.first().map_or(&self.last, |cut| &cut.rows)
    }

    /// All pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.cuts.iter().flat_map(Cut::pieces).chain([&self.last]).chain(&self.beside)
    }
}

/// A lowered segment that writes all its columns.
pub struct WholeSegment {
    pub(super) cuts: Vec<Cut>,
    pub(super) last: Piece,
    pub outputs: Vec<ColumnInfo>,
    pub(super) variants: u32,
    pub(super) beside: Vec<Piece>,
    pub key_codes: Vec<DictionaryId>,
    pub details: Details,
}

impl WholeSegment {
    /// Removes the columns that are not `needed`, and what only they read.
    pub fn restricted(self, needed: Option<&[bool]>) -> LoweredSegment {
        let Self { cuts, mut last, outputs, variants, beside, key_codes, details } = self;
        let mut at: Vec<Option<usize>> = (0..outputs.len()).map(Some).collect();
        if let Some(needed) = needed {
            at = last.restrict(needed);
            // Columns behind those that may be left out move up.
            let kept = at.iter().flatten().count();
            let behind = kept..kept + outputs.len().saturating_sub(at.len());
            at.extend(behind.map(Some));
        }
        let last = last.pruned();
        let cuts = pruned_cuts(cuts, &last);
        LoweredSegment { cuts, last, outputs, at, variants, beside, key_codes, details }
    }
}

/// The cuts of a segment that ends in `last`; each writes only what later pieces read.
fn pruned_cuts(cuts: Vec<Cut>, last: &Piece) -> Vec<Cut> {
    let mut done: Vec<Cut> = Vec::new();
    for mut cut in cuts.into_iter().rev() {
        cut.beside = cut.beside.into_iter().map(Piece::pruned).collect();
        let next = done.last().map_or(last, |next| &next.rows);
        let mut wanted = vec![false; cut.columns.len()];
        for piece in cut.beside.iter().chain([next]) {
            piece.spec.used_columns().iter().for_each(|column| wanted[*column as usize] = true);
        }
        wanted[cut.counts] = true;
        cut.at = cut.rows.restrict(&wanted);
        cut.rows = cut.rows.pruned();
        done.push(cut);
    }
    done.reverse();
    done
}
