//! Decoding of descriptors and tickets into jobs.

use std::sync::Arc;

use arrow_flight::FlightDescriptor;
use arrow_schema::{Field, Fields, Schema, SchemaRef};
use forebay_inference::Lookup;
use forebay_loader::{Job, check_mixture};
use forebay_proto::{Encoding, v1};
use forebay_storage::Reader;

use super::Context;
use crate::{Error, auth::Access, reads};

/// A requested job, with the rank, lane and encoding of its request.
pub(super) struct RequestedJob {
    pub(super) job: Arc<Job>,
    pub(super) rank: Option<u64>,
    pub(super) lane: Option<u64>,
    pub(super) encoding: Encoding,
}

/// A decoded ticket.
#[expect(clippy::large_enum_variant, reason = "it is moved once, and exists once per call")]
pub(super) enum Wanted {
    /// A lookup whose keys are in the ticket.
    Lookup(v1::Lookup),
    /// A stream of batches.
    Train(v1::Train),
}

/// Decodes a ticket of DoGet.
pub(super) fn decode_ticket(ticket: &[u8]) -> Result<(Wanted, Encoding), Error> {
    let (command, encoding) = decode(ticket)?;
    let wanted = match command {
        v1::Command { lookup: Some(lookup), train: None, infer: None, worker: None } => {
            Wanted::Lookup(lookup)
        }
        command => Wanted::Train(train(command)?),
    };
    Ok((wanted, encoding))
}

fn decode(bytes: &[u8]) -> Result<(v1::Command, Encoding), Error> {
    let encoding = Encoding::of(bytes);
    Ok((encoding.decode("Command", bytes)?, encoding))
}

/// Extracts the request of a command for batches.
fn train(command: v1::Command) -> Result<v1::Train, Error> {
    let v1::Command { train: Some(train), lookup: None, infer: None, worker: None } = command else {
        return Err(Error::invalid(
            "expected a `train` command, {\"train\": {...}}; lookups use DoExchange, or DoGet if the request holds their keys, and \
             queues use DoExchange",
        ));
    };
    if train.dataset.is_empty() {
        return Err(Error::invalid("dataset: is missing, expected the name of a dataset"));
    }
    Ok(train)
}

impl Context {
    /// Decodes a `forebay.v1.Command` for batches and opens its snapshot.
    pub(super) async fn request(
        &self,
        access: &Access,
        bytes: &[u8],
    ) -> Result<(v1::Train, Reader, Encoding), Error> {
        let (command, encoding) = decode(bytes)?;
        let train = train(command)?;
        let reader = self.services.datasets.pinned(access, &train.dataset, &train.snapshot).await?;
        Ok((train, reader, encoding))
    }

    /// Decodes a `forebay.v1.Command` for batches and resolves its job.
    pub(super) async fn job(&self, access: &Access, bytes: &[u8]) -> Result<RequestedJob, Error> {
        let (command, encoding) = decode(bytes)?;
        let train = train(command)?;
        let (rank, lane) = (train.rank, train.lane);
        Ok(RequestedJob { job: self.resolve(access, train).await?, rank, lane, encoding })
    }

    /// Returns the schema of the batches of a `train` command, or of the keys that a `lookup` or `infer` command expects, in the types of
    /// the key columns.
    pub(super) async fn schema_of(&self, access: &Access, bytes: &[u8]) -> Result<SchemaRef, Error> {
        let services = &self.services;
        match decode(bytes)?.0 {
            v1::Command { lookup: Some(wanted), train: None, infer: None, worker: None } => {
                let wanted = v1::Lookup { keys: Vec::new(), ..wanted };
                let lookup = services.online.lookup(&services.datasets, access, &wanted).await?;
                self.key_schema(&lookup, reads::of_lookup(&wanted), &Schema::empty())
            }
            v1::Command { infer: Some(infer), train: None, lookup: None, worker: None } => {
                let served = services.queues.get(&infer.queue, access)?;
                let lookup = services.online.lookup_of(&services.datasets, access, &served).await?;
                self.key_schema(&lookup, served.reads(), served.request_columns.schema())
            }
            _ => Ok(Arc::clone(self.job(access, bytes).await?.job.view().schema())),
        }
    }

    /// Schema of the batches of keys of a lookup in the datasets `reads`: the caller's key columns, then the request columns.
    pub(super) fn key_schema<'a>(
        &self,
        lookup: &Lookup,
        reads: impl IntoIterator<Item = &'a str>,
        request_columns: &Schema,
    ) -> Result<SchemaRef, Error> {
        let keys = lookup.key_columns().map_err(|error| self.services.datasets.read_error(reads, error))?;
        let keys = keys.into_iter().map(|(name, data_type)| Arc::new(Field::new(name, data_type, true)));
        let fields: Fields = keys.chain(request_columns.fields().iter().cloned()).collect();
        Ok(Arc::new(Schema::new(fields)))
    }

    async fn resolve(&self, access: &Access, train: v1::Train) -> Result<Arc<Job>, Error> {
        let reader = self.services.datasets.pinned(access, &train.dataset, &train.snapshot).await?;
        // The mixture is checked before any of its datasets is opened.
        check_mixture(&train)?;
        let mut others = Vec::new();
        for mixed in &train.mix {
            if mixed.dataset.is_empty() {
                return Err(Error::invalid("mix: a dataset has no name"));
            }
            others.push(self.services.datasets.pinned(access, &mixed.dataset, &mixed.snapshot).await?);
        }
        Ok(self.loader(access).job(train, reader, others).await?)
    }

    /// Resolves the job of a ticket, and the rank and lane that the ticket names.
    pub(super) async fn stream(
        &self,
        access: &Access,
        train: v1::Train,
    ) -> Result<(Arc<Job>, u32, u32), Error> {
        let (rank, lane) = (train.rank, train.lane);
        let job = self.resolve(access, train).await?;
        let mut endpoints = job.endpoints(rank, lane);
        let (Some((rank, lane)), None) = (endpoints.next(), endpoints.next()) else {
            let train = job.train();
            let missing = if rank.is_none() && train.world_size() > 1 { "rank" } else { "lane" };
            return Err(Error::invalid(format!(
                "{missing}: is missing; with world_size {} and lanes {} a ticket names one of each",
                train.world_size(),
                train.lanes(),
            )));
        };
        drop(endpoints);
        Ok((job, rank, lane))
    }
}

/// A descriptor of Flight.
pub(super) enum Described<'a> {
    /// An encoded command.
    Command(&'a [u8]),
    /// The name of a dataset.
    Dataset(&'a str),
}

/// Decodes a descriptor.
pub(super) fn described(descriptor: &FlightDescriptor) -> Result<Described<'_>, Error> {
    match descriptor.path.as_slice() {
        [] if descriptor.cmd.is_empty() => Err(Error::invalid(
            "the descriptor is empty; expected a command such as {\"train\": {...}}, or the path of a dataset",
        )),
        [] => Ok(Described::Command(&descriptor.cmd)),
        [name] => Ok(Described::Dataset(name)),
        several => Err(Error::invalid(format!(
            "the descriptor's path has {} parts, expected one, the name of a dataset",
            several.len()
        ))),
    }
}

/// Encodes the ticket of a rank and lane in the encoding of the request.
pub(super) fn ticket(requested: &RequestedJob, rank: u32, lane: u32) -> Vec<u8> {
    let command = v1::Command::from(requested.job.ticket(rank, lane));
    requested.encoding.encode(&command)
}
