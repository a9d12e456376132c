//! Two-tier cache (memory and disk) with byte budgets, and the memory that its values occupy.
//!
//! - [`Memory`]: the memory tier. Maps keys to shared values, coalesces concurrent loads of a value, and evicts values
//!   that are not in use to stay within its budget.
//! - [`Disk`]: the disk tier. Maps entries to named sections of bytes in files, which persist across restarts. A damaged
//!   file or a failing disk results in cache misses, never in errors.
//! - [`Policy`]: the eviction policy of both tiers. Evicts the entry that is needed last according to a [`Forecast`];
//!   without a forecast, the least recently used one.
//! - [`Budget`] and [`Reservation`]: a byte budget that tenants share by weight. Sources that do not answer usually leave
//!   some of it.
//! - [`Slabs`]: a pool of large buffers for values.
//! - [`private`]: folders and files that other users cannot access.
//! - [`catch_expected_panic`]: catches panics of decoders on malformed input, which are errors of the input.
//!
//! # Memory bound
//!
//! A reader reserves bytes, loads values, holds them as `Arc`s while it reads, and drops them before the reservation.
//! Values in use are never evicted. They are covered by reservations, which never exceed the budget, so there is always
//! space for values that are being loaded.
//!
//! ```
//! use std::{convert::Infallible, sync::Arc};
//!
//! use forebay_cache::{Memory, NoForecast, Weigh};
//!
//! struct Frame(Vec<u8>);
//!
//! impl Weigh for Frame {
//!     fn weight(&self) -> u64 {
//!         self.0.len() as u64
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let memory: Memory<u32, Frame> = Memory::new(1024, Arc::new(NoForecast));
//! let reservation = memory.budget().try_reserve(100, &[]).expect("nothing is reserved yet");
//! let load = async || Ok::<_, Infallible>(Frame(vec![0; 100]));
//! let frame = memory.get_or_load(&1, 100, load).await.unwrap();
//! assert_eq!(frame.weight(), 100);
//! // The value stays in memory, but may be evicted.
//! drop((frame, reservation));
//! assert_eq!(memory.resident_bytes(), 100);
//! # });
//! ```
//!
//! Parquet, epochs and transports belong to other crates.

#![forbid(unsafe_code)]

mod blocking;
mod budget;
mod disk;
mod memory;
mod panics;
mod policy;
pub mod private;
mod slabs;
mod tenant;

pub use blocking::spawn_blocking;
#[doc(hidden)]
pub use blocking::{run_blocking_work_in_order, simulate_blocking_work};
pub use budget::{Budget, Reservation, SourceId, TooLarge};
pub use disk::{Disk, DiskConfig, Error, Outcome, Recovery, Section, WriteSpace};
#[doc(hidden)]
pub use disk::{FileMetadata, FileRange, FileSystem, Files, Listed};
pub use memory::{Memory, Weigh};
pub use panics::{catch_expected_panic, is_panic_expected};
pub use policy::{EvictionScan, Forecast, NoForecast, Policy, Victim};
pub use slabs::{Slab, Slabs};
pub use tenant::Tenant;
