//! State of the HTTP routes, and its view by one caller.

use std::{sync::Arc, time::SystemTime};

use axum::{
    Extension,
    extract::{FromRequestParts, rejection::ExtensionRejection},
    http::request::Parts,
};
use metrics_exporter_prometheus::PrometheusHandle;

use super::Subscribers;
use crate::{
    auth::{Access, Authenticator},
    services::Services,
    stalls::Observer,
};

/// Components that the HTTP routes read.
pub(crate) struct Context {
    pub(crate) services: Services,
    pub(crate) observer: Observer,
    pub(crate) authenticator: Authenticator,
    pub(crate) subscribers: Arc<Subscribers>,
    pub(crate) recorder: PrometheusHandle,
    /// Location for Flight clients, such as `grpc://127.0.0.1:8815`.
    pub(crate) location: String,
    pub(crate) started: SystemTime,
}

/// The state of the routes and the permissions of the caller, from an authenticated request.
pub(super) struct View {
    pub(super) context: Arc<Context>,
    pub(super) access: Access,
}

impl FromRequestParts<Arc<Context>> for View {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, context: &Arc<Context>) -> Result<Self, Self::Rejection> {
        let Extension(access) = Extension::<Access>::from_request_parts(parts, context).await?;
        Ok(Self { context: Arc::clone(context), access })
    }
}
