//! What was sent, and how fast of late.

use std::{
    collections::VecDeque,
    ops::AddAssign,
    time::{Duration, Instant},
};

/// Rates are taken over about this time.
const OVER: Duration = Duration::from_secs(10);

/// What was sent since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) batches: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl AddAssign for Sent {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.rows += other.rows;
        self.bytes += other.bytes;
    }
}

/// Remembers, once a second, what had been sent.
#[derive(Debug)]
pub(crate) struct Rates {
    notes: VecDeque<(Instant, Sent)>,
}

impl Rates {
    pub(crate) fn new(now: Instant) -> Self {
        Self { notes: VecDeque::from([(now, Sent::default())]) }
    }

    /// So much had been sent at `now`.
    pub(super) fn note(&mut self, now: Instant, sent: Sent) {
        self.notes.push_back((now, sent));
        while self.notes.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= OVER) {
            self.notes.pop_front();
        }
    }

    /// ... by all of a group from which some may have gone, with what they had sent.
    pub(super) fn note_all(&mut self, now: Instant, sent: Sent) {
        if self.notes.back().is_some_and(|(_, last)| last.bytes > sent.bytes) {
            self.notes.clear();
        }
        self.note(now, sent);
    }

    pub(crate) fn batches_per_second(&self) -> f64 {
        self.rate(|sent| sent.batches)
    }

    pub(crate) fn rows_per_second(&self) -> f64 {
        self.rate(|sent| sent.rows)
    }

    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.rate(|sent| sent.bytes)
    }

    fn rate(&self, of: impl Fn(&Sent) -> u64) -> f64 {
        let (Some((first, before)), Some((last, after))) = (self.notes.front(), self.notes.back()) else {
            return 0.0;
        };
        let seconds = last.saturating_duration_since(*first).as_secs_f64();
        if seconds > 0.0 { of(after).saturating_sub(of(before)) as f64 / seconds } else { 0.0 }
    }
}
