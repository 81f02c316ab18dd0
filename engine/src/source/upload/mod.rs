//! Rows of a CPU plan, executed by DataFusion.

pub(super) mod feed;
mod rows;
