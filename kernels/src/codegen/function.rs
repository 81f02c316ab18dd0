//! Functions that expressions call: a PTX `.func` with the types of its arguments and its result.
//!
//!   math_sin(F64) -> F64              call (r), math_sin, (x)                          compiled from cuda/math.cu
//!   haversine(F64, …) -> F64          call (r), haversine, (a, b, c, d)                user PTX, checked here
//!
//! | type                        | as an argument              | as a result                                      |
//! | --------------------------- | --------------------------- | ------------------------------------------------ |
//! | Bool                        | 32 bits, 0 or 1             | 32 bits, any but 0 is true                       |
//! | integers up to 32 bits      | 32 bits, sign or zero extended | 32 bits; its low bits count                   |
//! | I64, U64                    | 64 bits                     | 64 bits                                          |
//! | F32, F64                    | 32, 64 bits                 | 32, 64 bits                                      |
//! | I128                        | 16 bytes, aligned to 16     | 16 bytes, aligned to 16                          |
//!
//! NULL     a strict function is not called if an argument is NULL; the result is then NULL. A function that sees NULL
//!          gets 32 bits after each argument (1: valid) and returns bytes: the value, then at byte 8 (16 for I128) 32
//!          bits with the validity of the result; 16 bytes in total, 32 for I128. C passes `struct { T value; unsigned
//!          valid; }` in this way.
//! Errors   a function cannot raise one.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use millpond_ptx::ast::{FunctionKind, Module, Type, Variable};
use millpond_ptx::build::{Callee, ModuleBuilder, fingerprint};

use super::graph::{Graph, GraphError, Node, NodeId, Repr, Ty};

/// Treatment of NULL arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Nulls {
    /// An argument that is NULL makes the result NULL.
    Strict,
    /// The function gets the validity of every argument, and returns that of its result.
    Seen,
}

/// A function of a PTX module, checked against its declared types.
pub struct Function {
    name: String,
    module: Arc<Module>,
    fingerprint: u64,
    pub arguments: Vec<Repr>,
    pub result: Repr,
    pub nulls: Nulls,
}

/// Reason why PTX is not a function that expressions can call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// The text violates a rule of PTX.
    #[error("line {line}: {message}")]
    Ptx { line: u32, message: String },
    #[error("the PTX has no .func {name}; it has {found}")]
    Missing { name: String, found: String },
    #[error("line {line}: {what} of {name} is {found}; {wanted} is declared, so it must be {expected}")]
    Signature { name: String, line: u32, what: String, found: String, wanted: String, expected: String },
    #[error("line {line}: {name} takes {found} parameters; {expected} are declared")]
    Arity { name: String, line: u32, found: usize, expected: String },
    #[error("the PTX is for {found}; a module of ours is PTX 8.2 for sm_70, and takes functions of at most that")]
    Target { found: String },
    #[error("texts cannot be passed to functions")]
    Text,
    /// The function calls a function, or uses a variable, that the module does not define.
    #[error("{0}")]
    Incomplete(String),
}

impl Function {
    /// Parses and checks `text`, and finds the `.func` `name` in it.
    ///
    /// # Errors
    /// [`FunctionError`], with the line: the text is not valid PTX, has no such function with a body, its parameters do
    /// not match `arguments`, `result` and `nulls`, or it needs a definition that the text lacks.
    pub fn from_ptx(
        text: &str,
        name: &str,
        arguments: Vec<Repr>,
        result: Repr,
        nulls: Nulls,
    ) -> Result<Function, FunctionError> {
        let broken = |error: millpond_ptx::PtxError| FunctionError::Ptx {
            line: error.span().line,
            message: error.message().to_string(),
        };
        let module = millpond_ptx::parse(text).map_err(broken)?;
        millpond_ptx::check(&module).map_err(broken)?;
        let fingerprint = fingerprint(&module);
        let function = Self::from_module(Arc::new(module), fingerprint, name, arguments, result, nulls)?;
        // All definitions that it needs must be in the text.
        let incomplete = |error: millpond_ptx::PtxError| FunctionError::Incomplete(error.message().to_string());
        function.paste(&mut ModuleBuilder::new()).map_err(incomplete)?;
        Ok(function)
    }

