//! The Open Inference Protocol over a queue: clients of Triton and KServe ask a queue like a model.
//!
//! The inputs of a request are the key columns and the request columns, its outputs the columns of the worker's reply.

mod tensors;

use std::{collections::HashSet, sync::Arc, time::Duration};

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Fields, Schema};
use forebay_inference::queue::{Class, Priority};
use forebay_loader::WireBatch;
use forebay_proto::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse,
    ModelReadyRequest, infer_parameter::ParameterChoice, model_infer_request::InferRequestedOutputTensor,
};
use prost::Message;
use tonic::Response;

use super::{Context, call_layer::charged, packed::pack_columns};
use crate::{
    Error,
    auth::Access,
    callers::Resource,
    readiness,
    registry::queues::Served,
    traces::{Trace, number},
};

/// Maximum number of outputs that a request names. A request for all columns of the reply names none.
const MAX_OUTPUTS: usize = 1024;

/// Part of a request that its answer needs. The inputs, which are larger, are dropped before the request waits.
struct Expected {
    model_name: String,
    id: String,
    /// Names of the outputs; empty for all.
    outputs: Vec<String>,
    /// True if the values of the outputs are raw, as those of the inputs.
    is_raw: bool,
}

impl From<ModelInferRequest> for Expected {
    fn from(request: ModelInferRequest) -> Self {
        Self {
            model_name: request.model_name,
            id: request.id,
            outputs: request.outputs.into_iter().map(|output| output.name).collect(),
            is_raw: !request.raw_input_contents.is_empty(),
        }
    }
}

impl Expected {
    /// Size in bytes.
    fn bytes(&self) -> u64 {
        let outputs: usize = self.outputs.iter().map(|name| size_of::<String>() + name.len()).sum();
        (self.model_name.len() + self.id.len() + outputs) as u64
    }
}

/// Returns the queue that a request names as its model.
///
/// # Errors
/// Not found, if there is no such queue for the caller, or the request names a version: a queue has none.
fn queue(context: &Context, access: &Access, model: &str, version: &str) -> Result<Arc<Served>, Error> {
    let served = context.services.queues.get(model, access)?;
    if version.is_empty() {
        return Ok(served);
    }
    Err(Error::not_found(format!(
        "queue '{model}' has no version '{version}'; queues have no versions, expected an empty model version"
    )))
}

/// Describes the inputs of a queue and, after the first reply of a worker, its outputs.
pub(super) async fn metadata(
    context: &Context,
    access: &Access,
    model: ModelMetadataRequest,
) -> Result<Response<ModelMetadataResponse>, Error> {
    let served = queue(context, access, &model.name, &model.version)?;
    let lookup = context.services.online.lookup_of(&context.services.datasets, access, &served).await?;
    let inputs = context.key_schema(&lookup, served.reads(), served.request_columns.schema())?;
    let inputs = inputs.fields().iter().map(|field| {
        tensors::metadata(field).ok_or_else(|| {
            let (name, data_type) = (field.name(), field.data_type());
            Error::unsupported(format!(
                "the key column '{name}' is of type {data_type}, which the protocol does not have"
            ))
        })
    });
    let outputs = served.reply_schema();
    let outputs = outputs.iter().flat_map(|schema| schema.fields().iter());
    let metadata = ModelMetadataResponse {
        inputs: inputs.collect::<Result<_, Error>>()?,
        outputs: outputs.filter_map(|field| tensors::metadata(field)).collect(),
        name: model.name,
        versions: Vec::new(),
        platform: "forebay".to_owned(),
    };
    // The message and its encoded form.
    let bytes = 2 * metadata.encoded_len() as u64;
    let charge = context.services.callers.take(&access.caller(), Resource::UnsentBytes, bytes)?;
    Ok(charged(metadata, charge))
}

