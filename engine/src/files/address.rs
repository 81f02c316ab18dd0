//! Local paths with characters that DataFusion reads as a glob pattern or a URL.
//!
//! ```text
//!   'a[1].csv'   DataFusion: a pattern that finds a1.csv       if the file exists ─► file:///…/a[1].csv, that file
//!   'a:b.csv'    DataFusion: a URL, path b.csv of scheme a     COPY … TO 'a[1].csv' ─► a file URL, existing or not
//! ```
//!
//! Left   unchanged: names with `://`, names without such characters, and patterns that are no file's name.

use std::path::{Path, PathBuf};

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use url::Url;

/// Address of a source: a file URL if a file or folder with exactly this name exists, else `path` itself.
pub fn of_source(path: &str) -> String {
    own(path, Path::exists)
}

/// Address of a write target.
pub fn of_target(path: &str) -> String {
    own(path, |_| true)
}

/// Path of an address that one of these functions returned; any other text is a path itself.
pub fn path_of(address: &str) -> PathBuf {
    let url = Url::parse(address).ok().filter(|url| url.scheme() == "file" && address.contains("://"));
    url.and_then(|url| url.to_file_path().ok()).unwrap_or_else(|| PathBuf::from(address))
}

/// Rewrites COPY and CREATE EXTERNAL TABLE to use the paths and partition column names literally.
///
/// # Errors
/// None of its own; the signature is that of DataFusion's tree walk.
pub fn in_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = plan.transform_down(|node| {
        Ok(match node {
            LogicalPlan::Copy(mut copy) if is_odd(&copy.output_url) => {
                copy.output_url = of_target(&copy.output_url);
                Transformed::yes(LogicalPlan::Copy(copy))
            }
            LogicalPlan::Ddl(DdlStatement::CreateExternalTable(mut create)) => {
                create.locations.iter_mut().for_each(|location| *location = of_source(location));
                create.table_partition_cols.iter_mut().for_each(unquote);
                Transformed::yes(LogicalPlan::Ddl(DdlStatement::CreateExternalTable(create)))
            }
            other => Transformed::no(other),
        })
    });
    plan.map(|plan| plan.data)
}

/// Removes the quotes around a name: DataFusion keeps those of partition columns.
pub(crate) fn unquote(name: &mut String) {
    if let Some(inner) = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        *name = inner.replace("\"\"", "\"");
    }
}

/// True for a path that DataFusion would read as a pattern or a URL.
fn is_odd(path: &str) -> bool {
    let is_address = path.contains("://");
    !is_address && (path.contains(['*', '?', '[', '{']) || (!path.starts_with('/') && Url::parse(path).is_ok()))
}

fn own(path: &str, is_meant: impl Fn(&Path) -> bool) -> String {
    if !is_odd(path) {
        return path.to_string();
    }
    let local = std::path::absolute(path).ok().filter(|local| is_meant(local));
    let url = local.and_then(|local| {
        let is_folder = path.ends_with('/') || local.is_dir();
        if is_folder { Url::from_directory_path(local).ok() } else { Url::from_file_path(local).ok() }
    });
    url.map_or_else(|| path.to_string(), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_of_partition_columns_are_no_part_of_their_names() {
        for (written, name) in [("year", "year"), ("\"My year\"", "My year"), ("\"a\"\"b\"", "a\"b"), ("\"", "\"")] {
            let mut column = written.to_string();
            unquote(&mut column);
            assert_eq!(column, name);
        }
    }

    #[test]
    fn only_names_that_are_taken_for_something_else_become_addresses() {
        let folder = tempfile::tempdir().expect("folder");
        let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
        for name in ["a[1] %20?.csv", "plain #%.csv"] {
            std::fs::write(at(name), "").expect("a file");
        }
        std::fs::create_dir(at("b#*")).expect("a folder");
        for (name, ends) in [("a[1] %20?.csv", "/a[1]%20%2520%3F.csv"), ("b#*", "/b%23*/")] {
            let address = of_source(&at(name));
            assert!(address.starts_with("file:///") && address.ends_with(ends), "{address}");
            assert_eq!(path_of(&address), Path::new(&at(name)));
        }
        for left in [at("*.csv"), at("plain #%.csv"), "s3://bucket/[1].parquet".into(), "t.parquet".into()] {
            assert_eq!(of_source(&left), left);
            assert_eq!(path_of(&left), Path::new(&left));
        }
        let here = std::env::current_dir().expect("a folder");
        for (target, path) in [("a:b.csv", "a:b.csv"), ("new[*].csv", "new[*].csv"), ("new[*]/", "new[*]")] {
            let address = of_target(target);
            assert_eq!(path_of(&address), here.join(path), "{address}");
            assert_eq!(address.ends_with('/'), target.ends_with('/'));
        }
    }
}
