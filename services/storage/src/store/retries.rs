//! Retries of HTTP requests: their metrics, and the requests that are not retried.
//!
//! The client of `object_store` retries HTTP requests, but neither reports retries nor lets a caller prevent them. This
//! module therefore wraps the client's HTTP connector and compares successive requests.
//!
//! A request counts as a retry if it has the same method and URI as the previous request of the same operation, such
//! as one `get` or one `list`. A request for credentials or for the next page of a listing has a different URI and
//! does not count.
//!
//! | failure | attempts |
//! |---|---|
//! | transport error, timeout, status 408, 429 or 5xx | until `retry_timeout` |
//! | the same, before the client's first response with another status | [`FIRST_CONTACT_ATTEMPTS`] |
//! | refused connection, unknown host, before the client's first response | one |
//! | status 501 or 505: the store does not support the request | one |
//! | any failure within [`single_attempt`] | one |
//! | other status, such as 403 | one |

use std::{
    cell::RefCell,
    error::Error,
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use object_store::{
    ClientOptions, Result,
    client::{HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService},
};

use crate::store::{limiter::LimitingConnector, names::LookupError};

/// Number of attempts of a request of a client whose requests have all failed so far. The endpoint may not exist, for
/// example the one for the credentials of a cloud instance on another machine.
const FIRST_CONTACT_ATTEMPTS: u32 = 6;

/// Beginning of the error of a first request to an address at which there is no store.
pub(crate) const NOTHING_ANSWERS: &str = "no store answers at";

tokio::task_local! {
    static OPERATION: RefCell<Operation>;
    static SINGLE_ATTEMPT: ();
}

/// HTTP requests of one operation so far.
#[derive(Debug, Default)]
pub(crate) struct Operation {
    /// Method and URI of the last request; `None` before the first one.
    request: Option<String>,
    /// Number of attempts of the last request.
    attempts: u32,
    /// Number of retries of all requests.
    pub(crate) retries: u32,
    /// True if the last attempt failed with an error that may pass, such as a timeout.
    pub(crate) is_failing: bool,
}

impl Operation {
    /// Adds an attempt of `request`.
    fn begin(&mut self, request: String) {
        if self.request.as_ref() == Some(&request) {
            metrics::counter!("forebay_storage_retries_total").increment(1);
            self.attempts += 1;
            self.retries += 1;
        } else {
            self.request = Some(request);
            self.attempts = 1;
        }
    }
}

/// Runs `operation` and returns its output and its HTTP requests. Retries are added to `forebay_storage_retries_total`.
pub(crate) async fn tracked<T>(operation: impl Future<Output = T>) -> (T, Operation) {
    let operation = async {
        let output = operation.await;
        (output, OPERATION.with(RefCell::take))
    };
    OPERATION.scope(RefCell::default(), operation).await
}

/// Runs `operation`, and fails it instead of retrying an HTTP request.
pub(crate) fn single_attempt<T>(operation: impl Future<Output = T>) -> impl Future<Output = T> {
    SINGLE_ATTEMPT.scope((), operation)
}

/// HTTP connector whose clients track and restrict their retries. Wraps the connector that limits concurrent requests.
#[derive(Debug)]
pub(crate) struct RetryingConnector {
    inner: LimitingConnector,
    is_given: bool,
}

impl RetryingConnector {
    /// Creates a connector whose clients make at most `max_requests` concurrent requests each. `is_given` is true if a caller has just
    /// given the address, which may be wrong. Other addresses are those of a configuration, whose stores may be about to start.
    pub(crate) fn new(max_requests: usize, is_given: bool) -> Self {
        Self { inner: LimitingConnector { max_requests }, is_given }
    }
}

impl HttpConnector for RetryingConnector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let inner = self.inner.connect(options)?;
        let has_answered = AtomicBool::new(false);
        Ok(HttpClient::new(RetryingService { inner, is_given: self.is_given, has_answered }))
    }
}

/// HTTP client that tracks and restricts its retries.
#[derive(Debug)]
struct RetryingService {
    inner: HttpClient,
    /// True if an address at which nothing answers is an error at once.
    is_given: bool,
    /// True after the first response that is not a temporary failure.
    has_answered: AtomicBool,
}

