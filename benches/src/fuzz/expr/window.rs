//! Window functions and their frames.

use super::{Expr, Maker, Part, around, sql};
use crate::fuzz::constant::Constant;
use crate::fuzz::source::bare;
use crate::fuzz::ty::Ty;

/// Columns that RANGE frames are taken over: numbers and times, most of them near zero in a type that reaches far.
const RANGED: [&str; 9] = ["k", "n", "n", "rare", "g", "i8", "soon", "soon", "few"];

impl Maker<'_> {
    /// A window function over the rows of the source. `identity` are columns that tell its rows apart, or that are all
    /// they have: ordered by them too, rows that tie are equal, and so the answer of one window depends on no order of
    /// theirs. Where it may not be `by_rows` it sees a row's equals as one.
    pub fn window(&mut self, identity: &[String], by_rows: bool) -> Expr {
        let mut over: Vec<Part> = vec![" OVER (".into()];
        let partition = self.rng.pick(&[0, 1, 1, 2]);
        for index in 0..partition {
            over.push(if index == 0 { "PARTITION BY ".into() } else { ", ".into() });
            over.push(self.any_column(false).into());
        }
        let direction = |maker: &mut Self| {
            maker.rng.pick(&[" ASC NULLS FIRST", " ASC NULLS LAST", " DESC NULLS LAST", " DESC NULLS FIRST"])
        };
        // By peers: functions that see a row's equals as one, so that the order need not be total.
        let by_peers = self.rng.chance(35) || !by_rows;
        let numbers: Vec<&(String, Ty)> =
            self.scope.iter().filter(|column| RANGED.contains(&bare(&column.0))).collect();
        let range = (by_peers && !numbers.is_empty() && self.rng.chance(60)).then(|| {
            let (name, ty) = numbers[self.rng.below(numbers.len())].clone();
            sql!(ty; name)
        });
        let is_range = range.is_some();
        let of = match range {
            Some(of) => of,
            None => self.any_column(true),
        };
        let of_ty = of.ty;
        over.extend([" ORDER BY ".into(), of.into(), direction(self).into()]);
        if !by_peers {
            for name in identity {
                over.push(format!(", {name}{}", direction(self)).into());
            }
        }
        let frame = match (by_peers, is_range) {
            _ if self.rng.chance(25) => Vec::new(),
            (true, true) => self.range(of_ty),
            (true, false) => self.frame(" GROUPS BETWEEN "),
            (false, _) => self.frame(" ROWS BETWEEN "),
        };
        let mut expr = match self.rng.below(if by_peers { 7 } else { 13 }) {
            _ if self.rng.chance(15) => self.percentile(),
            // Not of more rows than a table has: the texts of growing frames are long.
            _ if !by_peers && identity == ["id"] && self.rng.chance(10) => return self.texts(over),
            _ if self.rng.chance(5) => {
                let (a, b) = (self.make(Ty::Int(true, 32), 1), self.make(Ty::Int(true, 16), 1));
                sql!(Ty::Int(false, 64); "regr_count(", a, ", ", b, ")")
            }
            0 => sql!(Ty::Int(true, 64); "count(*)"),
            1 => {
                let a = self.make(of_ty, 1);
                sql!(Ty::Int(true, 64); self.rng.pick(&["count(", "count(", "count(DISTINCT "]), a, ")")
            }
            2 | 3 => self.sum(),
            4 => {
                let a = self.make(Ty::Int(true, 32), 1);
                sql!(Ty::F64; "avg(", a, ")")
            }
            5 | 6 => {
                let of = match self.any_type() {
                    Ty::F32 => Ty::Even32,
                    Ty::F64 => Ty::Even64,
                    Ty::Pair | Ty::Ints => Ty::Text,
                    of => of,
                };
                let a = self.make(of, 1);
                sql!(of; self.rng.pick(&["min(", "max("]), a, ")")
            }
            // These look at no frame.
            7 => return self.rank(over),
            8 | 9 => return self.neighbour(over),
            12 => {
                let a = self.make(Ty::Int(true, 64), 1);
                sql!(Ty::Ints; "array_agg(", a, ")")
            }
            _ => {
                let of = self.any_type();
                let a = self.make(of, 1);
                match self.rng.chance(30) {
                    true => sql!(of; "nth_value(", a, ", ", Constant::between(self.rng, 1, 3), ")"),
                    false => sql!(of; self.rng.pick(&["first_value(", "last_value("]), a, ")"),
                }
            }
        };
        expr.parts.extend(over);
        expr.parts.extend(frame);
        expr.parts.push(")".into());
        // DataFusion 55.2 takes a running min, max, sum or count for sorted although NULLs come first or in between,
        // and then drops an ORDER BY it. It does not look through NULLIF.
        if expr.ty.is_nested() {
            return expr;
        }
        // Sums may be either zero, by the order of their rows, and NULLIF tells the two apart: none of them is this
        // number.
        let other = match expr.ty {
            Ty::F32 | Ty::F64 | Ty::Even32 | Ty::Even64 => {
                Constant::same(format!("arrow_cast('-1e30', '{}')", expr.ty))
            }
            ty => ty.literal(self.rng),
        };
        around(expr, "nullif(", other)
    }

    fn sum(&mut self) -> Expr {
        let of = match self.rng.below(4) {
            0 | 1 => Ty::Int(self.rng.chance(50), self.rng.pick(&[8, 16, 32])),
            2 => self.rng.pick(&[Ty::Dec(5, 2), Ty::Dec(15, 2), Ty::Dec(12, 0)]),
            _ => self.rng.pick(&[Ty::Even32, Ty::Even64]),
        };
        let a = self.make(of, 1);
        let ty = match of {
            Ty::Int(signed, _) => Ty::Int(signed, 64),
            Ty::Even32 | Ty::Even64 => Ty::F64,
            _ => Ty::Number,
        };
        sql!(ty; "sum(", a, ")")
    }

    fn rank(&mut self, over: Vec<Part>) -> Expr {
        let (text, ty) = self.rng.pick(&[
            ("row_number()", Ty::Int(false, 64)),
            ("rank()", Ty::Int(false, 64)),
            ("dense_rank()", Ty::Int(false, 64)),
            ("ntile(3)", Ty::Int(false, 64)),
            ("percent_rank()", Ty::F64),
            ("cume_dist()", Ty::F64),
        ]);
        let mut expr = sql!(ty; text);
        expr.parts.extend(over);
        expr.parts.push(")".into());
        expr
    }

    /// The value of a row before or behind.
    fn neighbour(&mut self, over: Vec<Part>) -> Expr {
        let of = self.any_type();
        let a = self.make(of, 1);
        let head = self.rng.pick(&["lag(", "lead("]);
        let mut expr = match self.rng.chance(40) {
            true => {
                let by = Constant::below(self.rng, 4);
                sql!(of; head, a, ", ", by, ", ", sql!(of; of.literal(self.rng)), ")")
            }
            false => sql!(of; head, a, ")"),
        };
        expr.parts.extend(over);
        expr.parts.push(")".into());
        expr
    }

    /// A median or percentile of exact numbers, of those that a filter keeps now and then: of columns, so that the
    /// filter goes with them.
    fn percentile(&mut self) -> Expr {
        let of = self.rng.pick(&[
            Ty::Int(true, 32),
            Ty::Int(true, 8),
            Ty::Int(false, 64),
            Ty::Dec(15, 2),
            Ty::Dec(5, 2),
            Ty::Dec(12, 0),
        ]);
        let (a, filter) = match self.rng.chance(30).then(|| self.column(of)).flatten() {
            Some(column) => (column, true),
            None => (self.make(of, 1), false),
        };
        let mut expr = match (of.is_decimal(), self.rng.chance(50)) {
            (true, _) => sql!(Ty::Number; "median(", a, ")"),
            (false, true) => sql!(Ty::F64; "median(", a, ")"),
            (false, false) => {
                let p = Constant::pick(self.rng, &["0.0", "0.1", "0.5", "0.73", "1.0"]);
                sql!(Ty::F64; "percentile_cont(", a, ", ", p, ")")
            }
        };
        if filter {
            let keeps = self.make(Ty::Bool, 1);
            expr.parts.extend([" FILTER (WHERE ".into(), keeps.into(), ")".into()]);
        }
        expr
    }

    /// The beginning or the length of joined texts, in frames that begin with the partition: DataFusion takes none off
    /// others.
    fn texts(&mut self, over: Vec<Part>) -> Expr {
        let a = self.make(Ty::Text, 1);
        let between = self.rng.pick(&["''", "'-'", "', '"]);
        let mut expr = sql!(Ty::Text; "string_agg(left(", a, ", 2), ", between, ")");
        expr.parts.extend(over);
        let end = self.rng.pick(&["CURRENT ROW", "2 FOLLOWING", "2 PRECEDING", "UNBOUNDED FOLLOWING"]);
        expr.parts.push(format!(" ROWS BETWEEN UNBOUNDED PRECEDING AND {end})").into());
        match self.rng.chance(50) {
            true => sql!(Ty::Text; "substr(", expr, ", 1, 60)"),
            false => sql!(Ty::Int(true, 32); "length(", expr, ")"),
        }
    }

    /// A window's frame. One that the twin has begins and ends with the same words.
    pub(super) fn frame(&mut self, unit: &str) -> Vec<Part> {
        // The number of the words' rows; that of a twin is not below it, nor beyond the next.
        const ENDS: [(&str, i64, i64); 7] = [
            ("UNBOUNDED PRECEDING", 0, 0),
            (" PRECEDING", 3, 6),
            (" PRECEDING", 1, 3),
            ("CURRENT ROW", 0, 0),
            (" FOLLOWING", 1, 4),
            (" FOLLOWING", 4, 9),
            ("UNBOUNDED FOLLOWING", 0, 0),
        ];
        let first = self.rng.below(ENDS.len() - 1);
        let last = first + self.rng.below(ENDS.len() - first);
        let last = if last == 0 { 1 } else { last };
        let mut end = |of: usize| -> Vec<Part> {
            let (words, rows, most) = ENDS[of];
            let other = self.rng.aside(|rng| rng.between(rows, most));
            match most {
                0 => vec![words.into()],
                _ => vec![Constant(rows.to_string(), other.to_string()).into(), words.into()],
            }
        };
        let (first, last) = match first == last {
            // One number in the query and its twin.
            true => (end(first), None),
            false => (end(first), Some(end(last))),
        };
        let last = last.unwrap_or_else(|| first.clone());
        [vec![unit.into()], first, vec![" AND ".into()], last].concat()
    }

    /// A RANGE frame: a few units wide, or as far as the type of its key reaches, beyond the width in which the key may
    /// lie.
    fn range(&mut self, ty: Ty) -> Vec<Part> {
        let (limit, time) = match ty {
            Ty::Int(true, bits) => (i64::MAX >> (64 - bits), false),
            Ty::Int(false, bits) => (i64::MAX >> (63 - bits.min(63)), false),
            // Days, which `INTERVAL` takes.
            _ => (20_000, true),
        };
        if !time && self.rng.chance(50) {
            return self.frame(" RANGE BETWEEN ");
        }
        // Each next to those of its twin; the first is not above the second.
        let far: &[(i64, i64)] = match time {
            true => &[(0, 1), (1, 2), (3, 20), (20, 30), (30, 400), (400, 20_000)],
            false => &[
                (1, 9),
                (100, 120),
                (126, 127),
                (250, 300),
                (32_760, 32_767),
                (65_530, 65_540),
                ((1 << 31) - 9, (1 << 31) - 1),
                (1 << 31, (1 << 31) + 9),
                ((1 << 32) - 2, (1 << 32) + 2),
                (2_592_000_000 << 1, 2_592_000_000 << 10),
                (1 << 61, 1 << 62),
            ],
        };
        let far: Vec<_> = far.iter().filter(|(_, high)| *high <= limit).collect();
        let at = self.rng.below(far.len());
        let beyond = (at + 1 + self.rng.below(far.len())).min(far.len() - 1);
        let shape = self.rng.below(7);
        let mut distance = |at: usize, words: &str| -> Vec<Part> {
            let (low, high) = *far[at];
            let by = Constant::between(self.rng, low, high);
            match time {
                true => vec!["INTERVAL '".into(), by.into(), format!(" days'{words}").into()],
                false => vec![by.into(), words.into()],
            }
        };
        let near = at.min(beyond);
        let same = at == beyond;
        let (start, end) = match shape {
            0 => (distance(beyond, " PRECEDING"), vec!["CURRENT ROW".into()]),
            1 => (vec!["CURRENT ROW".into()], distance(beyond, " FOLLOWING")),
            2 if !same => (distance(beyond, " PRECEDING"), distance(near, " PRECEDING")),
            3 if !same => (distance(near, " FOLLOWING"), distance(beyond, " FOLLOWING")),
            4 => (distance(near, " PRECEDING"), vec!["UNBOUNDED FOLLOWING".into()]),
            5 => (vec!["UNBOUNDED PRECEDING".into()], distance(near, " FOLLOWING")),
            _ => (distance(near, " PRECEDING"), distance(beyond, " FOLLOWING")),
        };
        [vec![" RANGE BETWEEN ".into()], start, vec![" AND ".into()], end].concat()
    }

    /// Any column but a float: rows that tie by one may be unequal, as 0.0 and -0.0 are. And no interval to order by:
    /// DataFusion has no ranges of them.
    pub(super) fn any_column(&mut self, order: bool) -> Expr {
        let unfit = |ty| match ty {
            Ty::F32 | Ty::F64 | Ty::Even32 | Ty::Even64 | Ty::Number => true,
            Ty::Span(_) | Ty::Pair | Ty::Half => order,
            _ => false,
        };
        let fitting: Vec<&(String, Ty)> = self.scope.iter().filter(|column| !unfit(column.1)).collect();
        match fitting.is_empty() {
            true => sql!(Ty::Int(true, 64); "arrow_cast(1, 'Int64')"),
            false => {
                let (name, ty) = fitting[self.rng.below(fitting.len())].clone();
                sql!(ty; name)
            }
        }
    }
}
