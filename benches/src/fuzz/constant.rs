//! Constants of random queries, each with two values: a query and its twin differ in these alone.
//!
//! ```text
//!   SELECT … WHERE (k < ⟨3│17⟩) … LIMIT ⟨5│30⟩      left: the query · right: its twin
//! ```
//!
//! Streams  the first value comes from the query's own stream, so that a seed yields the same query with and without a
//!          twin; the second value comes from a separate stream.
//! Shape    both values have the same form: a number for a number, a string for a string, NULL for NULL. So both have
//!          one type.
//! Tests    most random constants change no answer; a query that gets a twin gets one more test in WHERE,
//!          [`Query::tested`], or several of one column: lists that overlap, equal constants, contradictions,
//!          conditions that fold.
//! Fixed    numbers on which a type depends (digits of round and trunc), zeros that guard a division, and what
//!          `Maker::one_nan` copies.

use super::expr::{Expr, Part, sql};
use super::query::Query;
use super::rng::Rng;
use super::source::{Source, bare};
use super::ty::Ty;

/// The value in a query, and the one in its twin.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant<T = String>(pub T, pub T);

impl<T: Clone> Constant<T> {
    /// Draws both; in some cases the twin keeps the first, so that parts of two statements stay alike.
    pub fn draw(rng: &mut Rng, draw: impl Fn(&mut Rng) -> T) -> Self {
        let first = draw(rng);
        let other = rng.aside(|rng| if rng.chance(25) { first.clone() } else { draw(rng) });
        Constant(first, other)
    }

    /// One value for the query and its twin.
    pub fn same(value: T) -> Self {
        Constant(value.clone(), value)
    }

    pub fn map<U>(self, of: impl Fn(T) -> U) -> Constant<U> {
        Constant(of(self.0), of(self.1))
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.0, &mut self.1);
    }
}

impl Constant {
    /// Draws two SQL texts of one shape.
    pub fn text(rng: &mut Rng, draw: impl Fn(&mut Rng) -> String) -> Self {
        let first = draw(rng);
        let wanted = shape(&first);
        let other = rng.aside(|rng| match rng.chance(25) {
            true => None,
            false => (0..8).map(|_| draw(rng)).find(|other| shape(other) == wanted),
        });
        let other = other.unwrap_or_else(|| first.clone());
        Constant(first, other)
    }

    /// A number from `low` to `high`.
    pub fn between(rng: &mut Rng, low: i64, high: i64) -> Self {
        Constant::draw(rng, |rng| rng.between(low, high)).map(|number| number.to_string())
    }

    /// A number below `limit`.
    pub fn below(rng: &mut Rng, limit: usize) -> Self {
        Constant::draw(rng, |rng| rng.below(limit)).map(|number| number.to_string())
    }

    pub fn pick<T: Copy + ToString>(rng: &mut Rng, of: &[T]) -> Self {
        Constant::draw(rng, |rng| rng.pick(of)).map(|value| value.to_string())
    }

    /// A pattern of LIKE: the twin has one of the same form over another letter, or any of them.
    pub fn pattern(rng: &mut Rng, patterns: &[&str]) -> Self {
        let first = rng.pick(patterns).to_string();
        let other = rng.aside(|rng| match rng.below(5) {
            0 => first.clone(),
            1 | 2 => rng.pick(patterns).to_string(),
            _ => {
                let letter = rng.pick(&["a", "e", "l", "n", "t", "0", "5"]);
                first.replace(|c: char| c.is_alphanumeric(), letter)
            }
        });
        Constant(first, other)
    }
}

/// `text` with one sign for each number, string, and truth value.
fn shape(text: &str) -> String {
    let mut shape = String::new();
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            '\'' => {
                // Two quotes inside a string are one letter of it.
                while let Some(inside) = rest.next() {
                    if inside == '\'' && rest.next_if_eq(&'\'').is_none() {
                        break;
                    }
                }
                shape.push('\'');
            }
            '-' if rest.peek().is_some_and(char::is_ascii_digit) => (),
            '0'..='9' => {
                while rest.next_if(|next| next.is_ascii_digit() || *next == '.').is_some() {}
                shape.push('0');
            }
            _ => shape.push(letter),
        }
    }
    shape.replace("true", "?").replace("false", "?")
}

impl Query {
    /// The same query with the other value of each constant. `twin` is its own inverse.
    pub fn twin(&self) -> Query {
        let mut twin = self.clone();
        swap_query(&mut twin);
        twin
    }
}

/// Columns with few values, or with as many as rows.
const TESTED: [&str; 17] =
    ["id", "id", "k", "n", "g", "i8", "u8", "rare", "early", "j", "s", "v", "grow", "day", "d15", "e32", "ts_s"];

