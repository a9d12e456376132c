/// Consecutive items of one block, all of which are in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fragment {
    /// Index of the block in the snapshot.
    pub block: u32,
    /// Index of the first item in the block.
    pub first: u32,
    /// Number of items; 0 for an empty block.
    pub items: u32,
}
