//! Random expressions of a wanted type, as trees that can be made smaller.
//!
//! ```text
//!   bool ─► "(" int32 " < " int32 ")" ─► "(k < (i8 + 3))"
//! ```
//!
//! Exact   no expression depends on an order of evaluation: sums are over numbers whose sums are exact.
//! NaN     its sign is seen by DataFusion's order, comparisons and keys. A stored one keeps its bits; one that + − × ÷ or √
//!         makes from numbers is negative; one NaN operand passes through. The sign of a NaN of two NaN operands, or of another
//!         function, is the processor's choice: `Maker::one_nan` makes one NaN of these.
//! Windows  stand alone in a SELECT, with frames of rows, ranges and groups; their sums are exact.
//! Errors  division by zero, overflow and failed casts happen, but seldom: most casts are TRY_CAST, most divisors NULLIF.

use super::constant::Constant;
use super::data::COLUMNS;
use super::rng::Rng;
use super::source::bare;
use super::ty::{DECIMALS, ERAS, INTEGERS, SPANS, Span, TIMES, Ty, WIDE, Zone};

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
    ($ty:expr; $($part:expr),+ $(,)?) => { Expr { ty: $ty, parts: vec![$(Part::from($part)),+] } };
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

    /// Smaller expressions of the same type that may stand in this one's place, the smallest first.
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
                5 => self.rng.pick(&[SPANS[0], SPANS[1], SPANS[2], Ty::Ints]),
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
        }
    }

    fn any_form(&mut self, ty: Ty, depth: usize) -> Expr {
        let a = self.make(ty, depth);
        // NaN, intervals and lists have no place among the least and the greatest.
        if self.rng.chance(15) && !ty.has_nan() && !matches!(ty, Ty::Span(_) | Ty::Ints) {
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
                let on = Some(self.any_type()).filter(|on| *on != Ty::Ints).unwrap_or(Ty::Bool);
                let b = self.make(ty, depth);
                let (of, x, y) = (self.make(on, depth), self.make(on, 0), self.make(on, 0));
                sql!(ty; "CASE ", of, " WHEN ", x, " THEN ", a, " WHEN ", y, " THEN ", b, " END")
            }
            2 => {
                let b = self.make(ty, depth);
                sql!(ty; "coalesce(", a, ", ", b, ")")
            }
            // NULLIF of lists is none of DataFusion's.
            _ if ty == Ty::Ints => a,
            _ => {
                let b = self.make(ty, depth.min(1));
                sql!(ty; "nullif(", a, ", ", b, ")")
            }
        }
    }

    fn boolean(&mut self, depth: usize) -> Expr {
        let ty = Ty::Bool;
        if self.rng.chance(3) {
            let item = self.near_zero();
            let a = self.make(Ty::Ints, depth.min(1));
            return sql!(ty; "array_has(", a, ", ", item, ")");
        }
        match self.rng.below(14) {
            13 => {
                // Two kinds of time: DataFusion brings them to one.
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
            9 => {
                let of = self.any_type();
                let a = self.make(of, depth);
                let items = if self.rng.chance(5) { self.rng.below(60) + 65 } else { self.rng.below(6) + 1 };
                let mut expr = sql!(ty; "(", a, self.rng.pick(&[" IN (", " NOT IN ("]));
                for item in 0..items {
                    if item > 0 {
                        expr.parts.push(", ".into());
                    }
                    let column = if items < 65 && self.rng.chance(20) { Some(self.make(of, 0)) } else { None };
                    // DataFusion takes a list with a CASE, which a subquery may have computed, for constant, and its NULLs for none.
                    let item = column.filter(|item| !is_computed(item));
                    expr.parts.push(item.unwrap_or_else(|| sql!(of; of.literal(self.rng))).into());
                }
                expr.parts.push("))".into());
                expr
            }
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
            _ => match self.rng.below(5) {
                4 => {
                    let a = self.make(Ty::Text, depth.min(1));
                    let op = self.rng.pick(&[" ~ '", " !~ '", " ~* '", " !~* '"]);
                    sql!(ty; "(", a, op, Constant::pick(self.rng, &EXPRESSIONS), "')")
                }
                0 => {
                    let of = self.rng.pick(&INTEGERS);
                    let a = self.make(of, depth);
                    // Not by itself: below a filter by it, DataFusion takes the number for a constant, and drops an ORDER BY it.
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
            },
        }
    }

    fn integer(&mut self, ty: Ty, signed: bool, bits: u8, depth: usize) -> Expr {
        if ty == Ty::Int(true, 64) && self.rng.chance(8) {
            return self.of_list(depth.min(1));
        }
        match self.rng.below(12) {
            0..=3 => {
                let (a, b) = (self.make(ty, depth), self.make(ty, depth));
                sql!(ty; "(", a, self.rng.pick(&[" + ", " - ", " * ", " & ", " | ", " ^ "]), b, ")")
            }
            4 => {
                let (a, b) = (self.make(ty, depth), self.make(ty, depth));
                let op = self.rng.pick(&[" / ", " % "]);
                match self.rng.chance(90) {
                    true => sql!(ty; "(", a, op, "nullif(", b, format!(", arrow_cast(0, '{ty}')))")),
                    false => sql!(ty; "(", a, op, b, ")"),
                }
            }
            5 if signed => {
                let a = self.make(ty, depth);
                match self.rng.chance(70) {
                    true => sql!(ty; "(- ", a, ")"),
                    false => sql!(ty; "abs(", a, ")"),
                }
            }
            6 | 7 => self.cast(ty, depth),
            8 if ty == Ty::Int(true, 32) => {
                let of = match self.rng.below(8) {
                    0 | 1 => Ty::Date,
                    2 => self.rng.pick(&ERAS),
                    _ => self.rng.pick(&TIMES),
                };
                let a = self.make(of, depth);
                let parts = ["year", "quarter", "month", "week", "day", "doy", "dow", "isodow", "isoyear"];
                let finer = ["hour", "minute", "second", "millisecond", "microsecond", "nanosecond"];
                let part =
                    if of != Ty::Date && self.rng.chance(40) { self.rng.pick(&finer) } else { self.rng.pick(&parts) };
                sql!(ty; format!("date_part('{part}', "), a, ")")
            }
            8 | 9 if bits == 32 && signed => {
                let a = self.make(Ty::Text, depth.min(1));
                match self.rng.chance(30) {
                    true => sql!(ty; "strpos(", a, ", '", Constant::pick(self.rng, &["o", "é", "", "el"]), "')"),
                    false => sql!(ty; format!("{}(", self.rng.pick(&["length", "octet_length", "ascii"])), a, ")"),
                }
            }
            10 | 11 if bits == 64 && signed && self.rng.chance(60) => match self.rng.below(6) {
                5 => {
                    let a = self.make(Ty::Text, depth.min(1));
                    let function = self.rng.pick(&["regexp_count(", "regexp_instr("]);
                    sql!(ty; function, a, ", '", Constant::pick(self.rng, &EXPRESSIONS), "')")
                }
                0 => {
                    let (a, b) = (self.make(Ty::Date, depth), self.make(Ty::Date, depth));
                    sql!(ty; "arrow_cast((", a, " - ", b, "), 'Int64')")
                }
                1 => {
                    let a = self.make(Ty::Date, depth);
                    sql!(ty; "CAST(date_part('epoch', ", a, ") AS BIGINT)")
                }
                2 => {
                    let of = self.rng.pick(&TIMES[..4]);
                    let (a, b) = (self.make(of, depth), self.make(of, depth));
                    sql!(ty; "arrow_cast((", a, " - ", b, "), 'Int64')")
                }
                3 => {
                    let (a, b) = (self.make(Ty::Int(true, 32), depth), self.make(Ty::Int(true, 16), depth));
                    sql!(ty; format!("{}(", self.rng.pick(&["gcd", "lcm"])), a, ", ", b, ")")
                }
                _ => {
                    let a = self.make(ty, depth);
                    sql!(ty; "round((", a, format!(" / arrow_cast(2, '{ty}')), -{})", self.rng.between(0, 3)))
                }
            },
            10 if bits == 64 && signed => {
                let a = self.make(Ty::Date, depth);
                sql!(ty; "arrow_cast(", a, ", 'Int64')")
            }
            _ => {
                let (a, by) = (self.make(ty, depth), Constant::below(self.rng, 9));
                sql!(ty; "(", a, self.rng.pick(&[" << ", " >> "]), "arrow_cast(", by, format!(", '{ty}'))"))
            }
        }
    }

    fn decimal(&mut self, ty: Ty, depth: usize) -> Expr {
        match self.rng.below(8) {
            0 => {
                let a = self.make(ty, depth);
                sql!(ty; "(- ", a, ")")
            }
            1 => {
                let a = self.make(ty, depth);
                sql!(ty; "abs(", a, ")")
            }
            2 => {
                let a = self.make(ty, depth);
                sql!(ty; "trunc(", a, format!(", {})", self.rng.between(-3, 6)))
            }
            3 => {
                let (a, name) = (self.make(ty, depth), ty.sql().unwrap_or_default());
                sql!(ty; "TRY_CAST(round(", a, format!(", {}) AS {name})", self.rng.between(-3, 6)))
            }
            4 if self.rng.chance(15) => {
                let a = self.make(WIDE, depth.min(1));
                sql!(ty; "arrow_try_cast(", a, format!(", '{ty}')"))
            }
            _ => self.cast(ty, depth),
        }
    }

    /// A cast from some number, text or time; TRY_CAST in most cases.
    fn cast(&mut self, ty: Ty, depth: usize) -> Expr {
        let of = match self.rng.below(10) {
            0..=5 => Ty::Number,
            6 => self.rng.pick(&[Ty::F32, Ty::F64]),
            7 if ty.is_integer() => Ty::Bool,
            8 => Ty::Text,
            _ => self.number_type(),
        };
        // DataFusion panics over a Parquet file where a cast of NOT is compared with a number.
        let a = self.make(of, if of == Ty::Bool { 0 } else { depth });
        let Some(name) = ty.sql() else { return self.leaf(ty) };
        sql!(ty; if self.rng.chance(93) { "TRY_CAST(" } else { "CAST(" }, a, format!(" AS {name})"))
    }

    fn even(&mut self, ty: Ty, depth: usize) -> Expr {
        let a = self.make(ty, depth);
        match self.rng.below(4) {
            0 => {
                let b = self.make(ty, depth);
                sql!(ty; "(", a, self.rng.pick(&[" + ", " - "]), b, ")")
            }
            1 => sql!(ty; "(", a, " * arrow_cast(", Constant::between(self.rng, -4, 4), format!(", '{ty}'))")),
            2 => sql!(ty; format!("{}(", self.rng.pick(&["floor", "ceil", "round", "trunc", "abs"])), a, ")"),
            _ if ty == Ty::Even64 => {
                let b = self.make(Ty::Even32, depth);
                sql!(ty; "CAST(", b, " AS DOUBLE)")
            }
            _ => sql!(ty; "(- ", a, ")"),
        }
    }

    /// `expr`, of which every NaN is the same one: by CASE, as one text, so that both copies stay the same, or by `nanvl`.
    fn one_nan(&mut self, expr: Expr) -> Expr {
        let (ty, text) = (expr.ty, expr.text());
        let nan = format!("arrow_cast('NaN', '{ty}')");
        match text.len() < 300 && self.rng.chance(40) {
            true => sql!(ty; format!("CASE WHEN isnan({text}) THEN {nan} ELSE {text} END")),
            false => around(expr, "nanvl(", nan),
        }
    }

    fn float(&mut self, ty: Ty, depth: usize) -> Expr {
        let even = if ty == Ty::F32 { Ty::Even32 } else { Ty::Even64 };
        match self.rng.below(12) {
            5 => {
                let a = self.make(ty, depth);
                let function = self.rng.pick(&["round", "trunc"]);
                let expr = sql!(ty; format!("{function}("), a, format!(", {})", self.rng.between(-2, 4)));
                self.one_nan(expr)
            }
            6 => {
                let a = self.make(ty, depth);
                let expr = sql!(ty; self.rng.pick(&["signum(", "(- "]), a, ")");
                self.one_nan(expr)
            }
            7 => {
                let (a, b) = (self.make(ty, depth), self.make(ty, depth));
                let expr = sql!(ty; "nanvl(", a, ", ", b, ")");
                self.one_nan(expr)
            }
            0 => {
                let (a, b) = (self.make(even, depth), self.make(even, depth));
                sql!(ty; "(", a, self.rng.pick(&[" / nullif(abs(", " % nullif(abs("]), b, format!("), arrow_cast(0, '{ty}')))"))
            }
            1 => {
                let a = self.make(ty, depth);
                let expr = sql!(ty; format!("{}(", self.rng.pick(&["floor", "ceil", "round", "trunc", "abs"])), a, ")");
                self.one_nan(expr)
            }
            2 => {
                // DataFusion refuses the square root of a number below zero: NaN and ∞ remain.
                let a = self.make(ty, depth);
                if self.rng.chance(10) {
                    return sql!(ty; "sqrt(", a, ")");
                }
                let a = self.one_nan(sql!(ty; "abs(", a, ")"));
                sql!(ty; "sqrt(", a, ")")
            }
            3 => {
                let of = self.rng.pick(&[
                    Ty::F32,
                    Ty::F64,
                    Ty::Int(true, 64),
                    Ty::Int(false, 64),
                    Ty::Dec(15, 2),
                    Ty::Dec(38, 10),
                ]);
                let a = self.make(of, depth);
                let expr = sql!(ty; "CAST(", a, format!(" AS {})", ty.sql().unwrap_or_default()));
                if of.has_nan() && of != ty { self.one_nan(expr) } else { expr }
            }
            8 | 9 => {
                // At most one operand is NaN: ∞ − ∞, 0 × ∞ and 0 ÷ 0 make one, another passes through.
                let (mut a, mut b) = (self.make(ty, depth), self.make(even, depth));
                if self.rng.chance(50) {
                    (a, b) = (b, a);
                }
                sql!(ty; "(", a, self.rng.pick(&[" + ", " - ", " * ", " / "]), b, ")")
            }
            10 => {
                let (a, b) = (self.make(ty, depth), self.make(ty, depth));
                let expr = sql!(ty; "(", a, self.rng.pick(&[" + ", " - ", " * ", " / ", " % "]), b, ")");
                self.one_nan(expr)
            }
            _ => self.leaf(ty),
        }
    }

    /// An operator over numbers of two types.
    fn number(&mut self, depth: usize) -> Expr {
        let ty = Ty::Number;
        let (one, two) = (self.number_type(), self.number_type());
        let (a, b) = (self.make(one, depth), self.make(two, depth));
        match self.rng.below(5) {
            0 => sql!(ty; "(", a, " + ", b, ")"),
            1 => sql!(ty; "(", a, " - ", b, ")"),
            2 => sql!(ty; "(", a, " * ", b, ")"),
            3 if one.is_decimal() && two.is_decimal() => sql!(ty; "(", a, " / nullif(", b, ", 0))"),
            3 if matches!(two, Ty::Even32 | Ty::Even64) => sql!(ty; "(", a, " % nullif(abs(", b, "), 0))"),
            3 => sql!(ty; "(", a, " % nullif(", b, ", 0))"),
            _ => sql!(ty; "coalesce(", a, ", ", b, ")"),
        }
    }

    fn date(&mut self, depth: usize) -> Expr {
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

    fn time(&mut self, ty: Ty, depth: usize) -> Expr {
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

    /// `expr` without NULLs where a query below may have computed it. DataFusion's date_trunc subtracts below NULLs, too, where
    /// its `max` leaves the least of all numbers: a debug build panics.
    fn safe_to_truncate(&mut self, expr: Expr) -> Expr {
        let computed = |(name, _): &(String, Ty)| !COLUMNS.iter().any(|column| column.0 == bare(name));
        if !self.scope.iter().any(computed) {
            return expr;
        }
        let other = expr.ty.value(self.rng);
        around(expr, "coalesce(", other)
    }

    /// A time of the years 1 to 9999. DataFusion truncates to weeks and longer by way of nanoseconds, which do not reach so far.
    fn era(&mut self, ty: Ty, digits: u8, depth: usize) -> Expr {
        let a = self.make(ty, depth);
        match self.rng.below(4) {
            // Of a column: of a constant it does even days by way of nanoseconds.
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
    fn span(&mut self, ty: Ty, span: Span, depth: usize) -> Expr {
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

    fn near_zero(&mut self) -> Constant {
        Constant::draw(self.rng, |rng| rng.between(-2, 3)).map(|number| number.to_string())
    }

    /// A list of integers, made of another one.
    fn list(&mut self, depth: usize) -> Expr {
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
    fn of_list(&mut self, depth: usize) -> Expr {
        let (ty, at) = (Ty::Int(true, 64), self.near_zero());
        let a = self.make(Ty::Ints, depth);
        match self.rng.below(4) {
            0 => sql!(ty; "array_element(", a, ", ", at, ")"),
            1 => sql!(ty; format!("{}(", self.rng.pick(&["array_min", "array_max"])), a, ")"),
            2 => sql!(ty; "arrow_cast(array_position(", a, ", ", at, "), 'Int64')"),
            _ => sql!(ty; "arrow_cast(array_length(", a, "), 'Int64')"),
        }
    }

    fn wide(&mut self, ty: Ty, depth: usize) -> Expr {
        match self.rng.below(4) {
            0 => {
                let (a, b) = (self.make(ty, depth), self.make(ty, depth));
                let sum = sql!(ty; a, self.rng.pick(&[" + ", " - "]), b);
                sql!(ty; "arrow_try_cast((", sum, format!("), '{ty}')"))
            }
            1 => {
                let a = self.make(ty, depth);
                sql!(ty; "(- ", a, ")")
            }
            2 => {
                let of = self.rng.pick(&DECIMALS);
                let a = self.make(of, depth);
                sql!(ty; "arrow_cast(", a, format!(", '{ty}')"))
            }
            _ => self.leaf(ty),
        }
    }

    fn string(&mut self, depth: usize) -> Expr {
        let ty = Ty::Text;
        if self.rng.chance(20) {
            // Texts of two texts that may be equal, as a report's categories are.
            let (when, other) = (self.make(Ty::Bool, depth), self.make(Ty::Bool, depth.min(1)));
            let mut word = || sql!(ty; "'", Constant::pick(self.rng, &["a", "b", "bolt"]), "'");
            let (a, b, c) = (word(), word(), word());
            return sql!(ty; "CASE WHEN ", when, " THEN ", a, " WHEN ", other, " THEN ", b, " ELSE ", c, " END");
        }
        let a = self.make(ty, depth);
        match self.rng.below(21) {
            20 => {
                let all = self.rng.pick(&["', 'ö')", "', '', 'g')", "', '-é', 'gi')"]);
                sql!(ty; "regexp_replace(", a, ", '", Constant::pick(self.rng, &EXPRESSIONS), all)
            }
            13 => {
                let b = self.make(ty, depth.min(1));
                sql!(ty; "concat(", a, ", ", b, ")")
            }
            14 => {
                let b = self.make(ty, depth.min(1));
                sql!(ty; "(", a, " || ", b, ")")
            }
            15 => {
                let b = self.make(ty, depth.min(1));
                sql!(ty; "concat_ws('-', ", a, ", 'é', ", b, ")")
            }
            16 => {
                let b = self.make(ty, depth.min(1));
                sql!(ty; "replace(", a, ", ", b, ", '+')")
            }
            17 => sql!(ty; "translate(", a, ", 'abo1é', 'ü2')"),
            18 => {
                let times = Constant::pick(self.rng, &[-1, 0, 1, 2, 3, 4, 7, 19, 70]);
                sql!(ty; "repeat(", a, ", ", times, ")")
            }
            19 => {
                let number = self.make(Ty::Int(true, 64), depth.min(1));
                sql!(ty; "CAST(", number, " AS VARCHAR)")
            }
            8 => {
                let function = self.rng.pick(&["left(", "right("]);
                sql!(ty; function, a, ", ", Constant::between(self.rng, -3, 6), ")")
            }
            9 => {
                let (name, width) = (self.rng.pick(&["lpad(", "rpad("]), Constant::below(self.rng, 9));
                sql!(ty; name, a, ", ", width, ", 'é*')")
            }
            10 => sql!(ty; "split_part(", a, ", ' ', ", Constant::between(self.rng, 1, 3), ")"),
            11 => sql!(ty; format!("{}(", self.rng.pick(&["ltrim", "rtrim", "initcap"])), a, ")"),
            12 => sql!(ty; "btrim(", a, ", 'ab1')"),
            0 => sql!(ty; "upper(", a, ")"),
            1 => sql!(ty; "lower(", a, ")"),
            2 => {
                let (start, length) = (Constant::between(self.rng, 1, 5), Constant::below(self.rng, 6));
                sql!(ty; "substr(", a, ", ", start, ", ", length, ")")
            }
            3 => sql!(ty; "concat(", a, ", '", self.known("-x", &["", "-y", "日"]), "')"),
            4 => {
                sql!(ty; "replace(", a, ", '", self.known("o", &["e", "n0"]), "', '", self.known("ö", &["", "oo"]), "')")
            }
            5 => sql!(ty; "trim(", a, ")"),
            6 => sql!(ty; "reverse(", a, ")"),
            _ => sql!(ty; "(", a, " || '", self.known("z", &["", "y", "zz"]), "')"),
        }
    }

    /// An aggregate; FILTER now and then. In groups no min or max of NaN: DataFusion's depends on the order of rows there.
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
                // Not of computed floats: the sign of a computed NaN, and with it its place in the order, is the machine's.
                let of = exact(self);
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
            _ => {
                let of = match self.any_type() {
                    _ if self.rng.chance(15) => Ty::Text,
                    Ty::F32 if grouped => Ty::Even32,
                    Ty::F64 if grouped => Ty::Even64,
                    of => of,
                };
                let a = self.make(of, 2);
                sql!(of; format!("{}(", self.rng.pick(&["min", "max"])), a, ")")
            }
        };
        if self.rng.chance(25) {
            let filter = self.make(Ty::Bool, 1);
            expr.parts.extend([" FILTER (WHERE ".into(), filter.into(), ")".into()]);
        }
        expr
    }

    /// An aggregate over rows in an order. They are ordered by what it takes from them, so that rows that tie are equal.
    fn in_order(&mut self) -> Expr {
        let direction = self.rng.pick(&[" ASC NULLS FIRST", " ASC NULLS LAST", " DESC NULLS LAST", " DESC"]);
        if self.rng.chance(50) {
            let a = self.make(Ty::Text, 1);
            let between = self.known("-", &[", ", "é"]);
            let distinct = self.rng.pick(&["", "", "DISTINCT "]);
            let call = format!("string_agg({distinct}");
            return sql!(Ty::Text; call, a.clone(), ", '", between, "' ORDER BY ", a, direction, ")");
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

    /// A window function over the rows of the source. `identity` are columns that tell its rows apart, or that are all they
    /// have: ordered by them too, rows that tie are equal, and so the answer of one window depends on no order of theirs. Where it may
    /// not be `by_rows` it sees a row's equals as one.
    pub fn window(&mut self, identity: &[String], by_rows: bool) -> Expr {
        let mut over: Vec<Part> = vec![" OVER (".into()];
        let partition = self.rng.pick(&[0, 1, 1, 2]);
        for index in 0..partition {
            over.push(if index == 0 { "PARTITION BY ".into() } else { ", ".into() });
            over.push(self.any_column(false).into());
        }
        let direction = |maker: &mut Self| maker.rng.pick(&[" ASC NULLS FIRST", " ASC NULLS LAST", " DESC NULLS LAST"]);
        // By peers: functions that see a row's equals as one, so that the order need not be total.
        let by_peers = self.rng.chance(35) || !by_rows;
        let numbers: Vec<&(String, Ty)> = self.scope.iter().filter(|column| NEAR.contains(&bare(&column.0))).collect();
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
            (true, true) => self.frame(" RANGE BETWEEN "),
            (true, false) => self.frame(" GROUPS BETWEEN "),
            (false, _) => self.frame(" ROWS BETWEEN "),
        };
        let mut expr = match self.rng.below(if by_peers { 7 } else { 12 }) {
            0 => sql!(Ty::Int(true, 64); "count(*)"),
            1 => {
                let a = self.make(of_ty, 1);
                sql!(Ty::Int(true, 64); "count(", a, ")")
            }
            2 | 3 => {
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
            4 => {
                let a = self.make(Ty::Int(true, 32), 1);
                sql!(Ty::F64; "avg(", a, ")")
            }
            5 | 6 => {
                let of = match self.any_type() {
                    Ty::F32 => Ty::Even32,
                    Ty::F64 => Ty::Even64,
                    of => of,
                };
                let a = self.make(of, 1);
                sql!(of; self.rng.pick(&["min(", "max("]), a, ")")
            }
            // These look at no frame.
            7 => {
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
                return expr;
            }
            8 | 9 => {
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
                return expr;
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
        // DataFusion 55.2 takes a running min, max, sum or count for sorted although NULLs come first or in between, and then
        // drops an ORDER BY it. It does not look through NULLIF.
        let other = expr.ty.literal(self.rng);
        around(expr, "nullif(", other)
    }

    /// A window's frame. One that the twin has begins and ends with the same words.
    fn frame(&mut self, unit: &str) -> Vec<Part> {
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
            // One number in both.
            true => (end(first), None),
            false => (end(first), Some(end(last))),
        };
        let last = last.unwrap_or_else(|| first.clone());
        [vec![unit.into()], first, vec![" AND ".into()], last].concat()
    }

    /// Any column but a float: rows that tie by one may be unequal, as 0.0 and -0.0 are. And no interval to order by: DataFusion
    /// has no ranges of them.
    fn any_column(&mut self, order: bool) -> Expr {
        let unfit = |ty| match ty {
            Ty::F32 | Ty::F64 | Ty::Even32 | Ty::Even64 | Ty::Number => true,
            Ty::Span(_) => order,
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

/// Columns of texts that grow with the row number.
const GROWING: [&str; 2] = ["grow", "uniq"];

/// Regular expressions: of letters, classes and places, with empty matches, of which the first is not the longest.
const EXPRESSIONS: [&str; 12] =
    ["o", "", "^b", "l$", "[0-9]+", "a|e", "(b|bo)l?", "é", "[^a-z]", "x*", "b.*?l", "(a|ab)(c|bcd)?"];

/// Columns of small numbers: a RANGE frame around them does not overflow.
const NEAR: [&str; 4] = ["k", "n", "rare", "g"];

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
