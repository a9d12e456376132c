//! Arrow messages that are small but would take much memory or time to decode, as keys of lookups and as replies of workers.

use std::{net::SocketAddr, sync::LazyLock, time::Duration};

use arrow_flight::{FlightData, FlightDescriptor};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use serde_json::json;

use super::unread::{QUEUE, Sent};

/// Time limit of a stream.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Size of a message with many empty fields or paths, in bytes.
const FIELD_BYTES: usize = 15 << 20;

/// Messages of each stream, without the descriptor.
static STREAMS: LazyLock<Vec<Bytes>> = LazyLock::new(|| {
    let arrow = forebay::fuzzing::hostile_streams().into_iter().map(|(_, messages)| {
        let messages = messages.iter().map(|message| framed(&message.encode_to_vec()));
        messages.collect::<Vec<_>>().concat().into()
    });
    // Empty headers, and a descriptor with empty paths.
    let headers = [0x12, 0].repeat(FIELD_BYTES / 2);
    let paths = [0x1a, 0].repeat(FIELD_BYTES / 2);
    let mut descriptor = vec![0x0a];
    prost::encoding::encode_varint(paths.len() as u64, &mut descriptor);
    descriptor.extend(paths);
    arrow.chain([framed(&headers).into(), framed(&descriptor).into()]).collect()
});

/// Sends the messages of a hostile stream, which `turn` selects, over a connection of its own.
pub(super) async fn send(address: SocketAddr, token: &str, dataset: &str, turn: usize) -> anyhow::Result<()> {
    let messages = &STREAMS[turn / 2 % STREAMS.len()];
    let command = match turn % 2 {
        0 => json!({ "lookup": { "dataset": dataset } }),
        _ => json!({ "worker": { "queue": QUEUE } }),
    };
    let descriptor = FlightDescriptor::new_cmd(command.to_string().into_bytes());
    let first = FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() };
    let body = [framed(&first.encode_to_vec()), messages.to_vec()].concat();
    let sent = Sent::post("/arrow.flight.protocol.FlightService/DoExchange", body.into());
    // A rejection is what the server should answer.
    drop(tokio::time::timeout(TIMEOUT, sent.answered(address, token)).await);
    Ok(())
}

/// A gRPC message: a byte, the length and the bytes.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.into()
}
