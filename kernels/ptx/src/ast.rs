//! A PTX module as data: the parser and the builder make it, the printer writes it, the interpreter runs it.
//!
//! ```text
//!   Module ─┬─ Variable   .global .align 8 .b8 table[64] = {1, 2};
//!           └─ Function   .visible .entry name(params) directives { body }
//!                              └─ Statement ─┬─ Variable      .reg .b32 %r<12>;
//!                                            ├─ Label         $L__BB0_2:
//!                                            ├─ Instruction   @!%p1 ld.global.v2.u32 {%r1, %r2}, [%rd1+8];
//!                                            └─ Block         { … } with its own scope of names
//! ```
//!
//! Names      kept as written. A name operand may be a register, a variable, a function, a label or a constant such as
//!            `WARP_SZ`: scope decides, see `check`.
//! Equality   compares meaning and ignores positions in the text, so `parse(print(m)) == m`.
//! Integers   `i128` holds every PTX literal; literals are in -2⁶³ … 2⁶⁴-1.
//! Nesting    at most [`MAX_NESTING`] nested blocks, vectors or initializer lists, so that recursion over a parsed
//!            module is safe.

/// Maximum nesting depth of blocks, operands and initializers that the parser accepts.
pub const MAX_NESTING: usize = 64;

/// Position in a PTX text. Line and column count from one; zero marks a node that was built, not parsed.
///
/// Spans always compare equal, because the position is not part of a node's meaning.
#[derive(Debug, Clone, Copy, Default)]
pub struct Span {
    pub line: u32,
    pub column: u32,
}

impl Span {
    /// Span of a node without a source text.
    pub const NONE: Span = Span { line: 0, column: 0 };
}

impl PartialEq for Span {
    fn eq(&self, _: &Span) -> bool {
        true
    }
}
impl Eq for Span {}
impl std::hash::Hash for Span {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// A whole PTX module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Module {
    /// `.version major.minor`
    pub version: (u32, u32),
    /// `.target sm_70, …`
    pub target: Vec<String>,
    /// `.address_size 64`
    pub address_size: u32,
    pub items: Vec<Item>,
}

impl Module {
    /// An empty module with the header that every module of this project has: PTX 8.2 for sm_70.
    pub fn new() -> Module {
        Module { version: (8, 2), target: vec!["sm_70".into()], address_size: 64, items: Vec::new() }
    }

    /// The functions in order, including declarations without a body.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.items.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
    }

    /// The variables at module scope, in order.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.items.iter().filter_map(|item| match item {
            Item::Variable(variable) => Some(variable),
            _ => None,
        })
    }

    /// The function `name`: its definition if there is one, else its declaration.
    pub fn function(&self, name: &str) -> Option<&Function> {
        let mut found = None;
        for function in self.functions().filter(|function| function.name == name) {
            if function.body.is_some() {
                return Some(function);
            }
            found = Some(function);
        }
        found
    }
}

impl Default for Module {
    fn default() -> Module {
        Module::new()
    }
}

/// An item at module scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Item {
    Variable(Variable),
    Function(Function),
    /// `.pragma "…", "…";`
    Pragma(Vec<String>),
    /// `.alias name, target;`
    Alias {
        name: String,
        target: String,
        span: Span,
    },
}

/// Visibility of a symbol to other modules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// Visible in this module only; printed without a directive.
    #[default]
    Private,
    Visible,
    Extern,
    Weak,
    Common,
}

/// State space of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    Reg,
    Shared,
    Const,
    Global,
    Local,
    Param,
}

/// A fundamental type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F64,
}

/// Kind of values of a [`Type`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TypeKind {
    Predicate,
    Bits,
    Unsigned,
    Signed,
    Float,
}

impl Type {
    /// Every type, in order.
    pub const ALL: [Type; 20] = [
        Type::Pred,
        Type::B8,
        Type::B16,
        Type::B32,
        Type::B64,
        Type::B128,
        Type::U8,
        Type::U16,
        Type::U32,
        Type::U64,
        Type::S8,
        Type::S16,
        Type::S32,
        Type::S64,
        Type::F16,
        Type::F16x2,
        Type::BF16,
        Type::BF16x2,
        Type::F32,
        Type::F64,
    ];

