//! Adaptive limit on the concurrent HTTP requests of one client.
//!
//! A store that is overloaded answers more requests in total if it receives fewer at a time. The limit is halved when
//! the store answers that it is overloaded or a request times out, and grows by one when a whole round of requests
//! succeeds (additive increase, multiplicative decrease). A request waits for a permit, and holds it until the
//! response body has been read. It releases the permit while it waits for a retry.
//!
//! The bodies of errors, listings and whole objects are collected in memory without a known length, so that each has a maximum size. The
//! body of an error is cut off there, so that its status is still reported; other bodies fail. The reader of a range checks the length
//! of its body itself, except for a range without an end, with which `object_store` continues the body of a whole object.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::{
    ClientOptions, Result,
    client::{HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService},
};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    http_client::NamedConnector,
    observed_body::{Observer, Part, observed},
};

/// Maximum size of the body of an error, in bytes. It becomes a part of the message.
const MAX_ERROR_BYTES: u64 = 64 << 10;
/// Maximum size of a page of a listing, in bytes. A page has at most 5,000 objects, with names of at most 1,024 bytes.
const MAX_LISTING_BYTES: u64 = 64 << 20;
/// Maximum size of a whole object, in bytes. Only objects of the state are read whole.
const MAX_OBJECT_BYTES: u64 = 1 << 30;

/// HTTP connector whose clients limit their concurrent requests.
#[derive(Debug)]
pub(crate) struct LimitingConnector {
    /// Maximum number of concurrent requests of one client, at least 1.
    pub(crate) max_requests: usize,
}

impl HttpConnector for LimitingConnector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let inner = NamedConnector.connect(options)?;
        Ok(HttpClient::new(LimitingService { inner, limiter: Limiter::new(self.max_requests) }))
    }
}

/// HTTP client with an adaptive limit on concurrent requests.
#[derive(Debug)]
struct LimitingService {
    inner: HttpClient,
    limiter: Arc<Limiter>,
}

#[async_trait]
impl HttpService for LimitingService {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let permit = self.limiter.acquire().await;
        let range = request.headers().get("range").and_then(|range| range.to_str().ok());
        let (is_range, is_listing) =
            (range.is_some_and(|range| !range.ends_with('-')), is_listing(request.uri().query()));
        let response = match self.inner.execute(request).await {
            Ok(response) => response,
            Err(error) => {
                permit.failed(&error);
                return Err(error);
            }
        };
        let mut permit = Some(permit);
        if is_overload(response.status().as_u16()) {
            permit.take().into_iter().for_each(Permit::overloaded);
        }
        let (limit, is_cut) = match response.status().is_success() {
            false => (MAX_ERROR_BYTES, true),
            true if is_range => (u64::MAX, false),
            true if is_listing => (MAX_LISTING_BYTES, false),
            true => (MAX_OBJECT_BYTES, false),
        };
        Ok(observed(response, Limited { limit, left: limit, is_cut, permit }))
    }
}

/// Returns true for the query of a listing of S3 and Google Cloud Storage (`list-type=2`) or Azure (`comp=list`).
fn is_listing(query: Option<&str>) -> bool {
    let parts = query.unwrap_or_default().split('&');
    parts.into_iter().any(|part| part.starts_with("list-type=") || part == "comp=list")
}

/// Returns true for the statuses of an overloaded store: request timeout, too many requests (slow down), unavailable
/// (slow down), gateway timeout.
fn is_overload(status: u16) -> bool {
    matches!(status, 408 | 429 | 503 | 504)
}

/// Limit of the size of a body, which holds the permit of its request until it has been read or dropped.
struct Limited {
    /// Maximum size in bytes.
    limit: u64,
    /// Number of further bytes that may be received.
    left: u64,
    /// True if the body ends at its maximum size, and false if that is an error.
    is_cut: bool,
    permit: Option<Permit>,
}

