//! Functions of a list and of other columns: the simulated device gives DataFusion's answers, and leaves nothing to the
//! CPU.
//!
//!   v: for each type of items a list and a value, by row; i, a number from -4 to 4 ── l[i], array_has(l, x),
//!   array_position(l, x)
//!
//! NULL     in place of lists, of items, of what is sought and of numbers; lists are empty, too. Floats have both zeros
//!          and a NaN.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, BooleanBuilder, Date32Array, Decimal128Array, Float16Array,
    Float64Array, Int32Array, Int64Array, LargeListArray, ListArray, ListBuilder, StringArray, StringBuilder,
};
use millpond::datafusion::arrow::datatypes::{
    Date32Type, Decimal128Type, Float16Type, Float64Type, Int32Type, Int64Type,
};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::datasource::MemTable;
use millpond::session::QueryResult;

use crate::nested::Pair;

pub const EXTENTS: [&[&str]; 2] = [&["millpond.batch_rows = 3"], &["millpond.batch_rows = 30"]];

/// A list for each row, of small numbers.
fn lists(rows: usize) -> Vec<Option<Vec<Option<usize>>>> {
    let of = |row: usize| match row % 9 {
        0 => None,
        1 => Some(vec![]),
        2 => Some(vec![None]),
        3 => Some(vec![Some(3), Some(1), Some(2)]),
        4 => Some(vec![Some(1), None]),
        5 => Some(vec![None, Some(2), Some(2)]),
        6 => Some(vec![Some(0)]),
        7 => Some(vec![None, None]),
        _ => Some(vec![Some(row % 4), Some(0), Some(1), Some(2), Some(3)]),
    };
    (0..rows).map(of).collect()
}

/// Items, by their numbers.
const FLOATS: [f64; 4] = [0.0, -0.0, f64::NAN, 1.5];
const WORDS: [&str; 4] = ["", "mill", "a text of more than twelve bytes", "é"];

fn table(rows: usize) -> RecordBatch {
    let lists = lists(rows);
    let sought: Vec<Option<usize>> =
        (0..rows).map(|row| ((row * 5 + 3) % 6 < 4).then_some((row * 5 + 3) % 6)).collect();
    let index: Int64Array = (0..rows).map(|row| (row % 10 > 0).then_some((row * 7 % 9) as i64 - 4)).collect();
    let mut columns: Vec<(String, ArrayRef)> = vec![
        ("id".into(), Arc::new(Int64Array::from_iter_values(0..rows as i64))),
        ("i".into(), Arc::new(index)),
        ("k".into(), Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row as i64 % 5)))),
    ];
    let mut add = |name: &str, list: ArrayRef, value: ArrayRef| {
        columns.push((format!("l_{name}"), list));
        columns.push((format!("x_{name}"), value));
    };
    macro_rules! of_numbers {
        ($name:literal, $list:ident, $ty:ty, $values:ty, $item:expr) => {{
            let item = $item;
            let items = |list: &Option<Vec<Option<usize>>>| {
                list.as_ref().map(|list| list.iter().map(|at| at.map(item)).collect::<Vec<_>>())
            };
            let list = $list::from_iter_primitive::<$ty, _, _>(lists.iter().map(items));
            let value: $values = sought.iter().map(|at| at.map(item)).collect();
            add($name, Arc::new(list), Arc::new(value));
        }};
    }
    of_numbers!("i32", ListArray, Int32Type, Int32Array, |at: usize| at as i32 - 1);
    of_numbers!("i64", ListArray, Int64Type, Int64Array, |at: usize| [i64::MIN, 1, 2, i64::MAX][at]);
    of_numbers!("f64", ListArray, Float64Type, Float64Array, |at: usize| FLOATS[at]);
    of_numbers!("f16", ListArray, Float16Type, Float16Array, |at: usize| {
        <Float16Type as ArrowPrimitiveType>::Native::from_f64(FLOATS[at])
    });
    of_numbers!("date", ListArray, Date32Type, Date32Array, |at: usize| at as i32 * 400);
    of_numbers!("large", LargeListArray, Int64Type, Int64Array, |at: usize| at as i64);
    of_numbers!("dec", ListArray, Decimal128Type, Decimal128Array, |at: usize| [i128::from(i64::MAX) * 9, 0, -5, 7]
        [at]);
    let (mut truths, mut words) = (ListBuilder::new(BooleanBuilder::new()), ListBuilder::new(StringBuilder::new()));
    for list in &lists {
        truths.append_option(list.as_ref().map(|list| list.iter().map(|at| at.map(|at| at > 1))));
        words.append_option(list.as_ref().map(|list| list.iter().map(|at| at.map(|at| WORDS[at]))));
    }
    let truth: BooleanArray = sought.iter().map(|at| at.map(|at| at > 1)).collect();
    add("bool", Arc::new(truths.finish()), Arc::new(truth));
    let word: StringArray = sought.iter().map(|at| at.map(|at| WORDS[at])).collect();
    add("text", Arc::new(words.finish()), Arc::new(word));
    let fields = columns.into_iter().map(|(name, array)| {
        let nullable = array.null_count() > 0;
        (name, array, nullable)
    });
    RecordBatch::try_from_iter_with_nullable(fields).expect("columns of one length")
}

