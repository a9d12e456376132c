//! Thread pool for all CPU work, separate from the I/O runtime.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use forebay_storage::Compute;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use crate::{
    Error, Scheduling,
    cpu::fair_queue::{FairQueue, Flow, Priority, Turn, Urgency},
};

/// A pool of threads for decoding, transposing and gathering. Cheap to clone. Dropping the last clone drops work that
/// has not started and stops the threads.
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

struct Owner {
    queue: Arc<Queue>,
    threads: usize,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let waiting = self.queue.lock().take();
        self.queue.changed.notify_all();
        self.queue.pushed.notify_waiters();
        drop(waiting);
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Work submitted to a [`Pool`]; a future of its result.
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

/// Queue of work that has not started. Its length is bounded by the callers: each stream submits a few operations at a
/// time.
struct Queue {
    /// `None` once the pool is dropped.
    waiting: Mutex<Option<FairQueue<Work>>>,
    changed: Condvar,
    /// Notified with `changed`, for [`Pool::simulated`].
    pushed: Notify,
}

impl Queue {
    fn new() -> Self {
        let waiting = Mutex::new(Some(FairQueue::default()));
        Self { waiting, changed: Condvar::new(), pushed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<FairQueue<Work>>> {
        self.waiting.lock()
    }

    fn push(&self, priority: Priority, flow: Flow, urgency: Urgency, work: Work) {
        if let Some(waiting) = &mut *self.lock() {
            waiting.push(priority, flow, urgency, work);
        }
        self.changed.notify_one();
        self.pushed.notify_one();
    }

    /// Waits for work. Returns `None` once the pool is dropped.
    fn pop(&self) -> Option<(Work, Turn)> {
        let mut waiting = self.lock();
        loop {
            if let Some(next) = waiting.as_mut()?.pop() {
                return Some(next);
            }
            self.changed.wait(&mut waiting);
        }
    }

    fn ended(&self, turn: Turn, took: Duration) {
        if let Some(waiting) = &mut *self.lock() {
            waiting.ended(turn, took);
        }
    }
}

impl Pool {
    /// Creates a pool of `threads` threads (at least one).
    ///
    /// # Errors
    /// An error if the operating system can't start the threads, or does not support the scheduling class.
    pub fn new(threads: usize, scheduling: Scheduling) -> Result<Self, io::Error> {
        let threads = threads.max(1);
        let queue = Arc::new(Queue::new());
        // Dropping `owner` on an error stops the threads that have started.
        let owner = Arc::new(Owner { queue: Arc::clone(&queue), threads });
        let (sender, started) = mpsc::channel();
        for index in 0..threads {
            let (queue, sender) = (Arc::clone(&queue), sender.clone());
            let run = move || {
                let applied = scheduling.apply();
                let is_ready = applied.is_ok();
                drop(sender.send(applied));
                if is_ready {
                    run_queued(&queue);
                }
            };
            thread::Builder::new().name(format!("forebay-cpu-{index}")).spawn(run)?;
        }
        started.iter().take(threads).collect::<Result<(), io::Error>>()?;
        Ok(Self { owner })
    }

    /// Creates a pool without threads, whose work is done by `workers` tasks of the current runtime. Each operation takes
    /// the time that `duration` returns. For deterministic simulations.
    #[doc(hidden)]
    pub fn simulated(workers: usize, mut duration: impl FnMut() -> Duration + Send + 'static) -> Self {
        Self::simulated_by_priority(workers, move |_| duration())
    }

    /// As [`simulated`](Self::simulated), with a time for each priority: decoding is [`Priority::Background`], gathering is
    /// [`Priority::Interactive`].
    #[doc(hidden)]
    pub fn simulated_by_priority(
        workers: usize,
        duration: impl FnMut(Priority) -> Duration + Send + 'static,
    ) -> Self {
        let queue = Arc::new(Queue::new());
        let duration = Arc::new(Mutex::new(duration));
        for _ in 0..workers {
            let (queue, duration) = (Arc::clone(&queue), Arc::clone(&duration));
            tokio::spawn(async move {
                loop {
                    let pushed = queue.pushed.notified();
                    let next = match &mut *queue.lock() {
                        Some(waiting) => waiting.pop(),
                        None => return,
                    };
                    let Some((work, turn)) = next else {
                        pushed.await;
                        continue;
                    };
                    let took = (*duration.lock())(turn.priority());
                    tokio::time::sleep(took).await;
                    work();
                    queue.ended(turn, took);
                }
            });
        }
        Self { owner: Arc::new(Owner { queue, threads: workers }) }
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.owner.threads
    }

    /// Number of queued interactive operations, and of queued background operations.
    pub fn waiting(&self) -> (usize, usize) {
        self.owner.queue.lock().as_ref().map_or((0, 0), FairQueue::waiting)
    }

    /// Submits `work` immediately and returns a future of its result. Dropping the future cancels work that has not
    /// started; work that has started runs to completion.
    ///
    /// # Errors
    /// Errors of `work`, and [`Error::Internal`] if it panics or the pool has stopped.
    pub fn run<T, F>(&self, priority: Priority, work: F) -> Submitted<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Error> + Send + 'static,
    {
        self.run_for(Flow::new(), priority, work)
    }

    /// Submits `work` like [`run`](Self::run), as part of `flow`. For callers that submit several operations before the
    /// first completes.
    pub fn run_for<T, F>(&self, flow: Flow, priority: Priority, work: F) -> Submitted<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Error> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let run = move || {
            if sender.is_closed() {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)));
            drop(sender.send(result));
        };
        self.owner.queue.push(priority, flow, Urgency::Now, Box::new(run));
        Submitted { receiver }
    }

