//! Workbench of the expression tests: a graph over rows of cells, run as a kernel by the interpreter.
//!
//!   Bench { columns: cells } ─ roots ─► kernel: one row per thread ─ run ─► cells out, and the error of each row
//!
//! NULL     NULL rows hold bytes that no valid value has, so that code that reads them is noticed.
//! Checks   every kernel is checked, printed, parsed back and compared before it runs, with all of the interpreter's
//!          checks on.

use millpond_kernels::codegen::expr::Expressions;
use millpond_kernels::codegen::ir::{ErrorCode, Graph, Lane, NodeId, Repr, Ty, lane};
use millpond_kernels::codegen::value::{CodegenError, Emit, Leaves, Value};
use millpond_ptx::ast::{Module, Space, Type};
use millpond_ptx::build::{Compare, FunctionBuilder, ModuleBuilder, Reg, risky_predicates};
use millpond_ptx::interpret::{Fill, Heap, Image, Launch, Options, run};

/// One value of a row.
#[derive(Debug, Clone, Copy)]
pub enum Cell {
    Null,
    Bool(bool),
    Int(i128),
    F32(f32),
    F64(f64),
}

pub use Cell::{Bool, F32, F64, Int, Null};

/// Equal by bits, so that NaN equals itself and zeros differ.
impl PartialEq for Cell {
    fn eq(&self, other: &Cell) -> bool {
        match (self, other) {
            (Null, Null) => true,
            (Bool(a), Bool(b)) => a == b,
            (Int(a), Int(b)) => a == b,
            (F32(a), F32(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (F64(a), F64(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            _ => false,
        }
    }
}

impl From<i128> for Cell {
    fn from(value: i128) -> Cell {
        Int(value)
    }
}

impl From<bool> for Cell {
    fn from(value: bool) -> Cell {
        Bool(value)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Null, Into::into)
    }
}

/// Columns, literals and lookup tables around a graph.
#[derive(Debug, Default)]
pub struct Bench {
    pub graph: Graph,
    columns: Vec<(Ty, Vec<Cell>)>,
    literals: Vec<(Ty, Cell)>,
    tables: Vec<(Ty, Vec<Cell>)>,
}

/// Result: cells by root and row, and the first error of each row.
#[derive(Debug)]
pub struct Outcome {
    pub values: Vec<Vec<Cell>>,
    pub errors: Vec<Option<(ErrorCode, NodeId)>>,
    pub module: Module,
}

impl Bench {
    pub fn new() -> Bench {
        Bench::default()
    }

    /// Adds a column; NULLs make it nullable.
    pub fn column(&mut self, repr: Repr, cells: &[Cell]) -> NodeId {
        let nullable = cells.contains(&Null);
        self.typed_column(Ty::new(repr).nullable(nullable), cells)
    }

    /// Adds an integer column with its exact range.
    pub fn ranged(&mut self, repr: Repr, cells: &[Cell]) -> NodeId {
        let ints = || cells.iter().filter_map(|cell| if let Int(value) = cell { Some(*value) } else { None });
        let (low, high) = (ints().min().unwrap_or(0), ints().max().unwrap_or(0));
        self.typed_column(Ty::new(repr).nullable(cells.contains(&Null)).within(low, high), cells)
    }

    pub fn typed_column(&mut self, ty: Ty, cells: &[Cell]) -> NodeId {
        self.columns.push((ty, cells.to_vec()));
        self.graph.column(self.columns.len() as u32 - 1, ty)
    }

    pub fn literal(&mut self, ty: Ty, cell: Cell) -> NodeId {
        self.literals.push((ty, cell));
        self.graph.literal(self.literals.len() as u32 - 1, ty)
    }

    pub fn table(&mut self, ty: Ty, cells: &[Cell]) -> u32 {
        self.tables.push((ty, cells.to_vec()));
        self.tables.len() as u32 - 1
    }

    /// The kernel that computes the roots for every row, before `tidy`.
    pub fn module(&self, roots: &[NodeId]) -> Module {
        self.built(roots, |_| ())
    }

    /// The kernel as in pipelines: after `tidy`, without forms that assemblers compile wrongly.
    fn tidied(&self, roots: &[NodeId]) -> Module {
        let module = self.built(roots, FunctionBuilder::tidy);
        assert_eq!(risky_predicates(&module), Vec::<String>::new(), "{module}");
        module
    }

    fn built(&self, roots: &[NodeId], finish: impl FnOnce(&mut FunctionBuilder)) -> Module {
        let mut module = ModuleBuilder::new();
        let mut f = FunctionBuilder::kernel("bench");
        let rows = f.param("rows", Type::U32);
        let memory = f.param("memory", Type::U64);
        let errors = f.param("errors", Type::U64);
        let rows = f.load_param(&rows);
        let memory = f.load_param(&memory);
        let errors = f.load_param(&errors);
        let row = f.global_thread();
        let inside = f.setp(Compare::Lt, row, rows);
        let open = f.open_if(inside);
        let mut leaves = TestLeaves { bench: self, memory, errors, row };
        let mut expressions = Expressions::new(&self.graph);
        for (index, &root) in roots.iter().enumerate() {
            let mut emit = Emit { module: &mut module, f: &mut f };
            let value = expressions.value(&mut emit, &mut leaves, root).expect("the expression has a device form");
            assert_eq!(value.lane, lane(self.graph.ty(root)), "a value sits in the lane of its type");
            let at = leaves.element(&mut f, self.output_offset(index), row);
            match value.lane {
                Lane::Pred => {
                    let one = f.copy(Type::U32, 1);
                    let bit = f.select(value.low, one, 0);
                    f.store(Space::Global, Type::U8, at, bit);
                }
                Lane::S32 | Lane::U32 => f.store(Space::Global, Type::U32, at, value.low),
                Lane::F32 => f.store(Space::Global, Type::F32, at, value.low),
                Lane::F64 => f.store(Space::Global, Type::F64, at, value.low),
                Lane::S64 | Lane::U64 => f.store(Space::Global, Type::U64, at, value.low),
                Lane::S128 => {
                    f.store(Space::Global, Type::U64, at, value.low);
                    f.store(Space::Global, Type::S64, at.at(8), value.high.expect("128 bits have a high word"));
                }
                Lane::Text => panic!("texts are tested in whole pipelines"),
            }
            if let Some(valid) = value.valid {
                let one = f.copy(Type::U32, 1);
                let bit = f.select(valid, one, 0);
                f.store(Space::Global, Type::U8, at.at(16), bit);
            }
        }
        f.close(open);
        finish(&mut f);
        module.add(f);
        module.finish().expect("the kernel is well-typed")
    }

    /// Number of rows: that of the longest column. Memory has 24 bytes (16 of value, one of validity) per row of each
    /// column and output, per literal, and per table entry.
    fn rows(&self) -> usize {
        self.columns.iter().map(|(_, cells)| cells.len()).max().unwrap_or(1)
    }

    fn column_offset(&self, index: usize) -> u64 {
        (index * self.rows() * 24) as u64
    }

    fn literal_offset(&self, index: usize) -> u64 {
        self.column_offset(self.columns.len()) + (index * 24) as u64
    }

    fn table_offset(&self, index: usize) -> u64 {
        let before: usize = self.tables[..index].iter().map(|(_, cells)| cells.len()).sum();
        self.literal_offset(self.literals.len()) + (before * 24) as u64
    }

    fn output_offset(&self, index: usize) -> u64 {
        self.table_offset(self.tables.len()) + (index * self.rows() * 24) as u64
    }

    /// Runs the roots over all rows.
    pub fn run(&self, roots: &[NodeId]) -> Outcome {
        let module = self.tidied(roots);
        millpond_ptx::check(&module).expect("the kernel keeps PTX's rules");
        let text = module.to_string();
        let parsed = millpond_ptx::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(parsed, module, "printing and parsing loses nothing");
        let image = Image::load(&parsed).unwrap_or_else(|error| panic!("{error}\n{text}"));

        let rows = self.rows();
        let bytes = self.output_offset(roots.len());
        let mut memory = vec![0xa5_u8; bytes as usize];
        for (index, (ty, cells)) in self.columns.iter().enumerate() {
            assert_eq!(cells.len(), rows, "columns have equally many rows");
            for (row, cell) in cells.iter().enumerate() {
                put(&mut memory, self.column_offset(index) as usize + row * 24, *ty, *cell);
            }
        }
        for (index, (ty, cell)) in self.literals.iter().enumerate() {
            put(&mut memory, self.literal_offset(index) as usize, *ty, *cell);
        }
        for (index, (ty, cells)) in self.tables.iter().enumerate() {
            for (entry, cell) in cells.iter().enumerate() {
                put(&mut memory, self.table_offset(index) as usize + entry * 24, *ty, *cell);
            }
        }
        const MEMORY: u64 = 0x7f00_0000_0000;
        const ERRORS: u64 = 0x7f10_0000_0000;
        let mut heap = Heap::new();
        heap.allocate(MEMORY, bytes.max(24), Fill::Initialised(0)).expect("memory is free");
        heap.allocate(ERRORS, (rows * 8) as u64, Fill::Initialised(0)).expect("memory is free");
        heap.write(MEMORY, &memory).expect("memory is there");

        // Module variables of called functions.
        let mut globals = Vec::new();
        for (index, global) in image.globals().iter().enumerate() {
            globals.push(0x7f20_0000_0000 + index as u64 * 0x10_0000);
            heap.allocate(globals[index], global.size, Fill::Initialised(0)).expect("memory is free");
        }
        for (index, address) in globals.iter().enumerate() {
            heap.write(*address, &image.initial_bytes(index, &globals)).expect("memory is there");
        }

        let mut params = Vec::new();
        params.extend_from_slice(&(rows as u64).to_le_bytes());
        params.extend_from_slice(&MEMORY.to_le_bytes());
        params.extend_from_slice(&ERRORS.to_le_bytes());
        let launch = Launch {
            kernel: "bench",
            grid: [rows.div_ceil(64) as u32, 1, 1],
            block: [64, 1, 1],
            dynamic_shared_bytes: 0,
            params: &params,
            globals: &globals,
        };
        let options = Options { max_warp_instructions: 50_000_000, ..Options::default() };
        if let Err(fault) = run(&image, &launch, &mut heap, &options) {
            panic!("{fault}\n{text}");
        }

        let memory = heap.bytes(MEMORY, bytes).expect("memory is there");
        let values = roots
            .iter()
            .enumerate()
            .map(|(index, &root)| {
                let ty = self.graph.ty(root);
                (0..rows).map(|row| get(memory, self.output_offset(index) as usize + row * 24, ty)).collect()
            })
            .collect();
        let words = heap.bytes(ERRORS, (rows * 8) as u64).expect("memory is there");
        let errors = words
            .chunks_exact(8)
            .map(|word| ErrorCode::from_word(u64::from_le_bytes(word.try_into().expect("eight bytes"))))
            .collect();
        Outcome { values, errors, module }
    }

    /// Runs one root that must not fail.
    pub fn values(&self, root: NodeId) -> Vec<Cell> {
        let mut outcome = self.run(&[root]);
        assert!(outcome.errors.iter().all(Option::is_none), "no row fails: {:?}", outcome.errors);
        outcome.values.remove(0)
    }
}

fn put(memory: &mut [u8], at: usize, ty: Ty, cell: Cell) {
    let mut bytes = [0xa5_u8; 16];
    match cell {
        Null => {
            assert!(ty.nullable, "a NULL in a column without");
            // Booleans have only two values, which are also stored for NULL.
            if ty.repr == Repr::Bool {
                bytes[0] = 1;
            }
        }
        Bool(value) => bytes[0] = u8::from(value),
        Int(value) => {
            assert!(ty.bounds().is_some_and(|bounds| bounds.holds(value)), "{value} is no {ty:?}");
            bytes = value.to_le_bytes();
        }
        F32(value) => bytes[..4].copy_from_slice(&value.to_le_bytes()),
        F64(value) => bytes[..8].copy_from_slice(&value.to_le_bytes()),
    }
    memory[at..at + 16].copy_from_slice(&bytes);
    memory[at + 16] = u8::from(!matches!(cell, Null));
}

fn get(memory: &[u8], at: usize, ty: Ty) -> Cell {
    let bytes = &memory[at..at + 16];
    if ty.nullable && memory[at + 16] == 0 {
        return Null;
    }
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    match lane(ty) {
        Lane::Pred => Bool(bytes[0] == 1),
        Lane::S32 => Int(i128::from(word as i32)),
        Lane::U32 => Int(i128::from(word as u32)),
        Lane::S64 => Int(i128::from(word as i64)),
        Lane::U64 => Int(i128::from(word)),
        Lane::S128 => Int(i128::from_le_bytes(bytes.try_into().expect("sixteen bytes"))),
        Lane::F32 => F32(f32::from_bits(word as u32)),
        Lane::F64 => F64(f64::from_bits(word)),
        Lane::Text => panic!("texts are tested in whole pipelines"),
    }
}

/// Loads values of one row from the bench's memory.
struct TestLeaves<'a> {
    bench: &'a Bench,
    memory: Reg,
    errors: Reg,
    row: Reg,
}

impl TestLeaves<'_> {
    fn element(&self, f: &mut FunctionBuilder, offset: u64, row: Reg) -> Reg {
        let base = f.add(self.memory, offset);
        f.element(base, row, 24)
    }

    fn load(&self, f: &mut FunctionBuilder, ty: Ty, at: Reg) -> Value {
        let valid = ty.nullable.then(|| {
            let byte = f.load(Space::Global, Type::U8, at.at(16));
            f.setp(Compare::Ne, byte, 0)
        });
        let lane = lane(ty);
        let mut high = None;
        let low = match lane {
            Lane::Pred => {
                let byte = f.load(Space::Global, Type::U8, at);
                f.setp(Compare::Ne, byte, 0)
            }
            Lane::S32 => f.load(Space::Global, Type::S32, at),
            Lane::U32 => f.load(Space::Global, Type::U32, at),
            Lane::F32 => f.load(Space::Global, Type::F32, at),
            Lane::F64 => f.load(Space::Global, Type::F64, at),
            Lane::S64 => f.load(Space::Global, Type::S64, at),
            Lane::U64 => f.load(Space::Global, Type::U64, at),
            Lane::S128 => {
                high = Some(f.load(Space::Global, Type::S64, at.at(8)));
                f.load(Space::Global, Type::U64, at)
            }
            Lane::Text => panic!("texts are tested in whole pipelines"),
        };
        Value { lane, low, high, valid }
    }
}

impl Leaves for TestLeaves<'_> {
    fn column(&mut self, emit: &mut Emit<'_>, index: u32) -> Result<Value, CodegenError> {
        let at = self.element(emit.f, self.bench.column_offset(index as usize), self.row);
        Ok(self.load(emit.f, self.bench.columns[index as usize].0, at))
    }

