//! A module made ready to run: decoded, every symbol resolved, every instruction known.

use crate::ast;

/// A loaded module. Immutable; share it between launches.
#[derive(Debug)]
pub struct Image {
    kernels: Vec<KernelInfo>,
    globals: Vec<GlobalInfo>,
}

/// A kernel that can be launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    pub name: String,
    pub params: Vec<ParamInfo>,
    /// Bytes of the whole parameter block: [`super::Launch::params`] has this length.
    pub param_bytes: u32,
    /// Shared memory that the kernel and everything it calls declare.
    pub static_shared_bytes: u32,
    /// Local memory per thread (the deepest call chain adds more).
    pub local_bytes: u32,
    /// Registers the PTX declares per thread; a real assembler allocates fewer.
    pub registers: u32,
    /// The product of `.maxntid` or `.reqntid`.
    pub max_threads: Option<u32>,
    /// `.reqntid`: the only block size that may be launched.
    pub required_threads: Option<[u32; 3]>,
}

/// A kernel parameter in the parameter block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamInfo {
    pub name: String,
    pub offset: u32,
    pub size: u32,
    pub align: u32,
}

/// A module variable. The caller gives it an allocation (constants too) and passes the address in
/// [`super::Launch::globals`], in the order of [`Image::globals`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalInfo {
    pub name: String,
    pub space: GlobalSpace,
    pub size: u64,
    pub align: u64,
    /// Its first bytes, `size` of them, before [`Image::initial_bytes`] fills in addresses.
    pub init: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalSpace {
    Global,
    Const,
}

/// Why a module cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct LoadError {
    pub line: u32,
    pub message: String,
}

impl Image {
    /// Decodes `module`.
    ///
    /// # Errors
    /// An instruction, directive or symbol that is not known, with its line.
    pub fn load(module: &ast::Module) -> Result<Image, LoadError> {
        let _ = module;
        Err(LoadError { line: 0, message: "loading is not there yet".into() })
    }

    pub fn kernels(&self) -> &[KernelInfo] {
        &self.kernels
    }

    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    pub fn globals(&self) -> &[GlobalInfo] {
        &self.globals
    }

    /// The first bytes of global number `index`, with the addresses of other globals filled in. `addresses` are in the
    /// order of [`Image::globals`].
    pub fn initial_bytes(&self, index: usize, addresses: &[u64]) -> Vec<u8> {
        let _ = addresses;
        self.globals[index].init.clone()
    }
}
