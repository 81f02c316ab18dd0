//! Equality rules of a suite for two answers.
//!
//! ```text
//!   suite.toml                                                  two answers
//!   [query.q16.check.columns.sales_before]                      101.004  101.003   within 0.005
//!   absolute = 0.005                                       ──►  equal, or the first difference
//! ```
//!
//! Columns    a tolerance and a minimum per column; integers and decimals are then compared as numbers. Others: exact,
//!            floats by their type.
//! Cut        the last rows of a list cut off at a computed number may be exchanged with rows beyond the cut.
//! Border     rows whose computed number is close to the bound of a filter may be in one answer only.
//! Agreement  only a share of the rows must agree in one column: labels and predictions.
//! Order      rows are compared in order if the query has an ORDER BY, else as bags.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use crate::answer::{Answer, Difference, Tolerance, Value, differs, same_shape, sorted};

/// Rules for one answer. Without rules, answers are compared by [`compare`](crate::answer::compare).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// By column name.
    #[serde(default)]
    pub columns: BTreeMap<String, Tolerance>,
    pub cut: Option<Cut>,
    #[serde(default)]
    pub border: Vec<Border>,
    pub agreement: Option<Agreement>,
}

/// A list with a LIMIT, sorted by a computed number.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// The column that sorts the list.
    pub column: String,
    /// Number of first rows that must be equal; a later row may differ if its number equals the last row's within the
    /// tolerance.
    pub firm_rows: usize,
    pub relative: f64,
}

/// A filter on a computed number.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Border {
    pub column: String,
    /// The bound of the filter, and the distance from it within which rows are ignored.
    pub at: f64,
    pub within: f64,
}

/// A column of which only a share of the rows must agree.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agreement {
    pub column: String,
    pub share: f64,
}

impl Check {
    /// Every column named in the rules, to check that it exists.
    pub fn named_columns(&self) -> impl Iterator<Item = &str> {
        let tolerances = self.columns.keys().map(String::as_str);
        let borders = self.border.iter().map(|border| border.column.as_str());
        let cut = self.cut.iter().map(|cut| cut.column.as_str());
        tolerances.chain(borders).chain(cut).chain(self.agreement.iter().map(|a| a.column.as_str()))
    }

