//! Lists and structures constructed by the program: their items stay on the device until rows are downloaded, and the
//! host assembles them.
//!
//!   items, row by row   4 9 1 │ 7 2          columns output by an aggregation or a projection, in parts
//!   words               (0, 3) (3, 2)        first item and number of items, carried through filters, joins and sorts
//!   downloaded          [7, 2] [4, 9, 1]     each list gathers its items
//!
//! Items   of a structure are its fields, one item per row; likewise for lists of structures, and for maps.
//! NULL    rows have NULL words.
//! Memory  all items are held on the host from the first result with lists on, regardless of the rows downloaded.
//! Waits   for the items, once.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, GenericListArray, MapArray, OffsetSizeTrait, StructArray, UInt64Array,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::{concat, take};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::error::DataFusionError;
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_memory::Stream;

use crate::column::{DictionaryId, Form};
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::program::download::Wanted;
use crate::program::part::{Kept, Part};
use crate::program::results::Items;
use crate::program::run::Run;

/// Items that the words of a result refer to.
pub(crate) type ItemsOf = HashMap<DictionaryId, ArrayRef>;

/// Maximum number of items: an item index has 32 bits of a word.
const MOST_ITEMS: u64 = 1 << 32;

impl Run {
    /// Keeps the items of all lists of an aggregate.
    ///
    /// # Errors
    /// If other lists have the same ID.
    pub(crate) fn keep_items(&self, id: DictionaryId, part: Part) -> Result<(), Failure> {
        self.results.lists.with(id, |items| match items.parts.is_empty() {
            true => {
                items.parts.push((Arc::new(Kept::staying(part)), None));
                Ok(())
            }
            false => Err(Failure::trouble("two aggregates make lists that are known by one number")),
        })
    }

    /// Appends parts of items, each with its number of items; returns the index of the first one.
    ///
    /// # Errors
    /// If there are too many.
    pub(crate) fn add_items(&self, id: DictionaryId, parts: Vec<(Kept, u64)>) -> Result<u64, Failure> {
        self.results.lists.with(id, |items| {
            let before = items.known();
            if before + parts.iter().map(|(_, rows)| rows).sum::<u64>() > MOST_ITEMS {
                return Err(Failure::trouble(format!("lists of a column have more than {MOST_ITEMS} items")));
            }
            items.parts.extend(parts.into_iter().map(|(part, rows)| (Arc::new(part), Some(rows))));
            items.here = None;
            Ok(before)
        })
    }

    /// Items that the words of a part refer to.
    pub(super) fn items_of<'a>(
        &'a self,
        part: &'a Part,
        stream: &'a Stream,
        feeding: bool,
    ) -> BoxFuture<'a, Result<ItemsOf, Failure>> {
        async move {
            let mut found = HashMap::new();
            for column in &part.outputs {
                let Form::Lists(_, id) = column.form else { continue };
                let known = self.results.lists.with(id, |items| items.clone());
                let items = match known.here.clone() {
                    Some(items) => items,
                    // The operator that constructs them received no rows.
                    None if known.parts.is_empty() => continue,
                    None => {
                        let items = self.bring_items(&known, &column.data_type, stream, feeding).await?;
                        self.results.lists.with(id, |known| known.here = Some(Arc::clone(&items)));
                        items
                    }
                };
                found.insert(id, items);
            }
            Ok(found)
        }
        .boxed()
    }

    /// Downloads and concatenates all parts of some items.
    async fn bring_items(
        &self,
        items: &Items,
        data_type: &DataType,
        stream: &Stream,
        feeding: bool,
    ) -> Result<ArrayRef, Failure> {
        let item = match data_type {
            DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => item.data_type(),
            other => other,
        };
        let mut arrays = vec![];
        for (kept, rows) in &items.parts {
            let part = kept.lend(stream)?;
            let fields: Vec<Field> =
                part.outputs.iter().map(|of| Field::new(&of.name, of.data_type.clone(), true)).collect();
            let wanted = Wanted::all(Arc::new(Schema::new(fields)), self.items_of(&part, stream, feeding).await?);
            let batch = self.download_columns(&part, &wanted, stream, feeding).await?;
            match rows {
                Some(rows) if *rows != batch.num_rows() as u64 && self.results.questions.has_assumed() => {
                    return Err(Failure::Surprise);
                }
                Some(rows) if *rows != batch.num_rows() as u64 => {
                    let found = batch.num_rows();
                    return Err(EngineError::internal(format!("{found} items come where {rows} were kept")).into());
                }
                _ => {}
            }
            arrays.push(match (item, batch.columns()) {
                (item, [one]) if one.data_type() == item => Arc::clone(one),
                (DataType::Struct(fields), columns) => {
                    let whole = StructArray::try_new(fields.clone(), columns.to_vec(), None);
                    Arc::new(whole.map_err(DataFusionError::from)?)
                }
                (_, columns) => {
                    let why = format!("{} columns are items of {data_type}", columns.len());
                    return Err(EngineError::internal(why).into());
                }
            });
        }
        let arrays: Vec<&dyn Array> = arrays.iter().map(|array| array.as_ref()).collect();
        Ok(concat(&arrays).map_err(DataFusionError::from)?)
    }
}

