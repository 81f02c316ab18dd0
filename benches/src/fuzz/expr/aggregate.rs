//! Aggregates.

use super::{Expr, Maker, sql};
use crate::fuzz::constant::Constant;
use crate::fuzz::source::bare;
use crate::fuzz::ty::{DECIMALS, INTEGERS, SPANS, Ty, Zone};

/// Columns of texts that grow with the row number.
const GROWING: [&str; 2] = ["grow", "uniq"];

impl Maker<'_> {
    /// An aggregate; FILTER now and then. In groups no min or max of NaN: DataFusion's depends on the order of rows
    /// there.
    pub fn aggregate(&mut self, grouped: bool) -> Expr {
        let exact = |maker: &mut Self| match maker.rng.below(4) {
            0 | 1 => maker.rng.pick(&INTEGERS),
            2 => maker.rng.pick(&DECIMALS),
            _ => maker.rng.pick(&[Ty::Even32, Ty::Even64]),
        };
        let growing: Vec<&String> =
            self.scope.iter().map(|column| &column.0).filter(|name| GROWING.contains(&bare(name))).collect();
        let mut expr = match self.rng.below(14) {
            // Ranks of texts move as extents bring new ones: above joins, too, which cut a pipeline.
            _ if !growing.is_empty() && self.rng.chance(12) => {
                let column = growing[self.rng.below(growing.len())].clone();
                sql!(Ty::Text; self.rng.pick(&["min(", "max("]), sql!(Ty::Text; column), ")")
            }
            12 => {
                let of = match self.rng.below(4) {
                    0 => self.rng.pick(&[Ty::Bool, Ty::Date, Ty::Text, Ty::Time(6, Zone::None)]),
                    1 => self.rng.pick(&DECIMALS),
                    _ => self.rng.pick(&INTEGERS),
                };
                let a = self.make(of, 1);
                sql!(Ty::Int(false, 64); "approx_distinct(", a, ")")
            }
            13 => self.in_order(),
            8 => {
                let of = self.any_type();
                let a = self.make(of, 1);
                sql!(Ty::Int(true, 64); "count(DISTINCT ", a, ")")
            }
            9 => {
                let a = self.make(Ty::Bool, 1);
                sql!(Ty::Bool; format!("{}(", self.rng.pick(&["bool_and", "bool_or"])), a, ")")
            }
            10 => {
                let of = self.rng.pick(&INTEGERS);
                let a = self.make(of, 1);
                match self.rng.chance(60) {
                    true => sql!(of; format!("{}(", self.rng.pick(&["bit_and", "bit_or", "bit_xor"])), a, ")"),
                    // Not of equal numbers, whose variance is what rounding left.
                    false => {
                        let a = self.column(Ty::Int(true, 32)).unwrap_or_else(|| sql!(Ty::Int(true, 32); "1"));
                        let name = self.rng.pick(&["var_pop", "var_samp", "stddev_pop", "stddev"]);
                        // As f32: the last bits depend on the order of the rows, and may be keys of the query around.
                        let (first, second) = (format!("CASE WHEN {name}("), format!(") > 0.001 THEN CAST({name}("));
                        return sql!(Ty::F32; first, a.clone(), second, a, ") AS REAL) END");
                    }
                }
            }
            11 => {
                let of = exact(self);
                self.middle(of)
            }
            0 => sql!(Ty::Int(true, 64); "count(*)"),
            1 => {
                let of = self.any_type();
                let a = self.make(of, 1);
                sql!(Ty::Int(true, 64); "count(", a, ")")
            }
            2 if self.rng.chance(15) => {
                let of = self.rng.pick(&SPANS);
                let a = self.make(of, 1);
                sql!(of; "sum(", a, ")")
            }
            2..=4 => {
                let of = exact(self);
                let a = self.make(of, 2);
                let ty = match of {
                    Ty::Int(signed, _) => Ty::Int(signed, 64),
                    Ty::Even32 | Ty::Even64 => Ty::F64,
                    _ => Ty::Number,
                };
                sql!(ty; "sum(", a, ")")
            }
            5 => {
                // Averages of integers are sums of floats: exact up to 32 bits.
                let of = match exact(self) {
                    Ty::Int(signed, 64) => Ty::Int(signed, 32),
                    of => of,
                };
                let a = self.make(of, 1);
                sql!(if of.is_decimal() { Ty::Number } else { Ty::F64 }; "avg(", a, ")")
            }
            _ => self.extreme(grouped),
        };
        if self.rng.chance(25) {
            let filter = self.make(Ty::Bool, 1);
            expr.parts.extend([" FILTER (WHERE ".into(), filter.into(), ")".into()]);
        }
        expr
    }

    /// A median or percentile. Not of computed floats: the sign of a computed NaN, and with it its place in the order,
    /// is the machine's.
    fn middle(&mut self, of: Ty) -> Expr {
        let a = if of.is_decimal() { self.make(of, 1) } else { self.make(Ty::Int(true, 32), 1) };
        match (of.is_decimal(), self.rng.chance(30)) {
            (true, _) => sql!(Ty::Number; "median(", a, ")"),
            (false, true) => sql!(Ty::F64; "median(DISTINCT ", a, ")"),
            (false, false) => {
                let p = Constant::pick(self.rng, &["0.0", "0.1", "0.5", "0.73", "1.0"]);
                sql!(Ty::F64; "percentile_cont(", a, ", ", p, ")")
            }
        }
    }

    fn extreme(&mut self, grouped: bool) -> Expr {
        let of = match self.any_type() {
            _ if self.rng.chance(15) => Ty::Text,
            Ty::F32 if grouped => Ty::Even32,
            Ty::F64 if grouped => Ty::Even64,
            // To MIN and MAX of structures a NULL inside is like anything.
            Ty::Pair => Ty::Text,
            of => of,
        };
        let a = self.make(of, 2);
        sql!(of; format!("{}(", self.rng.pick(&["min", "max"])), a, ")")
    }

    /// A percentile of a digest over a table of `rows` rows, with enough centroids to keep all values apart: otherwise
    /// DataFusion's answer depends on its batches.
    pub fn digest(&mut self, rows: usize) -> Expr {
        let of = match self.rng.chance(30) {
            true => self.rng.pick(&DECIMALS),
            false => self.rng.pick(&INTEGERS),
        };
        let a = self.make(of, 1);
        let p = Constant::pick(self.rng, &["0.0", "0.1", "0.5", "0.73", "1.0"]);
        let sizes = if rows <= 86 { ["100", "120"] } else { ["10000", "9000"] };
        let size = Constant::pick(self.rng, &sizes);
        let mut expr = match rows <= 86 && self.rng.chance(40) {
            true => sql!(Ty::F64; "approx_median(", a, ")"),
            false => sql!(Ty::F64; "approx_percentile_cont(", a, ", ", p, ", ", size, ")"),
        };
        if self.rng.chance(25) {
            let filter = self.make(Ty::Bool, 1);
            expr.parts.extend([" FILTER (WHERE ".into(), filter.into(), ")".into()]);
        }
        expr
    }

    /// An aggregate over rows in an order. They are ordered by what it takes from them, so that rows that tie are
    /// equal.
    pub(super) fn in_order(&mut self) -> Expr {
        let direction = self.rng.pick(&[" ASC NULLS FIRST", " ASC NULLS LAST", " DESC NULLS LAST", " DESC"]);
        if self.rng.chance(50) {
            let a = self.make(Ty::Text, 1);
            let between = self.known("-", &[", ", "é"]);
            let distinct = self.rng.pick(&["", "", "DISTINCT "]);
            let call = format!("string_agg({distinct}");
            return sql!(Ty::Text; call, a.clone(), ", '", between, "' ORDER BY ", a, direction, ")");
        }
        if self.rng.chance(30) {
            let (ty, distinct) = (Ty::Int(true, 64), self.rng.pick(&["", "", "DISTINCT "]));
            let a = self.make(ty, 1);
            return sql!(Ty::Ints; format!("array_agg({distinct}"), a.clone(), " ORDER BY ", a, direction, ")");
        }
        let of = match self.rng.below(4) {
            0 => self.rng.pick(&[Ty::Bool, Ty::Date, Ty::Text]),
            1 => self.rng.pick(&DECIMALS),
            _ => self.rng.pick(&INTEGERS),
        };
        let a = self.make(of, 1);
        let (end, place) = (self.rng.pick(&[", ", ", -"]), Constant::pick(self.rng, &["1", "2", "3", "40"]));
        sql!(of; "nth_value(", a.clone(), end, place, " ORDER BY ", a, direction, ")")
    }
}
