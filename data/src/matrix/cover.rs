//! Chooses the combinations of the matrix: few files that together contain each pair of choices.
//!
//! ```text
//!   goals      all legal pairs · (kind, encoding) with each choice, with version and codec, with version and NULLs
//!              · (encoding, NULLs, values, pages)
//!   a case     the first open goal, completed at random a dozen times; the completion that meets most goals is taken
//!              up to three more columns of related kinds, with equal choices for the file
//!   ends       when all goals are met, at TARGET files or more
//! ```
//!
//! Same     no clock and no hash order is involved: the list is always equal.
//! After    Bryce and Colbourn 2007, "A density algorithm for pairwise interaction testing" (the greedy idea)

use std::collections::HashMap;

use super::choice::{
    Bloom, Compress, Dictionary, Encoding, Groups, Index, Nulls, Pages, ROWS, Statistics, Values, Version,
};
use super::kind::Kind;
use crate::rng::ColumnRng;
use parquet::basic::Type as Physical;

const SEED: u64 = 0x7061_7271_7565_7421;
/// Minimum number of files; the cover is filled up after all goals are met.
const TARGET: usize = 1_700;
/// Completions compared for the first column of a file; half as many for other columns.
const ATTEMPTS: usize = 12;

pub(super) const KIND: usize = 0;
pub(super) const ENCODING: usize = 1;
pub(super) const DICTIONARY: usize = 2;
pub(super) const NULLS: usize = 3;
pub(super) const VALUES: usize = 4;
pub(super) const BLOOM: usize = 5;
/// First factor that belongs to the file; all of its columns share these choices.
pub(super) const CODEC: usize = 6;
pub(super) const VERSION: usize = 7;
pub(super) const NUM_ROWS: usize = 8;
pub(super) const PAGES: usize = 9;
pub(super) const GROUPS: usize = 10;
pub(super) const STATISTICS: usize = 11;
pub(super) const INDEX: usize = 12;
pub(super) const FACTORS: usize = 13;

/// One number per factor: an index into its list.
pub(super) type Choices = [u8; FACTORS];
type Partial = [Option<u8>; FACTORS];

/// Number of choices of a factor.
pub(super) fn size(factor: usize) -> usize {
    match factor {
        KIND => Kind::combined().len(),
        ENCODING => Encoding::ALL.len(),
        DICTIONARY => Dictionary::ALL.len(),
        NULLS => Nulls::ALL.len(),
        VALUES => Values::ALL.len(),
        BLOOM => Bloom::ALL.len(),
        CODEC => Compress::ALL.len(),
        VERSION => Version::ALL.len(),
        NUM_ROWS => ROWS.len(),
        PAGES => Pages::ALL.len(),
        GROUPS => Groups::ALL.len(),
        STATISTICS => Statistics::ALL.len(),
        INDEX => Index::ALL.len(),
        _ => unreachable!("there are {FACTORS} factors"),
    }
}

