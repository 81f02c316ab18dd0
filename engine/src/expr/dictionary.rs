//! Strings, lists, structures and maps on the device: codes, and expressions evaluated over a dictionary's values.
//!
//!   p_type            codes into D0 = [PROMO TIN, SMALL NICKEL, …]
//!   p_type LIKE 'P%'  lookup over D0: [true, false, …]
//!   substr(p_type,1,2) lookup over D0: codes into D1 = [PR, SM, …], made from D0
//!   ORDER BY p_type   lookup over D0: each value's rank
//!   array_length(l)   lookup over D2: [3, 0, …] for D2 = [[1, 2, 3], [], …]
//!   a.name = b.name   lookups over both dictionaries: codes into one that holds the values of both
//!
//! Growth   dictionaries grow while rows arrive; a lookup is extended by the new values before the next launch.
//! NULL     a NULL code yields DataFusion's result for NULL: usually NULL, but COALESCE(s, 'x') yields x.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, new_null_array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::Volatility;
use datafusion::physical_expr::expressions::{CastExpr, Column, LambdaVariable, Literal as LiteralExpr};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{Literal, NodeId, Physical, Repr, Test, Ty};

use crate::column::half::widened;
use crate::column::{ColumnInfo, DictionaryId, Form, is_coded, is_nested, plain_repr, scalar_integer};
use crate::error::reason::Reason;
use crate::expr::builtin::is_datafusions_scalar;
use crate::expr::cast::same_strings;
use crate::expr::{Lowered, Lowering, Refusal, Scope, Value, refusal, unsupported};

/// Origin of a dictionary's values.
#[derive(Debug, Clone, PartialEq)]
pub enum Dictionary {
    /// The values of column `column` of the `upload`-th fed source, in order of first appearance.
    Source { upload: usize, column: usize, data_type: DataType },
    /// The values of `expr` (over column 0) for the values of `of`. If `expr` of NULL is not NULL, that value has code
    /// 0.
    Derived { of: DictionaryId, expr: Arc<dyn PhysicalExpr>, data_type: DataType },
    /// Fixed values: value `i` has code `i`.
    Constants { values: Vec<ScalarValue>, data_type: DataType },
    /// Numbers by position: a table that expressions look into, not a column's values.
    Numbers(NumberTable),
    /// The values of several dictionaries, so that strings of different columns can be compared or chosen between.
    /// Constants are distinct and non-NULL; constant `i` has code `i`.
    Merged { parts: Vec<DictionaryId>, constants: Vec<ScalarValue>, data_type: DataType },
    /// The items of all lists of `of`, one list after the other: a code is a position, and several codes may have equal
    /// values.
    Items { of: DictionaryId, data_type: DataType },
    /// The values of `of`, ascending: codes are ranks. Valid once `of` is complete.
    Sorted { of: DictionaryId, data_type: DataType },
}

impl Dictionary {
    /// The SQL type of the values.
    pub fn data_type(&self) -> &DataType {
        match self {
            Self::Source { data_type, .. }
            | Self::Derived { data_type, .. }
            | Self::Constants { data_type, .. }
            | Self::Merged { data_type, .. }
            | Self::Items { data_type, .. }
            | Self::Sorted { data_type, .. } => data_type,
            Self::Numbers(_) => &DataType::Int64,
        }
    }
}

/// Numbers known to the engine, such as the offsets of a time zone.
#[derive(Debug, Clone)]
pub struct NumberTable(Arc<Int64Array>);

impl NumberTable {
    /// # Panics
    /// If `numbers` is empty.
    pub(crate) fn new(numbers: Vec<i64>) -> Self {
        assert!(!numbers.is_empty(), "a table has numbers");
        Self(Arc::new(Int64Array::from(numbers)))
    }

    /// The least and the greatest number.
    pub(crate) fn range(&self) -> (i64, i64) {
        let numbers = self.0.values().iter();
        (numbers.clone().min().copied().unwrap_or(0), numbers.max().copied().unwrap_or(0))
    }

    pub fn array(&self) -> ArrayRef {
        Arc::clone(&self.0) as ArrayRef
    }
}

