//! `string_agg` of frames: slices of one text of all rows.
//!
//!   rows in order       a │ bc │ NULL │ d         each behind the separator: -a │ -bc │ . │ -d
//!   concatenated        -a-bc-d                   ends 2 5 5 7
//!   frame of rows 1, 2, 3                         bytes 2 to 7 without the first "-": a view of bc-d
//!
//! NULL    has no bytes, nor has a text that FILTER drops; a frame without texts gives NULL.
//! Which   frames from the start of the partition, because DataFusion removes no texts from a frame.
//! Memory  a copy of the texts, and 12 bytes per row while they are concatenated. The result's texts are copied when
//!         they leave the device.
//! Waits   for the number of bytes of the concatenated text.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;
use millpond_kernels::codegen::ir::{Repr, Ty};
use millpond_kernels::window::{Concatenated, Out, Positions, Window};

use crate::column::{Form, is_characters};
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::operator::aggregate::ordered::behind;
use crate::operator::aggregate::sorted::concatenate;
use crate::operator::window::describe::{Function, refused};
use crate::operator::window::lower::{Columns, LoweredFrame, Work};
use crate::operator::window::run::{Windows, column, frame_of};
use crate::program::part::Part;

/// `string_agg` of frames.
#[derive(Debug, Clone)]
pub(crate) struct LoweredConcat {
    /// Each text with the separator before it.
    pub column: usize,
    /// Bytes of the separator.
    pub separator_bytes: u32,
    pub frame: LoweredFrame,
}

impl Columns<'_, '_> {
    /// `string_agg`.
    pub(super) fn concat(
        &mut self,
        function: &Function,
        (argument, separator): (&Arc<dyn PhysicalExpr>, &str),
        frame: LoweredFrame,
    ) -> Result<(Work, Form), Reason> {
        let value = self.lowering.lower(argument, self.scope)?;
        if !is_characters(&value.data_type) || function.data_type != DataType::LargeUtf8 {
            let why = format!("it gives {} for {}", function.data_type, value.data_type);
            return Err(refused(&function.name, why));
        }
        let text = self.lowering.as_text(&value).map_err(|refusal| refusal.of(argument))?;
        let node = behind(self.lowering, self.scope, (argument, text), separator)?;
        let text = LoweredConcat { column: self.written(node), separator_bytes: separator.len() as u32, frame };
        Ok((Work::Concat(text), Form::Plain(Ty::new(Repr::Text).nullable(true))))
    }
}

impl Windows<'_> {
    /// Writes the text of each frame.
    pub(super) async fn concat(
        &self,
        (window, positions): (&Window<'_>, &Positions),
        text: &LoweredConcat,
        ordered: &Part,
        out: &Out,
    ) -> Result<(), Failure> {
        let of = column(ordered, text.column)?;
        let counted = self.counted(window, &of, true)?;
        let all = concatenate(self.segment, &of.values, window.rows, self.stream).await?;
        let frame = frame_of(&text.frame, ordered)?;
        let texts = Concatenated {
            whole: &all.whole,
            bytes: &all.bytes,
            ends: &all.ends,
            separator_bytes: text.separator_bytes,
        };
        window.concat(positions, &frame, counted.as_ref().map(|(found, _)| found), &texts, out)?;
        Ok(())
    }
}
