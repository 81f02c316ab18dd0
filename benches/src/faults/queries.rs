//! The queries of the sweeps: ten of TPC-H, nineteen of our own over its tables, and three with functions of clicks.
//!
//! ```text
//!   aggregates  scalar · few groups · direct · hash · over another aggregate      rows      as read · sorted · windows
//!   nested      lists of groups · items of lists · lists and structures of rows   again     recursion
//!   strings     as keys · computed · least and greatest                           joins      of up to six tables
//!   clicks      sessions · pairs · earlier rows
//!   learning    k-means and naive Bayes, whose host waits between launches
//! ```

use millpond_queries::Suite;

/// A query with its name. Every operator of each runs on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub name: &'static str,
    pub sql: String,
}

const TPCH: [&str; 10] = ["q01", "q06", "q03", "q05", "q10", "q12", "q14", "q15", "q18", "q19"];

const OWN: [(&str, &str); 19] = [
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
    (
        "window",
        "SELECT l_orderkey, l_linenumber, rank() OVER (PARTITION BY l_suppkey ORDER BY l_orderkey, l_linenumber) AS r, \
         sum(l_quantity) OVER (PARTITION BY l_suppkey ORDER BY l_orderkey, l_linenumber ROWS 3 PRECEDING) AS s FROM lineitem",
    ),
    (
        "peers",
        "SELECT l_orderkey, l_suppkey, l_shipdate, lag(l_shipmode) OVER (PARTITION BY l_suppkey ORDER BY l_orderkey, l_linenumber) AS before, \
         min(l_comment) OVER (PARTITION BY l_suppkey ORDER BY l_shipdate GROUPS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS least, \
         avg(l_quantity) OVER (ORDER BY l_orderkey RANGE BETWEEN 10 PRECEDING AND 10 FOLLOWING) AS near FROM lineitem",
    ),
    (
        "frames",
        "SELECT l_orderkey, l_linenumber, \
         string_agg(l_shipmode, '-') OVER (PARTITION BY l_suppkey ORDER BY l_orderkey, l_linenumber) AS t, \
         regr_slope(l_extendedprice, l_quantity) OVER (PARTITION BY l_suppkey ORDER BY l_orderkey, l_linenumber) AS r, \
         median(l_quantity) OVER (PARTITION BY l_suppkey ORDER BY l_orderkey, l_linenumber ROWS 9 PRECEDING) AS m, \
         percentile_cont(l_linenumber, 0.3) FILTER (WHERE l_tax < 0.05) OVER (PARTITION BY l_suppkey ORDER BY l_orderkey, l_linenumber) AS p, \
         count(DISTINCT l_shipmode) OVER (PARTITION BY l_suppkey ORDER BY l_orderkey, l_linenumber ROWS 9 PRECEDING) AS d FROM lineitem",
    ),
    (
        "lists",
        "SELECT l_suppkey, array_agg(l_orderkey ORDER BY l_shipdate, l_orderkey, l_linenumber) AS orders, \
         string_agg(l_shipmode, '-' ORDER BY l_shipdate, l_orderkey, l_linenumber) AS modes, \
         nth_value(l_comment, 2 ORDER BY l_shipdate, l_orderkey, l_linenumber) AS second FROM lineitem GROUP BY l_suppkey",
    ),
    (
        "items",
        "SELECT word, count(*), min(o_orderkey) FROM \
         (SELECT o_orderkey, unnest(string_to_array(o_comment, ' ')) AS word FROM orders WHERE o_orderkey % 5 > 0) GROUP BY word",
    ),
    (
        "made",
        "SELECT o_orderkey, [o_custkey, o_shippriority] AS a, array_remove(string_to_array(o_comment, ' '), o_orderpriority) AS b, \
         array_append(string_to_array(o_clerk, '#'), o_orderstatus) AS c, struct(o_orderkey, o_comment) AS d FROM orders WHERE o_orderkey % 3 > 0",
    ),
    (
        "learn",
        "SELECT o_orderkey, label FROM kmeans('SELECT o_orderkey, o_totalprice, o_custkey FROM orders', 'o_orderkey', \
         ['o_totalprice', 'o_custkey'], 2, 2, 1) ORDER BY o_orderkey",
    ),
    (
        "bayes",
        "SELECT o_orderkey, prediction FROM naive_bayes( \
             'SELECT o_orderkey, o_comment, o_orderpriority FROM orders WHERE o_orderkey % 3 > 0', \
             'SELECT o_orderkey, o_comment, o_orderpriority FROM orders WHERE o_orderkey % 3 = 0', \
             'o_orderkey', 'o_comment', 'o_orderpriority', 0.5, 4096) ORDER BY o_orderkey",
    ),
    (
        "recursion",
        "WITH RECURSIVE r(k, steps) AS (SELECT o_orderkey, 0 FROM orders WHERE o_orderkey < 40 \
             UNION ALL SELECT k * 2, steps + 1 FROM r WHERE k < 900) \
         SELECT o_orderpriority, count(*), sum(steps) FROM r JOIN orders ON o_orderkey = k GROUP BY o_orderpriority",
    ),
    ("least_text", "SELECT l_shipmode, min(l_comment), max(l_shipinstruct) FROM lineitem GROUP BY l_shipmode"),
];

/// Functions of clicks; lines of orders are clicks of suppliers.
const CLICKS: [(&str, &str); 3] = [
    (
        "sessions",
        "SELECT l_suppkey, session_id, count(*), max(l_shipdate) FROM sessionize( \
             'SELECT l_suppkey, l_orderkey, l_shipdate FROM lineitem', 'l_suppkey', 'l_orderkey', 700) \
         GROUP BY l_suppkey, session_id",
    ),
    ("pairs", "SELECT l_orderkey, l_suppkey_1, l_suppkey_2 FROM basket_pairs('lineitem', 'l_orderkey', 'l_suppkey')"),
    (
        "before",
        "SELECT l_suppkey, l_orderkey, l_linenumber, anchor_l_orderkey, steps_before FROM last_n_before( \
             'SELECT l_suppkey, l_orderkey, l_linenumber, l_shipmode = ''AIR'' AS air FROM lineitem', \
             'l_suppkey', ['l_orderkey', 'l_linenumber'], 'air', 2, 900)",
    ),
];

/// All of them.
pub fn queries() -> Vec<Named> {
    let suite = Suite::named("tpch").expect("the suite travels inside the crate");
    let tpch = TPCH.iter().map(|name| {
        let sql = suite.query(name).expect("TPC-H has 22 queries").sql.clone();
        Named { name, sql }
    });
    let own = OWN.iter().chain(&CLICKS).map(|(name, sql)| Named { name, sql: (*sql).to_string() });
    tpch.chain(own).collect()
}
