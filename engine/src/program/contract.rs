//! What a program asks of an operator.
//!
//!   plan ─ Cut ─► segments   source → stages → sink
//!                              │        │        └─ Sink::lower ──► SinkSpec, outputs      Sink::begin ──► SinkRun
//!                              │        └─ Stage::lower: adds itself to the piece of a kernel, or cuts it in two
//!                              └─ fed rows, what other segments gave, or the rows of a build side
//!
//! A program knows no operator by name. One that brings a stage or a sink of its own is one folder and one line of the registry.
//!
//! Waits    stages never. A run of a sink waits where its own header says so.
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
use crate::expr::{Dictionaries, LookupTable};
use crate::program::build_side::{BuildForm, KeyForm};
use crate::program::context::RunContext;
use crate::program::extents::{Extent, SegmentRun};
use crate::program::failure::Failure;
use crate::program::given::Given;
use crate::program::lower::{LoweredSink, SegmentLowering};
use crate::program::part::Kept;
use crate::program::segments::{Open, Segments};
use crate::program::tables::HostTable;
use crate::reason::Reason;

/// How the device nodes of an operator become segments of a program.
pub trait Cut: Debug + Send + Sync {
    /// The segments of `node`, the last of them open; `None` if the node is another operator's. At the `top` of a program an
    /// operator tells [`Segments`] which rows leave, and need not stop them itself.
    fn cut(
        &self,
        _node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        _into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        None
    }

    /// Whether two nodes of this operator compute the same of equal inputs; `None` if they are another operator's.
    fn computes_same(&self, _a: &dyn ExecutionPlan, _b: &dyn ExecutionPlan) -> Option<bool> {
        None
    }

    /// Whether two nodes of this operator read the same rows from outside the device. Filters of the numbers in `own` say no more
    /// than which rows a join of the subtree drops anyway. `None` if they are no such nodes.
    fn reads_same(&self, _a: &dyn ExecutionPlan, _b: &dyn ExecutionPlan, _own: &HashSet<u64>) -> Option<bool> {
        None
    }

    /// The filter that a node fills in for scans of its own subtree while it runs, by its expression's number.
    fn filter_of_scans(&self, _node: &dyn ExecutionPlan) -> Option<u64> {
        None
    }
}

/// All operators.
pub type Operators = Arc<[Arc<dyn Cut>]>;

/// What is known of a source's rows before the first of them is read.
#[derive(Debug, Clone)]
pub struct SourceFacts {
    /// Type, width, base and dictionary of each column, as far as they are proven.
    pub columns: Vec<ColumnInfo>,
    /// Rows, as far as they are known; 0 when they are not.
    pub rows: u64,
    /// Dictionaries that are complete before the run begins, by column.
    pub dictionaries: HashMap<usize, SharedDictionary>,
}

/// Where rows come from.
pub trait Source: Debug + Send + Sync {
    /// Begins to read it for one attempt.
    ///
    /// # Errors
    /// Why it cannot be read again.
    fn open<'a>(&'a self, attempt: Opening<'a>) -> BoxFuture<'a, Result<Box<dyn SourceRun>, Failure>>;
}

/// For what a source is opened.
pub struct Opening<'a> {
    pub context: &'a Arc<RunContext>,
    /// Columns for which an expression needs a dictionary, however many values they have.
    pub needed: HashSet<usize>,
    /// The rows of an extent leave as soon as they are there: extents should not be large.
    pub streams_out: bool,
    /// Memory is short: no whole columns.
    pub piecewise: bool,
}

/// A source in one attempt.
pub trait SourceRun: Send + Sync {
    /// What is known of its columns; `define` numbers the dictionary of a column of strings. Nothing but types is believed where
    /// values have left their ranges before: then they are `wide`.
    fn facts(&self, wide: bool, define: &mut dyn FnMut(usize, DataType) -> DictionaryId) -> SourceFacts;

    /// Its string columns without a dictionary, where that is settled; otherwise runs learn which are better off without one.
    fn texts(&self) -> Option<HashSet<usize>> {
        None
    }

    /// How many different values a column has, if that is known.
    fn distinct(&self, _column: usize) -> Option<u64> {
        None
    }

    /// What is prepared for one source serves any other with the same stamp in its place: their facts are the same.
    fn stamp(&self) -> u64 {
        0
    }

    /// True for rows that are read while the run goes on, where no join has still to tell which of them it will drop.
    fn feeds_freely(&self) -> bool {
        false
    }

