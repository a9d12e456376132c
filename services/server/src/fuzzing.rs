//! Entry points of fuzz targets (`fuzz` in the repository). Not part of the API.

mod routes;

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use bytes::Bytes;

use crate::flight::BatchReader;

pub use routes::{Answer, Routes};

/// Decodes the messages of one stream of lookup keys, each a header and a body. Returns the batches up to the first error, and
/// the message of that error.
pub fn keys(
    messages: impl IntoIterator<Item = (Bytes, Bytes)>,
    max_rows: usize,
) -> (Vec<RecordBatch>, Option<String>) {
    let (mut reader, mut batches) = (BatchReader::new("keys"), Vec::new());
    for (header, body) in messages {
        let message = FlightData::new().with_data_header(header).with_data_body(body);
        match reader.read(&message, max_rows) {
            Ok(batch) => batches.extend(batch),
            Err(error) => return (batches, Some(error.message().into())),
        }
    }
    (batches, None)
}
