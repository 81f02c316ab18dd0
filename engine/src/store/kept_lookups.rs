//! Lookup tables stored with a column, see [`lookups`](super::lookups).
//!
//!   [LIKE 'P%' | rank | upper]   found by contents; in order of last use: the first is dropped if memory is short

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::ArrayRef;
use millpond_kernels::codegen::ir::{Physical, Ty};
use millpond_kernels::pipeline::LookupInput;
use millpond_memory::Reservation;

use crate::program::tables::HostTable;

/// Tables of a column, in order of last use.
#[derive(Debug, Default)]
pub(super) struct KeptLookups(Mutex<Vec<KeptLookup>>);

#[derive(Debug)]
pub(super) struct KeptLookup {
    /// Contents, as the array of the last run that requested it.
    pub values: ArrayRef,
    pub physical: Physical,
    pub ty: Ty,
    pub on_device: LookupInput,
    pub bytes: u64,
    /// Bytes allocated, including padding to the pool's units.
    pub allocated: u64,
    pub _promise: Reservation,
}

impl KeptLookup {
    fn has_form_of(&self, table: &HostTable<'_>) -> bool {
        self.physical == table.physical && self.ty == table.ty
    }
}

impl KeptLookups {
    fn tables(&self) -> MutexGuard<'_, Vec<KeptLookup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a table.
    pub fn push(&self, table: KeptLookup) {
        self.tables().push(table);
    }

    pub fn bytes(&self) -> u64 {
        self.tables().iter().map(|table| table.bytes).sum()
    }

    pub fn allocated_bytes(&self) -> u64 {
        self.tables().iter().map(|table| table.allocated).sum()
    }

    /// Finds a table with equal contents.
    pub fn find(&self, table: &HostTable<'_>) -> Option<LookupInput> {
        let mut tables = self.tables();
        // A repeated plan passes the same array; only arrays of other plans are compared by value.
        let is_same = |known: &KeptLookup| known.has_form_of(table) && Arc::ptr_eq(&known.values, table.values);
        let is_equal = |known: &KeptLookup| known.has_form_of(table) && known.values.as_ref() == table.values.as_ref();
        let at = tables.iter().position(is_same).or_else(|| tables.iter().position(is_equal))?;
        let mut known = tables.remove(at);
        known.values = Arc::clone(table.values);
        let on_device = known.on_device.clone();
        tables.push(known);
        Some(on_device)
    }

    /// Drops the least recently used tables until the others take at most `bytes`.
    pub fn shrink_to(&self, bytes: u64) {
        let mut tables = self.tables();
        let mut taken: u64 = tables.iter().map(|table| table.bytes).sum();
        while taken > bytes && !tables.is_empty() {
            taken -= tables.remove(0).bytes;
        }
    }
}
