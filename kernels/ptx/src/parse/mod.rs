//! Parses a PTX text into a [`Module`].
//!
//!   text ──► tokens ──► items: header, variables, functions ──► statements ──► operands
//!
//! Accepts    what NVRTC 12 emits and what this project's generator emits.
//! Skips      comments and debugging information: `.loc`, `.file`, `.section`.
//! Errors     a text that breaks the grammar returns [`PtxError::Syntax`] with line and column. No text causes a panic
//!            or exhausts the stack: nesting beyond [`MAX_NESTING`] is an error.
//! Meaning    names and types are not checked here: see `check`.

mod numbers;

use numbers::Number;

use crate::{PtxError, ast::*, lex::Lexer, lex::Token};

/// Parses a whole module.
///
/// ```
/// let text = ".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }";
/// let module = millpond_ptx::parse(text)?;
/// assert_eq!(module.functions().next().unwrap().name, "nothing");
/// # Ok::<(), millpond_ptx::PtxError>(())
/// ```
///
/// # Errors
/// [`PtxError::Syntax`] at the first position that is not valid PTX.
pub fn parse(text: &str) -> Result<Module, PtxError> {
    let mut parser = Parser::new(text)?;
    parser.module()
}

impl std::str::FromStr for Module {
    type Err = PtxError;

    fn from_str(text: &str) -> Result<Module, PtxError> {
        parse(text)
    }
}

type Parsed<T> = Result<T, PtxError>;

struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    span: Span,
    ahead: Option<(Token<'a>, Span)>,
    depth: usize,
}

