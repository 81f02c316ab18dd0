//! Machine learning over the rows of a plan.
//!
//! ```text
//!   rows sorted by their columns ─► Matrix, labels, ids ─► fit on a blocking thread ─► a table
//!   training texts ─► counts, batch by batch ─► test texts ─► predictions, batch by batch
//! ```
//!
//! NULL     in a number or a label is an error with the column's name. Training rows with a NULL text or class are
//!          skipped; a test row with a NULL text has no prediction.
//! Memory   numbers and ids of all rows for k-means and regression; the model for naive Bayes. Reserved in the
//!          session's pool.
//! Cancel   a dropped stream stops the fit at its next iteration.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use millpond::datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, StringArray, UInt32Array, new_empty_array,
};
use millpond::datafusion::arrow::compute::{cast, concat, take};
use millpond::datafusion::arrow::datatypes::{DataType, Float64Type, SchemaRef};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::row::{OwnedRow, RowConverter, SortField};
use millpond::datafusion::common::DataFusionError;
use millpond::datafusion::common::runtime::SpawnedTask;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::SendableRecordBatchStream;
use millpond::datafusion::execution::memory_pool::MemoryReservation;
use millpond::datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};

use super::kmeans::nearest;
use super::{
    Confusion, KMeans, KMeansOptions, Logistic, LogisticOptions, Matrix, MlError, NaiveBayes, NaiveBayesOptions,
};
use crate::functions::text::views;
use crate::functions::{Function, FunctionError, KMeansOutput, LogisticOutput};

impl From<MlError> for DataFusionError {
    fn from(error: MlError) -> Self {
        DataFusionError::External(Box::new(error))
    }
}

/// Result table of a machine learning function.
pub(crate) fn run(
    function: &Function,
    columns: &[usize],
    inputs: Vec<SendableRecordBatchStream>,
    schema: &SchemaRef,
    batch_rows: usize,
    reservation: MemoryReservation,
    metrics: BaselineMetrics,
) -> BoxStream<'static, Result<RecordBatch>> {
    let job = Job {
        name: function.sql_name(),
        columns: columns.to_vec(),
        schema: Arc::clone(schema),
        batch_rows,
        reservation,
        metrics,
        stop: Stop::default(),
    };
    let mut inputs = inputs.into_iter();
    let (Some(first), second) = (inputs.next(), inputs.next()) else {
        return stream::once(async { Err(DataFusionError::Internal("machine learning needs an input".to_string())) })
            .boxed();
    };
    let start: futures::future::BoxFuture<'static, Result<BoxStream<'static, Result<RecordBatch>>>> = match function {
        Function::KMeans { options, output } => Box::pin(job.kmeans(first, *options, *output)),
        Function::KMeansPredict { features } => match second {
            Some(centers) => Box::pin(job.kmeans_predict(first, centers, *features)),
            None => Box::pin(async { Err(DataFusionError::Internal("predictions need two inputs".to_string())) }),
        },
        Function::Logistic { options, output } => Box::pin(job.logistic(first, *options, *output)),
        Function::NaiveBayes { options } => match second {
            Some(test) => Box::pin(job.naive_bayes(first, test, *options)),
            None => Box::pin(async { Err(DataFusionError::Internal("naive Bayes needs two inputs".to_string())) }),
        },
        other => {
            let name = other.sql_name();
            Box::pin(async move { Err(DataFusionError::Internal(format!("{name} is no machine learning"))) })
        }
    };
    stream::once(start).try_flatten().boxed()
}

/// Stops a fit on another thread when its result is no longer needed.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Job {
    name: &'static str,
    columns: Vec<usize>,
    schema: SchemaRef,
    batch_rows: usize,
    reservation: MemoryReservation,
    metrics: BaselineMetrics,
    stop: Stop,
}

/// Rows of an input in the form that machine learning needs.
struct Rows {
    id: Option<ArrayRef>,
    label: Option<Vec<bool>>,
    features: Matrix,
}

