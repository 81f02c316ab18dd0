//! The interpreter on hand-written PTX.
//!
//! Expected values come from the PTX manual or from Rust code in the test, never from the interpreter.

mod atomics;
mod barriers;
mod calls;
mod device;
mod faults;
mod lanes;
mod leftovers;
mod litmus;
mod memory;
mod mutants;
mod order;
mod progress;
mod together;