    fn literal(&mut self, emit: &mut Emit<'_>, slot: u32) -> Result<Value, CodegenError> {
        let at = emit.f.add(self.memory, self.bench.literal_offset(slot as usize));
        Ok(self.load(emit.f, self.bench.literals[slot as usize].0, at))
    }

    fn lookup(&mut self, emit: &mut Emit<'_>, table: u32, code: Value) -> Result<Value, CodegenError> {
        let f = &mut *emit.f;
        let ty = self.bench.tables[table as usize].0;
        // A NULL code is not an index: reads entry 0 instead.
        let index = code.low.view(Type::U32);
        let index = match code.valid {
            Some(valid) => f.select(valid, index, 0),
            None => index,
        };
        let at = self.element(f, self.bench.table_offset(table as usize), index);
        let mut value = self.load(f, ty, at);
        value.valid = match (value.valid, code.valid) {
            (Some(a), Some(b)) => Some(f.and(a, b)),
            (one, other) => one.or(other),
        };
        Ok(value)
    }

    fn raise(&mut self, emit: &mut Emit<'_>, code: ErrorCode, node: NodeId, when: Reg) -> Result<(), CodegenError> {
        let f = &mut *emit.f;
        let at = f.element(self.errors, self.row, 8);
        let word = u64::from(node.0) << 32 | code as u64;
        // The first error of a row is kept.
        f.guarded(when, true, |f| f.compare_exchange(Space::Global, Type::B64, at, 0, word));
        Ok(())
    }
}

/// All pairs of two lists, as two columns.
pub fn pairs(left: &[Cell], right: &[Cell]) -> (Vec<Cell>, Vec<Cell>) {
    left.iter().flat_map(|&a| right.iter().map(move |&b| (a, b))).unzip()
}

/// Asserts that every row is as expected; reports the first difference.
pub fn assert_rows(what: &str, inputs: &[&[Cell]], got: &[Cell], expected: impl Fn(&[Cell]) -> Cell) {
    for row in 0..got.len() {
        let input: Vec<Cell> = inputs.iter().map(|column| column[row]).collect();
        let wanted = expected(&input);
        assert_eq!(got[row], wanted, "{what} of {input:?}, row {row}");
    }
}
