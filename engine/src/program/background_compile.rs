//! Compiles pipelines concurrently with the run, before they are requested.
//!
//!   attempt begins   every segment that reads an upload and probes nothing        one module
//!   pass begins      the segment whose builds are done, while its rows are read   one module
//!   first extent     the segment that reads this one's result                      one module
//!
//! Guess   a pipeline's shape may depend on values that were not read yet, for example on the size of a dictionary. A
//!         wrong guess is unused, and the right pipeline is compiled on request. Nothing depends on a guess.
//! Waits   a request for a pipeline that is being compiled waits for it.

use std::sync::Arc;

use millpond_kernels::codegen::ir::PipelineSpec;

use crate::profile;
use crate::profile::step::PREPARE;
use crate::program::run::Run;
use crate::program::segment_run::{PreparedSegment, SegmentRun, SegmentStart};
use crate::program::segments::Origin;

impl Run {
    /// Starts to compile the segments that depend on no other segment.
    pub fn compile_ahead(self: &Arc<Self>) {
        let mut specs = Vec::new();
        for (index, segment) in self.prepared.program.segments.iter().enumerate() {
            if let Origin::Source(upload) = &segment.origin
                && self.prepared.program.probed(index).next().is_none()
            {
                let columns = self.prepared.sources[*upload].columns.clone();
                let alone = SegmentRun::new(self, SegmentStart::over(index, columns));
                specs.extend(alone.guess());
            }
        }
        self.compile(specs);
    }

    /// Starts to compile the segments that read only the result of segment `index`, which is known now.
    pub fn compile_after(self: &Arc<Self>, index: usize, prepared: &PreparedSegment) {
        let mut specs = Vec::new();
        for (next, segment) in self.prepared.program.segments.iter().enumerate() {
            let alone = matches!(&segment.origin, Origin::Segments(from) if from[..] == [index]);
            // For a source that is read in parts, the first part is enough for a guess.
            let is_known = self.prepared.has_shape(next);
            if !alone || is_known || self.prepared.program.probed(next).next().is_some() {
                continue;
            }
            let mut columns = prepared.shape.lowered.outputs.clone();
            self.bounded(&mut columns);
            let produced = Some(Arc::clone(&prepared.shape.lowered.details));
            let reader = SegmentRun::new(self, SegmentStart { produced, ..SegmentStart::over(next, columns) });
            specs.extend(reader.guess());
        }
        self.compile(specs);
    }

    fn compile(&self, specs: Vec<PipelineSpec>) {
        if specs.is_empty() {
            return;
        }
        let pipelines = Arc::clone(&self.context.engine.pipelines);
        // An error of a pipeline surfaces when the pipeline is requested.
        let compile = move || pipelines.prepare(&specs);
        tokio::task::spawn_blocking(profile::beside_call("compiler", PREPARE, compile));
    }
}

impl SegmentRun {
    /// Starts to compile this segment, whose builds are complete.
    pub fn compile_ahead(&self) {
        if self.run.prepared.program.probed(self.index).next().is_some() {
            self.run.compile(self.guess());
        }
    }

    /// Pipelines that this segment will probably request; empty if unknown.
    fn guess(&self) -> Vec<PipelineSpec> {
        if self.run.prepared.has_compiled(self.index) {
            // An earlier run has compiled it, most likely in the same shape.
            return Vec::new();
        }
        match self.shape_of(0) {
            Ok(shape) => shape.lowered.pieces().map(|piece| piece.spec.clone()).collect(),
            Err(_) => Vec::new(),
        }
    }
}
