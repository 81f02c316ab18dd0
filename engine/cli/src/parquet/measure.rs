//! `millpond parquet measure`: decoding speed of each column, by the device and by parquet-rs.
//!
//! ```text
//!   lineitem.parquet: 59986052 rows; NVIDIA H200, link 55.2 GB/s
//!   column      type   pages                 decoded by  file       decoded    ms    GB/s  of link  parquet-rs, ms  …
//!   l_orderkey  Int64  DICTIONARY … SNAPPY   device      240.1 MiB  457.7 MiB  9.10  52.7  50 %     61.00           …
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use millpond::Millpond;
use millpond_bench::decode::{self, ColumnSpeed, Files};
use millpond_parquet::check::{self, ColumnReport, FileReport};
use serde_json::{Value, json};

use super::{advance, bar, cli, refuse_missing};
use crate::args::{CheckFormat, ParquetMeasureArgs, SessionArgs};
use crate::error::{CliError, Exit};
use crate::interrupt::Interrupts;
use crate::query::bytes;
use crate::session;

const HEAD: [&str; 11] =
    ["column", "type", "pages", "decoded by", "file", "decoded", "ms", "GB/s", "of link", "parquet-rs, ms", "times"];

/// Measures and prints.
///
/// # Errors
/// Exit 4 for unreadable files, 2 for a column missing from them, and the errors of opening a session.
pub(super) async fn run(args: &ParquetMeasureArgs, of_session: &SessionArgs) -> Result<Exit, CliError> {
    refuse_missing(&args.path)?;
    let options = check::Options { footers_only: false, stop: Interrupts::listen()?.flag() };
    let report = check::check(&args.path, &options, &|_, _| ()).map_err(cli)?;
    let session = session::open(of_session, None).await?;
    for setting in decode::SETTINGS {
        let set = session.context().sql(&format!("SET {setting}")).await;
        set.map_err(|error| CliError::from_datafusion(&error))?;
    }
    let link = session.engine().and_then(|engine| engine.link_bandwidth());
    let mut tables = vec![];
    for files in tables_of(&report.files) {
        let bar = bar("{wide_bar} {human_pos}/{human_len} columns, {eta} left", of_session.quiet);
        let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
        let of = Files { paths, columns: args.columns.clone(), repeat: args.repeat };
        let speeds = decode::measure(&session, &of, &|done, all| advance(&bar, u64::from(done > 0), all)).await;
        bar.finish_and_clear();
        let speeds = speeds.map_err(|error| CliError::from_datafusion(&error))?;
        match args.format {
            CheckFormat::Text => print(&session, link, &files, &speeds),
            CheckFormat::Json => tables.push(json!({
                "files": files.iter().map(|file| file.path.display().to_string()).collect::<Vec<_>>(),
                "columns": speeds.iter().map(|speed| speed_json(speed, &files)).collect::<Vec<_>>(),
            })),
        }
    }
    if args.format == CheckFormat::Json {
        let gb = link.map(|link| link / 1e9);
        println!("{}", json!({ "device": device(&session), "link_gb_per_second": gb, "tables": tables }));
    }
    Ok(Exit::Ok)
}

/// Groups files with equal columns.
fn tables_of(files: &[FileReport]) -> Vec<Vec<&FileReport>> {
    let mut tables: BTreeMap<Vec<(&str, &str)>, Vec<&FileReport>> = BTreeMap::new();
    for file in files {
        let columns = file.columns.iter().map(|column| (column.name.as_str(), column.data_type.as_str())).collect();
        tables.entry(columns).or_default().push(file);
    }
    let mut tables: Vec<_> = tables.into_values().collect();
    tables.sort_by(|a, b| a[0].path.cmp(&b[0].path));
    tables
}

/// The encodings and codecs of a column's pages.
fn pages(name: &str, files: &[&FileReport]) -> String {
    let mut all: Vec<&str> = vec![];
    let of: Vec<&ColumnReport> =
        files.iter().filter_map(|file| file.columns.iter().find(|column| column.name == name)).collect();
    let encodings = of.iter().flat_map(|column| column.encodings.keys());
    for word in encodings.chain(of.iter().flat_map(|column| &column.codecs)) {
        if !all.contains(&word.as_str()) {
            all.push(word);
        }
    }
    all.join(" ")
}

fn device(session: &Millpond) -> &str {
    session.engine().map_or("CPU", |engine| engine.name())
}

/// The reader that decoded a column in the session.
fn reader(speed: &ColumnSpeed) -> &'static str {
    match (speed.is_decoded, speed.is_on_device) {
        (false, _) => "DataFusion",
        (true, false) => "host",
        (true, true) => "device",
    }
}

fn gb_per_second(speed: &ColumnSpeed) -> f64 {
    speed.decoded_bytes as f64 / 1e9 / speed.session.as_secs_f64()
}

/// The copies' share of the link's speed, over the whole time.
fn share(speed: &ColumnSpeed, link: Option<f64>) -> Option<f64> {
    link.map(|link| speed.uploaded_bytes as f64 / speed.session.as_secs_f64() / link)
}

fn print(session: &Millpond, link: Option<f64>, files: &[&FileReport], speeds: &[ColumnSpeed]) {
    let rows: u64 = files.iter().map(|file| file.rows).sum();
    let of = match files {
        [file] => file.path.display().to_string(),
        files => format!("{} and {} more", files[0].path.display(), files.len() - 1),
    };
    let link_text = link.map_or(String::new(), |link| format!(", link {:.1} GB/s", link / 1e9));
    println!("{of}: {rows} rows; {}{link_text}", device(session));
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEAD);
    let ms = |time: std::time::Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
    for speed in speeds {
        table.add_row([
            speed.name.clone(),
            speed.data_type.to_string(),
            pages(&speed.name, files),
            reader(speed).to_string(),
            bytes(speed.file_bytes),
            bytes(speed.decoded_bytes),
            ms(speed.session),
            format!("{:.1}", gb_per_second(speed)),
            share(speed, link).map_or("–".to_string(), |share| format!("{:.0} %", share * 100.0)),
            ms(speed.parquet_rs),
            format!("{:.1}", speed.parquet_rs.as_secs_f64() / speed.session.as_secs_f64()),
        ]);
    }
    for column in table.column_iter_mut().skip(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
}

fn speed_json(speed: &ColumnSpeed, files: &[&FileReport]) -> Value {
    json!({
        "name": speed.name,
        "type": speed.data_type.to_string(),
        "pages": pages(&speed.name, files),
        "rows": speed.rows,
        "file_bytes": speed.file_bytes,
        "decoded_bytes": speed.decoded_bytes,
        "uploaded_bytes": speed.uploaded_bytes,
        "read_by": reader(speed),
        "session_ms": speed.session.as_secs_f64() * 1e3,
        "decoded_gb_per_second": gb_per_second(speed),
        "parquet_rs_ms": speed.parquet_rs.as_secs_f64() * 1e3,
    })
}
