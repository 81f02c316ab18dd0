//! Fits on the device: the sink of k-means and logistic regression.
//!
//! ```text
//!   k-means      [ draw a center ─ distances to it ] once per cluster, no wait
//!                then: assign ─ sums ─► host moves the centers ─► …
//!   regression   standardize, once; then: loss, slopes ─► host: L-BFGS ─► …
//! ```
//!
//! Host     decisions are made by the CPU code: [`Lloyd`], [`Search`]. The device computes the sums that the CPU would
//!          compute.
//! Cancel   a dropped run ends between two launches.

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond::datafusion::arrow::array::ArrayRef;
use millpond::error::failure::Failure;
use millpond::error::reason::Reason;
use millpond::kernels::learn::{self as kernels, Scored};
use millpond::memory::{DeviceView, Stream};
use millpond::program::contract::{Sink, SinkRun};
use millpond::program::extent::Extent;
use millpond::program::lower::SegmentLowering;
use millpond::program::part::{Kept, Part};
use millpond::program::piece::LoweredSink;
use millpond::program::segment_result::SegmentResult;
use millpond::program::segment_run::SegmentRun;

use super::lower::{Places, Written, table_columns};
use super::rows::{Launches, LearnRows, column, not_finite};
use super::table::table;
use crate::functions::ml::kmeans::{Draw, Lloyd};
use crate::functions::ml::logistic::{Search, scales, value_of};
use crate::functions::ml::tables::{centers_table, report_table};
use crate::functions::ml::{Confusion, KMeans, KMeansOptions, Logistic, LogisticOptions, Matrix, MlError};
use crate::functions::{Function, KMeansOutput, LogisticOutput};

/// An error of the CPU form: the query falls back to the CPU, which reports it.
fn left_to_the_cpu(error: &MlError) -> Failure {
    Failure::trouble(error.to_string())
}

/// Keeps all rows, and fits after the last one.
#[derive(Debug)]
pub(super) struct LearnSink {
    pub written: Written,
}

impl Sink for LearnSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        self.written.sink(segment)
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(LearnRun { written: self.written.clone() })
    }
}

struct LearnRun {
    written: Written,
}

impl SinkRun for LearnRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        extent.keep_rows().boxed()
    }

    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        parts: Vec<Kept>,
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<SegmentResult, Failure>> {
        async move {
            let at = Launches { run: &segment.run, stream };
            let mut part = match parts.is_empty() {
                true => None,
                false => Some(at.run.together(parts, stream)?),
            };
            let rows = match &mut part {
                Some(part) => at.run.count_rows_of(segment.index, std::slice::from_mut(part), stream).await?,
                None => 0,
            };
            // Without rows nothing is launched.
            let part = part.filter(|_| rows > 0);
            let given = match self.written.function() {
                Function::KMeans { options, output } => self.kmeans(at, part, rows, options, *output).await?,
                Function::Logistic { options, output } => self.logistic(at, part, rows, options, *output).await?,
                other => return Err(Failure::trouble(format!("{} does not learn", other.sql_name()))),
            };
            segment.result(given.into_iter().map(Kept::staying).collect())
        }
        .boxed()
    }
}

impl LearnRun {
    async fn kmeans(
        &self,
        at: Launches<'_>,
        part: Option<Part>,
        count: u64,
        options: &KMeansOptions,
        output: KMeansOutput,
    ) -> Result<Option<Part>, Failure> {
        let places = self.written.places();
        let Some(part) = part else { return Ok(None) };
        let sums = (options.clusters * (places.features + 2)).max(2 * places.features);
        let rows = LearnRows::new(at, &part, places, count, sums)?;
        let model = fit_kmeans(&rows, options).await?;
        match output {
            KMeansOutput::Labels => {
                let (centers, refused) = (at.upload(&model.centers.by_column())?, at.take_zeroed(4)?);
                let (labels, clusters) = (column(&part, 1)?, options.clusters as u32);
                let (centers, refused) = (centers.buffer.as_view(), refused.buffer.as_view());
                at.launch(|images, on| {
                    kernels::nearest(images, &rows.numbers, centers, clusters, None, &labels, refused, on)
                })?;
                Ok(Some(part))
            }
            KMeansOutput::Centers => self.table(at, &centers_table(&model)),
        }
    }

