//! A module prepared for execution: decoded, with resolved symbols.

use super::load::{self, Constants};
use super::op::{Function, Step};
use crate::ast;

/// A loaded module. Immutable; launches share it.
#[derive(Debug)]
pub struct Image {
    pub(super) infos: Vec<KernelInfo>,
    pub(super) kernels: Vec<Kernel>,
    pub(super) globals: Vec<GlobalInfo>,
    pub(super) references: Vec<Reference>,
    pub(super) functions: Vec<Function>,
    /// Instructions of all functions, concatenated.
    pub(super) steps: Vec<Step>,
    /// By step, the index of its instruction; several steps may have the same one.
    pub(super) origins: Vec<u32>,
    pub(super) instructions: Vec<ast::Instruction>,
    pub(super) constants: Constants,
}

/// A kernel with the data that its launches need.
#[derive(Debug)]
pub(super) struct Kernel {
    pub info: KernelInfo,
    pub function: u32,
    /// By shared variable of the module, its offset in this kernel.
    pub shared_offsets: Vec<u32>,
    pub dynamic_offset: u32,
}

/// A position in a global that contains the address of another global or a part of it.
#[derive(Debug)]
pub(super) struct Reference {
    pub global: u32,
    pub at: u64,
    pub bytes: u32,
    pub target: u32,
    pub offset: i64,
    pub mask: u64,
}

/// A kernel that can be launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    pub name: String,
    pub params: Vec<ParamInfo>,
    /// Bytes of the parameter block: [`super::Launch::params`] has this length.
    pub param_bytes: u32,
    /// Bytes of shared memory declared by the kernel and its callees.
    pub static_shared_bytes: u32,
    /// Bytes of local memory per thread, without callees.
    pub local_bytes: u32,
    /// Registers the PTX declares per thread; a real assembler allocates fewer.
    pub registers: u32,
    /// Maximum number of 32-bit registers live at once, in the kernel or its callees: an assembler needs as many unless
    /// it recomputes values or spills them.
    pub live_words: u32,
    /// The product of `.maxntid` or `.reqntid`.
    pub max_threads: Option<u32>,
    /// `.minnctapersm`: blocks that a multiprocessor must hold.
    pub min_blocks: Option<u32>,
    /// `.maxnreg`.
    pub max_registers: Option<u32>,
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

/// A module variable. The caller allocates memory for it (for constants, too) and passes the addresses in
/// [`super::Launch::globals`], in the order of [`Image::globals`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalInfo {
    pub name: String,
    pub space: GlobalSpace,
    pub size: u64,
    pub align: u64,
    /// Its first `size` bytes, before [`Image::initial_bytes`] fills in addresses.
    pub init: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalSpace {
    Global,
    Const,
}

/// Reason why a module cannot be loaded.
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
    /// [`LoadError`] for an unknown instruction, directive or symbol, with its line.
    pub fn load(module: &ast::Module) -> Result<Image, LoadError> {
        load::load(module)
    }

    /// The kernels, in module order.
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.infos
    }

    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.infos.iter().find(|kernel| kernel.name == name)
    }

    /// The module variables, in module order.
    pub fn globals(&self) -> &[GlobalInfo] {
        &self.globals
    }

    /// The initial bytes of global number `index`, with the addresses of other globals filled in. `addresses` are in
    /// the order of [`Image::globals`].
    ///
    /// # Panics
    /// If `index` is out of range or `addresses` is too short.
    pub fn initial_bytes(&self, index: usize, addresses: &[u64]) -> Vec<u8> {
        let mut bytes = self.globals[index].init.clone();
        for reference in self.references.iter().filter(|reference| reference.global as usize == index) {
            let address = addresses[reference.target as usize].wrapping_add_signed(reference.offset);
            let value = ((address & reference.mask) >> reference.mask.trailing_zeros().min(63)).to_le_bytes();
            let len = (reference.bytes as usize).min(8);
            let at = reference.at as usize;
            bytes[at..at + len].copy_from_slice(&value[..len]);
        }
        bytes
    }

    /// Line of the instruction in a [`super::Footprint`]; `None` if the module was built, not parsed.
    pub fn line_of(&self, step: u32) -> Option<u32> {
        let &origin = self.origins.get(step as usize)?;
        Some(self.instructions[origin as usize].span.line).filter(|&line| line > 0)
    }

    /// Line and text of a step's instruction.
    pub(super) fn origin(&self, step: u32) -> (u32, String) {
        match self.origins.get(step as usize) {
            Some(&origin) => {
                let instruction = &self.instructions[origin as usize];
                (instruction.span.line, instruction.to_string())
            }
            None => (0, String::new()),
        }
    }
}
