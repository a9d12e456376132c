//! The native part of the Python package `forebay`: data transfer and waiting. The public Python API is in `forebay/`.
//!
//! ```text
//! forebay.Client, forebay.Training (Python)
//!     |
//! Tier ---plan---> Plan ---stream---> Stream ---next---> Batch ---column---> Column
//! (no thread)      (arithmetic)       (own threads       (Arrow PyCapsule)   (__array_interface__, DLPack: no copy)
//!                                      while running)
//!                                      (numbers, objects: copies of what has no view)
//!  |---lookup, infer---> Batch          rows: converts Python values to keys and replies
//!  |  (online: keeps exchanges open)
//!  |---serve---> Serving ---next---> Work ---reply--->
//! ```

mod arrow;
mod batch;
mod column;
mod device;
mod dlpack;
mod epoch_reader;
mod errors;
mod json;
mod notices;
mod numbers;
mod objects;
mod online;
mod plan;
mod rows;
mod serving;
mod stream;
mod tier;
mod times;
mod types;
mod values;
mod waiting;

use pyo3::prelude::*;

/// The native part of forebay.
#[pymodule]
mod _forebay {
    #[pymodule_export]
    use crate::{
        batch::Batch,
        column::Column,
        device::{DeviceColumn, DeviceLists},
        online::Request,
        plan::Plan,
        serving::{InferenceBatch, Worker},
        stream::{Stream, Utilization},
        tier::Cluster,
        values::ValueSet,
    };
}
