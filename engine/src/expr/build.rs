//! Device expressions built in Rust, for the device bodies of registered functions.
//!
//!   |b, x| { let square = b.multiply(&x[1], &x[1])?; b.divide(&x[0], &square) }       weight / (height * height)
//!
//! Types    SQL's. Operands of an operator have one type; `cast` changes it.
//! Meaning  DataFusion's: integers wrap, divisions by zero and failed casts are errors, NULL propagates.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use millpond_kernels::codegen::ir::{Comparison, GraphError, NodeId, Overflow, Repr, Test, Ty};

use crate::column::number_repr;
use crate::error::reason::Reason;
use crate::expr::cast::{decimal_type, same_representation};
use crate::expr::function::row;
use crate::expr::udf::{Body, DeviceFunction, IntoConstant};
use crate::expr::{Dictionaries, Lowered, Lowering, Scope, Value, refusal};

/// A value of a device expression under construction.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceExpr {
    node: NodeId,
    data_type: DataType,
}

impl DeviceExpr {
    /// Its SQL type.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }
}

/// A built value, or a sentence that says why there is none.
pub type Built = Result<DeviceExpr, String>;

/// Builds device expressions.
pub struct ExprBuilder<'l, 'd> {
    lowering: &'l mut Lowering<'d>,
    /// The expression being lowered, for messages.
    whole: Arc<dyn PhysicalExpr>,
}

/// A reason as a sentence.
fn sentence(reason: Reason) -> String {
    reason.to_string()
}

impl ExprBuilder<'_, '_> {
    fn made(&self, node: Result<NodeId, GraphError>, data_type: &DataType) -> Built {
        let node = node.map_err(|error| error.to_string())?;
        Ok(DeviceExpr { node, data_type: data_type.clone() })
    }

    fn value(of: &DeviceExpr) -> Value {
        Value { node: of.node, data_type: of.data_type.clone(), dictionary: None }
    }

