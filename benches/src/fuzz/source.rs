//! Row sources of a random query: a table, a query, the query of the WITH clause, or a chain of joins.
//!
//! ```text
//!   m33 AS a  JOIN m7 AS e ON a.k = e.j AND (residual)  LEFT ANTI JOIN (SELECT …) AS h ON …
//! ```
//!
//! Keys   come from columns with few values, half of them NULL or skewed, so that joins find duplicates and nothing at
//!        all.
//! Rows   a chain stays below some ten thousand rows: the simulated device is not fast.

use super::data::{TABLES, columns_of};
use super::expr::{Expr, Maker, sql};
use super::query::{Query, lateral};
use super::rng::Rng;
use super::ty::Ty;

/// Content of a FROM clause.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    Table(&'static str),
    /// A table with one more column `item`, its rows three times: the items of a list of a column, NULL and the column
    /// again.
    Unnested(&'static str, (&'static str, Ty)),
    Query(Box<Query>),
    /// The query of the WITH clause, which is called `w`.
    With,
    /// A subquery that sees the columns to its left: its text, and its output column.
    Lateral(Box<Expr>, (String, Ty)),
    Joins(Joins),
}

/// A chain of joins, read from left to right.
#[derive(Debug, Clone, PartialEq)]
pub struct Joins {
    pub first: Box<Source>,
    pub rest: Vec<Join>,
}

/// One join of a chain: its right side, and what must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Join {
    pub kind: JoinKind,
    pub right: Source,
    /// Pairs of keys, and whether NULL equals NULL.
    pub keys: Vec<(Expr, Expr, bool)>,
    /// Same names on both sides, instead of `keys`.
    pub using: Vec<&'static str>,
    pub residual: Option<Expr>,
}

/// SQL's joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    Inner,
    Left,
    Right,
    Full,
    LeftSemi,
    LeftAnti,
    RightSemi,
    RightAnti,
    Cross,
    /// The right side is [`Source::Lateral`].
    Lateral,
    LeftLateral,
}

impl JoinKind {
    fn sql(self) -> &'static str {
        match self {
            Self::Inner => "JOIN",
            Self::Left => "LEFT JOIN",
            Self::Right => "RIGHT JOIN",
            Self::Full => "FULL JOIN",
            Self::LeftSemi => "LEFT SEMI JOIN",
            Self::LeftAnti => "LEFT ANTI JOIN",
            Self::RightSemi => "RIGHT SEMI JOIN",
            Self::RightAnti => "RIGHT ANTI JOIN",
            Self::Cross | Self::Lateral => "CROSS JOIN",
            Self::LeftLateral => "LEFT JOIN",
        }
    }

    /// Which sides' columns may be used above it.
    fn keeps(self) -> (bool, bool) {
        match self {
            Self::LeftSemi | Self::LeftAnti => (true, false),
            Self::RightSemi | Self::RightAnti => (false, true),
            _ => (true, true),
        }
    }
}

/// Columns that make good keys; one that is named twice is chosen twice as often.
const KEYS: [&str; 42] = [
    "k", "k", "k", "j", "j", "j", "g", "g", "i8", "u8", "rare", "s", "s", "v", "v", "b", "c", "day", "id", "id", "n",
    "d5", "d15", "nothing", "e32", "e64", "f64", "ts_s", "ts_ns", "i16", "grow", "f32", "span_m", "utc_ms", "early",
    "early", "early", "early", "early", "early", "id", "id",
];
const USING: [&str; 7] = ["k", "j", "g", "id", "s", "i8", "grow"];
/// None of them is a column's name: in a subquery DataFusion takes `b.k` for a field of its own column `b`.
const ALIASES: [char; 4] = ['a', 'e', 'h', 'r'];

fn table(name: &'static str) -> Source {
    Source::Table(name)
}

/// The name of a column without its table.
pub fn bare(name: &str) -> &str {
    name.split_once('.').map_or(name, |(_, bare)| bare)
}

impl Source {
    /// True where a set operation is below; see [`Query::unites`].
    pub fn unites(&self, with: Option<&Query>) -> bool {
        match self {
            Source::Table(_) | Source::Unnested(..) | Source::Lateral(..) => false,
            Source::Query(inner) => inner.unites(with),
            Source::With => with.is_some_and(|with| with.unites(None)),
            Source::Joins(joins) => joins.first.unites(with) || joins.rest.iter().any(|join| join.right.unites(with)),
        }
    }

