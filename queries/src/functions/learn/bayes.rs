//! Naive Bayes on the device: counts words and pairs, then predicts the most likely class of each text.
//!
//! ```text
//!   training rows ─► TrainSink   text │ class ─ classes ─► host: their order, cells ─► counts ─ kept in the run ─┐
//!   test rows ─────► JudgeSink   each extent: id │ class │ prediction │ text  ◄── the prediction is filled in ───┘
//! ```
//!
//! Text     in lower case, by the engine's `lower`.
//! NULL     a training row with a NULL class or text is ignored; a test row with a NULL text has no prediction.
//! Classes  texts with a dictionary, and integers of at most 64 bits; the prediction is a text without a dictionary, or
//!          an integer.
//! Memory   the training texts until they are counted, 4 bytes per text; the counts until the run ends, see [`Cells`].
//! Waits    once, for the classes and the number of grams.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond::column::{ColumnInfo, Form, is_characters, is_string, plain_repr};
use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt32Array};
use millpond::datafusion::arrow::compute::{cast, take};
use millpond::datafusion::arrow::datatypes::{DataType, Int64Type};
use millpond::datafusion::common::config::ConfigOptions;
use millpond::datafusion::functions::string;
use millpond::datafusion::physical_expr::expressions::Column;
use millpond::datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::error::EngineError;
use millpond::error::failure::Failure;
use millpond::error::reason::Reason;
use millpond::expr::{Lowering, Scope};
use millpond::kernels::bayes::{self as kernels, Cells, Classes as Table, FoundClass, Texts};
use millpond::kernels::codegen::ir::{Arithmetic, GraphError, Literal, NodeId, Overflow, Physical, Repr, Test, Ty};
use millpond::kernels::pipeline::ExtentRows;
use millpond::memory::{DeviceView, Stream};
use millpond::program::contract::{Sink, SinkRun};
use millpond::program::extent::Extent;
use millpond::program::lower::SegmentLowering;
use millpond::program::part::{Kept, Part};
use millpond::program::piece::LoweredSink;
use millpond::program::segment_result::SegmentResult;
use millpond::program::segment_run::SegmentRun;

use super::lower::Written;
use super::rows::{Launches, Room, column};
use crate::functions::Function;
use crate::functions::ml::NaiveBayesOptions;
use crate::functions::ml::bayes::log_priors;
use crate::functions::ml::tables::Classes;

/// Maximum number of classes.
const MAX_CLASSES: usize = 1024;
/// Bytes of a text stored inline in its view.
const INLINE: usize = 12;
/// Number of a slot without a class.
const NO_CLASS: u32 = u32::MAX;

fn unsupported(why: String) -> Reason {
    Reason::ExprUnsupported { expr: "naive_bayes".to_string(), why }
}

fn refused(error: GraphError) -> Reason {
    unsupported(error.to_string())
}

impl Written {
    /// Column `position` of the function, a text, in lower case.
    fn lower_case(&self, position: usize, lowering: &mut Lowering<'_>, scope: &Scope) -> Result<NodeId, Reason> {
        let index = self.cpu.columns()[position];
        let schema = self.cpu.children()[self.input].schema();
        let text = Arc::new(Column::new(schema.field(index).name(), index)) as Arc<dyn PhysicalExpr>;
        let options = Arc::new(ConfigOptions::default());
        let lower = ScalarFunctionExpr::try_new(string::lower(), vec![text], &schema, options);
        let lower = Arc::new(lower.map_err(|error| unsupported(error.strip_backtrace()))?) as Arc<dyn PhysicalExpr>;
        let value = lowering.lower(&lower, scope)?;
        lowering.as_text(&value).map_err(|refusal| refusal.of(&lower))
    }
}

/// Representation of a class on the device.
#[derive(Debug, Clone, Copy)]
enum ClassForm {
    /// Text. Predictions have no dictionary.
    Text,
    Integer(Repr),
}

impl ClassForm {
    fn of(data_type: &DataType) -> Result<Self, Reason> {
        match plain_repr(data_type) {
            _ if is_string(data_type) && is_characters(data_type) => Ok(Self::Text),
            Some(repr @ (Repr::I8 | Repr::I16 | Repr::I32 | Repr::I64 | Repr::U8 | Repr::U16 | Repr::U32)) => {
                Ok(Self::Integer(repr))
            }
            _ => Err(unsupported(format!("classes of type {data_type} stay on the CPU"))),
        }
    }

    fn ty(self) -> Ty {
        match self {
            Self::Text => Ty::new(Repr::Text),
            Self::Integer(repr) => Ty::new(repr),
        }
    }
}

