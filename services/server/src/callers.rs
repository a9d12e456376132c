//! Work in progress of each caller, limited so that one caller leaves room for the others.
//!
//! A caller is a token, or a client address if the server has no tokens. Of each [`Resource`], an eighth is only for callers that
//! hold nothing of it.

mod account;

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use forebay_inference::queue::Priority;
use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

pub(crate) use account::Account;

use crate::{Error, settings::Limits};

/// Resources that callers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Open streams of training batches.
    Streams,
    /// Open DoExchange streams of lookups and of callers of queues.
    Exchanges,
    /// Open DoExchange streams of workers of queues.
    Workers,
    /// Calls that are not in the other groups. Every call is one until its kind is known.
    Calls,
    /// Subscribers of `/api/v1/live`.
    Subscribers,
    /// Bytes of requests that are being received, and of messages of DoExchange streams until the next one is read.
    IncomingBytes,
    /// Bytes of answers that clients have not received, and of requests that wait in batch queues.
    UnsentBytes,
}

impl Resource {
    const ALL: [Self; 7] = [
        Self::Streams,
        Self::Exchanges,
        Self::Workers,
        Self::Calls,
        Self::Subscribers,
        Self::IncomingBytes,
        Self::UnsentBytes,
    ];

    /// Name in metrics and in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Streams => "streams",
            Self::Exchanges => "exchanges",
            Self::Workers => "workers",
            Self::Calls => "calls",
            Self::Subscribers => "subscribers",
            Self::IncomingBytes => "incoming_bytes",
            Self::UnsentBytes => "unsent_bytes",
        }
    }

    /// Setting of the limit, and its value.
    fn limit(self, limits: &Limits) -> (&'static str, u64) {
        match self {
            Self::Streams => ("limits.max_streams", limits.max_streams as u64),
            Self::Exchanges => ("limits.max_exchanges", limits.max_exchanges as u64),
            Self::Workers => ("limits.max_workers", limits.max_workers as u64),
            Self::Calls => ("limits.max_calls", limits.max_calls as u64),
            Self::Subscribers => ("limits.max_live_subscribers", limits.max_live_subscribers as u64),
            Self::IncomingBytes => ("limits.max_incoming_bytes", limits.max_incoming_bytes),
            Self::UnsentBytes => ("limits.max_unsent_bytes", limits.max_unsent_bytes),
        }
    }
}

/// Rule for the part of a resource that remains for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reserve {
    /// An eighth of the limit.
    Normal,
    /// Half of the limit, and an eighth of the other half.
    Low,
    /// A sixteenth of the limit.
    Small,
}

impl Reserve {
    /// Part of `limit` that all callers may use, and the part of it that is only for callers that hold nothing.
    fn of(self, limit: u64) -> (u64, u64) {
        match self {
            Self::Normal => (limit, limit / 8),
            Self::Low => (limit / 2, limit / 2 / 8),
            Self::Small => (limit, limit / 16),
        }
    }
}

impl From<Priority> for Reserve {
    fn from(priority: Priority) -> Self {
        if priority == Priority::Low { Self::Low } else { Self::Normal }
    }
}

/// Maximum size of an answer for [`Callers::take_small`], in bytes.
const SMALL_BYTES: u64 = 1 << 20;

/// Identity to which work is charged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Caller {
    /// Name of a token.
    Token(String),
    /// Client address, without tokens.
    Address(IpAddr),
    /// Clients of a Unix socket, without tokens.
    Local,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name) => write!(f, "token '{name}'"),
            Self::Address(address) => address.fmt(f),
            Self::Local => f.write_str("the Unix socket"),
        }
    }
}

/// Counts of all resources. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Callers {
    shared: Arc<Shared>,
}

struct Shared {
    limits: Arc<Limits>,
    held: Mutex<Held>,
    released: Notify,
}

type Amounts = [u64; Resource::ALL.len()];

#[derive(Default)]
struct Held {
    total: Amounts,
    by_caller: HashMap<Caller, Amounts>,
}

impl Callers {
    pub(crate) fn new(limits: Arc<Limits>) -> Self {
        Self { shared: Arc::new(Shared { limits, held: Mutex::default(), released: Notify::new() }) }
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
        self.take_from(priority.into(), caller, resource, amount)
    }

