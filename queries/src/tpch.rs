//! TPC-H substitution parameters: other constants for each run of a query.
//!
//! ```text
//!   q06.sql  DATE '1994-01-01' · 0.06 ± 0.01 · < 24  ── seed 7, run 2 ──►  DATE '1996-01-01' · 0.03 ± 0.01 · < 25
//! ```
//!
//! After   TPC-H 3.0.1, §2.4, "Substitution Parameters" of each query: domains as specified, drawn by our own
//!         generator.
//! Kept    the fraction of query 11: it depends on the scale factor, and the text has one value for all scale factors.
//! Lists   of nations, colors, containers etc. are those of the data generator.

use std::fmt::Display;

use millpond_data::rng::ColumnRng;
use tpchgen::distribution::{Distribution, Distributions};

/// The text of query `id` (`q01` to `q22`) with other constants: those of run number `run` under `seed`. `None` for
/// another id, and for a text that lacks one of the constants to replace.
pub fn with_parameters(id: &str, sql: &str, seed: u64, run: u64) -> Option<String> {
    let number: u64 = id.strip_prefix('q')?.parse().ok()?;
    let mut draw = Draw { rng: ColumnRng::new(seed, number), next: run << 32 };
    replaced(sql, &substitutes(number, &mut draw)?)
}

/// The region of each nation, in the order of the generator's lists.
const REGIONS: [usize; 25] = [0, 1, 1, 1, 4, 0, 3, 3, 2, 2, 4, 4, 2, 4, 0, 0, 0, 1, 2, 3, 4, 2, 3, 3, 1];

