//! OVERLAY: a text with some of its characters replaced, over any columns.
//!
//!   overlay(s placing t from p for n)   ──►  concatenate(left(s, p - 1), t, substring(s, p + n, all))
//!
//! NULL     if any argument is NULL.
//! Numbers  are clamped to the length that a text can have: sums of them stay within 64 bits. A position below 1 is an
//!          error, as in DataFusion.

use millpond_kernels::codegen::ir::{
    Arithmetic, Comparison, Graph, GraphError, MAX_TEXT_BYTES, NodeId, Overflow, Repr, Test, TextFunction,
};

use crate::column::is_characters;
use crate::expr::row::Call;
use crate::expr::{Lowered, Lowering, Value, refusal};

impl Lowering<'_> {
    /// `overlay(text, characters, place[, number])`.
    pub(super) fn overlay(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [text, characters, numbers @ ..] = call.arguments else { return Ok(None) };
        let mut texts = Vec::with_capacity(2);
        for argument in [text, characters] {
            let value = self.lower(argument, call.scope)?;
            if !is_characters(&value.data_type) {
                return Err(refusal(format!("it has no device form over {}", value.data_type)));
            }
            texts.push(self.as_text(&value)?);
        }
        let mut places = Vec::with_capacity(2);
        for argument in numbers {
            let node = self.lower(argument, call.scope)?.node;
            if !self.graph.ty(node).repr.is_integer() {
                return Err(refusal("its places are no integers"));
            }
            places.push(self.graph.convert(node, Repr::I64, Overflow::Fail)?);
        }
        let node = match (texts.as_slice(), places.as_slice()) {
            ([text, characters], [place]) => {
                let number = self.graph.text(TextFunction::Characters, &[*characters]);
                number.and_then(|number| laid_over(&mut self.graph, (*text, *characters), (*place, number)))
            }
            ([text, characters], [place, number]) => {
                laid_over(&mut self.graph, (*text, *characters), (*place, *number))
            }
            _ => return Ok(None),
        };
        call.plain(node?)
    }
}

fn laid_over(
    graph: &mut Graph,
    (text, characters): (NodeId, NodeId),
    (place, number): (NodeId, NodeId),
) -> Result<NodeId, GraphError> {
    let (zero, one) = (graph.integer(0, Repr::I64), graph.integer(1, Repr::I64));
    // If another argument is NULL, the position is not checked; the result is NULL.
    let mut there = graph.boolean(true);
    for argument in [text, characters, number] {
        let valid = graph.test(Test::IsNotNull, argument)?;
        there = graph.and(there, valid)?;
    }
    let place = graph.case(vec![(there, place)], None)?;
    let is_place = graph.compare(Comparison::GreaterEqual, place, one)?;
    let place = graph.require(place, is_place, Overflow::Fail)?;
    let place = within_a_text(graph, place)?;
    let before = graph.arithmetic(Arithmetic::Subtract, place, one, Overflow::Wrap)?;
    let number = within_a_text(graph, number)?;
    let end = graph.arithmetic(Arithmetic::Add, before, number, Overflow::Wrap)?;
    let is_behind = graph.compare(Comparison::Greater, end, zero)?;
    let end = graph.case(vec![(is_behind, end)], Some(zero))?;
    let from = graph.arithmetic(Arithmetic::Add, end, one, Overflow::Wrap)?;
    let all = graph.integer(i64::MAX.into(), Repr::I64);
    let first = graph.text(TextFunction::Left, &[text, before])?;
    let rest = graph.text(TextFunction::Substring, &[text, from, all])?;
    graph.text(TextFunction::Concatenate { strict: true }, &[first, characters, rest])
}

/// A number clamped to the length that a text can have, on either side of 0.
fn within_a_text(graph: &mut Graph, number: NodeId) -> Result<NodeId, GraphError> {
    let (low, high) = (graph.integer(-LIMIT, Repr::I64), graph.integer(LIMIT, Repr::I64));
    let below = graph.compare(Comparison::Less, number, low)?;
    let above = graph.compare(Comparison::Greater, number, high)?;
    graph.case(vec![(below, low), (above, high)], Some(number))
}

/// Number of characters that exceeds any text.
const LIMIT: i128 = MAX_TEXT_BYTES as i128 + 1;
