//! Answers of all kinds that a client does not read: its HTTP/2 window for each answer is one byte.

use std::{net::SocketAddr, time::Duration};

use arrow_flight::FlightDescriptor;
use bytes::{BufMut, Bytes, BytesMut};
use forebay_proto::{
    inference::{InferTensorContents, ModelInferRequest, model_infer_request::InferInputTensor},
    v1,
};
use http::{HeaderValue, Method, Request, header::AUTHORIZATION};
use prost::Message;
use serde_json::json;
use tokio::net::TcpStream;

use super::calls::get_json;

/// Number of concurrent requests over a connection to the gRPC port.
const GRPC_REQUESTS: usize = 200;
/// Number of concurrent requests over a connection to the HTTP port: what the server accepts.
const HTTP_REQUESTS: usize = 32;
/// Number of connections to the HTTP port that together have at least as many concurrent requests as one connection to the gRPC port.
pub(super) const HTTP_CONNECTIONS: usize = GRPC_REQUESTS.div_ceil(HTTP_REQUESTS);
/// Time until a connection is opened again. It is shorter than `limits.receive_timeout`.
const HELD: Duration = Duration::from_secs(5);
/// Window of the client for each answer. With one byte, the server passes each answer to the transport.
const WINDOW_BYTES: u32 = 1;
/// Keys per lookup: an answer has 0.3 MB.
const KEYS: i64 = 2000;
/// Keys per request to a queue.
const QUEUE_KEYS: i64 = 200;
/// Name of the queue of the servers.
pub(super) const QUEUE: &str = "ranker";

/// Time to wait for the head of an answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);
/// gRPC codes of requests that can never be answered: INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED.
const INVALID: [&str; 3] = ["3", "5", "12"];

/// A request, without the token.
pub(super) struct Sent {
    method: Method,
    path: String,
    body: Bytes,
}

impl Sent {
    /// A gRPC call with these messages.
    pub(super) fn post(path: &str, body: Bytes) -> Self {
        Self { method: Method::POST, path: path.to_owned(), body }
    }

    /// Sends the request over a connection of its own, and reads the answer.
    pub(super) async fn answered(&self, address: SocketAddr, token: &str) -> anyhow::Result<()> {
        let (mut client, connection) = h2::client::handshake(TcpStream::connect(address).await?).await?;
        let connection = AbortOnDrop(tokio::spawn(connection));
        let (answer, mut sender) = client.send_request(self.request(address, token)?, false)?;
        sender.send_data(self.body.clone(), true)?;
        let mut body = answer.await?.into_body();
        while let Some(part) = body.data().await {
            body.flow_control().release_capacity(part?.len())?;
        }
        drop(connection);
        Ok(())
    }

    /// Sends the request over a connection of its own, but not its end, and ends the connection after `time`, or when the server ends the
    /// call.
    pub(super) async fn open(&self, address: SocketAddr, token: &str, time: Duration) -> anyhow::Result<()> {
        let (mut client, connection) = h2::client::handshake(TcpStream::connect(address).await?).await?;
        let connection = AbortOnDrop(tokio::spawn(connection));
        let (answer, mut sender) = client.send_request(self.request(address, token)?, false)?;
        sender.send_data(self.body.clone(), false)?;
        drop(tokio::time::timeout(time, answer).await);
        drop(connection);
        Ok(())
    }

    /// A gRPC call.
    fn call(path: &str, message: &impl Message) -> Self {
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(u32::try_from(message.encoded_len()).unwrap_or(u32::MAX));
        body.put_slice(&message.encode_to_vec());
        Self { method: Method::POST, path: path.to_owned(), body: body.freeze() }
    }

    fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), body: Bytes::new() }
    }

    /// Head of the request.
    fn request(&self, address: SocketAddr, token: &str) -> anyhow::Result<Request<()>> {
        let uri = format!("http://{address}{}", self.path);
        let mut request = Request::builder().method(&self.method).uri(uri).body(())?;
        let headers = request.headers_mut();
        headers.insert(AUTHORIZATION, format!("Bearer {token}").parse()?);
        if self.method == Method::POST && self.path.contains('.') {
            headers.insert("content-type", "application/grpc".parse()?);
            headers.insert("te", "trailers".parse()?);
        }
        Ok(request)
    }
}

