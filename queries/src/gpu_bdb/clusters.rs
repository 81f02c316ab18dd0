//! Reports of gpu-bdb q20, q25 and q26: the customer clusters.

use std::fmt::Write as _;

use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::error::Result;

use super::{StepOutput, Tables};

/// Number of clusters, sum of squared distances to their centers, and the centers.
pub(super) fn report(tables: &Tables) -> Result<StepOutput> {
    let clusters = tables.made("_clusters")?;
    let (labels, sizes, spreads) = (clusters.integers("label")?, clusters.integers("size")?, clusters.floats("wssse")?);
    let fields = clusters.schema.fields().iter();
    let features: Vec<&str> = fields
        .filter(|field| *field.data_type() == DataType::Float64 && field.name() != "wssse")
        .map(|field| field.name().as_str())
        .collect();
    let centers = features.iter().map(|name| clusters.floats(name)).collect::<Result<Vec<_>>>()?;
    let mut text = String::new();
    let _ = writeln!(text, "clusters {}", labels.len());
    let _ = writeln!(text, "wssse {:.9e}", spreads.iter().fold(0.0, |sum, spread| sum + spread));
    let _ = writeln!(text, "centers ({})", features.join(", "));
    for (row, label) in labels.iter().enumerate() {
        let center: Vec<String> = centers.iter().map(|column| format!("{:.6}", column[row])).collect();
        let _ = writeln!(text, "{label}: [{}] of {} customers", center.join(", "), sizes[row]);
    }
    Ok(StepOutput { tables: Vec::new(), text })
}
