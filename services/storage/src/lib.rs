//! Bytes to columns: datasets of Parquet files in object stores, pinned and decoded.
//!
//! It knows files, row groups and columns; it does not know epochs, ranks or transports.
//!
//! ```text
//! location   a URL: an object store and a path in it
//!   | listing      which files; partitions: columns spelled in folder names
//!   | footers      every footer, guarded (guard, grammar, thrift), kept in memory and on disk
//!   v
//! snapshot   files, blocks, schema: immutable, its manifest kept in the state
//!   | reader       I/O: ranged, joined, concurrent, versioned reads (request, ranges)
//!   v
//! encoded block
//!   | decode       CPU: pages checked (bounds, pages, chunks, inflate, delta),
//!   |              decoded, columns put in order
//!   v
//! record batches
//! ```
//!
//! Nothing that comes from a store is believed: every length is held against the bytes that are there
//! before anything is allocated for it, and every decoded size against a limit in [`Config`].

#![forbid(unsafe_code)]

mod attempts;
mod block;
mod block_ids;
mod blocking;
mod bloom;
mod bounds;
mod chunks;
mod config;
mod decode;
mod delta;
mod envelope;
mod error;
mod estimate;
mod footer;
mod footers;
mod grammar;
mod guard;
mod inflate;
mod listing;
mod local;
mod location;
mod manifest;
mod page_index;
mod pages;
mod partitions;
mod ranges;
mod reader;
mod records;
mod request;
mod schema;
mod snapshot;
mod state;
mod statistics;
mod take;
mod thrift;
mod version;
mod zones;

pub use block::{BLOCK_ROWS, Block};
pub use block_ids::BlockIds;
pub use config::Config;
pub use decode::{Decode, EncodedBlock};
pub use error::{Error, Source};
pub use location::Location;
pub use partitions::PartitionValue;
pub use reader::Reader;
pub use records::{Recorded, Records};
pub use snapshot::{File, RowGroup, Snapshot};
pub use state::State;
pub use statistics::Statistics;
pub use take::{load_snapshot, take_snapshot};
pub use version::Version;
