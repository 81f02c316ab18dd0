//! Templates of statements with several conditions on one expression: lists, equal constants, contradictions.
//!
//!   a IN (3, 4) AND a NOT IN (3, 4)     planned alone
//!   a IN (5, 6) AND a NOT IN (7, 8)     by the template of both, in which no constant is known to differ from another
//!   a IN (3, 5) AND a NOT IN (5, 4)     again: DataFusion's answer each time
//!
//! DataFusion's simplifier takes items of two lists for different values where they are different expressions; lists
//! meet in one condition, or come together as filters are pushed down.

use millpond::{DeviceChoice, Millpond};
use millpond_data::rng::ColumnRng;

use crate::templates::{agree, files, session};

/// Statements with `{0}` and `{1}` for what differs, and what stands there: each is another statement of one template.
const FORMS: &[(&str, &[[&str; 2]])] = &[
    // In one condition.
    ("SELECT count(*), sum(id) FROM r WHERE n NOT IN ({0}) AND n IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE n IN ({0}) AND n NOT IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE n IN ({0}) AND n NOT IN ({1})", TWOS),
    ("SELECT count(*), sum(id) FROM r WHERE n IN ({0}) AND n IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE (n IN ({0}) AND n IN ({1})) OR id = 3", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE n NOT IN ({0}) AND n NOT IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE (n NOT IN ({0}) OR n NOT IN ({1})) AND id < 800", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE n IN ({0}) OR n IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE NOT (n NOT IN ({0}) OR n IN ({1}))", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE NOT (n IN ({0}) AND n IN ({1})) AND id > 2", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE n + 1 IN ({0}) AND n + 1 NOT IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE n IN ({0}, NULL) AND n NOT IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE n IN ({0}, id) AND n NOT IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE coalesce(n IN ({0}) AND n NOT IN ({1}), true)", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE CASE WHEN n IN ({0}) THEN n NOT IN ({1}) ELSE id < 5 END", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE (n = 26 OR n = 39 OR n IN ({0})) AND (n IN ({1}) OR n = 26)", FOURS),
    ("SELECT count(*), sum(id) FROM r WHERE s IN ({0}) AND s NOT IN ({1})", WORDS),
    ("SELECT count(*), sum(id) FROM r WHERE s NOT IN ({0}) OR s NOT IN ({1})", WORDS),
    // Brought together.
    ("SELECT count(*), sum(id) FROM (SELECT id, n FROM r WHERE n IN ({0})) AS q WHERE n NOT IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM (SELECT id, n AS m FROM r WHERE n NOT IN ({0})) AS q WHERE m IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM (SELECT id, n + 2 AS m FROM r WHERE n + 2 IN ({0})) AS q WHERE m IN ({1})", FOURS),
    ("SELECT count(*) FROM r JOIN u ON r.id = u.id AND r.n IN ({0}) WHERE r.n NOT IN ({1})", FOURS),
    ("SELECT count(*) FROM (SELECT * FROM r WHERE n IN ({0})) AS r JOIN u ON r.id = u.id AND r.n IN ({1})", FOURS),
    ("SELECT count(*), count(u.id) FROM r LEFT JOIN u ON r.id = u.id AND u.n IN ({0}) AND u.n NOT IN ({1})", FOURS),
    ("SELECT count(*), count(u.id) FROM r LEFT JOIN u ON r.id = u.id WHERE u.n IN ({0}) AND u.n NOT IN ({1})", FOURS),
    ("SELECT n, count(*) FROM r GROUP BY n HAVING count(*) IN ({0}) AND count(*) NOT IN ({1})", COUNTS),
    ("SELECT n, count(*) FROM r WHERE n IN ({0}) GROUP BY n HAVING n NOT IN ({1})", FOURS),
    ("SELECT count(*), sum(id) FROM chosen WHERE n NOT IN ({0}) AND n IN ({1})", FOURS),
    (
        "SELECT count(*), sum(id) FROM (SELECT id, n, n NOT IN (13, 26) AS f FROM r) AS q WHERE f AND n IN ({0}) AND id > {1}",
        KNOWN,
    ),
    (
        "SELECT count(*) FROM r WHERE EXISTS (SELECT 1 FROM u WHERE u.id = r.id AND u.n IN ({0}) AND u.n NOT IN ({1}))",
        FOURS,
    ),
    ("SELECT count(*) FROM r WHERE n IN (SELECT n FROM u WHERE n IN ({0})) AND n NOT IN ({1})", FOURS),
    ("SELECT n FROM r WHERE n IN ({0}) UNION SELECT n FROM r WHERE n NOT IN ({1}) AND n IN ({0})", FOURS),
    ("SELECT n FROM r WHERE n IN ({0}) INTERSECT SELECT n FROM r WHERE n NOT IN ({1})", FOURS),
    (
        "WITH w AS (SELECT * FROM r WHERE n IN ({0})) SELECT count(*) FROM w AS a JOIN w AS b ON a.id = b.id WHERE b.n NOT IN ({1})",
        FOURS,
    ),
    // Equal constants, and contradictions.
    ("SELECT count(*), sum(id) FROM r WHERE n = {0} AND n = {1}", ONES),
    ("SELECT count(*), sum(id) FROM r WHERE n = {0} AND n <> {1}", ONES),
    ("SELECT count(*), sum(id) FROM r WHERE n <> {0} OR n <> {1}", ONES),
    ("SELECT count(*), sum(id) FROM r WHERE n > {0} AND n < {1}", ONES),
    ("SELECT count(*), sum(id) FROM r WHERE n >= {0} AND n <= {1}", ONES),
    ("SELECT count(*), sum(id) FROM r WHERE n BETWEEN {0} AND {1} AND n BETWEEN {1} AND {0}", ONES),
    ("SELECT count(*), sum(id) FROM r WHERE (n = {0} AND id > 5) OR (n = {1} AND id > 5)", ONES),
    ("SELECT count(*), sum(id) FROM r WHERE n = {0} AND id IN ({0}, {1}) AND id NOT IN ({1})", ONES),
];

