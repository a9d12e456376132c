//! Categories that time is charged to.

use std::{
    ops::{AddAssign, Index, IndexMut},
    time::Duration,
};

use serde::Serialize;

/// Category that an instant of a trainer's time is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bucket {
    /// The trainer computes and requests nothing.
    Compute,
    /// The trainer waits for a finished batch that is in transit.
    Network,
    /// The trainer waits while its batch is gathered.
    Gather,
    /// The trainer waits while rows of its batch are decoded.
    Decode,
    /// The trainer waits for reads from the store or from the disk cache.
    Storage,
    /// The trainer waits while all of its work is queued for a thread or for memory.
    Queued,
    /// Compute or network. The server cannot tell them apart for a client that does not report.
    ComputeOrNetwork,
}

/// Stage of the work for a batch, in processing order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reads bytes.
    Storage,
    /// Decodes bytes into rows.
    Decode,
    /// Gathers rows into a batch.
    Gather,
}

/// Time in each bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buckets([Duration; Bucket::ALL.len()]);

impl Bucket {
    /// All buckets, from the trainer to the store.
    pub const ALL: [Self; 7] = [
        Self::Compute,
        Self::Network,
        Self::Gather,
        Self::Decode,
        Self::Storage,
        Self::Queued,
        Self::ComputeOrNetwork,
    ];

    /// Buckets in which the trainer waits for the server.
    pub const UPSTREAM: [Self; 4] = [Self::Gather, Self::Decode, Self::Storage, Self::Queued];

    /// Returns the name in metrics and in the HTTP API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Network => "network",
            Self::Gather => "gather",
            Self::Decode => "decode",
            Self::Storage => "storage",
            Self::Queued => "queued",
            Self::ComputeOrNetwork => "compute_or_network",
        }
    }
}

impl Stage {
    /// All stages, from the store to the trainer.
    pub const ALL: [Self; 3] = [Self::Storage, Self::Decode, Self::Gather];

    /// Returns the name in metrics and in the HTTP API.
    pub fn name(self) -> &'static str {
        self.bucket().name()
    }

    /// Returns the bucket of the time in which a trainer waits for this stage.
    pub fn bucket(self) -> Bucket {
        match self {
            Self::Storage => Bucket::Storage,
            Self::Decode => Bucket::Decode,
            Self::Gather => Bucket::Gather,
        }
    }
}

impl Buckets {
    /// Returns the total time.
    pub fn sum(&self) -> Duration {
        self.0.iter().sum()
    }

    /// Returns the total time of `buckets`.
    pub fn sum_of(&self, buckets: impl IntoIterator<Item = Bucket>) -> Duration {
        buckets.into_iter().map(|bucket| self[bucket]).sum()
    }

    /// Returns the fraction of the total time in `bucket`, 0 if the total is zero.
    pub fn fraction(&self, bucket: Bucket) -> f64 {
        let sum = self.sum().as_secs_f64();
        if sum > 0.0 { self[bucket].as_secs_f64() / sum } else { 0.0 }
    }

    /// Iterates over all buckets with their times.
    pub fn iter(&self) -> impl Iterator<Item = (Bucket, Duration)> + '_ {
        Bucket::ALL.into_iter().map(|bucket| (bucket, self[bucket]))
    }
}

impl Index<Bucket> for Buckets {
    type Output = Duration;

    fn index(&self, bucket: Bucket) -> &Duration {
        &self.0[bucket as usize]
    }
}

impl IndexMut<Bucket> for Buckets {
    fn index_mut(&mut self, bucket: Bucket) -> &mut Duration {
        &mut self.0[bucket as usize]
    }
}

impl AddAssign for Buckets {
    fn add_assign(&mut self, other: Self) {
        for (time, other) in self.0.iter_mut().zip(other.0) {
            *time += other;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::to_value;

    use super::*;

    #[test]
    fn a_bucket_has_the_same_name_in_metrics_and_in_json() {
        for bucket in Bucket::ALL {
            assert_eq!(to_value(bucket).unwrap(), bucket.name());
        }
        for stage in Stage::ALL {
            assert_eq!(to_value(stage).unwrap(), stage.name());
        }
    }
}
