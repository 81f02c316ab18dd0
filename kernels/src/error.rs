//! What can go wrong in this crate.

use crate::codegen::value::CodegenError;
use millpond_memory::MemoryError;

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A pipeline has no kernel.
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// The device or its memory refused.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Arguments that do not fit each other or the kernel; nothing was launched.
    #[error("{what}: {why}")]
    Shape { what: &'static str, why: String },
}

impl KernelError {
    /// True when it is the expression that has no device form: the operator runs on the CPU.
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
