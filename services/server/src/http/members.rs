//! `/api/v1/members`: the servers of the cluster, as this server sees them.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Context,
    context::View,
    response::{AuthErrors, Problem, Rejection},
};
use crate::{
    Error,
    members::{ClusterView, MemberState},
};

/// The servers of a cluster, as one of them sees it.
#[derive(Serialize, ToSchema)]
pub(super) struct MemberList {
    /// The setting `members`, which contains the sources of the member list.
    sources: String,
    /// Members, sorted by name. Empty before the server has read the id of its state.
    members: Vec<MemberInfo>,
    /// Addresses in the member list at which no member has answered.
    others: Vec<OtherAddress>,
    /// A member list that lacks more than half of the previous addresses and is not adopted yet; null without such a list.
    #[schema(required)]
    held: Option<HeldList>,
    /// Reason why the last read of the member list failed; null if it succeeded.
    #[schema(required)]
    list_error: Option<String>,
}

/// A server of the cluster.
#[derive(Serialize, ToSchema)]
struct MemberInfo {
    /// Name of the server: the `HOST:PORT` to which clients and other servers connect.
    name: String,
    /// True for the server that answers this request.
    this_server: bool,
    /// State of the server.
    state: MemberPhase,
    /// Version of the server.
    version: String,
    /// Zone of the server; null if it has none.
    #[schema(required)]
    zone: Option<String>,
    /// Addresses at which the server answered; empty for this server.
    addresses: Vec<String>,
    /// Time since the last answer, in seconds; null for this server.
    #[schema(required)]
    heard_seconds_ago: Option<f64>,
    /// True if an address of the server is in the member list. Otherwise, the server leaves the cluster after
    /// `membership.unlisted_timeout`, or earlier if it does not answer.
    listed: bool,
}

/// State of a server of the cluster. `ready`: it answers, and new streams are placed on it; `draining`: it is shutting down, and no
/// new streams are placed on it; `silent`: it did not answer the last `hello`, and its streams use the next server in their list of
/// locations.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum MemberPhase {
    Ready,
    Draining,
    Silent,
}

impl From<MemberState> for MemberPhase {
    fn from(state: MemberState) -> Self {
        match state {
            MemberState::Ready => Self::Ready,
            MemberState::Draining => Self::Draining,
            MemberState::Silent => Self::Silent,
        }
    }
}

/// An address in the member list at which no member has answered.
#[derive(Serialize, ToSchema)]
struct OtherAddress {
    /// The address.
    address: String,
    /// True if a server answered that cannot be a member, for example because it has another state.
    refused: bool,
    /// Reason why the server is not a member; null before the first result of `hello`, and while the server waits until it can join
    /// again.
    #[schema(required)]
    reason: Option<String>,
}

/// A member list that is not adopted yet.
#[derive(Serialize, ToSchema)]
struct HeldList {
    /// Number of addresses of the list in use that the new list lacks.
    lost: usize,
    /// Number of addresses of the list in use.
    of: usize,
    /// Time until the new list is adopted, in seconds.
    adopted_in_seconds: f64,
}

/// Returns the servers of the cluster. The caller must be allowed to read all datasets.
#[utoipa::path(
    get, path = "/api/v1/members", operation_id = "show_members", tag = "server",
    responses(
        (status = 200, body = MemberList),
        (status = 404, description = "The server has no `members`.", body = Problem),
        AuthErrors,
    ),
)]
pub(super) async fn show(View { context, access }: View) -> Result<Json<MemberList>, Rejection> {
    access.check_all_datasets()?;
    let missing = || Error::not_found("this server is alone; it was started without --members");
    Ok(Json(of(&context).ok_or_else(missing)?))
}

/// Returns the servers of the cluster; `None` if the server is alone.
pub(super) fn of(context: &Context) -> Option<MemberList> {
    let cluster = context.services.members.view()?;
    let ClusterView { sources, view, held, list_error, started } = &*cluster;
    let now = started.elapsed();
    let members = view.iter().flat_map(|view| &view.members).map(|member| MemberInfo {
        name: member.name.clone(),
        this_server: member.is_own,
        state: MemberState::of(member).into(),
        version: member.version.clone(),
        zone: member.zone.clone(),
        addresses: member.addresses.clone(),
        heard_seconds_ago: member.last_heard.map(|heard| now.saturating_sub(heard).as_secs_f64()),
        listed: member.is_listed,
    });
    let others = view.iter().flat_map(|view| &view.others).map(|other| OtherAddress {
        address: other.address.clone(),
        refused: other.refusal.is_some(),
        reason: other.refusal.as_ref().map(ToString::to_string).or_else(|| other.error.clone()),
    });
    Some(MemberList {
        sources: sources.clone(),
        members: members.collect(),
        others: others.collect(),
        held: held.map(|held| HeldList {
            lost: held.lost,
            of: held.of,
            adopted_in_seconds: held.until.saturating_sub(now).as_secs_f64(),
        }),
        list_error: list_error.clone(),
    })
}
