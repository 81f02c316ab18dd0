//! Finds the hits in an extent's texts, or their sentences, or their words.
//!
//!   extent ─► payload, text ─ count ─► [2, 0, 1] ─ running sums ─► 3 hits
//!                                                      └─ write ─► row, sentence, word, value ─ fetch ─► payload + hit
//!
//! NULL     has no hits.
//! Order    of the rows, and of each row's hits, if extents are processed one after the other.
//! Memory   the extent's rows, and for up to 16,777,216 hits at a time 28 bytes each, and the output columns.
//! Waits    for the number of hits of each extent, in a first run.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::{
    ColumnSpec, Extents, Graph, GraphError, LookupSpec, Physical, PipelineSpec, Repr, SinkSpec, Ty,
};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, LookupInput};
use millpond_kernels::sentences::{self, Hits, Texts, What};
use millpond_memory::{DeviceView, Reservation, Stream};

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::operator::unnest::found::{Found, Items, WordHits};
use crate::operator::unnest::lower::{LoweredHits, codes};
use crate::options::MAX_BATCH_ROWS;
use crate::program::answers::{Question, rows_of_each};
use crate::program::contract::SinkRun;
use crate::program::expand::running_sums;
use crate::program::extent::{Extent, ExtentRest};
use crate::program::kept_ptx::Generated;
use crate::program::part::{Kept, Part};
use crate::program::run::Run;

/// Run with the lexicon on the device, from the first extent on.
pub(crate) struct HitsRun {
    found: Found,
    lexicon: Mutex<Option<(DeviceView, Reservation)>>,
}

impl HitsRun {
    pub fn new(found: Found) -> Self {
        Self { found, lexicon: Mutex::new(None) }
    }

    fn lexicon(&self, hits: &WordHits, run: &Run, stream: &Stream) -> Result<DeviceView, Failure> {
        let mut lexicon = self.lexicon.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, _)) = lexicon.as_ref() {
            return Ok(known.clone());
        }
        let bytes = hits.lexicon.bytes();
        let (buffer, promise) = run.context.memory.take(bytes.len(), &run.context.tags.joins, stream)?;
        buffer.upload_from(bytes, stream, &run.context.engine.pinned)?;
        let uploaded = buffer.as_view().clone();
        *lexicon = Some((uploaded.clone(), promise));
        Ok(uploaded)
    }

    /// Repeats the rows of `part` for each of their hits.
    async fn hits(&self, part: &Part, rest: ExtentRest<'_>) -> Result<Vec<Kept>, Failure> {
        let ExtentRest { segment, stream, .. } = rest;
        let (run, images) = (&segment.run, &segment.run.context.engine.images);
        let rows = part.all_columns()?.rows;
        let bound = rows.upper_bound();
        let (Some(text), false) = (part.layout.columns.last(), bound == 0) else { return Ok(vec![]) };
        let views = part.buffer.view(text.values.clone())?;
        let uploaded;
        let what = match &self.found.items {
            Items::Hits(hits) => {
                uploaded = self.lexicon(hits, run, stream)?;
                What::Hits { lexicon: &hits.lexicon, uploaded: &uploaded }
            }
            Items::Sentences => What::Sentences,
            Items::Words => What::Words,
        };
        let reached = run.reached.all();
        let texts = Texts { views: &views, rows: &rows, reached: &reached, what, ends: self.found.ends };
        let (counts, _promise) = run.context.memory.take(bound as usize * 4, &run.context.tags.joins, stream)?;
        sentences::count(images, texts, counts.as_view(), stream)?;
        let sums = running_sums(&run.context, counts.as_view(), &rows, bound, stream)?;
        // A count that takes several launches is awaited.
        let most = (MAX_BATCH_ROWS as u64).min(run.extent_rows() as u64);
        let (site, control) = ((segment.index, Question::Hits), [sums.control()?]);
        let (words, assumed) = run.read_back_below(site, most, &control, rows_of_each, stream).await?;
        let all: u64 = words.iter().sum();
        let mut kept = vec![];
        for first in (0..all).step_by(MAX_BATCH_ROWS) {
            let room = (all - first).min(MAX_BATCH_ROWS as u64);
            let (_, bytes) = sentences::hits_layout(room);
            let (buffer, _promise) = run.context.memory.take(bytes, &run.context.tags.joins, stream)?;
            let hits = Hits::within(buffer.as_view(), room)?;
            sentences::write(images, texts, &sums.sums, first, room, &hits, stream)?;
            let rows = match assumed {
                true => ExtentRows::OnDevice { control: sums.control()?, upper_bound: room },
                false => ExtentRows::Known(room),
            };
            let part = with_payload(part, &hits, rows, rest)?;
            kept.push(Kept::spillable(part, &run.context.engine)?);
        }
        Ok(kept)
    }
}

