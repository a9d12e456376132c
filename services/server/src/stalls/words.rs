//! Verdicts in words, and what to turn.

use bytesize::ByteSize;
use forebay_stall::{Confidence, Level, Limit, Verdict, WhatIf};
use serde::Serialize;
use utoipa::ToSchema;

/// One setting to change, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Advice {
    /// As it is called in the configuration, or in the request.
    pub(crate) setting: &'static str,
    pub(crate) words: String,
}

/// What there is to turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Threads that decode and gather, and cores of the machine.
    pub(crate) cpu_threads: usize,
    pub(crate) cores: usize,
    /// Decoded bytes of all datasets that are open.
    pub(crate) decoded_bytes: u64,
    pub(crate) memory_bytes: u64,
    /// 0 without a disk tier.
    pub(crate) disk_bytes: u64,
    /// Requests to the store of a dataset at a time.
    pub(crate) concurrent_requests: usize,
}

impl Facts {
    /// What to turn, the most promising first.
    pub(crate) fn advice(&self, verdict: &Verdict) -> Vec<Advice> {
        let advice = |setting, words: String| Advice { setting, words };
        match verdict.limit {
            Limit::Storage => {
                let mut all = Vec::new();
                if self.decoded_bytes > self.memory_bytes && self.decoded_bytes > self.disk_bytes {
                    let size = ByteSize(self.decoded_bytes);
                    let words = format!(
                        "Give the disk tier {size}: from the second epoch on nothing is read from the store."
                    );
                    all.push(advice("cache_disk", words));
                }
                if self.decoded_bytes > self.memory_bytes {
                    let words = format!(
                        "The datasets decode to {}, frames have {}: what fits in memory is not read again.",
                        ByteSize(self.decoded_bytes),
                        ByteSize(self.memory_bytes)
                    );
                    all.push(advice("cache_memory", words));
                } else {
                    let words = "Everything fits in memory once it was read: the next epoch does not wait for the store. \
                                 `warm` loads it before a job begins."
                        .to_owned();
                    all.push(advice("warm", words));
                }
                let words = format!(
                    "If the store has bandwidth to spare, more than {} requests at a time hide its latency.",
                    self.concurrent_requests
                );
                all.push(advice("storage.concurrent_requests", words));
                all
            }
            Limit::Decode => {
                let mut all = self.more_threads();
                let words =
                    "Decoded columns are kept on disk for the next epoch, the next job and the next start.";
                all.push(advice("loader.disk_writes", words.to_owned()));
                let words = "Columns that are not asked for are not decoded: ask for fewer, and filter in the request.";
                all.push(advice("columns", words.to_owned()));
                all
            }
            Limit::Gather => {
                let mut all = self.more_threads();
                let words =
                    "Columns of one type gathered as one tensor are copied row by row, not value by value.";
                all.push(advice("tensors", words.to_owned()));
                let words = "Without a content hash a batch is touched once less.";
                all.push(advice("hash", words.to_owned()));
                all
            }
            Limit::Network => vec![
                advice("lanes", "Several streams a trainer use several cores and connections.".to_owned()),
                advice(
                    "grpc",
                    "A trainer on the same host connects through unix:/path, which saves the way through TCP."
                        .to_owned(),
                ),
                advice(
                    "tensors",
                    "Smaller types (float16) and `dedupe` send fewer bytes for the same rows.".to_owned(),
                ),
            ],
            Limit::Admission => {
                let words =
                    "All work for the trainers waits for a thread or for memory: other jobs have them.";
                let mut all = vec![advice("cache_memory", words.to_owned())];
                all.extend(self.more_threads());
                let words = "It bounds how many blocks are read and decoded at a time.";
                all.push(advice("loader.decode_bytes", words.to_owned()));
                all
            }
            Limit::Consumer | Limit::Downstream | Limit::Idle | Limit::Unknown => Vec::new(),
        }
    }

