//! Verdicts in sentences, and advice on settings.

use bytesize::ByteSize;
use forebay_stall::{Bottleneck, Confidence, Level, Verdict, WhatIf};
use serde::Serialize;
use utoipa::ToSchema;

/// Recommendation to change one setting or request field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Advice {
    /// Name of the setting in the configuration, or of the field in the request.
    pub(crate) setting: &'static str,
    /// Reason for the change and its effect, in one or two sentences.
    pub(crate) message: String,
}

/// Properties of the server and its datasets that advice depends on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Number of threads that decode and gather.
    pub(crate) cpu_threads: usize,
    /// Number of cores of the machine.
    pub(crate) cores: usize,
    /// Decoded size of all open datasets, in bytes.
    pub(crate) decoded_bytes: u64,
    /// Capacity of the memory cache, in bytes.
    pub(crate) memory_bytes: u64,
    /// Capacity of the disk cache, in bytes; 0 without a disk cache.
    pub(crate) disk_bytes: u64,
    /// Largest number of concurrent requests to the store of a dataset.
    pub(crate) concurrent_requests: usize,
}

impl Facts {
    /// Returns recommendations for a verdict, most promising first.
    pub(crate) fn advice(&self, verdict: &Verdict) -> Vec<Advice> {
        match verdict.bottleneck {
            Bottleneck::Storage => self.for_storage(),
            Bottleneck::Decode => self.for_decode(),
            Bottleneck::Gather => self.for_gather(),
            Bottleneck::Network => vec![
                advice("lanes", "Open several streams per trainer to use several cores and connections."),
                advice(
                    "grpc",
                    "Connect trainers on the same host through a Unix socket (unix:/path) to avoid TCP.",
                ),
                advice(
                    "tensors",
                    "Use smaller types (float16) or `dedupe` to send fewer bytes for the same rows.",
                ),
            ],
            Bottleneck::Queued => self.for_queued(),
            Bottleneck::Compute | Bottleneck::ComputeOrNetwork | Bottleneck::Idle | Bottleneck::Unknown => {
                Vec::new()
            }
        }
    }

    fn for_storage(&self) -> Vec<Advice> {
        let decoded = ByteSize(self.decoded_bytes);
        let mut all = Vec::new();
        if self.decoded_bytes > self.memory_bytes && self.decoded_bytes > self.disk_bytes {
            let message =
                format!("Set the disk cache to {decoded}, so that later epochs do not read from the store.");
            all.push(advice("cache_disk", message));
        }
        if self.decoded_bytes > self.memory_bytes {
            let message = format!(
                "Increase the memory cache: the datasets decode to {decoded}, the memory cache holds {}.",
                ByteSize(self.memory_bytes)
            );
            all.push(advice("cache_memory", message));
        } else {
            let message = "Load the dataset with `warm` before the job begins. It fits in memory, so only the first \
                           epoch reads from the store.";
            all.push(advice("warm", message));
        }
        let message = format!(
            "Allow more than {} concurrent requests to hide latency, if the store has bandwidth to spare.",
            self.concurrent_requests
        );
        all.push(advice("storage.concurrent_requests", message));
        all
    }

    fn for_decode(&self) -> Vec<Advice> {
        vec![
            self.more_threads(),
            advice(
                "loader.disk_writes",
                "Keep decoded columns on disk for later epochs, jobs and restarts of the server.",
            ),
            advice("columns", "Request fewer columns and filter in the request, so that less is decoded."),
        ]
    }

    fn for_gather(&self) -> Vec<Advice> {
        vec![
            self.more_threads(),
            advice(
                "tensors",
                "Combine columns of one type into one tensor, which is copied row by row instead of value by value.",
            ),
            advice("content_hash", "Set `content_hash` to false to skip a pass over each batch."),
        ]
    }

    fn for_queued(&self) -> Vec<Advice> {
        vec![
            advice(
                "cache_memory",
                "Increase memory or reduce the number of jobs: all work of these trainers waits for threads or \
                 memory that other jobs use.",
            ),
            self.more_threads(),
            advice(
                "loader.decode_bytes",
                "Raise the limit on blocks that are read and decoded concurrently.",
            ),
        ]
    }

    fn more_threads(&self) -> Advice {
        let message = if self.cpu_threads < self.cores {
            format!(
                "Increase the number of CPU threads: {} of {} cores decode and gather.",
                self.cpu_threads, self.cores
            )
        } else {
            format!("Add a server: all {} cores of this one already decode and gather.", self.cores)
        };
        advice("cpu_threads", message)
    }
}

fn advice(setting: &'static str, message: impl Into<String>) -> Advice {
    Advice { setting, message: message.into() }
}

