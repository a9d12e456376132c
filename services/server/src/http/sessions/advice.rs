//! Advice on settings.

use bytesize::ByteSize;
use forebay_stall::{Bottleneck, Verdict};
use serde::Serialize;
use utoipa::ToSchema;

use crate::stalls::Facts;

/// Recommendation to change one setting or request field.
#[derive(Serialize, ToSchema)]
pub(super) struct Advice {
    /// Name of the setting in the configuration, or of the field in the request.
    setting: &'static str,
    /// Reason for the change and its effect, in one or two sentences.
    message: String,
}

/// Returns recommendations for a verdict, most promising first, and none while a store does not answer: the summary tells what to check.
pub(super) fn advice(verdict: &Verdict, facts: impl FnOnce() -> Facts) -> Vec<Advice> {
    if verdict.silence.is_some() {
        return Vec::new();
    }
    match verdict.bottleneck {
        Bottleneck::Storage => for_storage(&facts()),
        Bottleneck::Decode => vec![
            more_threads(&facts()),
            change(
                "loader.disk_writes",
                "Keep decoded columns on disk for later epochs, jobs and restarts of the server.",
            ),
            change("columns", "Request fewer columns and filter in the request, so that less is decoded."),
        ],
        Bottleneck::Gather => vec![
            more_threads(&facts()),
            change(
                "tensors",
                "Combine columns of one type into one tensor, which is copied row by row instead of value by value.",
            ),
            change("content_hash", "Set `content_hash` to false to skip a pass over each batch."),
        ],
        Bottleneck::Network => vec![
            change("lanes", "Open several streams per trainer to use several cores and connections."),
            change(
                "grpc",
                "Connect trainers on the same host through a Unix socket (unix:/path) to avoid TCP.",
            ),
            change(
                "tensors",
                "Use smaller types (float16) or `dedupe` to send fewer bytes for the same rows.",
            ),
        ],
        Bottleneck::Queued => vec![
            change(
                "cache_memory",
                "Increase memory or reduce the number of jobs: all work of these trainers waits for threads or \
                 memory that other jobs use.",
            ),
            more_threads(&facts()),
            change(
                "loader.decode_bytes",
                "Raise the limit on blocks that are read and decoded concurrently.",
            ),
        ],
        Bottleneck::Compute | Bottleneck::ComputeOrNetwork | Bottleneck::Idle | Bottleneck::Unknown => {
            Vec::new()
        }
    }
}

fn for_storage(facts: &Facts) -> Vec<Advice> {
    let decoded = ByteSize(facts.decoded_bytes);
    let mut all = Vec::new();
    if facts.decoded_bytes > facts.memory_bytes && facts.decoded_bytes > facts.disk_bytes {
        let message =
            format!("Set the disk cache to {decoded}, so that later epochs do not read from the store.");
        all.push(change("cache_disk", message));
    }
    if facts.decoded_bytes > facts.memory_bytes {
        let message = format!(
            "Increase the memory cache: the columns that are read decode to {decoded}, the memory cache holds {}.",
            ByteSize(facts.memory_bytes)
        );
        all.push(change("cache_memory", message));
    } else {
        let message = "Load the dataset with `warm` before the job begins. It fits in memory, so only the first \
                       epoch reads from the store.";
        all.push(change("warm", message));
    }
    let message = format!(
        "Allow more than {} concurrent requests to hide latency, if the store has bandwidth to spare.",
        facts.concurrent_requests
    );
    all.push(change("storage.concurrent_requests", message));
    all
}

fn more_threads(Facts { cpu_threads, cores, .. }: &Facts) -> Advice {
    let message = if cpu_threads < cores {
        format!("Increase the number of CPU threads: {cpu_threads} of {cores} cores decode and gather.")
    } else {
        format!("Add a server: all {cores} cores of this one already decode and gather.")
    };
    change("cpu_threads", message)
}

fn change(setting: &'static str, message: impl Into<String>) -> Advice {
    Advice { setting, message: message.into() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_stall::{Bucket, Buckets, Evidence, judge};

    use super::*;

    fn verdict(bucket: Bucket) -> Verdict {
        let (mut recent, window) = (Buckets::default(), Duration::from_secs(10));
        recent[bucket] = window;
        judge(&Evidence { recent, before: recent, window, sessions: 1, batches: 0 })
    }

    #[test]
    fn advice_names_what_is_missing() {
        let facts = Facts {
            cpu_threads: 2,
            cores: 8,
            decoded_bytes: 41 << 30,
            memory_bytes: 8 << 30,
            disk_bytes: 0,
            concurrent_requests: 64,
        };
        let storage = verdict(Bucket::Storage);
        let settings = |facts: &Facts| {
            advice(&storage, || facts.clone()).iter().map(|advice| advice.setting).collect::<Vec<_>>()
        };
        assert_eq!(settings(&facts), ["cache_disk", "cache_memory", "storage.concurrent_requests"]);
        assert!(advice(&storage, || facts.clone())[0].message.contains("41.0 GiB"));
        let fits = Facts { memory_bytes: 64 << 30, ..facts.clone() };
        assert_eq!(settings(&fits), ["warm", "storage.concurrent_requests"]);
        let decode = advice(&verdict(Bucket::Decode), || facts.clone());
        let silent = Verdict { silence: Some(Duration::from_secs(27)), ..storage };
        assert!(advice(&silent, || facts.clone()).is_empty(), "a larger cache does not make a store answer");
        assert_eq!(decode[0].message, "Increase the number of CPU threads: 2 of 8 cores decode and gather.");
    }
}