#[async_trait]
impl HttpService for RetryingService {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        update_operation(|operation| operation.begin(format!("{} {}", request.method(), request.uri())));
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let outcome = self.inner.execute(request).await;
        let is_failing = outcome.as_ref().map_or(true, |response| may_pass(response.status().as_u16()));
        update_operation(|operation| operation.is_failing = is_failing);

        let is_single = SINGLE_ATTEMPT.try_with(|()| ()).is_ok();
        match outcome {
            Ok(response) => {
                if !is_failing {
                    self.has_answered.store(true, Ordering::Relaxed);
                }
                let status = response.status().as_u16();
                if is_unsupported(status) || is_failing && (is_single || self.gives_up()) {
                    return Err(final_error(FinalStatus(status)));
                }
                Ok(response)
            }
            Err(error) => match absence(&error).filter(|_| self.is_given && !self.has_answered()) {
                Some(reason) => Err(final_error(NothingAnswers { authority, reason })),
                None if is_single || self.gives_up() => Err(final_error(error)),
                None => Err(error),
            },
        }
    }
}

impl RetryingService {
    /// Returns true if all requests of this client failed so far, the current one [`FIRST_CONTACT_ATTEMPTS`] times.
    /// Outside of an operation, one failure suffices.
    fn gives_up(&self) -> bool {
        let attempts = OPERATION.try_with(|operation| operation.borrow().attempts).unwrap_or(u32::MAX);
        !self.has_answered() && attempts >= FIRST_CONTACT_ATTEMPTS
    }

    fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }
}

/// Updates the current operation. Does nothing outside of one.
fn update_operation(update: impl FnOnce(&mut Operation)) {
    // A request outside of an operation, such as the deletion of a document, is not tracked.
    OPERATION.try_with(|operation| update(&mut operation.borrow_mut())).ok();
}

/// Returns true for the statuses of stores that do not support the request. `object_store` would retry them.
fn is_unsupported(status: u16) -> bool {
    matches!(status, 501 | 505)
}

/// Returns true for the statuses that a later attempt may not have.
fn may_pass(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..600) && !is_unsupported(status)
}

/// Returns an error that `object_store` does not retry.
fn final_error(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

/// Returns why no store can exist at the address of a request: it refuses connections, or its name has no address. A failure that can
/// pass, such as one of a name server, returns `None`.
fn absence(error: &HttpError) -> Option<String> {
    let mut cause = Error::source(error);
    while let Some(error) = cause {
        if let Some(LookupError(error)) = error.downcast_ref::<LookupError>() {
            // The standard library has no kind for the errors of getaddrinfo. EAI_AGAIN is the temporary one.
            let is_temporary = error.to_string().contains("emporary failure");
            return (!is_temporary).then(|| error.to_string());
        }
        if let Some(error) = error.downcast_ref::<io::Error>()
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            return Some(error.to_string());
        }
        cause = error.source();
    }
    None
}

/// Failure of the first request to an address at which there is no store.
#[derive(Debug, thiserror::Error)]
#[error("{} {authority}: {reason}; check host and port", NOTHING_ANSWERS)]
struct NothingAnswers {
    authority: String,
    reason: String,
}

