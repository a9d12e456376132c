//! Page-locked host memory.

use std::any::Any;

/// Keeps host memory page-locked until it is dropped.
pub(crate) type Pin = Box<dyn Any + Send + Sync>;

/// Page-locks host memory, so that a device copies from it directly.
pub(crate) trait PinMemory: Send + Sync {
    /// Page-locks `memory` until the returned value is dropped. Returns `None` where this has no effect or fails.
    fn pin(&self, _memory: &mut [u8]) -> Option<Pin> {
        None
    }
}
