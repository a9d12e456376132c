//! Record batches as messages of Flight.

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{DataType, Schema, SchemaRef};
use bytes::Bytes;

use crate::{Error, messages::framed};

/// The message of a batch, without metadata.
///
/// # Errors
/// [`Error::Request`] for a batch with dictionaries.
pub(crate) fn message(batch: &RecordBatch) -> Result<FlightData, Error> {
    let is_dictionary = |data_type: &DataType| matches!(data_type, DataType::Dictionary(..));
    let schema = batch.schema_ref();
    if let Some(field) = schema.flattened_fields().iter().find(|field| is_dictionary(field.data_type())) {
        let name = field.name();
        return Err(Error::Request(format!("column '{name}' holds a dictionary, expected its values")));
    }
    let (options, mut tracker) = (IpcWriteOptions::default(), DictionaryTracker::new(false));
    let encoded =
        IpcDataGenerator::default().encode(batch, &mut tracker, &options, &mut IpcWriteContext::default());
    let (_, batch) = encoded.map_err(|error| Error::Request(format!("can't send the rows: {error}")))?;
    Ok(batch.into())
}

/// The schema that the batches of one direction of an exchange have; sent before the first of them.
#[derive(Default)]
pub(crate) struct Sent {
    schema: Option<SchemaRef>,
}

impl Sent {
    /// The message that has to go before a batch of `schema`, if one has.
    ///
    /// # Errors
    /// [`Error::Request`] when it differs from that of earlier batches.
    pub(crate) fn before(&mut self, schema: &SchemaRef) -> Result<Option<Bytes>, Error> {
        match &self.schema {
            Some(sent) if sent.fields() == schema.fields() => Ok(None),
            Some(sent) => Err(Error::Request(format!(
                "the rows have columns {}; this exchange began with {}",
                words(schema),
                words(sent)
            ))),
            None => {
                let message =
                    framed(&FlightData::from(SchemaAsIpc::new(schema, &IpcWriteOptions::default())))?;
                self.schema = Some(SchemaRef::clone(schema));
                Ok(Some(message))
            }
        }
    }
}

fn words(schema: &Schema) -> String {
    let fields = schema.fields().iter();
    let fields: Vec<_> = fields
        .map(|field| {
            let null = if field.is_nullable() { "" } else { " not null" };
            format!("{} {}{null}", field.name(), field.data_type())
        })
        .collect();
    fields.join(", ")
}
