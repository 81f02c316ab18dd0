//! Random queries: filter, projection, aggregates, HAVING, DISTINCT, ORDER BY, LIMIT, and queries inside FROM.
//!
//! Order   an ORDER BY names every output column, so that rows that tie are equal; LIMIT stands only below one.

use super::data::{COLUMNS, TABLES};
use super::expr::{Expr, Maker, Part, sql};
use super::rng::Rng;
use super::ty::Ty;

/// Where rows come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    Table(&'static str),
    Query(Box<Query>),
}

/// One output column's place in ORDER BY.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Order {
    pub descending: bool,
    pub nulls_first: bool,
}

/// A query. Its output columns are numbered, `o0`, `o1`, … : keys first, then aggregates or expressions.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// First letter of the output columns' names: another one inside FROM, because DataFusion 55.2 takes
    /// `lower(o0) AS o0` for `o0` when it pushes a limit below a DISTINCT.
    letter: char,
    pub source: Source,
    pub filter: Option<Expr>,
    /// Grouping keys; `Some` of nothing is one group of all rows.
    pub keys: Option<Vec<Expr>>,
    pub outputs: Vec<Expr>,
    pub having: Option<Expr>,
    pub distinct: bool,
    pub order: Option<Vec<Order>>,
    pub limit: Option<(usize, usize)>,
}

impl Query {
    /// Query `number` of a seed.
    pub fn random(seed: u64, number: u64) -> Query {
        let mut rng = Rng::new(seed, number);
        Self::make(&mut rng, 2, true)
    }

    fn make(rng: &mut Rng, nesting: usize, outermost: bool) -> Query {
        let source = match nesting > 0 && rng.chance(25) {
            true => Source::Query(Box::new(Self::make(rng, nesting - 1, false))),
            // Big tables seldom: the simulated device is not fast.
            false => Source::Table(match rng.below(10) {
                0 => rng.pick(&["m0", "m1"]),
                1..=3 => "m33",
                4..=6 => rng.pick(&["m1000", "p1000"]),
                7..=8 => "p1000",
                _ => rng.pick(&["m5000", "p5000"]),
            }),
        };
        let scope = match &source {
            Source::Table(_) => COLUMNS.iter().map(|(name, ty)| (name.to_string(), *ty)).collect(),
            Source::Query(query) => query.columns(),
        };
        let mut maker = Maker { rng, scope };
        let filter = maker.rng.chance(55).then(|| maker.make(Ty::Bool, 3));
        let mut query = Query {
            letter: ['m', 'n', 'o'][nesting],
            source,
            filter,
            keys: None,
            outputs: Vec::new(),
            having: None,
            distinct: false,
            order: None,
            limit: None,
        };
        if maker.rng.chance(45) {
            let keys = maker.rng.pick(&[0, 1, 1, 2, 2, 3]);
            query.keys = Some((0..keys).map(|_| Self::key(&mut maker)).collect());
            query.outputs = (0..maker.rng.below(4) + 1).map(|_| maker.aggregate(keys > 0)).collect();
            if maker.rng.chance(25) {
                let of = query.outputs[maker.rng.below(query.outputs.len())].clone();
                let op = maker.rng.pick(&[" > ", " <= ", " <> "]);
                let bound = sql!(of.ty; of.ty.literal(maker.rng));
                query.having = Some(sql!(Ty::Bool; "(", of, op, bound, ")"));
            }
        } else {
            for _ in 0..maker.rng.below(4) + 1 {
                let ty = maker.any_type();
                query.outputs.push(maker.make(ty, 3));
            }
            query.distinct = maker.rng.chance(12);
        }
        if maker.rng.chance(35) {
            let order = |_| Order { descending: maker.rng.chance(50), nulls_first: maker.rng.chance(50) };
            query.order = Some((0..query.num_columns()).map(order).collect());
            if maker.rng.chance(if outermost { 45 } else { 70 }) {
                query.limit = Some((maker.rng.below(40), if maker.rng.chance(30) { maker.rng.below(20) } else { 0 }));
            }
        }
        query
    }

