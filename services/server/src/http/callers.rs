//! `/api/v1/callers`: what each caller holds of the resources that callers share.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Context,
    context::View,
    response::{AuthErrors, Rejection},
};
use crate::callers::{Caller, Resource, Usage};

/// Use of the resources that callers share.
#[derive(Serialize, ToSchema)]
pub(super) struct CallerUsage {
    /// Use of each resource by all callers.
    resources: Vec<ResourceUsage>,
    /// Callers that hold something, tokens first.
    callers: Vec<CallerInfo>,
}

/// Use of one resource by all callers.
#[derive(Serialize, ToSchema)]
struct ResourceUsage {
    /// Name of the resource: `streams`, `exchanges`, `workers`, `calls`, `subscribers`, `incoming_bytes`,
    /// `reply_bytes` or `unsent_bytes`.
    resource: &'static str,
    /// Amount in use.
    used: u64,
    /// Maximum amount. An eighth of it is only for callers that hold none.
    limit: u64,
}

/// Amounts that one caller holds.
#[derive(Default, Serialize, ToSchema)]
struct CallerInfo {
    /// Name of the caller's token; null without tokens.
    #[schema(required)]
    token: Option<String>,
    /// Address of the client; null with tokens, and for clients of a Unix socket.
    #[schema(required)]
    address: Option<String>,
    /// Number of open streams of training batches.
    streams: u64,
    /// Number of open DoExchange streams of lookups and of callers of queues.
    exchanges: u64,
    /// Number of connected workers of queues.
    workers: u64,
    /// Number of other running calls.
    calls: u64,
    /// Number of subscribers of `/api/v1/live`.
    subscribers: u64,
    /// Size of the requests and of the replies of workers that the server is receiving from the caller, in bytes.
    incoming_bytes: u64,
    /// Size of the answers that the caller has not received, and of its requests that wait in batch queues, in bytes.
    unsent_bytes: u64,
}

impl CallerInfo {
    fn new(caller: Caller, amounts: impl IntoIterator<Item = (Resource, u64)>) -> Self {
        let mut info = match caller {
            Caller::Token(name) => Self { token: Some(name), ..Self::default() },
            Caller::Address(address) => Self { address: Some(address.to_string()), ..Self::default() },
            Caller::Local => Self::default(),
        };
        for (resource, amount) in amounts {
            match resource {
                Resource::Streams => info.streams = amount,
                Resource::Exchanges => info.exchanges = amount,
                Resource::Workers => info.workers = amount,
                Resource::Calls => info.calls = amount,
                Resource::Subscribers => info.subscribers = amount,
                Resource::IncomingBytes | Resource::ReplyBytes => info.incoming_bytes += amount,
                Resource::UnsentBytes => info.unsent_bytes = amount,
            }
        }
        info
    }
}

/// Lists what each caller holds of the resources that callers share. The caller must be allowed to read all datasets.
#[utoipa::path(
    get, path = "/api/v1/callers", operation_id = "list_callers", tag = "server",
    responses((status = 200, body = CallerUsage), AuthErrors),
)]
pub(super) async fn list(View { context, access }: View) -> Result<Json<CallerUsage>, Rejection> {
    access.check_all_datasets()?;
    Ok(Json(of(&context)))
}

/// Returns what each caller holds.
pub(super) fn of(context: &Context) -> CallerUsage {
    let Usage { callers, totals } = context.services.callers.usage();
    let resources =
        totals.map(|(resource, used, limit)| ResourceUsage { resource: resource.name(), used, limit });
    let callers = callers.into_iter().map(|(caller, amounts)| CallerInfo::new(caller, amounts));
    CallerUsage { resources: resources.into(), callers: callers.collect() }
}
