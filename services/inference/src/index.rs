//! Indexes from keys to row numbers.
//!
//! ```text
//! blocks --BlockKeys--> hashes and rows per shard --> Table (narrow or wide) --file--> disk
//! ```
//!
//! - [`KeySpec`]: the key columns, and the rule that selects one of several rows with the same key.
//! - [`KeyIndex`]: the finished index. Its table is narrow for keys of 4 or 8 bytes and wide for all others.
//! - [`KeyHash`](key_hash::KeyHash): the hash function of an index, with a random seed.

mod block_keys;
mod builder;
mod file;
mod key_hash;
mod key_index;
mod narrow_table;
mod sharding;
mod spec;
mod table;
mod wide_table;

pub use builder::IndexProgress;
pub(crate) use builder::estimate;
pub use key_index::KeyIndex;
pub use spec::KeySpec;
