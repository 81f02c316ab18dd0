//! Build sides: the rows of a segment in one place, and a table from their keys.
//!
//!   parts ─► how many rows? ─► one part, no larger than they take ─► extremes of the keys ─► table ─► are keys unique? NULL?
//!     ─► lists, where they are not and each row is asked for ─► probes are lowered
//!
//! Kinds    by bytes, see [`table_spec`]. What the choice relies on is checked while the table is built: keys that were not
//!          unique get lists, or rows where there were but bits; one outside its range makes the table a hashed one.
//! Waits    for the number of rows; for the keys' extremes where a table without their ranges would be a hashed one, or a scan wants
//!          to know; and for what the table says of its keys, which decides the shape of the pipelines that probe it.
//! Memory   the rows, the table, its lists, and while they are made 4 bytes of scratch a row.

use std::sync::{Arc, Mutex, PoisonError};

use millpond_kernels::codegen::ir::{
    ErrorCode, Extents, Graph, PipelineSpec, Repr, SinkSpec, TableKind, TableSpec, Ty,
};
use millpond_kernels::join::{Expansion, TableFacts, TableInput, TableLayout, list_rows, mark_bits, mark_bytes};
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, LookupInput};
use millpond_kernels::scan;
use millpond_memory::{DeviceBuffer, DeviceView, HostKind, Reservation, Resident, SpillHandle, Stream};

use crate::column::ColumnInfo;
use crate::error::EngineError;
use crate::expr::LookupKind;
use crate::operator::join::DeviceJoinExec;
use crate::operator::join::probe::{Asked, BuildForm, KeyForm};
use crate::program::failure::{Failure, control_words, flagged};
use crate::program::lower::{TableRoom, column_spec, lower_table, table_spec};
use crate::program::part::{Kept, Part};
use crate::program::run::{Given, Run, Uploaded};
use crate::program::segments::Source;
use crate::program::texts::Made;

/// What a building segment has built: rows and table, on the device or, while nobody probes them, in host memory.
pub(crate) struct Build {
    place: Place,
    shape: Arc<Shape>,
}

enum Place {
    Device { views: Vec<DeviceView>, _promise: Reservation },
    Anywhere(SpillHandle),
}

/// A table, and what it says of its keys.
struct Filled {
    table: DeviceBuffer,
    layout: TableLayout,
    /// The leader of each row, where there may be lists.
    leaders: Option<(DeviceBuffer, Reservation)>,
    facts: TableFacts,
    promise: Reservation,
}

/// All that is known of a build side but where it lies.
struct Shape {
    /// The rows; `None` if there are none.
    part: Option<(OutputLayout, Vec<ColumnInfo>, Vec<Option<usize>>)>,
    /// How many there are.
    rows: u64,
    table: TableLayout,
    /// The table has lists.
    lists: bool,
    form: BuildForm,
    /// Which rows have found a match, once a full join asks.
    marks: Mutex<Option<(DeviceBuffer, Reservation)>>,
}

/// A build side on the device, where it stays as long as this lives.
pub(crate) struct Built {
    /// The rows; `None` if there are none.
    part: Option<Part>,
    pub table: TableInput,
    shape: Arc<Shape>,
    _resident: Option<Resident>,
}

impl Build {
    /// Brings the build side back to the device, if it had left.
    pub fn on_device(&self, stream: &Stream) -> Result<Built, Failure> {
        let (mut views, resident) = match &self.place {
            Place::Device { views, .. } => (views.clone(), None),
            Place::Anywhere(handle) => {
                let resident = handle.get(stream)?;
                (resident.to_vec(), Some(resident))
            }
        };
        let part = self.shape.part.clone().zip(self.shape.part.is_some().then(|| views.pop()).flatten());
        let part = part.map(|((layout, outputs, at), view)| Part::of(view, layout, outputs, at));
        let lists = if self.shape.lists { views.pop() } else { None };
        let table = views.pop().ok_or_else(|| EngineError::internal("a build side has a table"))?;
        let table = TableInput { table, layout: self.shape.table.clone(), lists };
        Ok(Built { part, table, shape: Arc::clone(&self.shape), _resident: resident })
    }
}

impl Built {
    pub fn form(&self) -> &BuildForm {
        &self.shape.form
    }

