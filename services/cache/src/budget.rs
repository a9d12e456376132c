//! Byte budget with first-come, first-served reservations, of which no source can take all.
//!
//! A reservation for values that are being loaded is charged to their sources. A source that has such reservations
//! receives more only while enough stays free for the others. This is the dynamic threshold of shared-memory switches
//! (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). A source that does
//! not answer therefore holds a part of the budget, and the others continue with the rest.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Maximum of a source's bytes that are being loaded, as a multiple of the bytes that stay free.
const MAX_LOADING_PER_FREE: u64 = 4;

/// Identifies a store or a disk from which values are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u64);

/// A byte budget. Cheap to clone; clones share the budget.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
}

struct Shared {
    capacity_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reserved_bytes: u64,
    /// Part of `reserved_bytes` in [long-lived](Reservation::keep) reservations.
    kept_bytes: u64,
    /// Bytes that are being loaded from each source that has some.
    loading_bytes: HashMap<SourceId, u64>,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    bytes: u64,
    sources: Arc<[SourceId]>,
    granted: oneshot::Sender<Result<Reservation, TooLarge>>,
}

/// Error of a reservation that cannot fit in the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// Requested bytes.
    pub bytes: u64,
    /// Bytes of the budget outside of long-lived reservations.
    pub available_bytes: u64,
}

/// Reserved part of a [`Budget`]. Dropping it releases the bytes.
pub struct Reservation {
    bytes: u64,
    is_kept: bool,
    sources: Arc<[SourceId]>,
    /// Bytes that are charged to each of `sources`.
    loading_bytes: u64,
    shared: Arc<Shared>,
}

impl Budget {
    /// Creates a budget of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { shared: Arc::new(Shared { capacity_bytes, state: Mutex::default() }) }
    }

    /// Size of the whole budget in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.capacity_bytes
    }

    /// Bytes outside of long-lived reservations: the largest reservation that can be granted.
    pub fn available_bytes(&self) -> u64 {
        self.shared.available_bytes(&self.shared.state.lock())
    }

    /// Bytes that are currently reserved. May exceed the capacity after a reservation was [raised](Reservation::raise).
    pub fn reserved_bytes(&self) -> u64 {
        self.shared.state.lock().reserved_bytes
    }

    /// Reserves `bytes` for values that are loaded from `sources`, until [`Reservation::loaded`] is called. Waits until
    /// the bytes are free, and until each of the sources has nothing else that is being loaded, or at most four times as
    /// much as stays free. Callers receive their bytes in the order of the calls, except that a caller that waits for
    /// loads of its own source delays only callers of the same source. Cancel-safe: a dropped wait leaves the queue.
    ///
    /// # Errors
    /// [`TooLarge`] as soon as `bytes` exceeds [`available_bytes`](Self::available_bytes).
    pub async fn reserve(&self, bytes: u64, sources: &[SourceId]) -> Result<Reservation, TooLarge> {
        // Dropped last, so that a cancelled wait unblocks the callers behind it.
        let _guard = GrantOnDrop { shared: &self.shared };
        let (granted, grant) = oneshot::channel();
        let waiting = Waiting { bytes, sources: sources.into(), granted };
        self.shared.state.lock().waiting.push_back(waiting);
        self.shared.grant();
        grant.await.expect("the queue lives as long as the budget")
    }

    /// Returns true if [`try_reserve`](Self::try_reserve) would return a reservation.
    pub fn has_room(&self, bytes: u64, sources: &[SourceId]) -> bool {
        self.shared.has_room(&mut self.shared.state.lock(), bytes, sources)
    }

    /// Like [`reserve`](Self::reserve), but returns `None` where that would wait.
    pub fn try_reserve(&self, bytes: u64, sources: &[SourceId]) -> Option<Reservation> {
        let mut state = self.shared.state.lock();
        if !self.shared.has_room(&mut state, bytes, sources) {
            return None;
        }
        Some(self.shared.take(&mut state, bytes, sources.into()))
    }
}

/// Grants waiting reservations when a wait ends or is cancelled.
struct GrantOnDrop<'a> {
    shared: &'a Arc<Shared>,
}

impl Drop for GrantOnDrop<'_> {
    fn drop(&mut self) {
        self.shared.grant();
    }
}

impl State {
    /// Sources of `sources` that must load what they have reserved before they receive `bytes` more.
    fn must_load_first<'a>(
        &self,
        capacity_bytes: u64,
        bytes: u64,
        sources: &'a [SourceId],
    ) -> impl Iterator<Item = SourceId> + use<'a, '_> {
        let free_bytes = capacity_bytes.saturating_sub(self.reserved_bytes).saturating_sub(bytes);
        let limit = free_bytes.saturating_mul(MAX_LOADING_PER_FREE);
        sources.iter().copied().filter(move |source| {
            self.loading_bytes.get(source).is_some_and(|loading| loading.saturating_add(bytes) > limit)
        })
    }

    /// Position of the first waiting caller that waits for free bytes, and not for loads of its own sources. Also returns
    /// the sources that delay the callers before it. Callers of one source stay in order.
    fn first_in_line(&self, capacity_bytes: u64) -> (Option<usize>, Vec<SourceId>) {
        let mut delaying = Vec::new();
        let first = self.waiting.iter().position(|waiting| {
            let before = delaying.len();
            delaying.extend(self.must_load_first(capacity_bytes, waiting.bytes, &waiting.sources));
            delaying.len() == before && !waiting.sources.iter().any(|source| delaying.contains(source))
        });
        (first, delaying)
    }

    /// Changes the bytes that are being loaded from `sources`.
    fn charge(&mut self, sources: &[SourceId], change: impl Fn(u64) -> u64) {
        for source in sources {
            let loading = change(self.loading_bytes.get(source).copied().unwrap_or(0));
            match loading {
                0 => drop(self.loading_bytes.remove(source)),
                _ => drop(self.loading_bytes.insert(*source, loading)),
            }
        }
    }
}

