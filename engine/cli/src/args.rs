//! The command line: flags, commands, and what each takes.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use millpond_parquet::rewrite::{ROW_GROUP_ROWS, ROW_GROUP_ROWS_RANGE};

const AFTER_HELP: &str = "\
Examples:
  millpond                                          the shell
  millpond \"SELECT count(*) FROM 'sales.parquet'\"  one statement
  millpond --data DIR -f report.sql -o report.csv   a script over a folder
  millpond --device sim -c \"EXPLAIN SELECT …\"      what a GPU would run
  millpond gen tpch --scale 1 --out d               data of a suite
  millpond run tpch --data d                        its queries

Exit codes: 0 ok; 1 SQL or run-time error; 2 usage, a bad flag or option; 3 a device asked for is absent, or a \
forbidden fallback; 4 a file or network error; 129 hung up, 130 interrupted, 143 terminated.";

const BENCH_HELP: &str = "\
Every strategy (--allocator, all by default) in every case of every pattern, in interleaved rounds. On a GPU: time per call \
on the host (median, p99, least), driver calls, host waits, peaks, fragmentation, and multiples of cuda and cuda_async. On \
the simulated device (--device sim): counts alone, the same for the same seed; its time says nothing.";

const CHECK_HELP: &str = "\
Times are estimates for a scan of all columns: 55 GB/s over the link, 0.15 GB/s of compressed bytes for each page in flight and \
300 GB/s for a device, 16 host cores. Findings only rank what to mend first; a device may be faster or slower.";

const MEASURE_HELP: &str = "\
A column's time is the least of a query that compares each value with a constant: reading the file (from the page cache, unless it \
is larger), headers, copies, decompression and decoding. parquet-rs reads the same chunks into Arrow arrays on all cores. GB/s are of \
values as Arrow has them, strings as offsets and bytes; where strings get codes, fewer bytes are written. The simulated device's times \
say nothing.";

const REWRITE_HELP: &str = "\
Row groups of 1,048,576 rows, V2 pages of 16,384 rows, a page index and statistics; a dictionary only where it holds all values \
of a chunk, DELTA_BINARY_PACKED for sorted integer keys, DELTA_LENGTH_BYTE_ARRAY for other strings, decimals up to 18 digits as \
integers. Rows, their order, the Arrow schema and the file's key-value metadata stay. COPY writes what of this can be set for all \
columns.";

const REPLAY_HELP: &str = "\
Calls follow each other at once, in the order of the log and with its waits between streams; what a replay takes is not \
what the query took, and no time is printed. Uses touch a few bytes of each allocation, so that the simulated device \
(--device sim) finds whatever the log does not order. A log of RMM's (Thread,Time,Action,Pointer,Size,Stream) has no order \
between streams: its frees are ordered behind their allocations.";

const QUALIFY_HELP: &str = "\
Definitions and settings (CREATE EXTERNAL TABLE, CREATE VIEW, DROP, SET) are executed, for later statements need them; of CREATE TABLE … AS \
the query is planned, and a table without rows stands for its answer. Everything else is planned alone, for a simulated device. Reasons have \
codes, which docs/reasons.md explains, with the settings that would change them.";

const RUN_HELP: &str = "\
--allocator takes several strategies, separated by commas, or all: the suite runs with each of them, one after the other, and \
their sums and times are told side by side. A suite's suite.toml holds its tables, the defaults of its parameters and what \
makes two answers equal. Times are those of the host's clock, and of real devices only.";

const SOAK_HELP: &str = "\
Sessions open, ask, set options, cancel, make and drop tables, and close, all on one device. Every answer is compared with \
DataFusion's; resident bytes, descriptors, threads, temporary files, and what queries use of device and pinned memory are looked at \
sixty times. A figure grows if the median of the last third of the time exceeds that of the middle third: bytes by more than 64 MiB and \
5 %, and resident ones by 24 MiB more for each thread that was added; descriptors and files by more than 2. There may be 64 threads, and \
32 for each session. When all sessions have gone, nothing may be in use. Exit 1 says what differs, grows or is left, with the statements \
and their settings. Ctrl-C ends it early, with the figures so far.";

const SELFTEST_HELP: &str = "\
The last check runs random queries on the device and compares their answers with DataFusion's. A seed gives the same tables \
and queries again; the outcome names it.";

/// SQL over Parquet on the GPU.
#[derive(Debug, Parser)]
#[command(name = "millpond", version, after_help = AFTER_HELP, args_conflicts_with_subcommands = false)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Statements to run, or a file: the statements of a .sql file, the rows of another one
    #[arg(value_name = "SQL|FILE")]
    pub text: Option<String>,

    #[command(flatten)]
    pub query: QueryArgs,

    #[command(flatten)]
    pub session: SessionArgs,
}

