//! Numbers: integers, decimals, floats, and casts to them.

use super::{EXPRESSIONS, Expr, Maker, around, sql};
use crate::fuzz::constant::Constant;
use crate::fuzz::ty::{DECIMALS, ERAS, TIMES, Ty, WIDE};

impl Maker<'_> {
    pub(super) fn integer(&mut self, ty: Ty, signed: bool, bits: u8, depth: usize) -> Expr {
        if ty == Ty::Int(true, 64) && self.rng.chance(8) {
            return match self.rng.chance(70) {
                true => self.of_list(depth.min(1)),
                false => self.of_pair(ty, depth.min(1)),
            };
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

    pub(super) fn decimal(&mut self, ty: Ty, depth: usize) -> Expr {
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
    pub(super) fn cast(&mut self, ty: Ty, depth: usize) -> Expr {
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

    pub(super) fn even(&mut self, ty: Ty, depth: usize) -> Expr {
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

    /// A float of 16 bits. Finite numbers are added to others, which makes no NaN and no -0.0.
    pub(super) fn half(&mut self, depth: usize) -> Expr {
        let ty = Ty::Half;
        match self.rng.below(3) {
            0 => {
                let a = self.make(Ty::Int(true, 16), depth);
                sql!(ty; "arrow_cast(", a, format!(", '{ty}')"))
            }
            1 => {
                let (a, b) = (self.make(ty, depth), ty.value(self.rng));
                sql!(ty; "(", a, self.rng.pick(&[" + ", " - "]), b, ")")
            }
            _ => self.leaf(ty),
        }
    }

    /// `expr`, of which every NaN is the same one: by CASE, as one text, so that both copies stay the same, or by
    /// `nanvl`.
    pub(super) fn one_nan(&mut self, expr: Expr) -> Expr {
        let (ty, text) = (expr.ty, expr.text());
        let nan = format!("arrow_cast('NaN', '{ty}')");
        match text.len() < 300 && self.rng.chance(40) {
            true => sql!(ty; format!("CASE WHEN isnan({text}) THEN {nan} ELSE {text} END")),
            false => around(expr, "nanvl(", nan),
        }
    }

    pub(super) fn float(&mut self, ty: Ty, depth: usize) -> Expr {
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
                    Ty::Half,
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
    pub(super) fn number(&mut self, depth: usize) -> Expr {
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

    pub(super) fn wide(&mut self, ty: Ty, depth: usize) -> Expr {
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
}
