//! Device code of Millpond: compiled images, launchers and the pipeline generator.

#![deny(unsafe_code)]

pub mod abi;
pub mod codegen;
pub mod launch;

pub use launch::{Launch, LaunchConfig};