    /// Column `index` as a lookup table by row number.
    pub fn column(&self, index: usize) -> Result<LookupInput, Failure> {
        let column = match &self.part {
            Some(part) => part.input(index)?,
            None => {
                // Nothing is ever looked up in it; it needs an address all the same.
                let anything = self.table.table.view(0..64)?;
                let nullable =
                    self.form().columns.get(index).and_then(|column| column.ty().ok()).is_some_and(|ty| ty.nullable);
                Some(ColumnInput { values: anything.clone(), validity: nullable.then_some(anything), base: 0 })
            }
        };
        let column =
            column.ok_or_else(|| EngineError::internal(format!("column {index} of a build side is not there")))?;
        Ok(LookupInput { values: column.values, validity: column.validity })
    }

    /// Bytes of rows and table.
    pub fn bytes(&self) -> usize {
        let lists = if self.shape.lists { self.table.layout.lists_bytes() } else { 0 };
        self.table.layout.bytes + lists + self.part.as_ref().map_or(0, |part| part.layout.bytes)
    }

    /// Upper bound of the rows.
    pub fn rows_bound(&self) -> u64 {
        self.part.as_ref().map_or(0, Part::rows_bound)
    }

    /// All rows as an extent.
    pub fn rows(&self) -> Result<Option<ExtentInput>, Failure> {
        let Some(part) = &self.part else { return Ok(None) };
        let extent = part.as_extent()?;
        Ok(Some(ExtentInput { rows: ExtentRows::Known(self.shape.rows), ..extent }))
    }

    /// The marks of its rows, none set at first; `None` if it has no rows.
    pub fn marks(&self, run: &Run, stream: &Stream) -> Result<Option<DeviceView>, Failure> {
        if self.part.is_none() {
            return Ok(None);
        }
        let mut slot = self.shape.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((marks, _)) = &*slot {
            return Ok(Some(marks.as_view().clone()));
        }
        let bytes = mark_bytes(self.rows_bound());
        let promise = run.promise(bytes)?;
        let marks = DeviceBuffer::zeroed(bytes, &stream.with_scope(&run.tags.joins), &run.engine.pool)?;
        let view = marks.as_view().clone();
        *slot = Some((marks, promise));
        Ok(Some(view))
    }

    /// The bits of the marks, if any row of the probe side has come by.
    pub fn marked(&self) -> Result<Option<DeviceView>, Failure> {
        let slot = self.shape.marks.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(slot.as_ref().map(|(marks, _)| mark_bits(marks.as_view(), self.rows_bound())).transpose()?)
    }
}

/// Running sums over `counts`, and how many rows an expansion by them has.
pub(crate) async fn running_sums(
    run: &Run,
    counts: &DeviceView,
    rows: &ExtentRows,
    bound: u64,
    stream: &Stream,
) -> Result<(Expansion, u64), Failure> {
    let (sums, scratch) = (scan::expansion_bytes(bound) as usize, scan::scratch_bytes(bound) as usize);
    let scoped = stream.with_scope(&run.tags.joins);
    // One allocation: the sums, and what making them takes.
    let start = sums.next_multiple_of(256);
    let _promise = run.promise(start + scratch)?;
    let buffer = DeviceBuffer::new(start + scratch, &scoped, &run.engine.pool)?;
    let (sums, scratch) = (buffer.view(0..sums)?, buffer.view(start..start + scratch)?);
    scan::running_sums(&run.engine.images, counts, rows, &sums, &scratch, stream)?;
    let expansion = Expansion { sums, source_rows: bound, first: 0 };
    let control = expansion.control()?.download_vec(stream, &run.engine.pinned)?.await?;
    let (error, pairs) = control_words(&control)?;
    flagged(error)?;
    Ok((expansion, pairs))
}