impl PartialEq for NumberTable {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

/// The dictionaries of a program, by number.
#[derive(Debug, Clone, Default)]
pub struct Dictionaries {
    entries: Vec<Dictionary>,
}

impl Dictionaries {
    /// The number of `dictionary`; equal dictionaries share it.
    pub fn add(&mut self, dictionary: Dictionary) -> DictionaryId {
        let known = self.entries.iter().position(|entry| *entry == dictionary);
        DictionaryId(known.unwrap_or_else(|| {
            self.entries.push(dictionary);
            self.entries.len() - 1
        }))
    }

    /// A dictionary of fixed values.
    pub fn constants(&mut self, data_type: DataType, values: Vec<ScalarValue>) -> DictionaryId {
        self.add(Dictionary::Constants { values, data_type })
    }

    pub fn get(&self, id: DictionaryId) -> Option<&Dictionary> {
        self.entries.get(id.0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (DictionaryId, &Dictionary)> {
        self.entries.iter().enumerate().map(|(index, entry)| (DictionaryId(index), entry))
    }
}

/// Content of a lookup table for each code.
#[derive(Debug, Clone, PartialEq)]
pub enum LookupKind {
    /// The value of an expression over column 0.
    Value(Arc<dyn PhysicalExpr>),
    /// The code, in this derived dictionary, of the value of its expression.
    Code(DictionaryId),
    /// The code, in this merged dictionary, of the value itself.
    Merge(DictionaryId),
    /// The rank of the value among all values, ascending: for comparing values of one launch, or of all rows once these
    /// are complete.
    Rank,
    /// Like `Rank`, for a state that outlives the launch: ranks that move as the dictionary grows must not be combined
    /// there.
    KeptRank,
    /// The rank of a nested value for `<` and `>`: NULL inside it is first.
    Compared,
    /// For a list: the position of its first item among the items of all lists.
    Starts,
    /// For a list: its number of items.
    Counts,
    /// The value itself, as a text.
    Text,
}

/// A lookup table of a pipeline: number `i` in the graph is the `i`-th of [`Lowering::lookups`].
#[derive(Debug, Clone, PartialEq)]
pub enum LookupTable {
    /// A value for each value of a dictionary.
    Dictionary(Lookup),
    /// A column of the rows that segment `build` built a join table from, by row number.
    BuildColumn { build: usize, column: usize, ty: Ty },
    /// The row numbers in the lists of the join table that segment `build` built.
    Matches { build: usize },
    /// Flags of the source rows of an expansion that have a match.
    Marks,
    /// A column that a sink leaves beside its rows, by row number: for an aggregation, input values in order within
    /// their groups.
    Ranked { column: usize, ty: Ty },
    /// The first sort key of the best rows found so far, the best first.
    Best { ty: Ty },
}

impl LookupTable {
    /// Type of the table's values.
    pub fn ty(&self) -> Ty {
        match self {
            Self::Dictionary(lookup) => lookup.ty,
            Self::BuildColumn { ty, .. } => *ty,
            Self::Matches { .. } => Ty::new(Repr::U32),
            Self::Marks => Ty::new(Repr::Bool),
            Self::Ranked { ty, .. } | Self::Best { ty } => *ty,
        }
    }

    /// Memory form of the table.
    pub fn physical(&self) -> Physical {
        match self {
            Self::Dictionary(lookup) => lookup.physical(),
            other => Physical::of(other.ty()),
        }
    }
}

/// A table over a dictionary.
#[derive(Debug, Clone, PartialEq)]
pub struct Lookup {
    pub dictionary: DictionaryId,
    pub kind: LookupKind,
    /// Type of the table's values; `nullable` if NULLs may be among them.
    pub ty: Ty,
}

impl Lookup {
    /// Memory form of the table.
    pub fn physical(&self) -> Physical {
        match self.kind {
            LookupKind::Text => Physical::Text,
            _ => Physical::of(self.ty),
        }
    }
}

/// One of several strings to merge into one dictionary.
pub(super) enum StringPart {
    Value(Value),
    Constant(ScalarValue),
}

impl Lowering<'_> {
    /// The lookup for `expr`, if it reads exactly one value, and that value is codes.
    pub(super) fn over_dictionary(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Result<Option<Value>, Reason> {
        self.dictionary_lookup(expr, scope).map_err(|refusal| refusal.of(expr))
    }

    fn dictionary_lookup(&mut self, expr: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Lowered<Option<Value>> {
        let mut indices = Vec::new();
        let (mut of_more, mut foreign) = (false, None);
        let walked = expr.apply(|part| {
            if let Some(column) = part.downcast_ref::<Column>() {
                indices.push(column.index());
            }
            if let Some(function) = part.downcast_ref::<ScalarFunctionExpr>() {
                of_more |= function.fun().signature().volatility == Volatility::Volatile;
                // These functions depend on the column itself: its name, its metadata, its nullability.
                of_more |= matches!(function.fun().name(), "arrow_field" | "arrow_metadata");
                if !is_datafusions_scalar(function.fun()) {
                    foreign = Some(function.fun().name().to_string());
                }
            }
            // An expression with other inputs, such as a subquery's result, is not a function of its columns.
            let known = part.is::<Column>() || part.is::<LiteralExpr>() || part.is::<LambdaVariable>();
            of_more |= part.children().is_empty() && !known;
            Ok(TreeNodeRecursion::Continue)
        });
        walked.map_err(|e| refusal(e.strip_backtrace()))?;
        let Some(&first) = indices.first() else { return Ok(None) };
        let Ok(of) = scope.column(first) else { return Ok(None) };
        let Some(id) = of.dictionary else { return Ok(None) };
        if of_more || indices.iter().any(|index| scope.column(*index) != Ok(of.clone())) {
            return Ok(None);
        }

        // IS NULL needs no table.
        if let Some(test) = null_test(expr) {
            let node = self.graph.test(test, of.node)?;
            return Ok(Some(Value { node, data_type: DataType::Boolean, dictionary: None }));
        }
        // The dictionary's values have its own type; the value may carry another string type by now.
        let own = self.dictionaries.get(id).map_or(&of.data_type, Dictionary::data_type).clone();
        let mut value: Arc<dyn PhysicalExpr> = Arc::new(Column::new("value", 0));
        if own != of.data_type {
            value = Arc::new(CastExpr::new(value, of.data_type.clone(), None));
        }
        let over_value = Arc::clone(expr)
            .transform_up(|part| match part.downcast_ref::<Column>() {
                Some(_) => Ok(Transformed::yes(Arc::clone(&value))),
                None => Ok(Transformed::no(part)),
            })
            .data()
            .map_err(|e| refusal(e.strip_backtrace()))?;
        let schema = Schema::new(vec![Field::new("value", own.clone(), true)]);
        let failed = |e: datafusion::error::DataFusionError| refusal(e.strip_backtrace());
        let data_type = over_value.data_type(&schema).map_err(failed)?;
        // A function of another crate may be slow, and a filter may have left few of the dictionary's values.
        if let Some(name) = foreign.filter(|_| is_nested(&data_type)) {
            return Err(refusal(format!("what {name}, a function of the session's own, gives is made by row")));
        }
        let of_null = evaluate_one(&over_value, new_null_array(&own, 1)).map_err(failed)?;
        let not_null = Schema::new(vec![Field::new("value", own, false)]);
        let nullable = over_value.nullable(&not_null).unwrap_or(true);

        let (kind, ty, dictionary) = if is_coded(&data_type) {
            let derived = self.dictionaries.add(Dictionary::Derived {
                of: id,
                expr: Arc::clone(&over_value),
                data_type: data_type.clone(),
            });
            (LookupKind::Code(derived), Ty::new(Repr::U32).nullable(nullable), Some(derived))
        } else {
            let Some(repr) = plain_repr(&data_type) else {
                return Err(Refusal::Type(data_type.clone()));
            };
            (LookupKind::Value(over_value), Ty::new(repr).nullable(nullable), None)
        };
        let table = self.table(Lookup { dictionary: id, kind, ty });
        let mut node = self.graph.lookup(of.node, table, ty)?;
        if !of_null.is_null() && self.graph.ty(of.node).nullable {
            let literal = match (&of_null, dictionary) {
                (_, Some(_)) => Literal::Int(0),
                (ScalarValue::Boolean(Some(v)), _) => Literal::Bool(*v),
                (ScalarValue::Float16(Some(v)), _) => Literal::F32(widened(*v)),
                (ScalarValue::Float32(Some(v)), _) => Literal::F32(*v),
                (ScalarValue::Float64(Some(v)), _) => Literal::F64(*v),
                (other, _) => {
                    Literal::Int(scalar_integer(other).ok_or_else(|| refusal("its value for NULL has no device form"))?)
                }
            };
            let plain = Ty::new(ty.repr);
            let default = self.slot(plain, literal);
            let is_null = self.graph.test(Test::IsNull, of.node)?;
            node = self.graph.case(vec![(is_null, default)], Some(node))?;
        }
        Ok(Some(Value { node, data_type, dictionary }))
    }

    /// A value's rank in its dictionary, to be compared with another rank of the same row.
    pub(super) fn rank(&mut self, value: &Value, id: DictionaryId) -> Lowered<Value> {
        let kind = if is_nested(&value.data_type) { LookupKind::Compared } else { LookupKind::Rank };
        self.ranked(value, id, kind)
    }

    /// A string's rank in its dictionary, to be kept in a state and compared with ranks of other launches.
    pub(crate) fn kept_rank(&mut self, value: &Value, id: DictionaryId) -> Lowered<Value> {
        self.ranked(value, id, LookupKind::KeptRank)
    }

    fn ranked(&mut self, value: &Value, id: DictionaryId, kind: LookupKind) -> Lowered<Value> {
        let ty = Ty::new(Repr::U32);
        let table = self.table(Lookup { dictionary: id, kind, ty });
        let node = self.graph.lookup(value.node, table, ty)?;
        Ok(Value { node, data_type: DataType::UInt32, dictionary: None })
    }

    /// Strings of several dictionaries, and constants, as codes into one dictionary; a NULL constant has a NULL code.
    pub(super) fn merged(
        &mut self,
        parts: &[StringPart],
        data_type: &DataType,
    ) -> Lowered<(Vec<NodeId>, DictionaryId)> {
        let mut dictionaries = Vec::new();
        let mut constants: Vec<ScalarValue> = Vec::new();
        for part in parts {
            match part {
                StringPart::Value(Value { dictionary: Some(id), data_type: own, .. }) => {
                    if !same_strings(own, data_type) {
                        return Err(refusal(format!("it mixes {own} and {data_type}")));
                    }
                    dictionaries.push(*id);
                }
                StringPart::Value(_) => return Err(refusal("it mixes strings and other values")),
                StringPart::Constant(value) if value.is_null() || constants.contains(value) => {}
                StringPart::Constant(value) => constants.push(value.clone()),
            }
        }
        dictionaries.sort();
        dictionaries.dedup();
        if let ([one], true) = (dictionaries.as_slice(), constants.is_empty()) {
            let own = *one;
            let nodes = parts.iter().map(|part| match part {
                StringPart::Value(value) => value.node,
                StringPart::Constant(_) => self.graph.null(Repr::U32),
            });
            return Ok((nodes.collect(), own));
        }
        let merged =
            Dictionary::Merged { parts: dictionaries, constants: constants.clone(), data_type: data_type.clone() };
        let merged = self.dictionaries.add(merged);
        let mut nodes = Vec::with_capacity(parts.len());
        for part in parts {
            nodes.push(match part {
                StringPart::Constant(value) => match constants.iter().position(|known| known == value) {
                    Some(code) => self.graph.integer(code as i128, Repr::U32),
                    None => self.graph.null(Repr::U32),
                },
                StringPart::Value(value) => self.merged_code(value, merged)?,
            });
        }
        Ok((nodes, merged))
    }

    /// Two strings, as codes into one dictionary.
    pub(super) fn same_dictionary(&mut self, a: Value, b: Value) -> Lowered<(Value, Value)> {
        if a.dictionary == b.dictionary {
            return Ok((a, b));
        }
        let data_type = a.data_type.clone();
        let parts = [StringPart::Value(a.clone()), StringPart::Value(b.clone())];
        let (nodes, id) = self.merged(&parts, &data_type)?;
        Ok((Value { node: nodes[0], dictionary: Some(id), ..a }, Value { node: nodes[1], dictionary: Some(id), ..b }))
    }

    pub(super) fn table(&mut self, lookup: Lookup) -> u32 {
        self.lookup_table(LookupTable::Dictionary(lookup))
    }

    /// The number of a lookup table; equal tables share it.
    pub fn lookup_table(&mut self, table: LookupTable) -> u32 {
        let known = self.lookups.iter().position(|known| *known == table);
        known.unwrap_or_else(|| {
            self.lookups.push(table);
            self.lookups.len() - 1
        }) as u32
    }

    /// Converts `value`, column `index`, to the form of a column that several inputs share.
    ///
    /// # Errors
    /// Why the value has no such form.
    pub fn conform(&mut self, index: usize, value: Value, column: &ColumnInfo) -> Result<Value, Reason> {
        let named = |refusal: Refusal| refusal.named(&format!("{}@{index}", column.name));
        match &column.form {
            Form::Codes(_, id) | Form::Lists(_, id) if value.dictionary == Some(*id) => Ok(value),
            Form::Codes(_, id) => {
                let node = self.merged_code(&value, *id).map_err(named)?;
                Ok(Value { node, dictionary: Some(*id), ..value })
            }
            Form::Plain(_) if column.is_text() => {
                let node = self.as_text(&value).map_err(named)?;
                Ok(Value { node, dictionary: None, ..value })
            }
            Form::Plain(ty) => {
                let node = ty.bounds().map_or(value.node, |range| self.graph.widen(value.node, range));
                Ok(Value { node, ..value })
            }
            Form::Lists(..) => Err(Reason::NodeUnsupported { node: "a union of lists".into() }),
            Form::Unsupported(reason) => Err(reason.clone()),
        }
    }

    /// A string as a code into a merged dictionary.
    pub(crate) fn merged_code(&mut self, value: &Value, merged: DictionaryId) -> Lowered<NodeId> {
        let id = value.dictionary.ok_or_else(|| refusal("it mixes strings and other values"))?;
        let nullable = matches!(
            self.dictionaries.get(id),
            Some(Dictionary::Constants { values, .. }) if values.iter().any(ScalarValue::is_null)
        );
        let ty = Ty::new(Repr::U32).nullable(nullable);
        let table = self.table(Lookup { dictionary: id, kind: LookupKind::Merge(merged), ty });
        Ok(self.graph.lookup(value.node, table, ty)?)
    }
}

/// Checks that ranks sort values as this key does: ranks have NULL inside nested values last, and first if reversed.
///
/// # Errors
/// If they do not.
pub(crate) fn sorted_so(key: &PhysicalSortExpr, data_type: &DataType) -> Result<(), Reason> {
    match data_type.is_nested() && key.options.descending != key.options.nulls_first {
        true => Err(unsupported(
            &key.expr,
            "nested values sort on the device as NULLS LAST ascending, NULLS FIRST descending",
        )),
        false => Ok(()),
    }
}

fn null_test(expr: &Arc<dyn PhysicalExpr>) -> Option<Test> {
    use datafusion::physical_expr::expressions::{IsNotNullExpr, IsNullExpr};
    let column = |of: &Arc<dyn PhysicalExpr>| of.downcast_ref::<Column>().is_some();
    if expr.downcast_ref::<IsNullExpr>().is_some_and(|e| column(e.arg())) {
        return Some(Test::IsNull);
    }
    expr.downcast_ref::<IsNotNullExpr>().filter(|e| column(e.arg())).map(|_| Test::IsNotNull)
}

/// Evaluates an expression over column 0 on every value of an array.
pub(crate) fn evaluate(expr: &Arc<dyn PhysicalExpr>, values: ArrayRef) -> datafusion::error::Result<ArrayRef> {
    let rows = values.len();
    let schema = Arc::new(Schema::new(vec![Field::new("value", values.data_type().clone(), true)]));
    expr.evaluate(&RecordBatch::try_new(schema, vec![values])?)?.into_array(rows)
}

fn evaluate_one(expr: &Arc<dyn PhysicalExpr>, value: ArrayRef) -> datafusion::error::Result<ScalarValue> {
    ScalarValue::try_from_array(&evaluate(expr, value)?, 0)
}
