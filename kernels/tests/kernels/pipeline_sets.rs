//! Groups without rows, launch numbers, floats distinguished by their bits, and first rows in an order.

use millpond_kernels::codegen::ir::*;

use super::pipeline_rig::*;

/// Groups by column 0 and the launch number, with a seed of that number and a NULL key.
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
    for regime in [Regime::Private, Regime::Block, Regime::Direct, Regime::Hash] {
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
fn nothing_but_counts_is_known_of_a_group_without_rows() {
    let rig = Rig::new();
    for regime in [Regime::Private, Regime::Block, Regime::Direct, Regime::Hash] {
        for rows in [0, 9] {
            let mut case = seeded(rows, Some(regime), true);
            let value = case.column(1);
            let SinkSpec::Aggregate(aggregate) = &mut case.spec.sink else { unreachable!("it aggregates") };
            aggregate.accumulators.clear();
            for function in [Aggregate::Max(value), Aggregate::BitOr(value), Aggregate::Sum(value)] {
                aggregate.accumulate(&case.spec.graph, all(function));
            }
            let groups = rig.aggregate(&case);
            assert_eq!(groups.len(), if rows == 0 { 1 } else { 4 }, "{regime:?}");
            assert_eq!(groups[0], [Cell::Null, Cell::Int(0), Cell::Null, Cell::Null, Cell::Null], "{regime:?}");
        }
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
fn zeros_of_both_signs_are_distinct_keys_on_request() {
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
    assert_eq!(groups(false), cells([1i64, 1, 2, 3]));
    assert_eq!(groups(true), cells([1i64, 1, 1, 2, 2]));
}

#[test]
fn the_first_row_in_an_order_brings_its_values() {
    let rig = Rig::new();
    for (regime, rows) in [(None, 40), (None, 2000), (Some(Regime::Direct), 2000), (Some(Regime::Hash), 2000)] {
        let mut random = Random(rows as u64);
        let keys: Vec<i32> = (0..rows).map(|row| if regime.is_some() { row % 3 } else { 0 }).collect();
        let major: Vec<Option<i64>> =
            (0..rows).map(|row| (row % 4 != 0).then(|| random.below(20) as i64 - 10)).collect();
        let minor: Vec<i128> = (0..rows).map(|row| (1i128 << 80) - i128::from(row * 7919 % 2003)).collect();
        let brought: Vec<Option<i32>> = (0..rows).map(|row| (row % 5 != 1).then_some(row)).collect();
        for (descending, nulls_first) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut case = Case::new(vec![
                column(Repr::I32, keys.clone()).ranged(0, 2),
                column(Repr::I64, major.iter().copied()).nullable(),
                column(Repr::I128, minor.iter().copied()),
                column(Repr::I32, brought.iter().copied()).nullable(),
                column(Repr::F64, (0..rows).map(f64::from)),
            ]);
            let nodes: Vec<NodeId> = (0..5).map(|at| case.column(at)).collect();
            let order = vec![
                OrderKey { node: nodes[1], descending, nulls_first },
                OrderKey { node: nodes[2], descending: !descending, nulls_first: false },
            ];
            let group = if regime.is_some() { vec![nodes[0]] } else { vec![] };
            let mut spec = AggregateSpec { regime, orders: vec![order], ..AggregateSpec::new(group) };
            let first = |of, skip_nulls| all(Aggregate::First { of, order: 0, skip_nulls });
            for accumulator in
                [first(nodes[3], false), first(nodes[2], false), first(nodes[4], false), first(nodes[3], true)]
            {
                spec.accumulate(&case.spec.graph, accumulator);
            }
            case.spec.sink = SinkSpec::Aggregate(spec);

            let best = |of: i32, skip: bool| {
                let own = (0..rows as usize).filter(|&row| keys[row] == of && (!skip || brought[row].is_some()));
                own.min_by_key(|&row| {
                    let value = major[row].map(|value| if descending { -value } else { value });
                    let null = if nulls_first { value.is_some() } else { value.is_none() };
                    (null, value, if descending { minor[row] } else { -minor[row] })
                })
                .expect("every group has rows")
            };
            let expected: Vec<Vec<Cell>> = (0..if regime.is_some() { 3 } else { 1 })
                .map(|key| {
                    let (row, valid) = (best(key, false), best(key, true));
                    let values = [brought[row].into(), minor[row].into(), (row as f64).into(), brought[valid].into()];
                    regime.map(|_| Cell::from(key)).into_iter().chain(values).collect()
                })
                .collect();
            let case = case.fed(&[rows as usize / 2, rows as usize - rows as usize / 2]);
            assert_eq!(rig.aggregate(&case), expected, "{regime:?}, {rows} rows, {descending} {nulls_first}");
        }
    }
}
