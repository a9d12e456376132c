//! The lanes of a rank, merged.

use arrow_schema::SchemaRef;

use super::{job::Job, lane::Lane, plan::Plan};
use crate::{
    Batch, Batches, Config, Error,
    batches::{Item, Source},
    memory::Slabs,
};

/// The streams of one rank, merged into the order of steps: all lanes, or the one that the request names.
pub(super) struct Lanes<B> {
    lanes: Vec<Batches<B>>,
    /// Number of the next batch among the batches of the rank.
    next: u64,
    /// Difference between the numbers of consecutive batches: 1 for all lanes, the number of lanes for a single one.
    stride: u64,
}

impl<B: Item> Lanes<B> {
    /// Prefetches a single stream, whose batches are those of `plan` and merged already.
    pub(super) fn single(source: impl Source<Item = B>, plan: &Plan, config: &Config) -> Self {
        Self::new(vec![Batches::receive(source, SchemaRef::clone(&plan.schema), config)], plan)
    }

    fn new(lanes: Vec<Batches<B>>, plan: &Plan) -> Self {
        Self { lanes, next: plan.first_lane(), stride: plan.lanes() / plan.streams() }
    }

    /// Returns the next batch; `None` after the last one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Result<B, Error>> {
        let lane = (self.next % self.lanes.len() as u64) as usize;
        let next = self.lanes[lane].next().await;
        if let Some(Ok(_)) = next {
            self.next += self.stride;
        }
        next
    }

    /// Returns the number of the next batch among the batches of the rank.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }
}

impl Lanes<Batch> {
    /// Starts to receive the lanes of `job`. They share the byte budget of the rank equally. A single lane has all of it.
    pub(super) fn receive(job: &Job, slabs: &Slabs) -> Self {
        let (config, plan) = (job.servers.config(), &job.plan);
        let streams = plan.streams();
        let per_lane = Config { prefetch_bytes: config.prefetch_bytes / streams, ..(**config).clone() };
        let lanes = (0..streams).map(|stream| {
            let lane = Lane::new(job.clone(), slabs.clone(), plan.first_lane() + stream);
            Batches::receive(lane, SchemaRef::clone(&plan.schema), &per_lane)
        });
        Self::new(lanes.collect(), plan)
    }
}
