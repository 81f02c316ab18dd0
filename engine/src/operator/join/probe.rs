//! Lowers probes: keys with the same meaning on both sides, matches, and the output of each kind of join.
//!
//!   o_custkey = c_custkey     build side: keys ──► table     probe side: probe(keys) ──► matches, NULL if none
//!   inner    filter: matches IS NOT NULL                     the build side's columns are lookup tables by row number
//!   outer    no filter; a row without a match looks nothing up, and gets NULL
//!   semi     filter: matches IS NOT NULL        anti   filter: matches IS NULL        mark   the test itself
//!
//! Several  matches of a row expand it into several rows: the pipeline is cut, see [`lower`](crate::program).
//! Residual conditions are part of a match: they are tested on pairs.
//! Strings  of two dictionaries are compared as codes into a merged one; if one side has no dictionary, as texts.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;
use millpond_kernels::codegen::ir::{Arithmetic, Bitwise, Comparison, Literal, NodeId, Overflow, Repr, Test, Ty};

use crate::column::{ColumnInfo, TWO_ZEROS, has_two_zeros};
use crate::error::reason::Reason;
use crate::expr::{Dictionary, LookupTable, Lowering, Scope, Value, cast, unsupported};
use crate::operator::join::{DeviceJoinExec, JoinColumn, JoinKind};
use crate::program::build_side::{BuildForm, KeyForm, KeySlice};

/// Requirements of a join on the table of its build side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Row numbers, not only existence.
    pub rows: bool,
    /// Each row of a key, if a key has several.
    pub lists: bool,
}

impl Asked {
    /// Requirements of `join`; `payload` is true if columns of the build side are read from its result.
    pub fn by(join: &DeviceJoinExec, payload: bool) -> Self {
        let plain = join.residual().is_none();
        let existence = plain && is_about_existence(join.kind());
        let counted = plain && join.kind() == JoinKind::Inner && !payload;
        Self { rows: !existence && !counted, lists: !(existence || plain && join.kind().is_about_build_rows()) }
    }
}

/// A row's matches.
#[derive(Debug, Clone, Copy)]
pub struct Matches {
    /// The list, NULL if it is empty.
    pub list: NodeId,
    /// True if there is a match.
    pub found: NodeId,
}

fn graph_refused(error: &millpond_kernels::codegen::ir::GraphError) -> Reason {
    Reason::ExprUnsupported { expr: "the join".into(), why: error.to_string() }
}

/// The representation of the keys of `join`, with the columns `build` of the build side and `scope` of the probe side.
pub fn key_forms(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &[ColumnInfo],
) -> Result<Vec<KeyForm>, Reason> {
    if join.on().is_empty() {
        // One key, equal in all rows.
        return Ok(vec![KeyForm { ty: Ty::new(Repr::U32).within(0, 0), merged: None, text: false }]);
    }
    let mut forms = Vec::with_capacity(join.on().len());
    for (of_build, of_probe) in join.on() {
        let probing = lowering.lower(of_probe, scope)?;
        let mut building = Lowering::new(build, lowering.dictionaries);
        let own = building.scope();
        let built = building.lower(of_build, &own)?;
        if has_two_zeros(&built.data_type) || has_two_zeros(&probing.data_type) {
            return Err(unsupported(of_probe, TWO_ZEROS));
        }
        let mut ty = building.graph.ty(built.node);
        let mut merged = None;
        let text = building.is_text(&built) || lowering.is_text(&probing);
        match (built.dictionary, probing.dictionary) {
            _ if text && cast::same_strings(&built.data_type, &probing.data_type) => {
                let mut building = Lowering::new(build, lowering.dictionaries);
                let own = building.scope();
                let built = building.lower(of_build, &own)?;
                let node = building.as_text(&built).map_err(|refusal| refusal.of(of_build))?;
                ty = building.graph.ty(node);
            }
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => {
                if !cast::same_strings(&built.data_type, &probing.data_type) {
                    let why = format!("it joins {} and {}", built.data_type, probing.data_type);
                    return Err(unsupported(of_probe, &why));
                }
                let mut parts = vec![a, b];
                parts.sort();
                let data_type = built.data_type.clone();
                merged = Some(lowering.dictionaries.add(Dictionary::Merged { parts, constants: vec![], data_type }));
                ty.range = None;
            }
            (None, None) if cast::same_representation(&built.data_type, &probing.data_type) => {}
            _ => {
                let why = format!("it joins {} and {}", built.data_type, probing.data_type);
                return Err(unsupported(of_probe, &why));
            }
        }
        forms.push(KeyForm { ty, merged, text });
    }
    Ok(forms)
}