impl Run {
    /// Builds the table of segment `index` from the rows it gave.
    pub async fn build(
        &self,
        index: usize,
        join: &DeviceJoinExec,
        given: Given,
        stream: &Stream,
    ) -> Result<Build, Failure> {
        let mut parts = Vec::with_capacity(given.parts.len());
        for part in given.parts {
            parts.push(part.on_device(stream)?);
        }
        let rows = self.count_rows_of(&mut parts, stream).await?;
        parts.retain(|part| part.rows_bound() > 0);
        let part = if parts.is_empty() { None } else { Some(self.joined(parts, true, stream)?) };

        let forms = self.keys.get(&index).ok_or_else(|| EngineError::internal("a build side has keys"))?;
        // Ranges of codes are known better by now than when the keys were planned.
        let mut forms = forms.clone();
        for (form, (expr, _)) in forms.iter_mut().zip(join.on()) {
            form.narrowed(expr, &given.columns);
        }
        let mut keys: Vec<Ty> = forms.iter().map(|form| form.ty).collect();
        let most = (self.engine.pool.limit().as_u64() / 16).min(2 << 30);
        let room = Some(TableRoom { rows, most, probe_bytes: self.probe_bytes(index) });
        let mut asked = Asked::by(join, self.payload.contains(&index));
        let mut spec = table_spec(join, &keys, asked, room);
        let tells_scans = self.tells_scans(index, join);
        let is_addressable = keys.iter().all(|key| key.repr.is_integer() || key.repr == Repr::Bool);
        let mut measured = vec![];
        if let Some(part) = &part
            && (tells_scans || spec.kind == TableKind::Hash && is_addressable)
        {
            measured = self.measure(join, &given.columns, part, stream).await?;
            for one in measured.iter().filter(|one| forms[one.key].is_own()) {
                let (low, high) = one.range.unwrap_or((0, 0));
                let known = keys[one.key].range;
                let range = known.map_or((low, high), |known| (low.max(known.low), high.min(known.high)));
                if range.0 <= range.1 {
                    keys[one.key] = keys[one.key].within(range.0, range.1);
                }
            }
            spec = table_spec(join, &keys, asked, room);
        }
        if tells_scans {
            self.tell_scans(join, part.is_some().then_some(&measured))?;
        }
        let mut filled = self.fill_table(join, &forms, &given.columns, spec.clone(), part.as_ref(), stream).await?;
        if filled.facts.has_duplicates && asked.lists && spec.kind == TableKind::Bitmap {
            // As many matches as rows, after all.
            asked.rows = true;
            spec = table_spec(join, &keys, asked, room);
            drop(filled);
            filled = self.fill_table(join, &forms, &given.columns, spec.clone(), part.as_ref(), stream).await?;
        }
        let is_outside = ErrorCode::from_word(filled.facts.error).is_some_and(|(code, _)| code == ErrorCode::KeyRange);
        if is_outside && spec.kind != TableKind::Hash {
            spec = TableSpec { kind: TableKind::Hash, lists: asked.lists, ..spec };
            drop(filled);
            filled = self.fill_table(join, &forms, &given.columns, spec.clone(), part.as_ref(), stream).await?;
        }
        flagged(filled.facts.error)?;
        let Filled { table, layout, leaders, facts, promise } = filled;
        let mut views = vec![table.as_view().clone()];
        drop(table);
        let mut promises = vec![promise];
        spec.lists &= facts.has_duplicates;
        if let Some((leaders, _promise)) = leaders.filter(|_| spec.lists) {
            promises.push(self.promise(layout.lists_bytes())?);
            let scoped = stream.with_scope(&self.tags.joins);
            let lists = DeviceBuffer::new(layout.lists_bytes(), &scoped, &self.engine.pool)?;
            list_rows(&self.engine.images, &layout, leaders.as_view(), lists.as_view(), stream)?;
            views.push(lists.as_view().clone());
        }
        let lists = spec.lists;
        let form = BuildForm {
            build: index,
            columns: given.columns,
            table: spec,
            keys: forms,
            has_duplicates: facts.has_duplicates,
            has_null_keys: facts.has_null_keys,
            is_empty: rows == 0,
        };
        let part = part.map(|part| {
            views.push(part.buffer);
            promises.extend(part.promise);
            (part.layout, part.outputs, part.at)
        });
        let shape = Shape { part, rows, table: layout, lists, form, marks: Mutex::default() };
        Ok(Build { place: self.waiting(views, promises)?, shape: Arc::new(shape) })
    }

