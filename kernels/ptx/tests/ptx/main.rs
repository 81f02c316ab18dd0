//! PTX text: the crate parses compiler output, prints what it parsed, and rejects the rest.

mod assigned;
mod build;
mod check;
mod malformed;
mod random;
mod round_trip;

/// NVRTC 12.2's output for `nvrtc.cu`, which uses every construct that the compiler has.
pub const NVRTC: &str = include_str!("nvrtc.ptx");
