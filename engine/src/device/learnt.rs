//! What earlier runs of the same plans learnt, so that later ones need not learn it again.
//!
//!   plan ─ structure hashed ─► string columns without a dictionary · room for the groups of each segment
//!
//! A file that has changed since may be better off in another form, and is right in either: nothing here decides an answer.
//! Key      of a plan: names, columns and expressions of its nodes, and what EXPLAIN says of its scans. Two plans that share a key
//!          share hints.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, lit};
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
    known: Mutex<HashMap<PlanKey, PlanLearnt>>,
}

/// The structure of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey(u64);

/// Plans that are remembered; when there are more, all are forgotten.
const PLANS: usize = 1 << 10;

impl PlanKey {
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let mut hasher = DefaultHasher::new();
        hash(plan, &mut hasher);
        Self(hasher.finish())
    }
}

fn hash(plan: &Arc<dyn ExecutionPlan>, hasher: &mut DefaultHasher) {
    plan.name().hash(hasher);
    plan.schema().hash(hasher);
    let hashed = plan.apply_expressions(&mut |expression| {
        // What is filled in while a plan runs is another object each time the plan is made.
        let fixed = Arc::clone(expression).transform_up(|part| {
            Ok(match part.is::<DynamicFilterPhysicalExpr>() || part.is::<ScalarSubqueryExpr>() {
                true => Transformed::yes(lit(true)),
                false => Transformed::no(part),
            })
        });
        fixed.data()?.hash(hasher);
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(hashed.is_ok(), "the closures above return no error");
    let children = plan.children();
    children.len().hash(hasher);
    if children.is_empty() {
        displayable(plan.as_ref()).one_line().to_string().hash(hasher);
    }
    children.into_iter().for_each(|child| hash(child, hasher));
}

impl Learnt {
    pub fn get(&self, key: PlanKey) -> PlanLearnt {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned().unwrap_or_default()
    }

    /// Changes what is known of a plan.
    pub fn learn(&self, key: PlanKey, change: impl FnOnce(&mut PlanLearnt)) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
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
