//! Lists constructed from several columns of a row, without a dictionary.
//!
//!   array_append(l, x)    items of l, then x                     count(l) + 1
//!   array_slice(l, a, b)  items of l from position a on          b - a + 1
//!   array_except(l, m)    items of l, some of them left out      count(l) at most
//!
//! Number   `count` is the number of items of a row, in the piece of its rows. The item with number j is computed in
//!          another piece, with one row for each item: `carried` are the nodes of the first piece that the second
//!          reads.
//! NULL     as in DataFusion's functions: `present` flags the rows that have a list.
//! Equal    items include NULLs, and floats are compared bit by bit; the set functions compare floats differently, and
//!          refuse them.
//! Errors   of DataFusion's functions raise the error flag: the CPU then reports the error.
//! Cost     `array_remove_n`, `array_replace_n` and the set functions scan a row's earlier items for each of its items.

mod form;
mod read;

#[cfg(test)]
pub(super) use read::constructed;

use datafusion::arrow::datatypes::DataType;
use millpond_kernels::codegen::ir::{
    Arithmetic, Comparison, Graph, GraphError, NodeId, Overflow, Places, Repr, Test, Ty,
};

use crate::column::DictionaryId;
use crate::expr::dictionary::Lookup;
use crate::expr::list::item_type;
use crate::expr::{Lowering, Value};

/// A list of a row. Values, numbers and tables are referred to by their positions below.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub data_type: DataType,
    /// Bool: whether there is a list; `None` if there always is.
    pub present: Option<NodeId>,
    /// I64: number of items, before some are left out. Undefined if there is no list.
    pub count: NodeId,
    items: Items,
    rule: Rule,
    /// Values of the row in the form of items.
    values: Vec<NodeId>,
    /// Starts (U32), counts and steps (I64), and conditions.
    numbers: Vec<NodeId>,
    /// Tables over the items of all lists of a dictionary, in that form.
    tables: Vec<Lookup>,
    form: ItemForm,
}

/// Representation of items.
#[derive(Debug, Clone)]
struct ItemForm {
    data_type: DataType,
    dictionary: Option<DictionaryId>,
}

/// A row's list that is in a dictionary.
#[derive(Debug, Clone, Copy)]
struct Listed {
    table: usize,
    start: usize,
    count: usize,
}

/// Definition of item j.
#[derive(Debug, Clone)]
enum Items {
    /// Value j of several.
    Each(Vec<usize>),
    /// Item j of a list.
    Of(Listed),
    /// The items of several definitions, one after the other, each with its count.
    Chain(Vec<(Items, usize)>),
    /// Items of the first list if a condition holds, else of the second.
    Either { first: usize, lists: [Listed; 2] },
    /// Always the same value.
    Same(usize),
    /// A number that increases by `step` for each item.
    Series { first: usize, step: usize },
    /// Item `first + j * step`; without a step, item `first + j`.
    Part { of: Box<Items>, first: usize, step: Option<usize> },
    /// Items, and from `count` on a filler.
    Sized { of: Box<Items>, count: usize, filler: usize },
    /// Items with one value replaced by another, in its first `most` occurrences.
    Replaced { of: Listed, from: usize, to: usize, most: Option<usize> },
}

/// Selection of the items that stay.
#[derive(Debug, Clone)]
enum Rule {
    All,
    /// All items except the first `most` that equal a value.
    Without {
        of: Listed,
        value: usize,
        most: Option<usize>,
    },
    /// The numbers of the items that equal a value.
    Positions {
        of: Listed,
        value: usize,
    },
    /// For two lists: each distinct value of either.
    Union([Listed; 2]),
    /// Each distinct value in both. `first` flags whether the items come from the first list.
    Intersect {
        first: usize,
        lists: [Listed; 2],
    },
    /// Each distinct value of the first list that the second does not have.
    Except([Listed; 2]),
}

impl Made {
    /// The nodes of the row's piece that items are computed from, described as columns.
    pub fn carried(&self, lowering: &Lowering<'_>) -> Vec<(NodeId, Value)> {
        let value = |node: &NodeId| {
            let of = Value { node: *node, data_type: self.form.data_type.clone(), dictionary: self.form.dictionary };
            (*node, of)
        };
        let number = |node: &NodeId| {
            let data_type = match lowering.graph.ty(*node).repr {
                Repr::U32 => DataType::UInt32,
                Repr::Bool => DataType::Boolean,
                _ => DataType::Int64,
            };
            (*node, Value { node: *node, data_type, dictionary: None })
        };
        self.values.iter().map(value).chain(self.numbers.iter().map(number)).collect()
    }

    /// The list in another piece, where `nodes` are the carried nodes.
    pub fn over(mut self, nodes: &[NodeId]) -> Self {
        let (values, numbers) = nodes.split_at(self.values.len());
        (self.values, self.numbers) = (values.to_vec(), numbers.to_vec());
        self
    }

    fn lists_are_items(&self) -> bool {
        is_list(&self.form.data_type)
    }

