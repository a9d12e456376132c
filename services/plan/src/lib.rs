//! Which rows, in what order: the order arithmetic everything else rests on.
//!
//! A batch is a pure function of what a ticket says: never of threads, caches, servers or of how many ranks
//! read beside it. This crate is that function. It does no I/O, waits for nothing, reads no clock and knows
//! no data format; it turns numbers into numbers, and any of its answers can be asked for alone, in any
//! order.
//!
//! The parts, along the way from a request to a row:
//!
//! ```text
//! (epoch, epochs, start_step, limit)          Run     the batches one rank gets, dealt to its lanes
//!            | j -> Cursor {epoch, step}
//!            v
//! (batch_size, world_size, remainder)         Steps   the positions each rank gets of a step
//!            | (step, rank) -> positions         of items, or of packs of groups with a bound on their rows:
//!            | packs -> positions                Packs
//!            v
//! (items per block, Shuffle, seed, epoch)     EpochOrder
//!            | position -> window             cut from the permuted blocks
//!            | offset   -> offset             Permutation, keyed by Key
//!            | offset   -> (block, item)      Location
//!            v
//!          the row
//! ```
//!
//! An *item* is a row, or after a filter a kept row, or with group shuffle a group; a *block* is an ordered
//! run of them; a *position* is an index in the global order of one epoch. The words are those of the design.
//!
//! Nothing here may change what an existing ticket means: the order is version [`PLAN_VERSION`], frozen by
//! the golden vectors in `tests/golden.rs`.

#![forbid(unsafe_code)]

mod congruence;
mod error;
mod key;
mod order;
mod packs;
mod permutation;
mod run;
mod shuffle;
mod spans;
mod steps;
#[cfg(test)]
mod testing;

pub use error::Error;
pub use key::{Key, Level};
pub use order::{EpochOrder, Location, Window};
pub use packs::Packs;
pub use permutation::Permutation;
pub use run::{Cursor, Run};
pub use shuffle::{Shuffle, default_window_rows};
pub use steps::{Remainder, Steps};

/// The version of the order. It is part of every key and of every ticket; another order is another version.
pub const PLAN_VERSION: u32 = 1;
