//! The pool on which all CPU work runs, apart from the I/O runtime.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use crate::Error;

/// A pool of threads for decoding, transposing and gathering. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    threads: Arc<rayon::ThreadPool>,
    waiting: Arc<Waiting>,
}

/// Which work goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Short, and a consumer may be waiting for it: gathering a batch, resolving a request.
    First,
    /// Long, and often made ahead: decoding a block.
    Second,
}

type Work = Box<dyn FnOnce() + Send>;

/// Work that was handed to a [`Pool`]: a future of its result.
pub struct Submitted<T> {
    receiver: oneshot::Receiver<Result<T, Error>>,
}

impl<T> Future for Submitted<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let stopped = |_| Err(Error::Internal("the CPU pool has stopped".into()));
        Pin::new(&mut self.receiver).poll(context).map(|result| result.unwrap_or_else(stopped))
    }
}

/// Work that no thread has taken yet, first come first served within a priority. Its length is bounded by
/// those who wait for it: a few for each stream.
#[derive(Default)]
struct Waiting {
    first: Mutex<VecDeque<Work>>,
    second: Mutex<VecDeque<Work>>,
}

impl Waiting {
    fn push(&self, priority: Priority, work: Work) {
        let queue = match priority {
            Priority::First => &self.first,
            Priority::Second => &self.second,
        };
        queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(work);
    }

    fn pop(&self) -> Option<Work> {
        let take =
            |queue: &Mutex<VecDeque<Work>>| queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        take(&self.first).or_else(|| take(&self.second))
    }
}

impl Pool {
    /// A pool of `threads` threads (at least one).
    ///
    /// # Errors
    /// When the operating system gives no threads.
    pub fn new(threads: usize) -> Result<Self, std::io::Error> {
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|index| format!("forebay-cpu-{index}"))
            .build()
            .map_err(std::io::Error::other)?;
        Ok(Self { threads: Arc::new(threads), waiting: Arc::default() })
    }

    /// Runs `work` on the pool, from the call on; what is returned waits for it. Work of which nobody waits
    /// for the result before it starts is dropped; work that has started runs to its end.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Internal`] when it panics.
    pub fn run<T, F>(&self, priority: Priority, work: F) -> Submitted<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Error> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let run = move || {
            if sender.is_closed() {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(work))
                .unwrap_or_else(|panic| Err(Error::Internal(format!("panic: {}", text_of(&*panic)))));
            drop(sender.send(result));
        };
        self.waiting.push(priority, Box::new(run));
        let waiting = Arc::clone(&self.waiting);
        // One turn for each piece of work, but whoever has the turn takes what goes first.
        self.threads.spawn_fifo(move || {
            if let Some(work) = waiting.pop() {
                work();
            }
        });
        Submitted { receiver }
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests;
