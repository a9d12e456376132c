//! A number of bytes that is handed out in shares, first come first served.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

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
    /// Of these, bytes of [kept](Reservation::keep) reservations.
    kept_bytes: u64,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    bytes: u64,
    granted: oneshot::Sender<Result<Reservation, TooLarge>>,
}

/// A reservation that the budget can never hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Bytes of the budget that are not kept.
    pub available_bytes: u64,
}

/// A share of a [`Budget`]; dropping it gives the bytes back.
pub struct Reservation {
    bytes: u64,
    is_kept: bool,
    shared: Arc<Shared>,
}

impl Budget {
    /// A budget of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { shared: Arc::new(Shared { capacity_bytes, state: Mutex::default() }) }
    }

    /// Bytes of the whole budget.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.capacity_bytes
    }

    /// Bytes that are not kept: the largest share that whoever waits may get.
    pub fn available_bytes(&self) -> u64 {
        self.shared.available_bytes(&self.shared.state())
    }

    /// Bytes that are reserved now. Over the capacity when a reservation was [raised](Reservation::raise).
    pub fn reserved_bytes(&self) -> u64 {
        self.shared.state().reserved_bytes
    }

    /// Reserves `bytes`, waiting in line behind earlier callers. Cancel-safe: a dropped wait leaves
    /// the line.
    ///
    /// # Errors
    /// When `bytes` exceeds what there is beside kept reservations, as soon as it does.
    pub async fn reserve(&self, bytes: u64) -> Result<Reservation, TooLarge> {
        // Dropped last: whoever waited behind a wait that is given up is looked at again.
        let _leaving = Leaving { shared: &self.shared };
        let (granted, grant) = oneshot::channel();
        self.shared.state().waiting.push_back(Waiting { bytes, granted });
        self.shared.grant();
        grant.await.expect("the line is served as long as the budget lives")
    }

    /// Reserves `bytes` if they are free and nobody waits for them.
    pub fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        let mut state = self.shared.state();
        state.waiting.retain(|waiting| !waiting.granted.is_closed());
        if !state.waiting.is_empty() || !self.shared.fits(&state, bytes) {
            return None;
        }
        state.reserved_bytes += bytes;
        Some(Reservation { bytes, is_kept: false, shared: Arc::clone(&self.shared) })
    }
}

/// A place in the line that is left, served or not.
struct Leaving<'a> {
    shared: &'a Arc<Shared>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.shared.grant();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fits(&self, state: &State, bytes: u64) -> bool {
        state.reserved_bytes.saturating_add(bytes) <= self.capacity_bytes
    }

    fn available_bytes(&self, state: &State) -> u64 {
        self.capacity_bytes.saturating_sub(state.kept_bytes)
    }

    /// Serves the line from its head for as long as the head fits, and refuses what never will.
    fn grant(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            let available_bytes = self.available_bytes(&state);
            let refused = state.waiting.iter().position(|waiting| waiting.bytes > available_bytes);
            if let Some(refused) = refused.and_then(|place| state.waiting.remove(place)) {
                drop(state);
                drop(refused.granted.send(Err(TooLarge { bytes: refused.bytes, available_bytes })));
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
            // A waiter that left in between gives the bytes back by dropping the reservation.
            drop(head.granted.send(Ok(Reservation { bytes, is_kept: false, shared: Arc::clone(self) })));
        }
    }
}

impl Reservation {
    /// Bytes of this share.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Raises the share to `bytes` when what it was made for turned out larger than estimated. Does
    /// not wait: the budget is then overdrawn until something is given back, and nobody else is served
    /// meanwhile. A smaller figure changes nothing.
    pub fn raise(&mut self, bytes: u64) {
        let extra = bytes.saturating_sub(self.bytes);
        let mut state = self.shared.state();
        state.reserved_bytes += extra;
        state.kept_bytes += if self.is_kept { extra } else { 0 };
        self.bytes += extra;
    }

    /// Takes `bytes` out of the share, as one of its own; `None` if there are fewer.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Self { bytes, is_kept: self.is_kept, shared: Arc::clone(&self.shared) })
    }

    /// Puts another share of the same budget, kept as this one is, back.
    pub fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Says that the share won't be given back soon: who waits for more than what is left beside it is refused.
    pub fn keep(&mut self) {
        if !self.is_kept {
            self.is_kept = true;
            self.shared.state().kept_bytes += self.bytes;
            self.shared.grant();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
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