/// Columns written for a training row: its text, and a number that identifies its class.
pub(super) fn trained(
    written: &Written,
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    filters: &mut Vec<NodeId>,
) -> Result<(Vec<NodeId>, Vec<ColumnInfo>), Reason> {
    let text = written.lower_case(0, lowering, scope)?;
    let mut class = scope.column(written.cpu.columns()[1])?;
    match (ClassForm::of(&class.data_type)?, class.dictionary) {
        (ClassForm::Text, None) => return Err(unsupported("classes are told apart by a dictionary".to_string())),
        (ClassForm::Text, Some(_)) | (ClassForm::Integer(_), None) => {}
        (ClassForm::Integer(_), Some(_)) => return Err(unsupported("classes are numbers or texts".to_string())),
    }
    if lowering.graph.ty(class.node).nullable {
        filters.push(lowering.graph.test(Test::IsNotNull, class.node).map_err(refused)?);
        class.node = lowering.graph.present(class.node);
    }
    let known_by = lowering.graph.convert(class.node, Repr::I64, Overflow::Wrap).map_err(refused)?;
    // Prevents a narrower type: numbers in a known range would be written in fewer bytes.
    let zero = lowering.slot(Ty::new(Repr::I64), Literal::Int(0));
    let known_by = lowering.graph.arithmetic(Arithmetic::Add, known_by, zero, Overflow::Wrap).map_err(refused)?;
    let known_form = lowering.info("class", &class);
    let text_form = Form::Plain(lowering.graph.ty(text));
    Ok((vec![text, known_by], vec![ColumnInfo::new("text".to_string(), DataType::Utf8View, text_form), known_form]))
}

/// Columns written for a test row: id, class, a placeholder for the prediction, and the text; and the result columns.
pub(super) fn judged(
    written: &Written,
    lowering: &mut Lowering<'_>,
    scope: &Scope,
) -> Result<(Vec<NodeId>, Vec<ColumnInfo>), Reason> {
    let (schema, columns) = (written.schema(), written.cpu.columns());
    let (mut nodes, mut outputs) = (vec![], vec![]);
    for (index, position) in [2, 4].into_iter().enumerate() {
        let value = scope.column(columns[position])?;
        nodes.push(value.node);
        outputs.push(lowering.info(schema.field(index).name(), &value));
    }
    let text = written.lower_case(3, lowering, scope)?;
    let field = schema.field(2);
    let form = ClassForm::of(field.data_type())?;
    let room = match form {
        ClassForm::Text => text,
        ClassForm::Integer(_) => lowering.slot(form.ty(), Literal::Int(0)),
    };
    let has_text = lowering.graph.test(Test::IsNotNull, text).map_err(refused)?;
    nodes.push(lowering.graph.case(vec![(has_text, room)], None).map_err(refused)?);
    nodes.push(text);
    let form = Form::Plain(form.ty().nullable(true));
    outputs.push(ColumnInfo::new(field.name().clone(), field.data_type().clone(), form));
    Ok((nodes, outputs))
}

/// Keeps the training rows, and counts their grams after the last one.
#[derive(Debug)]
pub(super) struct TrainSink {
    pub written: Written,
}

/// Lowered form of the class column, with its dictionary if it has one.
struct LoweredTrain {
    class: ColumnInfo,
}

impl Sink for TrainSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (nodes, columns) =
            segment.with_filters(|lowering, scope, filters| trained(&self.written, lowering, scope, filters))?;
        let class = columns.last().cloned().ok_or_else(|| unsupported("there is no class".to_string()))?;
        let known_by = ColumnInfo::new("class".to_string(), DataType::Int64, Form::Plain(Ty::new(Repr::I64)));
        let outputs = vec![columns[0].clone(), known_by];
        Ok(LoweredSink { details: Arc::new(LoweredTrain { class }), ..LoweredSink::new(segment.write(nodes), outputs) })
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(TrainRun { written: self.written.clone() })
    }
}

struct TrainRun {
    written: Written,
}

impl SinkRun for TrainRun {
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
            let Function::NaiveBayes { options } = self.written.function() else {
                return Err(EngineError::internal("texts are counted for naive Bayes").into());
            };
            let training = Training { at: Launches { run: &segment.run, stream }, segment, options };
            let model: Fitted = training.fit(&parts, &self.written).await?;
            segment.run.leave(segment.index, Arc::new(model));
            segment.result(vec![])
        }
        .boxed()
    }
}

/// Texts of a part.
struct PartTexts {
    views: DeviceView,
    rows: ExtentRows,
    reached: Vec<DeviceView>,
}

