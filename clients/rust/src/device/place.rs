//! The kind and number of a device.

use std::fmt;

/// A device, by kind and number. `Display` writes `cpu` or `cuda:NUMBER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Host memory.
    Host,
    /// Memory of the CUDA device with this number, counted from 0.
    Cuda(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}
