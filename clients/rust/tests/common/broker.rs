//! A queue that speaks the protocol and batches nothing: each request is a batch, given to the worker that has credit.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
    flight_service_server::{FlightService, FlightServiceServer},
};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::Schema;
use bytes::Bytes;
use forebay_client::proto::{
    Encoding,
    v1::{BatchReply, BatchRequest, Command, Failure, InferRequest, InferResult},
};
use futures::{Stream, StreamExt, stream};
use prost::Message;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};

type Answers = mpsc::UnboundedSender<Result<FlightData, Status>>;
type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Requests that nobody works on.
#[derive(Default)]
struct Waiting {
    requests: Mutex<Vec<Asked>>,
    changed: Notify,
}

/// One request, and where its answer goes.
struct Asked {
    id: u64,
    rows: u64,
    header: Bytes,
    body: Bytes,
    answers: Arc<Caller>,
}

struct Caller {
    answers: Answers,
    knows_schema: Mutex<bool>,
}

impl Waiting {
    fn add(&self, asked: Asked) {
        self.requests.lock().unwrap().push(asked);
        self.changed.notify_waiters();
    }

    /// The one that came first.
    async fn take(&self) -> Asked {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            {
                let mut requests = self.requests.lock().unwrap();
                if !requests.is_empty() {
                    return requests.remove(0);
                }
            }
            changed.await;
        }
    }
}

/// The server; it goes when it is dropped.
pub(crate) struct Broker {
    pub(crate) url: String,
    /// Requests that came, and batches that were given to a worker.
    pub(crate) asked: Arc<AtomicU64>,
    pub(crate) given: Arc<AtomicU64>,
    drains: watch::Sender<u64>,
    _serving: AbortOnDropHandle<()>,
}

impl Broker {
    /// A queue whose keys, and features, are of `schema`.
    pub(crate) async fn of(schema: &Schema) -> Self {
        let (drains, _) = watch::channel(0);
        let (asked, given) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let queue = Queue {
            schema: SchemaAsIpc::new(schema, &IpcWriteOptions::default()).into(),
            waiting: Arc::default(),
            asked: Arc::clone(&asked),
            given: Arc::clone(&given),
            drains: drains.subscribe(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let incoming = stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(socket, _)| socket), listener))
        });
        let serving = tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(FlightServiceServer::new(queue));
            server.serve_with_incoming(incoming).await.unwrap();
        });
        let url = format!("http://{address}");
        Self { url, asked, given, drains, _serving: AbortOnDropHandle::new(serving) }
    }

    /// Ends every exchange that runs, as a server does that stops.
    pub(crate) fn drain(&self) {
        self.drains.send_modify(|drains| *drains += 1);
    }
}

#[derive(Clone)]
struct Queue {
    schema: FlightData,
    waiting: Arc<Waiting>,
    asked: Arc<AtomicU64>,
    given: Arc<AtomicU64>,
    drains: watch::Receiver<u64>,
}

impl Queue {
    /// Takes requests until their caller goes, or has closed its side and has every answer.
    async fn infer(self, mut messages: Streaming<FlightData>, answers: Answers) -> Result<(), Status> {
        let caller = Arc::new(Caller { answers, knows_schema: Mutex::new(false) });
        while let Some(message) = messages.message().await? {
            if message.app_metadata.is_empty() {
                continue;
            }
            self.asked.fetch_add(1, Ordering::Relaxed);
            let request = InferRequest::decode(message.app_metadata).unwrap();
            let rows = arrow_ipc::root_as_message(&message.data_header).unwrap();
            let rows = rows.header_as_record_batch().unwrap().length() as u64;
            let (header, body) = (message.data_header, message.data_body);
            self.waiting.add(Asked { id: request.id.unwrap(), rows, header, body, answers: caller.clone() });
        }
        Ok(())
    }

