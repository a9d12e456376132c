//! Amounts of resources that callers hold, and the check of the limits.

use std::{collections::HashMap, sync::Arc};

use metrics::{counter, gauge};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, futures::Notified};

use super::{
    caller::Caller,
    resource::{Reserve, Resource},
};
use crate::{Error, settings::Limits};

/// Amount of each resource, in the order of [`Resource::ALL`].
pub(super) type Amounts = [u64; Resource::ALL.len()];

/// The amounts that all callers hold at a time.
#[derive(Default)]
pub(super) struct Held {
    pub(super) total: Amounts,
    pub(super) by_caller: HashMap<Caller, Amounts>,
}

/// Amounts that callers hold, with their limits.
pub(super) struct HeldAmounts {
    pub(super) limits: Arc<Limits>,
    held: Mutex<Held>,
    released: Notify,
}

impl HeldAmounts {
    pub(super) fn new(limits: Arc<Limits>) -> Self {
        Self { limits, held: Mutex::default(), released: Notify::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    /// Waits until a caller holds less than before.
    pub(super) fn released(&self) -> Notified<'_> {
        self.released.notified()
    }

    /// Adds `amount` of a resource to what `caller` holds. A refusal is counted in the metrics.
    ///
    /// # Errors
    /// As [`try_add`](Self::try_add).
    pub(super) fn add_or_refuse(
        &self,
        caller: &Caller,
        resource: Resource,
        amount: u64,
        reserve: Reserve,
    ) -> Result<(), Error> {
        self.try_add(caller, resource, amount, reserve).inspect_err(|_| {
            counter!("forebay_caller_refusals_total", "resource" => resource.name()).increment(1);
        })
    }

    /// Adds `amount` of a resource to what `caller` holds.
    ///
    /// # Errors
    /// If the limits do not permit it: a limit error without `retry-after` if `amount` alone is more than one caller may hold, otherwise
    /// busy.
    pub(super) fn try_add(
        &self,
        caller: &Caller,
        resource: Resource,
        amount: u64,
        reserve: Reserve,
    ) -> Result<(), Error> {
        let mut held = self.held.lock();
        self.check(&held, caller, resource, amount, reserve)?;
        replace(&mut held, caller, resource, 0, amount);
        Ok(())
    }

    /// Replaces `before` of a resource by `after` in what `caller` holds, without a check of the limits.
    pub(super) fn replace(&self, caller: &Caller, resource: Resource, before: u64, after: u64) {
        replace(&mut self.held.lock(), caller, resource, before, after);
        if after < before {
            self.released.notify_waiters();
        }
    }

    /// Checks whether `caller` may hold `amount` more.
    fn check(
        &self,
        held: &Held,
        caller: &Caller,
        resource: Resource,
        amount: u64,
        reserve: Reserve,
    ) -> Result<(), Error> {
        let (setting, limit) = resource.limit(&self.limits);
        let (capacity, reserved) = reserve.of(limit);
        let (total, at) = (held.total[resource as usize], resource as usize);
        let own = held.by_caller.get(caller).map_or(0, |amounts| amounts[at]);
        let share = capacity - reserved;
        let room = if own > 0 { share } else { capacity };
        if total.saturating_add(amount) <= room && own.saturating_add(amount) <= share {
            return Ok(());
        }
        let name = resource.name();
        let half = if reserve == Reserve::Low { "; requests of low priority may use half of it" } else { "" };
        if amount > share {
            return Err(Error::limit(format!(
                "{amount} {name} exceed {share}, which is what one caller may use; {setting} is {limit}{half}"
            )));
        }
        Err(Error::busy(format!(
            "{total} {name} are in use, {own} of them by {caller}, and {amount} more exceed {room}; {setting} is \
             {limit}{half}; {reserved} are reserved for callers that use none"
        )))
    }
}

fn replace(held: &mut Held, caller: &Caller, resource: Resource, before: u64, after: u64) {
    let at = resource as usize;
    held.total[at] = held.total[at] - before + after;
    gauge!("forebay_caller_resources", "resource" => resource.name()).set(held.total[at] as f64);
    let own = held.by_caller.entry(caller.clone()).or_default();
    own[at] = own[at] - before + after;
    if own.iter().all(|amount| *amount == 0) {
        held.by_caller.remove(caller);
    }
}
