//! Long CPU work that is done in several turns, between which the work of others has its turns.

use std::{task::Poll, time::Duration};

use forebay_sql::SLICE_COST;
use tokio::time::Instant;

/// Time after which a turn ends, as soon as the current step of its work has ended.
const TURN_TIME: Duration = Duration::from_millis(5);
/// Number of handled bytes after which the time is read again. Copying them takes some 10 us, reading the time some 50 ns.
const TIMED_BYTES: usize = 128 << 10;

/// Clock of the present turn of work that [`Pool::run_in_turns`](crate::Pool::run_in_turns) does. It ends a turn after 5 ms, between
/// two steps of the work, such as chunks of rows.
#[derive(Debug)]
pub struct TurnClock {
    /// Start of the turn; `None` if turns do not end.
    began: Option<Instant>,
    /// Time after which a turn ends.
    time: Duration,
    /// Cost of the turn so far, in computed values.
    spent: u64,
    /// Bytes handled since the time was read.
    handled: usize,
}

impl Default for TurnClock {
    fn default() -> Self {
        Self::start()
    }
}

impl TurnClock {
    /// Starts the first turn.
    pub fn start() -> Self {
        Self::of_turns(TURN_TIME)
    }

    /// Starts the first of turns that end after `time`.
    pub(crate) fn of_turns(time: Duration) -> Self {
        Self { began: Some(Instant::now()), time, spent: 0, handled: 0 }
    }

    /// A clock that ends no turn, for work that is done at once.
    pub fn stopped() -> Self {
        Self { began: None, time: TURN_TIME, spent: 0, handled: 0 }
    }

    /// Ends the turn if it has lasted for 5 ms.
    pub async fn step(&mut self) {
        self.handled = 0;
        if self.began.is_some_and(|began| began.elapsed() >= self.time) {
            self.end().await;
        }
    }

    /// Adds the size of a step that copies or examines `bytes` bytes. Ends the turn after the step if it has lasted for 5 ms. For short
    /// steps: the time is not read after each of them.
    pub(crate) async fn handled(&mut self, bytes: usize) {
        self.handled = self.handled.saturating_add(bytes);
        if self.handled >= TIMED_BYTES {
            self.step().await;
        }
    }

    /// Adds the cost of the next step, counted in computed values. A turn may compute four million of them, which takes some tens of
    /// milliseconds. If the turn has no room for the step, or has lasted for 5 ms, the step is done in the next turn. A step larger than a
    /// turn has a turn of its own.
    pub async fn spend(&mut self, cost: u64) {
        if self.began.is_some() && self.spent > 0 && self.spent.saturating_add(cost) > SLICE_COST {
            self.end().await;
        } else {
            self.step().await;
        }
        self.spent = self.spent.saturating_add(cost);
    }

    async fn end(&mut self) {
        let mut has_ended = false;
        std::future::poll_fn(|_| match std::mem::replace(&mut has_ended, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        *self = Self::of_turns(self.time);
    }
}

#[cfg(test)]
mod tests;
