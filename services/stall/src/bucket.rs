//! What time can be charged to.

use std::{
    ops::{AddAssign, Index, IndexMut},
    time::Duration,
};

use serde::Serialize;

/// What an instant of a trainer's time is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bucket {
    /// The trainer computes and asks for nothing.
    Consumer,
    /// It waits for a finished batch that is on its way.
    Network,
    /// It waits while its batch is put together.
    Gather,
    /// It waits while rows of its batch are decoded.
    Decode,
    /// It waits while they are read from the store, or from the cache's disk.
    Storage,
    /// It waits while all work for it waits, for a thread or for memory.
    Admission,
    /// The consumer or the network: which of them, a client that does not report leaves open.
    Downstream,
}

/// Work for a batch, in the order in which it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Bytes are read.
    Storage,
    /// They become rows.
    Decode,
    /// Rows become a batch.
    Gather,
}

/// Time in each bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buckets([Duration; Bucket::ALL.len()]);

impl Bucket {
    /// All of them, the trainer's end first.
    pub const ALL: [Self; 7] = [
        Self::Consumer,
        Self::Network,
        Self::Gather,
        Self::Decode,
        Self::Storage,
        Self::Admission,
        Self::Downstream,
    ];

    /// Those in which the trainer waits for the server.
    pub const UPSTREAM: [Self; 4] = [Self::Gather, Self::Decode, Self::Storage, Self::Admission];

    /// What it is called in metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Network => "network",
            Self::Gather => "gather",
            Self::Decode => "decode",
            Self::Storage => "storage",
            Self::Admission => "admission",
            Self::Downstream => "downstream",
        }
    }
}

impl Stage {
    /// All of them, the store's end first.
    pub const ALL: [Self; 3] = [Self::Storage, Self::Decode, Self::Gather];

    /// What it is called in metrics and answers.
    pub fn name(self) -> &'static str {
        self.bucket().name()
    }

    /// Where the time goes in which a trainer waits for it.
    pub fn bucket(self) -> Bucket {
        match self {
            Self::Storage => Bucket::Storage,
            Self::Decode => Bucket::Decode,
            Self::Gather => Bucket::Gather,
        }
    }
}

impl Buckets {
    /// The time in all of them.
    pub fn sum(&self) -> Duration {
        self.0.iter().sum()
    }

    /// The time in some of them.
    pub fn sum_of(&self, buckets: impl IntoIterator<Item = Bucket>) -> Duration {
        buckets.into_iter().map(|bucket| self[bucket]).sum()
    }

    /// Each bucket's share of the sum, 0 where there is none.
    pub fn share(&self, bucket: Bucket) -> f64 {
        let sum = self.sum().as_secs_f64();
        if sum > 0.0 { self[bucket].as_secs_f64() / sum } else { 0.0 }
    }

    /// Every bucket with its time.
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
