//! Text functions: compiled helpers, pasted into the module and called with address and length in bytes.
//!
//!   o_comment LIKE '%special%requests%'   ──►  call (r), text_like, (at, bytes, pattern, pattern bytes);  setp.ne r, 0
//!
//! NULL     a text is readable even if it is NULL: helpers are called for every row, converged.
//! Parts    of a text (substrings, trimmed texts) are an address and a length within the text's bytes; nothing is
//!          copied.
//! New      texts are allocated in the launch's arena. If it is full, the error flag is raised and the text is empty.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, Reg, Value as Operand};

use super::lanes::Number;
use super::{Computed, Row};
use crate::codegen::ir::{ErrorCode, Lane, Node, NodeId, TextFunction, lane};
use crate::codegen::text::paste;
use crate::codegen::text_function::By;
use crate::codegen::value::{CodegenError, Emit, Value};

/// Addresses of empty texts: the arena had no room; the text cannot be created.
const FULL_ARENA: u64 = 0;
const REFUSED: u64 = 1;

impl Row<'_, '_> {
    /// Calls a helper of the image.
    fn call(&mut self, name: &str, arguments: &[Operand]) -> Result<Vec<Reg>, CodegenError> {
        let callee = paste(self.module, name)?;
        Ok(self.f.call(&callee, arguments))
    }

    /// Predicate: a helper's result is not 0.
    fn call_predicate(&mut self, name: &str, arguments: &[Operand]) -> Result<Reg, CodegenError> {
        let result = self.call(name, arguments)?;
        Ok(self.f.setp(Compare::Ne, result[0].view(Type::U32), 0u32))
    }

    /// Address and length in bytes as arguments.
    fn text_arguments(&mut self, number: Number) -> [Operand; 2] {
        let (at, bytes) = number.words(self.f);
        [at.into(), bytes.view(Type::U64).into()]
    }

    /// The view of a text that is stored as a view; `None` if a view has to be built.
    pub(super) fn view_at_hand(&mut self, id: NodeId) -> Result<Option<Value>, CodegenError> {
        if !self.graph.contains(id) || self.lane(id) != Lane::Text {
            return Ok(None);
        }
        let graph = self.graph;
        let view = match graph.node(id) {
            Node::Column { index } => {
                let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
                self.leaves.column_view(&mut emit, *index)?
            }
            Node::Lookup { code, table } => {
                let code = self.code(*code)?;
                let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
                self.leaves.lookup_view(&mut emit, *table, code)?
            }
            _ => None,
        };
        let nullable = self.ty(id).nullable;
        Ok(view.map(|view| Value { valid: view.valid.filter(|_| nullable), ..view }))
    }

