//! Loads from a column of any physical width, a lookup table or a parameter into the lane of the value's type.
//!
//! ```text
//!   u8 + base 1000, decimal   [3, 7, 0]  ──► S32 lane   [1003, 1007, 1000]
//! ```
//!
//! Rows      a row number is 32-bit inside its extent; addresses are base + row · width, 64-bit.
//! Validity  one 32-bit word per warp: its 32 lanes read one address, and each tests its own bit.
//! Padding   bitmaps are read in whole words, which the padding of every buffer allows; all other reads are row by row.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Compare, FunctionBuilder, ModuleBuilder, Param, Reg};

use super::ir::*;
use super::join::{self, JoinPlan, TableRegisters};
use super::params::{ParamList, Slot};
use super::value::{CodegenError, Emit, Leaves, Value};
use crate::abi;

/// PTX type of a lane's register (of the low half for 128 bits).
pub(crate) fn lane_type(lane: Lane) -> Type {
    match lane {
        Lane::Pred => Type::Pred,
        Lane::S32 => Type::S32,
        Lane::U32 => Type::U32,
        Lane::S64 => Type::S64,
        Lane::U64 | Lane::S128 | Lane::Text => Type::U64,
        Lane::F32 => Type::F32,
        Lane::F64 => Type::F64,
    }
}

/// PTX type for loads and stores of a stored value.
pub(crate) fn stored_type(physical: Physical) -> Type {
    match physical {
        Physical::Bit => Type::B32,
        Physical::U8 => Type::U8,
        Physical::U16 => Type::U16,
        Physical::U32 | Physical::Text => Type::U32,
        Physical::U64 | Physical::View | Physical::LongText => Type::U64,
        Physical::I8 => Type::S8,
        Physical::I16 => Type::S16,
        Physical::I32 => Type::S32,
        Physical::I64 | Physical::I128 => Type::S64,
        Physical::F32 => Type::F32,
        Physical::F64 => Type::F64,
    }
}

/// Bits of a float, with -0.0 replaced by 0.0.
pub(crate) fn canonical(f: &mut FunctionBuilder, value: Reg, bits: Type) -> Reg {
    let own = f.reinterpret(bits, value);
    let is_zero =
        if bits == Type::U64 { f.setp(Compare::Eq, value, 0.0f64) } else { f.setp(Compare::Eq, value, 0.0f32) };
    f.select(is_zero, 0u64, own).view(bits)
}

/// A predicate as 1 or 0 (U32).
pub(crate) fn truth_bit(f: &mut FunctionBuilder, truth: Reg) -> Reg {
    let one = f.copy(Type::U32, 1u32);
    f.select(truth, one, 0u32)
}

/// An integer register sign-extended (by its own signedness) or truncated to 64 bits.
pub(crate) fn to_64(f: &mut FunctionBuilder, reg: Reg) -> Reg {
    match reg.ty() {
        Type::S32 => f.convert(Type::S64, reg),
        Type::U32 | Type::B32 => f.convert(Type::U64, reg.view(Type::U32)),
        _ => reg,
    }
}

/// The low and high 64 bits of a value, extended by its lane's signedness. Integer lanes only.
pub(crate) fn to_128(f: &mut FunctionBuilder, value: Value) -> (Reg, Reg) {
    if let Some(high) = value.high {
        return (value.low.view(Type::U64), high.view(Type::S64));
    }
    let low = to_64(f, value.low);
    let high = match value.lane {
        Lane::U32 | Lane::U64 => f.copy(Type::S64, 0),
        _ => f.shr(low.view(Type::S64), 63),
    };
    (low.view(Type::U64), high)
}

/// Position of a row in bitmaps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BitPosition {
    /// Byte offset of the 32-bit word.
    word: Reg,
    /// Bit index in the word.
    bit: Reg,
}

impl BitPosition {
    pub(crate) fn of(f: &mut FunctionBuilder, row: Reg) -> BitPosition {
        let index = f.shr(row, 5);
        let word = f.mul_wide(index, 4u32);
        let bit = f.and(row, 31u32);
        BitPosition { word, bit }
    }

