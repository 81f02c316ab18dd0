//! Infers properties of a table from its paths: file format, folder keys and columns.
//!
//! ```text
//!   months/month=9/day=2020-02-29/p.parquet ─┐
//!   months/month=01/day=0999-01-01/p.parquet ┴─► keys month BIGINT, day DATE · columns of both files
//! ```
//!
//! Format   of a path in a query: that of its files, by their extensions, ignoring case. Files without a known
//!          extension are skipped; files of two formats are refused.
//! Keys     are integers or dates if the keys of all folders are, otherwise texts; as in DuckDB, except for timestamps.
//! Refused  folders with differing keys, or only some with keys; Parquet files with two columns of one name.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::{TableReference, exec_err, plan_err};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTableConfig};
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::{SessionContext, SessionState};
use datafusion::object_store::ObjectMeta;

use crate::files::keys;
use crate::tables::FileTable;
use crate::tables::place::{Place, shown};

/// Table for a path in a query; `None` if there are no files of a known format.
///
/// # Errors
/// A pattern without matches; errors of [`columns`] and [`keys_of`].
pub(crate) async fn named(state: &SessionState, path: &str) -> Result<Option<FileTable>> {
    let place = match Place::parse(path) {
        Ok(place) => place,
        Err(error @ DataFusionError::Plan(_)) => return Err(error),
        Err(_) => return Ok(None),
    };
    // A path that cannot be listed is not a table.
    let Ok(files) = place.listed(state).await else { return Ok(None) };
    if files.is_empty() && place.is_pattern() && is_meant(state, path) {
        return plan_err!("no file matches '{path}'");
    }
    let mut formats = files.iter().filter_map(|file| {
        let (ending, compression) = ending_of(file.location.as_ref())?;
        let whole = compression.as_ref().map_or(ending.clone(), |how| format!("{ending}.{how}"));
        Some((file, state.get_file_format_factory(&ending)?, compression, whole))
    });
    let Some((first, factory, compression, ending)) = formats.next() else { return Ok(None) };
    if let Some((other, ..)) = formats.find(|(.., other)| *other != ending) {
        return plan_err!(
            "'{path}' has files of several formats, such as '{}' and '{}': name those of one, as in '*.{ending}'",
            shown(place.url(), &first.location),
            shown(place.url(), &other.location)
        );
    }
    let options = compression.iter().map(|how| ("format.compression".to_string(), how.clone())).collect();
    let Ok(format) = factory.create(state, &options) else { return Ok(None) };
    let place = place.with_ending(&ending);
    let options = ListingOptions::new(format).with_file_extension(ending);
    let files = files.into_iter().filter(|file| place.has_ending(file)).collect();
    let found = Found { place, files };
    let keys = keys_of(std::slice::from_ref(&found), None)?;
    let of_files = without_keys(columns(state, &found, &options).await?, &keys)?;
    let options = options.with_table_partition_cols(names_and_types(&keys));
    let config = ListingTableConfig::new(found.place.url().clone()).with_listing_options(options);
    let config = config.with_schema(Arc::clone(&of_files));
    Ok(Some(FileTable::try_new(config, vec![found.place], of_files, keys, None)?))
}

/// Extension of a file name and that of its compression, in lower case.
fn ending_of(path: &str) -> Option<(String, Option<String>)> {
    ListingTableConfig::infer_file_extension_and_compression_type(&path.to_lowercase()).ok()
}

/// False for a text with a star or a bracket that is not a path, such as a query passed as a table name to a function.
fn is_meant(state: &SessionState, path: &str) -> bool {
    !path.contains(char::is_whitespace)
        || ending_of(path).is_some_and(|(ending, _)| state.get_file_format_factory(&ending).is_some())
}

/// A location with its listed files.
pub(super) struct Found {
    pub place: Place,
    pub files: Vec<ObjectMeta>,
}

impl Found {
    /// # Errors
    /// The store's.
    pub async fn look(place: Place, state: &SessionState) -> Result<Self> {
        let files = place.listed(state).await?;
        Ok(Self { place, files })
    }
}

/// A table over the files of a path, read with `options`, with their columns. Folder names are not used as keys.
///
/// # Errors
/// If files cannot be read, or a file has another extension.
pub async fn opened(
    context: &SessionContext,
    name: TableReference,
    path: &str,
    options: ListingOptions,
) -> Result<Arc<dyn TableProvider>> {
    let state = context.state();
    let place = Place::parse(path)?.with_ending(&options.file_extension).of_table(name);
    let (address, ending) = (place.url().as_str(), &options.file_extension);
    if !place.url().is_collection() && !address.ends_with(ending) {
        return exec_err!("File path '{address}' does not match the expected extension '{ending}'");
    }
    let found = Found::look(place, &state).await?;
    let of_files = columns(&state, &found, &options).await?;
    let config = ListingTableConfig::new(found.place.url().clone()).with_listing_options(options);
    let config = config.with_schema(Arc::clone(&of_files));
    let statistics = state.runtime_env().cache_manager.get_file_statistic_cache();
    Ok(Arc::new(FileTable::try_new(config, vec![found.place], of_files, vec![], statistics)?))
}

