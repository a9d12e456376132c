//! Memory that jobs never get.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_cache::Reservation;

/// A share of the memory that was set aside, as far as it is not taken. Cheap to clone; clones share it.
#[derive(Clone, Default)]
pub(crate) struct SetAside {
    left: Arc<Mutex<Option<Reservation>>>,
}

impl SetAside {
    /// Keeps `share` for those who [`take`](Self::take) of it.
    pub(crate) fn put(&self, mut share: Reservation) {
        share.keep();
        *self.lock() = Some(share);
    }

    /// Takes bytes of it, or says how many are left.
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

/// Memory that was set aside, and goes back there when it is dropped.
pub struct Aside {
    share: Option<Reservation>,
    from: SetAside,
}

impl Aside {
    /// Raises it to so many bytes, as far as there are.
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
