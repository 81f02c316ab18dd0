//! The dictionaries of a run, and the lookup tables over them.
//!
//!   string arrays ─ intern ─► codes          D0 grows: [PROMO TIN, SMALL NICKEL] + [LARGE BRASS]
//!   lookup over D0          ─► extended by the new values, uploaded again when it grew
//!
//! Threads   one lock around everything: interning, evaluation and upload of tables happen once, whoever comes first.
//! Limit     a column with more values than [`Limits`] allow starts the run again without a dictionary, or with a larger one; in
//!           the end the CPU takes over.
//! Order     codes are given in order of first appearance, so they differ from run to run; answers do not.
//! Ranks     a value's place among all values moves when a smaller one is interned. Ranks that a state keeps have tables of their
//!           own: a pass whose ranks moved, in a launch or after the last one, starts again with the dictionary it has filled.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array, new_null_array};
use datafusion::arrow::compute::{SortOptions, cast, concat, sort, sort_to_indices};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use millpond_kernels::codegen::ir::{ColumnSpec, LookupSpec, Physical};
use millpond_kernels::pipeline::LookupInput;
use millpond_memory::{DeviceBuffer, Stream};

use crate::column::DictionaryId;
use crate::column::dictionary::{SharedDictionary, SourceDictionaries};
use crate::column::interner::Interner;
use crate::column::layout::ExtentLayout;
use crate::device::Engine;
use crate::error::EngineError;
use crate::expr::{Dictionaries, Dictionary, Lookup, LookupKind, evaluate};
use crate::program::failure::Failure;
use crate::program::texts;

/// A lookup table as far as it is evaluated.
struct Table {
    lookup: Lookup,
    /// Values of the codes so far.
    values: Option<ArrayRef>,
    /// The table on the device, and how many codes it covers.
    uploaded: Option<(usize, LookupInput)>,
    /// Launches saw different ranks of one code.
    moved: bool,
}

/// Dictionaries and tables of one run.
pub struct Tables {
    pub definitions: Dictionaries,
    sources: SourceDictionaries,
    interners: HashMap<DictionaryId, SharedDictionary>,
    tables: Vec<Table>,
    limits: Limits,
}

/// How many values dictionaries may have.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Of a column that can do without.
    pub most: usize,
    /// Of one that needs a dictionary whatever its size, and of what is made from dictionaries.
    pub most_if_needed: usize,
    /// Those columns, by upload and column.
    pub needed: HashSet<(usize, usize)>,
}

impl Tables {
    pub fn new(definitions: Dictionaries, sources: SourceDictionaries, limits: Limits) -> Self {
        let mut tables = Self { definitions, sources, interners: HashMap::new(), tables: vec![], limits };
        // Values that earlier runs have met are there from the beginning.
        let ids: Vec<DictionaryId> = tables.definitions.iter().map(|(id, _)| id).collect();
        for id in ids {
            if matches!(tables.definitions.get(id), Some(Dictionary::Source { .. })) {
                tables.interner(id);
            }
        }
        tables
    }

    /// The interner of a dictionary: the column's own, or one of this run, new if it is not there.
    fn interner(&mut self, id: DictionaryId) -> SharedDictionary {
        let most = match self.limited(id) {
            Some(_) => self.limits.most,
            None => self.limits.most_if_needed,
        };
        let of_column = match self.definitions.get(id) {
            Some(Dictionary::Source { upload, column, .. }) => Some((*upload, *column)),
            _ => None,
        };
        let sources = &self.sources;
        let interner = self.interners.entry(id).or_insert_with(|| match of_column {
            Some(column) => sources.of(column),
            None => SharedDictionary::new(most),
        });
        interner.lock().allow(most);
        interner.clone()
    }

    /// The column whose dictionary this is, if it can do without.
    fn limited(&self, id: DictionaryId) -> Option<(usize, usize)> {
        match self.definitions.get(id) {
            Some(Dictionary::Source { upload, column, .. }) => {
                Some((*upload, *column)).filter(|column| !self.limits.needed.contains(column))
            }
            _ => None,
        }
    }

    /// True if the column is better off without a dictionary, by its rows so far.
    pub fn nearly_all_different(&self, id: DictionaryId) -> bool {
        let (rows, values) = self.interners.get(&id).map_or((0, 0), |interner| {
            let interner = interner.lock();
            (interner.rows(), interner.len())
        });
        self.limited(id).is_some() && texts::nearly_all_different(values, rows)
    }

    /// From now on these columns may have more values: rows have left, and it is too late to do without.
    pub fn need(&mut self, columns: Vec<(usize, usize)>) {
        self.limits.needed.extend(columns);
    }

    /// Codes of a source column's array.
    pub fn intern(&mut self, id: DictionaryId, array: &ArrayRef) -> Result<UInt32Array, Failure> {
        let limited = self.limited(id);
        let interner = self.interner(id);
        let mut interner = interner.lock();
        interner.codes(array).map_err(|failure| match limited {
            Some(column) if interner.is_full() => Failure::Texts(vec![column]),
            _ => failure,
        })
    }

