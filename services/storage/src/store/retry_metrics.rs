//! Retry metrics of object store clients.
//!
//! `object_store` retries inside its client and does not report it. A connector below the client therefore observes
//! the HTTP requests: the same request twice in a row within one operation of this crate is a retry. Other requests
//! of the operation (credentials, the next page of a listing) are not.

use std::{cell::RefCell, pin::Pin};

use object_store::{
    ClientOptions, Result,
    client::{
        HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
    },
};

tokio::task_local! {
    /// Last HTTP request of the current operation.
    static LAST: RefCell<Option<String>>;
}

/// Wraps one operation, so that its retries are counted.
pub(crate) fn count_retries<T>(operation: impl Future<Output = T>) -> impl Future<Output = T> {
    LAST.scope(RefCell::default(), operation)
}

/// Decorator of the default HTTP connector that counts retries.
#[derive(Debug, Default)]
pub(crate) struct CountingConnector {
    inner: ReqwestConnector,
}

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(CountingService { inner: self.inner.connect(options)? }))
    }
}

/// Decorator of an HTTP client that counts retries.
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
        if is_retry(&format!("{} {}", request.method(), request.uri())) {
            metrics::counter!("forebay_storage_retries_total").increment(1);
        }
        Box::pin(self.inner.execute(request))
    }
}

/// True if `request` equals the previous HTTP request of the current operation.
fn is_retry(request: &str) -> bool {
    let repeated =
        LAST.try_with(|last| last.replace(Some(request.to_owned())).is_some_and(|last| last == request));
    // Outside of an operation there is no previous request.
    repeated.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_repeated_request_within_one_operation_is_a_retry() {
        let sends = async |requests: &[&str]| {
            let count = |request: &&&str| is_retry(request);
            requests.iter().filter(count).count()
        };
        assert_eq!(count_retries(sends(&["GET a", "GET a", "GET a"])).await, 2);
        assert_eq!(count_retries(sends(&["GET a?page=1", "GET a?page=2"])).await, 0);
        assert_eq!(count_retries(sends(&["PUT token", "GET a", "GET a"])).await, 1);
        assert_eq!(sends(&["GET a", "GET a"]).await, 0);
    }
}
