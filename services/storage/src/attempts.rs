//! How often stores are asked once more.
//!
//! A store's client tries again by itself, and goes on by itself where an answer broke off. What it sends is seen below it: the same
//! request a second time in a row, within one of ours, is a retry. What else it sends on the way (credentials, the next page of a
//! listing) is another request.

use std::{cell::RefCell, fmt, pin::Pin};

use object_store::{
    ClientOptions, Result,
    client::{
        HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
    },
};

tokio::task_local! {
    /// What was sent last within a request of ours.
    static LAST: RefCell<Option<String>>;
}

/// One request of ours, whose retries are counted.
pub(crate) fn counted<T>(request: impl Future<Output = T>) -> impl Future<Output = T> {
    LAST.scope(RefCell::default(), request)
}

/// Connects as object_store does, and sees what is sent.
#[derive(Debug, Default)]
pub(crate) struct Connector {
    inner: ReqwestConnector,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(Seen { inner: self.inner.connect(options)? }))
    }
}

struct Seen {
    inner: HttpClient,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl HttpService for Seen {
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

/// Whether the same was sent last within this request of ours.
fn is_retry(sent: &str) -> bool {
    let seen = LAST.try_with(|last| last.replace(Some(sent.to_owned())).is_some_and(|last| last == sent));
    // Outside of any, nothing is known.
    seen.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_same_again_within_one_request_is_a_retry() {
        let sends = async |what: &[&str]| {
            let count = |sent: &&&str| is_retry(sent);
            what.iter().filter(count).count()
        };
        assert_eq!(counted(sends(&["GET a", "GET a", "GET a"])).await, 2);
        assert_eq!(counted(sends(&["GET a?page=1", "GET a?page=2"])).await, 0);
        assert_eq!(counted(sends(&["PUT token", "GET a", "GET a"])).await, 1);
        assert_eq!(sends(&["GET a", "GET a"]).await, 0);
    }
}
