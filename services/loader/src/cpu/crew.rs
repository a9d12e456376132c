//! The threads that serve a queue at a time.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use super::{Queue, Scheduling, share::Share};

/// Threads that serve a queue. Dropped, they leave, each after the piece of work it is at.
pub(super) struct Crew {
    queue: Arc<Queue>,
    threads: usize,
    is_dismissed: Arc<AtomicBool>,
    /// Those of idle threads; normal ones are not looked at.
    shares: Vec<Share>,
    /// How many threads there are to a processor.
    rivals: u32,
}

impl Crew {
    /// Has `threads` threads with that scheduling serve the queue.
    pub(super) fn hire(
        queue: &Arc<Queue>,
        threads: usize,
        scheduling: Scheduling,
    ) -> Result<Self, io::Error> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let mut crew = Self {
            queue: Arc::clone(queue),
            threads,
            is_dismissed: Arc::default(),
            shares: Vec::new(),
            rivals: u32::try_from(threads.div_ceil(processors)).unwrap_or(u32::MAX),
        };
        let (sender, begun) = mpsc::channel();
        for index in 0..threads {
            let (queue, is_dismissed, sender) =
                (Arc::clone(queue), Arc::clone(&crew.is_dismissed), sender.clone());
            let run = move || {
                let share = scheduling.apply();
                let stands_so = share.is_ok();
                drop(sender.send(share));
                drop(sender);
                if stands_so {
                    serve(&queue, &is_dismissed);
                }
            };
            thread::Builder::new().name(format!("forebay-cpu-{index}")).spawn(run)?;
        }
        drop(sender);
        for share in begun {
            crew.shares.extend(share?);
        }
        Ok(crew)
    }

    /// As many threads with that scheduling, for the same queue; these go on until this is dropped.
    pub(super) fn hire_others(&self, scheduling: Scheduling) -> Result<Self, io::Error> {
        Self::hire(&self.queue, self.threads, scheduling)
    }

    /// How many of its threads are idle ones.
    pub(super) fn idle_threads(&self) -> usize {
        self.shares.len()
    }

    /// Looks at its idle threads: whether one of them has starved.
    pub(super) fn is_starved(&mut self) -> bool {
        self.shares.iter_mut().any(|share| share.is_starved(self.rivals))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // Within the lock, so that none of them sees it unset and then sleeps.
        let waiting = self.queue.lock();
        self.is_dismissed.store(true, Ordering::Relaxed);
        drop(waiting);
        self.queue.changed.notify_all();
    }
}

fn serve(queue: &Queue, is_dismissed: &AtomicBool) {
    while let Some((work, piece)) = queue.pop(is_dismissed) {
        let begun = Instant::now();
        // It tells of its own panics; dropping a result that nobody waits for may be another one.
        drop(catch_unwind(AssertUnwindSafe(work)));
        queue.ended(piece, begun.elapsed());
    }
}
