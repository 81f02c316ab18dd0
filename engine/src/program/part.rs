//! The output of a pipeline on its way to the next one.
//!
//!   materialise, emit ─► Part ── waits ──► Kept ── memory runs out ──► pinned host memory
//!                         ▲                 │                              │
//!                         └── on_device() ◄─┴──────────────────────────────┘      the next pipeline reads it
//!
//! Memory   a part is promised by the governor before it is allocated, and counts until its last view is gone.
//! Spilled  only while it waits: what a pipeline reads stays where it is. All of it leaves, so a part that will wait is zeroed
//!          where its rows do not fill it.

use millpond_kernels::layout::{OutputColumn, OutputLayout};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, LookupInput};
use millpond_memory::{DeviceBuffer, DeviceView, MemoryError, Reservation, SpillHandle, Stream};

use crate::column::ColumnInfo;
use crate::device::Engine;
use crate::error::EngineError;
use crate::program::failure::Failure;

/// A result of up to this many bytes is downloaded whole, its count and its error with it.
pub(crate) const SMALL_RESULT_BYTES: usize = 4 << 20;

/// The output of a segment, on the device.
pub struct Part {
    pub buffer: DeviceView,
    pub layout: OutputLayout,
    /// What its first columns are; sort keys may follow them.
    pub outputs: Vec<ColumnInfo>,
    /// Where each of them is among the layout's columns; `None` for one that nothing reads.
    pub at: Vec<Option<usize>>,
    /// How many rows there are, once that is known.
    rows: Option<u64>,
    pub promise: Option<Reservation>,
}

impl Part {
    /// A part whose columns lie in the order of `outputs`.
    pub fn new(buffer: &DeviceBuffer, layout: OutputLayout, outputs: Vec<ColumnInfo>) -> Self {
        let at = (0..outputs.len()).map(Some).collect();
        Self { buffer: buffer.as_view().clone(), layout, outputs, at, rows: None, promise: None }
    }

    /// The same as these columns, which lie where `at` says.
    pub fn arranged(mut self, outputs: &[ColumnInfo], at: &[Option<usize>]) -> Self {
        self.outputs = outputs.to_vec();
        self.at = at.to_vec();
        self
    }

    /// Where column `index` lies.
    pub fn column(&self, index: usize) -> Option<&OutputColumn> {
        self.at.get(index).copied().flatten().and_then(|at| self.layout.columns.get(at))
    }

    /// Column `index` as the input of a pipeline.
    pub fn input(&self, index: usize) -> Result<Option<ColumnInput>, MemoryError> {
        let Some(column) = self.column(index) else { return Ok(None) };
        let validity = column.validity.clone().map(|range| self.buffer.view(range)).transpose()?;
        Ok(Some(ColumnInput { values: self.buffer.view(column.values.clone())?, validity, base: 0 }))
    }

    /// Column `index`, to be looked up by row number.
    pub fn lookup_of(&self, index: usize) -> Result<LookupInput, MemoryError> {
        let column = self.column(index).expect("a column that is looked up was written");
        let validity = column.validity.clone().map(|range| self.buffer.view(range)).transpose()?;
        Ok(LookupInput { values: self.buffer.view(column.values.clone())?, validity })
    }

    /// A part whose memory somebody else answers for.
    pub fn of(buffer: DeviceView, layout: OutputLayout, outputs: Vec<ColumnInfo>, at: Vec<Option<usize>>) -> Self {
        Self { buffer, layout, outputs, at, rows: None, promise: None }
    }

    /// Keeps what the governor promised for it.
    pub fn promised(mut self, promise: Reservation) -> Self {
        self.promise = Some(promise);
        self
    }

    /// Column `index` alone, as `info`, in the same memory: what the governor promised for that goes along.
    pub fn take_column(&mut self, index: usize, info: ColumnInfo) -> Self {
        let (buffer, layout, promise) = (self.buffer.clone(), self.layout.clone(), self.promise.take());
        Self { buffer, layout, outputs: vec![info], at: vec![Some(index)], rows: self.rows, promise }
    }

    /// The columns at `indices`, in that order; nothing moves.
    pub fn select(mut self, indices: &[usize]) -> Result<Self, Failure> {
        let missing = || EngineError::internal("a projection of a column that was not sorted");
        let outputs = indices.iter().map(|i| self.outputs.get(*i).cloned());
        let at = indices.iter().map(|i| self.at.get(*i).copied());
        (self.outputs, self.at) =
            (outputs.collect::<Option<_>>().ok_or_else(missing)?, at.collect::<Option<_>>().ok_or_else(missing)?);
        Ok(self)
    }

