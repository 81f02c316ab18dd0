//! DataFusion aggregates with accumulators of the engine on the CPU; on the device they have other forms.
//!
//!   max, min   compare floats by their total order in groups, too   `ordered.rs`, `mends::extremes`
//!   sum        of whole numbers is an error beyond 64 bits          `checked.rs`, `mends::sums`

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, Expr, GroupsAccumulator, Operator, ReversedUDAF,
    SetMonotonicity, Signature, StatisticsArgs,
};

use crate::expr::checked::{self, Checked, Groups, Once};
use crate::expr::ordered::Floats;

/// The replacement for `max` or `min`.
pub(crate) fn ordered(of: Arc<AggregateUDF>) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(Mended { of, how: How::Ordered }))
}

/// The replacement for `sum` over integers.
pub(crate) fn checked(of: Arc<AggregateUDF>) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(Mended { of, how: How::Checked }))
}

/// True for functions made by [`ordered`] and [`checked`].
pub(crate) fn is_mended(function: &AggregateUDF) -> bool {
    function.inner().downcast_ref::<Mended>().is_some()
}

/// The function that a mended one replaces; any other function unchanged.
pub(crate) fn bare(function: &Arc<AggregateUDF>) -> &Arc<AggregateUDF> {
    function.inner().downcast_ref::<Mended>().map_or(function, |mended| &mended.of)
}

/// True for functions made by [`checked`].
pub(crate) fn is_checked(function: &AggregateUDF) -> bool {
    function.inner().downcast_ref::<Mended>().is_some_and(|mended| mended.how == How::Checked)
}

/// A DataFusion aggregate with accumulators of the engine.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Mended {
    of: Arc<AggregateUDF>,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum How {
    /// Floats of groups are compared by their total order.
    Ordered,
    /// Sums are computed in 128 bits.
    Checked,
}

impl AggregateUDFImpl for Mended {
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
        match self.how {
            How::Ordered => self.of.accumulator(args),
            How::Checked => Checked::of(args, |args| self.of.accumulator(args)),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        match self.how {
            How::Ordered => self.of.state_fields(args),
            How::Checked => {
                self.of.state_fields(StateFieldsArgs { return_field: checked::wide(&args.return_field), ..args })
            }
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.of.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let of = args.return_field.data_type().clone();
        match self.how {
            How::Ordered if !of.is_floating() => self.of.create_groups_accumulator(args),
            How::Ordered => {
                let return_field = Arc::new(Field::new(args.return_field.name(), DataType::Int64, true));
                let keys = self.of.create_groups_accumulator(AccumulatorArgs { return_field, ..args })?;
                Ok(Box::new(Floats { keys, of }))
            }
            How::Checked => {
                let return_field = checked::wide(&args.return_field);
                let sums = self.of.create_groups_accumulator(AccumulatorArgs { return_field, ..args })?;
                Ok(Box::new(Groups { sums, of }))
            }
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match self.how {
            How::Ordered => self.of.create_sliding_accumulator(args),
            How::Checked if args.is_distinct => Ok(Box::new(Once::new(args.return_field.data_type().clone()))),
            How::Checked => Checked::of(args, |args| self.of.create_sliding_accumulator(args)),
        }
    }

    fn simplify_expr_op_literal(
        &self,
        function: &AggregateFunction,
        arg: &Expr,
        op: Operator,
        literal: &Expr,
        is_left: bool,
    ) -> Result<Option<Expr>> {
        self.of.inner().simplify_expr_op_literal(function, arg, op, literal, is_left)
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
