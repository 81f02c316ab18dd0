//! Claims about NaN, infinity and zero: per instruction, as PTX specifies, and per expression, as SQL's answers
//! require.
//!
//!   instructions   NaN where IEEE 754 has one, with unspecified bits; otherwise the bits of Rust's result
//!   expressions    a NaN made from numbers is the negative quiet NaN; a NaN operand passes through with its sign
//!
//! Oracle   Rust's own arithmetic for numbers; constants for NaNs.

use millpond_memory::checks::{CheckError, same};
use millpond_memory::{Device, DeviceBuffer};
use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{FunctionBuilder, ModuleBuilder, Reg};

use super::{Rig, integers, word};
use crate::codegen::ir::*;
use crate::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, PipelineCache};
use crate::{Launch, LaunchConfig};

const F32: [u32; 10] = [
    0x7fc0_0000, // NaN
    0xffc0_0000, // -NaN
    0x7f80_0000, // infinity
    0xff80_0000,
    0x0000_0000, // 0
    0x8000_0000,
    0x3f80_0000, // 1
    0xc000_0000, // -2
    0x7f7f_ffff, // the largest number
    0x0000_0001, // the smallest above 0
];
const F64: [u64; 10] = [
    0x7ff8_0000_0000_0000,
    0xfff8_0000_0000_0000,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x0000_0000_0000_0000,
    0x8000_0000_0000_0000,
    0x3ff0_0000_0000_0000,
    0xc000_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x0000_0000_0000_0001,
];

/// The NaN that x86 makes from numbers.
const DEFAULT_F32: u32 = 0xffc0_0000;
const DEFAULT_F64: u64 = 0xfff8_0000_0000_0000;

/// An instruction of two floats, and its expected result. NaN means any NaN.
struct Operation<T> {
    name: &'static str,
    emit: fn(&mut FunctionBuilder, Reg, Reg) -> Reg,
    gives: fn(T, T) -> T,
}

macro_rules! operations {
    ($ty:ident) => {{
        // 0 is above -0.
        fn less(a: $ty, b: $ty) -> bool {
            a < b || (a == b && a.is_sign_negative())
        }
        fn least(a: $ty, b: $ty) -> $ty {
            if b.is_nan() || less(a, b) { a } else { b }
        }
        fn greatest(a: $ty, b: $ty) -> $ty {
            if b.is_nan() || (!a.is_nan() && !less(a, b)) { a } else { b }
        }
        let operations: [Operation<$ty>; 9] = [
            Operation { name: "add", emit: |f, a, b| f.add(a, b), gives: |a, b| a + b },
            Operation { name: "sub", emit: |f, a, b| f.sub(a, b), gives: |a, b| a - b },
            Operation { name: "mul", emit: |f, a, b| f.mul(a, b), gives: |a, b| a * b },
            Operation { name: "div", emit: |f, a, b| f.div(a, b), gives: |a, b| a / b },
            Operation { name: "fma", emit: |f, a, b| f.fma(a, b, a), gives: |a, b| a.mul_add(b, a) },
            Operation { name: "min", emit: |f, a, b| f.min(a, b), gives: least },
            Operation { name: "max", emit: |f, a, b| f.max(a, b), gives: greatest },
            Operation { name: "sqrt", emit: |f, a, _| f.sqrt(a), gives: |a, _| a.sqrt() },
            Operation {
                name: "neg and abs",
                emit: |f, a, b| {
                    let (a, b) = (f.neg(a), f.abs(b));
                    f.max(a, b)
                },
                gives: |a, b| greatest(-a, b.abs()),
            },
        ];
        operations
    }};
}

fn pairs<T: Copy>(values: &[T]) -> Vec<(T, T)> {
    values.iter().flat_map(|a| values.iter().map(|b| (*a, *b))).collect()
}

/// Emits a function of two floats.
type Emits<'a> = &'a dyn Fn(&mut FunctionBuilder, Reg, Reg) -> Reg;

