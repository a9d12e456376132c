//! Handle of an admitted request.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Answer, Failure, RequestId, state::Shared};

/// An admitted request. Dropping it cancels the request.
pub struct PendingRequest<P: Clone, R> {
    pub(super) shared: Arc<Shared<P, R>>,
    pub(super) id: RequestId,
    pub(super) receiver: oneshot::Receiver<Result<Answer<R>, Failure>>,
}

impl<P: Clone, R> PendingRequest<P, R> {
    /// Waits for the answer. Dropping the future cancels the request.
    ///
    /// # Errors
    /// Any [`Failure`] but a refusal.
    pub async fn answer(mut self) -> Result<Answer<R>, Failure> {
        let answer = (&mut self.receiver).await;
        answer.unwrap_or_else(|_| Err(Failure::Failed("the queue was closed".into())))
    }
}

impl<P: Clone, R> Drop for PendingRequest<P, R> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if state.take(self.id).is_some() {
            state.batcher.cancel(self.shared.now(), self.id);
            self.shared.count("cancelled", &mut state.outcomes.cancelled);
            self.shared.dispatch(&mut state);
        }
    }
}
