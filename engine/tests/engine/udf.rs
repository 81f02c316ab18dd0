//! Functions of one's own: the example, each body against the CPU's, and what is refused.

use std::sync::Arc;

use millpond::datafusion;
use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use millpond::datafusion::arrow::datatypes::DataType::{self, Boolean, Decimal128, Float64, Int32, Int64, Utf8};
use millpond::datafusion::arrow::datatypes::{Float64Type, Int64Type};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::common::ScalarValue;
use millpond::datafusion::logical_expr::{
    Accumulator, ColumnarValue, Operator, ScalarUDF, Volatility, create_udaf, create_udf,
};
use millpond::{DeviceChoice, DeviceFunction, Fallback, Millpond, NullHandling, UdfError};

use crate::support::session_with;

#[path = "../../examples/gpu_udf.rs"]
mod example;

#[tokio::test]
async fn the_example_runs_on_the_simulated_device() {
    let answer = example::distances(DeviceChoice::Sim).await.expect("the example runs");
    assert!(answer.report.launches > 0 && answer.report.notes.is_empty(), "{:?}", answer.report.notes);
    assert_eq!(answer.report.findings, Vec::<String>::new());
    let cpu = example::distances(DeviceChoice::Cpu).await.expect("the example runs on the CPU");
    let read = |answer: &millpond::QueryResult| {
        let batch = datafusion::arrow::compute::concat_batches(&answer.schema, &answer.batches).expect("one schema");
        let floats = |at: usize| batch.column(at).as_primitive::<Float64Type>().iter().collect::<Vec<_>>();
        let places = datafusion::arrow::compute::cast(batch.column(0), &Utf8).expect("texts");
        let places: Vec<String> = places.as_string::<i32>().iter().flatten().map(str::to_string).collect();
        (places, floats(1), floats(2))
    };
    let ((places, km, bmi), (cpu_places, cpu_km, cpu_bmi)) = (read(&answer), read(&cpu));
    assert_eq!(places, ["Amsterdam", "Quito", "Wellington", "nowhere"]);
    assert_eq!(places, cpu_places);
    for (one, other) in km.iter().chain(&bmi).zip(cpu_km.iter().chain(&cpu_bmi)) {
        match (one, other) {
            (Some(a), Some(b)) => assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} and {b}"),
            (a, b) => assert_eq!(a, b),
        }
    }
    // Utrecht is 35 km from Amsterdam.
    assert!(km[0].is_some_and(|km| (30.0..40.0).contains(&km)) && km[3].is_none());
}

/// A CPU body over `Int64` columns, row by row.
fn on_cpu(
    name: &str,
    arguments: usize,
    body: impl Fn(&[Option<i64>]) -> Option<i64> + Send + Sync + 'static,
) -> ScalarUDF {
    let body = move |values: &[ColumnarValue]| {
        let arrays = ColumnarValue::values_to_arrays(values)?;
        let value = |array: &ArrayRef, row: usize| {
            let array = array.as_primitive::<Int64Type>();
            array.is_valid(row).then(|| array.value(row))
        };
        let rows = arrays[0].len();
        let all = (0..rows).map(|row| body(&arrays.iter().map(|array| value(array, row)).collect::<Vec<_>>()));
        Ok(ColumnarValue::Array(Arc::new(all.collect::<Int64Array>()) as ArrayRef))
    };
    create_udf(name, vec![Int64; arguments], Int64, Volatility::Immutable, Arc::new(body))
}

const HEADER: &str = ".version 8.2\n.target sm_70\n.address_size 64\n";

/// How many are missing of two.
fn missing() -> DeviceFunction {
    let cpu = on_cpu("missing", 2, |row| {
        let missing = row.iter().filter(|value| value.is_none()).count() as i64;
        (missing < 2).then_some(missing * 10 + row.iter().flatten().sum::<i64>() % 10)
    });
    let ptx = format!(
        "{HEADER}.func (.param .align 8 .b8 out[16]) missing(
            .param .b64 x, .param .b32 x_valid, .param .b64 y, .param .b32 y_valid)
        {{
            .reg .pred %p<2>; .reg .b32 %r<4>; .reg .s64 %d<6>;
            ld.param.b64 %d0, [x]; ld.param.b32 %r0, [x_valid];
            ld.param.b64 %d1, [y]; ld.param.b32 %r1, [y_valid];
            setp.eq.s32 %p0, %r0, 0; @%p0 mov.s64 %d0, 0;
            setp.eq.s32 %p1, %r1, 0; @%p1 mov.s64 %d1, 0;
            add.s64 %d2, %d0, %d1; rem.s64 %d2, %d2, 10;
            add.s32 %r2, %r0, %r1; sub.s32 %r3, 2, %r2;
            cvt.s64.s32 %d3, %r3; mad.lo.s64 %d4, %d3, 10, %d2;
            st.param.b64 [out], %d4; st.param.b32 [out+8], %r2;
            ret;
        }}"
    );
    let nulls = NullHandling::Seen;
    DeviceFunction::from_ptx(cpu, &[Int64, Int64], &Int64, &ptx, "missing", nulls).expect("the function is fine")
}

