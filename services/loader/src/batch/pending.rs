//! Batches that are being gathered.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_proto::v1::BatchMetadata;
use forebay_stall::{Moments, Stage};

use super::{budget::BatchReservation, wire::WireBatch};
use crate::Submitted;

/// A batch that is being gathered, and its part of the prefetch budget.
pub(crate) struct PendingBatch {
    /// Metadata without row count, hash and group offsets.
    pub(crate) metadata: BatchMetadata,
    pub(crate) batch: Submitted<GatheredBatch>,
    /// Start of the batch, time spent waiting for its windows, and work done during that wait.
    pub(crate) begun: Instant,
    pub(crate) window_wait: Duration,
    pub(crate) seen: Vec<(Stage, Instant, Instant)>,
    pub(crate) reservation: Arc<BatchReservation>,
}

/// A gathered batch.
pub(crate) struct GatheredBatch {
    pub(crate) batch: WireBatch,
    pub(crate) label: Option<Moments>,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
}
