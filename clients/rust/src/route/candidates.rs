//! The choice among the locations of a plan and the URLs of the client, as decisions without I/O.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{failback::Failback, replan::ReplanTimer};

/// Time for which streams do not return to a first location that has redirected one, in multiples of the longer one of
/// [`Intervals`].
const AVOIDED_INTERVALS: u32 = 6;

/// A server that may serve the streams of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Candidate {
    /// URL of a trusted location of the plan.
    Location(Arc<str>),
    /// The server that is in use among the URLs of the client.
    Own,
}

/// Position of a server in the list of servers that a client tries for a stream. The client sends it to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CandidateNumber {
    /// Index of the server in the list, from 0. The server may redirect the client to the next one.
    Number(usize),
    /// The server is the last one, and must serve the stream.
    Last,
}

/// An observation that may change the choice.
#[derive(Debug, Clone)]
pub(super) enum Event<'a> {
    /// A stream was opened at this candidate.
    Opened(&'a Candidate),
    /// An attempt at this candidate failed. The number is the number of addresses of all URLs of the client.
    Failed(&'a Candidate, usize),
    /// This candidate redirects the client to the next one.
    Redirected(&'a Candidate),
    /// A stream has reached the next epoch.
    Epoch,
    /// A new plan has these trusted locations, the preferred one first.
    Planned(Vec<Arc<str>>),
    /// No server answered with a plan.
    NotPlanned,
    /// The first location answered a probe.
    Answered(&'a Arc<str>),
}

/// Intervals of the choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Intervals {
    /// See [`Config::replan_interval`](crate::Config::replan_interval).
    pub(super) replan: Duration,
    /// See [`Config::failback_interval`](crate::Config::failback_interval).
    pub(super) failback: Duration,
}

/// The candidates of the streams of one rank, and the one in use. A round is one attempt at each candidate: at the locations, in the
/// order of the plan, and then at the URLs of the client.
#[derive(Debug)]
pub(super) struct Candidates {
    locations: Vec<Arc<str>>,
    /// Index of the location in use; the number of locations if a URL of the client is in use.
    at: usize,
    /// Number of failed attempts at the URLs of the client in this round.
    own_failures: usize,
    /// Candidate at which the last stream was opened.
    serving: Option<Candidate>,
    /// True if the first location has answered a probe since another one was in use.
    has_moved: bool,
    /// Time until which the first location is not asked to take the streams back, because it has redirected one.
    avoided_until: Option<Instant>,
    failback: Failback,
    timer: ReplanTimer,
    intervals: Intervals,
}

impl Candidates {
    /// Creates the choice among the trusted `locations`, the preferred one first. `random` is a random number from 0 to 1, here and in
    /// [`on`](Self::on).
    pub(super) fn new(now: Instant, random: f64, locations: Vec<Arc<str>>, intervals: Intervals) -> Self {
        Self {
            locations,
            at: 0,
            own_failures: 0,
            serving: None,
            has_moved: false,
            avoided_until: None,
            failback: Failback::new(intervals.failback),
            timer: ReplanTimer::new(now, random, intervals.replan),
            intervals,
        }
    }

    /// Returns the candidate for the next stream.
    pub(super) fn current(&self) -> Candidate {
        match self.locations.get(self.at) {
            Some(url) => Candidate::Location(Arc::clone(url)),
            None => Candidate::Own,
        }
    }

    /// Returns the candidate at which the last stream was opened.
    pub(super) fn serving(&self) -> Option<&Candidate> {
        self.serving.as_ref()
    }

    /// Returns the number of locations.
    pub(super) fn locations(&self) -> usize {
        self.locations.len()
    }

    /// Returns the URLs of the locations.
    pub(super) fn urls(&self) -> Vec<Arc<str>> {
        self.locations.clone()
    }

    /// Returns the position of `candidate` for the header of the request. The last location and the URLs of the client must serve the
    /// stream.
    pub(super) fn number(&self, candidate: &Candidate) -> CandidateNumber {
        match self.index(candidate) {
            Some(index) if index + 1 < self.locations.len() => CandidateNumber::Number(index),
            _ => CandidateNumber::Last,
        }
    }

    /// Returns the time of the next request for the plan.
    pub(super) fn replan_at(&self) -> Instant {
        let due = self.failback.due.map_or(self.timer.due(), |due| due.min(self.timer.due()));
        due.max(self.timer.earliest())
    }

    /// Returns the first location, if the streams are at another server and would move there. A first location that has redirected
    /// a stream because of its load would redirect it again: it is not used for a while, unless the plan names other locations.
    pub(super) fn to_probe(&self, now: Instant) -> Option<&Arc<str>> {
        if self.avoided_until.is_some_and(|until| now < until) {
            return None;
        }
        let first = self.locations.first()?;
        let is_first = matches!(&self.serving, Some(Candidate::Location(url)) if url == first);
        (!is_first || self.at != 0).then_some(first)
    }

    /// Returns true if a stream at `candidate` should continue at the first location.
    pub(super) fn has_moved_from(&self, candidate: &Candidate) -> bool {
        self.has_moved && self.index(candidate) != Some(0)
    }

    /// Records `event`.
    pub(super) fn on(&mut self, now: Instant, random: f64, event: Event<'_>) {
        match event {
            Event::Opened(candidate) => {
                self.serving = Some(candidate.clone());
                self.forget_redirect_of(candidate);
            }
            Event::Failed(candidate, own_targets) => {
                self.timer.hurry(now, random);
                self.forget_redirect_of(candidate);
                let was_first = self.at == 0;
                if self.leave(candidate, own_targets) && was_first && self.at != 0 {
                    self.failback.left(now, self.intervals.failback);
                }
            }
            Event::Redirected(candidate) => {
                if self.index(candidate) == Some(0) {
                    let longer = self.intervals.replan.max(self.intervals.failback);
                    self.avoided_until = now.checked_add(longer.saturating_mul(AVOIDED_INTERVALS));
                }
                // Only locations redirect, so that the number of targets of the client does not matter.
                self.leave(candidate, 1);
            }
            Event::Epoch => self.timer.hurry(now, random),
            Event::Planned(locations) => {
                self.asked(now, random);
                self.replace(locations);
            }
            Event::NotPlanned => self.asked(now, random),
            Event::Answered(first) => {
                if self.locations.first() == Some(first) {
                    (self.at, self.has_moved, self.avoided_until) = (0, true, None);
                    self.failback.returned(now);
                }
            }
        }
    }

    /// Records that the plan was requested. If the first location has failed, the next request follows after the failback interval.
    fn asked(&mut self, now: Instant, random: f64) {
        self.timer.planned(now, random);
        if self.failback.due.is_some_and(|due| due <= now) {
            self.failback.due = now.checked_add(self.intervals.failback);
        }
    }

    /// The load of the first location is not known any more once it has served a stream or failed.
    fn forget_redirect_of(&mut self, candidate: &Candidate) {
        if self.index(candidate) == Some(0) {
            self.avoided_until = None;
        }
    }

    fn index(&self, candidate: &Candidate) -> Option<usize> {
        match candidate {
            Candidate::Location(url) => self.locations.iter().position(|location| location == url),
            Candidate::Own => None,
        }
    }

    /// Selects the candidate after `candidate`. Returns false if another stream has done so before.
    fn leave(&mut self, candidate: &Candidate, own_targets: usize) -> bool {
        if self.locations.is_empty() || self.current() != *candidate {
            return false;
        }
        self.has_moved = false;
        if self.at < self.locations.len() {
            self.at += 1;
            self.own_failures = 0;
            return true;
        }
        self.own_failures += 1;
        if self.own_failures >= own_targets {
            // The next round begins.
            (self.at, self.own_failures) = (0, 0);
        }
        true
    }

    /// Replaces the locations. Open streams do not move. The next stream is opened at the same candidate if the new plan contains it.
    fn replace(&mut self, locations: Vec<Arc<str>>) {
        if locations == self.locations {
            return;
        }
        let current = self.current();
        self.locations = locations;
        (self.has_moved, self.avoided_until) = (false, None);
        self.at = match current {
            Candidate::Own => self.locations.len(),
            // The new plan does not contain the location in use, so the first one is used.
            Candidate::Location(_) => self.index(&current).unwrap_or(0),
        };
    }
}

#[cfg(test)]
mod tests;
