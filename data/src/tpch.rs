//! The eight tables of TPC-H, as Parquet files of several row groups.
//!
//! ```text
//!   millpond gen tpch --scale 0.01 --out DIR   ──►   DIR/lineitem.parquet  DIR/orders.parquet  …
//! ```
//!
//! Rows     those of the TPC's own generator, from the tpchgen crate; money is DECIMAL(15, 2).
//! Groups   one row group per 2²⁰ rows, and at least four for tables above 4,000 rows.
//! Note     derived from TPC-H; results are not comparable with published TPC-H results.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

use crate::parquet::{DICTIONARY_BYTES, Values, device_layout, make_folder, write_parts};
use crate::{Codec, DataError, Files, Replaced, WrittenFile};

/// Maximum scale: above it the generator's 32-bit part numbers overflow.
const MAX_SCALE: f64 = 100_000.0;
/// Rows of a full row group.
const ROW_GROUP_ROWS: u64 = 1 << 20;
/// Row count above which a table has several row groups at any scale.
const SEVERAL_GROUPS_ABOVE: u64 = 4_000;
const BATCH_ROWS: usize = 65_536;

/// A table of TPC-H.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    Nation,
    Region,
    Part,
    Supplier,
    Partsupp,
    Customer,
    Orders,
    Lineitem,
}

/// Columns with many distinct values: name, number of values at scale 1 (it grows with the scale), and bytes per value.
const MANY: [(&str, f64, u64); 12] = [
    ("o_custkey", 100_000.0, 8),
    ("o_clerk", 1_000.0, 19),
    ("l_partkey", 200_000.0, 8),
    ("l_suppkey", 10_000.0, 8),
    ("l_extendedprice", 930_000.0, 8),
    ("ps_suppkey", 10_000.0, 8),
    ("o_totalprice", 1_460_000.0, 8),
    ("c_acctbal", 140_000.0, 8),
    ("s_acctbal", 9_950.0, 8),
    ("c_phone", 150_000.0, 19),
    ("s_phone", 10_000.0, 19),
    ("p_retailprice", 20_900.0, 8),
];

/// Class of a column's values at a scale, which decides its encoding.
fn values(column: &str, scale: f64) -> Values {
    const SORTED: [&str; 6] = ["c_custkey", "l_orderkey", "o_orderkey", "p_partkey", "ps_partkey", "s_suppkey"];
    const UNIQUE: [&str; 5] = ["c_name", "c_address", "p_name", "s_name", "s_address"];
    if SORTED.contains(&column) {
        return Values::Sorted;
    }
    // nation and region have 25 and 5 rows at every scale.
    let is_comment = column.ends_with("_comment") && !column.starts_with("n_") && !column.starts_with("r_");
    let overflows = |of: &(&str, f64, u64)| of.0 == column && (of.1 * scale) as u64 * of.2 > DICTIONARY_BYTES;
    match is_comment || UNIQUE.contains(&column) || MANY.iter().any(overflows) {
        true => Values::Many,
        false => Values::Few,
    }
}

impl Table {
    /// Every table, small ones first.
    pub const ALL: [Table; 8] = [
        Table::Nation,
        Table::Region,
        Table::Supplier,
        Table::Customer,
        Table::Part,
        Table::Partsupp,
        Table::Orders,
        Table::Lineitem,
    ];

