//! Random queries: filter, projection, joins, windows, aggregates, grouping sets, HAVING, DISTINCT, set operations,
//! WITH, subqueries, ORDER BY, LIMIT and OFFSET, and queries inside FROM.
//!
//! Order   an ORDER BY names every output column, so that rows that tie are equal; LIMIT and OFFSET stand only below
//!         one.

use super::constant::Constant;
use super::data::{COLUMNS, columns_of, rows_of_table};
use super::expr::{Expr, Maker, Part, sql};
use super::rng::Rng;
use super::source::{Source, bare};
use super::ty::Ty;

/// One output column's place in ORDER BY.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Order {
    pub descending: bool,
    pub nulls_first: bool,
}

/// How keys make groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    Plain,
    Rollup,
    Cube,
    /// Each key alone, and one group of all.
    Sets,
}

/// A query. Its output columns are numbered, `o0`, `o1`, … : keys first, then aggregates or expressions.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// First letter of the output columns' names: another one inside FROM, because DataFusion 55.2 takes
    /// `lower(o0) AS o0` for `o0` when it pushes a limit below a DISTINCT.
    letter: char,
    /// `WITH w AS (…)`.
    pub with: Option<Box<Query>>,
    pub source: Source,
    pub filter: Option<Expr>,
    /// Grouping keys; `Some` of nothing is one group of all rows.
    pub keys: Option<Vec<Expr>>,
    pub grouping: Grouping,
    pub outputs: Vec<Expr>,
    pub having: Option<Expr>,
    pub distinct: bool,
    /// A set operation, and its right side.
    pub set: Option<(&'static str, Box<Query>)>,
    pub order: Option<Vec<Order>>,
    /// Rows that are kept and rows that are skipped before them. All the rest are kept in an outermost query only:
    /// DataFusion 55.2 drops `ORDER BY … OFFSET n` of a subquery below a join.
    pub limit: Option<(Option<Constant<usize>>, Constant<usize>)>,
}

const SETS: [&str; 6] = ["UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"];

impl Query {
    /// Query `number` of a seed.
    pub fn random(seed: u64, number: u64) -> Query {
        let mut rng = Rng::new(seed, number);
        let with = rng.chance(12).then(|| {
            let mut query = Self::make(&mut rng, 1, false, None, None);
            query.letter = 'w';
            Box::new(query)
        });
        let mut query = Self::make(&mut rng, 2, true, None, with.as_deref());
        query.with = with;
        query
    }

