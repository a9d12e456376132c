//! Simulation of the training path: random requests, faults and timings from a seed, in virtual time. Each run has one
//! thread, and as many seeds run at once as there are cores.
//!
//! Each seed chooses requests, limits, delays of the store, of the disk and of CPU work, operations that hang, errors, damaged
//! files of the cache, files that change, consumers that stall or end, and restarts. The test checks that every batch has the
//! right bytes, that all streams end, that memory stays within the budget, and that all memory is released at the end.
//!
//! The same seed always produces the same list of events.
//!
//! `FOREBAY_SIMULATION_SEEDS` is the number of seeds (default 400), `FOREBAY_SIMULATION_FIRST` the first one (default 0).
//! With `FOREBAY_SIMULATION_TRACE` every event is printed.

#![allow(clippy::unwrap_used)] // Test helpers fail by panicking.

mod disk;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../../../storage/tests/common/forward.rs"]
mod forward;
mod requests;
#[path = "../fixture/seeds.rs"]
mod seeds;
mod store;
mod world;

use std::{panic::catch_unwind, sync::Mutex};

use seeds::number;

/// Number of seeds of which some have each kind of fault.
const ENOUGH_SEEDS: u64 = 400;

/// Runs `seed` twice; `None` if a promise is broken or the events differ, which is printed.
fn run_twice(seed: u64) -> Option<world::Run> {
    let [once, again] = [(); 2].map(|()| catch_unwind(|| world::run(seed)));
    let (once, again) = (once.ok()?, again.ok()?);
    if once.trace == again.trace {
        return Some(once);
    }
    let at = once.trace.iter().zip(&again.trace).take_while(|(a, b)| a == b).count();
    let [a, b] = [&once, &again].map(|run| run.trace.get(at).cloned().unwrap_or_default());
    println!("seed {seed}: event {at} is '{a}' and then '{b}'");
    None
}

#[test]
fn streams_deliver_their_bytes_and_release_their_memory_whatever_fails_is_late_or_restarts() {
    let (first, seeds) = (number("FOREBAY_SIMULATION_FIRST", 0), number("FOREBAY_SIMULATION_SEEDS", 400));
    let results = Mutex::new((world::Totals::default(), Vec::new()));
    seeds::each(first, seeds, |seed| {
        let checked = run_twice(seed);
        let (totals, failed) = &mut *results.lock().unwrap();
        checked.map_or_else(|| failed.push(seed), |run| totals.add(&run));
    });
    let (totals, mut failed) = results.into_inner().unwrap();
    failed.sort_unstable();
    println!("{seeds} seeds, each twice: {totals}");
    if seeds >= ENOUGH_SEEDS && failed.is_empty() {
        assert!(totals.has_all_faults(), "a kind of fault never occurred: {totals}");
    }
    assert!(
        failed.is_empty(),
        "seeds {failed:?}; run one with FOREBAY_SIMULATION_FIRST=N FOREBAY_SIMULATION_SEEDS=1"
    );
}
