//! Functions of a list and of other columns: an item by its number, and searches among the items.
//!
//!   l: codes into D0 = [[7, 8], [], [9]]     items of D0   7 8 9      starts 0 2 2      counts 2 0 1
//!
//!   l[i]                 items[start + i - 1], where 1 ≤ i ≤ count; from the end where i is negative
//!   array_has(l, x)      whether x is among items[start .. start + count]
//!   array_position(l, x) the first position of x there, counted from 1
//!   array_has_all(l, m) whether each item of m is among those of l
//!   array_length(ll[i])  over the dictionary of the codes of ll[i], like functions of one column
//!
//! NULL     array_has finds no NULL; the others find NULL where an item is NULL. A NULL list gives NULL, except in
//!          array_has_all and array_has_any: DataFusion's result for it depends on its batches, and the CPU takes over.
//! Floats   are equal bit by bit, as in DataFusion here: 0.0 is not -0.0, and NaNs are equal if their bits are.
//! Strings  with codes are merged into one dictionary with the items; texts are compared with the items' texts.
//! Errors   an index beyond 32 bits, and a search that begins outside its list, raise the error flag: the CPU then
//!          reports the error.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{
    Arithmetic, Comparison, Graph, GraphError, NodeId, Overflow, Places, Repr, Test, Ty,
};

use crate::column::{DictionaryId, is_coded, is_nested, plain_repr};
use crate::expr::builtin::is_datafusions_scalar;
use crate::expr::cast::same_strings;
use crate::expr::dictionary::{Dictionary, Lookup, LookupKind};
use crate::expr::row::{Call, Form, Row};
use crate::expr::{Lowered, Lowering, Refusal, Scope, Value, refusal};

/// The type of a list's items; `None` for other types.
pub(crate) fn item_type(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => Some(item.data_type()),
        _ => None,
    }
}

/// The expression that is a dictionary's value itself.
pub(super) fn itself() -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new("value", 0))
}

/// A list of a row: its code, the position of its first item, and its number of items.
pub(super) struct List {
    pub code: NodeId,
    pub start: NodeId,
    pub count: NodeId,
    /// The items of all lists.
    pub items: DictionaryId,
    pub item: DataType,
    /// Item numbers have 64 bits.
    large: bool,
    dictionary: DictionaryId,
}

/// The zero-based number of item `index` (I64), and whether it exists. An index counts from 1, or from the end if
/// negative.
pub(super) fn number_of_item(
    g: &mut Graph,
    index: NodeId,
    count: NodeId,
    large: bool,
) -> Result<(NodeId, NodeId), GraphError> {
    let index = match large {
        true => index,
        false => {
            let narrow = g.convert(index, Repr::I32, Overflow::Fail)?;
            g.convert(narrow, Repr::I64, Overflow::Wrap)?
        }
    };
    let (zero, one) = (g.integer(0, Repr::I64), g.integer(1, Repr::I64));
    let from_end = g.arithmetic(Arithmetic::Add, index, count, Overflow::Wrap)?;
    let from_start = g.arithmetic(Arithmetic::Subtract, index, one, Overflow::Wrap)?;
    let is_from_end = g.compare(Comparison::Less, index, zero)?;
    let number = g.case(vec![(is_from_end, from_end)], Some(from_start))?;
    let inside = g.between_zero_and(number, count, Comparison::Less)?;
    Ok((number, inside))
}

/// Functions that read lists.
pub(super) const LISTS: &[Row] = &[
    Row::new("array_element", (2, 2), Form::List(|lowering, call| lowering.array_element(call))),
    Row::new("array_has", (2, 2), Form::List(|lowering, call| lowering.array_has(call))),
    Row::new("array_has_all", (2, 2), Form::List(|lowering, call| lowering.array_has_items(call, false))),
    Row::new("array_has_any", (2, 2), Form::List(|lowering, call| lowering.array_has_items(call, true))),
    Row::new("array_length", (1, 1), Form::List(|lowering, call| lowering.array_length(call))),
    Row::new("array_position", (2, 3), Form::List(|lowering, call| lowering.array_position(call))),
];

