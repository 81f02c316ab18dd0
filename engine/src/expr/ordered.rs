//! `max` and `min` that compare floats by their total order in groups, too (`mends::extremes`).
//!
//! Floats are compared as whole numbers of 64 bits that have their order, by DataFusion's accumulator for these.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, EmitTo, GroupsAccumulator, ReversedUDAF,
    SetMonotonicity, Signature, StatisticsArgs,
};

/// The function in the place of `max` or `min`.
pub(crate) fn ordered(of: Arc<AggregateUDF>) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(Ordered { of }))
}

/// True for what [`ordered`] makes.
pub(crate) fn is_ordered(function: &AggregateUDF) -> bool {
    function.inner().downcast_ref::<Ordered>().is_some()
}

/// `max` or `min`, by the total order of floats in groups, too.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Ordered {
    of: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for Ordered {
    fn name(&self) -> &str {
        self.of.name()
    }

    fn aliases(&self) -> &[String] {
        self.of.aliases()
    }

    fn signature(&self) -> &Signature {
        self.of.signature()
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        self.of.return_type(args)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.of.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.of.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.of.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let of = args.return_field.data_type().clone();
        if !of.is_floating() {
            return self.of.create_groups_accumulator(args);
        }
        let return_field = Arc::new(Field::new(args.return_field.name(), DataType::Int64, true));
        let keys = self.of.create_groups_accumulator(AccumulatorArgs { return_field, ..args })?;
        Ok(Box::new(Floats { keys, of }))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.of.create_sliding_accumulator(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.of.order_sensitivity()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.of.reverse_udf()
    }

    fn coerce_types(&self, args: &[DataType]) -> Result<Vec<DataType>> {
        self.of.coerce_types(args)
    }

    fn is_descending(&self) -> Option<bool> {
        self.of.is_descending()
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.of.value_from_stats(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.of.documentation()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.of.inner().set_monotonicity(data_type)
    }
}

/// An accumulator of whole numbers that stand for floats of a type.
struct Floats {
    keys: Box<dyn GroupsAccumulator>,
    of: DataType,
}

/// Bits of a float as a number that has its place in the total order; its own inverse.
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
