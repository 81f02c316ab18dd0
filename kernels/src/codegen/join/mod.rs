//! Join tables: addressing of keys, for kernels that build a table and kernels that probe it.
//!
//!   every    nothing is stored: each row matches all rows of the build side
//!   bitmap   code = (k0 − low0) · codes1 + (k1 − low1) ──► a bit
//!   array    code as above                              ──► the key's leader: one of its rows
//!   hash     key words, and a mask of NULLs             ──► the key's leader, see [`slots`]
//!
//!   matches  count of the key's rows (low half) | leader, or start in the list of rows (high half)       0: no match
//!   lists    leader ──► count, end in the list of rows         only if some key has several rows that are all needed
//!
//! Ranges   a probing key outside the build side's range matches nothing; ranges are therefore compared in 64 bits.
//! NULL     equals nothing: a row with a NULL key is neither inserted nor looked up. If NULL equals NULL, it is the
//!          last code of a key, or a bit in the mask.
//! Floats   are compared by their bits, except that −0.0 equals 0.0: a NaN equals only a NaN of equal sign and payload.
//! Texts    are hashed and compared by their bytes, independent of their address.

mod slots;
pub(crate) mod table;

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Callee, Compare, FunctionBuilder, ModuleBuilder, Reg};

use super::ir::*;
use super::load::{canonical, to_64, to_128, truth_bit};
use super::params::{ParamList, Slot};
use super::text;
use super::value::{CodegenError, Emit, Value};
use crate::abi;
use slots::{Wanted, Words};

/// One key of a join table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinKey {
    /// Nullable if NULL is a key value of its own.
    pub ty: Ty,
    pub lane: Lane,
    /// Lowest value and number of values (without NULL), if known.
    pub dense: Option<(i128, u64)>,
}

impl JoinKey {
    fn new(ty: Ty) -> JoinKey {
        let lane = lane(ty);
        let bounds = if ty.repr == Repr::Bool { Some(Range { low: 0, high: 1 }) } else { ty.bounds() };
        // Codes are computed in 64 bits: keys outside that range are hashed, even if they are close together.
        let dense = bounds.filter(|_| !matches!(lane, Lane::S128 | Lane::F32 | Lane::F64 | Lane::Text));
        let dense = dense.and_then(|Range { low, high }| {
            let values = u64::try_from(high.checked_sub(low)?.checked_add(1)?).ok()?;
            Some((low, values))
        });
        JoinKey { ty, lane, dense }
    }

    /// 64-bit words of the key in a hashed table.
    pub(crate) fn words(&self) -> u32 {
        match self.lane {
            Lane::S128 => 2,
            Lane::Text => text::KEY_WORDS,
            _ => 1,
        }
    }
}

/// Layout of a join table.
#[derive(Debug, Clone)]
pub(crate) struct JoinPlan {
    pub keys: Vec<JoinKey>,
    pub kind: TableKind,
    pub lists: bool,
    nulls_equal: bool,
}

impl JoinPlan {
    /// # Errors
    /// If the table has no keys, too many keys, or keys whose ranges do not allow its addressing.
    pub(crate) fn new(spec: &TableSpec) -> Result<JoinPlan, CodegenError> {
        let malformed = |why: &str| CodegenError::Malformed { what: "a join table".into(), why: why.into() };
        if spec.keys.is_empty() {
            return Err(malformed("it has no keys"));
        }
        if spec.keys.len() > 32 {
            return Err(CodegenError::Unsupported { what: format!("joining by {} keys", spec.keys.len()) });
        }
        let keys = spec.keys.iter().map(|ty| JoinKey::new(ty.nullable(ty.nullable && spec.nulls_equal))).collect();
        let plan = JoinPlan { keys, kind: spec.kind, lists: spec.lists, nulls_equal: spec.nulls_equal };
        if matches!(spec.kind, TableKind::Bitmap | TableKind::Array) && plan.codes().is_none() {
            return Err(malformed("its keys cannot address it"));
        }
        if matches!(spec.kind, TableKind::Bitmap | TableKind::Every) && spec.lists {
            return Err(malformed("its rows have no lists"));
        }
        Ok(plan)
    }

    /// Number of combinations of key values, if they can be addressed.
    pub(crate) fn codes(&self) -> Option<u32> {
        let codes = self.keys.iter().try_fold(1_u64, |codes, key| {
            let (_, values) = key.dense?;
            codes.checked_mul(values.checked_add(key.ty.nullable as u64)?)
        });
        codes.and_then(|codes| u32::try_from(codes).ok())
    }

