//! Reusable host memory for received bodies.

mod pin;
mod slabs;

pub(crate) use pin::{Pin, PinMemory};
pub(crate) use slabs::{Slab, Slabs};
