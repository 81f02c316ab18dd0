//! Columns of a union: types that hold the values of every input, and values converted to them.
//!
//!   input 0   I64 in 0..=9       codes into D0          union   I64 in -5..=9     codes into D2, which
//!   input 1   I64 in -5..=0      codes into D1                                    holds the values of both

use crate::column::{ColumnInfo, DictionaryId, Form};
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, Dictionary};
use crate::program::contract::{Sink, SinkRun};
use crate::program::lower::SegmentLowering;
use crate::program::materialise::KeepRows;
use crate::program::piece::LoweredSink;

/// The columns of a union, from the columns of its inputs.
pub fn union_columns(inputs: &[Vec<ColumnInfo>], dictionaries: &mut Dictionaries) -> Vec<ColumnInfo> {
    let Some((first, others)) = inputs.split_first() else { return vec![] };
    let mut columns = first.clone();
    for (index, column) in columns.iter_mut().enumerate() {
        let mut parts: Vec<DictionaryId> = Vec::new();
        for input in inputs {
            if let Some(Form::Codes(_, id)) = input.get(index).map(|column| &column.form) {
                parts.push(*id);
            }
        }
        // If one input has no dictionary, the union has none.
        let texts = inputs.iter().any(|input| input.get(index).is_some_and(ColumnInfo::is_text));
        if texts {
            *column = column.clone().as_text();
        }
        for input in others {
            match input.get(index) {
                Some(other) if other.data_type == column.data_type => {
                    let other = if texts { other.clone().as_text() } else { other.clone() };
                    column.form = column.form.clone().or(&other.form);
                }
                other => {
                    let types = other.map_or("nothing".to_string(), |other| other.data_type.to_string());
                    let node = format!("a union of {} and {types}", column.data_type);
                    column.form = Form::Unsupported(Reason::NodeUnsupported { node });
                }
            }
        }
        parts.sort();
        parts.dedup();
        if let (Form::Codes(ty, _), true) = (&column.form, parts.len() > 1) {
            let merged = Dictionary::Merged { parts, constants: vec![], data_type: column.data_type.clone() };
            column.form = Form::Codes(*ty, dictionaries.add(merged));
        }
    }
    columns
}

/// Sink of dense columns, with the types that all inputs of a union have in common.
#[derive(Debug)]
pub(crate) struct BranchSink;

impl Sink for BranchSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (nodes, outputs) = segment.outputs()?;
        Ok(LoweredSink::new(segment.write(nodes), outputs))
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(KeepRows)
    }

    fn common_columns(&self, inputs: &[Vec<ColumnInfo>], dictionaries: &mut Dictionaries) -> Option<Vec<ColumnInfo>> {
        Some(union_columns(inputs, dictionaries))
    }
}
