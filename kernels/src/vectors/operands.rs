//! Tested operand values: at most sixteen edge values per operand; all combinations up to 256, a seeded sample above.
//!
//!   add.rn.f64   16 edges × 16 edges      ─► 256 tuples, all
//!   fma.rn.f64   16 × 16 × 16 = 4,096     ─► 256 of them, seeded by the form's name
//!   sqrt.rn.f64  16 edges                 ─► 16, and 48 seeded numbers, as one operand leaves room
//!
//! Same       the tuples of a form are equal on every machine: the recording does not store them but their [`hash`], so
//!            that a change of this choice is noticed.

use std::collections::BTreeSet;

use millpond_ptx::ast::{Type, TypeKind};

use super::forms::{Form, Role, Source};

/// Maximum tuples of a form.
pub const MOST: usize = 256;
/// Seeded values of a form with one operand, in addition to its edges.
const MORE: usize = 48;

/// The operands of every vector of a form: one list of bits for each source.
pub fn operands(form: &Form) -> Vec<Vec<u64>> {
    let edges: Vec<Vec<u64>> = form.sources.iter().map(edges).collect();
    let all: usize = edges.iter().map(Vec::len).product();
    let mut seed = Seed(fnv(form.name.as_bytes()));
    let mut picked: Vec<usize> = (0..all.min(MOST)).collect();
    if all > MOST {
        let mut seen = BTreeSet::new();
        picked.clear();
        while picked.len() < MOST {
            let index = (seed.next() % all as u64) as usize;
            if seen.insert(index) {
                picked.push(index);
            }
        }
    }
    let mut columns: Vec<Vec<u64>> = vec![Vec::new(); edges.len()];
    for mut index in picked {
        for (column, edges) in columns.iter_mut().zip(&edges) {
            column.push(edges[index % edges.len()]);
            index /= edges.len();
        }
    }
    if let ([column], [source]) = (&mut columns[..], &form.sources[..])
        && source.role != Role::Flag
        && source.ty != Type::Pred
    {
        let most = column.len() + MORE;
        while column.len() < most {
            let value = seeded(source, &mut seed);
            if !column.contains(&value) {
                column.push(value);
            }
        }
    }
    columns
}

/// Hash of all tuples.
pub fn hash(operands: &[Vec<u64>]) -> u64 {
    let bytes: Vec<u8> = operands.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    fnv(&bytes)
}

/// FNV-1a over 64 bits, by Fowler, Noll and Vo.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// SplitMix64, by Sebastiano Vigna.
struct Seed(u64);

