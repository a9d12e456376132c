//! Memory of sets of values in use, which is a part of the memory budget.

use std::{any::Any, collections::HashMap, sync::Arc};

use forebay_cache::{Budget, Reservation, Tenant, TooLarge};
use parking_lot::Mutex;

use crate::Error;

/// Part of the budget that all sets in use may have: a quarter. By default, lookups have half of the budget, so that streams have the last
/// quarter at least.
const SHARE: u64 = 4;
/// Part of the sets' memory that one token leaves to the others.
const TENANT_RESERVE: u64 = 8;

/// The memory that all sets in use share. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct SetsMemory {
    /// `None` if sets are not charged.
    budget: Option<Budget>,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    total_bytes: u64,
    /// Bytes of each tenant that has some.
    tenant_bytes: HashMap<u64, u64>,
}

/// Reason why a set does not fit.
#[derive(Debug)]
struct Refused {
    bytes: u64,
    /// Bytes that other sets have.
    held_bytes: u64,
    /// Bytes that the sets may have.
    max_bytes: u64,
}

/// Memory of one set and of its values by type. Released on drop.
pub(super) struct SetMemory {
    memory: SetsMemory,
    tenant: Tenant,
    _part: Part,
    reservation: Mutex<Option<Reservation>>,
}

/// Bytes of a tenant. Released on drop.
struct Part {
    held: Arc<Mutex<Held>>,
    tenant: u64,
    bytes: u64,
}

/// Memory of the values of one type.
struct Typed {
    _part: Part,
    _reservation: Option<Reservation>,
}

impl SetsMemory {
    /// Memory within `budget`.
    pub(super) fn of(budget: Budget) -> Self {
        Self { budget: Some(budget), ..Self::default() }
    }

    /// Takes `bytes` for the set `name` of a tenant. Waits until streams have released as much.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with both sizes, if the set alone exceeds what the tenant may have, or lookups and snapshots leave less;
    /// [`Error::Unavailable`] with both sizes, if other sets in use leave less.
    pub(super) async fn take(&self, name: &str, tenant: Tenant, bytes: u64) -> Result<SetMemory, Error> {
        let too_large = |limit| Error::TooLarge {
            what: format!("values: the set ':{name}'"),
            needed: bytes,
            limit,
            advice: "use fewer values or raise --cache-memory".to_owned(),
        };
        let part = self.part(tenant, bytes).map_err(|refused| match refused.is_permanent() {
            true => too_large(refused.max_bytes),
            false => Error::Unavailable(format!("values: ':{name}' {}", refused.text())),
        })?;
        let reservation = match &self.budget {
            Some(budget) => {
                let reserved = budget.of_tenant(tenant).reserve(bytes, &[]).await;
                let mut reserved =
                    reserved.map_err(|TooLarge { available_bytes, .. }| too_large(available_bytes))?;
                reserved.keep_outside();
                Some(reserved)
            }
            None => None,
        };
        Ok(SetMemory { memory: self.clone(), tenant, _part: part, reservation: Mutex::new(reservation) })
    }

    /// Adds `bytes` to those of a tenant.
    fn part(&self, tenant: Tenant, bytes: u64) -> Result<Part, Refused> {
        let all = self.budget.as_ref().map_or(u64::MAX, |budget| budget.capacity_bytes() / SHARE);
        let is_token = tenant.id() != Tenant::SERVER.id();
        let share = if is_token { all - all / TENANT_RESERVE } else { all };
        let mut held = self.held.lock();
        let own = held.tenant_bytes.get(&tenant.id()).copied().unwrap_or(0);
        // A tenant that has sets leaves the reserve to those that have none.
        let room = if own > 0 { share } else { all };
        let (total, after) = (held.total_bytes, own.saturating_add(bytes));
        if after > share || total.saturating_add(bytes) > room {
            let is_own = after > share;
            let (held_bytes, max_bytes) = if is_own { (own, share) } else { (total, room) };
            return Err(Refused { bytes, held_bytes, max_bytes });
        }
        held.total_bytes += bytes;
        held.tenant_bytes.insert(tenant.id(), after);
        Ok(Part { held: Arc::clone(&self.held), tenant: tenant.id(), bytes })
    }

