//! The program `millpond`. The wheel has the same one, started by Python.

#![forbid(unsafe_code)]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    millpond_cli::run(std::env::args_os())
}
