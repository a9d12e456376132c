//! HTTP server on accepted connections.

use std::{pin::pin, time::Duration};

use axum::Router;
use futures::StreamExt;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};

use crate::{connections::Connections, settings::Limits};

/// Time limit for the head of a request, and for idle time between two requests of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves connections; never returns.
pub(crate) async fn serve(connections: Connections, app: Router, limits: Limits) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_calls_per_connection)
        .keep_alive_interval(limits.keepalive_interval)
        .keep_alive_timeout(limits.keepalive_timeout);
    let mut connections = pin!(connections.into_stream());
    while let Some(Ok(connection)) = connections.next().await {
        let (builder, app) = (builder.clone(), TowerToHyperService::new(app.clone()));
        tokio::spawn(async move {
            if let Err(error) = builder.serve_connection(TokioIo::new(connection), app).await {
                tracing::debug!(error, "HTTP connection failed");
            }
        });
    }
}
