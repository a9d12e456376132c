//! The division of a generated table into files.

/// Sizes of the files of a generated table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) rows: u64,
    pub(super) files: u64,
    pub(super) row_group_rows: u64,
}