impl Job {
    /// Runs a long computation on a blocking thread.
    async fn compute<T: Send + 'static>(&self, work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Result<T> {
        let stop = Arc::clone(&self.stop.0);
        let timer = self.metrics.elapsed_compute().timer();
        let done = SpawnedTask::spawn_blocking(move || work(&stop)).join().await;
        drop(timer);
        done.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))
    }

    async fn kmeans(
        self,
        input: SendableRecordBatchStream,
        options: KMeansOptions,
        output: KMeansOutput,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let rows = self.collect(input, true, false).await?;
        let features = rows.features;
        let model = self.compute(move |stop| KMeans::fit_until(&features, &options, stop)).await??;
        let columns: Vec<ArrayRef> = match output {
            KMeansOutput::Labels => {
                let labels = model.labels.iter().map(|label| i64::from(*label));
                vec![rows.id.unwrap_or_else(|| new_empty_array(&DataType::Null)), integers(labels)]
            }
            KMeansOutput::Centers => centers_table(&model),
        };
        self.finish(columns)
    }

    async fn kmeans_predict(
        self,
        rows: SendableRecordBatchStream,
        mut centers: SendableRecordBatchStream,
        features: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let (label, schema) = (self.columns[features + 1], centers.schema());
        let (mut labels, mut values, mut num_rows) =
            (vec![new_empty_array(schema.field(label).data_type())], vec![], 0);
        while let Some(batch) = centers.next().await {
            let batch = batch?;
            values.extend(self.features(&schema, &self.columns[features + 2..], &batch)?);
            labels.push(Arc::clone(batch.column(label)));
            num_rows += batch.num_rows();
            self.reservation.try_resize(values.capacity() * size_of::<f64>())?;
        }
        drop(centers);
        let labels = concat(&labels.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
        let centers = Arc::new(Matrix::try_new(num_rows, features, values)?);
        let predicted =
            stream::try_unfold((self, rows, centers, labels), move |(job, mut rows, centers, labels)| async move {
                let Some(batch) = rows.next().await else { return Ok(None) };
                let batch = batch?;
                let values = job.features(&rows.schema(), &job.columns[1..=features], &batch)?;
                let matrix = Matrix::try_new(batch.num_rows(), features, values)?;
                let of = Arc::clone(&centers);
                let nearest = job.compute(move |_| nearest(&matrix, &of)).await??;
                // Without centers there are no labels.
                let numbers: UInt32Array = (0..batch.num_rows()).map(|row| nearest.get(row).copied()).collect();
                let columns = vec![Arc::clone(batch.column(job.columns[0])), take(&labels, &numbers, None)?];
                let output = RecordBatch::try_new(Arc::clone(&job.schema), columns)?.record_output(&job.metrics);
                Ok(Some((output, (job, rows, centers, labels))))
            });
        Ok(predicted.boxed())
    }

    async fn logistic(
        self,
        input: SendableRecordBatchStream,
        options: LogisticOptions,
        output: LogisticOutput,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let with_id = output == LogisticOutput::Predictions;
        let names: Vec<String> = {
            let (fields, first) = (input.schema(), 1 + usize::from(with_id));
            self.columns[first..].iter().map(|column| fields.field(*column).name().clone()).collect()
        };
        let rows = self.collect(input, with_id, true).await?;
        let (features, labels) = (rows.features, rows.label.unwrap_or_default());
        let work = move |stop: &AtomicBool| {
            let model = Logistic::fit_until(&features, &labels, &options, stop)?;
            let confusion = model.confusion(&features, &labels)?;
            Ok::<_, MlError>((model, confusion, features, labels))
        };
        let (model, confusion, features, labels) = self.compute(work).await??;
        let columns: Vec<ArrayRef> = match output {
            LogisticOutput::Model => {
                let terms = ["(intercept)"].into_iter().chain(names.iter().map(String::as_str));
                let scaled = |values: &[f64]| -> ArrayRef {
                    Arc::new(
                        [None].into_iter().chain(values.iter().map(|value| Some(*value))).collect::<Float64Array>(),
                    )
                };
                vec![
                    Arc::new(StringArray::from_iter_values(terms)),
                    doubles([model.intercept].into_iter().chain(model.weights.iter().copied())),
                    scaled(&model.means),
                    scaled(&model.scales),
                ]
            }
            LogisticOutput::Report => report_table(&model, &confusion),
            LogisticOutput::Predictions => {
                let scores: Vec<f64> = (0..features.num_rows()).map(|row| model.score(features.row(row))).collect();
                let chances = (0..features.num_rows()).map(|row| model.probability(features.row(row)));
                vec![
                    rows.id.unwrap_or_else(|| new_empty_array(&DataType::Null)),
                    integers(labels.iter().map(|label| i64::from(*label))),
                    doubles(scores.iter().copied()),
                    doubles(chances),
                    integers(scores.iter().map(|score| i64::from(*score > 0.0))),
                ]
            }
        };
        self.finish(columns)
    }

    async fn naive_bayes(
        self,
        mut train: SendableRecordBatchStream,
        test: SendableRecordBatchStream,
        options: NaiveBayesOptions,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let (text, class) = (self.columns[0], self.columns[1]);
        let mut model = NaiveBayes::try_new(0, options)?;
        let mut classes = Classes::try_new(train.schema().field(class).data_type().clone())?;
        self.reservation.try_resize(model.held_bytes())?;
        while let Some(batch) = train.next().await {
            let batch = batch?;
            let numbers = classes.number(batch.column(class))?;
            (model.documents().len()..classes.len()).for_each(|_| model.add_class());
            let texts = views(batch.column(text))?;
            let count = move |_: &AtomicBool| {
                let known = texts.iter().zip(numbers).filter_map(|(text, class)| Some((text?, class?)));
                let (texts, numbers): (Vec<&str>, Vec<usize>) = known.unzip();
                model.train(&texts, &numbers).map(|()| model)
            };
            model = self.compute(count).await??;
            self.reservation.try_resize(model.held_bytes())?;
        }
        drop(train);
        let (order, values) = classes.sorted()?;
        model.renumber(&order);
        let (model, values) = (Arc::new(model), cast(&values, self.schema.field(2).data_type())?);
        let state = (self, test, model, values);
        let predicted = stream::try_unfold(state, |(job, mut test, model, values)| async move {
            let Some(batch) = test.next().await else { return Ok(None) };
            let batch = batch?;
            let output = job.predict(&batch, &model, &values).await?;
            Ok(Some((output, (job, test, model, values))))
        });
        Ok(predicted.boxed())
    }

    async fn predict(&self, batch: &RecordBatch, model: &Arc<NaiveBayes>, values: &ArrayRef) -> Result<RecordBatch> {
        let (id, text, class) = (self.columns[2], self.columns[3], self.columns[4]);
        let (texts, model) = (views(batch.column(text))?, Arc::clone(model));
        let work = move |_: &AtomicBool| {
            let known: Vec<&str> = texts.iter().flatten().collect();
            let mut predictions = model.predict(&known).into_iter();
            let numbers =
                texts.iter().map(|text| text.and_then(|_| predictions.next()).flatten().map(|class| class as u32));
            numbers.collect::<UInt32Array>()
        };
        let numbers = self.compute(work).await?;
        let columns =
            vec![Arc::clone(batch.column(id)), Arc::clone(batch.column(class)), take(values, &numbers, None)?];
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?.record_output(&self.metrics))
    }

    /// Collects all rows: id, label and features, as the function needs them.
    async fn collect(&self, mut input: SendableRecordBatchStream, with_id: bool, with_label: bool) -> Result<Rows> {
        let (mut ids, mut labels, mut values, mut num_rows) = (vec![], vec![], vec![], 0);
        let schema = input.schema();
        let (id, label) = (self.columns[0], self.columns[usize::from(with_id)]);
        let features = &self.columns[usize::from(with_id) + usize::from(with_label)..];
        let mut id_bytes = 0;
        while let Some(batch) = input.next().await {
            let batch = batch?;
            values.extend(self.features(&schema, features, &batch)?);
            if with_id {
                id_bytes += batch.column(id).get_array_memory_size();
                ids.push(Arc::clone(batch.column(id)));
            }
            if with_label {
                labels.extend(self.labels(&schema, label, batch.column(label))?);
            }
            num_rows += batch.num_rows();
            self.reservation.try_resize(values.capacity() * size_of::<f64>() + labels.capacity() + id_bytes)?;
        }
        let id = match (with_id, ids.is_empty()) {
            (false, _) => None,
            (true, true) => Some(new_empty_array(schema.field(id).data_type())),
            (true, false) => Some(concat(&ids.iter().map(AsRef::as_ref).collect::<Vec<_>>())?),
        };
        let features = Matrix::try_new(num_rows, features.len(), values)?;
        Ok(Rows { id, label: with_label.then_some(labels), features })
    }

    /// Numbers of a batch, row-major.
    fn features(&self, schema: &SchemaRef, columns: &[usize], batch: &RecordBatch) -> Result<Vec<f64>> {
        let columns: Result<Vec<Float64Array>> =
            columns.iter().map(|column| self.numbers(schema, *column, batch.column(*column))).collect();
        let columns = columns?;
        let row = |row: usize| columns.iter().map(move |column| column.value(row));
        Ok((0..batch.num_rows()).flat_map(row).collect())
    }

    fn numbers(&self, schema: &SchemaRef, column: usize, array: &ArrayRef) -> Result<Float64Array> {
        let numbers = cast(array, &DataType::Float64)?.as_primitive::<Float64Type>().clone();
        let refused = |what: String, way_out| FunctionError::Value {
            function: self.name,
            column: schema.field(column).name().clone(),
            what,
            way_out,
        };
        if numbers.null_count() > 0 {
            return Err(refused("a NULL".to_string(), "filter such rows, or give it a value with COALESCE").into());
        }
        match numbers.values().iter().find(|value| !value.is_finite()) {
            Some(value) => Err(refused(format!("the value {value}"), "only finite numbers can be used").into()),
            None => Ok(numbers),
        }
    }

    fn labels(&self, schema: &SchemaRef, column: usize, array: &ArrayRef) -> Result<Vec<bool>> {
        let numbers = self.numbers(schema, column, array)?;
        let label = |value: &f64| match *value {
            0.0 => Ok(false),
            1.0 => Ok(true),
            other => Err(DataFusionError::from(FunctionError::Value {
                function: self.name,
                column: schema.field(column).name().clone(),
                what: format!("the value {other}"),
                way_out: "a label is 0 or 1: make it one with CASE or a comparison",
            })),
        };
        numbers.values().iter().map(label).collect()
    }

    /// The columns as batches.
    fn finish(self, columns: Vec<ArrayRef>) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let all = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        let starts = (0..all.num_rows()).step_by(self.batch_rows);
        let batches: Vec<RecordBatch> =
            starts.map(|start| all.slice(start, self.batch_rows.min(all.num_rows() - start))).collect();
        // The batches own the job, so that its memory stays reserved while they exist.
        let rows = stream::iter(batches).map(move |batch| Ok(batch.record_output(&self.metrics)));
        Ok(rows.boxed())
    }
}

