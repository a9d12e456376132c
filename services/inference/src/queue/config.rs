//! How a queue trades the size of batches for latency.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What can be turned of a queue, also while it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueConfig {
    /// Most rows of a batch, and of a request. Default: 4,096.
    pub max_batch_rows: u64,
    /// Most bytes of the features of a batch, by what rows take in the mean; at most half of `lookups.max_answer_bytes`, which is
    /// what it may take in truth. Default: 8 MiB.
    pub max_batch_bytes: u64,
    /// How long a request may wait for others while a worker is free. Default: 5 ms.
    #[serde(with = "humantime_serde")]
    #[schema(value_type = String, default = "5ms", example = "5ms")]
    pub max_queue_delay: Duration,
    /// Whether a free worker gets a batch earlier, as soon as waiting for more does not pay. Default: true.
    pub idle: bool,
    /// The time in which a request is of use that does not say so itself. Default: 100 ms.
    #[serde(with = "humantime_serde")]
    #[schema(value_type = String, default = "100ms", example = "100ms")]
    pub slo: Duration,
    /// Requests that would be answered later than this are refused, whatever their deadline. Default: 10 s.
    #[serde(with = "humantime_serde")]
    #[schema(value_type = String, default = "10s", example = "10s")]
    pub max_queue_time: Duration,
    /// Most requests that wait. Default: 16,384.
    pub max_queue_requests: usize,
    /// Most rows that wait. Default: 1,048,576.
    pub max_queue_rows: u64,
    /// Most bytes of keys that are not answered. Default: 64 MiB.
    pub max_queue_bytes: u64,
    /// How often a request is given to a worker before it fails, when workers die with it. Default: 2.
    pub max_attempts: u32,
    /// Most batches that one worker may have at a time. Default: 8.
    pub max_credits: u64,
    /// Sizes to which batches are filled up with rows of nulls and zeros; a batch of more rows is left as it is. At most 64 sizes.
    /// Default: none.
    pub pad_to: Vec<u64>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            max_batch_rows: 4096,
            max_batch_bytes: 8 << 20,
            max_queue_delay: Duration::from_millis(5),
            idle: true,
            slo: Duration::from_millis(100),
            max_queue_time: Duration::from_secs(10),
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
    /// What `max_batch_rows` may be at most.
    pub const MOST_BATCH_ROWS: u64 = 1 << 20;
    /// How many sizes `pad_to` may have at most: each forecast looks at all of them.
    pub const MOST_SIZES: usize = 64;

    /// Checks that a queue can work so.
    ///
    /// # Errors
    /// The field, its value and what was expected.
    pub fn check(&self) -> Result<(), String> {
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
        let most = Self::MOST_BATCH_ROWS;
        if self.max_batch_rows > most {
            return Err(format!("max_batch_rows is {}, expected at most {most}", self.max_batch_rows));
        }
        const LONGEST: Duration = Duration::from_secs(3600);
        let times = [
            ("max_queue_delay", self.max_queue_delay),
            ("slo", self.slo),
            ("max_queue_time", self.max_queue_time),
        ];
        for (name, time) in times {
            if time > LONGEST {
                return Err(format!("{name} is {time:?}, expected at most {LONGEST:?}"));
            }
        }
        if self.slo.is_zero() {
            return Err("slo is 0, expected a time in which an answer is of use".into());
        }
        if self.pad_to.len() > Self::MOST_SIZES {
            let (sizes, most) = (self.pad_to.len(), Self::MOST_SIZES);
            return Err(format!("pad_to has {sizes} sizes, expected at most {most}"));
        }
        let most = self.max_batch_rows;
        if let Some(size) = self.pad_to.iter().find(|size| **size == 0 || **size > most) {
            return Err(format!("pad_to has {size}, expected 1 to max_batch_rows, {most}"));
        }
        Ok(())
    }

    /// Rows of a batch of so many, with those that pad it.
    pub fn padded(&self, rows: u64) -> u64 {
        self.pad_to.iter().copied().filter(|size| *size >= rows).min().unwrap_or(rows)
    }
}