/// Columns of a location's files.
///
/// # Errors
/// If files cannot be read or have incompatible columns, if there are none, or if a Parquet file has two columns of one
/// name.
pub(super) async fn columns(state: &SessionState, found: &Found, options: &ListingOptions) -> Result<SchemaRef> {
    let place = &found.place;
    if found.files.is_empty() {
        return plan_err!(
            "No files found at {}. Cannot infer schema from an empty location; either add data files or declare an explicit schema \
             for the table.",
            place.url()
        );
    }
    let files = place.with_rows(found.files.clone(), options)?;
    let store = state.runtime_env().object_store(place.url())?;
    let columns = options.format.infer_schema(state, &store, &files).await?;
    if options.format.is::<ParquetFormat>() {
        for file in &files {
            refuse_namesakes(state, place, file).await?;
        }
    }
    Ok(columns)
}

/// # Errors
/// For a Parquet file with two columns of one name: DataFusion reads only the first.
async fn refuse_namesakes(state: &SessionState, place: &Place, file: &ObjectMeta) -> Result<()> {
    let runtime = state.runtime_env();
    let store = runtime.object_store(place.url())?;
    let footer = DFParquetMetadata::new(store.as_ref(), file)
        .with_file_metadata_cache(Some(runtime.cache_manager.get_file_metadata_cache()));
    let footer = footer.fetch_metadata().await?;
    let mut seen = BTreeSet::new();
    let fields = footer.file_metadata().schema_descr().root_schema().get_fields();
    match fields.iter().find(|field| !seen.insert(field.name())) {
        Some(field) => plan_err!(
            "two columns of the file '{}' are called {}, and one of them would be lost: write the file with other names, or declare \
             its columns in CREATE EXTERNAL TABLE",
            shown(place.url(), &file.location),
            field.name()
        ),
        None => Ok(()),
    }
}

/// Folder keys of these locations, typed by their texts; `names` are the keys in the table's definition.
///
/// # Errors
/// If folders have differing keys, only some have keys, or they differ from `names`.
pub(super) fn keys_of(found: &[Found], names: Option<&[String]>) -> Result<Vec<FieldRef>> {
    let mut texts: HashMap<String, BTreeSet<String>> = HashMap::new();
    let mut first = Vec::new();
    for (index, found) in found.iter().enumerate() {
        let own = names_in(found, &mut texts)?;
        match names {
            // A folder without files implies no keys.
            Some(names) if !own.is_empty() && !own.starts_with(names) => {
                return plan_err!("Inferred partitions to be {own:?}, but got {names:?}");
            }
            _ if index == 0 => first = own,
            _ => {}
        }
    }
    let key = |name: &String| {
        let of = texts.get(name).and_then(|texts| keys::type_of(texts.iter().map(String::as_str)));
        let text = || DataType::Dictionary(Box::new(DataType::UInt16), Box::new(DataType::Utf8));
        Arc::new(Field::new(name, of.unwrap_or_else(text), true))
    };
    Ok(names.unwrap_or(&first).iter().map(key).collect())
}

/// Names of the keys of a location's files; collects their texts.
fn names_in(found: &Found, texts: &mut HashMap<String, BTreeSet<String>>) -> Result<Vec<String>> {
    let mut all: Option<Vec<String>> = None;
    for file in &found.files {
        let keys = found.place.keys(&file.location);
        let names: Vec<String> = keys.iter().map(|(name, _)| name.clone()).collect();
        match &all {
            Some(all) if *all != names => {
                let mut both = [all, &names];
                both.sort();
                return plan_err!(
                    "Found mixed partition values on disk {both:?}: name the folder, or a pattern of folders, whose files have the \
                     same keys"
                );
            }
            Some(_) => {}
            None => all = Some(names),
        }
        for (name, text) in keys {
            texts.entry(name).or_default().insert(text);
        }
    }
    Ok(all.unwrap_or_default())
}

/// Removes columns that are folder keys: the folder's value takes precedence.
///
/// # Errors
/// Arrow's, which does not occur here.
pub(super) fn without_keys(columns: SchemaRef, keys: &[FieldRef]) -> Result<SchemaRef> {
    let is_key = |field: &FieldRef| keys.iter().any(|key| key.name() == field.name());
    let kept = columns.fields().iter().enumerate().filter(|(_, field)| !is_key(field)).map(|(index, _)| index);
    let kept: Vec<usize> = kept.collect();
    Ok(if kept.len() == columns.fields().len() { columns } else { Arc::new(columns.project(&kept)?) })
}

/// Converts keys to DataFusion's form of partition columns.
pub(super) fn names_and_types(keys: &[FieldRef]) -> Vec<(String, DataType)> {
    keys.iter().map(|key| (key.name().clone(), key.data_type().clone())).collect()
}