/// Answers a request through the queue that it names as its model.
pub(super) async fn infer(
    context: &Context,
    access: &Access,
    trace: Option<Trace>,
    request: ModelInferRequest,
) -> Result<Response<ModelInferResponse>, Error> {
    let caller = access.caller();
    let served = queue(context, access, &request.model_name, &request.model_version)?;
    check_outputs(&request.outputs)?;
    let datasets = &context.services.datasets;
    let failed = |error| datasets.read_error(served.reads(), error);
    let mut lookup = context.services.online.lookup_of(datasets, access, &served).await?;
    let columns = context.key_schema(&lookup, served.reads(), served.request_columns.schema())?;
    let batch = batch(&request, columns.fields())?;
    let (timeout, priority) = (timeout(&request)?, priority(&request)?);
    let expected = Expected::from(request);
    let rows = batch.num_rows() as u64;
    let keys = lookup.encode(&batch).await.map_err(failed)?;
    drop(batch);
    let sizes = (rows, keys.answer_bytes(), keys.memory_bytes());
    if let Some(trace) = &trace {
        trace.note("forebay.queue", expected.model_name.clone());
        trace.note("forebay.rows", number(rows));
    }
    let callers = &context.services.callers;
    let asked = served.queued(callers, caller.clone(), priority, keys, expected.bytes(), trace)?;
    let pending = served.queue.submit_for(Class { tenant: access.tenant(), priority }, asked, sizes, timeout);
    let pending = pending.map_err(|failure| Error::from(&failure))?;
    let answer = context.services.drain.unless_interrupted(pending.answer()).await?;
    let answer = answer.map_err(|failure| Error::from(&failure))?;
    // A token may be revoked while the request waits.
    context.check_access(access, &served.features)?;
    let scored = answer.value;
    let rows = WireBatch::decode(&scored.schema, &scored.rows.data_header, &scored.rows.data_body)?;
    let packed = pack_columns(&selected(&rows, &expected.outputs)?, &scored.rows.data_body)?;
    let (outputs, raw_output_contents) = tensors::outputs(packed, &scored.schema, expected.is_raw)?;
    let snapshot = ParameterChoice::StringParam(scored.features.snapshot.clone());
    let snapshot = InferParameter { parameter_choice: Some(snapshot) };
    let response = ModelInferResponse {
        model_name: expected.model_name,
        model_version: String::new(),
        id: expected.id,
        parameters: [("snapshot".to_owned(), snapshot)].into(),
        outputs,
        raw_output_contents,
    };
    // The message and its encoded form. The charge of the rows would count against the share of a caller with nothing else.
    drop(scored.charge);
    let bytes = 2 * response.encoded_len() as u64;
    let charge = callers.take(&caller, Resource::UnsentBytes, bytes)?;
    Ok(charged(response, charge))
}

/// True if the queue has a worker, and its datasets are loaded.
pub(super) fn is_queue_ready(
    context: &Context,
    access: &Access,
    model: &ModelReadyRequest,
) -> Result<bool, Error> {
    let served = queue(context, access, &model.name, &model.version)?;
    Ok(readiness::is_queue_ready(&context.services, &served))
}

/// Checks the names of the outputs of a request, because the response has a copy of a column for each name.
///
/// # Errors
/// Invalid, if there are more than [`MAX_OUTPUTS`] names, or two equal ones.
fn check_outputs(outputs: &[InferRequestedOutputTensor]) -> Result<(), Error> {
    if outputs.len() > MAX_OUTPUTS {
        let found = outputs.len();
        return Err(Error::invalid(format!(
            "outputs: names {found} outputs, expected at most {MAX_OUTPUTS}"
        )));
    }
    let mut names = HashSet::with_capacity(outputs.len());
    for InferRequestedOutputTensor { name, .. } in outputs {
        if !names.insert(name) {
            return Err(Error::invalid(format!(
                "outputs: '{name}' is named twice, expected each output once"
            )));
        }
    }
    Ok(())
}

/// Decodes the inputs of a request, one for each of `columns`.
fn batch(request: &ModelInferRequest, columns: &Fields) -> Result<RecordBatch, Error> {
    let names = || columns.iter().map(|field| format!("'{}'", field.name())).collect::<Vec<_>>().join(", ");
    let (inputs, raw) = (&request.inputs, &request.raw_input_contents);
    if !raw.is_empty() && raw.len() != inputs.len() {
        return Err(Error::invalid(format!(
            "raw_input_contents: has {} entries, expected {}, one for each input",
            raw.len(),
            inputs.len()
        )));
    }
    if let Some(unknown) = inputs.iter().find(|input| columns.iter().all(|field| *field.name() != input.name))
    {
        return Err(Error::invalid(format!(
            "inputs: there is no input '{}', expected {}",
            unknown.name,
            names()
        )));
    }
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for field in columns {
        let name = field.name();
        let mut found = inputs.iter().enumerate().filter(|(_, input)| input.name == *name);
        let (Some((at, input)), None) = (found.next(), found.next()) else {
            return Err(Error::invalid(format!("inputs: expected each of {} once", names())));
        };
        let array = tensors::column(input, raw.get(at), field.data_type())?;
        fields.push(Field::new(name, array.data_type().clone(), true));
        arrays.push(array);
    }
    let schema = Arc::new(Schema::new(fields));
    RecordBatch::try_new_with_options(schema, arrays, &RecordBatchOptions::new())
        .map_err(|error| Error::invalid(format!("inputs: {error}; expected as many rows in each")))
}

