//! Rows to learn from on the device, and launches over them.
//!
//! ```text
//!   part ─► Numbers ─ launch ─► sums ── waits ──► host
//! ```
//!
//! Memory   allocated through the run, and freed with the fit.
//! Waits    for the sums of a launch.

use std::sync::atomic::Ordering;

use millpond::error::EngineError;
use millpond::error::failure::Failure;
use millpond::kernels::codegen::ir::Physical;
use millpond::kernels::layout::OutputColumn;
use millpond::kernels::learn::{self, Numbers, Sums};
use millpond::kernels::{Images, KernelError, Rows, abi};
use millpond::memory::{DeviceBuffer, DeviceView, Reservation, Stream};
use millpond::program::part::Part;
use millpond::program::run::Run;

use super::lower::Places;

const WORD: usize = 8;

/// Device memory of a fit, with its reservation.
pub(super) struct Room {
    pub buffer: DeviceBuffer,
    _promise: Reservation,
}

/// A run, and the stream of its launches.
#[derive(Clone, Copy)]
pub(super) struct Launches<'a> {
    pub run: &'a Run,
    pub stream: &'a Stream,
}

impl<'a> Launches<'a> {
    pub fn images(&self) -> &'a Images {
        self.run.context.engine.images()
    }

    /// Launches one kernel and counts it.
    pub fn launch(&self, launch: impl FnOnce(&Images, &Stream) -> Result<(), KernelError>) -> Result<(), Failure> {
        launch(self.images(), self.stream)?;
        self.run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub fn take(&self, bytes: u64) -> Result<Room, Failure> {
        let bytes = usize::try_from(bytes).map_err(|_| EngineError::internal("a size fits"))?;
        let (buffer, promise) = self.run.context.memory.take(bytes, &self.run.context.tags.output, self.stream)?;
        Ok(Room { buffer, _promise: promise })
    }

    pub fn take_zeroed(&self, bytes: usize) -> Result<Room, Failure> {
        let (buffer, promise) =
            self.run.context.memory.take_zeroed(bytes, &self.run.context.tags.output, self.stream)?;
        Ok(Room { buffer, _promise: promise })
    }

    /// Copies doubles from the host to the device.
    pub fn upload(&self, values: &[f64]) -> Result<Room, Failure> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.upload_bytes(&bytes)
    }

    pub fn upload_bytes(&self, bytes: &[u8]) -> Result<Room, Failure> {
        let promise = self.run.context.memory.promise(bytes.len())?;
        let engine = &self.run.context.engine;
        let stream = self.stream.with_scope(&self.run.context.tags.output);
        let buffer = DeviceBuffer::upload(bytes, &stream, engine.pool(), engine.pinned())?;
        Ok(Room { buffer, _promise: promise })
    }

    /// Copies bytes from the device after they are written.
    pub async fn read(&self, view: &DeviceView) -> Result<Vec<u8>, Failure> {
        Ok(view.download_vec(self.stream, self.run.context.engine.pinned())?.await?)
    }

    pub async fn read_doubles(&self, view: &DeviceView) -> Result<Vec<f64>, Failure> {
        let bytes = self.read(view).await?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
    }
}

/// The number columns of a part, which follow the result columns.
pub(super) fn numbers(part: &Part, places: Places, rows: Rows) -> Result<Numbers, Failure> {
    let wrong = || EngineError::internal("numbers are written as doubles, one column behind the other");
    let columns = part.layout.columns.get(places.result..).filter(|columns| columns.len() == places.numbers());
    let columns = columns.ok_or_else(wrong)?;
    let [first, others @ ..] = columns else { return Err(wrong().into()) };
    let start = first.values.start;
    let stride = others.first().map_or(first.values.len(), |second| second.values.start - start);
    let fits = |(number, column): (usize, &OutputColumn)| {
        let as_wanted = column.physical == Physical::F64 && column.validity.is_none();
        as_wanted && column.values.start == start + number * stride
    };
    let end = others.last().unwrap_or(first).values.end;
    if !columns.iter().enumerate().all(fits) || stride % WORD != 0 {
        return Err(wrong().into());
    }
    Ok(Numbers::new(part.buffer.view(start..end)?, (stride / WORD) as u64, places.numbers() as u32, rows)?)
}

