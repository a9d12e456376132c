//! Number of partitions of a training request.

use forebay_proto::v1::Train;

/// Returns the number of partitions of the order of `train`; 1 without partitions.
pub(crate) fn partitions(train: &Train) -> u64 {
    train.shuffle.as_ref().and_then(|shuffle| shuffle.partitions).unwrap_or(1).max(1)
}
