//! The `forebay` binary.

mod allocator;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    allocator::configure();
    forebay::cli::main()
}
