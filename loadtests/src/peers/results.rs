//! Measurements of the systems compared.

use serde::Serialize;

use crate::{interference::MAX_FOREIGN_SHARE, protocol::RunResult, share, stats::Spread};

/// One measured run of one system.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Turn {
    /// Round, from 1; 0 outside of rounds.
    pub(super) round: usize,
    pub(super) result: RunResult,
    pub(super) server_cpu_seconds: f64,
    pub(super) client_cpu_seconds: f64,
    pub(super) server_peak_rss_bytes: u64,
    pub(super) client_peak_rss_bytes: u64,
    /// Fraction of the machine's CPU time that other processes used.
    pub(super) foreign_share: f64,
}

/// All runs of one system.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SystemResults {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) turns: Vec<Turn>,
    pub(super) failures: Vec<String>,
    pub(super) share: Option<share::Found>,
}

impl Turn {
    pub(super) fn is_undisturbed(&self) -> bool {
        self.foreign_share <= MAX_FOREIGN_SHARE
    }
}

impl SystemResults {
    pub(super) fn new(name: String, about: String) -> Self {
        Self { name, about, turns: Vec::new(), failures: Vec::new(), share: None }
    }

    /// Returns the spread of a value over the undisturbed turns, or over all turns if none was undisturbed.
    pub(super) fn spread(&self, value: impl Fn(&Turn) -> f64) -> Option<Spread> {
        let is_counted = |turn: &&Turn| turn.is_undisturbed() || self.undisturbed_turns() == 0;
        Spread::of(self.turns.iter().filter(is_counted).map(value))
    }

    /// Number of turns in which other processes used little CPU time.
    pub(super) fn undisturbed_turns(&self) -> usize {
        self.turns.iter().filter(|turn| turn.is_undisturbed()).count()
    }
}