    /// Checks the numbers of the rules.
    ///
    /// # Errors
    /// The rule, its value, and the valid values.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let distance = |rule: String, value: f64| match value.is_finite() && value >= 0.0 {
            true => Ok(()),
            false => Err(format!("{rule} is {value}; it must be a finite number, 0 or more")),
        };
        for (column, tolerance) in &self.columns {
            distance(format!("columns.{column}.relative"), tolerance.relative)?;
            distance(format!("columns.{column}.absolute"), tolerance.absolute)?;
            if let Some(least) = tolerance.at_least.filter(|least| !least.is_finite()) {
                return Err(format!("columns.{column}.at_least is {least}; it must be a finite number"));
            }
        }
        if let Some(cut) = &self.cut {
            distance("cut.relative".to_string(), cut.relative)?;
        }
        for border in &self.border {
            distance("border.within".to_string(), border.within)?;
            if !border.at.is_finite() {
                return Err(format!("border.at is {}; it must be a finite number", border.at));
            }
        }
        match &self.agreement {
            Some(agreement) if !(0.0..=1.0).contains(&agreement.share) => {
                Err(format!("agreement.share is {}; it must be from 0 to 1", agreement.share))
            }
            _ => Ok(()),
        }
    }

    /// Compares two answers by these rules.
    ///
    /// # Errors
    /// The first [`Difference`]; also if a rule names a column that is missing in the answers.
    pub fn verify(&self, expected: &Answer, actual: &Answer, in_order: bool) -> Result<(), Difference> {
        if let Some(missing) = self.named_columns().find(|name| !expected.names.iter().any(|column| column == name)) {
            let known = expected.names.join(", ");
            return Err(Difference(format!("the check names column {missing}, but the answer has {known}")));
        }
        let (expected, actual) = (self.prepared(expected), self.prepared(actual));
        same_shape(&expected, &actual)?;
        let beside = self.agreement.as_ref().and_then(|agreement| place(&expected, &agreement.column));
        let (left, right): (Vec<_>, Vec<_>) = if in_order {
            (expected.rows.iter().collect(), actual.rows.iter().collect())
        } else {
            (sorted(&expected.rows, beside), sorted(&actual.rows, beside))
        };
        let cut = self.cut.as_ref().and_then(|cut| CutValue::of(cut, &expected));
        let mut disagree = 0;
        for (row, (a, b)) in left.iter().zip(&right).enumerate() {
            let differing =
                |(column, (x, y)): (usize, (&Value, &Value))| (Some(column) != beside && !x.same(y)).then_some(column);
            let column = a.iter().zip(b.iter()).enumerate().find_map(differing);
            if let Some(column) = column.filter(|_| !cut.as_ref().is_some_and(|cut| cut.forgives(row, a, b))) {
                return Err(differs(row, column, a, b, in_order));
            }
            disagree += usize::from(beside.is_some_and(|column| !a[column].same(&b[column])));
        }
        self.good_enough(&actual)?;
        self.agreed(disagree, left.len())
    }

    fn good_enough(&self, actual: &Answer) -> Result<(), Difference> {
        for (name, tolerance) in &self.columns {
            let (Some(column), Some(least)) = (place(actual, name), tolerance.at_least) else { continue };
            let short = |row: &&Vec<Value>| row[column].number().is_none_or(|value| value < least);
            if let Some(row) = actual.rows.iter().find(short) {
                return Err(Difference(format!("{name} is {:?}; it must be at least {least}", row[column])));
            }
        }
        Ok(())
    }

    fn agreed(&self, disagree: usize, rows: usize) -> Result<(), Difference> {
        let Some(agreement) = &self.agreement else { return Ok(()) };
        let allowed = ((1.0 - agreement.share) * rows as f64).floor();
        if disagree as f64 <= allowed {
            return Ok(());
        }
        let column = &agreement.column;
        Err(Difference(format!("{column} differs in {disagree} of {rows} rows; at most {allowed} may")))
    }

    /// The answer without rows on a border, and with numbers in the columns with a tolerance.
    fn prepared<'a>(&self, answer: &'a Answer) -> Cow<'a, Answer> {
        if self.columns.is_empty() && self.border.is_empty() {
            return Cow::Borrowed(answer);
        }
        let mut answer = answer.clone();
        for (name, tolerance) in &self.columns {
            let Some(column) = place(&answer, name) else { continue };
            for row in &mut answer.rows {
                if let Some(value) = row[column].number() {
                    row[column] = Value::Float { value, tolerance: *tolerance };
                }
            }
        }
        for border in &self.border {
            let Some(column) = place(&answer, &border.column) else { continue };
            let beyond = |row: &Vec<Value>| row[column].number().is_none_or(|x| (x - border.at).abs() > border.within);
            answer.rows.retain(beyond);
        }
        Cow::Owned(answer)
    }
}

fn place(answer: &Answer, column: &str) -> Option<usize> {
    answer.names.iter().position(|name| name == column)
}

/// The number of the last row of a cut list.
struct CutValue {
    column: usize,
    firm_rows: usize,
    value: f64,
    tolerance: Tolerance,
}

impl CutValue {
    fn of(cut: &Cut, answer: &Answer) -> Option<CutValue> {
        let column = place(answer, &cut.column)?;
        let value = answer.rows.last()?[column].number()?;
        let tolerance = Tolerance { relative: cut.relative, ..Tolerance::default() };
        Some(CutValue { column, firm_rows: cut.firm_rows, value, tolerance })
    }

    /// Whether both rows are equal to the last row within the tolerance.
    fn forgives(&self, row: usize, a: &[Value], b: &[Value]) -> bool {
        let as_good = |row: &[Value]| row[self.column].number().is_some_and(|x| self.tolerance.close(x, self.value));
        row >= self.firm_rows && as_good(a) && as_good(b)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};

    use super::*;