    fn from_module(
        module: Arc<Module>,
        fingerprint: u64,
        name: &str,
        arguments: Vec<Repr>,
        result: Repr,
        nulls: Nulls,
    ) -> Result<Function, FunctionError> {
        if arguments.contains(&Repr::Text) || result == Repr::Text {
            return Err(FunctionError::Text);
        }
        let architecture = |target: &str| target.strip_prefix("sm_")?.parse::<u32>().ok();
        let fits = module.version <= (8, 2)
            && module.address_size == 64
            && module.target.first().is_some_and(|target| architecture(target).is_some_and(|sm| sm <= 70));
        if !fits {
            let (major, minor) = module.version;
            let target = module.target.join(", ");
            let found = format!("PTX {major}.{minor}, {target}, addresses of {} bits", module.address_size);
            return Err(FunctionError::Target { found });
        }
        let found =
            module.function(name).filter(|function| function.kind == FunctionKind::Func && function.body.is_some());
        let Some(found) = found else {
            let names: Vec<&str> = module
                .functions()
                .filter(|function| function.kind == FunctionKind::Func && function.body.is_some())
                .map(|function| function.name.as_str())
                .collect();
            let found = if names.is_empty() { "none".to_string() } else { names.join(", ") };
            return Err(FunctionError::Missing { name: name.to_string(), found });
        };
        let line = found.span.line;
        let mut expected = Vec::new();
        for (index, argument) in arguments.iter().enumerate() {
            expected.push((format!("argument {}", index + 1), *argument, Shape::of(*argument)));
            if nulls == Nulls::Seen {
                expected.push((format!("the validity of argument {}", index + 1), Repr::Bool, Shape::Word(32)));
            }
        }
        if found.params.len() != expected.len() {
            let expected = format!("{} ({arguments:?}, NULL {nulls:?})", expected.len());
            return Err(FunctionError::Arity { name: name.to_string(), line, found: found.params.len(), expected });
        }
        let returned = match nulls {
            Nulls::Strict => Shape::of(result),
            Nulls::Seen => Shape::Bytes(if result == Repr::I128 { 32 } else { 16 }),
        };
        let [own] = found.returns.as_slice() else {
            return Err(FunctionError::Signature {
                name: name.to_string(),
                line,
                what: "the result".into(),
                found: format!("{} values", found.returns.len()),
                wanted: format!("{result:?}"),
                expected: returned.to_string(),
            });
        };
        let all = expected.into_iter().zip(&found.params).chain([(("the result".to_string(), result, returned), own)]);
        for ((what, repr, shape), own) in all {
            if !shape.holds(own, repr) {
                return Err(FunctionError::Signature {
                    name: name.to_string(),
                    line,
                    what,
                    found: described(own),
                    wanted: format!("{repr:?}"),
                    expected: shape.to_string(),
                });
            }
        }
        Ok(Function { name: name.to_string(), module, fingerprint, arguments, result, nulls })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Pastes the function and its dependencies into a module under construction.
    ///
    /// # Errors
    /// [`millpond_ptx::PtxError::Rule`] if a dependency is missing, which the constructor has excluded.
    pub(crate) fn paste(&self, into: &mut ModuleBuilder) -> Result<Callee, millpond_ptx::PtxError> {
        into.paste_known(&self.module, self.fingerprint, &self.name)
    }

    /// Checks that the interpreter supports the function's PTX.
    ///
    /// # Errors
    /// [`FunctionError::Ptx`] with the first unsupported instruction.
    pub fn interpretable(&self) -> Result<(), FunctionError> {
        let unknown = |error: &dyn std::fmt::Display| FunctionError::Ptx { line: 0, message: error.to_string() };
        millpond_ptx::interpret::Image::load(&self.module).map(|_| ()).map_err(|error| unknown(&error))
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({:?}) -> {:?}, NULL {:?}", self.name, self.arguments, self.result, self.nulls)
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || ((self.fingerprint, &self.name, &self.arguments) == (other.fingerprint, &other.name, &other.arguments)
                && (self.result, self.nulls) == (other.result, other.nulls)
                && self.module == other.module)
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.fingerprint, &self.name, &self.arguments, self.result, self.nulls).hash(state);
    }
}

/// Form in which a value is passed or returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Word(u32),
    Bytes(u64),
}

impl Shape {
    fn of(repr: Repr) -> Shape {
        match repr {
            Repr::I64 | Repr::U64 | Repr::F64 => Shape::Word(64),
            Repr::I128 => Shape::Bytes(16),
            _ => Shape::Word(32),
        }
    }

    fn holds(self, own: &Variable, repr: Repr) -> bool {
        match self {
            Shape::Word(bits) => {
                let untyped = own.ty.name().starts_with('b');
                own.dims.is_empty() && own.ty.bits() == bits && (untyped || own.ty.is_float() == repr.is_float())
            }
            Shape::Bytes(size) => own.ty == Type::B8 && own.dims == [size],
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shape::Word(bits) => write!(f, "a .param .b{bits}"),
            Shape::Bytes(size) => write!(f, "a .param .align {} .b8 [{size}]", if *size == 32 { 16 } else { 8 }),
        }
    }
}

