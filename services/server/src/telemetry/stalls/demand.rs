//! Demand of the running sessions, in servers at full load.

use std::{sync::Arc, time::Instant};

use forebay_proto::v1::Train;
use forebay_stall::{Load, Trainer, wanted_servers};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use crate::{partitions::partitions, sessions::Session};

/// Returns the value of the metric `forebay_wanted_servers`.
pub(super) fn demand(running: &[Arc<Session>], load: Load, now: Instant) -> f64 {
    let trainers: Vec<Trainer> = running.iter().map(|session| trainer(session, now)).collect();
    wanted_servers(load, &trainers)
}

fn trainer(session: &Session, now: Instant) -> Trainer {
    let (mut recent, before) = session.windows(now);
    recent += before;
    let (_, _, rate) = session.rates();
    let train = &session.train;
    Trainer {
        job: job(train),
        rank: train.rank(),
        world_size: train.world_size.unwrap_or(1),
        // Each server of a job without partitions decodes all blocks, so that a second one does not add to the rate of decoding.
        servers: partitions(train),
        rate,
        recent,
    }
}

/// Returns a hash that the ranks of one job have in common: the hash of the request without the fields that select a part of the
/// job. Jobs with equal requests count as one.
pub(super) fn job(train: &Train) -> u64 {
    let whole = Train {
        epoch: 0,
        epochs: None,
        start_step: 0,
        steps: 0,
        rank: None,
        lane: None,
        lanes: None,
        ..train.clone()
    };
    xxh3_64(&whole.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_lanes_and_epochs_of_a_job_have_one_hash() {
        let train = Train {
            dataset: "clicks".into(),
            seed: 7,
            world_size: Some(8),
            rank: Some(0),
            ..Train::default()
        };
        let part = Train {
            rank: Some(3),
            lane: Some(1),
            lanes: Some(2),
            epoch: 4,
            start_step: 5,
            epochs: Some(2),
            ..train.clone()
        };
        assert_eq!(job(&train), job(&part));
        assert_ne!(job(&train), job(&Train { seed: 8, ..train.clone() }));
        assert_ne!(job(&train), job(&Train { job_name: "other".into(), ..train }));
    }
}
