//! How late the runtime is: what a task waits for a thread when it could run.

use std::time::Duration;

use tokio::time::Instant;

/// How often it is measured.
const INTERVAL: Duration = Duration::from_millis(100);

/// Measures for ever. Ten wake-ups a second, of the runtime that it runs on.
pub(crate) async fn measure() {
    loop {
        let due = Instant::now() + INTERVAL;
        tokio::time::sleep_until(due).await;
        metrics::histogram!("forebay_runtime_lag_seconds").record(due.elapsed());
    }
}
