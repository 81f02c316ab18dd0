//! Lookup tables that stay on the device beside the column whose codes they are read by.
//!
//!   p_type LIKE 'P%'  ─► [1, 0, …] on the host ─► is there one that holds this? ── yes ─► the one on the device
//!                                                                               └─ no ──► uploaded, and stays
//!
//! Right     a table is found by its type and by all that it holds, so that it serves whichever query makes the same.
//! Memory    counts as the column's, is promised as the column's is, and goes with the column. Where a column has no more room for tables, or the
//!           store none for bytes, those go that were not used for longest.
//! Threads   one lock for a column's tables, held while they are compared, never while one goes up.

use std::sync::Arc;

use millpond_kernels::pipeline::LookupInput;
use millpond_memory::{ByteSize, Request, Stream};

use crate::program::context::RunContext;
use crate::program::failure::Failure;
use crate::program::tables::HostTable;
use crate::store::Store;
use crate::store::column::StoredColumn;
use crate::store::kept_lookups::KeptLookup;
use crate::store::room::budget;

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
        column.lookups.push(kept);
        Ok(Some(on_device_too))
    }
}
