//! Uploads of sets of values: large sets of several tokens, sets that are not what was announced, uploads that never end, and trainings whose
//! filters refer to large sets.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use arrow_array::Int64Array;
use arrow_flight::{FlightData, FlightDescriptor};
use bytes::Bytes;
use forebay_client::{Client, Config, Token, ValueSet};
use forebay_proto::{
    Encoding,
    v1::{PutValues, Train},
};
use prost::Message;

use super::{messages::framed, unread::Sent};

/// Number of tokens of the attacker.
pub(super) const TOKENS: usize = 4;
/// Values of a large set: it has almost the permitted size.
const VALUES: i64 = 4_000_000;
/// Size of the parts of an upload, in bytes.
const PART_BYTES: usize = 512 << 10;
/// Time for which an upload stays incomplete.
const HELD: Duration = Duration::from_secs(4);
const PUT: &str = "/arrow.flight.protocol.FlightService/DoPut";

/// Name of token `number` of the attacker.
pub(super) fn token(name: &str, number: usize) -> String {
    format!("{name}-{}", number % TOKENS)
}

/// Makes one attack, which `seed` selects.
///
/// # Errors
/// The refusals of the server.
pub(super) async fn attack(grpc: SocketAddr, name: &str, train: Train, seed: u64) -> anyhow::Result<()> {
    let token = token(name, usize::try_from(seed)?);
    // Each set is another one.
    let first = (seed as i64).wrapping_mul(VALUES);
    let set = ValueSet::new(&Int64Array::from_iter_values(first..first.wrapping_add(VALUES)))?;
    let encoded = set.encoded();
    match seed / TOKENS as u64 % 4 {
        0 => upload(set.sha256(), encoded.len(), encoded).answered(grpc, &token).await,
        1 => upload(&"0".repeat(64), encoded.len(), encoded).answered(grpc, &token).await,
        2 => {
            let part = encoded.slice(..PART_BYTES);
            upload(set.sha256(), encoded.len(), &part).open(grpc, &token, HELD).await
        }
        _ => {
            let config = Config {
                token: Some(Token::new(token)),
                retry_deadline: Duration::from_secs(1),
                ..Config::default()
            };
            let client = Client::new([format!("http://{grpc}")], config)?.with_values([set.clone()]);
            // Each test is of another type, so that it has values of its own.
            let tests: Vec<_> =
                (0..30).map(|scale| format!("CAST(id AS DECIMAL(38, {scale})) IN (:ids)")).collect();
            let train =
                Train { filter: tests.join(" OR "), values: vec![set.named("ids")], steps: 1, ..train };
            let mut training = client.train(&train).await?;
            training.next().await.context("the stream has no batch")??;
            Ok(())
        }
    }
}

/// An upload of a part of a set, which is announced with this hash and size.
fn upload(sha256: &str, bytes: usize, part: &Bytes) -> Sent {
    let command = PutValues { sha256: sha256.to_owned(), bytes: bytes as u64 };
    let descriptor = FlightDescriptor::new_cmd(Encoding::Json.encode(&command));
    let first = FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() };
    let parts = part.chunks(PART_BYTES).map(|part| FlightData::new().with_data_body(part.to_vec()));
    let messages = std::iter::once(first).chain(parts).map(|message| framed(&message.encode_to_vec()));
    Sent::post(PUT, messages.collect::<Vec<_>>().concat().into())
}
