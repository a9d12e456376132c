//! Memory reserved for lookups.

use std::{collections::HashMap, sync::Arc};

use forebay_cache::Reservation;
use parking_lot::Mutex;

use crate::Tenant;

/// Maximum of a tenant's memory, as a multiple of the memory that is left.
const MAX_HELD_PER_FREE: u64 = 7;

/// Unused part of the memory reserved for lookups. Cheap to clone; clones share the reservation.
///
/// The first allocation of a tenant may take all the memory that is left. Further ones are granted only if the tenant then has at most
/// seven times the memory that is left. A tenant alone therefore leaves an eighth after its second allocation, and several tenants get
/// equal parts. [`Tenant::SERVER`] may have all.
#[derive(Clone, Default)]
pub(crate) struct LookupMemory {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    left: Option<Reservation>,
    /// Bytes of each tenant but [`Tenant::SERVER`].
    held: HashMap<u64, u64>,
}

impl State {
    /// Bytes by which the memory of `tenant` can grow, of which `exempt` do not count.
    fn room(&self, tenant: Tenant, exempt: u64) -> u64 {
        let left = self.left.as_ref().map_or(0, Reservation::bytes);
        let held = self.held.get(&tenant.id()).copied().unwrap_or(0);
        if tenant == Tenant::SERVER || held <= exempt {
            return left;
        }
        (MAX_HELD_PER_FREE * left).saturating_sub(held) / (MAX_HELD_PER_FREE + 1)
    }

    fn take(&mut self, tenant: Tenant, bytes: u64, exempt: u64) -> Option<Reservation> {
        if bytes > self.room(tenant, exempt) {
            return None;
        }
        let taken = self.left.as_mut()?.split(bytes)?;
        if tenant != Tenant::SERVER {
            *self.held.entry(tenant.id()).or_default() += bytes;
        }
        Some(taken)
    }
}

impl LookupMemory {
    /// Stores `reservation`, from which [`take`](Self::take) allocates.
    pub(crate) fn put(&self, mut reservation: Reservation) {
        reservation.keep();
        self.state.lock().left = Some(reservation);
    }

    /// Takes `bytes` for `tenant` from the reservation.
    ///
    /// # Errors
    /// Returns the number of bytes that the tenant can have if there are fewer.
    pub(crate) fn take(&self, tenant: Tenant, bytes: u64) -> Result<LookupReservation, u64> {
        let mut state = self.state.lock();
        match state.take(tenant, bytes, 0) {
            Some(taken) => Ok(LookupReservation { taken: Some(taken), tenant, memory: self.clone() }),
            None => Err(state.room(tenant, 0)),
        }
    }
}

/// Memory taken from the memory reserved for lookups. Dropping it returns the memory.
pub struct LookupReservation {
    taken: Option<Reservation>,
    tenant: Tenant,
    memory: LookupMemory,
}

impl LookupReservation {
    /// Allocated bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.taken.as_ref().map_or(0, Reservation::bytes)
    }

    /// Bytes to which the allocation can grow.
    pub(crate) fn room(&self) -> u64 {
        let room = self.memory.state.lock().room(self.tenant, self.bytes());
        self.bytes().saturating_add(room)
    }

    /// Grows the allocation to `bytes`. Returns false, without changing anything, if too few bytes are left.
    pub(crate) fn raise(&mut self, bytes: u64) -> bool {
        let Some(taken) = &mut self.taken else { return false };
        let more = bytes.saturating_sub(taken.bytes());
        let more = self.memory.state.lock().take(self.tenant, more, taken.bytes());
        more.map(|more| taken.merge(more)).is_some()
    }
}

impl Drop for LookupReservation {
    fn drop(&mut self) {
        let mut state = self.memory.state.lock();
        let Some(taken) = self.taken.take() else { return };
        if let Some(held) = state.held.get_mut(&self.tenant.id()) {
            *held = held.saturating_sub(taken.bytes());
            if *held == 0 {
                state.held.remove(&self.tenant.id());
            }
        }
        if let Some(left) = &mut state.left {
            left.merge(taken);
        }
    }
}
