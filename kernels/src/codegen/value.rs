//! The border between pipelines and expressions: what a value is, and what an expression asks of its surroundings.
//!
//!   pipeline ──► Expressions::value(node) ──► Value { registers of the node's lane, validity }
//!                      └──► Leaves: column i · literal slot i · lookup table i at a code · raise an error
//!
//! NULL     `valid: None` means never NULL. Registers of a NULL value hold anything, and are never an address or an index.
//! Scopes   a value computed inside a branch must not be remembered outside it. The pipeline opens its own branches only
//!          where everything below runs inside them, or between `push_scope` and `pop_scope` of the expressions.

use millpond_ptx::build::{FunctionBuilder, ModuleBuilder, Reg};

use super::ir::{ErrorCode, Lane, NodeId};

/// A value in registers, as its type's [`Lane`] says.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    pub lane: Lane,
    /// The register; the low half of a 128-bit value. Viewed as the lane's own type (`S32`, `U64`, `Pred`, …; `U64` for low halves).
    pub low: Reg,
    /// The high half of a 128-bit value, viewed as `S64`.
    pub high: Option<Reg>,
    /// A predicate that is true where the value is valid; `None`: always.
    pub valid: Option<Reg>,
}

/// The two builders that code goes to: module-level helpers are pasted into the one, instructions into the other.
pub struct Emit<'a> {
    pub module: &'a mut ModuleBuilder,
    pub f: &'a mut FunctionBuilder,
}

/// What an expression needs from the pipeline around it. Callers remember values; each call emits code.
pub trait Leaves {
    /// Loads column `index` of the current row.
    fn column(&mut self, emit: &mut Emit<'_>, index: u32) -> Result<Value, CodegenError>;

    /// Column `index` of the current row, a text, as the two words of its view: of no bytes where it is NULL. `None` if views
    /// are not what memory holds of it.
    fn column_view(&mut self, emit: &mut Emit<'_>, index: u32) -> Result<Option<Value>, CodegenError> {
        let _ = (emit, index);
        Ok(None)
    }

    /// Reads the literal in parameter slot `slot`.
    fn literal(&mut self, emit: &mut Emit<'_>, slot: u32) -> Result<Value, CodegenError>;

    /// Loads `table[code]`: NULL for a NULL code.
    fn lookup(&mut self, emit: &mut Emit<'_>, table: u32, code: Value) -> Result<Value, CodegenError>;

    /// `table[code]`, a text, as [`Self::column_view`] gives a column.
    fn lookup_view(&mut self, emit: &mut Emit<'_>, table: u32, code: Value) -> Result<Option<Value>, CodegenError> {
        let _ = (emit, table, code);
        Ok(None)
    }

    /// Looks `keys` up in join table `table`: a `U64` list of matches, NULL where there are none.
    fn probe(&mut self, emit: &mut Emit<'_>, table: u32, keys: &[Value]) -> Result<Value, CodegenError> {
        let _ = (emit, keys);
        Err(CodegenError::Malformed { what: format!("join table {table}"), why: "there is no such table".into() })
    }

    /// The number of the current row among those that its source row became (`U32`).
    fn ordinal(&mut self, emit: &mut Emit<'_>) -> Result<Value, CodegenError> {
        let _ = emit;
        Err(CodegenError::Malformed { what: "the number of a match".into(), why: "no row becomes several".into() })
    }

    /// The number of the current row in its extent (`U32`).
    fn source_row(&mut self, emit: &mut Emit<'_>) -> Result<Value, CodegenError> {
        let _ = emit;
        Err(CodegenError::Malformed { what: "the number of a row".into(), why: "there are no rows".into() })
    }

    /// Where texts are made: the address of the arena, and how many bytes of texts it has room for (`U64`).
    fn arena(&mut self, emit: &mut Emit<'_>) -> Result<(Reg, Reg), CodegenError> {
        let _ = emit;
        Err(CodegenError::Malformed { what: "a text that is made".into(), why: "there is no room for it".into() })
    }

    /// Raises the error flag in the threads where `when` holds. The thread goes on; its results are not used.
    fn raise(&mut self, emit: &mut Emit<'_>, code: ErrorCode, node: NodeId, when: Reg) -> Result<(), CodegenError>;
}

/// Why a pipeline has no kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodegenError {
    /// An expression that the generator cannot do: it runs on the CPU.
    #[error("{what} has no device form")]
    Unsupported { what: String },
    /// A spec that contradicts itself: a defect of the caller.
    #[error("{what} is malformed: {why}")]
    Malformed { what: String, why: String },
    /// The generated text breaks a rule of PTX: a defect of ours.
    #[error("the generated kernel is ill-typed: {0}")]
    Ptx(String),
}
