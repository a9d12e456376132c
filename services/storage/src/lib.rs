//! Datasets of Parquet files in object stores: snapshots, validated reads and decoding to Arrow.
//!
//! The crate handles files, row groups and columns. Epochs, ranks and transports belong to other crates.
//!
//! # Parts
//!
//! | module | contents |
//! |---|---|
//! | `store` | locations (an object store and a path), versioned requests, retry metrics, durable state |
//! | `dataset` | listing, Hive partitions, schema merging, snapshots and their manifests, blocks |
//! | `validate` | checks of footers, page headers and pages before a decoder trusts their lengths |
//! | `read` | footer cache, byte ranges, fetching and decoding of blocks |
//! | `prune` | row group statistics, page indexes and bloom filters |
//! | `compute` | the executor of CPU work on metadata, which the caller chooses for each tenant or flow |
//!
//! # Data flow
//!
//! ```text
//! Location             a URL: an object store and a path in it (store)
//!    | listing, partition columns (dataset)
//!    | one validated footer per file (validate), cached in memory and on disk (read)
//!    v
//! Snapshot             files, blocks and schema; immutable, its manifest is stored in State
//!    | pruning (prune): statistics rule out blocks and rows
//!    | Reader::fetch (read): coalesced, concurrent range reads, bound to the pinned file version
//!    v
//! EncodedBlock         column chunks as stored in the file
//!    | EncodedBlock::decode (read), on a CPU thread: pages are validated, decoded and reordered
//!    v
//! record batches       in the snapshot's types
//! ```
//!
//! # Untrusted input
//!
//! Files are not trusted. Every length is compared to the bytes that are present before anything is allocated for it,
//! and every decoded size to a limit in [`Config`]. A malformed file results in an [`Error`], never in a panic.

#![forbid(unsafe_code)]

mod blocking;
mod cache_key;
mod compute;
mod config;
mod dataset;
mod error;
mod prune;
mod read;
mod store;
mod validate;

pub use cache_key::cache_key;
pub use compute::{Compute, Work};
pub use config::Config;
pub use dataset::{
    block::{BLOCK_ROWS, Block},
    block_ids::BlockIds,
    partitions::PartitionValue,
    snapshot::{File, RowGroup, Snapshot},
    take::{load_snapshot, refresh_snapshot, take_snapshot},
    version::Version,
};
pub use error::{Error, Source};
pub use prune::statistics::Statistics;
pub use read::{
    decoder::{Decoder, EncodedBlock},
    reader::{Fetch, Reader},
};
pub use store::{
    credentials::Credentials,
    documents::{DocumentMeta, Documents},
    location::Location,
    shown_url::{check_url, shown_text, shown_url},
    state::State,
};
