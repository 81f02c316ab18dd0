//! Devices, streams, events and the stream-ordered memory pool, over CUDA or a simulated device.
