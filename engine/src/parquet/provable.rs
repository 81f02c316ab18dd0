//! Conclusions about floats from file bounds and bloom filters. Bounds omit NaN, although a NaN sorts beyond all
//! numbers on the side of its sign. A bound of zero may have either sign, depending on the writer, and a bloom filter
//! contains only one zero although `=` matches both.
//!
//!   f > 100 AND k = 3                     pruned only by k = 3: NaN is greater than 100, and bounds do not show NaN
//!   f = 1.5, f IN (1, 2), f IS NULL       pruned as written: NaN never passes, and no zero is compared
//!   f BETWEEN 1 AND 2                     pruned as written: a NaN that passes one side fails the other
//!
//! Rows      are filtered by the condition itself: [`Guarded`] evaluates to that condition, but its snapshot, from
//!           which pruning predicates are built, is weaker.
//! Fewer     rows are pruned than possible: negations, casts to other types and comparisons of two columns prune
//!           nothing if they involve a float.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{
    BinaryExpr, CastExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr, IsNullExpr, Literal,
    TryCastExpr,
};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};

/// True for floats, and for types that contain floats.
pub(crate) fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => true,
        DataType::Dictionary(_, of) => has_floats(of),
        DataType::RunEndEncoded(_, of) => has_floats(of.data_type()),
        DataType::List(of)
        | DataType::LargeList(of)
        | DataType::ListView(of)
        | DataType::LargeListView(of)
        | DataType::FixedSizeList(of, _)
        | DataType::Map(of, _) => has_floats(of.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::Union(fields, _) => fields.iter().any(|(_, field)| has_floats(field.data_type())),
        _ => false,
    }
}

/// A condition over floats whose snapshot contains only what NaN and zeros cannot change.
#[derive(Debug, Clone, Eq)]
pub(crate) struct Guarded(Arc<dyn PhysicalExpr>);

// The derived implementations would move out of the trait object (rust-lang/rust#78808).
impl PartialEq for Guarded {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq(&other.0)
    }
}

impl Hash for Guarded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl PhysicalExpr for Guarded {
    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.0.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.0.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.0]
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(match children.pop() {
            Some(inner) => Arc::new(Guarded(inner)),
            None => self,
        })
    }

    fn snapshot(&self) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        Ok(Some(provable(&self.0)))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}

/// Guards the float conditions of `predicate`; those of one column are grouped, since one may exclude the NaN that
/// another admits.
pub(crate) fn guarded(predicate: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let predicate = unguarded(predicate)?;
    let is_float =
        |column: &Column| schema.fields().get(column.index()).is_none_or(|field| has_floats(field.data_type()));
    let mut parts: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
    let mut floats = BTreeMap::<BTreeSet<usize>, Vec<_>>::new();
    for part in split_conjunction(&predicate) {
        let columns = collect_columns(part);
        if !columns.iter().any(is_float) {
            parts.push(Arc::clone(part));
        } else if part.exists(|part| Ok(part.is::<DynamicFilterPhysicalExpr>()))? {
            parts.push(Arc::new(Guarded(Arc::clone(part))));
        } else {
            let columns = columns.iter().map(Column::index).collect();
            floats.entry(columns).or_default().push(Arc::clone(part));
        }
    }
    for together in floats.into_values() {
        parts.push(Arc::new(Guarded(conjunction(together))));
    }
    Ok(conjunction(parts))
}

/// Removes the guards from a condition.
pub(crate) fn unguarded(predicate: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    let bare = |expr: Arc<dyn PhysicalExpr>| {
        Ok(match expr.downcast_ref::<Guarded>() {
            Some(guarded) => Transformed::yes(Arc::clone(&guarded.0)),
            None => Transformed::no(expr),
        })
    };
    Arc::clone(predicate).transform_up(bare).data()
}

/// True for a predicate that contains a guard.
pub(crate) fn is_guarded(predicate: &Arc<dyn PhysicalExpr>) -> bool {
    predicate.exists(|part| Ok(part.is::<Guarded>())).unwrap_or(true)
}