impl Seed {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// A number of the operand's type: for floats medium-sized numbers and arbitrary bits in turn, for integers any length.
fn seeded(source: &Source, seed: &mut Seed) -> u64 {
    let (bits, how) = (seed.next(), seed.next());
    match source.ty {
        Type::F32 if how & 1 == 0 => bits & 0x807f_ffff | (127 - 24 + (how >> 8) % 60) << 23,
        Type::F64 if how & 1 == 0 => bits & 0x800f_ffff_ffff_ffff | (1023 - 24 + (how >> 8) % 96) << 52,
        ty if ty.is_float() => bits & mask(source.bits),
        ty => {
            let short = bits >> (how % u64::from(ty.bits()));
            (if how >> 32 & 1 == 0 { short } else { short.wrapping_neg() }) & mask(source.bits)
        }
    }
}

/// Edge values of an operand, at most sixteen.
fn edges(source: &Source) -> Vec<u64> {
    let bits = source.ty.bits();
    let values: Vec<u64> = match (source.role, source.ty.kind()) {
        (Role::Flag, _) | (_, TypeKind::Predicate) => vec![0, 1],
        (Role::Bits, _) => vec![0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 0xffff_ffff],
        // Nibbles select a byte of eight; their highest bit replicates its sign.
        (Role::Bytes, _) => vec![
            0x0000,
            0x0123,
            0x3210,
            0x4567,
            0x7654,
            0x7777,
            0x8888,
            0xffff,
            0x0f0f,
            0x5410,
            0x7632,
            0x3021,
            0x89ab,
            0xfedc,
            0x1_2345,
            0xdead_4602,
        ],
        (Role::ToInteger, _) if bits == 32 => floats32(TO_INTEGER),
        (Role::ToInteger, _) => floats64(TO_INTEGER),
        (Role::ToNarrower, _) => TO_NARROWER.to_vec(),
        (_, TypeKind::Float) if bits == 32 => FLOATS_32.to_vec(),
        (_, TypeKind::Float) => FLOATS_64.to_vec(),
        (Role::ToFloat(_), _) if bits == 64 => TO_FLOAT_64.to_vec(),
        (Role::ToFloat(_), _) if bits == 32 => TO_FLOAT_32.to_vec(),
        (_, _) if bits == 64 => INTEGERS_64.to_vec(),
        // Register bits above a narrow type must not matter.
        (_, _) if bits < source.bits => {
            INTEGERS_16.iter().zip(INTEGERS_32).map(|(low, high)| low & mask(bits) | high << bits).collect()
        }
        (_, _) if bits == 32 => INTEGERS_32.to_vec(),
        (_, _) => INTEGERS_16.to_vec(),
    };
    let mut seen = BTreeSet::new();
    values.into_iter().map(|value| value & mask(source.bits)).filter(|value| seen.insert(*value)).collect()
}

const INTEGERS_16: [u64; 16] =
    [0, 1, 2, 3, 0x7f, 0x80, 0x81, 0xff, 0x100, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0x1234, 0xfffe, 0xffff];

const INTEGERS_32: [u64; 16] = [
    0,
    1,
    2,
    3,
    10,
    0x1f,
    0xffff,
    0x1_0000,
    0x1234_5678,
    0x7fff_fffe,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xfedc_ba98,
    0xffff_fffe,
    0xffff_ffff,
];

const INTEGERS_64: [u64; 16] = [
    0,
    1,
    2,
    3,
    10,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
    0x7fff_ffff_ffff_fffe,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x8000_0000_0000_0001,
    0xffff_ffff_0000_0000,
    0xffff_ffff_ffff_ffff,
];

/// Around 2²⁴, above which .f32 lacks integers.
const TO_FLOAT_32: [u64; 16] = [
    0,
    1,
    0x00ff_ffff,
    0x0100_0000,
    0x0100_0001,
    0x0100_0002,
    0x0100_0003,
    0x0200_0002,
    0x0200_0006,
    0x7fff_ffbf,
    0x7fff_ffc0,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xff00_0001,
    0xffff_ffff,
];

/// Around 2²⁴ and 2⁵³, above which .f32 and .f64 lack integers, and the extremes.
const TO_FLOAT_64: [u64; 16] = [
    0,
    1,
    0x0100_0001,
    0x0100_0003,
    0xffff_ffff,
    0x001f_ffff_ffff_ffff,
    0x0020_0000_0000_0001,
    0x0020_0000_0000_0003,
    0x0000_0100_0001_0000,
    0x0000_0100_0001_0001,
    0x7fff_ffff_ffff_fdff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x8000_0000_0000_0401,
    0xffdf_ffff_ffff_ffff,
    0xffff_ffff_ffff_ffff,
];

const FLOATS_32: [u64; 16] = [
    0x0000_0000,
    // -0
    0x8000_0000,
    0x3f80_0000,
    // -1.5
    0xbfc0_0000,
    // The number after 1.
    0x3f80_0001,
    // 1 / 3
    0x3eaa_aaab,
    // 2²⁴ - 1
    0x4b7f_ffff,
    // The largest, the smallest normal number, and the ends of the subnormal ones.
    0x7f7f_ffff,
    0x0080_0000,
    0x807f_ffff,
    0x0000_0001,
    0x7f80_0000,
    0xff80_0000,
    // NaNs: quiet of both signs, and signalling.
    0x7fc0_1234,
    0xffc5_6789,
    0x7f80_4321,
];

const FLOATS_64: [u64; 16] = [
    0x0000_0000_0000_0000,
    // -0
    0x8000_0000_0000_0000,
    0x3ff0_0000_0000_0000,
    // -1.5
    0xbff8_0000_0000_0000,
    // The number after 1.
    0x3ff0_0000_0000_0001,
    // 1 / 3
    0x3fd5_5555_5555_5555,
    // 2⁵³ - 1
    0x433f_ffff_ffff_ffff,
    // The largest, the smallest normal number, and the ends of the subnormal ones.
    0x7fef_ffff_ffff_ffff,
    0x0010_0000_0000_0000,
    0x800f_ffff_ffff_ffff,
    0x0000_0000_0000_0001,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    // NaNs: quiet of both signs, and signalling.
    0x7ff8_0000_1234_5678,
    0xfff8_8765_4321_0000,
    0x7ff0_0000_0000_4321,
];

/// Halves, the limits of integer types, and values without an integer.
const TO_INTEGER: [f64; 14] = [
    -0.0,
    0.5,
    -0.5,
    1.5,
    -2.5,
    254.5,
    32_767.5,
    -32_768.5,
    2_147_483_647.5,
    -2_147_483_648.0,
    4_294_967_295.5,
    9_223_372_036_854_775_808.0,
    -18_446_744_073_709_551_616.0,
    f64::NEG_INFINITY,
];

/// The bits of TO_INTEGER, and NaNs.
fn floats32(values: [f64; 14]) -> Vec<u64> {
    let nans = [0x7fc0_1234, 0xff80_4321];
    values.iter().map(|value| u64::from((*value as f32).to_bits())).chain(nans).collect()
}

fn floats64(values: [f64; 14]) -> Vec<u64> {
    let nans = [0x7ff8_0000_1234_5678, 0xfff0_0000_0000_4321];
    values.iter().map(|value| value.to_bits()).chain(nans).collect()
}

/// Halfway between neighbours in .f32, and the limits of its range.
const TO_NARROWER: [u64; 16] = [
    0x8000_0000_0000_0000,
    // 1 + 2⁻²⁴ (tie, rounds down to even), slightly more; 1 + 3·2⁻²⁴ (tie, rounds up to even), slightly less.
    0x3ff0_0000_1000_0000,
    0x3ff0_0000_1000_0001,
    0x3ff0_0000_3000_0000,
    0xbff0_0000_2fff_ffff,
    // The largest .f32 plus half a unit in its last place, and slightly less.
    0x47ef_ffff_f000_0000,
    0xc7ef_ffff_efff_ffff,
    // Half of the smallest .f32, slightly more, and 1½ times the smallest.
    0x3690_0000_0000_0000,
    0xb690_0000_0000_0001,
    0x36a8_0000_0000_0000,
    // Rounds up to the smallest normal .f32.
    0x380f_ffff_f000_0000,
    0x0000_0000_0000_0001,
    0x7ff0_0000_0000_0000,
    // NaNs: quiet of both signs with payloads above and below the cut, and signalling.
    0x7ff8_0000_1234_5678,
    0xfff8_8765_4321_0000,
    0x7ff0_0000_0000_4321,
];
