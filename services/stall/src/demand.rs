//! Number of servers' worth of work that the trainers of one server demand, from which an autoscaler derives the number of servers.

use std::collections::{BTreeMap, BTreeSet};

use crate::bucket::{Bucket, Buckets};

/// Load of a server at which an autoscaler should keep it, as a fraction of its capacity. The rest absorbs bursts.
pub const TARGET_LOAD: f64 = 0.8;
/// Wait fraction below which a trainer does not wait for the server.
const NOT_WAITING: f64 = 0.05;
/// Growth of the demand of a trainer that waits for the server and does not report how long it computes.
const UNREPORTED_GROWTH: f64 = 1.2;
/// Largest growth of the demand of one trainer. A trainer that never computes would demand an infinite rate.
const MAX_GROWTH: f64 = 16.0;

/// Load of a server, averaged over the last seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Fraction of the time in which the decoding and gathering threads are busy, 0 to 1.
    pub cpu: f64,
    /// Bytes sent per second as a fraction of the network bandwidth, 0 to 1; 0 if the bandwidth is unknown.
    pub network: f64,
}

/// One trainer of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trainer {
    /// Identifies the job among the jobs of all servers.
    pub job: u64,
    /// Rank of the trainer in its job.
    pub rank: u64,
    /// Number of ranks of the job.
    pub world_size: u64,
    /// Largest number of servers that can share the work of the job.
    pub servers: u64,
    /// Bytes sent to the trainer per second.
    pub rate: f64,
    /// Recent time of the trainer.
    pub recent: Buckets,
}

/// Returns the number of servers' worth of work that `trainers` demand, in servers with the capacity of this one.
///
/// The capacity of the server is the rate that it sends, divided by its load. The demand of a trainer is the rate that it would
/// receive if it never waited for a server:
///
/// - A trainer that mostly waits for decoding, for gathering, or for a free thread or memory demands its present rate divided by
///   the fraction of the time in which it does not wait for these. If it does not report, the fraction is unknown, and it demands
///   1.2 times its present rate.
/// - Other trainers demand their present rate. More servers would not speed up a trainer that computes, or one that waits for
///   the store or the network. If the network of the server is its bottleneck, a wait for the network counts as a wait for
///   the server.
///
/// A job demands at most [`TARGET_LOAD`] times the number of servers that can share its work, in proportion to the ranks that
/// this server serves. The sum over all servers of a job is then at most that number at the target load. If no trainer waits for
/// the server, the result is at most [`TARGET_LOAD`], so that a server that is busy with prefetching does not demand more
/// servers.
pub fn wanted_servers(load: Load, trainers: &[Trainer]) -> f64 {
    let total_rate: f64 = trainers.iter().map(|trainer| trainer.rate).sum();
    let load_fraction = load.cpu.max(load.network).clamp(0.0, 1.0);
    let is_network_bound = load.network >= TARGET_LOAD && load.network >= load.cpu;
    let mut jobs: BTreeMap<u64, Job> = BTreeMap::new();
    let mut is_waited_for = false;
    for trainer in trainers {
        let growth = growth(&trainer.recent, is_network_bound);
        is_waited_for |= growth > 1.0;
        let job = jobs.entry(trainer.job).or_default();
        let share = match total_rate > 0.0 {
            true => trainer.rate / total_rate,
            // Before the first batches, those that wait for the server have equal shares of the load.
            false if growth > 1.0 => 1.0 / trainers.len() as f64,
            false => 0.0,
        };
        job.demand += share * load_fraction * growth;
        job.ranks.insert(trainer.rank);
        // Trainers of one job have equal values.
        job.limit_of_a_rank = TARGET_LOAD * trainer.servers as f64 / trainer.world_size.max(1) as f64;
    }
    let wanted = jobs.values().map(Job::wanted).sum();
    if is_waited_for { wanted } else { TARGET_LOAD.min(wanted) }
}

/// Demand of one job.
#[derive(Default)]
struct Job {
    demand: f64,
    ranks: BTreeSet<u64>,
    limit_of_a_rank: f64,
}

impl Job {
    fn wanted(&self) -> f64 {
        self.demand.min(self.limit_of_a_rank * self.ranks.len() as f64)
    }
}

/// Returns the rate that a trainer would receive if it never waited for a server, as a multiple of its present rate.
fn growth(recent: &Buckets, is_network_bound: bool) -> f64 {
    let fraction = |buckets: &[Bucket]| buckets.iter().map(|bucket| recent.fraction(*bucket)).sum::<f64>();
    let mut server = fraction(&[Bucket::Decode, Bucket::Gather, Bucket::Queued]);
    let mut others = recent.fraction(Bucket::Storage);
    if is_network_bound {
        server += recent.fraction(Bucket::Network);
    } else {
        others += recent.fraction(Bucket::Network);
    }
    if server < NOT_WAITING || server < others {
        return 1.0;
    }
    if recent.fraction(Bucket::ComputeOrNetwork) >= NOT_WAITING {
        return UNREPORTED_GROWTH;
    }
    (1.0 / (1.0 - server).max(f64::MIN_POSITIVE)).min(MAX_GROWTH)
}

#[cfg(test)]
mod tests;
