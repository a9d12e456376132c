//! Forecasts of the next use of keys.

/// Forecast of the next use of each key.
///
/// Called often during eviction, without any lock of the tier held. An implementation should take well under a
/// microsecond.
pub trait Forecast<K>: Send + Sync {
    /// Predicted time until the next use of `key`, in any unit that makes keys comparable. `u64::MAX` if no use is
    /// known.
    fn next_use(&self, key: &K) -> u64;
}

/// Forecast without any known use. A policy with it evicts the least recently used entry.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoForecast;

impl<K> Forecast<K> for NoForecast {
    fn next_use(&self, _: &K) -> u64 {
        u64::MAX
    }
}
