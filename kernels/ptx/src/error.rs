//! What can be wrong with a PTX text or module.

use crate::ast::Span;

/// Why a text is not PTX, or a module not well-typed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PtxError {
    /// The text breaks the grammar.
    #[error("PTX line {}, column {}: {message}", .span.line, .span.column)]
    Syntax { span: Span, message: String },
    /// The module breaks a rule of scope or type. `place` is a line and column where the module was parsed, and a
    /// function with an instruction's number where it was built.
    #[error("PTX {place}: {message}")]
    Rule { span: Span, place: String, message: String },
}

impl PtxError {
    /// Where it is, when the module came from a text.
    pub fn span(&self) -> Span {
        match self {
            PtxError::Syntax { span, .. } | PtxError::Rule { span, .. } => *span,
        }
    }

    /// The sentence without the place.
    pub fn message(&self) -> &str {
        match self {
            PtxError::Syntax { message, .. } | PtxError::Rule { message, .. } => message,
        }
    }
}
