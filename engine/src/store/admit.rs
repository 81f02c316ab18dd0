//! Adds columns to the store: read from files, copied from stored columns, or uploaded from host memory.
//!
//!   lacking ─► in host memory? ─ yes ─► uploaded
//!          └─► of files that another table has? ─ yes ─► copied on the device ─┐
//!                                               └─ no ──► read ────────────────┴─► memory free? ─► whole columns

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::arrow::datatypes::DataType;
use futures::future::try_join_all;
use millpond_memory::{ByteSize, DeviceBuffer, HostKind, Request, Reservation, recorder};
use tokio::sync::Semaphore;

use crate::column::is_nested;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::options::Cache;
use crate::profile::step;
use crate::program::context::RunContext;
use crate::program::texts;
use crate::store::capacity::{Newcomers, budget};
use crate::store::checks::Age;
use crate::store::column::{ColumnForm, StoredColumn, Whole};
use crate::store::copied::{self, Copied, CopySource, Origin};
use crate::store::identity::Identity;
use crate::store::load::{self, Read, ReadColumn, Wanted};
use crate::store::{Held, NEVER, Scan, Store, Table, lock};

impl Store {
    /// Uploads columns of a table from host memory. With `stay`, columns that fit are moved to the device store.
    pub(super) fn bring_up(
        &self,
        table: &Arc<Table>,
        keys: &[(usize, ColumnForm)],
        context: &RunContext,
        stay: bool,
    ) -> Result<Held, Failure> {
        let mut held = Held::new();
        for key in keys {
            let Some(column) = lock(&table.stored).host.get(key).cloned() else { continue };
            let (bytes, effort) = (column.about.bytes, Some(column.about.effort()));
            let space = match stay {
                true => self.make_space(Newcomers { bytes, effort }, budget(context), &HashSet::new()),
                false => None,
            };
            let stream = context.engine.streams.take(&context.tags.extents)?;
            let _step = millpond_memory::recorder::step(step::COPY);
            let up = column.on_device(&context.engine.pool, &self.participant, (&stream, &self.scope))?;
            if space.is_some() {
                let mut stored = lock(&table.stored);
                stored.columns.insert(*key, Arc::clone(&up));
                stored.host.remove(key);
            }
            held.insert(*key, up);
        }
        Ok(held)
    }

