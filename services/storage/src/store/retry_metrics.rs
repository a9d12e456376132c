//! Retry metrics of object store clients.
//!
//! The client of `object_store` retries HTTP requests, but does not report retries. This module therefore wraps the
//! client's HTTP connector and compares successive requests.
//!
//! A request counts as a retry if it has the same method and URI as the previous request of the same operation, such
//! as one `get` or one `list`. A request for credentials or for the next page of a listing has a different URI and
//! does not count.

use std::{cell::RefCell, pin::Pin};

use object_store::{
    ClientOptions, Result,
    client::{
        HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
    },
};

tokio::task_local! {
    /// Method and URI of the previous HTTP request of the current operation; `None` before the first one.
    static PREVIOUS_REQUEST: RefCell<Option<String>>;
}

/// Runs `operation` and returns its output. Retries among its HTTP requests are added to
/// `forebay_storage_retries_total`.
pub(crate) fn count_retries<T>(operation: impl Future<Output = T>) -> impl Future<Output = T> {
    PREVIOUS_REQUEST.scope(RefCell::default(), operation)
}

/// HTTP connector whose clients count retries. Wraps the default connector of `object_store`.
#[derive(Debug, Default)]
pub(crate) struct CountingConnector {
    inner: ReqwestConnector,
}

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(CountingService { inner: self.inner.connect(options)? }))
    }
}

/// HTTP client that counts retries. Wraps the client of the default connector.
#[derive(Debug)]
struct CountingService {
    inner: HttpClient,
}

impl HttpService for CountingService {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        if repeats_previous(&format!("{} {}", request.method(), request.uri())) {
            metrics::counter!("forebay_storage_retries_total").increment(1);
        }
        Box::pin(self.inner.execute(request))
    }
}

/// Returns true if `request` equals the previous HTTP request of the current operation, and stores `request` in its
/// place. Outside of an operation, returns false.
fn repeats_previous(request: &str) -> bool {
    let repeated = PREVIOUS_REQUEST.try_with(|previous| {
        previous.replace(Some(request.to_owned())).is_some_and(|previous| previous == request)
    });
    repeated.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_repeated_request_within_one_operation_is_a_retry() {
        let retries = async |requests: &[&str]| {
            let is_retry = |request: &&&str| repeats_previous(request);
            requests.iter().filter(is_retry).count()
        };
        assert_eq!(count_retries(retries(&["GET a", "GET a", "GET a"])).await, 2);
        assert_eq!(count_retries(retries(&["GET a?page=1", "GET a?page=2"])).await, 0);
        assert_eq!(count_retries(retries(&["PUT token", "GET a", "GET a"])).await, 1);
        assert_eq!(retries(&["GET a", "GET a"]).await, 0);
    }
}