/// Constants of the text and their replacements.
type Substitutes = Vec<(&'static str, String)>;

fn substitutes(query: u64, draw: &mut Draw) -> Option<Substitutes> {
    let lists = Distributions::static_default();
    Some(match query {
        1 => vec![("'90'", format!("'{}'", draw.within(60, 120)))],
        2 => {
            let (size, kind) = (draw.within(1, 50), draw.word(lists.part_types(), 2));
            let region = quoted(draw.of(lists.regions().get_values()));
            vec![("p_size = 15", format!("p_size = {size}")), ("%BRASS", format!("%{kind}")), ("'EUROPE'", region)]
        }
        3 => vec![
            ("'BUILDING'", quoted(draw.of(lists.market_segments().get_values()))),
            ("'1995-03-15'", format!("'1995-03-{:02}'", draw.within(1, 31))),
        ],
        4 => vec![("'1993-07-01'", draw.month((1993, 1), (1997, 10)))],
        5 => vec![("'ASIA'", quoted(draw.of(lists.regions().get_values()))), ("'1994-01-01'", draw.year())],
        6 => vec![
            ("'1994-01-01'", draw.year()),
            ("0.06", format!("0.0{}", draw.within(2, 9))),
            ("l_quantity < 24", format!("l_quantity < {}", draw.within(24, 25))),
        ],
        7 => {
            let nations = draw.several(lists.nations().get_values(), 2);
            vec![("'FRANCE'", quoted(nations[0])), ("'GERMANY'", quoted(nations[1]))]
        }
        8 => {
            let nation = draw.within(0, REGIONS.len() - 1);
            let region = quoted(lists.regions().get_values()[REGIONS[nation]]);
            let nation = quoted(lists.nations().get_values()[nation]);
            let kind = quoted(draw.of(lists.part_types().get_values()));
            vec![("'BRAZIL'", nation), ("'AMERICA'", region), ("'ECONOMY ANODIZED STEEL'", kind)]
        }
        9 => vec![("green", draw.of(lists.part_colors().get_values()).to_string())],
        10 => vec![("'1993-10-01'", draw.month((1993, 2), (1995, 1)))],
        11 => vec![("'GERMANY'", quoted(draw.of(lists.nations().get_values())))],
        12 => {
            let modes = draw.several(lists.ship_modes().get_values(), 2);
            let date = draw.year();
            vec![("'MAIL'", quoted(modes[0])), ("'SHIP'", quoted(modes[1])), ("'1994-01-01'", date)]
        }
        13 => vec![
            ("%special%", format!("%{}%", draw.of(&["special", "pending", "unusual", "express"]))),
            ("requests%", format!("{}%", draw.of(&["packages", "requests", "accounts", "deposits"]))),
        ],
        _ => later(query, draw, lists)?,
    })
}

/// Queries 14 to 22.
fn later(query: u64, draw: &mut Draw, lists: &Distributions) -> Option<Substitutes> {
    Some(match query {
        14 => vec![("'1995-09-01'", draw.month((1993, 1), (1997, 12)))],
        15 => vec![("'1996-01-01'", draw.month((1993, 1), (1997, 10)))],
        16 => {
            let kind = format!("'{} {}%'", draw.word(lists.part_types(), 0), draw.word(lists.part_types(), 1));
            let sizes: Vec<String> = (1..=50).map(|size| size.to_string()).collect();
            let sizes = draw.several(&sizes, 8).into_iter().cloned().collect::<Vec<_>>().join(", ");
            vec![("'Brand#45'", draw.brand()), ("'MEDIUM POLISHED%'", kind), ("49, 14, 23, 45, 19, 3, 36, 9", sizes)]
        }
        17 => vec![("'Brand#23'", draw.brand()), ("'MED BOX'", quoted(draw.of(lists.part_containers().get_values())))],
        18 => vec![("> 300", format!("> {}", draw.within(312, 315)))],
        19 => {
            let (one, two, three) = (draw.within(1, 10), draw.within(10, 20), draw.within(20, 30));
            vec![
                ("'Brand#12'", draw.brand()),
                ("'Brand#23'", draw.brand()),
                ("'Brand#34'", draw.brand()),
                (
                    "l_quantity >= 1 AND l_quantity <= 1 + 10",
                    format!("l_quantity >= {one} AND l_quantity <= {one} + 10"),
                ),
                (
                    "l_quantity >= 10 AND l_quantity <= 10 + 10",
                    format!("l_quantity >= {two} AND l_quantity <= {two} + 10"),
                ),
                (
                    "l_quantity >= 20 AND l_quantity <= 20 + 10",
                    format!("l_quantity >= {three} AND l_quantity <= {three} + 10"),
                ),
            ]
        }
        20 => vec![
            ("'forest%'", format!("'{}%'", draw.of(lists.part_colors().get_values()))),
            ("'1994-01-01'", draw.year()),
            ("'CANADA'", quoted(draw.of(lists.nations().get_values()))),
        ],
        21 => vec![("'SAUDI ARABIA'", quoted(draw.of(lists.nations().get_values())))],
        22 => {
            let codes: Vec<String> = (10..=34).map(|code| format!("'{code}'")).collect();
            let codes = draw.several(&codes, 7).into_iter().cloned().collect::<Vec<_>>().join(", ");
            vec![("'13', '31', '23', '29', '30', '18', '17'", codes)]
        }
        _ => return None,
    })
}

/// Random values for one run of one query.
struct Draw {
    rng: ColumnRng,
    next: u64,
}

impl Draw {
    fn within(&mut self, least: usize, most: usize) -> usize {
        self.next += 1;
        least + self.rng.below(self.next, (most - least + 1) as u64) as usize
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.within(1, list.len()) - 1]
    }

    /// `count` distinct members of a list.
    fn several<'a, T>(&mut self, list: &'a [T], count: usize) -> Vec<&'a T> {
        let mut left: Vec<&T> = list.iter().collect();
        (0..count).map(|_| left.swap_remove(self.within(1, left.len()) - 1)).collect()
    }

    /// One word of a random phrase, such as `STEEL` of `ECONOMY ANODIZED STEEL`.
    fn word(&mut self, phrases: &Distribution, place: usize) -> &'static str {
        self.of(phrases.get_values()).split(' ').nth(place).unwrap_or_default()
    }

    fn brand(&mut self) -> String {
        format!("'Brand#{}{}'", self.within(1, 5), self.within(1, 5))
    }

    /// The first day of a random year.
    fn year(&mut self) -> String {
        format!("'{}-01-01'", self.within(1993, 1997))
    }

    /// The first day of a random month in a range.
    fn month(&mut self, (year, month): (usize, usize), (last_year, last_month): (usize, usize)) -> String {
        let months = self.within(year * 12 + month - 1, last_year * 12 + last_month - 1);
        format!("'{}-{:02}-01'", months / 12, months % 12 + 1)
    }
}