    /// A query with `nesting` levels left, whose outputs have the types `wanted` if there are any.
    pub fn make(rng: &mut Rng, nesting: usize, outermost: bool, wanted: Option<&[Ty]>, with: Option<&Query>) -> Query {
        let source = Source::random(rng, nesting, with);
        let scope = source.columns(with);
        let mut maker = Maker { rng, scope };
        let mut filter = maker.rng.chance(55).then(|| maker.make(Ty::Bool, 3));
        if maker.rng.chance(15) {
            let test = subquery(&mut maker);
            filter = Some(match filter {
                Some(filter) if maker.rng.chance(50) => sql!(Ty::Bool; "(", test, " AND ", filter, ")"),
                Some(filter) => sql!(Ty::Bool; "(", test, " OR ", filter, ")"),
                None => test,
            });
        }
        let mut query = Query {
            letter: ['m', 'n', 'o'][nesting],
            with: None,
            source,
            filter,
            keys: None,
            grouping: Grouping::Plain,
            outputs: Vec::new(),
            having: None,
            distinct: false,
            set: None,
            order: None,
            limit: None,
        };
        if let Some(wanted) = wanted {
            query.outputs = wanted.iter().map(|ty| maker.make(*ty, 2)).collect();
            query.distinct = maker.rng.chance(10);
            return query;
        }
        if maker.rng.chance(42) {
            let keys = maker.rng.pick(&[0, 1, 1, 2, 2, 3]);
            query.keys = Some((0..keys).map(|_| Self::key(&mut maker)).collect());
            query.outputs = (0..maker.rng.below(4) + 1).map(|_| maker.aggregate(keys > 0)).collect();
            if let (Source::Table(name), true) = (&query.source, maker.rng.chance(25)) {
                query.outputs.push(maker.digest(rows_of_table(name)));
            }
            // Only over columns of one table: DataFusion 55.2 takes a constant key for constant in all groups of a set,
            // and keys that a join makes equal for equal where a set leaves one out.
            let table = matches!(query.source, Source::Table(_));
            if keys > 0 && table && maker.rng.chance(12) {
                query.grouping = maker.rng.pick(&[Grouping::Rollup, Grouping::Cube, Grouping::Sets]);
                query.keys = Some((0..keys).map(|_| Self::column_key(&mut maker)).collect());
            }
            if maker.rng.chance(25) {
                let of = query.outputs[maker.rng.below(query.outputs.len())].clone();
                let op = maker.rng.pick(&[" > ", " <= ", " <> "]);
                let bound = sql!(of.ty; of.ty.literal(maker.rng));
                query.having = Some(sql!(Ty::Bool; "(", of, op, bound, ")"));
            }
        } else {
            let mut has_window = false;
            for _ in 0..maker.rng.below(4) + 1 {
                let ty = maker.any_type();
                let output = match maker.rng.below(100) {
                    0..=3 => scalar(&mut maker),
                    4..=11 => {
                        // Of rows that tie, two windows by rows pair what they give as they please.
                        let by_rows = query.source.tells_rows_apart() || !has_window;
                        has_window = true;
                        maker.window(&query.source.identity(with), by_rows)
                    }
                    _ => maker.make(ty, 3),
                };
                query.outputs.push(output);
            }
            query.distinct = maker.rng.chance(12);
        }
        if maker.rng.chance(10) && nesting > 0 {
            let types: Vec<Ty> = query.columns().into_iter().map(|(_, ty)| ty).collect();
            let operator = maker.rng.pick(&SETS);
            query.set = Some((operator, Box::new(Self::make(maker.rng, nesting - 1, false, Some(&types), with))));
        }
        if maker.rng.chance(35) {
            let order = |_| Order { descending: maker.rng.chance(50), nulls_first: maker.rng.chance(50) };
            query.order = Some((0..query.num_columns()).map(order).collect());
            if maker.rng.chance(if outermost { 45 } else { 70 }) {
                let kept = (!outermost || maker.rng.chance(85)).then(|| Constant::draw(maker.rng, |rng| rng.below(40)));
                let skips = kept.is_none() || maker.rng.chance(30);
                let skipped = if skips { Constant::draw(maker.rng, |rng| rng.below(20)) } else { Constant::same(0) };
                // OFFSET 0 is left out, in a twin too.
                let other = if skipped.0 == 0 { 0 } else { skipped.1.max(1) };
                let skipped = Constant(skipped.0, other);
                query.limit = Some((kept, skipped));
            }
            // DataFusion's TopK of each part of a union leaves out what the others have found by the keys that vary
            // within a part, although keys that are constant in one differ between them: what comes out depends on who
            // is first. And it leaves lists out by a comparison that has NULL items where the order has not.
            if query.unites(with) || query.columns().iter().any(|column| column.1.is_nested()) {
                query.limit = None;
            }
        }
        query
    }

    /// True where a set operation is in the query or below it; `with` is that of its WITH clause.
    pub fn unites(&self, with: Option<&Query>) -> bool {
        self.set.is_some() || self.source.unites(with)
    }

    fn key(maker: &mut Maker<'_>) -> Expr {
        if maker.rng.chance(60) {
            return Self::column_key(maker);
        }
        let ty = maker.any_type();
        maker.make(ty, 2)
    }

    /// A column with few values, if there is one.
    fn column_key(maker: &mut Maker<'_>) -> Expr {
        let preferred: Vec<(String, Ty)> = maker
            .scope
            .iter()
            .filter(|(name, _)| {
                [
                    "k", "b", "c", "s", "v", "i8", "rare", "nothing", "day", "u16", "j", "g", "grow", "span_m", "f32",
                    "f64", "list", "pair", "half",
                ]
                .contains(&bare(name))
            })
            .cloned()
            .collect();
        let columns = if preferred.is_empty() { &maker.scope } else { &preferred };
        let (name, ty) = columns[maker.rng.below(columns.len())].clone();
        sql!(ty; name)
    }

