//! The interface between a program and its operators.
//!
//!   plan ─ ToSegments ─► segments   source → stages → sink
//!                              │        │        └─ Sink::lower ──► SinkSpec, outputs      Sink::begin ──► SinkRun
//!                              │        └─ Stage::lower: adds itself to the piece of a kernel, or cuts it in two
//!                              └─ fed rows, other segments' results, or the rows of a build side
//!
//! A program knows no operator by name. An operator with its own stage or sink is one folder and one line of the
//! registry.
//!
//! Waits    stages never. The run of a sink waits where its own header says so.
//! Memory   a sink's state belongs to its run, and ends with it.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_err;
use datafusion::physical_plan::ExecutionPlan;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millpond_kernels::pipeline::LookupInput;
use millpond_memory::Stream;

use crate::column::dictionary::SharedDictionary;
use crate::column::{ColumnInfo, DictionaryId};
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, LookupTable};
use crate::program::build_side::{BuildForm, KeyForm};
use crate::program::context::RunContext;
use crate::program::extent::{CutRows, Extent};
use crate::program::lower::SegmentLowering;
use crate::program::part::Kept;
use crate::program::piece::LoweredSink;
use crate::program::segment_result::SegmentResult;
use crate::program::segment_run::SegmentRun;
use crate::program::segments::{Open, Segments};
use crate::program::tables::HostTable;

/// Conversion of an operator's device nodes to segments of a program.
pub trait ToSegments: Debug + Send + Sync {
    /// The segments of `node`, the last of them open; `None` if the node belongs to another operator. At the `top` of a
    /// program an operator only registers its row limit with [`Segments`], and need not apply it.
    fn cut(
        &self,
        _node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        _into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        None
    }

    /// Whether two nodes of this operator compute equal results from equal inputs; `None` if they belong to another
    /// operator.
    fn computes_same(&self, _a: &dyn ExecutionPlan, _b: &dyn ExecutionPlan) -> Option<bool> {
        None
    }

    /// Whether two nodes of this operator read the same rows from outside the device. Filters whose numbers are in
    /// `own` only drop rows that a join of the subtree drops anyway. `None` for other nodes.
    fn reads_same(&self, _a: &dyn ExecutionPlan, _b: &dyn ExecutionPlan, _own: &HashSet<u64>) -> Option<bool> {
        None
    }

    /// Expression number of the filter that a node fills in at run time for scans of its own subtree.
    fn filter_of_scans(&self, _node: &dyn ExecutionPlan) -> Option<u64> {
        None
    }
}

/// All operators.
pub type Operators = Arc<[Arc<dyn ToSegments>]>;

/// Facts about a source's rows, known before the first row is read.
#[derive(Debug, Clone)]
pub struct SourceFacts {
    /// Type, width, base and dictionary of each column, as far as they are proven.
    pub columns: Vec<ColumnInfo>,
    /// Row count; 0 if unknown.
    pub rows: u64,
    /// Dictionaries that are complete before the run begins, by column.
    pub dictionaries: HashMap<usize, SharedDictionary>,
}

/// Source of a segment's rows.
pub trait Source: Debug + Send + Sync {
    /// Opens it for one attempt.
    ///
    /// # Errors
    /// Why it cannot be read again.
    fn open<'a>(&'a self, attempt: Opening<'a>) -> BoxFuture<'a, Result<Box<dyn SourceRun>, Failure>>;
}

/// Parameters for opening a source.
pub struct Opening<'a> {
    pub context: &'a Arc<RunContext>,
    /// Columns for which an expression needs a dictionary, however many values they have.
    pub needed: HashSet<usize>,
    /// Rows leave as soon as their extent is processed: extents should be small.
    pub streams_out: bool,
    /// Memory is short: whole columns are not read.
    pub piecewise: bool,
}

/// A source in one attempt.
pub trait SourceRun: Send + Sync {
    /// Facts about its columns; `define` numbers the dictionary of a string column. If `wide`, statistics are ignored,
    /// because values have left their ranges before.
    fn facts(&self, wide: bool, define: &mut dyn FnMut(usize, DataType) -> DictionaryId) -> SourceFacts;

    /// String columns without a dictionary, if that is decided; otherwise runs learn which columns are better off
    /// without one.
    fn texts(&self) -> Option<HashSet<usize>> {
        None
    }

    /// Number of distinct values of a column, if known.
    fn distinct(&self, _column: usize) -> Option<u64> {
        None
    }

    /// Stamp of its facts: sources with equal stamps have equal facts, and share what is prepared for one of them.
    fn stamp(&self) -> u64 {
        0
    }

    /// True if rows are read during the run, and no join's filter for them is still pending.
    fn feeds_freely(&self) -> bool {
        false
    }

    /// A lookup table over the dictionary of column `column`, if it stays on the device beside the column. Otherwise
    /// the run uploads its own.
    ///
    /// # Errors
    /// The device's.
    fn lookup(
        &self,
        _column: usize,
        _table: &HostTable<'_>,
        _context: &RunContext,
        _stream: &Stream,
    ) -> Result<Option<LookupInput>, Failure> {
        Ok(None)
    }

