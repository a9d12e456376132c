//! Reports of a trainer to the server.

use std::time::{Duration, Instant};

use forebay_proto::{
    Encoding,
    v1::{ReportRequest, ReportResult},
};
use prost::Message;

use super::{job::Job, meter::Stats};
use crate::route::{Origin, Placement, Servers, Target, Transport};

/// Interval of the reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time between reports that the server rejects.
const MAX_REJECTED_INTERVAL: Duration = Duration::from_secs(64);

/// Reports wait and compute time to the server in use once per second. Reports that the server rejects, for example because of an
/// expired token, become less frequent until one is accepted.
pub(super) async fn report(job: Job) {
    let Job { servers, placement, plan, meter, trainer, .. } = job;
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
        // The streams may have moved to another server.
        opened = opened.filter(|open: &Opened| match open {
            Opened::Location(_, origin) => placement.is_serving(origin),
            Opened::Own(_, target) => !placement.is_at_location() && !servers.has_returned_from(*target),
        });
        if opened.is_none() {
            opened = Opened::new(&servers, &placement).await;
        }
        let Some(Opened::Location(transport, _) | Opened::Own(transport, _)) = &opened else { continue };
        match transport.action("report", Encoding::Protobuf.encode(&report)).await {
            Ok(results) => {
                pause = REPORT_INTERVAL;
                // Without a result, the streams wait for no window, or the server is older than this client.
                let result = results.first().and_then(|result| ReportResult::decode(result.as_ref()).ok());
                meter.set_loading(result.and_then(|result| result.loading), stats.batches);
            }
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

/// A connection to the server of the streams.
enum Opened {
    /// A location of the plan.
    Location(Transport, Origin),
    /// A URL of the client.
    Own(Transport, Target),
}

impl Opened {
    /// Connects to the server of the last stream; `None` if that fails.
    async fn new(servers: &Servers, placement: &Placement) -> Option<Self> {
        match placement.connect_to_location().await {
            Some(opened) => opened.ok().map(|(transport, origin)| Self::Location(transport, origin)),
            None => servers.connect().await.ok().map(|(transport, target)| Self::Own(transport, target)),
        }
    }
}

#[cfg(test)]
mod tests;
