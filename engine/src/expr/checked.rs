//! Sums of integers in 128 bits; a result beyond 64 bits is an error.
//!
//! ```text
//!   BIGINT ─► DECIMAL(38, 0) ─ DataFusion's sum ─► fits 64 bits? the sum : an error
//! ```
//!
//! Parts    of a sum may exceed 64 bits where the whole does not, in any order of rows.
//! Windows  in sessions with a device sum DECIMAL(20, 0), below a [`narrow`] (`mends::sums`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, PrimitiveArray};
use datafusion::arrow::datatypes::{ArrowPrimitiveType, DataType, Field, FieldRef, Int64Type, UInt64Type};
use datafusion::common::cast::as_decimal128_array;
use datafusion::common::{ScalarValue, exec_err, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{
    Accumulator, ColumnarValue, EmitTo, Expr, GroupsAccumulator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

/// Type of intermediate sums.
const WIDE: DataType = DataType::Decimal128(38, 0);

/// The field with room for 128 bits.
pub(super) fn wide(field: &Field) -> FieldRef {
    Arc::new(Field::new(field.name(), WIDE, true))
}

fn widened(values: &ArrayRef) -> Result<ArrayRef> {
    let wide: Decimal128Array = match values.data_type() {
        DataType::Int64 => values.as_primitive::<Int64Type>().unary(i128::from),
        DataType::UInt64 => values.as_primitive::<UInt64Type>().unary(i128::from),
        other => return internal_err!("a checked sum of {other}"),
    };
    Ok(Arc::new(wide.with_data_type(WIDE)))
}

fn all_widened(values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
    values.iter().map(widened).collect()
}

/// Converts a sum to its own type.
///
/// # Errors
/// If the type does not hold the sum.
fn narrowed(sum: Option<i128>, of: &DataType) -> Result<ScalarValue> {
    let Some(sum) = sum else { return ScalarValue::try_from(of) };
    let narrow = match of {
        DataType::Int64 => i64::try_from(sum).ok().map(ScalarValue::from),
        DataType::UInt64 => u64::try_from(sum).ok().map(ScalarValue::from),
        other => return internal_err!("a checked sum of {other}"),
    };
    match narrow {
        Some(narrow) => Ok(narrow),
        None => exec_err!(
            "overflow: a sum is {sum}, and {of} holds no such number: write sum(CAST(x AS DECIMAL(38, 0))), or \
             SET millpond.integer_overflow = 'wrap'"
        ),
    }
}

/// Like [`narrowed`], for many sums.
///
/// # Errors
/// If the type does not hold a sum.
fn all_narrowed(sums: &Decimal128Array, of: &DataType) -> Result<ArrayRef> {
    fn of_type<T: ArrowPrimitiveType<Native: TryFrom<i128>>>(
        sums: &Decimal128Array,
        of: &DataType,
    ) -> Result<ArrayRef> {
        let fits: PrimitiveArray<T> = sums.unary_opt(|sum| T::Native::try_from(sum).ok());
        if fits.null_count() > sums.null_count() {
            narrowed(sums.iter().flatten().find(|sum| T::Native::try_from(*sum).is_err()), of)?;
        }
        Ok(Arc::new(fits))
    }
    match of {
        DataType::UInt64 => of_type::<UInt64Type>(sums, of),
        _ => of_type::<Int64Type>(sums, of),
    }
}

/// The function that converts a sum of DECIMAL(…, 0) to `to`, or raises an error.
pub(crate) fn narrow(sum: Expr, to: DataType) -> Expr {
    // The same objects each time, because plans are compared by them (`planned_by`).
    static SIGNED: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Narrow::to(DataType::Int64));
    static UNSIGNED: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Narrow::to(DataType::UInt64));
    let function = if to == DataType::UInt64 { &UNSIGNED } else { &SIGNED };
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(function), vec![sum]))
}

