//! Measurements that are repeated in turns.

use serde::Serialize;

use crate::{
    interference::{Clock, Patience},
    stats::median,
};

/// Repeated measurements, as an array in the JSON of a result.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Turns<T> {
    turns: Vec<Turn<T>>,
}

#[derive(Debug, Serialize)]
struct Turn<T> {
    #[serde(flatten)]
    measured: T,
    /// Fraction of the machine's CPU time that other processes used.
    foreign_share: f64,
}

impl<T> Turns<T> {
    /// Measures `rounds` turns. `one` receives the number of the turn, counted from 1, and returns the measurement and the CPU
    /// seconds of the measured processes.
    pub(crate) fn measure(
        rounds: usize,
        patience: &Patience,
        mut one: impl FnMut(usize) -> anyhow::Result<(T, f64)>,
    ) -> anyhow::Result<Self> {
        let mut turns = Vec::with_capacity(rounds);
        for round in 1..=rounds {
            eprintln!("round {round} of {rounds}");
            let turn = || {
                let clock = Clock::now()?;
                let (measured, own_seconds) = one(round)?;
                anyhow::Ok(Turn { measured, foreign_share: clock.foreign_share_since(own_seconds)? })
            };
            turns.push(patience.undisturbed(|turn: &Turn<T>| turn.foreign_share, turn)?);
        }
        Ok(Self { turns })
    }

    /// Returns the number of turns.
    pub(crate) fn len(&self) -> usize {
        self.turns.len()
    }

    /// Returns `value` of each turn.
    pub(crate) fn values(&self, value: impl Fn(&T) -> f64) -> impl Iterator<Item = f64> {
        self.turns.iter().map(move |turn| value(&turn.measured))
    }

    /// Returns the median of `value`.
    pub(crate) fn median(&self, value: impl Fn(&T) -> f64) -> f64 {
        median(self.values(value))
    }

    /// Returns the median share of the CPU time that other processes used, in percent.
    pub(crate) fn foreign_percent(&self) -> f64 {
        median(self.turns.iter().map(|turn| turn.foreign_share)) * 100.0
    }
}
