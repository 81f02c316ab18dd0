//! TPC-H Q1 and Q6 as pipelines: the size of their text, their launches and allocations, and their results.

use millpond_kernels::codegen::ir::*;
use millpond_kernels::codegen::{CompiledPipeline, compile};

use super::pipeline_rig::*;

/// TPC-H lineitem as a Parquet feed may provide it: narrow with bases, dictionary codes, dates.
fn lineitem(nullable: bool) -> (Vec<ColumnSpec>, Graph) {
    let decimal = |low, high| Ty::new(Repr::I128).nullable(nullable).within(low, high);
    let columns = vec![
        // quantity, extendedprice, discount, tax
        ColumnSpec { physical: Physical::U16, has_base: true, ty: decimal(100, 5000) },
        ColumnSpec { physical: Physical::U32, has_base: true, ty: decimal(90_000, 10_494_950) },
        ColumnSpec { physical: Physical::U8, has_base: true, ty: decimal(0, 10) },
        ColumnSpec { physical: Physical::U8, has_base: true, ty: decimal(0, 8) },
        // returnflag, linestatus
        ColumnSpec { physical: Physical::U8, has_base: false, ty: Ty::new(Repr::U32).nullable(nullable).within(0, 2) },
        ColumnSpec { physical: Physical::U8, has_base: false, ty: Ty::new(Repr::U32).nullable(nullable).within(0, 1) },
        // shipdate
        ColumnSpec {
            physical: Physical::U16,
            has_base: true,
            ty: Ty::new(Repr::I32).nullable(nullable).within(8035, 10_591),
        },
    ];
    (columns, Graph::new())
}

pub fn q1(nullable: bool) -> PipelineSpec {
    let (columns, mut g) = lineitem(nullable);
    let node: Vec<NodeId> = columns.iter().enumerate().map(|(i, c)| g.column(i as u32, c.ty)).collect();
    let date = Ty::new(Repr::I32);
    let limit = g.literal(0, date);
    let filter = g.compare(Comparison::LessEqual, node[6], limit).unwrap();
    let one = Ty::new(Repr::I128).within(100, 100);
    let one = g.literal(1, one);
    let less = g.arithmetic(Arithmetic::Subtract, one, node[2], Overflow::Fail).unwrap();
    let disc_price = g.arithmetic(Arithmetic::Multiply, node[1], less, Overflow::Fail).unwrap();
    let more = g.arithmetic(Arithmetic::Add, one, node[3], Overflow::Fail).unwrap();
    let charge = g.arithmetic(Arithmetic::Multiply, disc_price, more, Overflow::Fail).unwrap();
    let mut aggregate = AggregateSpec::new(vec![node[4], node[5]]);
    for sum in [node[0], node[1], disc_price, charge] {
        aggregate.accumulate(&g, all(Aggregate::Sum(sum)));
    }
    // avg(quantity), avg(extendedprice), avg(discount), count(*)
    for avg in [node[0], node[1], node[2]] {
        aggregate.accumulate(&g, all(Aggregate::Sum(avg)));
        aggregate.accumulate(&g, all(Aggregate::Count(avg)));
    }
    aggregate.accumulate(&g, all(Aggregate::CountStar));
    PipelineSpec {
        extents: Extents::One,
        columns,
        literals: vec![date, Ty::new(Repr::I128).within(100, 100)],
        lookups: vec![],
        tables: vec![],
        expanded: false,
        graph: g,
        filters: vec![filter],
        sink: SinkSpec::Aggregate(aggregate),
    }
}

fn assert_well_formed(compiled: &CompiledPipeline) {
    let module = millpond_ptx::parse(&compiled.text).unwrap_or_else(|error| panic!("{error}\n{}", compiled.text));
    if let Err(errors) = millpond_ptx::check(&module) {
        panic!("{errors:?}\n{}", compiled.text);
    }
}

#[test]
fn q1_is_small_and_narrow() {
    let compiled = compile(&q1(false)).unwrap();
    assert_well_formed(&compiled);
    assert_eq!(compiled.num_accumulators(), 6);
    assert_eq!(compiled.regime(), Some(Regime::Private));
    println!("{} instructions\n{}", compiled.pipeline.instructions, compiled.text);
    assert!(compiled.pipeline.instructions <= 600, "{}", compiled.pipeline.instructions);
    // The high half of a 64-bit product is only needed for 128-bit products.
    assert!(!compiled.text.contains("mul.hi"), "{}", compiled.text);
}

#[test]
fn q1_over_nullable_columns_is_small_too() {
    let compiled = compile(&q1(true)).unwrap();
    assert_well_formed(&compiled);
    println!("{} instructions, {:?}", compiled.pipeline.instructions, compiled.regime());
    assert!(compiled.pipeline.instructions <= 600, "{}", compiled.pipeline.instructions);
    assert!(!compiled.text.contains("mul.hi"), "{}", compiled.text);
}

/// Rows of lineitem, columns as [`lineitem`] numbers them.
fn rows_of_lineitem(rows: usize, nullable: bool) -> Vec<Column> {
    let mut random = Random(11);
    let (specs, _) = lineitem(nullable);
    let bases = [100, 90_000, 0, 0, 0, 0, 8035];
    let columns = specs.iter().zip(bases).map(|(spec, base)| {
        let bounds = spec.ty.bounds().unwrap();
        let cells = (0..rows).map(|_| {
            if nullable && random.below(9) == 0 {
                return Cell::Null;
            }
            Cell::Int(bounds.low + random.below((bounds.high - bounds.low + 1) as u64) as i128)
        });
        stored(spec.physical, spec.ty, spec.has_base.then_some(base), cells.collect())
    });
    columns.collect()
}

