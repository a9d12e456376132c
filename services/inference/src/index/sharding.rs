//! Shards and slots of hash tables.

/// Number of rows per shard. Shards are built in parallel.
const SHARD_ROWS: u64 = 1 << 17;
pub(super) const MAX_SHARDS: usize = 256;
/// Load factor: slots per key as a ratio.
const SLOTS_PER_KEYS: (u64, u64) = (5, 4);

/// Returns the number of shards for `rows` rows, a power of two.
pub(super) fn shard_count(rows: u64) -> usize {
    let wanted = (rows / SHARD_ROWS).max(1).next_power_of_two();
    usize::try_from(wanted).unwrap_or(MAX_SHARDS).min(MAX_SHARDS)
}

/// Returns the shard of a hash. `shards` is a power of two.
pub(super) fn shard_of(hash: u64, shards: usize) -> usize {
    (hash & (shards as u64 - 1)) as usize
}

/// Returns the first of `places` places to probe for a hash.
pub(super) fn home_of(hash: u64, places: usize) -> usize {
    ((u128::from(hash) * places as u128) >> 64) as usize
}

/// Returns the number of slots for `keys` keys.
pub(super) fn slots_for(keys: u64) -> u64 {
    (keys * SLOTS_PER_KEYS.0).div_ceil(SLOTS_PER_KEYS.1)
}

/// Returns the distance of up to `count` samples of `total` values.
pub(super) fn step(total: usize, count: usize) -> usize {
    total.div_ceil(count.max(1)).max(1)
}
