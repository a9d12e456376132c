//! Simulation of the training path: random requests, faults and timings from a seed, in virtual time on one thread.
//!
//! Each seed chooses requests, limits, delays of the store, of the disk and of CPU work, operations that hang, errors, damaged
//! files of the cache, files that change, consumers that stall or end, and restarts. The test checks that every batch has the
//! right bytes, that all streams end, that memory stays within the budget, and that all memory is released at the end.
//!
//! The same seed always produces the same list of events.
//!
//! `FOREBAY_SIMULATION_SEEDS` is the number of seeds (default 500), `FOREBAY_SIMULATION_FIRST` the first one (default 0).
//! With `FOREBAY_SIMULATION_TRACE` every event is printed.

#![allow(clippy::unwrap_used)] // Test helpers fail by panicking.

mod disk;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../../../storage/tests/common/forward.rs"]
mod forward;
mod requests;
mod store;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Number of seeds of which some have each kind of fault.
const ENOUGH_SEEDS: u64 = 400;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

#[test]
fn streams_deliver_their_bytes_and_release_their_memory_whatever_fails_is_late_or_restarts() {
    let (first, seeds) = (number("FOREBAY_SIMULATION_FIRST", 0), number("FOREBAY_SIMULATION_SEEDS", 500));
    let mut totals = world::Totals::default();
    let mut failed = Vec::new();
    for seed in first..first + seeds {
        let run = || catch_unwind(AssertUnwindSafe(|| world::run(seed)));
        match (run(), run()) {
            (Ok(once), Ok(again)) if once.trace == again.trace => totals.add(&once),
            (Ok(once), Ok(again)) => {
                let at = once.trace.iter().zip(&again.trace).take_while(|(a, b)| a == b).count();
                let [a, b] = [&once, &again].map(|run| run.trace.get(at).cloned().unwrap_or_default());
                println!("seed {seed}: event {at} is '{a}' and then '{b}'");
                failed.push(seed);
            }
            _ => failed.push(seed),
        }
    }
    println!("{seeds} seeds, each twice: {totals}");
    if seeds >= ENOUGH_SEEDS && failed.is_empty() {
        assert!(totals.has_all_faults(), "a kind of fault never occurred: {totals}");
    }
    assert!(
        failed.is_empty(),
        "seeds {failed:?}; run one with FOREBAY_SIMULATION_FIRST=N FOREBAY_SIMULATION_SEEDS=1"
    );
}
