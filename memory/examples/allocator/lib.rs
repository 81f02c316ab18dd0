//! A shared library with the C interface of the memory layer: `millpond_alloc`, `millpond_free` and the related
//! functions.
//!
//!   cargo build --release -p millpond-memory --example millpond_allocator
//!   python memory/examples/torch_allocator.py --library target/release/examples/libmillpond_allocator.so
//!
//! `millpond_memory::ffi` documents the functions; `millpond_allocator.h` declares them for C.

millpond_memory::export_c_interface!();
