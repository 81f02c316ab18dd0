//! Builds the build side of a join: puts the rows of its segment in one place and makes a table from their keys.
//!
//!   parts ─► how many rows? ─► one part, no larger than they take ─► extremes of the keys ─► table ─► are keys unique? NULL?
//!     ─► lists, where they are not and each row is asked for ─► probes are lowered
//!
//! Kinds    by bytes, see [`table_spec`]. What the choice relies on is checked while the table is built: keys that were not
//!          unique get lists, or rows where there were but bits; one outside its range makes the table a hashed one.
//! Waits    for the number of rows; for the keys' extremes where a table without their ranges would be a hashed one, or a scan wants
//!          to know; and for what the table says of its keys, which decides the shape of the pipelines that probe it.
//! Memory   the rows, the table, its lists, and while they are made 4 bytes of scratch a row.

use millpond_kernels::codegen::ir::{ErrorCode, PipelineSpec, Repr, TableKind, TableSpec, Ty};
use millpond_kernels::join::{TableFacts, TableLayout, list_rows};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input};
use millpond_memory::{DeviceBuffer, DeviceView, Reservation, Stream};

use crate::column::ColumnInfo;
use crate::error::EngineError;
use crate::expr::LookupKind;
use crate::operator::join::DeviceJoinExec;
use crate::operator::join::lower::{TableRoom, lower_table, table_spec};
use crate::operator::join::probe::Asked;
use crate::program::build_side::{Build, BuildForm, KeyForm};
use crate::program::failure::{Failure, flagged};
use crate::program::given::Given;
use crate::program::lower::column_spec;
use crate::program::part::Part;
use crate::program::run::Run;
use crate::program::segments::Origin;
use crate::program::texts::Made;

/// A table, and what it says of its keys.
struct Filled {
    table: DeviceBuffer,
    layout: TableLayout,
    /// The leader of each row, where there may be lists.
    leaders: Option<(DeviceBuffer, Reservation)>,
    facts: TableFacts,
    promise: Reservation,
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

        let forms = self.prepared.keys.get(&index).ok_or_else(|| EngineError::internal("a build side has keys"))?;
        // Ranges of codes are known better by now than when the keys were planned.
        let mut forms = forms.clone();
        for (form, (expr, _)) in forms.iter_mut().zip(join.on()) {
            form.narrowed(expr, &given.columns);
        }
        let mut keys: Vec<Ty> = forms.iter().map(|form| form.ty).collect();
        let most = (self.engine.pool.limit().as_u64() / 16).min(2 << 30);
        let room = Some(TableRoom { rows, most, probe_bytes: self.probe_bytes(index) });
        let mut asked = Asked::by(join, self.prepared.payload.contains(&index));
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
        let mut promises = vec![promise];
        spec.lists &= facts.has_duplicates;
        let mut lists = None;
        if let Some((leaders, _promise)) = leaders.filter(|_| spec.lists) {
            let (rows, promise) = self.memory.take(layout.lists_bytes(), &self.tags.joins, stream)?;
            promises.push(promise);
            list_rows(&self.engine.images, &layout, leaders.as_view(), rows.as_view(), stream)?;
            lists = Some(rows.as_view().clone());
        }
        let form = BuildForm {
            build: index,
            columns: given.columns,
            table: spec,
            keys: forms,
            has_duplicates: facts.has_duplicates,
            has_null_keys: facts.has_null_keys,
            is_empty: rows == 0,
        };
        let table = (table.as_view().clone(), layout);
        Build::new(self, part, rows, table, lists, promises, form)
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
        let tag = &self.tags.joins;
        if spec.kind == TableKind::Every {
            let (table, promise) = self.memory.take_zeroed(layout.bytes, tag, stream)?;
            let facts = TableFacts { error: 0, has_duplicates: bound > 1, has_null_keys: false };
            return Ok(Filled { table, layout, leaders: None, facts, promise });
        }
        let (piece, pipeline) = self.tally.preparing(|| {
            self.tally.lowerings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let piece = lower_table(join, columns, forms, &spec, &mut self.prepared.tables().definitions)?;
            let pipeline = self.pipeline(&piece.spec)?;
            Ok::<_, Failure>((piece, pipeline))
        })?;
        let (table, promise) = self.memory.take(layout.bytes, tag, stream)?;
        let mut leaders = None;
        if spec.lists {
            leaders = Some(self.memory.take(layout.scratch_bytes(), tag, stream)?);
        }
        let extent = match part {
            Some(part) => part.as_extent()?,
            None => no_rows(&table, &piece.spec)?,
        };
        let mut lookups = Vec::with_capacity(piece.lookups.len());
        for lookup in &piece.lookups {
            let crate::expr::LookupTable::Dictionary(lookup) = lookup else {
                return Err(EngineError::internal("keys of a build side look into dictionaries only").into());
            };
            let table = self.lookup(lookup, stream)?;
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
        let of = |source: usize| {
            let facts = &self.prepared.sources[source];
            let read = facts.columns.iter().zip(&self.prepared.used[source]).filter(|(_, used)| **used);
            let widths = read.map(|(column, _)| u64::from(column_spec(column, true).physical.width()));
            facts.rows.saturating_mul(widths.sum())
        };
        let fed = self.users(build).filter_map(|user| match &self.prepared.program.segments[user].origin {
            Origin::Source(source) => Some(of(*source)),
            _ => None,
        });
        fed.sum()
    }
}

/// An extent without rows, whose columns have an address.
fn no_rows(anything: &DeviceView, spec: &PipelineSpec) -> Result<ExtentInput, Failure> {
    let column =
        |_| -> Result<_, Failure> { Ok(Some(ColumnInput { values: anything.view(0..64)?, validity: None, base: 0 })) };
    let columns = spec.columns.iter().map(column).collect::<Result<_, _>>()?;
    Ok(ExtentInput { rows: ExtentRows::Known(0), columns })
}