    async fn logistic(
        &self,
        at: Launches<'_>,
        part: Option<Part>,
        count: u64,
        options: &LogisticOptions,
        output: LogisticOutput,
    ) -> Result<Option<Part>, Failure> {
        let places = self.written.places();
        let (model, confusion) = match &part {
            None => (Logistic::without_rows(places.features), Confusion::default()),
            Some(part) => {
                let rows = LearnRows::new(at, part, places, count, 2 * (places.features + 2))?;
                fit_logistic(&rows, options, scored(part, places)?.as_ref()).await?
            }
        };
        match output {
            LogisticOutput::Report => self.table(at, &report_table(&model, &confusion)),
            _ => Ok(part),
        }
    }

    fn table(&self, at: Launches<'_>, columns: &[ArrayRef]) -> Result<Option<Part>, Failure> {
        table(at, columns, &table_columns(&self.written.schema())).map(Some)
    }
}

/// The best of several restarts, without labels.
async fn fit_kmeans(rows: &LearnRows<'_>, options: &KMeansOptions) -> Result<KMeans, Failure> {
    let (means, _) = rows.means().await?;
    let (squares, _) = rows.moments(Some(&means)).await?;
    let (labels, distances) = (rows.by_row(4)?, rows.by_row(8)?);
    let (labels, distances) = (labels.buffer.as_view(), distances.buffer.as_view());
    let mut best: Option<KMeans> = None;
    for restart in 0..options.restarts {
        let start = starting_centers(rows, options, restart, distances).await?;
        let mut lloyd = Lloyd::new(start, options, &squares, rows.count as usize);
        while lloyd.goes_on() {
            let sums = assign(rows, lloyd.centers(), labels, distances).await?;
            lloyd.step(&sums);
        }
        let sums = assign(rows, lloyd.centers(), labels, distances).await?;
        let model = KMeans { restart, ..lloyd.model(&sums) };
        if best.as_ref().is_none_or(|best| model.wssse < best.wssse) {
            best = Some(model);
        }
    }
    best.filter(|best| best.wssse.is_finite()).ok_or_else(not_finite)
}

/// Assigns rows to centers; returns the input of [`Lloyd::step`].
async fn assign(
    rows: &LearnRows<'_>,
    centers: &Matrix,
    labels: &DeviceView,
    distances: &DeviceView,
) -> Result<Vec<f64>, Failure> {
    let (clusters, sums) = (centers.num_rows() as u32, centers.num_rows() * (centers.num_columns() + 2));
    let uploaded = rows.at.upload(&centers.by_column())?;
    let centers = uploaded.buffer.as_view();
    rows.sums(sums, |images, to, on| {
        kernels::assign(images, &rows.numbers, centers, clusters, labels, distances, to, on)
    })
    .await
}

fn num_features(rows: &LearnRows<'_>) -> usize {
    rows.numbers.columns() as usize
}

/// Starting centers of a restart: all are drawn on the device, then read at once.
async fn starting_centers(
    rows: &LearnRows<'_>,
    options: &KMeansOptions,
    restart: usize,
    distances: &DeviceView,
) -> Result<Matrix, Failure> {
    let (at, features) = (rows.at, num_features(rows));
    let clusters = options.clusters as u32;
    let chunk_sums = at.take(kernels::chunks(rows.numbers.rows().upper_bound()) * 8)?;
    let centers = at.take(8 * (options.clusters * features) as u64)?;
    let draw = |step: usize| Draw::new(options, restart, step, rows.count as usize);
    let chosen = at.upload_bytes(&(draw(0).any as u64).to_le_bytes())?;
    let (chosen, chunk_sums, centers) =
        (chosen.buffer.as_view(), chunk_sums.buffer.as_view(), centers.buffer.as_view());
    for step in 0..options.clusters {
        if step > 0 {
            let Draw { u, any } = draw(step);
            let drawn = (u, any as u64);
            at.launch(|images, on| {
                kernels::draw(images, distances, chunk_sums, rows.numbers.rows(), drawn, chosen, on)
            })?;
        }
        let of = (step as u32, clusters);
        at.launch(|images, on| kernels::nearer(images, &rows.numbers, chosen, centers, of, distances, chunk_sums, on))?;
    }
    let values = at.read_doubles(centers).await?;
    Matrix::from_columns(options.clusters, features, &values).map_err(|error| left_to_the_cpu(&error))
}

