//! `millpond.json`: the generator settings of a folder's tables, stored beside them.
//!
//! ```text
//!   gen tpch --scale 0.01 --out DIR ─► DIR/lineitem.parquet … and DIR/millpond.json      --tables adds to both
//!   gen tpch --scale 0.1  --out DIR ─► refused: tables of two scales would be mixed      --force replaces
//!   run tpch --data DIR             ─► prints it, and writes its scale into every line of JSON
//! ```
//!
//! Without  a manifest, the scale is read from the files: from a note in their footers (gpu-bdb), or from their row
//!          counts (tpch).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use millpond::datafusion::parquet::file::metadata::ParquetMetaData;
use millpond::datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use millpond_data::{gpu_bdb, tpch};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::output::{Output, lower};
use crate::version::VERSION;

/// The file's name.
pub const NAME: &str = "millpond.json";

/// Maximum relative deviation of lineitem's row count from its scale: the number of lines per order is random.
const LINES_VARY: f64 = 0.1;

/// Generator settings of a folder's tables.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub suite: String,
    pub scale: f64,
    /// `None` if the suite's rows depend only on the scale.
    pub seed: Option<u64>,
    /// The version of Millpond that wrote them.
    pub version: String,
    /// Codec, types and all other options that change files.
    pub options: BTreeMap<String, String>,
    pub tables: BTreeSet<String>,
}

/// A table in a folder without a manifest.
#[derive(Debug, PartialEq)]
struct Found {
    suite: &'static str,
    path: PathBuf,
    scale: f64,
    is_requested: bool,
}

impl Manifest {
    pub fn new(
        suite: &str,
        scale: f64,
        seed: Option<u64>,
        options: &[(&str, &str)],
        tables: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        let options = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
        let tables = tables.into_iter().map(str::to_string).collect();
        Self { suite: suite.to_string(), scale, seed, version: VERSION.to_string(), options, tables }
    }

    /// The manifest of a folder, if it has one.
    ///
    /// # Errors
    /// Exit 4 for a file of that name that is not a manifest.
    pub fn read(folder: &Path) -> Result<Option<Self>, CliError> {
        let path = folder.join(NAME);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(CliError::file(format!("cannot read {}: {}", path.display(), lower(&error)))),
        };
        Self::parsed(&text).map(Some).ok_or_else(|| {
            CliError::file(format!("{} is no manifest of millpond gen: move it away, or remove it", path.display()))
        })
    }

    fn parsed(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let texts = |value: &Value| value.as_str().map(str::to_string);
        Some(Self {
            suite: texts(&value["suite"])?,
            scale: value["scale"].as_f64()?,
            seed: value["seed"].as_u64(),
            version: texts(&value["version"])?,
            options: value["options"]
                .as_object()?
                .iter()
                .map(|(name, value)| Some((name.clone(), texts(value)?)))
                .collect::<Option<_>>()?,
            tables: value["tables"].as_array()?.iter().map(texts).collect::<Option<_>>()?,
        })
    }

    fn text(&self) -> String {
        let value = json!({
            "suite": self.suite,
            "scale": self.scale,
            "seed": self.seed,
            "version": self.version,
            "options": self.options,
            "tables": self.tables,
        });
        format!("{value:#}\n")
    }

    /// Prepares a folder for generating: tables of other settings are refused unless `force` is set.
    ///
    /// # Errors
    /// Exit 4, naming both settings.
    pub fn begin(&mut self, folder: &Path, force: bool) -> Result<(), CliError> {
        let old = if force { Self::read(folder).unwrap_or(None) } else { Self::read(folder)? };
        let difference = match &old {
            Some(old) => self.difference(old),
            None => self.strangers(folder),
        };
        match (difference, old) {
            (Some(difference), _) if !force => Err(CliError::file(format!(
                "{} holds {difference}: name another folder, or replace the tables with --force",
                folder.display()
            ))),
            // Remove the old manifest: it would describe replaced files.
            (Some(_), _) => match fs::remove_file(folder.join(NAME)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(CliError::file(format!("cannot replace {}: {}", folder.join(NAME).display(), lower(&error))))
                }
                _ => Ok(()),
            },
            (None, Some(old)) => {
                self.tables.extend(old.tables);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// Writes the manifest, after the tables are complete.
    ///
    /// # Errors
    /// Exit 4 if it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), CliError> {
        let mut output = Output::open(&folder.join(NAME))?;
        output.write_all(self.text().as_bytes()).map_err(|error| output.failure(&error))?;
        output.commit()
    }

    /// The first setting that differs from an older manifest's, as a message.
    fn difference(&self, old: &Self) -> Option<String> {
        let there = format!("tables of {} at scale {} ({NAME})", old.suite, old.scale);
        if self.suite != old.suite {
            return Some(format!("{there}, and {} is requested", self.suite));
        }
        if self.scale != old.scale {
            return Some(format!("{there}, and scale {} is requested", self.scale));
        }
        let seed = |manifest: &Self| manifest.seed.map_or("none".to_string(), |seed| seed.to_string());
        let option = |manifest: &Self, name: &str| manifest.options.get(name).cloned().unwrap_or("none".to_string());
        let names: BTreeSet<&String> = self.options.keys().chain(old.options.keys()).collect();
        let pairs = names.into_iter().map(|name| (name.as_str(), option(old, name), option(self, name)));
        let mut pairs = std::iter::once(("seed", seed(old), seed(self))).chain(pairs);
        pairs
            .find(|(_, old, new)| old != new)
            .map(|(name, old, new)| format!("{there}, and {name} {new} is requested where they have {old}"))
    }

    /// The first table of another suite or scale in a folder without a manifest, as a message.
    fn strangers(&self, folder: &Path) -> Option<String> {
        let found =
            tables_in(folder, self.scale).into_iter().find(|found| found.suite != self.suite || !found.is_requested)?;
        let file = found.path.strip_prefix(folder).unwrap_or(&found.path).display();
        Some(match found.suite == self.suite {
            true => {
                format!("{file} of {} at scale {}, and scale {} is requested", self.suite, found.scale, self.scale)
            }
            false => format!("{file} of {} at scale {}, and {} is requested", found.suite, found.scale, self.suite),
        })
    }
}