impl Query {
    /// The same query with one more test of a column against constants, and some of the queries inside FROM with one,
    /// too: so that a twin has other rows.
    #[must_use]
    pub fn tested(mut self, rng: &mut Rng) -> Query {
        test_query(&mut self, None, rng);
        self
    }
}

fn test_query(query: &mut Query, with: Option<&Query>, rng: &mut Rng) {
    let inner: Vec<&mut Source> = match &mut query.source {
        Source::Joins(joins) => {
            [&mut *joins.first].into_iter().chain(joins.rest.iter_mut().map(|join| &mut join.right)).collect()
        }
        source => vec![source],
    };
    for source in inner {
        if let Source::Query(query) = source
            && rng.chance(60)
        {
            test_query(query, None, rng);
        }
    }
    if let Some(with) = &mut query.with
        && rng.chance(50)
    {
        test_query(with, None, rng);
    }
    let scope = query.source.columns(query.with.as_deref().or(with));
    if let Some(test) = test(scope, rng) {
        query.filter = Some(match query.filter.take() {
            Some(filter) => sql!(Ty::Bool; "(", test, " AND ", filter, ")"),
            None => test,
        });
    }
}

/// A test of one of the columns in `scope`.
fn test(scope: Vec<(String, Ty)>, rng: &mut Rng) -> Option<Expr> {
    let fits = |ty: Ty| {
        !matches!(ty, Ty::F32 | Ty::F64 | Ty::Wide(..) | Ty::Span(_) | Ty::Half | Ty::Number | Ty::Bool)
            && !ty.is_nested()
    };
    let mut columns: Vec<_> = scope.iter().filter(|(name, _)| TESTED.contains(&bare(name))).collect();
    if columns.is_empty() {
        columns = scope.iter().filter(|(_, ty)| fits(*ty)).collect();
    }
    if columns.is_empty() {
        return None;
    }
    let (name, ty) = columns[rng.below(columns.len())].clone();
    let mut drawn = Drawn { name, ty, constants: vec![] };
    let mut test = drawn.test(rng);
    for _ in 0..rng.pick(&[0, 0, 0, 1, 1, 2]) {
        let (op, other) = (rng.pick(&[" AND ", " AND ", " AND NOT ", " OR ", " OR NOT "]), drawn.test(rng));
        test = sql!(Ty::Bool; "(", test, op, other, ")");
    }
    if rng.chance(8) {
        // Expressions that are folded before any row is read.
        let (a, b) = (Constant::below(rng, 3), Constant::below(rng, 3));
        let op = rng.pick(&[" = ", " < ", " <> "]);
        test = sql!(Ty::Bool; "(", test, rng.pick(&[" AND ", " OR "]), "(", a, op, b, "))");
    }
    Some(test)
}

/// Tests of one column: their constants are equal now and then, so that lists overlap, and tests contradict one
/// another.
struct Drawn {
    name: String,
    ty: Ty,
    constants: Vec<Constant>,
}

impl Drawn {
    fn constant(&mut self, rng: &mut Rng) -> Constant {
        if !self.constants.is_empty() && rng.chance(40) {
            return self.constants[rng.below(self.constants.len())].clone();
        }
        let constant = match bare(&self.name) {
            "id" => Constant::between(rng, 0, 60),
            "k" | "n" | "g" | "j" | "early" | "rare" if self.ty.is_integer() => Constant::between(rng, -3, 9),
            _ => self.ty.value(rng),
        };
        self.constants.push(constant.clone());
        constant
    }

    fn test(&mut self, rng: &mut Rng) -> Expr {
        let column = sql!(self.ty; self.name.clone());
        match rng.below(7) {
            0 => {
                let (a, b) = (self.constant(rng), self.constant(rng));
                sql!(Ty::Bool; "(", column, " BETWEEN ", a, " AND ", b, ")")
            }
            1 | 2 => {
                let mut test = sql!(Ty::Bool; "(", column, rng.pick(&[" IN (", " NOT IN ("]), self.constant(rng));
                for _ in 1..rng.pick(&[1, 2, 3, 4, 4, 5, 6]) {
                    test.parts.extend([", ".into(), self.constant(rng).into()]);
                }
                test.parts.push("))".into());
                test
            }
            _ => {
                let op = rng.pick(&[" = ", " <> ", " < ", " < ", " >= ", " >= "]);
                sql!(Ty::Bool; "(", column, op, self.constant(rng), ")")
            }
        }
    }
}

fn swap_query(query: &mut Query) {
    query.expressions_mut().into_iter().for_each(swap_expr);
    if let Some((kept, skipped)) = &mut query.limit {
        kept.iter_mut().for_each(Constant::swap);
        skipped.swap();
    }
    query.with.iter_mut().for_each(|with| swap_query(with));
    query.set.iter_mut().for_each(|(_, right)| swap_query(right));
    swap_source(&mut query.source);
}

