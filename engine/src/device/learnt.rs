//! What earlier runs of the same plans learnt, so that later ones need not learn it again.
//!
//!   plan ─ structure hashed ─► string columns without a dictionary · room for the groups of each segment
//!        └ the same without constants: what a plan of this shape has learnt last, for one that never ran
//!
//! A file that has changed since may be better off in another form, and is right in either: nothing here decides an answer.
//! Key      of a plan: names, columns and expressions of its nodes, and what EXPLAIN says of its scans. Two plans that share a key
//!          share hints.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr, Literal, lit};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_plan::{ExecutionPlan, displayable};

/// String columns of a program that are better off without a dictionary, and those that need one, by upload and column.
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

    /// Takes over which columns of a source have no dictionary, where the source has settled it.
    pub fn settle(&mut self, source: usize, texts: Option<HashSet<usize>>) {
        if let Some(texts) = texts {
            self.texts.retain(|(of, _)| *of != source);
            self.texts.extend(texts.into_iter().map(|column| (source, column)));
        }
    }
}

/// What is known of a plan.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlanLearnt {
    pub strings: StringForm,
    /// Groups that the tables of segments came to have room for.
    pub groups: HashMap<usize, u64>,
}

/// What is known of plans, by their structure.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    known: Mutex<HashMap<Known, PlanLearnt>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Known {
    Plan(u64),
    Shape(u64),
}

/// The structure of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    plan: u64,
    /// Without its constants.
    shape: u64,
}

/// Plans that are remembered; when there are more, all are forgotten.
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
        // What is filled in while a plan runs is another object each time the plan is made.
        let fixed = Arc::clone(expression).transform_up(|part| {
            Ok(match part.is::<DynamicFilterPhysicalExpr>() || part.is::<ScalarSubqueryExpr>() {
                true => Transformed::yes(lit(true)),
                false => Transformed::no(part),
            })
        });
        let fixed = fixed.data()?;
        fixed.hash(whole);
        // The name of a column may tell the constants that it is made of.
        let blank = fixed.transform_up(|part| {
            if let Some(column) = part.downcast_ref::<Column>() {
                return Ok(Transformed::yes(Arc::new(Column::new("", column.index())) as _));
            }
            let constant = part.downcast_ref::<Literal>().map(|constant| constant.value().data_type());
            // DataFusion has no default of maps.
            let blank = |data_type: DataType| match data_type.is_nested() {
                true => ScalarValue::try_from(&data_type),
                false => ScalarValue::new_default(&data_type),
            };
            Ok(match constant.map(blank) {
                Some(Ok(blank)) => Transformed::yes(lit(blank)),
                _ => Transformed::no(part),
            })
        });
        // Expressions that take no other constant are part of no shape.
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
    /// What is known of a plan; of one that never ran, what one of its shape has learnt last.
    pub fn get(&self, key: PlanKey) -> PlanLearnt {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(&Known::Plan(key.plan)).or_else(|| known.get(&Known::Shape(key.shape)));
        found.cloned().unwrap_or_default()
    }

    /// Changes what is known of a plan, and of its shape.
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
