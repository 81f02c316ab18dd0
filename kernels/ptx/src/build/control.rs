//! Structured control flow: branches, loops, early exits, guards, special registers and warp-level exchange.

use super::{Compare, FunctionBuilder, Reg, Value};
use crate::ast::{Guard, Operand, Span, Statement, Type};

/// An open branch, to be closed by [`FunctionBuilder::close`].
#[must_use = "an open branch must be closed"]
#[derive(Debug)]
pub struct Open {
    end: String,
}

impl FunctionBuilder {
    pub(super) fn fresh_label(&mut self, what: &str) -> String {
        self.labels += 1;
        format!("$L_{what}_{}", self.labels)
    }

    pub(super) fn place(&mut self, label: &str) {
        if self.guard.is_some() {
            self.refuse("control flow inside a guard".to_string());
        }
        self.statements.push(Statement::Label { name: label.to_string(), span: Span::NONE });
    }

    fn branch(&mut self, condition: Option<(Reg, bool)>, to: &str) {
        if self.guard.is_some() {
            self.refuse("control flow inside a guard".to_string());
        }
        self.guard = condition.map(|(reg, holds)| Guard { negated: !holds, register: reg.name() });
        if let Some((reg, _)) = condition {
            self.expect_type("bra", Type::Pred, reg);
        }
        self.emit("bra", vec![Operand::Name(to.to_string())]);
        self.guard = None;
    }

    /// Runs `then` in the threads where `condition` holds.
    pub fn if_<T>(&mut self, condition: Reg, then: impl FnOnce(&mut Self) -> T) -> T {
        let open = self.open_if(condition);
        let result = then(self);
        self.close(open);
        result
    }

    /// Runs `then` in the threads where `condition` does not hold.
    pub fn unless<T>(&mut self, condition: Reg, then: impl FnOnce(&mut Self) -> T) -> T {
        let end = self.fresh_label("end");
        self.branch(Some((condition, true)), &end);
        let result = then(self);
        self.place(&end);
        result
    }

    /// Like [`Self::if_`] without a closure: the instructions until [`Self::close`] run where `condition` holds.
    pub fn open_if(&mut self, condition: Reg) -> Open {
        let end = self.fresh_label("end");
        self.branch(Some((condition, false)), &end);
        Open { end }
    }

    pub fn close(&mut self, open: Open) {
        self.place(&open.end);
    }

    /// Runs `then` where `condition` holds and `otherwise` where it does not.
    pub fn if_else(&mut self, condition: Reg, then: impl FnOnce(&mut Self), otherwise: impl FnOnce(&mut Self)) {
        let (else_label, end) = (self.fresh_label("else"), self.fresh_label("end"));
        self.branch(Some((condition, false)), &else_label);
        then(self);
        self.branch(None, &end);
        self.place(&else_label);
        otherwise(self);
        self.place(&end);
    }

    /// Runs `body` while `condition` holds; the condition is evaluated before each iteration.
    pub fn while_<T>(&mut self, condition: impl FnOnce(&mut Self) -> Reg, body: impl FnOnce(&mut Self) -> T) -> T {
        let (again, end) = (self.fresh_label("while"), self.fresh_label("end"));
        self.place(&again);
        let holds = condition(self);
        self.branch(Some((holds, false)), &end);
        self.loops.push((again.clone(), end.clone()));
        let result = body(self);
        self.loops.pop();
        self.branch(None, &again);
        self.place(&end);
        result
    }

