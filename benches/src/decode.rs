//! How fast the columns of Parquet files are decoded: as a query of the session does it, and by parquet-rs on all
//! cores.
//!
//! ```text
//!   each column ─┬─► SELECT count(*) WHERE column <> a constant      nothing kept, nothing pruned
//!                └─► parquet-rs, a task a row group                  into Arrow arrays
//! ```
//!
//! Time     the least of several runs after an uncounted one, from a plan to its answer: reading (the page cache is
//!          warm), headers, copies, decompression, decoding, and the filter.
//! Bytes    decoded: of the values as Arrow has them, strings with offsets. Strings in dictionaries are decoded to
//!          codes, far fewer bytes.
//! Checked  both count equally many rows that pass the filter.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond::datafusion::arrow::array::AsArray;
use millpond::datafusion::arrow::compute::kernels::cmp::neq;
use millpond::datafusion::arrow::datatypes::{DataType, Field, Int64Type};
use millpond::datafusion::common::{Column, ScalarValue};
use millpond::datafusion::error::{DataFusionError, Result};
use millpond::datafusion::functions_aggregate::expr_fn::count;
use millpond::datafusion::logical_expr::{Expr, lit};
use millpond::datafusion::parquet::arrow::ProjectionMask;
use millpond::datafusion::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use millpond::datafusion::prelude::{DataFrame, ParquetReadOptions};
use millpond::{Millpond, QueryReport, address, metric};
use rayon::prelude::*;

/// Settings of the session that columns are measured in: every run reads the files whole.
pub const SETTINGS: [&str; 2] = ["millpond.cache = off", "datafusion.execution.parquet.pruning = false"];

/// How fast one column was decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnSpeed {
    pub name: String,
    pub data_type: DataType,
    pub rows: u64,
    /// Bytes in the files, and in Arrow arrays.
    pub file_bytes: u64,
    pub decoded_bytes: u64,
    /// By the session.
    pub session: Duration,
    pub uploaded_bytes: u64,
    /// It was read by the session's own decoder, and its pages were decoded on the device.
    pub is_decoded: bool,
    pub is_on_device: bool,
    /// By parquet-rs.
    pub parquet_rs: Duration,
}

/// Files to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct Files {
    pub paths: Vec<PathBuf>,
    /// The names of columns, or lists of names with commas between them; all flat columns if there are none.
    pub columns: Vec<String>,
    /// Runs that count.
    pub repeat: u32,
}

/// Measures the columns of files that have the same ones; tells `progress` how many of how many are done. The session
/// needs [`SETTINGS`].
///
/// # Errors
/// Of a file that cannot be read, a column that is not there or is nested, and of queries.
pub async fn measure(session: &Millpond, of: &Files, progress: &dyn Fn(u64, u64)) -> Result<Vec<ColumnSpeed>> {
    let files = of.paths.iter().map(|path| Footer::read(path)).collect::<Result<Vec<_>>>()?;
    let paths: Vec<String> = of.paths.iter().map(|path| address::of_source(&path.display().to_string())).collect();
    let table = session.context().read_parquet(paths, ParquetReadOptions::default()).await?;
    let fields = table.schema().fields().clone();
    // A name may have commas itself.
    let is_name = |text: &str| fields.iter().any(|field| field.name() == text);
    let named = of.columns.iter().flat_map(|text| match is_name(text) {
        true => vec![text.as_str()],
        false => text.split(',').collect(),
    });
    let named: Vec<&str> = named.collect();
    let is_wanted = |name: &str| named.is_empty() || named.contains(&name);
    if let Some(missing) = named.iter().find(|name| !is_name(name)) {
        let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        return Err(DataFusionError::Plan(format!(
            "there is no column {missing}: the files have {}",
            names.join(", ")
        )));
    }
    let flat = |field: &&Arc<Field>| is_wanted(field.name()) && (!named.is_empty() || !field.data_type().is_nested());
    let wanted: Vec<_> = fields.iter().filter(flat).collect();
    let mut speeds = Vec::with_capacity(wanted.len());
    for (at, field) in wanted.iter().enumerate() {
        progress(at as u64, wanted.len() as u64);
        speeds.push(column(session, &table, &files, (field.name(), field.data_type()), of.repeat.max(1)).await?);
    }
    progress(wanted.len() as u64, wanted.len() as u64);
    Ok(speeds)
}

