//! `/api/v1/openapi.json`: the routes, described by the code that answers them.

use std::sync::LazyLock;

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
    Ops, answer, answer::Refused, datasets, events, explain, frontier, live, overview, probes, queues,
    sessions,
};
use crate::{events::Event, explain::Summary};

/// The document but for its routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Forebay",
        description = "Parquet in, deterministically shuffled Arrow Flight batches out: what the server does, over HTTP. Times are \
            Unix seconds, units are in the names, and what is not known is null. Everything but the probes needs a token where \
            the server has tokens; what changes something, one with `admin = true`.",
    ),
    components(schemas(answer::Problem, Event, Summary)),
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
        // Any name; the password is the token.
        components.add_security_scheme("password", scheme(HttpAuthScheme::Basic));
    }
}

/// Every route but those of the page, which are files.
pub(super) struct Routes {
    /// For whoever keeps the server running.
    pub(super) probes: Router<Ops>,
    /// Behind the door.
    pub(super) api: Router<Ops>,
    /// Of both.
    document: openapi::OpenApi,
}

/// A route is in the document because it is here, and is here because it is in the document.
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
        .routes(routes!(queues::show, queues::tune))
        .routes(routes!(frontier::show))
        .routes(routes!(events::list))
        .routes(routes!(live::listen))
        .routes(routes!(explain::jobs))
        .routes(routes!(explain::explain, explain::explain_request))
        .routes(routes!(describe));
    let (probes, mut document) = probes.split_for_parts();
    let (api, behind_the_door) = api.split_for_parts();
    document.merge(behind_the_door);
    Routes { probes, api, document }
}

/// The document, as JSON.
fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
        described(serde_json::to_value(routes().document).expect("plain values")).to_string()
    });
    &DOCUMENT
}

/// The document with words for every response, which OpenAPI asks for; most say what they are by their schema.
fn described(mut document: Value) -> Value {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    let operations = paths.filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    let answers = operations.filter_map(|operation| operation.get_mut("responses")?.as_object_mut());
    for (status, answer) in answers.flat_map(Map::iter_mut) {
        let Some(answer) = answer.as_object_mut().filter(|answer| !answer.contains_key("$ref")) else {
            continue;
        };
        let words = if status.starts_with('2') { "The answer." } else { "Refused, with words." };
        answer.entry("description").or_insert_with(|| words.into());
    }
    document
}

/// This document.
#[utoipa::path(
    get, path = "/api/v1/openapi.json", operation_id = "describe", tag = "server",
    responses((status = 200, description = "OpenAPI 3.1.", body = Object), Refused),
)]
pub(super) async fn describe() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document()).into_response()
}

#[cfg(test)]
mod tests;
