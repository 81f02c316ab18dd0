//! Types × encodings × codecs × page versions × NULLs × page sizes, by seed.

use arrow::datatypes::DataType;
use millpond_parquet::Layout;

use crate::cases::{Nulls, Order, Random, array, nulls, properties, types};
use crate::file::{File, Value};
use crate::read::{Step, check};

/// A layout that holds `file`'s values: as narrow as they allow, or as wide as they can be.
pub fn layout(random: &mut Random, file: &File) -> Layout {
    match &file.data_type {
        DataType::Boolean => Layout::Bits,
        DataType::Float32 | DataType::Float64 => Layout::Floats,
        data_type if data_type.primitive_width().is_none() => random.one_of(&[Layout::Codes, Layout::Texts]),
        _ => {
            let numbers = file.expected().into_iter().filter_map(|value| match value {
                Value::Number(number) => Some(number),
                _ => None,
            });
            let numbers: Vec<i128> = numbers.collect();
            let range = numbers.iter().min().copied().zip(numbers.iter().max().copied());
            let base = range.and_then(|(low, _)| i64::try_from(low).ok()).filter(|_| random.is_one_in(2)).unwrap_or(0);
            let span = range.map_or(0, |(low, high)| high.wrapping_sub(low) as u128);
            let narrow = [1, 2, 4].into_iter().find(|width| span >> (8 * width) == 0).unwrap_or(8);
            let width = random.one_of(&[narrow, narrow, 16]);
            Layout::Integers { width, base, range: range.filter(|_| random.is_one_in(2)) }
        }
    }
}

fn case(number: u64) {
    let random = &mut Random(number);
    let all = types();
    let data_type = all[number as usize % all.len()].clone();
    let rows = random.one_of(&[0, 1, 31, 33, 1_000, 3_000, 5_000]);
    let null = random.one_of(&[Nulls::None, Nulls::None, Nulls::Few, Nulls::Half, Nulls::Runs, Nulls::All]);
    let valid = nulls(random, rows, null);
    let is_nullable = valid.is_some() || random.is_one_in(2);
    let distinct = random.one_of(&[1, 2, 3, 200, 1_000, 100_000, u64::MAX]);
    let order = random.one_of(&[Order::Random, Order::Random, Order::Sorted, Order::Ascending, Order::Runs]);
    let array = array(random, &data_type, rows, distinct, order, valid);
    let file = File::write(&array, is_nullable, properties(random, &data_type));
    let layout = layout(random, &file);
    let whole: fn(&mut Random) -> Step = |_| (0, u64::MAX);
    let pieces: fn(&mut Random) -> Step = |random| (0, random.one_of(&[0, 1, 31, 33, 1_000]));
    let skips: fn(&mut Random) -> Step = |random| (random.one_of(&[0, 0, 1, 100, 1_500]), random.one_of(&[1, 32, 700]));
    for steps in [whole, pieces, skips] {
        check(&file, layout, || steps(random));
    }
}

#[test]
fn matrix() {
    if let Ok(number) = std::env::var("MILLPOND_CASE") {
        return case(number.parse().expect("a number"));
    }
    let cases = std::env::var("MILLPOND_CASES").map_or(3_000, |cases| cases.parse().expect("a number"));
    let mut failed = Vec::new();
    for number in 0..cases {
        if std::panic::catch_unwind(|| case(number)).is_err() {
            eprintln!("case {number} failed");
            failed.push(number);
        }
    }
    assert!(failed.is_empty(), "{} cases failed: {:?}", failed.len(), &failed[..failed.len().min(20)]);
}