    /// A source for a query with `nesting` levels left; `with` is the query of the WITH clause.
    pub fn random(rng: &mut Rng, nesting: usize, with: Option<&Query>) -> Source {
        match rng.below(100) {
            0..=44 => Source::Joins(Joins::random(rng, nesting, with)),
            45..=54 if with.is_some() => Source::With,
            45..=62 if nesting > 0 => Source::Query(Box::new(Query::make(rng, nesting - 1, false, None, None))),
            97..=99 => {
                let table = rng.pick(&["m0", "m7", "m33", "m33", "m64", "p64"]);
                let columns = columns_of(table);
                let (column, ty) = columns[rng.below(columns.len())];
                Source::Unnested(table, (column, ty))
            }
            // Big tables seldom: the simulated device is not fast.
            _ => table(match rng.below(40) {
                0 | 1 => "m0",
                2 | 3 => "m1",
                4..=9 => "m7",
                10..=19 => "m33",
                20..=23 => "m64",
                24..=27 => "p64",
                28..=32 => "m200",
                33..=37 => "p200",
                38 => rng.pick(&["m1000", "p1000"]),
                _ => rng.pick(&["p1000", "p5000"]),
            }),
        }
    }

    /// The columns above it, without a prefix.
    fn plain_columns(&self, with: Option<&Query>) -> Vec<(String, Ty)> {
        match self {
            Source::Table(table) => columns_of(table).iter().map(|(name, ty)| (name.to_string(), *ty)).collect(),
            Source::Unnested(table, (_, ty)) => {
                let columns = columns_of(table).iter().map(|(name, ty)| (name.to_string(), *ty));
                columns.chain([("item".to_string(), *ty)]).collect()
            }
            Source::Lateral(_, column) => vec![column.clone()],
            Source::Query(query) => query.columns(),
            Source::With => with.map(Query::columns).unwrap_or_default(),
            Source::Joins(joins) => joins.columns(with),
        }
    }

    pub fn columns(&self, with: Option<&Query>) -> Vec<(String, Ty)> {
        self.plain_columns(with)
    }

    /// Columns that tell rows apart, or that are all that rows have.
    pub fn identity(&self, with: Option<&Query>) -> Vec<String> {
        let names = |columns: Vec<(String, Ty)>| columns.into_iter().map(|(name, _)| name).collect();
        match self {
            Source::Table(_) => vec!["id".to_string()],
            // Of one row of the left side.
            Source::Lateral(..) => Vec::new(),
            Source::Query(_) | Source::With | Source::Unnested(..) => names(self.plain_columns(with)),
            Source::Joins(joins) => joins.identity(with),
        }
    }

    /// True when its identity tells all rows apart: rows that tie by it are one.
    pub fn tells_rows_apart(&self) -> bool {
        match self {
            Source::Table(_) | Source::Lateral(..) => true,
            Source::Query(_) | Source::With | Source::Unnested(..) => false,
            Source::Joins(joins) => {
                joins.first.tells_rows_apart() && joins.rest.iter().all(|join| join.right.tells_rows_apart())
            }
        }
    }

    fn prefixed(&self, alias: char, with: Option<&Query>) -> Vec<(String, Ty)> {
        self.plain_columns(with).into_iter().map(|(name, ty)| (format!("{alias}.{name}"), ty)).collect()
    }

    /// SQL text of the FROM clause.
    pub fn sql(&self) -> String {
        match self {
            Source::Table(name) => name.to_string(),
            Source::Unnested(name, (column, _)) => {
                format!("(SELECT *, UNNEST([{column}, NULL, {column}]) AS item FROM {name}) AS q")
            }
            Source::Query(query) => format!("({}) AS q", query.sql()),
            Source::With => "w".to_string(),
            Source::Lateral(text, _) => text.text(),
            Source::Joins(joins) => joins.sql(),
        }
    }

    fn aliased(&self, alias: char) -> String {
        match self {
            Source::Query(query) => format!("({}) AS {alias}", query.sql()),
            other => format!("{} AS {alias}", other.sql()),
        }
    }

    /// Smaller sources that may do as well.
    pub fn smaller(&self) -> Vec<Source> {
        match self {
            Source::Table(name) => {
                let at = TABLES.iter().position(|table| table.0 == *name).unwrap_or(0);
                TABLES[..at].iter().map(|(name, ..)| table(name)).collect()
            }
            Source::Unnested(name, _) => vec![Source::Table(name)],
            Source::Query(query) => query.smaller().into_iter().map(|query| Source::Query(Box::new(query))).collect(),
            Source::With | Source::Lateral(..) => Vec::new(),
            Source::Joins(joins) => joins.smaller(),
        }
    }