pub async fn pair(settings: &[&str]) -> Pair {
    let pair = Pair::new(settings).await;
    for session in [&pair.cpu, &pair.sim, &pair.lenient] {
        let batch = table(150);
        let parts = vec![vec![batch.slice(0, 50)], vec![batch.slice(50, 100)]];
        let table = MemTable::try_new(batch.schema(), parts).expect("a table");
        session.context().register_table("v", Arc::new(table)).expect("a free name");
    }
    pair
}

pub const TYPES: [&str; 9] = ["i32", "i64", "f64", "f16", "date", "large", "dec", "bool", "text"];

#[tokio::test]
async fn items_by_number_and_searches() {
    for settings in EXTENTS {
        let mut pair = pair(settings).await;
        for of in TYPES {
            for sql in [
                "SELECT id, l_#[i], array_has(l_#, x_#), array_position(l_#, x_#) FROM v",
                "SELECT id, l_#[k], l_#[-k], array_has(l_#, l_#[i]), array_position(l_#, l_#[i]) FROM v",
                "SELECT id, array_position(l_#, x_#, CASE WHEN array_length(l_#) > 1 THEN 3 - k / 3 ELSE 1 END) FROM v",
                "SELECT id, l_# FROM v WHERE array_has(l_#, x_#)",
                "SELECT id, NOT array_has(l_#, x_#) OR l_#[i] = x_# FROM v WHERE i IS NOT NULL",
                "SELECT l_#[i] AS e, count(*), min(id) FROM v GROUP BY l_#[i]",
                "SELECT k, count(*) FILTER (WHERE array_has(l_#, x_#)), sum(array_position(l_#, x_#)) FROM v GROUP BY k",
                "SELECT id, l_#[i] AS e FROM v ORDER BY e, id LIMIT 40",
                "SELECT a.id, b.id, a.l_#[b.i] FROM v a JOIN v b ON a.id = b.k + 40 AND array_has(a.l_#, b.x_#)",
                "SELECT a.id, array_position(b.l_#, a.x_#) FROM v a JOIN v b ON a.id = b.id + 1 ORDER BY a.id",
                "SELECT id, array_has(l_#, (SELECT max(x_#) FROM v)), array_has(CASE WHEN k > 1 THEN l_# END, x_#) FROM v",
            ] {
                if sql.contains("max(x") && of == "bool" {
                    continue;
                }
                pair.same(&sql.replace('#', of)).await;
            }
        }
        pair.finish();
    }
}

#[tokio::test]
async fn lists_of_other_places() {
    for settings in EXTENTS {
        let mut pair = pair(settings).await;
        for sql in [
            "SELECT id, array_position([1, NULL, 0], k), array_has([1, 2, NULL], k), ([5, NULL, 7])[i] FROM v",
            "SELECT id, (['mill', NULL])[i], array_position(['é', 'mill', NULL], x_text) FROM v",
            // Texts that no dictionary has.
            "SELECT id, array_has(l_text, substr(x_text, id - id + 1)), array_position(l_text, concat(x_text, substr('', id))) FROM v",
            "SELECT id, array_has(string_to_array(x_text, 'i'), x_text), array_has(array_distinct(l_text), x_text) FROM v",
            "SELECT id, array_has(ll, ll[k]), array_has(ls, ls[k]), array_has(ll, ll[1 + k / 3]) FROM n WHERE k IS NOT NULL",
            "SELECT k, m[k], array_has(m, 2), array_position(m, k) FROM (SELECT k, max(l_i64) AS m FROM v GROUP BY k)",
            "SELECT k, m[k], array_has(m, 'mill') FROM (SELECT k, min(l_text) AS m FROM v GROUP BY k)",
            "SELECT id, e[id % 3], array_has(e, id % 3) FROM (SELECT id, unnest(ll) AS e FROM n)",
            "SELECT id, ll[k], ls[k], fixed[k], big[k], array_has(big, x), array_has(fixed, k), array_position(t, s) FROM n",
            "SELECT id, ll[k], ls[k], fixed[k], big[k], array_has(big, x), array_has(fixed, k), array_position(t, s) FROM p",
            "SELECT id, array_has(l_i32, k), array_position(l_i64, x_i32), array_has(l_i64, 1.5 * k) FROM v",
            "SELECT id, array_has(l_i64, x_i64) FROM v WHERE id > 1000",
            "SELECT id, array_has(l_i64, x_i64), l_i64[i] FROM v WHERE l_i64 IS NULL",
            "SELECT id, array_length(ll[k]), cardinality(ll[k]), ll[k][k - 1], array_sort(ll[k]), ls[k]['x'], upper(t[k]) FROM n",
            "SELECT id, empty(a.ll[b.o]), array_to_string(b.ll[a.k], '-') FROM n a JOIN (SELECT id AS o, l, ll FROM n) b ON id = o + 2",
            "SELECT array_length(ll[k]) AS z, count(*) FROM n WHERE ls[k]['x'] IS NULL GROUP BY z",
            "SELECT id, sum(l_i64[i]) OVER (PARTITION BY k ORDER BY id) FROM v WHERE k < 3 AND l_i64[i] BETWEEN 0 AND 9",
        ] {
            pair.same(sql).await;
        }
        pair.finish();
    }
}

