//! Delays that are injected into stages of the training path, to observe how the server reports a slow stage.

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// Injected delays. They change no byte of any batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct FaultInjection {
    /// Delay before a block is decoded, on the thread that decodes it. Default: 0 s.
    #[serde(with = "humantime_serde")]
    pub decode: Duration,
    /// Delay before a batch is gathered, on the thread that gathers it. Default: 0 s.
    #[serde(with = "humantime_serde")]
    pub gather: Duration,
}

impl FaultInjection {
    /// Does `work` after the delay of decoding.
    pub(crate) async fn before_decode<T>(self, work: impl Future<Output = T>) -> T {
        delay(self.decode);
        work.await
    }

    /// Does `work` after the delay of gathering.
    pub(crate) async fn before_gather<T>(self, work: impl Future<Output = T>) -> T {
        delay(self.gather);
        work.await
    }
}

/// Sleeping is allowed because the work runs on a thread for CPU work, which has no other work in that time.
fn delay(delay: Duration) {
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
}
