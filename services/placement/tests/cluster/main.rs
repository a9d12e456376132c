//! Simulation of a cluster: servers with different views, and clients that follow placements, in virtual time.
//!
//! Each seed chooses servers, jobs, delays and clocks, and a history: servers that are killed, restart, join, leave and are
//! slow; networks that split; lists that are empty, halved, late or flapping. Only the decisions are real: `Members` and
//! `Placement`. The transport, the caches, and the clients are models (`route.rs`).
//!
//! Checked in each history:
//! - Each rank receives every step once and in order, with the right bytes, and does not stop.
//! - Each placement gives each server the streams of its share, and does not depend on the order of its servers. If one server
//!   fails, the second candidates of its streams give each other server its share.
//! - A view contains the own server, and no server of another state.
//! - After the last event, all views become equal and contain the servers that run. Then all streams move to their
//!   servers, and none moves again. This takes at most twice the sum of the delays of a view and the interval of plans.
//! - If the clients of a rank ask one server for plans, the stream moves twice only if there was an event or a change of that
//!   server's view in between.
//! - A list that flaps for less than the delays moves no stream. Without events, each block is decoded once.
//! - Otherwise, each block is decoded at most once per cache that served one of its readers.
//!
//! Each seed runs twice and must produce the same events. As many seeds run at once as there are cores.
//!
//! `FOREBAY_SIMULATION_SEEDS` is the number of seeds (default 500), `FOREBAY_SIMULATION_FIRST` the first one (default 0), and
//! `FOREBAY_SIMULATION_LARGE` the number of seeds with 1,000 servers and 16,384 ranks (default 0). With
//! `FOREBAY_SIMULATION_TRACE` every event is printed.

#![allow(clippy::unwrap_used)] // Test helpers fail by panicking.

mod checks;
mod history;
mod network;
mod ranks;
mod route;
#[path = "../../../loader/tests/fixture/seeds.rs"]
mod seeds;
mod totals;
mod world;

use std::{panic::catch_unwind, sync::Mutex};

use seeds::number;

/// Number of seeds after which a line is printed.
const PROGRESS: u64 = 100;

/// Runs `seed` twice; `None` if a check fails or the events differ, which is printed.
fn run_twice(seed: u64, is_large: bool) -> Option<totals::Totals> {
    let [once, again] = [(); 2].map(|()| catch_unwind(|| world::run(seed, is_large)));
    let (once, again) = (once.ok()?, again.ok()?);
    if once.trace != again.trace {
        println!("seed {seed}: two runs differ");
        return None;
    }
    Some(once)
}

fn run(first: u64, seeds: u64, is_large: bool) {
    let results = Mutex::new((totals::Totals::default(), Vec::new()));
    seeds::each(first, seeds, |seed| {
        let checked = run_twice(seed, is_large);
        let (totals, failed) = &mut *results.lock().unwrap();
        checked.map_or_else(|| failed.push(seed), |run| totals.add(&run));
        if (seed + 1 - first).is_multiple_of(PROGRESS) {
            println!("{} seeds, {} failed", seed + 1 - first, failed.len());
        }
    });
    let (totals, mut failed) = results.into_inner().unwrap();
    failed.sort_unstable();
    println!("{seeds} seeds, each twice: {totals:?}");
    assert!(
        failed.is_empty(),
        "{} seeds failed: {failed:?}; run one with FOREBAY_SIMULATION_FIRST=N FOREBAY_SIMULATION_SEEDS=1",
        failed.len()
    );
}

#[test]
fn streams_are_complete_and_settle_whatever_servers_and_lists_do() {
    run(number("FOREBAY_SIMULATION_FIRST", 0), number("FOREBAY_SIMULATION_SEEDS", 500), false);
}

#[test]
fn large_clusters_settle_too() {
    run(number("FOREBAY_SIMULATION_FIRST", 0), number("FOREBAY_SIMULATION_LARGE", 0), true);
}