/// False if two or three choices exclude each other; open factors exclude nothing.
fn is_legal(partial: &Partial) -> bool {
    let kind = partial[KIND].map(|at| Kind::ALL[at as usize]);
    let encoding = partial[ENCODING].map(|at| Encoding::ALL[at as usize]);
    let dictionary = partial[DICTIONARY].map(|at| Dictionary::ALL[at as usize]);
    let version = partial[VERSION].map(|at| Version::ALL[at as usize]);
    let rows = partial[NUM_ROWS].map(|at| ROWS[at as usize]);
    let pages = partial[PAGES].map(|at| Pages::ALL[at as usize]);
    let is = |factor: usize, at: u8| partial[factor] == Some(at);
    let few_rows = rows.is_some_and(|rows| rows < 1_000);

    let wrong_encoding =
        matches!((kind, encoding), (Some(kind), Some(encoding)) if !kind.encodings().contains(&encoding));
    let wrong_dictionary = matches!((encoding, dictionary), (Some(encoding), Some(dictionary))
        if (encoding == Encoding::Dictionary) != (dictionary != Dictionary::Unused));
    // parquet-rs does not write dictionaries of fixed-length values in version 1.
    let fixed = kind.is_some_and(|kind| kind.physical() == Physical::FIXED_LEN_BYTE_ARRAY);
    let no_such_dictionary = fixed && encoding == Some(Encoding::Dictionary) && version == Some(Version::V1);
    // A dictionary fills up only after a few hundred values.
    let never_full = few_rows && dictionary.is_some_and(|dictionary| dictionary.limit_bytes().is_some());
    // The format defines no hash for booleans and INT96.
    let no_hash = matches!(kind, Some(Kind::Boolean | Kind::Int96)) && is(BLOOM, Bloom::With as u8);
    let no_second_page = is(NULLS, Nulls::FirstPage as u8) && (few_rows || pages == Some(Pages::Whole));
    let groups = partial[GROUPS].map(|at| Groups::ALL[at as usize]);
    let wrong_groups = match (groups, rows) {
        (Some(Groups::Of24), Some(rows)) => !(31..=33).contains(&rows),
        (Some(Groups::Of333 | Groups::Of512), Some(_)) => few_rows,
        _ => false,
    };
    // parquet-rs always writes the offset index together with the column index.
    let by_page = is(STATISTICS, Statistics::Page as u8) || is(STATISTICS, Statistics::PageHeader as u8);
    let index_comes_along = by_page && is(INDEX, Index::Without as u8);
    !(wrong_encoding
        || wrong_dictionary
        || no_such_dictionary
        || never_full
        || no_hash
        || no_second_page
        || wrong_groups
        || index_comes_along)
}

/// A sequence of random words; the only state of the search.
struct Words {
    rng: ColumnRng,
    next: u64,
}

impl Words {
    fn below(&mut self, bound: usize) -> usize {
        self.next += 1;
        self.rng.below(self.next, bound as u64) as usize
    }
}

/// Completes the open factors; `None` if no legal combination contains `partial`.
fn complete(partial: Partial, words: &mut Words) -> Option<Choices> {
    let Some(factor) = (0..FACTORS).find(|&factor| partial[factor].is_none()) else {
        return Some(partial.map(|at| at.expect("all are chosen")));
    };
    let size = size(factor);
    // The first two row counts are the most useful, so they are used in two of three files.
    let first = match factor {
        NUM_ROWS if words.below(2) == 0 => words.below(2),
        _ => words.below(size),
    };
    (0..size).find_map(|step| {
        let mut partial = partial;
        partial[factor] = Some(((first + step) % size) as u8);
        is_legal(&partial).then(|| complete(partial, words)).flatten()
    })
}

/// Choices that must occur together.
pub(super) type Goal = Vec<(usize, u8)>;

/// Key of the choices, which must be in factor order.
fn key(goal: impl IntoIterator<Item = (usize, u8)>) -> u64 {
    goal.into_iter().fold(1, |key, (factor, at)| key << 12 | (factor as u64) << 8 | u64::from(at))
}

/// Sets of factors whose legal combinations must all occur: each pair, (kind, encoding) with each other, and three sets
/// of four.
fn sets() -> Vec<Vec<usize>> {
    let pairs = (0..FACTORS).flat_map(|one| (one + 1..FACTORS).map(move |other| vec![one, other]));
    let triples = (ENCODING + 1..FACTORS).map(|other| vec![KIND, ENCODING, other]);
    let quadruples = [
        vec![KIND, ENCODING, NULLS, VERSION],
        vec![KIND, ENCODING, CODEC, VERSION],
        vec![ENCODING, NULLS, VALUES, PAGES],
    ];
    pairs.chain(triples).chain(quadruples).collect()
}

