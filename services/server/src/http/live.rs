//! `/api/v1/live`: the state every second and operational events as they occur, as server-sent events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    http::{HeaderMap, HeaderName},
    response::{IntoResponse, Response, Sse, sse},
};
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::{
    context::View,
    response::{AuthErrors, Parameters, Problem, Rejection},
    state,
};
use crate::{
    Error,
    callers::{Charge, Resource},
    services::Services,
};

/// Time after which a subscriber that accepts no data is disconnected.
const PATIENCE: Duration = Duration::from_secs(30);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Position in the sequence of events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct From {
    /// Id of an event: the kept events after it are sent first. The header `Last-Event-ID`, which browsers send when they reconnect,
    /// takes precedence. Default: none, sends only new events.
    after: Option<u64>,
}

/// Streams server-sent events: the state as `event: state`, immediately and then every second, and each operational event as
/// `event: event`. The `id` of both is that of the latest operational event. The stream ends when the server shuts down or the
/// token becomes invalid.
#[utoipa::path(
    get, path = "/api/v1/live", operation_id = "subscribe", tag = "server",
    params(From, ("last-event-id" = Option<u64>, Header, description = "Id of the last event received. Default: the parameter `after`.")),
    responses(
        (status = 200, description = "Server-sent events. The schema is that of the data of `state`.",
         body = state::State, content_type = "text/event-stream"),
        (status = 503, description = "The server is shutting down.", body = Problem),
        (status = 429, description = "Too many subscribers, or too many of the caller.", body = Problem),
        AuthErrors,
    ),
)]
pub(super) async fn subscribe(
    view: View,
    Parameters(from): Parameters<From>,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    let Services { drain, events, callers, .. } = &view.context.services;
    if drain.is_draining() {
        return Err(Error::unavailable("the server is shutting down").into());
    }
    let charge = callers.take(&view.access.caller(), Resource::Subscribers, 1)?;
    let last_seen = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()?.parse().ok()).or(from.after);
    let mut noted = events.watch();
    let seen = last_seen.unwrap_or(*noted.borrow_and_update());
    if last_seen.is_some() {
        noted.mark_changed();
    }
    let (sender, messages) = mpsc::channel(1);
    tokio::spawn(Subscriber { view, seen, noted, sender, _charge: charge }.run());
    // Buffering proxies would delay the messages.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), "no")];
    Ok((unbuffered, Sse::new(ReceiverStream::new(messages))).into_response())
}

/// A subscriber. Runs as a task of its own, so that one that accepts no data can be disconnected.
struct Subscriber {
    view: View,
    /// Id of the last event that was sent or that is not visible to the caller.
    seen: u64,
    noted: watch::Receiver<u64>,
    sender: mpsc::Sender<Result<sse::Event, Infallible>>,
    _charge: Charge,
}

impl Subscriber {
    async fn run(mut self) {
        let (mut ticks, drain) =
            (self.view.context.subscribers.ticks(), self.view.context.services.drain.clone());
        loop {
            let is_connected = tokio::select! {
                biased;
                () = self.sender.closed() => return,
                () = drain.drained() => {
                    self.send_events().await;
                    return;
                }
                _ = ticks.tick() => self.view.access.check_known().is_ok() && self.send_state().await,
                changed = self.noted.changed() => changed.is_ok() && self.send_events().await,
            };
            if !is_connected {
                return;
            }
        }
    }

    async fn send_state(&self) -> bool {
        let text = self.state().await;
        self.send(sse::Event::default().event("state").id(self.seen.to_string()).data(text)).await
    }

    /// Returns the current state, computed once per tick for all callers that may read everything.
    async fn state(&self) -> Arc<str> {
        let View { context, access } = &self.view;
        let of_now = async || text(&state::of(&self.view));
        if access.check_all_datasets().is_err() {
            return of_now().await;
        }
        let shared = context.subscribers.text(access.check_admin().is_ok());
        Arc::clone(shared.get_or_init(of_now).await)
    }

    async fn send_events(&mut self) -> bool {
        let last = *self.noted.borrow_and_update();
        let events = self.view.context.services.events.after(self.seen, &self.view.access);
        self.seen = last;
        for event in events {
            self.seen = event.id;
            let message = sse::Event::default().event("event").id(event.id.to_string());
            if !self.send(message.data(text(&*event))).await {
                return false;
            }
        }
        self.seen = self.seen.max(last);
        true
    }

    /// Sends a message; returns false if the subscriber is disconnected or too slow.
    async fn send(&self, message: sse::Event) -> bool {
        self.sender.send_timeout(Ok(message), PATIENCE).await.is_ok()
    }
}

fn text(value: &impl serde::Serialize) -> Arc<str> {
    serde_json::to_string(value).expect("plain values with string keys").into()
}
