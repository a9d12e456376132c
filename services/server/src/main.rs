//! The `forebay` binary.

mod allocator;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    allocator::configure();
    match forebay::cli::Cli::parse().run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: {}", forebay::cli::describe(&error));
            std::process::ExitCode::FAILURE
        }
    }
}
