//! Values as the words of cells: whole numbers, limbs, and encodings that sort as unsigned numbers.
//!
//! ```text
//!   i64        x ^ sign bit                              -1 < 0 < 1
//!   float      the bits; all flipped if negative, else with the sign bit set
//!   minimum    the complement of its encoding: the greatest complement is that of the least value
//! ```

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, FunctionBuilder, Reg};

use crate::codegen::ir::{Lane, Ty, lane};
use crate::codegen::load::{to_64, to_128, truth_bit};
use crate::codegen::value::Value;

/// The sign bit of 64 bits.
const SIGN: u64 = 1 << 63;

/// An integer or boolean as 64 bits.
pub(super) fn whole(f: &mut FunctionBuilder, value: Value) -> Reg {
    let reg = if value.lane == Lane::Pred { truth_bit(f, value.low) } else { value.low };
    to_64(f, reg).view(Type::U64)
}

/// Extracts 32 bits of an integer, zero-extended; the last limb is all higher bits, sign-extended.
pub(super) fn limb(f: &mut FunctionBuilder, value: Value, index: u32, last: bool) -> Reg {
    let (half, odd) = match value.lane {
        Lane::S128 => {
            let (low, high) = to_128(f, value);
            (if index < 2 { low } else { high.view(Type::U64) }, index % 2 == 1)
        }
        _ => (whole(f, value), index == 1),
    };
    match (odd, last) {
        (true, true) => f.shr(half.view(Type::S64), 32).view(Type::U64),
        (true, false) => f.shr(half, 32),
        (false, _) => f.and(half, 0xffff_ffffu64),
    }
}

/// Encodes a value so that unsigned order is the order of values (for min: its reverse). Floats: IEEE total order, from
/// -NaN to NaN.
pub(super) fn ordered(f: &mut FunctionBuilder, value: Value, min: bool) -> Vec<Reg> {
    let mut words = match value.lane {
        Lane::S128 => {
            let (low, high) = to_128(f, value);
            let high = f.xor(high.view(Type::U64), SIGN);
            vec![low, high]
        }
        Lane::S32 | Lane::S64 => {
            let wide = to_64(f, value.low).view(Type::U64);
            vec![f.xor(wide, SIGN)]
        }
        // A pipeline with the minimum of texts is refused earlier.
        Lane::Pred | Lane::U32 | Lane::U64 | Lane::Text => vec![whole(f, value)],
        Lane::F32 => {
            let bits = f.reinterpret(Type::S32, value.low);
            let flip = f.shr(bits, 31);
            let flip = f.or(flip, 0x8000_0000u32);
            let bits = f.xor(bits, flip);
            vec![f.convert(Type::U64, bits.view(Type::U32))]
        }
        Lane::F64 => {
            let bits = f.reinterpret(Type::S64, value.low);
            let flip = f.shr(bits, 63);
            let flip = f.or(flip, SIGN);
            vec![f.xor(bits, flip).view(Type::U64)]
        }
    };
    if min {
        for word in &mut words {
            *word = f.not(*word).view(Type::U64);
        }
    }
    words
}

/// Decodes a value encoded by [`ordered`], in the lane of `ty`.
pub(super) fn restore(f: &mut FunctionBuilder, words: &[Reg], ty: Ty, min: bool) -> Value {
    let lane = lane(ty);
    let mut words: Vec<Reg> = words.iter().map(|word| word.view(Type::U64)).collect();
    if min {
        for word in &mut words {
            *word = f.not(*word).view(Type::U64);
        }
    }
    let mut high = None;
    let low = match lane {
        Lane::S128 => {
            high = Some(f.xor(words[1], SIGN).view(Type::S64));
            words[0]
        }
        Lane::S32 => {
            let signed = f.xor(words[0], SIGN).view(Type::S64);
            f.convert(Type::S32, signed)
        }
        Lane::S64 => f.xor(words[0], SIGN).view(Type::S64),
        Lane::U32 => f.convert(Type::U32, words[0]),
        Lane::U64 | Lane::Text => words[0],
        Lane::Pred => f.setp(Compare::Ne, words[0], 0u64),
        Lane::F32 => {
            let bits = f.convert(Type::U32, words[0]);
            let positive = f.shr(bits.view(Type::S32), 31);
            let flip = f.not(positive);
            let flip = f.or(flip, 0x8000_0000u32);
            let bits = f.xor(bits.view(Type::B32), flip.view(Type::B32));
            f.reinterpret(Type::F32, bits)
        }
        Lane::F64 => {
            let positive = f.shr(words[0].view(Type::S64), 63);
            let flip = f.not(positive);
            let flip = f.or(flip, SIGN);
            let bits = f.xor(words[0].view(Type::B64), flip.view(Type::B64));
            f.reinterpret(Type::F64, bits)
        }
    };
    Value { lane, low, high, valid: None }
}
