//! Time since a store last answered.
//!
//! A store that hangs, or that can't be reached, gives no answer: neither a response, nor a further part of one. A response with the
//! status of an error is an answer.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use object_store::{
    ClientOptions, Result,
    client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::observed_body::{Observer, Part, observed};

/// Time after a failed attempt within which a retry begins. Exceeds the longest wait between two retries.
const RETRIED_WITHIN: Duration = Duration::from_secs(20);

/// Answers of one store. Cheap to clone; clones are of the same store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Number of requests that are not finished.
    in_flight: usize,
    /// Time since which requests have been waiting without an answer to any of them; `None` if no request waits.
    silent_since: Option<Instant>,
    /// Time at which a request failed without an answer, unless the store has answered since.
    failed: Option<Instant>,
}

/// A request to the store; dropping it ends the request.
#[derive(Debug)]
pub(crate) struct Asked {
    answers: Answers,
    /// True if the end of the request is its answer.
    ends_with_answer: bool,
}

impl Answers {
    /// Begins a request that reports its answers with [`Asked::answered`] and [`Asked::failed`].
    fn ask(&self) -> Asked {
        self.begin(false)
    }

    /// Begins a call to a file system, which answers when the call ends.
    pub(crate) fn call(&self) -> Asked {
        self.begin(true)
    }

    fn begin(&self, ends_with_answer: bool) -> Asked {
        self.0.lock().begin(Instant::now());
        Asked { answers: self.clone(), ends_with_answer }
    }

    /// Returns the time for which requests have been waiting without any answer; `None` if no request waits.
    pub(crate) fn silence(&self) -> Option<Duration> {
        self.0.lock().silence(Instant::now())
    }
}

impl State {
    fn begin(&mut self, now: Instant) {
        if self.silence(now).is_none() {
            (self.silent_since, self.failed) = (Some(now), None);
        }
        self.in_flight += 1;
    }

    fn answered(&mut self, now: Instant) {
        (self.silent_since, self.failed) = (Some(now), None);
    }

    fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.in_flight == 0 && self.failed.is_none() {
            self.silent_since = None;
        }
    }

    fn silence(&self, now: Instant) -> Option<Duration> {
        let is_retried = |failed: Instant| now.saturating_duration_since(failed) < RETRIED_WITHIN;
        let waits = self.in_flight > 0 || self.failed.is_some_and(is_retried);
        self.silent_since.filter(|_| waits).map(|since| now.saturating_duration_since(since))
    }
}

impl Asked {
    fn answered(&self) {
        self.answers.0.lock().answered(Instant::now());
    }

    fn failed(&self) {
        self.answers.0.lock().failed = Some(Instant::now());
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.ends_with_answer {
            self.answered();
        }
        self.answers.0.lock().end();
    }
}

/// HTTP connector whose clients record when the store answers.
#[derive(Debug)]
pub(crate) struct AnsweringConnector<C> {
    pub(crate) inner: C,
    pub(crate) answers: Answers,
}

impl<C: HttpConnector> HttpConnector for AnsweringConnector<C> {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let inner = self.inner.connect(options)?;
        Ok(HttpClient::new(AnsweringService { inner, answers: self.answers.clone() }))
    }
}

#[derive(Debug)]
struct AnsweringService {
    inner: HttpClient,
    answers: Answers,
}

#[async_trait]
impl HttpService for AnsweringService {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let asked = self.answers.ask();
        let response = self.inner.execute(request).await.inspect_err(|_| asked.failed())?;
        asked.answered();
        Ok(observed(response, Answering(Some(asked))))
    }
}

/// Request whose body is being read. The parts of the body are answers. The request ends when the body has been read or is dropped.
struct Answering(Option<Asked>);

impl Observer for Answering {
    fn next(&mut self, part: Part) -> Part {
        match &part {
            Some(Ok(_)) => self.0.iter().for_each(Asked::answered),
            Some(Err(_)) => self.0.take().iter().for_each(Asked::failed),
            None => self.0 = None,
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use object_store::client::{HttpErrorKind, HttpRequestBody};
    use tokio::time::{advance, sleep};

    use super::*;

    /// Store that answers after a time, or refuses connections.
    #[derive(Debug)]
    struct Store(Option<Duration>);

    #[async_trait]
    impl HttpService for Store {
        async fn call(&self, _: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
            let Some(after) = self.0 else {
                let error = std::io::Error::other("connection refused");
                return Err(HttpError::new(HttpErrorKind::Connect, error));
            };
            sleep(after).await;
            Ok(HttpResponse::new(Vec::new().into()))
        }
    }

    fn client(answers: &Answers, store: Store) -> HttpClient {
        HttpClient::new(AnsweringService { inner: HttpClient::new(store), answers: answers.clone() })
    }

    fn request() -> HttpRequest {
        HttpRequest::new(HttpRequestBody::empty())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_store_that_hangs_is_silent_since_its_last_answer() {
        let answers = Answers::default();
        assert_eq!(answers.silence(), None, "nothing was asked");
        let quick = client(&answers, Store(Some(SECOND)));
        let hanging = client(&answers, Store(Some(3600 * SECOND)));
        let hung = tokio::spawn(async move { hanging.execute(request()).await });
        drop(quick.execute(request()).await.unwrap());
        assert_eq!(answers.silence(), Some(Duration::ZERO), "another request was answered just now");
        advance(27 * SECOND).await;
        assert_eq!(answers.silence(), Some(27 * SECOND));
        hung.abort();
        hung.await.unwrap_err();
        assert_eq!(answers.silence(), None, "no request waits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_refuses_connections_is_silent_since_the_first_attempt_until_none_follows() {
        let answers = Answers::default();
        let refusing = client(&answers, Store(None));
        for attempt in 0..5 {
            refusing.execute(request()).await.unwrap_err();
            assert_eq!(answers.silence(), Some(attempt * 10 * SECOND));
            advance(10 * SECOND).await;
        }
        advance(RETRIED_WITHIN).await;
        assert_eq!(answers.silence(), None);
        refusing.execute(request()).await.unwrap_err();
        assert_eq!(answers.silence(), Some(Duration::ZERO), "the silence begins with the new request");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_to_a_file_system_is_silent_until_it_ends() {
        let answers = Answers::default();
        let (hanging, other) = (answers.call(), answers.call());
        advance(9 * SECOND).await;
        assert_eq!(answers.silence(), Some(9 * SECOND));
        drop(other);
        assert_eq!(answers.silence(), Some(Duration::ZERO));
        drop(hanging);
        assert_eq!(answers.silence(), None);
    }
}
