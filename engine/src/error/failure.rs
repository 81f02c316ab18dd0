//! Failures of a run, and whether another attempt, or the CPU, can continue.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use millpond_kernels::KernelError;
use millpond_kernels::codegen::ir::ErrorCode;
use millpond_memory::MemoryError;

use crate::error::EngineError;
use crate::options::Fallback;

/// Cause of a failure on the device.
#[derive(Debug, Clone, Default)]
pub struct Trouble {
    pub what: String,
    pub out_of_memory: bool,
    pub lost: bool,
    /// The query's own error, where a kernel raised one: division by zero, overflow, a failed cast.
    pub sql: Option<Arc<DataFusionError>>,
}

/// Failure that stops a run.
#[derive(Debug)]
pub enum Failure {
    /// The device cannot continue: the CPU may take over.
    Trouble(Trouble),
    /// Memory ran out after part of an extent was consumed: a retry with smaller pieces is impossible.
    Midway(Trouble),
    /// All pinned memory is in use for now.
    Pinned(Trouble),
    /// The plan below failed; the CPU would fail, too.
    Input(DataFusionError),
    /// Values left the ranges that the plan relied on.
    Ranges,
    /// Dictionaries outgrew their codes' widths; these sizes were seen, by upload and column.
    Dictionaries(HashMap<(usize, usize), usize>),
    /// String columns that are better off without a dictionary, by upload and column.
    Texts(Vec<(usize, usize)>),
    /// Ranks of strings moved between launches whose results are combined; their dictionaries are complete by now.
    Ranks,
    /// Texts that the device makes needed more room than planned.
    Arena,
    /// An answer assumed from earlier runs was wrong.
    Surprise,
    /// The reader of the result was dropped.
    Cancelled,
}

impl Failure {
    /// Lesson for the next attempt, as profiles show it.
    pub fn lesson(&self) -> String {
        let named = |(upload, column): &(usize, usize)| format!("upload {upload} column {column}");
        match self {
            Self::Ranges => "values left the ranges of statistics: columns take their native widths".to_string(),
            Self::Dictionaries(sizes) => {
                let mut sizes: Vec<String> =
                    sizes.iter().map(|(of, size)| format!("{size} in {}", named(of))).collect();
                sizes.sort_unstable();
                format!("dictionaries have more values than planned: {}", sizes.join(" and "))
            }
            Self::Texts(columns) => {
                let columns: Vec<String> = columns.iter().map(named).collect();
                format!("strings without a dictionary: {}", columns.join(" and "))
            }
            Self::Ranks => "ranks of strings moved: their dictionaries are complete now".to_string(),
            Self::Arena => "texts that the device makes take more room than planned".to_string(),
            Self::Surprise => "what earlier runs found of the plan is not so: it is asked for again".to_string(),
            Self::Trouble(trouble) | Self::Midway(trouble) | Self::Pinned(trouble) => trouble.what.clone(),
            Self::Input(error) => error.strip_backtrace(),
            Self::Cancelled => "nobody reads the result any more".to_string(),
        }
    }

    /// True if a smaller piece, or less concurrency, might have fit into memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Trouble(Trouble { out_of_memory: true, .. }))
    }

    /// True if smaller pieces from the start might have fit into memory.
    pub fn wants_less(&self) -> bool {
        self.is_out_of_memory() || matches!(self, Self::Midway(_))
    }

    /// Marks an out-of-memory failure as not retryable: part of the extent was already consumed.
    pub fn midway(self) -> Self {
        match self {
            Self::Trouble(trouble) if trouble.out_of_memory => Self::Midway(trouble),
            other => other,
        }
    }

    pub fn trouble(what: impl Into<String>) -> Self {
        Self::Trouble(Trouble { what: what.into(), ..Trouble::default() })
    }

    /// An error of the query itself, met while evaluating an expression on a dictionary. A dictionary's value may be in
    /// no row that reaches the expression, so DataFusion decides.
    pub fn query(error: DataFusionError) -> Self {
        Self::Trouble(Trouble { what: error.strip_backtrace(), sql: Some(Arc::new(error)), ..Trouble::default() })
    }
}

