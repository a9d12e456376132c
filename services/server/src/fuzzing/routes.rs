//! The HTTP routes without sockets.

use std::{sync::Arc, time::SystemTime};

use axum::{Router, body::Body};
use bytes::Bytes;
use forebay_proto::{Encoding, v1};
use http::{Method, Request, Uri, header};
use http_body_util::BodyExt;
use tokio::{runtime::Runtime, task::JoinSet};
use tower::ServiceExt;

use crate::{
    Settings,
    auth::{Access, Authenticator},
    http::{Context as HttpContext, HostCheck, Subscribers, router},
    services::Services,
    stalls::Observer,
    telemetry::recorder,
};

/// The HTTP routes of a server that listens on no port.
pub struct Routes {
    router: Router,
    job: Bytes,
    runtime: Runtime,
    _tasks: JoinSet<()>,
}

/// Status and body of a response. The body of a stream of events is empty.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Body.
    pub body: Bytes,
}

impl Routes {
    /// Opens the datasets of the settings, and records `train` as a job with the current snapshot of its dataset.
    ///
    /// # Errors
    /// If a setting is invalid, or a dataset cannot be opened.
    pub fn start(settings: &Settings, train: v1::Train) -> anyhow::Result<Self> {
        settings.check()?;
        let runtime = Runtime::new()?;
        let mut tasks = JoinSet::new();
        let (router, job) = runtime.block_on(prepare(settings, train, &mut tasks))?;
        Ok(Self { router, job, runtime, _tasks: tasks })
    }

    /// The request of the recorded job, as a command in JSON.
    pub fn job(&self) -> &Bytes {
        &self.job
    }

    /// Answers a request with a body of JSON. Returns `None` if the method or the target is malformed, as in a request that
    /// does not reach the routes.
    pub fn answer(&self, method: &str, target: &[u8], body: Bytes) -> Option<Answer> {
        let method = Method::from_bytes(method.as_bytes()).ok()?;
        let uri = Uri::try_from(target).ok()?;
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body)).ok()?;
        let answered = async {
            let Ok(response) = self.router.clone().oneshot(request).await;
            let (parts, body) = response.into_parts();
            let streams =
                parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
            let body = if streams { Bytes::new() } else { body.collect().await.ok()?.to_bytes() };
            Some(Answer { status: parts.status.as_u16(), body })
        };
        self.runtime.block_on(answered)
    }
}

async fn prepare(
    settings: &Settings,
    train: v1::Train,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<(Router, Bytes)> {
    let recorder = recorder::install()?;
    let services = Services::build(settings, tasks).await?;
    services.start(settings, tasks);
    let context = HttpContext {
        services: services.clone(),
        observer: Observer::new(settings, &services, recorder.clone()),
        authenticator: Authenticator::new(settings.tokens.as_deref(), settings.insecure)?,
        subscribers: Arc::new(Subscribers::new(settings.limits.max_live_subscribers)),
        recorder,
        location: settings.grpc.location(settings.tls.is_some()),
        started: SystemTime::now(),
    };
    let access = Access::everything();
    let reader = services.datasets.current(&access, &train.dataset).await?;
    let train = v1::Train { snapshot: reader.snapshot().id().to_owned(), ..train };
    services.jobs.note(&train);
    services.jobs.written().await;
    let job = Encoding::Json.encode(&v1::Command::from(train)).into();
    Ok((router(Arc::new(context), HostCheck::new(&settings.allowed_hosts, settings.tokens.is_some())), job))
}
