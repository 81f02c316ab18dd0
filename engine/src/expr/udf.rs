//! User-defined scalar functions on the device: a body in PTX, or built from expressions, beside the CPU body.
//!
//!   ScalarUDF (CPU body) + DeviceFunction (device body) ── register ──► SELECT haversine(a, b, c, d) …
//!                                                                            ├─ device subtree: the function's PTX
//!                                                                            └─ any CPU node: the CPU body
//!
//! Which     the device body runs if the call has the declared types and the operator runs on the device. Everything
//!           else, such as constants, fallbacks and other argument types, uses the CPU body. Both must agree.
//! NULL      strict: NULL in, NULL out, and the device body receives no NULL. Otherwise the body receives each
//!           argument's validity and returns whether its result is valid.
//! PTX       the text is parsed and checked when the function is created, and its parameters are compared with the
//!           declared types; [`millpond_kernels::codegen::function`] describes how values are passed. It runs in the
//!           pipeline's own kernel: it is responsible for its own memory accesses.
//! Errors    name the function, and the line of the PTX.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{ExprSchema, Result as DataFusionResult, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use millpond_kernels::codegen::{Function, FunctionError, Nulls};

use crate::column::{is_string, number_repr};
use crate::expr::{Built, DeviceExpr, ExprBuilder};

/// Treatment of NULL by a device body in PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NullHandling {
    /// An argument that is NULL makes the result NULL; the body is not called.
    Strict,
    /// The body receives every argument's validity, and returns whether its result is valid.
    Seen,
}

/// Reason why a function has no device body.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum UdfError {
    /// A type without a device form.
    #[error("function {function}: {place} is {data_type}, which has no device form{}", hint(.data_type))]
    Type { function: String, place: String, data_type: DataType },
    /// The PTX is wrong, or differs from the declaration.
    #[error("function {function}: {source}")]
    Ptx { function: String, source: Box<FunctionError> },
    /// The CPU body returns another type, or refuses the arguments.
    #[error("function {function}: {declared} is declared as its result; the CPU body says {cpu}")]
    Result { function: String, declared: DataType, cpu: String },
    /// A volatile function may return another value in each call; on the device equal calls are computed once.
    #[error("function {function} is volatile; only immutable and stable functions have a device body")]
    Volatile { function: String },
    /// The builder's closure failed, or built another type.
    #[error("function {function}: {why}")]
    Built { function: String, why: String },
    /// The simulated device does not implement an instruction of the PTX.
    #[error("function {function} does not run on the simulated device: {why}")]
    Simulated { function: String, why: String },
}

fn hint(data_type: &DataType) -> &'static str {
    match is_string(data_type) {
        true => "; functions of one string column run on its dictionary, by the CPU body alone",
        false => "",
    }
}

impl UdfError {
    /// The function's name.
    pub fn function(&self) -> &str {
        match self {
            Self::Type { function, .. }
            | Self::Ptx { function, .. }
            | Self::Result { function, .. }
            | Self::Volatile { function }
            | Self::Built { function, .. }
            | Self::Simulated { function, .. } => function,
        }
    }
}

impl From<UdfError> for DataFusionError {
    fn from(error: UdfError) -> Self {
        DataFusionError::External(Box::new(error))
    }
}

/// Builder of a device body from its arguments.
type Build = dyn Fn(&mut ExprBuilder<'_, '_>, &[DeviceExpr]) -> Built + Send + Sync;

#[derive(Clone)]
pub(crate) enum Body {
    Ptx(Arc<Function>),
    Built(Arc<Build>),
}

