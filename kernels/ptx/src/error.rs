//! Errors of PTX texts and modules.

use crate::ast::Span;

/// Error in a PTX text or in the types of a module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PtxError {
    /// The text breaks the grammar.
    #[error("PTX line {}, column {}: {message}", .span.line, .span.column)]
    Syntax { span: Span, message: String },
    /// The module breaks a rule of scope or type. `place` is a line and column in a parsed module, or a function and an
    /// instruction number in a built one.
    #[error("PTX {place}: {message}")]
    Rule { span: Span, place: String, message: String },
}

impl PtxError {
    /// Position of the error if the module was parsed from a text, else [`Span::NONE`].
    pub fn span(&self) -> Span {
        match self {
            PtxError::Syntax { span, .. } | PtxError::Rule { span, .. } => *span,
        }
    }

    /// The message without the position.
    pub fn message(&self) -> &str {
        match self {
            PtxError::Syntax { message, .. } | PtxError::Rule { message, .. } => message,
        }
    }
}
