use bytes::BufMut;
use futures::StreamExt;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::time::advance;
use tonic::{
    Status,
    codec::{EncodeBody, EncodeBuf, Encoder},
};

use super::{
    super::{
        config::Config,
        connection::{
            MayPause, Next,
            tests::{SECOND, config, connection, next},
        },
    },
    *,
};
use crate::callers::{Caller, Callers};

#[tokio::test(start_paused = true)]
async fn a_connection_whose_client_does_not_receive_a_charged_answer_is_closed() {
    let config = Config { receive_timeout: 60 * SECOND, idle_timeout: 1000 * SECOND, ..config() };
    let connection = connection(config);
    let running = connection.begin();
    let callers = Callers::new(Arc::default());
    let charge = callers.take(&Caller::Local, Resource::UnsentBytes, 5 << 20).unwrap();
    let response = axum::response::Response::new(axum::body::Body::from("answer"));
    let mut response = response;
    response.extensions_mut().insert(charge.shared());
    let mut body = Box::pin(Answer::of(response, running).into_body());
    let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await.unwrap().unwrap();
    let bytes = frame.into_data().unwrap();
    // The transport holds the bytes. A second more per MiB.
    drop(body);
    advance(64 * SECOND).await;
    assert_eq!(next(&connection), Next::Check(Instant::now() + SECOND));
    advance(SECOND).await;
    assert_eq!(next(&connection), Next::Close);
    assert_eq!(callers.usage().callers.len(), 1);
    drop(bytes);
    assert!(callers.usage().callers.is_empty());
    assert_ne!(next(&connection), Next::Close);
}

#[tokio::test(start_paused = true)]
async fn each_message_of_a_stream_is_charged_until_its_bytes_are_sent() {
    let connection = connection(config());
    let callers = Callers::new(Arc::default());
    let (charges, held) =
        (MessageCharges::default(), || callers.usage().totals[Resource::UnsentBytes as usize].1);
    let (put, charged) = (charges.clone(), callers.clone());
    let messages = futures::stream::iter([1u64, 2, 0]).map(move |size| {
        if size > 0 {
            put.charge_next(charged.take(&Caller::Local, Resource::UnsentBytes, size).unwrap());
        }
        Ok::<_, axum::Error>(Bytes::from("message"))
    });
    let mut response = axum::response::Response::new(axum::body::Body::from_stream(messages));
    response.extensions_mut().insert(charges);
    let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
    let mut frames = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
        frames.push(frame.unwrap().into_data().unwrap());
    }
    assert_eq!((frames.len(), held()), (3, 3));
    frames.remove(0);
    assert_eq!(held(), 2, "the first message is sent");
    frames.remove(0);
    assert_eq!(held(), 0, "the stream itself holds nothing");
    drop(body);
}

/// Config in which only the time to receive is short.
fn receiving() -> Config {
    Config { receive_timeout: 60 * SECOND, idle_timeout: 1000 * SECOND, ..config() }
}