/// Table of a fit's centers.
pub(crate) fn centers_table(model: &KMeans) -> Vec<ArrayRef> {
    let clusters = model.centers.num_rows();
    let mut columns = vec![integers(0..clusters as i64), integers(model.sizes.iter().map(|size| *size as i64))];
    for feature in 0..model.centers.num_columns() {
        columns.push(doubles((0..clusters).map(|cluster| model.centers.row(cluster)[feature])));
    }
    columns.push(doubles(model.cluster_wssse.iter().copied()));
    columns
}

/// Quality measures of a model, as one row.
pub(crate) fn report_table(model: &Logistic, confusion: &Confusion) -> Vec<ArrayRef> {
    let count = |count: u64| integers([count as i64]);
    let measure = |value: Option<f64>| -> ArrayRef { Arc::new(Float64Array::from(vec![value])) };
    vec![
        count(confusion.total()),
        count(confusion.true_positives + confusion.false_negatives),
        count(confusion.true_negatives),
        count(confusion.false_positives),
        count(confusion.false_negatives),
        count(confusion.true_positives),
        measure(confusion.precision()),
        measure(confusion.auc()),
        measure(confusion.accuracy()),
        measure((confusion.total() > 0).then_some(model.loss)),
        count(model.iterations as u64),
        Arc::new(BooleanArray::from(vec![model.converged])),
    ]
}