impl Lowering<'_> {
    /// The item at a position among the items of all lists of dictionary `of`, which have type `data_type`.
    ///
    /// # Errors
    /// Why items have no form.
    pub(crate) fn item_at(&mut self, place: NodeId, of: DictionaryId, data_type: &DataType) -> Lowered<Value> {
        let items = self.dictionaries.add(Dictionary::Items { of, data_type: data_type.clone() });
        let (kind, ty, dictionary) = if is_coded(data_type) {
            let derived = Dictionary::Derived { of: items, expr: itself(), data_type: data_type.clone() };
            let derived = self.dictionaries.add(derived);
            (LookupKind::Code(derived), Ty::new(Repr::U32).nullable(true), Some(derived))
        } else {
            let repr = plain_repr(data_type).ok_or_else(|| Refusal::Type(data_type.clone()))?;
            (LookupKind::Value(itself()), Ty::new(repr).nullable(true), None)
        };
        let table = self.table(Lookup { dictionary: items, kind, ty });
        let node = self.graph.lookup(place, table, ty)?;
        Ok(Value { node, data_type: data_type.clone(), dictionary })
    }

    fn array_length(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        match self.length_of_made(&call.arguments[0], call.scope)? {
            Some(length) => Ok(Some(length)),
            None => self.of_item(call),
        }
    }

    /// A function of a nested item, and of constants: DataFusion's own, over the dictionary of items. Results of CASE
    /// are not accepted: they may have contents below a NULL, which DataFusion reads and a dictionary lacks.
    pub(super) fn of_item(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let Call { expr, function, scope, .. } = *call;
        let mut read = function.args().iter().enumerate().filter(|(_, argument)| !argument.is::<Literal>());
        let (Some((at, argument)), None) = (read.next(), read.next()) else { return Ok(None) };
        let data_type = self.type_of(argument, scope)?;
        let is_item = |of: &ScalarFunctionExpr| of.fun().name() == "array_element" && is_datafusions_scalar(of.fun());
        if !is_nested(&data_type) || !argument.downcast_ref::<ScalarFunctionExpr>().is_some_and(is_item) {
            return Ok(None);
        }
        let value = self.lower(argument, scope)?;
        let mut arguments = function.args().to_vec();
        arguments[at] = itself();
        let call = Arc::clone(expr).with_new_children(arguments);
        let call = call.map_err(|e| refusal(e.strip_backtrace()))?;
        Ok(self.over_dictionary(&call, &Scope::new(vec![("value".into(), Ok(value), data_type)]))?)
    }

    pub(super) fn list(&mut self, of: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Lowered<List> {
        let value = self.lower(of, scope)?;
        let (Some(item), Some(id)) = (item_type(&value.data_type).cloned(), value.dictionary) else {
            return Err(refusal(format!("{of} is no list of a dictionary")));
        };
        let large = matches!(value.data_type, DataType::LargeList(_));
        let (code, dictionary) = self.settled(&value, id)?;
        let mut look_up = |kind| self.look_up(code, Lookup { dictionary, kind, ty: Ty::new(Repr::U32) });
        let (start, count) = (look_up(LookupKind::Starts)?, look_up(LookupKind::Counts)?);
        let items = self.dictionaries.add(Dictionary::Items { of: dictionary, data_type: item.clone() });
        Ok(List { code, start, count, items, item, large, dictionary })
    }

    fn look_up(&mut self, code: NodeId, lookup: Lookup) -> Lowered<NodeId> {
        let ty = lookup.ty;
        let table = self.table(lookup);
        Ok(self.graph.lookup(code, table, ty)?)
    }

    /// A list as a code into a dictionary of its type with stable positions: the order of a sorted one differs from run
    /// to run.
    fn settled(&mut self, value: &Value, id: DictionaryId) -> Lowered<(NodeId, DictionaryId)> {
        let (other, sorted) = match self.dictionaries.get(id) {
            Some(own) => (*own.data_type() != value.data_type, matches!(own, Dictionary::Sorted { .. })),
            None => (false, false),
        };
        if !other && !sorted {
            return Ok((value.node, id));
        }
        let data_type = value.data_type.clone();
        let own = match other {
            true => Arc::new(CastExpr::new(itself(), data_type.clone(), None)),
            false => itself(),
        };
        let derived = self.dictionaries.add(Dictionary::Derived { of: id, expr: own, data_type });
        let ty = Ty::new(Repr::U32).nullable(true);
        let code = self.look_up(value.node, Lookup { dictionary: id, kind: LookupKind::Code(derived), ty })?;
        Ok((code, derived))
    }

    /// `list[index]`: NULL outside the list.
    fn array_element(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [list, index] = call.arguments else { return Ok(None) };
        if let Some(item) = self.item_of_made((list, index), call.scope)? {
            return Ok(Some(item));
        }
        let list = self.list(list, call.scope)?;
        let index = self.whole_number(index, call.scope)?;
        let place = self.place_of_item(&list, index)?;
        self.item_at(place, list.dictionary, &list.item).map(Some)
    }

    /// The node of an `Int64` expression.
    pub(super) fn whole_number(&mut self, of: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Lowered<NodeId> {
        let value = self.lower(of, scope)?;
        match value.data_type {
            DataType::Int64 => Ok(value.node),
            other => Err(refusal(format!("items are numbered by Int64, not {other}"))),
        }
    }

    /// The position of the item with number `index`; NULL outside the list.
    fn place_of_item(&mut self, list: &List, index: NodeId) -> Result<NodeId, GraphError> {
        let g = &mut self.graph;
        let count = g.convert(list.count, Repr::I64, Overflow::Wrap)?;
        let (number, inside) = number_of_item(g, index, count, list.large)?;
        let number = g.convert(number, Repr::U32, Overflow::Wrap)?;
        let place = g.arithmetic(Arithmetic::Add, list.start, number, Overflow::Wrap)?;
        let place = g.case(vec![(inside, place)], None)?;
        // A NULL list gives NULL for any index: the index raises no error.
        let is_there = g.test(Test::IsNotNull, list.code)?;
        g.case(vec![(is_there, place)], None)
    }

    /// Whether an item equals `sought`; NULL if `sought` or the list is NULL.
    fn array_has(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [list, sought] = call.arguments else { return Ok(None) };
        let list = self.list(list, call.scope)?;
        let sought = self.lower(sought, call.scope)?;
        let place = self.found(&list, &sought, list.start, false)?;
        let g = &mut self.graph;
        let mut has = || {
            let (a, b) = (g.test(Test::IsNotNull, list.code)?, g.test(Test::IsNotNull, sought.node)?);
            let known = g.and(a, b)?;
            let is_found = g.test(Test::IsNotNull, place)?;
            g.case(vec![(known, is_found)], None)
        };
        let node = has()?;
        Ok(Some(Value { node, data_type: DataType::Boolean, dictionary: None }))
    }

    /// Whether all or any of the items of the second list are in the first; `None` unless both come from columns. For a
    /// NULL list DataFusion's result depends on the other rows of its batch: an error, so that the CPU decides.
    fn array_has_items(&mut self, call: &Call<'_>, any: bool) -> Lowered<Option<Value>> {
        let [list, items] = call.arguments else { return Ok(None) };
        if collect_columns(list).is_empty() || collect_columns(items).is_empty() {
            return Ok(None);
        }
        let (list, items) = (self.list(list, call.scope)?, self.list(items, call.scope)?);
        if list.item != items.item {
            return Err(refusal(format!("it compares {} with {}", list.item, items.item)));
        }
        let lookups = match is_coded(&list.item) {
            true => {
                let mut parts = vec![list.items, items.items];
                parts.sort();
                parts.dedup();
                let merged = Dictionary::Merged { parts, constants: vec![], data_type: list.item.clone() };
                let merged = self.dictionaries.add(merged);
                let ty = Ty::new(Repr::U32).nullable(true);
                [&list, &items].map(|of| Lookup { dictionary: of.items, kind: LookupKind::Merge(merged), ty })
            }
            false => {
                let repr = plain_repr(&list.item).ok_or_else(|| Refusal::Type(list.item.clone()))?;
                let ty = Ty::new(repr).nullable(true);
                [&list, &items].map(|of| Lookup { dictionary: of.items, kind: LookupKind::Value(itself()), ty })
            }
        };
        let [inside, of] = lookups.map(|lookup| (lookup.ty, self.table(lookup)));
        let g = &mut self.graph;
        let mut has = || {
            let to = g.arithmetic(Arithmetic::Add, list.start, list.count, Overflow::Wrap)?;
            let inside = (Places { from: list.start, to, table: inside.1 }, inside.0);
            let to = g.arithmetic(Arithmetic::Add, items.start, items.count, Overflow::Wrap)?;
            let of = (Places { from: items.start, to, table: of.1 }, of.0);
            let has = g.among(of, inside, any)?;
            let (a, b) = (g.test(Test::IsNotNull, list.code)?, g.test(Test::IsNotNull, items.code)?);
            let known = g.and(a, b)?;
            g.decided(has, known)
        };
        let node = has()?;
        Ok(Some(Value { node, data_type: DataType::Boolean, dictionary: None }))
    }

    /// The number of the first item that equals `sought`, from item `first` on; NULL if there is none.
    fn array_position(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [list, sought, first @ ..] = call.arguments else { return Ok(None) };
        let list = self.list(list, call.scope)?;
        if is_nested(&list.item) {
            return Err(refusal("positions of nested items are not searched among other columns"));
        }
        let sought = self.lower(sought, call.scope)?;
        let from = match first.first() {
            Some(first) => {
                let first = self.whole_number(first, call.scope)?;
                self.begin_at(&list, first)?
            }
            None => list.start,
        };
        let place = self.found(&list, &sought, from, true)?;
        let g = &mut self.graph;
        let mut number = || {
            let one = g.integer(1, Repr::U32);
            let before = g.arithmetic(Arithmetic::Subtract, place, list.start, Overflow::Wrap)?;
            let number = g.arithmetic(Arithmetic::Add, before, one, Overflow::Wrap)?;
            g.convert(number, Repr::U64, Overflow::Wrap)
        };
        let node = number()?;
        Ok(Some(Value { node, data_type: DataType::UInt64, dictionary: None }))
    }

    /// The position of item `first`, which may be one past the last; otherwise an error, unless the list is NULL.
    fn begin_at(&mut self, list: &List, first: NodeId) -> Lowered<NodeId> {
        let g = &mut self.graph;
        let mut parts = || -> Result<_, GraphError> {
            let one = g.integer(1, Repr::I64);
            let count = g.convert(list.count, Repr::I64, Overflow::Wrap)?;
            let skipped = g.arithmetic(Arithmetic::Subtract, first, one, Overflow::Wrap)?;
            let inside = g.between_zero_and(skipped, count, Comparison::LessEqual)?;
            let inside = g.test(Test::IsTrue, inside)?;
            let code = g.require(list.code, inside, Overflow::Fail)?;
            Ok((code, g.convert(skipped, Repr::U32, Overflow::Wrap)?))
        };
        let (code, skipped) = parts()?;
        let lookup = Lookup { dictionary: list.dictionary, kind: LookupKind::Starts, ty: Ty::new(Repr::U32) };
        let start = self.look_up(code, lookup)?;
        Ok(self.graph.arithmetic(Arithmetic::Add, start, skipped, Overflow::Wrap)?)
    }

    /// The first position of `sought` among the items of a list, from position `from` on.
    fn found(&mut self, list: &List, sought: &Value, from: NodeId, nulls: bool) -> Lowered<NodeId> {
        let (sought, lookup) = self.comparable(list, sought)?;
        let item = lookup.ty;
        let table = self.table(lookup);
        let g = &mut self.graph;
        let end = g.arithmetic(Arithmetic::Add, list.start, list.count, Overflow::Wrap);
        let place = end.and_then(|to| g.find(sought, (Places { from, to, table }, item), nulls));
        Ok(place?)
    }

    /// A value, and a table of items that it can be compared with.
    fn comparable(&mut self, list: &List, sought: &Value) -> Lowered<(NodeId, Lookup)> {
        let (items, item) = (list.items, &list.item);
        if *item != sought.data_type && !same_strings(item, &sought.data_type) {
            return Err(refusal(format!("it compares {item} with {}", sought.data_type)));
        }
        if !is_coded(item) {
            let repr = plain_repr(item).ok_or_else(|| Refusal::Type(item.clone()))?;
            let ty = Ty::new(repr).nullable(true);
            return Ok((sought.node, Lookup { dictionary: items, kind: LookupKind::Value(itself()), ty }));
        }
        let Some(id) = sought.dictionary.filter(|_| !self.is_text(sought)) else {
            let ty = Ty::new(Repr::Text).nullable(true);
            return Ok((sought.node, Lookup { dictionary: items, kind: LookupKind::Text, ty }));
        };
        let parts = vec![id, items];
        let merged = Dictionary::Merged { parts, constants: vec![], data_type: item.clone() };
        let merged = self.dictionaries.add(merged);
        let ty = Ty::new(Repr::U32).nullable(true);
        let lookup = Lookup { dictionary: items, kind: LookupKind::Merge(merged), ty };
        Ok((self.merged_code(sought, merged)?, lookup))
    }
}
