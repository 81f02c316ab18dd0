//! Metrics of gpu-bdb q28: quality of the ratings predicted from review texts.
//!
//! ```text
//!   rating 1 2 → NEG   3 → NEUT   4 5 → POS         truth × prediction ─► confusion ─► accuracy, macro precision
//! ```

use std::fmt::Write as _;

use millpond::datafusion::error::{DataFusionError, Result};

use super::{Rows, StepOutput, Tables, array};

const CLASSES: [&str; 3] = ["NEG", "NEUT", "POS"];

/// Two tables, `metrics` and `confusion` (rows are the truth), and both as text.
pub(super) fn report(tables: &Tables) -> Result<StepOutput> {
    let (ratings, predictions) = (tables.answer.integers("pr_review_rating")?, tables.answer.texts("prediction")?);
    let mut confusion = [[0_i64; 3]; 3];
    // Without training reviews there are no predictions.
    for (rating, prediction) in ratings.iter().zip(&predictions).filter(|(_, prediction)| !prediction.is_empty()) {
        let predicted = CLASSES.iter().position(|class| class == prediction);
        let unknown =
            || DataFusionError::Execution(format!("prediction '{prediction}' is none of {}", CLASSES.join(", ")));
        confusion[class_of(*rating)][predicted.ok_or_else(unknown)?] += 1;
    }
    let (accuracy, precision) = metrics(&confusion);
    let mut text = String::new();
    let _ = writeln!(text, "accuracy {accuracy:.6}");
    let _ = writeln!(text, "macro precision {precision:.6}");
    let _ = writeln!(text, "confusion matrix (rows: truth, columns: prediction; {})", CLASSES.join(", "));
    let _ = writeln!(text, "{confusion:?}");

    let column = |predicted: usize| array(confusion.iter().map(|row| row[predicted]).collect::<Vec<i64>>());
    let confusion = Rows::of(vec![
        ("truth", array(CLASSES.to_vec())),
        ("neg", column(0)),
        ("neut", column(1)),
        ("pos", column(2)),
    ])?;
    let metrics = Rows::of(vec![("accuracy", array(vec![accuracy])), ("macro_precision", array(vec![precision]))])?;
    Ok(StepOutput { tables: vec![("metrics".into(), metrics), ("confusion".into(), confusion)], text })
}

fn class_of(rating: i64) -> usize {
    match rating {
        ..=2 => 0,
        3 => 1,
        4.. => 2,
    }
}

/// Accuracy, and the mean precision of the classes; a class without predictions has precision 0.
fn metrics(confusion: &[[i64; 3]; 3]) -> (f64, f64) {
    let share = |part: i64, of: i64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
    let right = (0..3).map(|class| confusion[class][class]).sum();
    let all = confusion.iter().flatten().sum();
    let precision = |class: usize| share(confusion[class][class], confusion.iter().map(|row| row[class]).sum());
    (share(right, all), (0..3).map(precision).sum::<f64>() / 3.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(ratings: Vec<i64>, predictions: Vec<&str>) -> Tables {
        let columns = vec![("pr_review_rating", array(ratings)), ("prediction", array(predictions))];
        Tables { answer: Rows::of(columns).expect("rows"), made: Vec::new() }
    }

    #[test]
    fn metrics_are_those_of_the_predictions() {
        let tables = tables(vec![1, 2, 3, 4, 5, 5], vec!["NEG", "POS", "NEG", "POS", "POS", "POS"]);
        let output = report(&tables).expect("a report");
        // NEG: one of two is right. NEUT: never predicted. POS: three of four.
        let expected = "accuracy 0.666667\nmacro precision 0.416667\n\
                        confusion matrix (rows: truth, columns: prediction; NEG, NEUT, POS)\n\
                        [[1, 0, 1], [1, 0, 0], [0, 0, 3]]\n";
        assert_eq!(output.text, expected);
        let (name, confusion) = &output.tables[1];
        assert_eq!((name.as_str(), confusion.integers("pos").expect("a column")), ("confusion", vec![1, 0, 3]));
    }

    #[test]
    fn no_reviews_have_no_accuracy() {
        for none in [tables(vec![], vec![]), tables(vec![4], vec![""])] {
            let output = report(&none).expect("a report");
            assert!(output.text.starts_with("accuracy 0.000000\nmacro precision 0.000000\n"), "{}", output.text);
        }
    }

    #[test]
    fn what_is_missing_is_told() {
        let error = report(&tables(vec![1], vec!["BAD"])).expect_err("no such class").to_string();
        assert!(error.contains("prediction 'BAD' is none of NEG, NEUT, POS"), "{error}");
        let rows = Rows::of(vec![("x", array(vec![1_i64]))]).expect("rows");
        let error = report(&Tables { answer: rows, made: Vec::new() }).expect_err("no column").to_string();
        assert!(error.contains("needs column pr_review_rating; the rows have x"), "{error}");
    }
}