/// The queries of a source; its expressions are among those of the query around it.
fn swap_source(source: &mut Source) {
    match source {
        Source::Query(query) => swap_query(query),
        Source::Joins(joins) => {
            swap_source(&mut joins.first);
            joins.rest.iter_mut().for_each(|join| swap_source(&mut join.right));
        }
        Source::Table(_) | Source::Unnested(..) | Source::With | Source::Lateral(..) => (),
    }
}

fn swap_expr(expr: &mut Expr) {
    for part in &mut expr.parts {
        match part {
            Part::Constant(constant) => constant.swap(),
            Part::Sub(expr) => swap_expr(expr),
            Part::Text(_) => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_constants() {
        for (one, two) in [("-7", "12.5"), ("'it''s'", "''"), ("true", "false"), ("DATE '2000-01-01'", "DATE 'x'")] {
            assert_eq!(shape(one), shape(two));
        }
        for (one, two) in [("(- 'NaN')", "'NaN'"), ("1", "'1'"), ("1", "true"), ("a -1", "a - 1"), ("0", "(-0 - 1)")] {
            assert_ne!(shape(one), shape(two));
        }
    }

    #[test]
    fn a_twin_differs_in_constants_alone() {
        let mut changed = 0;
        for number in 0..2000 {
            let query = Query::random(0xfea7, number);
            let twin = query.twin();
            assert_eq!(shape(&query.sql()), shape(&twin.sql()), "{}\n{}", query.sql(), twin.sql());
            assert_eq!(twin.twin(), query);
            changed += u32::from(query.sql() != twin.sql());
        }
        assert!(changed > 1200, "only {changed} of 2000 twins have other constants");
    }

    /// Each kind of constant is another one in some twins.
    #[test]
    fn every_kind_of_constant_changes() {
        let pairs: Vec<(String, String)> = (0..4000)
            .map(|number| Query::random(0xfea7, number))
            .map(|query| (query.sql(), query.twin().sql()))
            .collect();
        for word in
            [" LIMIT ", " OFFSET ", "LIKE '", "DATE '", "INTERVAL '", "repeat(", "substr(", "PRECEDING", " IN ("]
        {
            // Of a short query, whose other constants are few.
            let changed = pairs.iter().filter(|(one, two)| one != two && one.contains(word) && two.contains(word));
            let after = |sql: &str| sql.split(word).nth(1).map(|rest| rest.chars().take(12).collect::<String>());
            let before = |sql: &str| sql.split(word).next().map(|rest| rest.chars().rev().take(12).collect::<String>());
            let changed = changed.filter(|(one, two)| after(one) != after(two) || before(one) != before(two)).count();
            assert!(changed > 5, "{word}: {changed}");
        }
    }

    #[test]
    fn a_test_more_has_constants_of_its_own() {
        let mut changed = 0;
        for number in 0..1000 {
            let query = Query::random(0xfea7, number);
            let tested = query.clone().tested(&mut Rng::new(1, number));
            let (text, twin) = (tested.sql(), tested.twin().sql());
            assert_eq!(shape(&text), shape(&twin), "{text}\n{twin}");
            changed += u32::from(text != twin && text.len() > query.sql().len());
        }
        assert!(changed > 850, "only {changed} of 1000");
    }

    /// Lists of one column in one condition, over constants that both have.
    #[test]
    fn tests_of_one_column_meet() {
        let (mut lists, mut shared) = (0, 0);
        for number in 0..4000 {
            let mut rng = Rng::new(2, number);
            let mut drawn = Drawn { name: "id".to_string(), ty: Ty::Int(true, 64), constants: vec![] };
            let both = [drawn.test(&mut rng).text(), drawn.test(&mut rng).text()];
            let items = |text: &str| {
                let list = text.split(" IN (").nth(1)?.trim_end_matches(')');
                Some(list.split(", ").map(str::to_string).collect::<Vec<_>>())
            };
            if let [Some(one), Some(other)] = [items(&both[0]), items(&both[1])] {
                lists += 1;
                shared += u32::from(one.iter().any(|item| other.contains(item)));
            }
        }
        assert!(lists > 150 && shared * 4 > lists, "{lists} with two lists, {shared} of them with a common item");
    }

    /// A reduced pair is still a pair: both statements lose the same parts.
    #[test]
    fn a_smaller_twin_is_the_twin_of_the_smaller_query() {
        for number in 0..40 {
            let query = Query::random(3, number);
            for smaller in query.smaller().iter().take(200) {
                assert_eq!(shape(&smaller.sql()), shape(&smaller.twin().sql()));
            }
        }
    }
}
