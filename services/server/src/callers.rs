//! Work in progress of each caller, limited so that one caller leaves room for the others.
//!
//! A caller is a token, or a client address if the server has no tokens. Of each [`Resource`], an eighth is only for callers that
//! hold nothing of it. [`Permits`] limit operations for which callers queue.

mod account;
mod caller;
mod charge;
mod held;
mod permits;
mod resource;

use std::{sync::Arc, time::Duration};

use forebay_inference::queue::Priority;
use tokio::time::{Instant, timeout_at};

pub(crate) use account::Account;
pub(crate) use caller::Caller;
pub(crate) use charge::{Charge, MessageCharges, SharedCharge, WeakCharge};
use held::{Amounts, HeldAmounts};
pub(crate) use permits::Permits;
use resource::Reserve;
pub(crate) use resource::Resource;

use crate::{Error, settings::Limits};

/// Maximum size of an answer for [`Callers::take_small`], in bytes.
const SMALL_BYTES: u64 = 1 << 20;

/// Counts of all resources. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Callers {
    held: Arc<HeldAmounts>,
}

impl Callers {
    pub(crate) fn new(limits: Arc<Limits>) -> Self {
        Self { held: Arc::new(HeldAmounts::new(limits)) }
    }

    /// Charges `amount` of a resource to a caller until the charge is dropped.
    ///
    /// # Errors
    /// Busy, if the caller would hold more than 7/8 of the limit, or if all callers together would hold more than the
    /// limit (more than 7/8 of it if the caller holds some already). A limit error without `retry-after`, if `amount`
    /// is more than one caller may hold.
    pub(crate) fn take(&self, caller: &Caller, resource: Resource, amount: u64) -> Result<Charge, Error> {
        self.take_for(Priority::Normal, caller, resource, amount)
    }

    /// As [`take`](Self::take), for a request of a priority. Requests of low priority are refused from half of the limit on, so that
    /// the other half remains for the others.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn take_for(
        &self,
        priority: Priority,
        caller: &Caller,
        resource: Resource,
        amount: u64,
    ) -> Result<Charge, Error> {
        self.held.add_or_refuse(caller, resource, amount, priority.into())?;
        Ok(self.added(caller, resource, amount))
    }

    /// As [`take`](Self::take), for an answer of `bytes` bytes. An answer of at most 1 MiB may use half of what is reserved for callers
    /// that hold nothing, so that a caller whose other answers take all of its share can still query the status.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn take_small(&self, caller: &Caller, bytes: u64) -> Result<Charge, Error> {
        let reserve = if bytes <= SMALL_BYTES { Reserve::Small } else { Reserve::Normal };
        self.held.add_or_refuse(caller, Resource::UnsentBytes, bytes, reserve)?;
        Ok(self.added(caller, Resource::UnsentBytes, bytes))
    }

    /// As [`take`](Self::take), but waits for up to `limit` until enough is free. Cancel safe.
    ///
    /// # Errors
    /// As [`take`](Self::take), at once if the amount exceeds what one caller may use.
    pub(crate) async fn take_within(
        &self,
        limit: Duration,
        caller: &Caller,
        resource: Resource,
        amount: u64,
    ) -> Result<Charge, Error> {
        let deadline = Instant::now() + limit;
        let (_, capacity) = resource.limit(&self.held.limits);
        let can_succeed = amount <= capacity - capacity / 8;
        loop {
            let released = self.held.released();
            let mut released = std::pin::pin!(released);
            // From here on, a release is noticed.
            released.as_mut().enable();
            match self.held.try_add(caller, resource, amount, Reserve::Normal) {
                Err(_) if can_succeed && timeout_at(deadline, released).await.is_ok() => {}
                Err(_) => return self.take(caller, resource, amount),
                Ok(()) => return Ok(self.added(caller, resource, amount)),
            }
        }
    }

    /// Charges `amount` of a resource to a caller until the charge is dropped, without a limit: what is charged is held already.
    pub(crate) fn charge(&self, caller: &Caller, resource: Resource, amount: u64) -> Charge {
        self.held.replace(caller, resource, 0, amount);
        self.added(caller, resource, amount)
    }

    /// The charge of an amount that was added.
    fn added(&self, caller: &Caller, resource: Resource, amount: u64) -> Charge {
        Charge { held: Arc::clone(&self.held), caller: caller.clone(), resource, amount }
    }

    /// Amounts held by each caller, as (resource, amount), and the total and capacity of each resource.
    pub(crate) fn usage(&self) -> Usage {
        let held = self.held.lock();
        let amounts =
            |amounts: &Amounts| Resource::ALL.map(|resource| (resource, amounts[resource as usize]));
        let mut callers: Vec<_> =
            held.by_caller.iter().map(|(caller, held)| (caller.clone(), amounts(held))).collect();
        callers.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let capacity = |resource: Resource| resource.limit(&self.held.limits).1;
        let totals = amounts(&held.total).map(|(resource, total)| (resource, total, capacity(resource)));
        Usage { callers, totals }
    }

    /// Waits until no call, exchange or worker is running. Streams, subscribers and bytes do not count.
    pub(crate) async fn none_running(&self) {
        self.none_held(&[Resource::Exchanges, Resource::Workers, Resource::Calls]).await;
    }

    /// Waits until no subscriber is connected.
    pub(crate) async fn none_subscribed(&self) {
        self.none_held(&[Resource::Subscribers]).await;
    }

    /// Waits until no caller holds any of these resources.
    async fn none_held(&self, resources: &[Resource]) {
        let is_idle = || {
            let total = self.held.lock().total;
            resources.iter().all(|one| total[*one as usize] == 0)
        };
        loop {
            let released = self.held.released();
            if is_idle() {
                return;
            }
            released.await;
        }
    }
}

/// Amounts of all resources.
pub(crate) struct Usage {
    /// Amounts of each caller that holds something.
    pub(crate) callers: Vec<(Caller, [(Resource, u64); Resource::ALL.len()])>,
    /// Amount in use and capacity of each resource.
    pub(crate) totals: [(Resource, u64, u64); Resource::ALL.len()],
}

#[cfg(test)]
mod tests;