    /// A constant: `b.constant(1.5)`, `b.constant(ScalarValue::Date32(Some(0)))`.
    ///
    /// # Errors
    /// If its type has no device form.
    pub fn constant(&mut self, value: impl IntoConstant) -> Built {
        let value: ScalarValue = value.into_constant();
        let literal: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(value.clone()));
        let data_type = value.data_type();
        if number_repr(&data_type).is_none() {
            return Err(format!("a constant of type {data_type} has no device form"));
        }
        let value = self.lowering.literal(&value).map_err(|refusal| sentence(refusal.of(&literal)))?;
        Ok(DeviceExpr { node: value.node, data_type })
    }

    fn arithmetic(&mut self, op: Operator, left: &DeviceExpr, right: &DeviceExpr) -> Built {
        let data_type = match (decimal_type(&left.data_type), decimal_type(&right.data_type)) {
            (Some(_), Some(_)) => {
                return Err(format!(
                    "{} {op} {}: cast decimals to a float or an integer",
                    left.data_type, right.data_type
                ));
            }
            _ if left.data_type != right.data_type => {
                return Err(format!("{} {op} {}: cast one to the other's type", left.data_type, right.data_type));
            }
            _ => left.data_type.clone(),
        };
        let whole = Arc::clone(&self.whole);
        let (left, right) = (Self::value(left), Self::value(right));
        let value = self
            .lowering
            .arithmetic(op, None, left, right, data_type)
            .map_err(|refusal| sentence(refusal.of(&whole)))?;
        Ok(DeviceExpr { node: value.node, data_type: value.data_type })
    }

    /// `left + right`.
    ///
    /// # Errors
    /// If the operands are not integers or floats of one type; likewise below.
    pub fn add(&mut self, left: &DeviceExpr, right: &DeviceExpr) -> Built {
        self.arithmetic(Operator::Plus, left, right)
    }

    /// `left - right`.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn subtract(&mut self, left: &DeviceExpr, right: &DeviceExpr) -> Built {
        self.arithmetic(Operator::Minus, left, right)
    }

    /// `left * right`.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn multiply(&mut self, left: &DeviceExpr, right: &DeviceExpr) -> Built {
        self.arithmetic(Operator::Multiply, left, right)
    }

    /// `left / right`; an integer divided by zero is an error of the query.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn divide(&mut self, left: &DeviceExpr, right: &DeviceExpr) -> Built {
        self.arithmetic(Operator::Divide, left, right)
    }

    /// `left % right`.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn remainder(&mut self, left: &DeviceExpr, right: &DeviceExpr) -> Built {
        self.arithmetic(Operator::Modulo, left, right)
    }

    /// A comparison, as SQL's operator of that name: `b.compare(Operator::Lt, &x, &y)`.
    ///
    /// # Errors
    /// If the operator is no comparison, or the operands have different types.
    pub fn compare(&mut self, op: Operator, left: &DeviceExpr, right: &DeviceExpr) -> Built {
        let comparison = match op {
            Operator::Eq => Comparison::Equal,
            Operator::NotEq => Comparison::NotEqual,
            Operator::Lt => Comparison::Less,
            Operator::LtEq => Comparison::LessEqual,
            Operator::Gt => Comparison::Greater,
            Operator::GtEq => Comparison::GreaterEqual,
            Operator::IsDistinctFrom => Comparison::Distinct,
            Operator::IsNotDistinctFrom => Comparison::NotDistinct,
            other => return Err(format!("{other} is no comparison")),
        };
        if !same_representation(&left.data_type, &right.data_type) {
            return Err(format!("{} {op} {}: cast one to the other's type", left.data_type, right.data_type));
        }
        let node = self.lowering.graph.compare(comparison, left.node, right.node);
        self.made(node, &DataType::Boolean)
    }

    /// Kleene AND.
    ///
    /// # Errors
    /// If an operand is no boolean; likewise below.
    pub fn and(&mut self, left: &DeviceExpr, right: &DeviceExpr) -> Built {
        let node = self.lowering.graph.and(left.node, right.node);
        self.made(node, &DataType::Boolean)
    }

    /// Kleene OR.
    ///
    /// # Errors
    /// As [`Self::and`].
    pub fn or(&mut self, left: &DeviceExpr, right: &DeviceExpr) -> Built {
        let node = self.lowering.graph.or(left.node, right.node);
        self.made(node, &DataType::Boolean)
    }

    /// Kleene NOT.
    ///
    /// # Errors
    /// As [`Self::and`].
    pub fn not(&mut self, of: &DeviceExpr) -> Built {
        let node = self.lowering.graph.not(of.node);
        self.made(node, &DataType::Boolean)
    }

    /// Whether a value is NULL.
    ///
    /// # Errors
    /// Never, for a value of this builder.
    pub fn is_null(&mut self, of: &DeviceExpr) -> Built {
        let node = self.lowering.graph.test(Test::IsNull, of.node);
        self.made(node, &DataType::Boolean)
    }

    /// The result of the first branch whose condition is true, else `otherwise`. Errors only arise in the branch taken.
    ///
    /// # Errors
    /// If a condition is no boolean, or the results have several types.
    pub fn case(&mut self, branches: &[(DeviceExpr, DeviceExpr)], otherwise: &DeviceExpr) -> Built {
        if let Some((_, other)) = branches.iter().find(|(_, then)| then.data_type != otherwise.data_type) {
            return Err(format!("CASE gives {} and {}", other.data_type, otherwise.data_type));
        }
        let nodes = branches.iter().map(|(when, then)| (when.node, then.node)).collect();
        let node = self.lowering.graph.case(nodes, Some(otherwise.node));
        self.made(node, &otherwise.data_type)
    }

    /// Casts `of` to another type; a value that does not fit is an error of the query.
    ///
    /// # Errors
    /// If the device has no such cast.
    pub fn cast(&mut self, of: &DeviceExpr, to: &DataType) -> Built {
        let whole = Arc::clone(&self.whole);
        let value =
            self.lowering.cast(Self::value(of), to, Overflow::Fail).map_err(|refusal| sentence(refusal.of(&whole)))?;
        Ok(DeviceExpr { node: value.node, data_type: value.data_type })
    }

    /// A function by its SQL name: of floats (`sqrt`, `sin`, `power`, …) or, for `gcd`, `lcm` and `factorial`, of
    /// `Int64`.
    ///
    /// # Errors
    /// If there is no device function of this name for these arguments.
    pub fn function(&mut self, name: &str, arguments: &[DeviceExpr]) -> Built {
        let Some(first) = arguments.first() else { return Err(format!("{name} of nothing has no device form")) };
        if let Some(other) = arguments.iter().find(|argument| argument.data_type != first.data_type) {
            return Err(format!("{name} of {} and {}: cast one to the other's type", first.data_type, other.data_type));
        }
        if !matches!(first.data_type, DataType::Float32 | DataType::Float64 | DataType::Int64) {
            return Err(format!("{name} has no device form over {}", first.data_type));
        }
        let nodes: Vec<NodeId> = arguments.iter().map(|argument| argument.node).collect();
        let build = row(name, nodes.len()).and_then(|row| row.build).filter(|(count, _)| *count == nodes.len());
        let (_, build) = build.ok_or_else(|| format!("{name} of {} arguments has no device form", nodes.len()))?;
        let node = build(&mut self.lowering.graph, &nodes);
        self.made(node, &first.data_type)
    }
}

