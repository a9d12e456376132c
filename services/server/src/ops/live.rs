//! `/api/v1/live`: the state every second and events as they come, as server-sent events.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderName, StatusCode},
    response::{IntoResponse, Response, Sse, sse},
};
use serde::Deserialize;
use tokio::{
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{Instant, MissedTickBehavior, interval_at},
};
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::{
    Ops,
    answer::{Parameters, Problem, Refusal, Refused},
    state,
};
use crate::door::Access;

/// From one state to the next. It also tells a connection that is gone from one on which nothing happens.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a listener may take nothing before it loses its place.
const PATIENCE: Duration = Duration::from_secs(30);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The places of listeners, and what they share.
pub(crate) struct Live {
    places: Arc<Semaphore>,
    max: usize,
    began: Instant,
    /// The last state of those who may read everything: of readers, and of admins.
    shared: [Mutex<Shared>; 2],
}

/// The state of one tick, made by whoever comes first.
#[derive(Default)]
struct Shared {
    tick: u64,
    text: Arc<OnceCell<Arc<str>>>,
}

impl Live {
    /// For at most `max` listeners at a time.
    pub(crate) fn new(max: usize) -> Self {
        let places = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { places, max, began: Instant::now(), shared: Default::default() }
    }

    fn enter(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let max = self.max;
        let words = format!("{max} listeners are here, which is limits.max_live; close some or raise it");
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map_err(|_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, words))
    }

    /// Waits until no listener is left.
    pub(crate) async fn none_left(&self) {
        // It is closed to nobody: all places are free once all listeners have left.
        drop(self.places.acquire_many(u32::try_from(self.max).unwrap_or(u32::MAX)).await);
    }

    fn tick(&self) -> u64 {
        self.began.elapsed().as_secs() / PERIOD.as_secs()
    }

    /// Where the state of now is, or is to be put.
    fn text(&self, admin: bool) -> Arc<OnceCell<Arc<str>>> {
        let tick = self.tick();
        let mut shared = self.shared[usize::from(admin)].lock().unwrap_or_else(PoisonError::into_inner);
        if shared.tick < tick {
            *shared = Shared { tick, text: Arc::default() };
        }
        Arc::clone(&shared.text)
    }
}

/// From where a listener goes on.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct From {
    /// Events after the one with this number come first; the header `Last-Event-ID`, which browsers send when they come again, goes
    /// before. Without either, events are those from now on.
    after: Option<u64>,
}

/// `event: state` at once and then every second, `event: event` as events happen, each with the number of the last event as its `id`.
/// Ends when the server stops, and when the token is not good any more.
#[utoipa::path(
    get, path = "/api/v1/live", operation_id = "listen", tag = "server",
    params(From, ("last-event-id" = Option<u64>, Header, description = "Goes on after this event.")),
    responses(
        (status = 200, description = "Server-sent events; the schema is that of the data of `state`.",
         body = state::State, content_type = "text/event-stream"),
        (status = 503, description = "All places are taken, or the server stops.", body = Problem),
        Refused,
    ),
)]
pub(super) async fn listen(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Parameters(from): Parameters<From>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if ops.guard.is_draining() {
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping"));
    }
    let place = ops.live.enter()?;
    let last_seen = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()?.parse().ok()).or(from.after);
    let mut noted = ops.events.watch();
    let seen = last_seen.unwrap_or(*noted.borrow_and_update());
    if last_seen.is_some() {
        noted.mark_changed();
    }
    let (sender, messages) = mpsc::channel(1);
    tokio::spawn(Listener { ops, access, seen, noted, sender, _place: place }.run());
    // A proxy that collects answers would hold back what is live.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), "no")];
    Ok((unbuffered, Sse::new(ReceiverStream::new(messages))).into_response())
}

/// Somebody who listens. It has a task of its own, so that one who takes nothing loses its place.
struct Listener {
    ops: Ops,
    access: Access,
    /// The number of the last event that it knows, or may not know of.
    seen: u64,
    noted: watch::Receiver<u64>,
    sender: mpsc::Sender<Result<sse::Event, Infallible>>,
    _place: OwnedSemaphorePermit,
}

impl Listener {
    async fn run(mut self) {
        let live = Arc::clone(&self.ops.live);
        let guard = self.ops.guard.clone();
        // All see the same ticks. The first one is over, and its state comes at once.
        let first = live.began + PERIOD * u32::try_from(live.tick()).unwrap_or(u32::MAX);
        let mut ticks = interval_at(first, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let went = tokio::select! {
                biased;
                () = self.sender.closed() => return,
                () = guard.drained() => {
                    self.send_events().await;
                    return;
                }
                _ = ticks.tick() => self.access.check_known().is_ok() && self.send_state().await,
                changed = self.noted.changed() => changed.is_ok() && self.send_events().await,
            };
            if !went {
                return;
            }
        }
    }

    async fn send_state(&self) -> bool {
        let text = self.state().await;
        self.send(sse::Event::default().event("state").id(self.seen.to_string()).data(text)).await
    }

    /// Computed once for all who may read everything.
    async fn state(&self) -> Arc<str> {
        let of_now = async || text(&state::of(&self.ops, &self.access));
        if self.access.check_everything().is_err() {
            return of_now().await;
        }
        let shared = self.ops.live.text(self.access.check_admin().is_ok());
        Arc::clone(shared.get_or_init(of_now).await)
    }

    async fn send_events(&mut self) -> bool {
        let last = *self.noted.borrow_and_update();
        let events = self.ops.events.after(self.seen, &self.access);
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

    /// Whether it is still there.
    async fn send(&self, message: sse::Event) -> bool {
        self.sender.send_timeout(Ok(message), PATIENCE).await.is_ok()
    }
}

fn text(value: &impl serde::Serialize) -> Arc<str> {
    serde_json::to_string(value).expect("plain values with string keys").into()
}
