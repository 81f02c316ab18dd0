//! Test rig: a simulated device, columns as lists of cells, and pipelines run over them.

use std::sync::Arc;

use millpond_kernels::abi;
use millpond_kernels::codegen::ir::*;
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, LookupInput, Pipeline, PipelineCache};
use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::pinned::PinnedPool;
use millpond_memory::{Device, DeviceBuffer, DeviceView, MemoryPool, Stream};

use crate::vectors::assert_has_vectors;

/// One value; floats by their bits, so that NaN and −0.0 compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cell {
    Null,
    Bool(bool),
    Int(i128),
    F32(u32),
    F64(u64),
}

impl From<f64> for Cell {
    fn from(value: f64) -> Cell {
        Cell::F64(value.to_bits())
    }
}

impl From<f32> for Cell {
    fn from(value: f32) -> Cell {
        Cell::F32(value.to_bits())
    }
}

impl From<bool> for Cell {
    fn from(value: bool) -> Cell {
        Cell::Bool(value)
    }
}

macro_rules! int_cells {
    ($($ty:ty)*) => { $(impl From<$ty> for Cell {
        fn from(value: $ty) -> Cell {
            Cell::Int(value as i128)
        }
    })* };
}
int_cells!(i8 i16 i32 i64 i128 u8 u16 u32 u64);

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Null, Into::into)
    }
}

/// A column's cells with their spec.
#[derive(Debug, Clone)]
pub struct Column {
    pub spec: ColumnSpec,
    pub base: i64,
    pub cells: Vec<Cell>,
    /// Omit the validity bitmap if no cell is NULL, even for a nullable column.
    pub omit_validity: bool,
}

pub fn cells<T: Into<Cell>>(values: impl IntoIterator<Item = T>) -> Vec<Cell> {
    values.into_iter().map(Into::into).collect()
}

/// A column in its own width, nullable if a cell is NULL.
pub fn column<T: Into<Cell>>(repr: Repr, values: impl IntoIterator<Item = T>) -> Column {
    let cells = cells(values);
    let nullable = cells.contains(&Cell::Null);
    let ty = Ty::new(repr).nullable(nullable);
    stored(Physical::of(ty), ty, None, cells)
}

pub fn stored(physical: Physical, ty: Ty, base: Option<i64>, cells: Vec<Cell>) -> Column {
    let spec = ColumnSpec { physical, has_base: base.is_some(), ty };
    Column { spec, base: base.unwrap_or(0), cells, omit_validity: true }
}

impl Column {
    pub fn ranged(mut self, low: i128, high: i128) -> Column {
        self.spec.ty = self.spec.ty.within(low, high);
        self
    }

    pub fn nullable(mut self) -> Column {
        self.spec.ty.nullable = true;
        self
    }

    fn slice(&self, from: usize, to: usize) -> Column {
        Column { cells: self.cells[from..to].to_vec(), ..self.clone() }
    }
}

fn bitmap(bits: impl Iterator<Item = bool>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, bit) in bits.enumerate() {
        if i % 8 == 0 {
            bytes.push(0);
        }
        bytes[i / 8] |= (bit as u8) << (i % 8);
    }
    bytes
}

fn encode(physical: Physical, base: i64, cells: &[Cell]) -> Vec<u8> {
    if physical == Physical::Bit {
        return bitmap(cells.iter().map(|cell| *cell == Cell::Bool(true)));
    }
    let mut bytes = Vec::new();
    for cell in cells {
        let bits: i128 = match *cell {
            // The bytes of a NULL must not matter.
            Cell::Null => 0x5a5a_5a5a_5a5a_5a5a_5a5a_5a5a_5a5a_5a5a,
            Cell::Bool(_) => panic!("booleans are bits"),
            Cell::Int(value) => {
                let own = value - base as i128;
                let bounds = physical.bounds().expect("an integer");
                assert!(bounds.holds(own), "{own} is no {physical:?}");
                own
            }
            Cell::F32(bits) => bits as i128,
            Cell::F64(bits) => bits as i128,
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..physical.width() as usize]);
    }
    bytes
}

