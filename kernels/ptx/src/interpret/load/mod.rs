//! Loads a module of the syntax tree into an [`Image`]: first the symbols, then each function.
//!
//!   .global, .const   ──► globals: bytes, and the positions of addresses
//!   .shared           ──► numbered; each kernel lays out those that it and its callees use
//!   .func, .entry     ──► steps of one long program; labels and calls become step numbers
//!
//! Errors  contain the PTX line, the unsupported item and the supported alternatives.

mod body;
mod data;
mod lanes;
mod memory;

use super::alu::Row;
use super::image::{GlobalInfo, GlobalSpace, Image, Kernel, KernelInfo, LoadError, ParamInfo};
use super::op::{Function, Relocation, Step};
use crate::ast::{self, Directive, FunctionKind, Item, Linkage, Space};
use std::collections::HashMap;

/// Address of function 0; function n is at a distance of 16 n bytes.
pub(super) const FUNCTION_BASE: u64 = 0x0010_0000;
pub(super) const FUNCTION_STRIDE: u64 = 16;

/// Maximum bytes of static shared memory, above that of any device; and of local memory per thread, as on every device.
const MOST_SHARED: u32 = 1 << 24;
pub(super) const MOST_LOCAL: u32 = 1 << 19;
/// Maximum register rows per function.
const MOST_ROWS: u32 = 1 << 20;

/// Meaning of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Symbol {
    Register {
        row: u32,
        bits: u32,
    },
    Global(u32),
    Shared(u32),
    /// In the function's frame.
    Local {
        offset: u32,
        size: u32,
    },
    /// A parameter of the kernel.
    Param {
        offset: u32,
    },
    Function(u32),
    /// A function without a body.
    Declared,
}

/// A shared variable of the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedInfo {
    pub size: u32,
    pub align: u32,
    /// `extern .shared x[]`: follows all others; the launch sets its size.
    pub dynamic: bool,
}

/// The table of constants of all warps.
#[derive(Debug, Default)]
pub(super) struct Constants {
    pub rows: Vec<Row>,
    pub relocations: Vec<(u32, Relocation)>,
    by_bits: HashMap<u64, u32>,
    by_relocation: HashMap<Relocation, u32>,
}

impl Constants {
    fn bits(&mut self, bits: u64) -> u32 {
        let rows = &mut self.rows;
        *self.by_bits.entry(bits).or_insert_with(|| {
            rows.push([bits; 32]);
            rows.len() as u32 - 1
        })
    }

    fn relocation(&mut self, relocation: Relocation) -> u32 {
        if let Some(&row) = self.by_relocation.get(&relocation) {
            return row;
        }
        let row = self.rows.len() as u32;
        self.rows.push([0; 32]);
        self.relocations.push((row, relocation));
        self.by_relocation.insert(relocation, row);
        row
    }
}

/// State of a module being loaded.
#[derive(Default)]
struct Loader {
    symbols: HashMap<String, Symbol>,
    globals: Vec<GlobalInfo>,
    shared: Vec<SharedInfo>,
    functions: Vec<Function>,
    steps: Vec<Step>,
    /// By step, the index of its instruction.
    origins: Vec<u32>,
    instructions: Vec<ast::Instruction>,
    constants: Constants,
}

pub(super) fn error<T>(line: u32, message: impl Into<String>) -> Result<T, LoadError> {
    Err(LoadError { line, message: message.into() })
}

pub(super) fn load(module: &ast::Module) -> Result<Image, LoadError> {
    if module.address_size != 64 {
        return error(0, format!("the module has {}-bit addresses; only 64-bit ones run", module.address_size));
    }
    let mut loader = Loader::default();
    loader.variables(module)?;
    let printing = module.functions().find(|function| function.name == "vprintf").and_then(silent);
    let bodies = loader.function_names(module, printing.as_ref())?;
    let references = loader.initialisers(module)?;
    for (index, function) in bodies.iter().enumerate() {
        loader.body(index as u32, function)?;
    }
    let kernels = bodies
        .iter()
        .enumerate()
        .filter(|(_, function)| function.kind == FunctionKind::Entry)
        .map(|(index, function)| loader.kernel(index as u32, function))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Image {
        infos: kernels.iter().map(|kernel| kernel.info.clone()).collect(),
        kernels,
        globals: loader.globals,
        references,
        functions: loader.functions,
        steps: loader.steps,
        origins: loader.origins,
        instructions: loader.instructions,
        constants: loader.constants,
    })
}

/// The declaration of `vprintf` as a function that prints nothing and returns zero, as with a full buffer.
fn silent(declaration: &ast::Function) -> Option<ast::Function> {
    let result = declaration.returns.first().filter(|_| declaration.body.is_none())?;
    let store = ast::Instruction::new(
        "st.param.b32",
        vec![ast::Operand::address(result.name.clone(), 0), ast::Operand::Integer(0)],
    );
    Some(ast::Function { body: Some(vec![ast::Statement::Instruction(store)]), ..declaration.clone() })
}

impl Loader {
    /// Numbers the variables of module scope.
    fn variables(&mut self, module: &ast::Module) -> Result<(), LoadError> {
        for variable in module.variables() {
            let symbol = match variable.space {
                Space::Global | Space::Const => {
                    if let Some(Symbol::Global(known)) = self.symbols.get(&variable.name).copied() {
                        // A declaration and its definition are one variable.
                        if variable.linkage != Linkage::Extern {
                            self.globals[known as usize].size = data::size(variable)?;
                            self.globals[known as usize].align = variable.alignment();
                        }
                        continue;
                    }
                    self.globals.push(GlobalInfo {
                        name: variable.name.clone(),
                        space: if variable.space == Space::Const { GlobalSpace::Const } else { GlobalSpace::Global },
                        size: data::size(variable)?,
                        align: variable.alignment(),
                        init: Vec::new(),
                    });
                    Symbol::Global(self.globals.len() as u32 - 1)
                }
                Space::Shared => self.shared(variable)?,
                Space::Reg | Space::Local | Space::Param => {
                    return error(
                        variable.span.line,
                        format!("`{}` is in .{} space outside a function", variable.name, variable.space.name()),
                    );
                }
            };
            self.symbols.insert(variable.name.clone(), symbol);
        }
        Ok(())
    }

