//! Long CPU work that is done in several turns, between which the work of others has its turns.

use std::task::Poll;

use forebay_sql::SLICE_COST;

/// Cost of the present turn of work that [`Pool::run_in_turns`](crate::Pool::run_in_turns) does.
#[derive(Debug, Default)]
pub struct TurnCost {
    /// Cost of the turn so far, in computed values.
    spent: u64,
}

impl TurnCost {
    /// Adds the cost of the next step, counted in computed values. A turn may compute four million of them, which takes some tens of
    /// milliseconds. If the turn has no room for the step, it is done in the next turn. A step larger than a turn has a turn of its own.
    pub async fn spend(&mut self, cost: u64) {
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
