//! Interface between pipelines and expressions: values, and what an expression needs from its surroundings.
//!
//!   pipeline ──► Expressions::value(node) ──► Value { registers of the node's lane, validity }
//!                      └──► Leaves: column i · literal slot i · lookup table i at a code · raise an error
//!
//! NULL     `valid: None` means never NULL. Registers of a NULL value hold arbitrary bits and are never an address or
//!          an index.
//! Scopes   a value computed inside a branch must not be reused outside it. A pipeline opens a branch only if all code
//!          below runs inside it, or between `push_scope` and `pop_scope` of the expressions.

use millpond_ptx::build::{FunctionBuilder, ModuleBuilder, Reg};

use super::ir::{ErrorCode, Lane, NodeId};

/// A value in registers, in the form of its type's [`Lane`].
#[derive(Debug, Clone, Copy)]
pub struct Value {
    pub lane: Lane,
    /// The register; the low half of a 128-bit value. Viewed as the lane's type (`S32`, `U64`, `Pred`, …; `U64` for low
    /// halves).
    pub low: Reg,
    /// The high half of a 128-bit value, viewed as `S64`.
    pub high: Option<Reg>,
    /// A predicate that is true if the value is valid; `None`: always valid.
    pub valid: Option<Reg>,
}

/// The two builders of generated code: helpers are pasted into the module, instructions are appended to the function.
pub struct Emit<'a> {
    pub module: &'a mut ModuleBuilder,
    pub f: &'a mut FunctionBuilder,
}

/// Services that an expression needs from its pipeline. Callers cache values; each call emits code.
pub trait Leaves {
    /// Loads column `index` of the current row.
    fn column(&mut self, emit: &mut Emit<'_>, index: u32) -> Result<Value, CodegenError>;

    /// Loads text column `index` of the current row as the two words of its view; the view of a NULL is empty. `None`
    /// if the column is not stored as views.
    fn column_view(&mut self, emit: &mut Emit<'_>, index: u32) -> Result<Option<Value>, CodegenError> {
        let _ = (emit, index);
        Ok(None)
    }

    /// Reads the literal in parameter slot `slot`.
    fn literal(&mut self, emit: &mut Emit<'_>, slot: u32) -> Result<Value, CodegenError>;

    /// Loads `table[code]`: NULL for a NULL code.
    fn lookup(&mut self, emit: &mut Emit<'_>, table: u32, code: Value) -> Result<Value, CodegenError>;

    /// Loads the text `table[code]` as a view, as [`Self::column_view`] does.
    fn lookup_view(&mut self, emit: &mut Emit<'_>, table: u32, code: Value) -> Result<Option<Value>, CodegenError> {
        let _ = (emit, table, code);
        Ok(None)
    }

    /// Looks up `keys` in join table `table`: a `U64` list of matches, NULL if there is no match.
    fn probe(&mut self, emit: &mut Emit<'_>, table: u32, keys: &[Value]) -> Result<Value, CodegenError> {
        let _ = (emit, keys);
        Err(CodegenError::Malformed { what: format!("join table {table}"), why: "there is no such table".into() })
    }

    /// Index of the current row among the rows expanded from its source row (`U32`).
    fn ordinal(&mut self, emit: &mut Emit<'_>) -> Result<Value, CodegenError> {
        let _ = emit;
        Err(CodegenError::Malformed { what: "the number of a match".into(), why: "no row becomes several".into() })
    }

    /// The number of the current row in its extent (`U32`).
    fn source_row(&mut self, emit: &mut Emit<'_>) -> Result<Value, CodegenError> {
        let _ = emit;
        Err(CodegenError::Malformed { what: "the number of a row".into(), why: "there are no rows".into() })
    }

    /// Address of the arena for new texts, and its capacity in bytes (`U64`).
    fn arena(&mut self, emit: &mut Emit<'_>) -> Result<(Reg, Reg), CodegenError> {
        let _ = emit;
        Err(CodegenError::Malformed { what: "a text that is made".into(), why: "there is no room for it".into() })
    }

    /// Raises the error flag in the threads where `when` is true. The thread continues; its results are not used.
    fn raise(&mut self, emit: &mut Emit<'_>, code: ErrorCode, node: NodeId, when: Reg) -> Result<(), CodegenError>;
}

/// Reason why a pipeline has no kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodegenError {
    /// An expression that the generator does not support: it runs on the CPU.
    #[error("{what} has no device form")]
    Unsupported { what: String },
    /// A spec that contradicts itself: a bug in the caller.
    #[error("{what} is malformed: {why}")]
    Malformed { what: String, why: String },
    /// The generated text violates a rule of PTX: a bug in the generator.
    #[error("the generated kernel is ill-typed: {0}")]
    Ptx(String),
}