fn integers(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

fn doubles(values: impl IntoIterator<Item = f64>) -> ArrayRef {
    Arc::new(Float64Array::from_iter_values(values))
}

/// Values of a class column, numbered in order of appearance.
pub(crate) struct Classes {
    converter: RowConverter,
    numbers: HashMap<OwnedRow, usize>,
}

impl Classes {
    pub fn try_new(data_type: DataType) -> Result<Self> {
        Ok(Self { converter: RowConverter::new(vec![SortField::new(data_type)])?, numbers: HashMap::new() })
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Class number of each row; `None` for NULL.
    pub fn number(&mut self, column: &ArrayRef) -> Result<Vec<Option<usize>>> {
        let (rows, nulls) = (self.converter.convert_columns(&[Arc::clone(column)])?, column.logical_nulls());
        let number = |(index, row): (usize, millpond::datafusion::arrow::row::Row<'_>)| {
            let next = self.numbers.len();
            let known = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(index));
            known.then(|| *self.numbers.entry(row.owned()).or_insert(next))
        };
        Ok(rows.iter().enumerate().map(number).collect())
    }

    /// The class numbers sorted by value, and the values.
    pub fn sorted(self) -> Result<(Vec<usize>, ArrayRef)> {
        let mut all: Vec<(OwnedRow, usize)> = self.numbers.into_iter().collect();
        all.sort_by(|(a, _), (b, _)| a.row().cmp(&b.row()));
        let mut values = self.converter.convert_rows(all.iter().map(|(row, _)| row.row()))?;
        let order = all.iter().map(|(_, number)| *number).collect();
        values
            .pop()
            .map(|values| (order, values))
            .ok_or_else(|| DataFusionError::Internal("no class column".to_string()))
    }
}
