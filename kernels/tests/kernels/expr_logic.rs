//! Three-valued logic, comparisons and choice, against `Option<bool>`.

use millpond_kernels::codegen::ir::{Arithmetic, Comparison, NodeId, Overflow, Places, Repr, Test, Ty};

use crate::expr_bench::{Bench, Bool, Cell, F64, Int, Null, assert_rows, pairs};
use crate::expr_integer::edges;

const TRUTHS: [Cell; 3] = [Bool(true), Bool(false), Null];

fn truth(cell: Cell) -> Option<bool> {
    match cell {
        Bool(value) => Some(value),
        _ => None,
    }
}

fn and(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn or(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    and(a.map(|a| !a), b.map(|b| !b)).map(|c| !c)
}

/// Runs `make` over all truth values of two columns; either, both or none is nullable.
fn over_truths(
    make: impl Fn(&mut Bench, NodeId, NodeId) -> NodeId,
    meaning: impl Fn(Option<bool>, Option<bool>) -> Cell,
) {
    for left in [&TRUTHS[..], &TRUTHS[..2]] {
        for right in [&TRUTHS[..], &TRUTHS[..2]] {
            let (left, right) = pairs(left, right);
            let mut bench = Bench::new();
            let (a, b) = (bench.column(Repr::Bool, &left), bench.column(Repr::Bool, &right));
            let root = make(&mut bench, a, b);
            let got = bench.values(root);
            assert_rows("logic", &[&left, &right], &got, |row| meaning(truth(row[0]), truth(row[1])));
        }
    }
}

#[test]
fn kleene_logic() {
    over_truths(|bench, a, b| bench.graph.and(a, b).expect("booleans"), |a, b| and(a, b).into());
    over_truths(|bench, a, b| bench.graph.or(a, b).expect("booleans"), |a, b| or(a, b).into());
    over_truths(|bench, a, _| bench.graph.not(a).expect("booleans"), |a, _| a.map(|a| !a).into());
}

#[test]
fn nested_logic_keeps_unknown() {
    // NOT (a AND b) OR (a AND NOT b)
    over_truths(
        |bench, a, b| {
            let g = &mut bench.graph;
            let both = g.and(a, b).expect("booleans");
            let not_both = g.not(both).expect("booleans");
            let not_b = g.not(b).expect("booleans");
            let only_a = g.and(a, not_b).expect("booleans");
            g.or(not_both, only_a).expect("booleans")
        },
        |a, b| or(and(a, b).map(|x| !x), and(a, b.map(|b| !b))).into(),
    );
}

#[test]
fn truth_tests_are_never_null() {
    type Meaning = fn(Option<bool>) -> bool;
    let tests: [(Test, Meaning); 6] = [
        (Test::IsNull, |a| a.is_none()),
        (Test::IsNotNull, |a| a.is_some()),
        (Test::IsTrue, |a| a == Some(true)),
        (Test::IsNotTrue, |a| a != Some(true)),
        (Test::IsFalse, |a| a == Some(false)),
        (Test::IsNotFalse, |a| a != Some(false)),
    ];
    for (test, meaning) in tests {
        over_truths(|bench, a, _| bench.graph.test(test, a).expect("a boolean"), |a, _| Bool(meaning(a)));
        // A test of a conjunction may examine the operands separately.
        over_truths(
            |bench, a, b| {
                let both = bench.graph.and(a, b).expect("booleans");
                bench.graph.test(test, both).expect("a boolean")
            },
            |a, b| Bool(meaning(and(a, b))),
        );
    }
}

#[test]
fn booleans_compare_with_false_below_true() {
    for (op, meaning) in relations::<bool>() {
        over_truths(
            |bench, a, b| bench.graph.compare(op, a, b).expect("booleans"),
            |a, b| match (a, b) {
                (Some(a), Some(b)) => Bool(meaning(&a, &b)),
                _ => Null,
            },
        );
    }
}

type Relation<T> = fn(&T, &T) -> bool;

fn relations<T: Ord>() -> [(Comparison, Relation<T>); 6] {
    [
        (Comparison::Equal, |a, b| a == b),
        (Comparison::NotEqual, |a, b| a != b),
        (Comparison::Less, |a, b| a < b),
        (Comparison::LessEqual, |a, b| a <= b),
        (Comparison::Greater, |a, b| a > b),
        (Comparison::GreaterEqual, |a, b| a >= b),
    ]
}

#[test]
fn integers_compare_at_every_width() {
    for repr in [Repr::I8, Repr::I32, Repr::U32, Repr::I64, Repr::U64, Repr::I128] {
        let (left, right) = pairs(&edges(repr), &edges(repr));
        let mut bench = Bench::new();
        let (a, b) = (bench.column(repr, &left), bench.column(repr, &right));
        for (op, meaning) in relations::<i128>() {
            let root = bench.graph.compare(op, a, b).expect("integers");
            let got = bench.values(root);
            assert_rows(&format!("{repr:?} {op:?}"), &[&left, &right], &got, |row| match row {
                [Int(a), Int(b)] => Bool(meaning(a, b)),
                _ => Null,
            });
        }
    }
}

#[test]
fn narrow_and_wide_integers_compare() {
    let narrow: Vec<Cell> = [0, 5, 1_000].into_iter().map(Int).collect();
    for (repr, wide) in [
        (Repr::U64, u64::MAX.into()),
        (Repr::U32, u32::MAX.into()),
        (Repr::I128, i128::MIN),
        (Repr::I64, i64::MIN.into()),
    ] {
        let (left, right) = pairs(&[Int(wide), Int(5), Int(0)], &narrow);
        let mut bench = Bench::new();
        let (a, b) = (bench.column(repr, &left), bench.ranged(repr, &right));
        for (op, meaning) in relations::<i128>() {
            let root = bench.graph.compare(op, a, b).expect("integers");
            let got = bench.values(root);
            assert_rows(&format!("{repr:?} {op:?}"), &[&left, &right], &got, |row| match row {
                [Int(a), Int(b)] => Bool(meaning(a, b)),
                _ => Null,
            });
        }
    }
}

#[test]
fn distinct_takes_null_for_a_value() {
    let cells = [Int(1), Int(2), Null];
    for left in [&cells[..], &cells[..2]] {
        for right in [&cells[..], &cells[..2]] {
            let (left, right) = pairs(left, right);
            let mut bench = Bench::new();
            let (a, b) = (bench.column(Repr::I32, &left), bench.column(Repr::I32, &right));
            let distinct = bench.graph.compare(Comparison::Distinct, a, b).expect("integers");
            let same = bench.graph.compare(Comparison::NotDistinct, a, b).expect("integers");
            let outcome = bench.run(&[distinct, same]);
            assert_rows("distinct", &[&left, &right], &outcome.values[0], |row| Bool(row[0] != row[1]));
            assert_rows("not distinct", &[&left, &right], &outcome.values[1], |row| Bool(row[0] == row[1]));
        }
    }
}

#[test]
fn case_takes_the_first_true_branch() {
    let (first, second) = pairs(&TRUTHS, &TRUTHS);
    let numbers: Vec<Cell> = (0..9).map(|n| if n % 4 == 3 { Null } else { Int(n) }).collect();
    for otherwise in [false, true] {
        let mut bench = Bench::new();
        let (a, b) = (bench.column(Repr::Bool, &first), bench.column(Repr::Bool, &second));
        let x = bench.column(Repr::I64, &numbers);
        let ten = bench.literal(Ty::new(Repr::I64).within(0, 99), Int(10));
        let wide = bench.literal(Ty::new(Repr::I64), Int(1 << 40));
        let root = bench.graph.case(vec![(a, x), (b, ten)], otherwise.then_some(wide)).expect("one type");
        let got = bench.values(root);
        assert_rows("CASE", &[&first, &second, &numbers], &got, |row| match row {
            [Bool(true), _, x] => *x,
            [_, Bool(true), _] => Int(10),
            _ if otherwise => Int(1 << 40),
            _ => Null,
        });
    }
}

#[test]
fn case_of_booleans_and_floats() {
    let (condition, value) = pairs(&TRUTHS, &TRUTHS);
    let mut bench = Bench::new();
    let (a, b) = (bench.column(Repr::Bool, &condition), bench.column(Repr::Bool, &value));
    let yes = bench.graph.boolean(true);
    let boolean = bench.graph.case(vec![(a, b)], Some(yes)).expect("one type");
    let half = bench.graph.float(0.5, Repr::F64);
    let null = bench.graph.null(Repr::F64);
    let float = bench.graph.case(vec![(a, half), (b, null)], Some(half)).expect("one type");
    let outcome = bench.run(&[boolean, float]);
    assert_rows("CASE", &[&condition, &value], &outcome.values[0], |row| match row {
        [Bool(true), value] => *value,
        _ => Bool(true),
    });
    assert_rows("CASE", &[&condition, &value], &outcome.values[1], |row| match row {
        [Bool(true), _] => F64(0.5),
        [_, Bool(true)] => Null,
        _ => F64(0.5),
    });
}

#[test]
fn coalesce_and_nullif() {
    let cells = [Int(1), Int(2), Null];
    let (left, right) = pairs(&cells, &cells);
    let mut bench = Bench::new();
    let (a, b) = (bench.column(Repr::I32, &left), bench.column(Repr::I32, &right));
    let seven = bench.graph.integer(7, Repr::I32);
    let either = bench.graph.coalesce(&[a, b]).expect("one type");
    let always = bench.graph.coalesce(&[a, b, seven, a]).expect("one type");
    assert!(!bench.graph.ty(always).nullable, "a constant is never NULL");
    let unless = bench.graph.null_if(a, b).expect("one type");
    let outcome = bench.run(&[either, always, unless]);
    let first = |row: &[Cell]| row.iter().copied().find(|cell| *cell != Null);
    assert_rows("coalesce", &[&left, &right], &outcome.values[0], |row| first(row).unwrap_or(Null));
    assert_rows("coalesce", &[&left, &right], &outcome.values[1], |row| first(row).unwrap_or(Int(7)));
    assert_rows("nullif", &[&left, &right], &outcome.values[2], |row| if row[0] == row[1] { Null } else { row[0] });
}

#[test]
fn in_lists() {
    let cells = [Int(1), Int(2), Int(3), Null];
    for with_null in [false, true] {
        for negated in [false, true] {
            let mut bench = Bench::new();
            let a = bench.column(Repr::I64, &cells);
            let mut list = vec![bench.literal(Ty::new(Repr::I64), Int(2)), bench.literal(Ty::new(Repr::I64), Int(3))];
            if with_null {
                list.push(bench.literal(Ty::new(Repr::I64).nullable(true), Null));
            }
            let root = bench.graph.in_list(a, list, negated).expect("one type");
            let got = bench.values(root);
            assert_rows("IN (2, 3)", &[&cells], &got, |row| match row[0] {
                Int(2 | 3) => Bool(!negated),
                Int(_) if !with_null => Bool(negated),
                _ => Null,
            });
        }
    }
}

#[test]
fn between_is_inclusive() {
    let cells = [Int(1), Int(2), Int(3), Int(4), Null];
    for negated in [false, true] {
        let mut bench = Bench::new();
        let a = bench.column(Repr::I128, &cells);
        let low = bench.literal(Ty::new(Repr::I128), Int(2));
        let high = bench.literal(Ty::new(Repr::I128), Int(3));
        let root = bench.graph.between(a, low, high, negated).expect("one type");
        let got = bench.values(root);
        assert_rows("BETWEEN 2 AND 3", &[&cells], &got, |row| match row[0] {
            Int(value) => Bool((2..=3).contains(&value) != negated),
            _ => Null,
        });
    }
}

#[test]
fn lookups_give_the_value_of_a_code() {
    let codes = [Int(0), Int(2), Int(1), Null, Int(3)];
    let mut bench = Bench::new();
    let code = bench.column(Repr::U32, &codes);
    let lengths = bench.table(Ty::new(Repr::I32).nullable(true), &[Int(4), Null, Int(6), Int(0)]);
    let likes = bench.table(Ty::new(Repr::Bool), &[Bool(true), Bool(false), Bool(false), Bool(true)]);
    let length = bench.graph.lookup(code, lengths, Ty::new(Repr::I32).nullable(true)).expect("a code");
    let like = bench.graph.lookup(code, likes, Ty::new(Repr::Bool)).expect("a code");
    assert!(bench.graph.ty(like).nullable, "NULL codes give NULL");
    let outcome = bench.run(&[length, like]);
    assert_eq!(outcome.values[0], [Int(4), Int(6), Null, Null, Int(0)]);
    assert_eq!(outcome.values[1], [Bool(true), Bool(false), Bool(false), Null, Bool(true)]);
}

/// Lists given by begin and end in a table of items.
#[test]
fn items_are_found_in_their_own_list() {
    let floats = [F64(1.0), F64(0.0), Null, F64(f64::NAN), F64(-0.0), F64(1.0)];
    let wide = [Int(1), Int(0), Null, Int(i128::MAX), Int(-1), Int(1)];
    let truths = [Bool(true), Bool(false), Null, Bool(true), Bool(false), Bool(true)];
    for (repr, items) in [(Repr::F64, floats), (Repr::I128, wide), (Repr::Bool, truths)] {
        let lists =
            [(Int(0), Int(6)), (Int(1), Int(4)), (Int(2), Int(2)), (Null, Int(6)), (Int(2), Int(6)), (Int(5), Int(6))];
        let mut cells: (Vec<Cell>, Vec<Cell>, Vec<Cell>) = Default::default();
        for (from, to) in lists {
            for item in items {
                cells.0.push(from);
                cells.1.push(to);
                cells.2.push(item);
            }
        }
        for nulls in [false, true] {
            let mut bench = Bench::new();
            let (from, to) = (bench.column(Repr::U32, &cells.0), bench.column(Repr::U32, &cells.1));
            let sought = bench.column(repr, &cells.2);
            let ty = Ty::new(repr).nullable(true);
            let table = bench.table(ty, &items);
            let root = bench.graph.find(sought, (Places { from, to, table }, ty), nulls).expect("one type");
            let got = bench.values(root);
            assert_rows("a search", &[&cells.0, &cells.1, &cells.2], &got, |row| {
                let (Int(from), Int(to)) = (row[0], row[1]) else { return Null };
                let same = |at: &i128| items[*at as usize] == row[2] && (nulls || row[2] != Null);
                (from..to).find(same).into()
            });
            let root = bench.graph.count_of(sought, (Places { from, to, table }, ty), nulls).expect("one type");
            assert!(!bench.graph.ty(root).nullable);
            let got = bench.values(root);
            assert_rows("a count", &[&cells.0, &cells.1, &cells.2], &got, |row| {
                let (Int(from), Int(to)) = (row[0], row[1]) else { return Int(0) };
                let same = |at: &i128| items[*at as usize] == row[2] && (nulls || row[2] != Null);
                Int((from..to).filter(same).count() as i128)
            });
        }
    }
}

#[test]
fn lists_lie_within_lists() {
    let (left, right) = ([Int(1), Null, Int(3), Int(1)], [Int(3), Int(4), Null, Int(1), Int(1)]);
    let spans = |items: usize| {
        let all = (0..=items).flat_map(move |from| (from..=items).map(move |to| (Int(from as i128), Int(to as i128))));
        all.chain([(Null, Int(2)), (Int(0), Null)]).collect::<Vec<_>>()
    };
    let mut cells: [Vec<Cell>; 4] = Default::default();
    for (a, b) in spans(left.len()) {
        for (c, d) in spans(right.len()) {
            for (column, cell) in cells.iter_mut().zip([a, b, c, d]) {
                column.push(cell);
            }
        }
    }
    for any in [false, true] {
        let mut bench = Bench::new();
        let places: Vec<NodeId> = cells.iter().map(|cells| bench.column(Repr::U32, cells)).collect();
        let ty = Ty::new(Repr::I64).nullable(true);
        let (of, inside) = (bench.table(ty, &left), bench.table(ty, &right));
        let of = Places { from: places[0], to: places[1], table: of };
        let inside = Places { from: places[2], to: places[3], table: inside };
        let root = bench.graph.among((of, ty), (inside, ty), any).expect("one type");
        let got = bench.values(root);
        assert_rows("a list in a list", &cells.each_ref().map(Vec::as_slice), &got, |row| {
            let (Int(a), Int(b), Int(c), Int(d)) = (row[0], row[1], row[2], row[3]) else { return Bool(!any) };
            let (of, inside) = (&left[a as usize..b as usize], &right[c as usize..d as usize]);
            let mut found = of.iter().map(|item| inside.contains(item));
            Bool(if any { found.any(|one| one) } else { found.all(|one| one) })
        });
    }
}

#[test]
fn numbers_and_truth_convert() {
    let cells = [Int(0), Int(5), Int(-1), Null];
    for repr in [Repr::I8, Repr::I64, Repr::I128] {
        let mut bench = Bench::new();
        let a = bench.column(repr, &cells);
        let truth = bench.graph.convert(a, Repr::Bool, Overflow::Fail).expect("a number");
        let number = bench.graph.convert(truth, Repr::I32, Overflow::Fail).expect("a boolean");
        let outcome = bench.run(&[truth, number]);
        assert_eq!(outcome.values[0], [Bool(false), Bool(true), Bool(true), Null]);
        assert_eq!(outcome.values[1], [Int(0), Int(1), Int(1), Null]);
    }
}

#[test]
fn branches_that_never_decide_are_left_out() {
    let mut bench = Bench::new();
    let b = bench.column(Repr::Bool, &[Bool(true), Bool(false), Null]);
    let d = bench.column(Repr::Bool, &[Bool(true), Bool(true), Bool(false)]);
    let v = bench.column(Repr::I64, &[Int(1), Null, Int(3)]);
    let three = bench.graph.integer(3, Repr::I64);
    // CASE WHEN b THEN v WHEN b THEN 3 ELSE v END
    let again = bench.graph.case(vec![(b, v), (b, three)], Some(v)).expect("one type");
    assert_eq!(again, v);
    let same = bench.graph.case(vec![(d, three), (b, v)], Some(v)).expect("one type");
    assert_eq!(same, bench.graph.case(vec![(d, three)], Some(v)).expect("one type"));
    assert_eq!(bench.values(same), [Int(3), Int(3), Int(3)]);
    let other = bench.graph.case(vec![(b, v), (d, three), (b, three)], Some(v)).expect("one type");
    assert_eq!(bench.values(other), [Int(1), Int(3), Int(3)]);
    // The condition divides by zero: that is an error, whatever branch is chosen.
    let zero = bench.graph.integer(0, Repr::I64);
    let quotient = bench.graph.arithmetic(Arithmetic::Divide, three, zero, Overflow::Fail).expect("integers");
    let fails = bench.graph.compare(Comparison::Equal, quotient, three).expect("integers");
    let kept = bench.graph.case(vec![(fails, v)], Some(v)).expect("one type");
    assert_ne!(kept, v);
}
