//! The table functions as methods of a `DataFrame`.

use millpond::datafusion::dataframe::DataFrame;
use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::LogicalPlan;

use super::ml::{KMeansOptions, LogisticOptions, NaiveBayesOptions};
use super::planner::with_planner;
use super::{KMeansOutput, LogisticOutput, calls};

/// Sessions, pairs and machine learning for data frames. Column names match exactly, or in any case if that is
/// unambiguous.
///
/// ```
/// use millpond_queries::functions::WorkloadFrame;
/// # use millpond::{DeviceChoice, Millpond, datafusion};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> datafusion::error::Result<()> {
/// let session = Millpond::builder().with_device(DeviceChoice::Cpu).build()?;
/// let clicks = "SELECT * FROM (VALUES ('ann', 0), ('ann', 50), ('ann', 5000)) AS t(who, at)";
/// let clicks = session.context().sql(clicks).await?;
/// let sessions = clicks.sessionize(&["who"], "at", 3600)?;
/// assert_eq!(sessions.aggregate(vec![], vec![datafusion::functions_aggregate::expr_fn::max(
///     datafusion::prelude::col("session_id"))])?.collect().await?[0].num_rows(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Every method returns a [`FunctionError`](super::FunctionError) for invalid arguments.
pub trait WorkloadFrame: Sized {
    /// All columns and `session_id`: see [`Function::Sessionize`](super::Function::Sessionize).
    fn sessionize(self, keys: &[&str], time: &str, gap: i64) -> Result<DataFrame>;
    /// The groups with each pair of different elements of a group, the smaller element first.
    fn basket_pairs(self, groups: &[&str], element: &str) -> Result<DataFrame>;
    /// For each row with a true `anchor`, up to `n` rows before it.
    fn last_n_before(
        self,
        keys: &[&str],
        order: &[&str],
        anchor: &str,
        n: usize,
        within: Option<i64>,
    ) -> Result<DataFrame>;
    /// id and label.
    fn kmeans(self, id: &str, features: &[&str], options: KMeansOptions) -> Result<DataFrame>;
    /// label, size, means and wssse of each cluster.
    fn kmeans_centers(self, id: &str, features: &[&str], options: KMeansOptions) -> Result<DataFrame>;
    /// id and the label of the nearest of `centers`; these have the columns label and `features`, like the result of
    /// [`Self::kmeans_centers`].
    fn kmeans_predict(self, centers: DataFrame, id: &str, features: &[&str]) -> Result<DataFrame>;
    /// term, weight, mean and scale.
    fn logistic_regression(self, label: &str, features: &[&str], options: LogisticOptions) -> Result<DataFrame>;
    /// One row of counts and measures.
    fn logistic_report(self, label: &str, features: &[&str], options: LogisticOptions) -> Result<DataFrame>;
    /// id, label, score, probability, prediction.
    fn logistic_predict(self, id: &str, label: &str, features: &[&str], options: LogisticOptions) -> Result<DataFrame>;
    /// Trained on this frame: id, class and prediction for each row of `test`.
    fn naive_bayes(
        self,
        test: DataFrame,
        id: &str,
        text: &str,
        class: &str,
        options: NaiveBayesOptions,
    ) -> Result<DataFrame>;
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}

/// The frame with another plan, in a session with our planner, even if no function is registered.
fn replan(frame: DataFrame, plan: impl FnOnce(LogicalPlan) -> Result<LogicalPlan>) -> Result<DataFrame> {
    let (state, input) = frame.into_parts();
    Ok(DataFrame::new(with_planner(state, vec![]), plan(input)?))
}

impl WorkloadFrame for DataFrame {
    fn sessionize(self, keys: &[&str], time: &str, gap: i64) -> Result<DataFrame> {
        replan(self, |input| calls::sessionize(input, &owned(keys), time, gap))
    }

    fn basket_pairs(self, groups: &[&str], element: &str) -> Result<DataFrame> {
        replan(self, |input| calls::basket_pairs(input, &owned(groups), element))
    }

    fn last_n_before(
        self,
        keys: &[&str],
        order: &[&str],
        anchor: &str,
        n: usize,
        within: Option<i64>,
    ) -> Result<DataFrame> {
        replan(self, |input| calls::last_n_before(input, &owned(keys), &owned(order), anchor, n, within))
    }

    fn kmeans(self, id: &str, features: &[&str], options: KMeansOptions) -> Result<DataFrame> {
        replan(self, |input| calls::kmeans(input, id, &owned(features), options, KMeansOutput::Labels))
    }

    fn kmeans_centers(self, id: &str, features: &[&str], options: KMeansOptions) -> Result<DataFrame> {
        replan(self, |input| calls::kmeans(input, id, &owned(features), options, KMeansOutput::Centers))
    }

    fn kmeans_predict(self, centers: DataFrame, id: &str, features: &[&str]) -> Result<DataFrame> {
        let (_, centers) = centers.into_parts();
        replan(self, |input| calls::kmeans_predict(input, centers, id, &owned(features)))
    }

    fn logistic_regression(self, label: &str, features: &[&str], options: LogisticOptions) -> Result<DataFrame> {
        replan(self, |input| calls::logistic(input, None, label, &owned(features), options, LogisticOutput::Model))
    }

    fn logistic_report(self, label: &str, features: &[&str], options: LogisticOptions) -> Result<DataFrame> {
        replan(self, |input| calls::logistic(input, None, label, &owned(features), options, LogisticOutput::Report))
    }

    fn logistic_predict(self, id: &str, label: &str, features: &[&str], options: LogisticOptions) -> Result<DataFrame> {
        let output = LogisticOutput::Predictions;
        replan(self, |input| calls::logistic(input, Some(id), label, &owned(features), options, output))
    }

    fn naive_bayes(
        self,
        test: DataFrame,
        id: &str,
        text: &str,
        class: &str,
        options: NaiveBayesOptions,
    ) -> Result<DataFrame> {
        let (_, test) = test.into_parts();
        replan(self, |train| calls::naive_bayes(train, test, id, text, class, options))
    }
}