const ONES: &[[&str; 2]] = &[["13", "26"], ["26", "26"], ["39", "26"], ["52", "13"], ["13", "13"]];

const TWOS: &[[&str; 2]] = &[["13, 26", "39, 52"], ["13, 26", "13, 26"], ["13, 26", "26, 39"], ["39, 39", "39, 52"]];

const FOURS: &[[&str; 2]] = &[
    ["13, 26, 39, 52", "1, 2, 3, 4"],
    ["13, 26, 39, 52", "39, 52, 65, 78"],
    ["13, 26, 39, 52", "52, 39, 26, 13"],
    ["26, 26, 39, 39", "39, 39, 2, 78"],
    ["65, 78, 91, 4", "65, 17, 4, 4"],
];

const WORDS: &[[&str; 2]] = &[
    ["'word 3', 'word 6', 'word 9', 'word 12'", "'a', 'b', 'c', 'd'"],
    ["'word 3', 'word 6', 'word 9', 'word 12'", "'word 9', 'word 12', 'word 15', ''"],
    ["'word 3', 'word 6', 'word 9', 'word 12'", "'word 12', 'word 9', 'word 6', 'word 3'"],
];

/// Of 900 rows each number has 9 or so.
const COUNTS: &[[&str; 2]] =
    &[["7, 8, 9, 10", "1, 2, 3, 4"], ["7, 8, 9, 10", "8, 9, 10, 11"], ["8, 9, 8, 9", "10, 11, 9, 8"]];

const KNOWN: &[[&str; 2]] = &[["1, 2, 4, 17", "3"], ["13, 26, 39, 52", "5"], ["39, 65, 26, 13", "7"]];

async fn sessions(folder: &tempfile::TempDir) -> (Millpond, Millpond) {
    let both = (session(DeviceChoice::Cpu, folder.path()).await, session(DeviceChoice::Sim, folder.path()).await);
    for session in [&both.0, &both.1] {
        session.execute("CREATE VIEW chosen AS SELECT * FROM r WHERE n IN (13, 26, 39, 52)").await.expect("made");
    }
    both
}