#[tokio::test]
async fn lists_in_lists() {
    for settings in EXTENTS {
        let mut pair = pair(settings).await;
        for of in TYPES {
            for function in ["array_has_all", "array_has_any"] {
                // Some list of each batch has items.
                let sides = "v a JOIN (SELECT id AS o, k AS j, l_# AS m FROM v WHERE l_# IS NOT NULL) b ON a.k = b.j";
                let rest = "WHERE a.id < 40 AND a.l_# IS NOT NULL";
                let sql = format!("SELECT a.id, b.o, {function}(a.l_#, b.m) FROM {sides} {rest}");
                pair.same(&sql.replace('#', of)).await;
                let sql = format!("SELECT count(*) FROM {sides} {rest} AND {function}(array_distinct(b.m), a.l_#)");
                pair.same(&sql.replace('#', of)).await;
            }
        }
        let nested = "SELECT a.id, array_has_any(a.ll, b.m), array_has_all(b.m, a.ll) FROM n a JOIN (SELECT id AS o, ll AS m FROM n \
                      WHERE ll IS NOT NULL) b ON a.id = b.o + 3 WHERE a.ll IS NOT NULL";
        pair.same(nested).await;
        // Columns of files stay on the device, and tables beside them.
        for _ in 0..2 {
            pair.same("SELECT id, t[k], array_has(t, s), array_has(l, k), array_position(l, id % 4) FROM p").await;
            pair.same(
                "SELECT a.id, array_has_any(a.t, b.t), array_has(b.t, a.s) FROM p a JOIN p b ON a.id = b.id + 1 \
                       WHERE a.t IS NOT NULL AND b.t IS NOT NULL",
            )
            .await;
        }
        pair.finish();
    }
}

/// Errors have DataFusion's message, and unevaluated expressions raise no error.
#[tokio::test]
async fn numbers_outside_of_a_list() {
    let mut pair = pair(&["millpond.batch_rows = 30"]).await;
    pair.same("SELECT id, l_large[i * 9000000000], l_large[id - 9223372036854775807 - 1] FROM v").await;
    pair.same("SELECT id, l_i64[CASE WHEN l_i64 IS NULL THEN 9000000000 ELSE i END] FROM v").await;
    pair.same("SELECT id, array_position(l_i64, x_i64, i) FROM v WHERE l_i64 IS NULL AND i > 0").await;
    for of in ["l_i64[3000000000 + id]", "array_position(l_i64, x_i64, i)", "array_position(l_i64, x_i64, k + 4)"] {
        let sql = format!("SELECT id, {of} FROM v");
        let (cpu, sim) = (pair.cpu.execute(&sql).await, pair.lenient.execute(&sql).await);
        // Which row is refused first depends on threads.
        let said = |of: millpond::datafusion::error::Result<QueryResult>| {
            let all = of.map(|_| ()).expect_err("a number outside of a list").strip_backtrace();
            all.rsplit_once(':').map(|(what, _)| what.to_string())
        };
        assert_eq!(said(sim), said(cpu), "{of}");
    }
    pair.stays("SELECT id, (CASE WHEN k > 2 THEN st END)['b'] FROM n", "it reads several").await;
    pair.stays("SELECT id, array_position(ll, ll[k]) FROM n", "positions of nested items").await;
    // Results for a NULL list depend on the rows beside it.
    let sql = "SELECT id, array_has_all(a.l_i32, b.l_i32) FROM v a JOIN (SELECT id AS o, l_i32 FROM v) b ON id = o + 1";
    let report = pair.compare(&pair.lenient, sql).await.expect("the CPU's answer");
    assert!(!report.notes.is_empty(), "{:?}", report.reasons);
    pair.finish();
}