    fn num_columns(&self) -> usize {
        self.keys.as_ref().map_or(0, Vec::len) + self.outputs.len()
    }

    /// Names and types of the output columns.
    pub fn columns(&self) -> Vec<(String, Ty)> {
        let all = self.keys.iter().flatten().chain(&self.outputs);
        all.enumerate().map(|(index, expr)| (format!("{}{index}", self.letter), expr.ty)).collect()
    }

    /// The query in SQL.
    pub fn sql(&self) -> String {
        let mut sql = match &self.with {
            Some(with) => format!("WITH w AS ({}) ", with.sql()),
            None => String::new(),
        };
        let cut = self.limit.is_some();
        sql += &self.select(cut);
        if let Some((operator, right)) = &self.set {
            sql += &format!(" {operator} {}", right.select(cut));
        }
        if let Some(order) = &self.order {
            let one = |(index, order): (usize, &Order)| {
                let direction = if order.descending { "DESC" } else { "ASC" };
                format!("{}{index} {direction} NULLS {}", self.letter, if order.nulls_first { "FIRST" } else { "LAST" })
            };
            let order: Vec<String> = order.iter().enumerate().map(one).collect();
            sql += &format!(" ORDER BY {}", order.join(", "));
        }
        if let Some((kept, skipped)) = &self.limit {
            if let Some(kept) = kept {
                sql += &format!(" LIMIT {}", kept.0);
            }
            if skipped.0 > 0 || kept.is_none() {
                sql += &format!(" OFFSET {}", skipped.0);
            }
        }
        sql
    }

    /// Without WITH, set operation, ORDER BY and LIMIT.
    ///
    /// Of an answer that a LIMIT cuts no float is -0.0: DataFusion sorts it below 0.0, but leaves rows out beforehand
    /// by a comparison that takes the two for equal.
    fn select(&self, cut: bool) -> String {
        let all = self.keys.iter().flatten().chain(&self.outputs);
        let output = |expr: &Expr| match expr.ty {
            Ty::F32 | Ty::F64 | Ty::Even32 | Ty::Even64 if cut => {
                format!("({} + arrow_cast(0, '{}'))", expr.text(), expr.ty)
            }
            _ => expr.text(),
        };
        let outputs: Vec<String> =
            all.enumerate().map(|(index, expr)| format!("{} AS {}{index}", output(expr), self.letter)).collect();
        let distinct = if self.distinct { "DISTINCT " } else { "" };
        let mut sql = format!("SELECT {distinct}{} FROM {}", outputs.join(", "), self.source.sql());
        if let Some(filter) = &self.filter {
            sql += &format!(" WHERE {}", filter.text());
        }
        if let Some(keys) = self.keys.as_ref().filter(|keys| !keys.is_empty()) {
            let texts: Vec<String> = keys.iter().map(Expr::text).collect();
            let all = texts.join(", ");
            sql += &match self.grouping {
                Grouping::Plain => {
                    let numbers: Vec<String> = (1..=keys.len()).map(|n| n.to_string()).collect();
                    format!(" GROUP BY {}", numbers.join(", "))
                }
                Grouping::Rollup => format!(" GROUP BY ROLLUP ({all})"),
                Grouping::Cube => format!(" GROUP BY CUBE ({all})"),
                Grouping::Sets => format!(" GROUP BY GROUPING SETS (({}), ())", texts.join("), (")),
            };
        }
        if let Some(having) = &self.having {
            sql += &format!(" HAVING {}", having.text());
        }
        sql
    }