/// True for the function of [`narrow`].
pub(super) fn is_narrow(function: &ScalarUDF) -> bool {
    function.inner().downcast_ref::<Narrow>().is_some()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Narrow {
    to: DataType,
    of: Signature,
}

impl Narrow {
    fn to(to: DataType) -> Arc<ScalarUDF> {
        Arc::new(ScalarUDF::new_from_impl(Self { to, of: Signature::any(1, Volatility::Immutable) }))
    }
}

impl ScalarUDFImpl for Narrow {
    fn name(&self) -> &str {
        "millpond_in_64_bits"
    }

    fn signature(&self) -> &Signature {
        &self.of
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.as_slice() {
            [ColumnarValue::Scalar(ScalarValue::Decimal128(sum, ..))] => {
                Ok(ColumnarValue::Scalar(narrowed(*sum, &self.to)?))
            }
            [ColumnarValue::Array(sums)] => {
                Ok(ColumnarValue::Array(all_narrowed(as_decimal128_array(sums)?, &self.to)?))
            }
            other => internal_err!("a sum that is checked is no {other:?}"),
        }
    }
}

/// A sum of all rows, or of the rows of a frame.
#[derive(Debug)]
pub(super) struct Checked {
    sum: Box<dyn Accumulator>,
    of: DataType,
}

impl Checked {
    /// # Errors
    /// Those of `sum`, which makes DataFusion's accumulator.
    pub fn of(
        args: AccumulatorArgs,
        sum: impl FnOnce(AccumulatorArgs) -> Result<Box<dyn Accumulator>>,
    ) -> Result<Box<dyn Accumulator>> {
        let (of, return_field) = (args.return_field.data_type().clone(), wide(&args.return_field));
        let sum = sum(AccumulatorArgs { return_field, ..args })?;
        Ok(Box::new(Self { sum, of }))
    }
}

impl Accumulator for Checked {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum.update_batch(&all_widened(values)?)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.sum.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum.retract_batch(&all_widened(values)?)
    }

    fn supports_retract_batch(&self) -> bool {
        self.sum.supports_retract_batch()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.sum.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        match self.sum.evaluate()? {
            ScalarValue::Decimal128(sum, ..) => narrowed(sum, &self.of),
            other => internal_err!("a checked sum gave {other}"),
        }
    }

    fn size(&self) -> usize {
        self.sum.size()
    }
}

/// The sums of groups.
pub(super) struct Groups {
    pub sums: Box<dyn GroupsAccumulator>,
    pub of: DataType,
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        self.sums.update_batch(&all_widened(values)?, groups, filter, total)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.sums.merge_batch(states, groups, total)
    }

    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        let sums = self.sums.evaluate(emit)?;
        let sums = as_decimal128_array(&sums)?;
        all_narrowed(sums, &self.of)
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        self.sums.state(emit)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.sums.convert_to_state(&all_widened(values)?, filter)
    }

    fn size(&self) -> usize {
        self.sums.size()
    }
}

/// The sum of the distinct values of a sliding frame.
#[derive(Debug)]
pub(super) struct Once {
    /// Number of rows of the frame, by their value.
    rows: HashMap<i128, usize>,
    sum: i128,
    of: DataType,
}

impl Once {
    pub fn new(of: DataType) -> Self {
        Self { rows: HashMap::new(), sum: 0, of }
    }

    fn each(values: &[ArrayRef], mut with: impl FnMut(i128)) -> Result<()> {
        for values in all_widened(values)? {
            as_decimal128_array(&values)?.iter().flatten().for_each(&mut with);
        }
        Ok(())
    }
}

impl Accumulator for Once {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (rows, sum) = (&mut self.rows, &mut self.sum);
        Self::each(values, |value| {
            let count = rows.entry(value).or_default();
            *count += 1;
            if *count == 1 {
                *sum += value;
            }
        })
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (rows, sum) = (&mut self.rows, &mut self.sum);
        Self::each(values, |value| {
            let Entry::Occupied(mut count) = rows.entry(value) else { return };
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                *sum -= value;
            }
        })
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame has no parts")
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame has no parts")
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        narrowed((!self.rows.is_empty()).then_some(self.sum), &self.of)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.rows.capacity() * size_of::<(i128, usize)>()
    }
}
