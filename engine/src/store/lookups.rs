//! Lookup tables that stay on the device beside the column whose codes they are read by.
//!
//!   p_type LIKE 'P%'  ─► [1, 0, …] on the host ─► is there one that holds this? ── yes ─► the one on the device
//!                                                                               └─ no ──► uploaded, and stays
//!
//! Right     a table is found by its type and by all that it holds, so that it serves whichever query makes the same.
//! Memory    counts as the column's, is promised as the column's is, and goes with the column. Where a column has no more room for tables, or the
//!           store none for bytes, those go that were not used for longest.
//! Threads   one lock for a column's tables, held while they are compared, never while one goes up.

use std::sync::{Arc, Mutex};

use datafusion::arrow::array::ArrayRef;
use millpond_kernels::codegen::ir::{Physical, Ty};
use millpond_kernels::pipeline::LookupInput;
use millpond_memory::{ByteSize, Request, Reservation, Stream};

use crate::program::context::RunContext;
use crate::program::failure::Failure;
use crate::program::tables::HostTable;
use crate::store::column::StoredColumn;
use crate::store::room::budget;
use crate::store::{Store, lock};

/// The tables of a column, the one used last at the end.
#[derive(Debug, Default)]
pub(super) struct KeptLookups(Mutex<Vec<KeptLookup>>);

#[derive(Debug)]
struct KeptLookup {
    /// What it holds, as the last run that asked for it has it.
    values: ArrayRef,
    physical: Physical,
    ty: Ty,
    on_device: LookupInput,
    bytes: u64,
    /// The same with what fills the pool's units.
    allocated: u64,
    _promise: Reservation,
}

impl KeptLookup {
    fn has_form_of(&self, table: &HostTable<'_>) -> bool {
        self.physical == table.physical && self.ty == table.ty
    }
}

impl KeptLookups {
    pub fn bytes(&self) -> u64 {
        lock(&self.0).iter().map(|table| table.bytes).sum()
    }

    pub fn allocated_bytes(&self) -> u64 {
        lock(&self.0).iter().map(|table| table.allocated).sum()
    }

    /// The table that holds the same.
    fn find(&self, table: &HostTable<'_>) -> Option<LookupInput> {
        let mut tables = lock(&self.0);
        // A plan that runs again has the array itself; only another plan's is compared value by value.
        let is_same = |known: &KeptLookup| known.has_form_of(table) && Arc::ptr_eq(&known.values, table.values);
        let is_equal = |known: &KeptLookup| known.has_form_of(table) && known.values.as_ref() == table.values.as_ref();
        let at = tables.iter().position(is_same).or_else(|| tables.iter().position(is_equal))?;
        let mut known = tables.remove(at);
        known.values = Arc::clone(table.values);
        let on_device = known.on_device.clone();
        tables.push(known);
        Some(on_device)
    }

    /// Lets go of those not used for longest, until the others take no more than `bytes`.
    fn shrink_to(&self, bytes: u64) {
        let mut tables = lock(&self.0);
        let mut taken: u64 = tables.iter().map(|table| table.bytes).sum();
        while taken > bytes && !tables.is_empty() {
            taken -= tables.remove(0).bytes;
        }
    }
}

impl Store {
    /// A lookup table over the dictionary of a stored column: the one that is there, or one that is uploaded now and stays. `None` where
    /// there is no room for it.
    ///
    /// # Errors
    /// The device's, and where there is no pinned memory at the moment.
    pub fn lookup(
        &self,
        column: &StoredColumn,
        table: &HostTable<'_>,
        context: &RunContext,
        stream: &Stream,
    ) -> Result<Option<LookupInput>, Failure> {
        if let Some(known) = column.lookups.find(table) {
            return Ok(Some(known));
        }
        let host = table.bytes()?;
        let Some(room) = column.room_for_lookups().checked_sub(host.size()) else { return Ok(None) };
        column.lookups.shrink_to(room);
        let over = (self.bytes() + host.size()).saturating_sub(budget(context));
        column.lookups.shrink_to(column.lookups.bytes().saturating_sub(over));
        if self.bytes() + host.size() > budget(context) {
            return Ok(None);
        }
        let Ok(_promise) = self.participant.try_reserve(Request::device(ByteSize(host.size()))) else {
            return Ok(None);
        };
        let (on_device, allocated) = host.upload(&context.engine, stream, &self.scope)?;
        let (values, on_device_too) = (Arc::clone(table.values), on_device.clone());
        let (physical, ty, bytes) = (table.physical, table.ty, host.size());
        let kept = KeptLookup { values, physical, ty, on_device, bytes, allocated, _promise };
        // Where another run has brought the same meanwhile, the later one leaves first.
        lock(&column.lookups.0).push(kept);
        Ok(Some(on_device_too))
    }
}
