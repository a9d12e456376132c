//! Verdicts in sentences.

use forebay_stall::{Bottleneck, Confidence, Level, Verdict, WhatIf};

use super::judgement::Judgement;

/// Describes a verdict in one to three sentences.
pub(crate) fn summary(judgement: &Judgement) -> String {
    let Judgement { verdict, sessions, input_bound, .. } = judgement;
    let mut text = match (verdict.silence, &judgement.silent_dataset) {
        (Some(silence), Some(dataset)) => format!(
            "No answer from the store of dataset '{dataset}' for {} s, and {}. Check that this server can reach the store.",
            silence.as_secs(),
            if *sessions == 1 { "the trainer waits for it" } else { "trainers wait for it" }
        ),
        _ => described(verdict, *sessions),
    };
    if *input_bound > 0 && *sessions > 1 && verdict.level != Level::InputBound {
        let verb = if *input_bound == 1 { "is" } else { "are" };
        text += &format!(" {input_bound} of {sessions} sessions {verb} input-bound.");
    }
    text
}

pub(super) fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

/// Describes the verdict on `sessions` sessions in one or two sentences.
fn described(verdict: &Verdict, sessions: usize) -> String {
    let is_one = sessions == 1;
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

pub(super) fn noun(bottleneck: Bottleneck) -> &'static str {
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
            described(&storage, 1),
            "The trainer waits 80% of the time, mostly for storage. The job is input-bound. \
             Removing this bottleneck speeds up training by at most 3.3x; the next one is the trainer."
        );
        assert_eq!(
            described(&verdict(&[(Bucket::Compute, 99), (Bucket::Gather, 1)]), 3),
            "The trainers compute for 99% of the time. Faster input would not speed up training."
        );
        let unreported = verdict(&[(Bucket::ComputeOrNetwork, 10)]);
        assert!(described(&unreported, 1).starts_with("The bottleneck is the trainer or the network"));
        assert!(described(&unreported, 2).starts_with("The bottleneck is the trainers or the network"));
    }

    #[test]
    fn a_store_that_does_not_answer_is_named_with_the_time_since_its_last_answer() {
        let storage = verdict(&[(Bucket::Storage, 10)]);
        let silent = Verdict { silence: Some(Duration::from_millis(27_400)), ..storage };
        let judgement = Judgement {
            verdict: silent,
            time: Buckets::default(),
            sessions: 1,
            input_bound: 1,
            silent_dataset: Some("clicks".into()),
        };
        assert_eq!(
            summary(&judgement),
            "No answer from the store of dataset 'clicks' for 27 s, and the trainer waits for it. Check that this server \
             can reach the store."
        );
    }

    #[test]
    fn a_session_that_is_input_bound_is_counted_where_all_together_are_not() {
        let busy = verdict(&[(Bucket::Compute, 97), (Bucket::Storage, 3)]);
        let of = |input_bound| {
            let time = Buckets::default();
            summary(&Judgement { verdict: busy, time, sessions: 65, input_bound, silent_dataset: None })
        };
        assert!(!of(0).contains("input-bound"), "{}", of(0));
        assert!(of(1).ends_with(" 1 of 65 sessions is input-bound."), "{}", of(1));
        assert!(of(2).ends_with(" 2 of 65 sessions are input-bound."), "{}", of(2));
    }
}
