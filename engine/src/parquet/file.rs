//! A Parquet file of a scan: its footer, the source of each scan column, and its bytes.
//!
//!   table  a Int64 | b Utf8View | c Date32 | day=…        file  b BYTE_ARRAY | a INT64
//!   ─►     a: leaf 1 │ b: leaf 0 │ c: NULL │ day: the partition's value
//!
//! Types    a column of the file has the table's type, or one that DataFusion's reader converts to it: strings of
//!          another kind, INT96 in another unit. DataFusion reads any other file, with a reason.
//! Bytes    come from positioned reads of a local file, from range requests to a store, or from an application's own
//!          reader.
//! Changed  a file that has changed since planning is an error that names it.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::SystemTime;

use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef, TimeUnit};
use datafusion::common::{ScalarValue, exec_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::error::{DataFusionError, Result};
use datafusion::object_store::{
    GetOptions, GetResultPayload, OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload,
    coalesce_ranges,
};
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::arrow::parquet_column;
use datafusion::parquet::basic::Type as PhysicalType;
use datafusion::parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use millpond_memory::PinnedBytes;
use millpond_parquet::Conversion;

use crate::column::is_characters;
use crate::files::is_same_file;
use crate::parquet::scan::Opening;
use crate::parquet::scratch::{Scratch, ScratchPool};

/// Source of a scan column's values in one file.
#[derive(Debug, Clone)]
pub(crate) enum ColumnSource {
    /// A leaf column of the file, and the conversion of its values.
    Leaf(usize, Conversion),
    /// The value of a partition column, or NULL for a column that the file lacks.
    Constant(ScalarValue),
    /// Not read.
    Unused,
}

/// Reader of a file's bytes.
pub(crate) type Reader = Box<dyn AsyncFileReader>;
/// Bytes of a range, in the type that readers return.
type Bytes = <PutPayload as IntoIterator>::Item;

/// A file with its footer.
pub(crate) struct OpenFile {
    pub file: PartitionedFile,
    pub metadata: Arc<ParquetMetaData>,
    /// Columns of the file as the reader returns them; columns of the table have the table's types.
    pub schema: SchemaRef,
    /// By the scan's columns.
    pub columns: Vec<ColumnSource>,
    bytes: Source,
}

/// Source of a file's bytes.
enum Source {
    Local(File, Option<SystemTime>),
    Store(Arc<dyn ObjectStore>),
    Readers { factory: Arc<dyn ParquetFileReaderFactory>, partition: usize, metrics: ExecutionPlanMetricsSet },
}

/// Bytes of a range of a file.
pub(crate) enum FileBytes {
    Own(Scratch),
    Shared(Bytes),
    /// Pinned memory, from which the device copies.
    Pinned(Arc<PinnedBytes>, Range<usize>),
}

impl FileBytes {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Pinned(bytes, range) => &bytes[range.clone()],
        }
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.object_meta.location)
    }
}