    /// Queries that are a little smaller than this one, in the order in which they are worth trying.
    pub fn smaller(&self) -> Vec<Query> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Query)| {
            let mut query = self.clone();
            change(&mut query);
            if query != *self {
                all.push(query);
            }
        };
        if let Source::Query(inner) = &self.source {
            // The inner query alone may be enough.
            with(&|query| *query = Query { with: query.with.clone(), ..(**inner).clone() });
        }
        if let Some(inner) = &self.with {
            with(&|query| *query = (**inner).clone());
            with(&|query| query.with = None);
        }
        if let Some((_, right)) = &self.set {
            with(&|query| query.set = None);
            with(&|query| *query = Query { with: query.with.clone(), ..(**right).clone() });
        }
        with(&|query| query.limit = None);
        if self.limit.is_none() {
            with(&|query| query.order = None);
        }
        with(&|query| query.having = None);
        with(&|query| query.filter = None);
        with(&|query| query.distinct = false);
        with(&|query| query.grouping = Grouping::Plain);
        let keys = self.keys.as_ref().map_or(0, Vec::len);
        if self.set.is_none() {
            for index in 0..keys {
                with(&|query| {
                    if query.num_columns() > 1 {
                        query.keys.iter_mut().for_each(|keys| drop(keys.remove(index)));
                        query.order.iter_mut().for_each(|order| _ = order.remove(index));
                    }
                });
            }
            for index in 0..self.outputs.len() {
                with(&|query| {
                    if query.outputs.len() > 1 {
                        query.outputs.remove(index);
                        query.order.iter_mut().for_each(|order| _ = order.remove(keys + index));
                    }
                });
            }
        } else if keys == 0 && self.keys.is_none() {
            for index in 0..self.outputs.len() {
                with(&|query| {
                    if let (Some((_, right)), true) = (&mut query.set, query.outputs.len() > 1) {
                        query.outputs.remove(index);
                        right.outputs.remove(index);
                        query.order.iter_mut().for_each(|order| _ = order.remove(index));
                    }
                });
            }
        }
        for source in self.source.smaller() {
            with(&|query| query.source = source.clone());
        }
        if let Some(inner) = &self.with {
            for smaller in inner.smaller() {
                with(&|query| query.with = Some(Box::new(smaller.clone())));
            }
        }
        if let Some((operator, right)) = &self.set {
            for smaller in right.smaller() {
                if smaller.num_columns() == self.num_columns() {
                    with(&|query| query.set = Some((operator, Box::new(smaller.clone()))));
                }
            }
        }
        for (slot, expr) in self.expressions().into_iter().enumerate() {
            for index in 0..expr.size() {
                let mut whole = expr.clone();
                let Some(smaller) = whole.nth_mut(index).map(|inner| inner.smaller()) else { break };
                for replacement in smaller {
                    with(&|query| {
                        if let Some(place) = query.expressions_mut().into_iter().nth(slot)
                            && let Some(place) = place.nth_mut(index)
                        {
                            *place = replacement.clone();
                        }
                    });
                }
            }
        }
        all
    }

    fn expressions(&self) -> Vec<&Expr> {
        let mut all: Vec<&Expr> =
            self.filter.iter().chain(self.keys.iter().flatten()).chain(&self.outputs).chain(&self.having).collect();
        self.source.expressions(&mut all);
        all
    }

    pub(super) fn expressions_mut(&mut self) -> Vec<&mut Expr> {
        let keys = self.keys.iter_mut().flatten();
        let mut all: Vec<&mut Expr> =
            self.filter.iter_mut().chain(keys).chain(&mut self.outputs).chain(&mut self.having).collect();
        self.source.expressions_mut(&mut all);
        all
    }

    /// True when DataFusion is free to skip rows or expressions, so that a row's error may or may not be met.
    pub fn may_skip_errors(&self) -> bool {
        let sql = self.sql();
        [
            " WHERE ",
            " AND ",
            " OR ",
            "CASE ",
            "coalesce(",
            " HAVING ",
            " FILTER ",
            " LIMIT ",
            " OFFSET ",
            " OVER (",
            " IN (",
            " BETWEEN ",
            " JOIN ",
            "UNION",
            "INTERSECT",
            "EXCEPT",
            "WITH ",
        ]
        .iter()
        .any(|word| sql.contains(word))
            || matches!(self.source, Source::Query(_))
    }
}

/// Tables that a subquery reads.
const INNER: [&str; 5] = ["m0", "m1", "m7", "m33", "p64"];

/// The columns of a subquery's table.
fn inner_scope(table: &str) -> Vec<(String, Ty)> {
    columns_of(table).iter().map(|(name, ty)| (format!("x.{name}"), *ty)).collect()
}