    /// The name without its dot: `u32`.
    pub const fn name(self) -> &'static str {
        match self {
            Type::Pred => "pred",
            Type::B8 => "b8",
            Type::B16 => "b16",
            Type::B32 => "b32",
            Type::B64 => "b64",
            Type::B128 => "b128",
            Type::U8 => "u8",
            Type::U16 => "u16",
            Type::U32 => "u32",
            Type::U64 => "u64",
            Type::S8 => "s8",
            Type::S16 => "s16",
            Type::S32 => "s32",
            Type::S64 => "s64",
            Type::F16 => "f16",
            Type::F16x2 => "f16x2",
            Type::BF16 => "bf16",
            Type::BF16x2 => "bf16x2",
            Type::F32 => "f32",
            Type::F64 => "f64",
        }
    }

    /// The type called `name` (without its dot), or `None`.
    pub fn from_name(name: &str) -> Option<Type> {
        Type::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// Width in bits; 1 for a predicate.
    pub const fn bits(self) -> u32 {
        match self {
            Type::Pred => 1,
            Type::B8 | Type::U8 | Type::S8 => 8,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::BF16 => 16,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 | Type::F16x2 | Type::BF16x2 => 32,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 64,
            Type::B128 => 128,
        }
    }

    /// Size in bytes in memory; 0 for a predicate.
    pub const fn bytes(self) -> u32 {
        self.bits() / 8
    }

    pub const fn kind(self) -> TypeKind {
        match self {
            Type::Pred => TypeKind::Predicate,
            Type::B8 | Type::B16 | Type::B32 | Type::B64 | Type::B128 => TypeKind::Bits,
            Type::U8 | Type::U16 | Type::U32 | Type::U64 => TypeKind::Unsigned,
            Type::S8 | Type::S16 | Type::S32 | Type::S64 => TypeKind::Signed,
            Type::F16 | Type::F16x2 | Type::BF16 | Type::BF16x2 | Type::F32 | Type::F64 => TypeKind::Float,
        }
    }

    pub const fn is_signed(self) -> bool {
        matches!(self.kind(), TypeKind::Signed)
    }

    pub const fn is_float(self) -> bool {
        matches!(self.kind(), TypeKind::Float)
    }
}

impl Space {
    /// The name without its dot: `global`.
    pub const fn name(self) -> &'static str {
        match self {
            Space::Reg => "reg",
            Space::Shared => "shared",
            Space::Const => "const",
            Space::Global => "global",
            Space::Local => "local",
            Space::Param => "param",
        }
    }

    /// The space called `name` (without its dot), or `None`. `shared::cta` and `param::entry` map to `Shared` and
    /// `Param`.
    pub fn from_name(name: &str) -> Option<Space> {
        Some(match name {
            "reg" => Space::Reg,
            "shared" | "shared::cta" => Space::Shared,
            "const" => Space::Const,
            "global" => Space::Global,
            "local" => Space::Local,
            "param" | "param::entry" | "param::func" => Space::Param,
            _ => return None,
        })
    }
}

/// A declaration of a register, a variable in memory, or a parameter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Variable {
    pub linkage: Linkage,
    pub space: Space,
    /// `.align n`; `None` means the alignment of the type.
    pub align: Option<u32>,
    /// `.v2` or `.v4`.
    pub vector: Option<u8>,
    pub ty: Type,
    /// `.ptr`; only on parameters of entries.
    pub pointer: Option<Pointer>,
    pub name: String,
    /// `Some(12)` for `%r<12>`, which declares `%r0` … `%r11`.
    pub count: Option<u32>,
    /// Array extents, outermost first; zero means `[]`.
    pub dims: Vec<u64>,
    pub init: Option<Init>,
    pub span: Span,
}

impl Variable {
    /// A plain declaration; the other fields are empty.
    pub fn new(space: Space, ty: Type, name: impl Into<String>) -> Variable {
        Variable {
            linkage: Linkage::Private,
            space,
            align: None,
            vector: None,
            ty,
            pointer: None,
            name: name.into(),
            count: None,
            dims: Vec::new(),
            init: None,
            span: Span::NONE,
        }
    }

