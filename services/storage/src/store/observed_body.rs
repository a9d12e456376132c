//! Response bodies whose parts are observed while they are read.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpResponse, HttpResponseBody};

/// Part of a body, the error that ends it, or `None` at its end.
pub(crate) type Part = Option<Result<Frame<Bytes>, HttpError>>;

/// Observer of one body. It is dropped with the body.
pub(crate) trait Observer: Send + Sync + Unpin + 'static {
    /// Observes the next part, and returns what the reader of the body receives in its place.
    fn next(&mut self, part: Part) -> Part;
}

/// Returns a response whose body is observed.
pub(crate) fn observed(response: HttpResponse, observer: impl Observer) -> HttpResponse {
    let (parts, inner) = response.into_parts();
    HttpResponse::from_parts(parts, HttpResponseBody::new(ObservedBody { inner, observer }))
}

struct ObservedBody<O> {
    inner: HttpResponseBody,
    observer: O,
}

impl<O: Observer> Body for ObservedBody<O> {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        polled.map(|part| self.observer.next(part))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
