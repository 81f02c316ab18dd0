//! Places in a dictionary, and its entries: together they are the column's values.

use arrow::datatypes::DataType;
use millpond_parquet::*;

use crate::cases::{Nulls, Order, Random, array, nulls, properties, types};
use crate::file::{File, Value, values};
use crate::read::Numbering;

/// The values of a file by entries and places; `None` if a chunk has values beside its dictionary.
fn by_places(file: &File) -> Option<Vec<Value>> {
    let mut found = Vec::new();
    for (chunk, meta, rows) in file.chunks() {
        let column = meta.column_descr();
        let conversion = Conversion::of(column, &file.data_type).unwrap();
        let pages = walk(chunk, meta, rows).unwrap();
        if !is_all_dictionary(meta) {
            return None;
        }
        let of_entries = values(&entries(chunk, &pages, meta, (&conversion, &file.data_type)).unwrap());
        // What lies before the data pages is enough for the entries.
        let alone = &chunk[..pages.dictionary.as_ref()?.bytes.end];
        let dictionary = walk(alone, meta, 0).unwrap();
        assert_eq!(values(&entries(alone, &dictionary, meta, (&conversion, &file.data_type)).unwrap()), of_entries);
        let (mut places, mut validity) = (vec![0; rows as usize * 4], vec![0; rows.div_ceil(32) as usize * 4]);
        let mut reader = ColumnReader::new(chunk, &pages, meta, column, &conversion, Layout::Positions).unwrap();
        let mut out = Out::new(&mut places, Some(&mut validity), None);
        reader.read(rows, 0, &mut out, &mut Numbering::default()).unwrap();
        for (row, place) in places.as_chunks::<4>().0.iter().enumerate() {
            let is_valid = validity[row / 8] >> (row % 8) & 1 == 1;
            let place = u32::from_le_bytes(*place) as usize;
            found.push(if is_valid { of_entries[place].clone() } else { Value::Null });
        }
    }
    Some(found)
}

#[test]
fn entries_by_their_places_are_the_values() {
    let (all, mut compared) = (types(), 0);
    for number in 0..1_500 {
        let random = &mut Random(number);
        let data_type = all[number as usize % all.len()].clone();
        // Booleans have no dictionary; values of type Dictionary are cast behind the reader.
        if matches!(data_type, DataType::Boolean | DataType::Dictionary(..)) {
            continue;
        }
        let rows = random.one_of(&[1, 33, 1_000, 3_000]);
        let null = random.one_of(&[Nulls::None, Nulls::Few, Nulls::Half, Nulls::Runs, Nulls::All]);
        let valid = nulls(random, rows, null);
        let is_nullable = valid.is_some();
        let distinct = random.one_of(&[1, 2, 200, 1_000]);
        let array = array(random, &data_type, rows, distinct, Order::Random, valid);
        let file = File::write(&array, is_nullable, properties(random, &data_type));
        if let Some(found) = by_places(&file) {
            assert_eq!(found, file.expected(), "case {number}: {data_type}");
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared} files have their values in dictionaries");
}

#[test]
fn values_beside_the_dictionary_have_no_place() {
    let random = &mut Random(1);
    let array = array(random, &DataType::Int64, 100, u64::MAX, Order::Random, None);
    let properties = parquet::file::properties::WriterProperties::builder().set_dictionary_enabled(false).build();
    let file = File::write(&array, false, properties);
    let (chunk, meta, rows) = file.chunks()[0];
    let conversion = Conversion::of(meta.column_descr(), &file.data_type).unwrap();
    let pages = walk(chunk, meta, rows).unwrap();
    assert_eq!(entries(chunk, &pages, meta, (&conversion, &file.data_type)).unwrap().len(), 0);
    let layout = Layout::Positions;
    let mut reader = ColumnReader::new(chunk, &pages, meta, meta.column_descr(), &conversion, layout).unwrap();
    let mut places = vec![0; 400];
    let read = reader.read(rows, 0, &mut Out::new(&mut places, None, None), &mut Numbering::default());
    assert!(matches!(read, Err(ReadError::Page(PageError::Unsupported(_)))), "{read:?}");
}
