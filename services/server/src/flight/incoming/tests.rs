use std::{convert::Infallible, future::poll_fn};

use futures::FutureExt;
use http_body_util::StreamBody;
use tokio::{
    sync::mpsc,
    time::{advance, timeout},
};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;
use crate::callers::{Caller, Callers};

const SECOND: Duration = Duration::from_secs(1);

/// A request that a test sends.
struct Sent {
    sender: mpsc::UnboundedSender<Result<Frame<Bytes>, Infallible>>,
    body: Pin<Box<Incoming>>,
    charging: Charging,
}

impl Sent {
    fn new(callers: &Callers, messages: Messages, limits: &Limits) -> Self {
        Self::of(Caller::Local, callers, messages, limits)
    }

    fn of(caller: Caller, callers: &Callers, messages: Messages, limits: &Limits) -> Self {
        let (sender, frames) = mpsc::unbounded_channel();
        let body = axum::body::Body::new(StreamBody::new(UnboundedReceiverStream::new(frames)));
        let account = Account::new(callers, caller);
        let charging = Charging::default();
        let body = Incoming::new(body, messages, account, limits, charging.clone());
        Self { sender, body: Box::pin(body), charging }
    }

    fn send(&self, bytes: impl Into<Vec<u8>>) {
        self.sender.send(Ok(Frame::data(Bytes::from(bytes.into())))).unwrap();
    }

    /// Next frame, or the error.
    async fn next(&mut self) -> Result<Bytes, Status> {
        let frame = poll_fn(|context| self.body.as_mut().poll_frame(context)).await;
        let frame = frame.expect("the body does not end in these tests");
        frame.map(|frame| frame.into_data().unwrap()).map_err(|error| status_of(&*error).unwrap())
    }
}

fn limits() -> Limits {
    Limits {
        max_request_bytes: 100,
        max_exchange_bytes: 100,
        max_incoming_bytes: 160,
        request_timeout: 10 * SECOND,
        ..Limits::default()
    }
}

/// The beginning of a message of `length` bytes, of which `sent` are sent.
fn message(length: u32, sent: usize) -> Vec<u8> {
    [&[0][..], &length.to_be_bytes(), &vec![1; sent]].concat()
}

