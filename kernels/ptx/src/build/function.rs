//! One function under construction: its registers, its statements and its first error.

use super::{Class, Param, Reg, Value};
use crate::PtxError;
use crate::ast::{
    Directive, Function, FunctionKind, Guard, Instruction, Linkage, Operand, Space, Span, Statement, Type, TypeKind,
    Variable,
};

/// A kernel or function under construction.
#[derive(Debug)]
pub struct FunctionBuilder {
    name: String,
    kind: FunctionKind,
    pub(super) returns: Vec<Variable>,
    params: Vec<Variable>,
    directives: Vec<Directive>,
    pub(super) statements: Vec<Statement>,
    registers: [u32; Class::ALL.len()],
    pub(super) labels: u32,
    pub(super) guard: Option<Guard>,
    /// Labels of the enclosing loops: (again, end), innermost last.
    pub(super) loops: Vec<(String, String)>,
    pub(super) calls: u32,
    instructions: u32,
    error: Option<PtxError>,
}

impl FunctionBuilder {
    /// A kernel that the host can launch.
    pub fn kernel(name: &str) -> Self {
        Self::new(name, FunctionKind::Entry)
    }

    /// A function that kernels of the same module can call.
    pub fn function(name: &str) -> Self {
        Self::new(name, FunctionKind::Func)
    }