/// `x / y`, and 7 where y is 0: the division would be an error in the branch not taken.
fn ratio() -> DeviceFunction {
    let cpu = on_cpu("ratio", 2, |row| match row {
        [Some(_), Some(0)] => Some(7),
        [Some(a), Some(b)] => Some(a / b),
        _ => None,
    });
    let built = DeviceFunction::from_builder(cpu, &[Int64, Int64], &Int64, |b, x| {
        let (zero, seven) = (b.constant(0_i64)?, b.constant(7_i64)?);
        let is_zero = b.compare(Operator::Eq, &x[1], &zero)?;
        let quotient = b.divide(&x[0], &x[1])?;
        let chosen = b.case(&[(is_zero, seven)], &quotient)?;
        // NULL divided is NULL, whatever by.
        let null = b.is_null(&x[0])?;
        let nothing = b.constant(ScalarValue::Int64(None))?;
        b.case(&[(null, nothing)], &chosen)
    });
    built.expect("the function is built")
}

fn session(device: DeviceChoice) -> Millpond {
    let session = session_with(device, 1, if device == DeviceChoice::Cpu { Fallback::Allow } else { Fallback::Error });
    let turns = |of: &[Option<i64>], step: usize| (0..120).map(|row| of[row / step % of.len()]).collect::<Int64Array>();
    let batch = RecordBatch::try_from_iter(vec![
        ("x", Arc::new(turns(&[Some(0), Some(7), Some(-31), None, Some(1_000_000)], 1)) as ArrayRef),
        ("y", Arc::new(turns(&[Some(0), Some(3), None, Some(-2)], 5)) as ArrayRef),
        ("s", Arc::new(StringArray::from_iter_values((0..120).map(|row| ["a", "bb"][row % 2]))) as ArrayRef),
    ]);
    session.context().register_batch("t", batch.expect("columns have one length")).expect("the name is free");
    session.register_function(missing()).expect("the function runs on the simulated device");
    session.register_function(ratio()).expect("the function runs on the simulated device");
    session
}

#[tokio::test]
async fn registered_functions_agree_with_their_cpu_bodies() {
    let (cpu, sim) = (session(DeviceChoice::Cpu), session(DeviceChoice::Sim));
    for sql in [
        "SELECT x, y, missing(x, y) AS m, ratio(x, y) AS r FROM t",
        "SELECT ratio(missing(x, y), 3) AS r, missing(x + 1, NULL) AS n, ratio(100, y) AS c FROM t",
        "SELECT missing(x, y) AS m, count(*), sum(ratio(x, y)) FROM t WHERE ratio(x, y) <> 0 OR x IS NULL GROUP BY 1",
        "SELECT CASE WHEN y <> 0 THEN ratio(x, y) ELSE missing(x, y) END AS c FROM t WHERE missing(x, y) IS NOT NULL",
    ] {
        let (expected, actual) = (cpu.execute(sql).await.expect(sql), sim.execute(sql).await.expect(sql));
        assert!(actual.report.launches > 0 && actual.report.notes.is_empty(), "{sql}");
        let answer = |result: &millpond::QueryResult| crate::answers::Answer::new(&result.schema, &result.batches);
        assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
    }
}

