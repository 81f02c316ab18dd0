//! A GPU SQL engine that extends Apache DataFusion's physical plan.
//!
//!   SQL ─ DataFusion ─► physical plan ─ placement ─► device subtrees ─ program ─► kernels on streams
//!                                            └─► the rest stays DataFusion's, with a reason
//!
//! The entry point is [`Millpond`]: it opens a device (or reports why there is none), returns a DataFusion
//! [`SessionContext`](datafusion::prelude::SessionContext) that plans for it, and reports a query's work.
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use millpond::prelude::*;
//!
//! // `auto` takes a GPU where there is one; `sim` runs the same kernels on a simulated device.
//! let session = Millpond::builder().with_device(DeviceChoice::Sim).build()?;
//! session.execute("CREATE TABLE t AS VALUES ('a', 1), ('b', 2), ('a', 3)").await?;
//! let result = session.execute("SELECT column1, sum(column2) FROM t GROUP BY column1 ORDER BY column1").await?;
//! println!("{}", pretty_format_batches(&result.batches)?);
//! // 2 rows · 0.004 s · simulated device: 2 of 2 operators · …
//! println!("{}", result.report);
//! assert_eq!((result.report.answer_rows, result.report.share_on_device()), (2, Some(1.0)));
//! # Ok::<_, Box<dyn std::error::Error>>(()) })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! An application's own DataFusion session state gets the device by [`WithMillpond::with_millpond`]. docs/rust.md
//! starts with an empty crate.
//!
//! Async     queries are futures; they require a tokio runtime of any flavor.
//! Answers   are DataFusion's, and PostgreSQL's where DataFusion is wrong (docs/upstream.md); an operator whose device
//!           form would differ stays on the CPU.
//! No device the plan is DataFusion's, byte for byte.
//! Exit      a program drops its sessions, then its tokio runtime, and calls [`leave()`] last. Without that nothing
//!           breaks: once a process exits, the driver is no longer called, and remaining device resources are left to
//!           the system.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// Modules without documentation pages are for the other crates of this repository.
#[doc(hidden)]
pub mod column;
pub mod device;
pub mod error;
pub mod explain;
#[doc(hidden)]
pub mod expr;
#[doc(hidden)]
pub mod files;
mod memberships;
mod mends;
#[doc(hidden)]
pub mod operator;
pub mod options;
mod parquet;
#[doc(hidden)]
pub mod placement;
#[doc(hidden)]
pub mod plan;
pub mod prelude;
pub mod profile;
#[doc(hidden)]
pub mod program;
#[doc(hidden)]
pub mod result;
pub mod session;
#[doc(hidden)]
pub mod source;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod tables;

/// Compiles the examples of docs/rust.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rust.md")]
struct RustPage;

pub use datafusion;
// Kernel language and device memory, for operators of other crates.
pub use {millpond_kernels as kernels, millpond_memory as memory};

pub use error::EngineError;
pub use expr::udf::{DeviceFunction, NullHandling, UdfError};
pub use files::standard_input_was_read_as;
pub use millpond_memory::{Left, leave};
pub use options::{DeviceChoice, Fallback, IntegerOverflow, MillpondOptions};
pub use placement::contract;
pub use profile::{Profile, Profiler};
pub use session::object_stores::ObjectStores;
pub use session::plan_cache::PlansFound;
pub use session::report::QueryReport;
pub use session::selftest::{CheckOutcome, SelftestOptions, selftest};
pub use session::{Created, Millpond, MillpondBuilder, PlannedStatement, QueryResult, QueryStream, WithMillpond};
pub use session::{progress, report};
