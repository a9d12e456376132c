use std::{
    future::poll_fn,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::future::join_all;
use http_body::{Body, Frame};
use object_store::client::{HttpRequestBody, HttpResponseBody};
use tokio::task::yield_now;

use super::*;

#[test]
fn the_window_is_halved_once_per_burst_and_never_below_one() {
    let mut window = Window::new(10);
    for (generation, expected) in [(0, 5), (0, 5), (1, 2), (0, 2), (2, 1), (3, 1)] {
        window.overloaded(generation);
        assert_eq!(window.size, expected);
    }
}

#[test]
fn the_window_grows_by_one_per_round_up_to_its_maximum() {
    let mut window = Window::new(4);
    window.overloaded(0);
    window.overloaded(1);
    let mut sizes = Vec::new();
    for _ in 0..12 {
        window.succeeded();
        sizes.push(window.size);
    }
    assert_eq!(sizes, [2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4]);
}

#[tokio::test]
async fn permits_in_use_are_removed_when_their_request_ends() {
    let limiter = Limiter::new(4);
    let mut permits = Vec::new();
    for _ in 0..4 {
        permits.push(limiter.acquire().await);
    }
    permits.remove(0).overloaded();
    permits.remove(0).succeeded();
    assert_eq!(limiter.semaphore.available_permits(), 0, "two requests are still running");
    drop(permits);
    assert_eq!(limiter.semaphore.available_permits(), 2);
    limiter.acquire().await.succeeded();
    limiter.acquire().await.succeeded();
    assert_eq!(limiter.semaphore.available_permits(), 3);
}

/// Store that counts its concurrent requests. Clones are the same store.
#[derive(Clone, Debug)]
struct Store {
    /// Status of every response.
    status: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Store {
    fn new() -> Self {
        Self { status: Arc::new(200.into()), running: Arc::default(), most: Arc::default() }
    }
}

#[async_trait]
impl HttpService for Store {
    async fn call(&self, _: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        self.most.fetch_max(self.running.fetch_add(1, SeqCst) + 1, SeqCst);
        yield_now().await;
        self.running.fetch_sub(1, SeqCst);
        let mut response = HttpResponse::new(HttpResponseBody::from(b"body".to_vec()));
        *response.status_mut() = u16::try_from(self.status.load(SeqCst)).unwrap().try_into().unwrap();
        Ok(response)
    }
}

#[tokio::test]
async fn an_overloaded_store_receives_fewer_requests_at_a_time_until_it_recovers() {
    let store = Store::new();
    let service = LimitingService { inner: HttpClient::new(store.clone()), limiter: Limiter::new(8) };
    // Makes 16 requests at once and returns the maximum number of requests that the store received at a time.
    let round = async |status: usize| {
        store.status.store(status, SeqCst);
        store.most.store(0, SeqCst);
        let requests = (0..16).map(|_| async {
            let response = service.call(HttpRequest::new(HttpRequestBody::empty())).await.unwrap();
            response.into_body().bytes().await.unwrap()
        });
        join_all(requests).await;
        store.most.load(SeqCst)
    };
    assert_eq!(round(200).await, 8);
    round(503).await;
    assert!(round(200).await < 8);
    for _ in 0..10 {
        round(200).await;
    }
    assert_eq!(round(200).await, 8, "the limit grew back");
    for _ in 0..10 {
        round(429).await;
    }
    assert_eq!(round(429).await, 1, "one request can always run");
}

#[tokio::test]
async fn a_response_holds_its_permit_until_its_body_was_read_or_dropped() {
    let service = LimitingService { inner: HttpClient::new(Store::new()), limiter: Limiter::new(2) };
    let request = || service.call(HttpRequest::new(HttpRequestBody::empty()));
    let (first, second) = (request().await.unwrap(), request().await.unwrap());
    assert_eq!(service.limiter.semaphore.available_permits(), 0);
    first.into_body().bytes().await.unwrap();
    assert_eq!(service.limiter.semaphore.available_permits(), 1);
    drop(second);
    assert_eq!(service.limiter.semaphore.available_permits(), 2);
}

/// Store whose bodies have as many bytes as `bytes`. All parts of a body are the same memory.
#[derive(Clone, Debug)]
struct Large {
    status: u16,
    bytes: u64,
    part: Bytes,
}

#[async_trait]
impl HttpService for Large {
    async fn call(&self, _: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let mut response = HttpResponse::new(HttpResponseBody::new(self.clone()));
        *response.status_mut() = self.status.try_into().unwrap();
        Ok(response)
    }
}

impl Body for Large {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        let length = self.bytes.min(self.part.len() as u64);
        self.bytes -= length;
        Poll::Ready((length > 0).then(|| Ok(Frame::data(self.part.slice(..length as usize)))))
    }
}

#[tokio::test]
async fn bodies_without_a_known_length_have_maximum_sizes() {
    const GIB: u64 = 1 << 30;
    let part = Bytes::from(vec![0; 1 << 20]);
    // Reads a body of `bytes` bytes, and returns how many of them are received, or the error.
    let read = async |status: u16, target: &str, range: Option<&str>, bytes: u64| {
        let store = Large { status, bytes, part: part.clone() };
        let service = LimitingService { inner: HttpClient::new(store), limiter: Limiter::new(1) };
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = target.parse().unwrap();
        if let Some(range) = range {
            request.headers_mut().insert("range", range.parse().unwrap());
        }
        let mut body = service.call(request).await.unwrap().into_body();
        let mut received = 0;
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| std::error::Error::source(&error).unwrap().to_string())?;
            received += frame.data_ref().unwrap().len() as u64;
        }
        assert_eq!(service.limiter.semaphore.available_permits(), 1, "the permit is released with the body");
        Ok::<u64, String>(received)
    };
    let too_many = |bytes: u64| Err(format!("the response has more than {bytes} bytes"));
    let (object, listing) = ("http://store/bucket/object", "http://store/bucket?list-type=2&prefix=a");
    // A range without an end is the rest of an object whose body is continued, and an object without a range is whole.
    for range in [Some("bytes=5-"), None] {
        assert_eq!(read(200, object, range, GIB).await, Ok(GIB), "{range:?}");
        assert_eq!(read(206, object, range, GIB + 1).await, too_many(GIB), "{range:?}");
    }
    // The reader of a range with an end checks its length.
    assert_eq!(read(206, object, Some("bytes=5-1073741830"), GIB + 1).await, Ok(GIB + 1));
    assert_eq!(read(200, listing, None, 64 << 20).await, Ok(64 << 20));
    assert_eq!(read(200, listing, None, (64 << 20) + 1).await, too_many(64 << 20));
    // The body of an error is cut off, so that its status is still reported.
    assert_eq!(read(404, object, Some("bytes=5-"), 64 << 10).await, Ok(64 << 10));
    assert_eq!(read(404, object, Some("bytes=5-"), GIB).await, Ok(0));
}
