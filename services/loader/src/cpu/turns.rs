//! Whose work is next.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::Priority;

/// While work of both priorities waits, so many times as much time goes to the first as to the second.
const FIRST_TO_SECOND: u32 = 7;
/// For so long work of the first priority goes alone once there is some.
const FIRST_ALONE: Duration = Duration::from_millis(10);

/// Whose work it is: a stream's, a job's. Those that share a pool take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow(u64);

impl Flow {
    /// Another one than all before.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whether somebody has to wait for a piece of work now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Now,
    /// What it makes is needed after something that is ready.
    Later,
}

/// What waits, in the order in which it goes: the first priority before the second, but for an eighth of the time, and within a
/// priority flow by flow.
pub(super) struct Turns<T> {
    first: Class<T>,
    second: Class<T>,
    /// Whether a piece of the second priority runs while some of the first wait.
    is_beside: bool,
    /// The time that the first priority gets before the next one of the second.
    owed: Duration,
}

/// What a piece of work is, to be told when it has [ended](Turns::ended).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    First,
    Second,
    /// Of the second priority, while some of the first waited.
    Beside,
}

/// Work of one priority. The flows take turns of one piece each; those of which nothing waited when somebody came to need a piece
/// come first, in turn with the others, lest many of them hold those up. These two lists are FQ-CoDel's (RFC 8290, 4.1 and 4.2),
/// with pieces for bytes.
struct Class<T> {
    of: HashMap<Flow, VecDeque<T>>,
    new: VecDeque<Flow>,
    /// Those that had a turn, and those of which nothing is needed now. One of which nothing waits is forgotten when it would
    /// have the next turn, not before, lest it come as a new one again and again.
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

    /// The next piece, if any waits.
    pub(super) fn pop(&mut self) -> Option<(T, Piece)> {
        if self.first.waiting == 0 {
            self.owed = FIRST_ALONE;
            let second = self.second.pop().map(|work| (work, Piece::Second));
            // There is none; but flows are forgotten.
            return second.or_else(|| self.first.pop().map(|work| (work, Piece::First)));
        }
        if self.second.waiting > 0 && !self.is_beside && self.owed.is_zero() {
            self.is_beside = true;
            return self.second.pop().map(|work| (work, Piece::Beside));
        }
        self.first.pop().map(|work| (work, Piece::First))
    }

    /// A piece has ended, after so long.
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

    /// How much waits: of the first priority, and of the second.
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
