//! A limit as a sink: dense columns, of which its run keeps the rows between offset and limit.

use crate::error::reason::Reason;
use crate::operator::limit::run::LimitRun;
use crate::program::contract::{Sink, SinkRun};
use crate::program::lower::SegmentLowering;
use crate::program::piece::LoweredSink;

/// Sink of dense columns, without the first `skip` rows, and with at most `fetch` others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitSink {
    pub skip: usize,
    pub fetch: Option<usize>,
}

impl Sink for LimitSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (nodes, outputs) = segment.outputs()?;
        Ok(LoweredSink::new(segment.write(nodes), outputs))
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(LimitRun::new(*self))
    }
}
