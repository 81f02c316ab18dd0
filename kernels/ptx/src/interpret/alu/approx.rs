//! Approximate functions: rcp sqrt rsqrt sin cos lg2 ex2 tanh with .approx.
//!
//! Results are computed in .f64 on the host and rounded once to .f32; rcp and sqrt are correctly rounded. Their errors
//! are within the bounds of the manual:
//!
//!   rcp 1 ulp · sqrt 2^-23 · rsqrt 2^-22.9 relative · sin cos 2^-20.5 absolute in ±2π · lg2 2^-22 · ex2 2 ulp
//!   tanh 2^-11
//!
//! A device, or a host with another math library, may differ in the last bits; code must not depend on them.
//!
//! Subnormal  kept; .ftz flushes inputs and results, so rcp.approx.ftz of a subnormal number is an infinity.
//! .f64       rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 read only the upper word and write an upper word, rounded to
//!            its 20 fraction bits. A NaN in the upper word becomes 0x7fffffff00000000; a NaN whose payload is only in
//!            the lower word is read as an infinity. rsqrt.approx.f64 is 1 / sqrt(a) in .f64.

use super::decode::Decoder;
use super::float::{by_switches, put32, rcp32, sqrt32, take32};
use super::lanes::lanes1;
use super::{AluOp, Row, Run};
use crate::ast::Type;

macro_rules! through_f64 {
    ($name:ident, |$a:ident| $body:expr) => {
        fn $name<const FTZ: bool, const SAT: bool>(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
            lanes1(op, registers, constants, mask, |a| {
                let $a = f64::from(take32::<FTZ>(a));
                put32::<FTZ, SAT>($body as f32)
            });
        }
    };
}

through_f64!(rsqrt32, |a| 1.0 / a.sqrt());
through_f64!(sin32, |a| a.sin());
through_f64!(cos32, |a| a.cos());
through_f64!(lg2_32, |a| a.log2());
through_f64!(ex2_32, |a| a.exp2());
through_f64!(tanh32, |a| a.tanh());

fn rsqrt64(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| {
        let a = f64::from_bits(a);
        let out = 1.0 / a.sqrt();
        if a.is_nan() {
            a.to_bits() | 1 << 51
        } else if out.is_nan() {
            super::exact::F64.nan
        } else {
            out.to_bits()
        }
    });
}

const UPPER: u64 = 0xffff_ffff_0000_0000;
const NAN_UPPER: u64 = 0x7fff_ffff_0000_0000;

/// Applies a function to the upper word only, flushing subnormal inputs and results.
#[inline(always)]
fn of_upper_word(a: u64, f: impl Fn(f64) -> f64) -> u64 {
    let flush = |bits: u64| if bits & 0x7ff0_0000_0000_0000 == 0 { bits & 1 << 63 } else { bits };
    let out = f(f64::from_bits(flush(a & UPPER)));
    if out.is_nan() { NAN_UPPER } else { flush((out.to_bits() + 0x8000_0000) & UPPER) }
}

fn rcp64_upper(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| of_upper_word(a, |a| 1.0 / a));
}

fn rsqrt64_upper(op: &AluOp, registers: &mut [Row], constants: &[Row], mask: u32) {
    lanes1(op, registers, constants, mask, |a| of_upper_word(a, |a| 1.0 / a.sqrt()));
}

pub(super) fn decode(decoder: &mut Decoder) -> Result<AluOp, String> {
    let ty = decoder.one_type()?;
    if !decoder.flag("approx") {
        return Err(format!("needs .approx: `{}` has no other form", decoder.name()));
    }
    let may_flush = decoder.name() != "tanh";
    let ftz = may_flush && decoder.flag("ftz");
    let run: Run = match (decoder.name(), ty) {
        ("rcp", Type::F32) => by_switches!(rcp32, ftz, false),
        ("sqrt", Type::F32) => by_switches!(sqrt32, ftz, false),
        ("rsqrt", Type::F32) => by_switches!(rsqrt32, ftz, false),
        ("sin", Type::F32) => by_switches!(sin32, ftz, false),
        ("cos", Type::F32) => by_switches!(cos32, ftz, false),
        ("lg2", Type::F32) => by_switches!(lg2_32, ftz, false),
        ("ex2", Type::F32) => by_switches!(ex2_32, ftz, false),
        ("tanh", Type::F32) => by_switches!(tanh32, ftz, false),
        ("rcp", Type::F64) if ftz => rcp64_upper,
        ("rsqrt", Type::F64) if ftz => rsqrt64_upper,
        ("rsqrt", Type::F64) => rsqrt64,
        ("rcp", _) => return Err(decoder.no_type(ty, ".f32, and .f64 with .approx.ftz")),
        ("rsqrt", _) => return Err(decoder.no_type(ty, ".f32 .f64")),
        _ => return Err(decoder.no_type(ty, ".f32")),
    };
    decoder.simple(run, ty.bits(), &[ty])
}
