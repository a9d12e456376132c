//! A connection to one server.

use std::sync::Arc;

use bytes::Bytes;
use forebay_proto::v1::{Lookup, Train};

use crate::{
    Batches, Caller, Config, Error, Lookups, Plan, Worker,
    memory::Slabs,
    route::{Route, StreamSender, Transport, dial},
    training::{TicketStream, plan, ticket},
};

/// A connection to one server, without retries. Cheap to clone; clones share the connection.
///
/// A connection also receives batches of Flight servers other than Forebay; see [`get`](Self::get).
#[derive(Clone)]
pub struct Connection {
    transport: Transport,
}

impl Connection {
    /// Connects to `url`: `http://HOST:PORT` or `grpc://HOST:PORT`, `https://HOST:PORT` or `grpc+tls://HOST:PORT`, or
    /// `unix:/PATH` for a server on the same host.
    ///
    /// # Errors
    /// [`Error::Connect`] if the server is unreachable; [`Error::Protocol`] if a server of another protocol answers;
    /// [`Error::Request`] if the URL is invalid or a certificate file cannot be read.
    pub async fn open(url: &str, config: Arc<Config>) -> Result<Self, Error> {
        let (transport, _) = dial(url, &mut Vec::new(), &config).await?;
        Ok(Self { transport })
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> &str {
        self.transport.url()
    }

    /// Requests the plan of `train`.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the request.
    pub async fn plan(&self, train: &Train) -> Result<Plan, Error> {
        plan(&self.transport, train).await
    }

    /// Receives the batches of one rank and lane, which `train` must select if there are several. Batches are neither verified nor
    /// resumed after a lost connection; see [`Client::train`](crate::Client::train) for both.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the request.
    pub async fn train(&self, train: &Train) -> Result<Batches, Error> {
        self.get(ticket(train)).await
    }

    /// Receives the batches of a ticket of any Flight server.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the ticket.
    pub async fn get(&self, ticket: Bytes) -> Result<Batches, Error> {
        let config = self.transport.config();
        let slabs = Slabs::new(config.idle_slab_bytes);
        let stream =
            TicketStream::open(&self.transport, ticket, StreamSender::default(), slabs, None).await?;
        let schema = Arc::clone(&stream.schema);
        Ok(Batches::receive(stream, schema, config))
    }

    /// Runs an action and returns the bodies of all results.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the action.
    pub async fn action(&self, kind: &str, body: impl Into<Bytes>) -> Result<Vec<Bytes>, Error> {
        self.transport.action(kind, body).await
    }

    /// Opens lookups by key. If their exchange is lost, its requests fail and the next one opens another exchange; see
    /// [`Client::lookup`](crate::Client::lookup) for retries.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the lookup.
    pub async fn lookup(&self, lookup: &Lookup) -> Result<Lookups, Error> {
        Lookups::open(self.route(), lookup).await
    }

    /// Opens a caller of the batch queue `queue`.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the caller.
    pub async fn infer(&self, queue: &str) -> Result<Caller, Error> {
        Caller::open(self.route(), queue).await
    }

    /// Opens a worker of the batch queue `queue`. `credits` is the number of batches in flight; 0 selects 2.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the worker.
    pub async fn worker(&self, queue: &str, credits: u64) -> Result<Worker, Error> {
        Worker::open(self.route(), queue, credits).await
    }

    fn route(&self) -> Route {
        Route::One(self.transport.clone())
    }
}
