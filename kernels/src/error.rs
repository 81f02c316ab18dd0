//! Errors of this crate.

use crate::codegen::value::CodegenError;
use millpond_memory::MemoryError;

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A pipeline for which no kernel can be generated.
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// An error of the device or of its memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Arguments that do not fit each other or the kernel; nothing was launched.
    #[error("{what}: {why}")]
    Shape { what: &'static str, why: String },
}

impl KernelError {
    /// True if an expression has no device form: the operator then runs on the CPU.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, KernelError::Codegen(CodegenError::Unsupported { .. }))
    }

    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, KernelError::Memory(error) if error.is_out_of_memory())
    }

    pub fn is_device_lost(&self) -> bool {
        matches!(self, KernelError::Memory(error) if error.is_device_lost())
    }
}