    /// Bytes of one element: its type times its vector length.
    pub fn element_bytes(&self) -> u64 {
        u64::from(self.ty.bytes()) * u64::from(self.vector.unwrap_or(1))
    }

    /// Bytes of the whole variable, or `None` if they exceed 64 bits. An unsized `[]` takes its extent from the
    /// initializer and has zero bytes without one.
    pub fn size(&self) -> Option<u64> {
        let mut bytes = self.element_bytes();
        for (depth, &dim) in self.dims.iter().enumerate() {
            let given = match &self.init {
                Some(Init::List(list)) if dim == 0 && depth == 0 => list.len() as u64,
                _ => dim,
            };
            bytes = bytes.checked_mul(given)?;
        }
        Some(bytes)
    }

    /// Alignment in bytes: the written one, else the element size.
    pub fn alignment(&self) -> u64 {
        self.align.map_or(self.element_bytes().max(1), u64::from)
    }
}

/// `.ptr .space .align n` on a kernel parameter: the memory that it points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pointer {
    /// `None` means generic.
    pub space: Option<Space>,
    pub align: Option<u32>,
}

/// An initial value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Init {
    List(Vec<Init>),
    Integer(i128),
    /// Bits of a binary32.
    F32(u32),
    /// Bits of a binary64.
    F64(u64),
    /// The address of a symbol plus an offset; printed as `generic(symbol)` if `generic` is set.
    Symbol {
        name: String,
        offset: i64,
        generic: bool,
    },
    /// `0xFF00(symbol)`: the address bytes selected by the mask, shifted down to bit zero.
    Mask {
        mask: u64,
        name: String,
        offset: i64,
        generic: bool,
    },
}

/// A kernel (`.entry`) or a function (`.func`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Function {
    pub linkage: Linkage,
    pub kind: FunctionKind,
    pub name: String,
    /// At most one in practice; empty for entries.
    pub returns: Vec<Variable>,
    pub params: Vec<Variable>,
    pub directives: Vec<Directive>,
    /// `None` for a declaration.
    pub body: Option<Vec<Statement>>,
    pub span: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    Entry,
    Func,
}

/// A directive between the parameters and the body.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Directive {
    /// `.maxntid x, y, z`: one to three extents.
    MaxThreads(Vec<u32>),
    /// `.reqntid x, y, z`
    RequiredThreads(Vec<u32>),
    /// `.minnctapersm n`
    MinBlocksPerSm(u32),
    /// `.maxnctapersm n`
    MaxBlocksPerSm(u32),
    /// `.maxnreg n`
    MaxRegisters(u32),
    /// `.noreturn`
    NoReturn,
    /// `.pragma "…";`
    Pragma(Vec<String>),
}

/// A statement of a body.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Statement {
    Variable(Variable),
    Label {
        name: String,
        span: Span,
    },
    Instruction(Instruction),
    /// `{ … }`: names declared inside are not visible outside.
    Block(Vec<Statement>),
    /// `.pragma "…";`
    Pragma(Vec<String>),
    /// `name: .branchtargets a, b, c;` for `brx.idx`.
    BranchTargets {
        name: String,
        targets: Vec<String>,
        span: Span,
    },
    /// `name: .calltargets f, g;` for an indirect `call`.
    CallTargets {
        name: String,
        targets: Vec<String>,
        span: Span,
    },
    /// `name: .callprototype (returns) _ (params);` for an indirect `call`.
    CallPrototype {
        name: String,
        returns: Vec<Variable>,
        params: Vec<Variable>,
        no_return: bool,
        span: Span,
    },
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Instruction {
    pub guard: Option<Guard>,
    pub opcode: Opcode,
    pub operands: Vec<Operand>,
    pub span: Span,
}

impl Instruction {
    /// An unguarded instruction from `"ld.global.u32"` and its operands, in the order in which PTX writes them.
    pub fn new(opcode: &str, operands: Vec<Operand>) -> Instruction {
        Instruction { guard: None, opcode: Opcode::new(opcode), operands, span: Span::NONE }
    }

