//! Record batches encoded as Flight messages.

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{DataType, Schema, SchemaRef};
use bytes::Bytes;

use super::request_body::framed;
use crate::Error;

/// An encoded record batch.
pub(crate) struct EncodedRows {
    /// Schema of the rows.
    pub(crate) schema: SchemaRef,
    message: FlightData,
}

impl EncodedRows {
    /// Encodes `rows`.
    ///
    /// # Errors
    /// [`Error::Request`] if a column is dictionary-encoded.
    pub(crate) fn new(rows: &RecordBatch) -> Result<Self, Error> {
        let is_dictionary = |data_type: &DataType| matches!(data_type, DataType::Dictionary(..));
        let schema = rows.schema();
        if let Some(field) = schema.flattened_fields().iter().find(|field| is_dictionary(field.data_type())) {
            let name = field.name();
            return Err(Error::Request(format!(
                "column '{name}' is dictionary-encoded, expected plain values; cast it first"
            )));
        }
        let (options, mut tracker) = (IpcWriteOptions::default(), DictionaryTracker::new(false));
        let encoded =
            IpcDataGenerator::default().encode(rows, &mut tracker, &options, &mut IpcWriteContext::default());
        let (_, message) =
            encoded.map_err(|error| Error::Request(format!("can't encode the rows: {error}")))?;
        Ok(Self { schema, message: message.into() })
    }

    /// Returns the message of the rows, with `metadata`.
    pub(crate) fn message(&self, metadata: impl Into<Bytes>) -> FlightData {
        FlightData { app_metadata: metadata.into(), ..self.message.clone() }
    }
}

/// The schema that was sent in one direction of a DoExchange stream. It precedes the first rows, and all rows must have it.
#[derive(Default)]
pub(crate) struct SentSchema {
    schema: Option<SchemaRef>,
}

impl SentSchema {
    /// Returns the schema; `None` if none was sent.
    pub(crate) fn get(&self) -> Option<&SchemaRef> {
        self.schema.as_ref()
    }

    /// Forgets the schema, so that the next rows may have another one.
    pub(crate) fn reset(&mut self) {
        self.schema = None;
    }

    /// Returns the framed schema message that must precede rows of `schema`; `None` if it was sent before.
    ///
    /// # Errors
    /// [`Error::Request`] if `schema` differs from the schema of earlier rows.
    pub(crate) fn message_before(&mut self, schema: &SchemaRef) -> Result<Option<Bytes>, Error> {
        match &self.schema {
            Some(sent) if sent.fields() == schema.fields() => Ok(None),
            Some(sent) => Err(Error::Request(format!(
                "the rows have columns {}; this exchange began with {}",
                describe(schema),
                describe(sent)
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

fn describe(schema: &Schema) -> String {
    let fields = schema.fields().iter();
    let fields: Vec<_> = fields
        .map(|field| {
            let null = if field.is_nullable() { "" } else { " not null" };
            format!("{} {}{null}", field.name(), field.data_type())
        })
        .collect();
    fields.join(", ")
}
