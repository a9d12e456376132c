//! The native part of the Python package `forebay`: everything that moves bytes or waits. What people import lies in
//! `forebay/`.
//!
//! ```text
//! forebay.Client, forebay.Training (Python)
//!     |
//! Tier ---plan---> Plan ---stream---> Stream ---next---> Batch ---column---> Column
//! (no thread)      (arithmetic)       (a thread of its   (Arrow PyCapsule)   (__array_interface__, DLPack: no copy)
//!                                      own, while it runs)
//!  |---lookup, infer---> Batch          rows: what Python has, as keys and replies
//!  |  (online: exchanges that stay open)
//!  |---serve---> Serving ---next---> Work ---reply--->
//! ```

mod arrow;
mod batch;
mod column;
mod device;
mod dlpack;
mod errors;
mod online;
mod plan;
mod rows;
mod serving;
mod stream;
mod tier;
mod waiting;

use pyo3::prelude::*;

/// The native part of forebay.
#[pymodule]
mod _forebay {
    #[pymodule_export]
    use crate::{
        batch::Batch,
        column::Column,
        device::DeviceColumn,
        plan::Plan,
        serving::{Serving, Work},
        stream::{Stream, Utilization},
        tier::Tier,
    };
}
