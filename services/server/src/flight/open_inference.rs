//! The Open Inference Protocol over a queue: clients of Triton and KServe ask a queue like a model.
//!
//! The inputs of a request are the key columns and the request columns, its outputs the columns of the worker's reply.

mod tensors;

use std::{sync::Arc, time::Duration};

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};
use forebay_inference::{
    Lookup,
    queue::{Class, Priority},
};
use forebay_loader::WireBatch;
use forebay_proto::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse, ModelMetadataResponse,
    infer_parameter::ParameterChoice,
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

/// Describes the inputs of a queue and, after the first reply of a worker, its outputs.
pub(super) async fn metadata(
    context: &Context,
    access: &Access,
    queue: String,
) -> Result<Response<ModelMetadataResponse>, Error> {
    let served = context.services.queues.get(&queue, access)?;
    let lookup = context.services.online.lookup_of(&context.services.datasets, access, &served).await?;
    let failed = |error| context.services.datasets.stream_error(&served.features.dataset, error);
    let inputs = columns(&lookup, &served).map_err(failed)?;
    let inputs = inputs.iter().map(|field| {
        tensors::metadata(field).ok_or_else(|| {
            let (name, data_type) = (field.name(), field.data_type());
            Error::precondition(format!(
                "the key column '{name}' is of type {data_type}, which the protocol does not have"
            ))
        })
    });
    let outputs = served.reply_schema();
    let outputs = outputs.iter().flat_map(|schema| schema.fields().iter());
    let metadata = ModelMetadataResponse {
        inputs: inputs.collect::<Result<_, Error>>()?,
        outputs: outputs.filter_map(|field| tensors::metadata(field)).collect(),
        name: queue,
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
    let served = context.services.queues.get(&request.model_name, access)?;
    let (datasets, dataset) = (&context.services.datasets, &served.features.dataset);
    let failed = |error| datasets.stream_error(dataset, error);
    let mut lookup = context.services.online.lookup_of(datasets, access, &served).await?;
    let columns = columns(&lookup, &served).map_err(failed)?;
    let keys = batch(&request, &columns)?;
    let rows = keys.num_rows() as u64;
    let keys = lookup.encode(&keys).await.map_err(failed)?;
    let sizes = (rows, keys.answer_bytes(), keys.memory_bytes());
    let (timeout, priority) = (timeout(&request)?, priority(&request)?);
    if let Some(trace) = &trace {
        trace.note("forebay.queue", request.model_name.clone());
        trace.note("forebay.rows", number(rows));
    }
    let asked = served.queued(&context.services.callers, caller.clone(), priority, keys, trace)?;
    let pending = served.queue.submit_for(Class { tenant: access.tenant(), priority }, asked, sizes, timeout);
    let pending = pending.map_err(|failure| Error::from(&failure))?;
    let answer = context.services.drain.unless_interrupted(pending.answer()).await?;
    let answer = answer.map_err(|failure| Error::from(&failure))?;
    // A token may be revoked while the request waits.
    context.check_access(access, &served.features)?;
    let scored = answer.value;
    let rows = WireBatch::decode(&scored.schema, &scored.rows.data_header, &scored.rows.data_body)?;
    let is_raw = !request.raw_input_contents.is_empty();
    let wanted: Vec<&str> = request.outputs.iter().map(|output| output.name.as_str()).collect();
    let packed = pack_columns(&selected(&rows, &wanted)?, &scored.rows.data_body)?;
    let (outputs, raw_output_contents) = tensors::outputs(packed, &scored.schema, is_raw)?;
    let snapshot = ParameterChoice::StringParam(scored.features.snapshot.clone());
    let snapshot = InferParameter { parameter_choice: Some(snapshot) };
    let response = ModelInferResponse {
        model_name: request.model_name,
        model_version: String::new(),
        id: request.id,
        parameters: [("snapshot".to_owned(), snapshot)].into(),
        outputs,
        raw_output_contents,
    };
    // The message and its encoded form. The charge of the rows would count against the share of a caller with nothing else.
    drop(scored.charge);
    let bytes = 2 * response.encoded_len() as u64;
    let charge = context.services.callers.take(&caller, Resource::UnsentBytes, bytes)?;
    Ok(charged(response, charge))
}

/// True if the queue has a worker, and its datasets are loaded.
pub(super) fn is_queue_ready(context: &Context, access: &Access, queue: &str) -> Result<bool, Error> {
    let served: Arc<Served> = context.services.queues.get(queue, access)?;
    Ok(readiness::is_queue_ready(&context.services, &served))
}

/// Inputs of a queue: the columns of the key and the request columns.
fn columns(lookup: &Lookup, served: &Served) -> Result<Vec<Field>, forebay_loader::Error> {
    let keys = lookup.key_columns()?.into_iter().map(|(name, data_type)| Field::new(name, data_type, true));
    let request_columns = served.request_columns.schema().fields().iter();
    Ok(keys.chain(request_columns.map(|field| field.as_ref().clone())).collect())
}

/// Decodes the inputs of a request, one for each of `columns`.
fn batch(request: &ModelInferRequest, columns: &[Field]) -> Result<RecordBatch, Error> {
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
fn selected(rows: &RecordBatch, wanted: &[&str]) -> Result<RecordBatch, Error> {
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