/// A kernel in which each thread reads one pair of floats and stores the result of every function of `emits`.
fn table_kernel(ty: Type, emits: &[Emits<'_>]) -> FunctionBuilder {
    let mut f = FunctionBuilder::kernel("table");
    let (input, output) = (f.param("input", Type::U64), f.param("output", Type::U64));
    let (input, output) = (f.load_param(&input), f.load_param(&output));
    let thread = f.thread_index();
    let bytes = ty.bytes();
    let at = f.element(input, thread, 2 * bytes);
    let (a, b) = (f.load(Space::Global, ty, at), f.load(Space::Global, ty, at.at(i64::from(bytes))));
    let mut at = f.element(output, thread, 8 * emits.len() as u32);
    for emit in emits {
        let result = emit(&mut f, a, b);
        f.store(Space::Global, result.ty(), at, result);
        at = f.add(at, 8u64);
    }
    f.tidy();
    f
}

/// Words stored by a table kernel.
fn table(rig: &Rig, ty: Type, input: &[u8], emits: &[Emits<'_>]) -> Result<Vec<u8>, CheckError> {
    let threads = input.len() / (2 * ty.bytes() as usize);
    let mut module = ModuleBuilder::new();
    module.add(table_kernel(ty, emits));
    let module = module.finish().map_err(|error| CheckError::Refused(error.to_string()))?;
    let kernel = rig.stream().device().load_module(&module.to_string())?.kernel("table")?;
    let input = rig.upload(input)?;
    let output = DeviceBuffer::zeroed(threads * emits.len() * 8, rig.stream(), &rig.base.pool)?;
    Launch::new(&kernel, LaunchConfig::linear(1, threads as u32)).read(&input).write(&output).submit(rig.stream())?;
    rig.download(&output)
}

pub(super) fn instructions(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    macro_rules! width {
        ($ty:ident, $bits:ident, $values:expr, $ptx:expr) => {{
            let operations = operations!($ty);
            let input: Vec<u8> =
                pairs(&$values).iter().flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat()).collect();
            let emits: Vec<Emits<'_>> = operations.iter().map(|o| &o.emit as Emits<'_>).collect();
            let words = table(&rig, $ptx, &input, &emits)?;
            let mut at = 0;
            for (a, b) in pairs(&$values) {
                for operation in &operations {
                    let actual = $ty::from_bits(word(&words, at) as $bits);
                    at += 8;
                    let expected = (operation.gives)($ty::from_bits(a), $ty::from_bits(b));
                    let what = format!("{} of the {} {a:#x} and {b:#x}", operation.name, stringify!($ty));
                    same(&format!("whether {what} is NaN"), actual.is_nan(), expected.is_nan())?;
                    if !expected.is_nan() {
                        same(&what, actual.to_bits(), expected.to_bits())?;
                    }
                }
            }
        }};
    }
    width!(f32, u32, F32, Type::F32);
    width!(f64, u64, F64, Type::F64);
    conversions(&rig)?;
    rig.base.finish()
}

/// Converts floats of one width to the other, and to integers. The integer of a NaN is unspecified.
fn conversions(rig: &Rig) -> Result<(), CheckError> {
    let narrow: Vec<u8> = pairs(&F32).iter().flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat()).collect();
    let wide: Vec<u8> = pairs(&F64).iter().flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat()).collect();
    let integers = [Type::S32, Type::U32, Type::S64, Type::U64];
    let to = integers.map(|ty| move |f: &mut FunctionBuilder, a: Reg, _: Reg| f.convert(ty, a));
    let widen = |f: &mut FunctionBuilder, a: Reg, _: Reg| f.convert(Type::F64, a);
    let halve = |f: &mut FunctionBuilder, a: Reg, _: Reg| f.convert(Type::F32, a);
    let words = table(rig, Type::F32, &narrow, &[&to[0], &to[1], &to[2], &to[3], &widen])?;
    for (row, (a, _)) in pairs(&F32).into_iter().enumerate() {
        let (value, at) = (f32::from_bits(a), row * 40);
        let actual = f64::from_bits(word(&words, at + 32));
        same(&format!("whether {a:#x} as an f64 is NaN"), actual.is_nan(), value.is_nan())?;
        if value.is_nan() {
            continue;
        }
        let expected = [value as i32 as u32 as u64, u64::from(value as u32), value as i64 as u64, value as u64];
        same(&format!("{a:#x} as integers"), [0, 8, 16, 24].map(|i| word(&words, at + i)), expected)?;
        same(&format!("{a:#x} as an f64"), actual.to_bits(), f64::from(value).to_bits())?;
    }
    let words = table(rig, Type::F64, &wide, &[&to[0], &to[1], &to[2], &to[3], &halve])?;
    for (row, (a, _)) in pairs(&F64).into_iter().enumerate() {
        let (value, at) = (f64::from_bits(a), row * 40);
        let actual = f32::from_bits(word(&words, at + 32) as u32);
        same(&format!("whether {a:#x} as an f32 is NaN"), actual.is_nan(), value.is_nan())?;
        if value.is_nan() {
            continue;
        }
        let expected = [value as i32 as u32 as u64, u64::from(value as u32), value as i64 as u64, value as u64];
        same(&format!("{a:#x} as integers"), [0, 8, 16, 24].map(|i| word(&words, at + i)), expected)?;
        same(&format!("{a:#x} as an f32"), actual.to_bits(), (value as f32).to_bits())?;
    }
    Ok(())
}

/// Expected result for `a` and `b`, given the result `number` for numbers: the NaN operand, or else the default NaN.
macro_rules! expected {
    ($a:expr, $b:expr, $number:expr, $default:expr) => {
        match ($a.is_nan(), $b.is_nan()) {
            (true, _) => $a.to_bits(),
            (_, true) => $b.to_bits(),
            _ if $number.is_nan() => $default,
            _ => $number.to_bits(),
        }
    };
}

