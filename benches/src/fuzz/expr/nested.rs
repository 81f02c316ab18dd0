//! Lists and structures, and their items and fields.

use super::{Expr, Maker, Part, sql};
use crate::fuzz::constant::Constant;
use crate::fuzz::ty::Ty;

const NUMBER: Ty = Ty::Int(true, 64);

impl Maker<'_> {
    fn near_zero(&mut self) -> Constant {
        Constant::draw(self.rng, |rng| rng.between(-2, 3)).map(|number| number.to_string())
    }

    /// A list item: a small number, sometimes a column.
    pub(super) fn item(&mut self) -> Part {
        match self.rng.chance(30) {
            true => self.make(NUMBER, 0).into(),
            false => self.near_zero().into(),
        }
    }

    /// A list of integers, made of another one, or of columns.
    pub(super) fn list(&mut self, depth: usize) -> Expr {
        let (ty, item) = (Ty::Ints, self.item());
        let a = self.make(ty, depth);
        if self.rng.chance(30) {
            return self.list_of_several(a);
        }
        match self.rng.below(9) {
            0 => sql!(ty; "array_append(", a, ", ", item, ")"),
            1 => sql!(ty; "array_remove_all(", a, ", ", item, ")"),
            2 => sql!(ty; "array_slice(", a, ", 1, ", Constant::below(self.rng, 4), ")"),
            3 => sql!(ty; "array_concat(", a, ", [1, NULL])"),
            4 => sql!(ty; "array_prepend(", item, ", ", a, ")"),
            5 => {
                let (b, c) = (self.make(NUMBER, 0), self.make(NUMBER, 0));
                sql!(ty; "[", b, ", ", c, "]")
            }
            _ => sql!(ty; format!("{}(", self.rng.pick(&["array_sort", "array_reverse", "array_distinct"])), a, ")"),
        }
    }

    /// A list that is made of another and of columns.
    fn list_of_several(&mut self, a: Expr) -> Expr {
        let ty = Ty::Ints;
        let (b, c) = (self.item(), self.item());
        // Small, so that lists are.
        let mut small = || sql!(NUMBER; self.make(NUMBER, 0), " % 5");
        let (m, n) = (small(), small());
        match self.rng.below(11) {
            0 => sql!(ty; "array_slice(", a, ", ", m, ", ", n, ")"),
            1 => sql!(ty; "array_replace(", a, ", ", b, ", ", c, ")"),
            2 => sql!(ty; "array_replace_n(", a, ", ", b, ", ", c, ", ", n, ")"),
            3 => sql!(ty; "array_remove(", a, ", ", b, ")"),
            4 => sql!(ty; "array_remove_n(", a, ", ", b, ", ", n, ")"),
            5 => sql!(ty; "array_concat(", a, ", [", b, ", ", c, "])"),
            6 => sql!(ty; "array_resize(", a, ", abs(", m, "), ", b, ")"),
            7 => sql!(ty; "array_repeat(", b, ", ", n, ")"),
            8 => sql!(ty; "range(", m, ", ", n, ")"),
            9 => {
                let other = self.leaf(ty);
                let name = self.rng.pick(&["array_union", "array_intersect", "array_except"]);
                sql!(ty; format!("{name}("), a, ", ", other, ")")
            }
            _ => sql!(ty; "array_append(array_prepend(", b, ", ", a, "), ", c, ")"),
        }
    }

    /// An integer of a list.
    pub(super) fn of_list(&mut self, depth: usize) -> Expr {
        let (ty, at) = (NUMBER, self.item());
        let a = self.make(Ty::Ints, depth);
        match self.rng.below(4) {
            0 => sql!(ty; "array_element(", a, ", ", at, ")"),
            1 => sql!(ty; format!("{}(", self.rng.pick(&["array_min", "array_max"])), a, ")"),
            2 => sql!(ty; "arrow_cast(array_position(", a, ", ", at, "), 'Int64')"),
            _ => sql!(ty; "arrow_cast(array_length(", a, "), 'Int64')"),
        }
    }

    /// A structure, now and then of columns.
    pub(super) fn pair(&mut self, depth: usize) -> Expr {
        if self.rng.chance(75) {
            return self.leaf(Ty::Pair);
        }
        let (number, word) = (self.make(NUMBER, depth.min(1)), self.make(Ty::Text, 0));
        sql!(Ty::Pair; "named_struct('number', ", number, ", 'word', ", word, ")")
    }

    /// A structure's field of type `ty`.
    pub(super) fn of_pair(&mut self, ty: Ty, depth: usize) -> Expr {
        let a = self.make(Ty::Pair, depth);
        sql!(ty; "get_field(", a, if ty == NUMBER { ", 'number')" } else { ", 'word')" })
    }
}