    /// True if some items are left out.
    pub fn leaves_out(&self) -> bool {
        !matches!(self.rule, Rule::All)
    }

    /// The type of an item.
    pub fn item_type(&self) -> &DataType {
        item_type(&self.data_type).unwrap_or(&self.form.data_type)
    }

    /// Item `number` (I64, below the count), and whether it stays; `None` if all items do.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn item(&self, number: NodeId, lowering: &mut Lowering<'_>) -> Result<(Value, Option<NodeId>), GraphError> {
        let item = self.item_of(&self.items, number, lowering)?;
        let value = Value { node: item, data_type: self.item_type().clone(), dictionary: self.form.dictionary };
        let stays = match &self.rule {
            Rule::All => return Ok((value, None)),
            Rule::Without { of, value, most } => {
                let is_it = self.is_one_of_first(item, *of, (*value, *most), number, lowering)?;
                lowering.graph.not(is_it)?
            }
            Rule::Positions { of, value } => {
                let stays = self.is_value(item, *of, *value, number, lowering)?;
                let g = &mut lowering.graph;
                let one = g.integer(1, Repr::I64);
                let place = g.arithmetic(Arithmetic::Add, number, one, Overflow::Wrap)?;
                let place = g.convert(place, Repr::U64, Overflow::Wrap)?;
                return Ok((Value { node: place, data_type: DataType::UInt64, dictionary: None }, Some(stays)));
            }
            Rule::Union([a, b]) => {
                let g = &mut lowering.graph;
                let (count, zero) = (self.numbers[a.count], g.integer(0, Repr::I64));
                let in_first = g.extreme(&[number, count], true)?;
                let behind = g.arithmetic(Arithmetic::Subtract, number, count, Overflow::Wrap)?;
                let behind = g.extreme(&[behind, zero], false)?;
                self.is_in_none(item, &[(*a, in_first), (*b, behind)], lowering)?
            }
            Rule::Intersect { first, lists: [a, b] } => {
                let g = &mut lowering.graph;
                let first = self.numbers[*first];
                let to_a = g.case(vec![(first, number)], Some(self.numbers[a.count]))?;
                let to_b = g.case(vec![(first, self.numbers[b.count])], Some(number))?;
                let in_a = self.is_in(item, *a, to_a, lowering)?;
                let in_b = self.is_in(item, *b, to_b, lowering)?;
                let g = &mut lowering.graph;
                let (new_a, new_b) = (g.not(in_a)?, g.not(in_b)?);
                let (of_a, of_b) = (g.and(new_a, in_b)?, g.and(new_b, in_a)?);
                g.case(vec![(first, of_a)], Some(of_b))?
            }
            Rule::Except([a, b]) => {
                let all = self.numbers[b.count];
                self.is_in_none(item, &[(*a, number), (*b, all)], lowering)?
            }
        };
        Ok((value, Some(stays)))
    }

    fn item_of(&self, items: &Items, number: NodeId, lowering: &mut Lowering<'_>) -> Result<NodeId, GraphError> {
        match items {
            Items::Each(values) => {
                let mut branches = vec![];
                for (at, value) in values.iter().enumerate().take(values.len() - 1) {
                    let g = &mut lowering.graph;
                    let at = g.integer(at as i128, Repr::I64);
                    branches.push((g.compare(Comparison::Equal, number, at)?, self.values[*value]));
                }
                let last = self.values[values[values.len() - 1]];
                if branches.is_empty() { Ok(last) } else { lowering.graph.case(branches, Some(last)) }
            }
            Items::Of(list) => self.item_at(*list, number, lowering),
            Items::Chain(parts) => {
                let mut branches = vec![];
                let mut from = number;
                for (of, count) in parts {
                    let count = self.numbers[*count];
                    let inside = lowering.graph.between_zero_and(from, count, Comparison::Less)?;
                    let within = lowering.graph.case(vec![(inside, from)], None)?;
                    branches.push((inside, self.item_of(of, within, lowering)?));
                    from = lowering.graph.arithmetic(Arithmetic::Subtract, from, count, Overflow::Wrap)?;
                }
                lowering.graph.case(branches, None)
            }
            Items::Either { first, lists } => {
                let first = self.numbers[*first];
                let of_first = lowering.graph.case(vec![(first, number)], None)?;
                let other = lowering.graph.not(first)?;
                let of_second = lowering.graph.case(vec![(other, number)], None)?;
                let a = self.item_at(lists[0], of_first, lowering)?;
                let b = self.item_at(lists[1], of_second, lowering)?;
                lowering.graph.case(vec![(first, a)], Some(b))
            }
            Items::Same(value) => Ok(self.values[*value]),
            Items::Series { first, step } => {
                let (first, step) = (self.numbers[*first], self.numbers[*step]);
                forward(&mut lowering.graph, first, number, Some(step))
            }
            Items::Part { of, first, step } => {
                let (first, step) = (self.numbers[*first], step.map(|step| self.numbers[step]));
                let number = forward(&mut lowering.graph, first, number, step)?;
                self.item_of(of, number, lowering)
            }
            Items::Sized { of, count, filler } => {
                let inside = lowering.graph.compare(Comparison::Less, number, self.numbers[*count])?;
                let within = lowering.graph.case(vec![(inside, number)], None)?;
                let item = self.item_of(of, within, lowering)?;
                lowering.graph.case(vec![(inside, item)], Some(self.values[*filler]))
            }
            Items::Replaced { of, from, to, most } => {
                let item = self.item_at(*of, number, lowering)?;
                let is_it = self.is_one_of_first(item, *of, (*from, *most), number, lowering)?;
                lowering.graph.case(vec![(is_it, self.values[*to])], Some(item))
            }
        }
    }

    /// Item `number` of a list; NULL if `number` is NULL.
    fn item_at(&self, list: Listed, number: NodeId, lowering: &mut Lowering<'_>) -> Result<NodeId, GraphError> {
        let place = self.place(list, number, lowering)?;
        let (table, ty) = self.table(list, lowering);
        lowering.graph.lookup(place, table, ty)
    }

    fn place(&self, list: Listed, number: NodeId, lowering: &mut Lowering<'_>) -> Result<NodeId, GraphError> {
        let g = &mut lowering.graph;
        let number = g.convert(number, Repr::U32, Overflow::Wrap)?;
        g.arithmetic(Arithmetic::Add, self.numbers[list.start], number, Overflow::Wrap)
    }

    fn table(&self, list: Listed, lowering: &mut Lowering<'_>) -> (u32, Ty) {
        let lookup = self.tables[list.table].clone();
        let ty = lookup.ty;
        (lowering.table(lookup), ty)
    }

    /// Whether an item equals a value, and fewer than `most` items before it do.
    fn is_one_of_first(
        &self,
        item: NodeId,
        list: Listed,
        (value, most): (usize, Option<usize>),
        number: NodeId,
        lowering: &mut Lowering<'_>,
    ) -> Result<NodeId, GraphError> {
        let is_it = self.is_value(item, list, value, number, lowering)?;
        let Some(most) = most else { return Ok(is_it) };
        let value = self.values[value];
        let to = self.place(list, number, lowering)?;
        let (table, ty) = self.table(list, lowering);
        let g = &mut lowering.graph;
        let before =
            g.count_of(value, (Places { from: self.numbers[list.start], to, table }, ty), !self.lists_are_items())?;
        let before = g.convert(before, Repr::I64, Overflow::Wrap)?;
        let is_early = g.compare(Comparison::Less, before, self.numbers[most])?;
        g.and(is_it, is_early)
    }

    /// Whether an item equals a value: floats bit by bit; a NULL list equals none.
    fn is_value(
        &self,
        item: NodeId,
        list: Listed,
        value: usize,
        number: NodeId,
        lowering: &mut Lowering<'_>,
    ) -> Result<NodeId, GraphError> {
        let value = self.values[value];
        if self.lists_are_items() {
            let g = &mut lowering.graph;
            let (is_it, no) = (g.compare(Comparison::Equal, item, value)?, g.boolean(false));
            return g.coalesce(&[is_it, no]);
        }
        if !lowering.graph.ty(value).repr.is_float() {
            return lowering.graph.compare(Comparison::NotDistinct, item, value);
        }
        let from = self.place(list, number, lowering)?;
        let (table, ty) = self.table(list, lowering);
        let g = &mut lowering.graph;
        let one = g.integer(1, Repr::U32);
        let to = g.arithmetic(Arithmetic::Add, from, one, Overflow::Wrap)?;
        let found = g.find(value, (Places { from, to, table }, ty), true)?;
        g.test(Test::IsNotNull, found)
    }

    /// Whether an item is among the first `count` items of a list.
    fn is_in(
        &self,
        item: NodeId,
        list: Listed,
        count: NodeId,
        lowering: &mut Lowering<'_>,
    ) -> Result<NodeId, GraphError> {
        let to = self.place(list, count, lowering)?;
        let (table, ty) = self.table(list, lowering);
        let g = &mut lowering.graph;
        let found = g.find(item, (Places { from: self.numbers[list.start], to, table }, ty), true)?;
        g.test(Test::IsNotNull, found)
    }

    fn is_in_none(
        &self,
        item: NodeId,
        lists: &[(Listed, NodeId); 2],
        lowering: &mut Lowering<'_>,
    ) -> Result<NodeId, GraphError> {
        let [a, b] = lists.map(|(list, count)| self.is_in(item, list, count, lowering));
        let either = lowering.graph.or(a?, b?)?;
        lowering.graph.not(either)
    }
}

fn is_list(of: &DataType) -> bool {
    matches!(of, DataType::List(_) | DataType::LargeList(_))
}

/// `first + number * step`.
fn forward(g: &mut Graph, first: NodeId, number: NodeId, step: Option<NodeId>) -> Result<NodeId, GraphError> {
    let ahead = match step {
        Some(step) => g.arithmetic(Arithmetic::Multiply, number, step, Overflow::Wrap)?,
        None => number,
    };
    g.arithmetic(Arithmetic::Add, first, ahead, Overflow::Wrap)
}