/// The keys of one side, chosen by `build`.
pub fn keys(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    join: &DeviceJoinExec,
    forms: &[KeyForm],
    build: bool,
) -> Result<Vec<NodeId>, Reason> {
    if join.on().is_empty() {
        return Ok(vec![lowering.graph.integer(0, Repr::U32)]);
    }
    let mut nodes = Vec::with_capacity(forms.len());
    for ((of_build, of_probe), form) in join.on().iter().zip(forms) {
        let expr: &Arc<dyn PhysicalExpr> = if build { of_build } else { of_probe };
        let value = lowering.lower(expr, scope)?;
        nodes.push(match form.merged {
            Some(merged) => lowering.merged_code(&value, merged).map_err(|refusal| refusal.of(expr))?,
            None if form.text => lowering.as_text(&value).map_err(|refusal| refusal.of(expr))?,
            None => value.node,
        });
    }
    Ok(nodes)
}

/// Whether the current row, with these keys, is in a slice. NULL counts as a value like any other.
pub fn in_slice(lowering: &mut Lowering<'_>, keys: &[NodeId], slice: KeySlice) -> Result<NodeId, Reason> {
    let e = |e| graph_refused(&e);
    let mut sum = lowering.graph.integer(0, Repr::U64);
    for (key, at) in keys.iter().zip(0..) {
        let ty = lowering.graph.ty(*key);
        let number = match ty.repr {
            Repr::F32 | Repr::F64 | Repr::Text => continue,
            Repr::Bool => {
                let number = lowering.graph.convert(*key, Repr::U8, Overflow::Wrap).map_err(e)?;
                lowering.graph.convert(number, Repr::U64, Overflow::Wrap).map_err(e)?
            }
            _ => lowering.graph.convert(*key, Repr::U64, Overflow::Wrap).map_err(e)?,
        };
        let number = match ty.nullable {
            true => {
                let present = lowering.graph.test(Test::IsNotNull, number).map_err(e)?;
                let zero = lowering.graph.integer(0, Repr::U64);
                lowering.graph.case(vec![(present, number)], Some(zero)).map_err(e)?
            }
            false => number,
        };
        // Fibonacci hashing, with another odd factor for each key.
        let factor = lowering.graph.integer(0x9e37_79b9_7f4a_7c15 + 2 * at, Repr::U64);
        let product = lowering.graph.arithmetic(Arithmetic::Multiply, number, factor, Overflow::Wrap).map_err(e)?;
        sum = lowering.graph.arithmetic(Arithmetic::Add, sum, product, Overflow::Wrap).map_err(e)?;
    }
    let shift = lowering.graph.integer(40, Repr::U64);
    let high = lowering.graph.bitwise(Bitwise::ShiftRight, sum, shift).map_err(e)?;
    let small = Ty::new(Repr::U64).within(0, 0xffff);
    let mask = lowering.slot(small, Literal::Int(i128::from(slice.parts) - 1));
    let index = lowering.slot(small.within(0, 0x7fff), Literal::Int(i128::from(slice.index)));
    let part = lowering.graph.bitwise(Bitwise::And, high, mask).map_err(e)?;
    lowering.graph.compare(Comparison::Equal, part, index).map_err(e)
}

/// Looks up the keys of the current row.
pub fn matches(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &BuildForm,
) -> Result<Matches, Reason> {
    let keys = keys(lowering, scope, join, &build.keys, false)?;
    let table = join_table(lowering, build);
    let list = lowering.graph.probe(table, &build.table, &keys).map_err(|e| graph_refused(&e))?;
    let found = lowering.graph.test(Test::IsNotNull, list).map_err(|e| graph_refused(&e))?;
    Ok(Matches { list, found })
}

/// The number of the build row of a row with one match; NULL if it has none.
pub fn build_row(lowering: &mut Lowering<'_>, matches: Matches) -> Result<NodeId, Reason> {
    lowering.graph.match_start(matches.list).map_err(|e| graph_refused(&e))
}