async fn next_frame(body: &mut Pin<Box<Answer>>) -> Option<Bytes> {
    let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await?;
    Some(frame.unwrap().into_data().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_client_accepts_no_part_of_an_answer_is_closed() {
    let connection = connection(receiving());
    let response = axum::response::Response::new(axum::body::Body::from("answer"));
    let body = Box::pin(Answer::of(response, connection.begin()).into_body());
    advance(60 * SECOND).await;
    assert_eq!(next(&connection), Next::Close);
    drop(body);
    assert_ne!(next(&connection), Next::Close);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_accepts_one_frame_after_the_other_has_the_time_for_each() {
    let connection = connection(receiving());
    let frames = futures::stream::iter(["one", "two"]).map(Ok::<_, axum::Error>);
    let made = futures::stream::once(async {
        tokio::time::sleep(500 * SECOND).await;
        Ok("three")
    });
    let body = axum::body::Body::from_stream(frames.chain(made));
    let response = axum::response::Response::new(body);
    let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
    for expected in ["one", "two"] {
        advance(59 * SECOND).await;
        assert_ne!(next(&connection), Next::Close);
        assert_eq!(next_frame(&mut body).await.unwrap(), expected);
    }
    // The next frame is not ready, which is no fault of the client.
    assert!(futures::FutureExt::now_or_never(next_frame(&mut body)).is_none());
    advance(400 * SECOND).await;
    assert_ne!(next(&connection), Next::Close);
    assert_eq!(next_frame(&mut body).await.unwrap(), "three");
    advance(60 * SECOND).await;
    assert_eq!(next(&connection), Next::Close);
}

#[tokio::test(start_paused = true)]
async fn a_client_may_pause_a_response_with_a_limit_of_its_own_until_its_deadline() {
    let connection = connection(receiving());
    let deadline = Arc::new(Mutex::new(None));
    let read = Arc::clone(&deadline);
    let mut response = axum::response::Response::new(axum::body::Body::from("batch"));
    response.extensions_mut().insert(MayPause::until(move || *read.lock()));
    let mut body = Answer::of(response, connection.begin()).into_body();
    let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
    // The transport has asked for all of the body, and has not sent it.
    drop(body);
    advance(900 * SECOND).await;
    assert_ne!(next(&connection), Next::Close);
    *deadline.lock() = Some(Instant::now() + SECOND);
    assert_eq!(next(&connection), Next::Check(Instant::now() + SECOND));
    advance(SECOND).await;
    assert_eq!(next(&connection), Next::Close);
    drop(bytes);
    assert_ne!(next(&connection), Next::Close);
}

#[tokio::test(start_paused = true)]
async fn a_frame_without_a_charge_is_charged_to_its_caller_until_it_is_sent() {
    let connection = connection(receiving());
    let callers = Callers::new(Arc::default());
    let held = || callers.usage().totals[Resource::UnsentBytes as usize].1;
    let frames = futures::stream::iter(["four", "seven"]).map(Ok::<_, axum::Error>);
    let mut response = axum::response::Response::new(axum::body::Body::from_stream(frames));
    response.extensions_mut().insert(Account::new(&callers, Caller::Local));
    let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
    let first = next_frame(&mut body).await.unwrap();
    let second = next_frame(&mut body).await.unwrap();
    drop(body);
    assert_eq!(held(), 4 + 5);
    drop(first);
    assert_eq!(held(), 5);
    advance(60 * SECOND).await;
    assert_eq!(next(&connection), Next::Close, "the transport still holds the second frame");
    drop(second);
    assert_eq!(held(), 0);
}

/// Encoder of messages that are bytes.
struct Plain;

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

#[tokio::test]
async fn a_frame_takes_over_the_charges_of_its_messages_and_not_of_the_one_being_made() {
    let connection = connection(config());
    let callers = Callers::new(Arc::default());
    let (charges, held) =
        (MessageCharges::default(), || callers.usage().totals[Resource::UnsentBytes as usize].1);
    let (put, charged) = (charges.clone(), callers.clone());
    // The first two messages are ready together. The transport sends them while the third one is being made.
    let messages = futures::stream::unfold(0, move |made| {
        let (put, charged) = (put.clone(), charged.clone());
        async move {
            if made == 2 {
                tokio::task::yield_now().await;
            }
            let amount = [1, 10, 100].get(made)?;
            put.charge_next(charged.take(&Caller::Local, Resource::UnsentBytes, *amount).unwrap());
            Some((Ok::<_, Status>(Bytes::from("message")), made + 1))
        }
    });
    let messages = EncodeBody::new_server(Plain, Box::pin(messages), None, Default::default(), None);
    let mut response = axum::response::Response::new(axum::body::Body::new(messages));
    response.extensions_mut().insert(charges);
    let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
    let mut next = async || {
        let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await;
        frame.unwrap().unwrap().into_data().unwrap()
    };
    let first = next().await;
    assert_eq!((first.len(), held()), (2 * (5 + 7), 11));
    let second = next().await;
    assert_eq!((second.len(), held()), (5 + 7, 111));
    drop(first);
    assert_eq!(held(), 100, "the first two messages are sent");
    drop(second);
    assert_eq!(held(), 0);
}

#[tokio::test]
async fn a_charge_that_no_frame_has_taken_over_ends_with_its_caller() {
    let connection = connection(config());
    let callers = Callers::new(Arc::default());
    let held = || callers.usage().totals[Resource::UnsentBytes as usize].1;
    // The caller leaves while the first message, or the second one, is charged and not complete.
    for complete in [0, 1] {
        let (charges, charged) = (MessageCharges::default(), callers.clone());
        let put = charges.clone();
        let messages = futures::stream::unfold(0, move |made| {
            let (put, charged) = (put.clone(), charged.clone());
            async move {
                let charge = charged.take(&Caller::Local, Resource::UnsentBytes, 7).unwrap();
                if made == complete {
                    std::future::pending::<()>().await;
                }
                put.charge_next(charge);
                Some((Ok::<_, Status>(Bytes::from("message")), made + 1))
            }
        });
        let messages = EncodeBody::new_server(Plain, Box::pin(messages), None, Default::default(), None);
        let mut response = axum::response::Response::new(axum::body::Body::new(messages));
        response.extensions_mut().insert(charges);
        let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
        let mut frames = Vec::new();
        while let Some(Some(frame)) = futures::FutureExt::now_or_never(std::future::poll_fn(|context| {
            body.as_mut().poll_frame(context)
        })) {
            frames.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!((frames.len(), held()), (complete, 7 * (complete as u64 + 1)));
        drop(body);
        assert_eq!(held(), 7 * complete as u64, "the charge of the message that was not complete");
        drop(frames);
        assert_eq!(held(), 0);
    }
}