/// Column `index` of a part.
pub(super) fn column(part: &Part, index: usize) -> Result<DeviceView, Failure> {
    let column = part.layout.columns.get(index).ok_or_else(|| EngineError::internal("the column is written"))?;
    Ok(part.buffer.view(column.values.clone())?)
}

/// Rows to learn from.
pub(super) struct LearnRows<'a> {
    pub at: Launches<'a>,
    pub numbers: Numbers,
    /// Number of rows, at least one.
    pub count: u64,
    sums: Room,
    scratch: Room,
}

impl<'a> LearnRows<'a> {
    /// The rows of `part`, with memory for `sums` sums over them.
    pub fn new(at: Launches<'a>, part: &Part, places: Places, count: u64, sums: usize) -> Result<Self, Failure> {
        if part.rows_bound() > abi::MAX_EXTENT_ROWS {
            return Err(Failure::trouble(format!("{} rows are too many to learn from at once", part.rows_bound())));
        }
        let numbers = numbers(part, places, Rows::try_from(&part.as_extent()?.rows)?)?;
        let scratch = at.take(learn::scratch_bytes(part.rows_bound(), sums as u64))?;
        Ok(Self { at, numbers, count, sums: at.take((sums * WORD) as u64)?, scratch })
    }

    /// Allocates `bytes` bytes per row.
    pub fn by_row(&self, bytes: u64) -> Result<Room, Failure> {
        self.at.take(self.numbers.rows().upper_bound() * bytes)
    }

    /// Launches a kernel and reads its `count` sums.
    pub async fn sums(
        &self,
        count: usize,
        launch: impl FnOnce(&Images, Sums<'_>, &Stream) -> Result<(), KernelError>,
    ) -> Result<Vec<f64>, Failure> {
        let to = Sums { sums: &self.sums.buffer, scratch: &self.scratch.buffer };
        self.at.launch(|images, stream| launch(images, to, stream))?;
        self.at.read_doubles(&self.sums.buffer.view(0..count * WORD)?).await
    }

    /// Without means: for each column the sum of its values, and the number of values other than 0 and 1. With means:
    /// the sum of squared distances to the column's mean, and the number of values that differ from the first.
    pub async fn moments(&self, means: Option<&[f64]>) -> Result<(Vec<f64>, Vec<f64>), Failure> {
        let columns = self.numbers.columns() as usize;
        let uploaded = means.map(|means| self.at.upload(means)).transpose()?;
        let means = uploaded.as_ref().map(|means| means.buffer.as_view());
        let mut sums =
            self.sums(2 * columns, |images, to, on| learn::moments(images, &self.numbers, means, to, on)).await?;
        let counts = sums.split_off(columns);
        Ok((sums, counts))
    }

    /// Mean of each column, and the number of its values other than 0 and 1.
    ///
    /// # Errors
    /// If a number is NULL or not finite, or a sum exceeds the range of a double: the CPU reports which.
    pub async fn means(&self) -> Result<(Vec<f64>, Vec<f64>), Failure> {
        let (sums, counts) = self.moments(None).await?;
        match sums.iter().all(|sum| sum.is_finite()) {
            true => Ok((sums.into_iter().map(|sum| sum / self.count as f64).collect(), counts)),
            false => Err(not_finite()),
        }
    }
}

/// Failure that makes the query fall back to the CPU, which reports the value.
pub(super) fn not_finite() -> Failure {
    Failure::trouble("a number to learn from is NULL or not finite, or sums leave the range of a double")
}
