//! Which functions are DataFusion's own: forms on the device are theirs, and a session may have given their names to others.
//!
//!   SessionContext::register_udf(abs)      from now on `abs(x)` is that one's CPU body; DataFusion's form would be a wrong answer
//!
//! A function is known by its name and the type that implements it. Names that DataFusion does not use are nobody's else.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::LazyLock;

use datafusion::functions::all_default_functions;
use datafusion::functions_aggregate::all_default_aggregate_functions;
use datafusion::functions_nested::all_default_nested_functions;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};

use crate::expr::mended::is_mended;

type Known = HashMap<String, TypeId>;

fn scalar_type(function: &ScalarUDF) -> TypeId {
    let body: &dyn Any = function.inner().as_ref();
    body.type_id()
}

fn aggregate_type(function: &AggregateUDF) -> TypeId {
    let body: &dyn Any = function.inner().as_ref();
    body.type_id()
}

/// True unless another function has taken the name of one of DataFusion's.
pub(crate) fn is_own_scalar(function: &ScalarUDF) -> bool {
    static KNOWN: LazyLock<Known> = LazyLock::new(|| {
        all_default_functions().iter().map(|known| (known.name().to_string(), scalar_type(known))).collect()
    });
    KNOWN.get(function.name()).is_none_or(|known| *known == scalar_type(function))
}

/// The same for aggregates.
pub(crate) fn is_own_aggregate(function: &AggregateUDF) -> bool {
    static KNOWN: LazyLock<Known> = LazyLock::new(|| {
        let known = all_default_aggregate_functions();
        known.iter().map(|known| (known.name().to_string(), aggregate_type(known))).collect()
    });
    is_mended(function) || KNOWN.get(function.name()).is_none_or(|known| *known == aggregate_type(function))
}

/// True for DataFusion's functions, those of lists, structures and maps among them, and for no other.
pub(crate) fn is_datafusions_scalar(function: &ScalarUDF) -> bool {
    static KNOWN: LazyLock<Known> = LazyLock::new(|| {
        let all = all_default_functions().into_iter().chain(all_default_nested_functions());
        all.map(|known| (known.name().to_string(), scalar_type(&known))).collect()
    });
    KNOWN.get(function.name()).is_some_and(|known| *known == scalar_type(function))
}
