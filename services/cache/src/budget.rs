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
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    bytes: u64,
    granted: oneshot::Sender<Reservation>,
}

/// A reservation that the whole budget could not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Bytes of the whole budget.
    pub capacity_bytes: u64,
}

/// A share of a [`Budget`]; dropping it gives the bytes back.
pub struct Reservation {
    bytes: u64,
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

    /// Bytes that are reserved now. Over the capacity when a reservation was [raised](Reservation::raise).
    pub fn reserved_bytes(&self) -> u64 {
        self.shared.state().reserved_bytes
    }

    /// Reserves `bytes`, waiting in line behind earlier callers. Cancel-safe: a dropped wait leaves
    /// the line.
    ///
    /// # Errors
    /// At once, when `bytes` exceeds the whole budget.
    pub async fn reserve(&self, bytes: u64) -> Result<Reservation, TooLarge> {
        let capacity_bytes = self.shared.capacity_bytes;
        if bytes > capacity_bytes {
            return Err(TooLarge { bytes, capacity_bytes });
        }
        // Dropped last: whoever waited behind a wait that is given up is looked at again.
        let _leaving = Leaving { shared: &self.shared };
        let (granted, grant) = oneshot::channel();
        self.shared.state().waiting.push_back(Waiting { bytes, granted });
        self.shared.grant();
        Ok(grant.await.expect("the line is served as long as the budget lives"))
    }

    /// Reserves `bytes` if they are free and nobody waits for them.
    pub fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        let mut state = self.shared.state();
        state.waiting.retain(|waiting| !waiting.granted.is_closed());
        if !state.waiting.is_empty() || !self.shared.fits(&state, bytes) {
            return None;
        }
        state.reserved_bytes += bytes;
        Some(Reservation { bytes, shared: Arc::clone(&self.shared) })
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

    /// Serves the line from its head for as long as the head fits.
    fn grant(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            let Some(head) = state.waiting.front() else { return };
            let bytes = if head.granted.is_closed() { 0 } else { head.bytes };
            if !self.fits(&state, bytes) && bytes > 0 {
                return;
            }
            let Some(head) = state.waiting.pop_front() else { return };
            state.reserved_bytes += bytes;
            drop(state);
            // A waiter that left in between gives the bytes back by dropping the reservation.
            drop(head.granted.send(Reservation { bytes, shared: Arc::clone(self) }));
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
        self.shared.state().reserved_bytes += extra;
        self.bytes += extra;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.reserved_bytes = state.reserved_bytes.saturating_sub(self.bytes);
        }
        if self.bytes > 0 {
            self.shared.grant();
        }
    }
}

#[cfg(test)]
mod tests;
