//! Hints from earlier runs of a plan, so that later runs need not learn them again.
//!
//!   plan ─ structure hashed ─► string columns without a dictionary · table capacity for the groups of each segment
//!        └ hashed without constants: the last hints of any plan of this shape, for a plan that never ran
//!
//! If a file has changed since, another form may be faster, but every form is correct: hints never affect a result.
//! Key      of a plan: names, columns and expressions of its nodes, and the EXPLAIN text of its scans. Two plans that
//!          share a key share hints.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr, Literal, lit};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_plan::{ExecutionPlan, displayable};

/// String columns of a program that are faster without a dictionary, and those that need one, by upload and column.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StringForm {
    pub texts: HashSet<(usize, usize)>,
    pub needed: HashSet<(usize, usize)>,
}

impl StringForm {
    /// Columns of a source that need a dictionary.
    pub fn needed_of(&self, source: usize) -> HashSet<usize> {
        self.needed.iter().filter(|(of, _)| *of == source).map(|(_, column)| *column).collect()
    }

    /// Stores which columns of a source have no dictionary, if the source has decided that.
    pub fn settle(&mut self, source: usize, texts: Option<HashSet<usize>>) {
        if let Some(texts) = texts {
            self.texts.retain(|(of, _)| *of != source);
            self.texts.extend(texts.into_iter().map(|column| (source, column)));
        }
    }
}

/// Hints for a plan.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlanLearnt {
    pub strings: StringForm,
    /// Final group capacity of each segment's table.
    pub groups: HashMap<usize, u64>,
}

/// Hints by plan structure.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    known: Mutex<HashMap<Known, PlanLearnt>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Known {
    Plan(u64),
    Shape(u64),
}

/// Hash of a plan's structure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    plan: u64,
    /// Hash without constants.
    shape: u64,
}

/// Maximum number of remembered plans; beyond it, all are forgotten.
const PLANS: usize = 1 << 10;

impl PlanKey {
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let (mut whole, mut shape) = (DefaultHasher::new(), DefaultHasher::new());
        hash(plan, &mut whole, &mut shape);
        Self { plan: whole.finish(), shape: shape.finish() }
    }
}

fn hash(plan: &Arc<dyn ExecutionPlan>, whole: &mut DefaultHasher, shape: &mut DefaultHasher) {
    plan.name().hash(whole);
    plan.name().hash(shape);
    plan.schema().hash(whole);
    plan.schema().fields().iter().for_each(|field| field.data_type().hash(shape));
    let hashed = plan.apply_expressions(&mut |expression| {
        // Expressions filled in at run time are different objects in each instance of the plan.
        let fixed = Arc::clone(expression).transform_up(|part| {
            Ok(match part.is::<DynamicFilterPhysicalExpr>() || part.is::<ScalarSubqueryExpr>() {
                true => Transformed::yes(lit(true)),
                false => Transformed::no(part),
            })
        });
        let fixed = fixed.data()?;
        fixed.hash(whole);
        // A column's name may contain the constants of its expression.
        let blank = fixed.transform_up(|part| {
            if let Some(column) = part.downcast_ref::<Column>() {
                return Ok(Transformed::yes(Arc::new(Column::new("", column.index())) as _));
            }
            let constant = part.downcast_ref::<Literal>().map(|constant| constant.value().data_type());
            // DataFusion has no default for maps.
            let blank = |data_type: DataType| match data_type.is_nested() {
                true => ScalarValue::try_from(&data_type),
                false => ScalarValue::new_default(&data_type),
            };
            Ok(match constant.map(blank) {
                Some(Ok(blank)) => Transformed::yes(lit(blank)),
                _ => Transformed::no(part),
            })
        });
        // Expressions that accept no other constant are left out of the shape.
        if let Ok(blank) = blank.data() {
            blank.hash(shape);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(hashed.is_ok(), "the closures above return no error");
    let children = plan.children();
    children.len().hash(whole);
    children.len().hash(shape);
    if children.is_empty() {
        let line = displayable(plan.as_ref()).one_line().to_string();
        line.split(", predicate=").next().hash(shape);
        line.hash(whole);
    }
    children.into_iter().for_each(|child| hash(child, whole, shape));
}

impl Learnt {
    /// Hints for a plan; if it never ran, the last hints of its shape.
    pub fn get(&self, key: PlanKey) -> PlanLearnt {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(&Known::Plan(key.plan)).or_else(|| known.get(&Known::Shape(key.shape)));
        found.cloned().unwrap_or_default()
    }

    /// Changes the hints of a plan and of its shape.
    pub fn learn(&self, key: PlanKey, change: impl Fn(&mut PlanLearnt)) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for key in [Known::Plan(key.plan), Known::Shape(key.shape)] {
            if known.len() >= PLANS && !known.contains_key(&key) {
                known.clear();
            }
            let of = known.entry(key).or_default();
            change(of);
            if of.groups.is_empty() && of.strings == StringForm::default() {
                known.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    async fn key(context: &SessionContext, sql: &str) -> PlanKey {
        PlanKey::of(&context.sql(sql).await.expect("a plan").create_physical_plan().await.expect("a plan"))
    }

    #[tokio::test]
    async fn a_plan_has_its_own_hints_or_those_of_its_shape() {
        let context = SessionContext::new();
        context
            .sql("CREATE TABLE t AS VALUES (1, 'a'), (2, 'b')")
            .await
            .expect("a plan")
            .collect()
            .await
            .expect("a table");
        let of = |low: &str, word: &str| {
            format!(
                "SELECT column1 + {low}, count(*) FROM t WHERE column1 > {low} AND column2 IN ('{word}', 'z', 'y', 'x') GROUP BY 1"
            )
        };
        let (one, other) = (key(&context, &of("1", "a")).await, key(&context, &of("77", "bcd")).await);
        assert_ne!(one.plan, other.plan);
        assert_eq!(one.shape, other.shape);
        let another = key(&context, &of("1", "a").replace("column1 >", "column1 <")).await;
        assert_ne!(one.shape, another.shape);

        let learnt = Learnt::default();
        let groups = |key| learnt.get(key).groups.get(&3).copied();
        learnt.learn(one, |known| _ = known.groups.insert(3, 500));
        assert_eq!((groups(one), groups(other), groups(another)), (Some(500), Some(500), None));
        learnt.learn(other, |known| _ = known.groups.insert(3, 70));
        assert_eq!((groups(one), groups(other)), (Some(500), Some(70)));
    }
}
