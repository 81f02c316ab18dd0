//! Lists and structures that are made of several columns: the simulated device gives DataFusion's answers, and leaves
//! nothing to the CPU.
//!
//!   v: for each type of items a list l_, and a value x_; i, a number from -4 to 4; n, p: nested columns of all kinds
//!
//! NULL     in place of lists, of items, of values and of numbers; lists are empty, too.

use crate::lists::{EXTENTS, TYPES, pair};

#[tokio::test]
async fn lists_of_values_and_of_items() {
    for settings in EXTENTS {
        let mut pair = pair(settings).await;
        for of in TYPES {
            for sql in [
                "SELECT id, make_array(x_#, x_#, NULL), [x_#] FROM v WHERE id < 20 OR id > 120",
                "SELECT id, [l_#[i], x_#, l_#[1]] AS made, k FROM v",
                "SELECT id, array_append(l_#, x_#), array_prepend(x_#, l_#), array_append(l_#, l_#[i]) FROM v",
                "SELECT array_concat(l_#, [x_#]), array_concat([x_#], l_#, l_#), id FROM v",
                "SELECT id, array_slice(l_#, i, k), l_#[k:i], l_#[-k:i] FROM v",
                "SELECT id, array_slice(l_#, k, -i), array_slice(l_#, i, k, 2), array_slice(l_#, k + 1, i, -1 - k % 2) FROM v",
                "SELECT id, array_repeat(x_#, i), array_repeat(x_#, k) FROM v",
                "SELECT id, array_resize(l_#, k), array_resize(l_#, k, x_#), array_resize([x_#, x_#], k) FROM v",
                "SELECT id, array_replace(l_#, x_#, l_#[1]), array_replace_all(l_#, x_#, NULL), array_replace_n(l_#, l_#[2], x_#, i) FROM v",
                "SELECT id, array_remove(l_#, x_#), array_remove_all(l_#, x_#), array_remove_n(l_#, x_#, i), array_remove_n(l_#, l_#[1], k) FROM v",
                "SELECT id, array_positions(l_#, x_#), array_positions(l_#, l_#[i]) FROM v",
                "SELECT a.id, array_concat(a.l_#, b.l_#), array_concat(b.l_#, a.l_#, [a.x_#]) FROM v a JOIN v b ON a.id = b.id + 1",
            ] {
                pair.same(&sql.replace('#', of)).await;
            }
            if !matches!(of, "f64" | "f16") {
                let both = "SELECT a.id, array_union(a.l_#, b.l_#), array_intersect(a.l_#, b.l_#), array_except(a.l_#, b.l_#) \
                            FROM v a JOIN v b ON a.k = b.k AND a.id < b.id + 20";
                pair.same(&both.replace('#', of)).await;
            }
        }
        pair.finish();
    }
}

