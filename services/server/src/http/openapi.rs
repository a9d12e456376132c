//! `/api/v1/openapi.json`: the OpenAPI document, generated from the handlers.

use std::sync::{Arc, LazyLock};

use axum::{
    Router,
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value};
use utoipa::{
    Modify, OpenApi,
    openapi::{
        self,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Context, callers, datasets, events, explain, live, members, overview, probes, queues, response,
    response::AuthErrors, sessions,
};
use crate::events::Event;
use forebay_explain::Summary;

/// The document without its routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Forebay",
        description = "HTTP API of Forebay, a data service that serves Parquet as deterministically shuffled batches over Arrow \
            Flight. Names end in their unit: `_seconds`, `_bytes`, `_per_second`; a `_fraction` is between 0 and 1. Points in time \
            are Unix seconds. Unknown values are null. If the server has tokens, all routes except the probes require one, and \
            routes that change settings require one with `admin = true`.",
    ),
    components(schemas(response::Problem, Event, Summary)),
    security((), ("bearer" = []), ("password" = [])),
    modifiers(&Tokens),
)]
struct Document;

struct Tokens;

impl Modify for Tokens {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let scheme = |scheme| SecurityScheme::Http(HttpBuilder::new().scheme(scheme).build());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", scheme(HttpAuthScheme::Bearer));
        // The user name is ignored; the password is the token.
        components.add_security_scheme("password", scheme(HttpAuthScheme::Basic));
    }
}

/// All routes except the files of the dashboard.
pub(super) struct Routes {
    /// Probes, which need no token.
    pub(super) probes: Router<Arc<Context>>,
    /// Authenticated routes.
    pub(super) api: Router<Arc<Context>>,
    /// Description of both.
    document: openapi::OpenApi,
}

/// Builds the routes and their document from one list, so that neither can miss a route.
pub(super) fn routes() -> Routes {
    let probes = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(probes::alive))
        .routes(routes!(probes::ready));
    let api = OpenApiRouter::new()
        .routes(routes!(probes::scrape))
        .routes(routes!(overview::show))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::show))
        .routes(routes!(sessions::stalls))
        .routes(routes!(datasets::list))
        .routes(routes!(queues::list))
        .routes(routes!(queues::show, queues::change))
        .routes(routes!(queues::throughput_latency))
        .routes(routes!(events::list))
        .routes(routes!(callers::list))
        .routes(routes!(members::show))
        .routes(routes!(live::subscribe))
        .routes(routes!(explain::jobs))
        .routes(routes!(explain::explain, explain::explain_request))
        .routes(routes!(describe));
    let (probes, mut document) = probes.split_for_parts();
    let (api, authenticated_routes) = api.split_for_parts();
    document.merge(authenticated_routes);
    Routes { probes, api, document }
}

/// Returns the document as JSON.
fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
        described(serde_json::to_value(routes().document).expect("plain values")).to_string()
    });
    &DOCUMENT
}

/// Adds a default description to every response without one, because OpenAPI requires it.
fn described(mut document: Value) -> Value {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    let operations = paths.filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    let answers = operations.filter_map(|operation| operation.get_mut("responses")?.as_object_mut());
    for (status, answer) in answers.flat_map(Map::iter_mut) {
        let Some(answer) = answer.as_object_mut().filter(|answer| !answer.contains_key("$ref")) else {
            continue;
        };
        let description = if status.starts_with('2') { "Success." } else { "Error, with the reason." };
        answer.entry("description").or_insert_with(|| description.into());
    }
    document
}

/// Returns the OpenAPI document.
#[utoipa::path(
    get, path = "/api/v1/openapi.json", operation_id = "describe", tag = "server",
    responses((status = 200, description = "OpenAPI document, version 3.1.", body = Object), AuthErrors),
)]
pub(super) async fn describe() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document()).into_response()
}

#[cfg(test)]
mod tests;
