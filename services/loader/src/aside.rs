//! Memory reserved for other uses than jobs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_cache::Reservation;

/// Unused part of a memory reservation. Cheap to clone; clones share the reservation.
#[derive(Clone, Default)]
pub(crate) struct SetAside {
    left: Arc<Mutex<Option<Reservation>>>,
}

impl SetAside {
    /// Stores `share`, from which [`take`](Self::take) allocates.
    pub(crate) fn put(&self, mut share: Reservation) {
        share.keep();
        *self.lock() = Some(share);
    }

    /// Takes `bytes` from the reservation.
    ///
    /// # Errors
    /// Returns the number of bytes left if there are fewer.
    pub(crate) fn take(&self, bytes: u64) -> Result<Aside, u64> {
        let mut left = self.lock();
        let taken = left.as_mut().and_then(|share| share.split(bytes));
        match taken {
            Some(share) => Ok(Aside { share: Some(share), from: self.clone() }),
            None => Err(left.as_ref().map_or(0, Reservation::bytes)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Reservation>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory taken from a reservation. Dropping it returns the memory.
pub struct Aside {
    share: Option<Reservation>,
    from: SetAside,
}

impl Aside {
    /// Grows the allocation to `bytes`. Returns false, without changing anything, if too few bytes are left.
    pub(crate) fn raise(&mut self, bytes: u64) -> bool {
        let Some(share) = &mut self.share else { return false };
        let more = bytes.saturating_sub(share.bytes());
        let mut from = self.from.lock();
        match from.as_mut().and_then(|from| from.split(more)) {
            Some(more) => {
                share.merge(more);
                true
            }
            None => false,
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let mut from = self.from.lock();
        if let (Some(from), Some(share)) = (from.as_mut(), self.share.take()) {
            from.merge(share);
        }
    }
}
