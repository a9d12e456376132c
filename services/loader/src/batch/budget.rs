//! Limits on the bytes of finished batches. A batch counts until it is sent, which means that the transport has dropped its
//! bytes. It is *taken* when the transport receives it.
//!
//! The first batch of each stream may have any size, so that the batches of a tenant may exceed its share, up to a maximum. Beyond
//! that, the streams without a batch wait in turn.

mod turns;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use forebay_cache::Tenant;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::consumer::Consumer;
use turns::{Turn, Turns};

/// Maximum number of batches of a stream that its consumer has not taken.
///
/// The budget in bytes alone would allow 65,536 batches of 1 KiB, which take seconds to make. The CPU threads would first make them, and
/// then the first batches of other streams. 128 small batches take a few milliseconds, which is more than the time between two turns of
/// a consumer. Large batches reach the budget in bytes before.
const MAX_UNTAKEN: u64 = 128;

/// Prefetch budget of all streams. Tenants share it by weight, and the streams of a tenant share theirs evenly. Cheap to
/// clone.
#[derive(Clone)]
pub(crate) struct PrefetchBudget {
    shared: Arc<Shared>,
}

struct Shared {
    total_bytes: u64,
    stream_bytes: u64,
    max_bytes: u64,
    /// Tenants that have streams, by their ids.
    tenants: Mutex<HashMap<u64, Arc<TenantBudget>>>,
    /// Sum of the weights of these tenants.
    weights: AtomicU64,
}

/// Prefetch budget of the streams of one tenant.
struct TenantBudget {
    id: u64,
    weight: AtomicU64,
    streams: AtomicU64,
    /// Reserved bytes.
    used_bytes: AtomicU64,
    freed: Notify,
    /// Streams without a batch that wait for one.
    turns: Turns,
}

/// Prefetch budget of one stream.
///
/// A batch is charged until it is sent. The first batch of a stream must fit the maximum of the tenant; it fits in any case if the
/// tenant has no other one. Further batches must fit the share of the stream. While all its batches are being sent, the next one
/// need only fit the share of the tenant. While other streams wait for their first batch, a stream gets no further one. Until the
/// consumer has taken the first batch, there is no second one, so that a server with many new streams first sends a batch to each of
/// them. After that, at most [`MAX_UNTAKEN`] wait for the consumer.
pub(crate) struct StreamBudget {
    total: PrefetchBudget,
    tenant: Arc<TenantBudget>,
    /// Reserved bytes.
    used_bytes: AtomicU64,
    /// Reserved bytes of batches that the consumer has not taken.
    untaken_bytes: AtomicU64,
    /// Number of batches that the consumer has not taken.
    untaken: AtomicU64,
    /// True once the consumer has taken a batch.
    has_taken: AtomicBool,
    freed: Arc<Notify>,
    consumer: Consumer,
}

/// Tells until when the consumer of a stream may pause.
pub struct Pace(Arc<StreamBudget>);

impl Pace {
    /// Returns the time from which the consumer is overdue: `patience`, plus one second per MiB of the batches that it is receiving,
    /// after its last progress, and after another stream of the tenant began to wait for memory for its first batch. `None` if no stream
    /// waits, if this stream has no batch, or if its consumer has received everything and waits for a batch.
    pub fn overdue_at(&self, patience: Duration) -> Option<Instant> {
        let waiting_since = self.0.tenant.turns.waiting_since()?;
        let busy_since = self.0.consumer.busy_since()?;
        let used_bytes = self.0.used_bytes.load(Ordering::Acquire);
        let taken_bytes = used_bytes.saturating_sub(self.0.untaken_bytes.load(Ordering::Acquire));
        let patience = patience + Duration::from_secs(taken_bytes >> 20);
        (used_bytes > 0).then(|| waiting_since.max(busy_since) + patience)
    }
}

/// Bytes reserved for one batch, released on drop.
pub(crate) struct BatchReservation {
    budget: Arc<StreamBudget>,
    bytes: AtomicU64,
    is_taken: AtomicBool,
}

/// Charge for a batch that its consumer has taken, until it is dropped.
#[derive(Clone)]
pub struct BatchCharge {
    _reservation: Arc<BatchReservation>,
}

