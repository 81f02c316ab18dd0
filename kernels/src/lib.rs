//! Device code of Millpond: compiled images, launchers and the pipeline generator.

#![deny(unsafe_code)]

pub mod abi;
pub mod bayes;
pub mod cache;
pub mod checks;
pub mod clicks;
pub mod codegen;
pub mod error;
pub mod image;
pub mod join;
pub mod launch;
pub mod layout;
pub mod learn;
pub mod lists;
pub mod parquet;
pub mod pipeline;
pub mod reduce;
pub mod regex;
pub mod rows;
pub mod scan;
pub mod sentences;
pub mod sort;
pub mod store;
pub mod text;
pub mod tune;
pub mod vectors;
pub mod window;

pub use error::KernelError;
pub use image::Images;
pub use launch::{Launch, LaunchConfig};
pub use rows::Rows;
