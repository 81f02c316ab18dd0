//! Query suites: embedded in the binary, or folders of `.sql` files.
//!
//! ```text
//!   tpch, gpu-bdb ─┐                                       q01.sql  with $parameters ─┐
//!   path/to/folder ┴─► suite.toml + *.sql ─► Suite { tables, functions, queries: [Query { sql, check, step }] }
//! ```
//!
//! Query      one file of statements separated by `;`. `CREATE TABLE … AS` and `CREATE VIEW` prepare; the last one is
//!            the answer.
//! Parameters `$name` in the SQL; defaults in `[parameters]` (all queries) and `[query.ID.parameters]` (one).
//! Errors     contain the file, the key in it, and valid values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::check::Check;
use crate::gpu_bdb;
use crate::parameters::{Parameter, Parameters, names, substitute};
use crate::tpch;

/// A set of queries over a set of tables.
#[derive(Debug, Clone)]
pub struct Suite {
    /// Name on the command line.
    pub name: String,
    /// Title for people, one sentence.
    pub title: String,
    /// Tables read by the queries: `TABLE.parquet` or a folder `TABLE` in the data folder. `None`: all tables found
    /// there.
    pub tables: Option<Vec<String>>,
    /// Functions of `millpond_queries::functions` used by the queries.
    pub functions: Vec<String>,
    /// Command that generates the data, if known.
    pub data_command: Option<String>,
    pub queries: Vec<Query>,
}

/// One query of a suite.
#[derive(Debug, Clone)]
pub struct Query {
    /// `q01`, `q02`, …: the file name without its extension.
    pub id: String,
    /// The SQL text with parameter values inserted.
    pub sql: String,
    pub parameters: Parameters,
    /// Equality rules for two of its answers.
    pub check: Check,
    /// Equality rules for its prepared or derived tables, by table name.
    pub parts: BTreeMap<String, Check>,
    /// Step after the SQL: derived tables and a text.
    pub step: Option<gpu_bdb::Step>,
    /// The SQL text of the file, with placeholders.
    template: String,
    file: String,
}

/// Error of selecting a suite or a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    #[error(
        "no suite named '{name}'; the suites are {known}, and any folder with a suite.toml and .sql files (write ./{name})"
    )]
    UnknownSuite { name: String, known: String },
    #[error("suite {suite} has no query '{query}'; it has {first} to {last}, written as {example}")]
    UnknownQuery { suite: String, query: String, first: String, last: String, example: String },
    #[error("cannot read {}: {reason}; a suite is a folder with a suite.toml and .sql files", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{file}: {reason}")]
    Manifest { file: String, reason: String },
    #[error(
        "{file}: '{table}' in tables cannot be a table's name; it takes letters, digits and _, and its rows are NAME.parquet or the \
         folder NAME in the folder of --data"
    )]
    TableName { file: String, table: String },
    #[error("{folder}: a suite needs at least one .sql file beside suite.toml")]
    NoQueries { folder: String },
    #[error("{file}: [query.{key}] has no file {key}.sql beside it; the queries are {known}")]
    UnknownEntry { file: String, key: String, known: String },
    #[error("{file}:{line}: ${name} has no value; add {name} to [parameters] of suite.toml, or use one of: {known}")]
    Placeholder { file: String, line: usize, name: String, known: String },
    #[error(
        "{file}: parameter {name} of [query.{query}.parameters] is not used; write ${name} in {query}.sql, or drop it"
    )]
    UnusedParameter { file: String, query: String, name: String },
    #[error("--param takes NAME=VALUE or QUERY.NAME=VALUE, such as {example}, not '{text}'")]
    ParameterForm { text: String, example: String },
    #[error("suite {suite} has no parameter '{name}'; it has {known}")]
    UnknownParameter { suite: String, name: String, known: String },
    #[error("suite {suite} has no other constants for query {query}; the built-in suite tpch has some for each query")]
    NoOtherConstants { suite: String, query: String },
    #[error("parameter {name} cannot be '{value}': it takes {expected}, such as its default {default}")]
    ParameterValue { name: String, value: String, expected: &'static str, default: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    name: String,
    #[serde(default)]
    title: String,
    tables: Option<Vec<String>>,
    #[serde(default)]
    functions: Vec<String>,
    data_command: Option<String>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(default)]
    query: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    parameters: Parameters,
    #[serde(default)]
    check: Check,
    #[serde(default)]
    parts: BTreeMap<String, Check>,
}

