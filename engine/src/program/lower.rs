//! Lowers a segment to kernel specs, for one run's columns.
//!
//!   stages ──► one piece: filters, projections, probes and the sink in one kernel
//!   a probe that expands rows cuts the piece:
//!       rows with start and count of their matches ─► running sums ─► the next piece, expanded
//!       conditions on pairs: [ mark the rows that have a pair ] first, where rows without one matter
//!
//! Columns  a piece before a cut writes only the columns that later pieces read.
//! Pure     lowering allocates no device memory. Equal specs share one compiled module, so lowering again compiles
//!          nothing.

use datafusion::arrow::datatypes::DataType;
use millpond_kernels::codegen::ir::{
    ColumnSpec, Extents, LookupSpec, NodeId, Physical, PipelineSpec, Repr, SinkSpec, Ty,
};

use crate::column::{ColumnInfo, Form, storage};
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, LookupTable, Lowering, Scope};
use crate::program::build_side::{BuildForm, KeyForm, KeySlice};
use crate::program::piece::{Cut, LoweredSegment, LoweredSink, Piece, WholeSegment};
use crate::program::segment_result::Details;
use crate::program::segments::{Origin, Program};

/// Input of a segment's lowering.
pub struct SegmentInput<'a> {
    pub columns: &'a [ColumnInfo],
    /// Details from the sink of the preceding segment.
    pub produced: Option<&'a Details>,
    /// For rows of a build side: the required output columns.
    pub like: Option<&'a [ColumnInfo]>,
    /// Approximate row count.
    pub rows_hint: Option<u64>,
    /// Output columns in the form that several segments share, if any.
    pub common: Option<&'a [ColumnInfo]>,
    /// Flags of the output columns that something reads; all when `None`.
    pub needed: Option<&'a [bool]>,
    /// Parts of the keys of joins, by the building segment: rows of other parts are skipped.
    pub slices: &'a [(usize, KeySlice)],
    /// For a building segment: the form of its keys.
    pub own_keys: Option<&'a [KeyForm]>,
}

impl<'a> SegmentInput<'a> {
    /// Rows of these columns, with nothing else known.
    pub fn rows(columns: &'a [ColumnInfo]) -> Self {
        Self {
            columns,
            produced: None,
            like: None,
            rows_hint: None,
            common: None,
            needed: None,
            slices: &[],
            own_keys: None,
        }
    }

    /// The required part of the keys of build side `build`; `None` for all keys.
    pub fn slice(&self, build: usize) -> Option<KeySlice> {
        self.slices.iter().find(|(of, _)| *of == build).map(|(_, slice)| *slice)
    }
}

/// Forms of build sides.
pub trait Builds {
    /// The form of the build side of segment `build`: the actual one, or the one that `plan` derives from its rows'
    /// columns.
    ///
    /// # Errors
    /// The errors of `plan`, and one if the form should be known but is not.
    fn form(
        &mut self,
        build: usize,
        plan: &mut dyn FnMut(&[ColumnInfo]) -> Result<BuildForm, Reason>,
    ) -> Result<BuildForm, Reason>;
}

/// A piece that has no sink yet.
pub struct PieceBuilder<'d> {
    pub lowering: Lowering<'d>,
    pub filters: Vec<NodeId>,
    columns: Vec<ColumnInfo>,
    uploaded: bool,
    expanded: bool,
}

impl<'d> PieceBuilder<'d> {
    /// A piece over these columns, either `uploaded` or written by other pieces; over pairs of rows if it is
    /// `expanded`.
    pub fn new(columns: &[ColumnInfo], uploaded: bool, expanded: bool, dictionaries: &'d mut Dictionaries) -> Self {
        let lowering = Lowering::new(columns, dictionaries);
        Self { lowering, filters: vec![], columns: columns.to_vec(), uploaded, expanded }
    }