    /// Loads the columns that a scan lacks; false if they do not fit or have no form.
    pub(super) async fn load(
        &self,
        table: &Table,
        scan: &Scan,
        context: &Arc<RunContext>,
        needed: &HashSet<usize>,
        (mut sources, held): (Vec<CopySource>, &mut Held),
    ) -> Result<bool, Failure> {
        let on_host = context.options.cache == Cache::Host;
        let budget = if on_host { self.host.limit() } else { budget(context) };
        table.learn_texts(&sources);
        loop {
            // Columns stored now are held for this run, even if the table is cleared meanwhile.
            {
                let stored = lock(&table.stored);
                let keys = stored.keys(scan, needed).into_iter().flatten();
                held.extend(keys.filter_map(|key| Some((key, Arc::clone(stored.columns.get(&key)?)))));
            }
            let (lacking, known) = table.lacking(scan, needed, held, self.now());
            self.hold(&mut sources, &lacking, context)?;
            let files = table.identity.num_files();
            let origins: Vec<Origin> = lacking.iter().map(|column| Origin::of(column, files, &sources)).collect();
            let going = copied::going(&origins);
            // Any column in host memory may be evicted.
            let could_fit = |new: Newcomers| match on_host {
                true => new.bytes <= budget,
                false => self.could_fit(new, budget, &going),
            };
            // A scan without storable columns lacks none.
            if lacking.is_empty() || !could_fit(known) {
                return Ok(false);
            }
            let wanted: Vec<Wanted> =
                lacking.iter().map(|(at, _, form)| wanted(scan, *at, *form, context, needed)).collect();
            let positions: Vec<usize> = lacking.iter().map(|(at, ..)| *at).collect();
            // A table that is far too large is not read at all.
            let estimate = scan.estimated_bytes(&positions) / 2;
            if !could_fit(Newcomers { bytes: estimate, effort: None }) {
                self.refuse(table, lacking.iter().map(|(_, column, form)| ((*column, *form), estimate, None)));
                return Ok(false);
            }
            let reads = copied::reads(&origins);
            if !reads.is_empty() && scan.is_cut_short(&context.task).await {
                return Ok(false);
            }
            let (read, promises) = match read(scan, &table.identity, context, (&positions, &wanted), &reads).await? {
                Ok(read) => read,
                Err(columns) => {
                    // The other columns are read again together with these.
                    lock(&table.stored).texts.extend(columns.into_iter().map(|column| lacking[column].1));
                    continue;
                }
            };
            // A file that was replaced during the read may have contributed rows of both versions.
            let now = scan.identity(&context.task, Age::Now).await.map_err(Failure::Input)?;
            if !now.is_still(&table.identity) {
                return Ok(false);
            }
            let mut columns: Vec<Whole> = Vec::with_capacity(lacking.len());
            let mut again = None;
            for (((origin, wanted), read), column) in origins.iter().zip(&wanted).zip(read).zip(&lacking) {
                match origin.copied(wanted, read)? {
                    Copied::Whole(whole) => columns.push(whole),
                    Copied::Text => again = Some(column.1),
                    Copied::TooMany => return Ok(false),
                }
            }
            if let Some(column) = again {
                lock(&table.stored).texts.insert(column);
                continue;
            }
            let rows = columns.first().map(Whole::rows).unwrap_or_default();
            if rows.iter().sum::<u64>() > context.options.most_cached_rows() {
                self.refuse(table, lacking.iter().map(|(_, column, form)| ((*column, *form), NEVER, None)));
                return Ok(false);
            }
            {
                let stored = lock(&table.stored);
                let differ = columns.iter().any(|column| column.rows() != rows);
                if differ || !stored.columns.is_empty() && stored.rows != rows {
                    return Err(EngineError::internal("a file gives as many rows each time it is read").into());
                }
            }
            let short_text = context.options.short_text_bytes();
            let bytes = |column: &Whole| column.sizes(short_text);
            let bytes: Vec<u64> = columns.iter().map(bytes).map(|(values, validity)| values + validity).collect();
            let effort = columns.iter().map(Whole::effort).sum();
            let new = Newcomers { bytes: bytes.iter().sum(), effort: Some(effort) };
            let space = if on_host { None } else { self.make_space(new, budget, &going) };
            if space.is_none() && !(on_host && could_fit(new)) {
                let refused = lacking.iter().zip(bytes).zip(&columns);
                let refused =
                    refused.map(|(((_, column, form), bytes), of)| ((*column, *form), bytes, Some(of.effort())));
                self.refuse(table, refused);
                return Ok(false);
            }
            let stream = context.engine.streams.take(&context.tags.extents)?;
            let mut assembled: Vec<((usize, ColumnForm), Arc<StoredColumn>)> = Vec::with_capacity(columns.len());
            let counts =
                DeviceBuffer::zeroed(8 * columns.len(), &stream.with_scope(&self.scope), &context.engine.pool)?;
            let of_columns = columns.into_iter().zip(bytes).zip(&lacking).enumerate();
            for (at, ((whole, bytes), (_, column, form))) in of_columns {
                let _step = millpond_memory::recorder::step(step::COPY);
                let promise = self.participant.try_reserve(Request::device(ByteSize(bytes.next_multiple_of(256))))?;
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let (engine, count) = (&context.engine, Some(counts.view(8 * at..8 * at + 8)?));
                let stored = whole.store((number, short_text, count), promise, engine, (&stream, &self.scope)).await?;
                assembled.push(((*column, *form), Arc::new(stored)));
            }
            if assembled.iter().any(|(_, column)| column.about.is_counting()) {
                let counted = context.engine.pinned.take(HostKind::Download, counts.len()).await?;
                let counted = recorder::during(step::WAIT, counted.copy_to_host(&counts, &stream)?.feeding()).await?;
                let counts = counted.read()?;
                for ((_, column), count) in assembled.iter().zip(counts.as_chunks::<8>().0) {
                    if column.about.is_counting() {
                        column.about.count_is(u64::from_le_bytes(*count));
                    }
                }
            }
            // Chunks are freed after the launches that read them.
            drop(promises);
            for (_, column) in &assembled {
                let (name, table) = (&column.about.name, table.identity.name());
                let (rows, bytes) = (column.about.facts.rows, ByteSize::bytes(column.about.bytes));
                tracing::info!("stored {name} of {table}: {rows} rows, {bytes}");
            }
            lock(&table.stored).rows = rows;
            if on_host {
                // If host memory is full, the column is only used by this run.
                for (key, column) in assembled {
                    self.keep_on_host(table, key, &column);
                    held.insert(key, column);
                }
            } else {
                held.extend(assembled.iter().cloned());
                lock(&table.stored).columns.extend(assembled);
            }
            origins.into_iter().for_each(Origin::done);
            return Ok(true);
        }
    }
}