/// Files of a suite, as in its folder.
struct Files {
    manifest: &'static str,
    queries: &'static [(&'static str, &'static str)],
}

macro_rules! files {
    ($folder:literal: $($id:literal)*) => {
        Files {
            manifest: include_str!(concat!("../", $folder, "/suite.toml")),
            queries: &[$(($id, include_str!(concat!("../", $folder, "/", $id, ".sql")))),*],
        }
    };
}

const SUITES: &[(&str, Files)] = &[
    (
        "tpch",
        files!("tpch":
        "q01" "q02" "q03" "q04" "q05" "q06" "q07" "q08" "q09" "q10" "q11"
        "q12" "q13" "q14" "q15" "q16" "q17" "q18" "q19" "q20" "q21" "q22"),
    ),
    (
        "gpu-bdb",
        files!("gpu_bdb":
        "q01" "q02" "q03" "q04" "q05" "q06" "q07" "q08" "q09" "q10" "q11" "q12" "q13" "q14" "q15"
        "q16" "q17" "q18" "q19" "q20" "q21" "q22" "q23" "q24" "q25" "q26" "q27" "q28" "q29" "q30"),
    ),
];

impl Suite {
    /// Opens the suite by its name, or by its folder: anything with a `/`, a `\` or a leading `.`.
    ///
    /// # Errors
    /// [`SuiteError::UnknownSuite`] with the existing names; the errors of [`from_folder`](Self::from_folder).
    pub fn open(name_or_path: &str) -> Result<Suite, SuiteError> {
        let is_path = name_or_path.contains(['/', '\\']) || name_or_path.starts_with('.');
        if is_path { Self::from_folder(Path::new(name_or_path)) } else { Self::named(name_or_path) }
    }

