//! Reductions against i128 arithmetic in plain Rust.

use crate::pipeline_rig::Rig;
use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::reduce::{self, Reduction};
use millpond_kernels::{Images, Rows};
use millpond_memory::DeviceBuffer;

pub fn run(
    rig: &Rig,
    images: &Images,
    physical: Physical,
    bytes: &[u8],
    validity: Option<&[bool]>,
    rows: usize,
) -> Reduction {
    let input = rig.upload(bytes, &rig.stream);
    let validity = validity.map(|bits| {
        let mut bytes = vec![0u8; bits.len().div_ceil(8)];
        bits.iter().enumerate().for_each(|(row, &bit)| bytes[row / 8] |= u8::from(bit) << (row % 8));
        rig.upload(&bytes, &rig.stream)
    });
    let out = DeviceBuffer::new(reduce::RESULT_BYTES as usize, &rig.stream, &rig.pool).unwrap();
    let scratch = DeviceBuffer::new(reduce::SCRATCH_BYTES as usize, &rig.stream, &rig.pool).unwrap();
    let validity = validity.as_ref().map(DeviceBuffer::as_view);
    let number = Rows::known(rows as u64);
    reduce::reduce(images, &input, physical, validity, &number, &out, &scratch, &rig.stream).unwrap();
    Reduction::from_bytes(&rig.download(&out)).unwrap()
}

const LENGTHS: [usize; 8] = [0, 1, 31, 32, 33, 255, 257, 5000];

#[test]
fn integers_of_every_width_reduce_exactly() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let kinds = [
        Physical::I8,
        Physical::I16,
        Physical::I32,
        Physical::I64,
        Physical::U8,
        Physical::U16,
        Physical::U32,
        Physical::U64,
        Physical::I128,
    ];
    for physical in kinds {
        let bounds = physical.bounds().unwrap();
        for rows in LENGTHS {
            let values: Vec<i128> = (0..rows)
                .map(|row| match row % 5 {
                    0 => bounds.low,
                    1 => bounds.high,
                    _ => {
                        ((row as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834) as i128)
                            >> (128 - 8 * physical.width() - u32::from(bounds.low == 0))
                    }
                })
                .map(|value| value.clamp(bounds.low, bounds.high))
                .collect();
            let width = physical.width() as usize;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect();
            let thirds: Vec<bool> = (0..rows).map(|row| row % 3 != 1).collect();
            for validity in [None, Some(vec![true; rows]), Some(vec![false; rows]), Some(thirds)] {
                let valid: Vec<i128> = values
                    .iter()
                    .enumerate()
                    .filter(|(row, _)| validity.as_ref().is_none_or(|bits| bits[*row]))
                    .map(|(_, value)| *value)
                    .collect();
                let result = run(&rig, &images, physical, &bytes, validity.as_deref(), rows);
                let expected = Reduction {
                    count: valid.len() as u64,
                    min: valid.iter().copied().min().unwrap_or(0),
                    max: valid.iter().copied().max().unwrap_or(0),
                    sum: valid.iter().fold(0, |sum: i128, value| sum.wrapping_add(*value)),
                };
                assert_eq!(result, expected, "{physical:?}, {rows} rows");
            }
        }
    }
    rig.assert_clean();
}