    /// Runs `body` forever; leave the loop with [`Self::break_if`].
    pub fn loop_<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let (again, end) = (self.fresh_label("loop"), self.fresh_label("end"));
        self.place(&again);
        self.loops.push((again.clone(), end.clone()));
        let result = body(self);
        self.loops.pop();
        self.branch(None, &again);
        self.place(&end);
        result
    }

    /// Leaves the innermost loop where `condition` holds.
    pub fn break_if(&mut self, condition: Reg) {
        match self.loops.last().cloned() {
            Some((_, end)) => self.branch(Some((condition, true)), &end),
            None => self.refuse("break_if outside a loop".to_string()),
        }
    }

    /// Starts the next iteration of the innermost loop where `condition` holds. In [`Self::for_`] the counter does not
    /// advance.
    pub fn continue_if(&mut self, condition: Reg) {
        match self.loops.last().cloned() {
            Some((again, _)) => self.branch(Some((condition, true)), &again),
            None => self.refuse("continue_if outside a loop".to_string()),
        }
    }

    /// Runs `body` for `start`, `start + step`, … below `end`. The counter has the type of `end`.
    pub fn for_<T>(
        &mut self,
        start: impl Into<Value>,
        end: Reg,
        step: impl Into<Value>,
        body: impl FnOnce(&mut Self, Reg) -> T,
    ) -> T {
        let step = step.into();
        let counter = self.copy(end.ty(), start);
        self.while_(
            |f| f.setp(Compare::Lt, counter, end),
            |f| {
                let result = body(f, counter);
                let next = f.add(counter, step);
                f.assign(counter, next);
                result
            },
        )
    }

    /// Runs `body` for this thread's rows below `rows`: it starts at the global thread number and advances by the
    /// number of threads in the grid. The row has the type of `rows`, `U32` or `U64`.
    pub fn grid_stride<T>(&mut self, rows: Reg, body: impl FnOnce(&mut Self, Reg) -> T) -> T {
        let (thread, threads) = (self.global_thread(), self.grid_threads());
        let (start, step) = match rows.ty() {
            Type::U32 => (thread, threads),
            Type::U64 => (self.convert(Type::U64, thread), self.convert(Type::U64, threads)),
            other => {
                self.refuse(format!("grid_stride counts in u32 or u64, not {}", other.name()));
                (thread, threads)
            }
        };
        self.for_(start, rows, step, body)
    }

    /// Emits `body` under the guard `@condition`, or `@!condition` if `holds` is false. Straight-line code only.
    pub fn guarded<T>(&mut self, condition: Reg, holds: bool, body: impl FnOnce(&mut Self) -> T) -> T {
        if self.guard.is_some() {
            self.refuse("a guard inside a guard".to_string());
        }
        self.expect_type("guard", Type::Pred, condition);
        self.guard = Some(Guard { negated: !holds, register: condition.name() });
        let result = body(self);
        self.guard = None;
        result
    }

    /// Ends the thread.
    pub fn exit(&mut self) {
        self.emit("exit", Vec::new());
    }

    /// Returns from the function, or ends the thread of a kernel.
    pub fn ret(&mut self) {
        self.emit("ret", Vec::new());
    }

    /// Aborts the whole launch with an error.
    pub fn trap(&mut self) {
        self.emit("trap", Vec::new());
    }

    // Special registers

    /// A 32-bit special register by name: `%tid.x`, `%laneid`, `%lanemask_lt`, …
    pub fn special(&mut self, name: &str) -> Reg {
        let result = self.register(Type::U32);
        self.emit("mov.u32", vec![Operand::Name(result.name()), Operand::Name(name.to_string())]);
        result
    }

    pub fn thread_index(&mut self) -> Reg {
        self.special("%tid.x")
    }

    pub fn block_index(&mut self) -> Reg {
        self.special("%ctaid.x")
    }

    pub fn block_threads(&mut self) -> Reg {
        self.special("%ntid.x")
    }

    pub fn grid_blocks(&mut self) -> Reg {
        self.special("%nctaid.x")
    }

    pub fn lane(&mut self) -> Reg {
        self.special("%laneid")
    }

    /// Number of this thread in the whole grid.
    pub fn global_thread(&mut self) -> Reg {
        let (thread, block, threads) = (self.thread_index(), self.block_index(), self.block_threads());
        self.mad(block, threads, thread)
    }

    /// Number of threads in the whole grid.
    pub fn grid_threads(&mut self) -> Reg {
        let (threads, blocks) = (self.block_threads(), self.grid_blocks());
        self.mul(threads, blocks)
    }

    // Warps and blocks. All lanes of the mask must execute these together; the short forms use a mask of all 32 lanes.

    /// Waits until every thread of the block arrives.
    pub fn barrier(&mut self) {
        self.emit("bar.sync", vec![Operand::Integer(0)]);
    }

    /// One bit per lane: set where `condition` holds.
    pub fn ballot(&mut self, condition: Reg) -> Reg {
        self.vote("vote.sync.ballot.b32", Type::B32, condition)
    }

    pub fn any(&mut self, condition: Reg) -> Reg {
        self.vote("vote.sync.any.pred", Type::Pred, condition)
    }

    pub fn all(&mut self, condition: Reg) -> Reg {
        self.vote("vote.sync.all.pred", Type::Pred, condition)
    }

    fn vote(&mut self, opcode: &str, ty: Type, condition: Reg) -> Reg {
        self.expect_type(opcode, Type::Pred, condition);
        let result = self.register(ty);
        let operands =
            vec![Operand::Name(result.name()), Operand::Name(condition.name()), Operand::Integer(0xffff_ffff)];
        self.emit(opcode, operands);
        result
    }

    /// The 32-bit `value` of another lane: `mode` is `up`, `down`, `bfly` or `idx`; `clamp` as in the PTX manual.
    pub fn shuffle(&mut self, mode: &str, value: Reg, lane: impl Into<Value>, clamp: u32) -> Reg {
        let opcode = format!("shfl.sync.{mode}.b32");
        self.expect_type(&opcode, Type::B32, value.view(if value.ty().is_float() { value.ty() } else { Type::B32 }));
        let result = self.register(value.ty());
        let operands = vec![
            Operand::Name(result.name()),
            Operand::Name(value.name()),
            self.operand(&opcode, Type::U32, lane.into()),
            Operand::Integer(i128::from(clamp)),
            Operand::Integer(0xffff_ffff),
        ];
        self.emit(&opcode, operands);
        result
    }

    /// Like [`Self::shuffle`] for 64 bits, in two halves.
    pub fn shuffle64(&mut self, mode: &str, value: Reg, lane: impl Into<Value>, clamp: u32) -> Reg {
        let lane = lane.into();
        let (low, high) = self.unpack(value);
        let low = self.shuffle(mode, low, lane, clamp);
        let high = self.shuffle(mode, high, lane, clamp);
        let both = self.pack(low, high);
        self.reinterpret(value.ty(), both)
    }
}