    /// Feeds all rows to segment `to`, as source `number`, from any number of streams. A repeated call feeds them
    /// again.
    fn extents<'a>(&'a self, number: usize, to: &'a Arc<SegmentRun>) -> BoxFuture<'a, Result<(), Failure>>;
}

/// One step between a segment's source and its sink.
pub trait Stage: Debug + Send + Sync {
    /// Adds the stage to the piece that is being lowered.
    ///
    /// # Errors
    /// Why it has no device form over these columns.
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason>;

    /// Takes the rows of a cut that this stage has made to the next piece: each becomes as many rows as the cut's
    /// counts say, unless the stage has another way.
    fn cross<'a>(&'a self, rows: CutRows<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        rows.expand().boxed()
    }

    /// The segment in whose build side the stage looks rows up.
    fn build(&self) -> Option<usize> {
        None
    }

    /// True when it marks the rows of the build side that have a match.
    fn marks_build_rows(&self) -> bool {
        false
    }

    /// True if rows that passed the stage leave together, at the end: the CPU cannot continue from a single batch.
    fn leaves_with_others(&self) -> bool {
        false
    }

    /// The columns that the stage selects, if it does nothing else.
    fn selection(&self) -> Option<Vec<usize>> {
        None
    }

    /// Applies the stage to rows on the CPU, which continues there if the device fails while rows stream out. A stage
    /// that is never alone between a source and a result calls [`never_alone`].
    ///
    /// # Errors
    /// DataFusion's, as the CPU node has them.
    fn on_cpu(&self, batch: &RecordBatch) -> datafusion::error::Result<RecordBatch>;
}

/// Answer of [`Stage::on_cpu`] for a stage that never runs there: it looks rows up, or reads a sink's output.
///
/// # Errors
/// An internal one, always.
pub fn never_alone(stage: &dyn Debug) -> datafusion::error::Result<RecordBatch> {
    internal_err!("{stage:?} does not work on one batch at a time")
}

/// Destination of a segment's rows.
pub trait Sink: Debug + Send + Sync {
    /// Ends the last piece.
    ///
    /// # Errors
    /// Why the sink has no device form over these columns.
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason>;

    /// The state of one run.
    fn begin(&self) -> Box<dyn SinkRun>;

    /// True if its rows are ordered.
    fn sorts(&self) -> bool {
        false
    }

    /// True if its rows may leave the program as they are produced.
    fn passes_rows_on(&self) -> bool {
        false
    }

    /// Number of columns that are written only if something reads them.
    fn columns_on_demand(&self) -> Option<usize> {
        None
    }

    /// Common columns of several inputs, each the result of such a sink.
    fn common_columns(&self, _inputs: &[Vec<ColumnInfo>], _dictionaries: &mut Dictionaries) -> Option<Vec<ColumnInfo>> {
        None
    }

    /// For a building sink: the columns that its keys read.
    ///
    /// # Errors
    /// Why the keys have no device form.
    fn key_columns(
        &self,
        _form: &BuildForm,
        _columns: &[ColumnInfo],
        _dictionaries: &mut Dictionaries,
    ) -> Result<Vec<u32>, Reason> {
        Ok(vec![])
    }

    /// For a building sink: true if its keys may be processed in parts, one after the other.
    fn may_slice(&self, _keys: &[KeyForm]) -> bool {
        false
    }

    /// True if its groups may be computed in parts of their keys, with one pass over the input for each.
    fn may_take_passes(&self) -> bool {
        false
    }
}

/// Memory of a sink that shrinks if its groups are computed in parts of their keys.
pub struct TableSize {
    pub bytes: usize,
}

/// A sink during a run.
pub trait SinkRun: Send + Sync {
    /// Consumes the rows of an extent that reach the sink. If memory runs out, the call has no effect.
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>>;

    /// Ends a pass over the source.
    fn end_pass<'a>(&'a self, _segment: &'a SegmentRun, _stream: &'a Stream) -> BoxFuture<'a, Result<(), Failure>> {
        ready(Ok(())).boxed()
    }

    /// The segment's result; `parts` are those it has kept.
    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        parts: Vec<Kept>,
        _stream: &'a Stream,
    ) -> BoxFuture<'a, Result<SegmentResult, Failure>> {
        ready(segment.result(parts)).boxed()
    }

    /// Number of further rows that suffice.
    fn rows_sought(&self, _segment: &SegmentRun) -> u64 {
        u64::MAX
    }

    /// The sink's own lookup table, for a launch.
    fn lookup(&self, table: &LookupTable, _segment: &SegmentRun, _stream: &Stream) -> Result<LookupInput, Failure> {
        Err(EngineError::internal(format!("a sink without the table {table:?}")).into())
    }

    /// Size of the table that could be split by parts of its keys, after memory has run out.
    fn may_cut(&self, _segment: &SegmentRun) -> Option<TableSize> {
        None
    }
}
