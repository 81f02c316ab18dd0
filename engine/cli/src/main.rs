//! The program `millpond`. The Python wheel starts the same program.

#![forbid(unsafe_code)]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    millpond_cli::run(std::env::args_os())
}