    /// The row's bit of the bitmap at `base`; true if `base` is 0 and `optional` is given.
    fn load(self, f: &mut FunctionBuilder, base: Reg, optional: Option<Reg>) -> Reg {
        let address = f.add(base, self.word);
        let word = match optional {
            Some(present) => {
                let word = f.copy(Type::U32, 0xffff_ffffu32);
                f.guarded(present, true, |f| f.load_into("ld.global.nc", Type::U32, word, address));
                word
            }
            None => f.load_constant(Type::U32, address),
        };
        let shifted = f.shr(word, self.bit);
        let bit = f.and(shifted, 1u32);
        f.setp(Compare::Ne, bit, 0u32)
    }
}

/// Addresses of one column of the current extent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColumnRegisters {
    values: Reg,
    /// Address, and whether it is not 0.
    validity: Option<(Reg, Reg)>,
    base: Option<Reg>,
}

/// One row of the current extent, and its values loaded so far.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    number: Reg,
    /// In an expanded pipeline: the index of the row among those of its source row.
    ordinal: Option<Reg>,
    bits: Option<BitPosition>,
    loaded: Vec<(u32, Value)>,
}

/// Source of the current row's values.
pub(crate) struct RowLeaves<'a> {
    spec: &'a PipelineSpec,
    control: Reg,
    literals: Vec<Value>,
    lookups: Vec<(Reg, Option<Reg>)>,
    tables: Vec<(JoinPlan, TableRegisters)>,
    /// In an expanded pipeline: address of the first running sum, number of source rows, first row of this launch.
    expansion: Option<(Reg, Reg, Reg)>,
    /// Address and capacity of the arena for new texts.
    arena: Option<(Reg, Reg)>,
    columns: Vec<ColumnRegisters>,
    row: Option<Row>,
}