impl BatchCharge {
    /// Marks the batch as taken.
    pub(crate) fn of_taken(reservation: &Arc<BatchReservation>) -> Self {
        reservation.mark_taken();
        Self { _reservation: Arc::clone(reservation) }
    }
}

impl fmt::Debug for BatchCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchCharge").finish_non_exhaustive()
    }
}

impl PrefetchBudget {
    /// Creates a budget of `total_bytes` for all streams together, with at most `stream_bytes` per stream. With streams that have only
    /// one batch, all together may take `max_bytes`.
    pub(crate) fn new(total_bytes: u64, stream_bytes: u64, max_bytes: u64) -> Self {
        let weights = AtomicU64::new(0);
        let shared = Shared { total_bytes, stream_bytes, max_bytes, tenants: Mutex::default(), weights };
        Self { shared: Arc::new(shared) }
    }

    /// Registers a stream of `tenant` and returns its budget. Dropping the budget unregisters the stream.
    pub(crate) fn enter(&self, tenant: Tenant) -> Arc<StreamBudget> {
        let (id, weight) = (tenant.id(), u64::from(tenant.weight().get()));
        let new = || {
            Arc::new(TenantBudget {
                id,
                weight: AtomicU64::new(0),
                streams: AtomicU64::new(0),
                used_bytes: AtomicU64::new(0),
                freed: Notify::new(),
                turns: Turns::default(),
            })
        };
        let tenant = {
            let mut tenants = self.shared.tenants.lock();
            let tenant = Arc::clone(tenants.entry(id).or_insert_with(new));
            tenant.streams.fetch_add(1, Ordering::Relaxed);
            // A weight can change while the server runs.
            let before = tenant.weight.swap(weight, Ordering::Relaxed);
            self.shared.weights.fetch_add(weight.wrapping_sub(before), Ordering::Relaxed);
            tenant
        };
        Arc::new(StreamBudget {
            total: self.clone(),
            tenant,
            used_bytes: AtomicU64::new(0),
            untaken_bytes: AtomicU64::new(0),
            untaken: AtomicU64::new(0),
            has_taken: AtomicBool::new(false),
            freed: Arc::default(),
            consumer: Consumer::new(),
        })
    }

    /// Removes a stream of `tenant`.
    fn leave(&self, tenant: &TenantBudget) {
        let mut tenants = self.shared.tenants.lock();
        if tenant.streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            tenants.remove(&tenant.id);
            self.shared.weights.fetch_sub(tenant.weight.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // The shares of all others have grown.
        for tenant in tenants.values() {
            tenant.turns.wake_next();
            tenant.freed.notify_waiters();
        }
    }
}

impl TenantBudget {
    /// Makes a stream that waits try again.
    fn wake(&self) {
        self.turns.wake_next();
        self.freed.notify_one();
    }
}

impl StreamBudget {
    /// Returns the maximum size of a frame that a batch in file order may reference without a copy, in bytes. Consecutive batches use all
    /// rows of their frames except in the first and the last one. The unused rows of all streams therefore add at most about one budget.
    pub(crate) fn max_held_bytes(&self) -> u64 {
        self.own_bytes() / 2
    }

    /// The consumer of the stream.
    pub(crate) fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// True if the stream has no batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.used_bytes.load(Ordering::Acquire) == 0 && self.untaken.load(Ordering::Acquire) == 0
    }

    /// Returns the handle that tells until when the consumer may pause.
    pub(crate) fn pace(self: &Arc<Self>) -> Pace {
        Pace(Arc::clone(self))
    }

    /// Waits until `bytes` more fit the budget, and reserves them. Supports one caller at a time. Cancel-safe.
    pub(crate) async fn reserve(self: &Arc<Self>, bytes: u64) -> BatchReservation {
        let mut turn: Option<Turn<'_>> = None;
        loop {
            // Created before the check: the end of the last turn wakes only waits that exist.
            let freed_by_others = self.tenant.freed.notified();
            if self.try_reserve(bytes, turn.as_ref()) {
                self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
                self.untaken_bytes.fetch_add(bytes, Ordering::AcqRel);
                self.untaken.fetch_add(1, Ordering::AcqRel);
                return BatchReservation {
                    budget: Arc::clone(self),
                    bytes: AtomicU64::new(bytes),
                    is_taken: AtomicBool::new(false),
                };
            }
            if turn.is_none() && self.is_empty() {
                turn = Some(self.tenant.turns.wait(&self.freed, &self.tenant.freed));
                continue;
            }
            // `Notify` stores a permit, so a release between the check and this wait is not missed.
            tokio::select! {
                biased;
                () = self.freed.notified() => {}
                () = freed_by_others, if turn.is_none() => {}
            }
        }
    }

