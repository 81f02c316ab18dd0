//! Errors occur exactly in the rows that reach the failing node.

use millpond_kernels::codegen::ir::{Arithmetic, Comparison, ErrorCode, NodeId, Overflow, Repr, Test};

use crate::expr_bench::{Bench, Bool, Cell, Int, Null};

fn divide(bench: &mut Bench, a: NodeId, b: NodeId) -> NodeId {
    bench.graph.arithmetic(Arithmetic::Divide, a, b, Overflow::Wrap).expect("integers")
}

fn failing(bench: &Bench, roots: &[NodeId]) -> Vec<bool> {
    bench.run(roots).errors.iter().map(Option::is_some).collect()
}

#[test]
fn null_rows_do_not_fail() {
    let mut bench = Bench::new();
    let a = bench.column(Repr::I32, &[Int(6), Null, Int(6), Null]);
    let b = bench.column(Repr::I32, &[Int(0), Int(0), Int(2), Null]);
    let root = divide(&mut bench, a, b);
    let outcome = bench.run(&[root]);
    assert_eq!(outcome.errors, [Some((ErrorCode::DivisionByZero, root)), None, None, None]);
    assert_eq!(outcome.values[0][1..], [Null, Int(3), Null]);
}

/// CASE WHEN b <> 0 THEN a / b ELSE 0 END
#[test]
fn only_the_branch_taken_fails() {
    let mut bench = Bench::new();
    let a = bench.column(Repr::I64, &[Int(6), Int(7), Int(8), Int(9)]);
    let b = bench.column(Repr::I64, &[Int(0), Int(2), Int(0), Null]);
    let zero = bench.graph.integer(0, Repr::I64);
    let nonzero = bench.graph.compare(Comparison::NotEqual, b, zero).expect("integers");
    let quotient = divide(&mut bench, a, b);
    let guarded = bench.graph.case(vec![(nonzero, quotient)], Some(zero)).expect("one type");
    let outcome = bench.run(&[guarded]);
    assert!(outcome.errors.iter().all(Option::is_none), "{:?}", outcome.errors);
    assert_eq!(outcome.values[0], [Int(0), Int(3), Int(0), Int(0)]);

    // With the condition negated, the rows with zero fail.
    let zero_here = bench.graph.compare(Comparison::Equal, b, zero).expect("integers");
    let wrong = bench.graph.case(vec![(zero_here, quotient)], Some(zero)).expect("one type");
    assert_eq!(failing(&bench, &[wrong]), [true, false, true, false]);
}

/// The quotient is computed once, for the CASE; a second use still reports its failures, in either order.
#[test]
fn a_shared_node_fails_wherever_it_is_reached() {
    let mut bench = Bench::new();
    let a = bench.column(Repr::I32, &[Int(6), Int(7)]);
    let b = bench.column(Repr::I32, &[Int(0), Int(2)]);
    let zero = bench.graph.integer(0, Repr::I32);
    let nonzero = bench.graph.compare(Comparison::NotEqual, b, zero).expect("integers");
    let quotient = divide(&mut bench, a, b);
    let guarded = bench.graph.case(vec![(nonzero, quotient)], Some(zero)).expect("one type");
    assert_eq!(failing(&bench, &[guarded]), [false, false]);
    assert_eq!(failing(&bench, &[guarded, quotient]), [true, false]);
    assert_eq!(failing(&bench, &[quotient, guarded]), [true, false]);
}