// 1. Tokens: test, take, expect.
impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parsed<Parser<'a>> {
        let mut lexer = Lexer::new(text);
        let (token, span) = lexer.next()?;
        Ok(Parser { lexer, token, span, ahead: None, depth: 0 })
    }

    fn advance(&mut self) -> Parsed<Token<'a>> {
        let taken = self.token;
        (self.token, self.span) = match self.ahead.take() {
            Some(next) => next,
            None => self.lexer.next()?,
        };
        Ok(taken)
    }

    fn peek_next(&mut self) -> Parsed<Token<'a>> {
        if self.ahead.is_none() {
            self.ahead = Some(self.lexer.next()?);
        }
        Ok(self.ahead.map_or(Token::End, |(token, _)| token))
    }

    fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(PtxError::Syntax { span: self.span, message: message.into() })
    }

    fn expected<T>(&self, what: &str) -> Parsed<T> {
        self.fail(format!("expected {what}, found {}", self.token))
    }

    fn at(&self, mark: char) -> bool {
        self.token == Token::Mark(mark)
    }

    fn at_dotted(&self, name: &str) -> bool {
        self.token == Token::Dotted(name)
    }

    /// Consumes the mark if it is the next token.
    fn accept(&mut self, mark: char) -> Parsed<bool> {
        let found = self.at(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn accept_dotted(&mut self, name: &str) -> Parsed<bool> {
        let found = self.at_dotted(name);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, mark: char) -> Parsed<()> {
        if self.accept(mark)? { Ok(()) } else { self.expected(&format!("`{mark}`")) }
    }

    /// A name: a word other than a lone `%` or `$`.
    fn word(&mut self, what: &str) -> Parsed<String> {
        match self.token {
            Token::Word(word) if word != "%" && word != "$" => {
                self.advance()?;
                Ok(word.to_string())
            }
            _ => self.expected(what),
        }
    }

    /// `a, b, c` up to a token that is not a comma.
    fn separated<T>(&mut self, mut one: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut list = vec![one(self)?];
        while self.accept(',')? {
            list.push(one(self)?);
        }
        Ok(list)
    }

    /// Runs `inner` one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_NESTING {
            return self.fail(format!("nested more than {MAX_NESTING} deep"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }
}

// 2. Items.
impl<'a> Parser<'a> {
    fn module(&mut self) -> Parsed<Module> {
        let mut module = Module { version: self.version()?, target: Vec::new(), address_size: 32, items: Vec::new() };
        if !self.accept_dotted("target")? {
            return self.expected("`.target` after `.version`");
        }
        module.target = self.separated(|p| p.word("a target such as sm_70"))?;
        if self.accept_dotted("address_size")? {
            module.address_size = self.unsigned("32 or 64")?;
        }
        while self.token != Token::End {
            self.item(&mut module.items)?;
        }
        Ok(module)
    }

    fn version(&mut self) -> Parsed<(u32, u32)> {
        if !self.accept_dotted("version")? {
            return self.expected("`.version` at the start");
        }
        let version = match self.token {
            Token::Number(text) => {
                text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
            }
            _ => None,
        };
        let Some(version) = version else { return self.expected("a version such as 8.2") };
        self.advance()?;
        Ok(version)
    }

    fn item(&mut self, items: &mut Vec<Item>) -> Parsed<()> {
        if self.skip_debugging()? || self.accept(';')? {
            return Ok(());
        }
        if self.at_dotted("pragma") {
            items.push(Item::Pragma(self.pragma()?));
            return Ok(());
        }
        let span = self.span;
        if self.accept_dotted("alias")? {
            let name = self.word("a name")?;
            self.expect(',')?;
            let target = self.word("a name")?;
            self.expect(';')?;
            items.push(Item::Alias { name, target, span });
            return Ok(());
        }
        let linkage = self.linkage()?;
        let Token::Dotted(word) = self.token else { return self.expected("a directive") };
        match word {
            "entry" | "func" => {
                let function = self.function(linkage, span)?;
                items.push(Item::Function(function));
            }
            _ => items.extend(self.variables(linkage)?.into_iter().map(Item::Variable)),
        }
        Ok(())
    }

    fn linkage(&mut self) -> Parsed<Linkage> {
        let linkage = match self.token {
            Token::Dotted("visible") => Linkage::Visible,
            Token::Dotted("extern") => Linkage::Extern,
            Token::Dotted("weak") => Linkage::Weak,
            Token::Dotted("common") => Linkage::Common,
            _ => return Ok(Linkage::Private),
        };
        self.advance()?;
        Ok(linkage)
    }

    /// Skips one debugging directive if it is the next token.
    fn skip_debugging(&mut self) -> Parsed<bool> {
        match self.token {
            Token::Dotted("loc" | "file") => {
                let line = self.span.line;
                while self.token != Token::End && self.span.line == line {
                    self.advance()?;
                }
                Ok(true)
            }
            Token::Dotted("section") => {
                self.advance()?;
                self.advance()?;
                self.expect('{')?;
                while !self.at('}') {
                    if self.token == Token::End {
                        return self.expected("the end of this section");
                    }
                    self.advance()?;
                }
                self.advance()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn pragma(&mut self) -> Parsed<Vec<String>> {
        self.advance()?;
        let texts = self.separated(|p| match p.token {
            Token::Text(text) => {
                p.advance()?;
                Ok(text.to_string())
            }
            _ => p.expected("a string"),
        })?;
        self.expect(';')?;
        Ok(texts)
    }

    fn function(&mut self, linkage: Linkage, span: Span) -> Parsed<Function> {
        let kind = if self.at_dotted("entry") { FunctionKind::Entry } else { FunctionKind::Func };
        self.advance()?;
        let returns = self.parameters()?;
        if kind == FunctionKind::Entry && !returns.is_empty() {
            return self.fail("an .entry returns nothing");
        }
        let name = self.word("the name of a function")?;
        let params = self.parameters()?;
        let mut directives = Vec::new();
        let body = loop {
            if self.accept(';')? {
                break None;
            }
            if self.at('{') {
                break Some(self.block()?);
            }
            directives.push(self.directive()?);
        };
        Ok(Function { linkage, kind, name, returns, params, directives, body, span })
    }

    fn directive(&mut self) -> Parsed<Directive> {
        let Token::Dotted(word) = self.token else { return self.expected("`{`, `;` or a directive") };
        if word == "pragma" {
            return Ok(Directive::Pragma(self.pragma()?));
        }
        let extents = |p: &mut Self| -> Parsed<Vec<u32>> {
            p.advance()?;
            let span = p.span;
            let extents = p.separated(|p| p.unsigned("a number of threads"))?;
            if extents.len() > 3 {
                return Err(PtxError::Syntax { span, message: "a thread block has at most three extents".into() });
            }
            Ok(extents)
        };
        let one = |p: &mut Self| -> Parsed<u32> {
            p.advance()?;
            p.unsigned("a number")
        };
        Ok(match word {
            "maxntid" => Directive::MaxThreads(extents(self)?),
            "reqntid" => Directive::RequiredThreads(extents(self)?),
            "minnctapersm" => Directive::MinBlocksPerSm(one(self)?),
            "maxnctapersm" => Directive::MaxBlocksPerSm(one(self)?),
            "maxnreg" => Directive::MaxRegisters(one(self)?),
            "noreturn" => {
                self.advance()?;
                Directive::NoReturn
            }
            _ => return self.expected("`{`, `;` or a directive of a function"),
        })
    }

    /// `( .param …, .param … )`, or nothing.
    fn parameters(&mut self) -> Parsed<Vec<Variable>> {
        if !self.accept('(')? {
            return Ok(Vec::new());
        }
        if self.accept(')')? {
            return Ok(Vec::new());
        }
        let list = self.separated(|p| {
            if !p.at_dotted("param") && !p.at_dotted("reg") {
                return p.expected("`.param` or `.reg`");
            }
            let head = p.declaration_head(Linkage::Private)?;
            p.declarator(&head)
        })?;
        self.expect(')')?;
        Ok(list)
    }
}

// 3. Variables.
impl<'a> Parser<'a> {
    /// `.space .align n .v2 .type a, b<4>, c[8] = { … };`
    fn variables(&mut self, linkage: Linkage) -> Parsed<Vec<Variable>> {
        let head = self.declaration_head(linkage)?;
        let list = self.separated(|p| {
            let mut variable = p.declarator(&head)?;
            if p.accept('=')? {
                variable.init = Some(p.initialiser()?);
            }
            Ok(variable)
        })?;
        self.expect(';')?;
        Ok(list)
    }

    /// Everything before the name, as a variable without a name.
    fn declaration_head(&mut self, linkage: Linkage) -> Parsed<Variable> {
        let Token::Dotted(word) = self.token else { return self.expected("a state space") };
        let space = match word {
            "reg" => Space::Reg,
            "shared" => Space::Shared,
            "const" => Space::Const,
            "global" => Space::Global,
            "local" => Space::Local,
            "param" => Space::Param,
            _ => return self.expected("a state space, such as `.global`, or a function"),
        };
        self.advance()?;
        let mut align = None;
        let mut vector = None;
        let ty = loop {
            let Token::Dotted(word) = self.token else { return self.expected("a type") };
            match word {
                "align" if align.is_none() => {
                    self.advance()?;
                    align = Some(self.alignment()?);
                    continue;
                }
                "v2" if vector.is_none() => vector = Some(2),
                "v4" if vector.is_none() => vector = Some(4),
                _ => match Type::from_name(word) {
                    Some(ty) => {
                        self.advance()?;
                        break ty;
                    }
                    None => return self.expected("a type"),
                },
            }
            self.advance()?;
        };
        let mut head = Variable::new(space, ty, "");
        (head.linkage, head.align, head.vector) = (linkage, align, vector);
        if space == Space::Param && self.accept_dotted("ptr")? {
            let mut pointer = Pointer { space: None, align: None };
            if let Token::Dotted(word @ ("const" | "global" | "local" | "shared")) = self.token {
                pointer.space = Space::from_name(word);
                self.advance()?;
            }
            if self.accept_dotted("align")? {
                pointer.align = Some(self.alignment()?);
            }
            head.pointer = Some(pointer);
        }
        Ok(head)
    }

    fn alignment(&mut self) -> Parsed<u32> {
        let span = self.span;
        let align: u32 = self.unsigned("an alignment")?;
        if !align.is_power_of_two() {
            let message = format!("an alignment is a power of two, not {align}");
            return Err(PtxError::Syntax { span, message });
        }
        Ok(align)
    }

    /// The name with its count or extents.
    fn declarator(&mut self, head: &Variable) -> Parsed<Variable> {
        let mut variable = head.clone();
        variable.span = self.span;
        variable.name = self.word("a name")?;
        if head.space == Space::Reg && self.accept('<')? {
            variable.count = Some(self.unsigned("a number of registers")?);
            self.expect('>')?;
        }
        while self.accept('[')? {
            if variable.dims.len() >= MAX_NESTING {
                return self.fail(format!("an array with more than {MAX_NESTING} extents"));
            }
            let extent = if self.at(']') { 0 } else { self.unsigned("an extent")? };
            variable.dims.push(extent);
            self.expect(']')?;
        }
        Ok(variable)
    }

    fn initialiser(&mut self) -> Parsed<Init> {
        if self.accept('{')? {
            return self.nested(|p| {
                if p.accept('}')? {
                    return Ok(Init::List(Vec::new()));
                }
                let list = p.separated(Self::initialiser)?;
                p.expect('}')?;
                Ok(Init::List(list))
            });
        }
        if matches!(self.token, Token::Word(_)) {
            let (name, offset, generic) = self.symbol()?;
            return Ok(Init::Symbol { name, offset, generic });
        }
        let span = self.span;
        match self.number()? {
            Number::Integer(value) if self.at('(') => {
                let Ok(mask) = u64::try_from(value) else {
                    return Err(PtxError::Syntax { span, message: "a mask is not negative".into() });
                };
                self.advance()?;
                let (name, offset, generic) = self.symbol()?;
                self.expect(')')?;
                Ok(Init::Mask { mask, name, offset, generic })
            }
            Number::Integer(value) => Ok(Init::Integer(value)),
            Number::F32(bits) => Ok(Init::F32(bits)),
            Number::F64(bits) => Ok(Init::F64(bits)),
        }
    }

    /// `name`, `name+8`, `generic(name)` or `generic(name)+8`.
    fn symbol(&mut self) -> Parsed<(String, i64, bool)> {
        let mut name = self.word("a symbol")?;
        let generic = name == "generic" && self.at('(');
        if generic {
            self.advance()?;
            name = self.word("a symbol")?;
            self.expect(')')?;
        }
        Ok((name, self.offset()?, generic))
    }
}

// 4. Statements.
impl<'a> Parser<'a> {
    fn block(&mut self) -> Parsed<Vec<Statement>> {
        self.nested(|p| {
            p.expect('{')?;
            let mut statements = Vec::new();
            while !p.accept('}')? {
                if p.token == Token::End {
                    return p.expected("`}`");
                }
                p.statement(&mut statements)?;
            }
            Ok(statements)
        })
    }

    fn statement(&mut self, statements: &mut Vec<Statement>) -> Parsed<()> {
        if self.skip_debugging()? || self.accept(';')? {
            return Ok(());
        }
        match self.token {
            Token::Mark('{') => statements.push(Statement::Block(self.block()?)),
            Token::Dotted("pragma") => statements.push(Statement::Pragma(self.pragma()?)),
            Token::Dotted(_) => {
                let linkage = self.linkage()?;
                statements.extend(self.variables(linkage)?.into_iter().map(Statement::Variable));
            }
            Token::Word(_) => {
                let labelled = self.peek_next()? == Token::Mark(':');
                statements.push(if labelled { self.label()? } else { Statement::Instruction(self.instruction()?) });
            }
            _ => statements.push(Statement::Instruction(self.instruction()?)),
        }
        Ok(())
    }

    fn label(&mut self) -> Parsed<Statement> {
        let span = self.span;
        let name = self.word("a label")?;
        self.expect(':')?;
        let statement = match self.token {
            Token::Dotted("branchtargets") => {
                self.advance()?;
                Statement::BranchTargets { name, targets: self.separated(|p| p.word("a label"))?, span }
            }
            Token::Dotted("calltargets") => {
                self.advance()?;
                Statement::CallTargets { name, targets: self.separated(|p| p.word("a function"))?, span }
            }
            Token::Dotted("callprototype") => {
                self.advance()?;
                let returns = self.parameters()?;
                if self.token != Token::Word("_") {
                    return self.expected("`_` for the name of the prototype");
                }
                self.advance()?;
                let params = self.parameters()?;
                let no_return = self.accept_dotted("noreturn")?;
                Statement::CallPrototype { name, returns, params, no_return, span }
            }
            _ => return Ok(Statement::Label { name, span }),
        };
        self.expect(';')?;
        Ok(statement)
    }

    fn instruction(&mut self) -> Parsed<Instruction> {
        let guard = if self.accept('@')? {
            let negated = self.accept('!')?;
            Some(Guard { negated, register: self.word("a predicate")? })
        } else {
            None
        };
        let span = self.span;
        let name = match self.token {
            Token::Word(word) if word.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()) => word.to_string(),
            _ => return self.expected("an instruction"),
        };
        self.advance()?;
        let mut modifiers = Vec::new();
        while let Token::Dotted(modifier) = self.token {
            modifiers.push(modifier.to_string());
            self.advance()?;
        }
        let operands = if self.at(';') { Vec::new() } else { self.separated(Self::operand)? };
        self.expect(';')?;
        Ok(Instruction { guard, opcode: Opcode { name, modifiers }, operands, span })
    }
}

// 5. Operands.
impl<'a> Parser<'a> {
    fn operand(&mut self) -> Parsed<Operand> {
        let first = self.single()?;
        if self.accept('|')? {
            let second = self.single()?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn single(&mut self) -> Parsed<Operand> {
        match self.token {
            Token::Mark('{') => self.nested(|p| {
                p.advance()?;
                let list = p.separated(Self::single)?;
                p.expect('}')?;
                Ok(Operand::Vector(list))
            }),
            Token::Mark('(') => self.nested(|p| {
                p.advance()?;
                if p.accept(')')? {
                    return Ok(Operand::List(Vec::new()));
                }
                let list = p.separated(Self::single)?;
                p.expect(')')?;
                Ok(Operand::List(list))
            }),
            Token::Mark('!') => self.nested(|p| {
                p.advance()?;
                Ok(Operand::Not(Box::new(p.single()?)))
            }),
            Token::Mark('[') => self.address(),
            Token::Mark('-') | Token::Number(_) => Ok(match self.number()? {
                Number::Integer(value) => Operand::Integer(value),
                Number::F32(bits) => Operand::F32(bits),
                Number::F64(bits) => Operand::F64(bits),
            }),
            Token::Word("_") => {
                self.advance()?;
                Ok(Operand::Sink)
            }
            Token::Word(_) => {
                let name = self.register_or_symbol()?;
                if self.at('+') || self.at('-') {
                    return Ok(Operand::SymbolOffset { name, offset: self.offset()? });
                }
                Ok(Operand::Name(name))
            }
            _ => self.expected("an operand"),
        }
    }

    /// A name with an optional component: `%tid.x`.
    fn register_or_symbol(&mut self) -> Parsed<String> {
        let mut name = self.word("a register or a symbol")?;
        if let Token::Dotted(component @ ("x" | "y" | "z" | "w" | "r" | "g" | "b" | "a")) = self.token {
            name.push('.');
            name.push_str(component);
            self.advance()?;
        }
        Ok(name)
    }

    fn address(&mut self) -> Parsed<Operand> {
        self.expect('[')?;
        let operand = match self.token {
            Token::Word(_) => {
                let base = AddressBase::Name(self.register_or_symbol()?);
                Operand::Address { base, offset: self.offset()? }
            }
            _ => Operand::Address { base: AddressBase::Absolute(self.unsigned("an address")?), offset: 0 },
        };
        self.expect(']')?;
        Ok(operand)
    }
}
