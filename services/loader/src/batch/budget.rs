//! Limits on the bytes of finished batches that wait for their consumers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Prefetch budget of all streams, divided evenly among them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PrefetchBudget {
    shared: Arc<Shared>,
}

struct Shared {
    total_bytes: u64,
    stream_bytes: u64,
    streams: AtomicU64,
}

/// Prefetch budget of one stream. A single batch is always admitted, whatever its size.
pub(crate) struct StreamBudget {
    total: PrefetchBudget,
    used_bytes: AtomicU64,
    freed: Notify,
    /// Time since which the consumer has not waited for a batch; `None` while it waits.
    busy_since: Mutex<Option<Instant>>,
}

/// Wait of a consumer for its next batch. It ends when the value is dropped.
pub(crate) struct ConsumerWait<'a>(&'a StreamBudget);

impl Drop for ConsumerWait<'_> {
    fn drop(&mut self) {
        *self.0.busy_since.lock() = Some(Instant::now());
    }
}

/// Bytes reserved for one batch, released on drop.
pub(crate) struct BatchReservation {
    budget: Arc<StreamBudget>,
    bytes: AtomicU64,
}

impl PrefetchBudget {
    /// Creates a budget of `total_bytes` for all streams together, with at most `stream_bytes` per stream.
    pub(crate) fn new(total_bytes: u64, stream_bytes: u64) -> Self {
        let shared = Shared { total_bytes, stream_bytes, streams: AtomicU64::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// Registers a stream and returns its budget. Dropping the budget unregisters the stream.
    pub(crate) fn enter(&self) -> Arc<StreamBudget> {
        self.shared.streams.fetch_add(1, Ordering::Relaxed);
        let busy_since = Mutex::new(Some(Instant::now()));
        let (total, used_bytes, freed) = (self.clone(), AtomicU64::new(0), Notify::new());
        Arc::new(StreamBudget { total, used_bytes, freed, busy_since })
    }

    fn bytes_per_stream(&self) -> u64 {
        let streams = self.shared.streams.load(Ordering::Relaxed).max(1);
        self.shared.stream_bytes.min(self.shared.total_bytes / streams)
    }
}

impl StreamBudget {
    /// Maximum size in bytes of a frame that a batch in file order may reference without a copy. Consecutive batches
    /// fill their frames except for the first and the last, so all streams together hold at most about their budget in
    /// addition.
    pub(crate) fn max_held_bytes(&self) -> u64 {
        self.total.bytes_per_stream() / 2
    }

    /// Marks the consumer as waiting for a batch, until the returned value is dropped.
    pub(crate) fn consumer_waits(&self) -> ConsumerWait<'_> {
        *self.busy_since.lock() = None;
        ConsumerWait(self)
    }

    /// Time for which the consumer has not waited for a batch; zero while it waits.
    pub(crate) fn consumer_busy_for(&self) -> Duration {
        self.busy_since.lock().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Waits until `bytes` more fit the budget, and reserves them. Supports one caller at a time. Cancel-safe.
    pub(crate) async fn take(self: &Arc<Self>, bytes: u64) -> BatchReservation {
        loop {
            let used = self.used_bytes.load(Ordering::Acquire);
            if used == 0 || used.saturating_add(bytes) <= self.total.bytes_per_stream() {
                self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
                return BatchReservation { budget: Arc::clone(self), bytes: AtomicU64::new(bytes) };
            }
            // `Notify` stores a permit, so a release between the check and this wait is not missed.
            self.freed.notified().await;
        }
    }
}

impl Drop for StreamBudget {
    fn drop(&mut self) {
        self.total.shared.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BatchReservation {
    /// Returns true if the stream has no other reservation.
    pub(crate) fn is_only(&self) -> bool {
        self.budget.used_bytes.load(Ordering::Acquire) == self.bytes.load(Ordering::Acquire)
    }

    /// Replaces the estimate by the actual number of bytes, which may exceed the budget.
    pub(crate) fn settle(&self, bytes: u64) {
        let expected = self.bytes.swap(bytes, Ordering::AcqRel);
        self.budget.used_bytes.fetch_add(bytes.wrapping_sub(expected), Ordering::AcqRel);
        if bytes < expected {
            self.budget.freed.notify_one();
        }
    }
}

impl Drop for BatchReservation {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(*self.bytes.get_mut(), Ordering::AcqRel);
        self.budget.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn streams_share_the_space_and_one_batch_always_has_some() {
        let total = PrefetchBudget::new(100, 60);
        let (first, second) = (total.enter(), total.enter());
        // Two streams get half of the budget each.
        let reservation = first.take(40).now_or_never().unwrap();
        assert!(first.take(20).now_or_never().is_none());
        assert!(reservation.is_only());
        let large = second.take(1000).now_or_never().unwrap();
        assert!(second.take(1).now_or_never().is_none());
        drop((large, second));
        // A single stream is limited by its own maximum.
        let more = first.take(20).now_or_never().unwrap();
        assert!(first.take(1).now_or_never().is_none());
        assert!(!more.is_only());
        drop((reservation, more));
        let reservation = first.take(60).now_or_never().unwrap();
        assert!(first.take(1).now_or_never().is_none());
        reservation.settle(20);
        let more = first.take(40).now_or_never().unwrap();
        reservation.settle(30);
        drop(more);
        assert!(first.take(31).now_or_never().is_none());
        assert!(first.take(30).now_or_never().is_some());
    }
}