    /// True when a state holds ranks that no longer are what they were when a launch read them.
    pub fn kept_ranks_moved(&self) -> Result<bool> {
        for table in self.tables.iter().filter(|table| table.lookup.kind == LookupKind::KeptRank) {
            if self.has_moved(table)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True when the table's ranks differ between launches, or from the ranks in the dictionary as it is now.
    fn has_moved(&self, table: &Table) -> Result<bool> {
        let Some(known) = &table.values else { return Ok(false) };
        if table.moved || self.len(table.lookup.dictionary) == known.len() {
            return Ok(table.moved);
        }
        Ok(moved(known, &ranks(&self.values(table.lookup.dictionary)?)?))
    }

    /// Values that dictionary `id` has so far.
    pub fn len(&self, id: DictionaryId) -> usize {
        match self.definitions.get(id) {
            Some(Dictionary::Constants { values, .. }) => values.len(),
            Some(Dictionary::Sorted { of, .. }) => self.len(*of),
            _ => self.interners.get(&id).map_or(0, |interner| interner.lock().len()),
        }
    }

    /// All values of dictionary `id`.
    pub fn values(&self, id: DictionaryId) -> Result<ArrayRef> {
        self.values_from(id, 0)
    }

    fn values_from(&self, id: DictionaryId, from: usize) -> Result<ArrayRef> {
        match self.definitions.get(id) {
            Some(Dictionary::Constants { values, data_type }) => {
                let arrays: Vec<ArrayRef> =
                    values.iter().map(|value| value.cast_to(data_type)?.to_array()).collect::<Result<_>>()?;
                let all = concat(&arrays.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
                Ok(all.slice(from, all.len() - from))
            }
            Some(Dictionary::Sorted { of, data_type }) => {
                for table in &self.tables {
                    let kept = table.lookup.kind == LookupKind::KeptRank && table.lookup.dictionary == *of;
                    if kept && self.has_moved(table)? {
                        debug_assert!(false, "ranks over dictionary {} moved unseen", of.0);
                        return Err(EngineError::internal("ranks of strings moved unseen").into());
                    }
                }
                let values = sort(&self.values(*of)?, Some(ASCENDING))?;
                let values = values.slice(from, values.len() - from);
                Ok(if values.data_type() == data_type { values } else { cast(&values, data_type)? })
            }
            Some(Dictionary::Merged { constants, data_type, .. }) if !self.interners.contains_key(&id) => {
                let mut interner = Interner::new(self.limits.most_if_needed);
                for constant in constants {
                    let value = constant.cast_to(data_type)?.to_array()?;
                    interner.codes(&value).map_err(|_| EngineError::internal("constants are few"))?;
                }
                interner.array(from, data_type)
            }
            Some(definition) => match self.interners.get(&id) {
                Some(interner) => interner.lock().array(from, definition.data_type()),
                None => Interner::new(0).array(0, definition.data_type()),
            },
            None => Err(EngineError::internal(format!("dictionary {} is not defined", id.0)).into()),
        }
    }

    /// A table of a launch, evaluated and uploaded as far as its dictionary goes.
    pub fn lookup(
        &mut self,
        lookup: &Lookup,
        spec: &LookupSpec,
        engine: &Engine,
        stream: &Stream,
    ) -> Result<LookupInput, Failure> {
        let at = match self.tables.iter().position(|table| table.lookup == *lookup) {
            Some(at) => at,
            None => {
                self.tables.push(Table { lookup: lookup.clone(), values: None, uploaded: None, moved: false });
                self.tables.len() - 1
            }
        };
        let size = self.len(lookup.dictionary);
        if let Some((covered, input)) = &self.tables[at].uploaded
            && *covered == size
        {
            return Ok(input.clone());
        }
        let known = self.tables[at].values.clone();
        let covered = known.as_ref().map_or(0, |values| values.len());
        let values: ArrayRef = match &lookup.kind {
            LookupKind::Rank | LookupKind::KeptRank => Arc::new(ranks(&self.values(lookup.dictionary)?)?),
            LookupKind::Text if spec.physical != Physical::Text => {
                return Err(EngineError::internal("a table of texts is made of offsets and bytes").into());
            }
            LookupKind::Text => extended(known, self.values_from(lookup.dictionary, covered)?)?,
            LookupKind::Value(expr) => {
                let new = evaluate(expr, self.values_from(lookup.dictionary, covered)?).map_err(Failure::query)?;
                extended(known, new)?
            }
            LookupKind::Merge(merged) => {
                self.constants_of(*merged)?;
                let new = self.values_from(lookup.dictionary, covered)?;
                let codes: ArrayRef = Arc::new(self.intern(*merged, &new)?);
                extended(known, codes)?
            }
            LookupKind::Code(derived) => {
                let Some(Dictionary::Derived { expr, of, .. }) = self.definitions.get(*derived).cloned() else {
                    return Err(EngineError::internal("a table of codes leads to a derived dictionary").into());
                };
                if !self.interners.contains_key(derived) {
                    self.first_code(*derived, &expr, of)?;
                }
                let new = evaluate(&expr, self.values_from(lookup.dictionary, covered)?).map_err(Failure::query)?;
                let codes: ArrayRef = Arc::new(self.intern(*derived, &new)?);
                extended(known, codes)?
            }
        };
        let input = upload(&values, spec, engine, stream)?;
        let table = &mut self.tables[at];
        if let (LookupKind::KeptRank, Some(known)) = (&lookup.kind, &table.values) {
            table.moved |= moved(known, &values);
        }
        table.values = Some(values);
        table.uploaded = Some((size, input.clone()));
        Ok(input)
    }

    /// The constants of a merged dictionary have its first codes.
    fn constants_of(&mut self, merged: DictionaryId) -> Result<(), Failure> {
        if self.interners.contains_key(&merged) {
            return Ok(());
        }
        let Some(Dictionary::Merged { constants, data_type, .. }) = self.definitions.get(merged).cloned() else {
            return Err(EngineError::internal("a table of merged codes leads to a merged dictionary").into());
        };
        self.interner(merged);
        for constant in constants {
            let value = constant.cast_to(&data_type)?.to_array()?;
            self.intern(merged, &value)?;
        }
        Ok(())
    }

    /// What the expression gives for NULL, if anything, has code 0.
    fn first_code(
        &mut self,
        derived: DictionaryId,
        expr: &Arc<dyn datafusion::physical_expr::PhysicalExpr>,
        of: DictionaryId,
    ) -> Result<(), Failure> {
        let data_type = self.definitions.get(of).map(|d| d.data_type().clone()).unwrap_or(DataType::Utf8);
        let of_null = evaluate(expr, new_null_array(&data_type, 1))?;
        self.interner(derived);
        if of_null.is_valid(0) {
            self.intern(derived, &of_null)?;
        }
        Ok(())
    }
}

fn extended(known: Option<ArrayRef>, new: ArrayRef) -> Result<ArrayRef> {
    Ok(match known {
        Some(known) => concat(&[known.as_ref(), new.as_ref()])?,
        None => new,
    })
}

const ASCENDING: SortOptions = SortOptions { descending: false, nulls_first: false };

/// The place of each value among all of them, ascending.
fn ranks(values: &ArrayRef) -> Result<UInt32Array> {
    let order = sort_to_indices(values, Some(ASCENDING), None)?;
    let mut ranks = vec![0_u32; values.len()];
    for (rank, index) in order.values().iter().enumerate() {
        ranks[*index as usize] = rank as u32;
    }
    Ok(ranks.into())
}

/// True when values that were known have other ranks now.
fn moved(known: &ArrayRef, now: &dyn Array) -> bool {
    now.len() < known.len() || now.slice(0, known.len()).as_ref() != known.as_ref()
}

/// A table on the device: one value per code, never empty, so that it has an address.
fn upload(values: &ArrayRef, spec: &LookupSpec, engine: &Engine, stream: &Stream) -> Result<LookupInput, Failure> {
    let values = match values.is_empty() {
        true => ScalarValue::try_new_null(values.data_type()).and_then(|null| null.to_array_of_size(1))?,
        false => Arc::clone(values),
    };
    let rows = values.len();
    let batch = datafusion::arrow::record_batch::RecordBatch::try_from_iter([("value", Arc::clone(&values))])?;
    let column = ColumnSpec { physical: spec.physical, has_base: false, ty: spec.ty.nullable(true) };
    let layout = ExtentLayout::new(std::slice::from_ref(&batch), &[column], &[true]);
    let region = layout.columns[0].clone().ok_or_else(|| EngineError::internal("a table has one column"))?;
    // A table whose type has NULLs has a bitmap, even while nothing in it is NULL.
    let bitmap = rows.div_ceil(32) * 4;
    let validity = region.validity.clone().unwrap_or(layout.bytes..layout.bytes + bitmap);
    let bytes = layout.bytes.max(validity.end).next_multiple_of(256);
    let mut host = vec![0_u8; bytes];
    let no_strings = |_: &ArrayRef| Err(EngineError::internal("strings in a table are codes").into());
    let written = layout.write(&mut host[..layout.bytes], 0, &column, 0, &[batch], no_strings)?;
    if written.is_err() {
        return Err(EngineError::internal("a table's values have no range to leave").into());
    }
    if region.validity.is_none() {
        for row in 0..rows {
            host[validity.start + row / 8] |= 1 << (row % 8);
        }
    }
    let buffer = DeviceBuffer::upload(&host, stream, &engine.pool, &engine.pinned)?;
    Ok(LookupInput {
        values: buffer.view(region.values)?,
        validity: spec.ty.nullable.then(|| buffer.view(validity)).transpose()?,
    })
}
