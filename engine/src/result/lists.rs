//! Lists that an aggregate has made: their items stay on the device until the groups leave it, and are put together on the host.
//!
//!   items, group by group   4 9 1 │ 7 2          a column that the aggregation has left
//!   lists                   (0, 3) (3, 2)        first item and number of items, as groups are filtered, joined and sorted
//!   downloaded              [7, 2] [4, 9, 1]     each takes its items
//!
//! NULL    a list without items is NULL: no aggregate makes an empty one.
//! Memory  all items on the host from the first result with lists on, whichever of the groups leave.
//! Waits   for the items, once.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, ListArray, UInt64Array};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use millpond_memory::Stream;

use crate::column::{DictionaryId, Form};
use crate::error::EngineError;
use crate::program::failure::Failure;
use crate::program::part::Part;
use crate::program::run::Run;
use crate::result::download::Wanted;
use crate::result::results::Items;

/// The items that lists of a result lead to.
pub(crate) type ItemsOf = HashMap<DictionaryId, ArrayRef>;

impl Run {
    /// Keeps the items of lists: the only column of `part`.
    ///
    /// # Errors
    /// Other lists are known by the same number.
    pub(crate) fn keep_items(&self, id: DictionaryId, part: Part) -> Result<(), Failure> {
        match self.results.lists.put(id, Items::OnDevice(Arc::new(part))) {
            None => Ok(()),
            Some(_) => Err(Failure::trouble("two aggregates make lists that are known by one number")),
        }
    }

    /// The items that the lists of a result lead to.
    pub(super) async fn items_of(&self, part: &Part, stream: &Stream, feeding: bool) -> Result<ItemsOf, Failure> {
        let mut found = HashMap::new();
        for column in &part.outputs {
            let Form::Lists(_, id) = column.form else { continue };
            let items = match self.results.lists.get(id) {
                // No row came to the aggregate.
                None => continue,
                Some(Items::Here(items)) => items,
                Some(Items::OnDevice(items)) => {
                    let item = items.outputs.first().ok_or_else(|| EngineError::internal("items are a column"))?;
                    let schema = Schema::new(vec![Field::new("item", item.data_type.clone(), true)]);
                    let wanted = Wanted::all(Arc::new(schema));
                    let batch = self.download_columns(&items, &wanted, stream, feeding).await?;
                    let items = Arc::clone(batch.column(0));
                    self.results.lists.put(id, Items::Here(Arc::clone(&items)));
                    items
                }
            };
            found.insert(id, items);
        }
        Ok(found)
    }
}

/// Lists as an array of `data_type`: `words` has the first item and the number of items of each.
///
/// # Errors
/// The items are not there, or too many for the offsets of one array.
pub(super) fn put_together(
    data_type: &DataType,
    words: &UInt64Array,
    items: Option<&ArrayRef>,
) -> Result<ArrayRef, Failure> {
    let DataType::List(field) = data_type else {
        return Err(EngineError::internal(format!("lists become {data_type}")).into());
    };
    let of = |row: usize| match words.is_valid(row) {
        true => (words.value(row) >> 32, words.value(row) & u64::from(u32::MAX)),
        false => (0, 0),
    };
    let known = items.map_or(0, |items| items.len() as u64);
    if (0..words.len()).map(of).any(|(start, count)| start + count > known) {
        return Err(EngineError::internal(format!("a list lies beyond its {known} items")).into());
    }
    let lengths = (0..words.len()).map(|row| of(row).1 as usize);
    if lengths.clone().sum::<usize>() > i32::MAX as usize {
        return Err(Failure::trouble("the lists of a result have more items than one array"));
    }
    let offsets = OffsetBuffer::from_lengths(lengths);
    let values = match items {
        Some(items) => {
            let indices = (0..words.len()).map(of).flat_map(|(start, count)| start..start + count);
            take(items, &UInt64Array::from_iter_values(indices), None)
                .map_err(datafusion::error::DataFusionError::from)?
        }
        None => datafusion::arrow::array::new_empty_array(field.data_type()),
    };
    let lists = ListArray::try_new(Arc::clone(field), offsets, values, words.nulls().cloned());
    Ok(Arc::new(lists.map_err(datafusion::error::DataFusionError::from)?))
}