/// Timeout of a request: its parameter `timeout`, in microseconds, as in Triton.
fn timeout(request: &ModelInferRequest) -> Result<Option<Duration>, Error> {
    let Some(parameter) = request.parameters.get("timeout") else { return Ok(None) };
    let invalid = || Error::invalid("parameters.timeout: expected microseconds of 0 or more, as an integer");
    let microseconds = match parameter.parameter_choice {
        Some(ParameterChoice::Int64Param(value)) => u64::try_from(value).map_err(|_| invalid())?,
        Some(ParameterChoice::Uint64Param(value)) => value,
        _ => return Err(invalid()),
    };
    Ok((microseconds > 0).then(|| Duration::from_micros(microseconds)))
}

/// Priority of a request: its parameter `priority`, as in Triton with two levels. 1 is the default, 2 is low.
fn priority(request: &ModelInferRequest) -> Result<Priority, Error> {
    let Some(parameter) = request.parameters.get("priority") else { return Ok(Priority::Normal) };
    match parameter.parameter_choice {
        Some(ParameterChoice::Int64Param(0 | 1) | ParameterChoice::Uint64Param(0 | 1)) => {
            Ok(Priority::Normal)
        }
        Some(ParameterChoice::Int64Param(2) | ParameterChoice::Uint64Param(2)) => Ok(Priority::Low),
        _ => Err(Error::invalid("parameters.priority: expected 0 or 1 (normal) or 2 (low), as an integer")),
    }
}

/// The columns `wanted`; all if none is named.
fn selected(rows: &RecordBatch, wanted: &[String]) -> Result<RecordBatch, Error> {
    if wanted.is_empty() {
        return Ok(rows.clone());
    }
    let schema = rows.schema();
    let places = wanted.iter().map(|name| {
        schema.index_of(name).map_err(|_| {
            let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            Error::invalid(format!("outputs: there is no output '{name}' among {names:?}"))
        })
    });
    rows.project(&places.collect::<Result<Vec<_>, _>>()?).map_err(|error| Error::internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(names: impl IntoIterator<Item = impl Into<String>>) -> Vec<InferRequestedOutputTensor> {
        let output = |name: String| InferRequestedOutputTensor { name, ..Default::default() };
        names.into_iter().map(|name| output(name.into())).collect()
    }

    #[test]
    fn an_output_is_named_at_most_once_and_their_number_is_limited() {
        check_outputs(&outputs([] as [&str; 0])).unwrap();
        check_outputs(&outputs((0..MAX_OUTPUTS).map(|number| number.to_string()))).unwrap();
        for (names, expected) in [
            (vec!["score", "label", "score"], "outputs: 'score' is named twice"),
            (vec!["", ""], "outputs: '' is named twice"),
            (vec!["score"; MAX_OUTPUTS + 1], "outputs: names 1025 outputs, expected at most 1024"),
        ] {
            let error = check_outputs(&outputs(names)).unwrap_err();
            assert_eq!(error.grpc_code(), tonic::Code::InvalidArgument);
            assert!(error.message().starts_with(expected), "{error}");
        }
    }

    #[test]
    fn the_answer_needs_the_id_and_the_names_of_the_outputs_which_are_counted() {
        let request = ModelInferRequest {
            model_name: "ranker".to_owned(),
            id: "x".repeat(1000),
            outputs: outputs(["score", "label"]),
            raw_input_contents: vec![vec![0_u8; 1 << 20].into()],
            ..ModelInferRequest::default()
        };
        let expected = Expected::from(request);
        assert_eq!(expected.outputs, ["score", "label"]);
        assert!(expected.is_raw);
        assert_eq!(expected.bytes(), 1016 + 2 * size_of::<String>() as u64);
    }
}
