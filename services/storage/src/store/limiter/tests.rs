use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::future::join_all;
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
