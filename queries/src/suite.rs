//! Suites that travel inside the binary, and how one is chosen by name.

use serde::Deserialize;

/// A set of queries over a set of tables.
#[derive(Debug, Clone)]
pub struct Suite {
    /// The name on the command line.
    pub name: String,
    /// One sentence for people.
    pub title: String,
    /// Tables that the queries read; each is `TABLE.parquet` or a folder `TABLE` in the data folder.
    pub tables: Vec<String>,
    pub queries: Vec<Query>,
}

/// One query of a suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// `q01`, `q02`, …
    pub id: String,
    pub sql: String,
}

/// Why a suite or a query could not be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    #[error("no suite named '{name}'; the suites are {known}")]
    UnknownSuite { name: String, known: String },
    #[error("suite {suite} has no query '{query}'; it has {first} to {last}, written as 1 or q01")]
    UnknownQuery { suite: String, query: String, first: String, last: String },
}

#[derive(Deserialize)]
struct Manifest {
    name: String,
    title: String,
    tables: Vec<String>,
}

/// A suite's files, as they lie in its folder.
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

const SUITES: &[Files] = &[files!("tpch":
    "q01" "q02" "q03" "q04" "q05" "q06" "q07" "q08" "q09" "q10" "q11"
    "q12" "q13" "q14" "q15" "q16" "q17" "q18" "q19" "q20" "q21" "q22")];

impl Suite {
    /// The suite of that name.
    ///
    /// # Errors
    /// [`SuiteError::UnknownSuite`] with the names that exist.
    pub fn named(name: &str) -> Result<Suite, SuiteError> {
        let suites: Vec<Suite> = SUITES.iter().map(Suite::from_files).collect();
        let known = suites.iter().map(|suite| suite.name.as_str()).collect::<Vec<_>>().join(", ");
        suites
            .into_iter()
            .find(|suite| suite.name == name)
            .ok_or_else(|| SuiteError::UnknownSuite { name: name.to_string(), known })
    }

    fn from_files(files: &Files) -> Suite {
        let manifest: Manifest = toml::from_str(files.manifest).expect("a suite.toml in this crate is well formed");
        let queries =
            files.queries.iter().map(|(id, sql)| Query { id: (*id).to_string(), sql: (*sql).to_string() }).collect();
        Suite { name: manifest.name, title: manifest.title, tables: manifest.tables, queries }
    }

    /// The query called `id`, as `q01`, `01` or `1`.
    ///
    /// # Errors
    /// [`SuiteError::UnknownQuery`] with the range that exists.
    pub fn query(&self, id: &str) -> Result<&Query, SuiteError> {
        let number = |text: &str| text.trim().trim_start_matches(['q', 'Q']).parse::<u32>().ok();
        let wanted = number(id);
        self.queries.iter().find(|query| wanted.is_some() && number(&query.id) == wanted).ok_or_else(|| {
            SuiteError::UnknownQuery {
                suite: self.name.clone(),
                query: id.to_string(),
                first: self.queries.first().map(|query| query.id.clone()).unwrap_or_default(),
                last: self.queries.last().map(|query| query.id.clone()).unwrap_or_default(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tpch_has_its_22_queries_and_8_tables() {
        let suite = Suite::named("tpch").expect("tpch");
        assert_eq!(suite.queries.len(), 22);
        assert_eq!(suite.tables.len(), 8);
        assert!(suite.queries.iter().all(|query| query.sql.contains("SELECT")));
    }

    #[test]
    fn queries_are_found_by_number() {
        let suite = Suite::named("tpch").expect("tpch");
        for id in ["6", "06", "q6", "q06", "Q06", " 6 "] {
            assert_eq!(suite.query(id).map(|query| query.id.as_str()), Ok("q06"), "{id}");
        }
    }

    #[test]
    fn refusals_name_what_exists() {
        assert_eq!(
            Suite::named("tpcds").map(|_| ()).map_err(|error| error.to_string()),
            Err("no suite named 'tpcds'; the suites are tpch".to_string())
        );
        let error = Suite::named("tpch").expect("tpch").query("23").expect_err("no such query").to_string();
        assert_eq!(error, "suite tpch has no query '23'; it has q01 to q22, written as 1 or q01");
    }
}