    /// Opens the embedded suite called `name`.
    ///
    /// # Errors
    /// [`SuiteError::UnknownSuite`] with the existing names.
    pub fn named(name: &str) -> Result<Suite, SuiteError> {
        let known = || SUITES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let (_, files) = SUITES
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| SuiteError::UnknownSuite { name: name.to_string(), known: known() })?;
        let queries = files.queries.iter().map(|(id, sql)| ((*id).to_string(), (*sql).to_string())).collect();
        Self::of(Path::new(name), files.manifest, queries)
    }

    /// Opens the suite in `folder`: `suite.toml`, and one `.sql` file per query.
    ///
    /// # Errors
    /// Any [`SuiteError`] about files.
    pub fn from_folder(folder: &Path) -> Result<Suite, SuiteError> {
        let unreadable = |path: &Path| {
            let path = path.to_path_buf();
            move |error: std::io::Error| SuiteError::Unreadable { path, reason: error.to_string() }
        };
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path).map_err(unreadable(path))?;
            // Some editors write a byte order mark at the start of files.
            Ok::<_, SuiteError>(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
        };
        let file = folder.join("suite.toml");
        let manifest = read(&file)?;
        let mut queries = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable(folder))? {
            let path = entry.map_err(unreadable(folder))?.path();
            if path.extension().is_some_and(|ending| ending == "sql") {
                let id = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
                queries.push((id, read(&path)?));
            }
        }
        // q2 before q10: by number if the names have one.
        queries.sort_by_cached_key(|(id, _)| (number(id).unwrap_or(u32::MAX), id.clone()));
        Self::of(folder, &manifest, queries)
    }

    fn of(folder: &Path, manifest: &str, texts: Vec<(String, String)>) -> Result<Suite, SuiteError> {
        let file = folder.join("suite.toml").display().to_string();
        let mut manifest: Manifest = toml::from_str(manifest).map_err(|error| SuiteError::Manifest {
            file: file.clone(),
            reason: error.to_string().trim_end().to_string(),
        })?;
        if let Some(table) = manifest.tables.iter().flatten().find(|table| !is_plain(table)) {
            return Err(SuiteError::TableName { file, table: table.clone() });
        }
        if texts.is_empty() {
            return Err(SuiteError::NoQueries { folder: folder.display().to_string() });
        }
        if let Some(key) = manifest.query.keys().find(|key| !texts.iter().any(|(id, _)| id == *key)) {
            let known = texts.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>().join(", ");
            return Err(SuiteError::UnknownEntry { file, key: key.clone(), known });
        }
        let mut queries = Vec::with_capacity(texts.len());
        for (id, template) in texts {
            let entry = manifest.query.remove(&id).unwrap_or_default();
            let used = names(&template);
            if let Some(name) = entry.parameters.keys().find(|name| !used.contains(name.as_str())) {
                let (query, name) = (id, name.clone());
                return Err(SuiteError::UnusedParameter { file, query, name });
            }
            let mut parameters = manifest.parameters.clone();
            parameters.retain(|name, _| used.contains(name.as_str()));
            parameters.extend(entry.parameters);
            let rules = [("check".to_string(), &entry.check)];
            let parts = entry.parts.iter().map(|(part, check)| (format!("parts.{part}"), check));
            for (place, check) in rules.into_iter().chain(parts) {
                check.validate().map_err(|reason| SuiteError::Manifest {
                    file: file.clone(),
                    reason: format!("[query.{id}] {place}.{reason}"),
                })?;
            }
            let step = if manifest.name == "gpu-bdb" { gpu_bdb::step(&id) } else { None };
            let file = folder.join(format!("{id}.sql")).display().to_string();
            let (check, parts) = (entry.check, entry.parts);
            let mut query = Query { id, sql: String::new(), parameters, check, parts, step, template, file };
            query.fill()?;
            queries.push(query);
        }
        Ok(Suite {
            title: if manifest.title.is_empty() { manifest.name.clone() } else { manifest.title },
            name: manifest.name,
            tables: manifest.tables,
            functions: manifest.functions,
            data_command: manifest.data_command,
            queries,
        })
    }

    /// The query called `id`, by file name or number: `q01`, `01` or `1`.
    ///
    /// # Errors
    /// [`SuiteError::UnknownQuery`] with the existing range.
    pub fn query(&self, id: &str) -> Result<&Query, SuiteError> {
        self.place(id).map(|place| &self.queries[place])
    }

    fn place(&self, id: &str) -> Result<usize, SuiteError> {
        let wanted = number(id);
        let by_name = self.queries.iter().position(|query| query.id == id.trim());
        let by_number = || self.queries.iter().position(|query| wanted.is_some() && number(&query.id) == wanted);
        by_name.or_else(by_number).ok_or_else(|| {
            let id_of = |query: Option<&Query>| query.map(|query| query.id.clone()).unwrap_or_default();
            let first = id_of(self.queries.first());
            let example = match number(&first) {
                Some(n) => format!("{n} or {first}"),
                None => first.clone(),
            };
            let (suite, query, last) = (self.name.clone(), id.to_string(), id_of(self.queries.last()));
            SuiteError::UnknownQuery { suite, query, first, last, example }
        })
    }

    /// The query with other constants, drawn as TPC-H specifies: those of run number `run` under `seed`.
    ///
    /// # Errors
    /// [`SuiteError::NoOtherConstants`] for the queries of other suites.
    pub fn varied(&self, query: &Query, seed: u64, run: u64) -> Result<Query, SuiteError> {
        let is_tpch = self.name == "tpch";
        match is_tpch.then(|| tpch::with_parameters(&query.id, &query.sql, seed, run)).flatten() {
            Some(sql) => Ok(Query { sql, ..query.clone() }),
            None => Err(SuiteError::NoOtherConstants { suite: self.name.clone(), query: query.id.clone() }),
        }
    }

    /// Sets a parameter: `NAME=VALUE` in every query that has it, `QUERY.NAME=VALUE` in one query.
    ///
    /// # Errors
    /// [`SuiteError`] for a malformed text, an unknown name, and a value of another type than the default.
    pub fn set_parameter(&mut self, text: &str) -> Result<(), SuiteError> {
        let (name, value) = text.split_once('=').map(|(name, value)| (name.trim(), value)).ok_or_else(|| {
            let first = self.queries.iter().flat_map(|query| &query.parameters).next();
            let example = first.map_or("limit=10".to_string(), |(name, value)| format!("{name}={}", plain(value)));
            SuiteError::ParameterForm { text: text.to_string(), example }
        })?;
        let (query, key) = match name.rsplit_once('.') {
            Some((query, key)) => (Some(self.place(query)?), key),
            None => (None, name),
        };
        let mut found = false;
        for (place, changed) in self.queries.iter_mut().enumerate() {
            let here = query.is_none_or(|wanted| wanted == place);
            let Some(old) = changed.parameters.get_mut(key).filter(|_| here) else { continue };
            *old = old.parse_like(value).map_err(|expected| SuiteError::ParameterValue {
                name: name.to_string(),
                value: value.to_string(),
                expected,
                default: plain(old),
            })?;
            found = true;
            changed.fill()?;
        }
        if found {
            return Ok(());
        }
        let mut known: Vec<String> = match query {
            Some(place) => self.queries[place].parameters.keys().cloned().collect(),
            None => self.queries.iter().flat_map(|query| query.parameters.keys().cloned()).collect(),
        };
        known.sort();
        known.dedup();
        let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
        Err(SuiteError::UnknownParameter { suite: self.name.clone(), name: name.to_string(), known })
    }
}