    pub fn expressions<'a>(&'a self, to: &mut Vec<&'a Expr>) {
        let Source::Joins(joins) = self else { return };
        for join in &joins.rest {
            join.keys.iter().for_each(|(left, right, _)| to.extend([left, right]));
            to.extend(&join.residual);
            if let Source::Lateral(text, _) = &join.right {
                to.push(text);
            }
        }
    }

    pub fn expressions_mut<'a>(&'a mut self, to: &mut Vec<&'a mut Expr>) {
        let Source::Joins(joins) = self else { return };
        for join in &mut joins.rest {
            join.keys.iter_mut().for_each(|(left, right, _)| to.extend([left, right]));
            to.extend(&mut join.residual);
            if let Source::Lateral(text, _) = &mut join.right {
                to.push(text);
            }
        }
    }
}

impl Joins {
    fn random(rng: &mut Rng, nesting: usize, with: Option<&Query>) -> Joins {
        let leaf = |rng: &mut Rng, depth: usize| match rng.below(100) {
            0..=19 if with.is_some() => Source::With,
            0..=17 if nesting > 0 => Source::Query(Box::new(Query::make(rng, 0, false, None, None))),
            _ => table(match (rng.below(20), depth) {
                (0, _) => "m0",
                (1, _) => "m1",
                (2..=6, _) | (_, 2..) => "m7",
                (7..=11, _) => "m33",
                (12..=13, _) => "m64",
                (14..=15, _) => "p64",
                (16..=17, _) => "m200",
                _ => "p200",
            }),
        };
        let first = Box::new(leaf(rng, 0));
        let mut joins = Joins { first, rest: Vec::new() };
        let count = rng.pick(&[1, 1, 1, 1, 2, 2, 3]);
        for index in 0..count {
            let left = joins.columns(with);
            if rng.chance(6)
                && let Some((text, column)) = lateral(rng, left.clone())
            {
                let kind = rng.pick(&[JoinKind::Lateral, JoinKind::LeftLateral]);
                let right = Source::Lateral(Box::new(text), column);
                joins.rest.push(Join { kind, right, keys: Vec::new(), using: Vec::new(), residual: None });
                continue;
            }
            let right = leaf(rng, index);
            joins.rest.push(Join::random(rng, &joins.first, left, right, index, with));
        }
        joins
    }

    fn columns(&self, with: Option<&Query>) -> Vec<(String, Ty)> {
        let mut columns = self.first.prefixed(ALIASES[0], with);
        for (join, alias) in self.rest.iter().zip(&ALIASES[1..]) {
            let (left, right) = join.kind.keeps();
            if !left {
                columns.clear();
            }
            if right {
                columns.extend(join.right.prefixed(*alias, with));
            }
        }
        columns
    }

    fn identity(&self, with: Option<&Query>) -> Vec<String> {
        let of = |source: &Source, alias: char| -> Vec<String> {
            source.identity(with).into_iter().map(|name| format!("{alias}.{name}")).collect()
        };
        let mut identity = of(&self.first, ALIASES[0]);
        for (join, alias) in self.rest.iter().zip(&ALIASES[1..]) {
            let (left, right) = join.kind.keeps();
            if !left {
                identity.clear();
            }
            if right {
                identity.extend(of(&join.right, *alias));
            }
        }
        identity
    }

    fn sql(&self) -> String {
        let mut sql = self.first.aliased(ALIASES[0]);
        for (join, alias) in self.rest.iter().zip(&ALIASES[1..]) {
            sql += &format!(" {} {}{}", join.kind.sql(), join.right.aliased(*alias), join.condition());
        }
        sql
    }

    fn smaller(&self) -> Vec<Source> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Joins)| {
            let mut joins = self.clone();
            change(&mut joins);
            if joins != *self {
                all.push(Source::Joins(joins));
            }
        };
        if self.rest.len() > 1 {
            with(&|joins| _ = joins.rest.pop());
        }
        for source in self.first.smaller() {
            with(&|joins| *joins.first = source.clone());
        }
        for (index, join) in self.rest.iter().enumerate() {
            with(&|joins| joins.rest[index].residual = None);
            with(&|joins| {
                if joins.rest[index].keys.len() > 1 {
                    joins.rest[index].keys.pop();
                }
            });
            for source in join.right.smaller() {
                with(&|joins| joins.rest[index].right = source.clone());
            }
        }
        // A join's inner query may stand for the whole.
        let inner = [&*self.first].into_iter().chain(self.rest.iter().map(|join| &join.right));
        all.extend(inner.filter(|source| matches!(source, Source::Query(_))).cloned());
        all
    }
}

