//! The memory layer, over a driver that only records and over the simulated device.

mod recording;

mod buffers;
mod counters;
mod device;
mod order;
mod pending;
mod pinned;
mod pools;
