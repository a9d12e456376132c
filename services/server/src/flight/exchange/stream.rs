//! State that all kinds of DoExchange streams share.

use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::Schema;
use forebay_inference::Answer;
use forebay_proto::{Encoding, code_name, v1::Failure};
use futures::stream::BoxStream;
use tonic::{Code, Status};

use crate::{
    Error,
    auth::Access,
    callers::{Charge, MessageCharges, Resource},
    flight::Context,
    services::Services,
    traces::Trace,
};

/// Messages of a stream, in either direction.
pub(in crate::flight) type Messages = BoxStream<'static, Result<FlightData, Status>>;

/// Returns true if a status says that a message is longer than the limit.
pub(super) fn is_too_long(status: &Status) -> bool {
    status.code() == Code::OutOfRange
}

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
    /// Charges `bytes` bytes. Waits while the caller holds too much, up to the time in which it must receive its other answers.
    ///
    /// # Errors
    /// Busy, if the caller holds too much after that time; unavailable, if the server stops.
    pub(super) async fn charge(&mut self, bytes: u64) -> Result<Charge, Error> {
        let Services { callers, limits, drain, .. } = &self.context.services;
        let caller = self.access.caller();
        let charge = callers.take_within(limits.receive_timeout, &caller, Resource::UnsentBytes, bytes);
        drain.unless_interrupted(charge).await?
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

/// Returns the failure of one request of a stream that continues.
pub(super) fn from_error(error: &Error) -> Failure {
    Failure {
        code: code_name(error.grpc_code()).to_owned(),
        message: error.message().to_owned(),
        retry_after_seconds: error.retry_after_seconds().map(f64::from),
    }
}