impl Observer for Limited {
    fn next(&mut self, part: Part) -> Part {
        if let Some(Ok(frame)) = &part {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            let Some(left) = self.left.checked_sub(bytes) else {
                self.permit = None;
                self.left = 0;
                if self.is_cut {
                    return None;
                }
                let error = std::io::Error::other(format!("the response has more than {} bytes", self.limit));
                return Some(Err(HttpError::new(HttpErrorKind::Decode, error)));
            };
            self.left = left;
        }
        match &part {
            None => self.permit.take().into_iter().for_each(Permit::succeeded),
            Some(Err(error)) => self.permit.take().into_iter().for_each(|permit| permit.failed(error)),
            Some(Ok(_)) => {}
        }
        part
    }
}

/// Semaphore whose number of permits follows a [`Window`].
#[derive(Debug)]
struct Limiter {
    semaphore: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    window: Window,
    /// Number of permits of the semaphore, free and in use. After a decrease it exceeds the window until enough
    /// requests have ended.
    permits: usize,
}

impl Limiter {
    fn new(max_requests: usize) -> Arc<Self> {
        let window = Window::new(max_requests.clamp(1, Semaphore::MAX_PERMITS));
        let permits = window.size;
        let semaphore = Arc::new(Semaphore::new(permits));
        Arc::new(Self { semaphore, state: Mutex::new(State { window, permits }) })
    }

    /// Waits until fewer requests are running than the limit.
    async fn acquire(self: &Arc<Self>) -> Permit {
        let permit = Arc::clone(&self.semaphore).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let generation = self.state.lock().window.generation;
        Permit { limiter: Arc::clone(self), permit: Some(permit), generation }
    }

    /// Adds or removes permits of the semaphore after a change of the window. Permits in use are removed when their
    /// request ends.
    fn resize(&self, state: &mut State) {
        let size = state.window.size;
        if state.permits < size {
            self.semaphore.add_permits(size - state.permits);
            state.permits = size;
        } else {
            state.permits -= self.semaphore.forget_permits(state.permits - size);
        }
    }
}

/// Permission to run one request. Dropping it without an outcome leaves the limit unchanged.
struct Permit {
    limiter: Arc<Limiter>,
    /// Permit of the semaphore. It is `None` only during drop.
    permit: Option<OwnedSemaphorePermit>,
    /// Number of decreases of the window before the request started.
    generation: u64,
}

impl Permit {
    fn succeeded(self) {
        let mut state = self.limiter.state.lock();
        state.window.succeeded();
        self.limiter.resize(&mut state);
    }

    fn overloaded(self) {
        let mut state = self.limiter.state.lock();
        let before = state.window.size;
        state.window.overloaded(self.generation);
        let concurrent_requests = state.window.size;
        self.limiter.resize(&mut state);
        drop(state);
        if concurrent_requests < before {
            tracing::info!(
                before,
                concurrent_requests,
                "the store is overloaded and receives fewer requests at a time"
            );
        }
    }

    /// Ends a request that failed with an error of the transport. Only a timeout is a sign of overload.
    fn failed(self, error: &HttpError) {
        if error.kind() == HttpErrorKind::Timeout {
            self.overloaded();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = self.limiter.state.lock();
        if state.permits > state.window.size {
            permit.forget();
            state.permits -= 1;
        }
    }
}

/// Number of requests that may run at once.
#[derive(Debug)]
struct Window {
    size: usize,
    max_size: usize,
    /// Successful requests since the last change of the size.
    successes: usize,
    /// Number of decreases so far.
    generation: u64,
}

impl Window {
    /// Creates a window of the maximum size.
    fn new(max_size: usize) -> Self {
        Self { size: max_size, max_size, successes: 0, generation: 0 }
    }

    /// Increases the window by one after as many successful requests as its current size.
    fn succeeded(&mut self) {
        self.successes += 1;
        if self.successes >= self.size {
            self.successes = 0;
            self.size = (self.size + 1).min(self.max_size);
        }
    }

    /// Halves the window, to at least 1. A request that began before the last decrease says nothing about the present
    /// window and is ignored. Therefore a burst of failures halves it once.
    fn overloaded(&mut self, generation: u64) {
        if generation == self.generation {
            self.successes = 0;
            self.size = (self.size / 2).max(1);
            self.generation += 1;
        }
    }
}

#[cfg(test)]
mod tests;