/// A scalar function with a CPU body and a device body.
///
/// ```
/// use datafusion::arrow::datatypes::DataType::{Float64, Int64};
/// use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
/// use millpond::datafusion;
/// use millpond::{DeviceChoice, DeviceFunction, Fallback, Millpond, NullHandling};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let twice = create_udf("twice", vec![Int64], Int64, Volatility::Immutable, Arc::new(|arguments| {
///     let ColumnarValue::Array(array) = &arguments[0] else { return Ok(arguments[0].clone()) };
///     Ok(ColumnarValue::Array(datafusion::arrow::compute::kernels::numeric::add_wrapping(array, array)?))
/// }));
/// let ptx = "
///     .version 8.2
///     .target sm_70
///     .address_size 64
///     .func (.param .b64 result) twice(.param .b64 x)
///     {
///         .reg .b64 %d<2>;
///         ld.param.b64 %d0, [x];
///         add.s64 %d1, %d0, %d0;
///         st.param.b64 [result], %d1;
///         ret;
///     }";
/// let twice = DeviceFunction::from_ptx(twice, &[Int64], &Int64, ptx, "twice", NullHandling::Strict)?;
///
/// let session = Millpond::builder().with_device(DeviceChoice::Sim).with_fallback(Fallback::Error).build()?;
/// session.register_function(twice)?;
/// let answer = session.execute("SELECT twice(column1) FROM (VALUES (20), (21), (NULL)) WHERE column1 > 20").await?;
/// assert_eq!(answer.batches[0].column(0).len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DeviceFunction {
    cpu: ScalarUDF,
    pub(crate) arguments: Vec<DataType>,
    pub(crate) result: DataType,
    pub(crate) body: Body,
}

impl DeviceFunction {
    /// A function whose device body is the `.func` called `entry` in `ptx`.
    ///
    /// # Errors
    /// [`UdfError`] if a type has no device form, the CPU body does not give `result` for `arguments` or is volatile,
    /// or the PTX breaks a rule, lacks the function, or passes values in other ways than the types require.
    pub fn from_ptx(
        cpu: ScalarUDF,
        arguments: &[DataType],
        result: &DataType,
        ptx: &str,
        entry: &str,
        nulls: NullHandling,
    ) -> Result<Self, UdfError> {
        let name = cpu.name().to_string();
        Self::declared(&cpu, arguments, result)?;
        let repr = |data_type: &DataType, place: String| {
            number_repr(data_type).ok_or_else(|| UdfError::Type {
                function: name.clone(),
                place,
                data_type: data_type.clone(),
            })
        };
        let mut reprs = Vec::with_capacity(arguments.len());
        for (index, data_type) in arguments.iter().enumerate() {
            reprs.push(repr(data_type, format!("argument {}", index + 1))?);
        }
        let given = repr(result, "the result".to_string())?;
        let nulls = match nulls {
            NullHandling::Strict => Nulls::Strict,
            NullHandling::Seen => Nulls::Seen,
        };
        let function = Function::from_ptx(ptx, entry, reprs, given, nulls);
        let function = function.map_err(|source| UdfError::Ptx { function: name, source: Box::new(source) })?;
        Ok(Self { cpu, arguments: arguments.to_vec(), result: result.clone(), body: Body::Ptx(Arc::new(function)) })
    }

    /// A function whose device body `build` constructs from its arguments.
    ///
    /// # Errors
    /// [`UdfError`] as for [`Self::from_ptx`]; and if `build` fails or returns another type.
    pub fn from_builder(
        cpu: ScalarUDF,
        arguments: &[DataType],
        result: &DataType,
        build: impl Fn(&mut ExprBuilder<'_, '_>, &[DeviceExpr]) -> Built + Send + Sync + 'static,
    ) -> Result<Self, UdfError> {
        Self::declared(&cpu, arguments, result)?;
        let function = cpu.name().to_string();
        for (index, data_type) in arguments.iter().enumerate() {
            if number_repr(data_type).is_none() {
                let place = format!("argument {}", index + 1);
                return Err(UdfError::Type { function, place, data_type: data_type.clone() });
            }
        }
        let built = crate::expr::try_build(arguments, &build);
        let built = built.map_err(|why| UdfError::Built { function: function.clone(), why })?;
        if built != *result {
            return Err(UdfError::Built {
                function,
                why: format!("{result} is declared as its result; {built} was built"),
            });
        }
        Ok(Self { cpu, arguments: arguments.to_vec(), result: result.clone(), body: Body::Built(Arc::new(build)) })
    }