impl PartTexts {
    /// The texts of column `index`; `None` if the part has no rows.
    fn of(at: Launches<'_>, part: &Part, index: usize) -> Result<Option<Self>, Failure> {
        if part.rows_bound() == 0 {
            return Ok(None);
        }
        let rows = part.as_extent()?.rows;
        Ok(Some(Self { views: column(part, index)?, rows, reached: at.run.reached.all() }))
    }

    fn texts(&self) -> Texts<'_> {
        Texts { views: &self.views, rows: &self.rows, reached: &self.reached }
    }
}

/// The fitted model; `None` if there are no classes.
type Fitted = Option<Model>;

struct Model {
    cells: Cells,
    counts: Room,
    priors: Room,
    totals: Room,
    /// Predicted value of each class, `width` bytes each.
    values: Room,
    width: u32,
    /// Bytes referenced by text views in `values`.
    _bytes: Option<Room>,
}

/// One fit.
struct Training<'a> {
    at: Launches<'a>,
    segment: &'a SegmentRun,
    options: &'a NaiveBayesOptions,
}

/// Sorted classes.
struct Ordered {
    /// By slot, the number of its class.
    numbers: Vec<u32>,
    /// Values of the classes: texts, or 64-bit integers.
    values: ArrayRef,
    documents: Vec<u64>,
    grams: Vec<u64>,
}

impl Training<'_> {
    async fn fit(&self, parts: &[Kept], written: &Written) -> Result<Fitted, Failure> {
        let at = self.at;
        let table = at.take_zeroed(Table::BYTES)?;
        let classes = Table { table: table.buffer.as_view() };
        classes.prepare(at.stream)?;
        let mut slots = vec![];
        for kept in parts {
            let room = at.take(kept.rows().max(1) * 4)?;
            let part = kept.lend(at.stream)?;
            if let Some(texts) = PartTexts::of(at, &part, 0)? {
                let text = part.layout.columns.first();
                let valid = text.and_then(|text| text.validity.clone());
                let valid = valid.map(|range| part.buffer.view(range)).transpose()?;
                let (known_by, slots) = (column(&part, 1)?, room.buffer.as_view());
                at.launch(|images, on| {
                    kernels::classes(images, texts.texts(), valid.as_ref(), &known_by, classes, slots, on)
                })?;
            }
            slots.push(room);
        }
        let found = Table::found(&at.read(table.buffer.as_view()).await?);
        let found = found.ok_or_else(|| Failure::trouble("there are too many classes to tell apart"))?;
        let ordered = self.ordered(&found)?;
        let classes = ordered.documents.len();
        match classes {
            0 => return Ok(None),
            1..=MAX_CLASSES => {}
            _ => return Err(Failure::trouble(format!("{classes} classes are too many to compare a text with"))),
        }
        let grams = ordered.grams.iter().sum();
        let cells = Cells::new(self.options.buckets, classes as u32, grams)
            .ok_or_else(|| Failure::trouble(format!("{classes} classes have too many counts")))?;
        let counts = at.take_zeroed(cells.bytes())?;
        let numbers: Vec<u8> = ordered.numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let numbers = at.upload_bytes(&numbers)?;
        for (kept, slots) in parts.iter().zip(&slots) {
            let part = kept.lend(at.stream)?;
            let Some(texts) = PartTexts::of(at, &part, 0)? else { continue };
            let (slots, numbers, counts) = (slots.buffer.as_view(), numbers.buffer.as_view(), counts.buffer.as_view());
            at.launch(|images, on| kernels::train(images, texts.texts(), slots, numbers, cells, counts, on))?;
        }
        let (values, width, bytes) =
            self.values(&ordered.values, ClassForm::of(written.schema().field(2).data_type())?)?;
        Ok(Some(Model {
            cells,
            counts,
            priors: at.upload(&log_priors(&ordered.documents))?,
            totals: at.upload(&self.options.log_totals(&ordered.grams))?,
            values,
            width,
            _bytes: bytes,
        }))
    }

    /// The classes sorted by value, as on the CPU.
    fn ordered(&self, found: &[FoundClass]) -> Result<Ordered, Failure> {
        let prepared = self.segment.prepared(0)?;
        let details = prepared.shape.lowered.details::<LoweredTrain>();
        let lowered = details.ok_or_else(|| EngineError::internal("training rows are lowered as such"))?;
        let values: ArrayRef = match lowered.class.form {
            Form::Codes(_, dictionary) => {
                let codes: UInt32Array = found.iter().map(|class| class.key as u32).collect();
                take(&self.at.run.values(dictionary)?, &codes, None)?
            }
            _ => Arc::new(found.iter().map(|class| Some(class.key)).collect::<Int64Array>()),
        };
        let mut classes = Classes::try_new(values.data_type().clone())?;
        let as_found = classes.number(&values)?;
        let (order, values) = classes.sorted()?;
        let mut places = vec![NO_CLASS; order.len()];
        order.iter().enumerate().for_each(|(place, number)| places[*number] = place as u32);
        let mut numbers = vec![NO_CLASS; Table::SLOTS];
        let (mut documents, mut grams) = (vec![0; order.len()], vec![0; order.len()]);
        for (class, number) in found.iter().zip(as_found) {
            // A dictionary value may be NULL.
            let Some(place) = number.map(|number| places[number]) else { continue };
            numbers[class.slot] = place;
            documents[place as usize] += class.texts;
            grams[place as usize] += class.grams;
        }
        Ok(Ordered { numbers, values, documents, grams })
    }

    /// Predicted values of the classes, bytes per value, and the bytes referenced by views.
    fn values(&self, values: &ArrayRef, form: ClassForm) -> Result<(Room, u32, Option<Room>), Failure> {
        let width = Physical::of(form.ty()).width();
        if let ClassForm::Integer(_) = form {
            let values = values.as_primitive::<Int64Type>().values().iter();
            let bytes: Vec<u8> =
                values.flat_map(|value| value.to_le_bytes().into_iter().take(width as usize)).collect();
            return Ok((self.at.upload_bytes(&bytes)?, width, None));
        }
        let texts = cast(values, &DataType::Utf8View)?;
        let texts: Vec<&[u8]> = texts.as_string_view().iter().map(|text| text.unwrap_or_default().as_bytes()).collect();
        let mut bytes = texts.concat();
        bytes.push(0);
        let bytes = self.at.upload_bytes(&bytes)?;
        self.at.run.reached.keep(bytes.buffer.as_view(), None);
        let mut address = bytes.buffer.as_view().address().0;
        let mut views = vec![];
        for text in texts {
            views.extend((text.len() as u32).to_le_bytes());
            let mut rest = [0; INLINE];
            match text.len() <= INLINE {
                true => rest[..text.len()].copy_from_slice(text),
                false => {
                    rest[..4].copy_from_slice(&text[..4]);
                    rest[4..].copy_from_slice(&address.to_le_bytes());
                }
            }
            views.extend(rest);
            address += text.len() as u64;
        }
        Ok((self.at.upload_bytes(&views)?, width, Some(bytes)))
    }
}

