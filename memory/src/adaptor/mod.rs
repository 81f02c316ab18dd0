//! What can be put around a resource: they stack, each around the one before.
//!
//!   Tracking( Logging( Statistics( FailureCallback( Limiting( any resource )))))
//!
//!   limiting           refuses what would pass a limit
//!   failure_callback   calls a callback that frees memory, then retries
//!   statistics         current, peak and total, in all and per scope
//!   tracking           who holds what, and what is left over at the end
//!   logging            one line of CSV for each allocation and each free
//!   poison             fills what is fresh and what is freed, so that a use too early or too late shows
//!
//! Each       counts the bytes that it is asked for itself, once, whatever is inside or around it.
//! Names      an adaptor has the name of what is inside.

mod failure_callback;
mod limiting;
mod logging;
mod poison;
mod statistics;
mod tracking;

pub use failure_callback::{Failure, FailureAction, FailureCallbackResourceAdaptor};
pub use limiting::LimitingResourceAdaptor;
pub use logging::LoggingResourceAdaptor;
pub use poison::{FREED, FRESH, PoisonResourceAdaptor};
pub use statistics::{
    AllocationStatistics, BlockCount, BlockStatistics, Count, LatencyHistogram, StatisticsResourceAdaptor,
};
pub use tracking::{Outstanding, TrackingResourceAdaptor};