/// Describes the verdict on `sessions` sessions in one or two sentences.
pub(crate) fn summary(verdict: &Verdict, sessions: usize) -> String {
    let is_one = sessions == 1;
    let percent = |fraction: f64| format!("{:.0}%", fraction * 100.0);
    let wait = verdict.wait_fraction.unwrap_or(0.0);
    match verdict.bottleneck {
        Bottleneck::Idle => "No active trainers.".to_owned(),
        Bottleneck::Unknown => {
            "No verdict yet: it needs two consecutive windows with the same bottleneck.".to_owned()
        }
        Bottleneck::Compute => {
            let (subject, verb) = if is_one { ("trainer", "computes") } else { ("trainers", "compute") };
            format!(
                "The {subject} {verb} for {} of the time. Faster input would not speed up training.",
                percent(1.0 - wait)
            )
        }
        Bottleneck::ComputeOrNetwork => {
            let subject = if is_one { "the trainer" } else { "the trainers" };
            format!(
                "The bottleneck is {subject} or the network: the server has batches ready. A client that reports its \
                 activity shows which."
            )
        }
        bottleneck => {
            let (subject, verb) = if is_one { ("trainer", "waits") } else { ("trainers", "wait") };
            let part = match verdict.confidence {
                Confidence::High => "mostly",
                Confidence::Low | Confidence::None => "more than for anything else",
            };
            let level = match verdict.level {
                Level::InputBound if is_one => " The job is input-bound.",
                Level::InputBound => " The jobs are input-bound.",
                Level::None | Level::Moderate => "",
            };
            let cause = noun(bottleneck);
            let mut text =
                format!("The {subject} {verb} {} of the time, {part} for {cause}.{level}", percent(wait));
            if let Some(WhatIf { speedup, next_bottleneck, .. }) = verdict.what_if {
                let next = match next_bottleneck {
                    Bottleneck::Compute if !is_one => "the trainers",
                    next => noun(next),
                };
                text += &format!(
                    " Removing this bottleneck speeds up training by at most {speedup:.1}x; the next one is {next}."
                );
            }
            text
        }
    }
}

fn noun(bottleneck: Bottleneck) -> &'static str {
    match bottleneck {
        Bottleneck::Compute => "the trainer",
        Bottleneck::Network => "the network",
        Bottleneck::Gather => "gathering batches",
        Bottleneck::Decode => "decoding",
        Bottleneck::Storage => "storage",
        Bottleneck::Queued => "a free thread or memory",
        Bottleneck::ComputeOrNetwork => "the trainer or the network",
        Bottleneck::Idle | Bottleneck::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_stall::{Bucket, Buckets, Evidence, judge};

    use super::*;

    fn verdict(parts: &[(Bucket, u64)]) -> Verdict {
        let mut recent = Buckets::default();
        parts.iter().for_each(|(bucket, seconds)| recent[*bucket] = Duration::from_secs(*seconds));
        judge(&Evidence { recent, before: recent, window: Duration::from_secs(10), sessions: 1, batches: 0 })
    }

    #[test]
    fn a_verdict_reads_as_a_sentence() {
        let storage = verdict(&[(Bucket::Compute, 2), (Bucket::Storage, 7), (Bucket::Network, 1)]);
        assert_eq!(
            summary(&storage, 1),
            "The trainer waits 80% of the time, mostly for storage. The job is input-bound. \
             Removing this bottleneck speeds up training by at most 3.3x; the next one is the trainer."
        );
        assert_eq!(
            summary(&verdict(&[(Bucket::Compute, 99), (Bucket::Gather, 1)]), 3),
            "The trainers compute for 99% of the time. Faster input would not speed up training."
        );
        let unreported = verdict(&[(Bucket::ComputeOrNetwork, 10)]);
        assert!(summary(&unreported, 1).starts_with("The bottleneck is the trainer or the network"));
        assert!(summary(&unreported, 2).starts_with("The bottleneck is the trainers or the network"));
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
        let storage = verdict(&[(Bucket::Storage, 10)]);
        let settings =
            |facts: &Facts| facts.advice(&storage).iter().map(|advice| advice.setting).collect::<Vec<_>>();
        assert_eq!(settings(&facts), ["cache_disk", "cache_memory", "storage.concurrent_requests"]);
        assert!(facts.advice(&storage)[0].message.contains("41.0 GiB"));
        let fits = Facts { memory_bytes: 64 << 30, ..facts.clone() };
        assert_eq!(settings(&fits), ["warm", "storage.concurrent_requests"]);
        let decode = facts.advice(&verdict(&[(Bucket::Decode, 10)]));
        assert_eq!(decode[0].message, "Increase the number of CPU threads: 2 of 8 cores decode and gather.");
    }
}
