//! Outcome of a write to the disk tier.

/// Outcome of a [`Disk::put`](crate::Disk::put).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The sections were written.
    Written,
    /// All sections are present already, or another caller is writing them.
    Present,
    /// Rejected: the tier is full of entries that are needed sooner or pinned.
    NeededLater,
    /// Rejected: the sections exceed the capacity of the tier or of one file.
    TooLarge,
    /// Rejected: the write queue is full.
    Busy,
    /// Rejected: the disk failed, now or recently.
    Failing,
    /// Rejected: the files of earlier processes are not recovered yet.
    Recovering,
}

impl Outcome {
    /// Value of the metric label `reason`; `None` if the write was not rejected.
    pub(crate) fn rejection_reason(self) -> Option<&'static str> {
        match self {
            Self::Written | Self::Present => None,
            Self::NeededLater => Some("needed_later"),
            Self::TooLarge => Some("too_large"),
            Self::Busy => Some("busy"),
            Self::Failing => Some("failing"),
            Self::Recovering => Some("recovering"),
        }
    }
}
