//! Random numbers that are a function of their position, without state.

/// Random numbers of one column, by row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Random {
    key: u64,
}

impl Random {
    pub(super) fn of_column(column: usize) -> Self {
        Self { key: mix(column as u64 ^ 0x666F_7265_6261_7921) }
    }

    /// Returns another sequence for the same column.
    pub(super) fn other(self, number: u64) -> Self {
        Self { key: mix(self.key ^ mix(number + 1)) }
    }

    pub(super) fn bits(self, row: u64) -> u64 {
        mix(self.key.wrapping_add(row.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    /// Returns a number in 0..1.
    pub(super) fn unit(self, row: u64) -> f64 {
        (self.bits(row) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a uniformly distributed number in 0..n.
    pub(super) fn below(self, row: u64, n: u64) -> u64 {
        ((u128::from(self.bits(row)) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number in 0..n. Small numbers are far more likely, like ids in logs.
    pub(super) fn skewed(self, row: u64, n: u64) -> u64 {
        ((self.unit(row).powi(3) * n as f64) as u64).min(n.saturating_sub(1))
    }

    pub(super) fn happens(self, row: u64, percent: u32) -> bool {
        self.below(row, 100) < u64::from(percent)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