    /// Returns an executor of CPU work on metadata, such as parsing footers, as part of `flow`. Each footer is one operation, which does
    /// not end its turn early: it takes as long as parsing `storage.max_footer_bytes` at most.
    pub fn compute(&self, flow: Flow, priority: Priority) -> Compute {
        let queue = Arc::clone(&self.owner.queue);
        Compute::new(move |work| queue.push(priority, flow, Urgency::Now, work))
    }

    /// Submits `work` like [`run_for`](Self::run_for), as an operation for each of its turns. A turn ends where `work` is pending,
    /// which it may be only at the end of a turn of [`TurnClock`](crate::TurnClock). Dropping the future cancels the
    /// turns that have not started.
    pub fn run_in_turns<T, F>(&self, flow: Flow, priority: Priority, work: F) -> Submitted<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.run_in_turns_when(Urgency::Now, flow, priority, work)
    }

    /// Submits `work` like [`run_in_turns`](Self::run_in_turns). Work with [`Urgency::Later`] does not get the precedence of a new
    /// flow.
    pub(crate) fn run_in_turns_when<T, F>(
        &self,
        urgency: Urgency,
        flow: Flow,
        priority: Priority,
        work: F,
    ) -> Submitted<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let (queue, work) = (Arc::clone(&self.owner.queue), Box::pin(work));
        InTurns { queue, flow, priority, work, sender }.queue(urgency);
        Submitted { receiver }
    }
}

/// Work of which each turn is one operation on a pool: it is polled once, and queued again while it is pending.
struct InTurns<T> {
    queue: Arc<Queue>,
    flow: Flow,
    priority: Priority,
    work: Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>,
    sender: oneshot::Sender<Result<T, Error>>,
}

impl<T: Send + 'static> InTurns<T> {
    /// Queues the next turn.
    fn queue(self, urgency: Urgency) {
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
            Ok(Poll::Pending) => return self.queue(Urgency::Continued),
            Ok(Poll::Ready(result)) => result,
            Err(panic) => Err(panicked(&*panic)),
        };
        drop(self.work);
        drop(self.sender.send(result));
    }
}

fn run_queued(queue: &Queue) {
    while let Some((work, turn)) = queue.pop() {
        let started = Instant::now();
        // The work catches its own panics, but dropping a result without a receiver may panic as well.
        drop(catch_unwind(AssertUnwindSafe(work)));
        queue.ended(turn, started.elapsed());
    }
}

/// The error of work that has panicked.
fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::Internal(format!("panic: {}", text_of(panic)))
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests;
