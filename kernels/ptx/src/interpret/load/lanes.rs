//! Decodes collective instructions: barriers, shuffles, votes, matches, reductions.

use super::body::Body;
use crate::ast::{Instruction, Operand};
use crate::interpret::alu::Source;
use crate::interpret::image::LoadError;
use crate::interpret::op::*;

impl Body<'_> {
    pub fn barrier(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        let opcode = &instruction.opcode;
        let operands = instruction.operands.as_slice();
        if opcode.has("cluster") {
            return self.fail("clusters need a newer target than sm_70");
        }
        if opcode.has("warp") {
            let [mask] = operands else { return self.fail("takes a mask of lanes") };
            return Ok(Op::WarpBarrier { mask: self.value(mask)? });
        }
        let aligned = opcode.name == "bar" || opcode.has("aligned");
        let mut barrier = Barrier { id: self.number(0), count: None, waits: true, aligned, reduce: None };
        let mut rest = operands;
        if opcode.has("red") {
            let kind = match (opcode.has("popc"), opcode.has("and"), opcode.has("or")) {
                (true, false, false) => BarrierReduction::Count,
                (false, true, false) => BarrierReduction::And,
                (false, false, true) => BarrierReduction::Or,
                _ => return self.fail("reduces by one of .popc, .and, .or"),
            };
            let [to, middle @ .., predicate] = operands else {
                return self.fail("takes a register, a barrier, a predicate");
            };
            let (source, negated) = self.predicate(predicate)?;
            barrier.reduce = Some((kind, source, negated, self.destination(to)?));
            rest = middle;
        } else if opcode.has("arrive") {
            barrier.waits = false;
        } else if !opcode.has("sync") {
            return self.fail("is one of .sync, .arrive, .red, .warp.sync");
        }
        match rest {
            [id] => barrier.id = self.value(id)?,
            [id, count] => {
                barrier.id = self.value(id)?;
                barrier.count = Some(self.value(count)?);
            }
            _ => return self.fail("takes a barrier and, if not all threads take part, their number"),
        }
        if !barrier.waits && barrier.count.is_none() {
            return self.fail("`.arrive` needs the number of threads");
        }
        Ok(Op::Barrier(Box::new(barrier)))
    }

    /// `p` or `!p`.
    fn predicate(&mut self, operand: &Operand) -> Result<(Source, bool), LoadError> {
        match operand {
            Operand::Not(inner) => Ok((self.value(inner)?, true)),
            other => Ok((self.value(other)?, false)),
        }
    }

    /// `d` or `d|p`.
    fn pair(&mut self, operand: &Operand) -> Result<(u32, u32), LoadError> {
        match operand {
            Operand::Pair(first, second) => Ok((self.destination(first)?, self.destination(second)?)),
            other => Ok((self.destination(other)?, SINK)),
        }
    }

    fn needs_sync(&self, instruction: &Instruction) -> Result<(), LoadError> {
        if instruction.opcode.has("sync") {
            return Ok(());
        }
        self.fail("without `.sync` it does not exist for sm_70 and newer")
    }

    pub fn shuffle(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        self.needs_sync(instruction)?;
        let has = |name| instruction.opcode.has(name);
        let mode = match (has("up"), has("down"), has("bfly"), has("idx")) {
            (true, false, false, false) => ShuffleMode::Up,
            (false, true, false, false) => ShuffleMode::Down,
            (false, false, true, false) => ShuffleMode::Butterfly,
            (false, false, false, true) => ShuffleMode::Index,
            _ => return self.fail("is one of .up, .down, .bfly, .idx"),
        };
        let [to, value, lane, clamp, mask] = instruction.operands.as_slice() else {
            return self.fail("takes d|p, value, lane, clamp, mask");
        };
        let (to, valid) = self.pair(to)?;
        Ok(Op::Shuffle(Box::new(Shuffle {
            mode,
            to,
            valid,
            value: self.value(value)?,
            lane: self.value(lane)?,
            clamp: self.value(clamp)?,
            mask: self.value(mask)?,
        })))
    }

    pub fn vote(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        self.needs_sync(instruction)?;
        let has = |name| instruction.opcode.has(name);
        let mode = match (has("all"), has("any"), has("uni"), has("ballot")) {
            (true, false, false, false) => VoteMode::All,
            (false, true, false, false) => VoteMode::Any,
            (false, false, true, false) => VoteMode::Uniform,
            (false, false, false, true) => VoteMode::Ballot,
            _ => return self.fail("is one of .all, .any, .uni, .ballot"),
        };
        let [to, predicate, mask] = instruction.operands.as_slice() else {
            return self.fail("takes a register, a predicate, a mask");
        };
        let (predicate, negated) = self.predicate(predicate)?;
        let to = self.destination(to)?;
        Ok(Op::Vote(Box::new(Vote { mode, to, predicate, negated, mask: self.value(mask)? })))
    }

    pub fn matching(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        self.needs_sync(instruction)?;
        let all = instruction.opcode.has("all");
        if all == instruction.opcode.has("any") {
            return self.fail("is one of .all, .any");
        }
        let [to, value, mask] = instruction.operands.as_slice() else {
            return self.fail("takes a register, a value, a mask");
        };
        let (to, valid) = self.pair(to)?;
        let wide = instruction.opcode.has("b64");
        Ok(Op::Match(Box::new(Match { all, to, valid, value: self.value(value)?, wide, mask: self.value(mask)? })))
    }

    pub fn redux(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        self.needs_sync(instruction)?;
        let opcode = &instruction.opcode;
        let signed = opcode.has("s32");
        let kind = match opcode.modifiers.iter().find(|modifier| modifier.as_str() != "sync").map(String::as_str) {
            Some("add") => AtomicKind::Add,
            Some("min") if signed => AtomicKind::MinSigned,
            Some("min") => AtomicKind::MinUnsigned,
            Some("max") if signed => AtomicKind::MaxSigned,
            Some("max") => AtomicKind::MaxUnsigned,
            Some("and") => AtomicKind::And,
            Some("or") => AtomicKind::Or,
            Some("xor") => AtomicKind::Xor,
            _ => return self.fail("is one of .add, .min, .max, .and, .or, .xor"),
        };
        let [to, value, mask] = instruction.operands.as_slice() else {
            return self.fail("takes a register, a value, a mask");
        };
        let to = self.destination(to)?;
        Ok(Op::Reduce(Box::new(Reduce { kind, to, value: self.value(value)?, mask: self.value(mask)? })))
    }
}