impl Join {
    fn random(
        rng: &mut Rng,
        first: &Source,
        left: Vec<(String, Ty)>,
        right: Source,
        index: usize,
        with: Option<&Query>,
    ) -> Join {
        let right_columns = right.prefixed(ALIASES[index + 1], with);
        let kind = match rng.below(20) {
            0..=6 => JoinKind::Inner,
            7..=9 => JoinKind::Left,
            10..=11 => JoinKind::Right,
            12..=13 => JoinKind::Full,
            14 => JoinKind::LeftSemi,
            15 => JoinKind::LeftAnti,
            16 => JoinKind::RightSemi,
            17 => JoinKind::RightAnti,
            18 if matches!(right, Source::Table("m0" | "m1" | "m7" | "m33")) => JoinKind::Cross,
            _ => JoinKind::Inner,
        };
        let mut join = Join { kind, right, keys: Vec::new(), using: Vec::new(), residual: None };
        if kind == JoinKind::Cross {
            return join;
        }
        let plain = |source: &Source| matches!(source, Source::Table(_));
        if index == 0 && plain(first) && plain(&join.right) && rng.chance(12) && kind.keeps() == (true, true) {
            join.using = vec![rng.pick(&USING)];
            return join;
        }
        // Seldom no key at all: a nested loop, over small sides.
        let small = matches!(join.right, Source::Table("m0" | "m1" | "m7"));
        let count = if small && rng.chance(15) { 0 } else { rng.pick(&[1, 1, 1, 1, 2, 2, 3]) };
        for _ in 0..count {
            let null_equal = rng.chance(6);
            if let Some((a, b)) = pair(rng, &left, &right_columns) {
                join.keys.push((a, b, null_equal));
            }
        }
        if join.keys.is_empty() || rng.chance(25) {
            let scope = left.into_iter().chain(right_columns).collect();
            let mut maker = Maker { rng, scope };
            join.residual = Some(maker.make(Ty::Bool, 2));
        }
        join
    }

    fn condition(&self) -> String {
        match self.kind {
            JoinKind::Cross | JoinKind::Lateral => return String::new(),
            JoinKind::LeftLateral => return " ON true".to_string(),
            _ => (),
        }
        if !self.using.is_empty() {
            return format!(" USING ({})", self.using.join(", "));
        }
        let keys = self.keys.iter().map(|(left, right, null_equal)| {
            format!("({} {} {})", left.text(), if *null_equal { "IS NOT DISTINCT FROM" } else { "=" }, right.text())
        });
        let all: Vec<String> = keys.chain(self.residual.as_ref().map(Expr::text)).collect();
        format!(" ON {}", all.join(" AND "))
    }
}

/// Two expressions that may be equal, one from each side.
fn pair(rng: &mut Rng, left: &[(String, Ty)], right: &[(String, Ty)]) -> Option<(Expr, Expr)> {
    let mut choose = |columns: &[(String, Ty)], wanted: Option<Ty>| {
        let fits = |ty: Ty| match wanted {
            None => true,
            Some(Ty::Int(..)) => matches!(ty, Ty::Int(..)),
            Some(Ty::Dec(..)) => matches!(ty, Ty::Dec(..)),
            Some(wanted) => ty == wanted,
        };
        let fitting: Vec<&(String, Ty)> = columns.iter().filter(|column| fits(column.1)).collect();
        if fitting.is_empty() {
            return None;
        }
        for _ in 0..12 {
            let name = rng.pick(&KEYS);
            if let Some((name, ty)) = fitting.iter().find(|column| bare(&column.0) == name) {
                return Some(sql!(*ty; name.clone()));
            }
        }
        let (name, ty) = fitting[rng.below(fitting.len())];
        Some(sql!(*ty; name.clone()))
    };
    let b = choose(right, None)?;
    let a = choose(left, Some(b.ty));
    match (a, rng.chance(12)) {
        (Some(a), false) => Some((a, b)),
        // A computed key.
        _ => {
            let mut maker = Maker { rng, scope: left.to_vec() };
            Some((maker.make(b.ty, 2), b))
        }
    }
}
