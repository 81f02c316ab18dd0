//! The dictionaries of a program, the lookup tables over them, and a run's state of both on the device.
//!
//!   string arrays ─ intern ─► codes          D0 grows: [PROMO TIN, SMALL NICKEL] + [LARGE BRASS]
//!   lookup over D0          ─► extended by new values, uploaded again after growth; for a stored column it stays
//!
//!   Prepared ─► Tables: dictionaries, and lookup results for their values ◄─ run 1 ─ run 2 …    values are only added
//!   Run ──────► RunTables: tables on the device, ranks that states keep                         dropped with the run
//!
//! Threads   one lock around a program's tables, so that each value is interned and evaluated once. A run locks its own
//!           tables first. While a thread evaluates expressions, the runtime's other tasks continue elsewhere.
//! Limit     if a column has more values than the options allow, the run starts again without a dictionary, or with a
//!           larger one; in the end the CPU takes over.
//! Order     codes are assigned in order of first appearance, so they differ from program to program; answers do not.
//! Ranks     a value's rank moves when a smaller value is interned. A pass in which launches read different ranks of
//!           one value starts again with the dictionary that it has filled; values added after the last launch have no
//!           rank.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, UInt32Array, new_empty_array, new_null_array};
use datafusion::arrow::compute::{SortOptions, cast, concat, sort, sort_to_indices, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use millpond_kernels::codegen::ir::{ColumnSpec, Physical, Ty};
use millpond_kernels::pipeline::LookupInput;
use millpond_memory::{DeviceBuffer, Scope, Stream};

use crate::column::dictionary::{SharedDictionary, SourceDictionaries};
use crate::column::interner::Interner;
use crate::column::layout::ExtentLayout;
use crate::column::{DictionaryId, is_nested, nested};
use crate::device::Engine;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::expr::{Dictionaries, Dictionary, Lookup, LookupKind, evaluate};

/// The dictionaries of a program, and expressions evaluated over their values. All runs of the program share them.
pub struct Tables {
    pub definitions: Dictionaries,
    sources: SourceDictionaries,
    /// Dictionaries computed from others.
    made: HashMap<DictionaryId, Interner>,
    /// Items of lists, and the number of lists that they cover.
    items: HashMap<DictionaryId, (ArrayRef, usize)>,
    /// Lookup results for the codes so far.
    known: Vec<(Lookup, ArrayRef)>,
}

impl Tables {
    pub fn new(definitions: Dictionaries, sources: SourceDictionaries) -> Self {
        Self { definitions, sources, made: HashMap::new(), items: HashMap::new(), known: vec![] }
    }

    /// The source columns whose values it holds, or is computed from.
    fn columns_behind(&self, id: DictionaryId) -> Vec<(usize, usize)> {
        match self.definitions.get(id) {
            Some(Dictionary::Source { upload, column, .. }) => vec![(*upload, *column)],
            Some(Dictionary::Derived { of, .. } | Dictionary::Sorted { of, .. } | Dictionary::Items { of, .. }) => {
                self.columns_behind(*of)
            }
            Some(Dictionary::Merged { parts, .. }) => {
                parts.iter().flat_map(|part| self.columns_behind(*part)).collect()
            }
            Some(Dictionary::Constants { .. } | Dictionary::Numbers(_)) | None => vec![],
        }
    }

    /// The source column whose dictionary this is.
    fn column(&self, id: DictionaryId) -> Option<(usize, usize)> {
        match self.definitions.get(id) {
            Some(Dictionary::Source { upload, column, .. }) => Some((*upload, *column)),
            _ => None,
        }
    }

    /// Calls `with` with the interner of a dictionary, or with `None` if it has none yet.
    fn interner<T>(&self, id: DictionaryId, with: impl FnOnce(Option<&Interner>) -> T) -> T {
        match self.column(id) {
            Some(column) => with(Some(&*self.sources.of(column).lock())),
            None => with(self.made.get(&id)),
        }
    }

    /// The dictionary of a source column.
    pub fn source(&self, id: DictionaryId) -> Option<SharedDictionary> {
        self.column(id).map(|column| self.sources.of(column))
    }

    /// Codes of an array's values; the dictionary may grow to `most` values.
    ///
    /// # Errors
    /// The dictionary would have more.
    pub fn intern(&mut self, id: DictionaryId, array: &ArrayRef, most: usize) -> Result<UInt32Array, Failure> {
        match self.source(id) {
            Some(dictionary) => dictionary.add(array, most),
            None => {
                let interner = self.made.entry(id).or_insert_with(|| Interner::new(most));
                interner.allow(most);
                interner.codes(array)
            }
        }
    }

    /// Number of values that dictionary `id` has so far.
    pub fn len(&self, id: DictionaryId) -> usize {
        match self.definitions.get(id) {
            Some(Dictionary::Constants { values, .. }) => values.len(),
            Some(Dictionary::Numbers(table)) => table.array().len(),
            Some(Dictionary::Sorted { of, .. }) => self.len(*of),
            Some(Dictionary::Items { .. }) => self.items.get(&id).map_or(0, |(items, _)| items.len()),
            _ => self.interner(id, |of| of.map_or(0, Interner::len)),
        }
    }

    /// The values of dictionary `id` from code `from` on, in the order of their codes. Not for sorted ones: each run
    /// has its own.
    fn values_from(&self, id: DictionaryId, from: usize) -> Result<ArrayRef> {
        match self.definitions.get(id) {
            Some(Dictionary::Constants { values, data_type }) => {
                let arrays: Vec<ArrayRef> =
                    values.iter().map(|value| value.cast_to(data_type)?.to_array()).collect::<Result<_>>()?;
                let all = concat(&arrays.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
                Ok(all.slice(from, all.len() - from))
            }
            Some(Dictionary::Numbers(table)) => Ok(table.array().slice(from, table.array().len() - from)),
            Some(Dictionary::Items { data_type, .. }) => Ok(match self.items.get(&id) {
                Some((items, _)) => items.slice(from, items.len() - from),
                None => new_empty_array(data_type),
            }),
            Some(Dictionary::Sorted { .. }) => Err(EngineError::internal("each run sorts its own values").into()),
            Some(Dictionary::Merged { constants, data_type, .. }) if !self.made.contains_key(&id) => {
                let mut interner = Interner::new(usize::MAX);
                for constant in constants {
                    let value = constant.cast_to(data_type)?.to_array()?;
                    interner.codes(&value).map_err(|_| EngineError::internal("constants are few"))?;
                }
                interner.array(from, data_type)
            }
            Some(definition) => self.interner(id, |of| match of {
                Some(interner) => interner.array(from, definition.data_type()),
                None => Interner::new(0).array(0, definition.data_type()),
            }),
            None => Err(EngineError::internal(format!("dictionary {} is not defined", id.0)).into()),
        }
    }

    /// True if a lookup has a result for each code of its dictionary: no expression remains to be evaluated.
    pub fn is_evaluated(&self, lookup: &Lookup) -> bool {
        let known = self.known.iter().find(|(known, _)| known == lookup);
        known.is_some_and(|(_, values)| values.len() == self.len(lookup.dictionary))
    }

    /// Adds the items of new lists, so that all lists are covered.
    ///
    /// # Errors
    /// There are more than `most`.
    fn take_items(&mut self, id: DictionaryId, most: usize) -> Result<(), Failure> {
        let Some(Dictionary::Items { of, data_type }) = self.definitions.get(id).cloned() else { return Ok(()) };
        if matches!(self.definitions.get(of), Some(Dictionary::Merged { .. })) {
            self.constants_of(of, most)?;
        }
        let lists = self.len(of);
        let (known, covered) = match self.items.get(&id) {
            Some((items, covered)) => (Arc::clone(items), *covered),
            None => (new_empty_array(&data_type), 0),
        };
        if covered == lists && self.items.contains_key(&id) {
            return Ok(());
        }
        let too_many = || Failure::trouble(format!("the lists of a column have more than {most} items"));
        let new = nested::items(&self.values_from(of, covered)?, most - known.len().min(most))?;
        let new = as_declared(new.ok_or_else(too_many)?, &data_type)?;
        let items = if known.is_empty() { new } else { concat(&[known.as_ref(), new.as_ref()])? };
        self.items.insert(id, (items, lists));
        Ok(())
    }

    /// Evaluates a lookup for the codes that its dictionary has so far.
    fn evaluate(&mut self, lookup: &Lookup, most: usize) -> Result<ArrayRef, Failure> {
        let at = self.known.iter().position(|(known, _)| known == lookup);
        let known = at.map(|at| Arc::clone(&self.known[at].1));
        if let Some(known) = known.as_ref().filter(|known| known.len() == self.len(lookup.dictionary)) {
            return Ok(Arc::clone(known));
        }
        // Results that do not depend on other values are kept, and only new values are evaluated; ranks are computed
        // again.
        let adds = matches!(
            lookup.kind,
            LookupKind::Value(_) | LookupKind::Merge(_) | LookupKind::Code(_) | LookupKind::Counts
        );
        let known = known.filter(|_| adds);
        let new = self.values_from(lookup.dictionary, known.as_ref().map_or(0, |known| known.len()))?;
        let new = self.evaluate_over(lookup, new, most)?;
        let values = match &known {
            Some(known) => concat(&[known.as_ref(), new.as_ref()])?,
            None => new,
        };
        match at {
            Some(at) => self.known[at].1 = Arc::clone(&values),
            None => self.known.push((lookup.clone(), Arc::clone(&values))),
        }
        Ok(values)
    }

    /// Evaluates a lookup over `values`. For ranks, `values` must be the complete dictionary.
    fn evaluate_over(&mut self, lookup: &Lookup, values: ArrayRef, most: usize) -> Result<ArrayRef, Failure> {
        Ok(match &lookup.kind {
            LookupKind::Rank | LookupKind::KeptRank => Arc::new(ranks(&values, false)?),
            LookupKind::Compared => Arc::new(ranks(&values, true)?),
            LookupKind::Text => values,
            LookupKind::Counts => Arc::new(UInt32Array::from(nested::counts(&values)?)),
            LookupKind::Starts => Arc::new(starts(&values, most)?),
            LookupKind::Value(expr) => evaluate(expr, values).map_err(Failure::query)?,
            LookupKind::Merge(merged) => {
                self.constants_of(*merged, most)?;
                Arc::new(self.intern(*merged, &values, most)?)
            }
            LookupKind::Code(derived) => {
                let Some(Dictionary::Derived { expr, of, data_type }) = self.definitions.get(*derived).cloned() else {
                    return Err(EngineError::internal("a table of codes leads to a derived dictionary").into());
                };
                self.code_of_null(*derived, &expr, of, most)?;
                let made = as_declared(evaluate(&expr, values).map_err(Failure::query)?, &data_type)?;
                Arc::new(self.intern(*derived, &made, most)?)
            }
        })
    }

    /// Assigns the first codes of a merged dictionary to its constants.
    fn constants_of(&mut self, merged: DictionaryId, most: usize) -> Result<(), Failure> {
        if self.made.contains_key(&merged) {
            return Ok(());
        }
        let Some(Dictionary::Merged { constants, data_type, .. }) = self.definitions.get(merged).cloned() else {
            return Err(EngineError::internal("a table of merged codes leads to a merged dictionary").into());
        };
        self.made.insert(merged, Interner::new(most));
        for constant in constants {
            let value = constant.cast_to(&data_type)?.to_array()?;
            self.intern(merged, &value, most)?;
        }
        Ok(())
    }

    /// Assigns code 0 to the expression's value for NULL, if that is not NULL.
    fn code_of_null(
        &mut self,
        derived: DictionaryId,
        expr: &Arc<dyn PhysicalExpr>,
        of: DictionaryId,
        most: usize,
    ) -> Result<(), Failure> {
        if self.made.contains_key(&derived) {
            return Ok(());
        }
        let data_type = self.definitions.get(of).map(|d| d.data_type().clone()).unwrap_or(DataType::Utf8);
        let of_null = evaluate(expr, new_null_array(&data_type, 1))?;
        let of_null = match self.definitions.get(derived) {
            Some(definition) => as_declared(of_null, definition.data_type())?,
            None => of_null,
        };
        self.made.insert(derived, Interner::new(most));
        if of_null.is_valid(0) {
            self.intern(derived, &of_null, most)?;
        }
        Ok(())
    }
}

/// One run's state of its program's dictionaries: tables on the device, and the ranks that its states keep.
#[derive(Default)]
pub struct RunTables {
    /// Lookups on the device, and the number of codes that each covers.
    uploaded: Vec<(Lookup, usize, LookupInput)>,
    /// Ranks that the last launch read, for each dictionary whose ranks a state keeps.
    ranks: HashMap<DictionaryId, Ranks>,
}

/// The ranks of a dictionary's values.
enum Ranks {
    /// All launches read these ranks, or a prefix of them.
    Kept(UInt32Array),
    /// Launches saw different ranks of one code.
    Moved,
}

impl RunTables {
    /// True if a state holds ranks that have changed since a launch read them.
    pub fn ranks_moved(&self) -> bool {
        self.ranks.values().any(|ranks| matches!(ranks, Ranks::Moved))
    }

    /// Number of values of dictionary `id`; of a sorted one, those that have ranks in this run.
    fn len(&self, id: DictionaryId, tables: &Tables) -> usize {
        match tables.definitions.get(id) {
            Some(Dictionary::Sorted { of, .. }) => match self.ranks.get(of) {
                Some(Ranks::Kept(ranks)) => ranks.len(),
                _ => self.len(*of, tables),
            },
            _ => tables.len(id),
        }
    }

    /// The values of `of` that have ranks, in ascending order.
    fn sorted(&self, of: DictionaryId, data_type: &DataType, tables: &Tables) -> Result<ArrayRef> {
        let all = self.values(of, tables)?;
        let all = match self.ranks.get(&of) {
            // Values added later have no rank in any state.
            Some(Ranks::Kept(ranks)) => all.slice(0, ranks.len()),
            Some(Ranks::Moved) => {
                debug_assert!(false, "ranks over dictionary {} moved unseen", of.0);
                return Err(EngineError::internal("ranks of strings moved unseen").into());
            }
            None => all,
        };
        let values = match is_nested(all.data_type()) {
            true => take(&all, &nested::ascending(&all, false)?, None)?,
            false => sort(&all, Some(ASCENDING))?,
        };
        Ok(if values.data_type() == data_type { values } else { cast(&values, data_type)? })
    }

    /// All values of dictionary `id`.
    pub fn values(&self, id: DictionaryId, tables: &Tables) -> Result<ArrayRef> {
        match tables.definitions.get(id) {
            Some(Dictionary::Sorted { of, data_type }) => self.sorted(*of, data_type, tables),
            _ => tables.values_from(id, 0),
        }
    }

    /// A launch's table, evaluated and uploaded for the current values of its dictionary; dictionaries that it fills
    /// may have `most` values. `kept` returns the table if it stays on the device beside this column of this source.
    pub fn lookup(
        &mut self,
        lookup: &Lookup,
        tables: &mut Tables,
        most: usize,
        (engine, stream): (&Engine, &Stream),
        kept: &KeptTable<'_>,
    ) -> Result<LookupInput, Failure> {
        tables.take_items(lookup.dictionary, most)?;
        let known = self.uploaded.iter().position(|(known, ..)| known == lookup);
        if let Some((_, covered, input)) = known.map(|known| &self.uploaded[known])
            && *covered == self.len(lookup.dictionary, tables)
        {
            return Ok(input.clone());
        }
        let values = match tables.definitions.get(lookup.dictionary) {
            // The position of a value may differ from run to run.
            Some(Dictionary::Sorted { of, data_type }) => {
                let sorted = self.sorted(*of, data_type, tables)?;
                tables.evaluate_over(lookup, sorted, most)?
            }
            _ => tables.evaluate(lookup, most)?,
        };
        let table = HostTable { values: &values, physical: lookup.physical(), ty: lookup.ty };
        let mut input = None;
        for column in tables.columns_behind(lookup.dictionary) {
            input = match input {
                None => kept(column, &table)?,
                some => some,
            };
        }
        let input = match input {
            Some(input) => input,
            None => table.bytes()?.upload(engine, stream, stream.scope())?.0,
        };
        if lookup.kind == LookupKind::KeptRank {
            self.keep_ranks(lookup.dictionary, values.as_primitive());
        }
        let covered = values.len();
        match known {
            Some(known) => self.uploaded[known] = (lookup.clone(), covered, input.clone()),
            None => self.uploaded.push((lookup.clone(), covered, input.clone())),
        }
        Ok(input)
    }

    /// Records the ranks that a launch reads.
    fn keep_ranks(&mut self, of: DictionaryId, now: &UInt32Array) {
        let ranks = self.ranks.entry(of).or_insert_with(|| Ranks::Kept(now.clone()));
        if let Ranks::Kept(known) = ranks {
            *ranks = match now.len() >= known.len() && now.slice(0, known.len()) == *known {
                true => Ranks::Kept(now.clone()),
                false => Ranks::Moved,
            };
        }
    }
}

const ASCENDING: SortOptions = SortOptions { descending: false, nulls_first: false };

/// Offset of each list's items among the items of all lists, of which there are `most` at most.
fn starts(lists: &ArrayRef, most: usize) -> Result<UInt32Array, Failure> {
    let mut start = 0_usize;
    let mut starts = Vec::with_capacity(lists.len());
    for count in nested::counts(lists)? {
        starts.push(start.min(u32::MAX as usize) as u32);
        start += count as usize;
    }
    if start > most {
        return Err(Failure::trouble(format!("the lists of a column have more than {most} items")));
    }
    Ok(starts.into())
}

/// Casts nested values to the dictionary's type: their bytes in this type identify them.
fn as_declared(made: ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    match is_nested(data_type) && made.data_type() != data_type {
        true => Ok(cast(&made, data_type)?),
        false => Ok(made),
    }
}

/// Rank of each value, ascending; NULL inside nested values is first or last.
fn ranks(values: &ArrayRef, nulls_first: bool) -> Result<UInt32Array> {
    let order = match is_nested(values.data_type()) {
        true => nested::ascending(values, nulls_first)?,
        false => sort_to_indices(values, Some(ASCENDING), None)?,
    };
    let mut ranks = vec![0_u32; values.len()];
    for (rank, index) in order.values().iter().enumerate() {
        ranks[*index as usize] = rank as u32;
    }
    Ok(ranks.into())
}

/// Returns the table that stays on the device beside this column of this source, if one does.
pub type KeptTable<'k> = dyn Fn((usize, usize), &HostTable<'_>) -> Result<Option<LookupInput>, Failure> + 'k;

/// A lookup table on the host: one value per code.
pub struct HostTable<'v> {
    pub values: &'v ArrayRef,
    pub physical: Physical,
    /// Type of its values; `nullable` if NULLs may be among them.
    pub ty: Ty,
}