fn decode(ty: Ty, rows: usize, values: &[u8], validity: Option<&[u8]>) -> Vec<Cell> {
    let physical = Physical::of(ty);
    let bit = |bytes: &[u8], row: usize| bytes[row / 8] >> (row % 8) & 1 == 1;
    (0..rows)
        .map(|row| {
            if validity.is_some_and(|validity| !bit(validity, row)) {
                return Cell::Null;
            }
            if physical == Physical::Bit {
                return Cell::Bool(bit(values, row));
            }
            let width = physical.width() as usize;
            let mut wide = [0u8; 16];
            wide[..width].copy_from_slice(&values[row * width..(row + 1) * width]);
            let bits = i128::from_le_bytes(wide);
            match physical {
                Physical::F32 => Cell::F32(bits as u32),
                Physical::F64 => Cell::F64(bits as u64),
                Physical::I8 | Physical::I16 | Physical::I32 | Physical::I64 => {
                    let shift = 128 - 8 * width;
                    Cell::Int(bits << shift >> shift)
                }
                _ => Cell::Int(bits),
            }
        })
        .collect()
}

/// A device with all resources that pipelines need.
pub struct Rig {
    pub driver: Arc<SimDriver>,
    pub device: Device,
    pub pool: MemoryPool,
    pub pinned: PinnedPool,
    pub cache: PipelineCache,
    pub stream: Stream,
}

impl Rig {
    pub fn new() -> Rig {
        Rig::with(SimOptions::default())
    }

    pub fn seeded(seed: u64) -> Rig {
        Rig::with(SimOptions { seed, ..SimOptions::default() })
    }

    pub fn with(options: SimOptions) -> Rig {
        let driver = SimDriver::new(options);
        let device = Device::open(driver.clone(), 0).expect("the simulated device opens");
        let pool = MemoryPool::builder(&device).build().expect("a pool");
        let pinned = PinnedPool::builder(&device).build();
        let cache = PipelineCache::new(&device);
        let stream = Stream::new(&device).expect("a stream");
        Rig { driver, device, pool, pinned, cache, stream }
    }

    pub fn pipeline(&self, spec: &PipelineSpec) -> Arc<Pipeline> {
        let pipeline = self.cache.pipeline(spec).unwrap_or_else(|error| panic!("{error}"));
        let module = millpond_ptx::parse(&pipeline.compiled().text).expect("generated text is PTX");
        assert_has_vectors("a generated kernel", &module);
        pipeline
    }

    pub fn upload(&self, bytes: &[u8], stream: &Stream) -> DeviceBuffer {
        DeviceBuffer::upload(bytes, stream, &self.pool, &self.pinned).expect("uploads")
    }

    pub fn download(&self, view: &DeviceView) -> Vec<u8> {
        let pending = view.download_vec(&self.stream, &self.pinned).expect("downloads");
        pending.wait().unwrap_or_else(|error| panic!("{error}\n{:#?}", self.driver.take_findings()))
    }

    pub fn extent(&self, columns: &[Column], stream: &Stream) -> ExtentInput {
        let rows = columns.first().map_or(0, |column| column.cells.len());
        let columns = columns.iter().map(|column| {
            assert_eq!(column.cells.len(), rows, "columns of one length");
            let values = self.upload(&encode(column.spec.physical, column.base, &column.cells), stream);
            let any_null = column.cells.contains(&Cell::Null);
            assert!(!any_null || column.spec.ty.nullable, "a NULL in a column without NULLs");
            let validity = (column.spec.ty.nullable && (any_null || !column.omit_validity)).then(|| {
                let bits = bitmap(column.cells.iter().map(|cell| *cell != Cell::Null));
                self.upload(&bits, stream).as_view().clone()
            });
            Some(ColumnInput { values: values.as_view().clone(), validity, base: column.base })
        });
        ExtentInput { rows: ExtentRows::Known(rows as u64), columns: columns.collect() }
    }

    pub fn lookup(&self, spec: LookupSpec, cells: &[Cell]) -> LookupInput {
        let values = self.upload(&encode(spec.physical, 0, cells), &self.stream).as_view().clone();
        let validity = spec.ty.nullable.then(|| {
            self.upload(&bitmap(cells.iter().map(|cell| *cell != Cell::Null)), &self.stream).as_view().clone()
        });
        LookupInput { values, validity }
    }

    /// Rows and columns of an output; panics on an error word.
    pub fn read(&self, output: &DeviceBuffer, layout: &OutputLayout) -> Vec<Vec<Cell>> {
        let (error, columns) = self.read_with_error(output, layout);
        assert_eq!(error, 0, "error word {:?}", ErrorCode::from_word(error));
        columns
    }

