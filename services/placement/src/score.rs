//! Scores of servers for streams: xxh3 over tagged bytes.
//!
//! All servers of a cluster must compute the same scores, even if they have different versions. A golden test pins the scores.

use xxhash_rust::xxh3::xxh3_64;

/// Hash of a server's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerDigest(u64);

/// Hash of the unit that is placed: the streams of a group, or all streams of a dataset together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl ServerDigest {
    /// Hashes `forebay.placement.server.1` and the name.
    pub(crate) fn new(name: &str) -> Self {
        let mut bytes = b"forebay.placement.server.1".to_vec();
        bytes.extend_from_slice(name.as_bytes());
        Self(xxh3_64(&bytes))
    }

    /// Returns the score of the server for `key`. The server with the highest score is the first choice of the key.
    pub(crate) fn score(self, key: Key) -> u64 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&key.0.to_le_bytes());
        xxh3_64(&bytes)
    }
}

impl Key {
    /// Hashes `forebay.placement.dataset.1` and the dataset.
    pub(crate) fn of_dataset(dataset: &str) -> Self {
        let mut bytes = b"forebay.placement.dataset.1".to_vec();
        bytes.extend_from_slice(dataset.as_bytes());
        Self(xxh3_64(&bytes))
    }

    /// Hashes `forebay.placement.stream.1`, then partitions, number of groups and group as little-endian 64-bit numbers, and the
    /// dataset.
    pub(crate) fn of_streams(dataset: &str, partitions: u64, groups: u64, group: u64) -> Self {
        let mut bytes = b"forebay.placement.stream.1".to_vec();
        for number in [partitions, groups, group] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(dataset.as_bytes());
        Self(xxh3_64(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_the_same_in_every_version() {
        let servers = ["forebay-0.forebay:7050", "forebay-1.forebay:7050", "10.0.0.1:7050", ""];
        let keys = [
            Key::of_dataset("clicks"),
            Key::of_streams("clicks", 64, 8, 0),
            Key::of_streams("clicks", 64, 8, 7),
            Key::of_streams("clicks", 64, 16, 7),
        ];
        let scores: Vec<Vec<u64>> = servers
            .iter()
            .map(|name| keys.iter().map(|key| ServerDigest::new(name).score(*key)).collect())
            .collect();
        assert_eq!(
            scores,
            [
                [17945489823021748346, 3287356001843908633, 3108531615637859757, 4324832816911499776],
                [14379194353484639933, 7368077272130125928, 12934992213186044901, 12858265526098428182],
                [9481416676848552967, 10462924333890740764, 3710833545841346269, 2514849909935359586],
                [8844741064772289019, 2068039486900956878, 9460016219036937510, 16756220011055045246],
            ]
        );
    }
}
