//! Builds the build side of a join: packs the rows of its segment into one part, and makes a table from their keys.
//!
//!   parts ─► row count ─► one part without unused room ─► extremes of the keys ─► table ─► are keys unique? NULL?
//!     ─► lists, if they are not and each row is needed ─► probes are lowered
//!
//! Kinds    are chosen by bytes, see [`table_spec`]. The assumptions of the choice are checked while the table is
//!          built: keys that are not unique get lists, or row numbers instead of bits; a key outside its range makes
//!          the table a hashed one.
//! Waits    in a first run: for the number of rows; for the keys' extremes, if a table without their ranges would be a
//!          hashed one, or a scan needs them; and for the table's facts about its keys, which decide the shape of the
//!          pipelines that probe it.
//! Later    runs make the table that the first run has found best, and check its facts at their end.
//! Memory   the rows, the table, its lists, and while these are made 4 bytes of scratch space per row.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millpond_kernels::codegen::ir::{ErrorCode, PipelineSpec, Repr, TableKind, TableSpec, Ty};
use millpond_kernels::join::{TableFacts, TableLayout, list_rows};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, Pipeline};
use millpond_memory::{DeviceBuffer, DeviceView, Reservation, Stream};

use crate::column::ColumnInfo;
use crate::error::EngineError;
use crate::error::failure::{Failure, flagged};
use crate::expr::{LookupKind, LookupTable};
use crate::operator::join::lower::{TableRoom, lower_table, table_spec};
use crate::operator::join::probe::Asked;
use crate::operator::join::{DeviceJoinExec, bounds};
use crate::program::answers::Thing;
use crate::program::build_side::{Build, BuildForm, KeyForm};
use crate::program::kept_ptx::Generated;
use crate::program::lower::column_spec;
use crate::program::part::Part;
use crate::program::piece::Piece;
use crate::program::run::Run;
use crate::program::segment_result::SegmentResult;
use crate::program::segments::Origin;
use crate::program::texts;

/// Plan for filling the table of a build side.
struct TablePlan {
    spec: TableSpec,
    /// Piece and pipeline that fill it; `None` if every row matches every key.
    filling: Option<(Piece, Arc<Pipeline>)>,
}

/// A table, and its facts about the keys.
struct Filled {
    table: DeviceBuffer,
    layout: TableLayout,
    /// The leader of each row, if there may be lists.
    leaders: Option<(DeviceBuffer, Reservation)>,
    facts: TableFacts,
    promise: Reservation,
}

/// The table of a build side as an earlier run has made it, and its facts about the keys.
struct KnownTable {
    rows: u64,
    columns: Vec<ColumnInfo>,
    forms: Vec<KeyForm>,
    plan: TablePlan,
    facts: TableFacts,
}

/// A build side while its table is made.
struct Building<'a> {
    run: &'a Run,
    index: usize,
    join: &'a DeviceJoinExec,
    columns: &'a [ColumnInfo],
    /// Its rows in one part; `None` if there are none.
    part: Option<&'a Part>,
    rows: u64,
    stream: &'a Stream,
}

/// Builds the table of segment `index` from its result.
pub async fn build(
    run: &Run,
    index: usize,
    join: &DeviceJoinExec,
    given: SegmentResult,
    stream: &Stream,
) -> Result<Build, Failure> {
    let mut parts = Vec::with_capacity(given.parts.len());
    for part in given.parts {
        parts.push(part.on_device(stream)?);
    }
    let rows = run.count_rows_of(index, &mut parts, stream).await?;
    parts.retain(|part| part.rows_bound() > 0);
    let part = if parts.is_empty() { None } else { Some(run.joined(parts, true, stream)?) };
    let columns = given.columns.as_slice();
    let building = Building { run, index, join, columns, part: part.as_ref(), rows, stream };
    let known = run.known::<KnownTable>(index).filter(|table| table.rows == rows && table.columns == columns);
    let mut filled = None;
    if let Some(table) = &known {
        filled = building.fill_as(table)?;
    }
    let (known, filled) = match (known, filled) {
        (Some(known), Some(filled)) => (known, filled),
        _ => {
            let (table, filled) = building.make().await?;
            let table = Arc::new(table);
            run.keep_known(index, Arc::clone(&table) as Thing);
            (table, filled)
        }
    };
    let Filled { table, layout, leaders, facts, promise } = filled;
    let mut promises = vec![promise];
    let mut spec = known.plan.spec.clone();
    spec.lists &= facts.has_duplicates;
    let mut lists = None;
    if let Some((leaders, _promise)) = leaders.filter(|_| spec.lists) {
        let (rows, promise) = run.context.memory.take(layout.lists_bytes(), &run.context.tags.joins, stream)?;
        promises.push(promise);
        list_rows(&run.context.engine.images, &layout, leaders.as_view(), rows.as_view(), stream)?;
        lists = Some(rows.as_view().clone());
    }
    let form = BuildForm {
        build: index,
        columns: given.columns,
        table: spec,
        keys: known.forms.clone(),
        has_duplicates: facts.has_duplicates,
        has_null_keys: facts.has_null_keys,
        is_empty: rows == 0,
    };
    let table = (table.as_view().clone(), layout);
    Build::new(&run.context, part, rows, table, lists, promises, form)
}

