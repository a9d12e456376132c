//! Requests that fail for a while are repeated, and requests that are refused are not.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{
    iter::repeat_n,
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use forebay_storage::{Credentials, Error, Location, Reader};

use crate::common::{Fixture, http, http::Server, parquet_bytes, read_all, rows};

const SLOW_DOWN: &str = "503 Slow Down";
const FORBIDDEN: &str = "403 Forbidden";

/// A pinned file on a web server. Its footer is cached, so reading it makes one request.
struct Remote {
    fixture: Fixture,
    server: Server,
    reader: Reader,
}

impl Remote {
    async fn new() -> Self {
        let fixture = Fixture::new();
        let server = http::serve(parquet_bytes(&rows(0..100), None)).await;
        let location = Location::parse(&server.url("a.parquet"), &fixture.config).unwrap();
        let snapshot = fixture.take_at(&location).await.unwrap();
        let reader = Reader::new(snapshot, location, &fixture.state, fixture.config.clone());
        Self { fixture, server, reader }
    }

    /// Reads the file, whose next responses have these statuses. Returns the number of requests as well.
    async fn read(
        &self,
        statuses: impl IntoIterator<Item = &'static str>,
    ) -> (Result<RecordBatch, Error>, usize) {
        self.server.fail(statuses);
        let before = self.server.requests();
        let outcome = read_all(&self.reader).await;
        (outcome, self.server.requests() - before)
    }
}

// With paused time, waits between retries take no time.
#[tokio::test(start_paused = true)]
async fn a_burst_of_slow_down_responses_does_not_end_a_read() {
    let remote = Remote::new().await;
    let (outcome, requests) = remote.read(repeat_n(SLOW_DOWN, 50)).await;
    assert_eq!(outcome.unwrap(), rows(0..100));
    assert!(requests > 50, "{requests}");
}

#[tokio::test]
async fn retries_end_at_the_configured_number_and_no_other_request_follows() {
    let mut remote = Remote::new().await;
    remote.fixture.config.max_retries = 3;
    let location = Location::parse(&remote.server.url("a.parquet"), &remote.fixture.config).unwrap();
    let snapshot = remote.fixture.take_at(&location).await.unwrap();
    remote.reader = Reader::new(snapshot, location, &remote.fixture.state, remote.fixture.config.clone());

    let (outcome, requests) = remote.read(repeat_n(SLOW_DOWN, 4)).await;
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert_eq!(requests, 4, "an overloaded server is not asked for the version of the file");
}

#[tokio::test]
async fn refused_access_is_an_error_at_once_that_says_what_to_check() {
    let remote = Remote::new().await;
    for status in [FORBIDDEN, "401 Unauthorized"] {
        let (outcome, requests) = remote.read([status]).await;
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("/a.parquet is denied"), "{text}");
        assert!(text.contains("check the permissions") && text.contains("credentials"), "{text}");
        assert_eq!(requests, 1, "{status}");
    }
    remote.server.fail([FORBIDDEN]);
    let location = Location::parse(&remote.server.url("a.parquet"), &remote.fixture.config).unwrap();
    let error = remote.fixture.take_at(&location).await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
}

#[tokio::test]
async fn a_signature_that_expired_during_retries_is_renewed_once() {
    let remote = Remote::new().await;
    let (outcome, _) = remote.read([SLOW_DOWN, FORBIDDEN]).await;
    assert_eq!(outcome.unwrap(), rows(0..100));

    let (outcome, _) = remote.read([SLOW_DOWN, FORBIDDEN, FORBIDDEN]).await;
    assert!(matches!(outcome, Err(Error::PermissionDenied { .. })), "{outcome:?}");
}

#[tokio::test]
async fn the_version_is_requested_once_after_an_error_that_may_be_about_the_file() {
    let remote = Remote::new().await;
    let (outcome, requests) = remote.read(["416 Range Not Satisfiable", SLOW_DOWN]).await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    assert_eq!(requests, 2);

    remote.server.replace(parquet_bytes(&rows(0..101), None));
    let (outcome, requests) = remote.read(["416 Range Not Satisfiable"]).await;
    assert!(matches!(outcome, Err(Error::Changed { .. })), "{outcome:?}");
    assert_eq!(requests, 2);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_never_had_a_store_is_an_error_at_once() {
    let fixture = Fixture::new();
    // The address refuses connections, because no socket listens at it.
    let refusing = tokio::net::TcpSocket::new_v4().unwrap();
    refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/a.parquet", refusing.local_addr().unwrap());
    let configured = Location::parse(&url, &fixture.config).unwrap();
    let error = fixture.take_at(&configured).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "the store may be about to start: {error}");
    let location = Location::parse_with(&url, &fixture.config, &Credentials::default(), None).unwrap();
    let error = fixture.take_at(&location).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let (text, address) = (error.to_string(), refusing.local_addr().unwrap());
    assert!(text.contains(&url) && !text.contains("retries,"), "{text}");
    assert!(text.contains(&format!("no store answers at {address}: Connection refused")), "{text}");
}

#[tokio::test]
async fn a_server_that_never_answered_is_given_up_soon() {
    let fixture = Fixture::new();
    let closing = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/a.parquet", closing.local_addr().unwrap());
    let closes = tokio::spawn(async move { while closing.accept().await.is_ok() {} });
    let location = Location::parse(&url, &fixture.config).unwrap();
    let error = fixture.take_at(&location).await.unwrap_err();
    closes.abort();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&url) && text.contains("after 5 retries"), "{text}");
}

// The time is real: a paused clock could reach the timeout while the bytes of a request are on their way.
#[tokio::test]
async fn a_read_from_a_server_that_accepts_and_never_answers_ends_after_the_timeouts_of_its_attempts() {
    let remote = Remote::new().await;
    let mut config = remote.fixture.config.clone();
    (config.max_retries, config.request_timeout) = (2, Duration::from_secs(1));
    let location = Location::parse(&remote.server.url("a.parquet"), &config).unwrap();
    let snapshot = Arc::clone(remote.reader.snapshot());
    let reader = Reader::new(snapshot, location, &remote.fixture.state, config);
    remote.server.hang();
    let (before, begin) = (remote.server.requests(), Instant::now());
    let error = read_all(&reader).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("/a.parquet") && text.contains("after 2 retries"), "{text}");
    // Three attempts, of which each has the whole timeout.
    assert!((3..30).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
    // On a busy machine, an attempt may end before its request is sent.
    let requests = remote.server.requests() - before;
    assert!(requests <= 3, "{requests}");
}

#[tokio::test]
async fn a_response_without_an_end_fails_after_a_few_bytes_more_than_the_expected_ones() {
    for (status, expected) in [
        ("206 Partial Content", "bytes at offset"),
        ("403 Forbidden", "403 Forbidden"),
        ("429 Too Many Requests", "429 Too Many Requests"),
    ] {
        let mut remote = Remote::new().await;
        remote.fixture.config.max_retries = 0;
        let location = Location::parse(&remote.server.url("a.parquet"), &remote.fixture.config).unwrap();
        let snapshot = Arc::clone(remote.reader.snapshot());
        let reader = Reader::new(snapshot, location, &remote.fixture.state, remote.fixture.config.clone());
        remote.server.send_endlessly(status);
        let error = read_all(&reader).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{status}: {error}");
        // Buffers of the sockets have some megabytes.
        let sent = remote.server.endless_bytes();
        assert!((1..32 << 20).contains(&sent), "{status}: {sent} bytes");
    }
}
