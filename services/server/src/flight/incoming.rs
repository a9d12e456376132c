//! The body of a gRPC request: charged to its caller while it is received, and limited in time.
//!
//! A gRPC message is a byte, its length as a big-endian `u32`, and the message. The length is known before the message, so that all
//! its bytes are charged at once. If parts of messages were charged, several incomplete ones could wait for each other.

mod framing;

use std::{
    error::Error as StdError,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use crate::{
    Error,
    callers::{Account, Charge, Resource},
    connections::size_limit,
    settings::Limits,
};

use framing::Framing;

/// Messages that a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Messages {
    /// One message, which must be complete and ended in time. It is charged until the body is dropped.
    One,
    /// Any number, at any time. A message is charged until the receiver asks for more bytes than it has.
    Many,
}

/// Handle of the body of a request. It is an extension of the request.
#[derive(Clone, Default)]
pub(super) struct Unlimited(Arc<AtomicBool>);

impl Unlimited {
    /// Charges the following messages without a limit. Other requests wait for what the messages of this one contain.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The body of a request.
pub(super) struct Incoming {
    body: axum::body::Body,
    messages: Messages,
    account: Account,
    request_timeout: Duration,
    /// Largest message that the server receives, in bytes.
    max_bytes: u64,
    unlimited: Unlimited,
    framing: Framing,
    /// Received frame, and the number of its bytes that `framing` has read.
    frame: Option<(Bytes, usize)>,
    /// Charge that the message at this place of `frame` waits for.
    waiting: Option<BoxFuture<'static, Result<Charge, Error>>>,
    /// Charges of the messages. The last one may be incomplete.
    held: Vec<Charge>,
    /// Time by which the message must be complete, and its time limit.
    deadline: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl Incoming {
    /// A request of the caller of `account`. The time limit of the first message begins now.
    pub(super) fn new(
        body: axum::body::Body,
        messages: Messages,
        account: Account,
        limits: &Limits,
        unlimited: Unlimited,
    ) -> Self {
        let mut incoming = Self {
            body,
            messages,
            account,
            request_timeout: limits.request_timeout,
            max_bytes: limits.max_request_bytes.max(limits.max_exchange_bytes) as u64,
            unlimited,
            framing: Framing::default(),
            frame: None,
            waiting: None,
            held: Vec::new(),
            deadline: None,
        };
        incoming.set_deadline(0);
        incoming
    }

    fn set_deadline(&mut self, bytes: u64) {
        let limit = size_limit(self.request_timeout, bytes);
        self.deadline = Some((Box::pin(sleep_until(Instant::now() + limit)), limit));
    }

    /// Begins to charge a message of `bytes` bytes.
    fn begin(&mut self, bytes: u64) {
        if self.messages == Messages::Many || bytes >= 1 << 20 {
            self.set_deadline(bytes);
        }
        // The receiver rejects a message that is too long when it has read the length.
        if bytes > self.max_bytes || self.unlimited.0.load(Ordering::Relaxed) {
            let bytes = if bytes > self.max_bytes { 0 } else { bytes };
            self.held.push(self.account.charge(Resource::IncomingBytes, bytes));
            return;
        }
        let (account, limit) = (self.account.clone(), self.request_timeout);
        self.waiting =
            Some(Box::pin(async move { account.take_within(limit, Resource::IncomingBytes, bytes).await }));
    }

    /// Ends the charges of the messages that the receiver has read, because it asks for more bytes.
    fn read(&mut self) {
        if self.messages == Messages::One {
            return;
        }
        let incomplete = usize::from(self.framing.is_in_message());
        self.held.drain(..self.held.len().saturating_sub(incomplete));
    }

    /// An error, if the client has not sent in time.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let Some((sleep, limit)) = &mut self.deadline else { return Poll::Pending };
        ready!(sleep.as_mut().poll(context));
        let message = format!(
            "the request was not received within {}; limits.request_timeout is {}",
            humantime::format_duration(*limit),
            humantime::format_duration(self.request_timeout)
        );
        Poll::Ready(Error::timeout(message).into())
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                let charge = ready!(waiting.as_mut().poll(context));
                self.waiting = None;
                match charge {
                    Ok(charge) => self.held.push(charge),
                    Err(error) => return Poll::Ready(Some(Err(Status::from(error).into()))),
                }
            }
            if let Some((bytes, read)) = &mut self.frame {
                if let Some(length) = self.framing.begin_next(bytes, read) {
                    self.begin(length);
                    continue;
                }
                if self.messages == Messages::Many && self.framing.is_between_messages() {
                    self.deadline = None;
                }
                let frame = self.frame.take().map(|(bytes, _)| Ok(Frame::data(bytes)));
                return Poll::Ready(frame);
            }
            self.read();
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.frame = Some((bytes, 0)),
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    self.deadline = None;
                    return Poll::Ready(None);
                }
            }
        }
    }
}

type BoxError = Box<dyn StdError + Send + Sync>;

impl Body for Incoming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.poll_next(context) {
            Poll::Pending => self.poll_deadline(context).map(|late| Some(Err(late.into()))),
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frame.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.frame.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

/// Status that is the reason of an error of a body, if any.
pub(super) fn status_of(error: &(dyn StdError + 'static)) -> Option<Status> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(status) = error.downcast_ref::<Status>() {
            return Some(Status::with_metadata(status.code(), status.message(), status.metadata().clone()));
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests;
