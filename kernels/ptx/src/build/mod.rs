//! A typed builder of PTX modules: registers are typed values, control flow is nested closures, labels are hidden.
//!
//! ```text
//!   let mut f = FunctionBuilder::kernel("double");          .visible .entry double(.param .u64 data, .param .u32 rows)
//!   let data = f.param("data", Type::U64);                  {
//!   let rows = f.param("rows", Type::U32);                      ld.param.u64 %rd0, [data]; ld.param.u32 %r0, [rows];
//!   let (data, rows) = (f.load_param(&data), f.load_param(&rows));
//!   f.grid_stride(rows, |f, row| {                              …
//!       let at = f.element(data, row, 4);                   $L_while_0: …
//!       let x = f.load(Space::Global, Type::U32, at);           ld.global.u32 %r7, [%rd4];
//!       let twice = f.add(x, x);                                add.u32 %r8, %r7, %r7;
//!       f.store(Space::Global, Type::U32, at, twice);           st.global.u32 [%rd4], %r8;
//!   });                                                     }
//!   module.add(f);
//!   let module = module.finish()?;
//! ```
//!
//! Types     an instruction's type is the type of its register operands, which must agree; `Reg::view` reads a register
//!           as another type of equal width without an instruction. A bit type agrees with every type of its width.
//! Narrow    values of 8 and 16 bits are in 32-bit registers; loads extend, stores truncate.
//! Floats    every operation has an explicit rounding, so that no multiplication and addition fuse.
//! Errors    `finish` returns the first ill-typed instruction, with its function and number, or the first read of a
//!           register that is not assigned on every path.
//! Calls     `ModuleBuilder::paste` merges a compiled helper and its dependencies under unique names.

mod control;
mod function;
mod instructions;
mod memory;
mod merge;
mod paste;
mod predicates;
mod tidy;

pub use control::Open;
pub use function::FunctionBuilder;
pub use instructions::Compare;
pub use memory::{Address, Atomic};
pub use merge::{merge, merged_name};
pub use paste::{Callee, fingerprint};
pub use predicates::risky_predicates;

use crate::ast::{Item, Linkage, Module, Space, Type, Variable};
use crate::{PtxError, check_assigned};

/// A virtual register and the type at which it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reg {
    ty: Type,
    class: Class,
    number: u32,
}

/// Register files, by declared type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Class {
    Pred,
    B32,
    B64,
    F32,
    F64,
}

impl Class {
    pub(crate) const ALL: [Class; 5] = [Class::Pred, Class::B32, Class::B64, Class::F32, Class::F64];

    /// The register file of a type; narrow types use 32 bits. `None` for types without a register file.
    pub(crate) fn of(ty: Type) -> Option<Class> {
        Some(match ty {
            Type::Pred => Class::Pred,
            Type::F32 => Class::F32,
            Type::F64 => Class::F64,
            Type::F16 | Type::F16x2 | Type::BF16 | Type::BF16x2 | Type::B128 => return None,
            _ if ty.bits() == 64 => Class::B64,
            _ => Class::B32,
        })
    }

    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Class::Pred => "%p",
            Class::B32 => "%r",
            Class::B64 => "%rd",
            Class::F32 => "%f",
            Class::F64 => "%fd",
        }
    }

    pub(crate) fn ty(self) -> Type {
        match self {
            Class::Pred => Type::Pred,
            Class::B32 => Type::B32,
            Class::B64 => Type::B64,
            Class::F32 => Type::F32,
            Class::F64 => Type::F64,
        }
    }
}

impl Reg {
    pub fn ty(self) -> Type {
        self.ty
    }

    /// The register read as another type of equal width. Using a view of a wrong width is an error.
    pub fn view(self, ty: Type) -> Reg {
        Reg { ty, ..self }
    }

    /// The address in this register plus `offset` bytes.
    pub fn at(self, offset: i64) -> Address {
        Address::from(self).plus(offset)
    }

    pub(crate) fn name(self) -> String {
        format!("{}{}", self.class.prefix(), self.number)
    }
}

/// An operand: a register or a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    Reg(Reg),
    Integer(i128),
    F32(f32),
    F64(f64),
}

impl From<Reg> for Value {
    fn from(reg: Reg) -> Value {
        Value::Reg(reg)
    }
}