    pub fn read_with_error(&self, output: &DeviceBuffer, layout: &OutputLayout) -> (u64, Vec<Vec<Cell>>) {
        let control = self.download(&output.view(OutputLayout::CONTROL).unwrap());
        let word = |at: u64| u64::from_le_bytes(control[at as usize..at as usize + 8].try_into().unwrap());
        let rows = word(abi::CONTROL_ROWS) as usize;
        assert!(rows as u64 <= layout.rows_upper_bound, "{rows} rows, at most {}", layout.rows_upper_bound);
        // The bits after the last row are unwritten.
        let part = |start: usize, len: usize| self.download(&output.view(start..start + len).unwrap());
        let columns = layout.columns.iter().map(|column| {
            let validity = column.validity.as_ref().map(|range| part(range.start, rows.div_ceil(8)));
            let values = part(column.values.start, column.physical.value_bytes(rows as u64) as usize);
            decode(column.ty, rows, &values, validity.as_deref())
        });
        (word(abi::CONTROL_ERROR), columns.collect())
    }

    /// Asserts that the checks found nothing.
    pub fn assert_clean(&self) {
        self.device.synchronize().expect("the device is well");
        let findings = self.driver.take_findings();
        assert!(findings.is_empty(), "{findings:#?}");
    }

    /// Runs a materialising pipeline over extents of the given lengths.
    pub fn materialise(&self, case: &Case) -> Vec<Vec<Cell>> {
        let pipeline = self.pipeline(&case.spec);
        let extents = self.extents(case);
        let lookups = self.lookups(case);
        let bytes = pipeline.descriptors(&extents).unwrap();
        let descriptors = self.upload(&bytes, &self.stream);
        let input = Input {
            extents: &extents,
            descriptors: Some(descriptors.as_view()),
            literals: &case.literals,
            lookups: &lookups,
            ..Input::default()
        };
        let layout = pipeline.output_layout(&extents);
        let output = DeviceBuffer::new(layout.bytes, &self.stream, &self.pool).unwrap();
        pipeline.materialise(input, output.as_view(), &layout, &self.stream).unwrap_or_else(|error| panic!("{error}"));
        let columns = self.read(&output, &layout);
        self.assert_clean();
        columns
    }

    /// Runs an aggregating pipeline (one launch for all extents, or one per extent) and emits; returns the rows,
    /// sorted.
    pub fn aggregate(&self, case: &Case) -> Vec<Vec<Cell>> {
        let (error, rows) = self.aggregate_with_error(case);
        assert_eq!(error, 0, "error word {:?}", ErrorCode::from_word(error));
        rows
    }

    /// The error that an aggregating pipeline raises, if any.
    pub fn aggregate_error(&self, case: &Case) -> Option<(ErrorCode, NodeId)> {
        ErrorCode::from_word(self.aggregate_with_error(case).0)
    }

    fn aggregate_with_error(&self, case: &Case) -> (u64, Vec<Vec<Cell>>) {
        let pipeline = self.pipeline(&case.spec);
        let extents = self.extents(case);
        let lookups = self.lookups(case);
        let seeds = matches!(&case.spec.sink, SinkSpec::Aggregate(aggregate) if aggregate.seed.is_some()) as u64;
        let rows = extents.iter().map(|extent| extent.rows.upper_bound()).sum::<u64>() + seeds;
        let state_layout = pipeline.state_layout(rows).unwrap();
        let state = DeviceBuffer::zeroed(state_layout.bytes, &self.stream, &self.pool).unwrap();
        if case.spec.extents == Extents::Many {
            let descriptors = self.upload(&pipeline.descriptors(&extents).unwrap(), &self.stream);
            let descriptors = Some(descriptors.as_view());
            let input = Input {
                extents: &extents,
                descriptors,
                literals: &case.literals,
                lookups: &lookups,
                ..Input::default()
            };
            pipeline.accumulate(input, state.as_view(), &state_layout, &self.stream).unwrap();
        } else {
            for extent in extents.chunks(1) {
                let input = Input {
                    extents: extent,
                    descriptors: None,
                    literals: &case.literals,
                    lookups: &lookups,
                    ..Input::default()
                };
                pipeline
                    .accumulate(input, state.as_view(), &state_layout, &self.stream)
                    .unwrap_or_else(|error| panic!("{error}"));
            }
        }
        let layout = pipeline.emit_layout(&state_layout, rows).unwrap();
        let output = DeviceBuffer::new(layout.bytes, &self.stream, &self.pool).unwrap();
        pipeline.emit(state.as_view(), &state_layout, output.as_view(), &layout, &self.stream).unwrap();
        let (error, columns) = self.read_with_error(&output, &layout);
        self.assert_clean();
        (error, sorted_rows(&columns))
    }