/// A task that ends with its owner.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends lookups, requests to a queue, and requests for plans, schemas and the list of datasets over one connection.
pub(super) async fn answers(address: SocketAddr, token: &str, train: &v1::Train) -> anyhow::Result<()> {
    let dataset = train.dataset.clone();
    let keys = v1::KeyColumn { name: "id".into(), integers: (0..KEYS).collect(), ..v1::KeyColumn::default() };
    let lookup = v1::Lookup { dataset, keys: vec![keys], ..v1::Lookup::default() };
    let train = v1::Train { world_size: Some(256), ..train.clone() };
    let command = v1::Command { train: Some(train), ..v1::Command::default() };
    let descriptor = FlightDescriptor::new_cmd(command.encode_to_vec());
    let contents = InferTensorContents { int64_contents: (0..QUEUE_KEYS).collect(), ..Default::default() };
    let input = InferInputTensor {
        name: "id".into(),
        datatype: "INT64".into(),
        shape: vec![QUEUE_KEYS],
        contents: Some(contents),
        ..Default::default()
    };
    let infer =
        ModelInferRequest { model_name: QUEUE.into(), inputs: vec![input], ..ModelInferRequest::default() };
    let flight = "/arrow.flight.protocol.FlightService";
    let kinds = [
        Sent::call("/forebay.v1.Online/Lookup", &lookup),
        Sent::call(&format!("{flight}/GetFlightInfo"), &descriptor),
        Sent::call(&format!("{flight}/GetSchema"), &descriptor),
        Sent::call(&format!("{flight}/ListFlights"), &arrow_flight::Criteria::default()),
        Sent::call("/inference.GRPCInferenceService/ModelInfer", &infer),
    ];
    send(address, token, kinds.iter().cycle().take(GRPC_REQUESTS)).await
}

/// Sends requests for jobs, datasets, sessions and an explanation over one connection to the HTTP port.
pub(super) async fn lists(address: SocketAddr, token: &str, train: &v1::Train) -> anyhow::Result<()> {
    let datasets = get_json(address, "/api/v1/datasets", token).await?;
    let snapshot = &datasets["datasets"][0]["snapshot"];
    let train = json!({ "train": { "dataset": train.dataset, "snapshot": snapshot, "batch_size": train.batch_size } });
    let explain = Sent {
        method: Method::POST,
        path: "/api/v1/explain?step=0&format=json".to_owned(),
        body: train.to_string().into(),
    };
    let lists = ["jobs", "datasets", "sessions", "events"];
    let kinds: Vec<_> =
        lists.iter().map(|list| Sent::get(&format!("/api/v1/{list}"))).chain([explain]).collect();
    send(address, token, kinds.iter().cycle().take(HTTP_REQUESTS)).await
}

/// Sends `requests` over one connection, and keeps it without reading the answers.
async fn send(address: SocketAddr, token: &str, requests: impl Iterator<Item = &Sent>) -> anyhow::Result<()> {
    let stream = TcpStream::connect(address).await?;
    let builder = h2::client::Builder::new().initial_window_size(WINDOW_BYTES).clone();
    let (mut client, connection) = builder.handshake::<_, Bytes>(stream).await?;
    let connection = tokio::spawn(connection);
    let mut answers = Vec::new();
    for sent in requests {
        let request = sent.request(address, token)?;
        let (answer, mut sender) = client.send_request(request, sent.body.is_empty())?;
        if !sent.body.is_empty() {
            sender.send_data(sent.body.clone(), true)?;
        }
        answers.push((sent, answer));
    }
    // The heads of answers arrive although their bodies do not. Those of gRPC contain the status only if the call has failed.
    for (sent, answer) in answers {
        let answer = match tokio::time::timeout(HEAD_TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if error.reason() == Some(h2::Reason::REFUSED_STREAM) => {
                let message = "the server accepts fewer requests per connection".to_owned();
                return Err(forebay_client::Error::Request(message).into());
            }
            // The answer waits for its turn, or the server has closed the connection.
            Ok(Err(_)) | Err(_) => continue,
        };
        let code = answer.headers().get("grpc-status").map_or(Ok("0"), HeaderValue::to_str)?;
        let is_invalid =
            INVALID.contains(&code) || (answer.status().is_client_error() && answer.status() != 429);
        if is_invalid {
            let (path, status) = (&sent.path, answer.status());
            let message = format!("{path} was rejected: HTTP status {status}, gRPC code {code}");
            return Err(forebay_client::Error::Request(message).into());
        }
    }
    // The server closes the connection earlier if it has no room for the answers.
    drop(tokio::time::timeout(HELD, connection).await);
    Ok(())
}
