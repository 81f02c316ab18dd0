//! The memory layer, over a driver that only records and over the simulated device.

mod recording;

mod adaptors;
mod buffers;
mod conformance;
mod counters;
mod cuda;
mod device;
mod external;
mod governor;
mod idle;
mod ipc;
mod kernel_cache;
mod log;
mod lost;
mod measure;
mod order;
mod peers;
mod pending;
mod pinned;
mod pool_rules;
mod pools;
mod pressure;
mod recorder;
mod replay;
mod resource_order;
mod resources;
#[cfg(target_os = "linux")]
mod shim;
mod sim_buffers;
mod sim_capture;
mod sim_faults;
mod sim_graph;
mod sim_hand_over;
mod sim_ipc;
mod sim_launch;
mod sim_lazy;
mod sim_pool;
mod sim_pools;
mod sim_refusals;
mod sim_rig;
mod sim_shape;
mod sim_skip;
mod spill;
mod suite;
mod threads;
