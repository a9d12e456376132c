/// Shuffle mode of an epoch, with all defaults resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// Blocks are permuted and cut into windows. Items are permuted inside their window.
    Window {
        /// Minimum number of items in a window, which consists of whole blocks. 0 counts as 1.
        rows: u64,
        /// If true, blocks are not permuted, so that time-ordered data stays ordered from window to window.
        keep_block_order: bool,
    },
    /// One window for all items: the order of `Window` with at least as many rows as the epoch has.
    Global,
    /// No shuffling: blocks and items in their original order.
    None,
}

const WINDOW_ROWS: u64 = 1_048_576;
const WINDOW_GLOBAL_BATCHES: u64 = 4;
const WINDOW_BYTES: u64 = 1 << 30;

/// Default number of rows in a window: 1,048,576 or four global batches, whichever is greater, but at most the number
/// of rows that occupy 1 GiB. At least 1.
///
/// `rows` and `uncompressed_bytes` describe the whole snapshot with all columns, so that a projection does not change
/// the order.
#[must_use]
pub fn default_window_rows(global_batch: u64, rows: u64, uncompressed_bytes: u64) -> u64 {
    let target = WINDOW_ROWS.max(global_batch.saturating_mul(WINDOW_GLOBAL_BATCHES));
    if uncompressed_bytes == 0 {
        return target;
    }
    let fitting = u128::from(WINDOW_BYTES) * u128::from(rows) / u128::from(uncompressed_bytes);
    let fitting = u64::try_from(fitting).unwrap_or(u64::MAX);
    target.min(fitting).max(1)
}

#[cfg(test)]
mod tests;
