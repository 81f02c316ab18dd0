//! Pipelines that are compiled beside the run, before it asks for them.
//!
//!   attempt begins   every segment that reads an upload and probes nothing        one module
//!   pass begins      the segment whose builds are there, while its rows are read   one module
//!   first extent     the segment that reads this one's result                      one module
//!
//! Guess   a pipeline's shape may depend on values that were not read yet, on the size of a dictionary say. Then the guess is
//!         of no use, and what is needed is compiled when it is asked for. Nothing depends on a guess.
//! Waits   whoever asks for a pipeline that is under way waits for it.

use std::collections::HashMap;
use std::sync::Arc;

use millpond_kernels::codegen::ir::PipelineSpec;

use crate::program::extents::{Active, Prepared};
use crate::program::lower::LoweredSegment;
use crate::program::run::Run;
use crate::program::segments::Source;

impl LoweredSegment {
    /// What its pieces compile to, in order.
    fn specs(&self) -> impl Iterator<Item = &PipelineSpec> {
        let of_cuts = self.cuts.iter().flat_map(|cut| {
            let marks = cut.build_marks.as_ref().map(|(piece, _)| piece);
            [Some(&cut.rows), cut.marks.as_ref(), marks, cut.recount.as_ref()].into_iter().flatten()
        });
        of_cuts.chain([&self.last]).map(|piece| &piece.spec)
    }
}

impl Run {
    /// Begins to compile what depends on no other segment.
    pub fn compile_ahead(self: &Arc<Self>) {
        let mut specs = Vec::new();
        for (index, segment) in self.program.segments.iter().enumerate() {
            if let Source::Upload(upload) = &segment.source
                && self.program.probed(index).next().is_none()
            {
                let columns = self.uploads[*upload].columns.clone();
                let passes = self.passes.get(&index).copied().unwrap_or(1);
                let alone = Active::new(self, index, columns, None, None, HashMap::new(), vec![], passes, 0);
                specs.extend(alone.guess());
            }
        }
        self.compile(specs);
    }

    /// Begins to compile the segments that read what a segment gives, now that this is known.
    pub fn compile_after(self: &Arc<Self>, index: usize, prepared: &Prepared) {
        let mut specs = Vec::new();
        for (next, segment) in self.program.segments.iter().enumerate() {
            let alone = matches!(&segment.source, Source::Segments(from) if from[..] == [index]);
            if !alone || self.program.probed(next).next().is_some() {
                continue;
            }
            let mut columns = prepared.lowered.outputs.clone();
            self.bounded(&mut columns);
            let passes = self.passes.get(&next).copied().unwrap_or(1);
            let finish = prepared.lowered.aggregate.clone();
            let reader = Active::new(self, next, columns, finish, None, HashMap::new(), vec![], passes, 0);
            specs.extend(reader.guess());
        }
        self.compile(specs);
    }

    fn compile(&self, specs: Vec<PipelineSpec>) {
        if specs.is_empty() {
            return;
        }
        let pipelines = Arc::clone(&self.engine.pipelines);
        // Whoever asks for a pipeline that has an error meets the error there.
        tokio::task::spawn_blocking(move || pipelines.prepare(&specs));
    }
}

impl Active {
    /// Begins to compile this segment, whose builds are there.
    pub fn compile_ahead(&self) {
        if self.run.program.probed(self.index).next().is_some() {
            self.run.compile(self.guess());
        }
    }

    /// What it will ask for, as far as can be told; nothing if it cannot be.
    fn guess(&self) -> Vec<PipelineSpec> {
        match self.shape_of(0) {
            Ok((lowered, _)) => lowered.specs().cloned().collect(),
            Err(_) => Vec::new(),
        }
    }
}