fn described(own: &Variable) -> String {
    let dims: String = own.dims.iter().map(|dim| format!(" [{dim}]")).collect();
    format!("a .param .{}{dims}", own.ty.name())
}

/// Functions of floats and integers, compiled from `cuda/math.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Math {
    Acos,
    Asin,
    Atan,
    /// `atan2(y, x)`.
    Atan2,
    Cbrt,
    Cos,
    Cosh,
    Exp,
    /// The square root of the sum of two squares.
    Hypot,
    Ln,
    /// `ln(1 + x)`.
    Ln1p,
    Log10,
    Log2,
    Power,
    Sin,
    Sinh,
    Tan,
    Tanh,
    /// Of two `I64`; -1 if the result does not fit.
    Gcd,
    /// Of two `I64`; -1 if the result does not fit.
    Lcm,
    /// Of an `I64`; -1 if the result does not fit or is undefined.
    Factorial,
}

/// Representations of arguments, of which the result has the first.
const FLOAT: &[Repr] = &[Repr::F64];
const TWO_FLOATS: &[Repr] = &[Repr::F64; 2];
const INTEGER: &[Repr] = &[Repr::I64];
const TWO_INTEGERS: &[Repr] = &[Repr::I64; 2];

impl Math {
    /// A row for each function: its symbol in `cuda/math.cu`, and the representations of its arguments.
    const ALL: [(Math, &'static str, &'static [Repr]); 21] = [
        (Math::Acos, "math_acos", FLOAT),
        (Math::Asin, "math_asin", FLOAT),
        (Math::Atan, "math_atan", FLOAT),
        (Math::Atan2, "math_atan2", TWO_FLOATS),
        (Math::Cbrt, "math_cbrt", FLOAT),
        (Math::Cos, "math_cos", FLOAT),
        (Math::Cosh, "math_cosh", FLOAT),
        (Math::Exp, "math_exp", FLOAT),
        (Math::Hypot, "math_hypot", TWO_FLOATS),
        (Math::Ln, "math_ln", FLOAT),
        (Math::Ln1p, "math_ln_1p", FLOAT),
        (Math::Log10, "math_log10", FLOAT),
        (Math::Log2, "math_log2", FLOAT),
        (Math::Power, "math_power", TWO_FLOATS),
        (Math::Sin, "math_sin", FLOAT),
        (Math::Sinh, "math_sinh", FLOAT),
        (Math::Tan, "math_tan", FLOAT),
        (Math::Tanh, "math_tanh", FLOAT),
        (Math::Gcd, "math_gcd", TWO_INTEGERS),
        (Math::Lcm, "math_lcm", TWO_INTEGERS),
        (Math::Factorial, "math_factorial", INTEGER),
    ];

    /// The compiled function.
    pub fn function(self) -> Arc<Function> {
        static FUNCTIONS: LazyLock<HashMap<Math, Arc<Function>>> = LazyLock::new(|| {
            let text = crate::image::IMAGES.iter().find(|image| image.name == "math").map_or("", |image| image.text);
            let module = Arc::new(millpond_ptx::parse(text).expect("an image is PTX, as its test says"));
            let number = fingerprint(&module);
            let all = Math::ALL.into_iter().map(|(math, symbol, arguments)| {
                let module = Arc::clone(&module);
                let result = arguments[0];
                let function = Function::from_module(module, number, symbol, arguments.to_vec(), result, Nulls::Strict);
                (math, Arc::new(function.expect("the image has the function, as its test says")))
            });
            all.collect()
        });
        Arc::clone(&FUNCTIONS[&self])
    }
}

impl Graph {
    /// Calls `function`. A strict function gives NULL for a NULL argument; one that sees NULL may give NULL for any
    /// row.
    ///
    /// # Errors
    /// If the number or the representations of the arguments do not match the function.
    pub fn call(&mut self, function: &Arc<Function>, arguments: &[NodeId]) -> Result<NodeId, GraphError> {
        if let Some(unknown) = arguments.iter().find(|id| !self.contains(**id)) {
            return Err(GraphError::UnknownNode(unknown.0));
        }
        let given: Vec<Repr> = arguments.iter().map(|id| self.ty(*id).repr).collect();
        if given != function.arguments {
            let operator = format!("{} of {:?}", function.name, function.arguments);
            return Err(GraphError::Operands { operator, operands: given });
        }
        let nullable = match function.nulls {
            Nulls::Strict => arguments.iter().any(|id| self.ty(*id).nullable),
            Nulls::Seen => true,
        };
        let node = Node::Call { function: Arc::clone(function), arguments: arguments.to_vec() };
        Ok(self.push(node, Ty::new(function.result).nullable(nullable)))
    }