/// A script of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    /// Without a flag: statements, or the name of a file.
    Bare(String),
    /// Of `-c`.
    Text(String),
    /// Of `-f`; `-` is standard input.
    File(PathBuf),
}

/// What to run, and where its answer goes.
#[derive(Debug, Clone, Args)]
pub struct QueryArgs {
    /// Run these statements; may be given more than once, and runs in turn with -f
    #[arg(short = 'c', long = "command", value_name = "SQL")]
    commands: Vec<String>,

    /// Run the statements of a file; - reads standard input
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Both, in their order.
    #[arg(skip)]
    pub scripts: Vec<Script>,

    /// Register each file and folder of data in a folder as a table of its name; may be given more than once
    #[arg(long, value_name = "DIR")]
    pub data: Vec<PathBuf>,

    /// Write answers to a file instead of standard output; an old one is replaced when all statements have succeeded
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How answers look; auto is a table on a terminal and csv otherwise. A table on a terminal is as wide as the
    /// terminal at most
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub format: Format,

    /// Rows of an answer that a table shows, its first and its last ones: a number, or all; 40 on a terminal, and all
    /// elsewhere
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = rows)]
    pub rows: Option<Rows>,

    /// Go on after a failed statement; the exit code still tells
    #[arg(long)]
    pub keep_going: bool,

    /// The shell does not run the statements of rc.sql at its start
    #[arg(long)]
    pub no_rc: bool,
}

/// The session that statements and suites run in.
#[derive(Debug, Clone, Default, Args)]
pub struct SessionArgs {
    /// Which device: auto, cuda, cuda:N, sim or cpu
    #[arg(long, global = true, value_name = "DEVICE")]
    pub device: Option<String>,

    /// What a part that cannot run on the device does: allow, warn or error
    #[arg(long, global = true, value_name = "MODE")]
    pub fallback: Option<String>,

    /// How device memory is allocated: cuda, cuda_async_default, cuda_async, caching, arena or binning; for run and
    /// mem, also several, separated by commas, or all
    #[arg(long, global = true, value_name = "STRATEGY")]
    pub allocator: Option<String>,

    /// Log what happens to device memory, for `millpond mem replay`
    #[arg(long, global = true, value_name = "FILE")]
    pub memory_log: Option<String>,

    /// Write where the time of statements, or of the queries of run, goes: trace events for Perfetto or
    /// chrome://tracing
    #[arg(long, global = true, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Register a Parquet, CSV, JSON or Arrow file, or a folder of one kind, as a table
    #[arg(long = "table", global = true, value_name = "NAME=PATH")]
    pub tables: Vec<String>,

    /// Set an option, such as millpond.batch_rows=1000 or datafusion.execution.target_partitions=4
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// No notes and no footer
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Log plans, placement, kernels and columns that are stored; twice for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Auto,
    Table,
    /// A line for each value
    Line,
    Csv,
    Tsv,
    Json,
    Ndjson,
    Markdown,
    /// A Parquet file, in the layout of parquet rewrite
    Parquet,
    /// An Arrow file (Feather 2)
    Arrow,
    /// Run, and print no rows
    None,
}

impl Format {
    /// As `--format` has it.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// True for what a terminal cannot show.
    pub fn is_binary(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }
}

/// How much of an answer a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    All,
    AtMost(usize),
}

pub fn rows(text: &str) -> Result<Rows, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(Rows::AtMost(count)),
        _ if text == "all" => Ok(Rows::All),
        _ => Err("a number such as 100, or all, is wanted".to_string()),
    }
}

/// How far `selftest` goes.
#[derive(Debug, Clone, Args)]
pub struct SelftestArgs {
    /// 5,000 random queries instead of 500, and larger sets of the other checks
    #[arg(long)]
    pub thorough: bool,

    /// Chooses the random queries; may be hexadecimal (0x5eed)
    #[arg(long, value_name = "N", default_value = "1", value_parser = seed)]
    pub seed: u64,

    /// Only the checks whose names begin so, such as kernels/parquet
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,

    /// Random queries, for tests
    #[arg(long, value_name = "N", hide = true)]
    pub queries: Option<u64>,
}