    fn shared(&mut self, variable: &ast::Variable) -> Result<Symbol, LoadError> {
        let size = data::size(variable)?;
        let Ok(small) = u32::try_from(size) else {
            return error(variable.span.line, format!("`{}` takes {size} bytes of shared memory", variable.name));
        };
        self.shared.push(SharedInfo {
            size: small,
            align: variable.alignment() as u32,
            dynamic: variable.linkage == Linkage::Extern,
        });
        Ok(Symbol::Shared(self.shared.len() as u32 - 1))
    }

    /// Numbers the functions, and returns those with a body in that order.
    fn function_names<'m>(
        &mut self,
        module: &'m ast::Module,
        printing: Option<&'m ast::Function>,
    ) -> Result<Vec<&'m ast::Function>, LoadError> {
        let mut bodies = Vec::new();
        for function in module.functions().chain(printing) {
            if function.body.is_some() {
                if let Some(Symbol::Function(_)) = self.symbols.get(&function.name) {
                    return error(function.span.line, format!("`{}` has two bodies", function.name));
                }
                self.symbols.insert(function.name.clone(), Symbol::Function(bodies.len() as u32));
                self.functions.push(Function { name: function.name.clone(), ..Function::default() });
                bodies.push(function);
            } else {
                self.symbols.entry(function.name.clone()).or_insert(Symbol::Declared);
            }
        }
        for item in &module.items {
            if let Item::Alias { name, target, span } = item {
                let Some(&symbol) = self.symbols.get(target) else {
                    return error(span.line, format!("alias `{name}` names `{target}`, which is not in this module"));
                };
                self.symbols.insert(name.clone(), symbol);
            }
        }
        Ok(bodies)
    }

    fn kernel(&self, index: u32, function: &ast::Function) -> Result<Kernel, LoadError> {
        let (params, param_bytes) = params(&function.params)?;
        // Reachable functions, and the shared variables that they use.
        let mut reached = vec![false; self.functions.len()];
        let mut pending = vec![index];
        let mut used = vec![false; self.shared.len()];
        let mut live_words = 0;
        while let Some(at) = pending.pop() {
            if std::mem::replace(&mut reached[at as usize], true) {
                continue;
            }
            let function = &self.functions[at as usize];
            live_words = live_words.max(function.live_words);
            function.shared.iter().for_each(|&shared| used[shared as usize] = true);
            pending.extend(&function.calls);
            if function.calls_any {
                pending.extend(0..self.functions.len() as u32);
            }
        }
        let mut offsets = vec![0; self.shared.len()];
        let mut end: u32 = 0;
        let mut dynamic_align = 16;
        for (shared, offset) in self.shared.iter().zip(&mut offsets).zip(&used).filter(|(_, used)| **used).map(|x| x.0)
        {
            if shared.dynamic {
                dynamic_align = dynamic_align.max(shared.align);
                continue;
            }
            *offset = end.next_multiple_of(shared.align.max(1));
            end = offset.saturating_add(shared.size);
            if end > MOST_SHARED {
                return error(
                    function.span.line,
                    format!("`{}` needs more than {MOST_SHARED} bytes of shared memory", function.name),
                );
            }
        }
        let dynamic_offset = end.next_multiple_of(dynamic_align);
        for (shared, offset) in self.shared.iter().zip(&mut offsets) {
            if shared.dynamic {
                *offset = dynamic_offset;
            }
        }
        let mut max_threads = None;
        let mut required_threads = None;
        let (mut min_blocks, mut max_registers) = (None, None);
        for directive in &function.directives {
            match directive {
                Directive::MaxThreads(extents) => max_threads = Some(extents.iter().product()),
                Directive::RequiredThreads(extents) => {
                    max_threads = Some(extents.iter().product());
                    let at = |i: usize| extents.get(i).copied().unwrap_or(1);
                    required_threads = Some([at(0), at(1), at(2)]);
                }
                Directive::MinBlocksPerSm(blocks) => min_blocks = Some(*blocks),
                Directive::MaxRegisters(registers) => max_registers = Some(*registers),
                _ => {}
            }
        }
        let frame = &self.functions[index as usize];
        Ok(Kernel {
            function: index,
            shared_offsets: offsets,
            dynamic_offset,
            info: KernelInfo {
                name: function.name.clone(),
                params,
                param_bytes,
                static_shared_bytes: end,
                local_bytes: frame.local_words * 8,
                registers: frame.rows,
                live_words,
                max_threads,
                min_blocks,
                max_registers,
                required_threads,
            },
        })
    }
}

/// Lays out the parameters of a kernel.
fn params(variables: &[ast::Variable]) -> Result<(Vec<ParamInfo>, u32), LoadError> {
    let mut end = 0;
    let mut params = Vec::new();
    for variable in variables {
        let (size, align) = (data::size(variable)?, variable.alignment());
        if size > 4096 {
            return error(
                variable.span.line,
                format!("parameter `{}` takes {size} bytes; a kernel has 4096", variable.name),
            );
        }
        let offset = u32::next_multiple_of(end, align as u32);
        params.push(ParamInfo { name: variable.name.clone(), offset, size: size as u32, align: align as u32 });
        end = offset + size as u32;
    }
    Ok((params, end))
}