/// Output columns of a model, after the id.
struct ScoredColumns([DeviceView; 4]);

fn scored(part: &Part, places: Places) -> Result<Option<ScoredColumns>, Failure> {
    if places.result == 0 {
        return Ok(None);
    }
    Ok(Some(ScoredColumns([column(part, 1)?, column(part, 2)?, column(part, 3)?, column(part, 4)?])))
}

/// Fits a model and computes its confusion matrix; writes its outputs per row to `said`.
async fn fit_logistic(
    rows: &LearnRows<'_>,
    options: &LogisticOptions,
    said: Option<&ScoredColumns>,
) -> Result<(Logistic, Confusion), Failure> {
    let at = rows.at;
    let (means, neither) = rows.means().await?;
    // The first column is the truth.
    if neither.first().is_none_or(|count| *count > 0.0) {
        return Err(Failure::trouble("a label is neither 0 nor 1"));
    }
    let (squares, differs) = rows.moments(Some(&means)).await?;
    let differs: Vec<bool> = differs.into_iter().map(|count| count > 0.0).collect();
    let mut first = vec![0.0; means.len()];
    for (index, first) in first.iter_mut().enumerate().filter(|(index, _)| !differs[*index]) {
        let value = at.read_doubles(&rows.numbers.column(index as u32)?.view(0..8)?).await?;
        *first = value.first().copied().unwrap_or(0.0);
    }
    let (means, scales) = scales(rows.count as usize, means[1..].to_vec(), &squares[1..], &differs[1..], &first[1..])
        .map_err(|error| left_to_the_cpu(&error))?;

    let (truths, features) = (rows.numbers.column(0)?, rows.numbers.from_column(1)?);
    let (up_means, up_scales) = (at.upload(&means)?, at.upload(&scales)?);
    let out = rows.by_row(8 * means.len() as u64)?;
    let stride = features.rows().upper_bound();
    let mut standardised = None;
    at.launch(|images, on| {
        let (means, scales) = (up_means.buffer.as_view(), up_scales.buffer.as_view());
        standardised = Some(kernels::standardise(images, &features, means, scales, out.buffer.as_view(), stride, on)?);
        Ok(())
    })?;
    let Some(z) = standardised else { return Err(not_finite()) };

    let (residuals, losses) = (rows.by_row(8)?, rows.by_row(8)?);
    let mut search = Search::new(means.len(), options);
    while let Some(wanted) = search.wanted() {
        let uploaded = at.upload(&wanted)?;
        let (residuals, losses) = (residuals.buffer.as_view(), losses.buffer.as_view());
        let sums = rows.sums(means.len() + 2, |images, to, on| {
            kernels::loss(images, &z, &truths, uploaded.buffer.as_view(), residuals, losses, to, on)
        });
        search.take(value_of(sums.await?, rows.count as usize));
    }
    let model = Logistic::found(search, means, scales);

    let weights: Vec<f64> = model.weights.iter().copied().chain([model.intercept]).collect();
    let (uploaded, counts) = (at.upload(&weights)?, at.take_zeroed(32)?);
    let to = said.map_or_else(Scored::default, |ScoredColumns([labels, scores, chances, predictions])| Scored {
        labels: Some(labels),
        scores: Some(scores),
        chances: Some(chances),
        predictions: Some(predictions),
    });
    at.launch(|images, on| {
        kernels::score(images, &z, &truths, uploaded.buffer.as_view(), counts.buffer.as_view(), to, on)
    })?;
    let bytes = at.read(counts.buffer.as_view()).await?;
    let count = |index: usize| bytes.as_chunks().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let confusion = Confusion {
        true_negatives: count(0),
        false_positives: count(1),
        false_negatives: count(2),
        true_positives: count(3),
    };
    Ok((model, confusion))
}
