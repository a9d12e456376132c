//! The body of a gRPC request: charged to its caller while it is received, and limited in time.
//!
//! A gRPC message is a byte, its length as a big-endian `u32`, and the message. The length is known before the message, so that all
//! its bytes are charged at once. If parts of messages were charged, several incomplete ones could wait for each other. A message
//! never waits while the receiver lacks the messages before it.

mod framing;

use std::{
    error::Error as StdError,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
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

use framing::{Framing, PREFIX_BYTES};

/// Maximum size of a first message of a stream that is charged without waiting, in bytes. A worker can therefore connect while requests
/// for it take all of the limit.
const SMALL_BYTES: u64 = 64 << 10;

/// Messages that a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Messages {
    /// One message. The request must be complete within the time limit. The message is charged until the body is dropped.
    One,
    /// Any number of messages, at any time. The charge of a message ends when the receiver has read it and asks for more bytes.
    Many,
}

/// Decides how the further messages of a request are charged. It is an extension of the request.
#[derive(Clone)]
pub(super) struct Charging(Arc<AtomicU64>);

/// Values of [`Charging`] that are no number of bytes.
const REQUESTS: u64 = u64::MAX;
const REPLIES: u64 = u64::MAX - 1;

impl Default for Charging {
    /// Messages are charged as requests.
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(REQUESTS)))
    }
}

impl Charging {
    /// Charges further messages as replies of a worker, which requests wait for.
    pub(super) fn as_replies(&self) {
        self.0.store(REPLIES, Ordering::Relaxed);
    }

    /// Does not charge further messages: the receiver has charged all of them. Messages of more than `max_bytes` bytes are rejected.
    pub(super) fn as_charged(&self, max_bytes: u64) {
        self.0.store(max_bytes.min(REPLIES - 1), Ordering::Relaxed);
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
    charging: Charging,
    framing: Framing,
    /// Received frame, and the number of its bytes that `framing` has read.
    frame: Option<(Bytes, usize)>,
    /// True if a message has begun.
    has_message: bool,
    /// Length of a message that has begun in `frame` and is not charged.
    begun: Option<u64>,
    /// Length of the message that begins in `frame`, and its pending charge.
    waiting: Option<(u64, BoxFuture<'static, Result<Charge, Error>>)>,
    /// Charges of the messages. The last one may be incomplete.
    held: Vec<Charge>,
    /// Time by which the message must be complete, and its time limit.
    deadline: Option<(Pin<Box<Sleep>>, Duration)>,
    /// Time when the receiver got the last frame. The time limit does not run until it asks for more.
    given: Option<Instant>,
}

impl Incoming {
    /// A request of the caller of `account`. The time limit of the first message begins now.
    pub(super) fn new(
        body: axum::body::Body,
        messages: Messages,
        account: Account,
        limits: &Limits,
        charging: Charging,
    ) -> Self {
        let mut incoming = Self {
            body,
            messages,
            account,
            request_timeout: limits.request_timeout,
            max_bytes: match messages {
                Messages::One => limits.max_request_bytes,
                Messages::Many => limits.max_request_bytes.max(limits.max_exchange_bytes),
            } as u64,
            charging,
            framing: Framing::default(),
            frame: None,
            has_message: false,
            begun: None,
            waiting: None,
            held: Vec::new(),
            deadline: None,
            given: None,
        };
        incoming.set_deadline(0);
        incoming
    }

    fn set_deadline(&mut self, bytes: u64) {
        let limit = size_limit(self.request_timeout, bytes);
        self.deadline = Some((Box::pin(sleep_until(Instant::now() + limit)), limit));
    }

    /// Begins to charge a message of `bytes` bytes.
    ///
    /// # Errors
    /// Invalid, if the request may have one message, and this is another one, or if the message is longer than announced.
    fn begin(&mut self, bytes: u64) -> Result<(), Error> {
        let is_first = !std::mem::replace(&mut self.has_message, true);
        if self.messages == Messages::One && !is_first {
            return Err(Error::invalid("the request has more than one message; one was expected"));
        }
        if self.messages == Messages::Many || bytes >= 1 << 20 {
            self.set_deadline(bytes);
        }
        let (resource, is_charged) = match self.charging.0.load(Ordering::Relaxed) {
            REQUESTS => (Resource::IncomingBytes, false),
            REPLIES => (Resource::ReplyBytes, false),
            most if bytes > most => {
                return Err(Error::invalid(format!(
                    "a message of {bytes} bytes is longer than what was announced, expected at most {most}"
                )));
            }
            _ => (Resource::IncomingBytes, true),
        };
        let is_small_first = self.messages == Messages::Many && is_first && bytes <= SMALL_BYTES;
        // The receiver rejects a message that is too long when it has read the length.
        let is_too_long = bytes > self.max_bytes;
        if is_too_long || is_charged || is_small_first {
            let bytes = if is_too_long || is_charged { 0 } else { bytes };
            self.held.push(self.account.charge(resource, bytes));
            return Ok(());
        }
        let (account, limit) = (self.account.clone(), self.request_timeout);
        let charge = async move { account.take_within(limit, resource, bytes).await };
        self.waiting = Some((bytes, Box::pin(charge)));
        Ok(())
    }

    /// Ends the charges of the messages that the receiver has read, because it asks for more bytes.
    fn read(&mut self) {
        if self.messages == Messages::One {
            return;
        }
        let incomplete = usize::from(self.framing.is_in_message() && self.begun.is_none());
        self.held.drain(..self.held.len().saturating_sub(incomplete));
    }

    /// Moves the time limit by the time in which the receiver did not ask for more.
    fn resume(&mut self) {
        if let Some(given) = self.given.take()
            && let Some((sleep, _)) = &mut self.deadline
        {
            let deadline = sleep.deadline() + given.elapsed();
            sleep.as_mut().reset(deadline);
        }
    }

    /// An error, if the client has not sent in time.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        // The wait for a charge has a limit of its own.
        let (Some((sleep, limit)), None) = (&mut self.deadline, &self.waiting) else { return Poll::Pending };
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
            if let Some((bytes, waiting)) = &mut self.waiting {
                let (bytes, charge) = (*bytes, ready!(waiting.as_mut().poll(context)));
                self.waiting = None;
                match charge {
                    Ok(charge) => self.held.push(charge),
                    Err(error) => return Poll::Ready(Some(Err(Status::from(error).into()))),
                }
                self.set_deadline(bytes);
            }
            if let Some(length) = self.begun {
                self.read();
                self.begun = None;
                if let Err(error) = self.begin(length) {
                    return Poll::Ready(Some(Err(Status::from(error).into())));
                }
                continue;
            }
            if let Some((bytes, read)) = &mut self.frame {
                if let Some(length) = self.framing.begin_next(bytes, read) {
                    self.begun = Some(length);
                    // The receiver gets the messages before this one first, so that their charges can end.
                    let before = read.saturating_sub(PREFIX_BYTES);
                    if before > 0 {
                        *read -= before;
                        return Poll::Ready(Some(Ok(Frame::data(bytes.split_to(before)))));
                    }
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
        self.resume();
        match self.poll_next(context) {
            Poll::Pending => self.poll_deadline(context).map(|late| Some(Err(late.into()))),
            Poll::Ready(frame) => {
                self.given = Some(Instant::now());
                Poll::Ready(frame)
            }
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
