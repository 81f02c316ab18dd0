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

use crate::column::{DictionaryId, is_coded, is_nested, plain_repr, type_unsupported};
use crate::error::reason::Reason;
use crate::expr::builtin::is_datafusions_scalar;
use crate::expr::cast::same_strings;
use crate::expr::dictionary::{Dictionary, Lookup, LookupKind};
use crate::expr::{Lowering, Scope, Value, refused, unsupported};

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

impl Lowering<'_> {
    /// The item at a position among the items of all lists of dictionary `of`, which have type `data_type`.
    ///
    /// # Errors
    /// Why items have no form; `name` names their list.
    pub(crate) fn item_at(
        &mut self,
        name: &str,
        place: NodeId,
        of: DictionaryId,
        data_type: &DataType,
    ) -> Result<Value, Reason> {
        let items = self.dictionaries.add(Dictionary::Items { of, data_type: data_type.clone() });
        let (kind, ty, dictionary) = if is_coded(data_type) {
            let derived = Dictionary::Derived { of: items, expr: itself(), data_type: data_type.clone() };
            let derived = self.dictionaries.add(derived);
            (LookupKind::Code(derived), Ty::new(Repr::U32).nullable(true), Some(derived))
        } else {
            let repr = plain_repr(data_type).ok_or_else(|| type_unsupported(name, data_type))?;
            (LookupKind::Value(itself()), Ty::new(repr).nullable(true), None)
        };
        let table = self.table(Lookup { dictionary: items, kind, ty });
        let why = |e: GraphError| Reason::ExprUnsupported { expr: name.to_string(), why: e.to_string() };
        let node = self.graph.lookup(place, table, ty).map_err(why)?;
        Ok(Value { node, data_type: data_type.clone(), dictionary })
    }

    /// A function of a list and of other columns; `None` for other functions.
    pub(super) fn list_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        scope: &Scope,
    ) -> Result<Option<Value>, Reason> {
        if !is_datafusions_scalar(function.fun()) {
            return Ok(None);
        }
        match (function.fun().name(), function.args()) {
            ("array_length", [list]) => match self.length_of_made(expr, list, scope)? {
                Some(length) => Ok(Some(length)),
                None => self.of_item(expr, function, scope),
            },
            ("array_element", [list, index]) => match self.item_of_made(expr, (list, index), scope)? {
                Some(item) => Ok(Some(item)),
                None => self.array_element(expr, list, index, scope).map(Some),
            },
            ("array_has", [list, item]) => self.array_has(expr, list, item, scope).map(Some),
            ("array_position", [list, item, first @ ..]) => {
                self.array_position(expr, (list, item), first.first(), scope).map(Some)
            }
            ("array_has_all" | "array_has_any", [list, items]) => {
                self.array_has_items(expr, (list, items), function.fun().name() == "array_has_any", scope)
            }
            _ => self.of_item(expr, function, scope),
        }
    }

    /// A function of a nested item, and of constants: DataFusion's own, over the dictionary of items. Results of CASE
    /// are not accepted: they may have contents below a NULL, which DataFusion reads and a dictionary lacks.
    fn of_item(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        scope: &Scope,
    ) -> Result<Option<Value>, Reason> {
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
        let call = call.map_err(|e| unsupported(expr, &e.strip_backtrace()))?;
        self.over_dictionary(&call, &Scope::new(vec![("value".into(), Ok(value), data_type)]))
    }

    pub(super) fn list(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Result<List, Reason> {
        let value = self.lower(of, scope)?;
        let (Some(item), Some(id)) = (item_type(&value.data_type).cloned(), value.dictionary) else {
            return Err(unsupported(expr, &format!("{of} is no list of a dictionary")));
        };
        let large = matches!(value.data_type, DataType::LargeList(_));
        let (code, dictionary) = self.settled(expr, &value, id)?;
        let mut look_up = |kind| self.look_up(expr, code, Lookup { dictionary, kind, ty: Ty::new(Repr::U32) });
        let (start, count) = (look_up(LookupKind::Starts)?, look_up(LookupKind::Counts)?);
        let items = self.dictionaries.add(Dictionary::Items { of: dictionary, data_type: item.clone() });
        Ok(List { code, start, count, items, item, large, dictionary })
    }

    fn look_up(&mut self, expr: &Arc<dyn PhysicalExpr>, code: NodeId, lookup: Lookup) -> Result<NodeId, Reason> {
        let ty = lookup.ty;
        let table = self.table(lookup);
        self.graph.lookup(code, table, ty).map_err(|e| refused(expr, &e))
    }

    /// A list as a code into a dictionary of its type with stable positions: the order of a sorted one differs from run
    /// to run.
    fn settled(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        value: &Value,
        id: DictionaryId,
    ) -> Result<(NodeId, DictionaryId), Reason> {
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
        let code = self.look_up(expr, value.node, Lookup { dictionary: id, kind: LookupKind::Code(derived), ty })?;
        Ok((code, derived))
    }

    /// `list[index]`: NULL outside the list.
    fn array_element(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        list: &Arc<dyn PhysicalExpr>,
        index: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        let list = self.list(expr, list, scope)?;
        let index = self.whole_number(expr, index, scope)?;
        let place = self.place_of_item(&list, index).map_err(|e| refused(expr, &e))?;
        self.item_at(&expr.to_string(), place, list.dictionary, &list.item)
    }

    /// The node of an `Int64` expression.
    pub(super) fn whole_number(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        let value = self.lower(of, scope)?;
        match value.data_type {
            DataType::Int64 => Ok(value.node),
            other => Err(unsupported(expr, &format!("items are numbered by Int64, not {other}"))),
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
    fn array_has(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        list: &Arc<dyn PhysicalExpr>,
        sought: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        let list = self.list(expr, list, scope)?;
        let sought = self.lower(sought, scope)?;
        let place = self.found(expr, &list, &sought, list.start, false)?;
        let g = &mut self.graph;
        let mut has = || {
            let (a, b) = (g.test(Test::IsNotNull, list.code)?, g.test(Test::IsNotNull, sought.node)?);
            let known = g.and(a, b)?;
            let is_found = g.test(Test::IsNotNull, place)?;
            g.case(vec![(known, is_found)], None)
        };
        let node = has().map_err(|e| refused(expr, &e))?;
        Ok(Value { node, data_type: DataType::Boolean, dictionary: None })
    }

    /// Whether all or any of the items of the second list are in the first; `None` unless both come from columns. For a
    /// NULL list DataFusion's result depends on the other rows of its batch: an error, so that the CPU decides.
    fn array_has_items(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        (list, items): (&Arc<dyn PhysicalExpr>, &Arc<dyn PhysicalExpr>),
        any: bool,
        scope: &Scope,
    ) -> Result<Option<Value>, Reason> {
        if collect_columns(list).is_empty() || collect_columns(items).is_empty() {
            return Ok(None);
        }
        let (list, items) = (self.list(expr, list, scope)?, self.list(expr, items, scope)?);
        if list.item != items.item {
            return Err(unsupported(expr, &format!("it compares {} with {}", list.item, items.item)));
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
                let repr = plain_repr(&list.item).ok_or_else(|| type_unsupported(&expr.to_string(), &list.item))?;
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
        let node = has().map_err(|e| refused(expr, &e))?;
        Ok(Some(Value { node, data_type: DataType::Boolean, dictionary: None }))
    }

    /// The number of the first item that equals `sought`, from item `first` on; NULL if there is none.
    fn array_position(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        (list, sought): (&Arc<dyn PhysicalExpr>, &Arc<dyn PhysicalExpr>),
        first: Option<&Arc<dyn PhysicalExpr>>,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        let list = self.list(expr, list, scope)?;
        if is_nested(&list.item) {
            return Err(unsupported(expr, "positions of nested items are not searched among other columns"));
        }
        let sought = self.lower(sought, scope)?;
        let from = match first {
            Some(first) => {
                let first = self.whole_number(expr, first, scope)?;
                self.begin_at(expr, &list, first)?
            }
            None => list.start,
        };
        let place = self.found(expr, &list, &sought, from, true)?;
        let g = &mut self.graph;
        let mut number = || {
            let one = g.integer(1, Repr::U32);
            let before = g.arithmetic(Arithmetic::Subtract, place, list.start, Overflow::Wrap)?;
            let number = g.arithmetic(Arithmetic::Add, before, one, Overflow::Wrap)?;
            g.convert(number, Repr::U64, Overflow::Wrap)
        };
        let node = number().map_err(|e| refused(expr, &e))?;
        Ok(Value { node, data_type: DataType::UInt64, dictionary: None })
    }

    /// The position of item `first`, which may be one past the last; otherwise an error, unless the list is NULL.
    fn begin_at(&mut self, expr: &Arc<dyn PhysicalExpr>, list: &List, first: NodeId) -> Result<NodeId, Reason> {
        let g = &mut self.graph;
        let mut parts = || {
            let one = g.integer(1, Repr::I64);
            let count = g.convert(list.count, Repr::I64, Overflow::Wrap)?;
            let skipped = g.arithmetic(Arithmetic::Subtract, first, one, Overflow::Wrap)?;
            let inside = g.between_zero_and(skipped, count, Comparison::LessEqual)?;
            let inside = g.test(Test::IsTrue, inside)?;
            let code = g.require(list.code, inside, Overflow::Fail)?;
            Ok((code, g.convert(skipped, Repr::U32, Overflow::Wrap)?))
        };
        let (code, skipped) = parts().map_err(|e: GraphError| refused(expr, &e))?;
        let lookup = Lookup { dictionary: list.dictionary, kind: LookupKind::Starts, ty: Ty::new(Repr::U32) };
        let start = self.look_up(expr, code, lookup)?;
        self.graph.arithmetic(Arithmetic::Add, start, skipped, Overflow::Wrap).map_err(|e| refused(expr, &e))
    }

    /// The first position of `sought` among the items of a list, from position `from` on.
    fn found(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        list: &List,
        sought: &Value,
        from: NodeId,
        nulls: bool,
    ) -> Result<NodeId, Reason> {
        let (sought, lookup) = self.comparable(expr, list, sought)?;
        let item = lookup.ty;
        let table = self.table(lookup);
        let g = &mut self.graph;
        let end = g.arithmetic(Arithmetic::Add, list.start, list.count, Overflow::Wrap);
        let place = end.and_then(|to| g.find(sought, (Places { from, to, table }, item), nulls));
        place.map_err(|e| refused(expr, &e))
    }

    /// A value, and a table of items that it can be compared with.
    fn comparable(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        list: &List,
        sought: &Value,
    ) -> Result<(NodeId, Lookup), Reason> {
        let (items, item) = (list.items, &list.item);
        if *item != sought.data_type && !same_strings(item, &sought.data_type) {
            return Err(unsupported(expr, &format!("it compares {item} with {}", sought.data_type)));
        }
        if !is_coded(item) {
            let repr = plain_repr(item).ok_or_else(|| type_unsupported(&expr.to_string(), item))?;
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
        Ok((self.merged_code(expr, sought, merged)?, lookup))
    }
}
