use xxhash_rust::xxh3::xxh3_64;

/// Domain separator, which distinguishes these keys from every other use of the hash.
const DOMAIN: &[u8; 16] = b"forebay/plan/key";

/// Object of a permutation. Each level has its own keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// Blocks of a partition in an epoch. The window is 0.
    Blocks = 0,
    /// Items of one window.
    Rows = 1,
}

/// Key of one permutation.
///
/// A key has 64 bits. The probability that two of the ten million windows of a long training share a key is about 1 in
/// 400,000. In that case both windows are shuffled in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// Derives the key for a place in a plan: xxh3 over its fields, each of fixed width and little-endian, so that
    /// different places have different bytes. A hash is used rather than a sum, because with `seed + epoch` the epoch 1
    /// of seed 0 would equal the epoch 0 of seed 1. Seed 0 has no special meaning.
    ///
    /// `window` is the number of the window, plus 2^32 times the number of its partition.
    #[must_use]
    pub fn derive(plan_version: u32, seed: u64, epoch: u64, level: Level, window: u64) -> Self {
        let mut place = [0; 48];
        place[..16].copy_from_slice(DOMAIN);
        place[16..20].copy_from_slice(&plan_version.to_le_bytes());
        place[20..24].copy_from_slice(&(level as u32).to_le_bytes());
        place[24..32].copy_from_slice(&seed.to_le_bytes());
        place[32..40].copy_from_slice(&epoch.to_le_bytes());
        place[40..48].copy_from_slice(&window.to_le_bytes());
        Self(xxh3_64(&place))
    }

    /// Unbounded sequence of independent words: splitmix64 (Steele, Lea and Flood, "Fast Splittable
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