/// A lookup table as bytes in the device's layout.
pub struct TableBytes {
    bytes: Vec<u8>,
    values: Range<usize>,
    validity: Option<Range<usize>>,
}

impl HostTable<'_> {
    /// The bytes of the table; it has one value at least, so that it has an address.
    pub fn bytes(&self) -> Result<TableBytes, Failure> {
        let values = match self.values.is_empty() {
            true => ScalarValue::try_new_null(self.values.data_type()).and_then(|null| null.to_array_of_size(1))?,
            false => Arc::clone(self.values),
        };
        let rows = values.len();
        let batch = datafusion::arrow::record_batch::RecordBatch::try_from_iter([("value", values)])?;
        let column = ColumnSpec { physical: self.physical, has_base: false, ty: self.ty.nullable(true) };
        let layout = ExtentLayout::new(std::slice::from_ref(&batch), &[column], &[true]);
        let region = layout.columns[0].clone().ok_or_else(|| EngineError::internal("a table has one column"))?;
        // A table of a nullable type has a bitmap, even while no value is NULL.
        let bitmap = rows.div_ceil(32) * 4;
        let validity = region.validity.clone().unwrap_or(layout.bytes..layout.bytes + bitmap);
        let mut bytes = vec![0_u8; layout.bytes.max(validity.end).next_multiple_of(256)];
        let no_strings = |_: &ArrayRef| Err(EngineError::internal("strings in a table are codes").into());
        let written = layout.write(&mut bytes[..layout.bytes], 0, &column, 0, &[batch], no_strings)?;
        if written.is_err() {
            return Err(EngineError::internal("a table's values have no range to leave").into());
        }
        if region.validity.is_none() {
            for row in 0..rows {
                bytes[validity.start + row / 8] |= 1 << (row % 8);
            }
        }
        Ok(TableBytes { bytes, values: region.values, validity: self.ty.nullable.then_some(validity) })
    }
}