    /// Gives batches as long as there is credit. What a worker leaves behind is given to another one.
    async fn serve(
        self,
        credits: u64,
        mut messages: Streaming<FlightData>,
        batches: Answers,
    ) -> Result<(), Status> {
        drop(batches.send(Ok(self.schema.clone())));
        let given = Given { waiting: self.waiting.clone(), batches: Mutex::default() };
        let credits = Semaphore::new(if credits == 0 { 2 } else { credits } as usize);
        let give = async {
            loop {
                credits.acquire().await.unwrap().forget();
                let asked = self.waiting.take().await;
                let batch = self.given.fetch_add(1, Ordering::Relaxed) + 1;
                let about = BatchRequest { batch, rows: asked.rows, ..BatchRequest::default() };
                let message = FlightData {
                    app_metadata: about.encode_to_vec().into(),
                    data_header: asked.header.clone(),
                    data_body: asked.body.clone(),
                    ..FlightData::default()
                };
                given.batches.lock().unwrap().insert(batch, asked);
                drop(batches.send(Ok(message)));
            }
        };
        let take = async {
            let mut schema = None;
            while let Some(message) = messages.message().await? {
                if message.app_metadata.is_empty() {
                    schema = Some(message);
                    continue;
                }
                let reply = BatchReply::decode(message.app_metadata.clone()).unwrap();
                let asked = given.batches.lock().unwrap().remove(&reply.batch);
                let asked = asked.ok_or_else(|| Status::invalid_argument("a reply to no batch"))?;
                credits.add_permits(1);
                answer(&asked, &reply, message, schema.as_ref());
            }
            Ok(())
        };
        tokio::select! {
            () = give => Ok(()),
            done = take => done,
        }
    }
}

/// Batches that a worker has.
struct Given {
    waiting: Arc<Waiting>,
    batches: Mutex<BTreeMap<u64, Asked>>,
}

impl Drop for Given {
    fn drop(&mut self) {
        for (_, asked) in std::mem::take(&mut *self.batches.lock().unwrap()) {
            self.waiting.add(asked);
        }
    }
}

fn answer(asked: &Asked, reply: &BatchReply, message: FlightData, schema: Option<&FlightData>) {
    let failed = !reply.error.is_empty();
    let error = failed.then(|| Failure {
        code: "INTERNAL".into(),
        message: reply.error.clone(),
        retry_after: Some(0.25),
    });
    let result = InferResult { id: asked.id, error, batch_rows: asked.rows, ..InferResult::default() };
    let message = FlightData { app_metadata: result.encode_to_vec().into(), ..message };
    let mut knows_schema = asked.answers.knows_schema.lock().unwrap();
    if !failed && !*knows_schema {
        drop(asked.answers.answers.send(Ok(schema.expect("it comes before replies").clone())));
        *knows_schema = true;
    }
    drop(asked.answers.answers.send(Ok(message)));
}

#[tonic::async_trait]
impl FlightService for Queue {
    type HandshakeStream = Sent<HandshakeResponse>;
    type ListFlightsStream = Sent<FlightInfo>;
    type DoGetStream = Sent<FlightData>;
    type DoPutStream = Sent<PutResult>;
    type DoActionStream = Sent<arrow_flight::Result>;
    type ListActionsStream = Sent<ActionType>;
    type DoExchangeStream = Sent<FlightData>;

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let mut messages = request.into_inner();
        let first = messages.message().await?.unwrap();
        let command = first.flight_descriptor.unwrap().cmd;
        let command: Command = Encoding::of(&command).decode("Command", &command).unwrap();
        let (sender, answers) = mpsc::unbounded_channel();
        let (queue, mut drains) = (self.clone(), self.drains.clone());
        drains.mark_unchanged();
        if command.infer.as_ref().is_some_and(|infer| infer.queue != "ranker") {
            return Err(Status::not_found("there is no such queue"));
        }
        tokio::spawn(async move {
            let work = async {
                match command.serve {
                    Some(serve) => queue.serve(serve.credits, messages, sender.clone()).await,
                    None => queue.infer(messages, sender.clone()).await,
                }
            };
            let drained = async {
                drop(drains.changed().await);
                Err(Status::unavailable("the server is stopping"))
            };
            let ended = tokio::select! { ended = work => ended, ended = drained => ended };
            if let Err(status) = ended {
                drop(sender.send(Err(status)));
            }
        });
        let answers = stream::unfold(answers, |mut answers| async {
            answers.recv().await.map(|answer| (answer, answers))
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(Status::unimplemented("a queue has exchanges only"))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        Err(Status::unimplemented("a queue has exchanges only"))
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        Err(Status::unimplemented("a queue has exchanges only"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(Status::unimplemented("a queue has exchanges only"))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        Err(Status::unimplemented("a queue has exchanges only"))
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        Err(Status::unimplemented("a queue has exchanges only"))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        Err(Status::unimplemented("a queue has exchanges only"))
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        Err(Status::unimplemented("a queue has exchanges only"))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Err(Status::unimplemented("a queue has exchanges only"))
    }
}
