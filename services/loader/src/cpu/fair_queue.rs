//! Fair queueing of CPU work.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use forebay_cache::Tenant;

use super::shares::Shares;

/// Ratio of the time of interactive work to that of background work, while both are queued.
const INTERACTIVE_RATIO: u32 = 7;
/// Head start of interactive work before background work gets its share.
const INTERACTIVE_ALONE: Duration = Duration::from_millis(10);

/// Identifier of a flow of work, such as a stream or a job, with its tenant. Tenants share a pool by weight, and the flows of a
/// tenant are served in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    id: u64,
    tenant: Tenant,
}

impl Flow {
    /// Returns a new, unique flow of [`Tenant::SERVER`].
    #[expect(clippy::new_without_default, reason = "each call returns a different flow")]
    pub fn new() -> Self {
        Self::of(Tenant::SERVER)
    }

    /// Returns a new, unique flow of `tenant`.
    pub fn of(tenant: Tenant) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), tenant }
    }

    /// Returns the number of the flow.
    pub(crate) fn id(self) -> u64 {
        self.id
    }

    /// Returns the tenant whose work this is.
    pub(crate) fn tenant(self) -> Tenant {
        self.tenant
    }
}

/// Priority class of work. While work of both classes is queued, background work gets an eighth of the time, so
/// that it cannot starve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Short work that a consumer may be waiting for: gathering a batch, resolving a request.
    Interactive,
    /// Long work that is often prefetched: decoding a block.
    Background,
}

/// Urgency of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Now,
    /// The work is not urgent: its consumer has another result to use first.
    Later,
    /// The work has already had a turn. It precedes the other work of its flow, so that the work of a flow ends in the order in which it
    /// was queued.
    Continued,
}

/// Queued work in scheduling order. Interactive work precedes background work, except for an eighth of the time. Within
/// a priority, the tenant with the least CPU time in relation to its weight comes first, and its flows are served in turn.
pub(crate) struct FairQueue<T> {
    interactive: Class<T>,
    background: Class<T>,
    /// True while a background operation runs although interactive work is queued.
    has_share: bool,
    /// Time that interactive work gets before the next background operation.
    owed: Duration,
}

/// A started operation, to be passed to [`FairQueue::ended`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    kind: Kind,
    /// Id of the tenant.
    tenant: u64,
}

impl Turn {
    /// Priority of the operation.
    pub(crate) fn priority(self) -> Priority {
        match self.kind {
            Kind::Interactive => Priority::Interactive,
            Kind::Background | Kind::Share => Priority::Background,
        }
    }
}

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Interactive,
    Background,
    /// Background work that was started while interactive work was queued.
    Share,
}

/// Work of one priority.
struct Class<T> {
    /// Work of each tenant that has some, by its id.
    of: BTreeMap<u64, Turns<T>>,
    /// Tenants share the time of each priority. With one account for both, a tenant that only decodes would starve others.
    shares: Shares,
    waiting: usize,
}

