//! Every arithmetic instruction, compared with the PTX manual, with wider integers, or with known bit patterns.
//!
//!   "add.sat.s32 %r0, %r1, %r2"   inputs: a row per case, one case per lane   expected: value of `%r0`
//!
//! Instructions are written as text, so that decoding is tested, too. No expected value comes from the interpreter.

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
