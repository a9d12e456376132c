//! Settings of a queue.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// Settings of a batch queue. All of them can be changed at run time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct QueueConfig {
    /// Maximum number of rows per batch and per request, 1 to 1,048,576. Default: 4,096.
    pub max_batch_rows: u64,
    /// Maximum size of the features of a batch, estimated from the mean row size, and of its request columns, in bytes. At least 1
    /// and at most half of `lookups.max_answer_bytes`, which limits the actual size of the features. Default: 8 MiB.
    pub max_batch_bytes: u64,
    /// Maximum time for which a request waits for further requests while a worker is free, 0 to 1 hour. Default: 5 ms.
    #[serde(with = "humantime_serde")]
    pub max_batch_delay: Duration,
    /// True if a free worker receives a batch before `max_batch_delay`, as soon as waiting longer is expected to cost more
    /// latency than it saves. Default: true.
    pub eager_dispatch: bool,
    /// Time from the arrival of a request without a `timeout` to its deadline, above 0 and up to 1 hour. Default: 100 ms.
    #[serde(with = "humantime_serde")]
    pub default_timeout: Duration,
    /// Maximum predicted time until an answer, 0 to 1 hour. Requests with a longer prediction are refused, even if their own
    /// deadline is later. Default: 10 s.
    #[serde(with = "humantime_serde")]
    pub max_predicted_wait: Duration,
    /// Maximum time for which a request waits until it is sent to a worker, above 0 and up to 1 hour. A request that waits longer
    /// ends as if its deadline had passed. The time starts again when a request returns to the queue. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub max_time_in_queue: Duration,
    /// Maximum number of queued requests, at least 1. Default: 16,384.
    pub max_queue_requests: usize,
    /// Maximum number of queued rows, at least 1. Default: 1,048,576.
    pub max_queue_rows: u64,
    /// Maximum size of the keys and request columns of all unanswered requests, in bytes, at least 1. Default: 64 MiB.
    pub max_queue_bytes: u64,
    /// Number of attempts after which the requests of a lost batch are sent apart from others, at least 1. A batch is lost if its worker
    /// disconnects or is overdue. A request that is then lost alone fails. The requests of a batch whose worker reports an error are
    /// sent apart at once. Default: 2.
    pub max_attempts: u32,
    /// Maximum number of batches that one worker may have at a time, at least 1. Default: 8.
    pub max_credits: u64,
    /// Batch sizes, in rows, to which batches are padded with rows of nulls and zeros. A batch is padded to the smallest size
    /// that holds it; a larger batch is not padded. At most 64 sizes of 1 to `max_batch_rows`. Default: empty, no padding.
    pub pad_to: Vec<u64>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            max_batch_rows: 4096,
            max_batch_bytes: 8 << 20,
            max_batch_delay: Duration::from_millis(5),
            eager_dispatch: true,
            default_timeout: Duration::from_millis(100),
            max_predicted_wait: Duration::from_secs(10),
            max_time_in_queue: Duration::from_secs(60),
            max_queue_requests: 16_384,
            max_queue_rows: 1 << 20,
            max_queue_bytes: 64 << 20,
            max_attempts: 2,
            max_credits: 8,
            pad_to: Vec::new(),
        }
    }
}

impl QueueConfig {
    /// Upper limit of `max_batch_rows`.
    pub const MAX_BATCH_ROWS: u64 = 1 << 20;
    /// Upper limit of the number of sizes in `pad_to`. Each forecast looks at all of them.
    pub const MAX_PAD_SIZES: usize = 64;

    /// Checks that all settings are within their ranges.
    ///
    /// # Errors
    /// The first invalid setting with its value and what was expected.
    pub fn validate(&self) -> Result<(), String> {
        let at_least_one = [
            ("max_batch_rows", self.max_batch_rows),
            ("max_batch_bytes", self.max_batch_bytes),
            ("max_queue_requests", self.max_queue_requests as u64),
            ("max_queue_rows", self.max_queue_rows),
            ("max_queue_bytes", self.max_queue_bytes),
            ("max_attempts", self.max_attempts.into()),
            ("max_credits", self.max_credits),
        ];
        for (name, value) in at_least_one {
            if value == 0 {
                return Err(format!("{name} is 0, expected at least 1"));
            }
        }
        let most = Self::MAX_BATCH_ROWS;
        if self.max_batch_rows > most {
            return Err(format!("max_batch_rows is {}, expected at most {most}", self.max_batch_rows));
        }
        const LONGEST: Duration = Duration::from_secs(3600);
        let times = [
            ("max_batch_delay", self.max_batch_delay),
            ("default_timeout", self.default_timeout),
            ("max_predicted_wait", self.max_predicted_wait),
            ("max_time_in_queue", self.max_time_in_queue),
        ];
        for (name, time) in times {
            if time > LONGEST {
                return Err(format!("{name} is {time:?}, expected at most {LONGEST:?}"));
            }
        }
        if self.max_time_in_queue.is_zero() {
            return Err("max_time_in_queue is 0, expected a duration above 0, such as 60s".into());
        }
        if self.default_timeout.is_zero() {
            return Err("default_timeout is 0, expected a duration above 0, such as 100ms".into());
        }
        if self.pad_to.len() > Self::MAX_PAD_SIZES {
            let (sizes, most) = (self.pad_to.len(), Self::MAX_PAD_SIZES);
            return Err(format!("pad_to has {sizes} sizes, expected at most {most}"));
        }
        let most = self.max_batch_rows;
        if let Some(size) = self.pad_to.iter().find(|size| **size == 0 || **size > most) {
            return Err(format!("pad_to has {size}, expected 1 to max_batch_rows, {most}"));
        }
        Ok(())
    }

    /// Returns the number of rows, including padding, of a batch of `rows` rows.
    pub fn padded_rows(&self, rows: u64) -> u64 {
        self.pad_to.iter().copied().filter(|size| *size >= rows).min().unwrap_or(rows)
    }
}
