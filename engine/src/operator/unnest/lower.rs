//! Hits as a sink: payload and text as dense columns, from which the run computes the columns of hits.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::PhysicalExpr;
use millpond_kernels::codegen::ir::{NodeId, Repr, Ty};

use crate::column::{ColumnInfo, Form, is_characters};
use crate::error::reason::Reason;
use crate::expr::{Lowering, Scope, unsupported};
use crate::operator::unnest::found::{Found, HitField, Items};
use crate::operator::unnest::run::HitsRun;
use crate::program::contract::{Sink, SinkRun};
use crate::program::lower::SegmentLowering;
use crate::program::piece::LoweredSink;

/// The name of an item that is no structure.
pub(crate) const ITEM: &str = "item";

/// Sink that repeats the rows of the input for each hit in a text.
#[derive(Debug, Clone)]
pub(crate) struct HitsSink {
    /// Input columns that are carried, with their names.
    pub payload: Vec<(Arc<dyn PhysicalExpr>, String)>,
    /// The searched text, in lower case if required.
    pub text: Arc<dyn PhysicalExpr>,
    pub found: Found,
}

impl PartialEq for HitsSink {
    fn eq(&self, other: &Self) -> bool {
        self.payload == other.payload && self.text.as_ref() == other.text.as_ref() && self.found == other.found
    }
}

/// The type of codes for `values` values.
pub(crate) fn codes(values: usize) -> Ty {
    Ty::new(Repr::U32).within(0, values.max(1) as i128 - 1)
}

/// Details for the run: the columns of hits that follow the payload, the number of words, and the number of values of
/// `says`.
#[derive(Debug, Clone)]
pub(crate) struct LoweredHits {
    pub fields: Vec<HitField>,
    pub words: usize,
    pub says: usize,
}

impl HitsSink {
    /// The nodes of payload and text, and the output columns.
    ///
    /// # Errors
    /// Why one of them has no device form.
    pub fn columns(
        &self,
        lowering: &mut Lowering<'_>,
        scope: &Scope,
    ) -> Result<(Vec<NodeId>, Vec<ColumnInfo>), Reason> {
        let (mut nodes, mut outputs) = (vec![], vec![]);
        for (expr, name) in &self.payload {
            let value = lowering.lower(expr, scope)?;
            nodes.push(value.node);
            outputs.push(lowering.info(name, &value));
        }
        let text = lowering.lower(&self.text, scope)?;
        if !is_characters(&text.data_type) {
            return Err(unsupported(&self.text, &format!("there are no sentences in {}", text.data_type)));
        }
        nodes.push(lowering.as_text(&text).map_err(|refusal| refusal.of(&self.text))?);
        let Items::Hits(hits) = &self.found.items else {
            let text = Form::Plain(Ty::new(Repr::Text));
            outputs.push(ColumnInfo::new(ITEM.to_string(), DataType::Utf8View, text));
            return Ok((nodes, outputs));
        };
        for (name, field) in &hits.fields {
            let mut coded = |values: &[String]| {
                let of = |value: &String| ScalarValue::Utf8View(Some(value.clone()));
                let id = lowering.dictionaries.constants(DataType::Utf8View, values.iter().map(of).collect());
                Form::Codes(codes(values.len()), id)
            };
            let form = match field {
                HitField::Sentence => Form::Plain(Ty::new(Repr::Text)),
                HitField::Word => coded(&hits.words),
                HitField::Says => coded(&hits.says),
            };
            outputs.push(ColumnInfo::new(name.clone(), DataType::Utf8View, form));
        }
        Ok((nodes, outputs))
    }
}

impl Sink for HitsSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (lowering, scope) = segment.expressions();
        let (nodes, outputs) = self.columns(lowering, scope)?;
        let details = match &self.found.items {
            Items::Hits(hits) => LoweredHits {
                fields: hits.fields.iter().map(|(_, field)| *field).collect(),
                words: hits.words.len(),
                says: hits.says.len(),
            },
            Items::Sentences | Items::Words => LoweredHits { fields: vec![HitField::Sentence], words: 0, says: 0 },
        };
        Ok(LoweredSink { details: Arc::new(details), ..LoweredSink::new(segment.write(nodes), outputs) })
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(HitsRun::new(self.found.clone()))
    }
}
