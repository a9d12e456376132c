//! The pool on which all CPU work runs, apart from the I/O runtime.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::sync::oneshot;

use crate::Error;

/// A pool of threads for decoding, transposing and gathering. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    threads: Arc<rayon::ThreadPool>,
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
        Ok(Self { threads: Arc::new(threads) })
    }

    /// Runs `work` on the pool, first come first served. Work whose caller has gone before it starts
    /// is dropped; work that has started runs to its end.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Internal`] when it panics.
    pub async fn run<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Error> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        self.threads.spawn_fifo(move || {
            if sender.is_closed() {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(work))
                .unwrap_or_else(|panic| Err(Error::Internal(format!("panic: {}", text_of(&*panic)))));
            drop(sender.send(result));
        });
        receiver.await.unwrap_or_else(|_| Err(Error::Internal("the CPU pool has stopped".into())))
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