impl<'a> RowLeaves<'a> {
    /// Declares and reads the parameters of literals and lookup tables.
    pub(crate) fn new(
        spec: &'a PipelineSpec,
        module: &mut ModuleBuilder,
        f: &mut FunctionBuilder,
        params: &mut ParamList,
        control: Reg,
    ) -> Result<RowLeaves<'a>, CodegenError> {
        let mut literals = Vec::with_capacity(spec.literals.len());
        for (i, &ty) in spec.literals.iter().enumerate() {
            literals.push(literal(f, params, i as u32, ty));
        }
        let mut lookups = Vec::with_capacity(spec.lookups.len());
        for (i, lookup) in spec.lookups.iter().enumerate() {
            let values = params.declare(f, Slot::LookupValues(i as u32), Type::U64);
            let values = f.load_param(&values);
            let validity = lookup.ty.nullable.then(|| {
                let validity = params.declare(f, Slot::LookupValidity(i as u32), Type::U64);
                f.load_param(&validity)
            });
            lookups.push((values, validity));
        }
        let mut tables = Vec::with_capacity(spec.tables.len());
        for (i, table) in spec.tables.iter().enumerate() {
            let plan = JoinPlan::new(table)?;
            let base = params.declare(f, Slot::Join(i as u32), Type::U64);
            let base = f.load_param(&base);
            let registers = TableRegisters::new(module, f, params, &plan, i as u32, base, false)?;
            tables.push((plan, registers));
        }
        let expansion = spec.expanded.then(|| {
            let ends = params.declare(f, Slot::Ends, Type::U64);
            let ends = f.load_param(&ends);
            let rows = f.load_constant(Type::U64, ends.at(abi::CONTROL_LISTED as i64));
            let rows = f.convert(Type::U32, rows);
            let first = params.declare(f, Slot::FirstRow, Type::U64);
            let first = f.load_param(&first);
            (f.add(ends, abi::CONTROL_BYTES), rows, first)
        });
        let arena = spec.makes_texts().then(|| {
            let at = params.declare(f, Slot::Arena, Type::U64);
            let at = f.load_param(&at);
            let bytes = params.declare(f, Slot::ArenaBytes, Type::U64);
            (at, f.load_param(&bytes))
        });
        Ok(RowLeaves { spec, control, literals, lookups, tables, expansion, arena, columns: Vec::new(), row: None })
    }

    /// Reads the columns' addresses from the descriptor in the kernel's parameters.
    pub(crate) fn enter_only_extent(&mut self, f: &mut FunctionBuilder, extent: &Param) {
        self.enter(f, |f, offset| f.load(Space::Param, Type::U64, extent.at(offset as i64)));
    }

    /// Reads the columns' addresses from the descriptor at `descriptor` in device memory.
    pub(crate) fn enter_extent(&mut self, f: &mut FunctionBuilder, descriptor: Reg) {
        self.enter(f, |f, offset| f.load_constant(Type::U64, descriptor.at(offset as i64)));
    }

    fn enter(&mut self, f: &mut FunctionBuilder, mut word: impl FnMut(&mut FunctionBuilder, u64) -> Reg) {
        let used = self.spec.used_columns();
        self.columns.clear();
        for (i, column) in self.spec.columns.iter().enumerate() {
            let at = abi::EXTENT_HEADER_BYTES + abi::EXTENT_COLUMN_BYTES * i as u64;
            if !used.contains(&(i as u32)) {
                // A column that is never read gets no code. The registers are placeholders.
                self.columns.push(ColumnRegisters { values: self.control, validity: None, base: None });
                continue;
            }
            let values = word(f, at);
            let validity = column.ty.nullable.then(|| {
                let address = word(f, at + 8);
                let present = f.setp(Compare::Ne, address, 0u64);
                (address, present)
            });
            let base = column.has_base.then(|| word(f, at + 16).view(Type::S64));
            self.columns.push(ColumnRegisters { values, validity, base });
        }
    }

    pub(crate) fn num_columns(&self) -> usize {
        self.spec.columns.len()
    }

    /// Moves to row `row` (U32) of the current extent; in an expanded pipeline `row` counts expanded rows.
    pub(crate) fn at_row(&mut self, f: &mut FunctionBuilder, row: Reg) {
        let mut row = row;
        let mut ordinal = None;
        if let Some((ends, rows, first)) = self.expansion {
            let (source, own) = source_row(f, ends, rows, first, row);
            (row, ordinal) = (source, Some(own));
        }
        let used = self.spec.used_columns();
        let bits = used.iter().any(|&i| {
            let column = &self.spec.columns[i as usize];
            column.physical == Physical::Bit || column.ty.nullable
        });
        let bits = bits.then(|| BitPosition::of(f, row));
        self.row = Some(Row { number: row, ordinal, bits, loaded: Vec::new() });
    }

    /// Loads these columns of a row at once, ahead of their use; [`Self::enter_row`] moves to the row.
    pub(crate) fn load_row(&mut self, emit: &mut Emit<'_>, row: Reg, columns: &[u32]) -> Result<Row, CodegenError> {
        self.at_row(emit.f, row);
        let mut loaded = Vec::with_capacity(columns.len());
        for &column in columns {
            loaded.push((column, self.column(emit, column)?));
        }
        let mut row = self.row.take().expect("at_row has just set it");
        row.loaded = loaded;
        Ok(row)
    }

    /// Moves to a row that [`Self::load_row`] returned.
    pub(crate) fn enter_row(&mut self, row: Row) {
        self.row = Some(row);
    }
}

