//! Common imports: `use millpond::prelude::*`.

pub use datafusion::arrow::util::pretty::pretty_format_batches;
pub use datafusion::common::ScalarValue;
pub use datafusion::error::DataFusionError;
pub use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
pub use millpond_memory::Strategy;

pub use crate::device::{Engine, Opened};
pub use crate::error::EngineError;
pub use crate::options::{Cache, DeviceChoice, Fallback, IntegerOverflow, MillpondOptions};
pub use crate::session::report::QueryReport;
pub use crate::session::{Millpond, MillpondBuilder, QueryResult, QueryStream, WithMillpond};
