//! Long CPU work that is done in several turns, between which the work of others has its turns.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use forebay_sql::SLICE_COST;
use tokio::sync::oneshot;

use super::{
    fair_queue::{Flow, Priority, Urgency},
    pool::{Queue, panicked},
};
use crate::Error;

/// Work of which each turn is one operation on a pool: it is polled once, and queued again while it is pending.
pub(super) struct InTurns<T> {
    pub(super) queue: Arc<Queue>,
    pub(super) flow: Flow,
    pub(super) priority: Priority,
    pub(super) work: Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>,
    pub(super) sender: oneshot::Sender<Result<T, Error>>,
}

impl<T: Send + 'static> InTurns<T> {
    /// Queues the next turn.
    pub(super) fn queue(self, urgency: Urgency) {
        let queue = Arc::clone(&self.queue);
        queue.push(self.priority, self.flow, urgency, Box::new(move || self.turn()));
    }

    fn turn(mut self) {
        if self.sender.is_closed() {
            return;
        }
        // The work is pending only at the end of a turn, so that nothing has to wake it.
        let mut context = Context::from_waker(Waker::noop());
        let polled = catch_unwind(AssertUnwindSafe(|| self.work.as_mut().poll(&mut context)));
        let result = match polled {
            // The flow has had its turn, so it is not a new one.
            Ok(Poll::Pending) => return self.queue(Urgency::Later),
            Ok(Poll::Ready(result)) => result,
            Err(panic) => Err(panicked(&*panic)),
        };
        drop(self.work);
        drop(self.sender.send(result));
    }
}

/// Cost of the present turn of work that [`Pool::run_in_turns`](crate::Pool) does.
#[derive(Debug, Default)]
pub(crate) struct TurnCost {
    /// Cost of the turn so far, in computed values.
    spent: u64,
}

impl TurnCost {
    /// Adds the cost of the next step. If the turn has no room for it, the step is done in the next turn. A step that is larger than
    /// a turn is alone in its turn.
    pub(crate) async fn spend(&mut self, cost: u64) {
        if self.spent > 0 && self.spent.saturating_add(cost) > SLICE_COST {
            self.spent = 0;
            let mut has_ended = false;
            std::future::poll_fn(|_| match std::mem::replace(&mut has_ended, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        }
        self.spent = self.spent.saturating_add(cost);
    }
}

#[cfg(test)]
mod tests;
