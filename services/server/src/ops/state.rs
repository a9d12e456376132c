//! What the page shows: all of it at one instant.

use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Ops,
    datasets::{self, Datasets},
    overview::{self, Overview},
    queues::{self, QueueList},
    sessions::{self, SessionList},
};
use crate::{door::Access, stalls::StallsAnswer};

/// Seconds of the stalls.
const SECONDS: usize = 2;

/// Everything at one instant, each part as its own route answers.
#[derive(Serialize, ToSchema)]
pub(super) struct State {
    overview: Overview,
    /// The first 100.
    sessions: SessionList,
    /// The last two seconds.
    stalls: StallsAnswer,
    queues: QueueList,
    datasets: Datasets,
}

/// As `access` may see it.
pub(super) fn of(ops: &Ops, access: &Access) -> State {
    State {
        overview: overview::of(ops, access),
        sessions: sessions::of(ops, access, sessions::DEFAULT_LIMIT, None),
        stalls: sessions::stalls_of(ops, access, SECONDS, None),
        queues: queues::of(ops, access),
        datasets: datasets::of(ops, access),
    }
}