/// Planned alone: DataFusion has the scan compute what both branches of the CASE need, and a scan is not made for other
/// constants.
const ALONE: &str = "SELECT count(*), sum(id) FROM r WHERE CASE WHEN n IN ({0}) THEN n NOT IN ({1}) ELSE id < 5 END";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_over_one_expression_have_each_statements_answer() {
    let folder = files();
    let (cpu, sim) = sessions(&folder).await;
    let mut wrong = vec![];
    for (form, constants) in FORMS {
        let statements: Vec<String> =
            constants.iter().map(|[one, two]| form.replace("{0}", one).replace("{1}", two)).collect();
        let before = sim.plans_found().by_template;
        for sql in &statements {
            agree(&cpu, &sim, sql).await;
        }
        let by_template = sim.plans_found().by_template - before;
        let expected = if *form == ALONE { 0 } else { statements.len() as u64 - 1 };
        if by_template != expected {
            wrong.push(format!("{form}: {by_template} by template, not {expected}"));
        }
        for sql in statements.iter().rev() {
            agree(&cpu, &sim, sql).await;
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(sim.engine().expect("a device").take_findings(), Vec::<String>::new());
}

/// A stream of numbers.
struct Rng(ColumnRng, u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(ColumnRng::new(seed, 0), 0)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.1 += 1;
        self.0.below(self.1, bound)
    }
}

/// A random condition on few columns, so that parts of it meet; `value` draws constants from few values.
fn condition(rng: &mut Rng, depth: u64, value: &mut dyn FnMut(&mut Rng) -> u64) -> String {
    let mut values = |rng: &mut Rng, number: u64| {
        let all: Vec<String> = (0..number).map(|_| value(rng).to_string()).collect();
        all.join(", ")
    };
    let column = ["n", "n", "n", "id % 40", "n + 1"][rng.below(5) as usize];
    match rng.below(if depth == 0 { 7 } else { 11 }) {
        0..=2 => {
            let (not, items) = (["", "NOT "][rng.below(2) as usize], rng.below(6) + 1);
            format!("{column} {not}IN ({})", values(rng, items))
        }
        3 => format!("{column} = {}", values(rng, 1)),
        4 => format!("{column} <> {}", values(rng, 1)),
        5 => format!("{column} {} {}", ["<", "<=", ">", ">="][rng.below(4) as usize], values(rng, 1)),
        6 => format!("{column} BETWEEN {} AND {}", values(rng, 1), values(rng, 1)),
        7 => format!("NOT ({})", condition(rng, depth - 1, value)),
        8 | 9 => format!("({} AND {})", condition(rng, depth - 1, value), condition(rng, depth - 1, value)),
        _ => format!("({} OR {})", condition(rng, depth - 1, value), condition(rng, depth - 1, value)),
    }
}

/// The same statement with constants from another stream: its shape is drawn from one that both have.
fn statement(seed: u64, constants: u64) -> String {
    let (mut shape, mut own) = (Rng::new(seed), Rng::new(constants));
    let mut value = |_: &mut Rng| [13, 26, 39, 39, 52, 3, 14, 27][own.below(8) as usize];
    let (inner, outer) = (condition(&mut shape, 2, &mut value), condition(&mut shape, 2, &mut value));
    match shape.below(4) {
        0 => format!("SELECT count(*), sum(id) FROM r WHERE {inner} AND {outer}"),
        1 => format!("SELECT count(*), sum(id) FROM (SELECT * FROM r WHERE {inner}) AS q WHERE {outer}"),
        2 => format!("SELECT n, count(*) FROM (SELECT id, n FROM r WHERE {inner}) AS q GROUP BY n, id HAVING {outer}"),
        _ => format!("SELECT count(*), sum(id) FROM chosen WHERE {inner} OR {outer}"),
    }
}

/// Random statements, each in turn with two others of its template.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_conditions_that_differ_in_constants() {
    let folder = files();
    let (cpu, sim) = sessions(&folder).await;
    let seed = millpond_data::seed::of_commit("MILLPOND_FUZZ_SEED");
    println!("seed {seed:#x}");
    for number in 0..80 {
        for constants in 0..3 {
            agree(&cpu, &sim, &statement(seed ^ number, (number << 8) + constants)).await;
        }
    }
    let found = sim.plans_found().by_template;
    assert!(found > 100, "{found} of 160 statements have the plan of their template");
}