    /// The table of `part`, whose rows are as many as its bound says.
    async fn fill_table(
        &self,
        join: &DeviceJoinExec,
        forms: &[KeyForm],
        columns: &[ColumnInfo],
        spec: TableSpec,
        part: Option<&Part>,
        stream: &Stream,
    ) -> Result<Filled, Failure> {
        let bound = part.map_or(0, Part::rows_bound);
        let layout = TableLayout::new(&spec, bound)?;
        let promise = self.promise(layout.bytes)?;
        let scoped = stream.with_scope(&self.tags.joins);
        if spec.kind == TableKind::Every {
            let table = DeviceBuffer::zeroed(layout.bytes, &scoped, &self.engine.pool)?;
            let facts = TableFacts { error: 0, has_duplicates: bound > 1, has_null_keys: false };
            return Ok(Filled { table, layout, leaders: None, facts, promise });
        }
        let piece = lower_table(join, columns, forms, &spec, &mut self.tables().definitions)?;
        let pipeline = self.pipeline(&piece.spec)?;
        let table = DeviceBuffer::new(layout.bytes, &scoped, &self.engine.pool)?;
        let mut leaders = None;
        if spec.lists {
            let promise = self.promise(layout.scratch_bytes())?;
            leaders = Some((DeviceBuffer::new(layout.scratch_bytes(), &scoped, &self.engine.pool)?, promise));
        }
        let extent = match part {
            Some(part) => part.as_extent()?,
            None => no_rows(&table, &piece.spec)?,
        };
        let mut lookups = Vec::with_capacity(piece.lookups.len());
        for (lookup, spec) in piece.lookups.iter().zip(&piece.spec.lookups) {
            let crate::expr::LookupTable::Dictionary(lookup) = lookup else {
                return Err(EngineError::internal("keys of a build side look into dictionaries only").into());
            };
            let table = self.tables().lookup(lookup, spec, &self.engine, stream)?;
            if lookup.kind == LookupKind::Text {
                self.reached.keep(&table.values, None);
            }
            lookups.push(table);
        }
        let texts = self.reached.by(&piece.spec);
        let input = Input {
            extents: std::slice::from_ref(&extent),
            literals: &piece.literals,
            lookups: &lookups,
            texts: &texts,
            ..Input::default()
        };
        let scratch = leaders.as_ref().map(|(leaders, _)| leaders.as_view());
        let made = self.made(&piece.spec, &input, stream)?;
        let input = Input { arena: made.as_ref().map(Made::view), ..input };
        pipeline.build_table(input, table.as_view(), &layout, scratch, stream)?;
        // The table's views of texts that were made lead there.
        made.into_iter().for_each(Made::stay);
        self.tally.launches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let control = table.view(TableLayout::CONTROL)?.download_vec(stream, &self.engine.pinned)?.await?;
        let facts = TableLayout::facts(&control)?;
        Ok(Filled { table, layout, leaders, facts, promise })
    }

    /// Bytes of the columns that are fed to whoever probes what segment `build` builds, as far as statistics know their rows.
    fn probe_bytes(&self, build: usize) -> u64 {
        let of = |upload: &Uploaded| {
            let read = upload.columns.iter().zip(&upload.used).filter(|(_, used)| **used);
            let widths = read.map(|(column, _)| u64::from(column_spec(column, true).physical.width()));
            upload.rows_known.saturating_mul(widths.sum())
        };
        let fed = self.users(build).filter_map(|user| match &self.program.segments[user].source {
            Source::Upload(upload) => Some(of(&self.uploads[*upload])),
            _ => None,
        });
        fed.sum()
    }

    /// Lets views leave for host memory while nobody uses them, where the device's memory layer takes them.
    fn waiting(&self, views: Vec<DeviceView>, promises: Vec<Reservation>) -> Result<Place, Failure> {
        // One promise stands for all of them.
        let bytes: usize = views.iter().map(|view| view.len().next_multiple_of(256)).sum();
        drop(promises);
        let promise = self.promise(bytes)?;
        match self.engine.spiller.register_reserved(views.clone(), 0, promise) {
            Ok(handle) => Ok(Place::Anywhere(handle)),
            Err(error) if error.is_device_lost() => Err(error.into()),
            Err(_) => Ok(Place::Device { views, _promise: self.promise(bytes)? }),
        }
    }