    fn extents(&self, case: &Case) -> Vec<ExtentInput> {
        let mut from = 0;
        case.extent_rows
            .iter()
            .map(|&rows| {
                let columns: Vec<Column> = case.columns.iter().map(|column| column.slice(from, from + rows)).collect();
                from += rows;
                self.extent(&columns, &self.stream)
            })
            .collect()
    }

    fn lookups(&self, case: &Case) -> Vec<LookupInput> {
        case.spec.lookups.iter().zip(&case.lookups).map(|(spec, cells)| self.lookup(*spec, cells)).collect()
    }
}

pub fn sorted_rows(columns: &[Vec<Cell>]) -> Vec<Vec<Cell>> {
    let rows = columns.first().map_or(0, Vec::len);
    let mut rows: Vec<Vec<Cell>> = (0..rows).map(|row| columns.iter().map(|column| column[row]).collect()).collect();
    rows.sort();
    rows
}

/// A spec with the data it runs over.
#[derive(Debug, Clone)]
pub struct Case {
    pub spec: PipelineSpec,
    pub columns: Vec<Column>,
    pub extent_rows: Vec<usize>,
    pub literals: Vec<Literal>,
    pub lookups: Vec<Vec<Cell>>,
}

impl Case {
    /// One extent with all rows of the columns, no filter, and outputs of every column.
    pub fn new(columns: Vec<Column>) -> Case {
        let mut graph = Graph::new();
        let outputs = columns.iter().enumerate().map(|(i, column)| graph.column(i as u32, column.spec.ty)).collect();
        let rows = columns.first().map_or(0, |column| column.cells.len());
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: columns.iter().map(|column| column.spec).collect(),
            literals: vec![],
            lookups: vec![],
            tables: vec![],
            expanded: false,
            graph,
            filters: vec![],
            sink: SinkSpec::Materialise { outputs },
        };
        Case { spec, columns, extent_rows: vec![rows], literals: vec![], lookups: vec![] }
    }

    pub fn graph(&mut self) -> &mut Graph {
        &mut self.spec.graph
    }

    /// The node of column `index`.
    pub fn column(&mut self, index: u32) -> NodeId {
        let ty = self.columns[index as usize].spec.ty;
        self.spec.graph.column(index, ty)
    }

    pub fn filter(mut self, make: impl FnOnce(&mut Case) -> NodeId) -> Case {
        let node = make(&mut self);
        self.spec.filters.push(node);
        self
    }

    /// Several extents in one launch.
    pub fn many(mut self, extent_rows: &[usize]) -> Case {
        self.spec.extents = Extents::Many;
        self.extent_rows = extent_rows.to_vec();
        self
    }

    /// Several extents, a launch for each.
    pub fn fed(mut self, extent_rows: &[usize]) -> Case {
        self.extent_rows = extent_rows.to_vec();
        self
    }

    /// Groups by these columns. `make` returns the accumulators.
    pub fn group(
        mut self,
        keys: &[u32],
        regime: Option<Regime>,
        make: impl FnOnce(&mut Case) -> Vec<Accumulator>,
    ) -> Case {
        let keys = keys.iter().map(|&key| self.column(key)).collect();
        let accumulators = make(&mut self);
        let mut spec = AggregateSpec { regime, ..AggregateSpec::new(keys) };
        for accumulator in accumulators {
            spec.accumulate(&self.spec.graph, accumulator);
        }
        self.spec.sink = SinkSpec::Aggregate(spec);
        self
    }
}

pub fn all(aggregate: Aggregate) -> Accumulator {
    Accumulator { aggregate, filter: None }
}

/// A small deterministic generator (SplitMix64, by Sebastiano Vigna).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
