//! Lists of the overdue and of the suspended workers, with the times for which they receive no batches.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::{cmp::Reverse, time::Duration};

use super::Batcher;
use crate::queue::{SilentWorker, SuspendedWorker, Time, WorkerId};

/// Maximum number of workers in a list. [`Load`](crate::queue::Load) counts all of them.
const MAX_LISTED: usize = 16;

impl Batcher {
    /// Returns the time for which an overdue worker has not replied; `None` if the worker is not overdue.
    pub fn silence(&self, now: Time, worker: WorkerId) -> Option<Duration> {
        let since = self.workers.get(&worker)?.silent_since?;
        Some(now.saturating_sub(since))
    }

    /// Returns the overdue workers that have replied since the last call, each with the time for which it had not replied.
    pub fn answering(&mut self) -> Vec<(WorkerId, Duration)> {
        std::mem::take(&mut self.newly_answering)
    }

    /// Returns up to 16 workers that are overdue, the one that has not replied for the longest time first.
    pub fn silent_workers(&self, now: Time) -> Vec<SilentWorker> {
        let silent = self.workers.keys().filter_map(|id| {
            let silence = self.silence(now, *id)?;
            Some(SilentWorker { worker: *id, silence })
        });
        let mut silent: Vec<SilentWorker> = silent.collect();
        silent.sort_by_key(|silent| (Reverse(silent.silence), silent.worker));
        silent.truncate(MAX_LISTED);
        silent
    }

    /// Returns up to 16 workers that are suspended and not overdue, the one with the longest remaining suspension first.
    pub fn suspended_workers(&self, now: Time) -> Vec<SuspendedWorker> {
        let suspended = self.workers.iter().filter_map(|(id, worker)| {
            let until = worker.record.suspended_until.filter(|until| now < *until && !worker.is_overdue())?;
            Some(SuspendedWorker { worker: *id, remaining: until.saturating_sub(now) })
        });
        let mut suspended: Vec<SuspendedWorker> = suspended.collect();
        suspended.sort_by_key(|suspended| (Reverse(suspended.remaining), suspended.worker));
        suspended.truncate(MAX_LISTED);
        suspended
    }
}