    fn more_threads(&self) -> Vec<Advice> {
        if self.cpu_threads < self.cores {
            let words = format!("{} of {} cores decode and gather.", self.cpu_threads, self.cores);
            return vec![Advice { setting: "cpu_threads", words }];
        }
        let words = format!("All {} cores decode and gather: a second server doubles them.", self.cores);
        vec![Advice { setting: "cpu_threads", words }]
    }
}

/// The verdict in one or two sentences.
pub(super) fn sentence(verdict: &Verdict, sessions: usize) -> String {
    let (who, wait, their) = match sessions {
        1 => ("The trainer", "waits", "its"),
        _ => ("The trainers", "wait", "their"),
    };
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let stall = verdict.stall.unwrap_or(0.0);
    match verdict.limit {
        Limit::Idle => "No trainer reads.".to_owned(),
        Limit::Unknown => {
            "It is too early to tell, or it changes: a verdict takes two agreeing windows.".to_owned()
        }
        Limit::Consumer => {
            let limit = if sessions == 1 { "The trainer is the limit" } else { "The trainers are the limit" };
            format!(
                "{limit}: {} of {their} time is computing. A faster input would gain nothing.",
                percent(1.0 - stall)
            )
        }
        Limit::Downstream => {
            let limit = if sessions == 1 {
                "The trainer, or the way to it, is"
            } else {
                "The trainers, or the way to them, are"
            };
            format!("{limit} the limit: the server has batches ready. A client that reports tells which.")
        }
        _ => {
            let most = match verdict.confidence {
                Confidence::High => "most of it for",
                Confidence::Low | Confidence::None => "the largest part of it for",
            };
            let level = if verdict.level == Level::Moderate { "" } else { ", so the input is the limit" };
            let cause = noun(verdict.limit);
            let mut words =
                format!("{who} {wait} {} of {their} time, {most} {cause}{level}.", percent(stall));
            if let Some(WhatIf { speedup, then, .. }) = verdict.what_if {
                let limits = match then {
                    Limit::Consumer if sessions != 1 => "the trainers limit".to_owned(),
                    then => format!("{} limits", noun(then)),
                };
                words += &format!(" Removing that gives at most {speedup:.1}x, then {limits}.");
            }
            words
        }
    }
}

fn noun(limit: Limit) -> &'static str {
    match limit {
        Limit::Consumer => "the trainer",
        Limit::Network => "the network",
        Limit::Gather => "the gathering of batches",
        Limit::Decode => "decoding",
        Limit::Storage => "storage",
        Limit::Admission => "a thread or memory",
        Limit::Downstream => "the trainer or the network",
        Limit::Idle | Limit::Unknown => "nothing known",
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
        let storage = verdict(&[(Bucket::Consumer, 2), (Bucket::Storage, 7), (Bucket::Network, 1)]);
        assert_eq!(
            sentence(&storage, 1),
            "The trainer waits 80 % of its time, most of it for storage, so the input is the limit. \
             Removing that gives at most 3.3x, then the trainer limits."
        );
        assert_eq!(
            sentence(&verdict(&[(Bucket::Consumer, 99), (Bucket::Gather, 1)]), 3),
            "The trainers are the limit: 99 % of their time is computing. A faster input would gain nothing."
        );
        let downstream = verdict(&[(Bucket::Downstream, 10)]);
        assert!(sentence(&downstream, 1).starts_with("The trainer, or the way to it, is the limit"));
        assert!(sentence(&downstream, 2).starts_with("The trainers, or the way to them, are the limit"));
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
        assert!(facts.advice(&storage)[0].words.contains("41.0 GiB"));
        let fits = Facts { memory_bytes: 64 << 30, ..facts.clone() };
        assert_eq!(settings(&fits), ["warm", "storage.concurrent_requests"]);
        let decode = facts.advice(&verdict(&[(Bucket::Decode, 10)]));
        assert_eq!(decode[0].words, "2 of 8 cores decode and gather.");
    }
}
