//! Lists, and what they hold.

use super::{Expr, Maker, sql};
use crate::fuzz::constant::Constant;
use crate::fuzz::ty::Ty;

impl Maker<'_> {
    pub(super) fn near_zero(&mut self) -> Constant {
        Constant::draw(self.rng, |rng| rng.between(-2, 3)).map(|number| number.to_string())
    }

    /// A list of integers, made of another one.
    pub(super) fn list(&mut self, depth: usize) -> Expr {
        let (ty, item) = (Ty::Ints, self.near_zero());
        let a = self.make(ty, depth);
        match self.rng.below(7) {
            0 => sql!(ty; "array_append(", a, ", ", item, ")"),
            1 => sql!(ty; "array_remove_all(", a, ", ", item, ")"),
            2 => sql!(ty; "array_slice(", a, ", 1, ", Constant::below(self.rng, 4), ")"),
            3 => sql!(ty; "array_concat(", a, ", [1, NULL])"),
            _ => sql!(ty; format!("{}(", self.rng.pick(&["array_sort", "array_reverse", "array_distinct"])), a, ")"),
        }
    }

    /// An integer of a list.
    pub(super) fn of_list(&mut self, depth: usize) -> Expr {
        let (ty, at) = (Ty::Int(true, 64), self.near_zero());
        let a = self.make(Ty::Ints, depth);
        match self.rng.below(4) {
            0 => sql!(ty; "array_element(", a, ", ", at, ")"),
            1 => sql!(ty; format!("{}(", self.rng.pick(&["array_min", "array_max"])), a, ")"),
            2 => sql!(ty; "arrow_cast(array_position(", a, ", ", at, "), 'Int64')"),
            _ => sql!(ty; "arrow_cast(array_length(", a, "), 'Int64')"),
        }
    }
}