    /// As [`take`](Self::take), for an answer of `bytes` bytes. An answer of at most 1 MiB may use half of what is reserved for callers
    /// that hold nothing, so that a caller whose other answers take all of its share can still ask why.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn take_small(&self, caller: &Caller, bytes: u64) -> Result<Charge, Error> {
        let reserve = if bytes <= SMALL_BYTES { Reserve::Small } else { Reserve::Normal };
        self.take_from(reserve, caller, Resource::UnsentBytes, bytes)
    }

    fn take_from(
        &self,
        reserve: Reserve,
        caller: &Caller,
        resource: Resource,
        amount: u64,
    ) -> Result<Charge, Error> {
        self.try_take(caller, resource, amount, reserve).inspect_err(|_| {
            counter!("forebay_caller_refusals_total", "resource" => resource.name()).increment(1);
        })
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
        let (_, capacity) = resource.limit(&self.shared.limits);
        let can_succeed = amount <= capacity - capacity / 8;
        loop {
            let released = self.shared.released.notified();
            let mut released = std::pin::pin!(released);
            // From here on, a release is noticed.
            released.as_mut().enable();
            match self.try_take(caller, resource, amount, Reserve::Normal) {
                Err(_) if can_succeed && timeout_at(deadline, released).await.is_ok() => {}
                Err(_) => return self.take(caller, resource, amount),
                Ok(charge) => return Ok(charge),
            }
        }
    }

    fn try_take(
        &self,
        caller: &Caller,
        resource: Resource,
        amount: u64,
        reserve: Reserve,
    ) -> Result<Charge, Error> {
        let mut held = self.shared.held.lock();
        self.check(&held, caller, resource, amount, reserve)?;
        Ok(self.add(&mut held, caller, resource, amount))
    }

    /// Charges `amount` of a resource to a caller until the charge is dropped, without a limit: what is charged is held already.
    pub(crate) fn charge(&self, caller: &Caller, resource: Resource, amount: u64) -> Charge {
        self.add(&mut self.shared.held.lock(), caller, resource, amount)
    }

    fn add(&self, held: &mut Held, caller: &Caller, resource: Resource, amount: u64) -> Charge {
        let at = resource as usize;
        held.total[at] += amount;
        held.by_caller.entry(caller.clone()).or_default()[at] += amount;
        gauge!("forebay_caller_resources", "resource" => resource.name()).set(held.total[at] as f64);
        Charge { callers: self.clone(), caller: caller.clone(), resource, amount }
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
        let (setting, limit) = resource.limit(&self.shared.limits);
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

    /// Amounts held by each caller, as (resource, amount), and the total and capacity of each resource.
    pub(crate) fn usage(&self) -> Usage {
        let held = self.shared.held.lock();
        let amounts =
            |amounts: &Amounts| Resource::ALL.map(|resource| (resource, amounts[resource as usize]));
        let mut callers: Vec<_> =
            held.by_caller.iter().map(|(caller, held)| (caller.clone(), amounts(held))).collect();
        callers.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let capacity = |resource: Resource| resource.limit(&self.shared.limits).1;
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
            let total = self.shared.held.lock().total;
            resources.iter().all(|one| total[*one as usize] == 0)
        };
        loop {
            let released = self.shared.released.notified();
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

/// Part of a resource that a caller holds. Dropping it returns it.
pub(crate) struct Charge {
    callers: Callers,
    caller: Caller,
    resource: Resource,
    amount: u64,
}

impl Charge {
    /// Held amount.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Changes the held amount to the actual one, without a limit: what is charged has already happened.
    pub(crate) fn resize(&mut self, amount: u64) {
        let at = self.resource as usize;
        let mut held = self.callers.shared.held.lock();
        held.total[at] = held.total[at] - self.amount + amount;
        let own = held.by_caller.entry(self.caller.clone()).or_default();
        own[at] = own[at] - self.amount + amount;
        gauge!("forebay_caller_resources", "resource" => self.resource.name()).set(held.total[at] as f64);
        let is_smaller = amount < self.amount;
        self.amount = amount;
        drop(held);
        if is_smaller {
            self.callers.shared.released.notify_waiters();
        }
    }

    /// Changes the held amount to `amount`, if the caller may hold the difference. Otherwise returns the error and ends the charge.
    ///
    /// # Errors
    /// As [`Callers::take`].
    pub(crate) fn resized(mut self, amount: u64) -> Result<Self, Error> {
        if amount > self.amount {
            let mut more = self.callers.take(&self.caller, self.resource, amount - self.amount)?;
            self.amount += std::mem::take(&mut more.amount);
        } else {
            self.resize(amount);
        }
        Ok(self)
    }

    /// Makes several owners hold the charge, such as the extensions of a response.
    pub(crate) fn shared(self) -> SharedCharge {
        SharedCharge(Arc::new(Mutex::new(Some(self))))
    }

    /// Takes the charge out of the extensions of a request or a response.
    pub(crate) fn from_extension(extensions: &mut http::Extensions) -> Option<Self> {
        extensions.remove::<SharedCharge>()?.0.lock().take()
    }

    fn release(&self) {
        let (at, amount) = (self.resource as usize, self.amount);
        let mut held = self.callers.shared.held.lock();
        held.total[at] -= amount;
        gauge!("forebay_caller_resources", "resource" => self.resource.name()).set(held.total[at] as f64);
        if let Some(amounts) = held.by_caller.get_mut(&self.caller) {
            amounts[at] -= amount;
            if amounts.iter().all(|amount| *amount == 0) {
                held.by_caller.remove(&self.caller);
            }
        }
        drop(held);
        self.callers.shared.released.notify_waiters();
    }
}

/// A [`Charge`] that all clones hold. It ends with the last of them.
#[derive(Clone)]
pub(crate) struct SharedCharge(Arc<Mutex<Option<Charge>>>);

impl SharedCharge {
    /// Returns a reference that does not hold the charge.
    pub(crate) fn downgrade(&self) -> WeakCharge {
        WeakCharge(Arc::downgrade(&self.0))
    }
}

/// A reference to a [`SharedCharge`] that does not hold it.
pub(crate) struct WeakCharge(Weak<Mutex<Option<Charge>>>);

impl WeakCharge {
    /// Takes the charge from its holders. Returns `None` if it has ended or was taken.
    pub(crate) fn take(&self) -> Option<Charge> {
        self.0.upgrade()?.lock().take()
    }
}

/// Charges of the messages of a streamed response. The stream and the extensions of the response share them.
#[derive(Clone, Default)]
pub(crate) struct MessageCharges(Arc<Mutex<Vec<Charge>>>);

impl MessageCharges {
    /// Makes the next message of the stream hold `charge` until it is sent.
    pub(crate) fn charge_next(&self, charge: Charge) {
        self.0.lock().push(charge);
    }

    /// Takes the charges of the messages since the last call.
    pub(crate) fn take(&self) -> Vec<Charge> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn callers(max_streams: usize) -> Callers {
        Callers::new(Arc::new(Limits { max_streams, ..Limits::default() }))
    }

    fn token(name: &str) -> Caller {
        Caller::Token(name.to_owned())
    }

    #[test]
    fn one_caller_leaves_an_eighth_to_callers_that_hold_nothing() {
        let callers = callers(16);
        let take = |name: &str| callers.take(&token(name), Resource::Streams, 1);
        let mut greedy: Vec<Charge> = (0..14).map(|_| take("greedy").unwrap()).collect();
        let refusal = take("greedy").err().unwrap();
        assert_eq!(
            refusal.message(),
            "14 streams are in use, 14 of them by token 'greedy', and 1 more exceed 14; limits.max_streams is 16; \
             2 are reserved for callers that use none"
        );
        let other = take("other").unwrap();
        assert!(take("other").is_err(), "the last place is for a third caller");
        let _third = take("third").unwrap();
        assert!(take("fourth").is_err());
        drop(other);
        greedy.pop();
        assert!(take("other").is_ok());
    }

    #[test]
    fn a_small_limit_is_used_up_by_one_caller() {
        let callers = callers(4);
        let take = || callers.take(&Caller::Local, Resource::Streams, 1);
        let _held: Vec<_> = (0..4).map(|_| take().unwrap()).collect();
        assert!(take().is_err());
    }

    #[test]
    fn nothing_is_left_of_released_charges_and_other_resources_are_apart() {
        let callers = callers(8);
        let caller = Caller::Address("10.0.0.1".parse().unwrap());
        let stream = callers.take(&caller, Resource::Streams, 1).unwrap();
        let bytes = callers.take(&caller, Resource::UnsentBytes, 10).unwrap();
        let usage = callers.usage();
        assert_eq!(usage.callers.len(), 1);
        assert_eq!(usage.callers[0].1[Resource::UnsentBytes as usize].1, 10);
        drop((stream, bytes));
        let usage = callers.usage();
        assert!(usage.callers.is_empty() && usage.totals.iter().all(|(_, total, _)| *total == 0));
    }

    #[test]
    fn a_shared_charge_ends_with_its_last_owner_and_can_be_taken_once() {
        let callers = callers(16);
        let held = || callers.usage().totals[Resource::Streams as usize].1;
        let take = || callers.take(&Caller::Local, Resource::Streams, 3).unwrap().shared();
        let (first, second) = (take(), take());
        let (clone, weak) = (first.clone(), first.downgrade());
        drop(first);
        assert_eq!(held(), 6);
        drop(clone);
        assert_eq!(held(), 3);
        assert!(weak.take().is_none());
        let (weak, other) = (second.downgrade(), second.downgrade());
        let taken = weak.take().unwrap();
        assert!(other.take().is_none());
        drop(second);
        assert_eq!(held(), 3);
        drop(taken);
        assert_eq!(held(), 0);
    }

    #[test]
    fn a_charge_grows_only_within_the_limits() {
        let callers = Callers::new(Arc::new(Limits { max_unsent_bytes: 80, ..Limits::default() }));
        let take = |amount| callers.take(&Caller::Local, Resource::UnsentBytes, amount).unwrap();
        let held = || callers.usage().totals[Resource::UnsentBytes as usize].1;
        let charge = take(40).resized(70).unwrap();
        assert_eq!(held(), 70, "7/8 of the limit");
        let charge = charge.resized(10).unwrap();
        assert_eq!(held(), 10);
        assert!(charge.resized(71).is_err());
        assert_eq!(held(), 0, "a charge that may not grow ends");
    }

    #[test]
    fn requests_of_low_priority_leave_half_to_the_others() {
        let callers = callers(16);
        let take = |priority| callers.take_for(priority, &token("one"), Resource::Streams, 1);
        let mut held: Vec<Charge> = (0..7).map(|_| take(Priority::Low).unwrap()).collect();
        let refusal = take(Priority::Low).err().unwrap();
        assert!(
            refusal.message().contains("requests of low priority may use half of it"),
            "{}",
            refusal.message()
        );
        held.extend((0..7).map(|_| take(Priority::Normal).unwrap()));
        assert!(take(Priority::Normal).is_err());
    }

    #[test]
    fn a_charge_can_be_corrected_to_the_actual_amount() {
        let callers = callers(16);
        let held = || callers.usage().totals[Resource::UnsentBytes as usize].1;
        let mut charge = callers.take(&Caller::Local, Resource::UnsentBytes, 100).unwrap();
        charge.resize(1 << 40);
        assert_eq!(held(), 1 << 40);
        assert!(callers.take(&token("other"), Resource::UnsentBytes, 1).is_err());
        charge.resize(7);
        assert_eq!(held(), 7);
        drop(charge);
        assert_eq!((held(), callers.usage().callers.len()), (0, 0));
    }

    #[test]
    fn an_amount_that_no_caller_may_hold_is_refused_without_a_time_to_retry() {
        let callers = callers(16);
        let take = |amount| callers.take(&Caller::Local, Resource::Streams, amount).err().unwrap();
        assert_eq!(
            take(15).message(),
            "15 streams exceed 14, which is what one caller may use; limits.max_streams is 16"
        );
        assert_eq!(take(15).retry_after_seconds(), None);
        let _held = callers.take(&Caller::Local, Resource::Streams, 1).unwrap();
        assert!(take(14).retry_after_seconds().is_some());
    }

    #[test]
    fn small_answers_use_half_of_the_reserve_and_large_ones_none_of_it() {
        let mib = 1 << 20;
        let callers = Callers::new(Arc::new(Limits { max_unsent_bytes: 32 * mib, ..Limits::default() }));
        let (one, other) = (token("one"), token("other"));
        let _held = callers.take(&one, Resource::UnsentBytes, 28 * mib).unwrap();
        assert!(callers.take_small(&one, mib + 1).is_err());
        let _small = [callers.take_small(&one, mib).unwrap(), callers.take_small(&one, mib).unwrap()];
        assert!(callers.take_small(&one, 1).is_err());
        assert!(callers.take(&other, Resource::UnsentBytes, 2 * mib).is_ok(), "a sixteenth remains");
    }

    #[test]
    fn what_is_held_already_is_charged_without_a_limit_and_counts_for_what_follows() {
        let callers = callers(16);
        let held = callers.charge(&token("one"), Resource::Streams, 100);
        assert!(callers.take(&token("other"), Resource::Streams, 1).is_err());
        drop(held);
        assert!(callers.take(&token("other"), Resource::Streams, 1).is_ok());
        assert!(callers.usage().callers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_waits_for_what_is_in_use_and_not_for_what_it_can_never_get() {
        let callers = callers(16);
        let minute = Duration::from_secs(60);
        let take = |amount| callers.take_within(minute, &Caller::Local, Resource::Streams, amount);
        let held = take(10).await.unwrap();
        let began = Instant::now();
        assert!(take(15).await.is_err() && began.elapsed().is_zero());
        assert!(take(5).await.is_err() && began.elapsed() == minute);
        let (charge, ()) = tokio::join!(take(14), async {
            tokio::time::sleep(minute / 2).await;
            drop(held);
        });
        assert!(charge.is_ok() && began.elapsed() == minute + minute / 2);
    }

    #[tokio::test]
    async fn the_end_of_all_calls_is_noticed() {
        let callers = callers(8);
        let _stream = callers.take(&Caller::Local, Resource::Streams, 1).unwrap();
        callers.none_running().await;
        let call = callers.take(&Caller::Local, Resource::Calls, 1).unwrap();
        let waiting = {
            let callers = callers.clone();
            tokio::spawn(async move { callers.none_running().await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(call);
        waiting.await.unwrap();
    }
}
