//! Reads functions that construct lists: the definition of the items, their number, and whether there is a list.
//!
//!   array_append(array_slice(l, a, b), x)   ──►   items of l from a on, then x · b - a + 2 · always

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::expressions::{CastExpr, Literal as LiteralExpr};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{Arithmetic, Comparison, Graph, GraphError, NodeId, Overflow, Range, Repr, Test};

use super::form::{coded, plain};
use super::{ItemForm, Items, Listed, Made, Rule, is_list};
use crate::column::{is_coded, is_nested, plain_repr};
use crate::error::reason::Reason;
use crate::expr::builtin::is_datafusions_scalar;
use crate::expr::cast::same_strings;
use crate::expr::dictionary::StringPart;
use crate::expr::list::{List, item_type, number_of_item};
use crate::expr::row::ANY;
use crate::expr::{Lowered, Lowering, Refusal, Scope, Value, refusal};

/// Items that a function constructs in a row: their definition, their number, and whether there is a list.
struct Part {
    items: Items,
    present: Option<NodeId>,
    /// I64; 0 if there is no list.
    count: NodeId,
}

/// Names of functions that construct lists.
#[cfg(test)]
pub(in crate::expr) fn constructed() -> impl Iterator<Item = &'static str> {
    CONSTRUCTED.iter().map(|row| row.name)
}

/// State while the functions of a list are read.
struct Reader<'r, 'd> {
    lowering: &'r mut Lowering<'d>,
    scope: &'r Scope,
    /// Type of the items.
    item: DataType,
    values: Vec<StringPart>,
    numbers: Vec<NodeId>,
    lists: Vec<List>,
    /// Values that must not be NULL.
    never_null: Vec<usize>,
    rule: Rule,
}

/// A function that constructs lists.
struct Row {
    name: &'static str,
    /// Least and greatest number of arguments.
    arguments: (usize, usize),
    /// Some of the items may be left out, by the reader's rule.
    leaves_out: bool,
    part: Construct,
}

/// The items, if they have this form.
type Construct = fn(&mut Reader<'_, '_>, &[Arc<dyn PhysicalExpr>]) -> Lowered<Option<Part>>;

impl Row {
    /// A function that keeps all items.
    const fn all(name: &'static str, arguments: (usize, usize), part: Construct) -> Row {
        Row { name, arguments, leaves_out: false, part }
    }

    const fn some(name: &'static str, arguments: (usize, usize), part: Construct) -> Row {
        Row { name, arguments, leaves_out: true, part }
    }
}

/// Functions that construct lists of several columns.
const CONSTRUCTED: &[Row] = &[
    Row::all("array_append", (2, 2), |reader, of| reader.with_one(&of[0], &of[1], false).map(Some)),
    Row::all("array_concat", (2, ANY), |reader, of| reader.concatenated(of).map(Some)),
    Row::some("array_except", (2, 2), |reader, of| reader.except(of).map(Some)),
    Row::some("array_intersect", (2, 2), |reader, of| reader.intersect(of).map(Some)),
    Row::some("array_positions", (2, 2), |reader, of| reader.positions(of).map(Some)),
    Row::all("array_prepend", (2, 2), |reader, of| reader.with_one(&of[1], &of[0], true).map(Some)),
    Row::some("array_remove", (2, 3), |reader, of| reader.without(of, false).map(Some)),
    Row::some("array_remove_all", (2, 3), |reader, of| reader.without(of, true).map(Some)),
    Row::some("array_remove_n", (2, 3), |reader, of| reader.without(of, false).map(Some)),
    Row::all("array_repeat", (2, 2), |reader, of| reader.repeated(of).map(Some)),
    Row::all("array_replace", (3, 4), |reader, of| reader.replaced(of, false).map(Some)),
    Row::all("array_replace_all", (3, 4), |reader, of| reader.replaced(of, true).map(Some)),
    Row::all("array_replace_n", (3, 4), |reader, of| reader.replaced(of, false).map(Some)),
    Row::all("array_resize", (2, 3), |reader, of| reader.resized(&of[0], &of[1], of.get(2)).map(Some)),
    Row::all("array_slice", (3, 4), |reader, of| reader.slice(&of[0], &of[1], &of[2], of.get(3)).map(Some)),
    Row::some("array_union", (2, 2), |reader, of| reader.union(of).map(Some)),
    Row::all("generate_series", (1, 3), |reader, of| reader.series(of, true)),
    Row::all("make_array", (1, ANY), |reader, of| reader.each(of).map(Some)),
    Row::all("range", (1, 3), |reader, of| reader.series(of, false)),
];

