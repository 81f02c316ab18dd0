//! Device code of Millpond: compiled images, launchers and the pipeline generator.

#![deny(unsafe_code)]

pub mod abi;
pub mod codegen;
pub mod error;
pub mod launch;
pub mod layout;
pub mod pipeline;
pub mod tune;

pub use error::KernelError;
pub use launch::{Launch, LaunchConfig};