/// Writes the predictions for each extent. `model` is the segment of the training rows.
#[derive(Debug)]
pub(super) struct JudgeSink {
    pub written: Written,
    pub model: usize,
}

impl Sink for JudgeSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (nodes, outputs) = segment.with_filters(|lowering, scope, _| judged(&self.written, lowering, scope))?;
        Ok(LoweredSink::new(segment.write(nodes), outputs))
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(JudgeRun { written: self.written.clone(), model: self.model })
    }
}

struct JudgeRun {
    written: Written,
    model: usize,
}

impl JudgeRun {
    fn judge(&self, part: &Part, at: Launches<'_>) -> Result<(), Failure> {
        let Function::NaiveBayes { options } = self.written.function() else {
            return Err(EngineError::internal("texts are judged by naive Bayes").into());
        };
        let Some(texts) = PartTexts::of(at, part, 3)? else { return Ok(()) };
        let model = at.run.left::<Fitted>(self.model);
        let model = model.ok_or_else(|| EngineError::internal("texts are counted before others are judged"))?;
        let Some(model) = model.as_ref() else {
            let validity = part.layout.columns.get(2).and_then(|column| column.validity.clone());
            let validity = validity.ok_or_else(|| EngineError::internal("a prediction may be NULL"))?;
            return Ok(part.buffer.view(validity)?.fill(0, at.stream)?);
        };
        let judge = kernels::Model {
            cells: model.cells,
            table: model.counts.buffer.as_view(),
            alpha: options.alpha,
            priors: model.priors.buffer.as_view(),
            totals: model.totals.buffer.as_view(),
        };
        let (values, out) = (model.values.buffer.as_view(), column(part, 2)?);
        at.launch(|images, on| kernels::predict(images, texts.texts(), judge, values, model.width, &out, on))
    }
}

impl SinkRun for JudgeRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Extent { segment, stream, .. } = extent;
            let rest = extent.rest();
            let (part, made) = extent.materialise(true).await?;
            self.judge(&part, Launches { run: &segment.run, stream })?;
            rest.keep_part(part, made, true).await
        }
        .boxed()
    }
}
