//! Byte budget with first-come, first-served reservations.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::oneshot;

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
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    bytes: u64,
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

    /// Reserves `bytes`, after all earlier callers. Cancel-safe: a dropped wait leaves the queue.
    ///
    /// # Errors
    /// [`TooLarge`] as soon as `bytes` exceeds [`available_bytes`](Self::available_bytes).
    pub async fn reserve(&self, bytes: u64) -> Result<Reservation, TooLarge> {
        // Dropped last, so that a cancelled wait unblocks the callers behind it.
        let _guard = GrantOnDrop { shared: &self.shared };
        let (granted, grant) = oneshot::channel();
        self.shared.state.lock().waiting.push_back(Waiting { bytes, granted });
        self.shared.grant();
        grant.await.expect("the queue lives as long as the budget")
    }

    /// Returns true if `bytes` are free and no caller is waiting.
    pub fn has_room(&self, bytes: u64) -> bool {
        let mut state = self.shared.state.lock();
        state.waiting.retain(|waiting| !waiting.granted.is_closed());
        state.waiting.is_empty() && self.shared.fits(&state, bytes)
    }

    /// Reserves `bytes` if they are free and no caller is waiting; `None` otherwise.
    pub fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        let mut state = self.shared.state.lock();
        state.waiting.retain(|waiting| !waiting.granted.is_closed());
        if !state.waiting.is_empty() || !self.shared.fits(&state, bytes) {
            return None;
        }
        state.reserved_bytes += bytes;
        Some(Reservation { bytes, is_kept: false, shared: Arc::clone(&self.shared) })
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

impl Shared {
    fn fits(&self, state: &State, bytes: u64) -> bool {
        state.reserved_bytes.saturating_add(bytes) <= self.capacity_bytes
    }

    fn available_bytes(&self, state: &State) -> u64 {
        self.capacity_bytes.saturating_sub(state.kept_bytes)
    }

    /// Grants reservations from the head of the queue while they fit, and rejects those that are too large.
    fn grant(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            let available_bytes = self.available_bytes(&state);
            let rejected = state.waiting.iter().position(|waiting| waiting.bytes > available_bytes);
            if let Some(rejected) = rejected.and_then(|place| state.waiting.remove(place)) {
                drop(state);
                drop(rejected.granted.send(Err(TooLarge { bytes: rejected.bytes, available_bytes })));
                continue;
            }
            let Some(head) = state.waiting.front() else { return };
            let bytes = if head.granted.is_closed() { 0 } else { head.bytes };
            if !self.fits(&state, bytes) && bytes > 0 {
                return;
            }
            let Some(head) = state.waiting.pop_front() else { return };
            state.reserved_bytes += bytes;
            drop(state);
            // If the wait was cancelled in the meantime, dropping the reservation releases the bytes.
            drop(head.granted.send(Ok(Reservation { bytes, is_kept: false, shared: Arc::clone(self) })));
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

    /// Splits off a reservation of `bytes`; `None` if this one has fewer.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Self { bytes, is_kept: self.is_kept, shared: Arc::clone(&self.shared) })
    }

    /// Merges another reservation of the same budget into this one. Both must be long-lived, or neither.
    pub fn merge(&mut self, mut other: Self) {
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
        }
        if self.bytes > 0 {
            self.shared.grant();
        }
    }
}

#[cfg(test)]
mod tests;
