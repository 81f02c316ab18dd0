//! Recognition of DataFusion's own functions: only these have device forms, and a session may reuse their names.
//!
//!   SessionContext::register_udf(abs)      `abs(x)` now runs that CPU body; DataFusion's form would be wrong
//!
//! A function is identified by its name and its implementing type. A name that DataFusion does not use cannot be
//! ambiguous.

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

/// True unless another function has taken the name of a DataFusion function.
pub(crate) fn is_own_scalar(function: &ScalarUDF) -> bool {
    static KNOWN: LazyLock<Known> = LazyLock::new(|| {
        all_default_functions().iter().map(|known| (known.name().to_string(), scalar_type(known))).collect()
    });
    KNOWN.get(function.name()).is_none_or(|known| *known == scalar_type(function))
}

/// Like [`is_own_scalar`], for aggregates.
pub(crate) fn is_own_aggregate(function: &AggregateUDF) -> bool {
    static KNOWN: LazyLock<Known> = LazyLock::new(|| {
        let known = all_default_aggregate_functions();
        known.iter().map(|known| (known.name().to_string(), aggregate_type(known))).collect()
    });
    is_mended(function) || KNOWN.get(function.name()).is_none_or(|known| *known == aggregate_type(function))
}

/// True only for DataFusion's functions, including those of lists, structures and maps.
pub(crate) fn is_datafusions_scalar(function: &ScalarUDF) -> bool {
    static KNOWN: LazyLock<Known> = LazyLock::new(|| {
        let all = all_default_functions().into_iter().chain(all_default_nested_functions());
        all.map(|known| (known.name().to_string(), scalar_type(&known))).collect()
    });
    KNOWN.get(function.name()).is_some_and(|known| *known == scalar_type(function))
}
