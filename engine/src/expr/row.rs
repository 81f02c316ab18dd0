//! A row of a table of functions: SQL name, number of arguments, form, and the types beyond the common ones.
//!
//!   Row::numbers("power", 2, |graph, of| graph.power(of[0], of[1]))        nodes of the result's own type
//!   Row::new("round", (1, 2), Form::Plain(|lowering, call| …))             any other lowering of a call
//!
//! Tables are in text.rs, math.rs, time.rs, list.rs and function.rs, which finds a row by name.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{Graph, GraphError, NodeId, TextFunction};

use crate::expr::{Lowered, Lowering, Scope, Value};

/// A function of the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub name: &'static str,
    /// Least and greatest number of arguments.
    pub arguments: (usize, usize),
    pub form: Form,
    /// Floats of 16 bits have the results that they have in 32: the function chooses among them, or inspects bits.
    pub halves: bool,
    /// Decimals of 256 bits are taken, too.
    pub wide: bool,
    /// Form over nodes of one type, and their number: for bodies that a session builds.
    pub build: Option<(usize, Build)>,
}

/// How a function is lowered.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// A function of texts by a row of the kernels' table.
    Texts(TextFunction),
    /// Another function of texts.
    Text(Lower),
    /// A function that reads lists.
    List(Lower),
    /// Numbers of the result's own type, which are nodes of the graph.
    Numbers(Build),
    /// Any other function of plain values.
    Plain(Lower),
}

/// Lowers a call; `None` if these arguments have no form.
pub(super) type Lower = fn(&mut Lowering<'_>, &Call<'_>) -> Lowered<Option<Value>>;
/// Adds a function of nodes to a graph.
pub(super) type Build = fn(&mut Graph, &[NodeId]) -> Result<NodeId, GraphError>;

/// A call of a function.
pub(super) struct Call<'c> {
    pub expr: &'c Arc<dyn PhysicalExpr>,
    pub function: &'c ScalarFunctionExpr,
    pub arguments: &'c [Arc<dyn PhysicalExpr>],
    /// Type of the result.
    pub data_type: &'c DataType,
    pub scope: &'c Scope,
}

impl Call<'_> {
    pub fn name(&self) -> &str {
        self.function.fun().name()
    }

    /// A value without a dictionary, of the call's type.
    pub fn plain(&self, node: NodeId) -> Lowered<Option<Value>> {
        Ok(Some(Value { node, data_type: self.data_type.clone(), dictionary: None }))
    }
}

impl Row {
    pub const fn new(name: &'static str, arguments: (usize, usize), form: Form) -> Row {
        Row { name, arguments, form, halves: false, wide: false, build: None }
    }

    /// A function of `count` numbers.
    pub const fn numbers(name: &'static str, count: usize, build: Build) -> Row {
        Row::new(name, (count, count), Form::Numbers(build)).built(count, build)
    }

    pub const fn built(self, count: usize, build: Build) -> Row {
        Row { build: Some((count, build)), ..self }
    }

    pub const fn halves(self) -> Row {
        Row { halves: true, ..self }
    }

    pub const fn wide(self) -> Row {
        Row { wide: true, ..self }
    }
}

/// Any number of arguments.
pub(super) const ANY: usize = usize::MAX;
