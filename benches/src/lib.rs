//! The suite runner and benchmarks of Millpond.
