//! HTTP: the page, the probes, the metrics and what can be turned.

mod catalog;
mod lag;
mod metrics;
mod page;
mod process;
mod queues;
mod sampled;

use axum::{
    Extension, Json, Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use forebay_loader::Loader;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::{
    datasets::{Datasets, Phase},
    door::{Access, Door},
    flight::Guard,
    online::OnlineDatasets,
    queues::Queues,
    sessions::Sessions,
};

pub(crate) use lag::measure as measure_lag;
pub(crate) use metrics::install as install_metrics;

/// What the HTTP routes look at. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ops {
    pub(crate) datasets: Datasets,
    pub(crate) sessions: Sessions,
    pub(crate) loader: Loader,
    pub(crate) online: OnlineDatasets,
    pub(crate) queues: Queues,
    pub(crate) guard: Guard,
    pub(crate) door: Door,
    pub(crate) recorder: PrometheusHandle,
    pub(crate) grpc: crate::Address,
    pub(crate) tls: bool,
}

pub(crate) fn router(ops: Ops) -> Router {
    // The probes are for whoever keeps the server running; everything else, unknown paths included, is behind the door.
    let probes = Router::new().route("/livez", get(|| async { "alive\n" })).route("/readyz", get(ready));
    let behind_the_door = Router::new()
        .route("/", get(page))
        .route("/metrics", get(scrape))
        .route("/api/v1/queues", get(queues::list))
        .route("/api/v1/queues/{name}", get(queues::show).patch(queues::tune))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(from_fn_with_state(ops.door.clone(), admit));
    probes.merge(behind_the_door).with_state(ops)
}

/// Lets those in who show a token; a browser asks its user for it.
async fn admit(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    match door.admit(request.headers()) {
        Ok(access) => {
            request.extensions_mut().insert(access);
            next.run(request).await
        }
        Err(status) => {
            let challenge = "Bearer realm=\"forebay\", Basic realm=\"forebay: the password is a token\"";
            let words = format!("{}\n", status.message());
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)], words).into_response()
        }
    }
}

async fn page(State(ops): State<Ops>, Extension(access): Extension<Access>) -> impl IntoResponse {
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(page::render(&ops, &access)))
}

/// The metrics are of all datasets together, and for those who may read all.
async fn scrape(State(ops): State<Ops>, Extension(access): Extension<Access>) -> Response {
    if let Err(status) = access.check_everything() {
        return (StatusCode::FORBIDDEN, format!("{}\n", status.message())).into_response();
    }
    sampled::sample(&ops);
    let text = metrics::render(&ops.recorder);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// 200 once every dataset has been tried once, whether or not it could be opened; 503 while draining. Datasets are
/// named to those who may read them.
async fn ready(State(ops): State<Ops>, headers: HeaderMap) -> impl IntoResponse {
    let (mut opening, mut preparing, mut failed) = (Vec::new(), Vec::new(), serde_json::Map::new());
    let named = ops.door.admit(&headers).map(|access| ops.datasets.list(&access)).unwrap_or_default();
    for dataset in named {
        if ops.online.unready().any(|name| name == dataset.name) {
            preparing.push(dataset.name.clone());
        }
        match dataset.phase {
            Phase::Opening { .. } => opening.push(dataset.name),
            Phase::Failed(error) => {
                failed.insert(dataset.name, error.to_string().into());
            }
            Phase::Open(_) => {}
        }
    }
    let draining = ops.guard.is_draining();
    let ready = ops.datasets.all_tried() && ops.online.unready().next().is_none() && !draining;
    let body = serde_json::json!({
        "ready": ready, "draining": draining, "opening": opening, "preparing": preparing, "failed": failed,
    });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body))
}