async fn column(
    session: &Millpond,
    table: &DataFrame,
    files: &[Footer],
    (name, data_type): (&str, &DataType),
    repeat: u32,
) -> Result<ColumnSpeed> {
    let column = Expr::Column(Column::from_name(name));
    let differs = column.clone().not_eq(lit(ScalarValue::new_default(data_type)?)).or(column.is_null());
    let query = table.clone().filter(differs)?.aggregate(vec![], vec![count(lit(1))])?;
    let mut least: Option<(Duration, QueryReport)> = None;
    let (mut is_decoded, mut is_on_device) = (false, false);
    let mut passed = None;
    for run in 0..=repeat {
        let plan = query.clone().create_physical_plan().await?;
        let began = Instant::now();
        let result = session.execute_plan(plan).await?;
        let took = began.elapsed();
        passed = result.batches.first().map(|batch| batch.column(0).as_primitive::<Int64Type>().value(0));
        if run == 0 {
            let counted = |name| millpond::source::counted(&result.plan, name);
            is_decoded = counted(metric::ROW_GROUPS) > 0
                && counted(metric::FOREIGN_FILES) + counted(metric::FOREIGN_ROW_GROUPS) == 0;
            is_on_device = counted(metric::COLUMNS_ON_DEVICE) > 0;
        } else if least.as_ref().is_none_or(|(least, _)| took < *least) {
            least = Some((took, result.report));
        }
    }
    let (session, report) = least.unwrap_or_default();
    let mut parquet_rs = Duration::MAX;
    let (mut rows, mut decoded_bytes) = (0, 0);
    let all = files.iter().flat_map(|file| (0..file.row_groups()).map(move |group| (file, group)));
    let pass: u64 = all.map(|(file, group)| file.pass(group, name)).sum::<Result<u64>>()?;
    if passed.and_then(|passed| u64::try_from(passed).ok()) != Some(pass) {
        let told = passed.map_or("nothing".to_string(), |passed| passed.to_string());
        return Err(DataFusionError::Execution(format!("column {name}: {told} rows pass, by parquet-rs {pass}")));
    }
    for _ in 0..=repeat {
        let began = Instant::now();
        let chunks: Vec<(&Footer, usize)> =
            files.iter().flat_map(|file| (0..file.row_groups()).map(move |group| (file, group))).collect();
        let read = chunks.par_iter().map(|(file, group)| file.decode(*group, name));
        (rows, decoded_bytes) = read.try_reduce(|| (0, 0), |a, b| Ok((a.0 + b.0, a.1 + b.1)))?;
        parquet_rs = parquet_rs.min(began.elapsed());
    }
    let file_bytes = files.iter().map(|file| file.bytes(name)).sum::<Result<u64>>()?;
    let uploaded_bytes = report.uploaded_bytes;
    let (name, data_type) = (name.to_string(), data_type.clone());
    Ok(ColumnSpeed {
        name,
        data_type,
        rows,
        file_bytes,
        decoded_bytes,
        session,
        uploaded_bytes,
        is_decoded,
        is_on_device,
        parquet_rs,
    })
}

/// A file, with its footer.
struct Footer {
    path: PathBuf,
    metadata: ArrowReaderMetadata,
}

impl Footer {
    fn read(path: &Path) -> Result<Self> {
        let named = |error: String| DataFusionError::Plan(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(|error| named(error.to_string()))?;
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new());
        Ok(Self { path: path.to_path_buf(), metadata: metadata.map_err(|error| named(error.to_string()))? })
    }

    fn row_groups(&self) -> usize {
        self.metadata.metadata().num_row_groups()
    }

    /// Bytes of a column's chunks in the file.
    fn bytes(&self, name: &str) -> Result<u64> {
        let (root, schema) = (self.root(name)?, self.metadata.parquet_schema());
        let leaves: Vec<usize> =
            (0..schema.num_columns()).filter(|leaf| schema.get_column_root_idx(*leaf) == root).collect();
        let groups = self.metadata.metadata().row_groups().iter();
        let chunks = groups.flat_map(|group| leaves.iter().map(|leaf| group.column(*leaf)));
        Ok(chunks.map(|chunk| chunk.compressed_size().max(0) as u64).sum())
    }

    /// The place of a column among those of the file: of several with its name the first, which queries read. A name
    /// may have dots.
    fn root(&self, name: &str) -> Result<usize> {
        Ok(self.metadata.schema().index_of(name)?)
    }

    /// Rows of a row group that pass the filter.
    fn pass(&self, group: usize, name: &str) -> Result<u64> {
        let mut pass = 0;
        for batch in self.reader(group, name)? {
            let batch = batch?;
            let array = batch.column(0);
            let differ = neq(array, &ScalarValue::new_default(array.data_type())?.to_scalar()?)?;
            // NULL differs from nothing, and passes all the same.
            pass += (differ.true_count() + array.logical_null_count()) as u64;
        }
        Ok(pass)
    }

    /// Decodes a column of a row group into Arrow arrays: its rows, and their bytes.
    fn decode(&self, group: usize, name: &str) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        for batch in self.reader(group, name)? {
            let batch = batch?;
            let bytes = batch.columns().iter().map(|array| array.to_data().get_slice_memory_size());
            sum = (sum.0 + batch.num_rows() as u64, sum.1 + bytes.sum::<std::result::Result<usize, _>>()? as u64);
        }
        Ok(sum)
    }

    fn reader(&self, group: usize, name: &str) -> Result<ParquetRecordBatchReader> {
        let columns = ProjectionMask::roots(self.metadata.parquet_schema(), [self.root(name)?]);
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(File::open(&self.path)?, self.metadata.clone());
        Ok(reader.with_row_groups(vec![group]).with_projection(columns).with_batch_size(8192).build()?)
    }
}
