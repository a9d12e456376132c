//! Receives one stream, and has an emulated accelerator compute on each batch.

use std::time::{Duration, Instant};

use forebay_client::{Batch, Error};
use futures::FutureExt;

use crate::{
    accelerator::{Accelerator, wait_until},
    ask::Passed,
    stats::Spread,
};

/// Rows and bytes of one batch.
pub(crate) struct Arrived {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// Its epoch, if the stream tells.
    pub(crate) epoch: Option<u64>,
}

/// Where batches come from.
pub(crate) trait Source {
    /// The next batch; `None` after the last one.
    fn next(&mut self) -> impl Future<Output = anyhow::Result<Option<Arrived>>> + Send;
}

impl Source for forebay_client::Batches {
    async fn next(&mut self) -> anyhow::Result<Option<Arrived>> {
        arrived(forebay_client::Batches::next(self).await)
    }
}

impl Source for forebay_client::Training {
    async fn next(&mut self) -> anyhow::Result<Option<Arrived>> {
        arrived(forebay_client::Training::next(self).await)
    }
}

fn arrived(batch: Option<Result<Batch, Error>>) -> anyhow::Result<Option<Arrived>> {
    let Some(batch) = batch else { return Ok(None) };
    let batch = batch?;
    // What a trainer computes on.
    let rows = batch.record_batch()?.num_rows() as u64;
    Ok(Some(Arrived { rows, bytes: batch.body().len() as u64, epoch: Some(batch.metadata.epoch) }))
}

/// Takes every batch of `source`, which was asked for at `asked`. The thread waits while the accelerator
/// computes, as a trainer's does: whatever receives ahead has to run on another one.
pub(crate) async fn receive(
    source: &mut impl Source,
    asked: Instant,
    compute: Option<Duration>,
) -> anyhow::Result<Passed> {
    let mut passed = Passed::default();
    let mut accelerator = compute.map(Accelerator::new);
    let (mut epoch, mut waits, mut waits_for_epochs) = (None, Vec::new(), Vec::new());
    loop {
        let wanted = Instant::now();
        let mut next = Box::pin(source.next());
        let (batch, was_waiting) = match (&mut next).now_or_never() {
            Some(batch) => (batch?, true),
            None => (next.await?, false),
        };
        let Some(batch) = batch else { break };
        let now = Instant::now();
        let waited = (now - wanted).as_secs_f64();
        match passed.batches {
            0 => passed.first_batch_seconds = (now - asked).as_secs_f64(),
            _ if batch.epoch == epoch => waits.push(waited),
            _ => waits_for_epochs.push(waited),
        }
        epoch = batch.epoch;
        passed.batches += 1;
        passed.rows += batch.rows;
        passed.bytes += batch.bytes;
        if let Some(accelerator) = &mut accelerator {
            wait_until(accelerator.begin(now, was_waiting));
        }
    }
    let end = Instant::now();
    passed.seconds = (end - asked).as_secs_f64();
    passed.wait_seconds = Spread::of(waits);
    passed.epoch_wait_seconds = Spread::of(waits_for_epochs);
    passed.au = accelerator.and_then(|accelerator| accelerator.utilization(end));
    Ok(passed)
}