/// Legal combinations of a set of factors.
fn combinations(factors: &[usize], words: &mut Words) -> Vec<Goal> {
    let mut partials: Vec<Partial> = vec![[None; FACTORS]];
    for &factor in factors {
        partials = partials
            .iter()
            .flat_map(|partial| {
                (0..size(factor) as u8).map(|at| {
                    let mut partial = *partial;
                    partial[factor] = Some(at);
                    partial
                })
            })
            .filter(is_legal)
            .collect();
    }
    partials.retain(|partial| complete(*partial, words).is_some());
    let goal = |partial: Partial| factors.iter().map(|&factor| (factor, partial[factor].expect("chosen"))).collect();
    partials.into_iter().map(goal).collect()
}

/// Combinations that must occur; also used by the tests.
pub(super) fn goals() -> Vec<Goal> {
    let mut words = Words { rng: ColumnRng::new(SEED, 0), next: 0 };
    sets().iter().flat_map(|factors| combinations(factors, &mut words)).collect()
}

/// True if a column with these choices exercises the choices of `factors`. A column of no rows, of one row or of only
/// NULLs has few values: it counts only if the number of rows, or the NULLs, are among the factors.
pub(super) fn shows(choices: &Choices, factors: &[usize]) -> bool {
    let has_rows = ROWS[choices[NUM_ROWS] as usize] > 1 || factors.contains(&NUM_ROWS);
    let has_values = choices[NULLS] != Nulls::All as u8 || factors.contains(&NULLS);
    has_rows && has_values
}

/// Goals, and which of them are met.
struct Goals {
    sets: Vec<Vec<usize>>,
    list: Vec<Goal>,
    places: HashMap<u64, usize>,
    met: Vec<bool>,
}

impl Goals {
    fn new() -> Goals {
        let list = goals();
        let places = list.iter().enumerate().map(|(at, goal)| (key(goal.iter().copied()), at)).collect();
        Goals { sets: sets(), met: vec![false; list.len()], list, places }
    }

    /// Goals that `choices` meets.
    fn of<'a>(&'a self, choices: &'a Choices) -> impl Iterator<Item = usize> + 'a {
        let shown = self.sets.iter().filter(|set| shows(choices, set));
        shown.map(|set| self.places[&key(set.iter().map(|&factor| (factor, choices[factor])))])
    }

    fn num_new(&self, choices: &Choices) -> usize {
        self.of(choices).filter(|&at| !self.met[at]).count()
    }

    fn meet(&mut self, choices: &Choices) {
        let places: Vec<usize> = self.of(choices).collect();
        places.into_iter().for_each(|at| self.met[at] = true);
    }

    /// The best of several completions.
    fn best(&self, partial: Partial, attempts: usize, words: &mut Words) -> Option<Choices> {
        let attempts = (0..attempts).filter_map(|_| complete(partial, words));
        attempts.reduce(|best, next| if self.num_new(&next) > self.num_new(&best) { next } else { best })
    }
}

/// Columns of each file, without the row number.
pub(super) fn files() -> Vec<Vec<Choices>> {
    let mut words = Words { rng: ColumnRng::new(SEED, 1), next: 0 };
    let mut goals = Goals::new();
    let mut files = Vec::with_capacity(TARGET);
    let mut open = 0;
    loop {
        while open < goals.list.len() && goals.met[open] {
            open += 1;
        }
        if open >= goals.list.len() && files.len() >= TARGET {
            return files;
        }
        let mut partial: Partial = [None; FACTORS];
        for &(factor, at) in goals.list.get(open).into_iter().flatten() {
            partial[factor] = Some(at);
        }
        let first = goals.best(partial, ATTEMPTS, &mut words).expect("a goal is legal");
        goals.meet(&first);
        let mut columns = vec![first];
        for _ in 0..words.below(4) {
            let related = Kind::ALL[first[KIND] as usize].related();
            let mut partial: Partial = [None; FACTORS];
            partial[KIND] = Some(related[words.below(related.len())] as u8);
            for factor in CODEC..FACTORS {
                partial[factor] = Some(first[factor]);
            }
            let column = goals.best(partial, ATTEMPTS / 2, &mut words).expect("PLAIN is legal in each file");
            goals.meet(&column);
            columns.push(column);
        }
        files.push(columns);
    }
}
