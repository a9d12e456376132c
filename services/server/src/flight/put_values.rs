//! DoPut: stores a set of values that filters refer to.

use arrow_flight::{FlightData, PutResult};
use bytes::BytesMut;
use chrono::Utc;
use forebay_loader::{MAX_SET_BYTES, ValueSet};
use forebay_proto::{
    Encoding,
    v1::{PutValues, PutValuesResult},
};
use tonic::{Status, Streaming};

use super::{Context, incoming::Unlimited};
use crate::{Error, auth::Access, callers::Resource};

/// Receives a set of values, whose descriptor is a [`PutValues`], and stores it.
///
/// # Errors
/// Unimplemented without a command; invalid, if the set does not have the announced size and hash, or is not in its canonical form; a
/// limit, if it is too large or the caller has stored too much.
pub(super) async fn store(
    context: &Context,
    access: &Access,
    unlimited: &Unlimited,
    mut messages: Streaming<FlightData>,
) -> Result<PutResult, Status> {
    let services = &context.services;
    let limit = services.limits.request_timeout;
    let mut first = next(context, &mut messages)
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
    let _charge = services.callers.take_within(limit, &caller, Resource::IncomingBytes, bytes).await?;
    // All messages are charged. If each one waited for room, several sets could wait for each other.
    unlimited.set();
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
        message = next(context, &mut messages).await?;
    }
    if encoded.len() as u64 != bytes {
        let found = encoded.len();
        return Err(Error::invalid(format!(
            "the set of values has {found} bytes, expected the announced {bytes}"
        ))
        .into());
    }
    let encoded = encoded.freeze();
    let read = encoded.clone();
    let read = move || ValueSet::read(read.into()).map(|set| (set.sha256().to_owned(), set.len() as u64));
    let (found, count) = services
        .online
        .work(access, encoded.len(), read)
        .await?
        .map_err(|detail| Error::invalid(format!("the set of values {detail}")))?;
    if found != sha256 {
        return Err(Error::invalid(format!(
            "the set of values has the SHA-256 {found}, expected '{sha256}'"
        ))
        .into());
    }
    services.values.put(access.name().as_deref(), &sha256, &encoded, Utc::now()).await?;
    Ok(PutResult { app_metadata: encoding.encode(&PutValuesResult { count }).into() })
}

/// Receives the next message, within the time limit of a request.
async fn next(context: &Context, messages: &mut Streaming<FlightData>) -> Result<Option<FlightData>, Status> {
    let limit = context.services.limits.request_timeout;
    let message = tokio::time::timeout(limit, messages.message());
    let message = context.services.drain.unless_drained(message).await?;
    message.map_err(|_| {
        Error::timeout(format!(
            "received no part of the set of values within {limit:?} (limits.request_timeout)"
        ))
    })?
}
