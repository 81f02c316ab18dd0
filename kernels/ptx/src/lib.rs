//! PTX as data: parse, print, build, check and interpret it.
#![forbid(unsafe_code)]

pub mod ast;
pub mod build;
mod check;
mod error;
mod flow;
pub mod interpret;
mod lex;
mod parse;
mod print;
mod strip;

pub use check::{check, check_assigned};
pub use error::PtxError;
pub use parse::parse;
pub use strip::{static_shared_bytes, strip};
