//! Two statements that differ in constants alone, run alternately on one session: state kept from one must not
//! change the answer of the other.
//!
//! ```text
//!   A: … k < 3      DataFusion: a        in turn   A B A B        each run against the answer of its own text
//!   B: … k < 17     DataFusion: b        in rows   A A B B A
//!                                        doors     A B, then A B by DataFusion's own door
//!                                        anew      A B, then A B in other spaces: by the plan that both have without
//!                                                  their constants
//! ```
//!
//! Kept     plans by text, plans by optimised logical plan (DataFusion's own door), columns, and what earlier runs have
//!          found.
//! Verdict  of the first run that differs; otherwise of the first run where one side alone failed; otherwise of A.
//!          So a pair fails on both sides if A does.

use millpond_queries::answer::compare;

use super::lab::{Kind, Ran, Verdict, compare_runs};
use super::query::Query;
use crate::runner::is_ordered;

/// API through which a statement reaches a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// The engine's own: plans are kept by text.
    Execute,
    /// A statement with a new text: it has the plan of statements that differ in constants alone.
    Anew,
    /// DataFusion's: it parses and optimises, and plans are kept by the resulting logical plan.
    Sql,
}

/// The order of the runs of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    InTurn,
    InRows,
    Doors,
    Anew,
}

impl Order {
    /// Which of the two statements runs (0 or 1), and by which door.
    pub fn runs(self) -> &'static [(usize, Door)] {
        use Door::{Anew, Execute, Sql};
        match self {
            Order::InTurn => &[(0, Execute), (1, Execute), (0, Execute), (1, Execute)],
            Order::InRows => &[(0, Execute), (0, Execute), (1, Execute), (1, Execute), (0, Execute)],
            Order::Doors => &[(0, Execute), (1, Execute), (0, Sql), (1, Sql), (0, Sql)],
            Order::Anew => &[(0, Execute), (1, Execute), (0, Anew), (1, Anew)],
        }
    }

    /// Name in a difference.
    fn text(self) -> String {
        let one = |(statement, door): &(usize, Door)| {
            let door = match door {
                Door::Execute => "",
                Door::Anew => " anew",
                Door::Sql => " by sql()",
            };
            format!("{}{door}", ["A", "B"][*statement])
        };
        self.runs().iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// Result of a pair.
#[derive(Debug)]
pub struct Outcome {
    /// How the pair ended.
    pub verdict: Verdict,
    /// Both statements have answers, and these are not equal: one in the other's place would be seen.
    pub apart: bool,
}

/// Severity of a verdict: the greatest rank of a pair hides the smaller ones.
fn rank(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Same { .. } | Verdict::BothFail { .. } => 0,
        Verdict::DeviceAnswersAlone { .. } => 1,
        Verdict::DeviceFailsAlone { .. } => 2,
        Verdict::Differs { .. } => 3,
    }
}

