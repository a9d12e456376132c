//! The copy-only baseline: a server that cycles through prepared batches, with Forebay's framing.
//!
//! All batches together exceed four times the last-level cache, so that each is read from memory, like a batch that was
//! gathered from a large table.

use std::{convert::Infallible, iter::once, sync::Arc};

use anyhow::{Context, bail};
use arrow_flight::{FlightData, Ticket, utils::batches_to_flight_data};
use axum::{Router, extract::Request, routing::post};
use bytes::{BufMut, Bytes, BytesMut};
use forebay_proto::{Encoding, v1};
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use prost::{Message, encoding::encode_varint};
use tonic::{Status, body::Body};

use super::stock::{TicketContent, serve};
use crate::{data::Dataset, machine::Machine, scenario::Scenario, source::Source, table};

const CACHES: u64 = 4;
/// Upper bound for machines with very large caches, in bytes.
const MAX_BYTES: u64 = 4 << 30;

/// Frames of all batches of an epoch.
struct Epoch {
    schema: Bytes,
    /// Header and body of each prepared batch.
    whole: Vec<[Bytes; 2]>,
    /// Last batch of the epoch, if it is shorter.
    short: Option<[Bytes; 2]>,
    /// Whole batches per epoch.
    count: u64,
}

/// Serves until standard input ends.
pub(crate) fn run(source: &Source) -> anyhow::Result<()> {
    let (scenario, data) = source.load()?;
    let epoch = Arc::new(Epoch::prepare(&scenario, &data)?);
    let answer = move |request: Request| {
        let epoch = Arc::clone(&epoch);
        async move { answer(epoch, request).await.unwrap_or_else(Status::into_http) }
    };
    let router = Router::new().route("/arrow.flight.protocol.FlightService/DoGet", post(answer));
    serve(router.into())
}

impl Epoch {
    fn prepare(scenario: &Scenario, data: &Dataset) -> anyhow::Result<Self> {
        let (rows, batch_rows) = (data.sizes.rows, scenario.batch_size);
        let bytes_per_row = data.sizes.epoch_bytes(&scenario.request)? / rows.max(1);
        let wanted = (CACHES * Machine::this().last_level_cache_bytes).min(MAX_BYTES);
        let batches = (wanted / (bytes_per_row * batch_rows).max(1) + 1).min(rows / batch_rows).max(1);
        let table = table::load(&data.path, &scenario.request, (batches * batch_rows) as usize)?;
        let framed = |first: u64, rows: u64| {
            let batch = table.slice(first as usize, rows as usize);
            let data = batches_to_flight_data(&batch.schema(), vec![batch])?;
            let [schema, .., batch] = data.as_slice() else { bail!("a batch was not encoded") };
            anyhow::Ok((schema_frame(schema)?, batch_frames(batch, rows)?))
        };
        let mut epoch =
            Self { schema: Bytes::new(), whole: Vec::new(), short: None, count: rows / batch_rows };
        let mut place = 0;
        // Batches of small tables are copied until the total exceeds the caches.
        let mut total = 0;
        while epoch.count > 0 && total < wanted {
            let (schema, frames) = framed(place % batches * batch_rows, batch_rows)?;
            total += frames[1].len().max(1) as u64;
            epoch.schema = schema;
            epoch.whole.push(frames);
            place += 1;
        }
        if !rows.is_multiple_of(batch_rows) {
            let (schema, frames) = framed(0, rows % batch_rows)?;
            (epoch.schema, epoch.short) = (schema, Some(frames));
        }
        Ok(epoch)
    }

    /// Returns the frames of `epochs` epochs. The prepared batches alternate, also from one epoch to the next.
    fn frames(self: Arc<Self>, epochs: u64) -> impl Iterator<Item = Bytes> {
        let schema = self.schema.clone();
        let batches = (0..epochs).flat_map(move |pass| {
            let (epoch, short) = (Arc::clone(&self), self.short.clone());
            let numbers = pass * epoch.count..(pass + 1) * epoch.count;
            let whole = numbers.map(move |number| epoch.whole[number as usize % epoch.whole.len()].clone());
            whole.chain(short)
        });
        once(schema).chain(batches.flatten())
    }
}

async fn answer(epoch: Arc<Epoch>, request: Request) -> Result<http::Response<Body>, Status> {
    let body = request.into_body().collect().await.map_err(|error| Status::internal(error.to_string()))?;
    let invalid = |error: &dyn std::fmt::Display| Status::invalid_argument(error.to_string());
    let body = body.to_bytes();
    let message = body.get(5..).ok_or_else(|| invalid(&"no message"))?;
    let ticket = Ticket::decode(message).map_err(|error| invalid(&error))?;
    let ticket: TicketContent = serde_json::from_slice(&ticket.ticket).map_err(|error| invalid(&error))?;
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let frames = epoch.frames(ticket.epochs).map(Frame::data).chain(once(Frame::trailers(trailers)));
    let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
    let response = http::Response::builder().header(http::header::CONTENT_TYPE, "application/grpc");
    response.body(Body::new(body)).map_err(|error| Status::internal(error.to_string()))
}

fn schema_frame(data: &FlightData) -> anyhow::Result<Bytes> {
    let mut frame = BytesMut::new();
    put_prefix(&mut frame, data.encoded_len())?;
    data.encode(&mut frame)?;
    Ok(frame.freeze())
}

/// Returns header and body of one message, with Forebay's framing.
fn batch_frames(data: &FlightData, rows: u64) -> anyhow::Result<[Bytes; 2]> {
    let metadata = Encoding::Protobuf.encode(&v1::BatchMetadata { rows, ..v1::BatchMetadata::default() });
    let mut fields = BytesMut::new();
    put_tag(&mut fields, 2, data.data_header.len());
    fields.put_slice(&data.data_header);
    put_tag(&mut fields, 3, metadata.len());
    fields.put_slice(&metadata);
    put_tag(&mut fields, 1000, data.data_body.len());
    let mut header = BytesMut::new();
    put_prefix(&mut header, fields.len() + data.data_body.len())?;
    header.put_slice(&fields);
    Ok([header.freeze(), data.data_body.clone()])
}

fn put_prefix(out: &mut BytesMut, length: usize) -> anyhow::Result<()> {
    out.put_u8(0);
    out.put_u32(length.try_into().context("a message over 4 GiB")?);
    Ok(())
}

fn put_tag(out: &mut BytesMut, number: u64, length: usize) {
    const LENGTH_DELIMITED: u64 = 2;
    encode_varint(number << 3 | LENGTH_DELIMITED, out);
    encode_varint(length as u64, out);
}
