//! Notices about a worker: whether it receives batches.

use std::time::Duration;

/// Event after which a worker receives no batches, or receives them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The worker is overdue and receives no batches until it replies.
    Overdue {
        /// Time for which its oldest batch has been waiting without any reply of the worker.
        silence: Duration,
    },
    /// The worker replied after it was overdue.
    Answering {
        /// Time for which its oldest batch had been waiting.
        silence: Duration,
    },
    /// The worker is suspended: it failed batches that other workers computed.
    Suspended {
        /// Time for which it receives no batches.
        time: Duration,
    },
}
