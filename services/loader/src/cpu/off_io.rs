//! Assertion that work over a whole dataset does not run on an I/O thread. It does nothing outside of unit tests.

/// Work whose duration grows with the size of a dataset, an epoch or a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LongWork {
    /// Kept rows and groups of all blocks.
    Rows,
    /// Estimated sizes of the frames of all blocks.
    FrameSizes,
    /// Sums over the blocks of all windows of an epoch.
    WindowSums,
    /// Order of an epoch.
    Order,
    /// Start of the window of each block in an epoch.
    WindowStarts,
    /// Groups that continue from one block to the next, over all blocks.
    Groups,
    /// Evaluation of a filter with the metadata of a block.
    Metadata,
    /// Evaluation of expressions for the rows of a chunk.
    Expressions,
    /// Conversion of rows to a frame.
    Frame,
}

/// Panics if the calling thread is marked as an I/O thread, which only unit tests do.
#[inline(always)]
pub(crate) fn assert_off_io_threads(work: LongWork) {
    #[cfg(test)]
    tests::record(work);
    #[cfg(not(test))]
    let _ = work;
}

#[cfg(test)]
mod tests;