fn held(callers: &Callers) -> u64 {
    callers.usage().totals[Resource::IncomingBytes as usize].1
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_complete_in_time_fails_and_is_charged_until_then() {
    let callers = Callers::new(Arc::new(limits()));
    let mut sent = Sent::new(&callers, Messages::One, &limits());
    sent.send(message(90, 1));
    assert_eq!(sent.next().await.unwrap().len(), 6);
    assert_eq!(held(&callers), 90, "the whole message is charged before it has arrived");
    let late = timeout(11 * SECOND, sent.next()).await.unwrap().unwrap_err();
    assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
    assert!(late.message().contains("limits.request_timeout is 10s"), "{}", late.message());
    drop(sent);
    assert_eq!(held(&callers), 0);
}

#[tokio::test(start_paused = true)]
async fn a_complete_message_whose_request_does_not_end_fails_too() {
    let callers = Callers::new(Arc::new(limits()));
    let mut sent = Sent::new(&callers, Messages::One, &limits());
    sent.send(message(3, 3));
    sent.next().await.unwrap();
    let late = timeout(11 * SECOND, sent.next()).await.unwrap().unwrap_err();
    assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
    assert_eq!(held(&callers), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stream_may_be_silent_between_its_messages_and_not_within_one() {
    let callers = Callers::new(Arc::new(limits()));
    let mut sent = Sent::new(&callers, Messages::Many, &limits());
    sent.send(message(3, 3));
    sent.next().await.unwrap();
    assert!(timeout(1000 * SECOND, sent.next()).await.is_err(), "silent between messages");
    assert_eq!(held(&callers), 0, "the message was read");
    sent.send(message(50, 49));
    sent.next().await.unwrap();
    let late = timeout(11 * SECOND, sent.next()).await.unwrap().unwrap_err();
    assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_a_stream_is_charged_until_the_receiver_asks_for_more() {
    let callers = Callers::new(Arc::new(limits()));
    let mut sent = Sent::new(&callers, Messages::Many, &limits());
    // Two messages, and the beginning of a third one.
    sent.send([message(10, 10), message(20, 20), message(30, 1)].concat());
    assert_eq!(sent.next().await.unwrap().len(), 15);
    assert_eq!(held(&callers), 10);
    assert_eq!(sent.next().await.unwrap().len(), 25);
    assert_eq!(held(&callers), 20, "the receiver has read the first message");
    assert_eq!(sent.next().await.unwrap().len(), 6);
    assert!(sent.next().now_or_never().is_none());
    assert_eq!(held(&callers), 30, "the receiver has read two messages");
    sent.send(vec![1; 29]);
    sent.next().await.unwrap();
    assert_eq!(held(&callers), 30, "the receiver has the third message, and has not asked for more");
    assert!(sent.next().now_or_never().is_none());
    assert_eq!(held(&callers), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_above_the_limit_waits_until_others_are_read_and_fails_after_the_timeout() {
    let callers = Callers::new(Arc::new(limits()));
    // The first message of a stream does not wait if it is small.
    let opened = || {
        let mut sent = Sent::new(&callers, Messages::Many, &limits());
        sent.send([message(0, 0), message(100, 100)].concat());
        assert_eq!(sent.next().now_or_never().unwrap().unwrap().len(), 5);
        sent
    };
    let mut first = opened();
    first.next().await.unwrap();
    let mut second = opened();
    assert!(second.next().now_or_never().is_none(), "7/8 of the limit is 140");
    advance(5 * SECOND).await;
    assert!(first.next().now_or_never().is_none());
    assert_eq!(second.next().await.unwrap().len(), 105);
    let mut third = opened();
    let refused = timeout(11 * SECOND, third.next()).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
    // The replies of workers never wait for requests, which wait for replies.
    let mut worker = Sent::new(&callers, Messages::Many, &limits());
    worker.charging.as_replies();
    worker.send(message(100, 100));
    assert!(worker.next().now_or_never().is_some());
    assert_eq!(held(&callers), 100);
}

#[tokio::test(start_paused = true)]
async fn replies_of_workers_wait_for_each_other_and_take_nothing_of_what_requests_of_others_may_have() {
    let callers = Callers::new(Arc::new(limits()));
    let opened = |token: &str| {
        let caller = Caller::Token(token.to_owned());
        let mut sent = Sent::of(caller, &callers, Messages::Many, &limits());
        // The first message names the kind of the stream.
        sent.send(message(0, 0));
        assert_eq!(sent.next().now_or_never().unwrap().unwrap().len(), 5);
        sent
    };
    let mut workers = [(); 3].map(|()| opened("attacker"));
    for worker in &workers {
        worker.charging.as_replies();
        worker.send(message(100, 1));
    }
    let [first, others @ ..] = &mut workers;
    assert_eq!(first.next().now_or_never().unwrap().unwrap().len(), 6);
    for other in others {
        assert!(other.next().now_or_never().is_none(), "7/8 of the limit is 140");
    }
    let mut requests = opened("attacker");
    requests.send(message(100, 1));
    assert_eq!(requests.next().now_or_never().unwrap().unwrap().len(), 6);
    // The other caller holds nothing: what is left of each limit is for it.
    let (mut lookup, mut worker) = (opened("other"), opened("other"));
    worker.charging.as_replies();
    for sent in [&mut lookup, &mut worker] {
        sent.send(message(60, 60));
        let received = sent.next().now_or_never().expect("it does not wait for the attacker");
        assert_eq!(received.unwrap().len(), 65);
    }
    let replies = callers.usage().totals[Resource::ReplyBytes as usize].1;
    assert_eq!((held(&callers), replies), (160, 160));
}

#[tokio::test(start_paused = true)]
async fn messages_that_their_receiver_has_charged_are_not_charged_again_and_not_longer_than_announced() {
    let callers = Callers::new(Arc::new(limits()));
    let mut sent = Sent::new(&callers, Messages::Many, &limits());
    sent.send(message(10, 10));
    sent.next().await.unwrap();
    sent.charging.as_charged(50);
    sent.send(message(50, 50));
    sent.next().await.unwrap();
    assert_eq!(held(&callers), 0);
    sent.send(message(51, 0));
    let refused = sent.next().await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert_eq!(
        refused.message(),
        "a message of 51 bytes is longer than what was announced, expected at most 50"
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_in_one_frame_with_the_next_one_is_received_before_that_one_is_charged() {
    let callers = Callers::new(Arc::new(limits()));
    let mut sent = Sent::new(&callers, Messages::Many, &limits());
    // 7/8 of the limit is 140.
    sent.send([message(1, 1), message(90, 90), message(100, 100)].concat());
    for length in [1, 90, 100] {
        assert_eq!(sent.next().now_or_never().unwrap().unwrap().len(), 5 + length);
        assert_eq!(held(&callers), length as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_message_does_not_run_while_the_receiver_pauses() {
    let callers = Callers::new(Arc::new(limits()));
    let mut sent = Sent::new(&callers, Messages::Many, &limits());
    sent.send(message(50, 10));
    sent.next().await.unwrap();
    advance(1000 * SECOND).await;
    assert!(timeout(9 * SECOND, sent.next()).await.is_err(), "the receiver asks for more only now");
    sent.send(vec![1; 40]);
    assert_eq!(sent.next().await.unwrap().len(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_second_message_of_a_request_with_one_is_rejected() {
    let callers = Callers::new(Arc::new(limits()));
    let mut sent = Sent::new(&callers, Messages::One, &limits());
    sent.send([message(0, 0), message(0, 0)].concat());
    assert_eq!(sent.next().await.unwrap().len(), 5);
    assert_eq!(sent.next().await.unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_small_first_message_of_a_stream_does_not_wait_for_others() {
    let callers = Callers::new(Arc::new(limits()));
    let mut first = Sent::new(&callers, Messages::Many, &limits());
    first.send([message(1, 1), message(100, 100)].concat());
    first.next().await.unwrap();
    first.next().await.unwrap();
    let mut worker = Sent::new(&callers, Messages::Many, &limits());
    worker.send(message(60, 60));
    assert!(worker.next().now_or_never().is_some());
    assert_eq!(held(&callers), 160);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_the_server_does_not_receive_takes_nothing() {
    let callers = Callers::new(Arc::new(limits()));
    let mut sent = Sent::new(&callers, Messages::One, &limits());
    sent.send(message(u32::MAX, 1));
    assert_eq!(sent.next().await.unwrap().len(), 6, "the receiver rejects the length");
    assert_eq!(held(&callers), 0);
}
