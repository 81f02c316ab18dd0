//! Rejected calls with their messages, and valid forms of names.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, ListArray, StringArray};
use millpond::datafusion::arrow::datatypes::Int32Type;

use crate::support::{query, refusal, session, table};

fn with_tables() -> millpond::Millpond {
    let session = session();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("who", Arc::new(Int64Array::from(vec![1, 1, 2]))),
        ("at", Arc::new(Int64Array::from(vec![0, 5, 9]))),
        ("Page", Arc::new(StringArray::from(vec!["a", "b", "c"]))),
        ("x", Arc::new(Float64Array::from(vec![0.5, 1.0, 2.0]))),
        ("many", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(vec![Some(vec![Some(1)]); 3]))),
        ("session_id", Arc::new(Int64Array::from(vec![0, 0, 0]))),
    ];
    table(session.context(), "clicks", 1, columns);
    session
}

#[tokio::test]
async fn wrong_arguments_are_named_with_a_way_out() {
    let session = with_tables();
    for (call, parts) in [
        ("sessionize('clik', 'who', 'at', 1)", ["no table or view is called 'clik'", "there are clicks", "'SELECT …'"]),
        ("sessionize('nowhere.clicks', 'who', 'at', 1)", ["no table or view is called 'nowhere.clicks'", "", ""]),
        ("sessionize('clicks', 'user', 'at', 1)", ["'clicks' has no column 'user'", "it has who, at, Page", ""]),
        ("sessionize('clicks', 'who', 'x', 1)", ["column 'x' is Float64", "its time must be", "CAST it to BIGINT"]),
        ("sessionize('clicks', 'many', 'at', 1)", ["column 'many' is List", "its key must be", "sorted"]),
        ("sessionize('clicks', 'who', 'at', -1)", ["sessionize: gap is -1", "0 or more", ""]),
        ("sessionize('clicks', 'who', 'at', 1.5)", ["sessionize: gap is 1.5", "an integer", ""]),
        ("sessionize('clicks', 'who', 'at', NULL)", ["sessionize: gap is NULL", "an integer", ""]),
        ("sessionize('clicks', 'who', 'at', '1')", ["sessionize: gap is '1'", "an integer", ""]),
        ("sessionize('clicks', 5, 'at', 1)", ["sessionize: key is 5", "['a', 'b']", ""]),
        ("sessionize('clicks', [1], 'at', 1)", ["sessionize: key is", "a column's name", ""]),
        ("sessionize('clicks', 'who', 'at')", ["sessionize takes 4 arguments; 3", "sessionize('relation', 'key'", ""]),
        ("sessionize(7, 'who', 'at', 1)", ["sessionize: relation is 7", "the name of a table or view", ""]),
        ("sessionize('clicks', 'who', 'at', 1)", ["its result has a column 'session_id'", "rename", ""]),
        (
            "sessionize('DELETE FROM clicks', 'who', 'at', 1)",
            ["no table or view is called 'DELETE FROM clicks'", "", ""],
        ),
        (
            "sessionize('SELECT whoo FROM clicks', 'who', 'at', 1)",
            ["sessionize: its query 'SELECT whoo FROM clicks'", "cannot be planned", "whoo"],
        ),
        ("basket_pairs('clicks', 'who', 'many')", ["basket_pairs: column 'many' is List", "its element must be", ""]),
        ("basket_pairs('SELECT who AS at_2, at FROM clicks', 'at_2', 'at')", ["column 'at_2'", "rename", ""]),
        ("last_n_before('clicks', 'who', 'at', 'x', 3)", ["column 'x' is Float64", "its anchor must be BOOLEAN", ""]),
        ("last_n_before('clicks', 'who', 'at', 'x', 0)", ["last_n_before: n is 0", "1 or more", ""]),
        (
            "last_n_before('clicks', 'who', 'Page', 'x', 3, 5)",
            ["column 'Page' is Utf8", "first order column with within", ""],
        ),
        ("last_n_before('clicks', 'who', 'at', 'x', 3, -5)", ["last_n_before: within is -5", "0 or more", ""]),
        ("kmeans('clicks', 'who', ['x', 'Page'], 2)", ["column 'Page' is Utf8", "its feature must be a number", ""]),
        ("kmeans('clicks', 'who', 'x', 0)", ["kmeans: k is 0", "1 or more", ""]),
        ("kmeans('clicks', 'who', 'x', 100000)", ["kmeans: k is 100000", "1 to 65536", ""]),
        ("kmeans('clicks', 'who', 'x', 2, 20, 5, 37, -1)", ["kmeans: tolerance is -1", "0 or more", ""]),
        ("kmeans_centers('SELECT who, 1.0 AS size FROM clicks', 'who', 'size', 2)", ["column 'size'", "rename", ""]),
        (
            "sessionize('SELECT 1; SELECT 2', 'who', 'at', 1)",
            ["its query 'SELECT 1; SELECT 2' cannot be planned", "a single SQL statement", ""],
        ),
        ("kmeans_predict('clicks', 'who', 'x', 'clicks')", ["'clicks' has no column 'label'", "it has who", ""]),
        (
            "kmeans_predict('clicks', 'who', ['x', 'at'], 'SELECT 1 AS label, 2.0 AS x')",
            ["the query has no column 'at'", "it has label, x", ""],
        ),
        (
            "kmeans_predict('clicks', 'who', 'Page', 'SELECT 1 AS label, 2.0 AS \"Page\"')",
            ["column 'Page' is Utf8", "its feature must be a number", ""],
        ),
        ("kmeans_predict('clicks', 'who', 'x')", ["kmeans_predict takes 4 arguments; 3 are given", "'centers')", ""]),
        ("naive_bayes('clicks', 'clicks', 'who', 'Page', 'x', -1)", ["alpha is -1", "a finite number above 0", ""]),
        (
            "naive_bayes('clicks', 'clicks', 'who', 'Page', 'x', 1, 99999999999)",
            ["buckets is 99999999999", "1 to 1073741824", ""],
        ),
        ("logistic_regression('clicks', 'Page', 'x')", ["column 'Page' is Utf8", "0 or 1", ""]),
        ("logistic_report('clicks', 'who', 'x', 0)", ["logistic_report: max_iterations is 0", "1 or more", ""]),
        ("naive_bayes('clicks', 'clicks', 'who', 'x', 'Page')", ["column 'x' is Float64", "its text must be TEXT", ""]),
        ("naive_bayes('clicks', 'clicks', 'who', 'Page', 'x', 0)", ["naive_bayes: alpha is 0", "above 0", ""]),
        ("sentiment_words(1)", ["sentiment_words takes no arguments; 1 is given", "sentiment_words()", ""]),
    ] {
        let error = refusal(&session, &format!("SELECT * FROM {call}")).await;
        assert!(parts.iter().all(|part| error.contains(part)), "{call}: {error}");
        assert!(!error.contains("Internal error"), "{call}: {error}");
    }
}

