//! Location of a table's files: a file, a folder including its subfolders, or the matches of a pattern below a folder.
//!
//! ```text
//!   data/a.parquet    that file, hidden or not               data/            all files below it that are not hidden
//!   data/*/[a-c]*     matches as in a shell (`files::pattern`)
//! ```
//!
//! Hidden   in folders: names that start with a dot, or with `_` and without `=`. Hive and Spark use such files for
//!          metadata.
//! Empty    files of 0 bytes have no rows; an empty Parquet file is an error, as in DuckDB.
//! Lists    are not cached, except for recent answers of remote stores (`store::Checks`).

use datafusion::arrow::datatypes::FieldRef;
use datafusion::catalog::Session;
use datafusion::common::{ScalarValue, TableReference, plan_err};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTableUrl};
use datafusion::error::{DataFusionError, Result};
use datafusion::object_store::path::Path;
use datafusion::object_store::{Error, ObjectMeta};
use datafusion::parquet::errors::ParquetError;

use crate::files::address;
use crate::files::keys;
use crate::files::pattern::Pattern;
use crate::store::{Age, Checks};

/// A location of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The file, or the folder that `pattern` is relative to.
    url: ListingTableUrl,
    pattern: Option<Pattern>,
    /// Extension of its files.
    ending: String,
}

impl Place {
    /// # Errors
    /// If the path is not a valid URL, or the pattern has too many alternatives.
    pub fn parse(path: &str) -> Result<Self> {
        let address = address::of_source(path);
        let (url, pattern) = match address.contains("://") {
            true => (ListingTableUrl::parse(&address)?, None),
            false => match Pattern::split(&address)? {
                Some((folder, pattern)) => (ListingTableUrl::parse(folder)?, Some(pattern)),
                None => (ListingTableUrl::parse(&address)?, None),
            },
        };
        Ok(Self { url, pattern, ending: String::new() })
    }

    /// Restricts the location to files with this extension.
    pub fn with_ending(mut self, ending: impl Into<String>) -> Self {
        self.ending = ending.into();
        self
    }

    /// Sets the table of the files.
    pub fn of_table(mut self, table: TableReference) -> Self {
        self.url = self.url.with_table_ref(table);
        self
    }

    pub fn url(&self) -> &ListingTableUrl {
        &self.url
    }

    pub fn is_pattern(&self) -> bool {
        self.pattern.is_some()
    }

    /// True for a folder without a pattern.
    pub fn is_folder(&self) -> bool {
        self.url.is_collection() && self.pattern.is_none()
    }

    /// # Errors
    /// Unless it is a folder: an INSERT adds new files to a folder.
    pub fn takes_rows(&self) -> Result<()> {
        match (self.url.is_collection(), self.is_pattern()) {
            (true, false) => Ok(()),
            (true, true) => plan_err!(
                "a table over a pattern of paths takes no rows: define one over the folder itself, LOCATION '{}'",
                self.url.get_url().path()
            ),
            (false, _) => plan_err!(
                "Inserting into a ListingTable backed by a single file is not supported, URL is possibly missing a trailing `/`. \
                 To append to an existing file use StreamTable, e.g. by using CREATE UNBOUNDED EXTERNAL TABLE"
            ),
        }
    }

    /// Current files that are not empty.
    ///
    /// # Errors
    /// The store's; an empty Parquet file.
    pub async fn files(&self, session: &dyn Session, options: &ListingOptions) -> Result<Vec<ObjectMeta>> {
        self.with_rows(self.listed(session).await?, options)
    }

    /// Removes empty files.
    ///
    /// # Errors
    /// An empty Parquet file.
    pub fn with_rows(&self, mut files: Vec<ObjectMeta>, options: &ListingOptions) -> Result<Vec<ObjectMeta>> {
        if let Some(empty) = files.iter().find(|file| self.is_false(file, options)) {
            let empty = shown(&self.url, &empty.location);
            let why = "a Parquet file ends with its footer: write it again, or remove it";
            return Err(ParquetError::General(format!("the file '{empty}' is empty, and {why}")).into());
        }
        files.retain(|file| file.size > 0);
        Ok(files)
    }

