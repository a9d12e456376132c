//! DoPut: stores a set of values that filters refer to.

use std::time::Duration;

use arrow_flight::{FlightData, PutResult};
use bytes::{Bytes, BytesMut};
use chrono::Utc;
use forebay_loader::{Flow, MAX_SET_BYTES, Priority, ValueSet};
use forebay_proto::{
    Encoding,
    v1::{PutValues, PutValuesResult},
};
use tokio::time::Instant;
use tonic::{Status, Streaming};

use super::{Context, incoming::Charging};
use crate::{
    Error,
    auth::Access,
    callers::{Charge, Resource},
    connections::size_limit,
};

/// Maximum size of a message besides its part of the set, in bytes.
const MESSAGE_BYTES: u64 = 64 << 10;

/// Receives a set of values, whose descriptor is a [`PutValues`], and stores it.
///
/// # Errors
/// Unimplemented without a command; invalid, if the set does not have the announced size and hash, or is not in its canonical form; a
/// limit, if it is too large or the caller has stored too much.
pub(super) async fn store(
    context: &Context,
    access: &Access,
    charging: &Charging,
    mut messages: Streaming<FlightData>,
) -> Result<PutResult, Status> {
    let services = &context.services;
    let drain = &services.drain;
    let limit = services.limits.request_timeout;
    let mut deadline = Deadline::of(limit);
    let mut first = next(context, &mut messages, &deadline)
        .await?
        .ok_or_else(|| Error::invalid("the stream is empty; expected a first message with a descriptor"))?;
    let descriptor = first.flight_descriptor.take().unwrap_or_default();
    if descriptor.cmd.is_empty() {
        return Err(Status::unimplemented(
            "DoPut stores sets of values, expected the command {\"sha256\": HASH, \"bytes\": SIZE}; datasets are read from their own location",
        ));
    }
    let encoding = Encoding::of(&descriptor.cmd);
    let PutValues { sha256, bytes } = encoding.decode("PutValues", &descriptor.cmd).map_err(Error::from)?;
    if bytes > MAX_SET_BYTES {
        return Err(Error::limit(format!(
            "the set of values has {bytes} bytes, the limit is {MAX_SET_BYTES}"
        ))
        .into());
    }
    let caller = access.caller();
    // The set, and a message that was received and not added to it. If each message waited for room, several sets could wait for each
    // other.
    let most = bytes.saturating_add(MESSAGE_BYTES).min(services.limits.max_request_bytes as u64);
    let charge = services.callers.take_within(limit, &caller, Resource::IncomingBytes, bytes + most);
    let charge = drain.unless_interrupted(charge).await??;
    charging.as_charged(most);
    deadline = Deadline::of(size_limit(limit, bytes));
    let mut encoded = BytesMut::new();
    let mut message = Some(first);
    while let Some(FlightData { data_body, .. }) = message {
        if (encoded.len() + data_body.len()) as u64 > bytes {
            return Err(Error::invalid(format!(
                "the set of values has more than the announced {bytes} bytes"
            ))
            .into());
        }
        encoded.extend_from_slice(&data_body);
        message = next(context, &mut messages, &deadline).await?;
    }
    if encoded.len() as u64 != bytes {
        let found = encoded.len();
        return Err(Error::invalid(format!(
            "the set of values has {found} bytes, expected the announced {bytes}"
        ))
        .into());
    }
    let encoded = Bytes::from_owner(Charged { encoded, _charge: charge });
    let read = encoded.clone();
    let read = move || ValueSet::read(read.into()).map(|set| (set.sha256().to_owned(), set.len() as u64));
    // On the CPU threads, so that it delays no lookup.
    let (pool, flow) = (services.loader.blocks().pool(), Flow::of(access.tenant()));
    let checked = pool.run_for(flow, Priority::Background, move || Ok(read())).await.map_err(Error::from)?;
    let invalid = |detail| Error::invalid(format!("the set of values is invalid: {detail}"));
    let (found, count) = checked.map_err(invalid)?;
    if found != sha256 {
        return Err(Error::invalid(format!(
            "the set of values has the SHA-256 {found}, expected '{sha256}'"
        ))
        .into());
    }
    services.values.put(access.name().as_deref(), &sha256, encoded, Utc::now()).await?;
    Ok(PutResult { app_metadata: encoding.encode(&PutValuesResult { count }).into() })
}

/// A received set. It counts against the caller's limit of incoming bytes until it is stored, even if the caller disconnects.
struct Charged {
    encoded: BytesMut,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.encoded
    }
}

/// Time by which a set must be complete. Otherwise an upload in many small parts could hold its charge for any time.
struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// The end of `limit` from now on.
    fn of(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }
}

/// Receives the next message, before `deadline`.
async fn next(
    context: &Context,
    messages: &mut Streaming<FlightData>,
    deadline: &Deadline,
) -> Result<Option<FlightData>, Status> {
    let message = tokio::time::timeout_at(deadline.at, messages.message());
    let message = context.services.drain.unless_drained(message).await?;
    message.map_err(|_| {
        Error::timeout(format!(
            "the set of values was not received within {:?}; limits.request_timeout is {:?}",
            deadline.limit, context.services.limits.request_timeout
        ))
    })?
}