    /// Bytes of all sets in use.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> u64 {
        self.held.lock().total_bytes
    }
}

impl Refused {
    /// True if it does not fit either when no other set is in use.
    fn is_permanent(&self) -> bool {
        self.bytes > self.max_bytes
    }

    fn text(&self) -> String {
        let Self { bytes, held_bytes, max_bytes } = self;
        format!(
            "needs {bytes} bytes, and the sets in use have {held_bytes} of {max_bytes} bytes (a quarter of cache_memory, of which a token \
             may have 7/8)"
        )
    }
}

impl forebay_sql::SetMemory for SetMemory {
    /// Does not wait. While the budget is exceeded, no other memory is granted.
    fn take(&self, bytes: u64) -> Result<Box<dyn Any + Send + Sync>, String> {
        let part = self.memory.part(self.tenant, bytes).map_err(|refused| refused.text())?;
        let reservation = self.reservation.lock().as_mut().and_then(|held| {
            held.raise(held.bytes().saturating_add(bytes));
            held.split(bytes)
        });
        Ok(Box::new(Typed { _part: part, _reservation: reservation }))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        held.total_bytes -= self.bytes;
        let own = held.tenant_bytes.get(&self.tenant).copied().unwrap_or(0).saturating_sub(self.bytes);
        match own {
            0 => drop(held.tenant_bytes.remove(&self.tenant)),
            own => drop(held.tenant_bytes.insert(self.tenant, own)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use forebay_sql::SetMemory as _;

    use super::*;

    fn tenant(id: u64) -> Tenant {
        Tenant::new(id, NonZeroU32::MIN)
    }

    #[tokio::test]
    async fn the_sets_of_a_token_leave_memory_to_the_sets_of_others_and_to_everything_else() {
        let budget = Budget::new(3200);
        let memory = SetsMemory::of(budget.clone());
        let too_large = memory.take("ids", tenant(1), 701).await.err().unwrap();
        assert_eq!(
            too_large.to_string(),
            "values: the set ':ids' needs 701 bytes, the limit is 700: use fewer values or raise --cache-memory"
        );
        let first = memory.take("ids", tenant(1), 400).await.unwrap();
        let values = first.take(200).unwrap();
        let refused = first.take(200).err().unwrap();
        assert!(
            refused.starts_with("needs 200 bytes, and the sets in use have 600 of 700 bytes"),
            "{refused}"
        );
        let busy = memory.take("ids", tenant(1), 101).await.err().unwrap();
        assert!(matches!(busy, Error::Unavailable(_)), "{busy}");
        assert!(
            busy.to_string().contains("':ids' needs 101 bytes, and the sets in use have 600 of 700"),
            "{busy}"
        );
        assert_eq!((memory.held_bytes(), budget.reserved_bytes(), budget.tier_bytes()), (600, 600, 2600));
        let other = memory.take("ids", tenant(2), 200).await.unwrap();
        assert!(memory.take("ids", tenant(2), 1).await.is_err(), "all sets together have their quarter");
        drop(values);
        assert!(memory.take("ids", tenant(1), 100).await.is_ok());
        drop((first, other));
        assert_eq!((memory.held_bytes(), budget.reserved_bytes()), (0, 0));
    }

    #[tokio::test]
    async fn a_set_waits_for_streams_and_is_refused_for_what_lookups_hold() {
        let budget = Budget::new(2000);
        let memory = SetsMemory::of(budget.clone());
        let window = budget.reserve(1800, &[]).await.unwrap();
        let waiting = tokio::spawn({
            let memory = memory.clone();
            async move { memory.take("ids", Tenant::SERVER, 300).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(window);
        waiting.await.unwrap().unwrap();
        let mut lookups = budget.reserve(1800, &[]).await.unwrap();
        lookups.keep_outside();
        let refused = memory.take("ids", Tenant::SERVER, 300).await.err().unwrap();
        assert!(matches!(refused, Error::TooLarge { needed: 300, limit: 200, .. }), "{refused}");
        assert_eq!(memory.held_bytes(), 0);
    }
}
