//! The ranks of a job, and the waits of their epochs.

use std::time::Instant;

use forebay_client::{Client, Config};
use forebay_proto::v1;
use tokio::runtime::Runtime;

use super::servers::Servers;
use crate::{receive::receive_ranks, scenario::Scenario};

/// The ranks of a job.
pub(super) struct Job<'a> {
    runtime: &'a Runtime,
    scenario: &'a Scenario,
    clients: Vec<Client>,
    partitions: u64,
    /// The next unread epoch.
    epoch: u64,
}

/// Measurements of all ranks over some epochs.
pub(super) struct Run {
    /// Time until the last rank finished.
    pub(super) seconds: f64,
    /// Longest wait of any rank for a batch other than its first.
    pub(super) longest_wait_seconds: f64,
}

impl<'a> Job<'a> {
    /// Creates ranks with a client each, which know the servers at first.
    pub(super) fn new(
        runtime: &'a Runtime,
        scenario: &'a Scenario,
        servers: &Servers,
        ranks: u64,
        partitions: u64,
        config: &Config,
    ) -> anyhow::Result<Self> {
        let clients = (0..ranks).map(|_| Client::new(servers.urls(), config.clone()));
        Ok(Self { runtime, scenario, clients: clients.collect::<Result<_, _>>()?, partitions, epoch: 0 })
    }

    /// Returns the runtime of the ranks.
    pub(super) fn runtime(&self) -> &'a Runtime {
        self.runtime
    }

    /// Returns the number of ranks.
    pub(super) fn ranks(&self) -> u64 {
        self.clients.len() as u64
    }

    /// Reads the next `epochs` with all ranks, and runs `concurrently` at the same time.
    pub(super) fn epoch(
        &mut self,
        epochs: u64,
        concurrently: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Run> {
        let shuffle = v1::Shuffle {
            partitions: (self.partitions > 1).then_some(self.partitions),
            ..v1::Shuffle::default()
        };
        let train = v1::Train {
            world_size: Some(self.clients.len() as u64),
            shuffle: Some(shuffle),
            ..self.scenario.train(self.epoch, epochs)
        };
        self.epoch += epochs;
        let started = Instant::now();
        let ranks = receive_ranks(self.runtime.handle(), &self.clients, &train, None, concurrently)?;
        let waits = ranks.iter().flat_map(|rank| [rank.wait_seconds, rank.epoch_wait_seconds]);
        let longest_wait_seconds = waits.flatten().map(|waits| waits.max).fold(0.0, f64::max);
        Ok(Run { seconds: started.elapsed().as_secs_f64(), longest_wait_seconds })
    }
}
