//! Messages that are small but would take much memory or time to decode: Arrow messages as keys of lookups and as replies of workers, and
//! requests of other methods with many parts.

use std::{net::SocketAddr, sync::Arc, sync::LazyLock, time::Duration};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, StringViewArray};
use arrow_flight::{FlightData, FlightDescriptor, utils::batches_to_flight_data};
use arrow_schema::{DataType, Field, Schema};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use serde_json::json;

use super::unread::{QUEUE, Sent};

/// Time limit of a stream.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Size of a message with many empty fields or paths, in bytes: almost the limit.
const FIELD_BYTES: usize = 15 << 20;
/// Size of a request of the other methods: almost the limit.
const REQUEST_BYTES: usize = (1 << 20) - 1024;
/// Rows of large batches of keys: the limit.
const ROWS: usize = 65_536;
/// Columns of a wide schema, whose header has almost the permitted size.
const WIDE_COLUMNS: usize = 30_000;
/// Levels of lists of a deeply nested column: fewer than the limit.
const LEVELS: usize = 50;

/// Streams of DoExchange: a name, and the messages without the descriptor.
static STREAMS: LazyLock<Vec<(String, Bytes)>> = LazyLock::new(|| {
    let hostile = forebay::fuzzing::hostile_streams().into_iter();
    let arrow = hostile.map(|(name, messages)| (name.to_owned(), stream(&messages)));
    // Empty headers, and a descriptor with empty paths.
    let headers = [0x12, 0].repeat(FIELD_BYTES / 2);
    let paths = [0x1a, 0].repeat(FIELD_BYTES / 2);
    let mut descriptor = vec![0x0a];
    prost::encoding::encode_varint(paths.len() as u64, &mut descriptor);
    descriptor.extend(paths);
    let fields = [("empty headers", headers), ("empty paths", descriptor)];
    let fields = fields.map(|(name, bytes)| (name.to_owned(), framed(&bytes).into()));
    arrow
        .chain(fields)
        .chain(valid().into_iter().map(|(name, messages)| (name.to_owned(), stream(&messages))))
        .collect()
});

/// Large messages that the server decodes, or rejects only after it has decoded them.
fn valid() -> Vec<(&'static str, Vec<FlightData>)> {
    let of = |columns: Vec<(&str, ArrayRef)>| {
        let batch = RecordBatch::try_from_iter(columns).expect("the columns have as many rows");
        batches_to_flight_data(&batch.schema(), vec![batch]).expect("the batch has an encoded form")
    };
    let texts = |bytes: usize| (0..ROWS).map(move |row| format!("{row:0>bytes$}"));
    let name = "n".repeat(3 << 20);
    let deep = (0..LEVELS).fold(DataType::Null, |inner, _| DataType::new_list(inner, true));
    let schema = |fields: Vec<Field>| {
        batches_to_flight_data(&Schema::new(fields), Vec::new()).expect("the schema has an encoded form")
    };
    let wide =
        (0..WIDE_COLUMNS).map(|number| Field::new(number.to_string(), DataType::Int64, true)).collect();
    vec![
        ("long texts", of(vec![("id", Arc::new(StringArray::from_iter_values(texts(230))))])),
        ("long views", of(vec![("id", Arc::new(StringViewArray::from_iter_values(texts(210))))])),
        ("many keys", of(vec![("id", Arc::new(Int64Array::from_iter_values(0..ROWS as i64)))])),
        ("too many keys", of(vec![("id", Arc::new(Int64Array::from_iter_values(0..1_900_000)))])),
        ("a long name", schema(vec![Field::new(name, DataType::Int64, true)])),
        ("deep lists", schema(vec![Field::new("id", deep, true); 1000])),
        ("many columns", schema(wide)),
    ]
}

/// A request whose messages are hostile.
pub(super) struct Hostile {
    /// Name of the messages, and of the method or the kind of stream.
    pub(super) name: String,
    sent: Sent,
    bytes: usize,
}