/// The number of the build row of an expanded row, whose matches begin at `start`.
pub fn listed_row(lowering: &mut Lowering<'_>, start: NodeId, build: &BuildForm) -> Result<NodeId, Reason> {
    let ordinal = lowering.graph.ordinal();
    let place = lowering.graph.arithmetic(Arithmetic::Add, start, ordinal, Overflow::Wrap);
    let place = place.map_err(|e| graph_refused(&e))?;
    if !build.table.lists {
        return Ok(place);
    }
    let table = lowering.lookup_table(LookupTable::Matches { build: build.build });
    lowering.graph.lookup(place, table, Ty::new(Repr::U32)).map_err(|e| graph_refused(&e))
}

/// Column `index` of the build side, in row `row`.
fn build_value(lowering: &mut Lowering<'_>, build: &BuildForm, index: usize, row: NodeId) -> Result<Value, Reason> {
    let missing = || Reason::ExprUnsupported { expr: format!("column {index}"), why: "it is not there".into() };
    let column = build.columns.get(index).ok_or_else(missing)?;
    let ty = column.ty()?;
    let table = lowering.lookup_table(LookupTable::BuildColumn { build: build.build, column: index, ty });
    let node = lowering.graph.lookup(row, table, ty).map_err(|e| graph_refused(&e))?;
    Ok(Value { node, data_type: column.data_type.clone(), dictionary: column.form.dictionary() })
}

/// A column of either side: `scope` is the probe side's row, `row` the build side's.
fn join_value(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    build: &BuildForm,
    column: JoinColumn,
    row: Option<NodeId>,
    mark: Option<NodeId>,
) -> Result<Value, Reason> {
    match (column, row, mark) {
        (JoinColumn::Probe(index), ..) => scope.column(index),
        (JoinColumn::Build(index), Some(row), _) => build_value(lowering, build, index, row),
        (JoinColumn::Mark, _, Some(node)) => Ok(Value { node, data_type: DataType::Boolean, dictionary: None }),
        _ => Err(Reason::ExprUnsupported { expr: format!("{column:?}"), why: "this join has none".into() }),
    }
}

/// The join's condition on a pair of rows, if it has one: true, false or NULL.
pub fn residual(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &BuildForm,
    row: NodeId,
) -> Result<Option<NodeId>, Reason> {
    let Some(residual) = join.residual() else { return Ok(None) };
    let mut values = Vec::with_capacity(residual.columns.len());
    for (column, field) in residual.columns.iter().zip(residual.schema.fields()) {
        let value = join_value(lowering, scope, build, *column, Some(row), None);
        values.push((field.name().clone(), value, field.data_type().clone()));
    }
    let pair = Scope::new(values);
    Ok(Some(lowering.predicate(&residual.expression, &pair)?))
}

/// The output columns of the join.
pub fn joined(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &BuildForm,
    row: Option<NodeId>,
    mark: Option<NodeId>,
) -> Result<Scope, Reason> {
    use datafusion::physical_plan::ExecutionPlan;
    let schema = join.schema();
    let mut values = Vec::with_capacity(join.columns().len());
    for (column, field) in join.columns().iter().zip(schema.fields()) {
        let value = join_value(lowering, scope, build, *column, row, mark);
        values.push((field.name().clone(), value, field.data_type().clone()));
    }
    Ok(Scope::new(values))
}

