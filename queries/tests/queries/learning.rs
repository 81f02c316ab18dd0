//! Machine learning against scikit-learn's stored vectors (`tests/oracles/learning.json`, made by `make.py` beside it), and in SQL.

use std::sync::Arc;

use millpond::DeviceChoice;
use millpond::datafusion::arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use millpond_queries::functions::WorkloadFrame;
use millpond_queries::functions::ml::{
    KMeans, KMeansOptions, Logistic, LogisticOptions, Matrix, NaiveBayes, NaiveBayesOptions, murmur3_32,
};
use serde_json::Value;

use crate::support::{Numbers, query, refusal, rows, session, session_on, table};

fn vectors() -> Value {
    serde_json::from_str(include_str!("../oracles/learning.json")).expect("the file is JSON")
}

fn cases(name: &str) -> Vec<Value> {
    vectors()[name].as_array().expect("a list of cases").clone()
}

fn doubles(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number")).collect()
}

fn size(value: &Value) -> usize {
    value.as_u64().expect("a count") as usize
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|value| value.as_str().expect("a text")).collect()
}

fn matrix(case: &Value) -> Matrix {
    Matrix::try_new(size(&case["rows"]), size(&case["columns"]), doubles(&case["values"])).expect("a matrix")
}

fn near(found: f64, expected: f64, tolerance: f64, what: &str) {
    let scale = expected.abs().max(1.0);
    assert!((found - expected).abs() <= tolerance * scale, "{what}: {found}, expected {expected}");
}

#[test]
fn kmeans_from_given_centres_is_the_librarys() {
    for case in cases("kmeans") {
        let rows = matrix(&case);
        let start = Matrix::try_new(size(&case["k"]), rows.num_columns(), doubles(&case["start"])).expect("centres");
        let options = KMeansOptions {
            max_iterations: size(&case["max_iterations"]),
            tolerance: case["tolerance"].as_f64().expect("a number"),
            ..KMeansOptions::new(size(&case["k"]))
        };
        let model = KMeans::fit_from(&rows, start, &options).expect("fits");
        let labels: Vec<usize> = model.labels.iter().map(|label| *label as usize).collect();
        let expected: Vec<usize> = case["labels"].as_array().expect("labels").iter().map(size).collect();
        assert_eq!(labels, expected);
        near(model.wssse, case["inertia"].as_f64().expect("a number"), 1e-12, "wssse");
        for (index, center) in doubles(&case["centers"]).into_iter().enumerate() {
            near(model.centers.row(index / rows.num_columns())[index % rows.num_columns()], center, 1e-12, "centre");
        }
    }
}

#[test]
fn logistic_regression_is_the_librarys() {
    for case in cases("logistic") {
        let rows = matrix(&case);
        let labels: Vec<bool> = case["labels"].as_array().expect("labels").iter().map(|y| size(y) == 1).collect();
        let model = Logistic::fit(&rows, &labels, &LogisticOptions::default()).expect("fits");
        assert!(model.converged, "after {} iterations", model.iterations);
        near(model.loss, case["loss"].as_f64().expect("a number"), 1e-9, "loss");
        near(model.intercept, case["intercept"].as_f64().expect("a number"), 1e-4, "intercept");
        for (weight, expected) in model.weights.iter().zip(doubles(&case["weights"])) {
            near(*weight, expected, 1e-4, "weight");
        }
        let confusion = model.confusion(&rows, &labels).expect("labels fit");
        let counts =
            [confusion.true_negatives, confusion.false_positives, confusion.false_negatives, confusion.true_positives];
        assert_eq!(counts.map(|count| count as f64).to_vec(), doubles(&case["confusion"]));
        near(
            confusion.precision().expect("ones are predicted"),
            case["precision"].as_f64().expect("a number"),
            1e-12,
            "precision",
        );
        near(confusion.auc().expect("both classes"), case["auc"].as_f64().expect("a number"), 1e-12, "auc");
    }
}

#[test]
fn naive_bayes_is_the_librarys() {
    for case in cases("bayes") {
        let options = NaiveBayesOptions {
            alpha: case["alpha"].as_f64().expect("a number"),
            buckets: size(&case["buckets"]) as u32,
        };
        let labels: Vec<usize> = case["labels"].as_array().expect("labels").iter().map(size).collect();
        let mut model = NaiveBayes::try_new(3, options).expect("options");
        model.train(&texts(&case["texts"]), &labels).expect("labels fit");
        let tests = texts(&case["tests"]);
        let expected: Vec<Option<usize>> =
            case["predictions"].as_array().expect("labels").iter().map(|label| Some(size(label))).collect();
        assert_eq!(model.predict(&tests), expected);
        for (text, scores) in tests.iter().zip(case["scores"].as_array().expect("scores")) {
            for (score, expected) in model.log_scores(text).into_iter().zip(doubles(scores)) {
                near(score, expected, 1e-12, text);
            }
        }
    }
}

