//! `/api/v1/overview`: the server at a glance.

use std::time::SystemTime;

use axum::{Extension, Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Ops, answer::Refused};
use crate::{Address, door::Access, events::unix_seconds};

/// The server at a glance.
#[derive(Serialize, ToSchema)]
pub(super) struct Overview {
    server: ServerInfo,
}

/// Which server this is.
#[derive(Serialize, ToSchema)]
struct ServerInfo {
    version: &'static str,
    /// Unix seconds.
    started_at: f64,
    uptime_seconds: f64,
    /// Unix seconds, by the server's clock.
    now: f64,
    /// Whether it stops.
    draining: bool,
    /// Where a Flight client connects to.
    grpc: String,
    /// Whether the caller may change how it works.
    admin: bool,
}

/// The server at a glance.
#[utoipa::path(get, path = "/api/v1/overview", operation_id = "show_overview", tag = "server", responses((status = 200, body = Overview), Refused))]
pub(super) async fn show(State(ops): State<Ops>, Extension(access): Extension<Access>) -> Json<Overview> {
    Json(of(&ops, &access))
}

/// As `access` may see it.
pub(super) fn of(ops: &Ops, access: &Access) -> Overview {
    let (started_at, now) = (unix_seconds(ops.started), unix_seconds(SystemTime::now()));
    let server = ServerInfo {
        version: env!("CARGO_PKG_VERSION"),
        started_at,
        uptime_seconds: (now - started_at).max(0.0),
        now,
        draining: ops.guard.is_draining(),
        grpc: location(ops),
        admin: access.check_admin().is_ok(),
    };
    Overview { server }
}

/// How a Flight client spells it.
fn location(ops: &Ops) -> String {
    match &ops.grpc {
        Address::Tcp(address) if ops.tls => format!("grpc+tls://{address}"),
        Address::Tcp(address) => format!("grpc://{address}"),
        Address::Unix(path) => format!("grpc+unix://{}", path.display()),
    }
}
