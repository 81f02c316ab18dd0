//! Runs PTX on the host.

pub mod alu;