    /// Converts a text to the two words of its view.
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
        let spec = function.spec();
        if spec.by == By::Concatenate {
            return self.concatenate(id, function, of);
        }
        let makes = spec.arena.is_some();
        let mut computed = Vec::with_capacity(of.len());
        let mut valid = None;
        for &input in of {
            let value = self.node(input)?;
            valid = self.both_valid(valid, value.valid);
            computed.push(value);
        }
        let mut arguments = Vec::new();
        let mut numbers = Vec::new();
        for Computed { number, .. } in computed {
            if number.lane == Lane::Text {
                let [at, bytes] = self.text_arguments(number);
                // Helpers that create texts get an empty text for NULL.
                let bytes = if makes { self.only_where(valid, bytes) } else { bytes };
                arguments.extend([at, bytes]);
            } else {
                let wide = number.to(self.f, Lane::S64).low_reg(self.f);
                let wide = if makes { self.only_where(valid, wide.into()) } else { wide.into() };
                if let Operand::Reg(wide) = wide {
                    numbers.push(wide);
                }
                arguments.push(wide);
            }
        }
        let name = match spec.by {
            By::Helper(name) | By::Guarded(name) | By::Automata(name) | By::Parse(name, _) => name,
            By::Concatenate => unreachable!("it is made of calls of its own"),
            By::Slice => {
                let Operand::Reg(at) = arguments[0] else { unreachable!("an address is computed") };
                // The slice of a NULL is empty, whatever the numbers are.
                let (from, to) = (numbers[0].view(Type::U64), numbers[1].view(Type::U64));
                let (from, to) = match valid {
                    Some(valid) => (self.f.select(valid, from, 0u64), self.f.select(valid, to, 0u64)),
                    None => (from, to),
                };
                let (at, bytes) = (self.f.add(at, from), self.f.sub(to, from));
                return Ok(Computed { number: Number::text(at, bytes), valid });
            }
            By::Bytes => {
                let bytes = arguments[1];
                let number = Number { lane: Lane::S64, low: bytes, high: None };
                return Ok(Computed { number: number.to(self.f, lane(self.ty(id))), valid });
            }
        };
        let guarded = matches!(spec.by, By::Guarded(_));
        if guarded && self.graph.fails(id) {
            let (start, count) = (numbers[0], numbers[1]);
            let negative = self.f.setp(Compare::Lt, count, 0);
            let least = self.f.setp(Compare::Eq, start, i64::MIN);
            let refused = self.f.or(negative, least);
            let refused = self.where_valid(refused, valid);
            self.fail(id, ErrorCode::Argument, refused)?;
        }
        arguments.extend(spec.constant);
        if makes {
            let (arena, room) = self.arena()?;
            arguments.extend([arena, room].map(Operand::from));
        }
        if let By::Parse(_, overflow) = spec.by {
            let words = self.call(name, &arguments)?;
            let unfit = self.f.setp(Compare::Eq, words[1].view(Type::U64), 0u64);
            let valid = self.overflowed(id, ErrorCode::Cast, unfit, valid, overflow)?;
            let number = Number::reg(Lane::S64, words[0].view(Type::S64)).to(self.f, lane(self.ty(id)));
            return Ok(Computed { number, valid });
        }
        if let By::Automata(_) = spec.by {
            let number = self.regex(id, name, &arguments, valid)?;
            return Ok(Computed { number, valid });
        }
        let number = match lane(self.ty(id)) {
            Lane::Pred => Number::reg(Lane::Pred, self.call_predicate(name, &arguments)?),
            Lane::Text => {
                let part = self.call(name, &arguments)?;
                let (at, bytes) = (part[0].view(Type::U64), part[1].view(Type::U64));
                if self.graph.fails(id) && !guarded {
                    let refused = self.f.setp(Compare::Eq, at, REFUSED);
                    let refused = self.where_valid(refused, valid);
                    self.fail(id, ErrorCode::Argument, refused)?;
                }
                if makes {
                    self.check_room(id, at, valid)?;
                }
                Number::text(at, bytes)
            }
            own => Number::reg(Lane::U64, self.call(name, &arguments)?[0]).to(self.f, own),
        };
        Ok(Computed { number, valid })
    }

    /// Result of the automata for a text. If they cannot decide, the error flag is raised; the helper signals that by
    /// an invalid number.
    fn regex(
        &mut self,
        id: NodeId,
        name: &str,
        arguments: &[Operand],
        valid: Option<Reg>,
    ) -> Result<Number, CodegenError> {
        let said = self.call(name, arguments)?[0];
        let own = lane(self.ty(id));
        let fails = self.graph.fails(id);
        if own == Lane::Pred {
            let said = said.view(Type::U32);
            if fails {
                let refused = self.f.setp(Compare::Gt, said, 1u32);
                let refused = self.where_valid(refused, valid);
                self.fail(id, ErrorCode::Argument, refused)?;
            }
            return Ok(Number::reg(Lane::Pred, self.f.setp(Compare::Eq, said, 1u32)));
        }
        let mut number = said.view(Type::S64);
        if fails {
            let below = self.f.setp(Compare::Lt, number, 0);
            let refused = self.where_valid(below, valid);
            self.fail(id, ErrorCode::Argument, refused)?;
            number = self.f.select(below, 0, number).view(Type::S64);
        }
        Ok(Number::reg(Lane::S64, number).to(self.f, own))
    }

    /// `of` if `valid` is true, else 0.
    fn only_where(&mut self, valid: Option<Reg>, of: Operand) -> Operand {
        match valid {
            Some(valid) => self.f.select(valid, of, 0u64).into(),
            None => of,
        }
    }

    fn arena(&mut self) -> Result<(Reg, Reg), CodegenError> {
        let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
        self.leaves.arena(&mut emit)
    }

    /// Raises the error flag if the arena had no room for the text at `at`. NULL rows create nothing: their text has
    /// the address of its argument, which may be 0.
    fn check_room(&mut self, id: NodeId, at: Reg, valid: Option<Reg>) -> Result<(), CodegenError> {
        let full = self.f.setp(Compare::Eq, at, FULL_ARENA);
        let full = self.where_valid(full, valid);
        let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
        self.leaves.raise(&mut emit, ErrorCode::ArenaFull, id, full)
    }

    /// Concatenates texts: allocates room for all of them, then copies one after the other.
    fn concatenate(&mut self, id: NodeId, function: TextFunction, of: &[NodeId]) -> Result<Computed, CodegenError> {
        let mut computed = Vec::with_capacity(of.len());
        for &input in of {
            computed.push(self.node(input)?);
        }
        let mut whole = None;
        if function == (TextFunction::Concatenate { strict: true }) {
            for value in &computed {
                whole = self.both_valid(whole, value.valid);
            }
        }
        let mut parts: Vec<(Operand, Operand)> = Vec::with_capacity(2 * of.len());
        if function == TextFunction::Join {
            let separator = computed.remove(0);
            whole = separator.valid;
            let [at, bytes] = self.text_arguments(separator.number);
            // A separator precedes each text except the first that is not NULL.
            let mut begun: Option<Reg> = None;
            for value in computed {
                let here = match value.valid {
                    Some(valid) => valid,
                    None => self.f.constant_pred(true),
                };
                let here = self.where_valid(here, whole);
                if let Some(begun) = begun {
                    let between = self.f.and(begun, here);
                    parts.push((at, self.only_where(Some(between), bytes)));
                }
                let [own, own_bytes] = self.text_arguments(value.number);
                parts.push((own, self.only_where(Some(here), own_bytes)));
                begun = Some(match begun {
                    Some(begun) => self.f.or(begun, here),
                    None => here,
                });
            }
        } else {
            for value in computed {
                let [at, bytes] = self.text_arguments(value.number);
                let here = self.both_valid(whole, value.valid);
                parts.push((at, self.only_where(here, bytes)));
            }
        }
        let total = self.f.copy(Type::U64, 0u64);
        for &(_, bytes) in &parts {
            let sum = self.f.add(total, bytes);
            self.f.assign(total, sum);
        }
        let (arena, room) = self.arena()?;
        let begin = self.call("text_room", &[total.into(), arena.into(), room.into()])?[0].view(Type::U64);
        self.check_room(id, begin, None)?;
        let mut end = begin;
        for (at, bytes) in parts {
            end = self.call("text_append", &[end.into(), at, bytes])?[0].view(Type::U64);
        }
        // Empty if there was no room.
        let bytes = self.f.sub(end, begin);
        Ok(Computed { number: Number::text(begin, bytes), valid: whole })
    }
}
