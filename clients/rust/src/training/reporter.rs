//! Reports of a trainer to the server.

use std::time::{Duration, Instant};

use forebay_proto::{Encoding, v1::ReportRequest};

use super::{job::Job, meter::Stats};

/// Interval of the reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Reports wait and compute time to the server in use once per second. Returns if the server rejects a report.
pub(super) async fn report(job: Job) {
    let Job { servers, plan, meter, trainer } = job;
    let mut before = (Instant::now(), meter.stats());
    let mut transport = None;
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
        let opened = match transport.take() {
            Some(opened) => opened,
            None => match servers.connect().await {
                Ok((opened, _)) => opened,
                Err(_) => continue,
            },
        };
        match opened.action("report", Encoding::Protobuf.encode(&report)).await {
            Ok(_) => transport = Some(opened),
            // Not logged, because the lanes log lost connections.
            Err(error) if error.is_transient() => {}
            Err(error) => {
                tracing::debug!(%error, "server rejects reports; reporting stopped");
                return;
            }
        }
    }
}