    fn new(name: &str, kind: FunctionKind) -> Self {
        Self {
            name: name.to_string(),
            kind,
            returns: Vec::new(),
            params: Vec::new(),
            directives: Vec::new(),
            statements: Vec::new(),
            registers: [0; Class::ALL.len()],
            labels: 0,
            guard: None,
            loops: Vec::new(),
            calls: 0,
            instructions: 0,
            error: None,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of instructions so far.
    pub fn num_instructions(&self) -> u32 {
        self.instructions
    }

    /// Declares a parameter of a fundamental type.
    pub fn param(&mut self, name: &str, ty: Type) -> Param {
        if ty == Type::Pred {
            self.refuse(format!("parameter {name} cannot be a predicate"));
        }
        self.params.push(Variable::new(Space::Param, ty, name));
        Param { name: name.to_string(), ty }
    }

    /// Declares a parameter of `size` bytes, such as a struct; read it with [`Self::load`] from [`Param::at`].
    pub fn param_bytes(&mut self, name: &str, align: u32, size: u64) -> Param {
        let mut variable = Variable::new(Space::Param, Type::B8, name);
        variable.align = Some(align);
        variable.dims = vec![size];
        self.params.push(variable);
        Param { name: name.to_string(), ty: Type::B8 }
    }

    /// Declares the function's result: `size` bytes, written by [`Self::store`] to `Space::Param`.
    pub fn return_bytes(&mut self, align: u32, size: u64) -> Param {
        let name = format!("{}_result", self.name);
        let mut variable = Variable::new(Space::Param, Type::B8, &name);
        variable.align = Some(align);
        variable.dims = vec![size];
        self.returns.push(variable);
        Param { name, ty: Type::B8 }
    }

    /// Sets the maximum number of threads in a block.
    pub fn max_threads(&mut self, threads: u32) {
        self.directives.push(Directive::MaxThreads(vec![threads]));
    }

    /// Sets the minimum number of resident blocks per multiprocessor.
    pub fn min_blocks_per_sm(&mut self, blocks: u32) {
        self.directives.push(Directive::MinBlocksPerSm(blocks));
    }

    /// A fresh register without a value.
    pub fn register(&mut self, ty: Type) -> Reg {
        let (ty, class) = match Class::of(ty) {
            Some(Class::B32) if ty.bits() < 32 => (widened(ty), Class::B32),
            Some(class) => (ty, class),
            None => {
                self.refuse(format!("there are no registers of type {}", ty.name()));
                (Type::B32, Class::B32)
            }
        };
        let index = Class::ALL.iter().position(|c| *c == class).expect("ALL holds every class");
        let number = self.registers[index];
        self.registers[index] += 1;
        Reg { ty, class, number }
    }

    /// Records an error; only the first one is kept.
    pub(super) fn refuse(&mut self, message: String) {
        if self.error.is_none() {
            let place = format!("function {}, instruction {}", self.name, self.instructions + 1);
            self.error = Some(PtxError::Rule { span: Span::NONE, place, message });
        }
    }

    /// Whether no error was recorded so far.
    pub fn is_well_typed(&self) -> bool {
        self.error.is_none()
    }

    pub(super) fn emit(&mut self, opcode: &str, operands: Vec<Operand>) {
        let mut instruction = Instruction::new(opcode, operands);
        instruction.guard = self.guard.clone();
        self.instructions += 1;
        self.statements.push(Statement::Instruction(instruction));
    }

    /// An operand checked against the type at which the instruction reads it.
    pub(super) fn operand(&mut self, opcode: &str, ty: Type, value: Value) -> Operand {
        match value {
            Value::Reg(reg) => {
                self.expect_type(opcode, ty, reg);
                Operand::Name(reg.name())
            }
            Value::Integer(number) => {
                if ty.is_float() || ty == Type::Pred || !fits(number, ty) {
                    self.refuse(format!("{opcode}: {number} is no {}", ty.name()));
                }
                Operand::Integer(number)
            }
            Value::F32(number) => {
                if ty != Type::F32 {
                    self.refuse(format!("{opcode}: the f32 {number} is no {}", ty.name()));
                }
                Operand::F32(number.to_bits())
            }
            Value::F64(number) => {
                if ty != Type::F64 {
                    self.refuse(format!("{opcode}: the f64 {number} is no {}", ty.name()));
                }
                Operand::F64(number.to_bits())
            }
        }
    }

    pub(super) fn expect_type(&mut self, opcode: &str, wanted: Type, reg: Reg) {
        let own = reg.class.ty();
        let viewed = agree(own, reg.ty) || (own == Type::B32 && reg.ty.bits() < 32 && !reg.ty.is_float());
        let read = agree(wanted, reg.ty) || (wanted.bits() < 32 && wanted != Type::Pred && own == Type::B32);
        if !viewed || !read {
            let name = reg.name();
            self.refuse(format!(
                "{opcode}: {name} is {}, read as {}, where {} is wanted",
                own.name(),
                reg.ty.name(),
                wanted.name()
            ));
        }
    }

    /// Emits `opcode.ty result, operands` with every operand of type `ty` and returns the result.
    pub(super) fn simple(&mut self, opcode: &str, ty: Type, operands: &[Value]) -> Reg {
        let full = format!("{opcode}.{}", ty.name());
        let result = self.register(ty);
        let mut list = vec![Operand::Name(result.name())];
        for &operand in operands {
            list.push(self.operand(&full, ty, operand));
        }
        self.emit(&full, list);
        result
    }

    /// The common type of the register operands. A sized bit type yields to a more specific type; numbers alone have no
    /// type.
    pub(super) fn common_type(&mut self, opcode: &str, operands: &[Value]) -> Type {
        let mut common: Option<Type> = None;
        for operand in operands {
            let ty = match operand {
                Value::Reg(reg) => reg.ty,
                Value::F32(_) => Type::F32,
                Value::F64(_) => Type::F64,
                Value::Integer(_) => continue,
            };
            common = Some(match common {
                None => ty,
                Some(first) if first == ty => ty,
                Some(first) if first.bits() == ty.bits() && first.kind() == TypeKind::Bits => ty,
                Some(first) if first.bits() == ty.bits() && ty.kind() == TypeKind::Bits => first,
                Some(first) => {
                    self.refuse(format!("{opcode}: {} and {} do not agree", first.name(), ty.name()));
                    first
                }
            });
        }
        common.unwrap_or_else(|| {
            self.refuse(format!("{opcode}: no operand has a type"));
            Type::B32
        })
    }

    /// Records an error if the kind of `ty` is not one of `kinds`.
    pub(super) fn expect_kind(&mut self, opcode: &str, ty: Type, kinds: &[TypeKind]) {
        if !kinds.contains(&ty.kind()) {
            self.refuse(format!("{opcode} takes no {}", ty.name()));
        }
    }

    pub(super) fn finish(mut self) -> (Function, Option<PtxError>) {
        if !matches!(self.statements.last(), Some(Statement::Instruction(last)) if last.opcode.name == "ret" && last.guard.is_none())
        {
            self.guard = None;
            self.emit("ret", Vec::new());
        }
        let mut body = Vec::new();
        for (class, count) in Class::ALL.into_iter().zip(self.registers) {
            if count > 0 {
                let mut declaration = Variable::new(Space::Reg, class.ty(), class.prefix());
                declaration.count = Some(count);
                body.push(Statement::Variable(declaration));
            }
        }
        body.append(&mut self.statements);
        let linkage = match self.kind {
            FunctionKind::Entry => Linkage::Visible,
            FunctionKind::Func => Linkage::Private,
        };
        let function = Function {
            linkage,
            kind: self.kind,
            name: self.name,
            returns: self.returns,
            params: self.params,
            directives: self.directives,
            body: Some(body),
            span: Span::NONE,
        };
        (function, self.error)
    }
}

/// The 32-bit type that a narrow one extends to.
pub(super) fn widened(ty: Type) -> Type {
    match ty.kind() {
        _ if ty.bits() >= 32 || ty == Type::Pred => ty,
        TypeKind::Signed => Type::S32,
        TypeKind::Unsigned => Type::U32,
        _ => Type::B32,
    }
}

/// Whether a register of type `own` may be read as `wanted`, by PTX's own rule.
pub(super) fn agree(wanted: Type, own: Type) -> bool {
    if wanted == own {
        return true;
    }
    if wanted.bits() != own.bits() || wanted == Type::Pred || own == Type::Pred {
        return false;
    }
    let (w, o) = (wanted.kind(), own.kind());
    w == TypeKind::Bits || o == TypeKind::Bits || (w != TypeKind::Float && o != TypeKind::Float)
}

/// Whether a number fits an integer of type `ty`.
fn fits(number: i128, ty: Type) -> bool {
    let bits = ty.bits().min(64);
    let low = -(1_i128 << (bits - 1));
    let high = 1_i128 << bits;
    (low..high).contains(&number)
}
