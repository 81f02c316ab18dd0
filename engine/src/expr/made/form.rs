//! Values of a row and items of lists in one form: numbers unchanged, strings and nested values as codes into one
//! dictionary, or as texts.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use millpond_kernels::codegen::ir::{NodeId, Repr, Ty};

use crate::column::{DictionaryId, plain_repr};
use crate::expr::cast::{same_representation, same_strings};
use crate::expr::dictionary::{Dictionary, Lookup, LookupKind, StringPart};
use crate::expr::list::{List, itself};
use crate::expr::{Lowered, Lowering, Refusal, Value, refusal};

/// Values and items in one form: nodes, tables, and the dictionary of their codes.
pub(super) type InOneForm = (Vec<NodeId>, Vec<Lookup>, Option<DictionaryId>);

/// Strings and nested values.
pub(super) fn coded(
    lowering: &mut Lowering<'_>,
    item: &DataType,
    values: Vec<StringPart>,
    lists: &[List],
) -> Lowered<InOneForm> {
    let lookups = |kind: LookupKind, repr| {
        let lookup =
            |list: &List| Lookup { dictionary: list.items, kind: kind.clone(), ty: Ty::new(repr).nullable(true) };
        lists.iter().map(lookup).collect::<Vec<_>>()
    };
    if let Some(nodes) = lowering.texts(&values, item)? {
        return Ok((nodes, lookups(LookupKind::Text, Repr::Text), None));
    }
    if lists.is_empty() {
        let (nodes, id) = lowering.merged(&values, item)?;
        return Ok((nodes, vec![], Some(id)));
    }
    let mut parts: Vec<DictionaryId> = lists.iter().map(|list| list.items).collect();
    let mut constants: Vec<ScalarValue> = vec![];
    for value in &values {
        match value {
            StringPart::Constant(value) if value.is_null() || constants.contains(value) => {}
            StringPart::Constant(value) => constants.push(value.clone()),
            StringPart::Value(Value { dictionary: Some(id), data_type, .. })
                if data_type == item || same_strings(data_type, item) =>
            {
                parts.push(*id);
            }
            StringPart::Value(value) => {
                return Err(refusal(format!("it mixes {} and {item}", value.data_type)));
            }
        }
    }
    parts.sort();
    parts.dedup();
    let merged = Dictionary::Merged { parts, constants: constants.clone(), data_type: item.clone() };
    let merged = lowering.dictionaries.add(merged);
    let mut nodes = Vec::with_capacity(values.len());
    for value in &values {
        nodes.push(match value {
            StringPart::Constant(value) => match constants.iter().position(|known| known == value) {
                Some(code) => lowering.graph.integer(code as i128, Repr::U32),
                None => lowering.graph.null(Repr::U32),
            },
            StringPart::Value(value) => lowering.merged_code(value, merged)?,
        });
    }
    Ok((nodes, lookups(LookupKind::Merge(merged), Repr::U32), Some(merged)))
}

/// Numbers, dates, times, booleans.
pub(super) fn plain(
    lowering: &mut Lowering<'_>,
    item: &DataType,
    values: Vec<StringPart>,
    lists: &[List],
) -> Lowered<InOneForm> {
    let repr = plain_repr(item).ok_or_else(|| Refusal::Type(item.clone()))?;
    let mut nodes = Vec::with_capacity(values.len());
    for value in values {
        nodes.push(match value {
            StringPart::Constant(value) if value.is_null() => lowering.graph.null(repr),
            StringPart::Constant(value) => {
                let value = value.cast_to(item).map_err(|e| refusal(e.strip_backtrace()))?;
                lowering.literal(&value)?.node
            }
            StringPart::Value(value) if same_representation(&value.data_type, item) => value.node,
            StringPart::Value(value) => {
                return Err(refusal(format!("it mixes {} and {item}", value.data_type)));
            }
        });
    }
    let kind = LookupKind::Value(itself());
    let lookup = |list: &List| Lookup { dictionary: list.items, kind: kind.clone(), ty: Ty::new(repr).nullable(true) };
    Ok((nodes, lists.iter().map(lookup).collect(), None))
}