    fn answer(keys: &[i64], floats: &[f64]) -> Answer {
        let keys = Arc::new(Int64Array::from(keys.to_vec())) as ArrayRef;
        let floats = Arc::new(Float64Array::from(floats.to_vec())) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("k", keys), ("x", floats)]).expect("batch");
        Answer::try_new(&batch.schema(), &[batch]).expect("answer")
    }

    fn check(text: &str) -> Check {
        toml::from_str(text).expect("a check")
    }

    #[test]
    fn without_rules_it_is_the_plain_comparison() {
        let (a, b) = (answer(&[1, 2], &[0.5, 1.5]), answer(&[2, 1], &[1.5, 0.5]));
        assert_eq!(Check::default().verify(&a, &b, false), Ok(()));
        assert!(Check::default().verify(&a, &b, true).is_err());
        assert!(Check::default().verify(&a, &answer(&[1, 2], &[0.5, 1.500001]), true).is_err());
        assert!(Check::default().verify(&a, &answer(&[1], &[0.5]), true).is_err());
    }

    #[test]
    fn columns_have_tolerances_of_their_own() {
        let a = answer(&[100, 200], &[1.0, 0.0]);
        let near = answer(&[101, 199], &[1.0, 1e-7]);
        let rules = "columns.k.absolute = 1\ncolumns.x = { relative = 1e-9, absolute = 1e-6 }";
        assert_eq!(check(rules).verify(&a, &near, true), Ok(()));
        assert!(check("columns.k.absolute = 1").verify(&a, &near, true).is_err());
        assert!(check("columns.x.absolute = 1e-6").verify(&a, &near, true).is_err());
        assert!(check(rules).verify(&a, &answer(&[102, 199], &[1.0, 0.0]), true).is_err());
        assert!(check(rules).verify(&a, &answer(&[100, 200], &[1.0, f64::NAN]), true).is_err());
    }

    #[test]
    fn a_metric_must_be_good_not_only_equal() {
        let rules = check("columns.x = { absolute = 0.1, at_least = 0.9 }");
        assert_eq!(rules.verify(&answer(&[1], &[1.0]), &answer(&[1], &[0.95]), true), Ok(()));
        let error =
            rules.verify(&answer(&[1], &[0.85]), &answer(&[1], &[0.85]), true).expect_err("too bad").to_string();
        assert!(error.starts_with("x is ") && error.ends_with("at least 0.9"), "{error}");
    }

    #[test]
    fn rows_at_the_cut_may_be_others() {
        let rules = check("cut = { column = \"x\", firm_rows = 1, relative = 1e-9 }");
        let a = answer(&[1, 2, 3], &[9.0, 5.0, 5.0]);
        assert_eq!(rules.verify(&a, &answer(&[1, 3, 2], &[9.0, 5.0, 5.0 + 1e-10]), true), Ok(()));
        assert_eq!(rules.verify(&a, &answer(&[1, 2, 7], &[9.0, 5.0, 5.0]), true), Ok(()));
        // The first rows must be equal, and so must rows better than the last one.
        assert!(rules.verify(&a, &answer(&[7, 2, 3], &[9.0, 5.0, 5.0]), true).is_err());
        assert!(rules.verify(&a, &answer(&[1, 7, 3], &[9.0, 6.0, 5.0]), true).is_err());
    }

    #[test]
    fn rows_on_the_border_may_be_missing() {
        let rules = check("border = [{ column = \"x\", at = 1.3, within = 1e-12 }]");
        let a = answer(&[1, 2], &[1.3, 2.0]);
        assert_eq!(rules.verify(&a, &answer(&[2], &[2.0]), true), Ok(()));
        assert!(rules.verify(&a, &answer(&[1], &[1.3]), true).is_err());
    }

    #[test]
    fn a_share_of_the_rows_is_enough() {
        let rules = check("agreement = { column = \"k\", share = 0.75 }");
        let a = answer(&[1, 1, 2, 2], &[0.1, 0.2, 0.3, 0.4]);
        assert_eq!(rules.verify(&a, &answer(&[2, 2, 2, 1], &[0.4, 0.3, 0.2, 0.1]), false), Ok(()));
        let error = rules.verify(&a, &answer(&[2, 1, 2, 1], &[0.4, 0.3, 0.2, 0.1]), false).expect_err("two of four");
        assert_eq!(error.to_string(), "k differs in 2 of 4 rows; at most 1 may");
        assert!(rules.verify(&a, &answer(&[1, 1, 2, 2], &[0.1, 0.2, 0.3, 0.5]), false).is_err());
    }

    #[test]
    fn numbers_that_no_rule_can_mean_are_refused() {
        for (text, says) in [
            ("columns.x.absolute = -1", "columns.x.absolute is -1; it must be a finite number, 0 or more"),
            ("columns.x.relative = nan", "columns.x.relative is NaN"),
            ("columns.x.at_least = inf", "columns.x.at_least is inf; it must be a finite number"),
            ("cut = { column = \"x\", firm_rows = 1, relative = -0.5 }", "cut.relative is -0.5"),
            ("border = [{ column = \"x\", at = nan, within = 1 }]", "border.at is NaN"),
            ("agreement = { column = \"x\", share = 2 }", "agreement.share is 2; it must be from 0 to 1"),
        ] {
            let error = check(text).validate().expect_err(text);
            assert!(error.starts_with(says), "{error}");
        }
        assert_eq!(check("agreement = { column = \"x\", share = 1 }").validate(), Ok(()));
    }

    #[test]
    fn a_column_that_is_not_there_is_told() {
        let error = check("columns.y.absolute = 1").verify(&answer(&[], &[]), &answer(&[], &[]), true);
        assert_eq!(error.expect_err("no y").to_string(), "the check names column y, but the answer has k, x");
    }
}