/// A LATERAL subquery: an aggregate over the rows of a table that match a row of the columns in `scope`. And its
/// output.
pub fn lateral(rng: &mut Rng, scope: Vec<(String, Ty)>) -> Option<(Expr, (String, Ty))> {
    let mut maker = Maker { rng, scope };
    let table = maker.rng.pick(&INNER);
    let of = maker.rng.pick(&["i32", "n", "d15", "k", "day", "s", "grow"]);
    let ty = COLUMNS.iter().find(|column| column.0 == of)?.1;
    let function = maker.rng.pick(&["min", "max", "count", "count"]);
    let ty = if function == "count" { Ty::Int(true, 64) } else { ty };
    let (inside, outside) = correlated(&mut maker)?;
    let test = match maker.rng.chance(40) {
        true => {
            let mut inner = Maker { rng: maker.rng, scope: inner_scope(table) };
            sql!(Ty::Bool; " AND ", inner.make(Ty::Bool, 1))
        }
        false => sql!(Ty::Bool; ""),
    };
    let head = format!("LATERAL (SELECT {function}(x.{of}) AS l0 FROM {table} AS x WHERE {} = ", inside.text());
    Some((sql!(ty; head, outside, test, ")"), ("l0".to_string(), ty)))
}

/// A column of the subquery's table, preferably one with few values, and one outside of a type that compares with it.
fn correlated(maker: &mut Maker<'_>) -> Option<(Expr, Expr)> {
    let name = maker.rng.pick(&["k", "j", "g", "i8", "s", "v", "id", "b", "rare", "day"]);
    let ty = COLUMNS.iter().find(|column| column.0 == name)?.1;
    let outside = maker.column(ty)?;
    Some((sql!(ty; format!("x.{name}")), outside))
}

/// EXISTS, NOT EXISTS, IN or NOT IN.
fn subquery(maker: &mut Maker<'_>) -> Expr {
    let ty = Ty::Bool;
    let table = maker.rng.pick(&INNER);
    let Some((inside, outside)) = correlated(maker) else { return sql!(ty; "true") };
    let test = maker.rng.chance(60).then(|| {
        let mut inner = Maker { rng: maker.rng, scope: inner_scope(table) };
        inner.make(Ty::Bool, 1)
    });
    let and = |test: Option<Expr>| -> (Part, Part) {
        match test {
            Some(test) => (" AND ".into(), test.into()),
            None => ("".into(), "".into()),
        }
    };
    let not = if maker.rng.chance(45) { "NOT " } else { "" };
    if maker.rng.chance(50) {
        // Occasionally a condition other than an equality: it becomes a join's residual.
        let residual = match (maker.rng.chance(20), maker.column(Ty::Int(true, 32))) {
            (true, Some(column)) => sql!(ty; " AND (x.k < ", column, ")"),
            _ => sql!(ty; ""),
        };
        let (word, test) = and(test);
        let head = format!("({not}EXISTS (SELECT 1 FROM {table} AS x WHERE {} = ", inside.text());
        return sql!(ty; head, outside, word, test, residual, "))");
    }
    let filter = match test {
        Some(test) => sql!(ty; " WHERE ", test),
        None => sql!(ty; ""),
    };
    sql!(ty; "(", outside, format!(" {not}IN (SELECT "), inside, format!(" FROM {table} AS x"), filter, "))")
}

