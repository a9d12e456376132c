//! Receives one stream and simulates the computation on each batch.

use std::time::{Duration, Instant};

use forebay_client::{Batch, Client, Error};
use forebay_proto::v1;
use futures::FutureExt;
use tokio::runtime::Handle;

use crate::{
    accelerator::{Accelerator, wait_until},
    protocol::RunResult,
    stats::Spread,
};

/// Rows and bytes of one batch.
pub(crate) struct Arrived {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// Epoch of the batch. `None` if the stream has no epochs.
    pub(crate) epoch: Option<u64>,
}

/// A stream of batches.
pub(crate) trait BatchStream {
    /// Returns the next batch, or `None` after the last one.
    fn next(&mut self) -> impl Future<Output = anyhow::Result<Option<Arrived>>> + Send;
}

impl BatchStream for forebay_client::Batches {
    async fn next(&mut self) -> anyhow::Result<Option<Arrived>> {
        arrived(forebay_client::Batches::next(self).await)
    }
}

impl BatchStream for forebay_client::Training {
    async fn next(&mut self) -> anyhow::Result<Option<Arrived>> {
        arrived(forebay_client::Training::next(self).await)
    }
}

fn arrived(batch: Option<Result<Batch, Error>>) -> anyhow::Result<Option<Arrived>> {
    let Some(batch) = batch else { return Ok(None) };
    let batch = batch?;
    // Decodes the batch, as a trainer does.
    let rows = batch.record_batch()?.num_rows() as u64;
    Ok(Some(Arrived { rows, bytes: batch.body().len() as u64, epoch: Some(batch.metadata.epoch) }))
}

/// Receives all batches of one rank of `train`.
pub(crate) async fn receive_rank(
    client: &Client,
    train: &v1::Train,
    compute: Option<Duration>,
) -> anyhow::Result<RunResult> {
    let asked = Instant::now();
    receive(&mut client.train(train).await?, asked, compute).await
}

/// Receives all batches of `train` with one rank per client, each in a thread of its own, and runs `concurrently` at the same
/// time. Returns the results in the order of the ranks.
pub(crate) fn receive_ranks(
    runtime: &Handle,
    clients: &[Client],
    train: &v1::Train,
    compute: Option<Duration>,
    concurrently: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<RunResult>> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..)
            .zip(clients)
            .map(|(rank, client)| {
                let train = v1::Train { rank: Some(rank), ..train.clone() };
                scope.spawn(move || runtime.block_on(receive_rank(client, &train, compute)))
            })
            .collect();
        concurrently()?;
        ranks.into_iter().map(|rank| rank.join().expect("a rank does not panic")).collect()
    })
}

/// Receives all batches of `source`, which was requested at `asked`. The thread sleeps while the accelerator computes, like
/// that of a trainer. Prefetching therefore requires another thread.
pub(crate) async fn receive(
    source: &mut impl BatchStream,
    asked: Instant,
    compute: Option<Duration>,
) -> anyhow::Result<RunResult> {
    let mut result = RunResult::default();
    let mut accelerator = compute.map(Accelerator::new);
    let (mut epoch, mut waits, mut waits_for_epochs) = (None, Vec::new(), Vec::new());
    loop {
        let requested = Instant::now();
        let mut next = Box::pin(source.next());
        let (batch, was_waiting) = match (&mut next).now_or_never() {
            Some(batch) => (batch?, true),
            None => (next.await?, false),
        };
        let Some(batch) = batch else { break };
        let now = Instant::now();
        let waited = (now - requested).as_secs_f64();
        match result.batches {
            0 => result.first_batch_seconds = (now - asked).as_secs_f64(),
            _ if batch.epoch == epoch => waits.push(waited),
            _ => waits_for_epochs.push(waited),
        }
        epoch = batch.epoch;
        result.batches += 1;
        result.rows += batch.rows;
        result.bytes += batch.bytes;
        if let Some(accelerator) = &mut accelerator {
            wait_until(accelerator.begin(now, was_waiting));
        }
    }
    let end = Instant::now();
    result.seconds = (end - asked).as_secs_f64();
    result.wait_seconds = Spread::of(waits);
    result.epoch_wait_seconds = Spread::of(waits_for_epochs);
    result.au = accelerator.and_then(|accelerator| accelerator.utilization(end));
    Ok(result)
}
