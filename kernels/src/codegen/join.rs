//! Join tables: how a key is addressed, by those who build a table and those who probe it.
//!
//!   direct   record = (k0 − low0) · codes1 + (k1 − low1)            hash   tag u32 | NULL mask u32 | key words | matches
//!            matches u64                                                   the record layout of grouped aggregation
//!
//!   matches  count of the key's rows (low half) | where they begin in the list of rows (high half)      0: no such key
//!
//! Ranges   a probing key may lie outside the build side's range and then matches nothing; so ranges are compared in 64 bits.
//! NULL     equals nothing: such a row is not put into a table and is not looked up. Where NULL equals NULL it is a key's
//!          last code, or a bit in the record's mask.
//! Floats   all NaN are one key and −0.0 is 0.0.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, FunctionBuilder, Reg};

use super::ir::*;
use super::load::{to_64, to_128, truth_bit};
use super::params::{ParamList, Slot};
use super::sink::cells::AggregatePlan;
use super::sink::hash;
use super::sink::keys::canonical;
use super::value::{CodegenError, Value};
use crate::abi;

/// A join table, laid out.
#[derive(Debug, Clone)]
pub(crate) struct JoinPlan {
    /// The table as a count of rows by key: its keys and records.
    pub groups: AggregatePlan,
    nulls_equal: bool,
}

impl JoinPlan {
    /// # Errors
    /// If the table has no keys, too many, or is direct although the keys' ranges do not allow it.
    pub(crate) fn new(spec: &TableSpec) -> Result<JoinPlan, CodegenError> {
        let malformed = |why: &str| CodegenError::Malformed { what: "a join table".into(), why: why.into() };
        if spec.keys.is_empty() {
            return Err(malformed("it has no keys"));
        }
        if spec.keys.len() > 32 {
            return Err(CodegenError::Unsupported { what: format!("joining by {} keys", spec.keys.len()) });
        }
        let mut graph = Graph::new();
        let keys = spec.keys.iter().enumerate();
        let keys = keys.map(|(i, ty)| graph.column(i as u32, ty.nullable(ty.nullable && spec.nulls_equal))).collect();
        let mut count = AggregateSpec::new(keys);
        count.accumulate(&graph, Accumulator { aggregate: Aggregate::CountStar, filter: None });
        count.regime = Some(match spec.kind {
            TableKind::Direct => Regime::Direct,
            TableKind::Hash => Regime::Hash,
        });
        let groups = AggregatePlan::new(&graph, &count);
        if spec.kind == TableKind::Direct && groups.max_groups.is_none() {
            return Err(malformed("its keys cannot address it"));
        }
        Ok(JoinPlan { groups, nulls_equal: spec.nulls_equal })
    }

    /// Byte offset of the matches in a record.
    pub(crate) fn matches_offset(&self) -> i64 {
        self.groups.cells_offset() as i64
    }

    pub(crate) fn record_bytes(&self) -> u64 {
        self.groups.record_bytes()
    }

    /// Number of codes of key `key`, NULL not counted, and the lowest.
    pub(crate) fn dense_key(&self, key: u32) -> Option<(i128, u64)> {
        let key = self.groups.keys.get(key as usize)?;
        let dense = key.dense?;
        Some((dense.low, dense.codes - key.ty.nullable as u64))
    }
}

/// Parameters of a join table, in registers.
pub(crate) struct TableRegisters {
    /// First record (U64).
    pub records: Reg,
    /// Slots less one (U32), where the table is hashed.
    pub mask: Option<Reg>,
    /// Lowest value and number of codes of each key (U64), where keys address the table.
    keys: Vec<(Reg, Reg)>,
}

impl TableRegisters {
    /// Declares the parameters of table `index` and reads them; `base` is the address of its allocation.
    pub(crate) fn new(
        f: &mut FunctionBuilder,
        params: &mut ParamList,
        plan: &JoinPlan,
        index: u32,
        base: Reg,
    ) -> TableRegisters {
        let mut read = |f: &mut FunctionBuilder, slot: Slot, ty: Type| {
            let param = params.declare(f, slot, ty);
            f.load_param(&param)
        };
        let mut mask = None;
        let mut keys = Vec::new();
        if plan.groups.regime == Regime::Hash {
            mask = Some(read(f, Slot::JoinMask(index), Type::U32));
        } else {
            for key in 0..plan.groups.keys.len() as u32 {
                let low = read(f, Slot::JoinLow(index, key), Type::U64);
                let codes = read(f, Slot::JoinCodes(index, key), Type::U64);
                keys.push((low, codes));
            }
        }
        let records = f.add(base, abi::CONTROL_BYTES);
        TableRegisters { records, mask, keys }
    }
}

/// A row's keys, ready to be looked for.
pub(crate) enum Wanted {
    /// The record's number (U32), where `usable`.
    Code(Reg),
    /// Key words and NULL mask.
    Words(Vec<Reg>, Option<Reg>),
}

/// What the keys of a row come to.
pub(crate) struct RowKeys {
    pub wanted: Wanted,
    /// Where the row can be in the table at all: no NULL that equals nothing, every key in its range. `None`: always.
    pub usable: Option<Reg>,
    /// Where some key is NULL. `None`: never.
    pub null: Option<Reg>,
    /// Where some key is not NULL and out of its range. `None`: never.
    pub outside: Option<Reg>,
}

fn either(f: &mut FunctionBuilder, a: Option<Reg>, b: Option<Reg>) -> Option<Reg> {
    match (a, b) {
        (Some(a), Some(b)) => Some(f.or(a, b)),
        (one, other) => one.or(other),
    }
}