fn quoted(text: impl Display) -> String {
    format!("'{text}'")
}

/// Replaces every occurrence of each constant in one pass: inserted text is not replaced again.
fn replaced(sql: &str, substitutes: &[(&'static str, String)]) -> Option<String> {
    if substitutes.iter().any(|(constant, _)| !sql.contains(constant)) {
        return None;
    }
    let mut text = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(letter) = rest.chars().next() {
        let here = substitutes.iter().find(|(constant, _)| rest.starts_with(constant));
        let taken = here.map_or(letter.len_utf8(), |(constant, _)| constant.len());
        text.push_str(here.map_or(&rest[..taken], |(_, substitute)| substitute));
        rest = &rest[taken..];
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Suite;

    #[test]
    fn every_query_has_other_constants_in_most_runs_and_the_same_under_the_same_seed() {
        for query in Suite::named("tpch").expect("tpch").queries {
            let of = |seed, run| with_parameters(&query.id, &query.sql, seed, run).expect("a query of TPC-H");
            let mut texts: Vec<String> = (0..8).map(|run| of(7, run)).collect();
            assert_eq!(texts[3], of(7, 3));
            assert!((0..8).any(|run| of(7, run) != of(8, run)), "{}", query.id);
            texts.sort();
            texts.dedup();
            // Query 18 has four possible quantities.
            assert!(texts.len() >= if query.id == "q18" { 2 } else { 5 }, "{}: {} texts", query.id, texts.len());
        }
        assert_eq!(with_parameters("q23", "SELECT 1", 7, 0), None);
        assert_eq!(with_parameters("top", "SELECT 1", 7, 0), None);
    }

    #[test]
    fn domains_are_those_of_the_specification() {
        let text = |id: &str, run| {
            let suite = Suite::named("tpch").expect("tpch");
            with_parameters(id, &suite.query(id).expect("a query").sql, 1, run).expect("a text")
        };
        let after = |text: &str, start: &str| {
            let rest = &text[text.find(start).unwrap_or_else(|| panic!("{start} in {text}")) + start.len()..];
            rest.split(['\'', '\n', ' ']).next().unwrap_or_default().to_string()
        };
        for run in 0..200 {
            let days: u32 = after(&text("q01", run), "interval '").parse().expect("days");
            assert!((60..=120).contains(&days));
            let month = after(&text("q10", run), "o_orderdate >= date '");
            assert!(("1993-02-01"..="1995-01-01").contains(&month.as_str()) && month.ends_with("-01"), "{month}");
            let seven = text("q07", run);
            assert_ne!(after(&seven, "(n1.n_name = '"), after(&seven, "AND n2.n_name = '"));
            assert_eq!(after(&seven, "AND n2.n_name = '"), after(&seven, "OR (n1.n_name = '"));
            let sizes = text("q16", run);
            let sizes = &sizes[sizes.find("p_size IN (").expect("sizes") + 11..];
            let mut sizes: Vec<&str> = sizes[..sizes.find(')').expect("an end")].split(", ").collect();
            sizes.sort();
            sizes.dedup();
            assert_eq!(sizes.len(), 8);
        }
        let eight = text("q08", 3);
        let (nation, region) = (after(&eight, "WHEN nation = '"), after(&eight, "r_name = '"));
        let nations = Distributions::static_default().nations().get_values();
        let place = nations.iter().position(|known| known.starts_with(&nation)).expect("a nation");
        assert!(Distributions::static_default().regions().get_values()[REGIONS[place]].starts_with(&region));
    }

    #[test]
    fn what_was_put_in_is_not_replaced_again() {
        let both = [("'A'", "'B'".to_string()), ("'B'", "'A'".to_string())];
        let text = replaced("x = 'A' OR y = 'B' OR z = 'A'", &both);
        assert_eq!(text.as_deref(), Some("x = 'B' OR y = 'A' OR z = 'B'"));
        assert_eq!(replaced("x = 'A'", &both), None, "a text of another's");
    }
}
