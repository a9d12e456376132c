//! Idle threads that starve are relieved by normal ones.

use std::{
    convert::Infallible,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use super::{Scheduling, crew::Crew, share::LOOK_INTERVAL};

/// How long normal threads stand in for idle ones.
#[derive(Clone, Copy)]
pub(super) struct Rests {
    /// The first time. It is twice as long each time that they starve again within the time that the last one took.
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Default for Rests {
    fn default() -> Self {
        Self { first: Duration::from_secs(60), longest: Duration::from_secs(3600) }
    }
}

/// Keeps an idle crew until the other end of `ended` is dropped, and a normal one in its place for a rest when it has starved.
/// Its threads can't become normal ones themselves: an ordinary user may not do that (RLIMIT_NICE).
pub(super) fn keep(mut crew: Crew, rests: Rests, ended: &Receiver<Infallible>) {
    let has_ended_within = |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Disconnected);
    let report = |crew: &Crew| metrics::gauge!("forebay_cpu_idle_threads").set(crew.idle_threads() as f64);
    let mut rest = Duration::ZERO;
    loop {
        report(&crew);
        let began = Instant::now();
        while !crew.is_starved() {
            if has_ended_within(LOOK_INTERVAL) {
                return;
            }
        }
        rest = if began.elapsed() < rest { (rest * 2).min(rests.longest) } else { rests.first };
        match crew.hire_others(Scheduling::Normal) {
            Ok(normal) => {
                crew = normal;
                tracing::warn!(
                    "others keep the processors busy and leave an idle CPU thread less than a tenth of one: normal ones \
                     stand in for {rest:?}; cpu_scheduling = \"normal\" has no others"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "idle CPU threads starve, and no normal ones can be started");
            }
        }
        report(&crew);
        crew = loop {
            if has_ended_within(rest) {
                return;
            }
            match crew.hire_others(Scheduling::Idle) {
                Ok(idle) => break idle,
                Err(error) => {
                    tracing::warn!(%error, "no idle CPU threads can be started; tried again in {rest:?}");
                }
            }
        };
    }
}
