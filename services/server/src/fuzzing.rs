//! Entry points of fuzz targets (`fuzz` in the repository) and load tests. Not part of the API.

mod routes;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use bytes::Bytes;

use crate::{
    callers::{Account, Caller, Callers},
    flight::{BatchReader, Received, Wanted, hostile},
};

pub use routes::{Answer, Routes};

/// Arrow messages that are small but would take much memory or time to decode: names of streams, and the messages of each.
pub fn hostile_streams() -> Vec<(&'static str, Vec<FlightData>)> {
    hostile::family()
}

/// Decodes the messages of one stream of lookup keys, each a header and a body. Returns the batches up to the first error, and
/// the message of that error.
pub fn keys(
    messages: impl IntoIterator<Item = (Bytes, Bytes)>,
    max_rows: usize,
) -> (Vec<RecordBatch>, Option<String>) {
    let account = Account::new(&Callers::new(Arc::default()), Caller::Local);
    let mut reader = BatchReader::new("keys", Wanted::All, max_rows, account, true);
    let mut batches = Vec::new();
    for (header, body) in messages {
        let message = FlightData::new().with_data_header(header).with_data_body(body);
        match reader.read_here(&message) {
            Ok(Received::Batch(Ok(rows))) => batches.push(rows.rows),
            Ok(Received::Nothing) => {}
            Ok(Received::Batch(Err(error))) | Err(error) => return (batches, Some(error.message().into())),
        }
    }
    (batches, None)
}