    /// Keeps how many rows there are, as their upper bound.
    pub fn rows_known(&mut self, rows: u64) -> Result<(), EngineError> {
        if rows > self.layout.rows_upper_bound {
            let bound = self.layout.rows_upper_bound;
            return Err(EngineError::internal(format!("the device says {rows} rows of at most {bound}")));
        }
        self.rows = Some(rows);
        Ok(())
    }

    /// How many rows there are, if that is known.
    pub fn known_rows(&self) -> Option<u64> {
        self.rows
    }

    /// Upper bound of its rows.
    pub fn rows_bound(&self) -> u64 {
        self.rows.unwrap_or(self.layout.rows_upper_bound)
    }

    /// True when its rows are known to fill less than half of it.
    pub fn is_roomy(&self) -> bool {
        self.rows.is_some_and(|rows| self.layout.bytes > SMALL_RESULT_BYTES && rows * 2 < self.layout.rows_upper_bound)
    }

    /// All columns of the layout, as an extent.
    pub fn all_columns(&self) -> Result<ExtentInput, MemoryError> {
        let extent = self.layout.extent(&self.buffer)?;
        let control = self.buffer.view(OutputLayout::CONTROL)?;
        Ok(ExtentInput { rows: ExtentRows::OnDevice { control, upper_bound: self.rows_bound() }, ..extent })
    }

    /// As the input of the next segment.
    pub fn as_extent(&self) -> Result<ExtentInput, Failure> {
        let control = self.buffer.view(OutputLayout::CONTROL)?;
        Ok(ExtentInput {
            rows: ExtentRows::OnDevice { control, upper_bound: self.rows_bound() },
            columns: (0..self.outputs.len()).map(|index| self.input(index)).collect::<Result<_, MemoryError>>()?,
        })
    }
}

/// A part that waits for the next pipeline, on the device or in host memory.
pub struct Kept {
    place: Place,
    layout: OutputLayout,
    outputs: Vec<ColumnInfo>,
    at: Vec<Option<usize>>,
    /// How many rows there are, if that is known.
    rows: Option<u64>,
}

enum Place {
    /// It cannot leave: the device's memory layer does not take it, or it was not made for leaving.
    Device(Box<Part>),
    Anywhere(SpillHandle),
}

impl Kept {
    /// A part that stays on the device until it is used.
    pub fn staying(part: Part) -> Self {
        let (layout, outputs, at) = (part.layout.clone(), part.outputs.clone(), part.at.clone());
        Self { layout, outputs, at, rows: part.rows, place: Place::Device(Box::new(part)) }
    }

    /// A part that may leave for host memory until it is used. It was allocated as one that waits. Where nothing can be
    /// spilled, it stays.
    pub fn spillable(part: Part, engine: &Engine) -> Result<Self, MemoryError> {
        let Part { buffer, layout, outputs, at, rows, promise } = part;
        let views = vec![buffer.clone()];
        let registered = match promise {
            Some(promise) => engine.spiller.register_reserved(views, 0, promise),
            None => engine.spiller.register(views, 0),
        };
        let place = match registered {
            Ok(handle) => Place::Anywhere(handle),
            Err(error) if error.is_device_lost() => return Err(error),
            Err(_) => {
                let (layout, outputs, at) = (layout.clone(), outputs.clone(), at.clone());
                Place::Device(Box::new(Part { buffer, layout, outputs, at, rows, promise: None }))
            }
        };
        Ok(Self { place, layout, outputs, at, rows })
    }

    /// Upper bound of its rows.
    pub fn rows(&self) -> u64 {
        self.rows.unwrap_or(self.layout.rows_upper_bound)
    }

    /// The part, back on the device if it had left, and there as long as the answer lives.
    pub fn lend(&self, stream: &Stream) -> Result<Part, MemoryError> {
        let buffer = match &self.place {
            Place::Device(part) => part.buffer.clone(),
            Place::Anywhere(handle) => {
                let views = handle.get(stream)?;
                views.first().expect("one view was registered").clone()
            }
        };
        Ok(Part { rows: self.rows, ..Part::of(buffer, self.layout.clone(), self.outputs.clone(), self.at.clone()) })
    }

    /// Bytes on the device, when it is there.
    pub fn bytes(&self) -> usize {
        self.layout.bytes
    }

    /// The part, back on the device if it had left, and there to stay.
    pub fn on_device(self, stream: &Stream) -> Result<Part, MemoryError> {
        match self.place {
            Place::Device(part) => Ok(*part),
            Place::Anywhere(handle) => {
                let (mut views, promise) = handle.into_parts(stream)?;
                let buffer = views.pop().expect("one view was registered, so one comes back");
                Ok(Part { buffer, layout: self.layout, outputs: self.outputs, at: self.at, rows: self.rows, promise })
            }
        }
    }
}