impl Query {
    /// The file of its text, or its id if there is none.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// A query without a suite.
    ///
    /// # Errors
    /// [`SuiteError::Placeholder`] for any `$name`.
    pub fn new(id: &str, sql: &str) -> Result<Query, SuiteError> {
        let (id, template, file) = (id.to_string(), sql.to_string(), id.to_string());
        let (sql, parameters) = (String::new(), Parameters::new());
        let (check, parts, step) = (Check::default(), BTreeMap::new(), None);
        let mut query = Query { id, sql, parameters, check, parts, step, template, file };
        query.fill()?;
        Ok(query)
    }

    /// Inserts the parameter values into the text.
    fn fill(&mut self) -> Result<(), SuiteError> {
        self.sql = substitute(&self.template, &self.parameters).map_err(|unknown| {
            let known = self.parameters.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none yet".to_string() } else { known };
            SuiteError::Placeholder { file: self.file.clone(), line: unknown.line, name: unknown.name, known }
        })?;
        Ok(())
    }
}

/// Whether the name is a valid file name on every system, without a path.
fn is_plain(table: &str) -> bool {
    !table.is_empty() && table.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

/// 7 for `q07`, `07` and `7`.
fn number(id: &str) -> Option<u32> {
    id.trim().trim_start_matches(['q', 'Q']).parse().ok()
}

/// The value in the form of the command line.
fn plain(value: &Parameter) -> String {
    match value {
        Parameter::Text(text) => text.clone(),
        Parameter::Texts(texts) => texts.join(","),
        Parameter::Integers(_) | Parameter::Floats(_) => value.to_string().replace(", ", ","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        folder
    }

    fn refused(files: &[(&str, &str)]) -> String {
        let folder = folder(files);
        let error = Suite::from_folder(folder.path()).expect_err("refused").to_string();
        error.replace(&format!("{}/", folder.path().display()), "")
    }

    #[test]
    fn tpch_has_its_22_queries_and_8_tables() {
        let suite = Suite::named("tpch").expect("tpch");
        assert_eq!(suite.queries.len(), 22);
        assert_eq!(suite.tables.map(|tables| tables.len()), Some(8));
        assert!(suite.queries.iter().all(|query| query.sql.contains("SELECT")));
    }

    #[test]
    fn gpu_bdb_has_its_30_queries_and_its_title_claims_nothing() {
        let suite = Suite::named("gpu-bdb").expect("gpu-bdb");
        assert_eq!(suite.queries.len(), 30);
        assert!(suite.queries.iter().all(|query| query.sql.contains("SELECT") && names(&query.sql).is_empty()));
        assert!(suite.title.contains("unofficial") && !suite.title.contains("TPC"), "{}", suite.title);
    }

    #[test]
    fn queries_are_found_by_number() {
        let suite = Suite::named("tpch").expect("tpch");
        for id in ["6", "06", "q6", "q06", "Q06", " 6 "] {
            assert_eq!(suite.query(id).map(|query| query.id.as_str()), Ok("q06"), "{id}");
        }
    }

    #[test]
    fn a_folder_is_a_suite() {
        let manifest = "name = \"mine\"\ntitle = \"My queries\"\ntables = [\"t\"]\n[parameters]\nlimit = 3\n\
                        [query.top]\nparameters.kind = \"a\"\ncheck.columns.x.absolute = 0.5\n";
        let files = [
            ("suite.toml", manifest),
            ("q10.sql", "SELECT 10"),
            ("q2.sql", "SELECT 2 LIMIT $limit"),
            ("top.sql", "SELECT x FROM t WHERE k = $kind LIMIT $limit"),
            ("notes.txt", "not a query"),
        ];
        let folder = folder(&files);
        let mut suite = Suite::open(folder.path().to_str().expect("UTF-8")).expect("a suite");
        let ids: Vec<&str> = suite.queries.iter().map(|query| query.id.as_str()).collect();
        assert_eq!(ids, ["q2", "q10", "top"]);
        assert_eq!(suite.query("top").expect("by name").sql, "SELECT x FROM t WHERE k = 'a' LIMIT 3");
        assert_eq!(suite.query("top").expect("by name").check.columns.len(), 1);
        suite.set_parameter("limit=5").expect("for all");
        suite.set_parameter("top.limit = 7").expect("for one");
        suite.set_parameter("kind=it's").expect("text");
        assert_eq!(suite.query("2").expect("by number").sql, "SELECT 2 LIMIT 5");
        assert_eq!(suite.query("top").expect("by name").sql, "SELECT x FROM t WHERE k = 'it''s' LIMIT 7");

        let mut refused = |text: &str| suite.set_parameter(text).expect_err("refused").to_string();
        assert_eq!(refused("limit"), "--param takes NAME=VALUE or QUERY.NAME=VALUE, such as limit=5, not 'limit'");
        assert_eq!(refused("size=1"), "suite mine has no parameter 'size'; it has kind, limit");
        assert_eq!(refused("q2.kind=a"), "suite mine has no parameter 'q2.kind'; it has limit");
        assert_eq!(
            refused("limit=many"),
            "parameter limit cannot be 'many': it takes an integer, such as its default 5"
        );
        assert!(refused("q7.limit=1").starts_with("suite mine has no query 'q7'"));
    }

    #[test]
    fn refusals_name_what_exists() {
        let unknown = "no suite named 'tpcds'; the suites are tpch, gpu-bdb, and any folder with a suite.toml and .sql files \
                       (write ./tpcds)";
        assert_eq!(Suite::open("tpcds").map(|_| ()).map_err(|error| error.to_string()), Err(unknown.to_string()));
        let error = Suite::named("tpch").expect("tpch").query("23").expect_err("no such query").to_string();
        assert_eq!(error, "suite tpch has no query '23'; it has q01 to q22, written as 1 or q01");
    }

    #[test]
    fn refusals_of_a_folder_name_file_and_key() {
        let sql = ("q1.sql", "SELECT 1");
        let error = Suite::open("./no-such-folder").expect_err("refused").to_string();
        assert!(error.starts_with("cannot read ./no-such-folder/suite.toml: "), "{error}");
        assert!(refused(&[sql, ("suite.toml", "title = \"x\"")]).contains("missing field `name`"));
        let error = refused(&[sql, ("suite.toml", "name = \"x\"\nqueries = 3")]);
        assert!(error.starts_with("suite.toml: ") && error.contains("unknown field `queries`"), "{error}");
        assert!(
            refused(&[("suite.toml", "name = \"x\"")])
                .ends_with("a suite needs at least one .sql file beside suite.toml")
        );
        assert_eq!(
            refused(&[sql, ("suite.toml", "name = \"x\"\n[query.q2]")]),
            "suite.toml: [query.q2] has no file q2.sql beside it; the queries are q1"
        );
        for table in ["../t", "/etc/passwd", "a/b", "a\\\\b", "..", "t.parquet", "s3:t", "t*", ""] {
            let error = refused(&[sql, ("suite.toml", &format!("name = \"x\"\ntables = [\"nation\", \"{table}\"]"))]);
            let named =
                error.starts_with(&format!("suite.toml: '{}' in tables cannot be", table.replace("\\\\", "\\")));
            assert!(named && error.contains("letters, digits and _"), "{error}");
        }
        assert_eq!(
            refused(&[("q1.sql", "SELECT 1\nLIMIT $n"), ("suite.toml", "name = \"x\"")]),
            "q1.sql:2: $n has no value; add n to [parameters] of suite.toml, or use one of: none yet"
        );
        assert_eq!(
            refused(&[sql, ("suite.toml", "name = \"x\"\n[query.q1]\nparameters.n = 1")]),
            "suite.toml: parameter n of [query.q1.parameters] is not used; write $n in q1.sql, or drop it"
        );
    }
}