/// What `soak` runs, and for how long.
#[derive(Debug, Clone, Args)]
pub struct SoakArgs {
    /// How long sessions run
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=2_592_000))]
    pub seconds: u64,

    /// Sessions at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub sessions: u32,

    /// A folder with the tables of a suite; may be given more than once
    #[arg(long, value_name = "DIR")]
    pub data: Vec<PathBuf>,

    /// What sessions run in turn, separated by commas: random, tpch, gpu-bdb, or a folder with a suite.toml; by default
    /// random queries over tables of their own, and the suites whose tables are there
    #[arg(long = "suite", value_delimiter = ',', value_name = "NAMES")]
    pub suites: Vec<String>,

    /// Chooses tables, statements and settings; may be hexadecimal (0x5eed)
    #[arg(long, value_name = "N", default_value = "1", value_parser = seed)]
    pub seed: u64,

    /// Print JSON: every figure that was seen
    #[arg(long)]
    pub json: bool,
}

fn seed(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "a whole number such as 7 or 0x5eed is wanted".to_string())
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Devices, driver, limits, and why there is no GPU
    Info(InfoArgs),
    /// Prove a device: driver, memory, kernels, queries
    #[command(after_help = SELFTEST_HELP)]
    Selftest(SelftestArgs),
    /// Run random statements from many sessions for a stated time, and judge answers, memory, handles and files
    #[command(after_help = SOAK_HELP)]
    Soak(SoakArgs),
    /// Generate data
    Gen(GenArgs),
    /// Run a suite, with counts and a digest per query
    Run(RunArgs),
    /// Say how much of each statement would run on a device, and why not all of it; needs no GPU, and runs no query
    #[command(after_help = QUALIFY_HELP)]
    Qualify(QualifyArgs),
    /// Compare strategies of device memory, and replay what a query did to it
    #[command(subcommand)]
    Mem(MemCommand),
    /// Check the layout of Parquet files, measure how fast they are decoded, and write them again in one that a device
    /// reads fast
    #[command(subcommand)]
    Parquet(ParquetCommand),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the man page
    Man,
}

#[derive(Debug, Args)]
pub struct QualifyArgs {
    /// Plan these statements; may be given more than once, and in turn with -f
    #[arg(short = 'c', long = "command", value_name = "SQL")]
    commands: Vec<String>,

    /// Plan the statements of a file; - reads standard input
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Both, in their order.
    #[arg(skip)]
    pub scripts: Vec<Script>,

    /// Register each file and folder of data in a folder as a table of its name; may be given more than once
    #[arg(long, value_name = "DIR")]
    pub data: Vec<PathBuf>,

    /// How to tell
    #[arg(long, value_enum, default_value_t = QualifyFormat::Table)]
    pub format: QualifyFormat,

    /// Print JSON; the same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QualifyFormat {
    Table,
    Json,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Which shell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Subcommand)]
pub enum ParquetCommand {
    /// Say what in the layout of files limits a scan on a device, what it costs and how to mend it
    #[command(after_help = CHECK_HELP)]
    Check(ParquetCheckArgs),
    /// Measure how fast each column of files is decoded, beside parquet-rs on all cores
    #[command(after_help = MEASURE_HELP)]
    Measure(ParquetMeasureArgs),
    /// Write files again in a layout that a device reads fast
    #[command(after_help = REWRITE_HELP)]
    Rewrite(ParquetRewriteArgs),
}

#[derive(Debug, Args)]
pub struct ParquetCheckArgs {
    /// A Parquet file, or a folder: the .parquet files below it
    pub path: PathBuf,

    /// Show every file, finding and column, not the first 20
    #[arg(long)]
    pub all: bool,

    /// Read footers only, not the headers of pages: faster, and silent about pages where no page index counts them
    #[arg(long)]
    pub footers_only: bool,

    /// How to tell
    #[arg(long, value_enum, default_value_t = CheckFormat::Text)]
    pub format: CheckFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub struct ParquetMeasureArgs {
    /// A Parquet file, or a folder: the .parquet files below it, those with the same columns together
    pub path: PathBuf,

    /// Columns to measure, separated by commas; all flat ones by default. A name with commas is given alone; several
    /// times is possible
    #[arg(long, value_name = "NAMES")]
    pub columns: Vec<String>,

    /// Runs of each column, after one that does not count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,

    /// How to tell
    #[arg(long, value_enum, default_value_t = CheckFormat::Text)]
    pub format: CheckFormat,
}

#[derive(Debug, Args)]
pub struct ParquetRewriteArgs {
    /// A Parquet file, or a folder: the .parquet files below it
    #[arg(value_name = "IN")]
    pub from: PathBuf,

    /// The file or folder to write; folders are made when missing, and each input file becomes one output file
    #[arg(value_name = "OUT")]
    pub to: PathBuf,

    /// Compression of pages; pages that gain less than a tenth are stored as they are. The host decompresses zstd
    #[arg(long, value_enum, default_value_t = RewriteCodec::Snappy)]
    pub codec: RewriteCodec,

