//! Devices, streams, events and the stream-ordered memory pool, over CUDA or a simulated device.

#![deny(unsafe_code)]

pub mod driver;
pub mod error;
pub mod pinned;
pub mod stream;
pub mod units;

pub use error::{DriverCode, DriverError, DriverUnavailable, MemoryError, Result};
pub use units::ByteSize;