    /// A lookup table over the dictionary of column `column`, where it stays on the device beside the column. Otherwise the run uploads
    /// one of its own.
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

    /// Gives all rows to segment `to`, of which it is source `number`, from any number of streams. Asked again it gives them again.
    fn extents<'a>(&'a self, number: usize, to: &'a Arc<SegmentRun>) -> BoxFuture<'a, Result<(), Failure>>;
}

/// One step between a segment's source and its sink.
pub trait Stage: Debug + Send + Sync {
    /// Adds the stage to the piece that is being lowered.
    ///
    /// # Errors
    /// Why it has no device form over these columns.
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason>;

    /// The segment in whose build side the stage looks rows up.
    fn build(&self) -> Option<usize> {
        None
    }

    /// True when it marks the rows of the build side that have a match.
    fn marks_build_rows(&self) -> bool {
        false
    }

    /// True when rows that have been through it leave together with all others, at the end: the CPU cannot go on from one batch.
    fn leaves_with_others(&self) -> bool {
        false
    }

    /// The columns that the stage chooses, if choosing is all it does.
    fn selection(&self) -> Option<Vec<usize>> {
        None
    }

    /// The same over rows that are on the CPU: where rows leave as they come and the device fails, they go on there. A stage that is
    /// never alone between a source and a result says [`never_alone`].
    ///
    /// # Errors
    /// DataFusion's, as the CPU node has them.
    fn on_cpu(&self, batch: &RecordBatch) -> datafusion::error::Result<RecordBatch>;
}

/// What a stage answers for rows on the CPU that it never meets there: it looks rows up, or begins with what a sink gave.
///
/// # Errors
/// An internal one, always.
pub fn never_alone(stage: &dyn Debug) -> datafusion::error::Result<RecordBatch> {
    internal_err!("{stage:?} does not work on one batch at a time")
}

/// Where a segment's rows go.
pub trait Sink: Debug + Send + Sync {
    /// Ends the last piece.
    ///
    /// # Errors
    /// Why the sink has no device form over these columns.
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason>;

    /// The state of one run.
    fn begin(&self) -> Box<dyn SinkRun>;

    /// True when its rows are in an order.
    fn sorts(&self) -> bool {
        false
    }

    /// True when its rows may leave the program as they come.
    fn passes_rows_on(&self) -> bool {
        false
    }

    /// How many columns it writes that are left out where nothing reads them.
    fn columns_on_demand(&self) -> Option<usize> {
        None
    }

    /// The columns that all of several inputs, each the result of such a sink, have in common.
    fn common_columns(&self, _inputs: &[Vec<ColumnInfo>], _dictionaries: &mut Dictionaries) -> Option<Vec<ColumnInfo>> {
        None
    }

    /// Of a sink that builds: the columns that its keys read.
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

    /// Of a sink that builds: true when its keys may be taken in parts, one after the other.
    fn may_slice(&self, _keys: &[KeyForm]) -> bool {
        false
    }

    /// True when its groups may be found in parts of their keys, one pass over the input for each.
    fn may_take_passes(&self) -> bool {
        false
    }
}

/// Memory that a sink could do with less of, if its groups were found in parts of their keys.
pub struct TableSize {
    pub bytes: usize,
}

/// A sink while rows go into it.
pub trait SinkRun: Send + Sync {
    /// Takes the rows of an extent that reach the sink. Where memory ran out, nothing has happened.
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>>;

    /// A pass over the source has ended.
    fn end_pass<'a>(&'a self, _segment: &'a SegmentRun, _stream: &'a Stream) -> BoxFuture<'a, Result<(), Failure>> {
        ready(Ok(())).boxed()
    }

    /// What the segment gives; `parts` are those it has kept.
    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        parts: Vec<Kept>,
        _stream: &'a Stream,
    ) -> BoxFuture<'a, Result<Given, Failure>> {
        ready(segment.given(parts)).boxed()
    }

    /// Rows that would be enough.
    fn rows_sought(&self, _segment: &SegmentRun) -> u64 {
        u64::MAX
    }

    /// A lookup table of the sink's own, for a launch.
    fn lookup(&self, table: &LookupTable, _segment: &SegmentRun, _stream: &Stream) -> Result<LookupInput, Failure> {
        Err(EngineError::internal(format!("a sink without the table {table:?}")).into())
    }

    /// The table that could be cut, where memory has run out.
    fn may_cut(&self, _segment: &SegmentRun) -> Option<TableSize> {
        None
    }
}