    /// True if the words of a row begin with a mask of NULLs.
    pub(crate) fn has_null_mask(&self) -> bool {
        self.keys.iter().any(|key| key.ty.nullable)
    }

    /// 64-bit words of a row's keys in a hashed table.
    pub(crate) fn width(&self) -> u64 {
        u64::from(self.has_null_mask()) + self.keys.iter().map(|key| u64::from(key.words())).sum::<u64>()
    }

    /// Lowest value and number of codes (without NULL) of key `key`.
    pub(crate) fn dense_key(&self, key: u32) -> Option<(i128, u64)> {
        self.keys.get(key as usize)?.dense
    }
}

/// Location of the slots of a table.
pub(crate) enum Where {
    /// Number of rows, all of which match (U32).
    Every {
        rows: Reg,
    },
    Bits,
    /// Binary logarithm of the bytes of a slot, and the bit mask of a slot (U32).
    Array {
        shift: Reg,
        field: Reg,
    },
    /// Number of slots (U32).
    Hashed {
        slots: Reg,
    },
}

/// Parameters of a join table, in registers.
pub(crate) struct TableRegisters {
    /// Address of the first slot (U64).
    pub records: Reg,
    pub place: Where,
    /// Lowest value and number of codes of each key (U64), if keys address the table.
    keys: Vec<(Reg, Reg)>,
    /// Counts and ends of the lists by leader (U64).
    lists: Option<Reg>,
    /// Helper that compares texts among the keys.
    comparison: Option<Callee>,
}

impl TableRegisters {
    /// Declares the parameters of table `index` and reads them; `base` is the address of its allocation. A building
    /// kernel has no lists yet.
    pub(crate) fn new(
        module: &mut ModuleBuilder,
        f: &mut FunctionBuilder,
        params: &mut ParamList,
        plan: &JoinPlan,
        index: u32,
        base: Reg,
        builds: bool,
    ) -> Result<TableRegisters, CodegenError> {
        let mut read = |f: &mut FunctionBuilder, slot: Slot, ty: Type| {
            let param = params.declare(f, slot, ty);
            f.load_param(&param)
        };
        let place = match plan.kind {
            TableKind::Every => Where::Every { rows: read(f, Slot::JoinRows(index), Type::U32) },
            TableKind::Bitmap => Where::Bits,
            TableKind::Array => {
                let shift = read(f, Slot::JoinShift(index), Type::U32);
                Where::Array { shift, field: read(f, Slot::JoinField(index), Type::U32) }
            }
            TableKind::Hash => Where::Hashed { slots: read(f, Slot::JoinSlots(index), Type::U32) },
        };
        let mut keys = Vec::new();
        if matches!(plan.kind, TableKind::Bitmap | TableKind::Array) {
            for key in 0..plan.keys.len() as u32 {
                let low = read(f, Slot::JoinLow(index, key), Type::U64);
                let codes = read(f, Slot::JoinCodes(index, key), Type::U64);
                keys.push((low, codes));
            }
        }
        let lists = (plan.lists && !builds).then(|| {
            let lists = read(f, Slot::JoinLists(index), Type::U64);
            f.add(lists, abi::CONTROL_BYTES)
        });
        let records = f.add(base, abi::CONTROL_BYTES);
        let comparison = text::comparison(module, plan.keys.iter().map(|key| key.lane))?;
        Ok(TableRegisters { records, place, keys, lists, comparison })
    }
}

/// Prepared keys of a row.
pub(crate) struct RowKeys<'t> {
    pub wanted: Wanted<'t>,
    /// True if the table can contain the row: no NULL that equals nothing, every key in its range. `None`: always.
    pub usable: Option<Reg>,
    /// True if some key is NULL. `None`: never.
    pub null: Option<Reg>,
    /// True if some key is valid and out of its range. `None`: never.
    pub outside: Option<Reg>,
}

fn either(f: &mut FunctionBuilder, a: Option<Reg>, b: Option<Reg>) -> Option<Reg> {
    match (a, b) {
        (Some(a), Some(b)) => Some(f.or(a, b)),
        (one, other) => one.or(other),
    }
}