/// Status of a response that is not retried.
#[derive(Debug, thiserror::Error)]
#[error("the store answered with status {0}")]
struct FinalStatus(u16);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_repeated_request_within_one_operation_is_a_retry() {
        let retries = async |requests: &[&str]| {
            let attempts = async {
                for request in requests {
                    update_operation(|operation| operation.begin((*request).to_owned()));
                }
            };
            tracked(attempts).await.1.retries
        };
        assert_eq!(retries(&["GET a", "GET a", "GET a"]).await, 2);
        assert_eq!(retries(&["GET a?page=1", "GET a?page=2"]).await, 0);
        assert_eq!(retries(&["PUT token", "GET a", "GET a"]).await, 1);
    }

    /// Client whose requests fail, or are answered with a status.
    #[derive(Debug)]
    struct Fake(Option<u16>);

    /// Client whose requests fail with an error of the operating system, or because of the name of the host.
    #[derive(Debug)]
    struct Unreachable(Option<io::ErrorKind>, &'static str);

    /// Error of the HTTP client.
    #[derive(Debug, thiserror::Error)]
    #[error("error sending request")]
    struct Wrapped(#[source] Box<dyn Error + Send + Sync>);

    #[async_trait]
    impl HttpService for Unreachable {
        async fn call(&self, _: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
            let error: Box<dyn Error + Send + Sync> = match self.0 {
                Some(kind) => Box::new(io::Error::new(kind, self.1)),
                None => Box::new(LookupError::from(io::Error::other(self.1))),
            };
            Err(HttpError::new(HttpErrorKind::Connect, Wrapped(error)))
        }
    }

    #[tokio::test]
    async fn an_address_that_never_had_a_store_is_not_tried_again() {
        let failure = async |kind, words, has_answered: bool, is_given: bool| {
            let inner = HttpClient::new(Unreachable(kind, words));
            let service = RetryingService { inner, is_given, has_answered: has_answered.into() };
            let mut request = request();
            *request.uri_mut() = "http://store.example:9000/b/x".parse().unwrap();
            service.call(request).await.unwrap_err()
        };
        let tracked =
            async |kind, words, has_answered| tracked(failure(kind, words, has_answered, true)).await.0;
        let refused = Some(io::ErrorKind::ConnectionRefused);
        for (kind, words) in [(refused, "Connection refused"), (None, "Name or service not known")] {
            let error = tracked(kind, words, false).await;
            assert_eq!(error.kind(), HttpErrorKind::Unknown, "{words}");
            let text = error.to_string();
            assert!(
                text.contains("no store answers at store.example:9000: ") && text.contains(words),
                "{text}"
            );
            assert_eq!(tracked(kind, words, true).await.kind(), HttpErrorKind::Connect, "{words}");
            let of_configuration = failure(kind, words, false, false).await;
            assert!(!of_configuration.to_string().contains("no store answers"), "it may be about to start");
        }
        for (kind, words) in
            [(Some(io::ErrorKind::ConnectionReset), "reset"), (None, "Temporary failure in name resolution")]
        {
            assert_eq!(tracked(kind, words, false).await.kind(), HttpErrorKind::Connect, "{words}");
        }
    }

    #[async_trait]
    impl HttpService for Fake {
        async fn call(&self, _: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
            let Some(status) = self.0 else {
                let error = std::io::Error::other("connection refused");
                return Err(HttpError::new(HttpErrorKind::Connect, error));
            };
            let mut response = HttpResponse::new(Vec::new().into());
            *response.status_mut() = status.try_into().unwrap();
            Ok(response)
        }
    }

    fn service(status: Option<u16>, has_answered: bool) -> RetryingService {
        let (inner, has_answered) = (HttpClient::new(Fake(status)), has_answered.into());
        RetryingService { inner, is_given: true, has_answered }
    }

    fn request() -> HttpRequest {
        HttpRequest::new(object_store::client::HttpRequestBody::empty())
    }

    #[tokio::test]
    async fn a_request_that_the_store_does_not_support_is_not_retried() {
        for status in [501, 505] {
            let error = service(Some(status), true).call(request()).await.unwrap_err();
            assert_eq!(error.kind(), HttpErrorKind::Unknown, "{status}");
        }
    }

    #[tokio::test]
    async fn a_single_attempt_turns_every_failure_into_an_error_that_is_not_retried() {
        for status in [None, Some(503), Some(429)] {
            let service = service(status, true);
            let error = single_attempt(service.call(request())).await.unwrap_err();
            assert_eq!(error.kind(), HttpErrorKind::Unknown, "{status:?}");
        }
        let response = single_attempt(service(Some(404), true).call(request())).await.unwrap();
        assert_eq!(response.status().as_u16(), 404);
    }

    #[tokio::test]
    async fn a_store_that_never_answered_is_given_up_sooner_than_one_that_did() {
        let kinds = async |has_answered| {
            let service = service(None, has_answered);
            let attempts = async {
                let mut kinds = Vec::new();
                for _ in 0..7 {
                    kinds.push(service.call(request()).await.unwrap_err().kind());
                }
                kinds
            };
            tracked(attempts).await.0
        };
        use HttpErrorKind::{Connect, Unknown};
        assert_eq!(kinds(false).await, [Connect, Connect, Connect, Connect, Connect, Unknown, Unknown]);
        assert_eq!(kinds(true).await, [Connect; 7]);
    }
}