    /// Name in SQL, and of the file.
    pub fn name(self) -> &'static str {
        match self {
            Table::Nation => "nation",
            Table::Region => "region",
            Table::Part => "part",
            Table::Supplier => "supplier",
            Table::Partsupp => "partsupp",
            Table::Customer => "customer",
            Table::Orders => "orders",
            Table::Lineitem => "lineitem",
        }
    }

    /// The table of that name.
    ///
    /// # Errors
    /// [`DataError::UnknownTable`] with the names that exist.
    pub fn from_name(name: &str) -> Result<Table, DataError> {
        Table::ALL.into_iter().find(|table| table.name() == name).ok_or_else(|| DataError::UnknownTable {
            name: name.to_string(),
            known: Table::ALL.map(Table::name).join(", "),
        })
    }

    /// Rows at `scale`; exact except for `lineitem`, whose orders have one to seven lines each.
    pub fn approximate_rows(self, scale: f64) -> u64 {
        let per_unit = match self {
            Table::Nation => return 25,
            Table::Region => return 5,
            Table::Part => 200_000.0,
            Table::Supplier => 10_000.0,
            Table::Partsupp => 800_000.0,
            Table::Customer => 150_000.0,
            Table::Orders => 1_500_000.0,
            Table::Lineitem => 6_000_000.0,
        };
        (per_unit * scale) as u64
    }

    fn num_parts(self, scale: f64) -> usize {
        let rows = self.approximate_rows(scale);
        let least = if rows > SEVERAL_GROUPS_ABOVE { 4 } else { 1 };
        rows.div_ceil(ROW_GROUP_ROWS).max(least) as usize
    }

    /// Schema of the table.
    pub fn schema(self) -> SchemaRef {
        match self {
            Table::Nation => NationArrow::schema_ref(),
            Table::Region => RegionArrow::schema_ref(),
            Table::Part => PartArrow::schema_ref(),
            Table::Supplier => SupplierArrow::schema_ref(),
            Table::Partsupp => PartSuppArrow::schema_ref(),
            Table::Customer => CustomerArrow::schema_ref(),
            Table::Orders => OrderArrow::schema_ref(),
            Table::Lineitem => LineItemArrow::schema_ref(),
        }
    }

    /// The rows of part `part` (from 0) of `num_parts`.
    ///
    /// # Errors
    /// [`DataError::Scale`] for a scale that is not finite, not positive or too large; [`DataError::Arrow`] from the
    /// generator.
    pub fn part(self, scale: f64, part: usize, num_parts: usize) -> Result<Vec<RecordBatch>, DataError> {
        check_scale(scale)?;
        let (part, num_parts) = (part as i32 + 1, num_parts as i32);
        let batches: Result<Vec<RecordBatch>, ArrowError> = match self {
            Table::Nation => {
                NationArrow::new(NationGenerator::new(scale, part, num_parts)).with_batch_size(BATCH_ROWS).collect()
            }
            Table::Region => {
                RegionArrow::new(RegionGenerator::new(scale, part, num_parts)).with_batch_size(BATCH_ROWS).collect()
            }
            Table::Part => {
                PartArrow::new(PartGenerator::new(scale, part, num_parts)).with_batch_size(BATCH_ROWS).collect()
            }
            Table::Supplier => {
                SupplierArrow::new(SupplierGenerator::new(scale, part, num_parts)).with_batch_size(BATCH_ROWS).collect()
            }
            Table::Partsupp => {
                PartSuppArrow::new(PartSuppGenerator::new(scale, part, num_parts)).with_batch_size(BATCH_ROWS).collect()
            }
            Table::Customer => {
                CustomerArrow::new(CustomerGenerator::new(scale, part, num_parts)).with_batch_size(BATCH_ROWS).collect()
            }
            Table::Orders => {
                OrderArrow::new(OrderGenerator::new(scale, part, num_parts)).with_batch_size(BATCH_ROWS).collect()
            }
            Table::Lineitem => {
                LineItemArrow::new(LineItemGenerator::new(scale, part, num_parts)).with_batch_size(BATCH_ROWS).collect()
            }
        };
        batches.map_err(|source| DataError::Arrow { table: self.name().to_string(), source })
    }
}

/// Options of a generation.
#[derive(Debug, Clone)]
pub struct Options {
    /// Scale factor; 1 is about 1 GB of raw text.
    pub scale: f64,
    /// Output folder; created if missing.
    pub out: PathBuf,
    /// Tables to write.
    pub tables: Vec<Table>,
    /// Generator threads; 0 means one per core.
    pub threads: usize,
    pub codec: Codec,
    /// Rules for existing files.
    pub files: Arc<dyn Files>,
    /// Set by the caller to end the generation with [`DataError::Stopped`].
    pub stop: Arc<AtomicBool>,
}

impl Options {
    /// All tables at `scale` into `out`.
    pub fn new(scale: f64, out: impl Into<PathBuf>) -> Self {
        let (tables, codec, stop) = (Table::ALL.to_vec(), Codec::default(), Arc::default());
        Self { scale, out: out.into(), tables, threads: 0, codec, files: Arc::new(Replaced), stop }
    }
}

/// Writes the tables and returns one entry per file.
///
/// `progress` is called from any thread with the table and the rows just written.
///
/// # Errors
/// [`DataError`]; finished files are kept, a partial file is not.
pub fn generate(options: &Options, progress: &(dyn Fn(Table, u64) + Sync)) -> Result<Vec<WrittenFile>, DataError> {
    check_scale(options.scale)?;
    make_folder(&options.out)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| DataError::Threads { threads: options.threads, reason: error.to_string() })?;
    let path_of = |table: Table| options.out.join(format!("{}.parquet", table.name()));
    options.tables.iter().try_for_each(|table| options.files.prepare(&path_of(*table)))?;
    pool.install(|| {
        let mut files = Vec::with_capacity(options.tables.len());
        for &table in &options.tables {
            let path = path_of(table);
            let num_parts = table.num_parts(options.scale);
            let part = |index| match options.stop.load(Ordering::Relaxed) {
                true => Err(DataError::Stopped),
                false => table.part(options.scale, index, num_parts),
            };
            let report = |rows| progress(table, rows);
            let properties =
                device_layout(&table.schema(), options.codec, |column| values(column, options.scale)).build();
            files.push(write_parts(&*options.files, &path, &table.schema(), properties, num_parts, part, &report)?);
        }
        Ok(files)
    })
}

fn check_scale(scale: f64) -> Result<(), DataError> {
    if scale.is_finite() && scale > 0.0 && scale <= MAX_SCALE {
        Ok(())
    } else {
        Err(DataError::Scale { scale, most: MAX_SCALE })
    }
}