impl Building<'_> {
    /// Makes a table of the kind that its keys allow.
    async fn make(&self) -> Result<(KnownTable, Filled), Failure> {
        let Self { run, index, join, columns, part, rows, stream } = *self;
        let forms = run.prepared.keys.get(&index).ok_or_else(|| EngineError::internal("a build side has keys"))?;
        // Ranges of codes are known better now than when the keys were planned.
        let mut forms = forms.clone();
        for (form, (expr, _)) in forms.iter_mut().zip(join.on()) {
            form.narrowed(expr, columns);
        }
        let mut keys: Vec<Ty> = forms.iter().map(|form| form.ty).collect();
        let most = (run.context.engine.pool.limit().as_u64() / 16).min(2 << 30);
        let room = Some(TableRoom { rows, most, probe_bytes: probe_bytes(run, index) });
        let mut asked = Asked::by(join, run.prepared.payload.contains(&index));
        let mut spec = table_spec(join, &keys, asked, room);
        let pushes_bounds = bounds::pushes_bounds(run, index, join);
        let is_addressable = keys.iter().all(|key| key.repr.is_integer() || key.repr == Repr::Bool);
        let mut measured = vec![];
        if let Some(part) = part
            && (pushes_bounds || spec.kind == TableKind::Hash && is_addressable)
        {
            measured = bounds::measure(run, join, columns, part, stream).await?;
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
        if pushes_bounds {
            bounds::push_bounds(join, part.is_some().then_some(&measured))?;
        }
        let (mut plan, mut filled) = self.fill(&forms, spec).await?;
        if filled.facts.has_duplicates && asked.lists && plan.spec.kind == TableKind::Bitmap {
            // Keys have several rows after all: row numbers are needed.
            asked.rows = true;
            drop(filled);
            (plan, filled) = self.fill(&forms, table_spec(join, &keys, asked, room)).await?;
        }
        let is_outside = ErrorCode::from_word(filled.facts.error).is_some_and(|(code, _)| code == ErrorCode::KeyRange);
        if is_outside && plan.spec.kind != TableKind::Hash {
            drop(filled);
            let spec = TableSpec { kind: TableKind::Hash, lists: asked.lists, ..plan.spec };
            (plan, filled) = self.fill(&forms, spec).await?;
        }
        flagged(filled.facts.error)?;
        Ok((KnownTable { rows, columns: columns.to_vec(), forms, plan, facts: filled.facts }, filled))
    }

    /// Fills a table as `spec` says, and waits for its facts about the keys.
    async fn fill(&self, forms: &[KeyForm], spec: TableSpec) -> Result<(TablePlan, Filled), Failure> {
        let Self { run, join, columns, stream, .. } = *self;
        let filling = match spec.kind {
            TableKind::Every => None,
            _ => Some(run.context.tally.preparing(|| {
                run.context.tally.lowerings.fetch_add(1, Ordering::Relaxed);
                let piece = lower_table(join, columns, forms, &spec, &mut run.prepared.tables().definitions)?;
                let pipeline = run.context.pipeline(&piece.spec)?;
                run.keep_ptx(Generated::JoinTable, [&pipeline]);
                Ok::<_, Failure>((piece, pipeline))
            })?),
        };
        let plan = TablePlan { spec, filling };
        let mut filled = self.launch(&plan)?;
        if plan.filling.is_some() {
            let control =
                filled.table.view(TableLayout::CONTROL)?.download_vec(stream, &run.context.engine.pinned)?.await?;
            filled.facts = TableLayout::facts(&control)?;
        }
        Ok((plan, filled))
    }

    /// Fills a table as an earlier run did; `None` if its facts cannot be checked.
    fn fill_as(&self, known: &KnownTable) -> Result<Option<Filled>, Failure> {
        let Self { run, stream, .. } = *self;
        if let Some((_, pipeline)) = &known.plan.filling {
            run.context.tally.note(pipeline);
        }
        let mut filled = self.launch(&known.plan)?;
        if known.plan.filling.is_some() {
            let control = [filled.table.view(TableLayout::CONTROL)?];
            let mut facts = known.facts;
            if run.is_to_be_wrong() {
                facts.has_duplicates = !facts.has_duplicates;
            }
            if !run.assume(words_of(facts), &control, facts_words, stream)? {
                return Ok(None);
            }
            filled.facts = facts;
        }
        Ok(Some(filled))
    }

    /// A table of the build side's rows, whose bound is exact. Its facts about the keys are not known yet, unless every
    /// row matches.
    fn launch(&self, plan: &TablePlan) -> Result<Filled, Failure> {
        let Self { run, part, stream, .. } = *self;
        let spec = &plan.spec;
        let bound = part.map_or(0, Part::rows_bound);
        let layout = TableLayout::new(spec, bound)?;
        let tag = &run.context.tags.joins;
        let facts = TableFacts { error: 0, has_duplicates: bound > 1, has_null_keys: false };
        let Some((piece, pipeline)) = &plan.filling else {
            let (table, promise) = run.context.memory.take_zeroed(layout.bytes, tag, stream)?;
            return Ok(Filled { table, layout, leaders: None, facts, promise });
        };
        let (table, promise) = run.context.memory.take(layout.bytes, tag, stream)?;
        let mut leaders = None;
        if spec.lists {
            leaders = Some(run.context.memory.take(layout.scratch_bytes(), tag, stream)?);
        }
        let extent = match part {
            Some(part) => part.as_extent()?,
            None => no_rows(&table, &piece.spec)?,
        };
        let mut lookups = Vec::with_capacity(piece.lookups.len());
        for lookup in &piece.lookups {
            let LookupTable::Dictionary(lookup) = lookup else {
                return Err(EngineError::internal("keys of a build side look into dictionaries only").into());
            };
            let table = run.lookup(lookup, stream)?;
            if lookup.kind == LookupKind::Text {
                run.reached.keep(&table.values, None);
            }
            lookups.push(table);
        }
        let (literals, texts) = (run.literals(piece)?, run.reached.by(&piece.spec));
        let input = Input {
            extents: std::slice::from_ref(&extent),
            literals: &literals,
            lookups: &lookups,
            texts: &texts,
            ..Input::default()
        };
        let scratch = leaders.as_ref().map(|(leaders, _)| leaders.as_view());
        let made = run.new_texts(&piece.spec, &input, stream)?;
        let input = Input { arena: made.as_ref().map(texts::NewTexts::view), ..input };
        pipeline.build_table(input, table.as_view(), &layout, scratch, stream)?;
        // The table's views may point to texts that the launch made.
        made.into_iter().for_each(texts::NewTexts::stay);
        run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
        Ok(Filled { table, layout, leaders, facts, promise })
    }
}

