//! Have I got it: weighed values in tiers, each under a byte budget.
//!
//! - [`Memory`]: the memory tier. Maps a key to a shared value, loads a missing value once for all
//!   who ask at the same time (single flight), and evicts what nobody holds to stay within its budget.
//! - [`Disk`]: the disk tier. Maps an entry to named sections of bytes in files that outlive the process.
//!   Whatever is wrong with a file or the disk is a miss.
//! - [`Policy`]: which values go, by a [`Forecast`] of when each is needed next. Whoever owns the tiers
//!   knows the future; without one it is the least recently used that goes.
//! - [`Slabs`]: the memory that large values lie in.
//! - [`Reservation`]: a share of that budget. Whoever is going to hold values reserves their bytes
//!   first, in one step, or waits in line.
//!
//! A reader reserves, loads, holds the values as `Arc`s while it reads, and drops them before the
//! reservation. Values that are held are never evicted; since the bytes held are reserved and the
//! reservations never exceed the budget, there is always room for what is being loaded.
//!
//! This crate knows nothing of Parquet, epochs or transports.

#![forbid(unsafe_code)]

mod budget;
mod disk;
mod memory;
mod policy;
mod slabs;

pub use budget::{Budget, Reservation, TooLarge};
pub use disk::{Disk, DiskConfig, Error, Outcome, Section};
pub use memory::{Memory, Weigh};
pub use policy::{Forecast, Hunt, NoForecast, Policy, Victim};
pub use slabs::{Slab, Slabs};
