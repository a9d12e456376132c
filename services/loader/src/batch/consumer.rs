//! State of the consumer of a stream, which tells how long it has made no progress.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Consumer of a stream.
pub(crate) struct Consumer(Mutex<State>);

struct State {
    /// The consumer waits for its next batch.
    waits: bool,
    /// Number of batches that it has taken and not received completely.
    receiving: usize,
    /// Time of the last change of the other fields.
    changed: Instant,
}

/// Wait of a consumer for its next batch. It ends when the value is dropped.
pub(crate) struct ConsumerWait<'a>(&'a Consumer);

impl Drop for ConsumerWait<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.waits = false);
    }
}

impl Consumer {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State { waits: false, receiving: 0, changed: Instant::now() }))
    }

    /// Marks the consumer as waiting for a batch, until the returned value is dropped.
    pub(crate) fn waits(&self) -> ConsumerWait<'_> {
        self.change(|state| state.waits = true);
        ConsumerWait(self)
    }

    /// Records that the consumer takes a batch.
    pub(super) fn takes(&self) {
        self.change(|state| state.receiving += 1);
    }

    /// Records that the consumer has received a batch completely.
    pub(super) fn has_received(&self) {
        self.change(|state| state.receiving -= 1);
    }

    /// Returns the time since the last progress of the consumer: it took a batch, received one completely, or began or ended to wait.
    /// Zero while it has received everything and waits for a batch.
    pub(crate) fn busy_for(&self) -> Duration {
        self.busy_since().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the time from which [`busy_for`](Self::busy_for) counts. `None` while the consumer has received everything and waits for a
    /// batch.
    pub(crate) fn busy_since(&self) -> Option<Instant> {
        let state = self.0.lock();
        (!state.waits || state.receiving > 0).then_some(state.changed)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.lock();
        change(&mut state);
        state.changed = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_waits_is_busy_until_it_has_received_the_batch_before() {
        let consumer = Consumer::new();
        consumer.takes();
        let _waits = consumer.waits();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(consumer.busy_for(), Duration::from_secs(1));
        consumer.has_received();
        assert_eq!(consumer.busy_for(), Duration::ZERO);
    }
}