#[tokio::test]
async fn another_type_than_declared_runs_on_the_cpu_with_a_reason() {
    let sim = session_with(DeviceChoice::Sim, 1, Fallback::Allow);
    let cpu = ScalarUDF::from(AnyType::new());
    let built = DeviceFunction::from_builder(cpu, &[Int64], &Int64, |_, x| Ok(x[0].clone())).expect("it is built");
    sim.register_function(built).expect("a built body runs anywhere");
    let batch = RecordBatch::try_from_iter([("i", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef)]);
    sim.context().register_batch("t", batch.expect("a batch")).expect("the name is free");
    let answer = sim.execute("SELECT same(CAST(i AS INT)) AS s FROM t WHERE i > 0").await.expect("the CPU answers");
    assert!(
        answer.report.reasons.iter().any(|reason| reason.contains("Int64") && reason.contains("Int32")),
        "{:?}",
        answer.report.reasons
    );
    let answer = sim.execute("SELECT same(i) AS s FROM t WHERE i > 0").await.expect("the device answers");
    assert_eq!(answer.report.reasons, Vec::<String>::new());
}

/// A function `same` of one value of any type.
#[derive(Debug, PartialEq, Eq, Hash)]
struct AnyType {
    signature: datafusion::logical_expr::Signature,
}

impl AnyType {
    fn new() -> Self {
        Self { signature: datafusion::logical_expr::Signature::any(1, Volatility::Immutable) }
    }
}

impl datafusion::logical_expr::ScalarUDFImpl for AnyType {
    fn name(&self) -> &str {
        "same"
    }

    fn signature(&self) -> &datafusion::logical_expr::Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> datafusion::error::Result<DataType> {
        Ok(arg_types[0].clone())
    }

    fn invoke_with_args(
        &self,
        args: datafusion::logical_expr::ScalarFunctionArgs,
    ) -> datafusion::error::Result<ColumnarValue> {
        Ok(args.args[0].clone())
    }
}

fn refusal(made: Result<DeviceFunction, UdfError>) -> String {
    match made {
        Ok(function) => format!("{function:?}"),
        Err(error) => {
            assert!(error.to_string().contains(error.function()), "{error}");
            error.to_string()
        }
    }
}

#[test]
fn what_is_wrong_is_said_when_the_function_is_made() {
    let first = || on_cpu("first", 1, |row| row[0]);
    let ptx = |body: &str| {
        format!(
            "{HEADER}.func (.param .b64 out) first(.param .b64 x)\n{{\n.reg .b64 %d<2>;\nld.param.b64 %d0, [x];\n{body}\nret;\n}}"
        )
    };
    let fine = ptx("st.param.b64 [out], %d0;");
    let from = |arguments: &[DataType], result: &DataType, text: &str, entry: &str| {
        refusal(DeviceFunction::from_ptx(first(), arguments, result, text, entry, NullHandling::Strict))
    };
    assert_eq!(from(&[Int64], &Int64, &fine, "first"), "DeviceFunction(first [Int64] -> Int64, PTX)");
    assert_eq!(
        from(&[Utf8], &Int64, &fine, "first"),
        "function first: argument 1 is Utf8, which has no device form; functions of one string column run on its dictionary, by the CPU body alone"
    );
    let said = from(&[Int64], &Float64, &fine, "first");
    assert_eq!(said, "function first: Float64 is declared as its result; the CPU body says Int64");
    let said = from(&[Int64], &Int64, &fine, "second");
    assert_eq!(said, "function first: the PTX has no .func second; it has first");
    let said = from(&[Int64, Int64], &Int64, &fine, "first");
    assert!(said.starts_with("function first: line 4: first takes 1 parameters; 2 "), "{said}");
    let said = from(&[Int32], &Int64, &fine, "first");
    assert!(said.contains("line 4: argument 1 of first is a .param .b64; I32 is declared"), "{said}");
    let said = from(&[Decimal128(38, 2)], &Int64, &fine, "first");
    assert!(said.contains("argument 1 of first is a .param .b64; I128 is declared"), "{said}");
    let said = from(&[Int64], &Int64, &ptx("add.s64 %d1, %d0, %r0;\nst.param.b64 [out], %d1;"), "first");
    assert!(said.starts_with("function first: line 8: ") && said.contains("%r0"), "{said}");
    let said = from(&[Int64], &Int64, "SELECT 1", "first");
    assert!(said.starts_with("function first: line 1: "), "{said}");

    let volatile =
        create_udf("dice", vec![Int64], Int64, Volatility::Volatile, Arc::new(|values| Ok(values[0].clone())));
    let said = refusal(DeviceFunction::from_ptx(volatile, &[Int64], &Int64, &fine, "first", NullHandling::Strict));
    assert_eq!(said, "function dice is volatile; only immutable and stable functions have a device body");

    let said = refusal(DeviceFunction::from_builder(first(), &[Int64], &Int64, |b, x| b.and(&x[0], &x[0])));
    assert_eq!(said, "function first: AND takes no I64 and I64: cast the operands first");
    let said = refusal(DeviceFunction::from_builder(first(), &[Int64], &Int64, |b, x| b.cast(&x[0], &Float64)));
    assert_eq!(said, "function first: Int64 is declared as its result; Float64 was built");
    let said = refusal(DeviceFunction::from_builder(first(), &[Int64], &Int64, |b, x| {
        let half = b.constant(0.5)?;
        b.add(&x[0], &half)
    }));
    assert_eq!(said, "function first: Int64 + Float64: cast one to the other's type");
    let said = refusal(DeviceFunction::from_builder(first(), &[Boolean], &Int64, |b, x| b.function("sine", &x[..1])));
    assert!(said.contains("sine"), "{said}");
}

