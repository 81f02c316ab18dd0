//! How a file is read: DataFusion's reader options and the size of a batch, drawn from a seed and a number.

use std::fmt;

use crate::fuzz::rng::Rng;

/// The options of both sessions, except `batch_rows`, which is the device's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub pushdown_filters: bool,
    pub view_types: bool,
    pub binary_as_string: bool,
    pub page_index: bool,
    /// The unit of INT96.
    pub coerce_int96: &'static str,
    /// Files are cut into ranges of bytes, however small they are.
    pub repartition: bool,
    /// Rows of a device batch, or a fortieth of a longer file; 0 for as many as there are outside tests.
    pub batch_rows: usize,
}

impl Reading {
    /// How file `number` of a seed is read. Every seventh is read in small batches.
    pub fn of(seed: u64, number: u64) -> Reading {
        let mut rng = Rng::new(seed ^ 0x7061_7271, number);
        Reading {
            pushdown_filters: rng.chance(40),
            view_types: rng.chance(60),
            binary_as_string: rng.chance(30),
            page_index: rng.chance(70),
            coerce_int96: rng.pick(&["us", "ns"]),
            repartition: rng.chance(25),
            batch_rows: if number.is_multiple_of(7) { 64 } else { 0 },
        }
    }

    /// Settings (`SET`) of DataFusion's session, or of the device's, for reading a file of `num_rows` rows.
    pub(super) fn settings(&self, on_device: bool, num_rows: u64) -> Vec<String> {
        let parquet = |name: &str, value: &dyn fmt::Display| format!("datafusion.execution.parquet.{name} = {value}");
        let mut settings = vec![
            parquet("pushdown_filters", &self.pushdown_filters),
            parquet("schema_force_view_types", &self.view_types),
            parquet("binary_as_string", &self.binary_as_string),
            parquet("enable_page_index", &self.page_index),
            parquet("coerce_int96", &self.coerce_int96),
            // DataFusion's own size, or none.
            format!("datafusion.optimizer.repartition_file_min_size = {}", if self.repartition { 0 } else { 10 << 20 }),
        ];
        if on_device {
            // A page that several batches need is decompressed for each of them.
            let batch_rows = if self.batch_rows == 0 { 0 } else { (num_rows as usize / 40).max(self.batch_rows) };
            settings.push(format!("millpond.batch_rows = {batch_rows}"));
        }
        settings
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (self.pushdown_filters, "pushdown_filters"),
            (self.view_types, "view_types"),
            (self.binary_as_string, "binary_as_string"),
            (self.page_index, "page_index"),
            (self.repartition, "repartition"),
        ];
        for (_, name) in flags.iter().filter(|(is_set, _)| *is_set) {
            write!(f, "{name} ")?;
        }
        write!(f, "coerce_int96={} batch_rows={}", self.coerce_int96, self.batch_rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_read_both_ways() {
        let readings: Vec<Reading> = (0..1_000).map(|number| Reading::of(0, number)).collect();
        let share = |is: fn(&Reading) -> bool| readings.iter().filter(|reading| is(reading)).count();
        let shares = [
            share(|reading| reading.pushdown_filters),
            share(|reading| reading.view_types),
            share(|reading| reading.binary_as_string),
            share(|reading| reading.page_index),
            share(|reading| reading.coerce_int96 == "us"),
            share(|reading| reading.repartition),
        ];
        assert!(shares.iter().all(|share| (200..800).contains(share)), "{shares:?}");
        assert_eq!(share(|reading| reading.batch_rows > 0), 143);
    }
}