    /// Asks how many rows the parts have, and keeps it as their upper bounds; gives the sum.
    pub async fn count_rows_of(&self, parts: &mut [Part], stream: &Stream) -> Result<u64, Failure> {
        if parts.is_empty() {
            return Ok(0);
        }
        let each = OutputLayout::CONTROL.len();
        let mut staging = self.engine.pinned.take(HostKind::Download, each * parts.len()).await?;
        for (index, part) in parts.iter().enumerate() {
            let at = index * each;
            staging.enqueue_to_host(at..at + each, &part.buffer.view(OutputLayout::CONTROL)?, stream)?;
        }
        let staging = staging.idle()?.await?;
        let mut total = 0;
        for (part, control) in parts.iter_mut().zip(staging.read()?.chunks(each)) {
            let (error, rows) = control_words(control)?;
            flagged(error)?;
            part.rows_known(rows)?;
            total += rows;
        }
        Ok(total)
    }

    /// Several parts of the same columns as one.
    pub fn together(&self, parts: Vec<Kept>, stream: &Stream) -> Result<Part, Failure> {
        let parts = parts.into_iter().map(|part| part.on_device(stream)).collect::<Result<Vec<_>, _>>()?;
        self.joined(parts, false, stream)
    }

    /// The same; `waits` where it may have to leave for host memory.
    pub(crate) fn joined(&self, parts: Vec<Part>, waits: bool, stream: &Stream) -> Result<Part, Failure> {
        let one_is_enough = match parts.as_slice() {
            [one] => !one.is_roomy(),
            _ => false,
        };
        self.packed(parts, one_is_enough, waits, stream)
    }

    /// A part that takes no more than its rows need.
    pub async fn shrink(&self, part: Part, stream: &Stream) -> Result<Part, Failure> {
        let mut parts = vec![part];
        let rows = self.count_rows_of(&mut parts, stream).await?;
        let stays = parts.first().is_some_and(|part| rows * 2 > part.layout.rows_upper_bound);
        self.packed(parts, stays, true, stream)
    }

    /// Parts in one, unless `one_is_enough`.
    fn packed(&self, mut parts: Vec<Part>, one_is_enough: bool, waits: bool, stream: &Stream) -> Result<Part, Failure> {
        if one_is_enough {
            return parts.pop().ok_or_else(|| EngineError::internal("there is a part at least").into());
        }
        let first = parts.first().ok_or_else(|| EngineError::internal("there is a part at least"))?;
        // Every column of the layout travels: sort keys follow those of the result.
        let types: Vec<Ty> = first.layout.columns.iter().map(|column| column.ty).collect();
        let mut graph = Graph::new();
        let outputs = types.iter().enumerate().map(|(index, ty)| graph.column(index as u32, *ty)).collect();
        let spec = PipelineSpec {
            extents: Extents::Many,
            columns: first.layout.column_specs(),
            literals: vec![],
            lookups: vec![],
            tables: vec![],
            expanded: false,
            graph,
            filters: vec![],
            sink: SinkSpec::Materialise { outputs },
        };
        let pipeline = self.pipeline(&spec)?;
        let extents = parts.iter().map(|part| part.all_columns()).collect::<Result<Vec<_>, _>>()?;
        let bytes = pipeline.descriptors(&extents)?;
        let descriptors = DeviceBuffer::upload(&bytes, stream, &self.engine.pool, &self.engine.pinned)?;
        let layout = pipeline.output_layout(&extents);
        let (buffer, promise) = self.output(&layout, waits, stream)?;
        let texts = self.reached.by(&spec);
        let input = Input { extents: &extents, descriptors: Some(&descriptors), texts: &texts, ..Input::default() };
        pipeline.materialise(input, &buffer, &layout, stream)?;
        self.tally.launches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Part::new(&buffer, layout, vec![]).arranged(&first.outputs, &first.at).promised(promise))
    }
}

/// An extent without rows, whose columns have an address.
fn no_rows(anything: &DeviceView, spec: &PipelineSpec) -> Result<ExtentInput, Failure> {
    let column =
        |_| -> Result<_, Failure> { Ok(Some(ColumnInput { values: anything.view(0..64)?, validity: None, base: 0 })) };
    let columns = spec.columns.iter().map(column).collect::<Result<_, _>>()?;
    Ok(ExtentInput { rows: ExtentRows::Known(0), columns })
}