    /// True for an invalid, empty Parquet file. Some stores represent folders by empty files.
    fn is_false(&self, file: &ObjectMeta, options: &ListingOptions) -> bool {
        let is_named = !self.url.is_collection() || file.location.extension() == Some("parquet");
        file.size == 0 && is_named && options.format.is::<ParquetFormat>()
    }

    /// Current files, sorted by name.
    ///
    /// # Errors
    /// The store's.
    pub async fn listed(&self, session: &dyn Session) -> Result<Vec<ObjectMeta>> {
        let store = session.runtime_env().object_store(&self.url)?;
        let (checks, of) = (Checks::of(session.config()), self.url.object_store());
        if !self.url.is_collection() {
            match checks.head(&of, &store, self.url.prefix(), Age::Lately).await {
                Ok(file) if self.has_ending(&file) => return Ok(vec![file]),
                Ok(_) => return Ok(vec![]),
                // The path may be a prefix of names, for stores without folders.
                Err(DataFusionError::ObjectStore(error)) if matches!(*error, Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let listed = checks.list(&of, &store, self.url.prefix()).await?;
        Ok(listed.iter().filter(|file| self.has(&file.location)).cloned().collect())
    }

    /// True for a file of this location.
    fn has(&self, file: &Path) -> bool {
        let Some(names) = self.names(file) else { return false };
        let is_found = match &self.pattern {
            Some(pattern) => pattern.matches(&names),
            None => !names.iter().any(|name| is_hidden(name)),
        };
        is_found && ends_with(file, &self.ending)
    }

    /// True for a file with the extension of this location.
    pub fn has_ending(&self, file: &ObjectMeta) -> bool {
        ends_with(&file.location, &self.ending)
    }

    /// Path components below the folder.
    fn names<'a>(&'a self, file: &'a Path) -> Option<Vec<&'a str>> {
        self.url.strip_prefix(file).map(Iterator::collect)
    }

    /// Keys in the names of a file's folders: names and texts.
    pub fn keys(&self, file: &Path) -> Vec<(String, String)> {
        let names = self.names(file).unwrap_or_default();
        let folders = names.split_last().map_or(&[][..], |(_, folders)| folders);
        let found = folders.iter().filter_map(|folder| keys::key(folder));
        found.map(|(name, text)| (name.into_owned(), text.into_owned())).collect()
    }

    /// Values of a table's keys for a file; `None` for a file that is not in folders with these keys.
    ///
    /// # Errors
    /// If a text is not a value of its key's type.
    pub fn values(&self, file: &Path, of: &[FieldRef]) -> Result<Option<Vec<ScalarValue>>> {
        if of.is_empty() {
            return Ok(Some(vec![]));
        }
        let mut found = self.keys(file).into_iter();
        let mut values = Vec::with_capacity(of.len());
        for key in of {
            match found.find(|(name, _)| name == key.name()) {
                Some((_, text)) => values.push(keys::value(&text, key)?),
                None => return Ok(None),
            }
        }
        Ok(Some(values))
    }
}

/// True for files that Hive and Spark ignore: markers, and unfinished files.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || (name.starts_with('_') && !name.contains('='))
}

/// True for a name with this extension, ignoring case.
fn ends_with(file: &Path, ending: &str) -> bool {
    let name = file.as_ref().as_bytes();
    name.len().checked_sub(ending.len()).is_some_and(|at| name[at..].eq_ignore_ascii_case(ending.as_bytes()))
}

/// Path of a file for messages.
pub(super) fn shown(url: &ListingTableUrl, file: &Path) -> String {
    match url.scheme() {
        "file" => format!("/{file}"),
        _ => format!("{}{file}", url.object_store().as_str()),
    }
}