/// A function that returns 42 for any argument.
fn forty_two(name: &str, argument: DataType) -> ScalarUDF {
    let body = |values: &[ColumnarValue]| {
        let rows = values.iter().find_map(|value| match value {
            ColumnarValue::Array(array) => Some(array.len()),
            ColumnarValue::Scalar(_) => None,
        });
        Ok(ColumnarValue::Array(Arc::new(Int64Array::from(vec![42; rows.unwrap_or(1)]))))
    };
    create_udf(name, vec![argument], Int64, Volatility::Immutable, Arc::new(body))
}

/// An aggregate that returns 42 for any argument.
#[derive(Debug)]
struct FortyTwo;

impl Accumulator for FortyTwo {
    fn update_batch(&mut self, _: &[ArrayRef]) -> datafusion::error::Result<()> {
        Ok(())
    }

    fn evaluate(&mut self) -> datafusion::error::Result<ScalarValue> {
        Ok(ScalarValue::Int64(Some(42)))
    }

    fn size(&self) -> usize {
        0
    }

    fn state(&mut self) -> datafusion::error::Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::Int64(Some(42))])
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> datafusion::error::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn functions_that_take_datafusions_names_are_theirs() {
    let sim = session_with(DeviceChoice::Sim, 1, Fallback::Allow);
    sim.context().register_udf(forty_two("abs", Int64));
    sim.context().register_udf(forty_two("character_length", Utf8));
    let median = create_udaf(
        "median",
        vec![Int64],
        Arc::new(Int64),
        Volatility::Immutable,
        Arc::new(|_| Ok(Box::new(FortyTwo))),
        Arc::new(vec![Int64]),
    );
    sim.context().register_udaf(median);
    // One with a device body is that one there, too, whatever DataFusion has of its name.
    let ptx = format!(
        "{HEADER}.func (.param .b64 out) chr(.param .b64 x)\n{{\n.reg .b64 %d<2>;\nmov.b64 %d0, 42;\nst.param.b64 [out], %d0;\nret;\n}}"
    );
    let chr = forty_two("chr", Int64);
    let chr = DeviceFunction::from_ptx(chr, &[Int64], &Int64, &ptx, "chr", NullHandling::Strict);
    sim.register_function(chr.expect("it is as declared")).expect("it runs");
    for (sql, expected, on_device) in [
        ("SELECT sum(abs(x)) FROM (VALUES (-1), (2), (5)) t(x)", 126, false),
        ("SELECT sum(character_length(x || y)) FROM (VALUES ('a', 'b'), ('c', 'd'), ('e', 'f')) t(x, y)", 126, false),
        ("SELECT median(x) FROM (VALUES (1), (2), (5)) t(x)", 42, false),
        ("SELECT sum(chr(x)) FROM (VALUES (1), (2), (5)) t(x)", 126, true),
        ("SELECT sum(signum(x)) FROM (VALUES (1), (2), (5)) t(x)", 3, true),
    ] {
        let answer = sim.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let value = ScalarValue::try_from_array(answer.batches[0].column(0), 0).expect("a row");
        assert_eq!(value.cast_to(&Int64).expect("a number"), ScalarValue::Int64(Some(expected)), "{sql}");
        let reasons = answer.report.reasons.join("; ");
        assert_eq!(reasons.is_empty(), on_device, "{sql}: {reasons}");
        assert!(on_device || reasons.contains("a function of the session's own"), "{sql}: {reasons}");
    }
}
