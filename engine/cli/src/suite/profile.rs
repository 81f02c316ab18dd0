//! A profile as JSON: ms on the host and on the device, thread seconds below feeding, bytes, and GB per second.

use millpond::Profile;
use millpond::profile::{KernelProfile, SegmentProfile};
use serde_json::{Map, Value, json};

/// Names and numbers, in order.
fn steps(steps: &[(&'static str, u64)], ns_in_unit: f64) -> Value {
    Value::Object(
        steps.iter().map(|(step, ns)| (step.to_string(), json!(*ns as f64 / ns_in_unit))).collect::<Map<_, _>>(),
    )
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn json(profile: &Profile) -> Value {
    let feeding = &profile.feeding;
    json!({
        "wall_ms": ms(profile.wall_ns),
        "steps_ms": steps(&profile.steps, 1e6),
        "feeding": {
            "feeders": feeding.feeders,
            "readers": feeding.readers,
            "seconds": feeding.ns as f64 / 1e9,
            "steps_seconds": steps(&feeding.steps, 1e9),
        },
        "memory_gb_per_second": profile.memory_bandwidth.map(|speed| speed / 1e9),
        "attempts": profile.attempts,
        "learnt": profile.learnt,
        "segments": profile.segments.iter().map(|of| segment(of, profile.memory_bandwidth)).collect::<Vec<_>>(),
        "kernels": profile.kernels.iter().map(kernel).collect::<Vec<_>>(),
    })
}

fn segment(segment: &SegmentProfile, memory_bandwidth: Option<f64>) -> Value {
    let speed = segment.bytes_per_second();
    let mut value = json!({
        "name": segment.name,
        "launches": segment.launches,
        "device_ms": segment.device_ns.map(ms),
        "bytes_read": segment.bytes_read,
        "bytes_written": segment.bytes_written,
        "gb_per_second": speed.map(|speed| speed / 1e9),
        "share_of_memory": speed.zip(memory_bandwidth).map(|(speed, most)| speed / most),
        "uploaded_bytes": segment.uploaded_bytes,
        "downloaded_bytes": segment.downloaded_bytes,
        "transfer_ms": segment.transfer_ns.map(ms),
    });
    value["per_row"] = per_row(segment.figures, segment.rows);
    value
}

fn kernel(kernel: &KernelProfile) -> Value {
    let mut value = json!({
        "name": kernel.name,
        "segment": kernel.segment,
        "launches": kernel.launches,
        "device_ms": kernel.device_ns.map(ms),
        "threads": kernel.threads,
        "registers": kernel.registers,
        "local_bytes": kernel.local_bytes,
        "static_shared_bytes": kernel.static_shared_bytes,
        "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
        "blocks_per_multiprocessor": kernel.blocks_per_multiprocessor,
    });
    value["per_row"] = per_row(kernel.figures, kernel.rows);
    value
}

/// The simulated device's counts per row.
fn per_row(figures: Option<millpond_memory::driver::LaunchFigures>, rows: u64) -> Value {
    let Some(figures) = figures.filter(|_| rows > 0) else { return Value::Null };
    let of = |count: u64| count as f64 / rows as f64;
    json!({
        "rows": rows,
        "sectors_read": of(figures.sectors_read),
        "sectors_written": of(figures.sectors_written),
        "sectors_atomic": of(figures.sectors_atomic),
        "warp_instructions": of(figures.warp_instructions),
    })
}
