//! Random expressions of a wanted type, as trees that can be made smaller.
//!
//! ```text
//!   bool ─► "(" int32 " < " int32 ")" ─► "(k < (i8 + 3))"
//! ```
//!
//! Exact   no expression depends on an order of evaluation: sums are over numbers whose sums are exact.
//! NaN     its sign is seen by DataFusion's order, comparisons and keys. A stored one keeps its bits; one that + − × ÷
//!         or √ makes from numbers is negative; one NaN operand passes through. The sign of a NaN of two NaN operands,
//!         or of another function, is the processor's choice: `Maker::one_nan` makes one NaN of these.
//! Windows  stand alone in a SELECT, with frames of rows, ranges and groups; their sums are exact.
//! Errors  division by zero, overflow and failed casts happen, but seldom: most casts are TRY_CAST, most divisors
//!         NULLIF.

mod aggregate;
mod nested;
mod number;
mod text;
mod time;
mod window;

use super::constant::Constant;
use super::rng::Rng;
use super::ty::{DECIMALS, ERAS, INTEGERS, SPANS, TIMES, Ty, WIDE};

/// An expression: SQL text with expressions in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    pub ty: Ty,
    pub parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Text(String),
    /// Another one in the query's twin.
    Constant(Constant),
    Sub(Expr),
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Part::Text(text.to_string())
    }
}
impl From<String> for Part {
    fn from(text: String) -> Self {
        Part::Text(text)
    }
}
impl From<Constant> for Part {
    fn from(constant: Constant) -> Self {
        Part::Constant(constant)
    }
}
impl From<Expr> for Part {
    fn from(expr: Expr) -> Self {
        Part::Sub(expr)
    }
}

macro_rules! sql {
    ($ty:expr; $($part:expr),+ $(,)?) => { Expr { ty: $ty, parts: vec![$($crate::fuzz::expr::Part::from($part)),+] } };
}
pub(super) use sql;

impl Expr {
    pub fn text(&self) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Constant(constant) => constant.0.clone(),
            Part::Sub(expr) => expr.text(),
        };
        self.parts.iter().map(part).collect()
    }

    /// This expression and all inside it.
    pub fn size(&self) -> usize {
        1 + self.subs().map(Expr::size).sum::<usize>()
    }

    fn subs(&self) -> impl Iterator<Item = &Expr> {
        self.parts.iter().filter_map(|part| match part {
            Part::Sub(expr) => Some(expr),
            Part::Text(_) | Part::Constant(_) => None,
        })
    }

    /// The `index`-th expression inside this one, itself being the 0th, outer before inner.
    pub fn nth_mut(&mut self, index: usize) -> Option<&mut Expr> {
        let mut index = index;
        self.find(&mut index)
    }

    fn find(&mut self, index: &mut usize) -> Option<&mut Expr> {
        if *index == 0 {
            return Some(self);
        }
        *index -= 1;
        for part in &mut self.parts {
            if let Part::Sub(expr) = part
                && let Some(found) = expr.find(index)
            {
                return Some(found);
            }
        }
        None
    }

    /// Smaller expressions of the same type that may replace this one, the smallest first.
    pub fn smaller(&self) -> Vec<Expr> {
        if self.subs().next().is_none() {
            return Vec::new();
        }
        let mut all = Vec::new();
        self.collect(&mut |expr| all.push(expr.clone()));
        all.retain(|expr| expr != self && expr.ty.serves(self.ty));
        all.push(sql!(self.ty; self.ty.null()));
        if self.ty == Ty::Bool {
            all.push(sql!(Ty::Bool; "true"));
        }
        all.sort_by_key(Expr::size);
        all
    }

    fn collect(&self, to: &mut impl FnMut(&Expr)) {
        to(self);
        self.subs().for_each(|expr| expr.collect(to));
    }
}

/// `expr` in a function that must stay around it when a query becomes smaller.
fn around(mut expr: Expr, before: &str, after: impl Into<Part>) -> Expr {
    expr.parts.insert(0, before.into());
    expr.parts.extend([", ".into(), after.into(), ")".into()]);
    expr
}

