//! State of the server at one instant, as shown by the dashboard.

use serde::Serialize;
use utoipa::ToSchema;

use super::{
    callers::{self, CallerUsage},
    context::View,
    datasets::{self, Datasets},
    members::{self, MemberList},
    overview::{self, Overview},
    queues::{self, QueueList},
    sessions::{self, SessionList, Stalls},
};

/// Number of seconds in `stalls` of the state.
const SECONDS: usize = 2;

/// State of the server at one instant. Each part has the form of the response of its own route.
#[derive(Serialize, ToSchema)]
pub(super) struct State {
    /// Server, bottleneck, pipeline, cache and process.
    overview: Overview,
    /// The 100 oldest running sessions.
    sessions: SessionList,
    /// Time of the trainers by bucket in each of the last two seconds.
    stalls: Stalls,
    /// Batch queues.
    queues: QueueList,
    /// Datasets.
    datasets: Datasets,
    /// Use of the resources that callers share; null if the caller may not read all datasets.
    #[schema(required)]
    callers: Option<CallerUsage>,
    /// The servers of the cluster; null if the caller may not read all datasets, or if the server has no `members`.
    #[schema(required)]
    members: Option<MemberList>,
}

/// Returns the state visible to the caller.
pub(super) fn of(view: &View) -> State {
    let reads_all = view.access.check_all_datasets().is_ok();
    State {
        overview: overview::of(view),
        sessions: sessions::of(view, sessions::DEFAULT_LIMIT, None),
        stalls: sessions::stalls_of(view, SECONDS, None),
        queues: queues::of(view),
        datasets: datasets::of(view),
        callers: reads_all.then(|| callers::of(&view.context)),
        members: if reads_all { members::of(&view.context) } else { None },
    }
}
