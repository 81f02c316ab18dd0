//! Every arithmetic instruction against values from the PTX manual, from wider integers, or from known bit patterns.
//!
//!   "add.sat.s32 %r0, %r1, %r2"   inputs: a row per case, one case per lane   expected: what `%r0` must hold
//!
//! Instructions are written as text, so decoding is tested with them. No expected value comes from the interpreter.

mod approx;
mod bits;
mod carry;
mod compare;
mod compiled;
mod convert;
mod float;
mod harness;
mod integer;
mod moves;
mod properties;
mod refused;
mod rounding;
