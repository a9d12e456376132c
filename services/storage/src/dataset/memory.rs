//! Memory of snapshots and their manifests, which is a part of the memory budget.

use std::fmt;

use forebay_cache::{Budget, Reservation, TooLarge};

use crate::{Error, error::SNAPSHOT_MEMORY};

/// Memory of a snapshot that is taken or loaded, and of the snapshot afterwards. Released on drop.
pub(crate) struct SnapshotMemory {
    /// `None` if memory is not charged.
    budget: Option<Budget>,
    /// Empty until something is charged.
    held: Option<Reservation>,
}

impl SnapshotMemory {
    /// Holds nothing yet.
    pub(crate) fn new(budget: Option<&Budget>) -> Self {
        Self { budget: budget.cloned(), held: None }
    }

    /// Bytes that are charged.
    fn bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, Reservation::bytes)
    }

    /// Raises the memory to `bytes`. Waits until streams have released as much. A smaller value has no effect.
    ///
    /// The memory counts as long-lived as soon as it is reserved. Two snapshots that are taken at once therefore never wait for each other.
    ///
    /// # Errors
    /// [`Error::Limit`] with both sizes, if lookups and snapshots leave less.
    pub(crate) async fn raise(&mut self, bytes: u64, location: &str) -> Result<(), Error> {
        let (Some(budget), held) = (&self.budget, self.bytes()) else { return Ok(()) };
        if bytes <= held {
            return Ok(());
        }
        let refused = |TooLarge { available_bytes, .. }| {
            Error::limit(location, SNAPSHOT_MEMORY, held.saturating_add(available_bytes), bytes)
        };
        let mut more = budget.reserve(bytes - held, &[]).await.map_err(refused)?;
        more.keep_outside();
        match &mut self.held {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Lowers the memory to `bytes`. A larger value has no effect.
    pub(crate) fn lower(&mut self, bytes: u64) {
        let surplus = self.bytes().saturating_sub(bytes);
        drop(self.held.as_mut().and_then(|held| held.split(surplus)));
    }
}

impl fmt::Debug for SnapshotMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}