impl TableBytes {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Uploads the table. The buffer counts under `scope`, the copy under the stream's; also returns the buffer's bytes
    /// in the pool.
    pub fn upload(&self, engine: &Engine, stream: &Stream, scope: &Scope) -> Result<(LookupInput, u64), Failure> {
        let buffer = DeviceBuffer::new(self.bytes.len(), &stream.with_scope(scope), &engine.pool)?;
        buffer.upload_from(&self.bytes, stream, &engine.pinned)?;
        let validity = self.validity.clone().map(|range| buffer.view(range)).transpose()?;
        let input = LookupInput { values: buffer.view(self.values.clone())?, validity };
        Ok((input, buffer.allocated_bytes().as_u64()))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::StringArray;
    use millpond_kernels::codegen::ir::{Repr, Ty};

    use super::*;

    const MOST: usize = 100;

    fn strings(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(values))
    }

    /// A column's dictionary, the sorted one over it, and a lookup of kept ranks.
    fn program() -> (Tables, DictionaryId, DictionaryId, Lookup) {
        let mut definitions = Dictionaries::default();
        let column = definitions.add(Dictionary::Source { upload: 0, column: 0, data_type: DataType::Utf8 });
        let sorted = definitions.add(Dictionary::Sorted { of: column, data_type: DataType::Utf8 });
        let kept = Lookup { dictionary: column, kind: LookupKind::KeptRank, ty: Ty::new(Repr::U32) };
        (Tables::new(definitions, SourceDictionaries::default()), column, sorted, kept)
    }