impl Shared {
    fn fits(&self, state: &State, bytes: u64) -> bool {
        state.reserved_bytes.saturating_add(bytes) <= self.capacity_bytes
    }

    fn available_bytes(&self, state: &State) -> u64 {
        self.capacity_bytes.saturating_sub(state.kept_bytes)
    }

    /// Returns true if `bytes` are free and no caller must receive its bytes before.
    fn has_room(&self, state: &mut State, bytes: u64, sources: &[SourceId]) -> bool {
        state.waiting.retain(|waiting| !waiting.granted.is_closed());
        if !self.fits(state, bytes)
            || state.must_load_first(self.capacity_bytes, bytes, sources).next().is_some()
        {
            return false;
        }
        let (first, delaying) = state.first_in_line(self.capacity_bytes);
        first.is_none() && !sources.iter().any(|source| delaying.contains(source))
    }

    fn take(self: &Arc<Self>, state: &mut State, bytes: u64, sources: Arc<[SourceId]>) -> Reservation {
        state.reserved_bytes += bytes;
        state.charge(&sources, |loading| loading + bytes);
        Reservation { bytes, is_kept: false, sources, loading_bytes: bytes, shared: Arc::clone(self) }
    }

    /// Grants reservations in order while they fit, and rejects those that are too large.
    fn grant(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            state.waiting.retain(|waiting| !waiting.granted.is_closed());
            let available_bytes = self.available_bytes(&state);
            let rejected = state.waiting.iter().position(|waiting| waiting.bytes > available_bytes);
            if let Some(rejected) = rejected.and_then(|place| state.waiting.remove(place)) {
                drop(state);
                drop(rejected.granted.send(Err(TooLarge { bytes: rejected.bytes, available_bytes })));
                continue;
            }
            let (Some(first), _) = state.first_in_line(self.capacity_bytes) else { return };
            if !self.fits(&state, state.waiting[first].bytes) {
                return;
            }
            let Some(Waiting { bytes, sources, granted }) = state.waiting.remove(first) else { return };
            let reservation = self.take(&mut state, bytes, sources);
            drop(state);
            // If the wait was cancelled in the meantime, dropping the reservation releases the bytes.
            drop(granted.send(Ok(reservation)));
        }
    }
}

impl Reservation {
    /// Reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Raises the reservation to `bytes`, for values that are larger than estimated. Does not wait: the budget may be
    /// exceeded, and no other reservation is granted until enough bytes are released. A smaller value has no effect.
    pub fn raise(&mut self, bytes: u64) {
        let extra = bytes.saturating_sub(self.bytes);
        let mut state = self.shared.state.lock();
        state.reserved_bytes += extra;
        state.kept_bytes += if self.is_kept { extra } else { 0 };
        self.bytes += extra;
    }

    /// Reports that the values are loaded. The bytes stay reserved, and no longer count for their sources.
    pub fn loaded(&mut self) {
        let loading_bytes = std::mem::take(&mut self.loading_bytes);
        if loading_bytes > 0 && !self.sources.is_empty() {
            self.shared.state.lock().charge(&self.sources, |loading| loading.saturating_sub(loading_bytes));
            self.shared.grant();
        }
    }

    /// Reports that values are being loaded again. Does not wait.
    pub fn loading(&mut self) {
        let extra = self.bytes.saturating_sub(self.loading_bytes);
        self.loading_bytes += extra;
        self.shared.state.lock().charge(&self.sources, |loading| loading + extra);
    }

    /// Splits off a reservation of `bytes`; `None` if this one has fewer.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        let loading_bytes = bytes.min(self.loading_bytes);
        self.loading_bytes -= loading_bytes;
        let (sources, shared) = (Arc::clone(&self.sources), Arc::clone(&self.shared));
        Some(Self { bytes, is_kept: self.is_kept, sources, loading_bytes, shared })
    }

    /// Merges another reservation of the same budget, whose values are loaded, into this one. Both must be long-lived, or
    /// neither.
    pub fn merge(&mut self, mut other: Self) {
        other.loaded();
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Marks the reservation as long-lived. Waiting callers that request more than the rest of the budget are rejected.
    pub fn keep(&mut self) {
        if !self.is_kept {
            self.is_kept = true;
            self.shared.state.lock().kept_bytes += self.bytes;
            self.shared.grant();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.reserved_bytes = state.reserved_bytes.saturating_sub(self.bytes);
            state.kept_bytes -= if self.is_kept { self.bytes } else { 0 };
            state.charge(&self.sources, |loading| loading.saturating_sub(self.loading_bytes));
        }
        if self.bytes > 0 {
            self.shared.grant();
        }
    }
}

#[cfg(test)]
mod tests;
