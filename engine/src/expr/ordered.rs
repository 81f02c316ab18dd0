//! The greatest and the least float of each group, in the total order of floats.
//!
//! Floats are compared as 64-bit integers in the same order, by DataFusion's accumulator for integers.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::error::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

/// An accumulator of integers that represent floats of a type.
pub(super) struct Floats {
    pub keys: Box<dyn GroupsAccumulator>,
    pub of: DataType,
}

/// Bits of a float as an integer that sorts in total order; its own inverse.
fn turned(bits: i64) -> i64 {
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

impl Floats {
    fn keys(&self, floats: &ArrayRef) -> Result<ArrayRef> {
        let floats = cast(floats, &DataType::Float64)?;
        let floats = floats.as_primitive::<Float64Type>();
        let keys: Int64Array = floats.unary(|float| turned(float.to_bits() as i64));
        Ok(Arc::new(keys))
    }

    fn floats(&self, keys: &ArrayRef) -> Result<ArrayRef> {
        let floats: Float64Array = keys.as_primitive::<Int64Type>().unary(|key| f64::from_bits(turned(key) as u64));
        Ok(cast(&floats, &self.of)?)
    }

    fn all_keys(&self, values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        values.iter().map(|floats| self.keys(floats)).collect()
    }

    fn all_floats(&self, keys: Vec<ArrayRef>) -> Result<Vec<ArrayRef>> {
        keys.iter().map(|keys| self.floats(keys)).collect()
    }
}

impl GroupsAccumulator for Floats {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        let keys = self.all_keys(values)?;
        self.keys.update_batch(&keys, groups, filter, total)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        let keys = self.all_keys(values)?;
        self.keys.merge_batch(&keys, groups, total)
    }

    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        let keys = self.keys.evaluate(emit)?;
        self.floats(&keys)
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        let keys = self.keys.state(emit)?;
        self.all_floats(keys)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let keys = self.keys.convert_to_state(&self.all_keys(values)?, filter)?;
        self.all_floats(keys)
    }

    fn size(&self) -> usize {
        self.keys.size()
    }
}
