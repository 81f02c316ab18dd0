//! Where rows come from.

pub(crate) mod filtered;
pub(crate) mod reset;
pub(crate) mod stored;
pub mod upload;