impl From<DataFusionError> for Failure {
    /// An expression failed on a dictionary's values; only the CPU can determine whether any row has that value.
    fn from(error: DataFusionError) -> Self {
        let what = error.strip_backtrace();
        Self::Trouble(Trouble { what, sql: Some(Arc::new(error)), ..Trouble::default() })
    }
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Self {
        Self::trouble(error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::trouble(error.to_string())
    }
}

impl From<crate::error::reason::Reason> for Failure {
    fn from(reason: crate::error::reason::Reason) -> Self {
        Self::trouble(reason.to_string())
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        let (out_of_memory, lost) = (error.is_out_of_memory(), error.is_device_lost());
        let what = match &error {
            // For a user, memory that cannot be reserved has run out.
            MemoryError::ReservationRefused { space, .. } => format!("out of {space} memory: {error}"),
            _ => error.to_string(),
        };
        let trouble = Trouble { what, out_of_memory, lost, sql: None };
        match error {
            MemoryError::PinnedExhausted { .. } => Self::Pinned(trouble),
            _ => Self::Trouble(trouble),
        }
    }
}

impl From<KernelError> for Failure {
    fn from(error: KernelError) -> Self {
        let (out_of_memory, lost) = (error.is_out_of_memory(), error.is_device_lost());
        Self::Trouble(Trouble { what: error.to_string(), out_of_memory, lost, sql: None })
    }
}

impl Trouble {
    pub(crate) fn into_error(self, fallback: Fallback) -> DataFusionError {
        let Trouble { what, out_of_memory, lost, sql } = self;
        if let Some(sql) = sql {
            return DataFusionError::Shared(sql);
        }
        let forbidden = fallback == Fallback::Error;
        EngineError::DeviceTrouble { what, forbidden, lost, out_of_memory }.into()
    }
}

/// Error word and row count of a control block.
pub(crate) fn control_words(bytes: &[u8]) -> Result<(u64, u64), Failure> {
    let words = bytes.as_chunks::<8>().0;
    match words {
        [error, rows, ..] => Ok((u64::from_le_bytes(*error), u64::from_le_bytes(*rows))),
        _ => Err(EngineError::internal(format!("a control block of {} bytes", bytes.len())).into()),
    }
}

/// Fails if a kernel raised the error flag.
pub(crate) fn flagged(word: u64) -> Result<(), Failure> {
    if word == 0 {
        return Ok(());
    }
    let (what, sql) = match ErrorCode::from_word(word) {
        Some((ErrorCode::DivisionByZero, _)) => ("division by zero", Some(ArrowError::DivideByZero)),
        Some((ErrorCode::Overflow, _)) => {
            let error = ArrowError::ArithmeticOverflow("Overflow happened in an expression".into());
            ("arithmetic overflow", Some(error))
        }
        Some((ErrorCode::Cast, _)) => {
            ("a failed cast", Some(ArrowError::CastError("A value does not fit the type it is cast to".into())))
        }
        Some((ErrorCode::Argument, _)) => {
            let error = ArrowError::InvalidArgumentError("An argument is outside what its function takes".into());
            ("an argument that a function refuses", Some(error))
        }
        Some((ErrorCode::ArenaFull, _)) => return Err(Failure::Arena),
        Some((ErrorCode::TableFull, _)) => ("a hash table that was too small", None),
        Some((ErrorCode::KeyRange, _)) => ("a key outside its range", None),
        Some((ErrorCode::Undecided, _)) => ("a case in which DataFusion's own answer depends on its batches", None),
        None => ("an unknown error", None),
    };
    let what = format!("the device met {what}");
    let sql = sql.map(|error| Arc::new(DataFusionError::from(error)));
    Err(Failure::Trouble(Trouble { what, sql, ..Trouble::default() }))
}
