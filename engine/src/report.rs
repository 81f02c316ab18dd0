//! What a query did: where it ran, why not on the device, and what it cost there.
//!
//!   executed plan ─ walk ─► QueryReport { launches, host waits, bytes, reasons, … } ─► footer, EXPLAIN ANALYZE, tests
//!
//! Numbers come from the executed plan's own runs, so two queries at once do not mix.

/// What one query did. All counts are zero when nothing ran on a device.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct QueryReport {
    /// The device's name, when there is one.
    pub device: Option<String>,
    /// Rows that left the device.
    pub rows: u64,
    /// Kernel launches, of which [`pipeline_launches`](Self::pipeline_launches) ran a generated pipeline.
    pub launches: u64,
    pub pipeline_launches: u64,
    /// Times the host waited for the device.
    pub host_waits: u64,
    /// Device allocations.
    pub allocations: u64,
    pub uploaded_bytes: u64,
    pub downloaded_bytes: u64,
    /// Most device bytes ever live at once.
    pub peak_bytes: u64,
    /// Operators over table rows that ran on the device, and all of them (scans and pass-through nodes do not count).
    pub operators_on_device: usize,
    pub operators: usize,
    /// Why operators stayed on the CPU; sorted, each once.
    pub reasons: Vec<String>,
    /// What happened while it ran, such as a subplan that was run again on the CPU.
    pub notes: Vec<String>,
    /// What the simulated device's checks found since the last report; empty on a real device.
    pub findings: Vec<String>,
    /// Bytes of the pool still in use after the query.
    pub pool_used_bytes: u64,
}

impl QueryReport {
    /// The share of the operators that ran on the device, or `None` when the plan has no operator that counts.
    pub fn share_on_device(&self) -> Option<f64> {
        (self.operators > 0).then(|| self.operators_on_device as f64 / self.operators as f64)
    }
}
