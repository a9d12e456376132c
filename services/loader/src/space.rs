//! How many bytes of finished batches may wait for their consumers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Notify;

/// The space of all streams, shared out evenly. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Total {
    shared: Arc<Shared>,
}

struct Shared {
    total_bytes: u64,
    stream_bytes: u64,
    streams: AtomicU64,
}

/// The space of one stream. One batch always has space, however large.
pub(crate) struct Space {
    total: Total,
    used_bytes: AtomicU64,
    freed: Notify,
}

/// Space that a batch takes; dropping it gives it back.
pub(crate) struct Share {
    space: Arc<Space>,
    bytes: AtomicU64,
}

impl Total {
    /// Space for `total_bytes` of all streams together, at most `stream_bytes` for each.
    pub(crate) fn new(total_bytes: u64, stream_bytes: u64) -> Self {
        let shared = Shared { total_bytes, stream_bytes, streams: AtomicU64::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// Space for one more stream.
    pub(crate) fn enter(&self) -> Arc<Space> {
        self.shared.streams.fetch_add(1, Ordering::Relaxed);
        Arc::new(Space { total: self.clone(), used_bytes: AtomicU64::new(0), freed: Notify::new() })
    }

    fn bytes_a_stream(&self) -> u64 {
        let streams = self.shared.streams.load(Ordering::Relaxed).max(1);
        self.shared.stream_bytes.min(self.shared.total_bytes / streams)
    }
}

impl Space {
    /// Largest frame that a ready batch in file order may lie in. Batches that follow one another fill their frames but
    /// for the first and the last, so all streams together hold about once their space besides.
    pub(crate) fn max_held_bytes(&self) -> u64 {
        self.total.bytes_a_stream() / 2
    }

    /// Waits until there is space for `bytes` more. For one caller at a time; cancel-safe.
    pub(crate) async fn take(self: &Arc<Self>, bytes: u64) -> Share {
        loop {
            let used = self.used_bytes.load(Ordering::Acquire);
            if used == 0 || used.saturating_add(bytes) <= self.total.bytes_a_stream() {
                self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
                return Share { space: Arc::clone(self), bytes: AtomicU64::new(bytes) };
            }
            // A share that was given back since is remembered.
            self.freed.notified().await;
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.total.shared.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Share {
    /// Whether its stream has no other.
    pub(crate) fn is_only(&self) -> bool {
        self.space.used_bytes.load(Ordering::Acquire) == self.bytes.load(Ordering::Acquire)
    }

    /// Says what the batch really takes, now that it is known. That may be more than there is space for.
    pub(crate) fn settle(&self, bytes: u64) {
        let expected = self.bytes.swap(bytes, Ordering::AcqRel);
        self.space.used_bytes.fetch_add(bytes.wrapping_sub(expected), Ordering::AcqRel);
        if bytes < expected {
            self.space.freed.notify_one();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.space.used_bytes.fetch_sub(*self.bytes.get_mut(), Ordering::AcqRel);
        self.space.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn streams_share_the_space_and_one_batch_always_has_some() {
        let total = Total::new(100, 60);
        let (first, second) = (total.enter(), total.enter());
        // Half of it each.
        let share = first.take(40).now_or_never().unwrap();
        assert!(first.take(20).now_or_never().is_none());
        assert!(share.is_only());
        let large = second.take(1000).now_or_never().unwrap();
        assert!(second.take(1).now_or_never().is_none());
        drop((large, second));
        // Alone: as much as a stream may have.
        let more = first.take(20).now_or_never().unwrap();
        assert!(first.take(1).now_or_never().is_none());
        assert!(!more.is_only());
        drop((share, more));
        let share = first.take(60).now_or_never().unwrap();
        assert!(first.take(1).now_or_never().is_none());
        share.settle(20);
        let more = first.take(40).now_or_never().unwrap();
        share.settle(30);
        drop(more);
        assert!(first.take(31).now_or_never().is_none());
        assert!(first.take(30).now_or_never().is_some());
    }
}