impl Hostile {
    fn new(name: String, path: &str, body: Bytes) -> Self {
        Self { name, bytes: body.len(), sent: Sent::post(path, body) }
    }

    /// Size of the messages, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Sends the request over a connection of its own. A rejection is what the server should answer.
    pub(super) async fn send(&self, address: SocketAddr, token: &str) {
        drop(tokio::time::timeout(TIMEOUT, self.sent.answered(address, token)).await);
    }
}

/// All hostile requests: each stream as keys of a lookup and as replies of a worker, and requests of the other methods.
pub(super) fn family(dataset: &str) -> Vec<Hostile> {
    let exchanges = STREAMS.iter().flat_map(|(name, messages)| {
        let exchange = |kind: usize, what: &str| {
            Hostile::new(format!("{name}, {what}"), EXCHANGE, begun(dataset, kind, messages).into())
        };
        [exchange(0, "keys"), exchange(1, "reply")]
    });
    let flight = "/arrow.flight.protocol.FlightService";
    let empty = |tag: u8| [tag, 0].repeat(REQUEST_BYTES / 2);
    let descriptor = |command: Vec<u8>| FlightDescriptor::new_cmd(command).encode_to_vec();
    let objects = |field: &str, start: &str, end: &str| {
        let parts = vec!["{}"; REQUEST_BYTES / 3].join(",");
        format!("{{{start}\"{field}\":[{parts}]{end}}}").into_bytes()
    };
    let requests = [
        ("empty inputs", "/inference.GRPCInferenceService/ModelInfer".to_owned(), empty(0x2a)),
        ("empty outputs", "/inference.GRPCInferenceService/ModelInfer".to_owned(), empty(0x32)),
        ("empty joins", "/forebay.v1.Online/Lookup".to_owned(), empty(0x3a)),
        ("empty paths", format!("{flight}/GetFlightInfo"), empty(0x1a)),
        (
            "empty tensors",
            format!("{flight}/GetFlightInfo"),
            descriptor(objects("tensors", "\"train\":{", "}")),
        ),
        (
            "empty joins in JSON",
            format!("{flight}/GetFlightInfo"),
            descriptor(objects("joins", "\"lookup\":{", "}")),
        ),
    ];
    let requests = requests.map(|(name, path, body)| {
        let method = path.rsplit('/').next().unwrap_or_default();
        Hostile::new(format!("{name}, {method}"), &path, framed(&body).into())
    });
    exchanges.chain(requests).collect()
}

const EXCHANGE: &str = "/arrow.flight.protocol.FlightService/DoExchange";

/// Sends the messages of a hostile stream, which `turn` selects, over a connection of its own.
pub(super) async fn send(address: SocketAddr, token: &str, dataset: &str, turn: usize) -> anyhow::Result<()> {
    let (name, messages) = &STREAMS[turn / 2 % STREAMS.len()];
    let body = begun(dataset, turn % 2, messages);
    Hostile::new(name.clone(), EXCHANGE, body.into()).send(address, token).await;
    Ok(())
}

/// A stream of lookups (0) or of a worker (1) with these messages.
fn begun(dataset: &str, kind: usize, messages: &[u8]) -> Vec<u8> {
    let command = match kind {
        0 => json!({ "lookup": { "dataset": dataset } }),
        _ => json!({ "worker": { "queue": QUEUE } }),
    };
    let descriptor = FlightDescriptor::new_cmd(command.to_string().into_bytes());
    let first = FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() };
    [framed(&first.encode_to_vec()), messages.to_vec()].concat()
}

fn stream(messages: &[FlightData]) -> Bytes {
    let messages = messages.iter().map(|message| framed(&message.encode_to_vec()));
    messages.collect::<Vec<_>>().concat().into()
}

/// A gRPC message: a byte, the length and the bytes.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.into()
}
