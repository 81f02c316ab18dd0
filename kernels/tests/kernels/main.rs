//! Compiled and generated kernels against their meaning in plain Rust, on the simulated device.

mod image_text;
mod moves;
mod pipeline_aggregate;
mod pipeline_groups;
mod pipeline_materialise;
mod pipeline_rig;
mod pipeline_shape;
mod reduce;
mod sort;