impl Leaves for RowLeaves<'_> {
    fn column(&mut self, emit: &mut Emit<'_>, index: u32) -> Result<Value, CodegenError> {
        let malformed = |why: &str| CodegenError::Malformed { what: format!("column {index}"), why: why.to_string() };
        let spec =
            *self.spec.columns.get(index as usize).ok_or_else(|| malformed("the pipeline has no such column"))?;
        let registers = self.columns[index as usize];
        let row = self.row.as_ref().ok_or_else(|| malformed("it is read outside a row"))?;
        if let Some((_, value)) = row.loaded.iter().find(|(column, _)| *column == index) {
            return Ok(*value);
        }
        let (row, bits) = (row.number, row.bits);
        let f = &mut *emit.f;
        let valid = match (registers.validity, bits) {
            (Some((address, present)), Some(bits)) => Some(bits.load(f, address, Some(present))),
            _ => None,
        };
        if spec.physical == Physical::Bit {
            let bits = bits.ok_or_else(|| malformed("it has no bit position"))?;
            if spec.ty.repr != Repr::Bool {
                return Err(malformed("a bitmap holds booleans only"));
            }
            let low = bits.load(f, registers.values, None);
            return Ok(Value { lane: Lane::Pred, low, high: None, valid });
        }
        if spec.ty.repr == Repr::Text {
            let value = load_text(f, spec.physical, registers.values, row, None).map_err(|why| malformed(&why))?;
            return Ok(Value { valid, ..value });
        }
        load_value(f, spec.physical, spec.ty, registers.values, row, registers.base)
            .map(|value| Value { valid, ..value })
            .map_err(|why| malformed(&why))
    }

    fn column_view(&mut self, emit: &mut Emit<'_>, index: u32) -> Result<Option<Value>, CodegenError> {
        let (Some(spec), Some(registers), Some(row)) =
            (self.spec.columns.get(index as usize), self.columns.get(index as usize), &self.row)
        else {
            return Ok(None);
        };
        if spec.physical != Physical::View {
            return Ok(None);
        }
        let f = &mut *emit.f;
        let valid = match (row.loaded.iter().find(|(column, _)| *column == index), registers.validity, row.bits) {
            (Some((_, loaded)), ..) => loaded.valid,
            (None, Some((address, present)), Some(bits)) => Some(bits.load(f, address, Some(present))),
            _ => None,
        };
        Ok(Some(load_view(f, registers.values, row.number, None, valid)))
    }

    fn literal(&mut self, _: &mut Emit<'_>, slot: u32) -> Result<Value, CodegenError> {
        self.literals.get(slot as usize).copied().ok_or_else(|| CodegenError::Malformed {
            what: format!("literal {slot}"),
            why: "the pipeline has no such slot".into(),
        })
    }

    fn lookup(&mut self, emit: &mut Emit<'_>, table: u32, code: Value) -> Result<Value, CodegenError> {
        let malformed = |why: String| CodegenError::Malformed { what: format!("lookup table {table}"), why };
        let spec =
            *self.spec.lookups.get(table as usize).ok_or_else(|| malformed("the pipeline has no such table".into()))?;
        let (values, validity) = self.lookups[table as usize];
        let f = &mut *emit.f;
        let index = entry_index(f, code).map_err(malformed)?;
        let bits = (validity.is_some() || spec.physical == Physical::Bit).then(|| BitPosition::of(f, index));
        // A text is readable even if it is NULL: it is then empty.
        let text = (spec.ty.repr == Repr::Text)
            .then(|| load_text(f, spec.physical, values, index, code.valid))
            .transpose()
            .map_err(malformed)?;
        let load = |f: &mut FunctionBuilder| -> Result<(Value, Option<Reg>), String> {
            let entry_valid = match (validity, bits) {
                (Some(address), Some(bits)) => Some(bits.load(f, address, None)),
                _ => None,
            };
            let value = match (spec.physical, bits) {
                _ if text.is_some() => return Ok((text.expect("it is there"), entry_valid)),
                (Physical::Bit, Some(bits)) => {
                    let low = bits.load(f, values, None);
                    Value { lane: Lane::Pred, low, high: None, valid: None }
                }
                _ => load_value(f, spec.physical, spec.ty, values, index, None)?,
            };
            Ok((value, entry_valid))
        };
        // The code of a NULL row is arbitrary, and the table may be empty: such rows load nothing.
        let (value, entry_valid) = match code.valid {
            Some(valid) => f.guarded(valid, true, load),
            None => load(f),
        }
        .map_err(malformed)?;
        let value = match code.valid {
            Some(valid) if text.is_none() => or_zero(f, valid, value),
            _ => value,
        };
        let valid = match (code.valid, entry_valid) {
            (Some(a), Some(b)) => Some(f.and(a, b)),
            (a, b) => a.or(b),
        };
        Ok(Value { valid, ..value })
    }

    fn lookup_view(&mut self, emit: &mut Emit<'_>, table: u32, code: Value) -> Result<Option<Value>, CodegenError> {
        let (Some(spec), Some(&(values, validity))) =
            (self.spec.lookups.get(table as usize), self.lookups.get(table as usize))
        else {
            return Ok(None);
        };
        if spec.physical != Physical::View {
            return Ok(None);
        }
        let f = &mut *emit.f;
        let malformed = |why: String| CodegenError::Malformed { what: format!("lookup table {table}"), why };
        let index = entry_index(f, code).map_err(malformed)?;
        let entry_valid = validity.map(|address| {
            let bits = BitPosition::of(f, index);
            let load = |f: &mut FunctionBuilder| bits.load(f, address, None);
            match code.valid {
                Some(valid) => f.guarded(valid, true, load),
                None => load(f),
            }
        });
        let valid = match (code.valid, entry_valid) {
            (Some(a), Some(b)) => Some(f.and(a, b)),
            (a, b) => a.or(b),
        };
        Ok(Some(load_view(f, values, index, code.valid, valid)))
    }

    fn probe(&mut self, emit: &mut Emit<'_>, table: u32, keys: &[Value]) -> Result<Value, CodegenError> {
        let Some((plan, registers)) = self.tables.get(table as usize) else {
            let why = "there is no such table".into();
            return Err(CodegenError::Malformed { what: format!("join table {table}"), why });
        };
        join::probe(emit, plan, registers, keys)
    }

    fn ordinal(&mut self, _: &mut Emit<'_>) -> Result<Value, CodegenError> {
        match self.row.as_ref().and_then(|row| row.ordinal) {
            Some(low) => Ok(Value { lane: Lane::U32, low, high: None, valid: None }),
            None => {
                let why = "no row becomes several".into();
                Err(CodegenError::Malformed { what: "the number of a match".into(), why })
            }
        }
    }

    fn source_row(&mut self, _: &mut Emit<'_>) -> Result<Value, CodegenError> {
        match &self.row {
            Some(row) => Ok(Value { lane: Lane::U32, low: row.number, high: None, valid: None }),
            None => {
                let why = "it is read outside a row".into();
                Err(CodegenError::Malformed { what: "the number of a row".into(), why })
            }
        }
    }

    fn arena(&mut self, _: &mut Emit<'_>) -> Result<(Reg, Reg), CodegenError> {
        self.arena.ok_or_else(|| CodegenError::Malformed {
            what: "a text that is made".into(),
            why: "the pipeline did not know of it".into(),
        })
    }

    fn raise(&mut self, emit: &mut Emit<'_>, code: ErrorCode, node: NodeId, when: Reg) -> Result<(), CodegenError> {
        raise(emit.f, self.control, code, node, when);
        Ok(())
    }
}

