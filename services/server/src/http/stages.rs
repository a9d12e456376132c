//! JSON of the pipeline stages.

use forebay_loader::StageWork;
use forebay_stall::{Bottleneck, Stage};
use serde::Serialize;
use utoipa::ToSchema;

use super::Context;
use crate::services::Services;

/// One stage of the pipeline.
#[derive(Serialize, ToSchema)]
#[schema(as = Stage)]
pub(super) struct StageStatus {
    /// Name of the stage: `storage` reads bytes from the store or the disk cache, `decode` decodes them into rows, `gather` gathers
    /// rows into batches, and `send` sends batches to trainers.
    stage: &'static str,
    /// Bytes per second that left the stage, averaged over the last 10 seconds.
    bytes_per_second: f64,
    /// Rows per second that left the stage, averaged over the last 10 seconds; null for storage, which reads bytes.
    #[schema(required)]
    rows_per_second: Option<f64>,
    /// Utilization of the stage, 0 to 1, averaged over the last 10 seconds. For storage, the fraction of the time with a read in
    /// flight; for decode and gather, the fraction of the CPU threads at work; null for send.
    #[schema(required)]
    busy: Option<f64>,
    /// Number of operations in flight; for send, the number of open streams.
    in_flight: usize,
    /// Number of operations that wait for the stage; 0 for send.
    queue_depth: usize,
    /// Number of threads that run the stage; null for storage and send, which are not bound to threads.
    #[schema(required)]
    threads: Option<usize>,
    /// Estimated throughput at full utilization, in bytes per second; null for send and if the stage was idle in the last 10
    /// seconds.
    #[schema(required)]
    capacity_bytes_per_second: Option<f64>,
    /// True if the stage is the bottleneck.
    limiting: bool,
}

/// Returns the stages, from the store to the trainers.
pub(super) fn stages(context: &Context, bottleneck: Bottleneck) -> Vec<StageStatus> {
    let sessions = &context.services.sessions;
    let (bytes_per_second, rows_per_second) = sessions.sent_per_second();
    let send = StageStatus {
        stage: "send",
        bytes_per_second,
        rows_per_second: Some(rows_per_second),
        busy: None,
        in_flight: sessions.streams(),
        queue_depth: 0,
        threads: None,
        capacity_bytes_per_second: None,
        limiting: bottleneck == Bottleneck::Network,
    };
    Stage::ALL.into_iter().map(|of| stage(context, of, bottleneck)).chain([send]).collect()
}

fn stage(context: &Context, stage: Stage, bottleneck: Bottleneck) -> StageStatus {
    let Services { loader, .. } = &context.services;
    let rate = |part: fn(&StageWork) -> f64| context.observer.stage_rate(stage, part);
    let busy_threads = || rate(|work| work.busy.as_secs_f64()) / loader.cpu_threads() as f64;
    let (waiting, threads) = (loader.waiting(), Some(loader.cpu_threads()));
    let (queue_depth, threads, busy) = match stage {
        // Reads wait for the store: the time with any read in flight counts, not the number of reads.
        Stage::Storage => (waiting.reads, None, rate(|work| work.at_work.as_secs_f64())),
        Stage::Decode => (waiting.decodes, threads, busy_threads()),
        Stage::Gather => (waiting.gathers, threads, busy_threads()),
    };
    let (busy, bytes_per_second) = (busy.min(1.0), rate(|work| work.bytes as f64));
    StageStatus {
        stage: stage.name(),
        bytes_per_second,
        rows_per_second: (stage != Stage::Storage).then(|| rate(|work| work.rows as f64)),
        busy: Some(busy),
        in_flight: loader.work(stage).active,
        queue_depth,
        threads,
        capacity_bytes_per_second: (busy > 0.001 && bytes_per_second > 0.0).then(|| bytes_per_second / busy),
        limiting: bottleneck == Bottleneck::from(stage.bucket()),
    }
}
