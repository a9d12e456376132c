//! The body of a response: when the client must accept its parts, and to whom its bytes are charged.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::connection::{Connection, Deadline, Running};
use crate::callers::{Account, Charge, MessageCharges, Resource};

/// Time within which a client must receive a charged answer: `receive_timeout` plus one second per MiB.
pub(crate) fn unsent_limit(receive_timeout: Duration, charge: &Charge) -> Duration {
    size_limit(receive_timeout, charge.amount())
}

/// Time limit for the transfer of `bytes` bytes: `timeout` plus one second per MiB.
pub(crate) fn size_limit(timeout: Duration, bytes: u64) -> Duration {
    timeout.saturating_add(Duration::from_secs(bytes >> 20))
}

/// Size of the data of a frame.
fn frame_bytes(frame: &Frame<Bytes>) -> u64 {
    frame.data_ref().map_or(0, |data| data.len() as u64)
}

/// A charged answer that the client has not received.
struct Unsent {
    _deadline: Deadline,
    _charge: Charge,
}

impl Unsent {
    /// Notes an answer that holds `charge` until the transport no longer needs its bytes. The client must receive it within
    /// `receive_timeout` plus one second per MiB.
    fn new(connection: &Arc<Connection>, charge: Charge) -> Self {
        let deadline = connection.new_deadline();
        deadline.set(Some(Instant::now() + unsent_limit(connection.receive_timeout(), &charge)));
        Self { _deadline: deadline, _charge: charge }
    }
}

/// Bytes of charged answers. The transport keeps them until it has sent them.
struct Charged<C> {
    bytes: Bytes,
    _unsent: C,
}

impl<C> AsRef<[u8]> for Charged<C> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A response body that keeps its request [`Running`] until it ends or is dropped, its charge until its bytes are sent, and the
/// charge of each of its messages until the bytes of the message are sent.
///
/// Frames without such a charge are charged when the transport takes them. The client must accept a frame within `receive_timeout`
/// plus one second per MiB of the frame before it. Neither rule applies to a response with [`MayPause`].
pub(super) struct Answer {
    body: axum::body::Body,
    unsent: Option<Arc<Unsent>>,
    messages: Option<MessageCharges>,
    account: Option<Account>,
    /// Time by which the transport must ask for the next frame. It is set while the flow control of the client blocks
    /// the transport.
    next_frame: Arc<Deadline>,
    may_pause: bool,
    running: Running,
}

impl Answer {
    /// The body of `response`, whose extensions may hold a [`Charge`] or [`MessageCharges`], an [`Account`] and [`MayPause`].
    pub(super) fn of(response: axum::response::Response, running: Running) -> http::Response<Self> {
        let (mut parts, body) = response.into_parts();
        let charge = Charge::from_extension(&mut parts.extensions);
        let unsent = charge.map(|charge| Arc::new(Unsent::new(running.connection(), charge)));
        let (messages, account) = (parts.extensions.remove(), parts.extensions.remove());
        let (next_frame, paused) = (Arc::new(running.connection().new_deadline()), parts.extensions.remove());
        let may_pause = paused.is_some();
        match paused {
            Some(paused) => next_frame.pause(paused),
            None => next_frame.set(Some(Instant::now() + running.connection().receive_timeout())),
        }
        let answer = Self { body, unsent, messages, account, next_frame, may_pause, running };
        http::Response::from_parts(parts, answer)
    }

    /// Charges the bytes of a frame.
    fn charged(&self, bytes: Bytes) -> Bytes {
        // The transport may drop the body before it has sent the last bytes. Each frame therefore holds the deadline, so that the limit
        // of a pause applies until the last bytes are sent.
        let paused = self.may_pause.then(|| Arc::clone(&self.next_frame));
        if let Some(unsent) = &self.unsent {
            return Bytes::from_owner(Charged { bytes, _unsent: (Arc::clone(unsent), paused) });
        }
        let mut charges = self.messages.as_ref().map(MessageCharges::take).unwrap_or_default();
        if charges.is_empty()
            && !self.may_pause
            && let Some(account) = &self.account
        {
            charges.push(account.charge(Resource::UnsentBytes, bytes.len() as u64));
        }
        if charges.is_empty() && paused.is_none() {
            return bytes;
        }
        let unsent = charges.into_iter().map(|charge| Unsent::new(self.running.connection(), charge));
        Bytes::from_owner(Charged { bytes, _unsent: (unsent.collect::<Vec<_>>(), paused) })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if !self.may_pause {
            // While the body makes its next frame, the client need not do anything.
            let limit = match &polled {
                Poll::Pending => None,
                Poll::Ready(Some(Ok(frame))) => {
                    Some(size_limit(self.running.connection().receive_timeout(), frame_bytes(frame)))
                }
                Poll::Ready(_) => Some(self.running.connection().receive_timeout()),
            };
            self.next_frame.set(limit.map(|limit| Instant::now() + limit));
        }
        let frame = ready!(polled);
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.charged(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