/// A join in which a row has at most one match, or in which only the existence of a match counts; adds the
/// conditions for its rows to `filters`. If unmatched build rows are kept, the second result is the matched build
/// row.
pub fn join_in_place(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &BuildForm,
    filters: &mut Vec<NodeId>,
) -> Result<(Scope, Option<NodeId>), Reason> {
    let matches = matches(lowering, scope, join, build)?;
    let e = |e| graph_refused(&e);
    let mut kept = None;
    let joined = match join.kind() {
        JoinKind::Inner | JoinKind::BuildOuter => {
            filters.push(matches.found);
            let list = lowering.graph.present(matches.list);
            let row = build_row(lowering, Matches { list, ..matches })?;
            filters.extend(residual(lowering, scope, join, build, row)?);
            kept = Some(row);
            joined(lowering, scope, join, build, Some(row), None)
        }
        JoinKind::Outer | JoinKind::Full => {
            let mut row = build_row(lowering, matches)?;
            if let Some(holds) = residual(lowering, scope, join, build, row)? {
                let holds = lowering.graph.test(Test::IsTrue, holds).map_err(e)?;
                row = lowering.graph.case(vec![(holds, row)], None).map_err(e)?;
            }
            kept = Some(row);
            joined(lowering, scope, join, build, Some(row), None)
        }
        JoinKind::Semi | JoinKind::Anti | JoinKind::Mark => {
            let mut found = matches.found;
            if join.residual().is_some() {
                let row = build_row(lowering, matches)?;
                if let Some(holds) = residual(lowering, scope, join, build, row)? {
                    let holds = lowering.graph.test(Test::IsTrue, holds).map_err(e)?;
                    found = lowering.graph.and(found, holds).map_err(e)?;
                }
            }
            match join.kind() {
                JoinKind::Semi => filters.push(found),
                JoinKind::Anti => filters.push(lowering.graph.not(found).map_err(e)?),
                _ => {}
            }
            joined(lowering, scope, join, build, None, Some(found))
        }
        JoinKind::NullAwareAnti => {
            if build.has_null_keys {
                filters.push(lowering.graph.boolean(false));
            } else if !build.is_empty {
                filters.push(lowering.graph.not(matches.found).map_err(e)?);
                for key in keys(lowering, scope, join, &build.keys, false)? {
                    if lowering.graph.ty(key).nullable {
                        filters.push(lowering.graph.test(Test::IsNotNull, key).map_err(e)?);
                    }
                }
            }
            joined(lowering, scope, join, build, None, None)
        }
        kind => Err(Reason::ExprUnsupported { expr: format!("{kind:?}"), why: "its rows are not in one place".into() }),
    };
    Ok((joined?, kept.filter(|_| join.kind().keeps_build_rows())))
}

/// For a join about build rows: the position to mark for the current row. If no key has two rows, that is the build
/// row; otherwise the position of the key's rows in the table, which represents all of them.
pub fn to_mark(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &BuildForm,
    filters: &mut Vec<NodeId>,
) -> Result<NodeId, Reason> {
    let matches = matches(lowering, scope, join, build)?;
    filters.push(matches.found);
    let list = lowering.graph.present(matches.list);
    let row = build_row(lowering, Matches { list, ..matches })?;
    filters.extend(residual(lowering, scope, join, build, row)?);
    Ok(row)
}

/// Whether the current row, one of the build side, is marked.
pub fn build_row_marked(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    join: &DeviceJoinExec,
    build: &BuildForm,
) -> Result<NodeId, Reason> {
    let e = |e| graph_refused(&e);
    let by_row = !build.has_duplicates || join.residual().is_some();
    let place = if by_row {
        lowering.graph.source_row()
    } else {
        let keys = keys(lowering, scope, join, &build.keys, true)?;
        let table = join_table(lowering, build);
        let list = lowering.graph.probe(table, &build.table, &keys).map_err(e)?;
        lowering.graph.match_start(list).map_err(e)?
    };
    let table = lowering.lookup_table(LookupTable::Marks);
    let marked = lowering.graph.lookup(place, table, LookupTable::Marks.ty()).map_err(e)?;
    // A NULL key has no position, and no match.
    lowering.graph.test(Test::IsTrue, marked).map_err(e)
}

/// The number of the join table of `build`.
fn join_table(lowering: &mut Lowering<'_>, build: &BuildForm) -> u32 {
    let entry = (build.build, build.table.clone());
    let known = lowering.tables.iter().position(|table| *table == entry);
    known.unwrap_or_else(|| {
        lowering.tables.push(entry);
        lowering.tables.len() - 1
    }) as u32
}

/// True for joins that only determine whether a row of the probe side has a match.
fn is_about_existence(kind: JoinKind) -> bool {
    matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::Mark | JoinKind::NullAwareAnti)
}

/// Whether rows of the probe side stay in place, with at most one output row each: then the join is a stage like a
/// filter.
pub fn stays_in_place(join: &DeviceJoinExec, build: &BuildForm) -> bool {
    let about_existence = is_about_existence(join.kind()) || join.kind().is_about_build_rows();
    !build.has_duplicates || about_existence && join.residual().is_none()
}
