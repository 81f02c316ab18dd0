//! Strings.

use super::{EXPRESSIONS, Expr, Maker, sql};
use crate::fuzz::constant::Constant;
use crate::fuzz::ty::Ty;

impl Maker<'_> {
    pub(super) fn string(&mut self, depth: usize) -> Expr {
        let ty = Ty::Text;
        if self.rng.chance(20) {
            // Texts of two texts that may be equal, as a report's categories are.
            let (when, other) = (self.make(Ty::Bool, depth), self.make(Ty::Bool, depth.min(1)));
            let mut word = || sql!(ty; "'", Constant::pick(self.rng, &["a", "b", "bolt"]), "'");
            let (a, b, c) = (word(), word(), word());
            return sql!(ty; "CASE WHEN ", when, " THEN ", a, " WHEN ", other, " THEN ", b, " ELSE ", c, " END");
        }
        if self.rng.chance(4) {
            return self.of_pair(ty, depth.min(1));
        }
        let a = self.make(ty, depth);
        match self.rng.below(22) {
            21 => {
                let (start, length) = (Constant::between(self.rng, 1, 5), Constant::below(self.rng, 6));
                sql!(ty; "overlay(", a, " PLACING 'xé' FROM ", start, " FOR ", length, ")")
            }
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
}
