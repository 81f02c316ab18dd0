//! Device code of Millpond: compiled images, launchers and the pipeline generator.

pub mod abi;
pub mod codegen;
