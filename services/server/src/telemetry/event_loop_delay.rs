//! Delay of the async runtime, which is the time that a ready task waits for a thread, and its number of tasks.

use std::time::Duration;

use tokio::{runtime::Handle, time::Instant};

/// Time between two measurements.
const INTERVAL: Duration = Duration::from_millis(100);

/// Measures the delay of the current runtime ten times per second; never returns.
pub(crate) async fn measure() {
    let runtime = Handle::current().metrics();
    loop {
        let due = Instant::now() + INTERVAL;
        tokio::time::sleep_until(due).await;
        metrics::histogram!("forebay_event_loop_delay_seconds").record(due.elapsed());
        metrics::gauge!("forebay_async_tasks").set(runtime.num_alive_tasks() as f64);
    }
}