/// A node inside a shared node, below two different branches.
#[test]
fn a_node_below_a_shared_node_fails_under_the_second_mask_too() {
    let conditions = [Bool(true), Bool(false), Bool(false), Null];
    let others = [Bool(false), Bool(true), Bool(false), Bool(false)];
    let mut bench = Bench::new();
    let a = bench.column(Repr::I32, &[Int(1); 4]);
    let b = bench.column(Repr::I32, &[Int(0); 4]);
    let (p, q) = (bench.column(Repr::Bool, &conditions), bench.column(Repr::Bool, &others));
    let quotient = divide(&mut bench, a, b);
    let more = bench.graph.arithmetic(Arithmetic::Add, quotient, a, Overflow::Wrap).expect("integers");
    let first = bench.graph.case(vec![(p, more)], None).expect("one type");
    let second = bench.graph.case(vec![(q, more)], None).expect("one type");
    assert_eq!(failing(&bench, &[first]), [true, false, false, false]);
    assert_eq!(failing(&bench, &[second]), [false, true, false, false]);
    assert_eq!(failing(&bench, &[first, second]), [true, true, false, false]);
    // A CASE inside a CASE: both conditions must hold.
    let nested = bench.graph.case(vec![(q, first)], None).expect("one type");
    assert_eq!(failing(&bench, &[nested]), [false, false, false, false]);
    // The inner CASE was computed under a mask; without the mask it fails where p is true.
    assert_eq!(failing(&bench, &[nested, first]), [true, false, false, false]);
}

#[test]
fn later_conditions_are_reached_by_what_is_left() {
    let mut bench = Bench::new();
    let b = bench.column(Repr::I32, &[Int(0), Int(0), Int(3)]);
    let p = bench.column(Repr::Bool, &[Bool(true), Bool(false), Bool(false)]);
    let one = bench.graph.integer(1, Repr::I32);
    let quotient = divide(&mut bench, one, b);
    let condition = bench.graph.compare(Comparison::Equal, quotient, one).expect("integers");
    let root = bench.graph.case(vec![(p, one), (condition, one)], None).expect("one type");
    assert_eq!(failing(&bench, &[root]), [false, true, false]);
}

#[test]
fn coalesce_reaches_later_arguments_only_for_null() {
    let mut bench = Bench::new();
    let a = bench.column(Repr::I32, &[Int(5), Null, Null]);
    let b = bench.column(Repr::I32, &[Int(0), Int(0), Int(2)]);
    let one = bench.graph.integer(1, Repr::I32);
    let quotient = divide(&mut bench, one, b);
    let root = bench.graph.coalesce(&[a, quotient]).expect("one type");
    let outcome = bench.run(&[root]);
    assert_eq!(outcome.errors[0], None);
    assert_eq!(outcome.errors[1].map(|(code, _)| code), Some(ErrorCode::DivisionByZero));
    assert_eq!(outcome.values[0][2], Int(0));
    assert_eq!(outcome.values[0][0], Int(5));
}

/// Both sides of AND are evaluated: whether the CPU skips one depends on its batches.
#[test]
fn both_sides_of_and_are_reached() {
    let mut bench = Bench::new();
    let b = bench.column(Repr::I32, &[Int(0), Int(4)]);
    let one = bench.graph.integer(1, Repr::I32);
    let zero = bench.graph.integer(0, Repr::I32);
    let nonzero = bench.graph.compare(Comparison::NotEqual, b, zero).expect("integers");
    let quotient = divide(&mut bench, one, b);
    let small = bench.graph.compare(Comparison::Less, quotient, one).expect("integers");
    let root = bench.graph.and(nonzero, small).expect("booleans");
    assert_eq!(failing(&bench, &[root]), [true, false]);
}

/// TRY_CAST and similar: a failure gives NULL and no error.
#[test]
fn null_on_failure_never_fails() {
    let cells: [Cell; 4] = [Int(300), Int(-1), Int(7), Null];
    let mut bench = Bench::new();
    let a = bench.column(Repr::I64, &cells);
    let narrow = bench.graph.convert(a, Repr::U8, Overflow::Null).expect("integers");
    let missing = bench.graph.test(Test::IsNull, narrow).expect("any type");
    let outcome = bench.run(&[narrow, missing]);
    assert!(outcome.errors.iter().all(Option::is_none));
    assert_eq!(outcome.values[0], [Null, Null, Int(7), Null]);
    assert_eq!(outcome.values[1], [Bool(true), Bool(true), Bool(false), Bool(true)]);
}