fn int(cell: Cell) -> Option<i128> {
    match cell {
        Cell::Int(value) => Some(value),
        _ => None,
    }
}

#[test]
fn q1_answers_with_one_launch_per_extent_and_two_allocations() {
    for nullable in [false, true] {
        let rig = Rig::new();
        let rows = 5000;
        let columns = rows_of_lineitem(rows, nullable);
        let limit = 10_471;
        let literals = vec![Literal::Int(limit), Literal::Int(100)];
        let case = Case {
            spec: q1(nullable),
            columns: columns.clone(),
            extent_rows: vec![2500, 1, 2499],
            literals,
            lookups: vec![],
        };
        // Expected groups in plain Rust: sums of the four columns, then the sum of discounts, then counts; NULLs are
        // ignored.
        let mut groups = std::collections::BTreeMap::new();
        for row in 0..rows {
            let value = |column: usize| int(columns[column].cells[row]);
            if value(6).is_none_or(|date| date > limit) {
                continue;
            }
            let key = (columns[4].cells[row], columns[5].cells[row]);
            let group: &mut [(i128, i128); 6] = groups.entry(key).or_default();
            let disc_price = value(1).zip(value(2)).map(|(price, discount)| price * (100 - discount));
            let charge = disc_price.zip(value(3)).map(|(price, tax)| price * (100 + tax));
            for (at, term) in [value(0), value(1), disc_price, charge, value(2), Some(1)].into_iter().enumerate() {
                if let Some(term) = term {
                    group[at] = (group[at].0 + term, group[at].1 + 1);
                }
            }
        }
        let before = rig.device.counters();
        let given = rig.aggregate(&case);
        let counts = rig.device.counters().since(&before);
        let some = |(sum, n): (i128, i128)| if n > 0 { Cell::Int(sum) } else { Cell::Null };
        let expected: Vec<Vec<Cell>> = groups
            .into_iter()
            .map(|((flag, status), g)| {
                let mut row = vec![flag, status, some(g[0]), some(g[1]), some(g[2]), some(g[3])];
                if nullable {
                    row.extend([Cell::Int(g[0].1), Cell::Int(g[1].1), some(g[4]), Cell::Int(g[4].1)]);
                    row.push(Cell::Int(g[5].1));
                } else {
                    row.extend([Cell::Int(g[5].1), some(g[4])]);
                }
                row
            })
            .collect();
        assert_eq!(given, expected, "nullable {nullable}");
        // Three extents, and the emit.
        assert_eq!(counts.launches, 4);
    }
}

fn q6() -> PipelineSpec {
    let (columns, mut g) = lineitem(false);
    let node: Vec<NodeId> = columns.iter().enumerate().map(|(i, c)| g.column(i as u32, c.ty)).collect();
    let (date, decimal) = (Ty::new(Repr::I32), Ty::new(Repr::I128).within(-(10i128.pow(15)), 10i128.pow(15)));
    let literals = vec![date, date, decimal, decimal, decimal];
    let slot: Vec<NodeId> = literals.iter().enumerate().map(|(i, ty)| g.literal(i as u32, *ty)).collect();
    let filters = vec![
        g.compare(Comparison::GreaterEqual, node[6], slot[0]).unwrap(),
        g.compare(Comparison::Less, node[6], slot[1]).unwrap(),
        g.between(node[2], slot[2], slot[3], false).unwrap(),
        g.compare(Comparison::Less, node[0], slot[4]).unwrap(),
    ];
    let revenue = g.arithmetic(Arithmetic::Multiply, node[1], node[2], Overflow::Fail).unwrap();
    let mut aggregate = AggregateSpec::new(vec![]);
    aggregate.accumulate(&g, all(Aggregate::Sum(revenue)));
    let sink = SinkSpec::Aggregate(aggregate);
    PipelineSpec {
        extents: Extents::One,
        columns,
        literals,
        lookups: vec![],
        tables: vec![],
        expanded: false,
        graph: g,
        filters,
        sink,
    }
}

#[test]
fn q6_answers_in_registers() {
    let compiled = compile(&q6()).unwrap();
    assert_well_formed(&compiled);
    assert_eq!(compiled.regime(), Some(Regime::Scalar));
    assert!(!compiled.text.contains("mul.hi"), "{}", compiled.text);
    assert!(compiled.pipeline.rows_per_thread > 1);
    println!("{} instructions\n{}", compiled.pipeline.instructions, compiled.text);

    let rows = 20_000;
    let columns = rows_of_lineitem(rows, false);
    let value = |column: usize, row: usize| int(columns[column].cells[row]).unwrap();
    let chosen = (0..rows).filter(|&row| {
        (8766..9131).contains(&value(6, row)) && (5..=7).contains(&value(2, row)) && value(0, row) < 2400
    });
    let revenue: i128 = chosen.map(|row| value(1, row) * value(2, row)).sum();
    assert!(revenue > 0);
    let literals = [8766, 9131, 5, 7, 2400].map(Literal::Int).to_vec();
    let case = Case { spec: q6(), columns, extent_rows: vec![rows], literals, lookups: vec![] };
    assert_eq!(Rig::new().aggregate(&case), [cells([revenue])]);
    let many = case.many(&[9000, 0, 11_000]);
    assert_eq!(Rig::new().aggregate(&many), [cells([revenue])]);
}
