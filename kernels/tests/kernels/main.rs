//! Compiled and generated kernels against their meaning in plain Rust, on the simulated device.

mod checks;
mod expr_bench;
mod expr_date;
mod expr_decimal;
mod expr_errors;
mod expr_float;
mod expr_integer;
mod expr_logic;
mod expr_random;
mod expr_text;
mod image_text;
mod join;
mod launch;
mod moves;
mod pick;
mod pipeline_aggregate;
mod pipeline_groups;
mod pipeline_materialise;
mod pipeline_moments;
mod pipeline_random;
mod pipeline_rig;
mod pipeline_sets;
mod pipeline_shape;
mod reduce;
mod sort;
mod text;