impl Lowering<'_> {
    /// A list that a function constructs from several columns; `None` for other expressions.
    ///
    /// # Errors
    /// Why the function has no form over these columns.
    pub(crate) fn made(&mut self, expr: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Result<Option<Made>, Reason> {
        self.read_made(expr, scope).map_err(|refusal| refusal.of(expr))
    }

    fn read_made(&mut self, expr: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Lowered<Option<Made>> {
        let data_type = self.type_of(expr, scope)?;
        let Some(mut item) = item_type(&data_type).cloned() else { return Ok(None) };
        let Some(of) = self.below_casts(expr, &item, scope)? else { return Ok(None) };
        let Some(call) = of.downcast_ref::<ScalarFunctionExpr>().filter(|call| is_datafusions_scalar(call.fun()))
        else {
            return Ok(None);
        };
        if let ("array_positions", [list, _]) = (call.fun().name(), call.args()) {
            let of = self.type_of(list, scope)?;
            item = item_type(&of).cloned().ok_or_else(|| Refusal::Type(of.clone()))?;
        }
        let (values, numbers, lists, never_null) = (vec![], vec![], vec![], vec![]);
        let rule = Rule::All;
        let mut reader = Reader { lowering: self, scope, item, values, numbers, lists, never_null, rule };
        let Some(part) = reader.call(call, true)? else { return Ok(None) };
        reader.finish(data_type, part).map(Some)
    }

    /// A constructed list that keeps all its items, for functions that read it in the same expression.
    fn made_whole(&mut self, list: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Lowered<Option<Made>> {
        // A list in a dictionary is read from there.
        if self.lower(list, scope).is_ok() {
            return Ok(None);
        }
        Ok(self.made(list, scope)?.filter(|made| !made.leaves_out()))
    }

    /// Number of items of a constructed list.
    pub(in crate::expr) fn length_of_made(
        &mut self,
        list: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Lowered<Option<Value>> {
        let Some(made) = self.made_whole(list, scope)? else { return Ok(None) };
        let g = &mut self.graph;
        let mut length = || {
            let count = g.convert(made.count, Repr::U64, Overflow::Fail)?;
            made.present.map_or(Ok(count), |present| g.case(vec![(present, count)], None))
        };
        let node = length()?;
        Ok(Some(Value { node, data_type: DataType::UInt64, dictionary: None }))
    }

    /// An item of a constructed list; NULL outside the list.
    pub(in crate::expr) fn item_of_made(
        &mut self,
        (list, index): (&Arc<dyn PhysicalExpr>, &Arc<dyn PhysicalExpr>),
        scope: &Scope,
    ) -> Lowered<Option<Value>> {
        let Some(made) = self.made_whole(list, scope)? else { return Ok(None) };
        let index = self.whole_number(index, scope)?;
        let large = matches!(made.data_type, DataType::LargeList(_));
        let mut item = || -> Result<_, GraphError> {
            let g = &mut self.graph;
            let index = match made.present {
                // A NULL list gives NULL for any index.
                Some(present) => g.case(vec![(present, index)], None)?,
                None => index,
            };
            let (number, inside) = number_of_item(g, index, made.count, large)?;
            let number = g.case(vec![(inside, number)], None)?;
            let (item, _) = made.item(number, self)?;
            let node = self.graph.case(vec![(inside, item.node)], None)?;
            Ok(Value { node, ..item })
        };
        Ok(Some(item()?))
    }

    /// The expression below casts to a list of such items, if its items have that type already, whatever its offsets;
    /// for `make_array` each value is cast. `None` for other casts.
    fn below_casts(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        item: &DataType,
        scope: &Scope,
    ) -> Lowered<Option<Arc<dyn PhysicalExpr>>> {
        let mut of = Arc::clone(expr);
        while let Some(cast) = of.downcast_ref::<CastExpr>() {
            let own = self.type_of(cast.expr(), scope)?;
            if item_type(cast.cast_type()) != Some(item) {
                return Ok(None);
            }
            if item_type(&own) == Some(item) {
                of = Arc::clone(cast.expr());
                continue;
            }
            let Some(call) = cast.expr().downcast_ref::<ScalarFunctionExpr>() else { return Ok(None) };
            if call.fun().name() != "make_array" || !is_datafusions_scalar(call.fun()) {
                return Ok(None);
            }
            let options = Some(cast.cast_options().clone());
            let each = |value: &Arc<dyn PhysicalExpr>| {
                Arc::new(CastExpr::new(Arc::clone(value), item.clone(), options.clone())) as _
            };
            let whole = Arc::clone(cast.expr()).with_new_children(call.args().iter().map(each).collect());
            return whole.map(Some).map_err(|e| refusal(e.strip_backtrace()));
        }
        Ok(Some(of))
    }
}

impl Reader<'_, '_> {
    fn graph<T>(&mut self, of: impl FnOnce(&mut Graph) -> Result<T, GraphError>) -> Lowered<T> {
        Ok(of(&mut self.lowering.graph)?)
    }

    fn number(&mut self, node: NodeId) -> usize {
        self.numbers.push(node);
        self.numbers.len() - 1
    }

    fn constant(&mut self, number: i128) -> NodeId {
        self.lowering.graph.integer(number, Repr::I64)
    }

    /// A value of the row that is an item, or is compared with items.
    fn value(&mut self, of: &Arc<dyn PhysicalExpr>) -> Lowered<usize> {
        let part = match of.downcast_ref::<LiteralExpr>() {
            Some(literal) => StringPart::Constant(literal.value().clone()),
            None => match self.lowering.lower(of, self.scope)? {
                value if value.data_type == DataType::Null => StringPart::Constant(ScalarValue::Null),
                value => StringPart::Value(value),
            },
        };
        self.values.push(part);
        Ok(self.values.len() - 1)
    }

    /// Whether a value is not NULL; `None` if it never is NULL.
    fn is_there(&mut self, value: usize) -> Lowered<Option<NodeId>> {
        match &self.values[value] {
            StringPart::Constant(value) if value.is_null() => Ok(Some(self.lowering.graph.boolean(false))),
            StringPart::Constant(_) => Ok(None),
            StringPart::Value(value) => {
                let node = value.node;
                self.is_not_null(node)
            }
        }
    }

    fn is_not_null(&mut self, node: NodeId) -> Lowered<Option<NodeId>> {
        if !self.lowering.graph.ty(node).nullable {
            return Ok(None);
        }
        self.graph(|g| g.test(Test::IsNotNull, node)).map(Some)
    }

    /// An Int64 of the row, with 0 for NULL, and whether it is not NULL.
    fn whole(&mut self, of: &Arc<dyn PhysicalExpr>) -> Lowered<(NodeId, Option<NodeId>)> {
        let node = self.lowering.whole_number(of, self.scope)?;
        let present = self.is_not_null(node)?;
        let zero = self.constant(0);
        let node = match present {
            Some(_) => self.graph(|g| g.coalesce(&[node, zero]))?,
            None => node,
        };
        Ok((node, present))
    }

    fn all(&mut self, of: &[Option<NodeId>]) -> Lowered<Option<NodeId>> {
        let mut all = None;
        for one in of.iter().flatten() {
            all = Some(match all {
                Some(before) => self.graph(|g| g.and(before, *one))?,
                None => *one,
            });
        }
        Ok(all)
    }

    /// `number` if there is a list, otherwise 0.
    fn where_present(&mut self, present: Option<NodeId>, number: NodeId) -> Lowered<NodeId> {
        let zero = self.constant(0);
        match present {
            Some(present) => self.graph(|g| g.case(vec![(present, number)], Some(zero))),
            None => Ok(number),
        }
    }

    /// A list in a dictionary.
    fn listed(&mut self, of: &Arc<dyn PhysicalExpr>) -> Lowered<(Listed, Part)> {
        let list = self.lowering.list(of, self.scope)?;
        if list.item != self.item && !same_strings(&list.item, &self.item) {
            return Err(refusal(format!("it mixes items of type {} and {}", list.item, self.item)));
        }
        let (code, start, count) = (list.code, list.start, list.count);
        let present = self.is_not_null(code)?;
        let count = self.graph(|g| {
            let zero = g.integer(0, Repr::I64);
            let count = g.convert(count, Repr::I64, Overflow::Wrap)?;
            g.coalesce(&[count, zero])
        })?;
        self.lists.push(list);
        let listed = Listed { table: self.lists.len() - 1, start: self.number(start), count: self.number(count) };
        Ok((listed, Part { items: Items::Of(listed), present, count }))
    }

    /// A list: in a dictionary, or constructed itself.
    fn list(&mut self, of: &Arc<dyn PhysicalExpr>) -> Lowered<Part> {
        let why = match self.listed(of) {
            Ok((_, part)) => return Ok(part),
            Err(why) => why,
        };
        let Some(of) = self.lowering.below_casts(of, &self.item, self.scope)? else { return Err(why) };
        let call = of.downcast_ref::<ScalarFunctionExpr>().filter(|call| is_datafusions_scalar(call.fun()));
        match call {
            Some(call) => self.call(call, false)?.ok_or(why),
            None => Err(why),
        }
    }

    /// The items of a function; `leaves_out` allows functions that may leave some out.
    fn call(&mut self, call: &ScalarFunctionExpr, leaves_out: bool) -> Lowered<Option<Part>> {
        let (name, args) = (call.fun().name(), call.args());
        let fits = |row: &&Row| row.name == name && (row.arguments.0..=row.arguments.1).contains(&args.len());
        match CONSTRUCTED.iter().find(fits) {
            Some(row) if leaves_out || !row.leaves_out => (row.part)(self, args),
            _ => Ok(None),
        }
    }

    /// Items of which a rule leaves out some.
    fn ruled(&mut self, rule: Rule, part: Part) -> Lowered<Part> {
        self.rule = rule;
        let count = self.where_present(part.present, part.count)?;
        Ok(Part { count, ..part })
    }

    /// `array_remove(list, value[, most])`, and with `all` `array_remove_all`.
    fn without(&mut self, of: &[Arc<dyn PhysicalExpr>], all: bool) -> Lowered<Part> {
        let (list, part) = self.listed(&of[0])?;
        let value = self.sought(&of[1])?;
        let (most, known) = self.most(all, of.get(2))?;
        let is_value = self.is_there(value)?;
        let present = self.all(&[part.present, known, is_value])?;
        self.ruled(Rule::Without { of: list, value, most }, Part { present, ..part })
    }

    fn positions(&mut self, of: &[Arc<dyn PhysicalExpr>]) -> Lowered<Part> {
        let (list, part) = self.listed(&of[0])?;
        let value = self.sought_or_null(&of[1])?;
        self.ruled(Rule::Positions { of: list, value }, part)
    }

    fn union(&mut self, of: &[Arc<dyn PhysicalExpr>]) -> Lowered<Part> {
        let [(a, of_a), (b, of_b)] = self.sets(of)?;
        let present = of_a.present;
        let count = self.graph(|g| g.arithmetic(Arithmetic::Add, of_a.count, of_b.count, Overflow::Wrap))?;
        let items = Items::Chain(vec![(Items::Of(a), a.count), (Items::Of(b), b.count)]);
        self.ruled(Rule::Union([a, b]), Part { items, present, count })
    }

    fn except(&mut self, of: &[Arc<dyn PhysicalExpr>]) -> Lowered<Part> {
        let [(a, of_a), (b, _)] = self.sets(of)?;
        self.ruled(Rule::Except([a, b]), of_a)
    }

    /// Items of the longer list, in its order; of the first if both have equally many.
    fn intersect(&mut self, of: &[Arc<dyn PhysicalExpr>]) -> Lowered<Part> {
        let [(a, of_a), (b, of_b)] = self.sets(of)?;
        let present = of_a.present;
        let first = self.graph(|g| g.compare(Comparison::GreaterEqual, of_a.count, of_b.count))?;
        let count = self.graph(|g| g.case(vec![(first, of_a.count)], Some(of_b.count)))?;
        let (first, lists) = (self.number(first), [a, b]);
        self.ruled(Rule::Intersect { first, lists }, Part { items: Items::Either { first, lists }, present, count })
    }

    /// Two lists that are read as sets; each is there if both are.
    fn sets(&mut self, of: &[Arc<dyn PhysicalExpr>]) -> Lowered<[(Listed, Part); 2]> {
        if plain_repr(&self.item).is_some_and(Repr::is_float) {
            return Err(refusal("the zeros of floats are one value here, and two on the device"));
        }
        let ((a, of_a), (b, of_b)) = (self.listed(&of[0])?, self.listed(&of[1])?);
        let present = self.all(&[of_a.present, of_b.present])?;
        Ok([(a, Part { present, ..of_a }), (b, Part { present, ..of_b })])
    }

    /// A value to search for among items.
    fn sought(&mut self, of: &Arc<dyn PhysicalExpr>) -> Lowered<usize> {
        if is_nested(&self.item) && !is_list(&self.item) {
            return Err(refusal("DataFusion compares no structures and maps here"));
        }
        self.value(of)
    }

    /// Like [`sought`](Self::sought), for functions that search for NULL. For a NULL list DataFusion searches for the
    /// contents below it: an error, so that the CPU decides.
    fn sought_or_null(&mut self, of: &Arc<dyn PhysicalExpr>) -> Lowered<usize> {
        let value = self.sought(of)?;
        if is_list(&self.item) {
            self.never_null.push(value);
        }
        Ok(value)
    }

    /// Maximum number of items that a function removes or replaces: all, its argument, or one; and whether the argument
    /// is not NULL.
    fn most(&mut self, all: bool, most: Option<&Arc<dyn PhysicalExpr>>) -> Lowered<(Option<usize>, Option<NodeId>)> {
        let (node, known) = match (all, most) {
            (true, _) => return Ok((None, None)),
            (false, Some(most)) => self.whole(most)?,
            (false, None) => (self.constant(1), None),
        };
        Ok((Some(self.number(node)), known))
    }

    /// `make_array`.
    fn each(&mut self, of: &[Arc<dyn PhysicalExpr>]) -> Lowered<Part> {
        let values = of.iter().map(|of| self.value(of)).collect::<Lowered<Vec<_>>>()?;
        let count = self.constant(values.len() as i128);
        Ok(Part { items: Items::Each(values), present: None, count })
    }

    /// `array_repeat(value, count)`.
    fn repeated(&mut self, of: &[Arc<dyn PhysicalExpr>]) -> Lowered<Part> {
        let value = self.value(&of[0])?;
        let (count, present) = self.whole(&of[1])?;
        let zero = self.constant(0);
        let count = self.graph(|g| g.extreme(&[count, zero], false))?;
        Ok(Part { items: Items::Same(value), present, count })
    }

    /// `array_replace(list, from, to[, most])`, and with `all` `array_replace_all`.
    fn replaced(&mut self, of: &[Arc<dyn PhysicalExpr>], all: bool) -> Lowered<Part> {
        let (list, part) = self.listed(&of[0])?;
        let (from, to) = (self.sought_or_null(&of[1])?, self.value(&of[2])?);
        let (most, known) = self.most(all, of.get(3))?;
        let present = self.all(&[part.present, known])?;
        let count = self.where_present(present, part.count)?;
        Ok(Part { items: Items::Replaced { of: list, from, to, most }, present, count })
    }

    /// A list with one more item, even if the list is NULL.
    fn with_one(&mut self, list: &Arc<dyn PhysicalExpr>, value: &Arc<dyn PhysicalExpr>, before: bool) -> Lowered<Part> {
        let part = self.list(list)?;
        if part.present.is_some() && self.has_fixed_size(list)? {
            let why = "DataFusion appends to what lies below a NULL, which a list of a fixed size has";
            return Err(refusal(why));
        }
        let one = self.constant(1);
        let (of_list, of_one) = (self.number(part.count), self.number(one));
        let value = Items::Same(self.value(value)?);
        let mut parts = vec![(part.items, of_list), (value, of_one)];
        if before {
            parts.reverse();
        }
        let count = self.graph(|g| g.arithmetic(Arithmetic::Add, part.count, one, Overflow::Wrap))?;
        Ok(Part { items: Items::Chain(parts), present: None, count })
    }

    /// True for a list of a fixed size, below any casts.
    fn has_fixed_size(&self, list: &Arc<dyn PhysicalExpr>) -> Lowered<bool> {
        let mut of = list;
        while let Some(cast) = of.downcast_ref::<CastExpr>() {
            of = cast.expr();
        }
        Ok(matches!(self.lowering.type_of(of, self.scope)?, DataType::FixedSizeList(..)))
    }

    /// Concatenated lists; NULL if all are NULL.
    fn concatenated(&mut self, lists: &[Arc<dyn PhysicalExpr>]) -> Lowered<Part> {
        let (mut parts, mut all, mut count) = (vec![], vec![], None);
        for list in lists {
            let part = self.list(list)?;
            parts.push((part.items, self.number(part.count)));
            all.push(part.present);
            count = Some(match count {
                Some(before) => self.graph(|g| g.arithmetic(Arithmetic::Add, before, part.count, Overflow::Wrap))?,
                None => part.count,
            });
        }
        let mut present = all[0];
        for one in &all[1..] {
            present = match (present, *one) {
                (Some(a), Some(b)) => Some(self.graph(|g| g.or(a, b))?),
                _ => None,
            };
        }
        let count = count.ok_or_else(|| refusal("it concatenates nothing"))?;
        Ok(Part { items: Items::Chain(parts), present, count })
    }

    /// An index or a step, which must fit into the offsets of the list if it is used.
    fn fitting(&mut self, node: NodeId, used: NodeId, otherwise: i128) -> Lowered<NodeId> {
        let otherwise = self.constant(otherwise);
        self.graph(|g| {
            let node = g.case(vec![(used, node)], Some(otherwise))?;
            let narrow = g.convert(node, Repr::I32, Overflow::Fail)?;
            g.convert(narrow, Repr::I64, Overflow::Wrap)
        })
    }

    /// Items between two positions, both included; positions count from 1, or from the end if negative.
    fn slice(
        &mut self,
        list: &Arc<dyn PhysicalExpr>,
        from: &Arc<dyn PhysicalExpr>,
        to: &Arc<dyn PhysicalExpr>,
        step: Option<&Arc<dyn PhysicalExpr>>,
    ) -> Lowered<Part> {
        let of = self.list(list)?;
        let ((from, some), (to, other)) = (self.whole(from)?, self.whole(to)?);
        let step = step.map(|step| self.whole(step)).transpose()?;
        let present = self.all(&[of.present, some, other, step.and_then(|(_, known)| known)])?;
        let length = self.where_present(present, of.count)?;
        let (zero, one) = (self.constant(0), self.constant(1));
        let used = self.graph(|g| g.compare(Comparison::Greater, length, zero))?;
        let (from, to) = (self.fitting(from, used, 1)?, self.fitting(to, used, 1)?);
        let (first, last, inside) = self.graph(|g| {
            let from_end = g.arithmetic(Arithmetic::Add, from, length, Overflow::Wrap)?;
            let from_end = g.extreme(&[from_end, zero], false)?;
            let from_start = g.arithmetic(Arithmetic::Subtract, from, one, Overflow::Wrap)?;
            let from_start = g.extreme(&[from_start, zero], false)?;
            let below = g.compare(Comparison::Less, from, zero)?;
            let first = g.case(vec![(below, from_end)], Some(from_start))?;
            let from_end = g.arithmetic(Arithmetic::Add, to, length, Overflow::Wrap)?;
            let most = g.arithmetic(Arithmetic::Subtract, length, one, Overflow::Wrap)?;
            let from_start = g.arithmetic(Arithmetic::Subtract, to, one, Overflow::Wrap)?;
            let from_start = g.extreme(&[from_start, most], true)?;
            let below = g.compare(Comparison::Less, to, zero)?;
            let last = g.case(vec![(below, from_end)], Some(from_start))?;
            let (a, b) =
                (g.compare(Comparison::Less, first, length)?, g.between_zero_and(last, length, Comparison::Less)?);
            Ok((first, last, g.and(a, b)?))
        })?;
        let far = self.graph(|g| g.arithmetic(Arithmetic::Subtract, last, first, Overflow::Wrap))?;
        let (step, count) = match step {
            None => (None, far),
            Some((step, _)) => {
                let step = self.fitting(step, inside, 1)?;
                let steps = self.graph(|g| {
                    let is_step = g.compare(Comparison::NotEqual, step, zero)?;
                    let step = g.require(step, is_step, Overflow::Fail)?;
                    // Steps beyond 2^30 would overflow DataFusion's offsets.
                    let step = g.check(step, Range::new(-(1 << 30), 1 << 30), Overflow::Fail)?;
                    let steps = g.arithmetic(Arithmetic::Divide, far, step, Overflow::Fail)?;
                    let (up, back) =
                        (g.compare(Comparison::Greater, step, zero)?, g.compare(Comparison::Less, far, zero)?);
                    let (up_is_back, minus) = (g.and(up, back)?, g.integer(-1, Repr::I64));
                    let down = g.not(up)?;
                    let ahead = g.compare(Comparison::Greater, far, zero)?;
                    let down_is_ahead = g.and(down, ahead)?;
                    let wrong = g.or(up_is_back, down_is_ahead)?;
                    let steps = g.case(vec![(wrong, minus)], Some(steps))?;
                    Ok((step, steps))
                })?;
                (Some(steps.0), steps.1)
            }
        };
        let count = self.graph(|g| {
            let count = g.arithmetic(Arithmetic::Add, count, one, Overflow::Wrap)?;
            let count = g.extreme(&[count, zero], false)?;
            g.case(vec![(inside, count)], Some(zero))
        })?;
        let (first, step) = (self.number(first), step.map(|step| self.number(step)));
        Ok(Part { items: Items::Part { of: Box::new(of.items), first, step }, present, count })
    }

    /// A list of `count` items: the first of the given list, then the filler.
    fn resized(
        &mut self,
        list: &Arc<dyn PhysicalExpr>,
        count: &Arc<dyn PhysicalExpr>,
        filler: Option<&Arc<dyn PhysicalExpr>>,
    ) -> Lowered<Part> {
        let of = self.list(list)?;
        let (count, known) = self.whole(count)?;
        let present = self.all(&[of.present, known])?;
        let count = self.where_present(present, count)?;
        let zero = self.constant(0);
        let count = self.graph(|g| {
            let is_size = g.compare(Comparison::GreaterEqual, count, zero)?;
            g.require(count, is_size, Overflow::Fail)
        })?;
        let filler = match filler {
            Some(filler) => self.value(filler)?,
            None => {
                self.values.push(StringPart::Constant(ScalarValue::Null));
                self.values.len() - 1
            }
        };
        let items = Items::Sized { of: Box::new(of.items), count: self.number(of.count), filler };
        Ok(Part { items, present, count })
    }

    /// Integers from one to another; the last is `included` or not.
    fn series(&mut self, args: &[Arc<dyn PhysicalExpr>], included: bool) -> Lowered<Option<Part>> {
        if self.item != DataType::Int64 {
            return Ok(None);
        }
        let (zero, one) = (self.constant(0), self.constant(1));
        let ((first, a), (stop, b), (step, c)) = match args {
            [stop] => ((zero, None), self.whole(stop)?, (one, None)),
            [first, stop] => (self.whole(first)?, self.whole(stop)?, (one, None)),
            [first, stop, step] => (self.whole(first)?, self.whole(stop)?, self.whole(step)?),
            _ => return Err(refusal("it has one to three arguments")),
        };
        let present = self.all(&[a, b, c])?;
        let step = match present {
            Some(present) => self.graph(|g| g.case(vec![(present, step)], Some(one)))?,
            None => step,
        };
        let (count, step) = self.graph(|g| {
            let is_step = g.compare(Comparison::NotEqual, step, zero)?;
            let step = g.require(step, is_step, Overflow::Fail)?;
            let far = g.arithmetic(Arithmetic::Subtract, stop, first, Overflow::Fail)?;
            let up = g.compare(Comparison::Greater, step, zero)?;
            let far = match included {
                true => far,
                // The last is one short of the end.
                false => {
                    let less = g.arithmetic(Arithmetic::Subtract, far, one, Overflow::Fail)?;
                    let more = g.arithmetic(Arithmetic::Add, far, one, Overflow::Fail)?;
                    g.case(vec![(up, less)], Some(more))?
                }
            };
            let steps = g.arithmetic(Arithmetic::Divide, far, step, Overflow::Fail)?;
            let count = g.arithmetic(Arithmetic::Add, steps, one, Overflow::Fail)?;
            let (back, ahead) = (g.compare(Comparison::Less, far, zero)?, g.compare(Comparison::Greater, far, zero)?);
            let none = g.case(vec![(up, back)], Some(ahead))?;
            Ok((g.case(vec![(none, zero)], Some(count))?, step))
        })?;
        let count = self.where_present(present, count)?;
        let items = Items::Series { first: self.number(first), step: self.number(step) };
        Ok(Some(Part { items, present, count }))
    }

    /// Converts values and items to one form, and builds the list.
    fn finish(self, data_type: DataType, part: Part) -> Lowered<Made> {
        let Self { lowering, scope: _, item, values, numbers, lists, never_null, rule } = self;
        let (mut values, tables, dictionary) = match is_coded(&item) {
            true => coded(lowering, &item, values, &lists)?,
            false => plain(lowering, &item, values, &lists)?,
        };
        for value in never_null {
            let g = &mut lowering.graph;
            let is_there = g.test(Test::IsNotNull, values[value])?;
            values[value] = g.require(values[value], is_there, Overflow::Fail)?;
        }
        let form = ItemForm { data_type: item, dictionary };
        let Part { items, present, count } = part;
        Ok(Made { data_type, present, count, items, rule, values, numbers, tables, form })
    }
}