impl Display for Manifest {
    /// `tpch at scale 0.01, codec snappy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at scale {}", self.suite, self.scale)?;
        if let Some(seed) = self.seed {
            write!(f, ", seed {seed}")?;
        }
        self.options.iter().try_for_each(|(name, value)| write!(f, ", {name} {value}"))
    }
}

/// A folder's suite tables whose scale can be derived. `requested` is the scale to compare with.
fn tables_in(folder: &Path, requested: f64) -> Vec<Found> {
    let tpch = tpch::Table::ALL.into_iter().filter_map(|table| {
        let path = folder.join(format!("{}.parquet", table.name()));
        let rows = footer(&path)?.file_metadata().num_rows() as u64;
        let unit = table.approximate_rows(1.0);
        // Nations and regions have the same rows at every scale.
        if table.approximate_rows(2.0) == unit {
            return None;
        }
        let wanted = table.approximate_rows(requested);
        let is_requested = match table {
            tpch::Table::Lineitem => (rows as f64 - wanted as f64).abs() <= wanted as f64 * LINES_VARY,
            // The product of scale and unit is rounded to rows.
            _ => rows.abs_diff(wanted) <= 1,
        };
        Some(Found { suite: "tpch", path, scale: rows as f64 / unit as f64, is_requested })
    });
    let gpu_bdb = gpu_bdb::Table::ALL.into_iter().filter_map(|table| {
        let path = folder.join(table.name()).join("part-00000.parquet");
        let footer = footer(&path)?;
        let noted = footer.file_metadata().key_value_metadata()?.iter().find(|entry| entry.key == "millpond.scale")?;
        let scale = noted.value.as_ref()?.parse().ok()?;
        Some(Found { suite: "gpu-bdb", path, scale, is_requested: scale == requested })
    });
    tpch.chain(gpu_bdb).collect()
}

/// The footer of a Parquet file; `None` for other files. A pipe is not opened.
fn footer(path: &Path) -> Option<ParquetMetaData> {
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file).and_then(|_| File::open(path).ok())?;
    SerializedFileReader::new(file).ok().map(|reader| reader.metadata().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(scale: f64, table: &'static str) -> Manifest {
        Manifest::new("gpu-bdb", scale, Some(7), &[("codec", "snappy"), ("money", "double")], [table])
    }

    #[test]
    fn what_is_written_is_read_again_and_tables_are_added() {
        let folder = tempfile::tempdir().expect("folder");
        assert_eq!(Manifest::read(folder.path()).expect("none"), None);
        let mut first = manifest(0.5, "store");
        first.begin(folder.path(), false).expect("an empty folder");
        first.write(folder.path()).expect("written");
        let mut second = manifest(0.5, "item");
        second.begin(folder.path(), false).expect("the same settings");
        second.write(folder.path()).expect("written");
        let read = Manifest::read(folder.path()).expect("readable").expect("a manifest");
        assert_eq!(read, second);
        assert_eq!(read.tables.iter().collect::<Vec<_>>(), ["item", "store"]);
        assert_eq!(read.to_string(), "gpu-bdb at scale 0.5, seed 7, codec snappy, money double");
    }

    #[test]
    fn other_settings_are_refused_and_replaced_by_force() {
        let folder = tempfile::tempdir().expect("folder");
        manifest(0.5, "store").write(folder.path()).expect("written");
        let refused = |mut new: Manifest| new.begin(folder.path(), false).expect_err("refused").message;
        let scale = refused(manifest(0.25, "item"));
        assert!(
            scale.contains("tables of gpu-bdb at scale 0.5 (millpond.json), and scale 0.25 is requested"),
            "{scale}"
        );
        assert!(scale.contains("--force"), "{scale}");
        let seed = refused(Manifest { seed: Some(8), ..manifest(0.5, "item") });
        assert!(seed.contains("and seed 8 is requested where they have 7"), "{seed}");
        let option =
            refused(Manifest::new("gpu-bdb", 0.5, Some(7), &[("codec", "zstd"), ("money", "double")], ["item"]));
        assert!(option.contains("and codec zstd is requested where they have snappy"), "{option}");
        let suite = refused(Manifest::new("tpch", 0.5, None, &[], ["orders"]));
        assert!(suite.contains("tables of gpu-bdb at scale 0.5 (millpond.json), and tpch is requested"), "{suite}");

        let mut forced = manifest(0.25, "item");
        forced.begin(folder.path(), true).expect("forced");
        assert_eq!(Manifest::read(folder.path()).expect("none"), None);
        assert_eq!(forced.tables.len(), 1);
        fs::write(folder.path().join(NAME), "[]").expect("written");
        let stranger = refused(manifest(0.5, "store"));
        assert!(stranger.contains("is no manifest of millpond gen"), "{stranger}");
    }
}
