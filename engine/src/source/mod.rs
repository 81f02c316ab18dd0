//! Where rows come from.

pub(crate) mod reset;
pub mod upload;
