//! Where the files of a table are: a file, a folder with all below it, or what a pattern finds below one.
//!
//! ```text
//!   data/a.parquet    that file, hidden or not               data/            all files below it that are not hidden
//!   data/*/[a-c]*     what a shell finds (`files::pattern`)
//! ```
//!
//! Hidden   in folders: names that begin with a dot, or with `_` and have no `=`. Hive and Spark keep what is no row in such files.
//! Empty    files of 0 bytes have no rows; a Parquet file of 0 bytes is an error, as for DuckDB.
//! Lists    are not remembered, but for what remote stores said a moment ago (`store::Checks`).

use datafusion::arrow::datatypes::FieldRef;
use datafusion::catalog::Session;
use datafusion::common::{ScalarValue, TableReference, plan_err};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTableUrl};
use datafusion::error::{DataFusionError, Result};
use datafusion::object_store::path::Path;
use datafusion::object_store::{Error, ObjectMeta};
use datafusion::parquet::errors::ParquetError;

use crate::address;
use crate::files::keys;
use crate::files::pattern::Pattern;
use crate::store::{Age, Checks};

/// One of the paths of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The file, or the folder that `pattern` is below.
    url: ListingTableUrl,
    pattern: Option<Pattern>,
    /// How the names of its files end.
    ending: String,
}

impl Place {
    /// # Errors
    /// A path that is no address, or a pattern of too many alternatives.
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

    /// Files of another ending are none of it.
    pub fn with_ending(mut self, ending: impl Into<String>) -> Self {
        self.ending = ending.into();
        self
    }

    /// The table that its files are of.
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

    /// A folder, and no pattern.
    pub fn is_folder(&self) -> bool {
        self.url.is_collection() && self.pattern.is_none()
    }

    /// # Errors
    /// Of what is no folder: rows of an INSERT become new files in one.
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

    /// The same, those that have bytes.
    ///
    /// # Errors
    /// The store's; a Parquet file without a byte.
    pub async fn files(&self, session: &dyn Session, options: &ListingOptions) -> Result<Vec<ObjectMeta>> {
        self.with_rows(self.listed(session).await?, options)
    }

    /// Those of its files that have bytes.
    ///
    /// # Errors
    /// A Parquet file without a byte.
    pub fn with_rows(&self, mut files: Vec<ObjectMeta>, options: &ListingOptions) -> Result<Vec<ObjectMeta>> {
        if let Some(empty) = files.iter().find(|file| self.is_false(file, options)) {
            let empty = shown(&self.url, &empty.location);
            let why = "a Parquet file ends with its footer: write it again, or remove it";
            return Err(ParquetError::General(format!("the file '{empty}' is empty, and {why}")).into());
        }
        files.retain(|file| file.size > 0);
        Ok(files)
    }

    /// True for a Parquet file of 0 bytes. Stores of others have such files for folders.
    fn is_false(&self, file: &ObjectMeta, options: &ListingOptions) -> bool {
        let is_named = !self.url.is_collection() || file.location.extension() == Some("parquet");
        file.size == 0 && is_named && options.format.is::<ParquetFormat>()
    }

    /// Its files as they are now, by name.
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
                // A prefix of names, for stores that have no folders.
                Err(DataFusionError::ObjectStore(error)) if matches!(*error, Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let listed = checks.list(&of, &store, self.url.prefix()).await?;
        Ok(listed.iter().filter(|file| self.has(&file.location)).cloned().collect())
    }

    /// True for what is among its files.
    fn has(&self, file: &Path) -> bool {
        let Some(names) = self.names(file) else { return false };
        let is_found = match &self.pattern {
            Some(pattern) => pattern.matches(&names),
            None => !names.iter().any(|name| is_hidden(name)),
        };
        is_found && ends_with(file, &self.ending)
    }

    /// True for a file whose name ends as those of this place.
    pub fn has_ending(&self, file: &ObjectMeta) -> bool {
        ends_with(&file.location, &self.ending)
    }

    /// The names below the folder.
    fn names<'a>(&'a self, file: &'a Path) -> Option<Vec<&'a str>> {
        self.url.strip_prefix(file).map(Iterator::collect)
    }

    /// The keys in the names of a file's folders: names and texts.
    pub fn keys(&self, file: &Path) -> Vec<(String, String)> {
        let names = self.names(file).unwrap_or_default();
        let folders = names.split_last().map_or(&[][..], |(_, folders)| folders);
        let found = folders.iter().filter_map(|folder| keys::key(folder));
        found.map(|(name, text)| (name.into_owned(), text.into_owned())).collect()
    }

    /// The values that a file has of the keys of a table; `None` for a file that is not below such folders.
    ///
    /// # Errors
    /// A text that is no value of its key's type.
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

/// What Hive and Spark take for no row: marks, and files that are not finished.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || (name.starts_with('_') && !name.contains('='))
}

/// True for a name with an ending, in letters of either case.
fn ends_with(file: &Path, ending: &str) -> bool {
    let name = file.as_ref().as_bytes();
    name.len().checked_sub(ending.len()).is_some_and(|at| name[at..].eq_ignore_ascii_case(ending.as_bytes()))
}

/// A file as its user knows it.
pub(super) fn shown(url: &ListingTableUrl, file: &Path) -> String {
    match url.scheme() {
        "file" => format!("/{file}"),
        _ => format!("{}{file}", url.object_store().as_str()),
    }
}
