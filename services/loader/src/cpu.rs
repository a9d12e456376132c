//! The pool on which all CPU work runs, apart from the I/O runtime.

mod crew;
mod relief;
mod scheduling;
mod share;
mod turns;

use std::{
    any::Any,
    convert::Infallible,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use crate::Error;

use crew::Crew;
use relief::Rests;
pub use scheduling::Scheduling;
pub use turns::Flow;
pub(crate) use turns::Need;
use turns::{Piece, Turns};

/// A pool of threads for decoding, transposing and gathering. Cheap to clone; when the last clone is dropped, work that has
/// not started is dropped and the threads end.
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

struct Owner {
    queue: Arc<Queue>,
    threads: usize,
    /// The threads, or the line to the one that keeps them: once it is dropped, they leave.
    _crew: Box<dyn Any + Send + Sync>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let waiting = self.queue.lock().take();
        self.queue.changed.notify_all();
        drop(waiting);
    }
}

/// Which work goes first. While both wait, the second gets an eighth of the time, so that it is done at some time.
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

/// Work that no thread has taken yet. Its length is bounded by those who wait for it: a few for each stream.
struct Queue {
    /// `None` once no more will come.
    waiting: Mutex<Option<Turns<Work>>>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Option<Turns<Work>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, priority: Priority, flow: Flow, need: Need, work: Work) {
        if let Some(waiting) = &mut *self.lock() {
            waiting.push(priority, flow, need, work);
        }
        self.changed.notify_one();
    }

    /// Waits for work; `None` once no more will come, or not for those who are dismissed.
    fn pop(&self, is_dismissed: &AtomicBool) -> Option<(Work, Piece)> {
        let mut waiting = self.lock();
        loop {
            if is_dismissed.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(next) = waiting.as_mut()?.pop() {
                return Some(next);
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn ended(&self, piece: Piece, took: Duration) {
        if let Some(waiting) = &mut *self.lock() {
            waiting.ended(piece, took);
        }
    }
}

impl Pool {
    /// A pool of `threads` threads (at least one).
    ///
    /// # Errors
    /// When the operating system gives no threads, or not with that scheduling.
    pub fn new(threads: usize, scheduling: Scheduling) -> Result<Self, io::Error> {
        Self::with_rests(threads, scheduling, Rests::default())
    }

    fn with_rests(threads: usize, scheduling: Scheduling, rests: Rests) -> Result<Self, io::Error> {
        let threads = threads.max(1);
        let queue = Arc::new(Queue { waiting: Mutex::new(Some(Turns::default())), changed: Condvar::new() });
        let crew = Crew::hire(&queue, threads, scheduling)?;
        let crew: Box<dyn Any + Send + Sync> = match scheduling {
            Scheduling::Normal => Box::new(crew),
            Scheduling::Idle => {
                let (line, ended) = mpsc::channel::<Infallible>();
                let keep = move || relief::keep(crew, rests, &ended);
                thread::Builder::new().name("forebay-relief".into()).spawn(keep)?;
                Box::new(line)
            }
        };
        Ok(Self { owner: Arc::new(Owner { queue, threads, _crew: crew }) })
    }

    /// How many threads it has.
    pub fn threads(&self) -> usize {
        self.owner.threads
    }

    /// Work that no thread has taken yet: of the first priority, and of the second.
    pub fn waiting(&self) -> (usize, usize) {
        self.owner.queue.lock().as_ref().map_or((0, 0), Turns::waiting)
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
        self.run_for(Flow::new(), priority, work)
    }

    /// As [`run`](Self::run), in the turns of `flow`: for those who hand over more before the first of it is done.
    pub fn run_for<T, F>(&self, flow: Flow, priority: Priority, work: F) -> Submitted<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Error> + Send + 'static,
    {
        self.run_when(Need::Now, flow, priority, work)
    }

    /// ... whether it is needed now, or what others need now goes before.
    pub(crate) fn run_when<T, F>(&self, need: Need, flow: Flow, priority: Priority, work: F) -> Submitted<T>
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
        self.owner.queue.push(priority, flow, need, Box::new(run));
        Submitted { receiver }
    }
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
