//! Verdicts in sentences.

use forebay_stall::{Bottleneck, Confidence, Level, Verdict, WhatIf};

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
}