    /// Charges `bytes` to the tenant and returns true, if the stream may have them. `turn` is that of the stream, if it waits for its
    /// first batch.
    fn try_reserve(&self, bytes: u64, turn: Option<&Turn<'_>>) -> bool {
        let max_untaken = if self.has_taken.load(Ordering::Acquire) { MAX_UNTAKEN } else { 1 };
        if !self.tenant.turns.is_next(turn) || self.untaken.load(Ordering::Acquire) >= max_untaken {
            return false;
        }
        let used = self.used_bytes.load(Ordering::Acquire);
        let all_taken = self.untaken_bytes.load(Ordering::Acquire) == 0;
        let limit = if used == 0 || used.saturating_add(bytes) <= self.own_bytes() {
            self.max_tenant_bytes()
        } else if all_taken {
            self.tenant_bytes()
        } else {
            return false;
        };
        let fits =
            |of_tenant: u64| of_tenant.checked_add(bytes).filter(|sum| of_tenant == 0 || *sum <= limit);
        self.tenant.used_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    /// Budget of the tenant, in bytes.
    fn tenant_bytes(&self) -> u64 {
        self.share_of(self.total.shared.total_bytes)
    }

    /// Maximum size of all batches of the tenant, if it has several, in bytes.
    fn max_tenant_bytes(&self) -> u64 {
        self.share_of(self.total.shared.max_bytes)
    }

    /// Share of the tenant in `bytes`, by its weight.
    fn share_of(&self, bytes: u64) -> u64 {
        let weight = self.tenant.weight.load(Ordering::Relaxed);
        let weights = self.total.shared.weights.load(Ordering::Relaxed).max(weight);
        (u128::from(bytes) * u128::from(weight) / u128::from(weights)) as u64
    }

    /// Part of this stream in the budget of the tenant, in bytes.
    fn own_bytes(&self) -> u64 {
        let streams = self.tenant.streams.load(Ordering::Relaxed).max(1);
        self.total.shared.stream_bytes.min(self.tenant_bytes() / streams)
    }

    /// Changes the reserved bytes by `change`, which wraps around if it is negative.
    fn charge(&self, change: u64, is_taken: bool) {
        self.used_bytes.fetch_add(change, Ordering::AcqRel);
        self.tenant.used_bytes.fetch_add(change, Ordering::AcqRel);
        if !is_taken {
            self.untaken_bytes.fetch_add(change, Ordering::AcqRel);
        }
    }
}

impl Drop for StreamBudget {
    fn drop(&mut self) {
        self.total.leave(&self.tenant);
    }
}

impl BatchReservation {
    /// Returns true if the stream has no other batch that its consumer has not taken.
    pub(crate) fn is_only(&self) -> bool {
        self.budget.untaken_bytes.load(Ordering::Acquire) == self.bytes.load(Ordering::Acquire)
    }

    /// Records that the consumer has taken the batch, which is finished.
    fn mark_taken(&self) {
        if !self.is_taken.swap(true, Ordering::AcqRel) {
            self.budget.untaken_bytes.fetch_sub(self.bytes.load(Ordering::Acquire), Ordering::AcqRel);
            self.budget.untaken.fetch_sub(1, Ordering::AcqRel);
            self.budget.has_taken.store(true, Ordering::Release);
            self.budget.consumer.takes();
            self.budget.freed.notify_one();
        }
    }