    fn declared(cpu: &ScalarUDF, arguments: &[DataType], result: &DataType) -> Result<(), UdfError> {
        let function = cpu.name().to_string();
        if cpu.signature().volatility == Volatility::Volatile {
            return Err(UdfError::Volatile { function });
        }
        let fields: Vec<FieldRef> =
            arguments.iter().map(|data_type| Arc::new(Field::new("argument", data_type.clone(), true))).collect();
        let literals = vec![None; fields.len()];
        let said = cpu.return_field_from_args(ReturnFieldArgs { arg_fields: &fields, scalar_arguments: &literals });
        match said {
            Ok(field) if field.data_type() == result => Ok(()),
            Ok(field) => {
                Err(UdfError::Result { function, declared: result.clone(), cpu: field.data_type().to_string() })
            }
            Err(error) => Err(UdfError::Result { function, declared: result.clone(), cpu: error.strip_backtrace() }),
        }
    }

    pub fn name(&self) -> &str {
        self.cpu.name()
    }

    /// The function as a DataFusion function: it can be registered with any `SessionContext` whose plans Millpond
    /// places.
    pub fn into_udf(self) -> ScalarUDF {
        ScalarUDF::new_from_impl(Registered { inner: self.cpu.inner().clone(), function: Arc::new(self) })
    }

    /// Whether the simulated device implements every instruction of the body.
    pub(crate) fn runs_simulated(&self) -> Result<(), UdfError> {
        match &self.body {
            Body::Built(_) => Ok(()),
            Body::Ptx(function) => function
                .interpretable()
                .map_err(|error| UdfError::Simulated { function: self.name().to_string(), why: error.to_string() }),
        }
    }

    /// The device body behind a function of a plan, if it has one.
    pub(crate) fn of(function: &ScalarUDF) -> Option<&DeviceFunction> {
        function.inner().downcast_ref::<Registered>().map(|registered| registered.function.as_ref())
    }
}

impl std::fmt::Debug for DeviceFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = match &self.body {
            Body::Ptx(_) => "PTX",
            Body::Built(_) => "built",
        };
        write!(f, "DeviceFunction({} {:?} -> {}, {body})", self.name(), self.arguments, self.result)
    }
}

/// The CPU body under its own name, with the device body beside it.
#[derive(Debug)]
struct Registered {
    inner: Arc<dyn ScalarUDFImpl>,
    function: Arc<DeviceFunction>,
}

impl PartialEq for Registered {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.function, &other.function) && self.function.cpu == other.function.cpu
    }
}

impl Eq for Registered {}

impl Hash for Registered {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.cpu.hash(state);
    }
}

/// Forwards to the CPU body.
impl ScalarUDFImpl for Registered {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn schema_name(&self, args: &[Expr]) -> DataFusionResult<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> DataFusionResult<DataType> {
        self.inner.return_type(arg_types)
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let cpu = self.inner.with_updated_config(config)?;
        Some(DeviceFunction { cpu, ..self.function.as_ref().clone() }.into_udf())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DataFusionResult<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    #[expect(deprecated, reason = "forwarded as long as it exists")]
    fn is_nullable(&self, args: &[Expr], schema: &dyn ExprSchema) -> bool {
        self.inner.is_nullable(args, schema)
    }

    fn is_strict(&self) -> bool {
        self.inner.is_strict()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        self.inner.invoke_with_args(args)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> DataFusionResult<ExprSimplifyResult> {
        self.inner.simplify(args, info)
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.inner.conditional_arguments(args)
    }

    fn evaluate_bounds(&self, input: &[&Interval]) -> DataFusionResult<Interval> {
        self.inner.evaluate_bounds(input)
    }

    fn propagate_constraints(
        &self,
        interval: &Interval,
        inputs: &[&Interval],
    ) -> DataFusionResult<Option<Vec<Interval>>> {
        self.inner.propagate_constraints(interval, inputs)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> DataFusionResult<SortProperties> {
        self.inner.output_ordering(inputs)
    }

    fn preserves_lex_ordering(&self, inputs: &[ExprProperties]) -> DataFusionResult<bool> {
        self.inner.preserves_lex_ordering(inputs)
    }

    fn strictly_order_preserving(&self, inputs: &[ExprProperties]) -> DataFusionResult<bool> {
        self.inner.strictly_order_preserving(inputs)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        self.inner.coerce_types(arg_types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

/// A constant for [`ExprBuilder::constant`]: any value with an SQL literal.
pub trait IntoConstant {
    fn into_constant(self) -> ScalarValue;
}

impl<T: Into<ScalarValue>> IntoConstant for T {
    fn into_constant(self) -> ScalarValue {
        self.into()
    }
}
