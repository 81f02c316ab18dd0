//! Generated kernels against their meaning in plain Rust, on the simulated device.

mod pipeline_aggregate;
mod pipeline_groups;
mod pipeline_materialise;
mod pipeline_rig;
mod pipeline_shape;