    /// Replaces the estimate by the actual number of bytes, which may exceed the budget.
    pub(crate) fn settle(&self, bytes: u64) {
        let expected = self.bytes.swap(bytes, Ordering::AcqRel);
        self.budget.charge(bytes.wrapping_sub(expected), self.is_taken.load(Ordering::Acquire));
        if bytes < expected {
            self.budget.freed.notify_one();
            self.budget.tenant.wake();
        }
    }
}

impl Drop for BatchReservation {
    fn drop(&mut self) {
        let is_taken = *self.is_taken.get_mut();
        self.budget.charge(0_u64.wrapping_sub(*self.bytes.get_mut()), is_taken);
        if !is_taken {
            self.budget.untaken.fetch_sub(1, Ordering::AcqRel);
        }
        self.budget.tenant.wake();
        if is_taken {
            self.budget.consumer.has_received();
        }
        self.budget.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use futures::FutureExt;

    use super::*;

    /// Registers a stream whose consumer has taken batches before.
    fn running(total: &PrefetchBudget, tenant: Tenant) -> Arc<StreamBudget> {
        let stream = total.enter(tenant);
        drop(BatchCharge::of_taken(&Arc::new(stream.reserve(0).now_or_never().unwrap())));
        stream
    }

    #[test]
    fn a_second_batch_is_made_once_the_first_is_taken() {
        let total = PrefetchBudget::new(100, 100, 200);
        let stream = total.enter(Tenant::SERVER);
        let first = Arc::new(stream.reserve(1).now_or_never().unwrap());
        let mut second = Box::pin(stream.reserve(1));
        assert!((&mut second).now_or_never().is_none());
        let _sending = BatchCharge::of_taken(&first);
        let _second = second.now_or_never().expect("the first one is being sent");
        assert!(stream.reserve(1).now_or_never().is_some());
    }

    #[test]
    fn a_stream_with_an_empty_batch_has_one_and_waits_for_no_turn() {
        let total = PrefetchBudget::new(100, 100, 200);
        let (empty, other) = (total.enter(Tenant::SERVER), running(&total, Tenant::SERVER));
        let _batch = empty.reserve(0).now_or_never().unwrap();
        assert!(!empty.is_empty());
        let mut second = Box::pin(empty.reserve(0));
        assert!((&mut second).now_or_never().is_none());
        assert!(other.reserve(10).now_or_never().is_some(), "no other stream waits for its first batch");
    }

    #[test]
    fn a_stream_whose_first_batch_fails_gets_another_one() {
        let total = PrefetchBudget::new(100, 100, 200);
        let stream = total.enter(Tenant::SERVER);
        drop(stream.reserve(1).now_or_never().unwrap());
        assert!(stream.reserve(1).now_or_never().is_some());
    }

    #[test]
    fn the_number_of_batches_that_wait_for_a_consumer_is_limited_whatever_their_size() {
        let total = PrefetchBudget::new(1 << 30, 1 << 30, 2 << 30);
        let stream = running(&total, Tenant::SERVER);
        let mut batches: Vec<_> =
            (0..MAX_UNTAKEN).map(|_| Arc::new(stream.reserve(1).now_or_never().unwrap())).collect();
        let mut next = Box::pin(stream.reserve(1));
        assert!((&mut next).now_or_never().is_none());
        let sending = BatchCharge::of_taken(&batches[0]);
        let next = next.now_or_never().expect("one was taken");
        assert!(stream.reserve(1).now_or_never().is_none());
        batches.pop();
        assert!(stream.reserve(1).now_or_never().is_some(), "one was dropped");
        drop((next, sending, batches));
        assert_eq!(stream.untaken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn streams_share_the_space_and_one_batch_always_has_some() {
        let total = PrefetchBudget::new(100, 60, 200);
        let (first, second) = (running(&total, Tenant::SERVER), running(&total, Tenant::SERVER));
        // Two streams get half of the budget each.
        let reservation = first.reserve(40).now_or_never().unwrap();
        assert!(first.reserve(20).now_or_never().is_none());
        assert!(reservation.is_only());
        let large = second.reserve(160).now_or_never().unwrap();
        assert!(second.reserve(1).now_or_never().is_none());
        drop((large, second));
        // A single stream is limited by its own maximum.
        let more = first.reserve(20).now_or_never().unwrap();
        assert!(first.reserve(1).now_or_never().is_none());
        assert!(!more.is_only());
        drop((reservation, more));
        let reservation = first.reserve(60).now_or_never().unwrap();
        assert!(first.reserve(1).now_or_never().is_none());
        reservation.settle(20);
        let more = first.reserve(40).now_or_never().unwrap();
        reservation.settle(30);
        drop(more);
        assert!(first.reserve(31).now_or_never().is_none());
        assert!(first.reserve(30).now_or_never().is_some());
    }

    #[test]
    fn a_batch_counts_until_it_is_sent_and_a_stream_always_gets_one() {
        let total = PrefetchBudget::new(100, 100, 200);
        let streams: Vec<_> = (0..10).map(|_| running(&total, Tenant::SERVER)).collect();
        let taken = |stream: &Arc<StreamBudget>, bytes| {
            stream.reserve(bytes).now_or_never().map(|batch| BatchCharge::of_taken(&Arc::new(batch)))
        };
        // Each stream has 10 bytes of its own. A second batch is admitted while the first is sent.
        let first = taken(&streams[0], 20).unwrap();
        let second = taken(&streams[0], 20).unwrap();
        let others: Vec<_> = streams[1..9].iter().map(|stream| taken(stream, 20).unwrap()).collect();
        let used = || streams[0].tenant.used_bytes.load(Ordering::Relaxed);
        assert_eq!(used(), 10 * 20);
        assert!(streams.iter().all(|stream| taken(stream, 1).is_none()), "the total is exceeded");
        drop((second, others));
        assert!(taken(&streams[0], 1).is_some(), "the total has room");
        let waiting = streams[0].reserve(20).now_or_never().unwrap();
        assert!(taken(&streams[0], 1).is_none(), "a batch waits to be taken");
        drop((first, waiting));
        assert_eq!(used(), 0);
    }

    #[test]
    fn a_stream_that_waits_for_its_tenant_continues_when_another_stream_releases_bytes() {
        let total = PrefetchBudget::new(100, 100, 200);
        let streams: Vec<_> = (0..10).map(|_| running(&total, Tenant::SERVER)).collect();
        let _sent = BatchCharge::of_taken(&Arc::new(streams[0].reserve(20).now_or_never().unwrap()));
        let other = streams[1].reserve(80).now_or_never().unwrap();
        let mut second = Box::pin(streams[0].reserve(20));
        assert!((&mut second).now_or_never().is_none());
        drop(other);
        assert!((&mut second).now_or_never().is_some());
    }

    #[test]
    fn first_batches_take_at_most_twice_the_share_and_streams_wait_for_them_in_turn() {
        let total = PrefetchBudget::new(100, 100, 200);
        let streams: Vec<_> = (0..10).map(|_| running(&total, Tenant::SERVER)).collect();
        let used = || streams[0].tenant.used_bytes.load(Ordering::Relaxed);
        let mut held: Vec<_> =
            streams[..2].iter().map(|one| one.reserve(90).now_or_never().unwrap()).collect();
        let (mut third, mut fourth) = (Box::pin(streams[2].reserve(90)), Box::pin(streams[3].reserve(10)));
        assert!((&mut third).now_or_never().is_none(), "three batches exceed 200 bytes");
        assert!(
            (&mut fourth).now_or_never().is_none(),
            "it would fit, but the third stream waits for longer"
        );
        assert!(
            streams[0].reserve(1).now_or_never().is_none(),
            "a second batch does not precede a first one"
        );
        assert_eq!(used(), 180);
        held.pop();
        let third = (&mut third).now_or_never().unwrap();
        let fourth = (&mut fourth).now_or_never().unwrap();
        assert_eq!(used(), 190);
        // A batch of any size is made if there is no other one.
        let mut large = Box::pin(streams[4].reserve(1000));
        drop((held, third));
        assert!((&mut large).now_or_never().is_none());
        drop(fourth);
        assert!((&mut large).now_or_never().is_some());
    }

    #[test]
    fn a_stream_that_gives_up_its_turn_lets_the_next_one_continue() {
        let total = PrefetchBudget::new(100, 100, 200);
        let streams: Vec<_> = (0..3).map(|_| running(&total, Tenant::SERVER)).collect();
        let _held = streams[0].reserve(150).now_or_never().unwrap();
        let mut second = Box::pin(streams[1].reserve(100));
        let mut third = Box::pin(streams[2].reserve(50));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(second);
        assert!((&mut third).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_are_released_while_a_stream_waits_for_its_turn_are_offered_again_after_it() {
        let total = PrefetchBudget::new(100, 100, 200);
        let streams: Vec<_> = (0..10).map(|_| running(&total, Tenant::SERVER)).collect();
        let _sent = BatchCharge::of_taken(&Arc::new(streams[0].reserve(20).now_or_never().unwrap()));
        let large = streams[1].reserve(180).now_or_never().unwrap();
        let stream = Arc::clone(&streams[0]);
        let second = tokio::spawn(async move { drop(stream.reserve(60).await) });
        tokio::task::yield_now().await;
        let mut first = Box::pin(streams[2].reserve(10));
        assert!((&mut first).now_or_never().is_none());
        drop(large);
        // The second batch does not precede the first one of the other stream.
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        let _first = first.now_or_never().unwrap();
        tokio::time::timeout(Duration::from_secs(1), second).await.expect("it is woken").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_has_one_second_more_for_each_mebibyte_that_it_is_receiving() {
        let (mib, patience) = (1 << 20, Duration::from_secs(60));
        let total = PrefetchBudget::new(100 * mib, 100 * mib, 200 * mib);
        let (slow, other) = (running(&total, Tenant::SERVER), running(&total, Tenant::SERVER));
        let _sending = BatchCharge::of_taken(&Arc::new(slow.reserve(150 * mib).now_or_never().unwrap()));
        let mut waiting = Box::pin(other.reserve(100 * mib));
        assert!((&mut waiting).now_or_never().is_none());
        let due = Instant::now() + patience + Duration::from_secs(150);
        assert_eq!(slow.pace().overdue_at(patience), Some(due));
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_stream_is_overdue_only_while_another_one_of_its_tenant_waits_for_a_batch() {
        let (second, patience) = (Duration::from_secs(1), Duration::from_secs(60));
        let total = PrefetchBudget::new(100, 100, 200);
        let (paused, reading) = (running(&total, Tenant::SERVER), running(&total, Tenant::SERVER));
        let batch = Arc::new(paused.reserve(200).now_or_never().unwrap());
        let _sending = BatchCharge::of_taken(&batch);
        tokio::time::sleep(100 * second).await;
        assert_eq!(paused.pace().overdue_at(patience), None, "no stream waits");
        let mut waiting = Box::pin(reading.reserve(1));
        assert!((&mut waiting).now_or_never().is_none());
        assert_eq!(paused.pace().overdue_at(patience), Some(Instant::now() + patience));
        assert_eq!(reading.pace().overdue_at(patience), None, "it holds nothing");
        tokio::time::sleep(second).await;
        // The consumer makes progress.
        paused.consumer().takes();
        assert_eq!(paused.pace().overdue_at(patience), Some(Instant::now() + patience));
        drop(waiting);
        assert_eq!(paused.pace().overdue_at(patience), None);
    }

    #[test]
    fn a_changed_weight_counts_from_the_next_stream_on() {
        let total = PrefetchBudget::new(100, 100, 200);
        let enter = |id, weight| running(&total, Tenant::new(id, NonZeroU32::new(weight).unwrap()));
        let (_other, first) = (enter(2, 1), enter(1, 1));
        assert_eq!(first.tenant_bytes(), 50);
        let second = enter(1, 4);
        assert_eq!(first.tenant_bytes(), 80);
        drop((first, second));
        assert_eq!(total.shared.weights.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn streams_of_one_tenant_take_nothing_from_the_budget_of_another() {
        let total = PrefetchBudget::new(100, 100, 200);
        let tenant = |id: u32| Tenant::new(id.into(), NonZeroU32::new(id).unwrap());
        let many: Vec<_> = (0..6).map(|_| running(&total, tenant(1))).collect();
        let held: Vec<_> = many.iter().map(|stream| stream.reserve(30).now_or_never().unwrap()).collect();
        let other = running(&total, tenant(3));
        assert!(other.reserve(75).now_or_never().is_some());
        drop((held, many));
        assert!(other.reserve(100).now_or_never().is_some(), "the only tenant");
        drop(other);
        assert!(total.shared.tenants.lock().is_empty());
    }
}