impl Opening<'_> {
    pub fn reader(&self, partition: usize, file: &PartitionedFile) -> Result<Reader> {
        let options = &self.scan.source().table_parquet_options().global;
        let hint = file.metadata_size_hint.or(options.metadata_size_hint);
        Ok(self.factory.create_reader(partition, file.clone(), hint, self.metrics)?)
    }

    /// Reads the footer of a file and resolves its columns; returns the reason if DataFusion has to read it.
    ///
    /// # Errors
    /// If the file has changed since it was planned.
    pub async fn open(
        &self,
        partition: usize,
        file: &PartitionedFile,
    ) -> Result<std::result::Result<OpenFile, String>> {
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Skip);
        let mut reader = self.reader(partition, file)?;
        let footer = ArrowReaderMetadata::load_async(&mut reader, options);
        // DataFusion reports an invalid footer with its own message.
        let footer = match footer.await {
            Ok(footer) => footer,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let columns = match self.columns(file, &footer) {
            Ok(columns) => columns,
            Err(why) => return Ok(Err(why)),
        };
        let schema = self.file_schema(&footer);
        let bytes = self.source(partition, file).await?;
        Ok(Ok(OpenFile { file: file.clone(), metadata: Arc::clone(footer.metadata()), schema, columns, bytes }))
    }

    /// Sources of the scan's columns, or the reason why they cannot be read here.
    fn columns(
        &self,
        file: &PartitionedFile,
        footer: &ArrowReaderMetadata,
    ) -> std::result::Result<Vec<ColumnSource>, String> {
        let table = self.scan.table();
        let (of_files, in_files) = (table.file_schema(), table.file_schema().fields().len());
        let find = |(at, used): (&usize, &bool)| {
            if !used {
                return Ok(ColumnSource::Unused);
            }
            if let Some(partition) = at.checked_sub(in_files) {
                let value = file.partition_values.get(partition).cloned();
                return value.map(ColumnSource::Constant).ok_or_else(|| "a partition column has no value".to_string());
            }
            let field = of_files.field(*at);
            let name = field.name();
            if footer.schema().index_of(name).is_err() {
                let null = ScalarValue::try_from(field.data_type()).ok().filter(|_| field.is_nullable());
                return null.map(ColumnSource::Constant).ok_or_else(|| format!("it lacks column {name}"));
            }
            let Some((leaf, own)) = parquet_column(footer.parquet_schema(), footer.schema(), name) else {
                return Err(format!("column {name} is nested"));
            };
            let descriptor = footer.parquet_schema().column(leaf);
            let is_int96 = descriptor.physical_type() == PhysicalType::INT96;
            if !self.reads_as(own.data_type(), field.data_type(), is_int96) {
                return Err(format!("column {name} is {} there and {} here", own.data_type(), field.data_type()));
            }
            let conversion = Conversion::of(&descriptor, field.data_type());
            conversion.map(|how| ColumnSource::Leaf(leaf, how)).map_err(|why| format!("column {name}: {}", why.0))
        };
        self.scan.columns.iter().zip(self.used).map(find).collect()
    }

    /// Schema of the file, with the table's types where the reader returns these.
    fn file_schema(&self, footer: &ArrowReaderMetadata) -> SchemaRef {
        let of_files = self.scan.table().file_schema();
        let own = footer.schema();
        let field = |field: &datafusion::arrow::datatypes::FieldRef| {
            let leaf = parquet_column(footer.parquet_schema(), own, field.name());
            let is_int96 = leaf
                .is_some_and(|(leaf, _)| footer.parquet_schema().column(leaf).physical_type() == PhysicalType::INT96);
            match of_files.field_with_name(field.name()) {
                Ok(table) if self.reads_as(field.data_type(), table.data_type(), is_int96) => {
                    Arc::new(field.as_ref().clone().with_data_type(table.data_type().clone()))
                }
                _ => Arc::clone(field),
            }
        };
        let fields: Vec<_> = own.fields().iter().map(field).collect();
        Arc::new(Schema::new_with_metadata(fields, own.metadata().clone()))
    }

    /// True if DataFusion's reader returns a column of type `own` directly as the table's type, without a cast.
    fn reads_as(&self, own: &DataType, table: &DataType, is_int96: bool) -> bool {
        let is_bytes = |of: &DataType| matches!(of, DataType::Binary | DataType::LargeBinary | DataType::BinaryView);
        let is_text = |of: &DataType| is_characters(of) && !matches!(of, DataType::Dictionary(..));
        match table {
            // Times beyond the range of nanoseconds are an error, unless it reads nanoseconds.
            DataType::Timestamp(TimeUnit::Nanosecond, _) if is_int96 => {
                let options = &self.scan.source().table_parquet_options().global;
                options.coerce_int96.as_deref() == Some("ns")
            }
            DataType::Timestamp(..) if is_int96 => true,
            _ => own == table || is_text(own) && is_text(table) || is_bytes(own) && (is_bytes(table) || is_text(table)),
        }
    }

    async fn source(&self, partition: usize, file: &PartitionedFile) -> Result<Source> {
        let readers = || {
            let (factory, metrics) = (Arc::clone(&self.factory), self.metrics.clone());
            Source::Readers { factory, partition, metrics }
        };
        if !self.reads_store {
            return Ok(readers());
        }
        // A remote store would start to send the whole file.
        if !self.scan.is_local() {
            return Ok(Source::Store(Arc::clone(&self.store)));
        }
        let location = &file.object_meta.location;
        let got =
            self.store.get_opts(location, GetOptions::default()).await.map_err(|error| unreadable(file, error))?;
        let GetResultPayload::File(local, _) = got.payload else { return Ok(readers()) };
        if !is_same_file(&got.meta, &file.object_meta) {
            return Err(changed(file));
        }
        let modified = local.metadata().and_then(|now| now.modified()).ok();
        Ok(Source::Local(local, modified))
    }
}

