//! Fair queueing of CPU work.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::Priority;

/// Ratio of the time of the first priority to that of the second, while work of both is queued.
const FIRST_TO_SECOND: u32 = 7;
/// Time for which new work of the first priority runs before any of the second.
const FIRST_ALONE: Duration = Duration::from_millis(10);

/// Identifier of a flow of work, such as a stream or a job. Flows that share a pool are scheduled fairly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow(u64);

impl Flow {
    /// Returns a new, unique flow.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Urgency of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Now,
    /// The result is needed after another result that is already available.
    Later,
}

/// Queued work in scheduling order. The first priority precedes the second, except for an eighth of the time. Within a
/// priority, flows are served in turn.
pub(super) struct Turns<T> {
    first: Class<T>,
    second: Class<T>,
    /// True while an operation of the second priority runs although work of the first is queued.
    is_beside: bool,
    /// Time that the first priority gets before the next operation of the second.
    owed: Duration,
}

/// Kind of an operation, to be passed to [`Turns::ended`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    First,
    Second,
    /// Second priority, started while work of the first was queued.
    Beside,
}

/// Work of one priority. Flows are served in turn, one operation each.
///
/// A flow that had no queued work when urgent work arrived is new. New flows precede old ones but alternate with them,
/// because a constant supply of new flows would otherwise starve the old ones. The two lists are those of FQ-CoDel (RFC
/// 8290, 4.1 and 4.2), with operations in place of bytes.
struct Class<T> {
    of: HashMap<Flow, VecDeque<T>>,
    new: VecDeque<Flow>,
    /// Flows that have been served, and flows whose work is not urgent. An empty flow is removed only when its turn
    /// comes, because it would otherwise count as new each time.
    old: VecDeque<Flow>,
    was_new: bool,
    waiting: usize,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { first: Class::default(), second: Class::default(), is_beside: false, owed: FIRST_ALONE }
    }
}

impl<T> Turns<T> {
    pub(super) fn push(&mut self, priority: Priority, flow: Flow, need: Need, work: T) {
        match priority {
            Priority::First => self.first.push(flow, need, work),
            Priority::Second => self.second.push(flow, need, work),
        }
    }

    /// Returns the next operation, if any is queued.
    pub(super) fn pop(&mut self) -> Option<(T, Piece)> {
        if self.first.waiting == 0 {
            self.owed = FIRST_ALONE;
            let second = self.second.pop().map(|work| (work, Piece::Second));
            // No work of the first priority is queued; the call only removes its empty flows.
            return second.or_else(|| self.first.pop().map(|work| (work, Piece::First)));
        }
        if self.second.waiting > 0 && !self.is_beside && self.owed.is_zero() {
            self.is_beside = true;
            return self.second.pop().map(|work| (work, Piece::Beside));
        }
        self.first.pop().map(|work| (work, Piece::First))
    }

    /// Records the end of an operation that took `took`.
    pub(super) fn ended(&mut self, piece: Piece, took: Duration) {
        match piece {
            Piece::First => self.owed = self.owed.saturating_sub(took),
            Piece::Second => {}
            Piece::Beside => {
                self.is_beside = false;
                self.owed = took.saturating_mul(FIRST_TO_SECOND);
            }
        }
    }

    /// Number of queued operations of the first and of the second priority.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.first.waiting, self.second.waiting)
    }
}

impl<T> Default for Class<T> {
    fn default() -> Self {
        let (of, new, old) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        Self { of, new, old, was_new: false, waiting: 0 }
    }
}

impl<T> Class<T> {
    fn push(&mut self, flow: Flow, need: Need, work: T) {
        self.waiting += 1;
        let list = match need {
            Need::Now => &mut self.new,
            Need::Later => &mut self.old,
        };
        let of_flow = self.of.entry(flow).or_insert_with(|| {
            list.push_back(flow);
            VecDeque::new()
        });
        of_flow.push_back(work);
    }

    fn pop(&mut self) -> Option<T> {
        let popped = if self.was_new {
            self.pop_old().or_else(|| self.pop_new())
        } else {
            self.pop_new().or_else(|| self.pop_old())
        };
        self.waiting -= usize::from(popped.is_some());
        popped
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
