//! The order in which streams of a tenant get their first batches, if there is no memory for all of them.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Streams that wait, in the order of arrival.
#[derive(Default)]
pub(super) struct Turns(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    streams: VecDeque<Stream>,
    /// Number of the next turn.
    next: u64,
}

/// A stream that waits.
struct Stream {
    number: u64,
    wake: Arc<Notify>,
    since: Instant,
}

/// Place of a stream among those that wait, until it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
    all_ended: &'a Notify,
}

impl Turns {
    /// Adds a stream, which `wake` wakes when it is the next one. Streams that have no turn wait for `all_ended`. All of them are
    /// woken when the last turn ends, because wakes during a turn have no effect.
    pub(super) fn wait<'a>(&'a self, wake: &Arc<Notify>, all_ended: &'a Notify) -> Turn<'a> {
        let mut waiting = self.0.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.streams.push_back(Stream { number, wake: Arc::clone(wake), since: Instant::now() });
        Turn { turns: self, number, all_ended }
    }

    /// True if no stream waits before `turn`; for a stream that does not wait, if none waits at all.
    pub(super) fn is_next(&self, turn: Option<&Turn<'_>>) -> bool {
        let first = self.0.lock().streams.front().map(|stream| stream.number);
        first.is_none_or(|first| turn.is_some_and(|turn| turn.number == first))
    }

    /// Time since which the next stream waits.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.0.lock().streams.front().map(|stream| stream.since)
    }

    /// Wakes the next stream.
    pub(super) fn wake_next(&self) {
        if let Some(stream) = self.0.lock().streams.front() {
            stream.wake.notify_one();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut waiting = self.turns.0.lock();
        waiting.streams.retain(|stream| stream.number != self.number);
        match waiting.streams.front() {
            Some(next) => next.wake.notify_one(),
            None => self.all_ended.notify_waiters(),
        }
    }
}
