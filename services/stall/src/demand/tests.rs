use std::time::Duration;

use super::*;

const BUSY: Load = Load { cpu: 1.0, network: 0.0 };

fn seconds(parts: &[(Bucket, f64)]) -> Buckets {
    let mut recent = Buckets::default();
    parts.iter().for_each(|(bucket, time)| recent[*bucket] = Duration::from_secs_f64(*time));
    recent
}

/// A trainer of a job of its own, which `servers` servers can share.
fn trainer(job: u64, servers: u64, parts: &[(Bucket, f64)]) -> Trainer {
    Trainer { job, rank: 0, world_size: 1, servers, rate: 100.0, recent: seconds(parts) }
}

fn assert_wants(load: Load, trainers: &[Trainer], expected: f64) {
    let wanted = wanted_servers(load, trainers);
    assert!((wanted - expected).abs() < 1e-9, "{wanted} instead of {expected}");
}

#[test]
fn a_server_without_trainers_is_not_wanted() {
    assert_wants(BUSY, &[], 0.0);
    let stalled = Trainer { rate: 0.0, ..trainer(0, 8, &[(Bucket::Storage, 10.0)]) };
    assert_wants(BUSY, &[stalled], 0.0);
}

#[test]
fn a_busy_server_that_has_sent_nothing_yet_is_wanted() {
    let waits = Trainer { rate: 0.0, ..trainer(0, 8, &[(Bucket::Compute, 5.0), (Bucket::Decode, 5.0)]) };
    assert_wants(BUSY, &[waits], 2.0);
}

#[test]
fn the_demand_is_the_rate_without_waiting_for_the_server() {
    // They compute for a quarter of the time, so that they would take four times the rate that the busy server sends.
    let slow = [(Bucket::Compute, 5.0), (Bucket::Decode, 9.0), (Bucket::Gather, 3.0), (Bucket::Queued, 3.0)];
    assert_wants(BUSY, &[trainer(0, 8, &slow)], 4.0);
    assert_wants(BUSY, &[trainer(0, 8, &slow), trainer(1, 8, &slow)], 4.0);
    // A third of the load, and four times the rate.
    assert_wants(Load { cpu: 1.0 / 3.0, network: 0.0 }, &[trainer(0, 8, &slow)], 4.0 / 3.0);
}

#[test]
fn each_trainer_has_its_share_of_the_load() {
    let waits = trainer(0, 8, &[(Bucket::Compute, 5.0), (Bucket::Gather, 5.0)]);
    let computes = Trainer { rate: 300.0, ..trainer(1, 8, &[(Bucket::Compute, 10.0)]) };
    // A quarter of the load grows to twice its size, three quarters stay.
    assert_wants(Load { cpu: 0.8, network: 0.0 }, &[waits, computes], 0.8 * (0.25 * 2.0 + 0.75));
}

#[test]
fn more_servers_are_not_wanted_for_the_store_the_network_or_the_trainer() {
    for parts in [
        &[(Bucket::Compute, 2.0), (Bucket::Storage, 6.0), (Bucket::Decode, 2.0)][..],
        &[(Bucket::Compute, 2.0), (Bucket::Network, 8.0)],
        &[(Bucket::Compute, 9.6), (Bucket::Decode, 0.4)],
    ] {
        assert_wants(Load { cpu: 0.5, network: 0.0 }, &[trainer(0, 8, parts)], 0.5);
    }
}

#[test]
fn a_server_that_prefetches_for_trainers_that_do_not_wait_demands_no_other_server() {
    assert_wants(BUSY, &[trainer(0, 8, &[(Bucket::Compute, 10.0)])], TARGET_LOAD);
    assert_wants(BUSY, &[trainer(0, 8, &[(Bucket::Compute, 4.0), (Bucket::Storage, 6.0)])], TARGET_LOAD);
}

#[test]
fn a_saturated_network_of_the_server_is_a_reason_for_more_servers() {
    let waits = trainer(0, 8, &[(Bucket::Compute, 5.0), (Bucket::Network, 5.0)]);
    assert_wants(Load { cpu: 0.3, network: 1.0 }, &[waits], 2.0);
    // The network of the trainer, not that of the server.
    assert_wants(Load { cpu: 0.3, network: 0.4 }, &[waits], 0.4);
    // The threads are the bottleneck of the server.
    assert_wants(Load { cpu: 1.0, network: 0.9 }, &[waits], TARGET_LOAD);
}

#[test]
fn a_trainer_that_does_not_report_demands_a_fifth_more_than_its_rate() {
    let unreported = [(Bucket::ComputeOrNetwork, 5.0), (Bucket::Decode, 5.0)];
    assert_wants(BUSY, &[trainer(0, 8, &unreported)], 1.2);
}

#[test]
fn a_trainer_that_never_computes_has_a_finite_demand() {
    assert_wants(BUSY, &[trainer(0, 100, &[(Bucket::Gather, 10.0)])], MAX_GROWTH);
}

#[test]
fn a_job_demands_no_more_servers_than_can_share_its_work() {
    let slow = [(Bucket::Compute, 1.0), (Bucket::Decode, 9.0)];
    assert_wants(BUSY, &[trainer(0, 1, &slow)], TARGET_LOAD);
    assert_wants(BUSY, &[trainer(0, 4, &slow)], 4.0 * TARGET_LOAD);
    assert_wants(BUSY, &[trainer(0, 1, &slow), trainer(1, 4, &slow)], TARGET_LOAD + 4.0 * TARGET_LOAD);
}

#[test]
fn the_servers_of_a_job_share_its_limit_by_ranks() {
    let slow = [(Bucket::Compute, 1.0), (Bucket::Decode, 9.0)];
    let ranks: Vec<Trainer> =
        (0..8).map(|rank| Trainer { rank, world_size: 8, ..trainer(0, 4, &slow) }).collect();
    let sum = wanted_servers(BUSY, &ranks[..3]) + wanted_servers(BUSY, &ranks[3..]);
    assert!((sum - 4.0 * TARGET_LOAD).abs() < 1e-9, "{sum}");
    // Lanes of a rank that have sessions of their own do not raise the limit.
    let lanes = [ranks[0], ranks[0]];
    assert_wants(BUSY, &lanes, 4.0 * TARGET_LOAD / 8.0);
}