    fn key(maker: &mut Maker<'_>) -> Expr {
        let preferred: Vec<(String, Ty)> = maker
            .scope
            .iter()
            .filter(|(name, _)| {
                ["k", "b", "c", "s", "v", "i8", "rare", "nothing", "day", "u16"].contains(&name.as_str())
            })
            .cloned()
            .collect();
        if !preferred.is_empty() && maker.rng.chance(60) {
            let (name, ty) = preferred[maker.rng.below(preferred.len())].clone();
            return sql!(ty; name);
        }
        let ty = maker.any_type();
        maker.make(ty, 2)
    }

    fn num_columns(&self) -> usize {
        self.keys.as_ref().map_or(0, Vec::len) + self.outputs.len()
    }

    fn columns(&self) -> Vec<(String, Ty)> {
        let all = self.keys.iter().flatten().chain(&self.outputs);
        all.enumerate().map(|(index, expr)| (format!("{}{index}", self.letter), expr.ty)).collect()
    }

    /// The query in SQL.
    pub fn sql(&self) -> String {
        let all = self.keys.iter().flatten().chain(&self.outputs);
        let outputs: Vec<String> =
            all.enumerate().map(|(index, expr)| format!("{} AS {}{index}", expr.text(), self.letter)).collect();
        let source = match &self.source {
            Source::Table(name) => name.to_string(),
            Source::Query(query) => format!("({}) AS q", query.sql()),
        };
        let mut sql =
            format!("SELECT {}{} FROM {source}", if self.distinct { "DISTINCT " } else { "" }, outputs.join(", "));
        if let Some(filter) = &self.filter {
            sql += &format!(" WHERE {}", filter.text());
        }
        if let Some(keys) = self.keys.as_ref().filter(|keys| !keys.is_empty()) {
            let keys: Vec<String> = (1..=keys.len()).map(|n| n.to_string()).collect();
            sql += &format!(" GROUP BY {}", keys.join(", "));
        }
        if let Some(having) = &self.having {
            sql += &format!(" HAVING {}", having.text());
        }
        if let Some(order) = &self.order {
            let one = |(index, order): (usize, &Order)| {
                let direction = if order.descending { "DESC" } else { "ASC" };
                format!("{}{index} {direction} NULLS {}", self.letter, if order.nulls_first { "FIRST" } else { "LAST" })
            };
            let order: Vec<String> = order.iter().enumerate().map(one).collect();
            sql += &format!(" ORDER BY {}", order.join(", "));
        }
        if let Some((limit, skip)) = self.limit {
            sql += &format!(" LIMIT {limit}");
            if skip > 0 {
                sql += &format!(" OFFSET {skip}");
            }
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
            with(&|query| *query = (**inner).clone());
        }
        with(&|query| query.limit = None);
        if self.limit.is_none() {
            with(&|query| query.order = None);
        }
        with(&|query| query.having = None);
        with(&|query| query.filter = None);
        with(&|query| query.distinct = false);
        let keys = self.keys.as_ref().map_or(0, Vec::len);
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
        if let Source::Table(name) = self.source
            && let Some(at) = TABLES.iter().position(|table| table.0 == name)
        {
            for (name, ..) in &TABLES[..at] {
                with(&|query| query.source = Source::Table(name));
            }
        }
        if let Source::Query(inner) = &self.source {
            for smaller in inner.smaller() {
                with(&|query| query.source = Source::Query(Box::new(smaller.clone())));
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
        self.filter.iter().chain(self.keys.iter().flatten()).chain(&self.outputs).chain(&self.having).collect()
    }

    fn expressions_mut(&mut self) -> Vec<&mut Expr> {
        let keys = self.keys.iter_mut().flatten();
        self.filter.iter_mut().chain(keys).chain(&mut self.outputs).chain(&mut self.having).collect()
    }

    /// True when DataFusion is free to skip rows or expressions, so that a row's error may or may not be met.
    pub fn may_skip_errors(&self) -> bool {
        let sql = self.sql();
        [" WHERE ", " AND ", " OR ", "CASE ", "coalesce(", " HAVING ", " FILTER ", " LIMIT ", " IN (", " BETWEEN "]
            .iter()
            .any(|word| sql.contains(word))
            || matches!(self.source, Source::Query(_))
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