    /// Rows of a row group
    #[arg(long, value_name = "N", default_value_t = ROW_GROUP_ROWS, value_parser = row_group_rows())]
    pub row_group_rows: usize,

    /// Replace files that exist
    #[arg(long)]
    pub force: bool,
}

fn row_group_rows() -> clap::builder::RangedU64ValueParser<usize> {
    let (least, most) = (*ROW_GROUP_ROWS_RANGE.start() as u64, *ROW_GROUP_ROWS_RANGE.end() as u64);
    clap::builder::RangedU64ValueParser::new().range(least..=most)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RewriteCodec {
    None,
    Snappy,
    #[value(name = "lz4_raw")]
    Lz4Raw,
    Zstd,
}

#[derive(Debug, Subcommand)]
pub enum MemCommand {
    /// Compare strategies of allocation on a device
    #[command(after_help = BENCH_HELP)]
    Bench(MemBenchArgs),
    /// Replay an allocation log with its streams and their order, from any strategy
    #[command(after_help = REPLAY_HELP)]
    Replay(MemReplayArgs),
}

#[derive(Debug, Args)]
pub struct MemBenchArgs {
    /// Only these patterns, separated by commas, or all: sizes, events, loop, streams, random, query, threshold, reuse
    #[arg(long = "pattern", value_delimiter = ',', value_name = "NAMES")]
    pub patterns: Vec<String>,

    /// Measured passes of each cell; each has a warm-up of its own before it
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Seconds that all passes together may take on a GPU; a pass that is late is cut short and marked
    #[arg(long, default_value_t = 40, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,

    /// Seed of the random pattern, and of the simulated device
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Write every figure to a file as JSON, too; - prints JSON instead of tables
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct MemReplayArgs {
    /// The log: of --memory-log, or RMM's
    pub log: PathBuf,

    /// Seed of the simulated device
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct GenArgs {
    /// The suite: tpch or gpu-bdb
    pub suite: String,

    /// Scale factor; 1 is about 1 GB of raw text. gpu-bdb starts at 0.01
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub scale: f64,

    /// Folder to write to; made when missing
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Only these tables, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub tables: Vec<String>,

    /// Replace tables of another suite, scale, seed or type
    #[arg(long)]
    pub force: bool,

    /// Threads; 0 means one per core
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = thread_count())]
    pub threads: usize,

    /// Compression of column chunks
    #[arg(long, value_enum, default_value_t = Codec::Snappy)]
    pub codec: Codec,

    /// gpu-bdb: another seed gives other rows with the same distributions [default: 20240607]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,

    /// gpu-bdb: no planted rows; some queries are then empty at small scales
    #[arg(long)]
    pub no_plants: bool,

    /// gpu-bdb: money as DOUBLE or as DECIMAL(7, 2) [default: double]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub money: Option<Money>,

    /// gpu-bdb: keys as INT64 or as INT32 where they fit [default: int64]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub keys: Option<Keys>,
}

/// Each thread has a stack, a batch and a row group: thousands of them would only be slow to start.
fn thread_count() -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::new().range(0..=1024)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Codec {
    None,
    Snappy,
    Zstd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Money {
    Double,
    Decimal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keys {
    Int64,
    Int32,
}

#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub struct RunArgs {
    /// The suite: tpch, gpu-bdb, or a folder with a suite.toml and .sql files (./mine)
    pub suite: String,

    /// Folder of the suite's tables
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,

    /// Only these queries, separated by commas, as 1 or q01
    #[arg(long = "query", value_delimiter = ',', value_name = "IDS")]
    pub queries: Vec<String>,

    /// Give a parameter of the queries another value; QUERY.NAME=VALUE for one query. Lists are separated by commas
    #[arg(long = "param", value_name = "NAME=VALUE")]
    pub parameters: Vec<String>,

    /// Compare every answer with another device's
    #[arg(long, value_enum, value_name = "WITH")]
    pub validate: Option<ValidateWith>,

    /// Runs of each query: the first one is cold, of the others the median and the least are told
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,

    /// tpch: give each run of a query other constants, those that TPC-H draws, beginning at this seed
    #[arg(long, value_name = "SEED")]
    pub vary: Option<u64>,

    /// How to tell: table, md (Markdown), json (a line for each query)
    #[arg(long, value_enum, default_value_t = ReportForm::Table, value_name = "FORM")]
    pub report: ReportForm,

    /// Print JSON lines; the same as --report json
    #[arg(long, conflicts_with = "report")]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportForm {
    Table,
    Md,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ValidateWith {
    /// DataFusion on the CPU
    Cpu,
}