/// Source row (U32) of expanded row `first + row` (U64, U32), and the row's index within it: bisects for the first of
/// `rows` running sums at `ends` that is greater. It exists, since the expanded row is below the last sum.
fn source_row(f: &mut FunctionBuilder, ends: Reg, rows: Reg, first: Reg, row: Reg) -> (Reg, Reg) {
    let wide = f.convert(Type::U64, row);
    let wide = f.add(wide, first);
    let low = f.copy(Type::U32, 0u32);
    let high = f.sub(rows, 1u32);
    f.while_(
        |f| f.setp(Compare::Lt, low, high),
        |f| {
            let sum = f.add(low, high);
            let middle = f.shr(sum, 1);
            let at = f.element(ends, middle, 8);
            let end = f.load_constant(Type::U64, at);
            let above = f.setp(Compare::Gt, end, wide);
            let next = f.add(middle, 1u32);
            f.guarded(above, true, |f| f.assign(high, middle));
            f.guarded(above, false, |f| f.assign(low, next));
        },
    );
    let start = f.copy(Type::U64, 0u64);
    let later = f.setp(Compare::Ne, low, 0u32);
    let at = f.element(ends, low, 8);
    f.guarded(later, true, |f| f.load_into("ld.global.nc", Type::U64, start, at.at(-8)));
    let ordinal = f.sub(wide, start);
    (low, f.convert(Type::U32, ordinal))
}

/// A value that was loaded where `valid` is true; zero elsewhere, because it is stored and compared there, too.
fn or_zero(f: &mut FunctionBuilder, valid: Reg, value: Value) -> Value {
    let mut own = |word: Reg| match word.ty() {
        Type::Pred => f.and(word, valid),
        Type::F32 => f.select(valid, word, 0f32),
        Type::F64 => f.select(valid, word, 0f64),
        _ => f.select(valid, word, 0u32),
    };
    Value { low: own(value.low), high: value.high.map(own), ..value }
}

