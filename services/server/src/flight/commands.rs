//! From the bytes of a descriptor or ticket to a job.

use std::sync::Arc;

use arrow_flight::FlightDescriptor;
use forebay_loader::{Job, check_mixture};
use forebay_proto::{Encoding, v1};
use forebay_storage::Reader;
use tonic::Status;

use crate::{door::Access, flight::Context, status};

/// A job, and the form in which its caller speaks.
pub(super) struct Asked {
    pub(super) job: Job,
    pub(super) encoding: Encoding,
}

/// The command in `bytes`, and the form in which its caller speaks.
fn decoded(bytes: &[u8]) -> Result<(v1::Command, Encoding), Status> {
    let encoding = Encoding::of(bytes);
    let command = encoding.decode("Command", bytes).map_err(|error| status::of_decode(&error))?;
    Ok((command, encoding))
}

/// The lookup that a ticket asks for, if it asks for one.
pub(super) fn lookup_of(ticket: &[u8]) -> Result<Option<(v1::Lookup, Encoding)>, Status> {
    let (command, encoding) = decoded(ticket)?;
    let v1::Command { lookup: Some(lookup), train: None, infer: None, serve: None } = command else {
        return Ok(None);
    };
    Ok(Some((lookup, encoding)))
}

impl Context {
    /// The request in `bytes`, a `forebay.v1.Command`, and a reader of its snapshot.
    pub(super) async fn request(
        &self,
        access: &Access,
        bytes: &[u8],
    ) -> Result<(v1::Train, Reader, Encoding), Status> {
        let (command, encoding) = decoded(bytes)?;
        let v1::Command { train: Some(train), lookup: None, infer: None, serve: None } = command else {
            return Err(Status::invalid_argument(
                "the command is none for batches; expected {\"train\": {...}}; lookups go over DoExchange, or with their keys \
                 over DoGet, queues over DoExchange",
            ));
        };
        if train.dataset.is_empty() {
            return Err(Status::invalid_argument("dataset: is missing, expected the name of a dataset"));
        }
        let reader = self.datasets.pinned(access, &train.dataset, &train.snapshot).await?;
        Ok((train, reader, encoding))
    }

    /// The job that `bytes` ask for.
    pub(super) async fn job(&self, access: &Access, bytes: &[u8]) -> Result<Asked, Status> {
        let (train, reader, encoding) = self.request(access, bytes).await?;
        // Before any of them is opened.
        check_mixture(&train).map_err(|error| status::of_load(&error))?;
        let mut others = Vec::new();
        for mixed in &train.mix {
            if mixed.dataset.is_empty() {
                return Err(Status::invalid_argument("mix: a dataset has no name"));
            }
            others.push(self.datasets.pinned(access, &mixed.dataset, &mixed.snapshot).await?);
        }
        let job = self.loader.job(train, reader, others).await.map_err(|error| status::of_load(&error))?;
        Ok(Asked { job, encoding })
    }

    /// The stream that `ticket` asks for: a job, and which of its ranks and lanes.
    pub(super) async fn stream(&self, access: &Access, ticket: &[u8]) -> Result<(Asked, u32, u32), Status> {
        let asked = self.job(access, ticket).await?;
        let mut endpoints = asked.job.endpoints();
        let (Some((rank, lane)), None) = (endpoints.next(), endpoints.next()) else {
            let train = asked.job.train();
            let missing = if train.rank.is_none() && train.world_size() > 1 { "rank" } else { "lane" };
            return Err(Status::invalid_argument(format!(
                "{missing}: is missing; with world_size {} and lanes {} a ticket names one of each",
                train.world_size(),
                train.lanes(),
            )));
        };
        Ok((asked, rank, lane))
    }
}

/// The command of a descriptor, or the dataset that its path names.
pub(super) enum Described<'a> {
    Command(&'a [u8]),
    Dataset(&'a str),
}

pub(super) fn described(descriptor: &FlightDescriptor) -> Result<Described<'_>, Status> {
    match descriptor.path.as_slice() {
        [] if descriptor.cmd.is_empty() => Err(Status::invalid_argument(
            "the descriptor is empty; expected a command such as {\"train\": {...}}, or the path of a dataset",
        )),
        [] => Ok(Described::Command(&descriptor.cmd)),
        [name] => Ok(Described::Dataset(name)),
        several => Err(Status::invalid_argument(format!(
            "the descriptor's path has {} parts, expected one, the name of a dataset",
            several.len()
        ))),
    }
}

/// The ticket of one rank and lane, in the caller's form.
pub(super) fn ticket(asked: &Asked, rank: u32, lane: u32) -> Vec<u8> {
    let command = v1::Command::from(asked.job.ticket(rank, lane));
    asked.encoding.encode(&command)
}

impl Asked {
    pub(super) fn into_job(self) -> Arc<Job> {
        Arc::new(self.job)
    }
}
