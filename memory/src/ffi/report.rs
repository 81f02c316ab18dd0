//! Statistics of the C interface as JSON, with PyTorch's and RMM's names where the quantity is the same.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use super::allocator::{Allocator, Place};
use super::{num_errors, refused};
use crate::error::Result;

/// Statistics of one device; for -1, of all open devices.
pub(super) fn json(allocator: &Allocator, device: i32) -> Result<String> {
    if device == -1 {
        let all: Vec<String> = allocator.places().map(object).collect::<Result<_>>()?;
        return Ok(format!("[{}]", all.join(",")));
    }
    match allocator.place_in_use("millpond_stats_json", device)? {
        Some(place) => object(place),
        None => refused("millpond_stats_json", format!("device {device} has not been used yet")),
    }
}

fn object(place: &Place) -> Result<String> {
    let counters = place.counters();
    let resource = place.pool.statistics()?;
    let (graph_bytes, graph_pieces) = place.captured().held();
    let asked = &place.asked;
    let mut text = String::from("{");
    let mut number = |name: &str, value: u64| {
        let comma = if text.len() > 1 { "," } else { "" };
        write!(text, "{comma}\"{name}\":{value}").expect("a string takes everything");
    };
    number("device", place.device.id().0.into());
    number("limit_bytes", place.pool.limit().as_u64());
    number("allocated_bytes", counters.used_bytes);
    number("allocated_bytes_peak", counters.peak_bytes);
    number("allocated_bytes_total", counters.allocated_bytes);
    number("reserved_bytes", resource.reserved.as_u64());
    number("reserved_bytes_peak", resource.reserved_peak.as_u64());
    number("used_bytes", resource.used.as_u64());
    number("used_bytes_peak", resource.used_peak.as_u64());
    number("allocations", counters.allocations);
    number("frees", counters.frees);
    number("live_allocations", asked.live.load(Relaxed));
    number("num_ooms", asked.failed.load(Relaxed));
    number("record_streams", asked.recorded.load(Relaxed));
    number("shared_frees", asked.shared_frees.load(Relaxed));
    number("deferred_frees", asked.deferred.load(Relaxed));
    number("pending_frees", place.pool.frees_put_off() as u64);
    number("graph_bytes", graph_bytes);
    number("graph_allocations", graph_pieces as u64);
    number("waits_inserted", counters.waits_inserted);
    number("waits_elided", counters.waits_elided);
    number("events_recorded", counters.events_recorded);
    number("num_stream_syncs", counters.host_waits);
    number("cross_stream_reuses", resource.cross_stream_reuses);
    number("leaked_bytes", counters.leaked_bytes);
    number("errors", num_errors());
    // Strategy names are plain words: nothing needs escaping.
    write!(text, ",\"memory_resource\":\"{}\"}}", place.pool.resource().name()).expect("a string takes everything");
    Ok(text)
}