#[test]
fn murmur_is_the_librarys() {
    for case in cases("murmur") {
        let text = case[0].as_str().expect("a text");
        let [seed, hash] = [&case[1], &case[2]].map(|number| number.as_u64().expect("a number") as u32);
        assert_eq!(murmur3_32(text.as_bytes(), seed), hash, "{text:?} under {seed}");
    }
}

/// Points around three places, in a table whose rows lie in no order.
fn points(session: &millpond::Millpond, partitions: usize) -> Matrix {
    let mut numbers = Numbers(5);
    let mut all: Vec<(i64, f64, f64)> = (0..300_i64)
        .map(|id| {
            let place = (id % 3) as f64 * 10.0;
            (id, place + numbers.below(100) as f64 / 50.0, place - numbers.below(100) as f64 / 25.0)
        })
        .collect();
    let ordered = all.iter().flat_map(|(_, x, y)| [*x, *y]).collect();
    for index in (1..all.len()).rev() {
        all.swap(index, numbers.below(index as u64 + 1) as usize);
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(all.iter().map(|(id, _, _)| Some(*id)).collect::<Int64Array>())),
        ("x", Arc::new(all.iter().map(|(_, x, _)| Some(*x)).collect::<Float64Array>())),
        ("y", Arc::new(all.iter().map(|(_, _, y)| Some(*y)).collect::<Float64Array>())),
    ];
    table(session.context(), "points", partitions, columns);
    Matrix::try_new(300, 2, ordered).expect("a matrix")
}

#[tokio::test]
async fn kmeans_in_sql_is_that_over_arrays_however_the_rows_lie() {
    let mut seen: Option<Vec<Vec<String>>> = None;
    for (partitions, batch_rows) in [(1, 8192), (4, 16)] {
        let session = session_on(DeviceChoice::Cpu, partitions, batch_rows);
        let matrix = points(&session, partitions);
        let model = KMeans::fit(&matrix, &KMeansOptions::new(3)).expect("fits");
        let expected: Vec<Vec<String>> =
            model.labels.iter().enumerate().map(|(id, label)| vec![id.to_string(), label.to_string()]).collect();
        let sql = "SELECT id, label FROM kmeans('points', 'id', ['x', 'y'], 3) ORDER BY id";
        let batches = session.context().sql(sql).await.expect("plans").collect().await.expect("runs");
        let found = rows(&batches, true);
        assert_eq!(found, expected);
        assert_eq!(seen.get_or_insert(found.clone()), &found);
        let centers =
            query(&session, "SELECT SUM(size), SUM(wssse) FROM kmeans_centers('points', 'id', ['x', 'y'], 3)").await;
        assert_eq!(centers[0][0], "300");
        near(centers[0][1].parse().expect("a number"), model.wssse, 1e-12, "wssse");
        // The centres of a fit give every row the label that the fit gave it.
        let sql = "SELECT id, label FROM kmeans_predict('points', 'id', ['x', 'y'], \
                   'SELECT * FROM kmeans_centers(''points'', ''id'', [''x'', ''y''], 3)') ORDER BY id";
        let batches = session.context().sql(sql).await.expect("plans").collect().await.expect("runs");
        assert_eq!(rows(&batches, true), expected);
        let frame = session.context().table("points").await.expect("the table is there");
        let centers =
            frame.clone().kmeans_centers("id", &["x", "y"], KMeansOptions::new(3)).expect("the call is right");
        let labels = frame.clone().kmeans_predict(centers, "id", &["x", "y"]).expect("the call is right");
        let labels = labels.sort_by(vec![millpond::datafusion::prelude::col("id")]).expect("it has the column");
        assert_eq!(rows(&labels.collect().await.expect("runs"), true), expected);
        let frame = frame.kmeans("id", &["x", "y"], KMeansOptions::new(3)).expect("the call is right");
        assert_eq!(rows(&frame.collect().await.expect("runs"), true), expected);
    }
}