/// A scalar subquery: over a whole table, or over the rows that match the outer row.
fn scalar(maker: &mut Maker<'_>) -> Expr {
    let table = maker.rng.pick(&INNER);
    let of = maker.rng.pick(&["i32", "n", "d15", "k", "day", "s", "grow", "uniq"]);
    let ty = COLUMNS.iter().find(|column| column.0 == of).map_or(Ty::Number, |column| column.1);
    let function = maker.rng.pick(&["min", "max", "count"]);
    let ty = if function == "count" { Ty::Int(true, 64) } else { ty };
    match correlated(maker).filter(|_| maker.rng.chance(50)) {
        Some((inside, outside)) => {
            sql!(ty; format!("(SELECT {function}(x.{of}) FROM {table} AS x WHERE {} = ", inside.text()), outside, ")")
        }
        None => sql!(ty; format!("(SELECT {function}(x.{of}) FROM {table} AS x)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_number_give_the_same_query_again() {
        let texts: Vec<String> = (0..50).map(|number| Query::random(9, number).sql()).collect();
        let again: Vec<String> = (0..50).map(|number| Query::random(9, number).sql()).collect();
        assert_eq!(texts, again);
    }

    /// The longest list of an IN.
    fn longest_list(sql: &str) -> usize {
        let lists = sql.split(" IN (").skip(1).map(|rest| {
            let (mut depth, mut items) = (1, 1);
            for letter in rest.chars() {
                match letter {
                    '(' => depth += 1,
                    ')' => depth -= 1,
                    ',' if depth == 1 => items += 1,
                    _ => (),
                }
                if depth == 0 {
                    break;
                }
            }
            items
        });
        lists.max().unwrap_or(0)
    }

    /// Features that a run of some thousand queries must reach.
    #[test]
    fn every_feature_occurs() {
        let texts: Vec<String> = (0..4000).map(|number| Query::random(0xfea7, number).sql()).collect();
        let count = |test: &dyn Fn(&str) -> bool| texts.iter().filter(|sql| test(sql)).count();
        let words = |words: &'static [&'static str]| {
            move |sql: &str| {
                words.iter().any(|word| sql.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == *word))
            }
        };
        let has = |text: &'static str| move |sql: &str| sql.contains(text);
        let features: [(&str, usize, usize); 26] = [
            ("growing texts", 100, count(&words(&["grow", "uniq"]))),
            (
                "the least growing text above a join",
                60,
                count(&|sql| sql.contains(" JOIN ") && [".grow)", ".uniq)"].iter().any(|end| sql.contains(end))),
            ),
            ("windows", 60, count(&has(" OVER ("))),
            ("ROWS", 10, count(&has(" ROWS BETWEEN "))),
            ("RANGE", 5, count(&has(" RANGE BETWEEN "))),
            ("GROUPS", 5, count(&has(" GROUPS BETWEEN "))),
            ("OFFSET with LIMIT", 20, count(&|sql| sql.contains(" LIMIT ") && sql.contains(" OFFSET "))),
            ("OFFSET alone", 10, count(&|sql| sql.contains(" OFFSET ") && !sql.contains(" LIMIT "))),
            ("LATERAL", 20, count(&has("LATERAL (SELECT"))),
            ("UNNEST", 20, count(&has("UNNEST(["))),
            ("interval columns", 60, count(&words(&["span", "span_d", "span_m"]))),
            ("sums of intervals", 2, count(&|sql| sql.contains("sum(span") || sql.contains(".span"))),
            ("UTC", 60, count(&words(&["utc_ms", "utc_ns"]))),
            ("a fixed offset", 60, count(&words(&["tz_us", "tz_ns"]))),
            ("far years", 60, count(&words(&["far_s", "far_ms", "far_us"]))),
            ("the year 1", 1, count(&has("'0001-"))),
            ("256 bits", 40, count(&words(&["wide"]))),
            ("long lists", 10, count(&|sql| longest_list(sql) > 64)),
            ("long repetitions", 3, count(&|sql| sql.contains(", 19)") || sql.contains(", 70)"))),
            ("one NaN by CASE", 20, count(&has("CASE WHEN isnan("))),
            ("one NaN by nanvl", 20, count(&has("nanvl("))),
            ("NaN", 20, count(&has("'NaN'"))),
            ("-NaN", 10, count(&has("(- arrow_cast('NaN'"))),
            ("infinity", 10, count(&has("'inf'"))),
            ("zero below zero", 10, count(&has("'-0.0'"))),
            ("square roots", 10, count(&has("sqrt("))),
        ];
        let missing: Vec<_> = features.iter().filter(|(_, least, found)| found < least).collect();
        assert!(missing.is_empty(), "{missing:?} of {features:?}");
    }

    #[test]
    fn smaller_queries_end() {
        let mut query = Query::random(5, 17);
        let mut steps = 0;
        while let Some(smaller) = query.smaller().into_iter().next() {
            query = smaller;
            steps += 1;
            assert!(steps < 10_000, "{}", query.sql());
        }
        assert!(query.filter.is_none() && query.order.is_none());
    }
}