    /// Ends the piece, and returns the dictionaries with it.
    pub fn close(self, sink: SinkSpec) -> (Piece, &'d mut Dictionaries) {
        let Lowering { graph, parameters, lookups, tables, dictionaries, .. } = self.lowering;
        let (literal_types, parameters) = parameters.into_iter().unzip();
        let (tables, table_specs) = tables.into_iter().unzip();
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: self.columns.iter().map(|column| column_spec(column, self.uploaded)).collect(),
            literals: literal_types,
            lookups: lookups.iter().map(lookup_spec).collect(),
            tables: table_specs,
            expanded: self.expanded,
            graph,
            filters: self.filters,
            sink,
        };
        (Piece { spec, parameters, lookups, tables }, dictionaries)
    }
}

fn lookup_spec(table: &LookupTable) -> LookupSpec {
    LookupSpec { physical: table.physical(), ty: table.ty() }
}

/// A plain column that the engine adds to rows: the start or the count of matches.
pub fn number_column(name: &str, ty: Ty) -> ColumnInfo {
    ColumnInfo::new(name.to_string(), DataType::UInt32, Form::Plain(ty))
}

/// A segment being lowered: its stages and its sink add themselves, one after the other.
pub struct SegmentLowering<'a, 'd> {
    /// Its number in the program.
    pub index: usize,
    pub input: &'a SegmentInput<'a>,
    builds: &'a mut dyn Builds,
    /// The open piece; `None` only while a stage cuts it.
    piece: Option<PieceBuilder<'d>>,
    /// The columns of a row so far.
    pub scope: Scope,
    cuts: Vec<Cut>,
    /// Number of the stage that is being lowered.
    stage: usize,
    /// Of a row with a match: the build row to mark, for a sink that only marks.
    pub build_row: Option<NodeId>,
    /// Like `build_row`, for a sink that also writes the row.
    pub marked_row: Option<NodeId>,
}

