//! One stream of batches: its job, rank and lane, and its accounting.

use std::sync::Arc;

use forebay_stall::Lane;

use crate::{Flow, Job, activity::Seen, window::progress::WindowWait};

/// Job, rank and lane of a stream, with its accounting.
#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) job: Arc<Job>,
    pub(crate) rank: u32,
    pub(crate) lane: u32,
    /// Stall accounting of the stream.
    pub(crate) watch: Lane,
    /// Work done for the current batch while it waited for its windows.
    pub(crate) seen: Arc<Seen>,
    /// Windows for which the stream waits.
    pub(crate) waits: WindowWait,
    /// Fair-queue flow of gather work.
    pub(crate) gather_flow: Flow,
}
