//! Names of the datasets that a request reads.

use forebay_proto::v1;

/// Returns the datasets of a stream; `dataset` of the request comes first.
pub(crate) fn of_train(train: &v1::Train) -> impl Iterator<Item = &str> {
    std::iter::once(train.dataset.as_str()).chain(train.mix.iter().map(|mixed| mixed.dataset.as_str()))
}

/// Returns the datasets of a lookup; `dataset` of the request comes first.
pub(crate) fn of_lookup(lookup: &v1::Lookup) -> impl Iterator<Item = &str> {
    std::iter::once(lookup).chain(&lookup.joins).map(|part| part.dataset.as_str())
}
