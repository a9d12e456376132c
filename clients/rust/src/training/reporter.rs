//! Reports of a trainer to the server.

use std::time::{Duration, Instant};

use forebay_proto::{Encoding, v1::ReportRequest};

use super::{job::Job, meter::Stats};

/// Interval of the reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time between reports that the server rejects.
const MAX_REJECTED_INTERVAL: Duration = Duration::from_secs(64);

/// Reports wait and compute time to the server in use once per second. Reports that the server rejects, for example because of an
/// expired token, become less frequent until one is accepted.
pub(super) async fn report(job: Job) {
    let Job { servers, plan, meter, trainer } = job;
    let mut before = (Instant::now(), meter.stats());
    let mut opened = None;
    let mut pause = REPORT_INTERVAL;
    loop {
        tokio::time::sleep(REPORT_INTERVAL).await;
        let now = Instant::now();
        let stats = meter.stats_until(now);
        let since = |time: fn(&Stats) -> Duration| time(&stats).saturating_sub(time(&before.1)).as_secs_f64();
        let report = ReportRequest {
            dataset: plan.resolved.dataset.clone(),
            trainer,
            rank: plan.rank(),
            seconds: (now - before.0).as_secs_f64(),
            wait_seconds: since(|stats| stats.wait),
            compute_seconds: since(|stats| stats.compute),
            copy_seconds: since(|stats| stats.copy),
            steps: stats.batches - before.1.batches,
            rows: stats.rows - before.1.rows,
            gpu_utilization: meter.utilization(now),
        };
        before = (now, stats);
        // The streams may have returned to the preferred server.
        opened = opened.filter(|(_, target)| !servers.has_returned_from(*target));
        if opened.is_none() {
            opened = servers.connect().await.ok();
        }
        let Some((transport, _)) = &opened else { continue };
        match transport.action("report", Encoding::Protobuf.encode(&report)).await {
            Ok(_) => pause = REPORT_INTERVAL,
            // Not logged, because the lanes log lost connections.
            Err(error) if error.is_transient() => opened = None,
            Err(error) => {
                pause = pause.saturating_mul(2).min(MAX_REJECTED_INTERVAL);
                tracing::debug!(%error, ?pause, "server rejects reports; the next one follows after a pause");
                opened = None;
                tokio::time::sleep(pause).await;
                before = (Instant::now(), meter.stats());
            }
        }
    }
}

#[cfg(test)]
mod tests;
