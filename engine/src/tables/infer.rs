//! What paths say of a table: the format of its files, the keys of its folders, and its columns.
//!
//! ```text
//!   months/month=9/day=2020-02-29/p.parquet ─┐
//!   months/month=01/day=0999-01-01/p.parquet ┴─► keys month BIGINT, day DATE · columns of both files
//! ```
//!
//! Format   of a path that a query names: that of its files, by their endings, in letters of either case. Files whose endings have none are
//!          left out; files of two formats are refused.
//! Keys     are whole numbers or dates where all folders have such, else texts; as DuckDB takes them, but for times of day.
//! Refused  folders of which some have other keys, or none; Parquet files with two columns of one name.

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

/// The table of a path that a query names; `None` where there are no files of a known format.
///
/// # Errors
/// A pattern that finds nothing; what [`columns`] and [`keys_of`] refuse.
pub(crate) async fn named(state: &SessionState, path: &str) -> Result<Option<FileTable>> {
    let place = match Place::parse(path) {
        Ok(place) => place,
        Err(error @ DataFusionError::Plan(_)) => return Err(error),
        Err(_) => return Ok(None),
    };
    // What cannot be looked at is no table.
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

/// The ending of a file's name and that of its compression, in small letters.
fn ending_of(path: &str) -> Option<(String, Option<String>)> {
    ListingTableConfig::infer_file_extension_and_compression_type(&path.to_lowercase()).ok()
}

/// True unless a text with a star or a bracket is something else, such as a query where a function takes the name of a table.
fn is_meant(state: &SessionState, path: &str) -> bool {
    !path.contains(char::is_whitespace)
        || ending_of(path).is_some_and(|(ending, _)| state.get_file_format_factory(&ending).is_some())
}

/// A place, and its files as it was looked at.
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

/// A table over the files of a path, read as `options` say, with their columns. The names of folders are no keys.
///
/// # Errors
/// What cannot be read, and a file of another ending.
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

/// The columns of a place's files.
///
/// # Errors
/// Files that cannot be read, or whose columns do not go together; none at all; two columns of one name in a Parquet file.
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
/// Of a Parquet file with two columns of one name: DataFusion reads the first alone.
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

/// The keys of the folders of these places, with the types of their texts; `names` are those that a table was defined with.
///
/// # Errors
/// Folders of which some have other keys, or none; others than `names`.
pub(super) fn keys_of(found: &[Found], names: Option<&[String]>) -> Result<Vec<FieldRef>> {
    let mut texts: HashMap<String, BTreeSet<String>> = HashMap::new();
    let mut first = Vec::new();
    for (index, found) in found.iter().enumerate() {
        let own = names_in(found, &mut texts)?;
        match names {
            // Of a folder without files nothing is known.
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

/// The names of the keys of a place's files; adds their texts.
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

/// The columns but those that are keys of folders: there the folder's value counts.
///
/// # Errors
/// Arrow's, which has none here.
pub(super) fn without_keys(columns: SchemaRef, keys: &[FieldRef]) -> Result<SchemaRef> {
    let is_key = |field: &FieldRef| keys.iter().any(|key| key.name() == field.name());
    let kept = columns.fields().iter().enumerate().filter(|(_, field)| !is_key(field)).map(|(index, _)| index);
    let kept: Vec<usize> = kept.collect();
    Ok(if kept.len() == columns.fields().len() { columns } else { Arc::new(columns.project(&kept)?) })
}

/// As DataFusion has partition columns.
pub(super) fn names_and_types(keys: &[FieldRef]) -> Vec<(String, DataType)> {
    keys.iter().map(|key| (key.name().clone(), key.data_type().clone())).collect()
}
