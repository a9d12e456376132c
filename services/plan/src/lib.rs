//! Deterministic order of training batches, as pure arithmetic.
//!
//! The rows of a batch are a pure function of its ticket. They do not depend on threads, caches, servers or the number
//! of ranks. This crate is that function. It does no I/O, reads no clock and does not depend on a data format. Every
//! result can be computed on its own, in any order.
//!
//! The parts, on the way from a request to a row:
//!
//! ```text
//! (epoch, epochs, start_step, limit)          Run     the batches of one rank, distributed to its lanes
//!            | j -> Cursor {epoch, step}
//!            v
//! (batch_size, world_size, remainder)         Steps   the positions of each rank in a step
//!            | (step, rank) -> positions         of items, or of packs of groups with a bound on their rows:
//!            | packs -> positions                Packs
//!            v
//! (items per block, partitions)               Partitions  the positions of each partition in a step
//!            | positions -> partition, positions
//!            v
//! (fragments, Shuffle, seed, epoch)           EpochOrder
//!            | position -> window             cut from the permuted blocks
//!            | offset   -> offset             Permutation, keyed by Key
//!            | offset   -> (block, item)      Location
//!            v
//!          the row
//! ```
//!
//! An *item* is a row, a row that matches the filter, or a group (with group shuffle). A *block* is an ordered run of
//! items. A *position* is an index in the global order of one epoch. A *partition* is a fixed part of the items with an
//! order of its own; without partitions there is one, which has all items.
//!
//! Rows of the second batch of rank 1 of 2, with batches of two rows over two blocks of 6 and 4 rows:
//!
//! ```
//! use forebay_plan::{EpochOrder, Remainder, Shuffle, Steps};
//!
//! let (seed, epoch) = (7, 0);
//! let order = EpochOrder::new(&[6, 4], Shuffle::Global, seed, epoch);
//! let steps = Steps::new(order.items(), 2, 2, Remainder::Drop)?;
//! let positions = steps.rank(1, 1);
//! let mut rows = Vec::new();
//! order.locate_range(positions.clone(), &mut rows);
//! assert_eq!(rows.len(), 2);
//! // Each position can be located on its own.
//! assert_eq!(rows[0], order.locate(positions.start));
//! # Ok::<(), forebay_plan::Error>(())
//! ```
//!
//! The order of existing tickets must not change. It has the version [`PLAN_VERSION`], which the golden vectors in
//! `tests/golden.rs` freeze.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::iter_over_hash_type)] // A pure function; see clippy.toml.

mod congruence;
mod error;
mod fragment;
mod key;
mod order;
mod packs;
mod partitions;
mod permutation;
mod run;
mod shuffle;
mod spans;
mod steps;
#[cfg(test)]
mod testing;

pub use error::Error;
pub use fragment::Fragment;
pub use key::{Key, Level};
pub use order::{EpochOrder, Location, Window};
pub use packs::Packs;
pub use partitions::Partitions;
pub use permutation::Permutation;
pub use run::{Cursor, Run};
pub use shuffle::{Shuffle, default_window_rows};
pub use steps::{Remainder, Steps};

/// Version of the order. Part of every key and every ticket. Any change of the order requires another version.
pub const PLAN_VERSION: u32 = 1;
