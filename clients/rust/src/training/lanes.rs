//! The lanes of a rank, merged.

use arrow_schema::SchemaRef;

use super::{job::Job, lane::Lane};
use crate::{
    Batch, Batches, Config, Error,
    batches::{Item, Source},
    memory::Slabs,
};

/// The streams of one rank, merged into the order of steps.
pub(super) struct Lanes<B> {
    lanes: Vec<Batches<B>>,
    /// Number of the next batch of the rank.
    next: u64,
}

impl<B: Item> Lanes<B> {
    /// Prefetches a single stream, whose batches are merged already.
    pub(super) fn single(source: impl Source<Item = B>, schema: SchemaRef, config: &Config) -> Self {
        Self { lanes: vec![Batches::receive(source, schema, config)], next: 0 }
    }

    /// Returns the next batch; `None` after the last one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Result<B, Error>> {
        let lane = (self.next % self.lanes.len() as u64) as usize;
        let next = self.lanes[lane].next().await;
        if let Some(Ok(_)) = next {
            self.next += 1;
        }
        next
    }

    /// Returns the number of delivered batches, which is the number of the next one.
    pub(super) fn delivered(&self) -> u64 {
        self.next
    }
}

impl Lanes<Batch> {
    /// Starts to receive all lanes of `job`. The lanes share the byte budget of the rank equally.
    pub(super) fn receive(job: &Job, slabs: &Slabs) -> Self {
        let (config, plan) = (job.servers.config(), &job.plan);
        let per_lane = Config { prefetch_bytes: config.prefetch_bytes / plan.lanes(), ..(**config).clone() };
        let lanes = (0..plan.lanes()).map(|lane| {
            let lane = Lane::new(job.clone(), slabs.clone(), lane);
            Batches::receive(lane, SchemaRef::clone(&plan.schema), &per_lane)
        });
        Self { lanes: lanes.collect(), next: 0 }
    }
}