/// A tag without the parts that listings and responses write differently: quotes and the weak mark.
fn bare(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

fn changed(file: &PartitionedFile) -> DataFusionError {
    let location = &file.object_meta.location;
    exec_datafusion_err!("file {location} has changed since the query was planned; run the query again")
}

/// Adds the file name, which errors of the system and of stores lack.
fn unreadable(file: &PartitionedFile, error: impl Into<DataFusionError>) -> DataFusionError {
    error.into().context(format!("file {} cannot be read", file.object_meta.location))
}

impl OpenFile {
    /// Number of NULLs in a column of a row group, if the footer contains it.
    pub fn nulls(&self, row_group: usize, column: &str) -> Option<u64> {
        let leaves = self.metadata.file_metadata().schema_descr();
        let (leaf, field) = parquet_column(leaves, &self.schema, column)?;
        match field.is_nullable() {
            true => self.chunk_nulls(row_group, leaf),
            false => Some(0),
        }
    }

    /// NULL count of a leaf column, from the chunk's statistics.
    pub fn chunk_nulls(&self, row_group: usize, leaf: usize) -> Option<u64> {
        match self.metadata.file_metadata().schema_descr().column(leaf).max_def_level() {
            0 => Some(0),
            _ => self.chunk(row_group, leaf).statistics()?.null_count_opt(),
        }
    }

    pub fn chunk(&self, row_group: usize, leaf: usize) -> &ColumnChunkMetaData {
        self.metadata.row_group(row_group).column(leaf)
    }

    /// True if the bytes are read on the reader's own thread.
    pub fn is_local(&self) -> bool {
        matches!(self.bytes, Source::Local(..))
    }

    /// Reads ranges of a local file on this thread; `None` for other files.
    ///
    /// # Errors
    /// The system's, or if the file has changed.
    pub fn read_local(&self, ranges: &[Range<u64>], scratch: &Arc<ScratchPool>) -> Option<Result<Vec<FileBytes>>> {
        let read = |range: &Range<u64>| {
            let mut bytes = scratch.take((range.end - range.start) as usize);
            self.read_exact(range, &mut bytes)?;
            Ok(FileBytes::Own(bytes))
        };
        self.is_local().then(|| {
            let read: Result<Vec<FileBytes>> = ranges.iter().map(read).collect();
            self.is_as_planned().and(read)
        })
    }

    /// Reads the bytes of a range of a local file.
    ///
    /// # Errors
    /// The system's, or if the file is too short.
    pub fn read_exact(&self, range: &Range<u64>, into: &mut [u8]) -> Result<()> {
        let Source::Local(local, _) = &self.bytes else { return Err(changed(&self.file)) };
        match local.read_exact_at(into, range.start) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(changed(&self.file)),
            Err(error) => Err(unreadable(&self.file, error)),
        }
    }

    /// Checks a local file again after its bytes were read.
    ///
    /// # Errors
    /// If the file has changed since it was planned.
    pub fn is_as_planned(&self) -> Result<()> {
        let Source::Local(local, modified) = &self.bytes else { return Ok(()) };
        let now = local.metadata().ok();
        let same = now.is_some_and(|now| now.len() == self.file.object_meta.size && now.modified().ok() == *modified);
        if same { Ok(()) } else { Err(changed(&self.file)) }
    }

    /// Reads ranges of a file that is not local.
    ///
    /// # Errors
    /// The store's or the reader's, or if the file has changed since it was planned.
    pub async fn read_remote(&self, ranges: Vec<Range<u64>>) -> Result<Vec<FileBytes>> {
        let read = match &self.bytes {
            Source::Local(..) => vec![],
            Source::Store(store) => {
                let fetch = |range| self.fetch(store.as_ref(), range);
                coalesce_ranges(&ranges, fetch, OBJECT_STORE_COALESCE_DEFAULT).await?
            }
            Source::Readers { factory, partition, metrics } => {
                let mut reader = factory.create_reader(*partition, self.file.clone(), None, metrics)?;
                reader.get_byte_ranges(ranges).await.map_err(|error| unreadable(&self.file, error))?
            }
        };
        Ok(read.into_iter().map(FileBytes::Shared).collect())
    }

    async fn fetch(&self, store: &dyn ObjectStore, range: Range<u64>) -> Result<Bytes> {
        let planned = &self.file.object_meta;
        let is_planned = |now: &ObjectMeta| {
            let tags = now.e_tag.as_ref().zip(planned.e_tag.as_ref());
            let same =
                tags.map_or(now.last_modified == planned.last_modified, |(now, planned)| bare(now) == bare(planned));
            same && now.size == planned.size
        };
        // If-Match never matches a weak tag, and a tag without quotes, as in Azure's listings, is invalid; the
        // response's tag is compared below.
        let strong = planned.e_tag.clone().filter(|tag| tag.starts_with('"'));
        let options = GetOptions::new().with_range(Some(range)).with_if_match(strong);
        match store.get_opts(&planned.location, options).await {
            Ok(got) if is_planned(&got.meta) => got.bytes().await.map_err(|error| unreadable(&self.file, error)),
            Ok(_) => Err(changed(&self.file)),
            // For a range beyond the end of a truncated file, stores return verbose errors.
            Err(error) => match store.head(&planned.location).await {
                Ok(now) if !is_planned(&now) => Err(changed(&self.file)),
                _ => Err(unreadable(&self.file, error)),
            },
        }
    }
}
