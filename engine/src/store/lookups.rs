//! Lookup tables stored on the device with the column whose codes index them.
//!
//!   p_type LIKE 'P%'  ─► [1, 0, …] on the host ─► a stored table with equal contents? ── yes ─► reused
//!                                                                                    └─ no ──► uploaded and stored
//!
//! Right     a table is identified by its type and contents, so that all queries with equal tables share it.
//! Memory    is counted and reserved with the column, and freed with it. If the column's limit for tables or the
//!           store's budget is reached, the least recently used tables are dropped.
//! Threads   one lock per column's tables, held while they are compared, but not during an upload.

use std::sync::Arc;

use millpond_kernels::pipeline::LookupInput;
use millpond_memory::{ByteSize, Request, Stream};

use crate::error::failure::Failure;
use crate::program::context::RunContext;
use crate::program::tables::HostTable;
use crate::store::Store;
use crate::store::capacity::budget;
use crate::store::column::StoredColumn;
use crate::store::kept_lookups::KeptLookup;

impl Store {
    /// A lookup table over the dictionary of a stored column: a stored one, or one that is uploaded and stored now.
    /// `None` if it does not fit.
    ///
    /// # Errors
    /// The device's, and if pinned memory is exhausted at the moment.
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
        let Some(space) = column.space_for_lookups().checked_sub(host.size()) else { return Ok(None) };
        column.lookups.shrink_to(space);
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
        // A concurrent run may have added an equal table; the duplicate is dropped when memory is short.
        column.lookups.push(kept);
        Ok(Some(on_device_too))
    }
}
