//! A completed build side: its rows and their table, spillable to the host, and read by the segments that probe it.
//!
//!   join's run ─► Build ── waits ──► memory runs out ──► pinned host memory
//!                   └── on_device() ──► Built ──► table, lists, columns and marks as inputs of launches
//!
//! Memory   rows, table and lists share one reservation; marks of matched rows have their own, from their first use.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use millpond_kernels::codegen::ir::{TableSpec, Ty};
use millpond_kernels::join::{TableInput, TableLayout, mark_bits, mark_bytes};
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, LookupInput};
use millpond_memory::{DeviceBuffer, DeviceView, Reservation, Resident, SpillHandle, Stream};

use crate::column::{ColumnInfo, DictionaryId};
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::program::context::RunContext;
use crate::program::part::Part;

/// Representation of one key on both sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyForm {
    /// The build side's type.
    pub ty: Ty,
    /// Dictionary that merges both sides' strings, if each side has its own.
    pub(crate) merged: Option<DictionaryId>,
    /// Strings where at least one side has no dictionary: both sides are texts.
    pub(crate) text: bool,
}

impl KeyForm {
    /// True if the key is the build side's own column, not codes into another dictionary or texts.
    pub fn is_own(&self) -> bool {
        self.merged.is_none() && !self.text
    }

    /// Takes over the current value range of the build side's column, if the key is a plain column.
    pub fn narrowed(&mut self, expr: &Arc<dyn PhysicalExpr>, columns: &[ColumnInfo]) {
        let column = expr.downcast_ref::<Column>().and_then(|column| columns.get(column.index()));
        if let (None, Some(Ok(ty))) = (self.merged, column.map(ColumnInfo::ty))
            && !self.text
            && ty.repr == self.ty.repr
        {
            self.ty.range = ty.range;
        }
    }
}

/// One part of a join's keys, by a hash that both sides share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySlice {
    pub index: u32,
    /// A power of two.
    pub parts: u32,
}

impl KeyForm {
    /// True for keys whose equal values have equal bits.
    pub fn can_slice(&self) -> bool {
        !self.ty.repr.is_float() && !self.text
    }
}

/// Known properties of a build side.
#[derive(Debug, Clone, PartialEq)]
pub struct BuildForm {
    /// The segment that builds.
    pub build: usize,
    /// The build side's columns, as planned.
    pub columns: Vec<ColumnInfo>,
    pub table: TableSpec,
    pub keys: Vec<KeyForm>,
    /// Some key has several rows; true while unknown.
    pub has_duplicates: bool,
    pub has_null_keys: bool,
    /// Known to have no rows.
    pub is_empty: bool,
}

/// Result of a building segment: rows and table, on the device or, while unused, in host memory.
pub struct Build {
    place: Place,
    shape: Arc<Shape>,
}

enum Place {
    Device { views: Vec<DeviceView>, _promise: Reservation },
    Anywhere(SpillHandle),
}

/// Properties of a build side, except its location.
struct Shape {
    /// The rows; `None` if there are none.
    part: Option<(OutputLayout, Vec<ColumnInfo>, Vec<Option<usize>>)>,
    /// Upper bound of the row count on the host; the device has the exact count.
    rows: u64,
    table: TableLayout,
    /// The table has lists.
    lists: bool,
    form: BuildForm,
    /// Marks of rows with a match; allocated when a full join needs them.
    marks: Mutex<Option<(DeviceBuffer, Reservation)>>,
}

/// A build side on the device, resident as long as this value exists.
pub struct Built {
    /// The rows; `None` if there are none.
    part: Option<Part>,
    pub table: TableInput,
    shape: Arc<Shape>,
    _resident: Option<Resident>,
}

impl Build {
    /// A build side of `table`, its lists, and the rows of `part`, if there are any. They stay on the device or, if
    /// memory is short, on the host.
    pub fn new(
        run: &RunContext,
        part: Option<Part>,
        rows: u64,
        (table, layout): (DeviceView, TableLayout),
        lists: Option<DeviceView>,
        mut promises: Vec<Reservation>,
        form: BuildForm,
    ) -> Result<Self, Failure> {
        let mut views = vec![table];
        let has_lists = lists.is_some();
        views.extend(lists);
        let part = part.map(|part| {
            views.push(part.buffer);
            promises.extend(part.promise);
            (part.layout, part.outputs, part.at)
        });
        let shape = Shape { part, rows, table: layout, lists: has_lists, form, marks: Mutex::default() };
        Ok(Self { place: waiting(run, views, promises)?, shape: Arc::new(shape) })
    }