impl<'d> SegmentLowering<'_, 'd> {
    /// The open piece.
    pub fn piece(&mut self) -> &mut PieceBuilder<'d> {
        self.piece.as_mut().expect("a piece is open but while a stage cuts it")
    }

    /// The expression lowering of the open piece, and the columns of its rows.
    pub fn expressions(&mut self) -> (&mut Lowering<'d>, &Scope) {
        let piece = self.piece.as_mut().expect("a piece is open but while a stage cuts it");
        (&mut piece.lowering, &self.scope)
    }

    /// Calls `lower` with the rows' columns and the filters, to which it may add.
    pub fn with_filters<T>(
        &mut self,
        lower: impl FnOnce(&mut Lowering<'d>, &Scope, &mut Vec<NodeId>) -> Result<T, Reason>,
    ) -> Result<T, Reason> {
        let piece = self.piece.as_mut().expect("a piece is open but while a stage cuts it");
        lower(&mut piece.lowering, &self.scope, &mut piece.filters)
    }

    /// The form of the build side of segment `build`; if it is unknown, `plan` derives it from the columns of its rows.
    ///
    /// # Errors
    /// As for [`Builds::form`].
    pub fn build_form(
        &mut self,
        build: usize,
        mut plan: impl FnMut(&[ColumnInfo], &mut Lowering<'d>, &Scope) -> Result<BuildForm, Reason>,
    ) -> Result<BuildForm, Reason> {
        let piece = self.piece.as_mut().expect("a piece is open but while a stage cuts it");
        let (lowering, scope) = (&mut piece.lowering, &self.scope);
        self.builds.form(build, &mut |columns| plan(columns, lowering, scope))
    }

    /// Ends the open piece; `cut` makes of it the cut, the next piece and that piece's columns.
    ///
    /// # Errors
    /// Those of `cut`.
    pub fn cut(
        &mut self,
        cut: impl FnOnce(PieceBuilder<'d>, &Scope) -> Result<(Cut, PieceBuilder<'d>, Scope), Reason>,
    ) -> Result<(), Reason> {
        let piece = self.piece.take().expect("a piece is open but while a stage cuts it");
        let (done, next, scope) = cut(piece, &self.scope)?;
        self.cuts.push(Cut { stage: self.stage, ..done });
        (self.piece, self.scope) = (Some(next), scope);
        Ok(())
    }

    /// Number of output columns that nothing reads.
    pub fn left_out(&self) -> usize {
        self.input.needed.map_or(0, |needed| needed.iter().filter(|needed| !**needed).count())
    }

    /// The columns of a row as outputs, converted to the form that several segments share, if any.
    ///
    /// # Errors
    /// Why a column that something reads has no device form.
    pub fn outputs(&mut self) -> Result<(Vec<NodeId>, Vec<ColumnInfo>), Reason> {
        let piece = self.piece.as_mut().expect("a piece is open but while a stage cuts it");
        let lowering = &mut piece.lowering;
        let (mut nodes, mut outputs) = (Vec::new(), Vec::new());
        for (index, (name, value)) in self.scope.columns().enumerate() {
            let value = match value {
                Err(reason) if self.input.needed.is_some_and(|needed| !needed[index]) => {
                    let form = Form::Unsupported(reason.clone());
                    outputs.push(ColumnInfo::new(name.to_string(), DataType::Null, form));
                    nodes.push(lowering.graph.boolean(false));
                    continue;
                }
                value => value.clone()?,
            };
            let value = match self.input.common.and_then(|columns| columns.get(index)) {
                Some(column) => lowering.conform(index, value, column)?,
                None => value,
            };
            nodes.push(value.node);
            outputs.push(lowering.info(name, &value));
        }
        Ok((nodes, outputs))
    }

    /// The sink that writes these nodes as dense columns, and marks matched build rows if a join keeps the unmatched
    /// ones.
    pub fn write(&self, outputs: Vec<NodeId>) -> SinkSpec {
        match self.marked_row {
            Some(row) => SinkSpec::MaterialiseAndMark { outputs, row },
            None => SinkSpec::Materialise { outputs },
        }
    }
}

impl Program {
    /// Lowers segment `index`. Columns of a source are stored as [`storage`] says, others in their natural width.
    ///
    /// # Errors
    /// Why a stage or the sink has no device form.
    pub fn lower(
        &self,
        index: usize,
        input: &SegmentInput<'_>,
        dictionaries: &mut Dictionaries,
        builds: &mut dyn Builds,
    ) -> Result<LoweredSegment, Reason> {
        Ok(self.lower_whole(index, input, dictionaries, builds)?.restricted(input.needed))
    }

    /// Like [`lower`](Self::lower), with all columns that are written, whether or not anything reads them.
    ///
    /// # Errors
    /// As for [`lower`](Self::lower).
    pub fn lower_whole(
        &self,
        index: usize,
        input: &SegmentInput<'_>,
        dictionaries: &mut Dictionaries,
        builds: &mut dyn Builds,
    ) -> Result<WholeSegment, Reason> {
        let segment = &self.segments[index];
        let uploaded = matches!(segment.origin, Origin::Source(_));
        let mut piece = PieceBuilder::new(input.columns, uploaded, false, dictionaries);
        let scope = piece.lowering.scope();
        let mut lowering = SegmentLowering {
            index,
            input,
            builds,
            piece: Some(piece),
            scope,
            cuts: vec![],
            stage: 0,
            build_row: None,
            marked_row: None,
        };
        for (number, stage) in segment.stages.iter().enumerate() {
            lowering.stage = number;
            stage.lower(&mut lowering)?;
        }
        let LoweredSink { spec, outputs, variants, beside, key_codes, details } = segment.sink.lower(&mut lowering)?;
        let SegmentLowering { piece, cuts, .. } = lowering;
        let (last, _) = piece.expect("a piece is open but while a stage cuts it").close(spec);
        Ok(WholeSegment { cuts, last, outputs, variants, beside, key_codes, details })
    }
}

/// Memory form of an input column: uploaded columns are narrowed by range, intermediates have their natural width.
pub fn column_spec(column: &ColumnInfo, uploaded: bool) -> ColumnSpec {
    // A column without a device form is in no graph: its values are unknown, and may be NULL.
    let ty = column.ty().unwrap_or(Ty::new(Repr::Bool).nullable(true));
    let (physical, base) = match uploaded {
        true if column.long && ty.repr == Repr::Text => (Physical::LongText, 0),
        true => storage(ty),
        false => (Physical::of(ty), 0),
    };
    ColumnSpec { physical, has_base: base != 0, ty }
}
