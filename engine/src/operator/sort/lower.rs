//! A sort as a sink: dense columns, the keys among them, and for top-k a bar for the rows.

use datafusion::physical_expr::LexOrdering;

use crate::column::DictionaryId;
use crate::error::reason::Reason;
use crate::operator::sort::run::SortRun;
use crate::operator::sort::top::{self, Best};
use crate::program::contract::{Sink, SinkRun};
use crate::program::lower::SegmentLowering;
use crate::program::piece::LoweredSink;

use std::sync::Arc;

/// A sort key among the materialised outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortedBy {
    pub output: usize,
    /// For strings: the dictionary of the codes. Rows sort by the rank of a code, once all rows are read.
    pub dictionary: Option<DictionaryId>,
    pub descending: bool,
    pub nulls_first: bool,
}

/// Sink of dense columns and sort keys; the sorted columns are another segment's input, or the result.
#[derive(Debug, Clone)]
pub(crate) struct SortSink {
    pub order: LexOrdering,
    pub fetch: Option<usize>,
}

/// Details for a sort's run.
#[derive(Debug, Clone)]
pub(crate) struct LoweredSort {
    pub keys: Vec<SortedBy>,
    /// For top-k: the filter derived from the best rows so far.
    pub best: Option<Best>,
}

impl Sink for SortSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (mut nodes, outputs) = segment.outputs()?;
        let mut keys = Vec::new();
        for key in self.order.iter() {
            let (lowering, scope) = segment.expressions();
            let value = lowering.lower(&key.expr, scope)?;
            let dictionary = value.dictionary;
            // A key that is an output already is not written twice.
            let output = nodes.iter().position(|node| *node == value.node).unwrap_or_else(|| {
                nodes.push(value.node);
                nodes.len() - 1
            });
            let (descending, nulls_first) = (key.options.descending, key.options.nulls_first);
            keys.push(SortedBy { output, dictionary, descending, nulls_first });
        }
        let mut best = None;
        if segment.marked_row.is_none() {
            let hint = segment.input.rows_hint;
            let piece = segment.piece();
            best = top::with_bar(&mut piece.lowering, &mut piece.filters, &nodes, &keys, self.fetch, hint);
        }
        let details = Arc::new(LoweredSort { keys, best });
        Ok(LoweredSink { details, ..LoweredSink::new(segment.write(nodes), outputs) })
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(SortRun::new(self.fetch))
    }

    fn sorts(&self) -> bool {
        true
    }
}
