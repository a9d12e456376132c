use xxhash_rust::xxh3::xxh3_64;

/// Keeps these keys apart from every other use of the hash.
const DOMAIN: &[u8; 16] = b"forebay/plan/key";

/// What a key permutes. Each level draws from keys of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// The blocks of an epoch; the window is 0.
    Blocks,
    /// The items inside one window.
    Rows,
}

impl Level {
    fn code(self) -> u32 {
        match self {
            Self::Blocks => 0,
            Self::Rows => 1,
        }
    }
}

/// The key of one permutation.
///
/// 64 bits: that two of the ten million windows of a long training share a key has a chance of about 1 in
/// 400,000, and would only mean that the two are shuffled alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// The key for a place in a plan: xxh3 over its fields, each of fixed width and little-endian, so that no
    /// two places are the same bytes. It is a hash and not a sum: with `seed + epoch`, epoch 1 of seed 0
    /// would be epoch 0 of seed 1. Seed 0 is a seed like any other.
    #[must_use]
    pub fn derive(plan_version: u32, seed: u64, epoch: u64, level: Level, window: u64) -> Self {
        let mut place = [0; 48];
        place[..16].copy_from_slice(DOMAIN);
        place[16..20].copy_from_slice(&plan_version.to_le_bytes());
        place[20..24].copy_from_slice(&level.code().to_le_bytes());
        place[24..32].copy_from_slice(&seed.to_le_bytes());
        place[32..40].copy_from_slice(&epoch.to_le_bytes());
        place[40..48].copy_from_slice(&window.to_le_bytes());
        Self(xxh3_64(&place))
    }

    /// As many independent words as are asked for: splitmix64 (Steele, Lea and Flood, "Fast Splittable
    /// Pseudorandom Number Generators", 2014).
    pub(crate) fn words(self) -> impl Iterator<Item = u64> {
        let mut state = self.0;
        std::iter::repeat_with(move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        })
    }
}

#[cfg(test)]
mod tests;