    /// Copies the build side back to the device, if it was spilled.
    pub fn on_device(&self, stream: &Stream) -> Result<Built, Failure> {
        let (mut views, resident) = match &self.place {
            Place::Device { views, .. } => (views.clone(), None),
            Place::Anywhere(handle) => {
                let resident = handle.get(stream)?;
                (resident.to_vec(), Some(resident))
            }
        };
        let part = self.shape.part.clone().zip(self.shape.part.is_some().then(|| views.pop()).flatten());
        let part = part.map(|((layout, outputs, at), view)| Part::of(view, layout, outputs, at));
        let lists = if self.shape.lists { views.pop() } else { None };
        let table = views.pop().ok_or_else(|| EngineError::internal("a build side has a table"))?;
        let table = TableInput { table, layout: self.shape.table.clone(), lists };
        Ok(Built { part, table, shape: Arc::clone(&self.shape), _resident: resident })
    }
}

impl Built {
    pub fn form(&self) -> &BuildForm {
        &self.shape.form
    }

    /// Column `index` as a lookup table by row number.
    pub fn column(&self, index: usize) -> Result<LookupInput, Failure> {
        let column = match &self.part {
            Some(part) => part.input(index)?,
            None => {
                // Nothing is looked up in an empty build side; the launch needs an address all the same.
                let anything = self.table.table.view(0..64)?;
                let nullable =
                    self.form().columns.get(index).and_then(|column| column.ty().ok()).is_some_and(|ty| ty.nullable);
                Some(ColumnInput { values: anything.clone(), validity: nullable.then_some(anything), base: 0 })
            }
        };
        let column =
            column.ok_or_else(|| EngineError::internal(format!("column {index} of a build side is not there")))?;
        Ok(LookupInput { values: column.values, validity: column.validity })
    }

    /// Bytes of rows and table.
    pub fn bytes(&self) -> usize {
        let lists = if self.shape.lists { self.table.layout.lists_bytes() } else { 0 };
        self.table.layout.bytes + lists + self.part.as_ref().map_or(0, |part| part.layout.bytes)
    }

    /// Upper bound of the rows.
    pub fn rows_bound(&self) -> u64 {
        self.part.as_ref().map_or(0, Part::rows_bound)
    }

    /// All rows as an extent.
    pub fn rows(&self) -> Result<Option<ExtentInput>, Failure> {
        let Some(mut extent) = self.part.as_ref().map(Part::as_extent).transpose()? else { return Ok(None) };
        if let ExtentRows::OnDevice { upper_bound, .. } = &mut extent.rows {
            *upper_bound = self.shape.rows;
        }
        Ok(Some(extent))
    }

    /// The marks of its rows, initially clear; `None` if it has no rows.
    pub fn marks(&self, run: &RunContext, stream: &Stream) -> Result<Option<DeviceView>, Failure> {
        if self.part.is_none() {
            return Ok(None);
        }
        let mut slot = self.shape.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((marks, _)) = &*slot {
            return Ok(Some(marks.as_view().clone()));
        }
        let bytes = mark_bytes(self.rows_bound());
        let (marks, promise) = run.memory.take_zeroed(bytes, &run.tags.joins, stream)?;
        let view = marks.as_view().clone();
        *slot = Some((marks, promise));
        Ok(Some(view))
    }

    /// The bits of the marks, if any row of the probe side was processed.
    pub fn marked(&self) -> Result<Option<DeviceView>, Failure> {
        let slot = self.shape.marks.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(slot.as_ref().map(|(marks, _)| mark_bits(marks.as_view(), self.rows_bound())).transpose()?)
    }
}

/// Registers views as spillable while unused, if the device's memory layer accepts them.
fn waiting(run: &RunContext, views: Vec<DeviceView>, promises: Vec<Reservation>) -> Result<Place, Failure> {
    // One reservation covers all views.
    let bytes: usize = views.iter().map(|view| view.len().next_multiple_of(256)).sum();
    drop(promises);
    let promise = run.memory.promise(bytes)?;
    match run.engine.spiller.register_reserved(views.clone(), 0, promise) {
        Ok(handle) => Ok(Place::Anywhere(handle)),
        Err(error) if error.is_device_lost() => Err(error.into()),
        Err(_) => Ok(Place::Device { views, _promise: run.memory.promise(bytes)? }),
    }
}
