//! One job of the soak test: short runs from random steps, whose batches must equal those of earlier runs with the same plan.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{bail, ensure};
use forebay_client::{Client, Error, Training};
use forebay_proto::v1;
use tonic::Code;

/// Batches per run.
const BATCHES: u64 = 200;
/// A run begins at a multiple of this number of batches.
const START_UNIT: u64 = 50;
/// Highest start of a run, in units of [`START_UNIT`].
const MAX_START: u64 = 5;
/// Number of seeds.
const SEEDS: u64 = 2;

/// Counters of a job.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) rows: AtomicU64,
    /// Batches that were equal to those of an earlier run.
    pub(super) compared: AtomicU64,
    /// Runs that ended because a file of their snapshot had changed.
    pub(super) ended_by_changes: AtomicU64,
}

/// Hashes of the batches of one plan, by their steps.
type Hashes = HashMap<u64, u64>;

/// A job with its client.
pub(super) struct Job {
    pub(super) client: Client,
    pub(super) train: v1::Train,
    /// True if the files of the dataset change. A run may then end, because files of its snapshot are missing.
    pub(super) files_change: bool,
    /// Pause after each batch.
    pub(super) compute: Duration,
}

impl Job {
    /// Runs until an error. A batch that differs from that of an earlier run is an error.
    pub(super) async fn run(self, counts: &Counts) -> anyhow::Result<()> {
        let mut plans: HashMap<u64, (String, Hashes)> = HashMap::new();
        loop {
            let seed = fastrand::u64(0..SEEDS);
            let start_step = START_UNIT * fastrand::u64(0..=MAX_START);
            let train = v1::Train { seed, start_step, epochs: Some(1), ..self.train.clone() };
            let mut training = match self.client.train(&train).await {
                Ok(training) => training,
                Err(error) if self.is_a_change(&error) => continue,
                Err(error) => return Err(error.into()),
            };
            let plan_hash = training.plan().summary.plan_hash.clone();
            let (known, hashes) = plans.entry(seed).or_default();
            if *known != plan_hash {
                (*known, *hashes) = (plan_hash, Hashes::new());
            }
            self.receive(&mut training, hashes, counts).await?;
        }
    }

    async fn receive(
        &self,
        training: &mut Training,
        hashes: &mut Hashes,
        counts: &Counts,
    ) -> anyhow::Result<()> {
        for _ in 0..BATCHES {
            let batch = match training.next().await {
                None => return Ok(()),
                Some(Ok(batch)) => batch,
                Some(Err(error)) if self.is_a_change(&error) => {
                    counts.ended_by_changes.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Some(Err(error)) => return Err(error.into()),
            };
            counts.rows.fetch_add(batch.rows(), Ordering::Relaxed);
            let step = batch.metadata.step;
            let Some(hash) = batch.metadata.content_hash else { bail!("a batch has no hash") };
            if let Some(earlier) = hashes.insert(step, hash) {
                ensure!(earlier == hash, "{}: step {step} has other bytes than before", self.train.job_name);
                counts.compared.fetch_add(1, Ordering::Relaxed);
            }
            if !self.compute.is_zero() {
                tokio::time::sleep(self.compute).await;
            }
        }
        Ok(())
    }

    /// Returns true if `error` says that a file of the snapshot was replaced or removed.
    fn is_a_change(&self, error: &Error) -> bool {
        let is_change = matches!(error.code(), Some(Code::FailedPrecondition | Code::NotFound));
        self.files_change && is_change
    }

    /// Receives one batch and then stalls.
    pub(super) async fn stall(self, counts: &Counts) -> anyhow::Result<()> {
        let mut training = self.client.train(&self.train).await?;
        if let Some(batch) = training.next().await {
            counts.rows.fetch_add(batch?.rows(), Ordering::Relaxed);
        }
        std::future::pending().await
    }
}
