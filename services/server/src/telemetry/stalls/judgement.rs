//! Verdict on sessions, and what it is based on.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_stall::{Buckets, Evidence, Level, Verdict, judge, while_silent};

use crate::sessions::{Session, WINDOW};

/// Verdict on one or several sessions.
#[derive(Debug, Clone)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// Time in both windows that the verdict is based on.
    pub(crate) time: Buckets,
    /// Number of sessions.
    pub(crate) sessions: usize,
    /// Number of sessions that are input-bound by themselves.
    pub(crate) input_bound: usize,
    /// Dataset whose store does not answer, if the verdict has a [`silence`](Verdict::silence).
    pub(crate) silent_dataset: Option<String>,
}

impl Judgement {
    /// Judges sessions together. `silence` returns the time for which the store of a dataset has not answered.
    pub(super) fn of(
        sessions: &[Arc<Session>],
        now: Instant,
        silence: impl Fn(&str) -> Option<Duration>,
    ) -> Self {
        let (mut recent, mut before, mut batches, mut input_bound) =
            (Buckets::default(), Buckets::default(), 0, 0);
        let mut silences: BTreeMap<&str, Option<Duration>> = BTreeMap::new();
        for session in sessions {
            let (of_recent, of_before, of_batches) = session.evidence(now);
            let alone = evidence(of_recent, of_before, 1, of_batches);
            input_bound += usize::from(judge(&alone).level == Level::InputBound);
            recent += of_recent;
            before += of_before;
            batches += of_batches;
            for dataset in session.datasets() {
                silences.entry(dataset).or_insert_with(|| silence(dataset));
            }
        }
        let verdict = judge(&evidence(recent, before, sessions.len(), batches));
        let longest = silences.into_iter().max_by_key(|(_, silence)| *silence);
        let verdict = while_silent(verdict, &recent, longest.and_then(|(_, silence)| silence));
        let silent_dataset = verdict.silence.and(longest).map(|(dataset, _)| dataset.to_owned());
        recent += before;
        Self { verdict, time: recent, sessions: sessions.len(), input_bound, silent_dataset }
    }
}

fn evidence(recent: Buckets, before: Buckets, sessions: usize, batches: u64) -> Evidence {
    Evidence { recent, before, window: WINDOW, sessions, batches }
}
