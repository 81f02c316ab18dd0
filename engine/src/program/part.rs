//! The output of a pipeline on its way to the next one.
//!
//!   materialise, emit ─► Part ── waits ──► Kept ── memory runs out ──► pinned host memory
//!                         ▲                 │                              │
//!                         └── on_device() ◄─┴──────────────────────────────┘      the next pipeline reads it
//!
//! Memory   a part is reserved with the governor before it is allocated, and counts until its last view is dropped.
//! Spilled  only while it waits: the input of a running pipeline stays. A part is spilled whole, so a part that will
//!          wait is zeroed where its rows do not fill it.

use millpond_kernels::layout::{OutputColumn, OutputLayout};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, LookupInput};
use millpond_memory::{DeviceBuffer, DeviceView, MemoryError, Reservation, SpillHandle, Stream};

use crate::column::ColumnInfo;
use crate::device::Engine;
use crate::error::EngineError;
use crate::error::failure::Failure;

/// Maximum bytes of a result that is downloaded whole, together with its count and its error.
pub(crate) const SMALL_RESULT_BYTES: usize = 4 << 20;

/// The output of a segment, on the device.
pub struct Part {
    pub buffer: DeviceView,
    pub layout: OutputLayout,
    /// Descriptions of its first columns; sort keys may follow them.
    pub outputs: Vec<ColumnInfo>,
    /// Position of each of them among the layout's columns; `None` for unread columns.
    pub at: Vec<Option<usize>>,
    /// Exact row count, once known.
    rows: Option<u64>,
    pub promise: Option<Reservation>,
}

impl Part {
    /// A part whose columns are in the order of `outputs`.
    pub fn new(buffer: &DeviceBuffer, layout: OutputLayout, outputs: Vec<ColumnInfo>) -> Self {
        let at = (0..outputs.len()).map(Some).collect();
        Self { buffer: buffer.as_view().clone(), layout, outputs, at, rows: None, promise: None }
    }

    /// Describes its columns as `outputs`, at the positions `at`.
    pub fn arranged(mut self, outputs: &[ColumnInfo], at: &[Option<usize>]) -> Self {
        self.outputs = outputs.to_vec();
        self.at = at.to_vec();
        self
    }

    /// Layout of column `index`; `None` if it was not written.
    pub fn column(&self, index: usize) -> Option<&OutputColumn> {
        self.at.get(index).copied().flatten().and_then(|at| self.layout.columns.get(at))
    }

    /// Column `index` as the input of a pipeline.
    pub fn input(&self, index: usize) -> Result<Option<ColumnInput>, MemoryError> {
        let Some(column) = self.column(index) else { return Ok(None) };
        let validity = column.validity.clone().map(|range| self.buffer.view(range)).transpose()?;
        Ok(Some(ColumnInput { values: self.buffer.view(column.values.clone())?, validity, base: 0 }))
    }

    /// Column `index` as a lookup table by row number.
    pub fn lookup_of(&self, index: usize) -> Result<LookupInput, MemoryError> {
        let column = self.column(index).expect("a column that is looked up was written");
        let validity = column.validity.clone().map(|range| self.buffer.view(range)).transpose()?;
        Ok(LookupInput { values: self.buffer.view(column.values.clone())?, validity })
    }

    /// A part whose memory is reserved elsewhere.
    pub fn of(buffer: DeviceView, layout: OutputLayout, outputs: Vec<ColumnInfo>, at: Vec<Option<usize>>) -> Self {
        Self { buffer, layout, outputs, at, rows: None, promise: None }
    }

    /// Attaches the reservation for its memory.
    pub fn promised(mut self, promise: Reservation) -> Self {
        self.promise = Some(promise);
        self
    }

    /// Column `index` alone, described by `info`, in the same memory; takes over the reservation.
    pub fn take_column(&mut self, index: usize, info: ColumnInfo) -> Self {
        let (buffer, layout, promise) = (self.buffer.clone(), self.layout.clone(), self.promise.take());
        Self { buffer, layout, outputs: vec![info], at: vec![Some(index)], rows: self.rows, promise }
    }

    /// Selects the columns at `indices`, in that order, without a copy.
    pub fn select(mut self, indices: &[usize]) -> Result<Self, Failure> {
        let missing = || EngineError::internal("a projection of a column that was not sorted");
        let outputs = indices.iter().map(|i| self.outputs.get(*i).cloned());
        let at = indices.iter().map(|i| self.at.get(*i).copied());
        (self.outputs, self.at) =
            (outputs.collect::<Option<_>>().ok_or_else(missing)?, at.collect::<Option<_>>().ok_or_else(missing)?);
        Ok(self)
    }

    /// Tightens the row upper bound to the exact count.
    pub fn rows_known(&mut self, rows: u64) -> Result<(), EngineError> {
        if rows > self.layout.rows_upper_bound {
            let bound = self.layout.rows_upper_bound;
            return Err(EngineError::internal(format!("the device says {rows} rows of at most {bound}")));
        }
        self.rows = Some(rows);
        Ok(())
    }

    /// Exact row count, if known.
    pub fn known_rows(&self) -> Option<u64> {
        self.rows
    }

    /// Upper bound of its rows.
    pub fn rows_bound(&self) -> u64 {
        self.rows.unwrap_or(self.layout.rows_upper_bound)
    }

    /// True if its rows are known to fill less than half of it.
    pub fn is_sparse(&self) -> bool {
        self.rows.is_some_and(|rows| self.layout.bytes > SMALL_RESULT_BYTES && rows * 2 < self.layout.rows_upper_bound)
    }

    /// All columns of the layout, as an extent.
    pub fn all_columns(&self) -> Result<ExtentInput, MemoryError> {
        let extent = self.layout.extent(&self.buffer)?;
        let control = self.buffer.view(OutputLayout::CONTROL)?;
        Ok(ExtentInput { rows: ExtentRows::OnDevice { control, upper_bound: self.rows_bound() }, ..extent })
    }

    /// The part as the input of the next segment.
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
    /// Exact row count, if known.
    rows: Option<u64>,
}

enum Place {
    /// Not spillable: the device's memory layer does not accept it, or it was not allocated for spilling.
    Device(Box<Part>),
    Anywhere(SpillHandle),
}

impl Kept {
    /// A part that stays on the device until it is used.
    pub fn staying(part: Part) -> Self {
        let (layout, outputs, at) = (part.layout.clone(), part.outputs.clone(), part.at.clone());
        Self { layout, outputs, at, rows: part.rows, place: Place::Device(Box::new(part)) }
    }

    /// A part that may be spilled to the host until it is used. It must have been allocated as a part that waits. If
    /// nothing can be spilled, it stays on the device.
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

    /// The part on the device, copied back if it was spilled; it stays there as long as the returned part exists.
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

    /// Bytes that it takes on the device.
    pub fn bytes(&self) -> usize {
        self.layout.bytes
    }

    /// The part on the device, copied back if it was spilled, and no longer spillable.
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