pub(super) fn made_nans(device: &Device) -> Result<(), CheckError> {
    let narrow = pairs(&F32).into_iter().filter(|(a, b)| !(f32::from_bits(*a).is_nan() && f32::from_bits(*b).is_nan()));
    let wide = pairs(&F64).into_iter().filter(|(a, b)| !(f64::from_bits(*a).is_nan() && f64::from_bits(*b).is_nan()));
    let (narrow, wide): (Vec<_>, Vec<_>) = (narrow.collect(), wide.collect());
    let actual = computed(device, Repr::F64, &bytes(&wide))?;
    for ((a, b), actual) in wide.iter().zip(actual) {
        let (x, y) = (f64::from_bits(*a), f64::from_bits(*b));
        let both = [x + y, x - y, x * y, x / y].map(|number| expected!(x, y, number, DEFAULT_F64));
        let root = expected!(x, 0.0_f64, x.sqrt(), DEFAULT_F64);
        let half = if x.is_nan() { (*a >> 32) as u32 & 0x8000_0000 | 0x7fc0_0000 } else { (x as f32).to_bits() };
        let expected = both.into_iter().chain([root, i64::from(half as i32) as u64]).collect::<Vec<_>>();
        same(&format!("+ - * / sqrt and REAL of the doubles {a:#x} and {b:#x}"), actual, expected)?;
    }
    let actual = computed(device, Repr::F32, &bytes(&narrow))?;
    for ((a, b), actual) in narrow.iter().zip(actual) {
        let (x, y) = (f32::from_bits(*a), f32::from_bits(*b));
        let both = [x + y, x - y, x * y, x / y].map(|number| expected!(x, y, number, DEFAULT_F32));
        let root = expected!(x, 0.0_f32, x.sqrt(), DEFAULT_F32);
        let double = if x.is_nan() { u64::from(*a & 0x8000_0000) << 32 | 0x7ff8 << 48 } else { f64::from(x).to_bits() };
        let narrow = both.into_iter().chain([root]).map(|bits| i64::from(bits as i32) as u64);
        let expected = narrow.chain([double]).collect::<Vec<_>>();
        same(&format!("+ - * / sqrt and DOUBLE of the reals {a:#x} and {b:#x}"), actual, expected)?;
    }
    Ok(())
}

/// Bytes of the left operands, and of the right ones.
fn bytes<T: Copy + Into<u64>>(pairs: &[(T, T)]) -> [Vec<u8>; 2] {
    let width = size_of::<T>();
    let column =
        |of: fn(&(T, T)) -> T| pairs.iter().flat_map(move |pair| of(pair).into().to_le_bytes()[..width].to_vec());
    [column(|pair| pair.0).collect(), column(|pair| pair.1).collect()]
}

/// Bits of + - * / over both columns, of the square root of the first, and of the first as a float of the other width.
fn computed(device: &Device, repr: Repr, columns: &[Vec<u8>; 2]) -> Result<Vec<Vec<u64>>, CheckError> {
    let rig = Rig::new(device)?;
    let cache = PipelineCache::new(device);
    let ty = Ty::new(repr);
    let mut graph = Graph::new();
    let (a, b) = (graph.column(0, ty), graph.column(1, ty));
    let mut outputs = Vec::new();
    for op in [Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply, Arithmetic::Divide] {
        outputs.push(graph.arithmetic(op, a, b, Overflow::Wrap)?);
    }
    outputs.push(graph.float_function(FloatFunction::Sqrt, a)?);
    outputs.push(graph.convert(a, if repr == Repr::F32 { Repr::F64 } else { Repr::F32 }, Overflow::Wrap)?);
    let column = ColumnSpec { physical: Physical::of(ty), has_base: false, ty };
    let spec = PipelineSpec {
        extents: Extents::One,
        columns: vec![column; 2],
        literals: vec![],
        lookups: vec![],
        tables: vec![],
        expanded: false,
        graph,
        filters: vec![],
        sink: SinkSpec::Materialise { outputs },
    };
    let pipeline = cache.pipeline(&spec)?;
    let rows = columns[0].len() / Physical::of(ty).width() as usize;
    let mut inputs = Vec::new();
    for bytes in columns {
        let values = rig.upload(bytes)?.as_view().clone();
        inputs.push(Some(ColumnInput { values, validity: None, base: 0 }));
    }
    let extents = [ExtentInput { rows: ExtentRows::Known(rows as u64), columns: inputs }];
    let layout = pipeline.output_layout(&extents);
    let output = rig.output(layout.bytes)?;
    pipeline.materialise(Input { extents: &extents, ..Input::default() }, output.as_view(), &layout, rig.stream())?;
    let rows = integers(&rig, &output, &layout)?;
    drop((cache, extents, output));
    rig.base.finish()?;
    Ok(rows.into_iter().map(|row| row.into_iter().map(|bits| bits.unwrap_or(0) as u64).collect()).collect())
}