/// Prepares the keys of the current row.
pub(crate) fn row_keys<'t>(
    emit: &mut Emit<'_>,
    plan: &JoinPlan,
    table: &'t TableRegisters,
    values: &[Value],
) -> Result<RowKeys<'t>, CodegenError> {
    let keys = &plan.keys;
    if values.len() != keys.len() {
        let why = format!("{} keys where the table has {}", values.len(), keys.len());
        return Err(CodegenError::Malformed { what: "a join".into(), why });
    }
    let mut null = None;
    let mut outside = None;
    for value in values {
        let own = value.valid.map(|valid| emit.f.not(valid));
        null = either(emit.f, null, own);
    }
    let wanted = if plan.kind == TableKind::Hash {
        let mut words = Vec::new();
        let mut mask = plan.has_null_mask().then(|| emit.f.copy(Type::U64, 0u64));
        for (i, (key, &value)) in keys.iter().zip(values).enumerate() {
            let (mut own, too_wide) = match value.lane {
                Lane::Text => (text::key_words(emit, value, None)?, None),
                _ => key_words(emit.f, key.words(), value)?,
            };
            let f = &mut *emit.f;
            if let Some(valid) = value.valid {
                for word in &mut own {
                    *word = f.select(valid, *word, 0u64);
                }
                if let Some(before) = mask {
                    let with = f.or(before, 1u64 << i);
                    mask = Some(f.select(valid, before, with));
                }
            }
            let too_wide = too_wide.map(|wide| valid_and(f, value, wide));
            outside = either(f, outside, too_wide);
            words.append(&mut own);
        }
        let words = mask.into_iter().chain(words).collect();
        Wanted::Words(Words { words, comparison: &table.comparison })
    } else {
        let f = &mut *emit.f;
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
    // A NULL in a key that is not nullable in the table equals nothing, even if NULL equals NULL: the build side has no
    // such row.
    let f = &mut *emit.f;
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

/// A key as `count` 64-bit words (U64), and a predicate for values that do not fit them (`None`: all fit).
fn key_words(f: &mut FunctionBuilder, count: u32, value: Value) -> Result<(Vec<Reg>, Option<Reg>), CodegenError> {
    let one = |word: Reg| (vec![word.view(Type::U64)], None);
    Ok(match value.lane {
        Lane::Pred => {
            let bit = truth_bit(f, value.low);
            one(f.convert(Type::U64, bit))
        }
        Lane::F32 => {
            let bits = canonical(f, value.low, Type::U32);
            one(f.convert(Type::U64, bits))
        }
        Lane::F64 => one(canonical(f, value.low, Type::U64)),
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
        Lane::Text => return Err(CodegenError::Malformed { what: "a join".into(), why: "a text is no number".into() }),
    })
}

/// Looks up a row's keys: the list of matches, NULL without a match.
pub(crate) fn probe(
    emit: &mut Emit<'_>,
    plan: &JoinPlan,
    table: &TableRegisters,
    values: &[Value],
) -> Result<Value, CodegenError> {
    let answer = |low: Reg, valid: Reg| Value { lane: Lane::U64, low, high: None, valid: Some(valid) };
    if let Where::Every { rows } = table.place {
        let any = emit.f.setp(Compare::Ne, rows, 0u32);
        return Ok(answer(emit.f.convert(Type::U64, rows), any));
    }
    let keys = row_keys(emit, plan, table, values)?;
    let f = &mut *emit.f;
    let matches = f.copy(Type::U64, 0u64);
    let open = keys.usable.map(|usable| f.open_if(usable));
    let (found, leader) = slots::find(f, plan, table, &keys.wanted);
    match table.lists {
        None => {
            let one = f.copy(Type::U32, 1u32);
            let own = f.pack(one.view(Type::B32), leader.view(Type::B32));
            f.guarded(found, true, |f| f.assign(matches, own.view(Type::U64)));
        }
        Some(lists) => f.if_(found, |f| {
            let at = f.element(lists, leader, 8);
            let list = f.load_vector("ld.global.nc", 2, Type::U32, at);
            let start = f.sub(list[1], list[0]);
            let own = f.pack(list[0].view(Type::B32), start.view(Type::B32));
            f.assign(matches, own.view(Type::U64));
        }),
    }
    if let Some(open) = open {
        f.close(open);
    }
    let valid = f.setp(Compare::Ne, matches, 0u64);
    Ok(answer(matches, valid))
}