#[tokio::test]
async fn seeds_and_restarts_are_the_callers() {
    let session = session();
    let matrix = points(&session, 2);
    let options = KMeansOptions { max_iterations: 3, restarts: 2, seed: 99, tolerance: 0.0, ..KMeansOptions::new(5) };
    let expected = KMeans::fit(&matrix, &options).expect("fits").wssse;
    let sql = "SELECT SUM(wssse) FROM kmeans_centers('points', 'id', ['x', 'y'], 5, 3, 2, 99, 0)";
    near(query(&session, sql).await[0][0].parse().expect("a number"), expected, 1e-12, "wssse");
}

#[tokio::test]
async fn logistic_regression_in_sql_predicts_and_reports() {
    let session = session();
    let mut numbers = Numbers(9);
    let x: Vec<f64> = (0..200).map(|_| numbers.below(1000) as f64 / 100.0).collect();
    let y: Vec<bool> = x.iter().map(|x| *x + numbers.below(300) as f64 / 100.0 > 6.5).collect();
    let matrix = Matrix::try_new(200, 2, x.iter().flat_map(|x| [*x, 7.0]).collect()).expect("a matrix");
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new((0..200).map(Some).collect::<Int64Array>())),
        ("x", Arc::new(Float64Array::from(x.clone()))),
        ("c", Arc::new(Int64Array::from(vec![7; 200]))),
        ("y", Arc::new(BooleanArray::from(y.clone()))),
    ];
    table(session.context(), "rows", 2, columns);
    let model = Logistic::fit(&matrix, &y, &LogisticOptions::default()).expect("fits");
    let terms =
        query(&session, "SELECT term, weight, mean, scale FROM logistic_regression('rows', 'y', ['x', 'c'])").await;
    let weight = |term: usize| terms[term][1].parse::<f64>().expect("a number");
    assert_eq!((terms.len(), terms[0][0].as_str(), terms[1][0].as_str()), (3, "(intercept)", "c"));
    assert_eq!((terms[0][2].as_str(), terms[1][1].as_str(), terms[1][3].as_str()), ("NULL", "0.0", "1.0"));
    // Rows are summed in another order than here, so that the last digits may differ.
    near(weight(0), model.intercept, 1e-4, "intercept");
    near(weight(2), model.weights[0], 1e-4, "weight of x");
    let report = query(
        &session,
        "SELECT size, positives, tn + fp + fn + tp, converged FROM logistic_report('rows', 'y', ['x', 'c'])",
    )
    .await;
    let positives = y.iter().filter(|y| **y).count().to_string();
    assert_eq!(report, [["200", &positives, "200", "true"].map(str::to_string).to_vec()]);
    let wrong = query(
        &session,
        "
        SELECT COUNT(*) FILTER (WHERE label <> prediction), COUNT(*) FILTER (WHERE (score > 0) <> (prediction = 1)),
               COUNT(*) FILTER (WHERE probability NOT BETWEEN 0 AND 1), COUNT(DISTINCT id)
        FROM logistic_predict('rows', 'id', 'y', ['x', 'c'])",
    )
    .await;
    let confusion = model.confusion(&matrix, &y).expect("labels fit");
    let expected = (confusion.false_negatives + confusion.false_positives).to_string();
    assert_eq!(wrong, [[&expected, "0", "0", "200"].map(str::to_string).to_vec()]);
}

