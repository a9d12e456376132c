//! State of the HTTP routes.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use forebay_loader::Loader;
use metrics_exporter_prometheus::PrometheusHandle;

use super::{HostCheck, Subscribers};
use crate::{
    auth::Authenticator, drain::Drain, events::Events, explainer::Explainer, registry::datasets::Datasets,
    registry::online::OnlineDatasets, registry::queues::Queues, sessions::Sessions, stalls::Observer,
};

/// Components that the HTTP routes read. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) datasets: Datasets,
    pub(crate) sessions: Sessions,
    pub(crate) observer: Observer,
    pub(crate) loader: Loader,
    pub(crate) online: OnlineDatasets,
    pub(crate) explainer: Explainer,
    pub(crate) queues: Queues,
    pub(crate) events: Events,
    pub(crate) drain: Drain,
    pub(crate) authenticator: Authenticator,
    pub(crate) host_check: HostCheck,
    pub(crate) subscribers: Arc<Subscribers>,
    pub(crate) recorder: PrometheusHandle,
    pub(crate) grpc: crate::Address,
    pub(crate) tls: bool,
    pub(crate) started: SystemTime,
    /// Time limit for explaining a batch.
    pub(crate) explain_timeout: Duration,
    /// Largest request body in bytes; the body may be a ticket.
    pub(crate) max_request_bytes: usize,
}