    fn launch(run: &mut RunTables, tables: &mut Tables, kept: &Lookup) {
        let ranks = tables.evaluate(kept, MOST).expect("ranks");
        run.keep_ranks(kept.dictionary, ranks.as_primitive());
    }

    #[test]
    fn values_of_another_run_move_no_ranks() {
        let (mut tables, column, sorted, kept) = program();
        let (mut one, mut other) = (RunTables::default(), RunTables::default());
        tables.intern(column, &strings(&["m", "f"]), MOST).expect("room");
        launch(&mut one, &mut tables, &kept);
        // A smaller value, which only the other run's rows have.
        tables.intern(column, &strings(&["a", "m"]), MOST).expect("room");
        launch(&mut other, &mut tables, &kept);
        assert!(!one.ranks_moved() && !other.ranks_moved());
        assert_eq!(one.len(sorted, &tables), 2);
        assert_eq!(*one.values(sorted, &tables).expect("values"), *strings(&["f", "m"]));
        assert_eq!(*other.values(sorted, &tables).expect("values"), *strings(&["a", "f", "m"]));
    }

    #[test]
    fn launches_of_one_run_must_agree_on_ranks() {
        let (mut tables, column, sorted, kept) = program();
        let mut run = RunTables::default();
        tables.intern(column, &strings(&["f", "m"]), MOST).expect("room");
        launch(&mut run, &mut tables, &kept);
        // It sorts behind the others: their ranks stay.
        tables.intern(column, &strings(&["z"]), MOST).expect("room");
        launch(&mut run, &mut tables, &kept);
        assert!(!run.ranks_moved());
        assert_eq!(*run.values(sorted, &tables).expect("values"), *strings(&["f", "m", "z"]));
        tables.intern(column, &strings(&["g"]), MOST).expect("room");
        launch(&mut run, &mut tables, &kept);
        assert!(run.ranks_moved());
    }

    #[test]
    fn what_a_lookup_has_is_evaluated_once() {
        let (mut tables, column, _, _) = program();
        let merged = tables.definitions.add(Dictionary::Merged {
            parts: vec![column],
            constants: vec![ScalarValue::from("x")],
            data_type: DataType::Utf8,
        });
        let merge = Lookup { dictionary: column, kind: LookupKind::Merge(merged), ty: Ty::new(Repr::U32) };
        tables.intern(column, &strings(&["m", "x"]), MOST).expect("room");
        let first = tables.evaluate(&merge, MOST).expect("codes");
        assert_eq!(first.as_primitive::<datafusion::arrow::datatypes::UInt32Type>().values()[..], [1, 0]);
        tables.intern(column, &strings(&["n"]), MOST).expect("room");
        // The next evaluation keeps the codes that are known and adds the new one.
        let next = tables.evaluate(&merge, MOST).expect("codes");
        assert_eq!(next.as_primitive::<datafusion::arrow::datatypes::UInt32Type>().values()[..], [1, 0, 2]);
        assert!(Arc::ptr_eq(&next, &tables.evaluate(&merge, MOST).expect("codes")));
        assert_eq!(tables.len(merged), 3);
    }
}
