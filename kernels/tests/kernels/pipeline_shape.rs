//! What the generated text looks like: sizes that are promised, and sharing of modules.

use millpond_kernels::codegen::ir::*;
use millpond_kernels::codegen::{CompiledPipeline, compile};

use super::pipeline_rig::all;

/// TPC-H lineitem as a Parquet feed may bring it: narrow with bases, dictionary codes, dates.
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
    // A 128-bit product needs the high half of a 64-bit one.
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