/// Assembles an array of `data_type` from words, each with the first item and the number of items of a row.
///
/// # Errors
/// If the items are missing, or too many for the offsets of one array.
pub(super) fn put_together(
    data_type: &DataType,
    words: &UInt64Array,
    items: Option<&ArrayRef>,
) -> Result<ArrayRef, Failure> {
    let of = |row: usize| match words.is_valid(row) {
        true => (words.value(row) >> 32, words.value(row) & u64::from(u32::MAX)),
        false => (0, 0),
    };
    let known = items.map_or(0, |items| items.len() as u64);
    if (0..words.len()).map(of).any(|(start, count)| start + count > known) {
        return Err(EngineError::internal(format!("a list lies beyond its {known} items")).into());
    }
    let taken = |item: &DataType, places: UInt64Array| match items {
        Some(items) => take(items, &places, None).map_err(DataFusionError::from),
        None => Ok(datafusion::arrow::array::new_null_array(item, places.len())),
    };
    if matches!(data_type, DataType::Struct(_)) {
        let places: UInt64Array = (0..words.len()).map(|row| words.is_valid(row).then(|| of(row).0)).collect();
        return Ok(taken(data_type, places)?);
    }
    let all =
        || UInt64Array::from_iter_values((0..words.len()).map(of).flat_map(|(start, count)| start..start + count));
    let lengths = || (0..words.len()).map(|row| of(row).1 as usize);
    match data_type {
        DataType::List(field) => as_lists::<i32>(field, words, lengths(), &|| taken(field.data_type(), all())),
        DataType::LargeList(field) => as_lists::<i64>(field, words, lengths(), &|| taken(field.data_type(), all())),
        DataType::Map(field, sorted) => {
            let offsets = offsets::<i32>(lengths())?;
            let entries = taken(field.data_type(), all())?;
            let entries = entries.as_any().downcast_ref::<StructArray>().cloned();
            let entries = entries.ok_or_else(|| EngineError::internal("entries of maps are structures"))?;
            let maps = MapArray::try_new(Arc::clone(field), offsets, entries, words.nulls().cloned(), *sorted);
            Ok(Arc::new(maps.map_err(DataFusionError::from)?))
        }
        other => Err(EngineError::internal(format!("lists become {other}")).into()),
    }
}

/// Offsets for lists of the given lengths.
fn offsets<O: OffsetSizeTrait>(lengths: impl Iterator<Item = usize> + Clone) -> Result<OffsetBuffer<O>, Failure> {
    if O::from_usize(lengths.clone().sum::<usize>()).is_none() {
        return Err(Failure::trouble("the lists of a result have more items than one array"));
    }
    Ok(OffsetBuffer::from_lengths(lengths))
}

fn as_lists<O: OffsetSizeTrait>(
    field: &FieldRef,
    words: &UInt64Array,
    lengths: impl Iterator<Item = usize> + Clone,
    values: &dyn Fn() -> Result<ArrayRef, DataFusionError>,
) -> Result<ArrayRef, Failure> {
    let offsets = offsets::<O>(lengths)?;
    let lists = GenericListArray::<O>::try_new(Arc::clone(field), offsets, values()?, words.nulls().cloned());
    Ok(Arc::new(lists.map_err(DataFusionError::from)?))
}