/// True for a column that a subquery gives: where it is merged with the query above, its expression stands there.
fn is_computed(column: &Expr) -> bool {
    let name = match column.parts.as_slice() {
        [Part::Text(name)] => name,
        [Part::Constant(_)] => return false,
        _ => return true,
    };
    let name = name.rsplit('.').next().unwrap_or(name);
    name.strip_prefix(['m', 'n', 'o']).is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Makes expressions over the columns in scope.
pub struct Maker<'a> {
    pub rng: &'a mut Rng,
    pub scope: Vec<(String, Ty)>,
}

impl Maker<'_> {
    /// A column of a type, if there is one.
    pub fn column(&mut self, ty: Ty) -> Option<Expr> {
        let fitting: Vec<(String, Ty)> = self.scope.iter().filter(|column| column.1.serves(ty)).cloned().collect();
        (!fitting.is_empty()).then(|| {
            let (name, ty) = fitting[self.rng.below(fitting.len())].clone();
            sql!(ty; name)
        })
    }

    /// A constant that is `first` in every query; its twin may have one of `others`.
    fn known(&mut self, first: &str, others: &[&str]) -> Constant {
        let other = self.rng.aside(|rng| if rng.chance(50) { first } else { rng.pick(others) });
        Constant(first.to_string(), other.to_string())
    }

    fn leaf(&mut self, ty: Ty) -> Expr {
        let column = if self.rng.chance(80) { self.column(ty) } else { None };
        column.unwrap_or_else(|| sql!(ty; ty.literal(self.rng)))
    }

    /// A type that columns in scope have; any type now and then.
    pub fn any_type(&mut self) -> Ty {
        if self.scope.is_empty() || self.rng.chance(20) {
            let wanted = self.rng.below(8);
            return match wanted {
                0 => self.rng.pick(&INTEGERS),
                1 => self.rng.pick(&DECIMALS),
                2 => self.rng.pick(&TIMES),
                3 => self.rng.pick(&[Ty::F32, Ty::F64, Ty::Even32, Ty::Even64]),
                4 => Ty::Text,
                5 => self.rng.pick(&[SPANS[0], SPANS[1], SPANS[2], Ty::Ints, Ty::Pair, Ty::Half]),
                6 => self.rng.pick(&[ERAS[0], ERAS[1], ERAS[2], WIDE]),
                _ => self.rng.pick(&[Ty::Bool, Ty::Date, Ty::Number]),
            };
        }
        self.scope[self.rng.below(self.scope.len())].1
    }

    fn number_type(&mut self) -> Ty {
        match self.rng.below(5) {
            0 | 1 => self.rng.pick(&INTEGERS),
            2 | 3 => self.rng.pick(&DECIMALS),
            _ => self.rng.pick(&[Ty::Even32, Ty::Even64]),
        }
    }

    /// An expression of type `ty`, at most `depth` operators deep.
    pub fn make(&mut self, ty: Ty, depth: usize) -> Expr {
        if depth == 0 || self.rng.chance(12) {
            return match ty {
                Ty::Number => {
                    let ty = self.number_type();
                    self.leaf(ty)
                }
                _ => self.leaf(ty),
            };
        }
        let below = depth - 1;
        // Forms that every type has.
        if self.rng.chance(22) && ty != Ty::Number {
            return self.any_form(ty, below);
        }
        match ty {
            Ty::Bool => self.boolean(below),
            Ty::Int(signed, bits) => self.integer(ty, signed, bits, below),
            Ty::Dec(..) => self.decimal(ty, below),
            Ty::Even32 | Ty::Even64 => self.even(ty, below),
            Ty::F32 | Ty::F64 => self.float(ty, below),
            Ty::Number => self.number(below),
            Ty::Date => self.date(below),
            Ty::Time(..) => self.time(ty, below),
            Ty::Era(digits) => self.era(ty, digits, below),
            Ty::Span(span) => self.span(ty, span, below),
            Ty::Wide(..) => self.wide(ty, below),
            Ty::Text => self.string(below),
            Ty::Ints => self.list(below),
            Ty::Pair => self.pair(below),
            Ty::Half => self.half(below),
        }
    }

    fn any_form(&mut self, ty: Ty, depth: usize) -> Expr {
        let a = self.make(ty, depth);
        // NaN, intervals, lists and structures have no place among the least and the greatest.
        if self.rng.chance(15) && !ty.has_nan() && !matches!(ty, Ty::Span(_)) && !ty.is_nested() {
            let b = self.make(ty, depth);
            return sql!(ty; format!("{}(", self.rng.pick(&["greatest", "least"])), a, ", ", b, ")");
        }
        match self.rng.below(5) {
            4 => {
                let (on, b) = (self.any_type(), self.make(ty, depth));
                let when = self.make(on, depth.min(1));
                sql!(ty; "CASE WHEN ", when, " IS NOT NULL THEN ", a, " ELSE ", b, " END")
            }
            0 => {
                let (when, b) = (self.make(Ty::Bool, depth), self.make(ty, depth));
                sql!(ty; "CASE WHEN ", when, " THEN ", a, " ELSE ", b, " END")
            }
            1 => {
                // DataFusion has no CASE of a list.
                let on = Some(self.any_type()).filter(|on| !on.is_nested()).unwrap_or(Ty::Bool);
                let b = self.make(ty, depth);
                let (of, x, y) = (self.make(on, depth), self.make(on, 0), self.make(on, 0));
                sql!(ty; "CASE ", of, " WHEN ", x, " THEN ", a, " WHEN ", y, " THEN ", b, " END")
            }
            2 => {
                let b = self.make(ty, depth);
                sql!(ty; "coalesce(", a, ", ", b, ")")
            }
            // NULLIF of lists is none of DataFusion's; of structures it leaves fields below NULL.
            _ if ty.is_nested() => a,
            _ => {
                let b = self.make(ty, depth.min(1));
                sql!(ty; "nullif(", a, ", ", b, ")")
            }
        }
    }

    fn boolean(&mut self, depth: usize) -> Expr {
        let ty = Ty::Bool;
        if self.rng.chance(3) {
            let item = self.item();
            let a = self.make(Ty::Ints, depth.min(1));
            return sql!(ty; "array_has(", a, ", ", item, ")");
        }
        match self.rng.below(14) {
            13 => {
                // Two kinds of time, which DataFusion coerces to one.
                let pick = |maker: &mut Self| match maker.rng.below(4) {
                    0 => Ty::Date,
                    _ => maker.rng.pick(&TIMES),
                };
                let (one, two) = (pick(self), pick(self));
                let (a, b) = (self.make(one, depth), self.make(two, depth));
                sql!(ty; "(", a, self.rng.pick(&[" = ", " < ", " >= ", " IS DISTINCT FROM "]), b, ")")
            }
            0..=3 => {
                let of = match self.rng.below(20) {
                    0..=4 => Ty::Number,
                    5..=7 => self.rng.pick(&[Ty::F32, Ty::F64]),
                    _ => self.any_type(),
                };
                let op = self.rng.pick(&[
                    " = ",
                    " <> ",
                    " < ",
                    " <= ",
                    " > ",
                    " >= ",
                    " IS DISTINCT FROM ",
                    " IS NOT DISTINCT FROM ",
                ]);
                let (a, b) = (self.make(of, depth), self.make(of, depth));
                sql!(ty; "(", a, op, b, ")")
            }
            4 | 5 => {
                let (a, b) = (self.make(ty, depth), self.make(ty, depth));
                sql!(ty; "(", a, self.rng.pick(&[" AND ", " OR "]), b, ")")
            }
            6 => {
                let a = self.make(ty, depth);
                sql!(ty; "(NOT ", a, ")")
            }
            7 => {
                let of = self.any_type();
                let a = self.make(of, depth);
                sql!(ty; "(", a, self.rng.pick(&[" IS NULL)", " IS NOT NULL)"]))
            }
            8 => {
                let a = self.make(ty, depth);
                let test = self.rng.pick(&["TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "UNKNOWN", "NOT UNKNOWN"]);
                sql!(ty; "(", a, " IS ", test, ")")
            }
            9 => self.in_list(depth),
            10 => {
                let of = self.any_type();
                let (a, b, c) = (self.make(of, depth), self.make(of, depth.min(1)), self.make(of, depth.min(1)));
                sql!(ty; "(", a, self.rng.pick(&[" BETWEEN ", " NOT BETWEEN "]), b, " AND ", c, ")")
            }
            11 => {
                let a = self.make(Ty::Text, depth.min(1));
                let op = self.rng.pick(&["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"]);
                if self.rng.chance(25) {
                    let pattern = self.make(Ty::Text, depth.min(1));
                    return sql!(ty; "(", a, format!(" {op} "), pattern, ")");
                }
                let patterns = ["%", "", "_", "%o%", "b%", "%r%l", "__", "100\\%", "%é%", "a\\_b", "%日%"];
                sql!(ty; "(", a, format!(" {op} '"), Constant::pattern(self.rng, &patterns), "')")
            }
            _ => self.test(depth),
        }
    }

    fn in_list(&mut self, depth: usize) -> Expr {
        let ty = Ty::Bool;
        let of = self.any_type();
        let a = self.make(of, depth);
        let items = if self.rng.chance(5) { self.rng.below(60) + 65 } else { self.rng.below(6) + 1 };
        let mut expr = sql!(ty; "(", a, self.rng.pick(&[" IN (", " NOT IN ("]));
        for item in 0..items {
            if item > 0 {
                expr.parts.push(", ".into());
            }
            let column = if items < 65 && self.rng.chance(20) { Some(self.make(of, 0)) } else { None };
            // DataFusion takes a list with a CASE, which a subquery may have computed, for constant, and its
            // NULLs for none.
            let item = column.filter(|item| !is_computed(item));
            expr.parts.push(item.unwrap_or_else(|| sql!(of; of.literal(self.rng))).into());
        }
        expr.parts.push("))".into());
        expr
    }

    /// A function that tests one value.
    fn test(&mut self, depth: usize) -> Expr {
        let ty = Ty::Bool;
        match self.rng.below(5) {
            4 => {
                let a = self.make(Ty::Text, depth.min(1));
                let op = self.rng.pick(&[" ~ '", " !~ '", " ~* '", " !~* '"]);
                sql!(ty; "(", a, op, Constant::pick(self.rng, &EXPRESSIONS), "')")
            }
            0 => {
                let of = self.rng.pick(&INTEGERS);
                let a = self.make(of, depth);
                // Not by itself: below a filter by it, DataFusion takes the number for a constant, and drops an
                // ORDER BY it.
                sql!(ty; "coalesce(CAST(", a, " AS BOOLEAN), false)")
            }
            3 => {
                let of = match self.rng.chance(50) {
                    true => self.rng.pick(&[Ty::F32, Ty::F64]),
                    false => self.number_type(),
                };
                let a = self.make(of, depth);
                sql!(ty; format!("{}(", self.rng.pick(&["isnan", "iszero"])), a, ")")
            }
            1 => {
                let a = self.make(Ty::Text, depth.min(1));
                sql!(ty; format!("{}(", self.rng.pick(&["starts_with", "ends_with", "contains"])), a, ", '", self.known("b", &["a", "o", ""]), "')")
            }
            _ => self.leaf(ty),
        }
    }
}

/// Regular expressions: of letters, classes and places, with empty matches, of which the first is not the longest.
const EXPRESSIONS: [&str; 12] =
    ["o", "", "^b", "l$", "[0-9]+", "a|e", "(b|bo)l?", "é", "[^a-z]", "x*", "b.*?l", "(a|ab)(c|bcd)?"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_expression_has_the_type_of_the_one_it_replaces() {
        let mut rng = Rng::new(3, 4);
        let scope = vec![("a".to_string(), Ty::Int(true, 32)), ("b".to_string(), Ty::Bool)];
        let mut maker = Maker { rng: &mut rng, scope };
        let mut seen = 0;
        for _ in 0..200 {
            let expr = maker.make(Ty::Bool, 3);
            for smaller in expr.smaller() {
                assert!(smaller.ty.serves(Ty::Bool), "{}", smaller.text());
                seen += 1;
            }
        }
        assert!(seen > 200, "only {seen} smaller expressions");
    }

    #[test]
    fn parts_are_numbered_from_the_outside() {
        let inner = sql!(Ty::Bool; "b");
        let mut whole = sql!(Ty::Bool; "(NOT ", sql!(Ty::Bool; "(", inner.clone(), " IS TRUE)"), ")");
        assert_eq!(whole.text(), "(NOT (b IS TRUE))");
        assert_eq!(whole.size(), 3);
        assert_eq!(whole.nth_mut(2), Some(&mut inner.clone()));
        assert_eq!(whole.nth_mut(3), None);
    }
}
