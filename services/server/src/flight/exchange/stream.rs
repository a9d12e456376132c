//! State that all kinds of DoExchange streams share.

use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::Schema;
use forebay_inference::Answer;
use forebay_proto::Encoding;
use futures::stream::BoxStream;
use tonic::Status;

use crate::{
    Error,
    auth::Access,
    callers::{Charge, MessageCharges, Resource},
    flight::Context,
    traces::Trace,
};

/// Messages of a stream, in either direction.
pub(in crate::flight) type Messages = BoxStream<'static, Result<FlightData, Status>>;

/// A running DoExchange stream.
pub(super) struct Exchange {
    pub(super) context: Context,
    pub(super) access: Access,
    pub(super) encoding: Encoding,
    /// Messages of the client.
    pub(super) messages: Messages,
    pub(super) charge: Charge,
    /// Charges of the answers.
    pub(super) answers: MessageCharges,
    /// Trace of the call, if it is traced.
    pub(super) trace: Option<Trace>,
}

impl Exchange {
    /// Charges the next message, which has `bytes` bytes, until it is sent.
    pub(super) fn charge_next(&self, bytes: usize) -> Result<(), Error> {
        let callers = &self.context.services.callers;
        let charge = callers.take(&self.access.caller(), Resource::UnsentBytes, bytes as u64)?;
        self.answers.charge_next(charge);
        Ok(())
    }
}

/// The message of a schema.
pub(super) fn schema_message(schema: &Schema) -> FlightData {
    SchemaAsIpc::new(schema, &IpcWriteOptions::default()).into()
}

/// The message of an answer.
pub(super) fn message(answer: Answer, metadata: Vec<u8>) -> FlightData {
    FlightData {
        data_header: answer.batch.header,
        app_metadata: metadata.into(),
        data_body: answer.batch.body.into_bytes(),
        ..FlightData::default()
    }
}
