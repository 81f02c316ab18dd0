//! LIKE patterns from a column: the form that the kernels match, for each value of the pattern's dictionary.
//!
//!   'a_c%'  ──►  a · ONE_CHARACTER · c · ANY_CHARACTERS        bytes that are no text
//!
//! NULL     stays NULL.
//! Errors   a pattern of ILIKE outside ASCII has no device form: the CPU matches it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, BinaryArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{exec_datafusion_err, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use millpond_kernels::codegen::ir::{ANY_CHARACTERS, ONE_CHARACTER};

/// A pattern in the kernels' form. A backslash escapes the next character; at the end it stands for itself.
pub(super) fn coded(pattern: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        let own = match character {
            '%' => {
                bytes.push(ANY_CHARACTERS);
                continue;
            }
            '_' => {
                bytes.push(ONE_CHARACTER);
                continue;
            }
            '\\' => characters.next().unwrap_or('\\'),
            own => own,
        };
        bytes.extend(own.encode_utf8(&mut [0; 4]).as_bytes());
    }
    bytes
}

/// The coded form of a pattern.
#[derive(Debug, Eq)]
pub(super) struct PatternExpr {
    pub of: Arc<dyn PhysicalExpr>,
    /// For ILIKE: the coded form is in lower case.
    pub any_case: bool,
}

impl PatternExpr {
    fn name(&self) -> &'static str {
        if self.any_case { "ilike_pattern" } else { "like_pattern" }
    }

    fn coded(&self, pattern: &str) -> Result<Vec<u8>> {
        match self.any_case {
            false => Ok(coded(pattern)),
            true if pattern.is_ascii() => Ok(coded(&pattern.to_ascii_lowercase())),
            true => Err(exec_datafusion_err!("ILIKE {pattern:?} is outside ASCII, and has no device form")),
        }
    }
}

impl PartialEq for PatternExpr {
    fn eq(&self, other: &Self) -> bool {
        self.any_case == other.any_case && self.of.eq(&other.of)
    }
}

impl Hash for PatternExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.any_case.hash(state);
        self.of.hash(state);
    }
}

impl fmt::Display for PatternExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.of)
    }
}

impl PhysicalExpr for PatternExpr {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        self.of.nullable(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let patterns = cast(&self.of.evaluate(batch)?.into_array(batch.num_rows())?, &DataType::LargeUtf8)?;
        let coded = patterns.as_string::<i64>().iter().map(|pattern| pattern.map(|p| self.coded(p)).transpose());
        let coded = coded.collect::<Result<Vec<Option<Vec<u8>>>>>()?;
        Ok(ColumnarValue::Array(Arc::new(coded.into_iter().collect::<BinaryArray>())))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.of]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let of = children.into_iter().next();
        let of = of.ok_or_else(|| internal_datafusion_err!("{} has one argument", self.name()))?;
        Ok(Arc::new(Self { of, any_case: self.any_case }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