/// Builds a body over scratch columns, to check that it can be built, and to find its type.
pub(crate) fn try_build(
    arguments: &[DataType],
    build: &dyn Fn(&mut ExprBuilder<'_, '_>, &[DeviceExpr]) -> Built,
) -> Result<DataType, String> {
    let mut dictionaries = Dictionaries::default();
    let mut lowering = Lowering::new(&[], &mut dictionaries);
    let mut columns = Vec::with_capacity(arguments.len());
    for (index, data_type) in arguments.iter().enumerate() {
        let repr = number_repr(data_type).ok_or_else(|| format!("{data_type} has no device form"))?;
        let node = lowering.graph.column(index as u32, Ty::new(repr).nullable(true));
        columns.push(DeviceExpr { node, data_type: data_type.clone() });
    }
    let whole: Arc<dyn PhysicalExpr> = Arc::new(Column::new("body", 0));
    let built = build(&mut ExprBuilder { lowering: &mut lowering, whole }, &columns)?;
    let wanted: Option<Repr> = number_repr(&built.data_type);
    match wanted == Some(lowering.graph.ty(built.node).repr) {
        true => Ok(built.data_type),
        false => Err(format!("{} was built from another representation", built.data_type)),
    }
}

impl Lowering<'_> {
    /// A call of a registered function.
    pub(super) fn registered(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &DeviceFunction,
        arguments: &[Arc<dyn PhysicalExpr>],
        data_type: &DataType,
        scope: &Scope,
    ) -> Lowered<NodeId> {
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let value = self.lower(argument, scope)?;
            values.push(DeviceExpr { node: value.node, data_type: value.data_type });
        }
        let given: Vec<&DataType> = values.iter().map(|value| &value.data_type).collect();
        if given != function.arguments.iter().collect::<Vec<_>>() || *data_type != function.result {
            let names = |types: &[&DataType]| types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ");
            let declared = names(&function.arguments.iter().collect::<Vec<_>>());
            let why = format!("its device body is for ({declared}), not ({})", names(&given));
            return Err(refusal(why));
        }
        let node = match &function.body {
            Body::Ptx(body) => {
                let nodes: Vec<NodeId> = values.iter().map(|value| value.node).collect();
                self.graph.call(body, &nodes)?
            }
            Body::Built(build) => {
                let mut builder = ExprBuilder { lowering: self, whole: Arc::clone(expr) };
                let built = build(&mut builder, &values).map_err(refusal)?;
                if built.data_type != *data_type {
                    return Err(refusal(format!("its device body gives {}", built.data_type)));
                }
                built.node
            }
        };
        Ok(node)
    }
}
