//! Functions of texts: compiled helpers that are pasted into the module, called with an address and a number of bytes.
//!
//!   o_comment LIKE '%special%requests%'   ──►  call (r), text_like, (at, bytes, pattern, pattern bytes);  setp.ne r, 0
//!
//! NULL     a text can be read even where it is NULL: helpers are called for every row, in step.
//! Parts    of a text (substrings, trimmed texts) are an address and a length in the same bytes; nothing is copied.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, Reg, Value as Operand};

use super::lanes::Number;
use super::{Computed, Row};
use crate::codegen::ir::{ErrorCode, Lane, NodeId, TextFunction, lane};
use crate::codegen::text::paste;
use crate::codegen::value::{CodegenError, Value};

impl Row<'_, '_> {
    /// Calls a helper of the image.
    fn call(&mut self, name: &str, arguments: &[Operand]) -> Result<Vec<Reg>, CodegenError> {
        let callee = paste(self.module, name)?;
        Ok(self.f.call(&callee, arguments))
    }

    /// Where a helper's result is not 0.
    fn call_predicate(&mut self, name: &str, arguments: &[Operand]) -> Result<Reg, CodegenError> {
        let result = self.call(name, arguments)?;
        Ok(self.f.setp(Compare::Ne, result[0].view(Type::U32), 0u32))
    }

    /// Address and number of bytes as arguments.
    fn text_arguments(&mut self, number: Number) -> [Operand; 2] {
        let (at, bytes) = number.words(self.f);
        [at.into(), bytes.view(Type::U64).into()]
    }

    /// A text as the two words of its view.
    pub(super) fn view(&mut self, text: Computed) -> Result<Value, CodegenError> {
        let (at, bytes) = text.number.words(self.f);
        let bytes = bytes.view(Type::U64);
        let bytes = match text.valid {
            Some(valid) => self.f.select(valid, bytes, 0u64),
            None => bytes,
        };
        let words = self.call("text_view", &[at.into(), bytes.into()])?;
        let [low, high] = [words[0].view(Type::U64), words[1].view(Type::S64)];
        Ok(Value { lane: Lane::Text, low, high: Some(high), valid: text.valid })
    }

    /// Compares the bytes of two texts.
    pub(super) fn relate_texts(&mut self, relation: Compare, a: Number, b: Number) -> Result<Reg, CodegenError> {
        let arguments = [self.text_arguments(a), self.text_arguments(b)].concat();
        match relation {
            Compare::Eq => self.call_predicate("text_equal", &arguments),
            Compare::Ne => {
                let equal = self.call("text_equal", &arguments)?;
                Ok(self.f.setp(Compare::Eq, equal[0].view(Type::U32), 0u32))
            }
            _ => {
                let order = self.call("text_compare", &arguments)?;
                Ok(self.f.setp(relation, order[0].view(Type::S32), 0))
            }
        }
    }

    pub(super) fn text(&mut self, id: NodeId, function: TextFunction, of: &[NodeId]) -> Result<Computed, CodegenError> {
        let mut arguments = Vec::new();
        let mut numbers = Vec::new();
        let mut valid = None;
        for &input in of {
            let Computed { number, valid: own } = self.node(input)?;
            valid = self.both_valid(valid, own);
            if number.lane == Lane::Text {
                arguments.extend(self.text_arguments(number));
            } else {
                let wide = number.to(self.f, Lane::S64).low_reg(self.f);
                numbers.push(wide);
                arguments.push(wide.into());
            }
        }
        let name = match function {
            TextFunction::Like => "text_like",
            TextFunction::LikeAnyCase => "text_ilike",
            TextFunction::StartsWith => "text_starts",
            TextFunction::EndsWith => "text_ends",
            TextFunction::Contains => "text_contains",
            TextFunction::Characters => "text_characters",
            TextFunction::Position => "text_position",
            TextFunction::Substring => "text_substring",
            TextFunction::Left => "text_left",
            TextFunction::Right => "text_right",
            TextFunction::TrimStart | TextFunction::TrimEnd | TextFunction::TrimBoth => "text_trim",
            TextFunction::Word { .. } => "text_word",
            TextFunction::Hash => "text_hash",
            TextFunction::Bytes => {
                let bytes = arguments[1];
                let number = Number { lane: Lane::S64, low: bytes, high: None };
                return Ok(Computed { number: number.to(self.f, lane(self.ty(id))), valid });
            }
        };
        match function {
            TextFunction::Substring => {
                let (start, count) = (numbers[0], numbers[1]);
                if self.graph.fails(id) {
                    let negative = self.f.setp(Compare::Lt, count, 0);
                    let least = self.f.setp(Compare::Eq, start, i64::MIN);
                    let refused = self.f.or(negative, least);
                    let refused = self.where_valid(refused, valid);
                    self.fail(id, ErrorCode::Argument, refused)?;
                }
            }
            TextFunction::TrimStart => arguments.push(1u32.into()),
            TextFunction::TrimEnd => arguments.push(2u32.into()),
            TextFunction::TrimBoth => arguments.push(3u32.into()),
            TextFunction::Word { index } => arguments.push(u64::from(index).into()),
            _ => {}
        }
        let number = match lane(self.ty(id)) {
            Lane::Pred => Number::reg(Lane::Pred, self.call_predicate(name, &arguments)?),
            Lane::Text => {
                let part = self.call(name, &arguments)?;
                Number::text(part[0].view(Type::U64), part[1].view(Type::U64))
            }
            own => Number::reg(Lane::U64, self.call(name, &arguments)?[0]).to(self.f, own),
        };
        Ok(Computed { number, valid })
    }
}