impl From<&Reg> for Value {
    fn from(reg: &Reg) -> Value {
        Value::Reg(*reg)
    }
}

impl From<f32> for Value {
    fn from(number: f32) -> Value {
        Value::F32(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::F64(number)
    }
}

macro_rules! integers {
    ($($ty:ty)*) => { $(impl From<$ty> for Value {
        fn from(number: $ty) -> Value {
            Value::Integer(number as i128)
        }
    })* };
}
integers!(i32 u32 i64 u64 i128 usize);

/// A module under construction.
#[derive(Debug)]
pub struct ModuleBuilder {
    module: Module,
    pasted: paste::Pasted,
    error: Option<PtxError>,
}

impl Default for ModuleBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl ModuleBuilder {
    /// An empty module for PTX 8.2 and sm_70.
    pub fn new() -> Self {
        Self { module: Module::new(), pasted: paste::Pasted::default(), error: None }
    }

    /// Adds a variable at module scope: `count` elements of `ty` in `.shared`, `.const` or `.global`.
    pub fn variable(&mut self, space: Space, ty: Type, name: &str, count: u64) -> Symbol {
        let mut variable = Variable::new(space, ty, name);
        variable.dims = vec![count];
        variable.align = Some(ty.bytes().max(1).next_power_of_two());
        self.declare(variable)
    }

    /// Adds a variable as given, with its initializer and alignment.
    pub fn declare(&mut self, variable: Variable) -> Symbol {
        if !matches!(variable.space, Space::Shared | Space::Const | Space::Global) {
            self.refuse(&variable.name, format!("{} is no space of module variables", variable.space.name()));
        }
        let symbol = Symbol { name: variable.name.clone(), space: variable.space };
        self.module.items.push(Item::Variable(variable));
        symbol
    }

    /// The dynamic shared memory, whose size is a launch parameter. Repeated calls declare it once.
    pub fn dynamic_shared(&mut self) -> Symbol {
        const NAME: &str = "dynamic_shared";
        if !self.module.variables().any(|variable| variable.name == NAME) {
            let mut variable = Variable::new(Space::Shared, Type::B8, NAME);
            variable.linkage = Linkage::Extern;
            variable.align = Some(16);
            variable.dims = vec![0];
            self.module.items.push(Item::Variable(variable));
        }
        Symbol { name: NAME.into(), space: Space::Shared }
    }

    /// Adds a finished function. The result names it in calls and launches.
    pub fn add(&mut self, function: FunctionBuilder) -> Callee {
        let (function, error) = function.finish();
        if self.error.is_none() {
            // An unassigned register is a bug of the generator, so only debug builds check it.
            let unassigned = || if cfg!(debug_assertions) { check_assigned(&function).err() } else { None };
            self.error = error.or_else(unassigned);
        }
        if self.module.function(&function.name).is_some() {
            self.refuse(&function.name, "a function of this name is there already".to_string());
        }
        let callee = Callee::of(&function);
        self.module.items.push(Item::Function(function));
        callee
    }

    /// The function `name` of this module, if it exists.
    pub fn callee(&self, name: &str) -> Option<Callee> {
        self.module.function(name).map(Callee::of)
    }

    /// The module, or the first error of any of its functions.
    ///
    /// # Errors
    /// [`PtxError::Rule`] naming the function and the instruction.
    pub fn finish(self) -> Result<Module, PtxError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.module),
        }
    }

    fn refuse(&mut self, name: &str, message: String) {
        if self.error.is_none() {
            self.error = Some(PtxError::Rule { span: Default::default(), place: name.to_string(), message });
        }
    }
}

/// A variable of the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    name: String,
    space: Space,
}

impl Symbol {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn space(&self) -> Space {
        self.space
    }

    /// The address `offset` bytes into the variable.
    pub fn at(&self, offset: i64) -> Address {
        Address::symbol(&self.name, offset)
    }
}

/// A parameter of a kernel or function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    name: String,
    ty: Type,
}

impl Param {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn ty(&self) -> Type {
        self.ty
    }

    /// The address `offset` bytes into the parameter, for [`FunctionBuilder::load`] from `Space::Param`.
    pub fn at(&self, offset: i64) -> Address {
        Address::symbol(&self.name, offset)
    }
}