    /// Calls a compiled math function. `F32` arguments are widened, and the result is rounded once.
    ///
    /// # Errors
    /// If the arguments are not floats of one width, or not `I64` for integer functions.
    pub fn math(&mut self, math: Math, arguments: &[NodeId]) -> Result<NodeId, GraphError> {
        use super::graph::Overflow::Wrap;
        let single = arguments.iter().all(|id| self.contains(*id) && self.ty(*id).repr == Repr::F32);
        let function = math.function();
        if !single || arguments.is_empty() || function.result != Repr::F64 {
            return self.call(&function, arguments);
        }
        let mut wide = Vec::with_capacity(arguments.len());
        for argument in arguments {
            wide.push(self.convert(*argument, Repr::F64, Wrap)?);
        }
        let result = self.call(&function, &wide)?;
        self.convert(result, Repr::F32, Wrap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
.version 8.2
.target sm_70
.address_size 64
.visible .func (.param .f64 result) twice(.param .f64 x)
{
    .reg .f64 %d<3>;
    ld.param.f64 %d1, [x];
    add.f64 %d2, %d1, %d1;
    st.param.f64 [result], %d2;
    ret;
}
";

    fn of(text: &str, name: &str, arguments: &[Repr], result: Repr, nulls: Nulls) -> String {
        match Function::from_ptx(text, name, arguments.to_vec(), result, nulls) {
            Ok(function) => format!("{} is fine", function.name()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_compiled_function_is_there() {
        for (math, symbol, _) in Math::ALL {
            assert_eq!(math.function().name(), symbol);
        }
        assert_eq!(Math::Sin.function(), Math::Sin.function());
        assert_ne!(Math::Sin.function(), Math::Cos.function());
    }

    #[test]
    fn a_function_must_be_as_declared() {
        use Repr::*;
        assert_eq!(of(TEXT, "twice", &[F64], F64, Nulls::Strict), "twice is fine");
        assert_eq!(of(TEXT, "thrice", &[F64], F64, Nulls::Strict), "the PTX has no .func thrice; it has twice");
        assert_eq!(
            of(TEXT, "twice", &[F64, F64], F64, Nulls::Strict),
            "line 5: twice takes 1 parameters; 2 ([F64, F64], NULL Strict) are declared"
        );
        assert_eq!(
            of(TEXT, "twice", &[I64], F64, Nulls::Strict),
            "line 5: argument 1 of twice is a .param .f64; I64 is declared, so it must be a .param .b64"
        );
        assert_eq!(
            of(TEXT, "twice", &[F64], F32, Nulls::Strict),
            "line 5: the result of twice is a .param .f64; F32 is declared, so it must be a .param .b32"
        );
        assert_eq!(
            of(TEXT, "twice", &[F64], I128, Nulls::Strict),
            "line 5: the result of twice is a .param .f64; I128 is declared, so it must be a .param .align 8 .b8 [16]"
        );
    }

    #[test]
    fn bad_ptx_names_its_line() {
        let spoilt = TEXT.replace("add.f64 %d2, %d1, %d1", "add.f64 %d2, %d1, %r1");
        assert!(of(&spoilt, "twice", &[Repr::F64], Repr::F64, Nulls::Strict).starts_with("line 9: "));
        let unknown = TEXT.replace("add.f64", "plus.f64");
        let said = of(&unknown, "twice", &[Repr::F64], Repr::F64, Nulls::Strict);
        assert!(said.starts_with("line 9: "), "{said}");
        let newer = TEXT.replace("sm_70", "sm_90");
        let said = of(&newer, "twice", &[Repr::F64], Repr::F64, Nulls::Strict);
        assert!(said.contains("sm_90") && said.contains("sm_70"), "{said}");
    }

    #[test]
    fn a_function_brings_what_it_needs() {
        let text = TEXT
            .replace(".visible", ".extern .func elsewhere();\n.visible")
            .replace("ret;", "call elsewhere;\n    ret;");
        let said = of(&text, "twice", &[Repr::F64], Repr::F64, Nulls::Strict);
        assert!(said.contains("elsewhere"), "{said}");
    }
}
