/// How an epoch is shuffled, with nothing left to a default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// Blocks are permuted and cut into windows; items are permuted inside their window.
    Window {
        /// Items a window has at least; it is whole blocks. 0 counts as 1.
        rows: u64,
        /// Leave the blocks in their own order, so that time goes on from window to window.
        in_order: bool,
    },
    /// One window for everything: the order of `Window` with at least as many rows as there are.
    Global,
    /// Blocks in their own order, and the items in theirs.
    None,
}

const WINDOW_ROWS: u64 = 1_048_576;
const WINDOW_GLOBAL_BATCHES: u64 = 4;
const WINDOW_BYTES: u64 = 1 << 30;

/// The rows of a window where a request names none: 1,048,576 or four global batches, whichever is more, but
/// no more than make 1 GiB; at least 1.
///
/// `rows` and `uncompressed_bytes` are of the whole snapshot with all of its columns, so that a projection
/// doesn't change the order.
#[must_use]
pub fn default_window_rows(global_batch: u64, rows: u64, uncompressed_bytes: u64) -> u64 {
    let wanted = WINDOW_ROWS.max(global_batch.saturating_mul(WINDOW_GLOBAL_BATCHES));
    if uncompressed_bytes == 0 {
        return wanted;
    }
    let fitting = u128::from(WINDOW_BYTES) * u128::from(rows) / u128::from(uncompressed_bytes);
    let fitting = u64::try_from(fitting).unwrap_or(u64::MAX);
    wanted.min(fitting).max(1)
}

#[cfg(test)]
mod tests;