/// Prepares the keys of the current row.
pub(crate) fn row_keys(
    f: &mut FunctionBuilder,
    plan: &JoinPlan,
    table: &TableRegisters,
    values: &[Value],
) -> Result<RowKeys, CodegenError> {
    let keys = &plan.groups.keys;
    if values.len() != keys.len() {
        let why = format!("{} keys where the table has {}", values.len(), keys.len());
        return Err(CodegenError::Malformed { what: "a join".into(), why });
    }
    let mut null = None;
    let mut outside = None;
    for value in values {
        let own = value.valid.map(|valid| f.not(valid));
        null = either(f, null, own);
    }
    let wanted = if plan.groups.regime == Regime::Hash {
        let mut words = Vec::new();
        let has_mask = keys.iter().any(|key| key.ty.nullable);
        let mut mask = has_mask.then(|| f.copy(Type::U32, 0u32));
        for (i, (key, &value)) in keys.iter().zip(values).enumerate() {
            let (mut own, too_wide) = key_words(f, key.words(), value)?;
            if let Some(valid) = value.valid {
                for word in &mut own {
                    *word = f.select(valid, *word, 0u64);
                }
                if let Some(before) = mask {
                    let with = f.or(before, 1u32 << i);
                    mask = Some(f.select(valid, before, with));
                }
            }
            let too_wide = too_wide.map(|wide| valid_and(f, value, wide));
            outside = either(f, outside, too_wide);
            words.append(&mut own);
        }
        Wanted::Words(words, mask)
    } else {
        let mut code: Option<Reg> = None;
        for ((key, &value), &(low, codes)) in keys.iter().zip(values).zip(&table.keys) {
            let (words, too_wide) = key_words(f, 1, value)?;
            let difference = f.sub(words[0], low);
            let mut beyond = f.setp(Compare::Ge, difference, codes);
            if let Some(wide) = too_wide {
                beyond = f.or(beyond, wide);
            }
            let beyond = valid_and(f, value, beyond);
            outside = either(f, outside, Some(beyond));
            let mut own = f.convert(Type::U32, difference);
            let mut own_codes = f.convert(Type::U32, codes);
            if key.ty.nullable {
                if let Some(valid) = value.valid {
                    own = f.select(valid, own, own_codes);
                }
                own_codes = f.add(own_codes, 1u32);
            }
            code = Some(match code {
                Some(code) => f.mad(code, own_codes, own),
                None => own,
            });
        }
        Wanted::Code(code.unwrap_or_else(|| f.copy(Type::U32, 0u32)))
    };
    // A NULL that the table has no place for equals nothing, also where NULL equals NULL: the build side has none there.
    let mut lost = outside;
    for (key, value) in keys.iter().zip(values) {
        if let (Some(valid), false) = (value.valid, plan.nulls_equal && key.ty.nullable) {
            let own = f.not(valid);
            lost = either(f, lost, Some(own));
        }
    }
    let usable = lost.map(|lost| f.not(lost));
    Ok(RowKeys { wanted, usable, null, outside })
}

fn valid_and(f: &mut FunctionBuilder, value: Value, what: Reg) -> Reg {
    match value.valid {
        Some(valid) => f.and(valid, what),
        None => what,
    }
}

/// A key as `count` 64-bit words (U64), and where its value does not fit them (`None`: nowhere).
fn key_words(f: &mut FunctionBuilder, count: u32, value: Value) -> Result<(Vec<Reg>, Option<Reg>), CodegenError> {
    let one = |word: Reg| (vec![word.view(Type::U64)], None);
    Ok(match value.lane {
        Lane::Pred => {
            let bit = truth_bit(f, value.low);
            one(f.convert(Type::U64, bit))
        }
        Lane::F32 => {
            let bits = canonical(f, value.low, Type::U32, 0x7fc0_0000);
            one(f.convert(Type::U64, bits))
        }
        Lane::F64 => one(canonical(f, value.low, Type::U64, 0x7ff8_0000_0000_0000)),
        _ if count == 2 => {
            let (low, high) = to_128(f, value);
            (vec![low, high.view(Type::U64)], None)
        }
        Lane::S128 => {
            let (low, high) = to_128(f, value);
            let sign = f.shr(low.view(Type::S64), 63);
            let wide = f.setp(Compare::Ne, sign, high);
            (vec![low], Some(wide))
        }
        Lane::S32 | Lane::U32 | Lane::S64 | Lane::U64 => one(to_64(f, value.low)),
        Lane::Text => return Err(CodegenError::Unsupported { what: "a join on a text".into() }),
    })
}

/// Looks a row's keys up: its list of matches, NULL where there are none.
pub(crate) fn probe(
    f: &mut FunctionBuilder,
    plan: &JoinPlan,
    table: &TableRegisters,
    values: &[Value],
) -> Result<Value, CodegenError> {
    let keys = row_keys(f, plan, table, values)?;
    let matches = f.copy(Type::U64, 0u64);
    let open = keys.usable.map(|usable| f.open_if(usable));
    match keys.wanted {
        Wanted::Code(code) => {
            let record = f.element(table.records, code, plan.record_bytes() as u32);
            f.load_into("ld.global.nc", Type::U64, matches, record.at(plan.matches_offset()));
        }
        Wanted::Words(words, nulls) => {
            let mask = table.mask.expect("a hashed table has a slot mask");
            let at = hash::Found { records: table.records, mask, matches, offset: plan.matches_offset() };
            hash::find(f, &plan.groups, at, &words, nulls, hash::Same::Words);
        }
    }
    if let Some(open) = open {
        f.close(open);
    }
    let valid = f.setp(Compare::Ne, matches, 0u64);
    Ok(Value { lane: Lane::U64, low: matches, high: None, valid: Some(valid) })
}
