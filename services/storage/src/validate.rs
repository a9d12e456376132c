//! Checks of untrusted Parquet metadata and pages, which run before a decoder allocates what they claim.

pub(crate) mod block_size;
pub(crate) mod decoder_errors;
pub(crate) mod decompressed_size;
pub(crate) mod delta_lengths;
pub(crate) mod footer;
pub(crate) mod footer_check;
pub(crate) mod foreign_columns;
pub(crate) mod int96;
pub(crate) mod page_headers;
pub(crate) mod parquet_shapes;
pub(crate) mod thrift;
