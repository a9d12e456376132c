//! Where the CPU work of this crate runs, and for whom.

use std::{fmt, sync::Arc};

use tokio::sync::oneshot;

use crate::{
    Error,
    blocking::{blocking, stopping},
};

/// Operation of CPU work. An executor may drop it if the process stops.
pub type Work = Box<dyn FnOnce() + Send>;

/// Executor of CPU work, such as parsing a footer, for one tenant or flow. Cheap to clone.
///
/// The default one is Tokio's blocking threads, without turns.
#[derive(Clone, Default)]
pub struct Compute(Option<Arc<dyn Fn(Work) + Send + Sync>>);

impl Compute {
    /// Creates an executor that queues work with `submit`, which must not wait.
    pub fn new(submit: impl Fn(Work) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(submit)))
    }

    /// Runs `work`. If the returned future is dropped, `work` is cancelled if it has not started, and runs to completion otherwise.
    ///
    /// # Errors
    /// The error of `work`, or [`Error::Unavailable`] if the executor stops.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let Some(submit) = &self.0 else { return blocking(work).await };
        let (sender, receiver) = oneshot::channel();
        submit(Box::new(move || {
            if !sender.is_closed() {
                drop(sender.send(work()));
            }
        }));
        receiver.await.unwrap_or_else(|dropped| Err(stopping(dropped)))
    }
}

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Compute" } else { "Compute of blocking threads" })
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, poll};
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn work_whose_result_is_not_awaited_is_not_started_and_a_stopped_executor_is_unavailable() {
        let queued: Arc<Mutex<Vec<Work>>> = Arc::default();
        let queue = Arc::clone(&queued);
        let compute = Compute::new(move |work| queue.lock().push(work));
        let next = || queued.lock().pop().unwrap();

        let mut result = Box::pin(compute.run(|| Ok(7)));
        assert!(poll!(&mut result).is_pending());
        next()();
        assert_eq!(result.await.unwrap(), 7);

        let mut abandoned = Box::pin(compute.run(|| -> Result<(), Error> { panic!("not started") }));
        assert!(poll!(&mut abandoned).is_pending());
        drop(abandoned);
        next()();

        let mut stopped = Box::pin(compute.run(|| Ok(())));
        assert!(poll!(&mut stopped).is_pending());
        drop(next());
        assert!(matches!(stopped.now_or_never(), Some(Err(Error::Unavailable { .. }))));
    }
}
