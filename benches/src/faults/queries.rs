//! The twenty queries of the sweeps: ten of TPC-H, and ten of our own over its tables.
//!
//! ```text
//!   aggregates  scalar · few groups · direct · hash · over another aggregate      rows  home as they come · sorted
//!   strings     as keys · computed · least and greatest                           joins above several device subtrees
//! ```

use millpond_queries::Suite;

/// A query with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub name: &'static str,
    pub sql: String,
    /// Every operator runs on the device, so that the CPU may be forbidden.
    pub wholly: bool,
}

/// Of TPC-H: the first two run on the device alone, the others have joins on the CPU above device subtrees.
const TPCH: [(&str, bool); 10] = [
    ("q01", true),
    ("q06", true),
    ("q03", false),
    ("q05", false),
    ("q10", false),
    ("q12", false),
    ("q14", false),
    ("q15", false),
    ("q18", false),
    ("q19", false),
];

const OWN: [(&str, &str); 10] = [
    (
        "groups",
        "SELECT l_extendedprice, count(*), sum(l_quantity), min(l_shipdate) FROM lineitem GROUP BY l_extendedprice",
    ),
    ("direct", "SELECT l_orderkey, sum(l_quantity), max(l_tax) FROM lineitem GROUP BY l_orderkey"),
    (
        "having",
        "SELECT l_suppkey, sum(l_quantity) AS s FROM lineitem GROUP BY l_suppkey HAVING count(*) > 5 \
         ORDER BY s DESC, l_suppkey",
    ),
    ("distinct", "SELECT DISTINCT l_shipmode, l_returnflag FROM lineitem WHERE l_tax > 0.01"),
    (
        "twice",
        "SELECT max(n), sum(n), count(*) FROM (SELECT l_suppkey, count(*) AS n FROM lineitem \
         WHERE l_linenumber < 5 GROUP BY l_suppkey)",
    ),
    (
        "sort",
        "SELECT l_orderkey, l_linenumber, l_comment FROM lineitem WHERE l_quantity > 20 \
         ORDER BY l_shipdate DESC, l_orderkey, l_linenumber",
    ),
    (
        "top",
        "SELECT l_orderkey, l_linenumber, l_extendedprice * (1 - l_discount) AS p FROM lineitem \
         WHERE l_tax < 0.07 ORDER BY p DESC, l_orderkey, l_linenumber LIMIT 20",
    ),
    ("rows", "SELECT l_orderkey, l_linenumber, l_extendedprice * (1 + l_tax) FROM lineitem WHERE l_discount > 0.02"),
    (
        "text",
        "SELECT upper(l_shipmode), substr(l_comment, 1, 2), count(*) FROM lineitem \
         WHERE l_comment LIKE '%e%' GROUP BY upper(l_shipmode), substr(l_comment, 1, 2)",
    ),
    ("least_text", "SELECT l_shipmode, min(l_comment), max(l_shipinstruct) FROM lineitem GROUP BY l_shipmode"),
];

/// All twenty.
pub fn queries() -> Vec<Named> {
    let suite = Suite::named("tpch").expect("the suite travels inside the crate");
    let tpch = TPCH.iter().map(|(name, wholly)| {
        let sql = suite.query(name).expect("TPC-H has 22 queries").sql.clone();
        Named { name, sql, wholly: *wholly }
    });
    let own = OWN.iter().map(|(name, sql)| Named { name, sql: (*sql).to_string(), wholly: true });
    tpch.chain(own).collect()
}