impl SinkRun for HitsRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let rest = extent.rest();
            let (part, made) = extent.materialise(false).await?;
            let kept = self.hits(&part, rest).await?;
            kept.into_iter().for_each(|part| rest.segment.keep(part));
            rest.segment.keep_new_texts(made);
            Ok(())
        }
        .boxed()
    }
}

/// The payload of each hit's row, and the columns of the hit, as dense columns.
fn with_payload(part: &Part, hits: &Hits, rows: ExtentRows, rest: ExtentRest<'_>) -> Result<Part, Failure> {
    let ExtentRest { segment, prepared, stream } = rest;
    let (run, lowered) = (&segment.run, &prepared.shape.lowered);
    let details = lowered.details::<LoweredHits>();
    let details = details.ok_or_else(|| EngineError::internal("hits are lowered as such"))?;
    let payload = &part.layout.columns[..part.layout.columns.len() - 1];
    let specs = part.layout.column_specs()[..payload.len()].to_vec();
    let mut tables = Vec::with_capacity(payload.len());
    for column in payload {
        let validity = column.validity.clone().map(|range| part.buffer.view(range)).transpose()?;
        tables.push(LookupInput { values: part.buffer.view(column.values.clone())?, validity });
    }
    let column = |values: &DeviceView| Some(ColumnInput { values: values.clone(), validity: None, base: 0 });
    let columns = [&hits.rows, &hits.sentences, &hits.words, &hits.says].map(column).to_vec();
    let extents = [ExtentInput { rows, columns }];
    let spec = fetching(&specs, details).map_err(|error| Failure::trouble(error.to_string()))?;
    let pipeline = run.context.pipeline(&spec)?;
    run.keep_ptx(Generated::Unnest, [&pipeline]);
    let layout = pipeline.output_layout(&extents);
    let (buffer, promise) = run.output(&layout, true, stream)?;
    let reached = run.reached.all();
    let input = Input { extents: &extents, lookups: &tables, texts: &reached, ..Input::default() };
    pipeline.materialise(input, &buffer, &layout, stream)?;
    run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
    Ok(Part::new(&buffer, layout, vec![]).arranged(&lowered.outputs, &lowered.at).promised(promise))
}

/// Spec for payload of these forms by row number, followed by the requested columns of the hit.
fn fetching(payload: &[ColumnSpec], hits: &LoweredHits) -> Result<PipelineSpec, GraphError> {
    let mut graph = Graph::new();
    let plain = |ty: Ty| ColumnSpec { physical: Physical::of(ty), has_base: false, ty };
    let columns =
        vec![plain(Ty::new(Repr::U32)), plain(Ty::new(Repr::Text)), plain(codes(hits.words)), plain(codes(hits.says))];
    let row = graph.column(0, columns[0].ty);
    let mut outputs = vec![];
    for (table, column) in payload.iter().enumerate() {
        outputs.push(graph.lookup(row, table as u32, column.ty)?);
    }
    for field in &hits.fields {
        let index = field.column();
        outputs.push(graph.column(index, columns[index as usize].ty));
    }
    Ok(PipelineSpec {
        extents: Extents::One,
        columns,
        literals: vec![],
        lookups: payload.iter().map(|column| LookupSpec { physical: column.physical, ty: column.ty }).collect(),
        tables: vec![],
        expanded: false,
        graph,
        filters: vec![],
        sink: SinkSpec::Materialise { outputs },
    })
}
