//! The native part of the Python package `forebay`: everything that moves bytes or waits. What people import lies in
//! `forebay/`.
//!
//! ```text
//! forebay.Client, forebay.Training (Python)
//!     |
//! Tier ---plan---> Plan ---stream---> Stream ---next---> Batch ---column---> Column
//! (no thread)      (arithmetic)       (a thread of its   (Arrow PyCapsule)   (__array_interface__, DLPack: no copy)
//!                                      own, while it runs)
//! ```

mod arrow;
mod batch;
mod column;
mod device;
mod dlpack;
mod errors;
mod plan;
mod stream;
mod tier;
mod waiting;

use pyo3::prelude::*;

/// The native part of forebay.
#[pymodule]
mod _forebay {
    #[pymodule_export]
    use crate::{batch::Batch, column::Column, device::DeviceColumn, plan::Plan, stream::Stream, tier::Tier};
}
