//! Demand of the trainers of one server, from which an autoscaler calculates the number of servers.

use std::collections::{BTreeMap, BTreeSet};

use crate::bucket::{Bucket, Buckets};

/// Target load: the load at which an autoscaler should keep each server, as a fraction of its capacity. The rest is a reserve for
/// bursts.
pub const TARGET_LOAD: f64 = 0.8;
/// Fraction of the time of a trainer below which its waits for the server are ignored.
const NOT_WAITING: f64 = 0.05;
/// Demand of a trainer that waits for the server and does not report how long it computes, as a multiple of its present rate.
const UNREPORTED_GROWTH: f64 = 1.2;
/// Maximum demand of a trainer, as a multiple of its present rate. The demand of a trainer that never computes would be infinite.
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
    /// Hash of the job, which is the same on all servers.
    pub job: u64,
    /// Rank of the trainer in its job.
    pub rank: u64,
    /// Number of ranks of the job.
    pub world_size: u64,
    /// Maximum number of servers that the job can use.
    pub servers: u64,
    /// Bytes sent to the trainer per second.
    pub rate: f64,
    /// Time of the trainer in each bucket over the last seconds.
    pub recent: Buckets,
}

/// Returns the demand of `trainers`. The unit is one server at full load, with the capacity of this one.
///
/// The capacity of the server is the rate that it sends, divided by its load. The demand of a trainer is the rate that it would
/// receive if it never waited for the server, divided by this capacity:
///
/// - If a trainer mostly waits for the server (for decoding, gathering, a thread or memory), this rate is its present rate divided
///   by the fraction of the time in which it does not wait for the server. If the trainer does not report, the fraction is
///   unknown, and the rate is 1.2 times the present rate.
/// - For other trainers, it is the present rate. More servers would not speed up a trainer that computes, or one that waits for
///   the store or the network. If the network is the bottleneck of the server, a wait for the network counts as a wait for the
///   server.
///
/// The demand of a job is limited to [`TARGET_LOAD`] times the number of servers that it can use. Each server applies the limit in
/// proportion to the ranks that it serves. At the target load, the demand of a job therefore never results in more servers than
/// it can use. If no trainer waits for the server, the result is at most [`TARGET_LOAD`]. A server that is busy with prefetching
/// therefore never results in an additional server.
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
            // Before the first batches, the load is divided equally among the trainers, and those that wait for the server count.
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
