//! The engine from outside: plans, options, queries on the simulated device against the CPU.

mod no_device;
mod placement;
mod queries;
mod support;
