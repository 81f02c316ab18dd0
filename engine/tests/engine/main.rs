//! The engine from outside: plans, options, queries on the simulated device against the CPU.

mod aggregates;
mod answers;
mod edges;
mod found;
mod functions;
mod joins;
mod launches;
mod medians;
mod memory;
mod no_device;
mod placement;
mod plans;
mod queries;
mod random_expressions;
mod selftest;
mod skew;
mod sorting;
mod sources;
mod sql_features;
mod strategies;
mod support;
mod text;
mod tpch;
mod troubles;
mod udf;
mod unions;