/// Typical minimum bytes of a row group on disk, if a file has several.
const ROW_GROUP_BYTES: u64 = 32 << 20;
/// Minimum bytes of a file per reader: with fewer, a reader costs more launches than it saves.
const LEAST_SPREAD_BYTES: u64 = 4 << 20;

/// Read request for column `at` of a scan.
fn wanted(scan: &Scan, at: usize, form: ColumnForm, context: &RunContext, needed: &HashSet<usize>) -> Wanted {
    let data_type: DataType = scan.schema.field(at).data_type().clone();
    // Nested values have no form without a dictionary.
    let needed = needed.contains(&at) || is_nested(&data_type);
    let most = context.options.most_dictionary_values() * if needed { texts::IF_NEEDED } else { 1 };
    Wanted { name: scan.schema.field(at).name().clone(), data_type, form, most, needed }
}

/// Columns that were read, with their reservations; or the indices of columns that are better without a dictionary.
type Columns = Result<(Vec<ReadColumn>, Vec<Reservation>), Vec<usize>>;

/// Reads these columns of the scan, each from the files listed in `reads`.
async fn read(
    scan: &Scan,
    identity: &Identity,
    context: &Arc<RunContext>,
    (positions, wanted): (&[usize], &[Wanted]),
    reads: &[(Vec<usize>, Vec<usize>)],
) -> Result<Columns, Failure> {
    let mut columns: Vec<ReadColumn> = wanted.iter().map(|_| ReadColumn::default()).collect();
    let (mut all, mut texts) = (Vec::new(), Vec::new());
    let readers = load::readers(context);
    let turns = Arc::new(Semaphore::new(readers));
    for (files, of) in reads {
        let groups = groups(scan.columnar_bytes(identity, files), of, readers);
        let reading = groups.iter().map(|of| async {
            let at: Vec<usize> = of.iter().map(|column| positions[*column]).collect();
            let wanted: Vec<Wanted> = of.iter().map(|column| wanted[*column].clone()).collect();
            let (plan, files) = scan.reading(identity, &at, files, &context.task).map_err(Failure::Input)?;
            load::read(context, (&plan, &files), &wanted, &turns).await
        });
        for (of, read) in groups.iter().zip(try_join_all(reading).await?) {
            match read {
                Read::Columns { columns: read, promises } => {
                    of.iter().zip(read).for_each(|(column, read)| columns[*column] = read);
                    all.extend(promises);
                }
                Read::Texts(found) => texts.extend(found.into_iter().map(|column| of[column])),
            }
        }
        if !texts.is_empty() {
            return Ok(Err(texts));
        }
    }
    Ok(Ok((columns, all)))
}

/// Groups of columns that are read together. A reader needs at least one row group: if there are fewer row groups than
/// readers, the columns are distributed over the readers.
fn groups(bytes: Option<u64>, columns: &[usize], readers: usize) -> Vec<Vec<usize>> {
    let of = |size: u64| bytes.map(|bytes| bytes.div_ceil(size).max(1) as usize);
    let (row_groups, most) = (of(ROW_GROUP_BYTES).unwrap_or(readers), of(LEAST_SPREAD_BYTES).unwrap_or(1));
    let groups = readers.div_ceil(row_groups).min(most).clamp(1, columns.len().max(1));
    columns.chunks(columns.len().div_ceil(groups).max(1)).map(<[usize]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_spread_over_readers_that_have_no_row_group() {
        let columns: Vec<usize> = (0..7).collect();
        let counts = |bytes, readers| groups(bytes, &columns, readers).iter().map(Vec::len).collect::<Vec<_>>();
        let mib = |mib: u64| Some(mib << 20);
        assert_eq!(counts(mib(2_000), 16), [7], "row groups enough");
        assert_eq!(counts(mib(121), 16), [2, 2, 2, 1], "four row groups");
        assert_eq!(counts(mib(30), 16), [1; 7], "one row group");
        assert_eq!(counts(mib(8), 16), [4, 3], "of a small file");
        assert_eq!(counts(mib(1), 16), [7]);
        assert_eq!(counts(Some(0), 1), [7], "one reader");
        assert_eq!(counts(None, 16), [7], "read row by row");
        assert_eq!(groups(mib(30), &columns, 4).concat(), columns);
        assert_eq!(groups(mib(1), &[], 4), Vec::<Vec<usize>>::new());
    }
}
