//! Report of gpu-bdb q05: quality of the model that predicts interest in a category.

use std::fmt::Write as _;

use millpond::datafusion::error::Result;

use super::{StepOutput, Tables};

/// Precision, area under the curve, and the confusion matrix.
pub(super) fn report(tables: &Tables) -> Result<StepOutput> {
    let count = |name: &str| tables.answer.integers(name).map(|values| values.first().copied().unwrap_or(0));
    let share = |name: &str| tables.answer.floats(name).map(|values| values.first().copied().unwrap_or(f64::NAN));
    let mut text = String::new();
    let _ = writeln!(text, "precision {:.6}", share("precision")?);
    let _ = writeln!(text, "auc {:.6}", share("auc")?);
    let _ = writeln!(text, "confusion matrix (rows: truth 0, 1; columns: prediction 0, 1)");
    let _ = writeln!(text, "[[{}, {}], [{}, {}]]", count("tn")?, count("fp")?, count("fn")?, count("tp")?);
    Ok(StepOutput { tables: Vec::new(), text })
}
