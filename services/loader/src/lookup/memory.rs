//! Memory reserved for lookups.

use std::sync::Arc;

use forebay_cache::Reservation;
use parking_lot::Mutex;

/// Unused part of the memory reserved for lookups. Cheap to clone; clones share the reservation.
#[derive(Clone, Default)]
pub(crate) struct LookupMemory {
    left: Arc<Mutex<Option<Reservation>>>,
}

impl LookupMemory {
    /// Stores `reservation`, from which [`take`](Self::take) allocates.
    pub(crate) fn put(&self, mut reservation: Reservation) {
        reservation.keep();
        *self.left.lock() = Some(reservation);
    }

    /// Takes `bytes` from the reservation.
    ///
    /// # Errors
    /// Returns the number of bytes left if there are fewer.
    pub(crate) fn take(&self, bytes: u64) -> Result<LookupReservation, u64> {
        let mut left = self.left.lock();
        let taken = left.as_mut().and_then(|left| left.split(bytes));
        match taken {
            Some(taken) => Ok(LookupReservation { taken: Some(taken), memory: self.clone() }),
            None => Err(left.as_ref().map_or(0, Reservation::bytes)),
        }
    }
}

/// Memory taken from the memory reserved for lookups. Dropping it returns the memory.
pub struct LookupReservation {
    taken: Option<Reservation>,
    memory: LookupMemory,
}

impl LookupReservation {
    /// Allocated bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.taken.as_ref().map_or(0, Reservation::bytes)
    }

    /// Bytes to which the allocation can grow.
    pub(crate) fn room(&self) -> u64 {
        let left = self.memory.left.lock().as_ref().map_or(0, Reservation::bytes);
        self.bytes().saturating_add(left)
    }

    /// Grows the allocation to `bytes`. Returns false, without changing anything, if too few bytes are left.
    pub(crate) fn raise(&mut self, bytes: u64) -> bool {
        let Some(taken) = &mut self.taken else { return false };
        let more = bytes.saturating_sub(taken.bytes());
        let more = self.memory.left.lock().as_mut().and_then(|left| left.split(more));
        more.map(|more| taken.merge(more)).is_some()
    }
}

impl Drop for LookupReservation {
    fn drop(&mut self) {
        if let (Some(left), Some(taken)) = (self.memory.left.lock().as_mut(), self.taken.take()) {
            left.merge(taken);
        }
    }
}