/// Work of one tenant and priority. Flows are served in turn, one operation each.
///
/// A flow is new if urgent work arrives for it while it is in neither list. New flows precede old ones but alternate with them,
/// because a constant supply of new flows would otherwise starve the old ones. The two lists are those of FQ-CoDel (RFC
/// 8290, 4.1 and 4.2), with operations in place of bytes.
struct Turns<T> {
    of: HashMap<Flow, VecDeque<T>>,
    new: VecDeque<Flow>,
    /// Flows that have been served, and flows whose work is not urgent. An empty flow is removed only when its turn
    /// comes, because it would otherwise count as new each time.
    old: VecDeque<Flow>,
    was_new: bool,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            interactive: Class::default(),
            background: Class::default(),
            has_share: false,
            owed: INTERACTIVE_ALONE,
        }
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn push(&mut self, priority: Priority, flow: Flow, urgency: Urgency, work: T) {
        match priority {
            Priority::Interactive => self.interactive.push(flow, urgency, work),
            Priority::Background => self.background.push(flow, urgency, work),
        }
    }

    /// Returns the next operation, if any is queued.
    pub(crate) fn pop(&mut self) -> Option<(T, Turn)> {
        if self.waiting() == (0, 0) {
            // Only flows without work are left.
            self.interactive.of.clear();
            self.background.of.clear();
            self.owed = INTERACTIVE_ALONE;
            return None;
        }
        let kind = self.next_kind();
        let class = if kind == Kind::Interactive { &mut self.interactive } else { &mut self.background };
        let (tenant, work) = class.pop()?;
        Some((work, Turn { kind, tenant }))
    }

    fn next_kind(&mut self) -> Kind {
        if self.interactive.waiting == 0 {
            self.owed = INTERACTIVE_ALONE;
            return Kind::Background;
        }
        if self.background.waiting > 0 && !self.has_share && self.owed.is_zero() {
            self.has_share = true;
            return Kind::Share;
        }
        Kind::Interactive
    }

    /// Records the end of an operation that took `took`.
    pub(crate) fn ended(&mut self, turn: Turn, took: Duration) {
        match turn.kind {
            Kind::Interactive => {
                self.interactive.shares.ended(turn.tenant, took);
                self.owed = self.owed.saturating_sub(took);
            }
            Kind::Background => self.background.shares.ended(turn.tenant, took),
            Kind::Share => {
                self.background.shares.ended(turn.tenant, took);
                self.has_share = false;
                self.owed = took.saturating_mul(INTERACTIVE_RATIO);
            }
        }
    }

    /// Number of queued interactive operations, and of queued background operations.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.interactive.waiting, self.background.waiting)
    }
}

impl<T> Default for Class<T> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), shares: Shares::default(), waiting: 0 }
    }
}

impl<T> Class<T> {
    fn push(&mut self, flow: Flow, urgency: Urgency, work: T) {
        self.waiting += 1;
        self.shares.queued(flow.tenant);
        self.of.entry(flow.tenant.id()).or_default().push(flow, urgency, work);
    }

    /// Returns the next operation and the id of its tenant.
    fn pop(&mut self) -> Option<(u64, T)> {
        loop {
            let tenant = self.of.keys().copied().min_by_key(|tenant| self.shares.rank(*tenant))?;
            let popped = self.of.get_mut(&tenant).and_then(Turns::pop);
            let Some(work) = popped else {
                // Only flows without work were left.
                self.of.remove(&tenant);
                continue;
            };
            self.waiting -= 1;
            self.shares.started(tenant);
            return Some((tenant, work));
        }
    }
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { of: HashMap::new(), new: VecDeque::new(), old: VecDeque::new(), was_new: false }
    }
}

impl<T> Turns<T> {
    fn push(&mut self, flow: Flow, urgency: Urgency, work: T) {
        let list = match urgency {
            Urgency::Now => &mut self.new,
            Urgency::Later | Urgency::Continued => &mut self.old,
        };
        let of_flow = self.of.entry(flow).or_insert_with(|| {
            list.push_back(flow);
            VecDeque::new()
        });
        match urgency {
            Urgency::Now | Urgency::Later => of_flow.push_back(work),
            Urgency::Continued => of_flow.push_front(work),
        }
    }

    fn pop(&mut self) -> Option<T> {
        if self.was_new {
            self.pop_old().or_else(|| self.pop_new())
        } else {
            self.pop_new().or_else(|| self.pop_old())
        }
    }

    fn pop_new(&mut self) -> Option<T> {
        let flow = self.new.pop_front()?;
        self.was_new = true;
        self.old.push_back(flow);
        self.of.get_mut(&flow)?.pop_front()
    }

    fn pop_old(&mut self) -> Option<T> {
        self.was_new = false;
        while let Some(flow) = self.old.pop_front() {
            if let Some(work) = self.of.get_mut(&flow).and_then(VecDeque::pop_front) {
                self.old.push_back(flow);
                return Some(work);
            }
            self.of.remove(&flow);
        }
        None
    }
}

#[cfg(test)]
mod tests;