/// Judges a pair by the `actual` runs of `order`; it may have ended early.
pub fn judge(queries: [&Query; 2], expected: &[Ran; 2], order: Order, actual: Vec<Ran>) -> Outcome {
    let texts = queries.map(Query::sql);
    let apart = match expected {
        [Ran::Answer(one, ..), Ran::Answer(other, ..)] => compare(one, other, is_ordered(&texts[0])).is_err(),
        _ => false,
    };
    let mut first = None;
    for (number, ((statement, _), actual)) in order.runs().iter().zip(actual).enumerate() {
        let verdict = compare_runs(queries[*statement], &texts[*statement], &expected[*statement], actual);
        match verdict {
            Verdict::Differs { kind, message } => {
                let message = format!(
                    "run {} of {} ({}): {message}",
                    number + 1,
                    order.text(),
                    if *statement == 0 { "the query" } else { "its twin" },
                );
                return Outcome { verdict: Verdict::Differs { kind, message }, apart };
            }
            verdict if first.as_ref().is_none_or(|first| rank(first) < rank(&verdict)) => first = Some(verdict),
            _ => (),
        }
    }
    let nothing = || Verdict::Differs { kind: Kind::Hang, message: "nothing ran".to_string() };
    Outcome { verdict: first.unwrap_or_else(nothing), apart }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::QueryReport;
    use millpond::datafusion::arrow::array::{ArrayRef, Int64Array};
    use millpond::datafusion::arrow::record_batch::RecordBatch;
    use millpond_queries::answer::Answer;

    use super::*;
    use crate::fuzz::lab::Operators;

    const ORDERS: [Order; 4] = [Order::InTurn, Order::InRows, Order::Doors, Order::Anew];

    fn answered(value: i64) -> Ran {
        let column = Arc::new(Int64Array::from(vec![value])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("o0", column)]).expect("one column");
        let answer = Answer::try_new(&batch.schema(), &[batch]).expect("numbers have a text");
        Ran::Answer(answer, Box::default() as Box<QueryReport>, Operators::new())
    }

    /// A pair on a device whose results are those of `run`.
    fn judged(expected: [Ran; 2], order: Order, mut run: impl FnMut(usize, Door) -> Ran) -> Outcome {
        let query = Query::random(1, 1);
        let actual = order.runs().iter().map(|(statement, door)| run(*statement, *door)).collect();
        judge([&query, &query.twin()], &expected, order, actual)
    }

    #[test]
    fn each_order_runs_both_and_comes_back_to_the_first() {
        for order in ORDERS {
            let statements: Vec<usize> = order.runs().iter().map(|(statement, _)| *statement).collect();
            let back = statements.iter().skip_while(|statement| **statement == 0).any(|statement| *statement == 0);
            assert!(back, "{statements:?}");
        }
        assert_eq!(Order::Doors.text(), "A, B, A by sql(), B by sql(), A by sql()");
    }

    #[test]
    fn each_statement_has_its_own_answer() {
        for order in ORDERS {
            let outcome = judged([answered(1), answered(2)], order, |of, _| answered(of as i64 + 1));
            assert!(outcome.apart && matches!(outcome.verdict, Verdict::Same { .. }), "{outcome:?}");
        }
        let outcome = judged([answered(1), answered(1)], Order::InTurn, |_, _| answered(1));
        assert!(!outcome.apart);
    }

    /// A device that wrongly keeps state: it returns the first statement's answer, then that of the previous statement.
    #[test]
    fn an_answer_of_the_other_statement_is_caught() {
        for order in ORDERS {
            let kept = judged([answered(1), answered(2)], order, |_, _| answered(1));
            let Verdict::Differs { kind: Kind::Answer, message } = kept.verdict else { panic!("{kept:?}") };
            assert!(message.contains("its twin"), "{message}");
            let mut last = 0;
            let late = |of, _| answered(std::mem::replace(&mut last, of) as i64 + 1);
            let late = judged([answered(1), answered(2)], order, late);
            assert!(matches!(late.verdict, Verdict::Differs { kind: Kind::Answer, .. }), "{late:?}");
        }
    }

    /// By one door alone: a plan that was kept for another logical plan.
    #[test]
    fn a_plan_that_one_door_keeps_falsely_is_caught() {
        let run = |of, door| answered(if door == Door::Sql { 1 } else { of as i64 + 1 });
        let outcome = judged([answered(1), answered(2)], Order::Doors, run);
        let Verdict::Differs { message, .. } = outcome.verdict else { panic!("{outcome:?}") };
        assert!(message.starts_with("run 4 of A, B, A by sql()"), "{message}");
    }

    #[test]
    fn errors_are_each_statements_own() {
        let fails = || Ran::Error("Divide by zero error".into());
        let both = judged([fails(), fails()], Order::InTurn, |_, _| fails());
        assert!(!both.apart && matches!(both.verdict, Verdict::BothFail { .. }), "{both:?}");
        // The twin alone fails, on both sides.
        let run = |of, _| if of == 1 { fails() } else { answered(1) };
        let one = judged([answered(1), fails()], Order::InRows, run);
        assert!(matches!(one.verdict, Verdict::Same { .. }), "{one:?}");
        // Or on the device's side alone.
        let alone = judged([answered(1), answered(2)], Order::InRows, run);
        assert!(rank(&alone.verdict) >= 2, "{alone:?}");
    }
}