#[tokio::test]
async fn naive_bayes_in_sql_is_that_over_arrays() {
    let case = &cases("bayes")[0];
    let session = session_on(DeviceChoice::Cpu, 3, 8);
    let names = ["NEG", "NEUT", "POS"];
    let classes: Vec<&str> =
        case["labels"].as_array().expect("labels").iter().map(|label| names[size(label)]).collect();
    let (train, tests) = (texts(&case["texts"]), texts(&case["tests"]));
    let frame = |texts: Vec<Option<&str>>, classes: Vec<Option<&str>>| -> Vec<(&'static str, ArrayRef)> {
        vec![
            ("id", Arc::new((0..texts.len() as i64).map(Some).collect::<Int64Array>())),
            ("content", Arc::new(StringArray::from(texts))),
            ("class", Arc::new(StringArray::from(classes))),
        ]
    };
    let some = |texts: &[&'static str]| texts.iter().map(|text| Some(*text)).collect::<Vec<_>>();
    // Rows without a text or a class teach nothing.
    let mut train_texts: Vec<Option<&str>> = train.iter().map(|text| Some(*text)).collect();
    let mut train_classes = some(&classes);
    train_texts.extend([None, Some("good good good")]);
    train_classes.extend([Some("NEG"), None]);
    table(session.context(), "train", 2, frame(train_texts, train_classes));
    let mut test_texts: Vec<Option<&str>> = tests.iter().map(|text| Some(*text)).collect();
    test_texts.push(None);
    let count = test_texts.len();
    table(session.context(), "test", 2, frame(test_texts, vec![Some("POS"); count]));
    let sql = "SELECT id, class, prediction FROM naive_bayes('train', 'test', 'id', 'content', 'class', 0.001, 1048576) ORDER BY id";
    let batches = session.context().sql(sql).await.expect("plans").collect().await.expect("runs");
    let predicted =
        case["predictions"].as_array().expect("labels").iter().map(|label| names[size(label)]).chain(["NULL"]);
    let expected: Vec<Vec<String>> =
        predicted.enumerate().map(|(id, class)| [&id.to_string(), "POS", class].map(str::to_string).to_vec()).collect();
    assert_eq!(rows(&batches, true), expected);
}

#[tokio::test]
async fn odd_data_has_answers_or_refusals_by_name() {
    let session = session();
    session
        .execute("CREATE VIEW none AS SELECT 1 AS id, 0.5 AS x, TRUE AS y, 'a' AS t WHERE FALSE")
        .await
        .expect("a view");
    session
        .execute("CREATE VIEW some AS SELECT * FROM (VALUES (1, 0.5, TRUE, 'a', 2), (2, NULL, TRUE, NULL, 1)) AS v(id, x, y, t, z)")
        .await
        .expect("a view");
    let empty = Vec::<Vec<String>>::new();
    assert_eq!(query(&session, "SELECT * FROM kmeans('none', 'id', 'x', 2)").await, empty);
    assert_eq!(query(&session, "SELECT * FROM kmeans_centers('none', 'id', 'x', 2)").await, empty);
    assert_eq!(query(&session, "SELECT * FROM logistic_predict('none', 'id', 'y', 'x')").await, empty);
    let report = query(&session, "SELECT size, precision, auc, loss FROM logistic_report('none', 'y', 'x')").await;
    assert_eq!(report, [["0", "NULL", "NULL", "NULL"].map(str::to_string).to_vec()]);
    let untrained = "SELECT id, prediction FROM naive_bayes('none', 'some', 'id', 't', 'y')";
    assert_eq!(
        query(&session, untrained).await,
        [["1", "NULL"], ["2", "NULL"]].map(|row| row.map(str::to_string).to_vec())
    );
    let several = "SELECT COUNT(*), COUNT(DISTINCT label) FROM kmeans('SELECT id, 1 AS x FROM some', 'id', 'x', 7)";
    assert_eq!(query(&session, several).await, [["2", "1"].map(str::to_string).to_vec()]);

    // Labels are whatever the centres say; of equally near ones the first by label; without any there is none.
    let nearest = "SELECT id, label FROM kmeans_predict('SELECT id, z FROM some', 'id', 'z', \
                   'SELECT * FROM (VALUES (''b'', 3.0), (''a'', 1.0), (NULL, 99.0)) AS c(label, z)') ORDER BY id";
    assert_eq!(query(&session, nearest).await, [["1", "a"], ["2", "a"]].map(|row| row.map(str::to_string).to_vec()));
    let nowhere =
        "SELECT id, label FROM kmeans_predict('some', 'id', 'z', 'SELECT 1 AS label, 1 AS z WHERE FALSE') ORDER BY id";
    assert_eq!(
        query(&session, nowhere).await,
        [["1", "NULL"], ["2", "NULL"]].map(|row| row.map(str::to_string).to_vec())
    );
    let nobody = "SELECT * FROM kmeans_predict('none', 'id', 'x', 'SELECT 1 AS label, 1 AS x')";
    assert_eq!(query(&session, nobody).await, empty);

    let huge = "SELECT * FROM kmeans('SELECT 1 AS id, 1e308 AS x UNION ALL SELECT 2, 1e308 UNION ALL SELECT 3, -1e308', 'id', 'x', 1)";
    let huge = refusal(&session, huge).await;
    assert!(huge.contains("leave the range of a DOUBLE") && huge.contains("divide"), "{huge}");
    let null = refusal(&session, "SELECT * FROM kmeans('some', 'id', 'x', 2)").await;
    assert!(null.contains("kmeans: column 'x' has a NULL") && null.contains("COALESCE"), "{null}");
    let infinite = refusal(&session, "SELECT * FROM kmeans('SELECT 1 AS id, 1e300 * 1e300 AS x', 'id', 'x', 2)").await;
    assert!(infinite.contains("column 'x' has the value inf"), "{infinite}");
    let label = refusal(&session, "SELECT * FROM logistic_report('some', 'z', 'id')").await;
    assert!(label.contains("column 'z' has the value 2") && label.contains("a label is 0 or 1"), "{label}");
}
