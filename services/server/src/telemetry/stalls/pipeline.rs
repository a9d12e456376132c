//! Throughput, utilization and queue depth of the pipeline stages.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use forebay_loader::{Loader, StageWork};
use forebay_stall::{Bottleneck, Stage};
use serde::Serialize;
use utoipa::ToSchema;

use crate::sessions::Sessions;

/// Time over which rates are averaged.
const OVER: Duration = Duration::from_secs(10);

/// Samples of the work done by the stages, one per second.
pub(crate) struct Pipeline {
    samples: VecDeque<(Instant, [StageWork; Stage::ALL.len()])>,
}

/// One stage of the pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Stage)]
pub(crate) struct StageStatus {
    /// Name of the stage: `storage`, `decode`, `gather` or `send`.
    pub(crate) stage: &'static str,
    /// Bytes per second that left the stage, averaged over the last 10 seconds.
    pub(crate) bytes_per_second: f64,
    /// Rows per second that left the stage, averaged over the last 10 seconds; null for storage, which reads bytes.
    #[schema(required)]
    pub(crate) rows_per_second: Option<f64>,
    /// Utilization of the stage, 0 to 1: the fraction of the time with a read in flight for storage, the fraction of the CPU
    /// threads for decode and gather; null for send.
    #[schema(required)]
    pub(crate) busy: Option<f64>,
    /// Number of operations in flight; for send, the number of open streams.
    pub(crate) in_flight: usize,
    /// Number of operations that wait for the stage.
    pub(crate) queue_depth: usize,
    /// Number of threads that run the stage; null for storage and send, which are not bound to threads.
    #[schema(required)]
    pub(crate) threads: Option<usize>,
    /// Estimated throughput at full utilization, in bytes per second; null for send and if the stage was idle in the last 10
    /// seconds.
    #[schema(required)]
    pub(crate) capacity_bytes_per_second: Option<f64>,
    /// True if the stage is the bottleneck.
    pub(crate) limiting: bool,
}

impl Pipeline {
    pub(crate) fn new() -> Self {
        Self { samples: VecDeque::new() }
    }

    /// Takes a sample. Call about once per second.
    pub(crate) fn sample(&mut self, now: Instant, loader: &Loader) {
        self.samples.push_back((now, Stage::ALL.map(|stage| loader.work(stage))));
        while self.samples.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= OVER) {
            self.samples.pop_front();
        }
    }

    /// Returns the stages, from the store to the trainers.
    pub(crate) fn stages(
        &self,
        loader: &Loader,
        sessions: &Sessions,
        bottleneck: Bottleneck,
    ) -> Vec<StageStatus> {
        let waiting = loader.waiting();
        let threads = loader.cpu_threads();
        let mut stages: Vec<_> =
            Stage::ALL.into_iter().map(|stage| self.stage(stage, threads, bottleneck)).collect();
        for (status, (queue_depth, threads)) in stages.iter_mut().zip([
            (waiting.reads, None),
            (waiting.decodes, Some(threads)),
            (waiting.gathers, Some(threads)),
        ]) {
            (status.queue_depth, status.threads) = (queue_depth, threads);
        }
        let (bytes_per_second, rows_per_second) = sessions.sent_per_second();
        stages.push(StageStatus {
            stage: "send",
            bytes_per_second,
            rows_per_second: Some(rows_per_second),
            busy: None,
            in_flight: sessions.streams(),
            queue_depth: 0,
            threads: None,
            capacity_bytes_per_second: None,
            limiting: bottleneck == Bottleneck::Network,
        });
        stages
    }

    fn stage(&self, stage: Stage, threads: usize, bottleneck: Bottleneck) -> StageStatus {
        let none = (Duration::ZERO, StageWork::default(), StageWork::default());
        let (time, before, after) = match (self.samples.front(), self.samples.back()) {
            (Some((first, before)), Some((last, after))) => {
                (last.saturating_duration_since(*first), before[stage as usize], after[stage as usize])
            }
            _ => none,
        };
        let seconds = time.as_secs_f64();
        let rate = |of: fn(&StageWork) -> u64| {
            if seconds > 0.0 { of(&after).saturating_sub(of(&before)) as f64 / seconds } else { 0.0 }
        };
        let utilization = |of: fn(&StageWork) -> Duration, most: f64| {
            let spent = of(&after).saturating_sub(of(&before)).as_secs_f64();
            if seconds > 0.0 { (spent / seconds / most).min(1.0) } else { 0.0 }
        };
        let busy = match stage {
            // Reads wait for the store: the time with any read in flight counts, not the number of reads.
            Stage::Storage => utilization(|work| work.at_work, 1.0),
            Stage::Decode | Stage::Gather => utilization(|work| work.busy, threads as f64),
        };
        let bytes_per_second = rate(|work| work.bytes);
        StageStatus {
            stage: stage.name(),
            bytes_per_second,
            rows_per_second: (stage != Stage::Storage).then(|| rate(|work| work.rows)),
            busy: Some(busy),
            in_flight: after.active,
            queue_depth: 0,
            threads: None,
            capacity_bytes_per_second: (busy > 0.001 && bytes_per_second > 0.0)
                .then(|| bytes_per_second / busy),
            limiting: bottleneck == Bottleneck::from(stage.bucket()),
        }
    }
}
