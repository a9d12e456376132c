//! Delay of the async runtime: the time that a ready task waits for a thread.

use std::time::Duration;

use tokio::time::Instant;

/// Time between two measurements.
const INTERVAL: Duration = Duration::from_millis(100);

/// Measures the delay of the current runtime ten times per second; never returns.
pub(crate) async fn measure() {
    loop {
        let due = Instant::now() + INTERVAL;
        tokio::time::sleep_until(due).await;
        metrics::histogram!("forebay_event_loop_delay_seconds").record(due.elapsed());
    }
}