#[tokio::test]
async fn lists_of_other_functions_and_their_ways() {
    for settings in EXTENTS {
        let mut pair = pair(settings).await;
        for sql in [
            "SELECT id, range(k), range(k, i), generate_series(i, k), generate_series(k, i, -1), range(k * 3, i, i - 5) FROM v",
            // Lists of lists, of structures, of texts that no dictionary has.
            "SELECT id, [l, l], array_append(ll, ll[k]), array_concat(ll, ll[1:k]), array_repeat(t, k) FROM p",
            "SELECT id, array_append(ls, ls[1]), array_resize(ls, k, ls[k]), [st, CASE WHEN k > 1 THEN st END], [ls[1], ls[k]] FROM p",
            "SELECT id, array_append(t, concat(s, substr('', id))), [s, concat(s, '-', substr('', id))] FROM n",
            "SELECT id, array_append(l, k), array_append(t, s), array_slice(ll, k, 3), fixed[k:2], array_append(big, x) FROM p",
            "SELECT id, array_remove(ll, ll[k]), array_remove_n(ll, ll[1], k), array_remove_all(ll, ll[2]) FROM p",
            "SELECT id, array_replace(ll, ll[k], ll[2]), array_positions(ll, ll[k]), array_replace_n(ll, ll[1], ll[k], 2) FROM p \
             WHERE ll[k] IS NOT NULL AND ll[1] IS NOT NULL",
            "SELECT a.id, array_union(a.ll, b.ll), array_intersect(a.t, b.t), array_except(a.ls, b.ls) FROM p a JOIN p b ON a.k = b.k \
             WHERE a.id < 60",
            "SELECT array_concat([k], [id]), array_append([k::int], i), array_concat([k::int], [i]) FROM v",
            // Made lists as the lists of others.
            "SELECT id, array_append(array_prepend(k, l), id), array_concat([k, id], l, [i]), array_slice([k, i, id], i, k) FROM \
             (SELECT n.id, n.k, n.l, v.i FROM n JOIN v ON n.id = v.id)",
            "SELECT id, array_append([1, NULL], k), array_concat([1, 2], [k]), array_remove([1, 2, 3], k) FROM v",
            // What looks into one in the same expression.
            "SELECT id, ([k, i, id])[i], (array_append(l_i64, x_i64))[k], (l_text[k:3])[-1], (array_concat(l_dec, [x_dec]))[i] FROM v",
            "SELECT id, array_length(array_append(l_i64, k)), array_length(l_text[k:i]), array_length([k, i]), array_length(range(k, i)) FROM v",
            "SELECT id, (array_repeat(x_text, k))[1] FROM v WHERE array_length(array_concat(l_i32, [x_i32])) > 2 ORDER BY ([k, id])[1], id",
            // On their way: filtered, joined, sorted, united with rows of their own, limited.
            "SELECT id, m FROM (SELECT id, k, array_append(l_i64, x_i64) AS m FROM v) WHERE k > 1 ORDER BY id DESC LIMIT 30",
            "SELECT a.id, b.m FROM v a JOIN (SELECT id + 2 AS o, [k, i] AS m FROM v WHERE i > 0) b ON a.id = b.o",
            "SELECT id, array_append(l_text, x_text) FROM v ORDER BY k, id",
            "SELECT id, array_append(l_text, x_text) FROM v ORDER BY k DESC, id LIMIT 7",
            "SELECT k, array_agg(id ORDER BY id) AS g, [k, max(id)] FROM v GROUP BY k",
            "SELECT id, [k, row_number() OVER (ORDER BY id)] FROM v",
            // No rows, no items.
            "SELECT id, array_append(l_i64, x_i64), [k] FROM v WHERE id > 1000",
            "SELECT array_remove_all(l_i64, x_i64), range(k, k), array_repeat(k, -i) FROM v WHERE l_i64 IS NULL OR i > 0",
        ] {
            pair.same(sql).await;
        }
        pair.finish();
    }
}

#[tokio::test]
async fn structures() {
    for settings in EXTENTS {
        let mut pair = pair(settings).await;
        for sql in [
            "SELECT id, named_struct('a', k, 'b', x_text), struct(i, x_f64, 7) FROM v",
            "SELECT id, {'n': l_i64, 's': x_dec, 'd': x_date, 't': 'é'} AS made FROM v WHERE k <> 2",
            "SELECT made, k FROM (SELECT id, k, struct(id, x_bool, x_large) AS made FROM v) WHERE k > 0 ORDER BY id LIMIT 20",
            "SELECT id, struct(st, ls, s), struct(concat(s, substr('', id)), k) FROM p",
            "SELECT k, struct(min(id), max(x_text)) FROM v GROUP BY k",
            "SELECT id, struct(k, i) FROM v WHERE id > 1000",
        ] {
            pair.same(sql).await;
        }
        pair.finish();
    }
}

/// Errors have DataFusion's message; unsupported forms have a reason.
#[tokio::test]
async fn errors_and_reasons() {
    let mut pair = pair(&["millpond.batch_rows = 30"]).await;
    for of in [
        "array_resize(l_i64, k - 3)",
        "array_slice(l_i64, 1, 9, i - i)",
        "array_slice(l_i64, i * 3000000000, k)",
        "range(k, i, k - k)",
    ] {
        let sql = format!("SELECT id, {of} FROM v WHERE i IS NOT NULL");
        let (cpu, sim) = (pair.cpu.execute(&sql).await, pair.lenient.execute(&sql).await);
        let said = |of: millpond::datafusion::error::Result<millpond::session::QueryResult>| {
            let all = of.map(|_| ()).expect_err("an error").strip_backtrace();
            all.split(char::is_numeric).next().map(str::to_string)
        };
        assert_eq!(said(sim), said(cpu), "{of}");
    }
    // Unevaluated expressions raise no error.
    pair.same("SELECT id, array_slice(l_i64, i * 3000000000, k) FROM v WHERE l_i64 IS NULL AND i <> 0").await;
    pair.stays("SELECT array_union(a.l_f64, b.l_f64) FROM v a JOIN v b ON a.id = b.id", "zeros of floats").await;
    pair.stays("SELECT array_remove(ls, ls[k]) FROM n WHERE id < 0", "structures and maps").await;
    pair.stays("SELECT id, array_append(fixed, k::int) FROM n", "below a NULL").await;
    pair.stays("SELECT [[k, i], [id]] FROM v", "").await;
    pair.stays("SELECT array_length(m) FROM (SELECT array_agg(id) AS m FROM v GROUP BY k)", "leave the device").await;
    pair.finish();
}