    /// The parts of a `call`, or `None` if this is not a well-formed call.
    pub fn call(&self) -> Option<Call<'_>> {
        if self.opcode.name != "call" {
            return None;
        }
        let mut rest = self.operands.as_slice();
        let mut returns: &[Operand] = &[];
        if let [Operand::List(list), tail @ ..] = rest {
            returns = list;
            rest = tail;
        }
        let [Operand::Name(target), tail @ ..] = rest else { return None };
        rest = tail;
        let mut arguments: &[Operand] = &[];
        if let [Operand::List(list), tail @ ..] = rest {
            arguments = list;
            rest = tail;
        }
        let prototype = match rest {
            [] => None,
            [Operand::Name(name)] => Some(name.as_str()),
            _ => return None,
        };
        Some(Call { returns, target, arguments, prototype })
    }
}

/// A view of a `call (returns), target, (arguments), prototype;`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    pub returns: &'a [Operand],
    /// A function, or a register when the call is indirect.
    pub target: &'a str,
    pub arguments: &'a [Operand],
    /// The label of a `.callprototype` or `.calltargets`, for indirect calls.
    pub prototype: Option<&'a str>,
}

/// `@p` or `@!p` in front of an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Guard {
    pub negated: bool,
    pub register: String,
}

/// The name and modifiers of an instruction, without dots: `ld.global.v4.u32` is `ld` with `global`, `v4`, `u32`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Opcode {
    pub name: String,
    pub modifiers: Vec<String>,
}

impl Opcode {
    /// Splits `"ld.global.u32"` at its dots.
    pub fn new(text: &str) -> Opcode {
        let mut parts = text.split('.').map(str::to_string);
        let name = parts.next().unwrap_or_default();
        Opcode { name, modifiers: parts.collect() }
    }

    /// Whether the opcode has the modifier (given without its dot).
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m == modifier)
    }

    /// The type modifiers, in order: `cvt.rn.f32.s64` has two, the destination's first.
    pub fn types(&self) -> impl DoubleEndedIterator<Item = Type> + '_ {
        self.modifiers.iter().filter_map(|m| Type::from_name(m))
    }

    /// The state space modifier, or `None` for generic addresses and for instructions without one.
    pub fn space(&self) -> Option<Space> {
        self.modifiers.iter().find_map(|m| Space::from_name(m))
    }

    /// Vector length: 2 for `.v2`, 4 for `.v4`, else 1.
    pub fn vector(&self) -> u8 {
        self.modifiers
            .iter()
            .find_map(|m| match m.as_str() {
                "v2" => Some(2),
                "v4" => Some(4),
                "v8" => Some(8),
                _ => None,
            })
            .unwrap_or(1)
    }
}

/// An operand of an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register (`%r1`, `%tid.x`, `%v.y`), variable, parameter, function, label or constant.
    Name(String),
    Integer(i128),
    /// Bits of a binary32, written `0f3F800000`.
    F32(u32),
    /// Bits of a binary64, written `0d3FF0000000000000`.
    F64(u64),
    /// `[base+offset]`
    Address {
        base: AddressBase,
        offset: i64,
    },
    /// `symbol+offset`, as in `mov.u64 %rd1, table+8`.
    SymbolOffset {
        name: String,
        offset: i64,
    },
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `p|q`: the first and second destination of `setp`, `shfl`, `match`, `lop3`.
    Pair(Box<Operand>, Box<Operand>),
    /// `!p`
    Not(Box<Operand>),
    /// `_`, a destination whose value is discarded.
    Sink,
    /// `(a, b)`, in calls only.
    List(Vec<Operand>),
}

impl Operand {
    pub fn name(name: impl Into<String>) -> Operand {
        Operand::Name(name.into())
    }

    /// `[base+offset]` over a register or symbol.
    pub fn address(base: impl Into<String>, offset: i64) -> Operand {
        Operand::Address { base: AddressBase::Name(base.into()), offset }
    }
}

/// Base of an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AddressBase {
    /// A register or a variable.
    Name(String),
    /// An absolute address; the offset is then zero.
    Absolute(u64),
}