/// Sets the error word if `when` is true and the word is 0.
pub(crate) fn raise(f: &mut FunctionBuilder, control: Reg, code: ErrorCode, node: NodeId, when: Reg) {
    let word = (node.0 as u64) << 32 | code as u64;
    f.guarded(when, true, |f| {
        f.compare_exchange(Space::Global, Type::B64, control.at(abi::CONTROL_ERROR as i64), 0u64, word)
    });
}

fn literal(f: &mut FunctionBuilder, params: &mut ParamList, index: u32, ty: Ty) -> Value {
    let lane = lane(ty);
    let word = if lane == Lane::Pred { Type::U32 } else { lane_type(lane) };
    let low = params.declare(f, Slot::Literal(index), word);
    let mut low = f.load_param(&low);
    if lane == Lane::Pred {
        low = f.setp(Compare::Ne, low, 0u32);
    }
    let high = (lane == Lane::S128).then(|| {
        let high = params.declare(f, Slot::LiteralHigh(index), Type::S64);
        f.load_param(&high)
    });
    let valid = ty.nullable.then(|| {
        let valid = params.declare(f, Slot::LiteralValid(index), Type::U32);
        let valid = f.load_param(&valid);
        f.setp(Compare::Ne, valid, 0u32)
    });
    Value { lane, low, high, valid }
}

/// Loads text `index` (U32) of a column or table; if `valid` is false the text is empty.
fn load_text(
    f: &mut FunctionBuilder,
    physical: Physical,
    values: Reg,
    index: Reg,
    valid: Option<Reg>,
) -> Result<Value, String> {
    let address = f.element(values, index, physical.width());
    let load = |f: &mut FunctionBuilder, ty: Type, offset: i64| match valid {
        Some(valid) => {
            let word = f.copy(ty, 0u32);
            f.guarded(valid, true, |f| f.load_into("ld.global.nc", ty, word, address.at(offset)));
            word
        }
        None => f.load_constant(ty, address.at(offset)),
    };
    let (at, bytes) = match physical {
        Physical::Text => {
            let (from, to) = (load(f, Type::U32, 0), load(f, Type::U32, 4));
            let bytes = f.sub(to, from);
            let from = f.convert(Type::U64, from);
            (f.add(values, from), f.convert(Type::U64, bytes))
        }
        Physical::LongText => {
            let (from, to) = (load(f, Type::U64, 0), load(f, Type::U64, 8));
            (f.add(values, from), f.sub(to, from))
        }
        Physical::View => {
            let bytes = load(f, Type::U32, 0);
            let inside = f.setp(Compare::Le, bytes, abi::INLINE_TEXT_BYTES);
            let at = f.add(address, abi::INLINE_TEXT_OFFSET);
            f.guarded(inside, false, |f| f.load_into("ld.global.nc", Type::U64, at, address.at(8)));
            (at, f.convert(Type::U64, bytes))
        }
        other => return Err(format!("{other:?} cannot hold texts")),
    };
    Ok(Value { lane: Lane::Text, low: at, high: Some(bytes.view(Type::S64)), valid: None })
}

/// Loads view `index` (U32) of a column or table as its two words; the view is empty if `valid` is false. If `exists`
/// is false, nothing is loaded and `valid` is false, too.
fn load_view(f: &mut FunctionBuilder, values: Reg, index: Reg, exists: Option<Reg>, valid: Option<Reg>) -> Value {
    let address = f.element(values, index, Physical::View.width());
    let load = |f: &mut FunctionBuilder| f.load_vector("ld.global.nc", 2, Type::U64, address);
    let words = match exists {
        Some(exists) => f.guarded(exists, true, load),
        None => load(f),
    };
    let mut own = |word: Reg| match valid {
        Some(valid) => f.select(valid, word, 0u64),
        None => word,
    };
    let (low, high) = (own(words[0]), own(words[1]));
    Value { lane: Lane::Text, low, high: Some(high.view(Type::S64)), valid }
}

/// A code as the index of a lookup table's entry (U32).
fn entry_index(f: &mut FunctionBuilder, code: Value) -> Result<Reg, String> {
    match code.lane {
        Lane::S32 | Lane::U32 => Ok(code.low.view(Type::U32)),
        Lane::S64 | Lane::U64 => Ok(f.convert(Type::U32, code.low.view(Type::U64))),
        other => Err(format!("{other:?} is no code")),
    }
}