fn words_of(facts: TableFacts) -> Vec<u64> {
    vec![facts.error, facts.has_duplicates.into(), facts.has_null_keys.into()]
}

/// A table's facts about its keys, from its control block.
fn facts_words(control: &[u8]) -> Result<Vec<u64>, Failure> {
    Ok(words_of(TableLayout::facts(control)?))
}

/// Bytes of the columns that are fed to the segments that probe `build`, as far as statistics know their rows.
fn probe_bytes(run: &Run, build: usize) -> u64 {
    let of = |source: usize| {
        let facts = &run.prepared.sources[source];
        let read = facts.columns.iter().zip(&run.prepared.used[source]).filter(|(_, used)| **used);
        let widths = read.map(|(column, _)| u64::from(column_spec(column, true).physical.width()));
        facts.rows.saturating_mul(widths.sum())
    };
    let fed = run.users(build).filter_map(|user| match &run.prepared.program.segments[user].origin {
        Origin::Source(source) => Some(of(*source)),
        _ => None,
    });
    fed.sum()
}

/// An extent without rows, whose columns have an address.
fn no_rows(anything: &DeviceView, spec: &PipelineSpec) -> Result<ExtentInput, Failure> {
    let column =
        |_| -> Result<_, Failure> { Ok(Some(ColumnInput { values: anything.view(0..64)?, validity: None, base: 0 })) };
    let columns = spec.columns.iter().map(column).collect::<Result<_, _>>()?;
    Ok(ExtentInput { rows: ExtentRows::Known(0), columns })
}