/// Implication of a column's comparison for NaN.
enum Says {
    /// Nothing that bounds could prove.
    Nothing,
    /// It does not involve floats, or only NULLs.
    All,
    /// NaNs below all numbers fail; for `Below`, NaNs above them, and for `Equal`, all NaNs. Bounds are valid only if
    /// `known`, that is, no zero is compared.
    Above {
        column: Column,
        known: bool,
    },
    Below {
        column: Column,
        known: bool,
    },
    Equal {
        column: Column,
        known: bool,
    },
}

/// A weaker condition implied by `expr`, for which bounds without NaN and with either zero are valid.
fn provable(expr: &Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    let parts = split_conjunction(expr);
    let said: Vec<Says> = parts.iter().map(|part| says(part)).collect();
    // Columns whose NaNs above all numbers, or below them, are excluded.
    let none_above = |of: &Column| {
        said.iter().any(|says| matches!(says, Says::Below { column, .. } | Says::Equal { column, .. } if column == of))
    };
    let none_below = |of: &Column| {
        said.iter().any(|says| matches!(says, Says::Above { column, .. } | Says::Equal { column, .. } if column == of))
    };
    let kept = parts.into_iter().zip(&said).filter_map(|(part, says)| {
        let keeps = match says {
            Says::Nothing => return either(part),
            Says::All => true,
            Says::Above { column, known } => *known && none_above(column),
            Says::Below { column, known } => *known && none_below(column),
            Says::Equal { known, .. } => *known,
        };
        keeps.then(|| Arc::clone(part))
    });
    conjunction(kept)
}

/// Provable part of `a OR b`; `None` if there is none.
fn either(expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
    let or = expr.downcast_ref::<BinaryExpr>().filter(|binary| *binary.op() == Operator::Or)?;
    let (left, right) = (provable(or.left()), provable(or.right()));
    let always = |expr: &Arc<dyn PhysicalExpr>| {
        expr.downcast_ref::<Literal>().is_some_and(|literal| literal.value() == &ScalarValue::Boolean(Some(true)))
    };
    if always(&left) || always(&right) {
        return None;
    }
    Some(Arc::new(BinaryExpr::new(left, Operator::Or, right)))
}