/// Loads element `index` (U32) of an array (except bitmaps), adds the base, and converts to the lane of `ty`.
fn load_value(
    f: &mut FunctionBuilder,
    physical: Physical,
    ty: Ty,
    values: Reg,
    index: Reg,
    base: Option<Reg>,
) -> Result<Value, String> {
    let lane = lane(ty);
    if matches!(physical, Physical::Text | Physical::LongText | Physical::View) || lane == Lane::Text {
        return Err(format!("{physical:?} cannot hold {:?}", ty.repr));
    }
    let address = f.element(values, index, physical.width());
    let value = |lane: Lane, low: Reg| Value { lane, low, high: None, valid: None };
    match (physical, lane) {
        (Physical::F32, Lane::F32) | (Physical::F64, Lane::F64) => {
            return Ok(value(lane, f.load_constant(lane_type(lane), address)));
        }
        (Physical::F32 | Physical::F64, _) | (_, Lane::F32 | Lane::F64 | Lane::Pred) => {
            return Err(format!("{physical:?} cannot hold {:?}", ty.repr));
        }
        (Physical::I128, _) => {
            let halves = f.load_vector("ld.global.nc", 2, Type::U64, address);
            let wide = Value { lane: Lane::S128, low: halves[0], high: Some(halves[1].view(Type::S64)), valid: None };
            return Ok(match base {
                Some(base) => add_wide(f, wide, base, lane),
                None => narrow(f, wide, lane),
            });
        }
        _ => {}
    }
    let stored = f.load_constant(stored_type(physical), address);
    let signed = matches!(physical, Physical::I8 | Physical::I16 | Physical::I32 | Physical::I64);
    let narrow_store = physical.width() < 8;
    match lane {
        Lane::S32 | Lane::U32 => {
            let ty = lane_type(lane);
            let low = if narrow_store { stored.view(ty) } else { f.convert(ty, stored) };
            let low = match base {
                Some(base) => {
                    let base = f.convert(ty, base);
                    f.add(low, base)
                }
                None => low,
            };
            Ok(value(lane, low))
        }
        Lane::S64 | Lane::U64 => {
            let low = to_64(f, stored).view(lane_type(lane));
            let low = match base {
                Some(base) => f.add(low, base.view(lane_type(lane))),
                None => low,
            };
            Ok(value(lane, low))
        }
        Lane::S128 => {
            let from = match (signed, narrow_store) {
                (true, true) => Lane::S32,
                (false, true) => Lane::U32,
                (true, false) => Lane::S64,
                (false, false) => Lane::U64,
            };
            let (low, high) = to_128(f, value(from, stored.view(lane_type(from))));
            let wide = Value { lane: Lane::S128, low, high: Some(high), valid: None };
            Ok(match base {
                Some(base) => add_wide(f, wide, base, Lane::S128),
                None => wide,
            })
        }
        _ => Err(format!("{physical:?} cannot hold {:?}", ty.repr)),
    }
}

/// A 128-bit value plus a signed 64-bit base, in lane `lane`.
fn add_wide(f: &mut FunctionBuilder, wide: Value, base: Reg, lane: Lane) -> Value {
    let (low, high) = to_128(f, wide);
    let (base_low, base_high) =
        to_128(f, Value { lane: Lane::S64, low: base.view(Type::S64), high: None, valid: None });
    let low = f.add_cc(low, base_low);
    let high = f.addc(high.view(Type::U64), base_high.view(Type::U64));
    narrow(f, Value { lane: Lane::S128, low, high: Some(high.view(Type::S64)), valid: None }, lane)
}

/// The low part of a 128-bit value that provably fits `lane`.
fn narrow(f: &mut FunctionBuilder, wide: Value, lane: Lane) -> Value {
    let low = match lane {
        Lane::S32 | Lane::U32 => f.convert(lane_type(lane), wide.low),
        Lane::S64 | Lane::U64 => wide.low.view(lane_type(lane)),
        _ => return wide,
    };
    Value { lane, low, high: None, valid: None }
}
