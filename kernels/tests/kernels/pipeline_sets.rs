//! Grouping sets in pieces: groups that are there without rows, the number of a launch, floats told apart by their bits.

use millpond_kernels::codegen::ir::*;

use super::pipeline_rig::*;

/// Groups by column 0 and the number of the launch, with a seed of the same number and a NULL key.
fn seeded(rows: usize, regime: Option<Regime>, planted: bool) -> Case {
    let key = column(Repr::I32, (0..rows as i32).map(|row| row % 3)).ranged(0, 2).nullable();
    let value = column(Repr::I64, (0..rows as i64).map(|row| row + 1));
    let mut case = Case::new(vec![key, value]);
    let (key, value) = (case.column(0), case.column(1));
    let number_ty = Ty::new(Repr::U32).within(0, 1);
    case.spec.literals.push(number_ty);
    case.literals.push(Literal::Variant);
    let graph = case.graph();
    let number = graph.literal(0, number_ty);
    let seed = Seed { when: graph.boolean(planted), keys: vec![graph.null_of(graph.ty(key)), number] };
    let mut spec = AggregateSpec { regime, seed: Some(seed), ..AggregateSpec::new(vec![key, number]) };
    for aggregate in [Aggregate::CountStar, Aggregate::Sum(value)] {
        spec.accumulate(&case.spec.graph, all(aggregate));
    }
    case.spec.sink = SinkSpec::Aggregate(spec);
    case
}

#[test]
fn a_seed_is_a_group_without_rows() {
    let rig = Rig::new();
    let none = vec![Cell::Null, Cell::Int(0), Cell::Int(0), Cell::Null];
    for regime in [Regime::Private, Regime::Direct, Regime::Hash] {
        assert_eq!(rig.aggregate(&seeded(0, Some(regime), true)), std::slice::from_ref(&none), "{regime:?}");
        assert_eq!(rig.aggregate(&seeded(0, Some(regime), false)), Vec::<Vec<Cell>>::new(), "{regime:?}");
        let group = |key: i128| {
            let sum: i128 = (0..300).filter(|row| row % 3 == key).map(|row| row + 1).sum();
            vec![Cell::Int(key), Cell::Int(0), Cell::Int(100), Cell::Int(sum)]
        };
        let expected = [none.clone(), group(0), group(1), group(2)];
        assert_eq!(rig.aggregate(&seeded(300, Some(regime), true)), expected, "{regime:?}");
        let case = seeded(300, Some(regime), true);
        assert_eq!(rig.aggregate(&case.fed(&[100, 200])), expected, "{regime:?}");
    }
}

#[test]
fn a_seed_of_other_types_is_refused() {
    let mut case = seeded(3, None, true);
    let SinkSpec::Aggregate(aggregate) = &mut case.spec.sink else { unreachable!("it aggregates") };
    aggregate.seed.as_mut().unwrap().keys.pop();
    let error = millpond_kernels::codegen::compile(&case.spec).unwrap_err();
    assert!(error.to_string().contains("seed"), "{error}");
}

#[test]
fn floats_are_told_apart_by_their_bits_where_asked_to() {
    let rig = Rig::new();
    let other_nan = f64::from_bits(0x7ff8_0000_0000_0001);
    let values = [0.0, -0.0, f64::NAN, other_nan, -0.0, 1.5, 1.5];
    let groups = |bitwise: bool| {
        let case = Case::new(vec![column(Repr::F64, values)]);
        let mut case = case.group(&[0], None, |_| vec![all(Aggregate::CountStar)]);
        let SinkSpec::Aggregate(aggregate) = &mut case.spec.sink else { unreachable!("it aggregates") };
        aggregate.bitwise = if bitwise { vec![0] } else { vec![] };
        let mut counts: Vec<Cell> = rig.aggregate(&case).into_iter().map(|row| row[1]).collect();
        counts.sort();
        counts
    };
    assert_eq!(groups(false), cells([2i64, 2, 3]));
    assert_eq!(groups(true), cells([1i64, 1, 1, 2, 2]));
}