fn says(expr: &Arc<dyn PhysicalExpr>) -> Says {
    if expr.is::<Literal>() {
        return Says::All;
    }
    let of_null = expr.downcast_ref::<IsNullExpr>().map(IsNullExpr::arg);
    let of_null = of_null.or_else(|| expr.downcast_ref::<IsNotNullExpr>().map(IsNotNullExpr::arg));
    if let Some(of) = of_null {
        return if of.is::<Column>() { Says::All } else { Says::Nothing };
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>() {
        let constants = list.list().iter().map(constant).collect::<Option<Vec<_>>>();
        return match (column(list.expr()), constants) {
            (Some((_, true)), Some(constants)) if constants.iter().all(|one| *one == Constant::Other) => Says::All,
            (Some((column, _)), Some(constants))
                if !list.negated() && constants.iter().all(|one| matches!(one, Constant::Zero | Constant::Number)) =>
            {
                Says::Equal { column, known: constants.iter().all(|one| *one == Constant::Number) }
            }
            _ => Says::Nothing,
        };
    }
    let Some(binary) = expr.downcast_ref::<BinaryExpr>() else { return Says::Nothing };
    let sides = match (column(binary.left()), constant(binary.right())) {
        (Some(column), Some(constant)) => Some((column, *binary.op(), constant)),
        _ => column(binary.right()).zip(constant(binary.left())).zip(binary.op().swap()).map(|((a, b), op)| (a, op, b)),
    };
    let Some(((column, plain), op, constant)) = sides else { return Says::Nothing };
    let known = match constant {
        Constant::Other if plain => return Says::All,
        Constant::Other | Constant::Nan => return Says::Nothing,
        Constant::Zero => false,
        Constant::Number => true,
    };
    match op {
        Operator::Gt | Operator::GtEq => Says::Above { column, known },
        Operator::Lt | Operator::LtEq => Says::Below { column, known },
        Operator::Eq => Says::Equal { column, known },
        _ => Says::Nothing,
    }
}

/// A column, possibly cast to another float type; true if there is no cast.
fn column(expr: &Arc<dyn PhysicalExpr>) -> Option<(Column, bool)> {
    if let Some(column) = expr.downcast_ref::<Column>() {
        return Some((column.clone(), true));
    }
    let cast = expr.downcast_ref::<CastExpr>().map(|cast| (cast.expr(), cast.cast_type()));
    let (of, to) = cast.or_else(|| expr.downcast_ref::<TryCastExpr>().map(|cast| (cast.expr(), cast.cast_type())))?;
    let is_float = matches!(to, DataType::Float16 | DataType::Float32 | DataType::Float64);
    is_float.then(|| column(of)).flatten().map(|(column, _)| (column, false))
}

#[derive(PartialEq, Eq)]
enum Constant {
    /// NULL or not a float; a column that is compared with it directly is not a float either.
    Other,
    Nan,
    Zero,
    Number,
}

fn constant(expr: &Arc<dyn PhysicalExpr>) -> Option<Constant> {
    let mut value = expr.downcast_ref::<Literal>()?.value();
    while let ScalarValue::Dictionary(_, of) = value {
        value = of;
    }
    let float = match value {
        ScalarValue::Float16(Some(float)) => f64::from(*float),
        ScalarValue::Float32(Some(float)) => f64::from(*float),
        ScalarValue::Float64(Some(float)) => *float,
        _ => return Some(Constant::Other),
    };
    Some(match float {
        nan if nan.is_nan() => Constant::Nan,
        0.0 => Constant::Zero,
        _ => Constant::Number,
    })
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::Field;
    use datafusion::physical_expr::expressions::{binary, in_list, is_null, lit, not};
    use datafusion::physical_expr_common::physical_expr::snapshot_physical_expr;

    use super::*;

    fn schema() -> Schema {
        let field = |name, data_type| Field::new(name, data_type, true);
        Schema::new(vec![
            field("f", DataType::Float64),
            field("g", DataType::Float32),
            field("k", DataType::Int64),
            field("h", DataType::Float64),
        ])
    }

    fn column(name: &str) -> Arc<dyn PhysicalExpr> {
        datafusion::physical_expr::expressions::col(name, &schema()).unwrap()
    }

    fn test(a: Arc<dyn PhysicalExpr>, op: Operator, b: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
        binary(a, op, b, &schema()).unwrap()
    }

    fn is(name: &str, op: Operator, than: f64) -> Arc<dyn PhysicalExpr> {
        test(column(name), op, lit(than))
    }

    fn and(of: impl IntoIterator<Item = Arc<dyn PhysicalExpr>>) -> Arc<dyn PhysicalExpr> {
        conjunction(of)
    }

    /// The snapshot that pruning is based on.
    fn simplified(of: Arc<dyn PhysicalExpr>) -> String {
        snapshot_physical_expr(guarded(&of, &schema()).unwrap()).unwrap().to_string()
    }

    #[test]
    fn bounds_only_test_what_no_nan_and_no_zero_can_change() {
        use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq, Or};
        let k = || test(column("k"), Eq, lit(3i64));
        for (of, expected) in [
            (is("f", Gt, 100.0), "true"),
            (is("f", LtEq, 100.0), "true"),
            (test(lit(100.0), Lt, column("f")), "true"),
            (is("f", NotEq, 1.0), "true"),
            (not(is("f", Lt, 1.0)).unwrap(), "true"),
            (is("f", Eq, 1.5), "f@0 = 1.5"),
            (test(lit(1.5), Eq, column("f")), "1.5 = f@0"),
            (is("f", Eq, 0.0), "true"),
            (is("f", Eq, -0.0), "true"),
            (is("f", Eq, f64::NAN), "true"),
            (is("f", Gt, f64::NAN), "true"),
            (test(column("f"), Gt, column("h")), "true"),
            (is_null(column("f")).unwrap(), "f@0 IS NULL"),
            (k(), "k@2 = 3"),
            (and([is("f", Gt, 100.0), k()]), "k@2 = 3 AND true"),
            (and([is("f", GtEq, 1.0), k(), is("f", LtEq, 2.0)]), "k@2 = 3 AND f@0 >= 1 AND f@0 <= 2"),
            (and([is("f", GtEq, 1.0), is("h", LtEq, 2.0)]), "true AND true"),
            // A comparison with zero excludes NaN, but is not checked against bounds.
            (and([is("f", Gt, 0.0), is("f", Lt, 2.0)]), "f@0 < 2"),
            (and([is("f", Gt, 1.0), is("f", NotEq, 2.0)]), "true"),
            (test(is("f", Eq, 1.0), Or, is("f", Eq, 2.0)), "f@0 = 1 OR f@0 = 2"),
            (test(is("f", Eq, 1.0), Or, is("f", Gt, 2.0)), "true"),
            (test(is("f", Eq, 1.0), Or, k()), "f@0 = 1 OR k@2 = 3"),
        ] {
            assert_eq!(simplified(Arc::clone(&of)), expected, "{of}");
        }
    }

    #[test]
    fn lists_and_casts() {
        let list = |of: &[f64], negated| {
            let of = of.iter().map(|one| lit(*one)).collect();
            in_list(column("f"), of, &negated, &schema()).unwrap()
        };
        assert_eq!(simplified(list(&[1.0, 2.0], false)), "f@0 IN (SET) ([1, 2])");
        assert_eq!(simplified(list(&[1.0, 0.0], false)), "true");
        assert_eq!(simplified(list(&[1.0, f64::NAN], false)), "true");
        assert_eq!(simplified(list(&[1.0, 2.0], true)), "true");
        let cast = |to| Arc::new(CastExpr::new(column("g"), to, None)) as Arc<dyn PhysicalExpr>;
        assert_eq!(simplified(test(cast(DataType::Float64), Operator::Eq, lit(1.5))), "CAST(g@1 AS Float64) = 1.5");
        assert_eq!(simplified(test(cast(DataType::Float64), Operator::Gt, lit(1.5))), "true");
        assert_eq!(simplified(test(cast(DataType::Int64), Operator::Eq, lit(1i64))), "true");
        let whole = Arc::new(CastExpr::new(column("k"), DataType::Float64, None)) as Arc<dyn PhysicalExpr>;
        assert_eq!(simplified(test(whole, Operator::Gt, lit(1.5))), "CAST(k@2 AS Float64) > 1.5");
    }

    #[test]
    fn rows_pass_by_the_condition_itself() {
        let of = is("f", Operator::Gt, 100.0);
        let guarded = guarded(&of, &schema()).unwrap();
        assert!(is_guarded(&guarded) && !is_guarded(&of));
        assert_eq!(guarded.to_string(), of.to_string());
        assert_eq!(&unguarded(&guarded).unwrap(), &of);
    }

    /// Conditions that an operator adds at run time are guarded like those of the query.
    #[test]
    fn filters_that_are_filled_in_are_guarded_too() {
        let dynamic = Arc::new(DynamicFilterPhysicalExpr::new(vec![column("f")], lit(true)));
        let of: Arc<dyn PhysicalExpr> = Arc::clone(&dynamic) as _;
        let guarded = guarded(&of, &schema()).unwrap();
        dynamic.update(is("f", Operator::Gt, 7.0)).unwrap();
        assert_eq!(snapshot_physical_expr(Arc::clone(&guarded)).unwrap().to_string(), "true");
        dynamic.update(is("f", Operator::Eq, 7.0)).unwrap();
        assert_eq!(snapshot_physical_expr(guarded).unwrap().to_string(), "f@0 = 7");
    }
}
