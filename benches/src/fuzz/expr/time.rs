//! Dates, times and intervals.

use super::{Expr, Maker, around, sql};
use crate::fuzz::constant::Constant;
use crate::fuzz::data::COLUMNS;
use crate::fuzz::source::bare;
use crate::fuzz::ty::{ERAS, SPANS, Span, TIMES, Ty, Zone};

impl Maker<'_> {
    pub(super) fn date(&mut self, depth: usize) -> Expr {
        let ty = Ty::Date;
        match self.rng.below(6) {
            4 => {
                let (a, b) = (self.make(ty, depth), self.make(ty, depth.min(1)));
                sql!(ty; "make_date(date_part('year', ", a, "), date_part('month', ", b, "), 1)")
            }
            5 => {
                let a = self.make(Ty::Int(true, 16), depth);
                sql!(ty; "to_date(", a, ")")
            }
            0 => {
                let a = self.make(ty, depth);
                if self.rng.chance(30) {
                    let of = self.rng.pick(&SPANS);
                    let span = self.make(of, depth.min(1));
                    return sql!(ty; "CAST((", a, self.rng.pick(&[" + ", " - "]), span, ") AS DATE)");
                }
                let (n, unit) = (Constant::between(self.rng, -40, 40), self.rng.pick(&["day", "month", "year"]));
                sql!(ty; "CAST((", a, " + INTERVAL '", n, format!("' {unit}) AS DATE)"))
            }
            1 => {
                let of = if self.rng.chance(25) { self.rng.pick(&ERAS) } else { self.rng.pick(&TIMES[..4]) };
                let a = self.make(of, depth);
                sql!(ty; "CAST(", a, " AS DATE)")
            }
            2 if self.rng.chance(50) => {
                let grain = self.rng.pick(&["day", "week", "month", "quarter", "year"]);
                let a = self.make(ty, depth);
                sql!(ty; format!("CAST(date_trunc('{grain}', "), a, ") AS DATE)")
            }
            2 => {
                let a = self.make(Ty::Int(true, 16), depth);
                sql!(ty; "arrow_cast(CAST(", a, " AS INT), 'Date32')")
            }
            _ => self.leaf(ty),
        }
    }

    pub(super) fn time(&mut self, ty: Ty, depth: usize) -> Expr {
        let a = self.make(ty, depth);
        match self.rng.below(6) {
            5 => {
                let of = self.rng.pick(&SPANS);
                let span = self.make(of, depth.min(1));
                sql!(ty; "(", a, self.rng.pick(&[" + ", " - "]), span, ")")
            }
            4 => {
                let n = Constant::between(self.rng, 1, 40);
                let unit = self.rng.pick(&["seconds", "minutes", "hours", "days"]);
                sql!(ty; "date_bin(INTERVAL '", n, format!(" {unit}', "), a, ")")
            }
            0 | 1 => {
                let grain = self.rng.pick(&["second", "minute", "hour", "day", "week", "month", "quarter", "year"]);
                let a = self.safe_to_truncate(a);
                sql!(ty; format!("date_trunc('{grain}', "), a, ")")
            }
            2 => {
                let n = Constant::between(self.rng, -40, 40);
                let unit = self.rng.pick(&["second", "hour", "day", "month", "year"]);
                sql!(ty; "(", a, " + INTERVAL '", n, format!("' {unit})"))
            }
            _ => {
                let of = self.rng.pick(&TIMES);
                let a = self.make(of, depth);
                sql!(ty; "arrow_cast(", a, format!(", '{ty}')"))
            }
        }
    }

    /// `expr` without NULLs where a query below may have computed it. DataFusion's date_trunc subtracts below NULLs,
    /// too, where its `max` leaves the least of all numbers: a debug build panics.
    pub(super) fn safe_to_truncate(&mut self, expr: Expr) -> Expr {
        let computed = |(name, _): &(String, Ty)| !COLUMNS.iter().any(|column| column.0 == bare(name));
        if !self.scope.iter().any(computed) {
            return expr;
        }
        let other = expr.ty.value(self.rng);
        around(expr, "coalesce(", other)
    }

    /// A time of the years 1 to 9999. DataFusion truncates to weeks and longer units via nanoseconds, whose range is
    /// smaller.
    pub(super) fn era(&mut self, ty: Ty, digits: u8, depth: usize) -> Expr {
        let a = self.make(ty, depth);
        match self.rng.below(4) {
            // Columns only: for constants DataFusion folds days via nanoseconds.
            0 => match self.column(ty) {
                Some(a) => {
                    let a = self.safe_to_truncate(a);
                    sql!(ty; format!("date_trunc('{}', ", self.rng.pick(&["minute", "hour", "day"])), a, ")")
                }
                None => a,
            },
            1 => {
                let n = Constant::between(self.rng, -40, 40);
                let unit = self.rng.pick(&["second", "hour", "day", "month", "year"]);
                sql!(ty; "(", a, " + INTERVAL '", n, format!("' {unit})"))
            }
            2 => {
                let of = match self.rng.chance(50) {
                    true => Ty::Date,
                    false => self.rng.pick(&[Ty::Time(digits, Zone::None), ty]),
                };
                let a = self.make(of, depth);
                sql!(ty; "arrow_cast(", a, format!(", '{ty}')"))
            }
            _ => a,
        }
    }

    /// An interval. Two of different units have no common order.
    pub(super) fn span(&mut self, ty: Ty, span: Span, depth: usize) -> Expr {
        let a = self.make(ty, depth);
        match self.rng.below(5) {
            0 | 1 => {
                let b = self.make(ty, depth);
                sql!(ty; "(", a, self.rng.pick(&[" + ", " - "]), b, ")")
            }
            2 => sql!(ty; "(- ", a, ")"),
            3 if span == Span::Mixed => {
                let of = self.rng.pick(&SPANS[..2]);
                let b = self.make(of, depth);
                sql!(ty; "arrow_cast(", b, format!(", '{ty}')"))
            }
            _ => a,
        }
    }
}