#[tokio::test]
async fn relations_are_tables_views_and_queries() {
    let session = with_tables();
    let context = session.context();
    for sql in [
        "CREATE VIEW named AS SELECT who, at FROM clicks",
        "CREATE VIEW \"Odd Name\" AS SELECT who, at FROM clicks",
        "CREATE SCHEMA other",
        "CREATE VIEW other.seen AS SELECT who, at FROM clicks",
    ] {
        context.sql(sql).await.expect(sql).collect().await.expect(sql);
    }
    for relation in [
        "named",
        "NAMED",
        "Odd Name",
        "other.seen",
        "datafusion.public.named",
        "SELECT who, at FROM clicks",
        "(select who, at from named) UNION ALL SELECT 9, 9 WHERE FALSE",
        "WITH c AS (SELECT * FROM clicks) SELECT who, at FROM c",
        "SELECT who, at FROM sessionize(''named'', ''who'', ''at'', 3)",
    ] {
        let sql = format!("SELECT who, at, session_id FROM sessionize('{relation}', 'who', 'at', 3)");
        let expected = [["1", "0", "0"], ["1", "5", "1"], ["2", "9", "0"]].map(|row| row.map(str::to_string).to_vec());
        assert_eq!(query(&session, &sql).await, expected, "{relation}");
    }
}

#[tokio::test]
async fn columns_are_found_exactly_or_in_any_case() {
    let session = with_tables();
    let pairs = |element: &str| format!("SELECT \"Page_1\" FROM basket_pairs('clicks', 'WHO', '{element}')");
    for element in ["Page", "page", "PAGE"] {
        assert_eq!(query(&session, &pairs(element)).await, [["a".to_string()]], "{element}");
    }
    let twice = "SELECT * FROM sessionize('SELECT who AS \"W\", who AS \"w\", at FROM clicks', 'W', 'at', 1)";
    assert_eq!(query(&session, twice).await.len(), 3);
    let unclear = "SELECT * FROM basket_pairs('SELECT who AS \"ID\", who AS \"Id\", at FROM clicks', 'id', 'at')";
    let error = refusal(&session, unclear).await;
    assert!(error.contains("'id' may be ID or Id") && error.contains("with AS"), "{error}");
}

#[tokio::test]
async fn calls_stand_wherever_a_table_does() {
    let session = with_tables();
    session
        .context()
        .sql("CREATE VIEW named AS SELECT who, at FROM clicks")
        .await
        .expect("plans")
        .collect()
        .await
        .expect("runs");
    let call = "sessionize('named', 'who', 'at', 3)";
    for (sql, expected) in [
        (
            format!(
                "SELECT COUNT(*) FROM {call} AS a JOIN {call} AS b ON a.who = b.who AND a.session_id = b.session_id"
            ),
            "3",
        ),
        (format!("SELECT COUNT(*) FROM clicks WHERE who IN (SELECT who FROM {call} WHERE session_id = 1)"), "2"),
        (format!("SELECT (SELECT MAX(session_id) FROM {call})"), "1"),
        (format!("SELECT COUNT(*) FROM (SELECT who FROM {call} UNION ALL SELECT at FROM {call})"), "6"),
        (
            format!(
                "SELECT COUNT(*) FROM clicks c WHERE EXISTS (SELECT 1 FROM {call} s WHERE s.who = c.who AND s.session_id > 0)"
            ),
            "2",
        ),
    ] {
        assert_eq!(query(&session, &sql).await, [[expected.to_string()]], "{sql}");
    }
    query(&session, &format!("CREATE TABLE kept AS SELECT * FROM {call}")).await;
    assert_eq!(query(&session, "SELECT COUNT(*) FROM kept").await, [["3".to_string()]]);
}
